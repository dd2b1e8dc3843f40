"""The state of pools: tables, texts, settings, sizes, placement, and publication."""

import ctypes
import json

import pytest
import zonal


def test_accounting_and_statistics(pool):
    buffer = pool.alloc("2M")
    accounting = pool.accounting()
    assert accounting["allocated"] == 512
    assert accounting["managed"] == accounting["free"] + accounting["in_pagesets"] + accounting["allocated"]
    assert pool.statistics()["hits"] >= 1
    assert pool.verify() == accounting
    buffer.free()


def test_tables_are_lists_of_dicts(pool2):
    zones = pool2.zones().to_dicts()
    assert [zone["node"] for zone in zones] == [0, 1]
    assert len(pool2.zones()) == 2
    assert sum(zone["managed"] for zone in zones) == pool2.accounting()["managed"]
    assert pool2.nodes()["node"] == [0, 1]
    assert "kind" in pool2.zones().names and "Normal" in repr(pool2.zones())
    pool2.alloc(4096)
    assert len(pool2.pagesets()) >= 1


def test_pyarrow_reads_tables(pool2):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    zones = pool2.zones()
    assert pyarrow.table(zones).to_pylist() == zones.to_dicts()
    zones.__arrow_c_stream__()  # never read
    pyarrow.table(zones).validate(full=True)
    reader = pyarrow.RecordBatchReader.from_stream(zones)
    del zones
    assert reader.read_all().num_rows == 2


def test_polars_reads_tables(pool2):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert polars.DataFrame(pool2.zones()).to_dicts() == pool2.zones().to_dicts()


def test_pandas_reads_tables(pool2):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    if not hasattr(pandas.DataFrame, "from_arrow"):
        pytest.skip("pandas is older than 3.0")
    pytest.importorskip("pyarrow", reason="pandas needs pyarrow for from_arrow")
    frame = pandas.DataFrame.from_arrow(pool2.zones())
    assert list(frame["node"]) == [0, 1]


def test_nothing_is_leaked(run):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    run(
        """
        import gc, pyarrow, zonal
        pool = zonal.Pool("8M", fake_nodes=1, prefault=True)
        class Idle:
            def count(self, request): return 0
            def reclaim(self, request): return 0
        def use():
            buffer = pool.alloc(4096)
            memoryview(buffer)
            buffer.__dlpack__()
            buffer.placement()
            pyarrow.table(pool.zones())
            pool.zones().__arrow_c_stream__()
            pool.weighted_interleave({0: 3})
            with pool.register_reclaimer(Idle()):
                pool.reclaim(0, 1)
        def resident():
            gc.collect()
            with open("/proc/self/statm") as file:
                return 4 * int(file.read().split()[1])
        [use() for _ in range(2000)]
        before = resident()
        [use() for _ in range(10_000)]
        grown = resident() - before
        assert grown < 400, f"{grown} KiB"  # 40 bytes each
        """
    )


def test_explanations(pool2):
    assert "served by zone Normal of node 1" in pool2.explain("2M", node=1)
    assert "served by" in pool2.explain()
    with pytest.raises(ValueError, match="more than the largest block"):
        pool2.explain("8M")


@pytest.mark.parametrize("format", ["zoneinfo", "buddyinfo", "vmstat", "fallback_lists", "numastat"])
def test_snapshots_are_texts(pool2, format):
    assert pool2.snapshot(format)


def test_snapshots_in_json(pool2):
    assert json.loads(pool2.snapshot())["page_bytes"] == 4096
    with pytest.raises(ValueError, match='format is "xml"'):
        pool2.snapshot("xml")


