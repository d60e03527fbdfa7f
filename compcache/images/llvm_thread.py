"""A thread for LLVM's work, which signal handlers cannot interrupt.

Python runs signal handlers in the main thread, between any two instructions, and what a handler raises (Ctrl-C, a
timeout by `SIGALRM`) leaves an LLVM object without an owner where it falls between the making of the object and the
assignment that keeps it. Such objects are freed too late, after their context, and that ends the process. So the main
thread only waits here, while another one does the work and owns every object of it. What is raised meanwhile is
raised when LLVM returns; the work ends at its next step.

What is the caller's own (look-ups, pickling, globals) runs in the caller's thread all the same: `in_caller`.

A process that forks while LLVM works waits for the step under way, at most some seconds, so that the child finds LLVM
in a state that it can use. A child forked from what `in_caller` runs has no LLVM thread and gets an error that says so.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import sys
import threading
import time
import traceback
from _queue import Empty, SimpleQueue  # a program may have a module `queue` of its own
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from compcache.errors import CompileError
from compcache.interrupts import interrupt_in
from compcache.llvm import llvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["check_abandoned", "in_caller", "in_llvm_thread", "time_spent"]

_T = TypeVar("_T")
#: LLVM's parser and its passes recurse. Only the used part takes memory.
_STACK_BYTES = 64 << 20
#: The interval at which each thread checks the other while it waits: an interrupt may have lost a message.
_PATIENCE = 0.1
#: For how long an interrupted start waits for a thread of which it cannot know whether it was started.
_START_SECONDS = 1.0
#: For how long the end of the process waits for work whose caller was interrupted twice.
_EXIT_SECONDS = 30.0


class _AbandonedError(BaseException):
    """Raised in the LLVM thread after its caller has stopped waiting for it."""


class _Outcome(NamedTuple):
    value: Any
    error: BaseException | None


class _Local(threading.local):
    errand: _Errand[Any] | None = None
    spent = 0.0  # by LLVM threads for this one


_here = _Local()
#: The errands whose work has not ended; some may have lost their callers.
_running: set[_Errand[Any]] = set()
_stack_lock = threading.Lock()


def in_llvm_thread(work: Callable[[], _T]) -> _T:
    """Run `work` and return or raise its result. It always runs to its end, or to the next step after an interrupt.

    Only the main thread runs signal handlers; in other threads `work` runs at once. It does so too if LLVM called the caller, or if no
    thread can be started any more.
    """
    if threading.current_thread() is not threading.main_thread() or _is_inside_llvm():
        return work()
    errand = _Errand(work)
    return errand.run()


def time_spent() -> float:
    """Return the seconds of processor time that this thread has used, and that LLVM threads have used for it."""
    return time.thread_time() + _here.spent


def in_caller(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function in the thread that waits for this one. `in_llvm_thread` raises its errors."""
    errand = _here.errand
    return function(*arguments) if errand is None else errand.ask(function, arguments)


def check_abandoned() -> None:
    """End the work here if the caller was interrupted. Long work calls this between its steps."""
    errand = _here.errand
    if errand is not None and errand.is_abandoned():
        raise _AbandonedError


