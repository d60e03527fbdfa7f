"""Which threads of this process build what, and whether they work: no thread waits for one that may be waiting for it.

A builder may need a lock that somebody has who asks for what it builds: of an import, or one of the user's. Where that can be
seen, because it waits for an import that the asker is in the middle of, the asker builds it himself at once. Where it cannot be
seen, the sign is that the builder's thread has used no processor time for `IDLE_SECONDS`, though it waits neither for LLVM nor for a
process that it has started. Two threads then build one thing, which is allowed everywhere.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from compcache.files import reraise_interrupt
from compcache.hit.memory import end_build

if TYPE_CHECKING:
    from types import FrameType

    from compcache.hit.loader import Loader

__all__ = ["IDLE_SECONDS", "Builder", "enter", "leave", "take_over"]

#: For how long a builder's thread may use no processor time until it is overtaken.
IDLE_SECONDS = 2.0
#: How often it is looked at, and less than which share of a processor is none: a wait that looks around now and then uses some.
_PAUSE_SECONDS = 0.1
_IDLE_SHARE = 0.01
#: The functions in which a thread waits for LLVM's thread, which needs no other one.
_WAITS_FOR_LLVM = ("compcache.images.llvm_thread", "_await_news")

_lock = threading.Lock()
_builders: dict[tuple[str, str], list[Builder]] = {}


def _forget_threads() -> None:
    """In a forked child only one thread is left: the builds of the others are over."""
    mine = threading.get_ident()
    for key, builders in list(_builders.items()):
        _builders[key] = [builder for builder in builders if builder.thread == mine]
        for builder in builders:
            if builder.thread != mine and builder.loader is not None:
                end_build(builder.loader, builder)


class Builder:
    """A thread that builds a function, and for how long it has been seen to do nothing."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.loader: Loader | None = None  # that which looks nothing up in memory meanwhile
        # Asked by the thread itself: the number of one that has ended may crash the process.
        self._clock = time.pthread_getcpuclockid(self.thread) if hasattr(time, "pthread_getcpuclockid") else None
        self._spent = 0.0
        self._seen = 0.0
        self._idle = 0.0

    def is_idle(self) -> bool:
        """Whether it has done nothing for long enough, as far as it was looked at."""
        now = time.monotonic()
        passed = now - self._seen
        if self._clock is None:
            return False
        if passed >= _PAUSE_SECONDS:
            try:
                spent = time.clock_gettime(self._clock)
            except OSError as error:
                reraise_interrupt(error)
                return True  # the thread has ended
            works = spent - self._spent > passed * _IDLE_SHARE or _is_helped(self.thread)
            # A look that comes late tells little: the whole process may have stood still.
            self._idle = 0.0 if works or not self._seen else self._idle + min(passed, 2 * _PAUSE_SECONDS)
            self._spent, self._seen = spent, now
        return self._idle >= IDLE_SECONDS


def enter(directory: str, func_name: str) -> Builder:
    """Note that this thread builds a function from now on."""
    builder = Builder()
    with _lock:
        _builders.setdefault((directory, func_name), []).append(builder)
    return builder


def leave(directory: str, func_name: str, builder: Builder) -> None:
    """Note that a builder, which this function may not know, has ended."""
    with _lock:
        left = [other for other in _builders.pop((directory, func_name), ()) if other is not builder]
        if left:
            _builders[directory, func_name] = left


def take_over(directory: str, func_name: str) -> Builder | None:
    """This thread as a builder where all threads of this process that build a function wait, perhaps for this one; None where one works.

    Also None where none of this process builds it. Only one of several that ask becomes a builder.
    """
    with _lock:
        builders = _builders.get((directory, func_name), [])
        waiting = [builder.is_idle() or _imports_from(builder.thread) for builder in builders]  # each is looked at
        if not builders or not all(waiting):
            return None
        builder = Builder()
        builders.append(builder)
    return builder


def _is_helped(thread: int) -> bool:
    """Whether a thread waits for LLVM's, or for a process."""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == "subprocess" or (module, frame.f_code.co_name) == _WAITS_FOR_LLVM:
            return True
        frame = frame.f_back
    return False


def _imports_from(thread: int) -> bool:
    """Whether a thread waits for an import that this thread is in the middle of, by way of other threads or not."""
    waits: Any = getattr(importlib._bootstrap, "_blocking_on", {})
    mine, seen = threading.get_ident(), {thread}
    todo = [thread]
    while todo:
        locks = waits.get(todo.pop()) or ()
        for lock in list(locks) if isinstance(locks, list) else (locks,):  # a list since 3.12
            owner = getattr(lock, "owner", None)
            if owner == mine:
                return True
            if owner is not None and owner not in seen:
                seen.add(owner)
                todo.append(owner)
    return False
