"""Exceptions of the program within the contexts of pools."""

import pytest
import zonal


def spoiled_pool(pool):
    other = zonal.Pool("16M", fake_nodes=1)
    return other, lambda: memoryview(other.alloc(4096))


def spoiled_buffer(pool):
    buffer = pool.alloc(4096)
    return buffer, lambda: memoryview(buffer)


def spoiled_arrays(pool):
    pytest.importorskip("numpy", reason="numpy is not installed")
    context = pool.numpy_arrays()
    return context, lambda: context.__exit__(None, None, None)


def registration(pool):
    return pool.on_pressure(print), None


def publication(pool, tmp_path):
    return pool.publish(tmp_path / "socket"), None


# Each context manager, with what makes leaving it fail, if anything does.
CONTEXTS = {
    "Pool": spoiled_pool,
    "Buffer": spoiled_buffer,
    "NumpyArrays": spoiled_arrays,
    "Registration": registration,
    "Publication": publication,
}


def test_all_context_managers_are_tested():
    modules = (zonal, zonal.lab, zonal.machine, zonal.table)
    classes = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    assert {one.__name__ for one in classes if hasattr(one, "__exit__")} == set(CONTEXTS)


@pytest.mark.parametrize("name", CONTEXTS)
def test_contexts_keep_the_exception_of_the_program(name, pool, tmp_path):
    make = CONTEXTS[name]
    arguments = {"tmp_path": tmp_path} if name == "Publication" else {}
    for exception in (None, RuntimeError("of the program")):
        context, spoil = make(pool, **arguments)

        def run():
            with context:
                kept = spoil() if spoil else None
                if exception:
                    raise exception
                return kept

        if exception:
            with pytest.raises(RuntimeError, match="of the program"):
                run()
        elif spoil:
            with pytest.raises(zonal.Error):
                run()
        else:
            run()
