"""Parts of an index that is being rebuilt: index segments for some of the module directories, which look-ups do not use.

If there are many modules, two processes read the directories. The process that rebuilds the index begins with the first directory. It
starts another process, which begins with the last directory (`compcache.publish.index_rebuild.read_from_the_end`). The parts of each
process tell the other which directories were read. If both processes read a directory, two parts with the same content cover it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Self

from compcache.directory.places import MODULES, PARTS, VOLUMES
from compcache.errors import FormatError
from compcache.files import writer
from compcache.formats.index import Segment
from compcache.interrupts import suppress
from compcache.processes.detached import has_ended
from compcache.publish.apart import can_use_subprocess, start_subprocess

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache.store import Store

__all__ = ["MARK", "OtherReader", "fans_of", "is_current", "known_parts", "part_name", "start_time_of"]

#: Exists while a rebuild is unfinished.
MARK = PARTS.file_name("begun")
_PART_NAME = re.compile(r"[0-9a-f]{2}-[0-9a-f]{2}-[0-9a-f]{16}" + re.escape(PARTS.suffix))
#: File timestamps may lag behind the system's clock by up to this many nanoseconds.
_TICK = 20_000_000
#: With this many modules or more, a second process saves more time than its start takes.
_MIN_MODULES = 1 << 14
#: For how many seconds the first process waits for the second, which may be finishing one directory.
_MAX_WAIT = 5.0


def part_name(fans: Iterable[str], start_time: int) -> str:
    """Return the name of a part that covers these directories and all directories between them.

    `start_time` is the time when the first directory was read, in nanoseconds since the epoch.
    """
    return PARTS.file_name(f"{min(fans)}-{max(fans)}-{start_time:016x}")


def known_parts(store: Store) -> list[str]:
    """Return the names of the parts of unfinished rebuilds, the latest first."""
    return sorted([name for name in store.names(PARTS) if _PART_NAME.fullmatch(name)], key=start_time_of, reverse=True)


def start_time_of(part: str) -> int:
    """Return the time when the reading of a part began, in nanoseconds since the epoch."""
    return int(part[6:22], 16)  # after the first and the last directory: 00-ff-


def fans_of(part: str) -> set[str]:
    """Return the names of the directories that a part covers."""
    return {f"{number:02x}" for number in range(int(part[:2], 16), int(part[3:5], 16) + 1)}


def is_current(store: Store, part: str) -> bool:
    """Return whether a part is trusted and readable, and neither its directories nor the volumes have changed since their reading began.

    A part that other users can write to is not trusted. If the cache has a key, no part is trusted, because directories that a part covers
    are not read again. The result is also False if a directory cannot be read.
    """
    with suppress(OSError):
        if not _is_trusted(store, part):
            return False
        present = set(store.present_names(store.directory(MODULES))).intersection(fans_of(part))
        started = start_time_of(part) - _TICK
        if store.volumes.has_volumes() and store.files.stat(store.directory(VOLUMES)).st_mtime_ns >= started:
            return False
        return all(store.files.stat(store.path(MODULES, fan)).st_mtime_ns < started for fan in present)
    return False


def _is_trusted(store: Store, part: str) -> bool:
    """Return whether a part of the index is intact and belongs to this user.

    The result is False if the store has a key, or if other users can write to the directory.
    """
    if store.stamp_key or store.exposed:
        return False
    with suppress(FormatError, OSError):
        segment = Segment(store.index, part)
        is_own = writer(store.files.stat(store.path(PARTS, part))) == os.geteuid()
        for table in (segment.functions, segment.modules):
            table.entries_of_range(0, 0)  # verifies all buckets
        is_intact = segment.requirements is not None  # reading them verifies their checksum
        return is_own and is_intact
    return False


class OtherReader:
    """A context manager for the second process that reads directories.

    The process is started only if it can use the store with the same options, there are many modules, and there are several processors.

    Args:
        store: the directory.
        fans: the names of the module directories to read.
        former: the names of the existing parts.
    """

    def __init__(self, store: Store, fans: Sequence[str], former: set[str]) -> None:
        self._store = store
        self._reported = set(former)
        self._process = 0
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        is_equivalent = can_use_subprocess(store) and store.verify and not store.mac_key
        if fans and processors > 1 and is_equivalent and sum(1 for _ in store.module_ids(fans[0])) * len(fans) >= _MIN_MODULES:
            with suppress(OSError):
                self._process = start_subprocess(store, "compcache.publish.index_rebuild", "read_from_the_end")

    def take_new_parts(self, own_parts: Iterable[str]) -> dict[str, set[str]]:
        """Return the trusted parts that the other process has written since the last call, each with its directories.

        The parts in `own_parts` are from this process. The result is empty without another process.
        """
        if not self._process:
            return {}
        new_parts = [name for name in known_parts(self._store) if name not in self._reported and name not in own_parts]
        self._reported.update(new_parts)
        return {name: fans_of(name) for name in new_parts if _is_trusted(self._store, name)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait until the process has ended and writes no more parts. Kill the process after `_MAX_WAIT` seconds."""
        if not self._process:
            return
        deadline = time.monotonic() + _MAX_WAIT
        while not has_ended(self._process):
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)
            time.sleep(0.01)
