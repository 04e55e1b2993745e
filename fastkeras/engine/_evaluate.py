"""The loop of `evaluate`, which validation in `fit` goes through too."""

from fastkeras._lib import private
from fastkeras.engine._build import build
from fastkeras.engine._feeds import ordered_feed
from fastkeras.engine._loop import callback_list
from fastkeras.engine._loop import warn_of_changes
from fastkeras.engine._metrics import keeps_metrics
from fastkeras.engine._metrics import warn_not_finite
from fastkeras.engine._options import check_counts
from fastkeras.engine._tiers import is_blind


@keeps_metrics
def evaluate(
    model,
    x=None,
    y=None,
    batch_size=None,
    verbose="auto",
    sample_weight=None,
    steps=None,
    callbacks=None,
    return_dict=False,
    **kwargs,
):
    """Evaluates a model; the arguments are those of `keras.Model.evaluate`."""
    check_counts(locals())
    private.assert_compiled(model, "evaluate")
    warn_of_changes(model)
    feed = kwargs.pop("_feed", None)
    passes = kwargs.pop("_passes", 1)
    if kwargs:
        raise ValueError(f"Arguments not recognized: {kwargs}")
    if feed is None:
        feed = ordered_feed(model, (x, y, sample_weight), batch_size, steps)
    build(model, feed.spec)
    callbacks = callback_list(model, callbacks, verbose, 1, feed)
    model.stop_evaluating = False
    callbacks.on_test_begin()
    logs = _batches(model, feed, callbacks, passes)
    if model.distribute_strategy.num_replicas_in_sync > 1:
        logs = private.metrics_or_logs(model, logs)
    logs = private.pythonify(logs)
    warn_not_finite(logs, model._step.told)
    callbacks.on_test_end(logs)
    if return_dict:
        return logs
    return private.in_metrics_order(model, logs)


def _batches(model, feed, callbacks, passes):
    """Runs every batch; returns the logs of the last launch."""
    model.make_test_function()
    seen = not all(map(is_blind, callbacks.callbacks))
    model.test_function.reset_metrics(feed, seen)
    feed.begin()
    logs, done = {}, 0
    try:
        while not (done and model.stop_evaluating):
            model.make_test_function()
            runner = model.test_function
            ahead = feed.left
            if ahead is not None:
                ahead += (passes - 1) * feed.num_batches
            tier, steps = runner.next(feed, ahead, model.stop_evaluating)
            launch = feed.take(steps, 1, True)
            if launch is None:
                runner.reset.if_due()
                break
            callbacks.on_test_batch_begin(done)
            logs = runner.run(feed, launch, tier)
            done += launch.batches
            callbacks.on_test_batch_end(done - 1, logs)
    finally:
        feed.end()
        # Every validation sees the same batches, also of endless data.
        feed.rewind()
    return logs
