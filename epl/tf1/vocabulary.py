"""`tf.contrib.learn.preprocessing.VocabularyProcessor`: texts to ids of their words."""

import collections
import itertools
import pickle
import re

import numpy as np
import tensorflow.compat.v1 as tf

# Words, numbers and single signs, as one by one they follow in a text.
TOKENIZER_RE = re.compile(r"[A-Z]{2,}(?![a-z])|[A-Z][a-z]+(?=[A-Z])|[\'\w\-]+", re.UNICODE)


def tokenizer(iterator):
    """Yields the words of each text."""
    for text in iterator:
        yield TOKENIZER_RE.findall(text)


class CategoricalVocabulary(object):
    """Ids of words; id 0 is that of all unknown ones.

    Args:
      unknown_token: what id 0 is shown as.
      support_reverse: keep the words by id too.
    """

    def __init__(self, unknown_token="<UNK>", support_reverse=True):
        self._unknown_token, self._support_reverse = unknown_token, support_reverse
        self._mapping, self._words = {unknown_token: 0}, [unknown_token]
        self._freq = collections.defaultdict(int)
        self._freeze = False

    def __len__(self):
        return len(self._mapping)

    def freeze(self, freeze=True):
        """New words are unknown from now on."""
        self._freeze = freeze

    def get(self, category):
        """The id of a word, a new one where it has none yet."""
        if category not in self._mapping:
            if self._freeze:
                return 0
            self._mapping[category] = len(self._mapping)
            self._words.append(category)
        return self._mapping[category]

    def add(self, category, count=1):
        """Counts a word."""
        if self.get(category) > 0:
            self._freq[category] += count

    def trim(self, min_frequency, max_frequency=-1):
        """Keeps the words that are more frequent than the former, and less than the latter where it is not below 0;
        frequent ones get low ids."""
        ordered = sorted(
            sorted(self._freq.items(), key=lambda item: (isinstance(item[0], str), item[0])),
            key=lambda item: item[1],
            reverse=True,
        )
        self._mapping, self._words = {self._unknown_token: 0}, [self._unknown_token]
        for category, count in ordered:
            if max_frequency > 0 and count >= max_frequency:
                continue
            if count <= min_frequency:
                break
            self._mapping[category] = len(self._mapping)
            self._words.append(category)
        self._freq = collections.defaultdict(int, {c: n for c, n in self._freq.items() if c in self._mapping})

    def reverse(self, class_id):
        """The word of an id."""
        if not self._support_reverse:
            raise ValueError("This vocabulary wasn't initialized with support_reverse to support reverse() function.")
        return self._words[class_id]


class VocabularyProcessor(object):
    """Texts to rows of ids, each as long as `max_document_length`, with zeros at the end.

    Args:
      max_document_length: words of a text that count.
      min_frequency: words that are rarer, or as rare, are unknown.
      vocabulary: a CategoricalVocabulary; default a new one.
      tokenizer_fn: iterator of texts to iterator of lists of words.
    """

    def __init__(self, max_document_length, min_frequency=0, vocabulary=None, tokenizer_fn=None):
        self.max_document_length, self.min_frequency = max_document_length, min_frequency
        self.vocabulary_ = vocabulary if vocabulary is not None else CategoricalVocabulary()
        self._tokenizer = tokenizer_fn or tokenizer

    def fit(self, raw_documents, unused_y=None):
        """Learns the words of texts; returns self."""
        for words in self._tokenizer(raw_documents):
            for word in words:
                self.vocabulary_.add(word)
        if self.min_frequency > 0:
            self.vocabulary_.trim(self.min_frequency)
        self.vocabulary_.freeze()
        return self

    def fit_transform(self, raw_documents, unused_y=None):
        """Learns the words of texts and yields their ids."""
        first, second = itertools.tee(raw_documents)
        self.fit(first)
        return self.transform(second)

    def transform(self, raw_documents):
        """Yields an int64 array [max_document_length] for each text."""
        for words in self._tokenizer(raw_documents):
            ids = np.zeros(self.max_document_length, np.int64)
            known = [self.vocabulary_.get(word) for word in words[: self.max_document_length]]
            ids[: len(known)] = known
            yield ids

    def reverse(self, documents):
        """Yields a text for each array of ids."""
        for ids in documents:
            yield " ".join(self.vocabulary_.reverse(each) for each in ids)

    def save(self, filename):
        """Writes this, its tokenizer included, to a file."""
        with tf.gfile.Open(filename, "wb") as out:
            out.write(pickle.dumps(self))

    @classmethod
    def restore(cls, filename):
        """Reads what `save` has written; only from files that you trust, as they are unpickled."""
        with tf.gfile.Open(filename, "rb") as source:
            return pickle.loads(source.read())
