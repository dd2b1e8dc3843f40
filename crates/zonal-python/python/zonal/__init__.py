"""Memory pools on chosen NUMA nodes, descriptions of machines, and simulated machines."""

from . import lab, machine, table
from ._zonal import __version__

__all__ = ["__version__", "lab", "machine", "table"]
