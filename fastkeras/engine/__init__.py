"""The engine: how steps run. It never changes what they compute."""

from fastkeras.engine._function import StepFunction
from fastkeras.engine._loop import check_before_training
from fastkeras.engine._loop import evaluate
from fastkeras.engine._loop import fit
from fastkeras.engine._options import options
from fastkeras.engine._predict import Predictor
from fastkeras.engine._predict import predict
from fastkeras.engine._report import report

__all__ = [
    "Predictor",
    "StepFunction",
    "check_before_training",
    "evaluate",
    "fit",
    "options",
    "predict",
    "report",
]
