"""fastkeras: train the Keras model you already have, faster, and know why."""

from fastkeras._lib import interrupts as _interrupts

with _interrupts.end_quietly(_interrupts.loads_a_command()):
    from fastkeras import callbacks
    from fastkeras import distribute
    from fastkeras import perf
    from fastkeras.advise import advise
    from fastkeras.model import FastModel

__version__ = "0.1.0"
__all__ = ["FastModel", "advise", "callbacks", "distribute", "perf"]
