"""Upkeep of a remote store, for whoever operates it: what is in it, what leads nowhere, what may go."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.errors import FormatError, StorageError
from compcache.files import reraise_interrupt
from compcache.remote.card import decode_card, decode_pack
from compcache.remote.connection import ask
from compcache.remote.shelves import LAYOUT, module_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.remote.address import RemoteSettings

__all__ = ["RemoteObject", "RemoteReport", "collect_garbage", "status", "verify"]

_PATIENCE = 600.0
_BATCH = 256
#: Modules are uploaded before their cards: a younger one without a card may be about to get it.
_SETTLED = 86400.0


class RemoteObject(NamedTuple):
    """An object of a remote store: its key, its size in bytes, when it was written (seconds since the epoch; 0: not known)."""

    key: str
    size: int
    modified: float


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


def status(settings: RemoteSettings) -> dict[str, Any]:
    """What the helper process of this store counted, and how the store answers.

    Raises:
        StorageError: the helper does not answer.
    """
    answer: dict[str, Any] = _asked(settings, "status")
    return answer


def verify(settings: RemoteSettings) -> RemoteReport:
    """Read every card: does it decode, and is its module there?

    Raises:
        StorageError: the store cannot be listed, or does not answer.
    """
    modules = {item.key: item for item in _listed(settings, "m")}
    cards, packs = _listed(settings, "f"), _listed(settings, "p")
    problems: dict[str, str] = {}
    functions: dict[str, None] = {}
    unused = dict.fromkeys(modules)
    for item in cards:
        try:
            data = _asked(settings, "get", item.key)
            if not isinstance(data, bytes):
                raise FormatError(data or "the card is gone")
            card = decode_card(data)
        except FormatError as error:
            problems[item.key] = str(error)
            continue
        functions[card.name] = None
        own = module_key(card.module_id)
        if not card.module and own not in modules:
            problems[item.key] = f"the module of function {card.name!r} is missing"
        unused.pop(own, None)
    for item in packs:
        with suppress(FormatError):
            data = _asked(settings, "get", item.key)
            if isinstance(data, bytes):
                decode_pack(data)
                continue
        problems[item.key] = "it is not an intact pack"
    size = sum(item.size for item in (*cards, *modules.values(), *packs))
    return RemoteReport(len(cards), len(modules), len(packs), size, tuple(sorted(functions)), problems, tuple(unused))


def collect_garbage(settings: RemoteSettings, *, older_than: float | None = None, dry_run: bool = False) -> tuple[RemoteObject, ...]:
    """Remove cards that do not decode or lead nowhere, modules that no card names, and with `older_than` (seconds) old objects.

    Returns:
        What was removed, or with `dry_run` would be.

    Raises:
        StorageError: the store cannot be listed, or does not answer.
    """
    now = time.time()
    report = verify(settings)
    objects = {item.key: item for kind in "fmp" for item in _listed(settings, kind)}
    doomed = dict.fromkeys(report.problems)
    for key in report.unused:
        if now - objects[key].modified > _SETTLED:
            doomed[key] = None
    if older_than is not None:
        old = [item for item in objects.values() if item.modified and now - item.modified > older_than]
        doomed.update(dict.fromkeys(item.key for item in sorted(old)))  # cards sort before modules
    keys = [key for key in doomed if key in objects]
    for at in range(0, 0 if dry_run else len(keys), _BATCH):
        problem = _asked(settings, "delete", keys[at : at + _BATCH])
        if problem:
            raise StorageError(f"the remote store {settings.shown} does not remove objects: {problem}")
    return tuple(objects[key] for key in keys)


def _listed(settings: RemoteSettings, kind: str) -> tuple[RemoteObject, ...]:
    answer = _asked(settings, "list", f"{LAYOUT}/{kind}/")
    if isinstance(answer, str):
        raise StorageError(f"the remote store {settings.shown} cannot be listed: {answer}")
    return tuple(_objects(answer))


def _objects(rows: list[list[Any]]) -> Iterator[RemoteObject]:
    for key, size, modified in rows:
        if not key.rpartition("/")[2].startswith("."):
            yield RemoteObject(key, size, modified)


def _asked(settings: RemoteSettings, *message: Any) -> Any:
    try:
        question = ask(settings, *message)
        if question.wait(_PATIENCE):
            return question.answer
        problem = question.problem or "it does not answer"
    except OSError as error:
        reraise_interrupt(error)
        problem = str(error)
    raise StorageError(f"the remote store {settings.shown} cannot be used: {problem}")
