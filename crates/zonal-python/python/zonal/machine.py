"""Descriptions of machines, and what the rules of a kernel make of them.

A machine is this one (`live`), a well-known one (`preset`), a machine file (`read`) or a copy of another machine's
``/proc`` and ``/sys`` (`capture`). Amounts of memory are in frames of `Machine.page_bytes` bytes, unless a name says
otherwise.
"""

from ._zonal import Machine, MachineError, Report, capture, live, preset, presets, read

__all__ = ["Machine", "MachineError", "Report", "capture", "live", "preset", "presets", "read"]
