"""Programs in which callbacks, destructors and other threads interfere with a call. None may crash or wait for ever."""

import gc
import sys
import textwrap
import threading
import time
import weakref

import pytest
import zonal


class Nothing:
    """A reclaimer that has nothing."""

    def count(self, request):
        return 0

    def reclaim(self, request):
        return 0


def test_resize_does_not_run_a_reclaimer_that_resizes_the_array_too(run):
    said = run(
        """
        import zonal, numpy as np
        pool = zonal.Pool("16M", fake_nodes=1)
        fill = []
        class Cache:
            def count(self, request): return 1000
            def reclaim(self, request):
                if request.reason == "background": return 0
                fill.clear()
                array.resize(64, refcheck=False)
                return 1000
        keep = pool.register_reclaimer(Cache())
        with pool.numpy_arrays():
            array = np.ones(1 << 20, "u1")
            try:
                while True: fill.append(pool.alloc("1M", wait=False))
            except MemoryError: pass
            try:
                array.resize(2 << 20, refcheck=False)
            except MemoryError:
                print("no memory")
        assert array.sum() == 1 << 20
        del array
        fill.clear()
        assert pool.verify()["allocated"] == 0
        """
    )
    assert said.strip() == "no memory"


def test_two_threads_close_a_pool_while_a_reclaimer_runs(run):
    run(
        """
        import zonal, threading, time
        pool = zonal.Pool("16M", fake_nodes=1); inside = threading.Event()
        class R:
            def count(self, r): return 1
            def reclaim(self, r): inside.set(); time.sleep(0.3); return 0
        pool.register_reclaimer(R())
        threading.Thread(target=lambda: pool.reclaim(0, 1)).start(); inside.wait()
        closers = [threading.Thread(target=pool.close) for _ in range(2)]
        [one.start() for one in closers]; [one.join() for one in closers]
        assert pool.closed
        """
    )


def test_a_callback_unregisters_itself_while_the_pool_closes(run):
    run(
        """
        import zonal, threading, time
        pool = zonal.Pool("16M", fake_nodes=1); inside = threading.Event()
        class R:
            def count(self, r): return 0
            def reclaim(self, r): inside.set(); time.sleep(0.1); reg.close(); return 0
        reg = pool.register_reclaimer(R())
        threading.Thread(target=pool.reclaim, args=(0, 1)).start(); inside.wait()
        pool.close()
        """
    )


def test_a_destructor_unregisters_another_callback_while_the_pool_closes(run):
    run(
        """
        import zonal
        pool = zonal.Pool("16M", fake_nodes=1)
        class R:
            other = None
            def count(self, r): return 0
            def reclaim(self, r): return 0
            def __del__(self):
                if self.other: self.other.close()
        r = R(); second = pool.register_reclaimer(r)
        r.other = pool.register_reclaimer(R()); del r
        pool.close()
        """
    )


ENDINGS = {
    "progress": """
        def cb(done, total): inside.set(); time.sleep(0.3)
        threading.Thread(target=lambda: zonal.Pool("256M", prefault=True, progress=cb), daemon=True).start()
        """,
    "reclaimer": """
        pool = zonal.Pool("16M", fake_nodes=1)
        class R:
            def count(self, r): return 0
            def reclaim(self, r): inside.set(); time.sleep(30); return 0
        reg = pool.register_reclaimer(R())
        threading.Thread(target=pool.reclaim, args=(0, 1), daemon=True).start()
        """,
    "lab": """
        spec = {"name": "locks", "title": "One lock", "part": [{"machine": "desktop", "workload": {
            "kind": "first-touch", "cpus": 1, "gib_each": 0.005, "fault_ns": 200.0, "user_ns": 50.0}}],
            "variant": [{"name": "areas", "role": "ours"}]}
        def cb(progress): inside.set(); time.sleep(0.3)
        threading.Thread(target=lambda: zonal.lab.run(spec, progress=cb), daemon=True).start()
        """,
}


@pytest.mark.parametrize("what", ENDINGS)
def test_the_interpreter_ends_while_a_daemon_thread_is_in_a_callback(run, what):
    run(
        "import zonal, threading, time, sys, types\ninside = threading.Event()\n"
        + textwrap.dedent(ENDINGS[what])
        + textwrap.dedent(
            """
            assert inside.wait(20)
            class Slow:
                def __del__(self, sleep=time.sleep): sleep(1)
            module = types.ModuleType("m"); module.keep = Slow(); sys.modules["m"] = module
            """
        )
    )


def test_no_callback_begins_while_the_interpreter_ends(run):
    said = run(
        """
        import atexit
        @atexit.register
        def last():
            class R:
                def count(self, r): print("called"); return 0
                def reclaim(self, r): print("called"); return 0
            keep = pool.register_reclaimer(R())
            pool.reclaim(0, 1)
            print("done")
        import zonal
        pool = zonal.Pool("16M", fake_nodes=1)
        """
    )
    assert said.strip() == "done"


