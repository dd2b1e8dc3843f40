"""The exceptions of the package. `zonal` re-exports them."""


class Error(Exception):
    """The base of all exceptions of the package."""


class InvalidArgumentError(Error, ValueError):
    """An argument has a value that is not allowed. The message names the value and the allowed ones."""


class BuildError(Error):
    """A pool could not be built as requested."""


class OutOfMemoryError(Error, MemoryError):
    """A request could not be served. The message describes each zone that the request allows."""


class ClosedError(Error, ValueError):
    """The pool has been closed, or the buffer has been freed."""


class InUseError(Error, BufferError):
    """Views of a buffer, or arrays in the memory of a pool, still exist."""


class ForkedError(Error, RuntimeError):
    """The pool belongs to a process of which this one is a child."""


class ReentryError(Error, RuntimeError):
    """A reclaimer or a pressure callback made a call that must wait for it."""


class SettingError(Error, ValueError):
    """A setting cannot have this value, or cannot be changed."""


class UnknownSettingError(Error, KeyError):
    """No setting has this name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ResizeError(Error):
    """The pool could not grow, shrink, or return the memory of free frames. `done` is by how many bytes it did."""

    done: int = 0


class CorruptionError(Error):
    """The metadata of a pool is not consistent."""


OutOfMemory = OutOfMemoryError

for _each in list(globals().values()):
    if isinstance(_each, type) and issubclass(_each, Error):
        _each.__module__ = "zonal"
