"""Advice: what would make a model train faster, and the figures behind it.

Example:

>>> import keras, numpy as np
>>> from fastkeras.advise import advise
>>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
>>> model.compile("sgd", "mse", run_eagerly=True)
>>> print(advise(model, (np.ones((8, 2)), np.ones(8)), 4)[0].change)
compile(run_eagerly=False)
"""

from fastkeras.advise._advice import Advice
from fastkeras.advise._advise import advise

__all__ = ["Advice", "advise"]
