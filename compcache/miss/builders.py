"""Tracks which threads of this process build which functions, and whether they make progress, so that builds do not deadlock.

A builder may need a lock (of an import, or of the user's) whose holder requests the function that it builds. If the builder visibly
waits for an import that the requesting thread executes, that thread builds the function itself at once. Otherwise the builder's thread
counts as waiting if it has used no processor time for `IDLE_SECONDS` and waits neither for LLVM nor for a child process. Then two threads
build the same function, which is allowed everywhere.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from compcache.hit.memory import end_build
from compcache.interrupts import reraise_interrupt

if TYPE_CHECKING:
    from types import FrameType

    from compcache.hit.loader import Loader

__all__ = ["IDLE_SECONDS", "Builder", "register_builder", "take_over_build", "unregister_builder"]

#: If a builder's thread uses no processor time for this many seconds, another thread builds too.
IDLE_SECONDS = 2.0
#: The interval between examinations of a builder in seconds, and the share of a processor below which it counts as idle: a wait that polls
#: uses a little.
_PAUSE_SECONDS = 0.1
_IDLE_SHARE = 0.01
#: The function, with its module, in which a thread waits for LLVM's thread. That thread needs no other thread.
_WAITS_FOR_LLVM = ("compcache.images.llvm_thread", "_await_change")

_lock = threading.Lock()
_builders: dict[tuple[str, str], list[Builder]] = {}


def _drop_threads() -> None:
    """Remove the builders of other threads in a forked child, which has only one thread."""
    this_thread = threading.get_ident()
    for key, builders in list(_builders.items()):
        _builders[key] = [builder for builder in builders if builder.thread == this_thread]
        for builder in builders:
            if builder.thread != this_thread and builder.loader is not None:
                end_build(builder.loader, builder)


class Builder:
    """A thread that builds a function. `loader` is the loader for which the build was begun, or None."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.loader: Loader | None = None
        # The thread itself requests its clock: using the clock of a thread that has ended may crash the process.
        self._clock = time.pthread_getcpuclockid(self.thread) if hasattr(time, "pthread_getcpuclockid") else None
        self._spent = 0.0
        self._measured = 0.0
        self._idle = 0.0

    def is_idle(self) -> bool:
        """Return whether the thread has ended or been idle for `IDLE_SECONDS`, after measuring its processor time if that is due.

        The result is False if the system does not measure the time of threads.
        """
        now = time.monotonic()
        passed = now - self._measured
        if self._clock is None:
            return False
        if passed >= _PAUSE_SECONDS:
            try:
                spent = time.clock_gettime(self._clock)
            except OSError as error:
                reraise_interrupt(error)
                return True  # the thread has ended
            is_working = spent - self._spent > passed * _IDLE_SHARE or _waits_for_helper(self.thread)
            # A late examination says little: the whole process may have been suspended.
            self._idle = 0.0 if is_working or not self._measured else self._idle + min(passed, 2 * _PAUSE_SECONDS)
            self._spent, self._measured = spent, now
        return self._idle >= IDLE_SECONDS


def register_builder(directory: str, func_name: str) -> Builder:
    """Register this thread as a builder of a function, and return the builder."""
    builder = Builder()
    with _lock:
        _builders.setdefault((directory, func_name), []).append(builder)
    return builder


def unregister_builder(directory: str, func_name: str, builder: Builder) -> None:
    """Remove a builder. Builders that are not registered are ignored."""
    with _lock:
        remaining = [registered for registered in _builders.pop((directory, func_name), ()) if registered is not builder]
        if remaining:
            _builders[directory, func_name] = remaining


def take_over_build(directory: str, func_name: str) -> Builder | None:
    """Register this thread as a builder of a function if all its builders in this process may be waiting for this thread.

    Returns:
        The new builder, or None if no thread of this process builds the function or if one of its builders makes progress.
    """
    with _lock:
        builders = _builders.get((directory, func_name), [])
        waiting = [builder.is_idle() or _waits_for_own_import(builder.thread) for builder in builders]  # a list: `is_idle` measures
        if not builders or not all(waiting):
            return None
        builder = Builder()
        builders.append(builder)
    return builder


def _waits_for_helper(thread: int) -> bool:
    """Return whether a thread is waiting for LLVM's thread or for a child process."""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == "subprocess" or (module, frame.f_code.co_name) == _WAITS_FOR_LLVM:
            return True
        frame = frame.f_back
    return False


def _waits_for_own_import(thread: int) -> bool:
    """Return whether a thread waits, directly or through other threads, for an import that the calling thread executes."""
    waits: Any = getattr(importlib._bootstrap, "_blocking_on", {})  # by thread: the import locks that it waits for
    this_thread, visited = threading.get_ident(), {thread}
    pending = [thread]
    while pending:
        locks = waits.get(pending.pop()) or ()
        for lock in list(locks) if isinstance(locks, list) else (locks,):  # a list since 3.12
            owner = getattr(lock, "owner", None)
            if owner == this_thread:
                return True
            if owner is not None and owner not in visited:
                visited.add(owner)
                pending.append(owner)
    return False
