"""Runs the snippets of the guide, the examples, and the type checker on a sample."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CRATE = Path(__file__).parents[1]
GUIDE = CRATE.parents[1] / "docs/python.md"
SECTIONS = ["Machines", "The lab", "Sweeps"]
PNG = b"\x89PNG\r\n\x1a\n"


def snippets() -> list[str]:
    """Returns the Python snippets of this package's sections of the guide, in order."""
    sections = re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)
    found: list[str] = []
    for name in SECTIONS:
        section = next(section for section in sections if section.startswith(f"{name}\n"))
        inside = re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
        assert inside, f"section {name} has no snippets"
        found += inside
    return found


def test_the_snippets_of_the_guide_run(tmp_path: Path) -> None:
    for needed in ("pyarrow", "joblib"):
        pytest.importorskip(needed)
    program = tmp_path / "guide.py"
    program.write_text("\n".join(snippets()).replace("/tmp/quad.json", str(tmp_path / "quad.json")))
    run(program, cwd=tmp_path)
    assert (tmp_path / "quad.json").exists()
    assert (tmp_path / "lab-results/locks/report.html").exists()


def run(program: Path, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, program, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tuning_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    program = CRATE / "examples/tuning_for_my_machine.py"
    short = ["--mib", "0.25", "1", "--warm-up", "0.002", "--seconds", "0.002", "--processes", "1"]
    assert "1 processes: the tunings hardly differ" in run(program, *short, cwd=tmp_path)
    assert (tmp_path / "tuning.png").read_bytes().startswith(PNG)
    assert "xeon128" in run(program, *short, "--preset", "xeon128", "--out", "other.png", cwd=tmp_path)
    assert (tmp_path / "other.png").read_bytes().startswith(PNG)


def test_the_cache_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = run(CRATE / "examples/kv_cache_two_nodes.py", "--preset", "duo24", "--array-mib", "0.2", cwd=tmp_path)
    assert "duo24: threads on both nodes, cache on both, local to threads" in out
    assert re.search(r"24 blocks of 2 MiB, by (emulated )?nodes: \{0: 12, 1: 12\}", out), out
    assert (tmp_path / "kv_cache.png").read_bytes().startswith(PNG)


SAMPLE = """
from pathlib import Path
from zonal import lab, machine
from zonal.table import Table

here: machine.Machine = machine.live()
orders: dict[int, list[int]] = here.fallback_orders("6.12", node_load="assign")
names: list[str] = here.explain().zones().names
checks: Table = here.check()
spec: lab.Spec = lab.load({"name": "x"}, folder=Path("."))
results: lab.Results = lab.run(spec, seed=3, variants=["a"], progress=lambda now: print(now.share))
files: list[Path] = results.save("out")
try:
    table: Table = lab.sweep("file.toml", {"seed": range(3), "machine": [here]}, backend="dask", jobs=2)
except lab.SweepError as error:
    table, reasons = error.results, error.failures
joined: Table = Table.concat([table, results.table])
first: int = joined.to_dicts()[0]["seed"]
"""


def check_types(program: str, folder: Path) -> str:
    pytest.importorskip("mypy")
    file = folder / "sample.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", file], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_the_stubs_pass_strict_checks(tmp_path: Path) -> None:
    assert check_types(SAMPLE, tmp_path).startswith("Success")


def test_the_stubs_refuse_wrong_types(tmp_path: Path) -> None:
    wrong = "from zonal import lab, machine\nmachine.preset(3)\nlab.run('x', seed='y')\nlab.sweep('x', [1])\n"
    assert "Found 3 errors" in check_types(wrong, tmp_path)


def public(module: object) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_")}


def test_the_stubs_have_the_names_that_exist() -> None:
    from zonal import lab, machine, table

    for module, stub in ((machine, "machine.pyi"), (lab, "lab/__init__.pyi"), (table, "table.pyi")):
        stubs = (Path(module.__file__).parent / Path(stub).name).read_text()
        for name in module.__all__:
            assert re.search(rf"^(class|def) {name}\b|^{name}:", stubs, flags=re.MULTILINE), f"{stub}: {name}"
            real = getattr(module, name)
            if isinstance(real, type) and not issubclass(real, Exception):
                body = re.search(rf"^class {name}\b.*?(?=^\S|\Z)", stubs, flags=re.MULTILINE | re.DOTALL)
                written = set(re.findall(r"^    def (\w+)", body.group(), flags=re.MULTILINE)) if body else set()
                assert {method for method in written if not method.startswith("_")} == public(real), name
