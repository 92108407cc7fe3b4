"""The user's secret, for jobs that were started without a token."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from epl.cluster import job_secret
from epl.errors import ClusterError

pytestmark = pytest.mark.once


def test_made_once_for_all_workers(tmp_path):
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: job_secret.token_of(("a:1", "b:1"), environ), range(32)))
    assert len(tokens) == 1
    assert job_secret.token_of(("a:1", "c:1"), environ) not in tokens
    file = job_secret.path(environ)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert os.listdir(os.path.dirname(file)) == ["job_secret"]  # no temporary file is left


def test_where_it_is_without_a_folder_for_configuration():
    assert job_secret.path({}) == os.path.expanduser("~/.config/epl/job_secret")


def test_one_that_others_can_read_is_refused(tmp_path):
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    job_secret.token_of(("a",), environ)
    os.chmod(job_secret.path(environ), 0o644)
    with pytest.raises(ClusterError, match="others can read or own it. Remove it.*EPL_JOB_TOKEN"):
        job_secret.token_of(("a",), environ)


@pytest.mark.parametrize("content", [b"", b"\n", b"short"])
def test_one_that_can_be_guessed_is_refused(tmp_path, content):
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    job_secret.token_of(("a",), environ)
    with open(job_secret.path(environ), "wb") as file:
        file.write(content)
    with pytest.raises(ClusterError, match="has %d bytes; at least 16 are wanted.*Remove it" % len(content.strip())):
        job_secret.token_of(("a",), environ)


def test_a_link_is_not_followed(tmp_path):
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    os.makedirs(str(tmp_path / "epl"))
    (tmp_path / "known").write_text("known to all")
    os.symlink(str(tmp_path / "known"), job_secret.path(environ))
    with pytest.raises(ClusterError, match="cannot be used.*EPL_JOB_TOKEN"):
        job_secret.token_of(("a",), environ)


def test_no_place_for_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match="this user's secret .* cannot be used.*openssl rand"):
        job_secret.token_of(("a",), {"XDG_CONFIG_HOME": str(tmp_path / "file")})
