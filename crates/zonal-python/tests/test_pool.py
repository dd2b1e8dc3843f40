"""Pools and buffers: building, allocating, lifetimes and errors."""

import _thread
import collections
import functools
import gc
import operator
import os
import threading
import weakref

import pytest
import zonal


def test_a_pool_reports_what_it_is(pool):
    assert pool.size == 32 << 20
    assert pool.page_bytes == 4096
    assert pool.node_ids == [0]
    assert pool.binding == "nodes emulated"
    assert "32 MiB" in repr(pool)
    assert pool.accounting()["managed"] == 8192
    assert isinstance(pool.warnings, list)


@pytest.mark.parametrize(("text", "size"), [("16M", 16 << 20), ("0.25 GiB", 256 << 20), ("16384k", 16 << 20)])
def test_sizes_are_numbers_or_texts(text, size):
    with zonal.Pool(text, fake_nodes=1) as pool:
        assert pool.size == size


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"size": "64Q"}, '"64Q"'),
        ({"size": 0}, "size is 0"),
        ({"size": -5}, "size is -5"),
        ({"size": 1.5}, "size is 1.5"),
        ({"size": "64M", "huge_pages": "4m"}, 'huge_pages is "4m"'),
        ({"size": "64M", "nodes": [999]}, "node 999"),
        ({"size": "64M", "nodes": [-1]}, "node -1"),
        ({"size": "64M", "fake_nodes": 0}, "0 emulated nodes"),
        ({"size": "64M", "max_size": "32M"}, "less than its size"),
        ({"size": "64M", "prefault_threads": 0}, "prefault_threads is 0"),
        ({"size": "64M", "settings": {"zone_reclaim_mode": 9}}, "allowed: a number from 0 to 7"),
    ],
)
def test_wrong_options_are_named(arguments, expected):
    with pytest.raises(ValueError, match=expected) as raised:
        zonal.Pool(**arguments)
    assert isinstance(raised.value, zonal.Error)


def test_a_pool_larger_than_memory_is_refused():
    with pytest.raises(MemoryError, match="or less"):
        zonal.Pool("1024T")


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(KeyError, match="min_free_kbytes"):
        zonal.Pool("16M", settings={"min_free_kbyte": 1})


def test_views_share_the_memory(pool):
    buffer = pool.alloc(10_000, zeroed=True)
    assert (buffer.nbytes, len(buffer), buffer.pages, buffer.node) == (10_000, 10_000, 3, 0)
    first, second = memoryview(buffer), memoryview(buffer)
    assert (first.nbytes, first.readonly, first.format) == (10_000, False, "B")
    first[9_999] = 7
    assert second[9_999] == 7
    assert bytes(second[:4]) == b"\0\0\0\0"
    first.release()
    second.release()
    buffer.free()


def test_frees_are_refused_while_views_exist(pool):
    buffer = pool.alloc(4096)
    view = memoryview(buffer)
    with pytest.raises(BufferError):
        buffer.free()
    with pytest.raises(zonal.InUseError):
        pool.close()
    view[0] = 1  # still there
    assert not pool.closed
    view.release()
    buffer.free()
    assert buffer.freed
    pool.close()
    pool.close()


def test_freed_buffers_and_closed_pools_raise_errors(pool):
    buffer, other = pool.alloc(4096), pool.alloc(4096)
    buffer.free()
    for use in (buffer.free, lambda: memoryview(buffer), lambda: buffer.address, buffer.placement, buffer.__dlpack__):
        with pytest.raises(zonal.ClosedError):
            use()
    pool.close()
    assert other.freed
    for use in (pool.accounting, pool.verify, lambda: pool.alloc(1), pool.zones, lambda: pool.settings["stat_interval"]):
        with pytest.raises(zonal.ClosedError, match="closed"):
            use()
    assert "freed" in repr(buffer) and "closed" in repr(pool)


