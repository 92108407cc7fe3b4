"""`import epl` gives all public names, and loads TensorFlow only when one is used."""

import os
import re
import runpy
import subprocess
import sys
import tarfile

import pytest
from packaging.requirements import Requirement

from tests.helpers.processes import REPOSITORY


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


def test_dir_shows_public_names_alone():
    assert run("print(sorted(set(dir(epl)) ^ set(epl.__all__)))") == "[]\n"


def test_version_has_the_name_of_old_too():
    assert run("print(epl.VERSION == epl.__version__, 'tensorflow' in sys.modules)") == "True False\n"


def test_the_graph_of_old_says_what_to_take():
    assert "tf.get_default_graph()" in run("try: epl.Graph\nexcept AttributeError as error: print(error)")


def test_other_names_are_refused():
    assert "no attribute 'inti'" in run("try: epl.inti\nexcept AttributeError as error: print(error)")


@pytest.mark.parametrize("version, fits", [("3.6", 0), ("3.7", 3), ("3.8", 0), ("3.9", 1), ("3.11", 1), ("3.12", 0)])
def test_python_versions_that_do_not_fit_are_asked_for_nothing_that_they_cannot_have(version, fits):
    """So that pip comes as far as to say which versions fit."""
    with open(os.path.join(REPOSITORY, "pyproject.toml"), encoding="utf-8") as file:
        needed = [Requirement(text) for text in re.findall(r'^  "(.*?)",', file.read(), re.MULTILINE)]
    libraries = [each for each in needed if each.name not in ("setuptools", "wheel")]
    assert len(libraries) == 4
    assert sum(each.marker.evaluate({"python_version": version}) for each in libraries) == fits


def test_the_page_of_the_index_links_to_no_files():
    with open(os.path.join(REPOSITORY, "setup.py"), encoding="utf-8") as file:
        source = file.read()
    names = {"re": re}
    exec(source[source.index("def without_links_to_files") : source.index("\n\nTF1")], names)
    with open(os.path.join(REPOSITORY, "README.md"), encoding="utf-8") as file:
        page = names["without_links_to_files"](file.read())
    assert re.findall(r"\]\((?!https?://)[^)]*\)", page) == []
    assert (
        "[less memory]" not in page
        and "less memory" in page
        and "a [page](https://x)" == names["without_links_to_files"]("a [page](https://x)")
    )


def read(*path):
    with open(os.path.join(REPOSITORY, *path), encoding="utf-8") as file:
        return file.read()


@pytest.mark.once
@pytest.mark.skipif(
    not os.path.exists(os.path.join(REPOSITORY, ".git")), reason="needs the list of files of a checkout"
)
def test_the_source_distribution_has_everything(tmp_path):
    """Docs, examples, tests and what builds, checks and runs them."""
    own = str(tmp_path)
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", own, "sdist", "-d", own, "--formats=tar"]
    subprocess.run(
        command, cwd=REPOSITORY, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    (archive,) = tmp_path.glob("*.tar")
    with tarfile.open(str(archive)) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout.decode()
    folders = ("benchmarks/", "csrc/", "docs/", "epl/", "examples/", "requirements/", "scripts/", "tests/")
    wanted = {name for name in listed.splitlines() if name.startswith(folders) and not name.endswith(".gitignore")}
    wanted |= {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "Makefile"}
    assert sorted(name for name in wanted - packed if os.path.exists(os.path.join(REPOSITORY, name))) == []
    assert not [name for name in packed if name.endswith((".pyc", ".so"))]


@pytest.mark.once
def test_versions_are_said_alike():
    version = re.search(r'__version__ = "(.*)"', read("epl", "version.py")).group(1)
    assert re.search(r"(?m)^version: (.*)$", read("CITATION.cff")).group(1) == version
    assert re.search(r"(?m)^## (\S+)", read("CHANGELOG.md")).group(1) == version
    hooks, pinned = read(".pre-commit-config.yaml"), read("requirements", "lint.txt")
    for tool, repository in (("ruff", "ruff-pre-commit"), ("clang-format", "mirrors-clang-format")):
        rev = re.search(repository + r"\n\s+rev: v(\S+)", hooks).group(1)
        assert "\n%s==%s\n" % (tool, rev) in pinned


@pytest.mark.once
def test_a_release_says_its_version_everywhere():
    released = runpy.run_path(os.path.join(REPOSITORY, "scripts", "release.py"))["released"]
    before = {
        "CHANGELOG.md": "# Changes\n\n## 1.2.0 (unreleased)\n\n- New.\n\n## 1.1.0 (2025-01-01)\n\n- Old.\n",
        "CITATION.cff": "title: EPL\nversion: 1.1.0\ndate-released: 2025-01-01\n",
        "epl/version.py": '"""Version."""\n\n__version__ = "1.1.0"\n',
    }
    after = released(before, "1.2.0", "2026-05-31")
    assert after == {
        "CHANGELOG.md": before["CHANGELOG.md"].replace("unreleased", "2026-05-31"),
        "CITATION.cff": "title: EPL\nversion: 1.2.0\ndate-released: 2026-05-31\n",
        "epl/version.py": '"""Version."""\n\n__version__ = "1.2.0"\n',
    }
    with pytest.raises(ValueError, match=r"has to begin with '## 1.3.0 \(unreleased\)'"):
        released(before, "1.3.0", "2026-05-31")
