"""Upkeep of a remote store, for its operators: its content, what leads nowhere, what may be removed.

All but `status` is about a list of one store.
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

#: A collection asks a question for each object. That the helper ends is noticed at once.
_PATIENCE = 86400.0
#: The time between the two collections that find something to be of no use, in seconds.
GRACE = 86400.0
#: For so long notes of uses are kept, in seconds.
LONGEST_UNUSED = 90 * 86400.0


class RemoteObject(NamedTuple):
    """An object of a remote store: its key, its size in bytes, when it was written (seconds since the epoch; 0: not known)."""

    key: str
    size: int
    modified: float


class RemoteGarbage(NamedTuple):
    """What a collection of garbage `removed`, and what it found to be of no use and `left` for a later one."""

    removed: tuple[RemoteObject, ...]
    left: tuple[RemoteObject, ...]


class RemoteReport(NamedTuple):
    """What a remote store holds: cards, modules of their own, packs, their size in bytes, functions; `problems` by
    key, `unused` modules.
    """

    cards: int
    modules: int
    packs: int
    size: int
    functions: tuple[str, ...]
    problems: dict[str, str]
    unused: tuple[str, ...]


def status(stores: Stores) -> list[dict[str, Any]]:
    """For each store its `url`, what the helper process has counted, and in `last_error` why it does not answer now, or takes no uploads.

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
    """Read every card: does it decode, and is its module there?

    Raises:
        StorageError: the store cannot be listed, or a question was not answered: that says nothing of what is there.
    """
    modules = {item.key: item for item in _listed(store, "m")}
    cards, packs = _listed(store, "f"), _listed(store, "p")
    problems: dict[str, str] = {}
    functions: dict[str, None] = {}
    unused = dict.fromkeys(modules)
    for item in cards:
        data = _answered(store, "get", item.key)
        if data is None:
            continue  # removed since
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
            problems[item.key] = "it is not an intact pack"
    size = sum(item.size for item in (*cards, *modules.values(), *packs))
    return RemoteReport(len(cards), len(modules), len(packs), size, tuple(sorted(functions)), problems, tuple(unused))


def collect_garbage(
    store: Stores, *, older_than: float | None = None, unused_for: float | None = None, grace: float = GRACE, dry_run: bool = False
) -> RemoteGarbage:
    """Remove what is of no use: cards that do not decode or lead nowhere, modules that no card leads to, packs that do not decode.

    An object is removed if a collection found it to be of no use `grace` seconds ago, by the store's clock, and this one does too. So the
    first collection removes nothing.

    Args:
        store: the store.
        older_than: also remove cards and packs that were written longer ago than so many seconds, whatever they are.
        unused_for: also remove cards and packs that were written longer ago than so many seconds, and that no host which may write notes of
            its uses has been given since; 90 days at most.
        grace: how long ago, in seconds; longer than any upload takes.
        dry_run: remove nothing, and leave nothing for the next collection.

    Raises:
        StorageError: the store did not answer a question. Nothing was removed because of that.
        ValueError: `unused_for` is longer than notes of uses are kept.
    """
    if unused_for is not None and unused_for > LONGEST_UNUSED:
        raise ValueError(f"unused_for is {unused_for:g} s: notes of uses are kept for {LONGEST_UNUSED:g} s (90 days)")
    answer = _answered(store, "collect", grace, older_than, dry_run, unused_for)
    return RemoteGarbage(*[tuple(_objects(rows)) for rows in answer])


def _listed(store: Stores, kind: str) -> tuple[RemoteObject, ...]:
    return tuple({item.key: item for item in _objects(_answered(store, "list", f"{LAYOUT}/{kind}/"))}.values())


def _answered(store: Stores, *message: Any) -> Any:
    """What the store says; that it does not answer is an error, and not an answer."""
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
