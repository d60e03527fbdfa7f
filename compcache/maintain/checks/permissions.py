"""Check that other users cannot write to the directories from which code is loaded."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from compcache.directory.places import MODULES
from compcache.files import DIRECTORY_MODE
from compcache.interrupts import suppress
from compcache.maintain.checks.state import DIRECTORIES

if TYPE_CHECKING:
    from compcache.maintain.checks.state import CheckState

__all__ = ["check_permissions"]


def check_permissions(state: CheckState) -> tuple[int, dict[str, int]]:
    """Report directories of the cache in which other users could replace files. A repair of the mode removes all access of other users.

    Return the number of directories that were checked, and no counts. Missing directories are skipped.
    """
    store = state.store
    checked = 0
    paths = [store.root, *[f"{store.root}/{name}" for name in DIRECTORIES]]
    base = store.directory(MODULES)
    paths += [f"{base}/{fan}" for fan in store.names_in(base)]
    for path in paths:
        with suppress(OSError):
            status = store.files.lstat(path)
            checked += 1
            _check_directory(state, path, status)
    return checked, {}


def _check_directory(state: CheckState, path: str, status: os.stat_result) -> None:
    """Report a directory in which other users could replace files. A repair of the mode removes all access of other users."""
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        state.report("permissions", path, f"{path} is a symbolic link; replace the link with a directory")
    elif status.st_uid not in (os.getuid(), 0):
        state.report("permissions", path, f"{path} belongs to user {status.st_uid}, whose code would run as yours; change the owner")
    elif mode & 0o022:
        is_repaired = state.try_repair(state.store.files.chmod, path, DIRECTORY_MODE)
        if is_repaired:
            message = f"other users could write to {path} (mode {mode:04o}); the mode was changed to {DIRECTORY_MODE:04o}"
        else:
            message = f"other users can write to {path} (mode {mode:04o}); run 'chmod go-w {path}', or run check with repair"
        state.report("permissions", path, message, repaired=is_repaired)
