"""Parts of an index that is being rebuilt: what directories of modules hold, in segments that no look-up sees.

Two processes read the directories if there are many modules: the one that rebuilds the index from the first one on, and one that it starts
from the last one on (`compcache.publish.index_rebuild.read_from_the_end`). Each sees by the other's parts what has been read. A directory
that both read is in two parts, which say the same.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Self

from compcache.directory.places import MODULES, PARTS, VOLUMES
from compcache.errors import FormatError
from compcache.files import reraise_interrupt, writer
from compcache.formats.index import Segment
from compcache.interrupts import suppress
from compcache.processes.detached import has_ended
from compcache.publish.apart import can_work_apart, start_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache.store import Store

__all__ = ["MARK", "OtherReader", "begun_at", "fans_of", "is_current", "known_parts", "part_name"]

#: Marks a rebuild that has begun and not ended.
MARK = PARTS.file_name("begun")
_PART_NAME = re.compile(r"[0-9a-f]{2}-[0-9a-f]{2}-[0-9a-f]{16}" + re.escape(PARTS.suffix))
#: The clock of files may be slow.
_TICK = 20_000_000
#: A second process pays for its start with so many modules.
_MANY = 1 << 14
#: For how many seconds the second process is waited for when all is read: it reads one directory to its end.
_PATIENCE = 5.0


def part_name(fans: Iterable[str], begun: int) -> str:
    """Return the name of a part of these directories, and of all between them; `begun` is the time in ns when the first one was read."""
    return PARTS.file_name(f"{min(fans)}-{max(fans)}-{begun:016x}")


def known_parts(store: Store) -> list[str]:
    """Return the parts that a rebuild has left, the latest first."""
    return sorted([name for name in store.names(PARTS) if _PART_NAME.fullmatch(name)], key=begun_at, reverse=True)


def begun_at(part: str) -> int:
    """Return the time when a part was begun, in ns."""
    return int(part[6:22], 16)


def fans_of(part: str) -> set[str]:
    """Return the directories that a part has."""
    return {f"{number:02x}" for number in range(int(part[:2], 16), int(part[3:5], 16) + 1)}


def is_current(store: Store, part: str) -> bool:
    """Return whether a part is private to this user, can be read, and nothing was added to its directories since it was begun.

    A part that others can write to, or without a MAC if there is a key, is read again, because it decides which directories are skipped.
    """
    try:
        if not _is_readable(store, part):
            return False
        present = set(store.present_names(store.directory(MODULES))).intersection(fans_of(part))
        started = begun_at(part) - _TICK
        if store.volumes.are_there() and store.files.stat(store.directory(VOLUMES)).st_mtime_ns >= started:
            return False
        return all(store.files.stat(store.path(MODULES, fan)).st_mtime_ns < started for fan in present)
    except OSError as error:
        reraise_interrupt(error)
        return False


def _is_readable(store: Store, part: str) -> bool:
    if store.stamp_key or store.exposed:
        return False
    try:
        segment = Segment(store.index, part)
        own = writer(store.files.stat(store.path(PARTS, part))) == os.geteuid()
        can_be_read = segment.functions.count >= 0 and segment.requirements is not None
    except (FormatError, OSError) as error:
        reraise_interrupt(error)
        return False
    return own and can_be_read


class OtherReader:
    """The second process, as long as this object is entered; none where it would read in another way, or there is little to read.

    Args:
        store: the directory.
        fans: the directories of modules that are to be read.
        former: the parts that are there already.
    """

    def __init__(self, store: Store, fans: Sequence[str], former: set[str]) -> None:
        self._store = store
        self._seen = set(former)
        self._process = 0
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        reads_alike = can_work_apart(store) and store.verify and not store.mac_key
        if fans and processors > 1 and reads_alike and sum(1 for _ in store.module_ids(fans[0])) * len(fans) >= _MANY:
            with suppress(OSError):
                self._process = start_apart(store, "compcache.publish.index_rebuild", "read_from_the_end")

    def parts(self, own: Iterable[str]) -> dict[str, set[str]]:
        """Return the parts that the process has made since this was asked, with their directories; `own` are not its."""
        if not self._process:
            return {}
        new = [name for name in known_parts(self._store) if name not in self._seen and name not in own]
        self._seen.update(new)
        return {name: fans_of(name) for name in new if _is_readable(self._store, name)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the process to end, so that it makes no part any more."""
        if not self._process:
            return
        until = time.monotonic() + _PATIENCE
        while not has_ended(self._process):
            if time.monotonic() > until:
                with suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)
            time.sleep(0.01)
