"""`tf.contrib.seq2seq`: attention, and decoding step by step. Names of variables and results are contrib's."""
