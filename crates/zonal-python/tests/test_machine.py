"""Machines: where they come from, what the rules make of them, and how bad input is refused."""

import json
import pickle
from pathlib import Path

import pytest

from zonal import machine
from zonal.table import Table

QUAD = "quad-10-12-32"


def test_a_preset_has_its_nodes_cpus_distances_and_zones() -> None:
    quad = machine.preset(QUAD)
    assert (quad.name, quad.page_bytes, quad.kernel, quad.notes) == (QUAD, 4096, None, [])
    assert quad.nodes()["cpus"] == [16] * 4
    assert quad.cpus().num_rows == 64
    assert quad.cpus().to_dicts()[17] == {"cpu": 17, "node": 1}
    rows = quad.distances().to_dicts()
    assert [row["distance"] for row in rows if row["node"] == 2] == [32, 32, 10, 12]
    zones = quad.zones()
    assert zones["kind"] == ["DMA", "DMA32", "Normal", "Normal", "Normal", "Normal"]
    assert zones["managed_bytes"] == [frames * 4096 for frames in zones["managed"]]


def test_fallback_orders_follow_the_rules_of_the_kernel() -> None:
    quad = machine.preset(QUAD)
    assert quad.fallback_orders() == {0: [0, 1, 2, 3], 1: [1, 0, 3, 2], 2: [2, 3, 0, 1], 3: [3, 2, 1, 0]}
    assert quad.fallback_orders("5.10")[3] == [3, 2, 0, 1]
    assert quad.fallback_orders(node_load="assign") == quad.fallback_orders("5.10")
    table = quad.explain().fallbacks()
    order = [row["serves"] for row in table.to_dicts() if row["node"] == 3]
    assert order == [3, 2, 1, 0]


def test_a_report_has_the_values_that_its_rules_know() -> None:
    quad = machine.preset(QUAD)
    new, old = quad.explain("6.12"), quad.explain("6.1")
    assert (new.rules, old.rules) == ("6.12", "6.1")
    assert set(new.zones()["pageset_high"]) == {None}
    assert None not in new.zones()["pageset_high_max"]
    assert None not in old.zones()["pageset_high"]
    for zone in new.zones().to_dicts():
        assert zone["min"] <= zone["low"] <= zone["high"]
        assert zone["pageset_high_min"] <= zone["pageset_high_max"]
    assert sum(new.balance()["times"]) == 12
    document = new.to_dict()
    assert [node["fallback_order"] for node in document["nodes"]] == list(new.fallback_orders().values())


def test_this_machine_is_captured_and_checked() -> None:
    here = machine.live()
    assert here.cpus().num_rows >= 1
    assert sum(here.nodes()["managed"]) == sum(here.zones()["managed"]) > 0
    checks = here.check()
    assert checks.names == ["what", "predicted", "observed", "same", "as_at_boot"]
    differing = [row for row in checks.to_dicts() if not (row["same"] or row["as_at_boot"])]
    assert here.explain().differs == bool(differing)


def observed(quad: machine.Machine, order: list[int]) -> machine.Machine:
    values = json.loads(quad.to_json())
    values["observed"] = {"kernel": "6.12", "cpu_penalty": True, "fallback_order": {"3": order}}
    return machine.Machine(json.dumps(values))


def test_a_check_finds_a_difference() -> None:
    quad = machine.preset(QUAD)
    same, other = observed(quad, [3, 2, 1, 0]), observed(quad, [3, 2, 0, 1])
    assert same.kernel == "6.12"
    assert (same.explain().differs, other.explain().differs) == (False, True)
    assert other.check().to_dicts() == [
        {
            "what": "fallback_order node 3",
            "predicted": "3 2 1 0",
            "observed": "3 2 0 1",
            "same": False,
            "as_at_boot": False,
        }
    ]


def test_advice_has_severities() -> None:
    advice = machine.preset(QUAD).advice()
    assert advice.num_rows > 0
    assert set(advice["severity"]) <= {"info", "warn"}


