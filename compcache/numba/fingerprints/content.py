"""Computes the content of a function, for keys that processes without Numba compute.

One walk covers the function and all functions that are compiled with it. A further walk covers each implementation that is registered for
the names in them.
"""

from __future__ import annotations

import os

from compcache.digest import blake2b
from compcache.numba.fingerprints import RUN
from compcache.numba.fingerprints.history import changed_value, functions_recorded_as, old_code_reason
from compcache.numba.fingerprints.walk import SIZE_OF_LINES, WITHOUT_NUMBA, FunctionPart, Walk
from compcache.numba.registered.refusals import NotLazy, Unidentifiable, examines_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from compcache.numba.fingerprints.walk import Fingerprint

__all__ = ["Content", "content_of", "find_old_code"]


class Content:
    """The content of a function.

    Attributes:
        digest: the digest of all that the function reads.
        lines: the digest of source lines.
        parts: each compiled function with the digest of its own reads, the function itself first; and the program's classes.
        reads: the parts, and each of the program's functions that the compiler calls, with the digest of its reads.
        registered: all functions that the compiler knows only because they were registered.
    """

    __slots__ = ("digest", "lines", "parts", "reads", "registered")

    def __init__(
        self, digest: str, lines: str, parts: list[FunctionPart], at_compile_time: list[FunctionPart], registered: list[Any]
    ) -> None:
        self.digest = digest
        self.lines = lines
        self.parts = parts
        self.reads = [*parts, *at_compile_time]
        self.registered = registered


@examines_program(NotLazy)
def content_of(function: Any, options: Any, functions: Iterable[Any] = ()) -> Content:
    """Return the content of a function that is compiled with these options. `functions` are the jitted functions among its arguments.

    Raise `NotLazy` if the function reads a value that only Numba knows, that has no content, or that raised an exception when examined.
    """
    try:
        return _walk_content(function, options, functions)
    except NotLazy:
        raise
    except Unidentifiable as error:
        raise NotLazy(str(error)) from error


def find_old_code(parts: Sequence[FunctionPart], first: int = 0) -> str:
    """Return why code in this process was compiled from other values or classes than these functions read now, or "" if it was not.

    See `old_code_reason` for `first`. If the present values cannot be compared, the reason names the first function with a key that needs
    no Numba.
    """
    without_numba = functions_recorded_as(WITHOUT_NUMBA, parts[first:])
    try:
        return old_code_reason([*parts, *_find_parts(without_numba)], first)
    except Unidentifiable:
        return changed_value(without_numba[0])


@examines_program(NotLazy)
def _find_parts(functions: Iterable[Any]) -> tuple[FunctionPart, ...]:
    """Return the parts for these functions and their callees, each with the digest of its own reads, and for the program's classes.

    Raise `Unidentifiable` if a function reads a value that only Numba knows, that has no content, or that raised an exception.
    """
    walk = Walk(without_numba=True)
    for function in functions:
        walk.refer_to_function(function, "")
    return walk.finish().parts


def _walk_content(function: Any, options: Any, functions: Iterable[Any]) -> Content:
    """Walk the function, the functions that are arguments, and then each implementation that a walk has found. Return the content.

    The functions of the parts have the order of `identify`, because the numbers of dispatchers in descriptions depend on it.
    """
    walk = Walk(without_numba=True)
    walk.refer_to_function(function, "")
    walk.feed_value(options, "its options")
    fingerprints = [walk.finish()]
    for other in functions:
        further = Walk(without_numba=True)
        further.feed_value(other, "a function that is an argument")
        fingerprints.append(further.finish())
        walk.implementations |= further.implementations
        walk.registered += further.registered
        walk.has_object_mode |= further.has_object_mode
    total = blake2b("".join([fingerprint.content for fingerprint in fingerprints]).encode(), digest_size=16)
    if walk.has_object_mode or any(name == "debug" and value for name, value in options) or "NUMBA_DEBUGINFO" in os.environ:
        files = [fingerprint.lines[SIZE_OF_LINES:] for fingerprint in fingerprints]
        total.update("".join(files).encode())  # the code contains the paths of files
    at_compile_time = []
    for implementation, fingerprint in _walk_implementations(walk):
        total.update(fingerprint.content.encode())
        at_compile_time.append(FunctionPart(implementation, fingerprint.content.encode(), RUN))
        fingerprints.append(fingerprint)
    lines = blake2b("".join([fingerprint.lines[:SIZE_OF_LINES] for fingerprint in fingerprints]).encode(), digest_size=16)
    parts: dict[int, FunctionPart] = {}
    for part in [part for fingerprint in fingerprints for part in fingerprint.parts]:
        parts.setdefault(id(part.function), part).owners.extend(part.owners)
    return Content(total.hexdigest(), lines.hexdigest(), list(parts.values()), at_compile_time, walk.registered)


def _walk_implementations(first: Walk) -> Iterator[tuple[Any, Fingerprint]]:
    """Yield each implementation that the walk, or the walk of another implementation, has found, with its fingerprint.

    The registered functions that the further walks reach are added to `registered` of the first walk.
    """
    implementations = dict(first.implementations)
    waiting = list(implementations.values())
    for implementation in waiting:
        walk = Walk(without_numba=True)
        walk.mode = RUN
        walk.refer_to_implementation(implementation)
        yield implementation.function, walk.finish()
        first.registered += walk.registered
        waiting += [other for key, other in walk.implementations.items() if key not in implementations]
        implementations |= walk.implementations
