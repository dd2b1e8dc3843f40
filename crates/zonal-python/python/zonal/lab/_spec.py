"""Finds the experiment that a caller means, and runs it."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .._zonal import Progress, Results, Spec, SpecError, Stop

# A dictionary, a file, the name of a built-in experiment, or an experiment that has been loaded.
SpecLike = Spec | Mapping[str, Any] | str | os.PathLike[str]


def load(spec: SpecLike, *, folder: str | os.PathLike[str] | None = None) -> Spec:
    """Returns a checked experiment.

    `spec` is a dictionary with the keys of an experiment file, the path of a file that ends in ``.toml`` or
    ``.json``, or the name of a built-in experiment. `folder` has the machine files and tables that a dictionary
    names. Raises SpecError, which names the file and the line or the field, and OSError.
    """
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, Mapping):
        return Spec.from_dict(spec, folder)
    if not isinstance(spec, str | os.PathLike):
        raise TypeError(
            f"an experiment is a dictionary, a path or a name, not {type(spec).__name__}"
        )
    path = Path(spec)
    if path.suffix == ".json":
        return _read_json(path)
    if path.suffix == ".toml" or not isinstance(spec, str):
        return Spec.read(path)
    return Spec.built_in(spec)


def _read_json(path: Path) -> Spec:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(values, dict):
        raise SpecError(f"{path}: the file has a {type(values).__name__}; it must have an object")
    return Spec.from_dict(values, path.parent, str(path))


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
    """Runs an experiment on native threads, with the GIL released.

    `jobs` is the number of concurrent runs (one for each core), `variants` selects some of the variants, and
    `memory_bytes` is the host memory that concurrent runs may use (three quarters of what is available).
    `progress` is called after each run. The same seed gives the same results. KeyboardInterrupt, and exceptions of
    `progress`, stop all runs and are raised. Raises SpecError for bad input and RunError if a run fails.
    """
    return load(spec).run(
        seed=seed,
        jobs=jobs,
        variants=None if variants is None else list(variants),
        progress=progress,
        stop=stop,
        memory_bytes=memory_bytes,
    )
