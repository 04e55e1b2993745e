"""Callbacks that measure a training and say why it is as it is.

They take Keras's protocol, let the engine run many steps in one call, and
read the device at the ends of their windows or epochs alone.
"""

from fastkeras.callbacks.health_monitor import HealthMonitor
from fastkeras.callbacks.jit_toggle import JitToggle
from fastkeras.callbacks.memory_monitor import MemoryMonitor
from fastkeras.callbacks.perf_tensorboard import PerfTensorBoard
from fastkeras.callbacks.resume import Resume
from fastkeras.callbacks.retrace_monitor import RetraceMonitor
from fastkeras.callbacks.step_timer import StepTimer

__all__ = [
    "HealthMonitor",
    "JitToggle",
    "MemoryMonitor",
    "PerfTensorBoard",
    "Resume",
    "RetraceMonitor",
    "StepTimer",
]
