"""Fixtures of all tests. TensorFlow is imported by the tests that need it, not here."""
import os

import pytest

from tests.helpers import processes, zoo_results


@pytest.fixture(autouse=True)
def no_foreign_cluster(monkeypatch):
    """Variables that a launcher or a shell has set do not reach the tests."""
    for key in processes.foreign_variables(os.environ):
        monkeypatch.delenv(key)


@pytest.fixture(scope="session")
def zoo_runs(request, tmp_path_factory):
    """What the cases of the zoo left. All selected tests together say which cases run, so each layout starts once."""
    results = zoo_results.Results(tmp_path_factory.mktemp("zoo"))
    for item in request.session.items:
        if "zoo_runs" in getattr(item, "fixturenames", ()) and hasattr(item, "callspec"):
            case, layout = item.callspec.params["case"], item.callspec.params.get("layout", zoo_results.PLAIN)
            results.want(layout, case)
    return results
