"""Upkeep of a remote store for its operators: what it contains, what leads nowhere, what may be removed.

All functions but `status` take a chain of one store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.digest import DIGEST_SIZE
from compcache.errors import FormatError, StorageError
from compcache.files import reraise_interrupt
from compcache.remote.card import decode_cards, decode_pack
from compcache.remote.connection import ask
from compcache.remote.shelves import LAYOUT, module_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.remote.address import Stores

__all__ = ["GRACE", "LONGEST_UNUSED", "RemoteGarbage", "RemoteObject", "RemoteReport", "collect_garbage", "status", "verify"]

#: A collection requests each object, so it may take long; a helper that ends is noticed at once.
_PATIENCE = 86400.0
#: The time between the two collections that must find an object useless, in seconds.
GRACE = 86400.0
#: How long notes of uses are kept, in seconds.
LONGEST_UNUSED = 90 * 86400.0


class RemoteObject(NamedTuple):
    """An object of a remote store: its key, its size in bytes, and its modification time (seconds since the epoch, 0 if unknown)."""

    key: str
    size: int
    modified: float


class RemoteGarbage(NamedTuple):
    """What a garbage collection `removed`, and what it found useless and `left` for a later one."""

    removed: tuple[RemoteObject, ...]
    left: tuple[RemoteObject, ...]


class RemoteReport(NamedTuple):
    """The content of a remote store: the number of cards, separate modules and packs, their size in bytes, the number of functions;
    `problems` by key, and `unused` modules.
    """

    cards: int
    modules: int
    packs: int
    size: int
    functions: tuple[str, ...]
    problems: dict[str, str]
    unused: tuple[str, ...]


def status(stores: Stores) -> list[dict[str, Any]]:
    """Return the state of each store: its `url`, the helper's counts, and in `last_error` why it does not answer or accepts no uploads.

    Raises:
        StorageError: the helper does not answer.
    """
    states = _asked(stores, "states", module_key(bytes(DIGEST_SIZE)))
    answers = zip(stores.each, _asked(stores, "status"), states, strict=True)
    rows = []
    for store, said, state in answers:
        problem = state or (said["last_error"] if said["uploads_rest_seconds"] else "")
        rows.append({"url": store.shown, "mode": store.mode, **said, "last_error": problem})
    return rows


def verify(store: Stores) -> RemoteReport:
    """Read every card, and check that it decodes and that its module exists.

    Raises:
        StorageError: the store cannot be listed, or did not answer. That says nothing about its content.
    """
    modules = {item.key: item for item in _listed(store, "m")}
    cards, packs = _listed(store, "f"), _listed(store, "p")
    problems: dict[str, str] = {}
    functions: dict[str, None] = {}
    unused = dict.fromkeys(modules)
    for item in cards:
        data = _answered(store, "get", item.key)
        if data is None:
            continue  # removed meanwhile
        try:
            found = decode_cards(data)
        except FormatError as error:
            problems[item.key] = str(error)
            continue
        for shelf, card in found.items():
            functions[card.name] = None
            own = module_key(card.module_id)
            if not card.module and own not in modules and not _answered(store, "has_object", own):
                problems[item.key] = f"the module of function {card.name!r} on shelf {shelf} is missing"
            unused.pop(own, None)
    for item in packs:
        data = _answered(store, "get", item.key)
        try:
            decode_pack(data) if data is not None else None
        except FormatError:
            problems[item.key] = "this object is not an intact pack"
    size = sum(item.size for item in (*cards, *modules.values(), *packs))
    return RemoteReport(len(cards), len(modules), len(packs), size, tuple(sorted(functions)), problems, tuple(unused))


def collect_garbage(
    store: Stores, *, older_than: float | None = None, unused_for: float | None = None, grace: float = GRACE, dry_run: bool = False
) -> RemoteGarbage:
    """Remove useless objects: cards that do not decode or lead nowhere, modules that no card leads to, packs that do not decode.

    An object is removed if this collection and one at least `grace` seconds earlier, by the store's clock, find it useless. So the first
    collection removes nothing.

    Args:
        store: the store.
        older_than: also remove any cards and packs that were written longer ago than this, in seconds.
        unused_for: also remove cards and packs that were written longer ago than this, in seconds, and that no host has received since; 90
            days at most. Hosts that may not write do not count.
        grace: the least time between the two collections, in seconds; longer than any upload takes.
        dry_run: remove nothing, and write nothing for the next collection.

    Raises:
        StorageError: the store did not answer. Nothing was removed because of that.
        ValueError: `unused_for` is longer than notes of uses are kept.
    """
    if unused_for is not None and unused_for > LONGEST_UNUSED:
        raise ValueError(f"unused_for is {unused_for:g} s, but records of use are kept for {LONGEST_UNUSED:g} s (90 days)")
    answer = _answered(store, "collect", grace, older_than, dry_run, unused_for)
    return RemoteGarbage(*[tuple(_objects(rows)) for rows in answer])


def _listed(store: Stores, kind: str) -> tuple[RemoteObject, ...]:
    return tuple({item.key: item for item in _objects(_answered(store, "list", f"{LAYOUT}/{kind}/"))}.values())


def _answered(store: Stores, *message: Any) -> Any:
    """Return the store's answer. An error of the store is raised, because it says nothing about the content."""
    answer = _asked(store, *message)
    if isinstance(answer, str):
        raise StorageError(f"the remote store {store.shown} does not answer: {answer}")
    return answer


def _objects(rows: list[list[Any]]) -> Iterator[RemoteObject]:
    for key, size, modified in rows:
        if not key.rpartition("/")[2].startswith("."):
            yield RemoteObject(key, size, modified)


def _asked(store: Stores, *message: Any) -> Any:
    try:
        question = ask(store, *message)
        if question.wait(_PATIENCE):
            return question.answer
        problem = question.problem or "it does not answer"
    except OSError as error:
        reraise_interrupt(error)
        problem = str(error)
    raise StorageError(f"the remote store {store.shown} cannot be used: {problem}")
