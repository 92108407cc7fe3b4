"""Makes a release: its version in all places, a commit, wheels and the source package in dist/, a tag.

    python scripts/release.py 0.2.0

Nothing is uploaded. The tag is made last, when the wheels of both lines have trained in fresh environments; until then
`git reset --hard HEAD~1` takes everything back.
"""

import datetime
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VERSION = re.compile(r"\d+\.\d+\.\d+(?:rc\d+)?")


def released(texts, version, date):
    """The files that say a version, as they are in its release.

    Args:
      texts: {path: text} of CHANGELOG.md, CITATION.cff and epl/version.py.
      version: the new one, such as "0.2.0".
      date: of the release, "2026-05-31".

    Returns:
      The same with new texts.

    Raises:
      ValueError: the changelog does not begin with changes of this version that are not released yet.
    """
    head = "## %s (unreleased)\n" % version
    first = re.search(r"^## .*\n", texts["CHANGELOG.md"], re.MULTILINE)
    if first is None or first.group(0) != head:
        raise ValueError(
            "CHANGELOG.md has to begin with '%s' and what has changed, but its first heading is %r."
            % (head.strip(), first.group(0).strip() if first else None)
        )
    citation = re.sub(r"(?m)^version: .*$", "version: %s" % version, texts["CITATION.cff"])
    citation = re.sub(r"(?m)^date-released: .*\n", "", citation)
    return {
        "CHANGELOG.md": texts["CHANGELOG.md"].replace(head, "## %s (%s)\n" % (version, date), 1),
        "CITATION.cff": citation.replace(
            "version: %s\n" % version, "version: %s\ndate-released: %s\n" % (version, date)
        ),
        "epl/version.py": re.sub(r'__version__ = ".*"', '__version__ = "%s"' % version, texts["epl/version.py"]),
    }


def _run(*command):
    print("+ " + " ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def _output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout.decode("utf-8").strip()


def _read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as text:
        return text.read()


def main(arguments):
    if len(arguments) != 1 or not VERSION.fullmatch(arguments[0]):
        sys.exit("usage: python scripts/release.py VERSION, which is three numbers with points, such as 0.2.0")
    version = arguments[0]
    if _output("git", "status", "--porcelain"):
        sys.exit("There are changes that are not committed. Commit or remove them: a release is what is committed.")
    if _output("git", "tag", "--list", "v" + version):
        sys.exit("There is a tag v%s already. Choose a later version." % version)
    files = ("CHANGELOG.md", "CITATION.cff", "epl/version.py")
    try:
        texts = released({path: _read(path) for path in files}, version, datetime.date.today().isoformat())
    except ValueError as error:
        sys.exit(str(error))
    for path, text in texts.items():
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
            file.write(text)
    _run("git", "commit", "-q", "-m", "Version %s" % version, *files)
    os.environ["STRICT"] = "1"  # a release has both lines
    _run("make", "wheels")
    _run(sys.executable, "setup.py", "-q", "sdist", "-d", "dist")
    _run("git", "tag", "-a", "v" + version, "-m", "Version %s" % version)
    print(
        "dist/ has the wheels and the source package of v%s. To publish: git push --follow-tags, twine upload" % version
    )


if __name__ == "__main__":
    main(sys.argv[1:])
