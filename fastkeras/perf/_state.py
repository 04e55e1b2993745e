"""What features save with the model, and models that share layers."""

import keras


class SavedState(keras.metrics.Metric):
    """Hands the variables of the features to Keras's saving.

    It stands under a path of its own in a weights file: a plain Keras model
    reads a file of a FastModel, and a FastModel one without this entry.

    Args:
        step: `Step` whose states are saved.
    """

    def __init__(self, step):
        super().__init__(name="perf_state")
        names = [type(f).__name__ for f in step.plan.features]
        self._saved = {
            f"{name}.{key}": variable
            for name, state in zip(names, step.states, strict=True)
            for key, variable in state.variables.items()
        }

    def save_own_variables(self, store):
        for name, variable in self._saved.items():
            store[name] = variable.numpy()

    def load_own_variables(self, store):
        for name in set(self._saved) & set(store.keys()):
            self._saved[name].assign(store[name])
