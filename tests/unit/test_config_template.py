"""epl-launch --write_config: a file to begin with, which is valid as it is and with every key of it set."""

import pytest
import yaml

from epl.config.config import Config
from epl.config.keys import keys
from epl.config.template import OFTEN, template
from epl.launch.main import main

pytestmark = pytest.mark.once
NAMES = [name for _, names in OFTEN for name in names]


def test_as_it_is_it_sets_nothing(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(template("run.yaml"))
    assert Config.from_yaml(str(path), {}) == Config({}, {})


@pytest.mark.parametrize("name", NAMES)
def test_a_line_without_its_mark_sets_the_default(name, tmp_path):
    text = template("run.yaml")
    line = next(line for line in text.splitlines() if line.startswith("#%s: " % name))
    default = keys()[name].default
    assert yaml.safe_load(line[1:]) == {name: list(default) if isinstance(default, tuple) else default}
    (tmp_path / "run.yaml").write_text(text.replace(line, line[1:]))
    assert Config.from_yaml(str(tmp_path / "run.yaml"), {}) == Config({}, {})


def test_every_key_has_its_meaning_above_it():
    text = template("run.yaml")
    flat = " ".join(line[2:] for line in text.splitlines() if line.startswith("# "))
    for name in NAMES:
        assert keys()[name].doc in flat
    assert max(map(len, text.splitlines())) <= 120 and len(set(NAMES)) == len(NAMES)


def test_the_launcher_writes_it_once(tmp_path, capsys):
    path = str(tmp_path / "run.yaml")
    assert main(["--write_config", path]) == 0
    assert capsys.readouterr().out == "wrote %s: set keys in it, then epl-launch --config %s ...\n" % (path, path)
    (tmp_path / "run.yaml").write_text("mine")
    assert main(["--write_config", path]) == 2
    assert "--write_config %s: there is such a file already." % path in capsys.readouterr().err
    assert (tmp_path / "run.yaml").read_text() == "mine"