def test_foreign_buffers_and_policies_are_refused(pool, pool2):
    buffer = pool.alloc(4096)
    with pytest.raises(ValueError, match="another pool"):
        pool2.free(buffer)
    with pytest.raises(ValueError, match="another pool"):
        pool2.alloc(4096, policy=pool.preferred(0))
    pool.free(buffer)


def test_wrong_requests_are_named(pool):
    for arguments, expected in [
        ({"nbytes": 0}, "nbytes is 0"),
        ({"nbytes": -1}, "nbytes is -1"),
        ({"nbytes": "x"}, '"x"'),
        ({"nbytes": 4096, "node": 3}, "no memory on node 3; it has memory on 0"),
        ({"nbytes": 4096, "node": -1}, "node -1"),
        ({"nbytes": 4096, "align": 3}, "align is 3"),
        ({"nbytes": 4096, "node": 0, "policy": pool.preferred(0)}, "one of them"),
    ]:
        with pytest.raises(ValueError, match=expected):
            pool.alloc(**arguments)
    with pytest.raises(ValueError, match="empty"):
        pool.bind([])
    with pytest.raises(ValueError, match="weight of node 0 is 0"):
        pool.weighted_interleave({0: 0})


def test_sizes_and_alignments(pool):
    for nbytes, align in [(1, 1), (4097, 4096), (12 << 10, 65536), (5 << 20, 1 << 20), (6 << 20, 4096)]:
        with pool.alloc(nbytes, align=align) as buffer:
            assert buffer.address % max(align, 4096) == 0
            memoryview(buffer)[-1] = 1
            gc.collect()


def test_a_full_pool_raises_memory_errors_and_recovers(pool):
    held = []
    with pytest.raises(MemoryError, match="bytes cannot be allocated") as raised:
        while True:
            held.append(pool.alloc("1M"))
    assert isinstance(raised.value, zonal.OutOfMemory)
    assert len(held) >= 28
    with pytest.raises(zonal.OutOfMemoryError):
        pool.alloc("1M", wait=False)
    held.clear()
    assert pool.accounting()["allocated"] == 0
    pool.alloc("1M").free()
    with pytest.raises(MemoryError):
        pool.alloc("1G")


def test_policies_choose_nodes(pool2):
    def nodes(policy, count):
        return [pool2.alloc(4096, policy=policy).node for _ in range(count)]

    assert nodes(pool2.interleave(), 4) == [0, 1, 0, 1]
    assert nodes(pool2.bind([1]), 3) == [1, 1, 1]
    assert nodes(pool2.preferred(1), 2) == [1, 1]
    assert sorted(nodes(pool2.weighted_interleave({0: 3, 1: 1}), 8)) == [0] * 6 + [1] * 2
    assert pool2.alloc(4096, node=1).node == 1
    assert repr(pool2.bind([1])) == "pool.bind([1])"


def test_memory_outlives_the_pool_object():
    pool = zonal.Pool("16M")
    buffer = pool.alloc(8192)
    view = memoryview(buffer)
    reference = weakref.ref(pool)
    del pool, buffer
    gc.collect()
    assert reference() is None
    view[:] = b"x" * 8192
    assert view[8191] == ord("x")


def test_dropped_buffers_are_freed_after_their_last_view(pool):
    view = memoryview(pool.alloc(4096))
    assert pool.accounting()["allocated"] == 1
    view[0] = 1
    del view
    assert pool.accounting()["allocated"] == 0


def test_cycles_are_collected():
    class Cache:
        def __init__(self, pool):
            self.pool = pool
            self.buffer = pool.alloc(4096)
            self.registration = pool.register_reclaimer(self)

        def count(self, request):
            return 0

        def reclaim(self, request):
            return 0

    cache = Cache(zonal.Pool("16M"))
    references = weakref.ref(cache), weakref.ref(cache.pool), weakref.ref(cache.buffer)
    del cache
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_an_exception_in_a_context_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        with zonal.Pool("16M") as pool:
            view = memoryview(pool.alloc(4096))
            1 / 0
    assert not pool.closed
    view.release()
    pool.close()


