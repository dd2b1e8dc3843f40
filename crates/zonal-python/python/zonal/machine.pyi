from os import PathLike
from typing import Any

from .table import Table

__all__ = ["Machine", "MachineError", "Report", "capture", "live", "preset", "presets", "read"]

class MachineError(ValueError):
    """A machine or a kernel version that cannot be used. The text names the file, the field and what is allowed."""

class Machine:
    """A description of a machine: nodes, CPUs, distances, zones and settings. Immutable.

    Amounts of memory are in frames of ``page_bytes`` bytes, unless a name says otherwise.
    """

    def __init__(self, text: str, origin: str = "machine") -> None:
        """Reads the text of a machine file, which errors call ``origin``. Raises MachineError."""

    @property
    def name(self) -> str:
        """The machine's name."""
    @property
    def page_bytes(self) -> int:
        """Bytes in a frame."""
    @property
    def kernel(self) -> str | None:
        """The kernel version that the machine reported, such as "6.12", or None."""
    @property
    def notes(self) -> list[str]:
        """Files that were missing while the machine was captured, and the assumptions made instead."""
    def nodes(self) -> Table:
        """Returns a row for each node: node, online, cpus (number), managed (frames), managed_bytes."""
    def cpus(self) -> Table:
        """Returns a row for each online CPU: cpu, node."""
    def zones(self) -> Table:
        """Returns a row for each zone: node, kind, start (frame number), spanned, present, managed (frames),
        managed_bytes."""
    def distances(self) -> Table:
        """Returns a row for each pair of nodes: node, to, distance (10 is local)."""
    def explain(self, rules: str = "auto", *, node_load: str | None = None) -> Report:
        """Explains the machine by the rules of a kernel.

        ``rules`` is "auto" for those of the machine's own kernel (the newest known if there is none), or a version
        such as "6.12". ``node_load`` overrides the version's rule by which node load grows. Raises MachineError.
        """
    def check(self, rules: str = "auto", *, node_load: str | None = None) -> Table:
        """Returns a row for each value that the machine's kernel reported: what, predicted, observed, same,
        as_at_boot. Raises MachineError if the machine has no such values."""
    def advice(self, rules: str = "auto", *, node_load: str | None = None) -> Table:
        """Returns a row for each piece of advice: severity ("info" or "warn"), text."""
    def fallback_orders(self, rules: str = "auto", *, node_load: str | None = None) -> dict[int, list[int]]:
        """Returns, for each online node, the nodes that serve its requests, from the first choice to the last."""
    def to_json(self) -> str:
        """Returns the text of a machine file."""
    def write(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Writes a machine file. A file that zonal did not write is replaced only with ``force``; otherwise
        FileExistsError is raised."""

class Report:
    """What the rules of a kernel predict for a machine. Amounts of memory are in frames."""

    @property
    def rules(self) -> str:
        """The kernel version whose rules were applied."""
    @property
    def differs(self) -> bool:
        """Whether an observed value differs from the predicted one, except values computed at boot."""
    def zones(self) -> Table:
        """Returns a row for each zone: node, kind, managed, the watermarks min, low and high, batch, pageset_high
        (before 6.7), pageset_high_min and pageset_high_max (from 6.7), stat_threshold, and protection_KIND."""
    def fallback_orders(self) -> dict[int, list[int]]:
        """Returns, for each online node, the nodes that serve its requests, from the first choice to the last."""
    def fallbacks(self) -> Table:
        """Returns the fallback orders as a table: node, place (from 0), serves (the node in that place)."""
    def balance(self) -> Table:
        """Returns how often other nodes fall back on each node: node, nth (1 is their first fallback), times."""
    def checks(self) -> Table:
        """Returns a row for each observed value: what, predicted, observed (texts), same, as_at_boot."""
    def advice(self) -> Table:
        """Returns a row for each piece of advice: severity ("info" or "warn"), text."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the report in the structure of ``zonal machine --json``, without its schema."""

def live() -> Machine:
    """Captures this machine from /proc and /sys. Raises MachineError or OSError."""

def capture(directory: str | PathLike[str]) -> Machine:
    """Captures a copy of another machine: a directory with its proc and sys, and optionally dmesg.

    Raises MachineError if the directory has no such copy, and OSError for files that cannot be read.
    """

def read(path: str | PathLike[str]) -> Machine:
    """Reads a machine file. Raises OSError if it cannot be read, and MachineError, with the field, if invalid."""

def preset(name: str) -> Machine:
    """Returns a well-known machine. Raises MachineError, with the known names, if there is none of this name."""

def presets() -> Table:
    """Returns a row for each preset: name, description."""
