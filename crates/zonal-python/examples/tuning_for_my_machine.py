"""Which pageset tuning suits my machine?

Processes on every CPU map, touch and unmap memory. The sweep varies how much each of them maps at a time, and the
experiment compares three ways to size the pagesets (the per-CPU lists of free frames). The program prints the
tuning that waits least for the zone's lock, and draws both figures.

    python tuning_for_my_machine.py                     # this machine
    python tuning_for_my_machine.py --preset xeon128    # a well-known one
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from zonal import lab, machine

# Colours that people with colour-blindness can tell apart.
STYLES = {"fixed": ("#D55E00", "o"), "stepwise": ("#0072B2", "s"), "depth": ("#009E73", "^")}
ABOUT = {
    "fixed": "a fixed limit",
    "stepwise": "a limit that grows step by step, as in Linux from 6.7",
    "depth": "a limit tuned from the depth of allocations and frees (the default of zonal)",
}


def experiment(here: machine.Machine, processes: int, warm_up: float, seconds: float) -> dict[str, Any]:
    """Returns the experiment; `seconds` is the simulated time that is measured after the warm-up."""
    variants = [
        {
            "name": tuning,
            "role": "baseline" if tuning == "fixed" else "ours",
            "about": about,
            "config": {"tuning": tuning, "free_areas": "one"},
        }
        for tuning, about in ABOUT.items()
    ]
    workload = {
        "kind": "page-faults",
        "processes": processes,
        "mib_each": 1.0,
        "seconds": warm_up + seconds,
        "warm_up": warm_up,
        "fault_ns": 1500.0,
        "unmap_ns": 450.0,
        "lru_batch": 15,
        "lru_ns": 0.0,
    }
    part = {"machine": here, "hardware": {"list_work_ns": 50.0}, "workload": workload}
    return {"name": "tuning", "title": "Pageset tuning", "part": [part], "variant": variants}


def metric(rows: list[dict[str, Any]], variant: str, name: str) -> tuple[list[float], list[float]]:
    """Returns the memory mapped at a time and the values of a metric."""
    found = [row for row in rows if row["variant"] == variant and row["metric"] == name]
    return [row["workload.mib_each"] for row in found], [row["predicted"] for row in found]


def draw(rows: list[dict[str, Any]], title: str, file: Path) -> None:
    """Draws the throughput and the time spent waiting for the lock."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    figure.suptitle(title)
    panels = [
        ("throughput", "Pages touched", "throughput (GB/s)"),
        ("zone_lock_contention", "Waiting for the zone's lock", "share of CPU time (%)"),
    ]
    for axis, (name, heading, label) in zip(axes, panels, strict=True):
        for variant, (color, marker) in STYLES.items():
            sizes, values = metric(rows, variant, name)
            # Later lines are thinner, so that lines that coincide stay visible.
            width = 4.0 - 1.2 * list(STYLES).index(variant)
            axis.plot(sizes, values, color=color, marker=marker, linewidth=width, label=variant)
        axis.set_xscale("log", base=2)
        ticks = sorted({row["workload.mib_each"] for row in rows})
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel("memory that a process maps at a time (MiB)")
        axis.set_ylabel(label)
        axis.set_title(heading, fontsize=11)
        axis.grid(alpha=0.3)
        highest = max(row["predicted"] for row in rows if row["metric"] == name)
        axis.set_ylim(0, max(1.0, 1.15 * highest))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def main() -> None:
    """Runs the sweep and reports."""
    parser = argparse.ArgumentParser(description="Which pageset tuning suits my machine?")
    parser.add_argument("--preset", help="a well-known machine in place of this one")
    parser.add_argument("--processes", type=int, help="number of processes (one for each CPU)")
    parser.add_argument("--mib", type=float, nargs="+", default=[0.25, 1, 4, 16])
    # Tuning by depth needs some seconds until it knows a program.
    parser.add_argument("--warm-up", type=float, default=2.5, help="simulated seconds before the measurement")
    parser.add_argument("--seconds", type=float, default=0.5, help="simulated seconds that are measured")
    parser.add_argument("--out", type=Path, default=Path("tuning.png"))
    options = parser.parse_args()
    here = machine.preset(options.preset) if options.preset else machine.live()
    processes = options.processes or here.cpus().num_rows
    spec = experiment(here, processes, options.warm_up, options.seconds)
    table = lab.sweep(spec, {"workload.mib_each": options.mib})
    rows = table.to_dicts()
    lost = {variant: sum(metric(rows, variant, "zone_lock_contention")[1]) for variant in STYLES}
    # The first of equal variants is the simplest.
    best = min(STYLES, key=lambda variant: round(lost[variant], 2))
    for variant, waiting in lost.items():
        print(f"{variant:10} waits {waiting / len(options.mib):6.2f} % of CPU time for the lock, on average")
    if max(lost.values()) - min(lost.values()) < 0.5 * len(options.mib):
        print(f"{here.name}, {processes} processes: the tunings hardly differ; keep the default")
    else:
        print(f"{here.name}, {processes} processes: use {best}, {ABOUT[best]}")
    draw(rows, f"Pageset tuning on {here.name}, {processes} processes (simulated)", options.out)


if __name__ == "__main__":
    main()
