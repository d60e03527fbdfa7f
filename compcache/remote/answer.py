"""A remote store's answer about one function, for `Cache.explain`: found, missing, rejected, unavailable, skipped or not asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.errors import CompcacheError
from compcache.identity import label_of
from compcache.remote.adopt import require_acceptable
from compcache.remote.shelves import usable_shelves

if TYPE_CHECKING:
    from compcache.remote.address import Stores
    from compcache.store import Store

__all__ = [
    "FOUND", "MISSING", "NO_STORE", "SKIPPED", "STORE_ERROR", "STORE_HIT", "STORE_MISS", "TIMED_OUT", "UNAVAILABLE", "HelperAnswer",
    "RemoteAnswer", "remote_answer",
]  # fmt: skip

#: Outcomes: the first field of the helper's answer about a function.
FOUND, MISSING, UNAVAILABLE = "found", "missing", "unavailable"
#: Reasons why a store is unavailable.
SKIPPED, TIMED_OUT = "it gets no requests for a while, after repeated failures", "it did not answer in time"


#: The letters for the stores' answers about a function. `_NOT_ASKED` marks a store that was not asked.
STORE_HIT, STORE_MISS, STORE_ERROR, _NOT_ASKED = "hme-"
NO_STORE = -1


class HelperAnswer(NamedTuple):
    """The helper's answer about one function.

    Attributes:
        outcome: `FOUND`, `MISSING` or `UNAVAILABLE`.
        data: for `FOUND`, the bytes of the module; for `UNAVAILABLE`, the reason.
        signatures: the module's signatures.
        imports: rows (name, module, signatures) for the imported modules that the store sent with the function.
        store: the position of the store that had the function, or `NO_STORE`.
        packed: whether the function came from a pack.
        by_store: each store's answer, as one letter per store.
    """

    outcome: str
    data: bytes | str = ""
    signatures: bytes = b""
    imports: tuple[tuple[str, bytes, bytes], ...] = ()
    store: int = NO_STORE
    packed: bool = False
    by_store: str = ""


class RemoteAnswer(NamedTuple):
    """The answer of a remote store about a function.

    Attributes:
        url: the URL of the store, or of all stores that were asked, without passwords.
        outcome: ``found``, ``missing``, ``rejected`` (the store has a module that this cache does not accept), ``unavailable`` (it did not
            answer) or ``skipped`` (it gets no requests for a while, after repeated failures).
        message: the outcome in words.
        is_asked: whether a miss asks the store for this function. A function with a plain name is fetched only by `Cache.prefetch`
            and ``compcache remote pull``.
        module_id: the id of the module that was found, or "".
        size: the size of its file in bytes, or 0.
    """

    url: str
    outcome: str
    message: str
    is_asked: bool
    module_id: str = ""
    size: int = 0


def remote_answer(store: Store, stores: Stores, name: str, answer: HelperAnswer | None, problem: str) -> RemoteAnswer:
    """Return the `RemoteAnswer` for the helper's answer about a function.

    The local cache `store` decides whether it accepts a module. `answer` is None if the helper did not answer. `problem` is the reason; ""
    means that it did not answer in time.
    """
    is_asked = label_of(name) is not None
    url = stores.shown
    if answer is None or answer.outcome == UNAVAILABLE:
        reason = str(answer.data) if answer is not None else problem
        return RemoteAnswer(url, UNAVAILABLE, reason or TIMED_OUT, is_asked)
    if answer.outcome != FOUND:
        shelves = ", ".join(usable_shelves(store.processor()))
        return RemoteAnswer(url, MISSING, f"it has no code for this function that this host can run; shelves searched: {shelves}", is_asked)
    url = stores.each[answer.store].shown
    data: Any = answer.data
    try:
        module = require_acceptable(store, data, func_name=name, signatures=answer.signatures)
    except CompcacheError as error:
        return RemoteAnswer(url, "rejected", str(error), is_asked)
    module_id = module.footer.module_id.hex()
    return RemoteAnswer(url, FOUND, f"it has module {module_id[:12]}, {len(data):,} bytes", is_asked, module_id, len(data))
