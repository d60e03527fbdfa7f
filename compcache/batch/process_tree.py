"""The processes that a job has started, and their end: those that left their group and their parent as well (Linux).

A worker adopts what its jobs orphan, so that everything below it can be found in ``/proc`` as long as it lives. Once it
is gone, a mark in the environment tells its descendants. Elsewhere, the process group is all that is known of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MARK", "Process", "adopt_orphans", "descendants", "end_processes", "has_children", "marked"]

#: The environment variable that says which worker a process descends from.
MARK = "COMPCACHE_BATCH_WORKER"
#: How long processes may take to end by themselves when their parent has gone, as those do that clean up after it.
_GRACE = 0.3
_PR_SET_CHILD_SUBREAPER = 36
_ENDED = ("Z", "X")


class Process(NamedTuple):
    """A process, and when it was started: numbers are used again."""

    number: int
    parent: int
    state: str
    started: str


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def has_children() -> bool:
    """Whether this process has children that have not ended."""
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError:
        return False
    numbers = [number for task in tasks for number in _read(f"/proc/self/task/{task}/children").split()]
    found = [_process(number) for number in map(int, numbers)]
    return any(process is not None and process.state not in _ENDED for process in found)


def descendants(numbers: Iterable[int]) -> list[Process]:
    """The processes below these."""
    below: dict[int, list[Process]] = {}
    for process in _all():
        below.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    left = list(numbers)
    while left:
        children = below.pop(left.pop(), [])
        found += children
        left += [child.number for child in children]
    return found


def marked(marks: Iterable[str]) -> list[Process]:
    """The processes of this user whose environment has one of these values of `MARK`."""
    wanted = tuple([f"{MARK}={mark}".encode() for mark in marks])
    found = []
    for process in _all() if wanted else ():
        variables = _read(f"/proc/{process.number}/environ").encode("latin-1").split(b"\0")
        if process.number != os.getpid() and any(variable in wanted for variable in variables):
            found.append(process)
    return found


def end_processes(processes: Iterable[Process]) -> None:
    """End processes: those that do not end by themselves within a moment, by SIGKILL."""
    left = _still_running(processes)
    for process in left:
        with contextlib.suppress(OSError):
            _kill(process)
    _still_running(left)


def _still_running(processes: Iterable[Process]) -> list[Process]:
    """Those that have not ended after a moment."""
    left = _running(processes)
    deadline = time.monotonic() + _GRACE
    while left and time.monotonic() < deadline:
        time.sleep(0.005)
        left = _running(left)
    return left


def _kill(process: Process) -> None:
    """Send SIGKILL to a process, and not to another one that has got its number."""
    descriptor = os.pidfd_open(process.number)
    try:
        if _running([process]):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


def _running(processes: Iterable[Process]) -> list[Process]:
    found = [(process, _process(process.number)) for process in processes]
    return [
        process
        for process, now in found
        if now is not None and now.started == process.started and now.state not in _ENDED
    ]


def _all() -> list[Process]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    found = [_process(int(name)) for name in names if name.isdigit()]
    return [process for process in found if process is not None]


def _process(number: int) -> Process | None:
    """See proc(5): the name of the program, in parentheses, may hold anything."""
    fields = _read(f"/proc/{number}/stat").rpartition(")")[2].split()
    if len(fields) < 20:  # noqa: PLR2004 - the start time is the 22nd field
        return None
    return Process(number, int(fields[1]), fields[0], fields[19])


def _read(path: str) -> str:
    try:
        with open(path, encoding="latin-1") as file:
            return file.read()
    except OSError:
        return ""
