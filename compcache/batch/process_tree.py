"""Finds and ends the processes that a job has started, even those that left their group and parent (Linux).

A worker adopts processes that its jobs orphan, so that ``/proc`` shows all below it as long as it lives. Once it
has ended, a mark in the environment identifies its descendants. Elsewhere, only the process group is known.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from compcache.files import reraise_interrupt
from compcache.interrupts import suppress

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MARK", "Process", "adopt_orphans", "descendants", "end_processes", "has_children", "marked"]

#: The environment variable, not a setting, that names the worker from which a process descends.
MARK = "_COMPCACHE_BATCH_WORKER"
#: How long processes may take to end by themselves after their parent has ended, for example to clean up.
_GRACE = 0.3
#: How long a process may take to end after SIGKILL: on a busy machine it waits for its turn.
_DYING = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_ENDED = ("Z", "X")


class Process(NamedTuple):
    """A process, and its start time, because numbers are reused."""

    number: int
    parent: int
    state: str
    started: str


def adopt_orphans() -> None:
    """Make this process the parent of processes that its children orphan."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def has_children() -> bool:
    """Return whether this process has running children."""
    try:
        tasks = os.listdir("/proc/self/task")
    except OSError as error:
        reraise_interrupt(error)
        return False
    numbers = [number for task in tasks for number in _read(f"/proc/self/task/{task}/children").split()]
    found = [_process(number) for number in map(int, numbers)]
    return any(process is not None and process.state not in _ENDED for process in found)


def descendants(numbers: Iterable[int]) -> list[Process]:
    """Return all descendants of these processes."""
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
    """Return this user's processes whose environment has one of these values of `MARK`."""
    wanted = tuple([f"{MARK}={mark}".encode() for mark in marks])
    found = []
    for process in _all() if wanted else ():
        variables = _read(f"/proc/{process.number}/environ").encode("latin-1").split(b"\0")
        if process.number != os.getpid() and any(variable in wanted for variable in variables):
            found.append(process)
    return found


def end_processes(processes: Iterable[Process]) -> None:
    """Wait a moment for processes to end, and send SIGKILL to those that did not."""
    left = _still_running(processes, _GRACE)
    for process in left:
        with suppress(OSError):
            _kill(process)
    _still_running(left, _DYING)


def _still_running(processes: Iterable[Process], seconds: float) -> list[Process]:
    """Return the processes that still run after this many seconds; returns earlier when none does."""
    left = _running(processes)
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        time.sleep(0.005)
        left = _running(left)
    return left


def _kill(process: Process) -> None:
    """Send SIGKILL to a process, but not to another one that has its number now."""
    descriptor = os.pidfd_open(process.number)
    try:
        if _running([process]):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


def _running(processes: Iterable[Process]) -> list[Process]:
    found = [(process, _process(process.number)) for process in processes]
    return [process for process, now in found if now is not None and now.started == process.started and now.state not in _ENDED]


def _all() -> list[Process]:
    try:
        names = os.listdir("/proc")
    except OSError as error:
        reraise_interrupt(error)
        return []
    found = [_process(int(name)) for name in names if name.isdigit()]
    return [process for process in found if process is not None]


def _process(number: int) -> Process | None:
    """Parse ``/proc/N/stat``, see proc(5): the name of the program, in parentheses, may contain anything."""
    fields = _read(f"/proc/{number}/stat").rpartition(")")[2].split()
    if len(fields) < 20:  # noqa: PLR2004 - the start time is the 22nd field
        return None
    return Process(number, int(fields[1]), fields[0], fields[19])


def _read(path: str) -> str:
    try:
        with open(path, encoding="latin-1") as file:
            return file.read()
    except OSError as error:
        reraise_interrupt(error)
        return ""
