"""Compiles the Python files named on standard input, one a line, with the Python that runs this; writes nothing."""

import sys


def main():
    failures = 0
    names = [name for name in sys.stdin.read().splitlines() if name]
    for name in names:
        with open(name, "rb") as source:
            try:
                compile(source.read(), name, "exec", dont_inherit=True)
            except SyntaxError as error:
                failures += 1
                print("%s:%s: %s" % (name, error.lineno, error.msg))
    print("%d files, %d with errors, Python %d.%d" % ((len(names), failures) + sys.version_info[:2]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
