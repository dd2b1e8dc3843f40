"""Arguments that functions about pools refuse."""

import inspect

import pytest
import zonal


class Wrong:
    """What no function takes."""

    def __repr__(self):
        return "Wrong()"


WRONG = [Wrong(), 2**70, [Wrong()], [2**70], {Wrong(): 1}, {0: Wrong()}, b"\0", 1.5]
# What functions require beside the argument that is wrong.
RIGHT = {"size": "16M", "nbytes": 4096, "node": 0, "pages": 1, "frame": 0, "name": "a", "buffer": None}


def functions(pool):
    """Returns the functions about pools, and the methods of objects, by their names."""
    found = {"Pool": zonal.Pool, "join": zonal.join}
    buffer = pool.alloc(4096)
    for one in (pool, buffer, pool.settings, pool.interleave(), buffer.placement(), pool.numpy_arrays()):
        for name in dir(one):
            member = getattr(type(one), name)
            if callable(member) and (not name.startswith("_") or name == "__dlpack__"):
                found[f"{type(one).__name__}.{name}"] = getattr(one, name)
    return found


def refusals(function):
    """Calls a function with wrong values of each argument, and returns the errors with the names of the arguments."""
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        for wrong in WRONG:
            by_place = [
                wrong if one is parameter else RIGHT.get(one.name)
                for one in parameters
                if one.kind is one.POSITIONAL_ONLY
            ]
            by_name = {
                one.name: RIGHT[one.name]
                for one in parameters
                if one.kind is not one.POSITIONAL_ONLY and one.default is one.empty and one is not parameter
            }
            if parameter.kind is not parameter.POSITIONAL_ONLY:
                by_name[parameter.name] = wrong
            try:
                function(*by_place, **by_name)
            except (TypeError, ValueError, KeyError, OverflowError, BufferError, OSError, MemoryError) as error:
                yield parameter.name, wrong, error


def test_every_argument_that_is_refused_is_named(pool):
    count, unnamed = 0, []
    for name, function in functions(pool).items():
        for argument, wrong, error in refusals(function):
            count += 1
            said = " ".join([str(error), *getattr(error, "__notes__", [])])  # a traceback shows both
            if argument.removesuffix("s") not in said:
                unnamed.append(f"{name}({argument}={wrong}): {type(error).__name__}: {error}")
    assert count > 200
    assert not unnamed, "\n".join(unnamed)


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        (lambda pool: zonal.join(True), TypeError, "place is True; it must be a path or a descriptor"),
        (lambda pool: zonal.join(2**40), ValueError, "place is 1099511627776, which is no descriptor"),
        (lambda pool: zonal.join(-1), ValueError, "place is -1, which is no descriptor"),
        (lambda pool: zonal.Pool("16M", settings={1: 2}), TypeError, "settings has the key 1; "),
        (lambda pool: zonal.Pool("16M", settings={"movable_min": 1.5}), ValueError, "movable_min is 1.5; "),
        (lambda pool: pool.settings.__setitem__("movable_min", Wrong()), ValueError, r"movable_min is Wrong\(\); "),
        (lambda pool: pool.weighted_interleave({"a": 1}), TypeError, "a node in weights is 'a'; "),
        (lambda pool: pool.weighted_interleave({0: "a"}), TypeError, "a weight in weights is 'a'; "),
    ],
)
def test_values_that_are_refused_are_named(call, error, expected, pool):
    with pytest.raises(error, match=expected):
        call(pool)
