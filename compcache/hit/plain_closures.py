"""Plain hits of linked closures, of which a process before this one has found out that they hold, and of functions that use symbols of the
process.
"""

from __future__ import annotations

import os

from compcache import hit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from compcache.files import Opened

__all__ = ["DIRECTORY", "MAGIC", "PARTS", "SUFFIX", "PlainClosure", "find_holding", "is_alone"]

#: As `compcache.store.PLACES` has them, which a plain hit does not read.
DIRECTORY, SUFFIX = "closures-v1", ".closure"
#: As `compcache.hit.closures` writes these files: what they begin with, before a seal, and where the state of the index, whether a closure
#: holds, how many modules are in it, and the modules begin.
MAGIC = b"CCCLOSE5"
_STATE, _HOLDS, _HOMES, PARTS = 24, 44, 48, 164
_LARGEST = 1 << 16
_ID_SIZE = 16


class PlainClosure:
    """A linked closure that plain hits have loaded: its file, what the index says of that, the modules that it is derived of, and how many
    of these, the first, are in it. `bound` are the functions that were loaded of it: their records, and their contents.
    """

    __slots__ = ("bound", "entry", "homes", "module_id", "opened", "parts", "path", "size")

    def __init__(self, module_id: bytes, parts: tuple[bytes, ...], homes: int) -> None:
        self.module_id = module_id
        self.parts = parts
        self.homes = homes
        self.bound: list[tuple[tuple[Any, ...], bytes]] = []
        self.opened: Opened | None = None
        self.path = ""
        self.size = 0
        self.entry: tuple[Any, ...] = ()

    def describe(self, opened: Opened, path: str, size: int, entry: tuple[Any, ...]) -> None:
        """Keep the file of the closure open, and what the index says of it."""
        self.opened, self.path, self.size, self.entry = opened, path, size, entry

    def note(self, known: PlainClosure | None, record: tuple[Any, ...], content: bytes) -> PlainClosure:
        """Note that a function is bound here, or in the same closure as it was `known` before; which of them it is."""
        closure = known if known is not None and known.module_id == self.module_id else self
        closure.bound.append((record, content))
        return closure


def find_holding(
    runtime: Any, files: Any, root: str, segments: Iterable[str], module_id: bytes, is_own: Callable[[os.stat_result], bool]
) -> PlainClosure | None:
    """A linked closure that holds in this state of the index, as is kept; None where nothing is kept that says so.

    Args:
        runtime: the native runtime.
        files: what reads the directory.
        root: the directory.
        segments: the names of the files of the index.
        module_id: the closure.
        is_own: whether a file of this status is one that this user alone can write to.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    content = runtime.processor()
    if hit.KNOWN_FAULTS or not runtime.processor_words(content):
        return None
    identity = runtime.digest(f"{os.uname().machine}-linux-elf".encode() + content, 12).hex()
    file_name = runtime.digest(module_id + b"linked" + identity.encode(), _ID_SIZE).hex() + SUFFIX
    opened = files.open_owned(f"{root}/{DIRECTORY}/{file_name}", hit._READ)
    status = files.fstat(opened.number)
    if not is_own(status) or status.st_size > _LARGEST:
        return None
    data = files.pread(opened.number, status.st_size, 0)
    names = sorted(segments, key=lambda name: (-int(name[:2]), name))
    state = runtime.digest("".join(names).encode(), _ID_SIZE)
    seal = runtime.digest(file_name.encode() + data[_STATE:], _ID_SIZE, b"compcache-closed")
    if data[: _STATE + _ID_SIZE] != MAGIC + seal + state or not data[_HOLDS]:
        return None
    parts = tuple([data[at : at + _ID_SIZE] for at in range(PARTS, len(data), _ID_SIZE)])
    return PlainClosure(module_id, parts, int.from_bytes(data[_HOMES : _HOMES + 4], "little"))


def is_alone(runtime: Any, read: Callable[[int], bytes], offset: int) -> bool:
    """Whether a function needs nothing but symbols of the process; `read` gives the payload of a record, `offset` is that of its needs."""
    waiting, natives = [offset], set()
    for at in waiting:  # grows while it is walked
        imports, variables, symbols, children, _, _ = runtime.needs_record(read(at))
        if imports or variables:
            return False
        natives.update(symbols)
        waiting += [child for child in children if child not in waiting]
    return runtime.find_undefined(tuple(natives)) is None
