"""All-reduce of float32 at the C interface against OpenMPI over shared memory, in one run.

`python benchmarks/all_reduce/run.py [--ranks 2] [--rounds 3] [--in-place] [--fresh] [--backend shm] [--realtime]`

Builds both programs (`mpicc` and `mpirun` from Debian's openmpi-bin and libopenmpi-dev), runs them in turn, and prints
the best of the rounds for each size: microseconds of a blocking call (`epl_comm_run`), of a call through the queue and
the progress thread (`epl_comm_submit`, as TensorFlow kernels use it), of blocking calls whose outputs, or inputs and
outputs, lie in memory that the ranks share (`epl_comm_allocate`), of `MPI_Allreduce`, and ratios. The percentages are
the time that a memory-to-memory copy of the bytes that must move would take, divided by the time of the call before.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIBRARY = os.path.join(ROOT, "epl", "communicators", "lib")
LIMIT_S = 600


def build_epl(folder):
    """Builds the program `epl` in the folder."""
    if not os.path.exists(os.path.join(LIBRARY, "libepl_comm.so")):
        sys.exit("epl/communicators/lib/libepl_comm.so is not built; run `make csrc`")
    subprocess.run(
        [
            os.environ.get("CXX", "g++"),
            "-O2",
            "-std=c++17",
            "-I" + os.path.join(ROOT, "csrc", "comm"),
            "-I" + os.path.join(ROOT, "csrc", "tests"),
            os.path.join(HERE, "epl_all_reduce.cc"),
            "-L" + LIBRARY,
            "-lepl_comm",
            "-Wl,-rpath," + LIBRARY,
            "-pthread",
            "-o",
            os.path.join(folder, "epl"),
        ],
        check=True,
        timeout=LIMIT_S,
    )


def build_mpi(folder):
    """Builds the program `mpi` in the folder; False where there is no OpenMPI."""
    if shutil.which("mpicc") is None:
        print("mpicc is missing (apt-get install openmpi-bin libopenmpi-dev): no comparison")
        return False
    subprocess.run(
        ["mpicc", "-O2", os.path.join(HERE, "mpi_all_reduce.c"), "-o", os.path.join(folder, "mpi")],
        check=True,
        timeout=LIMIT_S,
    )
    return True


def measure(command):
    """Runs a program; returns {bytes: [microseconds, ...]}."""
    environ = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    text = subprocess.run(command, check=True, timeout=LIMIT_S, stdout=subprocess.PIPE, env=environ).stdout.decode()
    lines = [line.split() for line in text.splitlines() if line and line[0].isdigit()]
    return {int(line[0]): [float(x) for x in line[1::2]] for line in lines}


def mpi_command(folder, ranks):
    """Starts the program `mpi`, each rank on a core of its own where there are enough."""
    binding = "core" if ranks <= os.cpu_count() else "none"
    return ["mpirun", "--oversubscribe", "--bind-to", binding, "-np", str(ranks), os.path.join(folder, "mpi")]


def best(runs):
    """The smallest value of each column over several runs."""
    return {size: [min(column) for column in zip(*(run[size] for run in runs))] for size in runs[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", default="shm")
    parser.add_argument("--in-place", action="store_true", help="in and out are the same buffer")
    parser.add_argument("--fresh", action="store_true", help="epl: every rank writes its input before each call")
    parser.add_argument(
        "--realtime", action="store_true", help="chrt -f 10 for all programs: for a machine with other load"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build_epl(folder)
        compare = build_mpi(folder)
        tail = ["in_place"] if args.in_place else []
        fresh = ["fresh"] if args.fresh else []
        head = ["chrt", "-f", "10"] if args.realtime else []
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(measure(head + [os.path.join(folder, "epl"), str(args.ranks), args.backend] + tail + fresh))
            if compare:
                theirs.append(measure(head + mpi_command(folder, args.ranks) + tail))
    ours, theirs = best(ours), best(theirs) if compare else {}
    print(
        "%10s %10s %6s %10s %10s %6s %10s %6s %10s %12s"
        % ("bytes", "epl us", "", "queued us", "outputs us", "", "both us", "", "openmpi us", "epl/openmpi")
    )
    for size, (blocking, queued, outputs, both, copy) in sorted(ours.items()):
        mpi = theirs[size][0] if theirs else float("nan")
        # Every rank must get the shares of the others and their results: 2 (n - 1) / n times the message.
        bound = 2.0 * (args.ranks - 1) / args.ranks * copy
        share = ["%.0f%%" % (100 * bound / took) for took in (blocking, outputs, both)]
        print(
            "%10d %10.2f %6s %10.2f %10.2f %6s %10.2f %6s %10.2f %12.2f"
            % (size, blocking, share[0], queued, outputs, share[1], both, share[2], mpi, blocking / mpi)
        )


if __name__ == "__main__":
    main()
