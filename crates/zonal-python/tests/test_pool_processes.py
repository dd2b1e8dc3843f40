"""Pools that processes share: joining, handing buffers over, and the death of a process."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import zonal

OTHER = textwrap.dedent(
    """
    import sys, time, zonal
    place = sys.argv[1]
    pool = zonal.join(int(place) if place.isdigit() else place)
    pages = [pool.alloc(4096) for _ in range(200)]
    del pages[::2]
    handed, kept = pool.alloc("64k"), pool.alloc(3 * 4096)
    memoryview(handed)[:5] = b"hello"
    print(handed.frame, handed.pages, kept.frame, kept.pages, flush=True)
    if sys.stdin.readline() == "forget\\n":
        handed.forget()
        assert handed.freed
        print("forgot", flush=True)
    time.sleep(60)
    """
)


@pytest.fixture
def path():
    """A path in a memory file system, whose file is removed at the end."""
    path = f"/dev/shm/zonal-python-{os.getpid()}"
    yield path
    if os.path.exists(path):
        os.remove(path)


class Other:
    """Another process that joins a pool and holds buffers of it."""

    def __init__(self, place, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            **options,
        )
        numbers = [int(word) for word in self.answer().split()]
        self.handed, self.kept = numbers[:2], numbers[2:]

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(30) == -signal.SIGKILL
        self.process.stdin.close()
        self.process.stdout.close()


def wait_for_recovery(pool):
    """Waits until what the dead held is freed, by this call or the pool's own thread."""
    end = time.monotonic() + 30
    while len(pool.owners()) > 1 and time.monotonic() < end:
        pool.recover_dead()


def check_that_nothing_is_lost(pool, place, **options):
    mine = pool.alloc(8192)
    other = Other(place, **options)
    first, second = pool.owners().to_dicts()
    assert (first["pid"], first["is_this"]) == (os.getpid(), True)
    assert (second["pid"], second["is_this"], second["process"]) == (other.process.pid, False, 2)
    assert second["held"] >= 100 + 16 + 3
    assert pool.accounting()["allocated"] == 2 + 100 + 16 + 3

    with pytest.raises(zonal.InvalidArgumentError, match="8 pages from frame .* cannot be taken over"):
        pool.take_over(other.handed[0], 8)
    taken = pool.take_over(*other.handed)
    assert (taken.frame, taken.pages, taken.nbytes) == (*other.handed, 64 << 10)
    with pytest.raises(zonal.InvalidArgumentError, match="in a buffer of this process"):
        pool.take_over(*other.handed)
    assert other.ask("forget") == "forgot"
    other.kill()
    wait_for_recovery(pool)
    assert pool.recover_dead() == 0

    accounting = pool.verify()
    assert accounting["allocated"] == 2 + 16
    assert accounting["managed"] == accounting["free"] + accounting["in_pagesets"] + accounting["allocated"]
    assert bytes(memoryview(taken)[:5]) == b"hello"
    with pytest.raises(zonal.InvalidArgumentError, match="cannot be taken over"):
        pool.take_over(*other.kept)
    del taken, mine
    assert pool.verify()["allocated"] == 0


def test_a_process_that_is_killed_loses_nothing(path):
    with zonal.Pool("64M", shared=path, processes=2) as pool:
        for _ in range(2):
            check_that_nothing_is_lost(pool, path)
        assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_pool_is_joined_by_descriptor():
    with zonal.Pool("64M", shared=True) as pool:
        check_that_nothing_is_lost(pool, pool.shared_fd, pass_fds=[pool.shared_fd])


def test_members_close_without_the_buffers_of_others(path):
    first, second = zonal.Pool("64M", shared=path, processes=2), zonal.join(path)
    with pytest.raises(zonal.BuildError, match="as many as it was made for"):
        zonal.join(path)
    kept, handed = first.alloc(4096), first.alloc("16k")
    taken = second.take_over(handed.frame, handed.pages)
    view = memoryview(handed)
    with pytest.raises(zonal.InUseError):
        handed.forget()
    view.release()
    handed.forget()
    with pytest.raises(zonal.ClosedError):
        handed.forget()
    first.close()
    assert kept.freed and second.accounting()["allocated"] == 4 and len(second.owners()) == 1
    # A free in another process, of a buffer that was not taken over, is not repeated.
    with zonal.join(path) as third:
        again = third.take_over(taken.frame, taken.pages)
        again.free()
        taken.free()
        assert third.verify()["allocated"] == 0
    second.close()


def test_frames_of_arrays_are_not_taken_over():
    numpy = pytest.importorskip("numpy")
    with zonal.Pool("64M", shared=True) as pool:
        with pool.numpy_arrays():
            array = numpy.zeros(1 << 20, "u1")
        (held,) = pool.held().to_dicts()
        with pytest.raises(zonal.InvalidArgumentError, match="in a buffer of this process already, or in an array"):
            pool.take_over(held["frame"], held["pages"])
        buffer = pool.alloc("1M")
        memoryview(buffer)[:] = b"\x55" * len(buffer)
        assert not array.any(), "the array still has its memory for itself"
        del array
        assert pool.accounting()["allocated"] == 256
        buffer.free()


