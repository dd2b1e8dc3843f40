"""The type stubs, and the programs of docs/python.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typed_pool
import zonal

HERE = Path(__file__).parent


def test_the_typed_program_runs():
    assert typed_pool.main() == 2


def test_mypy_accepts_a_right_program_and_refuses_a_wrong_one(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")

    def check(path):
        command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(path)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    right = check(HERE / "typed_pool.py")
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text('import zonal\nzonal.Pool("1M").alloc(1).nbytes = 3\nzonal.Pool("1M", huge_pages="4m")\n')
    assert "Found 2 errors" in check(wrong).stdout


def test_stubs_name_every_member():
    stub = (Path(zonal.__file__).parent / "_zonal.pyi").read_text()
    for name in zonal.__all__:
        found = getattr(zonal, name)
        if not isinstance(found, type) or found.__module__ != "zonal" or issubclass(found, zonal.Error):
            continue
        part = re.search(rf"^class {name}\b.*?(?=^class |^@final|\Z)", stub, re.S | re.M)
        if part is None:
            continue  # it has a stub of its own
        for member in vars(found):
            if not member.startswith("_"):
                inherited = name == "Settings" and member in {"get", "items", "keys", "values"}
                assert inherited or f"def {member}(" in part[0], f"{name}.{member}"


def test_the_module_requires_the_interpreters_lock():
    """The module for several versions of Python, which is built here, does not contain what free-threaded ones read."""
    source = (HERE.parent / "src" / "lib.rs").read_text()
    assert re.findall(r"^#\[pymodule.*", source, re.M) == ["#[pymodule(gil_used = true)]"]


def programs():
    """Returns the programs of the sections about pools. Those of other sections are in test_guide.py."""
    page = HERE.parents[2] / "docs" / "python.md"
    text = page.read_text().split("\n## Machines\n")[0] if page.exists() else ""
    return re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)


@pytest.mark.parametrize("number", range(len(programs())))
def test_programs_of_the_documentation_run(number, run):
    program = programs()[number]
    for module in re.findall(r"^import (numpy|torch|pandas|polars|pyarrow)\b", program, re.M):
        pytest.importorskip(module, reason=f"{module} is not installed")
    run(program)
