"""Sweeps: one experiment with many values of its settings.

A case is a choice of one value for each setting. Everything that a case needs travels as text, and its seed is
derived from its key, so results do not depend on where or in which order cases run. `_backends` runs the cases.
"""

import hashlib
import itertools
import json
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .._zonal import Machine, RunError, Spec, SpecError, Stop, Table, with_columns
from ._backends import Backend, Task, backend_named
from ._spec import SpecLike, load

# The setting whose values are seeds.
SEED = "seed"

Label = str | int | float | bool


class SweepError(RunError):
    """Some cases of a sweep failed.

    `failures` has the reason for each case that failed, and `results` the table of all others.
    """

    def __init__(self, failures: dict[str, str], results: Table, total: int) -> None:
        first, reason = next(iter(failures.items()))
        super().__init__(
            f"{len(failures)} of {total} cases failed; the first is {first or 'the only case'}: {reason}"
        )
        self.failures = failures
        self.results = results
        self._total = total

    def __reduce__(self) -> tuple[Any, ...]:
        return (SweepError, (self.failures, self.results, self._total))


class Case(NamedTuple):
    """A case that is ready to run."""

    key: str
    labels: dict[str, Label]
    spec: Spec
    seed: int


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
    folder: str | os.PathLike[str] | None = None,
) -> Table:
    """Runs an experiment with all combinations of the values in `over`.

    Keys of `over` are ``seed``, ``machine``, ``hardware.FIELD``, ``workload.FIELD`` and ``config.KEY``, with the name
    of a part or a variant before it for only that one. Machines are presets, machine files, or
    `zonal.machine.Machine`. The first key varies most slowly, and values are in the order given. Without ``seed``
    among the keys, each case has a seed of its own, derived from `seed` and the case.

    `backend` is "threads" (native threads of this process), "joblib" (the backend that joblib is configured with),
    or the name of a backend of joblib: "loky" (processes), "dask", or "ray" after ``register_ray()``. `jobs` is the
    number of concurrent cases (one for each core). A case whose worker dies runs again, `retries` times at most.
    `progress` is called with the number of completed cases, the number of all cases, and the key of the case.

    Returns one table: a column for each key of `over`, and the columns of `Results.table`. All backends return the
    same table. Raises SpecError before the first run if a case is not valid, and SweepError, with the results of
    the other cases, if cases fail.
    """
    run_tasks = backend_named(backend)
    cases = _cases(load(spec, folder=folder), over, seed)
    tasks = [Task(case.spec, case.seed) for case in cases]
    done: dict[int, Table | str] = {}

    def take(place: int, outcome: Table | str) -> None:
        done[place] = outcome
        if progress is not None:
            progress(len(done), len(cases), cases[place].key)

    run_tasks(Backend(tasks, take, jobs, memory_bytes, retries, Stop()))
    return _collected(cases, done)


def _collected(cases: list[Case], done: dict[int, Table | str]) -> Table:
    """Returns the rows of all cases in the order of the cases, whatever the order in which they ended."""
    tables: list[Table] = []
    failures: dict[str, str] = {}
    for place, case in enumerate(cases):
        outcome = done[place]
        if isinstance(outcome, str):
            failures[case.key] = outcome
        else:
            tables.append(with_columns(outcome, list(case.labels.items())))
    results = Table.concat(tables)
    if failures:
        raise SweepError(failures, results, len(cases))
    return results


def _cases(spec: Spec, over: Mapping[str, Iterable[Any]], seed: int) -> list[Case]:
    axes = [(name, _values(name, values)) for name, values in over.items()]
    cases = []
    for choice in itertools.product(*(values for _, values in axes)):
        chosen = dict(zip((name for name, _ in axes), choice, strict=True))
        labels = {name: _label(value) for name, value in chosen.items()}
        key = ", ".join(f"{name} = {label}" for name, label in labels.items())
        settings = {name: value for name, value in chosen.items() if name != SEED}
        try:
            changed = spec.with_values(settings) if settings else spec
        except SpecError as error:
            raise SpecError(f"case {key}: {error}") from None
        cases.append(Case(key, labels, changed, _seed(chosen, labels, seed)))
    return cases


def _values(name: str, values: Iterable[Any]) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise SpecError(f"{name} is {values!r}; it must be a list of values")
    listed = list(values)
    if not listed:
        raise SpecError(f"{name} has no values; give one or more")
    seen = set()
    for value in listed:
        if name == SEED:
            _check_seed(value)
        label = json.dumps(_label(value))
        if label in seen:
            raise SpecError(f"{name} has the value {label} twice; values must be unique")
        seen.add(label)
    return listed


def _check_seed(value: Any) -> None:
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or not 0 <= value < 2**64:
        raise SpecError(f"seed has the value {value!r}; seeds are whole numbers from 0 to 2**64 - 1")


def _label(value: Any) -> Label:
    """Returns what identifies a value in the table: the value itself if it is a number or a text."""
    if isinstance(value, Machine):
        return value.name
    if isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    try:
        return json.dumps(value)
    except TypeError:
        return repr(value)


def _seed(chosen: Mapping[str, Any], labels: Mapping[str, Label], seed: int) -> int:
    if SEED in chosen:
        return int(chosen[SEED])
    key = json.dumps([seed, sorted(labels.items())])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
