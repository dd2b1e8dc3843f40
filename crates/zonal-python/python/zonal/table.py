"""Tables: named columns that Arrow libraries read without copying them through Python objects."""

from ._zonal import Table

__all__ = ["Table"]