def test_all_threads_that_prefault_may_raise(run):
    run(
        """
        import zonal, time, threading
        class Slow:
            def __del__(self): time.sleep(0.1)
        barrier = threading.Barrier(4)
        def cb(done, total):
            slow = Slow(); barrier.wait(10); raise RuntimeError("stop")
        try:
            zonal.Pool("128M", prefault=True, prefault_threads=4, progress=cb)
        except RuntimeError as error:
            assert str(error) == "stop"
        else:
            raise AssertionError
        """
    )


def test_errors_are_made_without_locks(run):
    run(
        """
        import zonal, builtins
        pool = zonal.Pool("16M", fake_nodes=1); buffer = pool.alloc(4096); buffer.free(); pool.close()
        original = builtins.__import__
        def hook(*args, **named):
            pool.closed, buffer.freed
            return original(*args, **named)
        builtins.__import__ = hook
        for use in (lambda: pool.size, lambda: memoryview(buffer)):
            try: use()
            except zonal.ClosedError: pass
            else: raise AssertionError
        """
    )


def test_a_child_does_not_wait_for_callbacks_of_its_parent(run):
    said = run(
        """
        import zonal, threading, time, os, sys
        pool = zonal.Pool("64M", fake_nodes=2); inside, go = threading.Event(), threading.Event()
        class R:
            def count(s, r): return 0
            def reclaim(s, r): inside.set(); go.wait(); return 0
        reg = pool.register_reclaimer(R())
        threading.Thread(target=pool.reclaim, args=(0, 1), daemon=True).start(); inside.wait()
        start = time.monotonic(); child = os.fork()
        if child == 0:
            reg.close()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(time.monotonic() - start < 4)
        go.set()
        """
    )
    # Waiting would take five seconds; ending a child takes milliseconds.
    assert said.strip() == "True"


def test_nothing_is_allocated_from_a_pool_that_is_closing():
    pool, inside, go = zonal.Pool("16M", fake_nodes=1), threading.Event(), threading.Event()

    class Waits(Nothing):
        def reclaim(self, request):
            inside.set()
            go.wait()
            return 0

    pool.register_reclaimer(Waits())
    reclaim = threading.Thread(target=pool.reclaim, args=(0, 1))
    reclaim.start()
    inside.wait()
    close = threading.Thread(target=pool.close)
    close.start()
    while not pool.closed:
        pass
    for call in (lambda: pool.alloc(4096), lambda: pool.register_reclaimer(Nothing()), pool.numpy_arrays):
        with pytest.raises(zonal.ClosedError):
            call()
    go.set()
    close.join()
    reclaim.join()


def test_a_dict_that_changes_while_it_is_read():
    class Changes(int):
        def __new__(cls, target):
            return int.__new__(cls, 0)

        def __init__(self, target):
            self.target = target

        def __hash__(self):
            return id(self)

        def __index__(self):
            self.target[len(self.target) + 100] = 1
            return 0

    with zonal.Pool("16M", fake_nodes=1) as pool:
        weights = {}
        weights[Changes(weights)] = 1
        assert "weighted" in repr(pool.weighted_interleave(weights))


