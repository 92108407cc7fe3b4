"""Ways into a session other than tf.Session itself: Estimator, Keras, monitored sessions, previews."""
