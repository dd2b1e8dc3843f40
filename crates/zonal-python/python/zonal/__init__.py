"""Memory pools on chosen NUMA nodes, descriptions of machines, and simulated machines."""

from ._zonal import __version__

__all__ = ["__version__"]
