"""Maintenance of remote stores: status, verification, garbage collection. All functions but `status` need a `Stores` with one store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from compcache.digest import DIGEST_SIZE
from compcache.errors import FormatError, StorageError
from compcache.interrupts import reraise_interrupt
from compcache.remote.card import decode_cards, decode_pack
from compcache.remote.connection import ask
from compcache.remote.shelves import LAYOUT, module_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from compcache.remote.address import Stores

__all__ = ["GRACE", "LONGEST_UNUSED", "RemoteGarbage", "RemoteObject", "RemoteReport", "collect_garbage", "status", "verify"]

#: How many seconds an answer may take. A collection requests each object, so it may take long. A helper that ends is noticed at once.
_PATIENCE = 86400.0
#: The time between the two collections that must find an object to be garbage, in seconds.
GRACE = 86400.0
#: For how many seconds records of use are kept.
LONGEST_UNUSED = 90 * 86400.0


_T = TypeVar("_T")


class RemoteObject(NamedTuple):
    """An object of a remote store: its key, its size in bytes, and its modification time (seconds since the epoch, 0 if unknown)."""

    key: str
    size: int
    modified: float


class RemoteGarbage(NamedTuple):
    """The objects that a garbage collection `removed`, and the garbage that it `left` for a later collection."""

    removed: tuple[RemoteObject, ...]
    left: tuple[RemoteObject, ...]


class RemoteReport(NamedTuple):
    """The content of a remote store.

    Attributes:
        cards: the number of cards.
        modules: the number of modules that are objects of their own.
        packs: the number of packs.
        size: the size of all these objects in bytes.
        functions: the names of the functions.
        problems: a description of each object that is broken, by key.
        unused: the keys of the modules that no card names.
    """

    cards: int
    modules: int
    packs: int
    size: int
    functions: tuple[str, ...]
    problems: dict[str, str]
    unused: tuple[str, ...]


def status(stores: Stores) -> list[dict[str, Any]]:
    """Send a request to each store now, and return its status: its `url` and `mode`, the helper's counts, and `last_error`.

    `last_error` says why the store does not answer or accepts no uploads. It is empty otherwise.

    Raise `StorageError` if the helper does not answer.
    """
    states = _ask_helper(stores, "states", module_key(bytes(DIGEST_SIZE)))  # no module has this key, so the answer is short
    answers = zip(stores.each, _ask_helper(stores, "status"), states, strict=True)
    rows = []
    for store, counts, state in answers:
        problem = state or (counts["last_error"] if counts["uploads_rest_seconds"] else "")
        rows.append({"url": store.shown, "mode": store.mode, **counts, "last_error": problem})
    return rows


def verify(store: Stores) -> RemoteReport:
    """Read all cards and packs, check that they decode, and check that the modules of the cards exist.

    Raise `StorageError` if the store cannot be listed, or does not answer.
    """
    modules = {item.key: item for item in _list_objects(store, "m")}
    cards, packs = _list_objects(store, "f"), _list_objects(store, "p")
    problems: dict[str, str] = {}
    functions = set()
    unused = dict.fromkeys(modules)
    for item, shelf_cards in _read_objects(store, cards, decode_cards, problems):
        for shelf, card in shelf_cards.items():
            functions.add(card.name)
            module = module_key(card.module_id)
            if not card.module and module not in modules and not _ask_store(store, "has_object", module):
                problems[item.key] = f"the module of function {card.name!r} on shelf {shelf} is missing"
            unused.pop(module, None)
    for _ in _read_objects(store, packs, decode_pack, problems):
        pass  # decoding is the check
    size = sum(item.size for item in (*cards, *modules.values(), *packs))
    return RemoteReport(len(cards), len(modules), len(packs), size, tuple(sorted(functions)), problems, tuple(unused))


def _read_objects(
    store: Stores, items: Iterable[RemoteObject], decode: Callable[[bytes], _T], problems: dict[str, str]
) -> Iterator[tuple[RemoteObject, _T]]:
    """Yield the objects that still exist, decoded. Record objects that cannot be decoded in `problems`, by key.

    Raise `StorageError` if the store or the helper does not answer.
    """
    for item in items:
        data = _ask_store(store, "get", item.key)
        try:
            decoded = decode(data) if data is not None else None
        except FormatError as error:
            problems[item.key] = str(error)
            continue
        if decoded is not None:
            yield item, decoded


def collect_garbage(
    store: Stores, *, older_than: float | None = None, unused_for: float | None = None, grace: float = GRACE, dry_run: bool = False
) -> RemoteGarbage:
    """Remove garbage: cards that do not decode or whose modules are all missing, modules that no card names, damaged packs, leases.

    An object is removed only if this collection and another one at least `grace` seconds earlier, by the store's clock, find it to be
    garbage. Hence the first collection removes nothing.

    Return the objects that were removed, and those that are left for a later collection.

    Args:
        store: the store.
        older_than: also remove any cards and packs that were written longer ago than this, in seconds.
        unused_for: also remove cards and packs that were written longer ago than this, in seconds, and that no host has received
            since; at most 90 days. Uses by hosts that may not write are not known.
        grace: the minimum time between the two collections, in seconds; longer than any upload takes.
        dry_run: remove nothing, and write nothing for the next collection.

    Raises:
        StorageError: the store does not answer.
        ValueError: `unused_for` is negative, NaN or more than 90 days.
    """
    if unused_for is not None and not 0 <= unused_for <= LONGEST_UNUSED:
        raise ValueError(f"unused_for must be from 0 to {LONGEST_UNUSED:.0f} seconds, not {unused_for}: records of use are not kept longer")
    answer = _ask_store(store, "collect", grace, older_than, dry_run, unused_for)
    return RemoteGarbage(*[tuple([RemoteObject(*row) for row in rows]) for rows in answer])


def _list_objects(store: Stores, kind: str) -> tuple[RemoteObject, ...]:
    """Return the objects of a kind (`shelves.py`), each once, as stores may list them twice. See `_ask_store` for the exception."""
    return tuple({key: RemoteObject(key, *state) for key, *state in _ask_store(store, "list", f"{LAYOUT}/{kind}/")}.values())


def _ask_store(store: Stores, *message: Any) -> Any:
    """Send a question about the store to its helper and return the answer. Raise `StorageError` if the store or helper does not answer."""
    answer = _ask_helper(store, *message)
    if isinstance(answer, str):
        raise StorageError(f"a request to the remote store {store.shown} failed: {answer}; `compcache remote status` shows its state")
    return answer


def _ask_helper(store: Stores, *message: Any) -> Any:
    """Send a question to the helper, and return its answer. Raise `StorageError` if the helper does not answer."""
    try:
        question = ask(store, *message)
        if question.wait(_PATIENCE):
            return question.answer
        problem = question.problem or f"its helper process did not answer within {_PATIENCE:.0f} s"
    except OSError as error:
        reraise_interrupt(error)
        problem = str(error)
    raise StorageError(f"the remote store {store.shown} cannot be used: {problem}; `compcache remote status` shows its state")