def test_settings_are_a_mapping(pool):
    settings = pool.settings
    assert settings["watermark_scale_factor"] == 500
    settings["min_free_kbytes"] = 2048
    assert settings["min_free_kbytes"] == 2048
    settings["pageset_tuning"] = "fixed"
    assert settings.get("pageset_tuning") == "fixed"
    settings["lowmem_reserve_ratio"] = [128, 128, 16, 0]
    assert dict(settings)["lowmem_reserve_ratio"] == (128, 128, 16, 0)
    assert len(settings) == len(list(settings)) == len(settings.items()) == len(settings.values())
    assert "stat_refresh" not in settings
    settings["stat_refresh"] = 1
    assert "allowed" in settings.describe("zone_reclaim_mode")
    with pytest.raises(zonal.SettingError, match="zone_reclaim_mode"):
        settings["zone_reclaim_mode"] = 9
    with pytest.raises(KeyError, match="no setting is named"):
        settings["nothing"]
    with pytest.raises(ValueError):
        settings["min_free_kbytes"] = 1.5
    assert settings.get("nothing") is None
    built = zonal.Pool("16M", settings={"min_free_kbytes": 512, "invalid_free": "checked"})
    assert built.settings["min_free_kbytes"] == 512


def test_pools_grow_shrink_and_trim():
    with zonal.Pool("16M", fake_nodes=1, max_size="64M") as pool:
        assert pool.grow("16M") == 16 << 20
        assert pool.accounting()["managed"] == 8192
        assert pool.shrink("8M") >= 8 << 20
        with memoryview(pool.alloc("4M")) as view:
            view[:] = b"\1" * len(view)
        gone = pool.trim()
        assert gone >= 2 << 20
        with pytest.raises(zonal.ResizeError, match="cannot grow") as refused:
            pool.grow("1G")
        assert refused.value.done == 0
        before = pool.current_size
        assert before == pool.accounting()["managed"] * pool.page_bytes < pool.size == 64 << 20
        buffer = pool.alloc("1M")
        with pytest.raises(zonal.ResizeError, match="is in use") as partial:
            pool.shrink(before)
        assert partial.value.done == before - pool.current_size > 0
        buffer.free()
        assert pool.verify()["allocated"] == 0


def test_a_trim_that_the_kernel_refuses_says_how_much_was_returned():
    libc = ctypes.CDLL(None)
    with zonal.Pool("64M", fake_nodes=1, huge_pages="never") as pool:
        buffers = [pool.alloc("4M") for _ in range(12)]
        for buffer in buffers:
            memoryview(buffer)[:] = b"1" * len(buffer)
        locked = ctypes.c_void_p(max(buffer.address for buffer in buffers))
        if libc.mlock(locked, ctypes.c_size_t(4 << 20)) != 0:
            pytest.skip("RLIMIT_MEMLOCK does not allow 4 MiB")
        for buffer in buffers:
            buffer.free()
        with pytest.raises(zonal.ResizeError, match="bytes were returned to the kernel") as refused:
            pool.trim()
        assert refused.value.done >= 4 << 20
        assert str(refused.value).startswith(f"{refused.value.done} bytes")


def test_memory_that_the_kernel_keeps_counts_as_offline(run):
    said = run(
        """
        import ctypes, sys, zonal
        libc = ctypes.CDLL(None, use_errno=True)
        pool = zonal.Pool("64M")
        if libc.mlockall(3):  # the kernel returns no memory that is locked
            sys.exit(print("skip: locking memory is not permitted"))
        before = pool.current_size
        try:
            pool.shrink("8M")
        except zonal.ResizeError as error:
            assert error.done == before - pool.current_size > 0, (error.done, before - pool.current_size)
            assert pool.grow(error.done) == error.done
            print("refused")
        """
    ).strip()
    if said.startswith("skip: "):
        pytest.skip(said[6:])
    assert said == "refused"


def test_placement_says_where_pages_are():
    with zonal.Pool("16M") as pool:
        buffer = pool.alloc("1M", zeroed=True)
        with memoryview(buffer) as view:
            view[0] = 1
        placement = buffer.placement()
        if not placement.known:
            pytest.skip(placement.why)
        assert placement.resident + placement.absent + placement.unknown == 1 << 20
        assert placement.bytes_on.get(buffer.node, 0) >= 4096
        assert placement.misplaced == placement.resident - placement.bytes_on[buffer.node]
        assert sum(sum(part.bytes_on.values()) + part.absent + part.unknown for part in pool.placement()) == pool.size


