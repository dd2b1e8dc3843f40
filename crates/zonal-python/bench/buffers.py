"""Compares buffers of a pool with other memory: 2 MiB at a time, and a whole pool that is prefaulted.

    pip install ./crates/zonal-python numpy torch py-libnuma
    python crates/zonal-python/bench/buffers.py [--prefault 4G] [--rounds 2000]

Build the package with optimization (`pip install` does; `maturin develop` needs `--release`).
"""

import argparse
import ctypes
import mmap
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import zonal

SIZE = 2 << 20


def median_us(work, rounds):
    """Returns the median time of a call in microseconds, of five runs."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds):
            work()
        times.append((time.perf_counter() - start) / rounds * 1e6)
    return statistics.median(times)


def candidates(pool):
    """Yields names, functions that allocate, and functions that fill what they return."""

    def fill_view(owner):
        with memoryview(owner) as view:
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(view)), 1, SIZE)

    yield "zonal: Pool.alloc", lambda: pool.alloc(SIZE), fill_view
    try:
        import numpy
    except ImportError:
        print("numpy is not installed")
    else:
        yield "numpy.empty", lambda: numpy.empty(SIZE, dtype="u1"), lambda array: array.fill(1)

        def in_pool():
            return numpy.empty(SIZE, dtype="u1")

        yield "numpy.empty in pool.numpy_arrays()", in_pool, lambda array: array.fill(1)
        yield (
            "numpy.frombuffer(pool.alloc)",
            lambda: numpy.frombuffer(pool.alloc(SIZE), dtype="u1"),
            lambda array: array.fill(1),
        )
    yield "mmap.mmap", lambda: mmap.mmap(-1, SIZE), fill_view
    try:
        import torch
    except ImportError:
        print("torch is not installed")
    else:
        yield "torch.empty", lambda: torch.empty(SIZE, dtype=torch.uint8), lambda tensor: tensor.fill_(1)
        yield (
            "torch.frombuffer(pool.alloc)",
            lambda: torch.frombuffer(pool.alloc(SIZE), dtype=torch.uint8),
            lambda tensor: tensor.fill_(1),
        )
        try:
            torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            print(f"torch pins no memory here: {str(error).splitlines()[0][:60]}")
        else:
            yield (
                "torch.empty(pin_memory=True)",
                lambda: torch.empty(SIZE, dtype=torch.uint8, pin_memory=True),
                lambda tensor: tensor.fill_(1),
            )
    yield from libnuma()


def libnuma():
    """py-libnuma sets policies of the calling thread. It allocates nothing, so its binding of libnuma does it here."""
    try:
        from numa import LIBNUMA, memory
    except (ImportError, OSError, AttributeError) as error:
        print(f"py-libnuma is not usable: {error}")
        return
    onnode, free = LIBNUMA.numa_alloc_onnode, LIBNUMA.numa_free
    onnode.restype, onnode.argtypes = ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_int)
    free.restype, free.argtypes = None, (ctypes.c_void_p, ctypes.c_size_t)
    node = memory.get_allocation_allowed_nodes()[0]

    class OnNode:
        def __init__(self):
            self.address = onnode(SIZE, node)

        def __del__(self):
            free(self.address, SIZE)

    yield "libnuma: numa_alloc_onnode", OnNode, lambda block: ctypes.memset(block.address, 1, SIZE)


def buffers(rounds):
    with zonal.Pool("256M", prefault=True) as pool:
        print(f"{'2 MiB':38} {'alloc + drop':>14} {'alloc + fill + drop':>20}")
        for name, alloc, fill in candidates(pool):
            if "numpy_arrays" in name:
                with pool.numpy_arrays():
                    report(name, alloc, fill, rounds)
            else:
                report(name, alloc, fill, rounds)


def report(name, alloc, fill, rounds):
    filled = median_us(lambda: fill(alloc()), max(rounds // 10, 1))
    print(f"{name:38} {median_us(alloc, rounds):11.2f} us {filled:17.1f} us")


def prefault(text):
    cpus = len(os.sched_getaffinity(0))

    def timed(work):
        """Returns the shortest of three times, because other programs lengthen them."""
        times = []
        for _ in range(3):
            start = time.perf_counter()
            size = work()
            times.append(time.perf_counter() - start)
        return f"{min(times):8.3f} s {size / min(times) / (1 << 30):8.2f} GiB/s"

    def pool(threads, huge_pages):
        with zonal.Pool(text, prefault=True, prefault_threads=threads, huge_pages=huge_pages) as built:
            return built.size

    with zonal.Pool(text) as sized:
        size = sized.size

    def memset(threads, advice):
        mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapped.madvise(advice)
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        part = size // threads
        with ThreadPoolExecutor(threads) as workers:
            list(workers.map(lambda at: ctypes.memset(start + at * part, 0, part), range(threads)))
        return size

    print(f"\n{size / (1 << 30):.2f} GiB, including map and unmap")
    for threads in sorted({1, cpus}):
        for name, huge_pages, advice in (
            ("transparent huge pages", "transparent", mmap.MADV_HUGEPAGE),
            ("4 KiB pages", "never", mmap.MADV_NOHUGEPAGE),
        ):
            print(f"{name}, {threads} threads: zonal    {timed(lambda: pool(threads, huge_pages))}")
            print(f"{name}, {threads} threads: memset   {timed(lambda: memset(threads, advice))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefault", default="4G", help="size of the pool that is prefaulted, or 0 for none (4G)")
    parser.add_argument("--rounds", type=int, default=2000, help="allocations per run (2000)")
    arguments = parser.parse_args()
    buffers(arguments.rounds)
    if arguments.prefault != "0":
        prefault(arguments.prefault)


if __name__ == "__main__":
    main()
