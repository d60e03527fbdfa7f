"""Directories in a cache directory that are removed completely: directories of other formats, and unpacked bundles."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from compcache.directory.places import BUNDLES, PLACES
from compcache.interrupts import reraise_interrupt, suppress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.store import Store

__all__ = ["files_below", "other_formats", "remove_directory", "remove_path", "unused_bundles"]

_DAYS_UNUSED, _DAYS_REPLACED = 30, 2
#: The directories of this version's formats, and the starts of the names of a format's directories in all versions.
_CURRENT = frozenset([place.directory for place in PLACES])
_STEMS = tuple([f"{stem}-v" for stem, version, _ in [directory.partition("-v") for directory in _CURRENT] if version])


def other_formats(store: Store) -> list[str]:
    """Return the names of the directories below the root that earlier or later versions of the package have written, sorted.

    This version does not use their formats.
    """
    names = store.names_in(store.root)
    return [name for name in names if name not in _CURRENT and name.startswith(_STEMS)]


def unused_bundles(store: Store, now: float) -> list[str]:
    """Return the paths of unpacked bundles that have not been used for a month.

    If another unpacked state of the same bundle was used later, two days without a use suffice. The modification time of the directory
    shows the last use, with a resolution of one day.
    """
    directory = store.directory(BUNDLES)
    try:
        statuses = store.files.statuses(directory)
    except OSError as error:
        reraise_interrupt(error)
        return []
    last_uses = {name: status.st_mtime for name, status in statuses.items() if BUNDLES.includes(name)}
    latest: dict[str, float] = {}
    for name, last_use in last_uses.items():
        bundle = name.partition("-")[0]
        latest[bundle] = max(last_use, latest.get(bundle, last_use))
    unused = []
    for name, last_use in sorted(last_uses.items()):
        days = _DAYS_UNUSED if last_use == latest[name.partition("-")[0]] else _DAYS_REPLACED
        if last_use < now - days * 86400.0:
            unused.append(f"{directory}/{name}")
    return unused


def files_below(store: Store, path: str) -> Iterator[tuple[str, int, float]]:
    """Yield path, size in bytes and modification time of each file below a directory, each directory after its files.

    The size of a directory is 0. A `path` that is a file is yielded alone. Files that are removed meanwhile are left out.
    """
    pending = [(path, False)]
    while pending:
        path, is_listed = pending.pop()
        try:
            status = store.files.lstat(path)
        except OSError as error:
            reraise_interrupt(error)
            continue
        if stat.S_ISDIR(status.st_mode) and not is_listed:
            pending.append((path, True))
            pending += [(f"{path}/{name}", False) for name in store.names_in(path)]
        else:
            yield path, 0 if is_listed else status.st_size, status.st_mtime


def remove_directory(store: Store, path: str) -> None:
    """Remove a file, or a directory with its content. Files that cannot be removed are skipped."""
    for file_path, _, _ in list(files_below(store, path)):
        remove_path(store, file_path)


def remove_path(store: Store, path: str) -> bool:
    """Remove a file or an empty directory. Return False if it cannot be removed."""
    with suppress(OSError):
        try:
            store.files.unlink(path)
        except (IsADirectoryError, PermissionError) as error:  # systems differ in the error for a directory
            reraise_interrupt(error)
            store.files.rmdir(path)
        return True
    return False
