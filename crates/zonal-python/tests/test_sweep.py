"""Sweeps: all combinations, the same table from each backend, lost workers, and cases that fail."""

import os
import pickle
import signal
import subprocess
import sys

import pytest

from lab_specs import small
from zonal import lab, machine
from zonal.table import Table

OVER = {"hardware.transfer_ns": [30.0, 60.0, 90.0], "workload.cpus": [1, 2], "seed": range(2)}
COMBINATIONS = 12


@pytest.fixture(scope="module")
def expected() -> Table:
    return lab.sweep(small(), OVER)


def case(table: Table, **wanted: object) -> list[dict]:
    return [row for row in table.to_dicts() if all(row[name] == value for name, value in wanted.items())]


def test_cases_are_all_combinations_in_order(expected: Table) -> None:
    assert expected.num_rows == COMBINATIONS * 10
    assert expected["hardware.transfer_ns"][::10] == [30.0] * 4 + [60.0] * 4 + [90.0] * 4
    assert expected["workload.cpus"][::10] == [1, 1, 2, 2] * 3
    assert expected["seed"][::10] == [0, 1] * 6
    assert len(set(expected["spec_hash"])) == 6


def test_a_case_is_the_same_as_a_run_of_its_own(expected: Table) -> None:
    spec = lab.load(small()).with_values({"hardware.transfer_ns": 90.0, "workload.cpus": 2})
    alone = lab.run(spec, seed=1).table
    rows = expected.to_dicts()[-10:]
    assert [{name: row[name] for name in alone.names} for row in rows] == alone.to_dicts()


def test_seeds_are_derived_from_the_case() -> None:
    over = {"workload.cpus": [1, 2]}
    first = lab.sweep(small(), over)
    one, two = first["seed"][0], first["seed"][-1]
    assert one != two
    assert lab.sweep(small(), {"workload.cpus": [2, 1]})["seed"][0] == two
    assert lab.sweep(small(), over, seed=2)["seed"][0] != one
    assert lab.sweep(small(), over, jobs=1) == first


def test_machines_are_presets_files_and_objects() -> None:
    duo = machine.preset("duo24")
    table = lab.sweep(small(), {"machine": ["desktop", duo]})
    assert table["machine"][::10] == ["desktop", "duo24"]
    named = lab.sweep(small(), {"machine": ["desktop", "duo24"]})
    assert table["seed"] == named["seed"]
    assert table["predicted"] == named["predicted"]


def test_different_machines_with_one_name_are_told_apart() -> None:
    text = machine.preset("duo24").to_json()
    slow = machine.Machine(text.replace('"duo24"', '"desktop"'))
    table = lab.sweep(small(), {"machine": [slow], "seed": [1]})
    assert set(table["machine"]) == {"desktop"}
    assert table["spec_hash"][0] != lab.load(small()).with_values({"machine": machine.preset("desktop")}).hash
    with pytest.raises(lab.SpecError, match='machine has the value "desktop" twice'):
        lab.sweep(small(), {"machine": [slow, machine.preset("desktop")]})


def test_one_case_without_settings_is_the_experiment() -> None:
    table = lab.sweep(small(), {"seed": [1]})
    assert table == lab.run(small(), seed=1).table


def test_progress_counts_the_cases() -> None:
    seen: list[tuple[int, int, str]] = []
    lab.sweep(small(), {"workload.cpus": [1, 2]}, progress=lambda *now: seen.append(now))
    assert [now[:2] for now in seen] == [(1, 2), (2, 2)]
    assert {now[2] for now in seen} == {"workload.cpus = 1", "workload.cpus = 2"}


def test_an_exception_of_the_callback_stops_the_sweep() -> None:
    def refuse(done: int, total: int, key: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lab.sweep(small(), {"seed": range(2000)}, progress=refuse)


def test_an_interrupt_stops_the_sweep() -> None:
    program = """
import os, signal
from zonal import lab
def progress(done, total, key):
    if done >= 1:
        os.kill(os.getpid(), signal.SIGINT)
    assert done < total
try:
    lab.sweep(SPEC, {"seed": range(2000)}, progress=progress)
except KeyboardInterrupt:
    print("interrupted")
""".replace("SPEC", repr(small()))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0), done.stderr


def test_joblib_processes_return_the_same_table(expected: Table) -> None:
    pytest.importorskip("joblib")
    assert lab.sweep(small(), OVER, backend="loky", jobs=2) == expected


