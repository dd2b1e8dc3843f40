"""Memory pools on chosen NUMA nodes, descriptions of machines, and simulated machines.

A `Pool` maps memory, binds each part of it to a NUMA node, and allocates pages from it as `Buffer` objects, which NumPy,
PyTorch and `memoryview` use without copies:

    import numpy, zonal

    with zonal.Pool("64M") as pool:
        buffer = pool.alloc("2M", zeroed=True)
        array = numpy.frombuffer(buffer, dtype="f8")
        array += 1
        print(buffer.node, buffer.placement())
        del array  # a pool closes only when no views exist
"""

from ._errors import (
    BuildError,
    ClosedError,
    CorruptionError,
    Error,
    ForkedError,
    InUseError,
    InvalidArgumentError,
    OutOfMemory,
    OutOfMemoryError,
    ReentryError,
    ResizeError,
    SettingError,
    UnknownSettingError,
)
from . import lab, machine, table
from ._zonal import (
    Buffer,
    NumpyArrays,
    Placement,
    Policy,
    Pool,
    Publication,
    ReclaimRequest,
    Registration,
    Settings,
    __version__,
    join,
)
from .table import Table

__all__ = [
    "Buffer",
    "BuildError",
    "ClosedError",
    "CorruptionError",
    "Error",
    "ForkedError",
    "InUseError",
    "InvalidArgumentError",
    "NumpyArrays",
    "OutOfMemory",
    "OutOfMemoryError",
    "Placement",
    "Policy",
    "Pool",
    "Publication",
    "ReclaimRequest",
    "ReentryError",
    "Registration",
    "ResizeError",
    "SettingError",
    "Settings",
    "Table",
    "UnknownSettingError",
    "__version__",
    "join",
    "lab",
    "machine",
    "table",
]
