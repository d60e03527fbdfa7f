"""The content of a function in keys that processes without Numba compute: one walk over the function and everything that is compiled with
it, and one walk over each implementation that is registered for the names in them.
"""

from __future__ import annotations

import os

from compcache.digest import blake2b
from compcache.numba.fingerprints.walk import RUN, SIZE_OF_LINES, Part, Walk
from compcache.numba.registered.refusals import NotLazy, Unidentifiable, looks_at_programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from compcache.numba.fingerprints.walk import Fingerprint

__all__ = ["Content", "content_of"]


class Content:
    """The digest of all that a function reads, and one for each compiled function's own reads, the function itself first.

    `parts` are the functions that are compiled. `reads` has these, and those of the program that the compiler calls. `lines` is the digest
    of source lines.
    `registered` lists all functions that the compiler knows only because they were registered.
    """

    __slots__ = ("digest", "lines", "parts", "reads", "registered")

    def __init__(self, digest: str, lines: str, parts: list[Part], at_compile_time: list[Part], registered: list[Any]) -> None:
        self.digest = digest
        self.lines = lines
        self.parts = parts
        self.reads = [*parts, *at_compile_time]
        self.registered = registered


@looks_at_programs(NotLazy)
def content_of(function: Any, options: Any, given: Iterable[Any] = ()) -> Content:
    """Return the content of a function that is compiled with these options, and of the jitted functions that it is `given` as arguments.

    Raises:
        NotLazy: it reads a value that only Numba knows, or that has no content, or that raised an exception when it was examined.
    """
    try:
        return _content_of(function, options, given)
    except NotLazy:
        raise
    except Unidentifiable as error:
        raise NotLazy(str(error)) from error


def _content_of(function: Any, options: Any, given: Iterable[Any]) -> Content:
    walk = Walk(without_numba=True)
    walk.add_function(function, "")
    walk.value(options, "its options")
    for other in given:
        walk.value(other, "a function that is an argument")
    found = walk.finish()
    total, lines = blake2b(found.content.encode(), digest_size=16), blake2b(digest_size=16)
    if walk.has_object_mode or any(name == "debug" and value for name, value in options) or "NUMBA_DEBUGINFO" in os.environ:
        total.update(found.lines[SIZE_OF_LINES:].encode())
    parts = {id(part.function): part for part in found.parts}
    at_compile_time = []
    registered, implementations = walk.registered, walk.implementations
    walks: list[Fingerprint] = [found]
    waiting = list(implementations.values())
    while waiting:
        implementation = waiting.pop(0)
        walk = Walk(without_numba=True)
        walk.mode = RUN
        walk.implementation(implementation, "")
        found = walk.finish()
        walks.append(found)
        total.update(found.content.encode())
        at_compile_time.append(Part(implementation.function, found.content.encode(), RUN))
        parts |= {id(part.function): part for part in found.parts}
        registered += walk.registered
        waiting += [other for key, other in walk.implementations.items() if key not in implementations]
        implementations |= walk.implementations
    for found in walks:
        lines.update(found.lines[:SIZE_OF_LINES].encode())
    return Content(total.hexdigest(), lines.hexdigest(), list(parts.values()), at_compile_time, registered)
