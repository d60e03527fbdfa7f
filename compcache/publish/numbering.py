"""Numbers additions (miss path). Unless it is already the newest, an addition gets a number greater than all others in the directory.

A module that is added again, and is no longer the newest for its names, becomes the newest addition. Its file is then replaced by a file
that differs only in the number. Modules with content names need no number.

The greatest number is also the name of a file, which is written before a module with that number becomes visible. So no number is lost if
the index is deleted. The file contains the module_ids of the addition. If the addition ends before it is indexed, the next addition
indexes its modules first. Otherwise they would become visible later, and be newer than what was added meanwhile. The file may be removed
together with the last module.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE
from compcache.directory.places import NUMBERS
from compcache.errors import StorageError
from compcache.files import FILE_MODE
from compcache.formats.entry import PACK_FLAG
from compcache.formats.graph import decode_notes
from compcache.formats.order import is_numbered
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.index_merge import greatest_number
from compcache.publish.root import make_place
from compcache.store import Store, is_ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from compcache.formats.built_module import BuiltModule

    #: The realizations of names, each as (module_id, record offset), in the order of `Store.find`.
    LookUps = Mapping[str, Sequence[tuple[bytes, int]]]

__all__ = ["assign_numbers", "first_existing", "interrupted_additions", "note_number", "noted_numbers"]

#: More additions than an index that is being rebuilt can lack.
_UNSEEN = 1 << 28
_DIGITS = 12  # hexadecimal digits of the greatest possible number
#: The modules of one addition, by module_id.
Group = dict[bytes, "BuiltModule"]
#: Noted numbers, each with the name of its file, the greatest first.
Noted = list[tuple[int, str]]


def assign_numbers(store: Store, groups: Sequence[Group], noted: Noted, look_ups: LookUps | None = None) -> list[int | None]:
    """Return the new number of each addition, or None for an addition whose modules keep their numbers.

    `look_ups` has look-ups that were made since the index was refreshed; None refreshes it (`renew_index`). Missing names are looked up.

    Raise `StorageError` if the index cannot be listed: it may be missing, and is then rebuilt before anything is added to it.
    """
    if look_ups is None or not (store.index.segments or store.index.checked):
        Store.renew_index(store)  # not the indexes of its layers; without its own index no number would be known
        look_ups = {}
    if store.index.problem and not store.index.segments:
        raise StorageError(f"the index cannot be listed: {store.index.problem}", path=store.index.directory)
    indexed = greatest_number(store.index)
    recorded = _greatest_recorded(store, noted, indexed)
    if recorded > indexed and _index_interrupted(store, noted):
        look_ups = {}
    following = recorded + 1 + (_UNSEEN if store.index.unfinished else 0)
    numbers: list[int | None] = []
    renumbered: set[str] = set()  # names in this call; the index does not have the new numbers yet
    for group in groups:
        names = _plain_names(group)
        has_number = any(is_numbered(decode_notes(module.sections.notes)) for module in group.values())
        if has_number or (names.isdisjoint(renumbered) and _is_newest(store, group, names, look_ups)):
            numbers.append(None)
        else:
            numbers.append(following)
            following += 1
            renumbered |= names
    return numbers


def interrupted_additions(store: Store, noted: Noted) -> list[set[bytes]]:
    """Return the module_ids of each addition that the index lacks. The addition was interrupted, or is about to be indexed."""
    indexed = greatest_number(store.index)
    contents = [store.read_file(NUMBERS, name) or b"" for number, name in noted if number > indexed]
    return [{content[at : at + DIGEST_SIZE] for at in range(0, len(content), DIGEST_SIZE)} for content in contents]


def _index_interrupted(store: Store, noted: Noted) -> bool:
    """Index the modules of interrupted additions. Return whether there were any.

    An addition that lacks a module is left out: it is being written, was not written completely, or was removed.

    Raise `StorageError` if a module cannot be read at the moment, or the index cannot be written.
    """
    from compcache.publish.index_rebuild import index_modules

    whole = [addition for addition in interrupted_additions(store, noted) if all(map(store.exists, addition))]
    try:
        return bool(index_modules(store, set[bytes]().union(*whole)))
    except OSError as error:
        reraise_interrupt(error)
        message = f"cannot index an interrupted addition in {store.root}: {error.strerror or error}"
        raise StorageError(message, path=store.index.directory, errno=error.errno) from error


def note_number(store: Store, number: int, noted: Noted, module_ids: Iterable[bytes]) -> None:
    """Record a number before the modules of an addition with this number become visible.

    Do nothing for 0, or if `noted` has this or a greater number that this user has recorded.
    Ignore `OSError`, because the index has the number too.
    """
    if not number or _greatest_recorded(store, noted, number - 1) >= number:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    path = store.path(NUMBERS, NUMBERS.file_name(f"{number:0{_DIGITS}x}"))
    with suppress(OSError):
        try:
            opened = store.files.open_owned(path, flags, FILE_MODE)
        except FileNotFoundError as error:
            reraise_interrupt(error)
            make_place(store, NUMBERS)
            opened = store.files.open_owned(path, flags, FILE_MODE)
        with suppress(OSError):  # the disk is full, and what is superseded takes space, too
            store.files.write(opened.number, b"".join(module_ids))
        # A process that lists the directory at this moment sees at least the last number. The number before it is not needed any more.
        for superseded in [name for other, name in noted if other < number][1:]:
            store.files.unlink(store.path(NUMBERS, superseded))


def _greatest_recorded(store: Store, noted: Noted, least: int) -> int:
    """Return the greatest number that this user has recorded, or `least` if that is greater."""
    for number, name in noted:
        if number <= least:
            break
        try:
            if not store.is_foreign(store.files.stat(store.path(NUMBERS, name))):
                return number
        except FileNotFoundError as error:
            reraise_interrupt(error)
            return _greatest_recorded(store, noted_numbers(store), least)  # another process has replaced it by a greater number
        except OSError as error:
            reraise_interrupt(error)
    return least


def noted_numbers(store: Store) -> Noted:
    """Return the recorded numbers, each with its file name, the greatest first."""
    candidates = [(name[:_DIGITS], name) for name in store.names_in(store.directory(NUMBERS))]
    notes = [(digits, name) for digits, name in candidates if name == NUMBERS.file_name(digits) and not digits.strip("0123456789abcdef")]
    return sorted([(int(digits, 16), name) for digits, name in notes if len(digits) == _DIGITS], reverse=True)


def _plain_names(group: Group) -> set[str]:
    """Return the plain names of the functions and entries in these modules. Packs are left out."""
    return {name for module in group.values() if module.flags != PACK_FLAG for name, *_ in module.indexed if is_ordered(name)}


def _is_newest(store: Store, group: Group, names: set[str], look_ups: LookUps) -> bool:
    """Return whether the modules exist and are the newest for all `names`. The result is True if there are no names."""
    newest = (first_existing(store, look_ups[name] if name in look_ups else store.find_here(name)) for name in names)
    return not names or (all(module_id in group for module_id in newest) and all(map(store.exists, group)))


def first_existing(store: Store, realizations: Iterable[tuple[bytes, int]]) -> bytes | None:
    """Return the module_id of the first realization whose module exists, or None. The index may still list removed modules."""
    return next((module_id for module_id, _ in realizations if store.exists(module_id)), None)
