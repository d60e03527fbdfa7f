"""Writes the closure that a load has planned, for the loads of other processes (see `compcache.hit.closures.planned`).

Only closures of several modules whose load reads nothing else: no global variables to decode. A closure is written by who had no module
of it loaded before: only such a load knows all
imports. Where everything in it has a name of content and was compiled for exactly this host, and no variable is a weak definition, no
module that is added later can be preferred; where not, the closure holds for as long as the index does not change.
"""

from __future__ import annotations

from compcache.directory.module_file import ModuleFile
from compcache.directory.places import CLOSURES
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.index import Stamp
from compcache.formats.manifest import WEAK
from compcache.formats.records import decode_module
from compcache.hit.closures import HEAD, MAGIC, seal
from compcache.hit.closures.planned import FUNCTION, NO_STATE, REQUIREMENT_PARTS, modules_of
from compcache.interrupts import suppress
from compcache.store import is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from compcache.hit.loader import Choice, Source
    from compcache.store import Store

__all__ = ["remember_closure", "remove_closures"]

#: The most modules of a closure, and the most files that a directory keeps.
_MOST_MODULES = 512
_MOST_KEPT = 512


def remember_closure(store: Store, root: Choice, offset: int, chosen: dict[str, Choice]) -> None:
    """Write the closure that was loaded; a failure is harmless."""
    if store.readonly or store.layers or not store.has_closures():
        return
    try:
        for settled in [settled for choice in chosen.values() for settled in choice.settled]:
            chosen = settled.choices(store, type(root)) | chosen
        by_module: dict[bytes, list[Choice]] = {root.module_id: []}
        for choice in chosen.values():
            by_module.setdefault(choice.module_id, []).append(choice)
        if len(by_module) > _MOST_MODULES or not all(map(_is_plain, chosen.values())):
            return
        content = _encode(store, root, list(by_module.values()))
        if content is not None:
            name = store.closure_name(root.module_id, offset)
            from compcache.publish.atomic_file import keep_file

            keep_file(store, CLOSURES, name, MAGIC + seal(content, name, store.stamp_key) + content, _MOST_KEPT)
    except (CompcacheError, OSError, UnicodeError) as error:
        reraise_interrupt(error)


def _is_plain(choice: Choice) -> bool:
    """Return whether its module was not loaded before, and it has its own record (stubs have none) and no variables to decode."""
    return choice.source.is_whole and not choice.globals and choice.offset > 0


def _requirements(store: Store, choice: Choice) -> tuple[str, str]:
    """Return the requirements of a module and its function."""
    header = decode_module(choice.source.read_record(store, 0))
    return header.requirement(), header.requirement(header.features_of(choice.record))


def _encode(store: Store, root: Choice, groups: list[list[Choice]]) -> bytes | None:
    """Return the content of the file; None if a module cannot be described any more."""
    entries = [_describe(store, group[0].source) for group in groups]
    choices = {(choice.source.file.target_id, choice.record.target_id): choice for group in groups for choice in group}
    requirements = dict.fromkeys([text for choice in choices.values() for text in _requirements(store, choice)])
    if None in entries or any(text.count("\0") != REQUIREMENT_PARTS - 1 for text in requirements):
        return None
    records = [choice.record for group in groups for choice in group]
    may_change = any(record.signature.startswith(WEAK) or is_ordered(record.name) for record in records)
    all_best = all(map(store.processor().is_native, requirements)) and not may_change
    rows = [FUNCTION.pack(number, choice.offset) for number, group in enumerate(groups) for choice in group if choice is not root]
    text = "\0".join(requirements).encode("utf-8", "surrogatepass")
    head = HEAD.pack(NO_STATE if all_best else store.state(), len(groups), len(rows), len(text))
    return b"".join([head, *filter(None, entries), *rows, text])


def _describe(store: Store, source: Source) -> bytes | None:
    """Return the index entry that vouches for a module's present file; None if there is none."""
    suspended = source.suspended
    file = source.open_file(store)
    status = file.status()
    known = ModuleFile(store.files, file.path, file.module_id)
    recognized = not file.copied and store._recognize(known, status)
    if suspended:
        source.suspend()
    return store.entry_of(known, Stamp.of(status)).encode() if recognized else None


def remove_closures(store: Store, gone: Container[bytes]) -> None:
    """Remove the planned closures of modules that are gone; a failure is harmless."""
    for name in store.names(CLOSURES):
        data = store.read_file(CLOSURES, name)
        if data is None or any(module_id in gone for module_id in modules_of(data)):
            with suppress(OSError):
                store.files.unlink(store.path(CLOSURES, name))
