"""From a text to what the network reads: words, their numbers, rows of text, windows. No TensorFlow, no EPL."""

import collections

import numpy as np

END = "<eos>"  # stands at the end of each line
UNKNOWN = "<unk>"


def read_words(path):
    """All words of a text file in UTF-8, each line followed by END."""
    words = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            words.extend(line.split())
            words.append(END)
    return words


def make_vocabulary(words, size):
    """dict of word to number: UNKNOWN and the `size` - 1 most frequent words. The same text gives the same numbers."""
    counts = collections.Counter(word for word in words if word != UNKNOWN)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: size - 1]
    return {word: number for number, word in enumerate([UNKNOWN] + frequent)}


def to_numbers(words, vocabulary):
    """int32 [number of words]."""
    unknown = vocabulary[UNKNOWN]
    return np.array([vocabulary.get(word, unknown) for word in words], np.int32)


def to_rows(numbers, rows):
    """Cuts a text into `rows` pieces of the same length that lie under each other: [rows, words of a row].

    What is left over at the end (fewer than `rows` words) is dropped.
    """
    length = len(numbers) // rows
    return numbers[: rows * length].reshape(rows, length)


def share_of(rows, workers, index):
    """The rows that worker `index` of `workers` reads.

    Raises:
      ValueError: the rows do not divide evenly.
    """
    if len(rows) % workers:
        raise ValueError(
            "--batch_size=%d rows cannot be divided evenly over %d workers; choose a multiple of %d."
            % (len(rows), workers, workers)
        )
    each = len(rows) // workers
    return rows[index * each : (index + 1) * each]


def count_windows(rows, length):
    """How many windows of `length` words there are, each with the word after it."""
    return (rows.shape[1] - 1) // length


def window(rows, number, length):
    """(words, the words after them), both int32 [rows, length]. Window `number` + 1 goes on where this one ends."""
    start = number * length
    return rows[:, start : start + length], rows[:, start + 1 : start + length + 1]