def test_an_exception_of_any_kind_leaves_the_thread_as_it_was(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    class Raises(Nothing):
        def reclaim(self, request):
            raise SystemExit(3)

    pool = zonal.Pool("16M", fake_nodes=1)
    pool.register_reclaimer(Raises())
    assert pool.reclaim(0, 1) == 0
    assert [one.exc_type for one in seen] == [SystemExit]
    pool.close()  # not within a callback any more


def test_an_interrupt_in_a_reclaimer_is_raised_by_the_program(run):
    said = run(
        """
        import zonal, os, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
        pool = zonal.Pool("16M", fake_nodes=1)
        class R:
            def count(self, r): return 1
            def reclaim(self, r): os.kill(os.getpid(), signal.SIGINT); return 0
        reg = pool.register_reclaimer(R())
        try:
            while True: pool.reclaim(0, 1)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert said.strip() == "interrupted"


def test_a_subinterpreter_is_refused(run):
    said = run(
        """
        import _xxsubinterpreters as sub
        one = sub.create()
        try:
            sub.run_string(one, "try:\\n import zonal\\nexcept ImportError as error: print('refused', error)")
        except sub.RunFailedError as error:
            print("refused", error)
        """
    ) if sys.version_info < (3, 13) else "refused"
    assert said.startswith("refused")


def test_a_context_of_arrays_in_a_cycle_is_collected():
    pytest.importorskip("numpy")

    def make():
        pool, reclaimer = zonal.Pool("16M", fake_nodes=1), Nothing()
        reclaimer.context = pool.numpy_arrays()
        pool.register_reclaimer(reclaimer)
        return weakref.ref(reclaimer)

    seen = make()
    gc.collect()
    assert seen() is None


def test_unregistering_waits_for_this_callback_also_within_another():
    pool, other = zonal.Pool("16M", fake_nodes=1), zonal.Pool("16M", fake_nodes=1)
    state, inside, go = [], threading.Event(), threading.Event()

    class Slow(Nothing):
        def reclaim(self, request):
            inside.set()
            go.wait()
            state.append("out")
            return 0

    registration = pool.register_reclaimer(Slow())
    thread = threading.Thread(target=pool.reclaim, args=(0, 1))
    thread.start()
    inside.wait()

    class Closer(Nothing):
        def reclaim(self, request):
            threading.Timer(0.1, go.set).start()
            registration.close()
            state.append("closed")
            return 0

    other.register_reclaimer(Closer())
    other.reclaim(0, 1)
    thread.join()
    assert state == ["out", "closed"]


def test_contexts_of_arrays_are_left_where_they_were_entered():
    np = pytest.importorskip("numpy")
    with zonal.Pool("64M", fake_nodes=1) as pool:
        context = pool.numpy_arrays()
        with pytest.raises(zonal.InvalidArgumentError, match="has not been entered"):
            context.__exit__(None, None, None)
        context.__enter__()
        errors = []

        def leave():
            try:
                context.__exit__(None, None, None)
            except zonal.InvalidArgumentError as error:
                errors.append(str(error))

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        assert "thread or task that entered it" in errors[0]
        inner = pool.numpy_arrays()
        inner.__enter__()
        leave()
        assert len(errors) == 2, "out of order"
        inner.__exit__(None, None, None)
        context.__exit__(None, None, None)
        array = np.ones(100_000)
        assert context.count + inner.count == 0
        del array


def test_large_arrays_are_zeroed_without_the_interpreter_lock():
    np = pytest.importorskip("numpy")
    lock, ran = threading.Lock(), []

    def wait():
        with lock:
            ran.append(True)

    with zonal.Pool("64M", fake_nodes=1) as pool, pool.numpy_arrays():
        lock.acquire()
        thread = threading.Thread(target=wait)
        thread.start()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)  # only a thread that releases the lock lets the other one run
        try:
            lock.release()
            deadline = time.monotonic() + 60  # far more than a busy machine needs
            while not ran and time.monotonic() < deadline:
                array = np.zeros(2 << 20, "u1")
            assert ran
        finally:
            sys.setswitchinterval(interval)
        thread.join()
        assert array.sum() == 0
        del array


WRONG = {
    "alloc-node": lambda pool: pool.alloc(4096, node=2**63),
    "arrays-node": lambda pool: pool.numpy_arrays(node=2**63),
    "arrays-min": lambda pool: pool.numpy_arrays(min_bytes=-1),
    "reclaim-negative": lambda pool: pool.reclaim(0, -1),
    "reclaim-large": lambda pool: pool.reclaim(0, 2**64),
    "fake-nodes": lambda pool: zonal.Pool("16M", fake_nodes=-1),
    "threads": lambda pool: zonal.Pool("16M", prefault_threads=-1),
    "digits": lambda pool: pool.alloc(10**5000),
    "align": lambda pool: pool.alloc(1, align=10**5000),
    "setting": lambda pool: zonal.Pool("16M", settings={"min_free_kbytes": 10**5000}),
    "no-nodes": lambda pool: zonal.Pool("16M", nodes=[]),
    "bind": lambda pool: pool.bind([2**64]),
    "weight": lambda pool: pool.weighted_interleave({0: 2**64}),
    "delete": lambda pool: pool.settings.__delitem__("min_free_kbytes"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_numbers_are_errors_that_name_the_argument(pool, what):
    with pytest.raises(zonal.InvalidArgumentError) as raised:
        WRONG[what](pool)
    name = {"alloc-node": "node", "arrays-node": "node", "arrays-min": "min_bytes", "digits": "nbytes", "bind": "node"}
    assert name.get(what, "") in str(raised.value)


def test_other_errors_are_those_that_are_documented(pool, tmp_path):
    buffer = pool.alloc(4096)
    buffer.free()
    with pytest.raises(zonal.ClosedError):
        buffer.to_dict()
    with pytest.raises(FileNotFoundError) as raised:
        pool.publish(tmp_path / "missing" / "socket")
    assert raised.value.errno == 2

    class Interrupts:
        def __index__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.alloc(Interrupts())
    closed = zonal.Pool("16M", fake_nodes=1)
    closed.close()
    with pytest.raises(zonal.ClosedError), closed:
        pass
