"""Reclaimers and pressure callbacks: objects of Python that pools call."""

import gc
import random
import sys
import threading
import time

import pytest
import zonal


class Cache:
    """A cache of pages, of which it frees what a pool wants."""

    def __init__(self, pool):
        self.buffers = []
        self.pool = pool
        self.requests = []

    def fill(self):
        try:
            while True:
                self.buffers.append(self.pool.alloc("64k", wait=False))
        except MemoryError:
            pass

    def count(self, request):
        return 16 * len(self.buffers)

    def reclaim(self, request):
        self.requests.append((request.reason, request.node))
        freed = 0
        while freed < request.pages and self.buffers:
            try:
                freed += self.buffers.pop().pages
            except IndexError:
                break
        return freed


def test_a_cache_shrinks_when_memory_is_short(pool):
    cache = Cache(pool)
    with pool.register_reclaimer(cache):
        cache.fill()
        filled = len(cache.buffers)
        held = [pool.alloc("1M") for _ in range(20)]
        assert len(cache.buffers) < filled
        assert cache.requests
        assert {reason for reason, _ in cache.requests} <= {"direct", "background", "node", "range"}
        held.clear()
    cache.fill()
    with pytest.raises(MemoryError):
        [pool.alloc("1M") for _ in range(33)]
    cache.buffers.clear()


class PageCache:
    """A cache of single pages, which frees those of the range that a pool wants if `honours_ranges`."""

    def __init__(self, pool, honours_ranges):
        self.pool = pool
        self.honours_ranges = honours_ranges
        self.lock = threading.Lock()
        self.buffers = []
        self.evicted = 0

    def fill(self):
        try:
            while True:
                buffer = self.pool.alloc("4k", wait=False)
                with self.lock:
                    self.buffers.append(buffer)
        except MemoryError:
            with self.lock:
                random.Random(1).shuffle(self.buffers)

    def wanted(self, request):
        if request.first_frame is None or not self.honours_ranges:
            return self.buffers
        end = request.first_frame + request.frames
        return [buffer for buffer in self.buffers if request.first_frame <= buffer.frame < end]

    def count(self, request):
        with self.lock:
            return len(self.wanted(request))

    def reclaim(self, request):
        with self.lock:
            evicted = self.wanted(request)[: request.pages]
            gone = {buffer.frame for buffer in evicted}
            self.buffers = [buffer for buffer in self.buffers if buffer.frame not in gone]
        if request.reason != "background":
            self.evicted += len(evicted)
        return len(evicted)


@pytest.mark.parametrize("honours_ranges", [True, False])
def test_large_blocks_evict_little(honours_ranges):
    with zonal.Pool("64M", fake_nodes=1, huge_pages="never") as pool:
        in_use = [pool.alloc("2M") for _ in range(24)]
        cache = PageCache(pool, honours_ranges)
        with pool.register_reclaimer(cache):
            cache.fill()
            served, named, requests = 0, 0, 20
            for _ in range(requests):
                cache.evicted = 0
                try:
                    pool.alloc("2M").free()
                    served += 1
                except MemoryError as error:
                    named += "the reclaimers ignore ranges" in str(error)
                assert cache.evicted <= 1024
                cache.fill()
            # A request can also fail because background reclaim has the pages that it needs.
            assert served >= 0.95 * requests if honours_ranges else named > 0
        cache.buffers.clear()
        in_use.clear()


def test_threads_share_a_reclaimer(pool):
    cache = Cache(pool)
    registration = pool.register_reclaimer(cache)
    failures = []

    def work():
        try:
            for _ in range(60):
                held = [pool.alloc("256k") for _ in range(8)]
                cache.fill()
                held.clear()
        except zonal.OutOfMemory:
            pass  # other threads may hold all memory
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert not failures
    registration.close()
    registration.close()
    cache.buffers.clear()


def test_the_first_of_many_exceptions_is_reported(pool, monkeypatch):
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(str(report.exc_value)))

    class Broken:
        is_broken = True

        def count(self, request):
            return 100

        def reclaim(self, request):
            return 1 // (not self.is_broken)

    broken = Broken()
    with pool.register_reclaimer(broken):
        for _ in range(30):
            pool.reclaim(0, 10)
        assert len(reports) == 1
        broken.is_broken = False
        pool.reclaim(0, 10)
        broken.is_broken = True
        for _ in range(30):
            pool.reclaim(0, 10)
    assert len(reports) == 2


