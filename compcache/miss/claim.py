"""Single flight: at most one thread of one process builds a function at a time. Every wait is bounded."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import ReentrantCompileError, StorageError
from compcache.hit.memory import begin_build, end_build
from compcache.interrupts import suppress
from compcache.miss.builders import register_builder, take_over_build, unregister_builder
from compcache.publish.locks import wait_lock
from compcache.usage.limits import limit_setting, read_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

    from compcache.hit.target import TypedCallTarget
    from compcache.miss.builders import Builder
    from compcache.session import Session

__all__ = ["is_building", "modules_of_builds", "note_modules", "note_use", "single_flight", "uses_of_builds"]

_DEFAULT_TIMEOUT = 60.0
#: Nested builds wait only this long. Otherwise two threads or processes that build A-needs-B and B-needs-A would wait for each other.
_NESTED_TIMEOUT = 0.5


class _Frame(NamedTuple):
    """A build in progress: the function, the stack frame that builds it, and the functions and modules that the build has received."""

    directory: str
    func_name: str
    builder: FrameType
    uses: dict[str, TypedCallTarget]
    modules: set[bytes]


class _Stack(threading.local):
    """The functions that this thread is building, outermost first."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []


_building = _Stack()


@contextmanager
def single_flight(session: Session, func_name: str, *, absent: bool) -> Iterator[bool]:
    """Wait while another thread or process builds a function, then register this thread as its builder.

    The wait is bounded. It ends early if the builder is an idle thread of this process, because that thread may be waiting for the calling
    thread (`compcache.miss.builders`). With `absent`, a look-up has just found no realization.

    Yields:
        Whether another builder may have published the function since that look-up.

    Raises:
        ReentrantCompileError: this thread is already building the function.
        SettingError: see `limit_setting`.
    """
    caller = sys._getframe(2)  # the frame with the `with` statement, behind the one of `contextlib`
    frame = _Frame(session.store.root, func_name, caller, {}, set())
    _require_no_reentry(frame)
    timeout = _lock_timeout(session)
    if _building.frames:
        timeout = min(timeout, _NESTED_TIMEOUT)
    stored_before: set[tuple[bytes, int]] | None = set() if absent else None
    waited = False
    builder: Builder | None = None

    def is_ready() -> bool:
        """Return whether this thread may build the function now, or another builder has stored the function since the wait began."""
        nonlocal stored_before, waited, builder
        waited = True
        stored = _stored_realizations(session, func_name)
        stored_before = stored if stored_before is None else stored_before
        if not stored_before.issuperset(stored):
            return True
        builder = take_over_build(frame.directory, func_name)
        return builder is not None

    with wait_lock(session.store, f"compile {func_name}", timeout=timeout, until=is_ready) as owned:
        builder = builder or register_builder(frame.directory, func_name)
        try:
            builder.loader = session.loader
            begin_build(session.loader, builder)
            _building.frames.append(frame)
            # A builder that got the lock at once may come after another builder that has published the function and released the lock.
            yield waited or owned is False or session.store.index.refresh()
        finally:
            _building.frames = [open_frame for open_frame in _building.frames if open_frame is not frame]
            end_build(session.loader, builder)
            unregister_builder(frame.directory, func_name, builder)


def is_building(directory: str) -> bool:
    """Return whether this thread is building a function for a cache directory."""
    return any(frame.directory == directory for frame in _building.frames)


def note_use(directory: str, target: TypedCallTarget) -> None:
    """Record that the current build of this thread has received a function. The function stays in memory until the build ends."""
    for frame in _building.frames[::-1]:
        if frame.directory == directory:
            frame.uses[target._name] = target
            return


def note_modules(directory: str, module_ids: Iterable[bytes]) -> None:
    """Record that the current build of this thread needs these stored modules, which `modules_of_builds` returns until the build ends."""
    for frame in _building.frames[::-1]:
        if frame.directory == directory:
            frame.modules.update(module_ids)
            return


def modules_of_builds(directory: str) -> set[bytes]:
    """Return the ids of the modules of a cache directory that this thread's builds have received or need."""
    frames = [frame for frame in _building.frames if frame.directory == directory]
    received = [target._context for frame in frames for target in frame.uses.values()]
    return {context.module.module_id for context in received if context is not None}.union(*[frame.modules for frame in frames])


def uses_of_builds(directory: str) -> dict[str, TypedCallTarget]:
    """Return the functions that this thread's builds have received from a cache directory, by name."""
    return {name: target for frame in _building.frames if frame.directory == directory for name, target in frame.uses.items()}


def _stored_realizations(session: Session, func_name: str) -> set[tuple[bytes, int]]:
    """Return (module_id, offset) of the stored realizations of a function. The result is empty if the directory cannot be read."""
    store = session.store
    try:
        return {candidate for candidate in store.find_all(func_name) if store.exists(candidate[0])}
    except StorageError:
        return set()


def _require_no_reentry(frame: _Frame) -> None:
    """Raise `ReentrantCompileError` if this thread is already building the function."""
    if _is_being_built(frame):
        _remove_interrupted()
    if _is_being_built(frame):  # not by a leftover of an interrupted build
        func_name = frame.func_name
        chain = " -> ".join(build.func_name for build in [*_building.frames, frame])
        raise ReentrantCompileError(
            f"building {func_name!r} requested {func_name!r} itself ({chain}): build() must not call get_or_compile for "
            "the function that it builds, nor import a module that does so; declare recursive calls in the IR instead",
            func_name=func_name,
        )


def _is_being_built(frame: _Frame) -> bool:
    """Return whether this thread is building the function of a frame for the same directory."""
    functions = [(build.directory, build.func_name) for build in _building.frames]
    return (frame.directory, frame.func_name) in functions


def _remove_interrupted() -> None:
    """Remove builds that no longer run. An interrupt may prevent the removal when a build ends."""
    running = set()
    caller: FrameType | None = sys._getframe()
    while caller is not None:
        running.add(id(caller))
        caller = caller.f_back
    _building.frames = [frame for frame in _building.frames if id(frame.builder) in running]


def _lock_timeout(session: Session) -> float:
    """Return for how many seconds to wait for another builder. See `limit_setting` for the exceptions."""
    if session.lock_timeout is not None:
        return session.lock_timeout
    seconds = None
    with suppress(StorageError):  # the project's file cannot be read at the moment
        seconds = limit_setting("COMPCACHE_LOCK_TIMEOUT", read_seconds, session.store.root)
    return _DEFAULT_TIMEOUT if seconds is None else seconds