def test_one_of_several_threads_takes_a_block_over(run):
    run(
        """
        import sys, threading, zonal
        sys.setswitchinterval(1e-6)
        COUNT = 4
        with zonal.Pool("64M", shared=True) as pool, zonal.join(pool.shared_fd) as other:
            given, taken, start = [], [], threading.Barrier(COUNT + 1)

            def take():
                while True:
                    start.wait()
                    if not given:
                        return
                    try:
                        taken.append(other.take_over(*given))
                    except zonal.InvalidArgumentError as error:
                        assert "in a buffer of this process already" in str(error), error
                    start.wait()

            threads = [threading.Thread(target=take) for _ in range(COUNT)]
            for thread in threads:
                thread.start()
            owners = set()
            for _ in range(3000):
                block = pool.alloc(4096)
                given[:] = block.frame, block.pages
                block.forget()
                start.wait()
                start.wait()
                owners.add(len(taken))
                if len(taken) == 1:
                    taken[0].free()
                for extra in taken:
                    if not extra.freed:
                        extra.forget()
                taken.clear()
            given.clear()
            start.wait()
            for thread in threads:
                thread.join()
            assert owners == {1}, owners
            assert pool.verify()["allocated"] == 0
        """
    )


def test_what_cannot_be_joined_is_refused(path):
    with pytest.raises(FileNotFoundError, match="it must be the file of a shared pool") as raised:
        zonal.join(path)
    assert raised.value.filename == path
    with open(path, "w") as file:
        file.write("no pool")
    with pytest.raises(zonal.BuildError, match="not a shared pool, or damaged: it is shorter than a header"):
        zonal.join(path)
    with open(path, "wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        with pytest.raises(zonal.BuildError, match="does not begin like a pool"):
            zonal.join(path)
    with pytest.raises(OSError, match="cannot open"):
        zonal.join(9999)
    with pytest.raises(zonal.InvalidArgumentError, match="place is -1, which is no descriptor"):
        zonal.join(-1)
    with pytest.raises(TypeError):
        zonal.join(None)
    with pytest.raises(zonal.BuildError, match="join the pool there"):
        zonal.Pool("64M", shared=path)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"processes": 3}, "the pool is not shared"),
        ({"shared": False, "processes": 3}, "the pool is not shared"),
        ({"shared": True, "processes": 0}, "processes is 0"),
        ({"shared": True, "processes": 65}, "processes is 65; it must be 1 to 64"),
        ({"shared": True, "max_size": "128M"}, "a largest size"),
        ({"shared": True, "prefault": True}, "prefaulting"),
    ],
)
def test_options_that_a_shared_pool_cannot_have_are_refused(options, expected):
    with pytest.raises(zonal.InvalidArgumentError, match=expected):
        zonal.Pool("64M", **options)


def test_other_pools_have_no_owners(pool):
    assert pool.shared_fd is None and len(pool.owners()) == 0 and pool.recover_dead() == 0
    buffer = pool.alloc(4096)
    with pytest.raises(zonal.InvalidArgumentError, match="not shared"):
        pool.take_over(buffer.frame, 1)
    with pytest.raises(zonal.InvalidArgumentError, match="not shared"):
        buffer.forget()


def test_a_child_of_fork_joins_itself(path, run):
    run(
        f"""
        import os, zonal
        pool = zonal.Pool("64M", shared="{path}")
        mine = pool.alloc(8192)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    pool.owners()
                except zonal.ForkedError:
                    with zonal.join("{path}") as own:
                        own.alloc(4096, zeroed=True)
                        code = 0 if len(own.owners()) == 2 else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        while len(pool.owners()) > 1:
            pool.recover_dead()
        assert pool.verify()["allocated"] == 2
        """
    )


NAMED = textwrap.dedent(
    """
    import sys, time, zonal
    pool = zonal.join(sys.argv[1], name="worker")
    buffer = pool.alloc("64k")
    memoryview(buffer)[:5] = b"hello"
    pool.set_root("greeting", buffer)
    print(buffer.frame, buffer.pages, flush=True)
    time.sleep(60)
    """
)


def test_pages_of_named_processes_outlive_them(path):
    with zonal.Pool("64M", shared=path, processes=3, name="parent") as pool:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", NAMED, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
            frame, pages = (int(word) for word in worker.stdout.readline().split())
            with pytest.raises(zonal.BuildError, match="lives"):
                zonal.join(path, name="worker")
            with pytest.raises(zonal.InvalidArgumentError, match="lives"):
                pool.discard("worker")
            worker.kill()
        with zonal.join(path, name="worker") as successor:
            assert successor.root("greeting") == (frame, pages)
            assert successor.held().to_dicts() == [{"frame": frame, "pages": pages}]
            buffer = successor.take_over(frame, pages)
            assert bytes(memoryview(buffer)[:5]) == b"hello"
            successor.set_root("greeting", None)
            assert pool.root("greeting") is None
            successor.set_root("greeting", buffer)
            with pytest.raises(zonal.InvalidArgumentError, match="of another pool"):
                pool.set_root("other", buffer)
            buffer.forget()
            with pytest.raises(zonal.ClosedError, match="freed"):
                successor.set_root("greeting", buffer)
        owners = {owner["name"]: owner for owner in pool.owners().to_dicts()}
        assert owners["worker"]["held"] == pages and not owners["worker"]["is_alive"]
        assert owners["parent"]["is_alive"] and owners["parent"]["is_this"]
        assert pool.discard("worker") == pages and pool.root("greeting") is None
        with pytest.raises(zonal.InvalidArgumentError, match="keeps nothing"):
            pool.discard("worker")
        assert pool.accounting()["allocated"] == 0
        with pytest.raises(zonal.InvalidArgumentError, match="1 to 32 bytes"):
            pool.set_root("", None)
    with pytest.raises(zonal.InvalidArgumentError, match="the pool is not shared"):
        zonal.Pool("64M", name="worker")
    with zonal.Pool("64M") as private, pytest.raises(zonal.InvalidArgumentError, match="do not share"):
        private.root("greeting")
