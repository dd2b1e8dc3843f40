"""Small experiments for tests."""

import copy
from typing import Any

SMALL: dict[str, Any] = {
    "name": "small",
    "title": "Processes touch memory on a small machine",
    "part": [
        {
            "machine": "desktop",
            "hardware": {"transfer_ns": 60.0},
            "workload": {"kind": "first-touch", "cpus": 2, "gib_each": 0.002, "fault_ns": 200.0, "user_ns": 50.0},
        }
    ],
    "variant": [
        {"name": "one-lock", "role": "baseline", "config": {"free_areas": "one"}, "hardware": {"list_work_ns": 50.0}},
        {"name": "areas", "role": "ours", "config": {"free_areas": "many"}},
    ],
    "parameter": [{"name": "hardware.transfer_ns", "why": "measured"}],
}


def small() -> dict[str, Any]:
    """Returns a copy that a test may change."""
    return copy.deepcopy(SMALL)
