"""Experiments: from dictionaries and files, their results, and how bad input is refused."""

import json
import pickle
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest

from lab_specs import small
from zonal import lab, machine

METRICS = ["wall", "min_wall", "sys", "user", "total_cpu"]


def test_results_are_one_table() -> None:
    results = lab.run(small(), seed=7)
    table = results.table
    assert table["variant"] == ["one-lock"] * 5 + ["areas"] * 5
    assert table["metric"] == METRICS * 2
    assert set(table["experiment"]) == {"small"}
    assert set(table["machine"]) == {"desktop"}
    assert set(table["seed"]) == {7} == {results.seed}
    assert set(table["spec_hash"]) == {lab.load(small()).hash} == {results.spec_hash}
    assert set(table["hardware.transfer_ns"]) == {60.0}
    assert all(value > 0 for value in table["predicted"])
    assert "refills" in results.events["event"]
    assert results.parameters.to_dicts()[0]["why"] == "measured"


def test_cases_are_columns() -> None:
    spec = small()
    spec["part"][0]["cases"] = {"cpus": [1, 2], "gib_each": [0.001, 0.002]}
    table = lab.run(spec).table
    assert table.num_rows == 4 * 2 * 5
    assert table["cpus"][::10] == [1, 1, 2, 2]
    assert table["gib_each"][::10] == [0.001, 0.002, 0.001, 0.002]
    types = dict(zip(table.names, table.types, strict=True))
    assert (types["cpus"], types["gib_each"]) == ("int64", "float64")


def test_machines_of_parts_are_kept_apart() -> None:
    spec = small()
    second = small()["part"][0]
    spec["part"][0]["name"], second["name"], second["machine"] = "first", "second", machine.preset("duo24")
    spec["part"].append(second)
    table = lab.run(spec).table
    assert table["workload"][::10] == ["first", "second"]
    assert table["machine"][::10] == ["desktop", "duo24"]


def test_the_same_seed_gives_the_same_results() -> None:
    first = lab.run(small(), seed=3, jobs=1)
    second = lab.run(small(), seed=3, jobs=2)
    assert first.table == second.table
    assert first.to_json() == second.to_json()


def test_dictionaries_and_files_are_the_same_experiment(tmp_path: Path) -> None:
    example = lab.Spec(lab.EXAMPLE)
    toml, other = tmp_path / "example.toml", tmp_path / "example.json"
    toml.write_text(lab.EXAMPLE)
    values = tomllib.loads(lab.EXAMPLE)
    other.write_text(json.dumps(values))
    assert lab.load(toml) == lab.load(str(other)) == lab.load(values) == example
    assert lab.load(toml).hash == example.hash
    values["part"][0]["hardware"]["transfer_ns"] = 61.0
    assert lab.load(values).hash != example.hash


def test_every_built_in_experiment_travels_as_text() -> None:
    names = lab.experiments()["name"]
    assert "pageset-tuning-2023" in names
    for name in names:
        spec = lab.load(name)
        again = pickle.loads(pickle.dumps(spec))
        assert (again, again.text, again.files) == (spec, spec.text, spec.files)
        assert again.runs == spec.runs > 0


def test_machine_files_travel_with_the_experiment(tmp_path: Path) -> None:
    machine.preset("duo24").write(tmp_path / "mine.json")
    spec = small()
    spec["part"][0]["machine"] = "mine.json"
    loaded = lab.load(spec, folder=tmp_path)
    (tmp_path / "mine.json").unlink()
    assert list(loaded.files) == ["mine.json"]
    assert set(pickle.loads(pickle.dumps(loaded)).run().table["machine"]) == {"duo24"}
    spec["part"][0]["machine"] = machine.preset("duo24")
    assert lab.load(spec).files == {"duo24.json": loaded.files["mine.json"]}
    other = {"mine.json": machine.preset("xeon128").to_json()}
    assert lab.Spec(loaded.text, other).hash != loaded.hash == lab.Spec(loaded.text, loaded.files).hash


