"""Code of users that the native part calls, so that it needs one call of the interpreter only."""

from __future__ import annotations

from operator import index
from typing import Any

from ._errors import InvalidArgumentError


def frames(reclaimer: Any, method: str, request: Any) -> int:
    """Returns how many pages a method of a reclaimer returns."""
    pages = index(getattr(reclaimer, method)(request))
    if pages < 0:
        raise InvalidArgumentError(f"`{method}` returned {pages}; it must be 0 or more")
    return min(pages, (1 << 63) - 1)


def progress(callback: Any, *arguments: Any) -> Any:
    """Returns what a callback returns, or the exception that it raises, which the caller raises later."""
    try:
        return callback(*arguments) is not False
    except BaseException as error:
        return error
