"""Writes the closure that a load has planned, for the loads of other processes (see `compcache.hit.closures.planned`).

Only closures of several modules whose load reads nothing else: no global variables to decode. A closure is written by who had no module
of it loaded before: only such a load knows all
imports. Where everything in it has a name of content and was compiled for exactly this host, and no variable is a weak definition, no
module that is added later can be preferred; where not, the closure holds for as long as the index does not change.
"""

from __future__ import annotations

from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.formats.index import Stamp
from compcache.formats.manifest import LINK_ONLY, NO_SLOT, WEAK
from compcache.formats.records import decode_module
from compcache.hit.closures.planned import BINDING, FUNCTION, HEAD, MAGIC, NO_STATE, REQUIREMENT_PARTS, modules_of, seal
from compcache.hit.plan import providers_first
from compcache.interrupts import suppress
from compcache.store import CLOSURES, ModuleFile, is_ordered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from compcache.hit.loader import Choice, Source
    from compcache.store import Store

__all__ = ["remember_closure", "remove_closures"]

#: How many modules a closure has at most, and how many files a directory keeps.
_MOST_MODULES = 512
_MOST_KEPT = 512


def remember_closure(store: Store, root: Choice, offset: int, chosen: dict[str, Choice]) -> None:
    """Write the closure that was loaded; a failure is harmless."""
    by_module: dict[bytes, list[Choice]] = {root.module_id: []}
    for choice in chosen.values():
        by_module.setdefault(choice.module_id, []).append(choice)
    if len(by_module) > _MOST_MODULES or not all(map(_is_plain, chosen.values())):
        return
    if store.readonly or not store.has_closures():
        return
    try:
        content = _encode(store, list(by_module.values()), providers_first(chosen))
        if content is not None:
            name = store.closure_name(root.module_id, offset)
            from compcache.publish.atomic_file import keep_file

            keep_file(store, CLOSURES, name, MAGIC + seal(content, name, store.stamp_key) + content, _MOST_KEPT)
    except (CompcacheError, OSError, UnicodeError) as error:
        reraise_interrupt(error)


def _is_plain(choice: Choice) -> bool:
    return choice.source.is_whole and not choice.globals


def _requirements(store: Store, choice: Choice) -> tuple[str, str]:
    """What a module requires, and what its function does."""
    header = decode_module(choice.source.read_record(store, 0))
    return header.requirement(), header.requirement(header.features_of(choice.record))


def _encode(store: Store, groups: list[list[Choice]], in_order: list[Choice]) -> bytes | None:
    """The content of the file; None where a module cannot be described any more, or a name has a NUL.

    Constructors that wait run in the order of the choices in `in_order`.
    """
    entries = [_describe(store, group[0].source) for group in groups]
    numbers = {group[0].module_id: number for number, group in enumerate(groups)}
    by_name = {choice.record.name: choice for group in groups for choice in group}
    natives = {name: None for group in groups for name in (group[0].source.listed.natives if group[0].source.listed else ())}
    functions = [choice for group in groups for number, choice in enumerate(group) if number == 0 or _is_shared(choice)]
    choices = {(choice.source.file.target_id, choice.record.target_id): choice for group in groups for choice in group}
    requirements = list(dict.fromkeys([text for choice in choices.values() for text in _requirements(store, choice)]))
    needed = [part for text in requirements for part in text.split("\0")]
    texts = [*needed, *natives, *(text for choice in functions for text in (choice.record.name, choice.record.signature))]
    rows, places = [], []
    for number, group in enumerate(groups):
        for key, (name, where) in _imports(group).items():
            provider = by_name[name]
            slot = key if isinstance(key, int) else NO_SLOT
            rows.append(BINDING.pack(number, slot, numbers[provider.module_id], provider.record.function, len(where)))
            places.append(where)
            if slot == NO_SLOT:
                texts.append(str(key))
    if None in entries or len(needed) != REQUIREMENT_PARTS * len(requirements) or any("\0" in text for text in texts):
        return None
    text = "\0".join(texts).encode("utf-8", "surrogatepass")
    may_give_way = any(choice.record.signature.startswith(WEAK) for choice in by_name.values())
    all_best = all(map(store.processor().is_native, requirements)) and not may_give_way and not any(map(is_ordered, by_name))
    starts = {numbers[choice.module_id]: choice.start for choice in in_order if choice.start is not None}
    counts = len(groups), len(functions), len(starts), len(rows), len(requirements), len(natives), len(text)
    head = HEAD.pack(NO_STATE if all_best else store.index.state(), *counts)
    positions = [FUNCTION.pack(numbers[choice.module_id], choice.record.function) for choice in functions]
    positions += [FUNCTION.pack(*start) for start in starts.items()]
    return b"".join([head, *filter(None, entries), *positions, *rows, text, *places])


def _is_shared(choice: Choice) -> bool:
    return choice.record.signature.startswith(LINK_ONLY)


def _imports(group: list[Choice]) -> dict[int | str, tuple[str, bytes]]:
    found: dict[int | str, tuple[str, bytes]] = {}
    for choice in group:
        for key, name, places, _ in choice.imports:
            found.setdefault(key, (name, places))
    return found


def _describe(store: Store, source: Source) -> bytes | None:
    """The index entry that vouches for a module's file as it is now; None where the index does not."""
    suspended = source.suspended
    file = source.open_file(store)
    status = store.files.fstat(file.descriptor)
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
