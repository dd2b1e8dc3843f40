"""Arrays of other libraries in the memory of a pool: NumPy's hook, DLPack, torch."""

import gc
import os
import threading

import pytest
import zonal

numpy = pytest.importorskip("numpy")


def test_numpy_uses_buffers_without_copies(pool):
    buffer = pool.alloc("1M", zeroed=True)
    array = numpy.frombuffer(buffer, dtype="i8")
    array[7] = 1 << 40
    assert array.__array_interface__["data"] == (buffer.address, False)
    assert memoryview(buffer).cast("q")[7] == 1 << 40
    other = numpy.from_dlpack(buffer)
    assert other.__array_interface__["data"][0] == buffer.address
    assert (other.dtype, other.shape, other.flags.writeable) == ("u1", (1 << 20,), True)
    del buffer, array
    gc.collect()
    assert pool.accounting()["allocated"] == 256, "the array keeps the memory"
    other[:] = 3
    del other
    assert pool.accounting()["allocated"] == 0


def test_unused_capsules_release_the_memory(pool):
    buffer = pool.alloc(4096)
    for version in (None, (0, 8), (1, 0), (1, 2)):
        capsule = buffer.__dlpack__(max_version=version)
        name = "dltensor_versioned" if version and version[0] else "dltensor"
        assert f'"{name}"' in repr(capsule)
        with pytest.raises(BufferError):
            buffer.free()
        del capsule
    assert buffer.__dlpack_device__() == (1, 0)
    for arguments in ({"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            buffer.__dlpack__(**arguments)
    buffer.free()


def test_torch_uses_buffers_without_copies(pool):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    buffer = pool.alloc("1M", zeroed=True)
    tensor = torch.frombuffer(buffer, dtype=torch.float32)
    assert tensor.data_ptr() == buffer.address
    other = torch.from_dlpack(buffer)
    assert other.data_ptr() == buffer.address
    tensor.fill_(1.0)
    with pytest.raises(BufferError):
        buffer.free()


def test_new_arrays_are_in_the_pool(pool):
    with pool.numpy_arrays() as context:
        array = numpy.ones((256, 1024))
        small = numpy.ones(10)
    outside = numpy.ones((256, 1024))
    assert context.count == 1
    assert pool.accounting()["allocated"] == 512
    assert "zonal" in handler_name(array) and handler_name(outside) != "zonal"
    with pytest.raises(zonal.InUseError, match="arrays: 1"):
        pool.close()
    assert array.sum() == outside.sum() == 1024 * 256 and small.sum() == 10
    del array, small
    assert pool.accounting()["allocated"] == 0


def handler_name(array):
    core = getattr(numpy, "_core", None) or numpy.core
    return core.multiarray.get_handler_name(array)


def test_arrays_are_zeroed_resized_and_freed(pool):
    with pool.numpy_arrays():
        for _ in range(3):
            dirty = numpy.full(1 << 20, 255, dtype="u1")
            del dirty
            assert not numpy.zeros(1 << 20, dtype="u1").any()
        array = numpy.arange(8192)  # 64 KiB
        for length in (8193, 100_000, 20_000, 10, 50_000):
            kept = min(length, array.size)
            array.resize(length, refcheck=False)
            assert (array[: min(kept, 10)] == numpy.arange(min(kept, 10))).all()
            assert not array[kept:].any()
        assert pool.accounting()["allocated"] > 0
        del array
    assert pool.accounting()["allocated"] == 0


def test_arrays_outlive_context_and_pool_object():
    pool = zonal.Pool("16M")
    with pool.numpy_arrays():
        array = numpy.arange(100_000)
    del pool
    gc.collect()
    copy = array * 2
    assert (array == numpy.arange(100_000)).all()
    array.resize(200_000, refcheck=False)  # the pool is gone, so the data moves to the heap
    assert copy[99_999] == 199_998 and array[99_999] == 99_999


def test_arrays_in_a_closed_pool_raise_memory_errors():
    pool = zonal.Pool("16M")
    with pool.numpy_arrays():
        pool.close()
        with pytest.raises(MemoryError):
            numpy.empty(1 << 20)
        assert numpy.ones(4).sum() == 4
    assert numpy.empty(1 << 20).size == 1 << 20


def test_a_full_pool_raises_memory_errors_or_falls_back(pool):
    with pool.numpy_arrays():
        with pytest.raises(MemoryError):
            numpy.empty(64 << 20, dtype="u1")
    with pool.numpy_arrays(fallback=True) as context:
        array = numpy.ones(64 << 20, dtype="u1")
        assert context.count == 0 and array.all()


def test_arrays_are_on_their_node(pool2):
    with pool2.numpy_arrays(node=1):
        array = numpy.ones(1 << 20, dtype="u1")
    with pool2.numpy_arrays(policy=pool2.bind([0]), min_bytes=1):
        other = numpy.ones(10, dtype="u1")
    allocated = {row["node"]: row["allocated_user"] for row in pool2.nodes().to_dicts()}
    assert pool2.accounting()["allocated"] == 257, allocated
    with pytest.raises(ValueError, match="node 5"):
        pool2.numpy_arrays(node=5)
    del array, other


def test_contexts_nest_and_are_entered_once(pool, pool2):
    with pool.numpy_arrays() as outer:
        with pool2.numpy_arrays() as inner:
            array = numpy.ones(100_000)
        other = numpy.ones(100_000)
        with pytest.raises(ValueError, match="has been entered"):
            outer.__enter__()
    assert (inner.count, outer.count) == (1, 1)
    assert array.sum() == other.sum()
    del array, other


def test_each_thread_has_its_own_context(pool):
    counts, kept, barrier = {}, [], threading.Barrier(3)

    def inside():
        with pool.numpy_arrays() as context:
            barrier.wait()
            kept.append(numpy.ones(100_000))
            counts["inside"] = context.count
            barrier.wait()

    def outside():
        barrier.wait()
        kept.append(numpy.ones(100_000))
        counts["name"] = handler_name(kept[-1])
        barrier.wait()

    threads = [threading.Thread(target=inside), threading.Thread(target=outside)]
    [thread.start() for thread in threads]
    barrier.wait()
    barrier.wait()
    [thread.join() for thread in threads]
    assert counts["inside"] == 1
    assert counts["name"] != "zonal" or sys_inherits()
    kept.clear()


def sys_inherits():
    import sys

    return bool(getattr(sys.flags, "thread_inherit_context", 0))


def test_threads_make_and_free_arrays_of_each_other(pool):
    shared, failures = [], []

    def work(seed):
        try:
            with pool.numpy_arrays(fallback=True):
                for turn in range(200):
                    array = numpy.full(20_000 + 100 * turn, seed)
                    shared.append(array)
                    if len(shared) > 8:
                        old = shared.pop(0)
                        assert (old == old[0]).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    shared.clear()
    assert not failures
    assert pool.accounting()["allocated"] == 0


def test_reclaimers_run_for_arrays(pool):
    class Cache(list):
        def count(self, request):
            return 256 * len(self)

        def reclaim(self, request):
            return self.pop().pages if self else 0

    cache = Cache(pool.alloc("1M") for _ in range(28))
    with pool.register_reclaimer(cache), pool.numpy_arrays():
        arrays = [numpy.ones(1 << 20, dtype="u1") for _ in range(8)]
        assert len(cache) < 28
        arrays.clear()
    cache.clear()


def test_a_child_process_keeps_its_arrays():
    pool = zonal.Pool("16M")
    with pool.numpy_arrays():
        array = numpy.arange(100_000)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert array[99_999] == 99_999
                other = array * 2
                array.resize(300_000, refcheck=False)
                assert other[5] == 10 and array[5] == 5
                del array, other
                code = 0
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del array
    pool.close()