def test_exceptions_of_reclaimers_are_reported(pool, monkeypatch):
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_type))

    class Broken:
        def count(self, request):
            return 100

        def reclaim(self, request):
            raise ZeroDivisionError("broken")

    class Wrong:
        def count(self, request):
            return "many"

        def reclaim(self, request):
            return -1

    with pool.register_reclaimer(Broken()), pool.register_reclaimer(Wrong()):
        assert pool.reclaim(0, 10) == 0
    assert ZeroDivisionError in reports
    assert zonal.InvalidArgumentError in reports
    assert pool.reclaim(0, 10) == 0


def test_reclaimers_use_the_pool(pool):
    seen = []

    class Nested:
        def count(self, request):
            return 10

        def reclaim(self, request):
            seen.append(pool.accounting()["managed"])
            buffer = pool.alloc(4096)
            buffer.free()
            for forbidden in (pool.verify, pool.close):
                with pytest.raises(zonal.ReentryError):
                    forbidden()
            registration.close()
            return 0

    registration = pool.register_reclaimer(Nested())
    pool.reclaim(0, 5)
    pool.reclaim(0, 5)
    assert seen == [8192]


def test_wrong_reclaimers_are_refused(pool):
    with pytest.raises(ValueError, match="object has no method `count`"):
        pool.register_reclaimer(object())
    with pytest.raises(ValueError, match="cannot be called"):
        pool.on_pressure(3)
    with pytest.raises(ValueError, match="node 7"):
        pool.reclaim(7, 1)


def test_pressure_is_reported(pool):
    events, came = [], threading.Event()

    def callback(event):
        events.append(event)
        came.set()

    with pool.on_pressure(callback):
        held = []
        with pytest.raises(MemoryError):
            while True:
                held.append(pool.alloc(65536, wait=False))
        assert came.wait(10)
    assert events[0]["node"] == 0
    assert events[0]["kind"] in {"below_low", "failing"}
    assert events[0]["free_pages"] <= 8192
    held.clear()


def test_closing_ends_callbacks():
    pool = zonal.Pool("8M")
    cache = Cache(pool)
    registration = pool.register_reclaimer(cache)
    pool.close()
    registration.close()
    del cache, pool
    gc.collect()


def test_the_interpreter_ends_while_callbacks_run(run):
    run(
        """
        import threading, zonal
        pool = zonal.Pool("8M", fake_nodes=1)
        held, busy = [], threading.Event()
        class Busy:
            def count(self, request): return 1000
            def reclaim(self, request): busy.set(); return 1
        pool.register_reclaimer(Busy())
        pool.on_pressure(lambda event: None)
        def work():
            while True:
                try:
                    held.append(pool.alloc(4096))
                except MemoryError:
                    held.clear()
                except zonal.ClosedError:
                    return
        for _ in range(2):
            threading.Thread(target=work, daemon=True).start()
        assert busy.wait(60)  # the threads must be in the midst of it
        """
    )


def grow_and_shrink(pool):
    pool.grow("2M")
    pool.shrink("2M")


@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.alloc("1M", zeroed=True),
        lambda pool: pool.alloc("6M"),
        lambda pool: pool.verify(),
        lambda pool: pool.trim(),
        lambda pool: pool.reclaim(0, 1),
        lambda pool: zonal.Pool("4M", prefault=True).close(),
        grow_and_shrink,
    ],
    ids=["alloc zeroed", "alloc contiguous", "verify", "trim", "reclaim", "build", "grow and shrink"],
)
def test_long_calls_release_the_interpreter_lock(call):
    """Another thread can run only while a call has released the lock, because no thread is made to yield."""
    pool = zonal.Pool("32M", fake_nodes=1, max_size="64M")
    lock, ran = threading.Lock(), []

    def wait():
        with lock:
            ran.append(True)

    lock.acquire()
    thread = threading.Thread(target=wait)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        lock.release()
        deadline = time.monotonic() + 60  # far more than a busy machine needs
        while not ran and time.monotonic() < deadline:
            call(pool)
        assert ran
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    pool.close()


def test_a_full_pool_waits_without_the_interpreter_lock(pool):
    """The background thread reclaims, and needs the interpreter lock, while a request waits."""
    inside, leave = threading.Event(), threading.Event()

    class Slow:
        def count(self, request):
            return 1000

        def reclaim(self, request):
            if request.reason == "background":
                inside.set()
                leave.wait(30)
            return 0

    with pool.register_reclaimer(Slow()):
        held = []
        with pytest.raises(MemoryError):
            while True:
                held.append(pool.alloc("64k", wait=False))
        assert inside.wait(30)
        timer = threading.Timer(0.05, leave.set)
        timer.start()
        pool.verify()  # waits until the background thread has left the reclaimer
        assert leave.is_set()
        timer.join()
        held.clear()
