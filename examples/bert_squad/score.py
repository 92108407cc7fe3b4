"""Exact match and F1 as SQuAD defines them.

    python score.py dev.json predictions.json

The predictions are a JSON object of question id to answer, "" for "there is none".
"""

import argparse
import collections
import json
import re
import string

from squad import SquadFile

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer):
    """Small letters, without ASCII punctuation and English articles, one blank between words."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction, gold):
    """1.0 if the two are the same once normalised, else 0.0."""
    return float(normalise(prediction) == normalise(gold))


def f1(prediction, gold, version_2=False):
    """Harmonic mean of the parts of either's words that the other has too, between 0.0 and 1.0.

    Args:
      prediction, gold: texts.
      version_2: whether two answers of which no word is left agree, as in SQuAD 2.0; in 1.1 they do not.
    """
    ours, theirs = normalise(prediction).split(), normalise(gold).split()
    if version_2 and not (ours and theirs):
        return float(ours == theirs)
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2.0 * common / (len(ours) + len(theirs)) if common else 0.0


def _golds(question, version_2):
    """The answers that count."""
    texts = [text for text, _ in question.answers]
    if version_2:
        return [text for text in texts if normalise(text)] or [""]
    if not texts:
        raise ValueError("question %s has no gold answer, so there is nothing to score against" % question.id)
    return texts


def score(file, predictions):
    """The scores of predictions, for each question the best over its gold answers.

    Args:
      file: a SquadFile.
      predictions: dict of question id to text; a question that is missing counts 0.

    Returns:
      dict of "exact_match" and "f1" in percent of all questions of the file, "total" and "missing", which count
      questions.
    """
    exact = total_f1 = 0.0
    missing = 0
    for question in file.questions:
        if question.id not in predictions:
            missing += 1
            continue
        answer, golds = predictions[question.id], _golds(question, file.version_2)
        exact += max(exact_match(answer, gold) for gold in golds)
        total_f1 += max(f1(answer, gold, file.version_2) for gold in golds)
    total = len(file.questions)
    return {
        "exact_match": 100.0 * exact / total,
        "f1": 100.0 * total_f1 / total,
        "total": total,
        "missing": missing,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="questions with gold answers, in SQuAD format")
    parser.add_argument("predictions", help="JSON object of question id to answer")
    arguments = parser.parse_args()
    with open(arguments.predictions, encoding="utf-8") as source:
        print(json.dumps(score(SquadFile(arguments.file), json.load(source))))


if __name__ == "__main__":
    main()
