"""Where should the KV cache of a language model be, on a machine with two nodes?

While a model generates text, its threads read the whole cache of a sequence for each token, so the bandwidth of
memory limits the tokens in a second. The sweep simulates threads on one node or on both, and the cache on one node
or spread over both so that each thread reads the memory of its own node. The program prints the best placement,
draws the tokens in a second and the number of sequences that fit, and then allocates blocks of a cache that way in a
pool of this machine's memory (with emulated nodes if it has only one).

    python kv_cache_two_nodes.py --preset xeon128 --context 8192
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import zonal
from zonal import lab, machine

# Two tensors (keys and values) for 32 layers with 8 heads of 128 numbers of 2 bytes: an 8B model with grouped heads.
BYTES_PER_POSITION = 2 * 32 * 8 * 128 * 2
BLOCK_BYTES = 2 << 20
# The rest of a node's memory is left for weights and for the system.
CACHE_SHARE = 0.5
COLORS = {"[0]": "#0072B2", "[1]": "#D55E00", "[0, 1]": "#009E73"}
CACHE_NAMES = {"[0]": "cache on node 0", "[1]": "cache on node 1", "[0, 1]": "cache on both, local to threads"}
THREAD_NAMES = {"[0]": "threads on node 0", "[0, 1]": "threads on both nodes"}


def experiment(host: machine.Machine, array_mib: float) -> dict[str, Any]:
    """Returns the experiment: each thread streams over its part of the cache."""
    workload = {"kind": "stream", "cpu_nodes": [0], "memory_nodes": [0], "array_mib": array_mib}
    return {
        "name": "kv-cache",
        "title": "A KV cache on two nodes",
        "part": [{"machine": host, "workload": workload}],
        "variant": [{"name": "zonal", "role": "ours"}],
    }


def tokens_per_second(rows: list[dict[str, Any]], context: int) -> dict[tuple[str, str], float]:
    """Returns the tokens in a second by the nodes of threads and of the cache."""
    # STREAM's copy reads one array and writes another; the rate counts both, and so do caches that are read and moved.
    copies = [row for row in rows if row["metric"] == "copy"]
    return {
        (row["workload.cpu_nodes"], row["workload.memory_nodes"]): row["predicted"] * 1e6 / (context * BYTES_PER_POSITION)
        for row in copies
    }


def draw(rates: dict[tuple[str, str], float], fits: dict[str, int], title: str, file: Path) -> None:
    """Draws the rates and the capacity."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 4.4), layout="constrained", gridspec_kw={"width_ratios": [3, 2]}
    )
    figure.suptitle(title)
    for place, (cache, color) in enumerate(COLORS.items()):
        positions = [group + (place - 1) * 0.27 for group in range(len(THREAD_NAMES))]
        values = [rates[threads, cache] for threads in THREAD_NAMES]
        bars = left.bar(positions, values, width=0.25, color=color, label=CACHE_NAMES[cache])
        left.bar_label(bars, fmt="%.0f", padding=2)
    left.set_xticks(range(len(THREAD_NAMES)), list(THREAD_NAMES.values()))
    left.set_ylabel("tokens per second, all threads")
    left.set_title("Rate limited by memory bandwidth", fontsize=11)
    capacity = right.bar([0, 1, 2], [fits[cache] for cache in COLORS], width=0.6, color=list(COLORS.values()))
    right.bar_label(capacity, padding=2)
    right.set_xticks([0, 1, 2], ["node 0", "node 1", "both nodes"])
    right.set_ylabel("sequences")
    right.set_title(f"Sequences that fit into {CACHE_SHARE:.0%} of memory", fontsize=11)
    for axis in (left, right):
        axis.margins(y=0.12)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def place(cache: str, blocks: int) -> None:
    """Allocates blocks of 2 MiB on the nodes of the cache and prints where they are."""
    nodes = json.loads(cache)
    size = (blocks + 16) * BLOCK_BYTES
    fake_nodes = 2 if len(machine.live().nodes()) < 2 else None
    with zonal.Pool(size, fake_nodes=fake_nodes, prefault=True) as pool:
        policy = pool.interleave(nodes) if len(nodes) > 1 else pool.bind(nodes)
        held = [pool.alloc(BLOCK_BYTES, policy=policy) for _ in range(blocks)]
        counts = {node: sum(block.node == node for block in held) for node in nodes}
        kind = "emulated nodes" if fake_nodes else "nodes"
        print(f"{blocks} blocks of 2 MiB, by {kind}: {counts}")
        resident = sum(block.placement().resident for block in held)
        print(f"in memory, as the kernel says: {resident >> 20} of {blocks * BLOCK_BYTES >> 20} MiB")
        for warning in pool.warnings:
            print(f"note: {warning}")


def main() -> None:
    """Runs the sweep and reports."""
    parser = argparse.ArgumentParser(description="Where should a KV cache be, on two nodes?")
    parser.add_argument("--preset", default="xeon128", help="a machine with nodes 0 and 1")
    parser.add_argument("--context", type=int, default=8192, help="positions in a sequence")
    parser.add_argument("--array-mib", type=float, default=4.0, help="simulated part of each thread, in MiB")
    parser.add_argument("--blocks", type=int, default=24, help="blocks to allocate on this machine")
    parser.add_argument("--out", type=Path, default=Path("kv_cache.png"))
    options = parser.parse_args()
    host = machine.preset(options.preset)
    over = {"workload.cpu_nodes": [[0], [0, 1]], "workload.memory_nodes": [[0], [1], [0, 1]]}
    table = lab.sweep(experiment(host, options.array_mib), over)
    rates = tokens_per_second(table.to_dicts(), options.context)
    managed = dict(zip(host.nodes()["node"], host.nodes()["managed_bytes"], strict=True))
    sequence = options.context * BYTES_PER_POSITION
    held = [int(managed[node] * CACHE_SHARE / sequence) for node in (0, 1)]
    fits = {"[0]": held[0], "[1]": held[1], "[0, 1]": sum(held)}
    (threads, cache), rate = max(rates.items(), key=lambda item: item[1])
    print(f"{host.name}: {THREAD_NAMES[threads]}, {CACHE_NAMES[cache]}: {rate:.0f} tokens per second")
    print(f"order in which node 0 falls back: {host.fallback_orders()[0]}")
    draw(rates, fits, f"A KV cache on {host.name}, {options.context} positions for each sequence (simulated)", options.out)
    place(cache, options.blocks)


if __name__ == "__main__":
    main()