def test_variants_are_selected() -> None:
    assert set(lab.run(small(), variants=["areas"]).table["variant"]) == {"areas"}
    with pytest.raises(lab.SpecError, match="no variant `area`; it has one-lock, areas"):
        lab.run(small(), variants=["area"])


def test_values_are_replaced() -> None:
    spec = lab.load(small())
    changed = spec.with_values({"workload.cpus": 1, "areas.hardware.list_work_ns": 5, "machine": "duo24"})
    assert "cpus = 1" in changed.text
    assert changed.machines == ["duo24"]
    assert changed.hash != spec.hash
    assert spec.with_values({"workload.cpus": 2}) == spec


def test_reports_are_saved(tmp_path: Path) -> None:
    results = lab.run(small())
    files = results.save(tmp_path)
    assert [file.name for file in files[:2]] == ["result.json", "report.html"]
    assert files[0].read_text() == results.to_json()
    assert files[1].read_text() == results.to_html()
    assert results.save(tmp_path) == files
    files[0].write_text("notes")
    with pytest.raises(FileExistsError, match=r"result\.json"):
        results.save(tmp_path)
    results.save(tmp_path, force=True)


def test_progress_is_reported() -> None:
    seen = []
    lab.run(small(), progress=seen.append)
    # Two variants, and one of them with the other's cost of list work.
    assert [(now.done, now.total) for now in (seen[0], seen[-1])] == [(0, 3), (3, 3)]
    assert seen[-1].share == pytest.approx(1)
    assert any("one-lock" in text for now in seen for text in now.running)


def test_an_exception_of_the_callback_stops_the_runs() -> None:
    spec = small()
    spec["part"][0]["cases"] = {"cpus": [1, 2, 4, 8]}
    calls = []

    def refuse(now: lab.Progress) -> None:
        calls.append(now.done)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lab.run(spec, jobs=1, progress=refuse)
    assert calls == [0]


def test_the_gil_is_released() -> None:
    spec = small()
    spec["part"][0]["cases"] = {"fault_ns": list(range(100, 2100))}
    loaded = lab.load(spec)
    stop, seen, ended = lab.Stop(), [], []

    def work() -> None:
        try:
            # A native callback does not let other threads run.
            loaded.run(jobs=1, stop=stop, progress=seen.append)
            ended.append("completed")
        except KeyboardInterrupt:
            ended.append("stopped")

    worker = threading.Thread(target=work)
    worker.start()
    while not seen:
        time.sleep(0)
    stop.set()
    worker.join()
    assert ended == ["stopped"]


def test_an_interrupt_stops_the_runs() -> None:
    program = """
import signal
from zonal import lab
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
spec = SPEC
spec["part"][0]["workload"]["gib_each"] = 0.2
spec["part"][0]["cases"] = {"fault_ns": list(range(100, 1100))}
def progress(now):  # reports may be left out, but not the first
    signal.raise_signal(signal.SIGINT)
try:
    lab.run(spec, progress=progress)
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
""".replace("SPEC", repr(small()))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("interrupted True\n", 0), done.stderr


def test_a_stop_request_ends_the_runs() -> None:
    stop = lab.Stop()
    stop.set()
    spec = small()
    spec["part"][0]["cases"] = {"fault_ns": list(range(100, 1100))}
    with pytest.raises(KeyboardInterrupt, match="runs were not completed"):
        lab.run(spec, stop=stop)


def test_a_run_that_does_not_fit_is_named() -> None:
    with pytest.raises(lab.RunError, match=r"experiment small, .*needs .*memory"):
        lab.run(small(), memory_bytes=1)


