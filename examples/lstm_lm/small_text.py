"""Writes a small English text to try the example with: the descriptions of scikit-learn's data sets.

They come with scikit-learn, so nothing is downloaded. One paragraph in ten becomes the validation text.
"""

import argparse
import os
import re

import sklearn.datasets

PARAGRAPHS_FOR_ONE = 10  # one of so many is kept for validation


def paragraphs():
    """The descriptions' paragraphs in lower case, each a list of lines; signs are words of their own."""
    folder = os.path.join(os.path.dirname(sklearn.datasets.__file__), "descr")
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".rst"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found.extend(re.split(r"\n\s*\n", file.read().lower()))
    lines = [[" ".join(re.findall(r"\w+|[^\w\s]", line)) for line in each.splitlines()] for each in found]
    return [[line for line in each if line] for each in lines]


def write(path, found):
    with open(path, "w", encoding="utf-8") as file:
        for lines in found:
            file.writelines(line + "\n" for line in lines)
    print("Wrote %d words to %s." % (sum(len(line.split()) for lines in found for line in lines), path))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="data", help="where train.txt and valid.txt go (default: data)")
    args = parser.parse_args()

    os.makedirs(args.folder, exist_ok=True)
    found = paragraphs()
    write(os.path.join(args.folder, "valid.txt"), found[::PARAGRAPHS_FOR_ONE])
    del found[::PARAGRAPHS_FOR_ONE]
    write(os.path.join(args.folder, "train.txt"), found)


if __name__ == "__main__":
    main()
