"""Plain hits of linked closures that an earlier process has found valid.

A function of a closure is plain if it needs no other module, and all loaded modules belong to the same closure.
"""

import os

from compcache import hit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from compcache.files import Opened
    from compcache.hit import PlainLoader

__all__ = ["DIRECTORY", "MAGIC", "PARTS", "SUFFIX", "PlainClosure", "find_valid", "is_compatible"]

#: The values of `compcache.store.PLACES`, which a plain hit does not import.
DIRECTORY, SUFFIX = "closures-v1", ".closure"
#: The layout that `compcache.hit.closures` writes: the magic, a seal, then the offsets of the closure, the state of the index, the flag of
#: validity, the number of modules in the closure, and the modules.
MAGIC = b"CCCLOSE6"
_CLOSURE, _STATE, _HOLDS, _HOMES, PARTS = 24, 40, 56, 60, 64
_LARGEST = 1 << 16
_ID_SIZE = 16


class PlainClosure:
    """A linked closure that plain hits have loaded.

    Attributes:
        module_id: the id of the closure.
        segments: the names of the index's files for which the closure is valid.
        parts: the modules from which it is derived.
        homes: the number of these modules, from the first one, that the closure contains.
        where: its open file, path, size and index entry, or None.
        bound: the records and contents of its loaded functions.
    """

    __slots__ = ("bound", "homes", "module_id", "parts", "segments", "where")

    def __init__(self, module_id: bytes, segments: object, parts: "tuple[bytes, ...]", homes: int) -> None:
        self.module_id = module_id
        self.segments = segments
        self.parts = parts
        self.homes = homes
        self.where: tuple[Opened, str, int, tuple[Any, ...]] | None = None
        self.bound: list[tuple[tuple[Any, ...], bytes]] = []

    def note(self, known: "PlainClosure | None", record: "tuple[Any, ...]", content: bytes) -> "PlainClosure":
        """Record that a function is bound to this closure.

        Return the closure that has the record: `known` if it is an earlier state of this one.
        """
        closure = known if known is not None and known.module_id == self.module_id else self
        closure.segments = self.segments
        closure.bound.append((record, content))
        return closure


def find_valid(runtime: "Any", files: "Any", root: str, segments: "bytes | None", module_id: bytes, owner: int) -> "PlainClosure | None":
    """Return a linked closure that is recorded as valid for this state of the index, or None if its file does not record that.

    Args:
        runtime: the native runtime.
        files: the object that reads the directory.
        root: the directory.
        segments: the names of the files of the index, each followed by a slash.
        module_id: the closure.
        owner: the user who must own the closure's file.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    content = runtime.processor()
    if segments is None or hit.KNOWN_FAULTS or not runtime.processor_words(content):
        return None
    identity = runtime.digest(f"{os.uname().machine}-linux-elf".encode() + content, 12).hex()
    file_name = runtime.digest(module_id + b"linked" + identity.encode(), _ID_SIZE).hex() + SUFFIX
    opened = files.open_owned(f"{root}/{DIRECTORY}/{file_name}", hit._READ)
    stamp = runtime.stamp_of(opened.number, owner)
    if stamp is None or stamp[1] > _LARGEST:
        return None
    data = files.pread(opened.number, stamp[1], 0)
    names = sorted(os.fsdecode(segments).split("/")[:-1], key=lambda name: (-int(name[:2]), name))
    state = runtime.digest("".join(names).encode(), _ID_SIZE)
    seal = runtime.digest(file_name.encode() + data[_CLOSURE:], _ID_SIZE, b"compcache-closed")
    if data[:_CLOSURE] != MAGIC + seal or data[_STATE:_HOLDS] != state or not data[_HOLDS]:
        return None
    parts = tuple([data[at : at + _ID_SIZE] for at in range(PARTS, len(data), _ID_SIZE)])
    return PlainClosure(module_id, segments, parts, int.from_bytes(data[_HOMES : _HOMES + 4], "little"))


def is_compatible(loader: "PlainLoader", closure: "PlainClosure | None") -> bool:
    """Return whether all loaded modules belong to this linked closure, or to no closure if it is None. Otherwise the hit is not plain."""
    known = loader._closure
    if known is not None and loader._loaded(known.module_id) is None:
        known = None
    if closure is None:
        return known is None
    if known is not None:
        return known.module_id == closure.module_id
    return not any(module.committed for module in loader.loaded_modules())
