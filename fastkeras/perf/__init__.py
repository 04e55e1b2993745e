"""Features: what a step computes. One file each; this module finds them.

A module of this package whose name has no leading underscore is a feature
family; every `Feature` it defines is public here and has a name for `perf=`.
"""

import importlib
import inspect
import pkgutil
import re

from fastkeras.perf._execution import Execution as Execution
from fastkeras.perf._feature import Feature
from fastkeras.perf._feature import Stage as Stage


def _find_features():
    found = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, value in vars(module).items():
            if (
                inspect.isclass(value)
                and issubclass(value, Feature)
                and value.__module__ == module.__name__
                and not name.startswith("_")
            ):
                found[name] = value
    return found


#: Class name to class, of every feature in this package.
FEATURES = dict(sorted(_find_features().items()))

#: Name in `perf=` to a function that makes the feature with its defaults.
NAMES = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): cls
    for name, cls in FEATURES.items()
}
NAMES["mixed_float16"] = lambda: FEATURES["MixedPrecision"]("mixed_float16")
NAMES["mixed_bfloat16"] = lambda: FEATURES["MixedPrecision"]("mixed_bfloat16")

globals().update(FEATURES)

__all__ = sorted(
    ["FEATURES", "NAMES", "Execution", "Feature", "Stage", *FEATURES]
)
