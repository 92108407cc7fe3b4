"""From the logits of all windows of a question to its answer, a part of the original text."""

import collections

import numpy as np

# score: sum of the two logits; begin, end: characters of the context.
Span = collections.namedtuple("Span", "score begin end")


def window_spans(window, pieces, start_logits, end_logits, n_best, longest):
    """The spans that a window may answer with.

    Args:
      window: a squad.Window.
      pieces: the Pieces of the paragraph.
      start_logits, end_logits: [length] each.
      n_best: how many of the best beginnings and of the best ends are paired.
      longest: pieces of the longest answer.

    Returns:
      Spans that lie in the text, are in order and short enough, and begin where this window shows more of the text
      around than any other.
    """
    found = []
    size = len(window.owned)
    best_ends = _best(end_logits, n_best)
    for start in _best(start_logits, n_best):
        first = start - window.lead
        if not 0 <= first < size or not window.owned[first]:
            continue
        for end in best_ends:
            last = end - window.lead
            if first <= last < min(size, first + longest):
                score = float(start_logits[start]) + float(end_logits[end])
                found.append(Span(score, pieces[window.begin + first].begin, pieces[window.begin + last].end))
    return found


def _best(logits, count):
    """Places of the largest logits, the largest first; of equals the first."""
    return [int(place) for place in np.argsort(-np.asarray(logits), kind="stable")[:count]]


def choose(context, spans, no_answer, n_best, threshold=0.0):
    """The answer to a question.

    Args:
      context: the text of the paragraph.
      spans: Spans of all windows.
      no_answer: the smallest score that any window gives to its [CLS], or None where every question has an answer.
      n_best: how many answers are kept.
      threshold: by how much "no answer" must score more than the best answer to be chosen.

    Returns:
      dict of "answer" (text, "" for none) and "n_best": a list of dicts with "text", "score" and "probability" among
      these, the best first; "no answer" is among them where it is allowed.
    """
    kept = collections.OrderedDict()
    for span in sorted(spans, key=lambda span: (-span.score, span.begin, span.end)):
        text = context[span.begin : span.end]
        if text not in kept:
            kept[text] = span.score
        if len(kept) == n_best:
            break
    best = next(iter(kept), "")
    if no_answer is not None:
        if not kept or no_answer - kept[best] > threshold:
            best = ""
        kept[""] = no_answer
    ranked = sorted(kept.items(), key=lambda item: -item[1])  # stable
    scores = np.array([score for _, score in ranked])
    odds = np.exp(scores - scores.max()) if ranked else scores
    return {
        "answer": best,
        "n_best": [
            {"text": text, "score": score, "probability": float(part)}
            for (text, score), part in zip(ranked, odds / odds.sum())
        ],
    }


def no_answer_score(start_logits, end_logits):
    """What a window gives to "the answer is not here": the logits of its first input, the [CLS]."""
    return float(start_logits[0]) + float(end_logits[0])
