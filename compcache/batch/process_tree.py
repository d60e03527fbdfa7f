"""The processes that a job has started, even processes that left their group and their parent (Linux).

A worker adopts processes that its jobs orphan. While the worker lives, ``/proc`` shows all its descendants below it. After the
worker has ended, a mark in their environment identifies its descendants. On other systems, only the process group is known.
Processes that the cache starts detached, such as the helper of a remote store, do not count: they serve other processes too.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from compcache.interrupts import suppress
from compcache.processes.detached import DETACHED

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MARK", "Process", "adopt_orphans", "descendants", "end_processes", "has_children", "processes_with_marks"]

#: The environment variable (not a setting) that identifies the worker from which a process descends.
MARK = "_COMPCACHE_BATCH_WORKER"
#: The seconds in which processes may end by themselves after their parent has ended, for example to clean up.
_GRACE = 0.3
#: The longest time, in seconds, from SIGKILL to the end of a process on a busy machine.
_DYING = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_ENDED = ("Z", "X")
#: The index of the start time among the fields of ``/proc/PID/stat`` after the name.
_START_TIME = 19


class Process(NamedTuple):
    """A process. The PID and the start time identify a process, because the system reuses PIDs."""

    pid: int
    parent: int
    state: str
    started: str


def adopt_orphans() -> None:
    """Make this process the parent of all orphaned descendants. Do nothing on systems other than Linux."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def has_children() -> bool:
    """Return whether this process has running children; False on systems without ``/proc``."""
    with suppress(OSError):
        tasks = os.listdir("/proc/self/task")
        pids = [pid for task in tasks for pid in _read_text(f"/proc/self/task/{task}/children").split()]
        children = [_read_process(pid) for pid in map(int, pids)]
        return any(process is not None and process.state not in _ENDED and not _is_detached(process) for process in children)
    return False


def descendants(pids: Iterable[int]) -> list[Process]:
    """Return all descendants of the processes with these PIDs; an empty list on systems without ``/proc``."""
    children: dict[int, list[Process]] = {}
    for process in _all_processes():
        children.setdefault(process.parent, []).append(process)
    processes: list[Process] = []
    parents = list(pids)
    while parents:
        offspring = [child for child in children.pop(parents.pop(), []) if not _is_detached(child)]
        processes += offspring
        parents += [child.pid for child in offspring]
    return processes


def processes_with_marks(marks: Iterable[str]) -> list[Process]:
    """Return the processes, other than this one, whose environment variable `MARK` has one of these values."""
    assignments = {f"{MARK}={mark}" for mark in marks}
    if not assignments:
        return []
    others = [process for process in _all_processes() if process.pid != os.getpid()]
    return [process for process in others if not (assignments.isdisjoint(_environment(process)) or _is_detached(process))]


def _environment(process: Process) -> list[str]:
    """Return the environment with which a process was started, as assignments; [""] if it cannot be read."""
    return _read_text(f"/proc/{process.pid}/environ").split("\0")


def _is_detached(process: Process) -> bool:
    """Return whether the cache started a process detached."""
    return f"{DETACHED}=1" in _environment(process)


def end_processes(processes: Iterable[Process]) -> None:
    """Wait at most 0.3 seconds for the end of processes, kill the others, and wait at most 10 seconds. Errors of killing are ignored."""
    remaining = _wait_for_ends(processes, _GRACE)
    for process in remaining:
        with suppress(OSError):
            _kill_process(process)
    _wait_for_ends(remaining, _DYING)


def _wait_for_ends(processes: Iterable[Process], seconds: float) -> list[Process]:
    """Wait at most `seconds` seconds until all processes have ended. Return the processes that are still running."""
    remaining = _still_running(processes)
    deadline = time.monotonic() + seconds
    while remaining and time.monotonic() < deadline:
        time.sleep(0.005)
        remaining = _still_running(remaining)
    return remaining


def _kill_process(process: Process) -> None:
    """Send SIGKILL to a process, but not to a later process with the same PID. Raise `OSError` if the process has gone."""
    descriptor = os.pidfd_open(process.pid)
    try:
        if _still_running([process]):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


def _still_running(processes: Iterable[Process]) -> list[Process]:
    """Return the processes that are still running."""
    running = []
    for process in processes:
        current = _read_process(process.pid)
        if current is not None and current.started == process.started and current.state not in _ENDED:
            running.append(process)
    return running


def _all_processes() -> list[Process]:
    """Return all processes of the system; an empty list on systems without ``/proc``."""
    with suppress(OSError):
        processes = [_read_process(int(name)) for name in os.listdir("/proc") if name.isdigit()]
        return [process for process in processes if process is not None]
    return []


def _read_process(pid: int) -> Process | None:
    """Return the process with a PID, from ``/proc/PID/stat`` (see proc(5)); None if there is no such process.

    The name of the program, in parentheses, may contain any character.
    """
    _, _, after_name = _read_text(f"/proc/{pid}/stat").rpartition(")")
    fields = after_name.split()
    if len(fields) <= _START_TIME:
        return None
    state, parent, *_ = fields
    return Process(pid, int(parent), state, fields[_START_TIME])


def _read_text(path: str) -> str:
    """Return the content of a file; "" if it cannot be read."""
    with suppress(OSError), open(path, encoding="latin-1") as file:
        return file.read()
    return ""
