"""The engine: how steps run. It never changes what they compute."""

from fastkeras.engine._function import StepFunction
from fastkeras.engine._methods import Loops
from fastkeras.engine._options import options
from fastkeras.engine._place import Keeper
from fastkeras.engine._predict import Predictor
from fastkeras.engine._report import report
from fastkeras.engine._workers import is_asynchronous

__all__ = [
    "Keeper",
    "Loops",
    "Predictor",
    "StepFunction",
    "is_asynchronous",
    "options",
    "report",
]
