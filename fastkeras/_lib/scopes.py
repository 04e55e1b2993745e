"""Scopes of operations that Keras gives none, by which a profile tells them."""

#: What takes the rows of a batch from the arrays.
FEED = "feed_rows"
#: What metrics compute.
METRICS = "metric_updates"
