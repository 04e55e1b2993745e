"""Measures stock Keras against FastModel: `python -m fastkeras bench`.

Example:

>>> from fastkeras import bench
>>> [row.name for row in bench.select("compute")]
['lstm', 'transformer', 'cnn', 'resnet', 'embedding']
"""

from fastkeras.bench.charts import check_plot
from fastkeras.bench.charts import plot
from fastkeras.bench.runner import run
from fastkeras.bench.runner import select
from fastkeras.bench.tables import table

__all__ = ["check_plot", "plot", "run", "select", "table"]