def test_a_backend_that_returns_lists_only_returns_the_same_table(expected: Table) -> None:
    """As that of Ray does."""
    joblib = pytest.importorskip("joblib")
    threading_backend = joblib.parallel.BACKENDS["threading"]

    class Lists(threading_backend):  # type: ignore[misc, valid-type]
        supports_return_generator = False
        rounds = 0

        def start_call(self) -> None:
            Lists.rounds += 1
            if Lists.rounds == 1:
                raise RuntimeError("a worker was lost")

    joblib.register_parallel_backend("lists", Lists)
    assert lab.sweep(small(), OVER, backend="lists", jobs=2) == expected
    assert Lists.rounds >= 2, "the cases of the lost worker run again"


def test_the_configured_backend_of_joblib_is_used(expected: Table) -> None:
    joblib = pytest.importorskip("joblib")
    with joblib.parallel_config(backend="threading", n_jobs=2):
        assert lab.sweep(small(), OVER, backend="joblib") == expected


def test_a_sweep_survives_a_killed_process(expected: Table) -> None:
    pytest.importorskip("joblib")
    from joblib.externals.loky import reusable_executor

    killed: list[int] = []

    def kill(done: int, total: int, key: str) -> None:
        if not killed:
            executor = reusable_executor._executor
            killed.append(next(iter(executor._processes)))
            os.kill(killed[0], signal.SIGKILL)

    assert lab.sweep(small(), OVER, backend="loky", jobs=2, progress=kill) == expected
    assert len(killed) == 1


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed")
    pytest.importorskip("joblib")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as made,
        distributed.Client(made),
    ):
        yield made


def test_a_dask_cluster_with_a_killed_worker_returns_the_same_table(cluster, expected: Table) -> None:
    killed: list[int] = []

    def kill(done: int, total: int, key: str) -> None:
        if done >= 2 and not killed:
            nanny = next(iter(cluster.workers.values()))
            killed.append(nanny.pid)
            os.kill(nanny.pid, signal.SIGKILL)

    assert lab.sweep(small(), OVER, backend="dask", progress=kill) == expected
    assert len(killed) == 1


def failing() -> tuple[dict, dict]:
    """Returns a sweep whose second case does not fit into the memory that runs may use."""
    spec = small()
    wanted = lab.load(spec).host_bytes
    return {"machine": ["desktop", "xeon224"]}, {"memory_bytes": wanted}


@pytest.mark.parametrize("backend", ["threads", "loky"])
def test_a_failing_case_is_named_and_the_others_are_kept(backend: str) -> None:
    if backend != "threads":
        pytest.importorskip("joblib")
    over, options = failing()
    with pytest.raises(lab.SweepError) as caught:
        lab.sweep(small(), over, backend=backend, **options)
    error = caught.value
    assert "1 of 2 cases failed; the first is machine = xeon224" in str(error)
    assert list(error.failures) == ["machine = xeon224"]
    assert "memory" in error.failures["machine = xeon224"]
    assert error.results["machine"] == ["desktop"] * 10
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.results) == (str(error), error.results)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"transfer_ns": [1]}, ["case transfer_ns = 1", "hardware.FIELD"]),
        ({"hardware.transfer_ns": [1, -1]}, ["case hardware.transfer_ns = -1", "from 0 to"]),
        ({"machine": ["desktop", "laptop"]}, ["case machine = laptop", "presets are"]),
        ({"seed": [1, "x"]}, ["seed has the value 'x'"]),
        ({"seed": [-1]}, ["seed has the value -1"]),
        ({"seed": 3}, ["seed is 3; it must be a list"]),
        ({"machine": "desktop"}, ["machine is 'desktop'; it must be a list"]),
        ({"workload.cpus": []}, ["workload.cpus has no values"]),
        ({"workload.cpus": [1, 1]}, ["workload.cpus has the value 1 twice"]),
        ({"workload.cpus": [None]}, ["case workload.cpus = null", "NoneType"]),
    ],
)
def test_bad_sweeps_are_refused_before_the_first_run(over: dict, words: list[str]) -> None:
    ended: list[object] = []
    with pytest.raises(lab.SpecError) as caught:
        lab.sweep(small(), over, progress=lambda *now: ended.append(now))
    assert all(word in str(caught.value) for word in words), caught.value
    assert ended == []


def test_an_unknown_backend_is_refused() -> None:
    pytest.importorskip("joblib")
    with pytest.raises(lab.SpecError, match=r"backend 'spark'.*threads, joblib, .*loky"):
        lab.sweep(small(), OVER, backend="spark")
    for backend in ("threads", "loky"):
        with pytest.raises(lab.SpecError, match="jobs is 0"):
            lab.sweep(small(), OVER, backend=backend, jobs=0)


def test_both_tables_have_the_values_that_differ(expected: Table) -> None:
    wall = case(expected, metric="wall", variant="one-lock", seed=0, **{"workload.cpus": 2})
    assert [row["hardware.transfer_ns"] for row in wall] == [30.0, 60.0, 90.0]
    assert wall[0]["predicted"] < wall[2]["predicted"]