def test_machine_files_read_back(tmp_path: Path) -> None:
    quad, file = machine.preset(QUAD), tmp_path / "quad.json"
    quad.write(file)
    assert machine.read(file) == quad
    assert machine.read(str(file)) == pickle.loads(pickle.dumps(quad))
    foreign = tmp_path / "notes.json"
    foreign.write_text("my notes")
    with pytest.raises(FileExistsError, match=r"notes\.json"):
        quad.write(foreign)
    assert foreign.read_text() == "my notes"
    quad.write(foreign, force=True)
    assert machine.read(foreign) == quad


def test_a_captured_tree_is_read(tmp_path: Path) -> None:
    node = tmp_path / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_text("0-3\n")
    (node / "distance").write_text("10\n")
    (node / "meminfo").write_text("Node 0 MemTotal: 4194304 kB\n")
    captured = machine.capture(tmp_path)
    assert captured.cpus()["cpu"] == [0, 1, 2, 3]
    assert any("zoneinfo" in note for note in captured.notes)


def test_every_preset_is_a_machine() -> None:
    presets = machine.presets()
    assert QUAD in presets["name"]
    assert [machine.preset(name).name for name in presets["name"]] == presets["name"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: machine.preset("quad"), ['"quad"', QUAD]),
        (lambda: machine.preset(QUAD).explain("new"), ['"new"', "6.12"]),
        (lambda: machine.preset(QUAD).explain(node_load="most"), ["`most`", "accumulate, remaining, assign"]),
        (lambda: machine.preset(QUAD).check(), ["nothing to check", "observed"]),
        (lambda: machine.Machine("{"), ["machine", "line 1"]),
    ],
)
def test_bad_input_is_refused_with_what_is_right(call, words: list[str]) -> None:
    with pytest.raises(machine.MachineError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda values: values["nodes"][1]["distances"].update({"0": 9}), "nodes[1].distances"),
        (lambda values: values["zones"][0].update(managd=1), "managd"),
        (lambda values: values.update(page_bytes="4096"), "page_bytes"),
        (lambda values: values.update(page_bytes=5000), "page_bytes"),
    ],
)
def test_a_bad_file_is_refused_with_its_field(change, field: str, tmp_path: Path) -> None:
    values = json.loads(machine.preset(QUAD).to_json())
    change(values)
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(values))
    with pytest.raises(machine.MachineError) as caught:
        machine.read(file)
    assert "bad.json" in str(caught.value)
    assert field in str(caught.value)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        machine.read(tmp_path / "none.json")
    with pytest.raises(machine.MachineError, match="proc/zoneinfo"):
        machine.capture(tmp_path)
    with pytest.raises(TypeError):
        machine.read(3)


def test_tables_are_read_by_rows_and_columns() -> None:
    table = machine.preset(QUAD).distances()
    assert (len(table), table.num_rows, table.types) == (16, 16, ["int64"] * 3)
    assert table["node"] == table.column("node")
    with pytest.raises(KeyError, match="columns are node, to, distance"):
        table["from"]
    assert pickle.loads(pickle.dumps(table)) == table
    assert table != machine.preset("desktop").distances()
    assert repr(machine.preset("desktop").distances()).splitlines()[1].split() == ["0", "0", "10"]


def test_tables_with_different_columns_are_joined() -> None:
    quad = machine.preset(QUAD)
    both = Table.concat([quad.cpus(), quad.distances(), quad.zones()])
    assert both.num_rows == 64 + 16 + 6
    assert both["distance"][:64] == [None] * 64
    assert both["cpu"][64:] == [None] * 22
    assert both["start"][-1] == quad.zones()["start"][-1]


def test_pyarrow_pandas_and_polars_read_tables() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    report = machine.preset(QUAD).explain()
    arrow = pyarrow.table(report.zones())
    assert arrow.to_pylist() == report.zones().to_dicts()
    assert str(arrow.schema.field("min").type) == "uint64"
    assert pyarrow.schema(report.zones()) == arrow.schema
    assert pyarrow.table(machine.preset(QUAD).advice()).num_rows >= 1
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(report.zones()).to_dicts() == report.zones().to_dicts()
    pandas = pytest.importorskip("pandas", minversion="3.0")
    assert list(pandas.DataFrame.from_arrow(report.balance())["times"]) == report.balance()["times"]
