"""python -m tests.mutants.fresh FAULT FILE TEST...: runs tests of an EPL that is imported with a fault.

Of what happens when a file is imported, which forks of a process with EPL do not see. FILE gets the test that fails.
"""

import os
import sys
from importlib.machinery import SourceFileLoader

import pytest

from tests.helpers.processes import REPOSITORY
from tests.mutants import faults
from tests.mutants.forked import FirstFailure


def main(name, file, *tests):
    fault, source = faults.planted_under(name, REPOSITORY)
    path, planted, as_it_is = os.path.join(REPOSITORY, fault.path), fault.planted_in(source), SourceFileLoader.get_code

    def get_code(loader, fullname):
        if os.path.realpath(loader.get_filename(fullname)) == os.path.realpath(path):
            return compile(planted, path, "exec", dont_inherit=True)
        return as_it_is(loader, fullname)

    SourceFileLoader.get_code = get_code
    options = ["-x", "-q", "-s", "-p", "no:cacheprovider", "--durations=0", "--durations-min=9999"]
    return pytest.main(options + list(tests), plugins=[FirstFailure(file)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
