"""Directories in a cache directory that are removed as a whole: those of other formats, and unpacked bundles."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from compcache.directory.places import BUNDLES, FORMER_DIRECTORIES, PLACES
from compcache.files import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.store import Store

__all__ = ["files_below", "other_formats", "remove_directory", "remove_path", "unused_bundles"]

_DAYS_UNUSED, _DAYS_REPLACED = 30, 2
_CURRENT = frozenset([place.directory for place in PLACES])
_STEMS = tuple([f"{stem}-v" for stem, version, _ in [directory.partition("-v") for directory in _CURRENT] if version])


def other_formats(store: Store) -> list[str]:
    """Return the names of the directories below the root whose formats this version does not use, sorted.

    Earlier and later versions of the package have written them; this one leaves them alone.
    """
    names = store.names_in(store.root)
    return [name for name in names if name not in _CURRENT and name.startswith((*_STEMS, *FORMER_DIRECTORIES))]


def unused_bundles(store: Store, now: float) -> list[str]:
    """Return the directories of unpacked bundles that were unused for a month, or for two days if the bundle has a later state.

    A user of one sets its modification time, once a day.
    """
    directory = store.directory(BUNDLES)
    try:
        statuses = store.files.statuses(directory)
    except OSError as error:
        reraise_interrupt(error)
        return []
    used = {name: status.st_mtime for name, status in statuses.items() if BUNDLES.includes(name)}
    latest: dict[str, float] = {}
    for name, when in used.items():
        bundle = name.partition("-")[0]
        latest[bundle] = max(when, latest.get(bundle, when))
    found = []
    for name, when in sorted(used.items()):
        days = _DAYS_UNUSED if when == latest[name.partition("-")[0]] else _DAYS_REPLACED
        if when < now - days * 86400.0:
            found.append(f"{directory}/{name}")
    return found


def files_below(store: Store, path: str) -> Iterator[tuple[str, int, float]]:
    """Yield the files below a directory, then the directory, as (path, size, modification time)."""
    waiting = [(path, False)]
    while waiting:
        path, listed = waiting.pop()
        try:
            status = store.files.lstat(path)
        except OSError as error:
            reraise_interrupt(error)
            continue
        if stat.S_ISDIR(status.st_mode) and not listed:
            waiting.append((path, True))
            waiting += [(f"{path}/{name}", False) for name in store.names_in(path)]
        else:
            yield path, 0 if listed else status.st_size, status.st_mtime


def remove_directory(store: Store, path: str) -> None:
    """Remove a directory or a file, with its content, as far as possible."""
    for below, _, _ in list(files_below(store, path)):
        remove_path(store, below)


def remove_path(store: Store, path: str) -> bool:
    """Remove a file or an empty directory; return whether that was possible."""
    try:
        try:
            store.files.unlink(path)
        except (IsADirectoryError, PermissionError) as error:
            reraise_interrupt(error)
            store.files.rmdir(path)
    except OSError as error:
        reraise_interrupt(error)
        return False
    return True
