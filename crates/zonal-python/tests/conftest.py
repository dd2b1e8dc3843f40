"""What the tests share."""

import gc
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import zonal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it


@pytest.fixture
def pool():
    """A pool with one emulated node, which must be consistent and empty at the end."""
    pool = zonal.Pool("32M", fake_nodes=1)
    yield pool
    gc.collect()
    if not pool.closed:
        assert pool.verify()["allocated"] == 0
        pool.close()


@pytest.fixture
def pool2():
    """A pool with two emulated nodes."""
    with zonal.Pool("64M", fake_nodes=2) as pool:
        yield pool


@pytest.fixture
def run():
    """Runs a program in an interpreter of its own, which must end well, and returns its output."""

    def run(program, timeout=60):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