def test_threads_allocate_and_free(pool):
    def work():
        try:
            for turn in range(300):
                buffer = pool.alloc(4096 * (1 + turn % 5), zeroed=turn % 2 == 0)
                with memoryview(buffer) as view:
                    view[0] = turn % 256
                    assert view[0] == turn % 256
        except BaseException as error:
            failures.append(error)

    failures = []
    threads = [threading.Thread(target=work) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures


def test_closing_while_threads_allocate():
    for _ in range(20):
        pool = zonal.Pool("8M")
        begun = threading.Barrier(4)
        failures = []

        def work():
            begun.wait()
            try:
                while True:
                    pool.alloc(4096, zeroed=True)
            except zonal.ClosedError:
                pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        [thread.start() for thread in threads]
        begun.wait()
        pool.close()
        [thread.join() for thread in threads]
        assert not failures


def test_progress_can_stop_a_build():
    calls = []
    with zonal.Pool("64M", prefault=True, progress=lambda done, total: calls.append((done, total))) as pool:
        assert max(calls) == (64 << 20, 64 << 20)
        assert sum(part.absent for part in pool.placement()) == 0
    with pytest.raises(zonal.BuildError, match="progress"):
        zonal.Pool("64M", prefault=True, progress=lambda done, total: False)
    with pytest.raises(ZeroDivisionError):
        zonal.Pool("64M", prefault=True, progress=lambda done, total: 1 / 0)


@pytest.mark.parametrize("options", [{}, {"progress": max}, {"progress": lambda *now: None}])
def test_ctrl_c_stops_a_build(options):
    interrupt = functools.partial(_thread.interrupt_main)
    build = functools.partial(zonal.Pool, "128M", prefault=True, **options)
    built = []
    with pytest.raises(KeyboardInterrupt):
        # No Python code runs between the interrupt and the build, nor before the pool is in the list.
        collections.deque(map(built.append, map(operator.call, [interrupt, build])), maxlen=0)
    assert built == [None], "the build ended before it was interrupted"


@pytest.mark.parametrize("unit", ["KB", "mb", "GB", " TB"])
def test_decimal_units_are_refused(unit):
    letter = unit.strip()[0].upper()
    with pytest.raises(ValueError, match=f"`64{unit}` is not a size: sizes are binary; write 64{letter}iB or 64{letter}"):
        zonal.Pool(f"64{unit}")


def test_a_child_process_gets_errors_not_crashes():
    pool = zonal.Pool("16M")
    buffer = pool.alloc(4096)
    view = memoryview(buffer)
    view[0] = 42
    child = os.fork()
    if child == 0:
        code = 0
        try:
            code |= 0 if view[0] == 42 else 1  # the copy is readable
            for bit, use in enumerate(
                (lambda: pool.alloc(1), pool.accounting, pool.close, buffer.free, lambda: memoryview(buffer)), start=1
            ):
                try:
                    use()
                    code |= 1 << bit
                except zonal.ForkedError:
                    pass
            repr(pool), repr(buffer)
            view.release()
            del view, buffer, pool
            gc.collect()
            with zonal.Pool("16M") as own:
                own.alloc(4096)
        except BaseException:
            code |= 128
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    view.release()
    buffer.free()
    pool.close()


def test_multiprocessing_with_fork_and_threads(run):
    run(
        """
        import multiprocessing, threading, zonal
        pool = zonal.Pool("16M")
        stop = threading.Event()
        def work():
            while not stop.is_set():
                pool.alloc(4096, zeroed=True)
        thread = threading.Thread(target=work)
        thread.start()
        def child():
            try:
                pool.alloc(4096)
            except zonal.ForkedError:
                return
            raise SystemExit(3)
        context = multiprocessing.get_context("fork")
        for _ in range(10):
            process = context.Process(target=child)
            process.start()
            process.join(30)
            assert process.exitcode == 0, process.exitcode
        stop.set()
        thread.join()
        """
    )
