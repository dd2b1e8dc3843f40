"""Experiments on simulated machines that run the allocator that ships.

`run` runs one experiment, and `sweep` runs it with many values of its settings. Both return tables with a row for
each case, variant and metric.
"""

from .._zonal import EXAMPLE, Progress, Results, RunError, Spec, SpecError, Stop, experiments
from ._spec import SpecLike, load, run
from ._sweep import SweepError, sweep

__all__ = [
    "EXAMPLE",
    "Progress",
    "Results",
    "RunError",
    "Spec",
    "SpecError",
    "SpecLike",
    "Stop",
    "SweepError",
    "experiments",
    "load",
    "run",
    "sweep",
]