def test_page_runs_say_where_each_page_is():
    with zonal.Pool("16M", huge_pages="never") as pool:
        buffer = pool.alloc("1M")
        with memoryview(buffer) as view:
            for page in (3, 4, 9):
                view[page * 4096] = 1
        if not buffer.placement().known:
            pytest.skip(buffer.placement().why)
        rows = buffer.page_runs().to_dicts()
        ends = [0] + [row["offset"] + row["bytes"] for row in rows]
        assert ends[:-1] == [row["offset"] for row in rows] and ends[-1] == 1 << 20, "the runs cover the buffer"
        resident = [(row["offset"] // 4096, row["bytes"] // 4096) for row in rows if row["state"] == "resident"]
        assert resident == [(3, 2), (9, 1)]
        assert all((row["node"] is None) == (row["state"] != "resident") for row in rows)
        total = sum(row["bytes"] for row in rows if row["node"] == buffer.node)
        assert total == buffer.placement().bytes_on[buffer.node]
        buffer.free()
        with pytest.raises(zonal.ClosedError):
            buffer.page_runs()


DENY = """
import ctypes, struct, sys, platform
if platform.machine() != "x86_64":
    sys.exit(print("skip: the filter is for x86_64"))
libc = ctypes.CDLL(None, use_errno=True)
# seccomp: EPERM for mbind (237) and move_pages (279).
code = [(0x20, 0, 0, 0), (0x15, 2, 0, 237), (0x15, 1, 0, 279), (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
code = b"".join(struct.pack("HBBI", *one) for one in code)
memory = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", 5, ctypes.addressof(memory))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    sys.exit(print("skip: seccomp is not available"))
import zonal
pool = zonal.Pool("16M")
buffer = pool.alloc("1M", zeroed=True)
placement = buffer.placement()
assert not placement.known and "SYS_NICE" in placement.why, placement
assert placement.misplaced is None
assert buffer.page_runs().to_dicts() == [{"offset": 0, "bytes": 1 << 20, "state": "unknown", "node": None}]
assert any("placement" in warning for warning in pool.warnings), pool.warnings
assert all(not part.known for part in pool.placement())
assert sum("placement" in warning for warning in pool.warnings) == 1, pool.warnings
print("denied")
"""


def test_denied_placement_is_visible(run):
    said = run(DENY).strip()
    if said.startswith("skip: "):
        pytest.skip(said[6:])
    assert said == "denied"


def test_publication(pool, tmp_path):
    path = tmp_path / "pool.sock"
    with pool.publish(path) as published:
        assert published.path == str(path) or published.path == path
        assert path.exists()
    assert not path.exists()
    kept = pool.publish(tmp_path / "again.sock")
    pool.close()
    assert not (tmp_path / "again.sock").exists()
    kept.close()
    assert pool.closed


def test_a_refused_call_raises_without_running_python_code(run):
    """Python code would run signal handlers, whose exceptions cannot be passed on while an exception is created."""
    run(
        """
        import sys, zonal
        pool = zonal.Pool("16M")

        def refuse(frame, event, argument):
            if event == "call":
                raise RuntimeError(f"{frame.f_code.co_name} runs")

        calls = [
            (pool.publish, "/nonexistent/folder/pool", OSError),
            (pool.alloc, "1G", zonal.OutOfMemoryError),
            (pool.grow, "1G", zonal.ResizeError),
            (pool.shrink, "1G", zonal.ResizeError),
            (pool.settings.describe, "nothing", zonal.UnknownSettingError),
            (zonal.machine.read, "/nonexistent/machine.json", OSError),
            (zonal.lab.Spec.read, "/nonexistent/spec.toml", zonal.lab.SpecError),
        ]
        for call, argument, expected in calls:
            sys.setprofile(refuse)
            try:
                call(argument)
            except expected as error:
                sys.setprofile(None)
                found = error
            else:
                sys.setprofile(None)
                raise AssertionError(f"{call} accepts {argument}")
            if call == pool.publish:
                assert (found.errno, found.filename) == (2, argument), found
        """
    )