def changed(change) -> dict:
    spec = small()
    change(spec, spec["part"][0])
    return spec


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec, part: part["workload"].update(cpu=3), ["part[0].workload.cpu", "`cpus`"]),
        (lambda spec, part: part["workload"].update(cpus="two"), ["part[0].workload.cpus", "two"]),
        (lambda spec, part: part["workload"].update(cpus=None), ["part[0].workload.cpus", "NoneType"]),
        (lambda spec, part: part["workload"].update(cpus={1, 2}), ["part[0].workload.cpus", "set"]),
        (lambda spec, part: part["workload"].update(cpus=2**70), ["part[0].workload.cpus", "64 bits"]),
        (lambda spec, part: part["hardware"].update(transfer_ns=-1), ["part[0].hardware.transfer_ns", "from 0 to"]),
        (lambda spec, part: part.update(machine="quad"), ["part[0].machine", '"quad"', "quad-10-12-32"]),
        (lambda spec, part: part.update(machine="quad.json"), ["part[0].machine", "not among the files"]),
        (lambda spec, part: part.update({1: 2}), ["part[0]", "keys must be texts"]),
        (lambda spec, part: spec["variant"][1].update(role="best"), ["variant[1].role", "`baseline`"]),
        (lambda spec, part: spec.pop("title"), ["experiment: `title` is missing"]),
        (lambda spec, part: part.pop("workload"), ["part[0]", "`workload` is missing"]),
        (lambda spec, part: spec.update(part=[]), ["[[part]]"]),
        (lambda spec, part: spec.update(part={"machine": "desktop"}), ["`part` is a list of tables"]),
    ],
)
def test_bad_dictionaries_are_refused_with_the_field(change, words: list[str]) -> None:
    with pytest.raises(lab.SpecError) as caught:
        lab.load(changed(change))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"transfer_ns": 3}, ["`transfer_ns` is not a setting", "hardware.FIELD"]),
        ({"hardware.transfr_ns": 3}, ["part[0].hardware.transfr_ns", "`transfer_ns`"]),
        ({"first.hardware.transfer_ns": 3}, ["`first.hardware.transfer_ns`", "one-lock, areas"]),
        ({"config.free_areas": "one"}, ["every variant sets it", "VARIANT.config.free_areas"]),
        ({"areas.workload.cpus": 3}, ["variants have only hardware and config"]),
        ({"workload.cpus": "two"}, ["part[0].workload.cpus"]),
    ],
)
def test_bad_names_of_settings_are_refused(values: dict, words: list[str]) -> None:
    with pytest.raises(lab.SpecError) as caught:
        lab.load(small()).with_values(values)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_setting_that_cases_override_is_refused() -> None:
    for cases in ({"cases": {"cpus": [1]}}, {"case": [{"cpus": 1}]}, {"cases": {"workload.cpus": [1]}}):
        spec = changed(lambda spec, part, cases=cases: part.update(cases))
        with pytest.raises(lab.SpecError, match="the cases of the experiment set it"):
            lab.load(spec).with_values({"workload.cpus": 2})


def test_bad_files_are_refused_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(lab.EXAMPLE.replace("gib_each = 0.02", 'gib_each = "much"'))
    line = 1 + next(at for at, text in enumerate(file.read_text().splitlines()) if "much" in text)
    with pytest.raises(lab.SpecError, match=rf"bad\.toml:{line}: gib_each"):
        lab.load(file)
    file.write_text("name = ")
    with pytest.raises(lab.SpecError, match=r"bad\.toml:1:"):
        lab.load(file)
    other = tmp_path / "bad.json"
    for text in ("[1]", "{"):
        other.write_text(text)
        with pytest.raises(lab.SpecError, match=r"bad\.json: "):
            lab.load(other)
    for name in ("none.toml", "none.json"):
        with pytest.raises(lab.SpecError, match=f"{name}: cannot be read"):
            lab.load(tmp_path / name)
    with pytest.raises(lab.SpecError, match="the experiments are zonelist-cache-2006"):
        lab.load("zonelist")
    with pytest.raises(TypeError, match="not int"):
        lab.load(3)
    with pytest.raises(lab.SpecError, match="jobs is 0"):
        lab.run(small(), jobs=0)


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    spec = small()
    spec["part"][0]["workload"]["cpus"] = numpy.int32(2)
    spec["part"][0]["hardware"]["transfer_ns"] = numpy.float32(60)
    assert lab.load(spec) == lab.load(small())
    spec["part"][0]["cases"] = {"cpus": numpy.array([1, 2])}
    assert lab.load(spec).runs == 4
