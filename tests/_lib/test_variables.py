"""The variables of a step are all that a step changes."""

import keras
import numpy as np

from fastkeras._lib.variables import of_step


def test_a_step_changes_no_variable_but_these():
    inputs = keras.Input((3, 2), batch_size=2)
    x = keras.layers.GRU(2, stateful=True, dropout=0.5)(inputs)
    model = keras.Sequential([keras.Model(inputs, x), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    data = np.ones((2, 3, 2)), np.ones((2, 1))
    model.train_on_batch(*data)
    variables = of_step(model)
    before = [np.asarray(v) for v in variables]
    first = model.train_on_batch(*data)
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    np.testing.assert_allclose(model.train_on_batch(*data), first, rtol=1e-6)
    # Without the states of the RNN another loss comes out.
    for variable, value in zip(variables, before, strict=True):
        if "rnn_state" not in variable.path:
            variable.assign(value)
    assert abs(model.train_on_batch(*data)[0] - first[0]) > 1e-4
