"""Where a `fit` stands, and the callbacks that keep it for the next process."""

import keras


class Closing(keras.callbacks.Callback):
    """A callback that has something to close when `fit` is left."""

    def close(self):
        """When `fit` is left, also by an exception."""


class Keeper(Closing):
    """A callback that keeps the place of a `fit`, and takes it up again.

    Its hooks run where everything is consistent: between two launches, or
    after all callbacks have seen the end of an epoch.
    """

    #: The engine may run many steps between two calls of the hooks.
    per_launch = True

    def find(self, place):
        """Before `on_train_begin`: sets the place if one was kept."""

    def restore(self, place):
        """Puts a kept state back.

        Called after `on_train_begin`; for a place within an epoch also after
        `on_epoch_begin`, since callbacks change things in both.
        """

    def keep(self, place):
        """After each launch, each epoch, and at the end."""


class Place:
    """Where a `fit` stands.

    Attributes:
        feed: The feed.
        callbacks: `keras.callbacks.CallbackList`.
        epoch: Integer, the epoch that runs, or the next.
        done: Integer, batches of it that are done; 0 between epochs.
        logs: Dict of the last logs.
        runs: Bool, whether an epoch has begun.
        resumed: Bool, whether the place is one that was kept.
        ended: Bool, whether no epoch is left.
    """

    def __init__(self, feed, callbacks, epoch):
        self.feed = feed
        self.callbacks = callbacks
        self.epoch = epoch
        self.done = 0
        self.logs = None
        self.runs = False
        self.resumed = False
        self.ended = False
        self._keepers = [
            c for c in callbacks.callbacks if isinstance(c, Keeper)
        ]
        feed.is_kept = bool(self._keepers)

    def __enter__(self):
        for keeper in self._keepers:
            keeper.find(self)
        return self

    def __exit__(self, *error):
        for callback in self.callbacks.callbacks:
            if isinstance(callback, Closing):
                callback.close()
        # An error may hold the feed until the interpreter ends, when threads
        # of an open iterator can no longer be waited for.
        self.feed.rewind()

    def take_up(self):
        """Goes on from a place that was kept."""
        if self.resumed:
            for keeper in self._keepers:
                keeper.restore(self)

    def begin(self):
        """Begins the epoch, or goes on within it."""
        self.runs = True
        if self.done:
            self.take_up()
        else:
            self.logs = {}
            self.feed.begin()

    def end(self):
        """Ends the epoch; the next is not begun."""
        self.epoch += 1
        self.done = 0
        self.runs = False
        self.keep()

    def finish(self):
        """Ends the training."""
        self.ended = True
        self.keep()

    def keep(self):
        """Lets the keepers keep the place."""
        for keeper in self._keepers:
            keeper.keep(self)
