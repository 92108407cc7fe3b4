"""What programs do around the training of a pipeline over workers: resume, save in several ways, use several graphs."""

import os

import numpy as np
import pytest

from tests.helpers.checks import assert_same_state, assert_same_training, pairs
from tests.numerics.test_pipelines import ATOL

SESSIONS = "tests.helpers.programs.pipeline_sessions:"
REFUSED = "tests.helpers.programs.refused:refusal"


def test_a_monitored_session_resumes_all_stages(by_hand, two_workers, tmp_path):
    want = by_hand("tied_mlp", 2, 1)
    folder, losses, states = str(tmp_path), [], []
    for until in (2, 5):
        (first, after), (others, same) = two_workers(SESSIONS + "resumes", folder, "tied_mlp", 2, 2, until)
        assert first == others
        for one, other in pairs(after, same):
            assert_same_state(one, other, 0, 0)
        losses, states = losses + first, states + after
    assert_same_training({"losses": losses, "states": states}, want, atol=ATOL)


@pytest.mark.parametrize("how", ["chief", "late", "two", "sharded", "bare"])
def test_savers(plain, two_workers, tmp_path, how):
    one, other = two_workers(SESSIONS + "saves", str(tmp_path), how)
    assert_same_state(one, other, 0, 0)
    tensors, kept = plain("tests.helpers.programs.sessions:read_checkpoint", str(tmp_path))
    assert kept[-1] == "model-3"
    assert_same_state(tensors, one, 0, 0)
    assert all(name == "checkpoint" or name.startswith("model-") for name in os.listdir(str(tmp_path)))


@pytest.mark.parametrize("workers", [2, 3])
def test_several_graphs_in_a_process(by_hand, jobs, workers):
    models = ["batch_norm_cnn", "tied_mlp"]  # the second one has messages that skip a stage
    results = jobs[workers, 1](SESSIONS + "graphs_in_turn", models, workers, 2)
    assert len(results) == workers
    for index, model in enumerate(models):
        want = by_hand(model, 2, 1)["losses"][:3]
        for got in results:
            np.testing.assert_allclose(got[index], want, rtol=1e-5)


def test_a_last_read_after_the_chief_has_begun_anew(two_workers):
    one, other = two_workers(SESSIONS + "reads_after_the_chief_has_begun_anew")
    assert one == other and one[-1] == 2


@pytest.mark.parametrize(
    "program, words",
    [
        ("object_checkpoint_over_workers", "tf.train.Checkpoint cannot save a model whose stages"),
        ("resume_from_a_folder_of_its_own", "worker 1 does not find, but has to take the variables of its stages from"),
        (
            "restore_by_the_chief_alone",
            "from worker 1, in which its stage of the model lies, but worker 0 has given it a value",
        ),
        ("read_of_what_only_the_chief_has", "which the graph of worker 1 does not have"),
    ],
)
def test_refused(two_workers, tmp_path, program, words):
    more = [] if program.startswith("read") else [str(tmp_path)]
    found = two_workers(REFUSED, program, *more)
    assert all(words in message for _, message in found), found
