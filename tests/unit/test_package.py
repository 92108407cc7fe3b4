"""`import epl` gives all public names, and loads TensorFlow only when one is used."""

import subprocess
import sys

import pytest


def run(code):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import sys, epl\n" + code],
        timeout=120,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_package_alone_loads_no_tensorflow():
    assert (
        run("import epl.launch.main, epl.config, epl.cluster\nprint(epl.__version__[0], 'tensorflow' in sys.modules)")
        == "0 False\n"
    )


@pytest.mark.parametrize("how", ["[getattr(epl, name) for name in epl.__all__]", "from epl import *"])
def test_public_names(how):
    assert (
        run("exec(%r)\nprint(all(name in dir(epl) for name in epl.__all__), epl.init.__module__)" % how)
        == "True epl.api\n"
    )


def test_version_has_the_name_of_old_too():
    assert run("print(epl.VERSION == epl.__version__, 'tensorflow' in sys.modules)") == "True False\n"


def test_the_graph_of_old_says_what_to_take():
    assert "tf.get_default_graph()" in run("try: epl.Graph\nexcept AttributeError as error: print(error)")


def test_other_names_are_refused():
    assert "no attribute 'inti'" in run("try: epl.inti\nexcept AttributeError as error: print(error)")
