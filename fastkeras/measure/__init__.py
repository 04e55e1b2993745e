"""Clock and robust statistics (no TensorFlow), the memory of a step,
and where its time goes.

Example:

>>> from fastkeras import measure
>>> clock = measure.ManualClock()
>>> with clock.stopwatch() as watch:
...     clock.advance(0.002)
>>> print(measure.summarize([watch.seconds, watch.seconds]))
2.00 ms (±0.00, n=2)
"""

from fastkeras.measure.batch_size import BatchSizes
from fastkeras.measure.batch_size import find_batch_size
from fastkeras.measure.clock import Clock
from fastkeras.measure.clock import ManualClock
from fastkeras.measure.clock import Stopwatch
from fastkeras.measure.comparison import Comparison
from fastkeras.measure.comparison import compare
from fastkeras.measure.memory_plan import MemoryPlan
from fastkeras.measure.memory_plan import memory
from fastkeras.measure.profile_report import Profile
from fastkeras.measure.profiling import profile
from fastkeras.measure.receipt import Receipt
from fastkeras.measure.stats import Summary
from fastkeras.measure.stats import ratio
from fastkeras.measure.stats import summarize

__all__ = [
    "BatchSizes",
    "Clock",
    "Comparison",
    "ManualClock",
    "MemoryPlan",
    "Profile",
    "Receipt",
    "Stopwatch",
    "Summary",
    "compare",
    "find_batch_size",
    "memory",
    "profile",
    "ratio",
    "summarize",
]
