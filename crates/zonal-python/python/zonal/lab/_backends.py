"""Runs the cases of a sweep: on threads of this process, or on any backend of joblib.

A worker returns failures of a case as values. An exception of a backend therefore means that a worker was lost, and
the cases without an outcome run again.
"""

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from .._zonal import RunError, Spec, SpecError, Stop, Table, usable_memory

THREADS = "threads"
AMBIENT = "joblib"

# The rows of a case, or the reason why it failed.
Outcome = Table | str


class Task(NamedTuple):
    """What a worker needs. A pickled experiment is its text, so workers need no files."""

    spec: Spec
    seed: int


class Backend(NamedTuple):
    """The cases of a sweep, and how to run them."""

    tasks: list[Task]
    take: Callable[[int, Outcome], None]
    jobs: int | None
    memory_bytes: int | None
    retries: int
    stop: Stop


def backend_named(name: str) -> Callable[[Backend], None]:
    """Returns the function that runs cases. Raises SpecError if joblib has no such backend."""
    if name == THREADS:
        return run_on_threads
    try:
        joblib = importlib.import_module("joblib")
    except ImportError:
        raise SpecError(f"backend {name!r} needs joblib; install it, or use {THREADS!r}") from None
    if name == AMBIENT:
        return lambda backend: _run_on_joblib(joblib, contextlib.nullcontext(), backend)
    try:
        context = joblib.parallel_config(backend=name)
    except (ImportError, KeyError, ValueError) as error:
        known = ", ".join(sorted(joblib.parallel.BACKENDS))
        raise SpecError(
            f"backend {name!r} cannot be used ({error}); backends are {THREADS}, {AMBIENT}, {known}"
        ) from None
    return lambda backend: _run_on_joblib(joblib, context, backend)


def run_task(place: int, task: Task, memory_bytes: int | None, stop: Stop | None = None) -> tuple[int, Outcome]:
    """Runs one case on one thread. This is what workers call."""
    try:
        results = task.spec.run(seed=task.seed, jobs=1, stop=stop, memory_bytes=memory_bytes)
    except (RunError, SpecError) as error:
        return place, str(error)
    return place, results.table


class _Memory:
    """Host memory that cases share. A case that needs more than all of it starts when no other runs."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserved(self, wanted: int) -> Iterator[None]:
        wanted = min(wanted, self.total)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()


def run_on_threads(backend: Backend) -> None:
    """Runs cases on threads of this process. Each releases the GIL while it simulates."""
    memory = _Memory(usable_memory() if backend.memory_bytes is None else backend.memory_bytes)

    def work(place: int) -> tuple[int, Outcome]:
        task = backend.tasks[place]
        with memory.reserved(task.spec.host_bytes):
            return run_task(place, task, memory.total, backend.stop)

    jobs = _checked_jobs(backend) or os.cpu_count() or 1
    with ThreadPoolExecutor(jobs, thread_name_prefix="zonal-sweep") as pool:
        try:
            waiting: set[Future[tuple[int, Outcome]]] = {
                pool.submit(work, place) for place in range(len(backend.tasks))
            }
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    backend.take(*future.result())
        except BaseException:
            # Cases that have not begun are dropped, and those that run end soon.
            backend.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _checked_jobs(backend: Backend) -> int | None:
    if backend.jobs is not None and backend.jobs < 1:
        raise SpecError(f"jobs is {backend.jobs}; it must be at least 1, or None for one for each core")
    return backend.jobs


def _run_on_joblib(joblib: Any, context: Any, backend: Backend) -> None:
    jobs = _checked_jobs(backend)
    missing = dict(enumerate(backend.tasks))
    with context:
        for left in range(backend.retries, -1, -1):
            lost = _run_once(joblib, jobs, missing, backend)
            if not missing:
                return
            if left == 0:
                for place in list(missing):
                    backend.take(place, f"its worker was lost {backend.retries + 1} times; at last: {lost}")


def _run_once(joblib: Any, jobs: int | None, missing: dict[int, Task], backend: Backend) -> str:
    """Runs the missing cases, and removes those with an outcome. Returns why the others have none."""
    calls = [joblib.delayed(run_task)(place, task, backend.memory_bytes) for place, task in missing.items()]
    if joblib.parallel.get_active_backend()[0].supports_return_generator:
        return _run_calls(joblib, jobs, calls, "generator_unordered", missing, backend)
    # Others return the outcomes of all calls at once, or none of them if a worker is lost, so each time a few.
    few = 4 * joblib.effective_n_jobs(jobs or -1)
    reason = ""
    for start in range(0, len(calls), few):
        reason = _run_calls(joblib, jobs, calls[start : start + few], "list", missing, backend) or reason
    return reason


def _run_calls(
    joblib: Any, jobs: int | None, calls: list[Any], return_as: str, missing: dict[int, Task], backend: Backend
) -> str:
    """Runs calls. Returns why some have no outcome, or an empty text."""
    parallel = joblib.Parallel(n_jobs=jobs or -1, return_as=return_as, batch_size=1)
    try:
        outcomes = parallel(iter(calls))
    except Exception as error:
        return _reason(error)
    # Closing the outcomes drops the calls that have not begun, if the caller's callback raises.
    with contextlib.closing(outcomes) if return_as != "list" else contextlib.nullcontext():
        outcomes = iter(outcomes)
        while True:
            try:
                place, outcome = next(outcomes)
            except StopIteration:
                return "" if return_as == "list" else "its worker returned nothing"
            except Exception as error:
                return _reason(error)
            if missing.pop(place, None) is not None:
                backend.take(place, outcome)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
