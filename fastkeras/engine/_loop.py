"""The loop of `fit`: epochs, callbacks, validation."""

import keras

from fastkeras._lib import checks
from fastkeras._lib import private
from fastkeras._lib import replicas
from fastkeras._lib.warn import warn
from fastkeras.engine._apart import apart
from fastkeras.engine._build import build
from fastkeras.engine._epochs import EpochTimes
from fastkeras.engine._feeds import check_length
from fastkeras.engine._feeds import make_feed
from fastkeras.engine._feeds import ordered_feed
from fastkeras.engine._metrics import epoch_logs
from fastkeras.engine._metrics import in_epoch
from fastkeras.engine._options import check_counts
from fastkeras.engine._options import check_unrolled
from fastkeras.engine._options import limited
from fastkeras.engine._place import Place
from fastkeras.engine._tiers import is_blind
from fastkeras.engine._tiers import is_lazy
from fastkeras.perf._plan import check_optimizer


def fit(
    model,
    x=None,
    y=None,
    batch_size=None,
    epochs=1,
    verbose="auto",
    callbacks=None,
    validation_split=0.0,
    validation_data=None,
    shuffle=True,
    class_weight=None,
    sample_weight=None,
    initial_epoch=0,
    steps_per_epoch=None,
    validation_steps=None,
    validation_batch_size=None,
    validation_freq=1,
):
    """Trains a model; the arguments are those of `keras.Model.fit`."""
    check_counts(locals())
    check_before_training(model)
    _warn_if_alone(model)
    epochs = limited(epochs, "epochs")
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = (
            private.array_slicing.train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        )
    feed, model.feed_reason = make_feed(
        model,
        steps_per_epoch,
        class_weight,
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        shuffle=shuffle,
    )
    check_length(feed, epochs - initial_epoch)
    build(model, feed.spec)
    validate = _validation(
        model,
        validation_data,
        validation_batch_size or batch_size,
        validation_steps,
        validation_freq,
    )
    callbacks = callback_list(
        model, callbacks, verbose, epochs, feed, add_history=True
    )
    others = apart(model.distribute_strategy, callbacks.callbacks)
    with others, Place(feed, callbacks, initial_epoch) as place:
        _train(model, place, epochs, validate)
    return model.history


def _train(model, place, epochs, validate):
    """Runs all epochs, with what comes before and after them."""
    callbacks = place.callbacks
    model.stop_training = False
    model.make_train_function()
    callbacks.on_train_begin()
    place.epoch = private.initial_epoch(model) or place.epoch
    place.take_up()
    times = model.epoch_times = EpochTimes(place.feed)
    for epoch in _epochs(model, place, epochs):
        with times.epoch():
            logs = _train_epoch(model, place, epochs)
            logs.update(validate(epoch, epochs, callbacks))
            callbacks.on_epoch_end(epoch, logs)
        place.logs = logs
        place.end()
        if model.stop_training:
            break
    place.finish()
    if isinstance(model.optimizer, keras.Optimizer) and epochs > 0:
        model.optimizer.finalize_variable_values(model._step.trainable(model))
    callbacks.on_train_end(logs=place.logs)


def _epochs(model, place, epochs):
    """Yields the epochs, for as long as there is data."""
    if place.resumed and model.stop_training and not place.done:
        return
    for epoch in range(place.epoch, epochs):
        if place.feed.is_spent and not place.done:
            warn(
                f"The generator is spent after {epoch} epoch(s) of {epochs}; "
                "training stops. Give `steps_per_epoch`, or a "
                "`keras.utils.PyDataset`, which can be gone through again."
            )
            return
        yield epoch


def callback_list(model, callbacks, verbose, epochs, feed, add_history=False):
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=add_history,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=feed.num_batches,
        input_wait=feed.wait,
        model=model,
    )


@in_epoch
def _train_epoch(model, place, epochs):
    """Runs one epoch, or the rest of it; returns its logs."""
    feed, callbacks, epoch = place.feed, place.callbacks, place.epoch
    seen = feed.is_kept or not all(map(is_blind, callbacks.callbacks))
    _runner(model).reset_metrics(feed, seen)
    callbacks.on_epoch_begin(epoch)
    plan = model.perf
    every_batch = not all(map(is_lazy, callbacks.callbacks))
    per_epoch = feed.num_batches
    place.begin()
    try:
        # As in Keras, one batch is trained also if a callback says stop
        # before the first.
        while not (place.done and model.stop_training):
            runner = _runner(model)
            ahead = None
            if per_epoch is not None:
                ahead = per_epoch * (epochs - epoch) - place.done
            one = every_batch or model.stop_training
            tier, updates = runner.next(feed, ahead, one)
            model.epoch_times.ahead = updates * plan.window
            launch = feed.take(updates, plan.window, plan.keeps_remainder)
            if launch is None:
                runner.reset.if_due()
                break
            callbacks.on_train_batch_begin(place.done)
            with model.epoch_times.span("steps"):
                place.logs = runner.run(feed, launch, tier)
            place.done += launch.batches
            callbacks.on_train_batch_end(place.done - 1, place.logs)
            place.keep()
    finally:
        feed.end()
    model.epoch_times.batches = place.done
    return epoch_logs(model, place.logs)


def _runner(model):
    """The train function, made anew if a callback has compiled the model."""
    if model.perf.is_keras:
        raise ValueError(
            checks.message(
                "A `fit` under way can't be handed over to Keras itself",
                "perf=None in a `compile` from a callback",
                "Compile with perf=None before `fit`.",
            )
        )
    model.make_train_function()
    return model.train_function


def _validation(model, data, batch_size, steps, freq):
    """A function of an epoch that validates when it is time."""
    if data is None:
        return lambda epoch, epochs, callbacks: {}
    feed = ordered_feed(model, data, batch_size, steps)

    def validate(epoch, epochs, callbacks):
        if not private.should_eval(model, epoch, freq):
            return {}
        with model.epoch_times.span("validation"):
            logs = model.evaluate(
                callbacks=callbacks,
                return_dict=True,
                _feed=feed,
                _passes=_times_ahead(epoch, epochs, freq),
            )
        return {f"val_{name}": value for name, value in logs.items()}

    return validate


def _times_ahead(epoch, epochs, freq):
    """Validations from this epoch to the last, this one included."""
    if isinstance(freq, int):
        return -(-(epochs - epoch) // freq)
    return sum(epoch < e <= epochs for e in freq)


def check_before_training(model):
    """Refuses to train a model that can't be, before anything changes."""
    private.assert_compiled(model, "fit")
    check_unrolled(model)
    if model._step.is_ready(model):
        trained = model._step.trainable(model)
        check_optimizer(model, model.optimizer, trained)
    warn_of_changes(model)


def _warn_if_alone(model):
    count = replicas.trains_alone(replicas.strategy_of(model))
    if count:
        warn(
            f"TF_CONFIG names {count} workers, but the model was made under "
            "no strategy: each worker trains one of its own, on all rows. "
            "Make and compile it in the scope of a "
            "`tf.distribute.MultiWorkerMirroredStrategy()`.",
            told=model._step.told,
        )


def warn_of_changes(model):
    names = model._step.changed_layers(model)
    if names:
        warn(
            f"`trainable` of {names} has changed since `compile`; what was "
            "trainable then is trained. Compile again for the change to take "
            "effect."
        )
