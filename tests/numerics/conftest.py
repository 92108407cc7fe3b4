"""The processes in which the programs of these tests run."""
import pytest

from tests.helpers.remote import Job


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """Calls programs with plain TensorFlow; returns what the program returned."""
    job = Job(tmp_path_factory.mktemp("plain"), plain=True)
    yield lambda *args, **kwargs: job(*args, **kwargs)[0]
    job.stop()


@pytest.fixture(scope="session")
def _jobs(tmp_path_factory):
    jobs = {}
    folder = tmp_path_factory.mktemp("jobs")
    yield lambda devices: jobs.setdefault(devices, Job(folder, 1, devices))
    for job in jobs.values():
        job.stop()


@pytest.fixture(scope="session")
def two_devices(_jobs):
    """Calls programs with EPL in one process with two devices; returns what the program returned."""
    return lambda *args, **kwargs: _jobs(2)(*args, **kwargs)[0]


@pytest.fixture(scope="session")
def four_devices(_jobs):
    """The same with four devices."""
    return lambda *args, **kwargs: _jobs(4)(*args, **kwargs)[0]
