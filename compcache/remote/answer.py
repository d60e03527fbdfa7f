"""What a remote store says about one function, for `Cache.explain`: found, missing, rejected, unavailable, skipped, not asked."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.errors import CompcacheError
from compcache.identity import label_of
from compcache.remote.adopt import require_acceptable
from compcache.remote.shelves import usable_shelves

if TYPE_CHECKING:
    from compcache.remote.address import Stores
    from compcache.store import Store

__all__ = [
    "FOUND",
    "HAD",
    "MISSING",
    "NO_STORE",
    "SAID_NOTHING",
    "UNAVAILABLE",
    "WAS_MISSING",
    "RemoteAnswer",
    "Said",
    "left_alone",
    "mapped",
    "read_answer",
]

#: The first field of the helper's answer about a function.
FOUND, MISSING, UNAVAILABLE = "found", "missing", "unavailable"


#: What each store said of a function, a letter for each; one that was not asked has another letter.
HAD, WAS_MISSING, SAID_NOTHING, _NOT_ASKED = "hme-"
NO_STORE = -1


class Said(NamedTuple):
    """The helper's answer about one function.

    `data` is the module that was found, or the path of its file; why it is unavailable. `imports` are rows (name, module, signatures) of
    what the module imports, as far as it came with it. `store` is the place of the store that had it, `packed` says whether in a pack.
    `by_store` has a letter for each store.
    """

    outcome: str
    data: bytes | str = ""
    signatures: bytes = b""
    imports: tuple[tuple[str, bytes, bytes], ...] = ()
    store: int = NO_STORE
    packed: bool = False
    by_store: str = ""


class RemoteAnswer(NamedTuple):
    """What a remote store says about a function.

    Attributes:
        url: that of the store, or of all that were asked, without a password.
        outcome: ``found``, ``missing``, ``rejected`` (it has a module that this cache does not take), ``unavailable`` (it did not
            answer) or ``skipped`` (it is left alone after failures).
        message: the same in words.
        is_asked: whether a miss asks for the function: names that do not stand for content are fetched by `Cache.prefetch` and
            ``compcache remote pull`` alone.
        module_id: that of a module that was found.
        size: that of its file, in bytes.
    """

    url: str
    outcome: str
    message: str
    is_asked: bool
    module_id: str = ""
    size: int = 0


def mapped(path: str) -> memoryview:
    """The bytes of a file that was written here. Raises `OSError`."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(number).st_size
        return memoryview(mmap.mmap(number, size, access=mmap.ACCESS_READ)) if size else memoryview(b"")
    finally:
        os.close(number)


def left_alone(url: str, name: str, failures: int, seconds: float) -> RemoteAnswer:
    """The store is not asked now."""
    message = f"it is left alone for {seconds:.0f} s more, after {failures} failures in a row"
    return RemoteAnswer(url, "skipped", message, label_of(name) is not None)


def read_answer(store: Store, stores: Stores, name: str, said: Said | None, problem: str) -> RemoteAnswer:
    """The helper's answer about a function; None where there was none, and `problem` says why."""
    is_asked = label_of(name) is not None
    url = stores.shown
    if said is None or said.outcome == UNAVAILABLE:
        why = str(said.data) if said is not None else problem
        return RemoteAnswer(url, UNAVAILABLE, why or "it does not answer", is_asked)
    if said.outcome != FOUND:
        shelves = ", ".join(usable_shelves(store.processor()))
        return RemoteAnswer(url, MISSING, f"it is on no shelf that this host can use: {shelves}", is_asked)
    url = stores.each[said.store].shown
    data: Any = said.data
    try:
        module = require_acceptable(store, data, wanted=name, signatures=said.signatures)
    except CompcacheError as error:
        return RemoteAnswer(url, "rejected", str(error), is_asked)
    found = module.footer.module_id.hex()
    return RemoteAnswer(url, FOUND, f"it has module {found[:12]}, {len(data):,} bytes", is_asked, found, len(data))