class _Errand(Generic[_T]):
    """One piece of work, and the messages between the two threads."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work: Callable[[], _T] | None = work
        self._request: Callable[[], Any] | None = None
        self._ended = False
        # An item taken from a queue is lost when an interrupt arrives with it: this queue only signals a change.
        self._news: SimpleQueue[None] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._outcome = _Outcome(None, None)
        self._process = os.getpid()
        self._caller = threading.get_ident()
        self._spent = 0.0
        # A lock is left, by an exception too, without running any Python code that a handler could interrupt.
        self._waiting = threading.Lock()
        self.abandoned = False

    # ------------------------------------------------------ the caller's side

    def run(self) -> _T:
        """Start the work and wait for its end, whatever happens."""
        with self._waiting:
            interrupt = self._start() or self._attend()
        outcome, self._outcome = self._outcome, _Outcome(None, None)
        _here.spent += self._spent
        try:
            if interrupt is not None:
                raise interrupt
            if outcome.error is not None:
                raise outcome.error
            return outcome.value  # type: ignore[no-any-return]
        finally:
            del outcome, interrupt  # a traceback that refers to itself is left to the garbage collector

    def _start(self) -> BaseException | None:
        """Start the work; return an exception that was raised while it started."""
        is_starting = False
        try:
            with _stack_lock, _stack_size(_STACK_BYTES):
                is_starting = True
                # Not `threading.Thread`: after an interrupt, its unfinished state ends the thread.
                _thread.start_new_thread(self._serve, ())
        except BaseException as error:  # noqa: BLE001 - raised when the thread, if there is one, has ended
            if isinstance(error, (_thread.error, ValueError)) and interrupt_in(error) is None:
                self._serve()  # the interpreter ends, or the system has no thread to give
                return None
            self.abandoned = True
            if is_starting:
                self._await_news(_START_SECONDS)
            return error
        return None

    def _attend(self) -> BaseException | None:
        """Run the requests of the LLVM thread until it has ended; return an exception that was raised in between."""
        interrupt: BaseException | None = None
        while True:
            try:
                if self._ended:
                    return interrupt
                request, self._request = self._request, None
                if request is None:
                    self._await_news(_PATIENCE)
                    continue
                answer = request()
                if os.getpid() != self._process:
                    raise CompileError(
                        "the process was forked while it compiled: the child has no LLVM thread to finish it; compile "
                        "again, or fork at another time"
                    )
                self._answers.put(answer)
            except BaseException as error:  # noqa: BLE001 - raised when LLVM returns
                if os.getpid() != self._process:
                    return error
                self.abandoned = True
                interrupt = error

    def _await_news(self, timeout: float) -> None:
        with contextlib.suppress(Empty):
            self._news.get(timeout=timeout)

    # -------------------------------------------------- the LLVM thread's side

    def _serve(self) -> None:
        outer, _here.errand = _here.errand, self
        work, self._work = self._work, None
        _running.add(self)
        if outer is None and threading.gettrace() is not None:  # as `threading.Thread` does, for coverage tools
            sys.settrace(threading.gettrace())
        try:
            check_abandoned()
            assert work is not None
            self._outcome = _Outcome(work(), None)
        except BaseException as error:  # noqa: BLE001 - for the caller
            del work
            _clear_frames(error)
            self._outcome = _Outcome(None, error)
        finally:
            _here.errand = outer
            _running.discard(self)
            if threading.get_ident() != self._caller:
                self._spent = time.thread_time()
            self._ended = True
            self._news.put(None)

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return the reply of the caller's thread."""
        self._request = lambda: function(*arguments)
        self._news.put(None)
        while True:
            with contextlib.suppress(Empty):
                return self._answers.get(timeout=_PATIENCE)
            if self.is_abandoned():
                raise _AbandonedError

    def is_abandoned(self) -> bool:
        """Return whether the caller was interrupted, or has even gone after two interrupts."""
        return self.abandoned or not self._waiting.locked()


def _clear_frames(error: BaseException) -> None:
    """Free LLVM objects in the frames of an error here, where no handler can run."""
    chain: BaseException | None = error
    seen: set[int] = set()
    while chain is not None and id(chain) not in seen:
        seen.add(id(chain))
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__cause__ or chain.__context__


@atexit.register
def _await_running() -> None:
    """Wait for threads in LLVM, because LLVM destroys its own tables at exit."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while _running and time.monotonic() < deadline:
        time.sleep(0.01)


@contextlib.contextmanager
def _stack_size(size: int) -> Iterator[None]:
    """Set the stack size of threads that are started within this context."""
    before = threading.stack_size(size)
    try:
        yield
    finally:
        threading.stack_size(before)


# ---------------------------------------------------------------- LLVM's lock


def _llvm_lock() -> Any:
    """Return the lock that llvmlite holds during every call into LLVM; None if this llvmlite has a different one."""
    return getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)


def _is_inside_llvm() -> bool:
    """Return whether LLVM has called this thread, which then holds LLVM's lock: another thread would wait for it.

    A lock is released if its call is over and an interrupt kept llvmlite from releasing it.
    """
    lock = _llvm_lock()
    is_owned = getattr(lock, "_is_owned", None)
    if lock is None or is_owned is None or not is_owned():
        return False
    caller: FrameType | None = sys._getframe()
    while caller is not None:
        if caller.f_code is llvm.ffi._lib_fn_wrapper.__call__.__code__:
            return True
        caller = caller.f_back
    while is_owned():
        lock.release()
    return False


def _forget_errands() -> None:
    """Drop pending requests in a forked child, which has no other thread."""
    _running.clear()
