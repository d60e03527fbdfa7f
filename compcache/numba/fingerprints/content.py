"""Computes the content of a function, for keys that processes without Numba compute.

One walk covers the function and all functions that are compiled with it. A further walk covers each implementation that is registered for
the names in them.
"""

from __future__ import annotations

import os

from compcache.digest import blake2b
from compcache.numba.fingerprints.modes import RUN
from compcache.numba.fingerprints.walk import SIZE_OF_LINES, Part, Walk
from compcache.numba.registered.refusals import NotLazy, Unidentifiable, examines_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from compcache.numba.fingerprints.walk import Fingerprint

__all__ = ["Content", "content_of"]


class Content:
    """The content of a function.

    Attributes:
        digest: the digest of all that the function reads.
        lines: the digest of source lines.
        parts: each compiled function with the digest of its own reads, the function itself first.
        reads: the parts, and each of the program's functions that the compiler calls, with the digest of its reads.
        registered: all functions that the compiler knows only because they were registered.
    """

    __slots__ = ("digest", "lines", "parts", "reads", "registered")

    def __init__(self, digest: str, lines: str, parts: list[Part], at_compile_time: list[Part], registered: list[Any]) -> None:
        self.digest = digest
        self.lines = lines
        self.parts = parts
        self.reads = [*parts, *at_compile_time]
        self.registered = registered


@examines_program(NotLazy)
def content_of(function: Any, options: Any, functions: Iterable[Any] = ()) -> Content:
    """Return the content of a function.

    Args:
        function: the Python function.
        options: the options with which the function is compiled.
        functions: the jitted functions that are passed to the function as arguments.

    Raises:
        NotLazy: the function reads a value that only Numba knows, that has no content, or that raised an exception when it was examined.
    """
    try:
        return _walk_content(function, options, functions)
    except NotLazy:
        raise
    except Unidentifiable as error:
        raise NotLazy(str(error)) from error


def _walk_content(function: Any, options: Any, functions: Iterable[Any]) -> Content:
    """Walk the function and then each implementation that a walk has found, and return the content."""
    walk = Walk(without_numba=True)
    walk.refer_to_function(function, "")
    walk.feed_value(options, "its options")
    for other in functions:
        walk.feed_value(other, "a function that is an argument")
    result = walk.finish()
    total, lines = blake2b(result.content.encode(), digest_size=16), blake2b(digest_size=16)
    if walk.has_object_mode or any(name == "debug" and value for name, value in options) or "NUMBA_DEBUGINFO" in os.environ:
        total.update(result.lines[SIZE_OF_LINES:].encode())
    parts = {id(part.function): part for part in result.parts}
    at_compile_time = []
    registered, implementations = walk.registered, walk.implementations
    walks: list[Fingerprint] = [result]
    waiting = list(implementations.values())
    while waiting:
        implementation = waiting.pop(0)
        walk = Walk(without_numba=True)
        walk.mode = RUN
        walk.refer_to_implementation(implementation, "")
        result = walk.finish()
        walks.append(result)
        total.update(result.content.encode())
        at_compile_time.append(Part(implementation.function, result.content.encode(), RUN))
        parts |= {id(part.function): part for part in result.parts}
        registered += walk.registered
        waiting += [other for key, other in walk.implementations.items() if key not in implementations]
        implementations |= walk.implementations
    for result in walks:
        lines.update(result.lines[:SIZE_OF_LINES].encode())
    return Content(total.hexdigest(), lines.hexdigest(), list(parts.values()), at_compile_time, registered)
