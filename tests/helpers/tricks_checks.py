"""The comparison of tests.helpers.programs.tricks with one device."""

from tests.helpers.checks import assert_same_training

TRICKS = "tests.helpers.programs.tricks:"


def check(plain, job, names, config=None):
    want = plain(TRICKS + "train", names)
    for got in job(TRICKS + "train", names, config):
        wrong = []
        for name in names:
            try:
                assert_same_training(got[name], want[name])
            except AssertionError as error:
                wrong.append("%s: %s" % (name, error))
        assert not wrong, "\n".join(wrong)
