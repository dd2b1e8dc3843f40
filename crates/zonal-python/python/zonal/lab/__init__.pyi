from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from ..table import Table

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

EXAMPLE: str
SpecLike: TypeAlias = Spec | Mapping[str, Any] | str | PathLike[str]

class SpecError(ValueError):
    """An experiment that cannot run. The text names the file and the line, or the field, and what is allowed."""

class RunError(RuntimeError):
    """A run that failed. The text names the experiment, the case, the variant and the seed."""

class SweepError(RunError):
    """Some cases of a sweep failed. ``failures`` maps the key of each case that failed to the reason, and ``results``
    is the table of all others."""

    failures: dict[str, str]
    results: Table

class Progress:
    """The progress of an experiment."""

    @property
    def done(self) -> int:
        """Number of completed runs."""
    @property
    def total(self) -> int:
        """Total number of runs."""
    @property
    def share(self) -> float:
        """Estimated completed share of the work, from 0 to 1."""
    @property
    def running(self) -> list[str]:
        """Descriptions of the current runs."""

class Stop:
    """A request to stop runs on other threads."""

    def __init__(self) -> None: ...
    def set(self) -> None:
        """Stops all runs that have this object."""

class Results:
    """The results of one experiment with one seed."""

    @property
    def experiment(self) -> str:
        """The name of the experiment."""
    @property
    def seed(self) -> int:
        """The seed of the experiment."""
    @property
    def spec_hash(self) -> str:
        """The hash of the specification, in hexadecimal."""
    @property
    def table(self) -> Table:
        """All results: a row for each case, variant and metric, in the order of the file.

        Columns: experiment, spec_hash, seed, machine; one for each setting that distinguishes cases; variant, role,
        metric, unit, predicted (in that unit), published (None if unknown), error_pct (deviation from the published
        value), calibrated_on; and one for each documented parameter, such as hardware.transfer_ns.
        """
    @property
    def parameters(self) -> Table:
        """The documented parameters: name, value, calibrated, why."""
    @property
    def events(self) -> Table:
        """Counts of allocator events: case (a text), variant, event, count."""
    def to_json(self) -> str:
        """Returns the text of result.json: the same seed gives the same bytes."""
    def to_html(self) -> str:
        """Returns the report: one self-contained HTML page."""
    def save(self, directory: str | PathLike[str], *, force: bool = False) -> list[Path]:
        """Writes DIRECTORY/EXPERIMENT/result.json, report.html and its charts; returns their paths. Files that zonal
        did not write are replaced only with ``force``; otherwise FileExistsError is raised."""

class Spec:
    """A checked experiment. Immutable; it can be pickled and runs the same on any machine."""

    def __init__(self, text: str, files: dict[str, str] | None = None, origin: str | None = None) -> None:
        """Reads an experiment from TOML text. ``files`` has the texts of the files that it names, and ``origin`` is
        its name in errors. Raises SpecError with the line."""

    @property
    def name(self) -> str:
        """The name of the experiment."""
    @property
    def title(self) -> str:
        """The title, in one line."""
    @property
    def text(self) -> str:
        """The experiment as TOML in canonical form: without comments, one line for each setting."""
    @property
    def files(self) -> dict[str, str]:
        """The texts of the files that the experiment names."""
    @property
    def hash(self) -> str:
        """The SHA-256 of the canonical text and the files, in hexadecimal."""
    @property
    def machines(self) -> list[str]:
        """The names of the machines."""
    @property
    def variants(self) -> list[str]:
        """The names of the variants."""
    @property
    def runs(self) -> int:
        """The number of runs: cases times variants."""
    @property
    def host_bytes(self) -> int:
        """The host memory that the largest run needs at most, in bytes."""
    @staticmethod
    def built_in(name: str) -> Spec:
        """Returns a built-in experiment. Raises SpecError, with the known names."""
    @staticmethod
    def read(path: str | PathLike[str]) -> Spec:
        """Reads an experiment from a TOML file, and the files that it names. Raises SpecError with the line."""
    @staticmethod
    def from_dict(
        values: Mapping[str, Any], folder: str | PathLike[str] | None = None, origin: str | None = None
    ) -> Spec:
        """Makes an experiment from a dictionary with the keys of an experiment file. A part's machine may be a
        zonal.machine.Machine. Files that it names are read from ``folder``. Raises SpecError with the field."""
    def with_values(self, values: dict[str, Any]) -> Spec:
        """Returns the experiment with other values: machine, hardware.FIELD, workload.FIELD and config.KEY for all
        parts, with the name of a part or a variant before it only for that one. Raises SpecError for unknown names,
        and for settings that would have no effect because cases or variants override them."""
    def run(
        self,
        *,
        seed: int = 1,
        jobs: int | None = None,
        variants: list[str] | None = None,
        progress: Callable[[Progress], object] | None = None,
        stop: Stop | None = None,
        memory_bytes: int | None = None,
    ) -> Results:
        """Runs the experiment with the GIL released; see `zonal.lab.run`."""

def experiments() -> Table:
    """Returns a row for each built-in experiment: name, title, runs, source."""

def load(spec: SpecLike, *, folder: str | PathLike[str] | None = None) -> Spec:
    """Returns a checked experiment: from a dictionary, a file (.toml or .json), or the name of a built-in one."""

def run(
    spec: SpecLike,
    *,
    seed: int = 1,
    jobs: int | None = None,
    variants: Iterable[str] | None = None,
    progress: Callable[[Progress], object] | None = None,
    stop: Stop | None = None,
    memory_bytes: int | None = None,
) -> Results:
    """Runs an experiment on native threads, with the GIL released. Raises SpecError and RunError."""

def sweep(
    spec: SpecLike,
    over: Mapping[str, Iterable[Any]],
    *,
    backend: str = "threads",
    jobs: int | None = None,
    seed: int = 1,
    progress: Callable[[int, int, str], object] | None = None,
    memory_bytes: int | None = None,
    retries: int = 3,
    folder: str | PathLike[str] | None = None,
) -> Table:
    """Runs an experiment with all combinations of the values in ``over``; the first key varies most slowly.

    Returns one table: a column for each key of ``over``, and the columns of Results.table. All backends return the
    same table. Raises SpecError before the first run if a case is not valid, and SweepError, with the results of the
    other cases, if cases fail.
    """
