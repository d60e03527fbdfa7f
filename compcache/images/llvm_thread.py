"""A thread for LLVM's work, which signal handlers cannot interrupt.

Python runs signal handlers in the main thread, between any two instructions. An exception of a handler (Ctrl-C, a timeout by `SIGALRM`)
can arrive after an LLVM object was created and before a variable refers to it. Such an object is freed after its context, and that ends
the process. So the main thread only waits, while another thread does the work and owns all LLVM objects. An exception that arrives in the
meantime is raised when LLVM returns. The work ends at its next step.

Parts of the work that belong to the caller (look-ups, pickling, globals) still run in the caller's thread (`call_in_caller`). So do parts
that need no result of LLVM, while LLVM works (`call_beside`).

A fork while LLVM works waits for the current step, at most some seconds, so that the child can use LLVM. A child that is forked by a
function which `call_in_caller` calls has no LLVM thread, and gets an error with this reason.
"""

from __future__ import annotations

import _imp
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
from compcache.interrupts import interrupt_in, suppress
from compcache.llvm import llvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

__all__ = ["call_beside", "call_in_caller", "check_abandoned", "in_llvm_thread", "time_spent"]

_T = TypeVar("_T")
_S = TypeVar("_S")
#: The stack size of the LLVM thread, because LLVM's parser and its passes recurse. Only the used part takes memory.
_STACK_BYTES = 64 << 20
#: The interval at which a waiting thread checks the other thread, because an interrupt may have lost a message.
_POLL_SECONDS = 0.1
#: For how long an interrupted start waits for the new thread: whether the thread was started is not known.
_START_SECONDS = 1.0
#: For how long the end of the process waits for work that an interrupted caller has left.
_EXIT_SECONDS = 30.0


class _AbandonedError(BaseException):
    """Raised in the LLVM thread after its caller has stopped waiting for it."""


class _Outcome(NamedTuple):
    """The result of a task, or the exception that it raised."""

    value: Any
    error: BaseException | None


class _Local(threading.local):
    task: _Task[Any] | None = None
    spent = 0.0  # seconds that LLVM threads have worked for this thread


_local = _Local()
#: The tasks whose work has not ended; some may have lost their callers.
_running: set[_Task[Any]] = set()
_stack_lock = threading.Lock()


def _nothing() -> None:
    """Do nothing: the default of `clean`."""


def in_llvm_thread(work: Callable[[], _T], clean: Callable[[], None] = _nothing) -> _T:
    """Run `work` in an LLVM thread if the caller is the main thread, and return its result or raise its exception.

    `work` runs to its end or, after an interrupt, to its next `check_abandoned`. Then the interrupt is raised. Other threads run no signal
    handlers, and call `work` directly. The main thread also calls `work` directly if LLVM has called it, or if no thread can be started.

    `clean` runs after `work` in the same thread, once or twice. It frees LLVM objects. After successful work in an LLVM thread, the caller
    does not wait for it.
    """
    if threading.current_thread() is not threading.main_thread() or _is_inside_llvm():
        try:
            return work()
        finally:
            clean()
    task = _Task(work, clean)
    return task.run()


def time_spent() -> float:
    """Return the processor time, in seconds, that this thread and the LLVM threads working for this thread have used."""
    return time.thread_time() + _local.spent


def call_in_caller(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function in the thread that waits for this LLVM thread, and return its result. Other threads call it directly.

    If the function raises, the work in the LLVM thread ends, and `in_llvm_thread` raises the exception.
    """
    task = _local.task
    if task is None:
        return function(*arguments)
    task.ask(function, arguments)
    return task.await_answer()  # type: ignore[no-any-return]


def call_beside(work: Callable[[], _T], function: Callable[[], _S]) -> tuple[_T, _S]:
    """Call `work` in this LLVM thread and `function` in the thread that waits for it, at the same time. Return both results.

    `function` must not use LLVM. If it raises, `work` runs to its end; see `call_in_caller`. Other threads call `function`, then `work`.
    """
    task = _local.task
    if task is None:
        answer = function()
        return work(), answer
    task.ask(function, ())
    try:
        result = work()
    finally:
        answer = task.await_answer()  # also after an error, otherwise the next request would get this answer
    return result, answer


def check_abandoned() -> None:
    """End the work of this LLVM thread with an exception if its caller was interrupted. Long work calls this between its steps."""
    task = _local.task
    if task is not None and task.is_abandoned():
        raise _AbandonedError


class _Task(Generic[_T]):
    """One piece of work, and the messages between the two threads."""

    def __init__(self, work: Callable[[], _T], clean: Callable[[], None]) -> None:
        self._work: Callable[[], _T] | None = work
        self._clean = clean
        self._request: Callable[[], Any] | None = None
        self._ended = False
        # An interrupt can lose an item that was just taken from a queue, so this queue only signals a change.
        self._changes: SimpleQueue[None] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._outcome = _Outcome(None, None)
        self._process = os.getpid()
        self._caller = threading.get_ident()
        self._spent = 0.0
        # A lock releases itself after an exception without running Python code that a handler could interrupt.
        self._waiting = threading.Lock()
        self.abandoned = False

    def run(self) -> _T:
        """Start the work, wait for its end even after interrupts, and return or raise its outcome."""
        with self._waiting:
            interrupt = self._start() or self._run_requested_calls()
        outcome, self._outcome = self._outcome, _Outcome(None, None)
        _local.spent += self._spent
        try:
            if interrupt is not None:
                raise interrupt
            if outcome.error is not None:
                raise outcome.error
            return outcome.value  # type: ignore[no-any-return]
        finally:
            del outcome, interrupt  # otherwise the traceback refers to itself until the garbage collector runs

    def _start(self) -> BaseException | None:
        """Start the work, or do it in this thread if no thread can start. Return the exception of a failed start, or None."""
        is_starting = False
        try:
            with _stack_lock, _stack_size(_STACK_BYTES):
                is_starting = True
                # Not `threading.Thread`, because an interrupt could leave it unfinished, which ends the thread.
                _thread.start_new_thread(self._run_work, ())
        except BaseException as error:  # noqa: BLE001 - the caller raises it after the thread has ended
            if isinstance(error, (_thread.error, ValueError)) and interrupt_in(error) is None:
                self._run_work()  # the interpreter is ending, or the system cannot start a thread
                return None
            self.abandoned = True
            if is_starting:
                self._await_change(_START_SECONDS)
            return error
        return None

    def _run_requested_calls(self) -> BaseException | None:
        """Run the calls that the LLVM thread requests (`ask`), until its work has ended.

        Return the last exception in this thread, of a call or of a signal handler, or None. The first exception abandons the work.

        In a child process that a call has forked, return an error at once, because the child has no LLVM thread.
        """
        last_error: BaseException | None = None
        while True:
            try:
                if self._ended:
                    return last_error
                request = self._request
                if request is None:  # and stays as it is: the other thread may set it now
                    self._await_change(_POLL_SECONDS)
                    continue
                self._request = None
                answer = request()
                if os.getpid() != self._process:
                    return CompileError(
                        "the process was forked during a compilation, but the child process has no LLVM thread to finish the "
                        "compilation; compile again, or fork before or after compiling"
                    )
                self._answers.put(answer)
            except BaseException as error:  # noqa: BLE001 - the caller raises it after LLVM has returned
                if os.getpid() != self._process:
                    return error
                self.abandoned = True
                last_error = error

    def _await_change(self, timeout: float) -> None:
        """Wait for a change of state, at most `timeout` seconds. The import lock, if an interrupt has left it locked, is released first."""
        _release_import_lock()
        with contextlib.suppress(Empty):
            self._changes.get(timeout=timeout)

    def _run_work(self) -> None:
        """Run the work of this task, keep its result or exception for the caller, and free the objects of LLVM."""
        is_apart = threading.get_ident() != self._caller
        outer, _local.task = _local.task, self if is_apart else None  # without a thread of its own, the work asks nobody
        work, self._work = self._work, None
        _running.add(self)
        if outer is None and threading.gettrace() is not None:  # for coverage tools, like `threading.Thread`
            sys.settrace(threading.gettrace())
        try:
            check_abandoned()
            assert work is not None
            self._outcome = _Outcome(work(), None)
        except BaseException as error:  # noqa: BLE001 - for the caller
            del work
            self._clean()
            _clear_frames(error)
            self._outcome = _Outcome(None, error)
        finally:
            _local.task = outer
            if is_apart:
                self._spent = time.thread_time()
            self._ended = True
            self._changes.put(None)
            self._clean()
            _running.discard(self)

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Let the caller's thread call a function. `await_answer` must follow."""
        self._request = lambda: function(*arguments)
        self._changes.put(None)

    def await_answer(self) -> Any:
        """Return the result of the last function of `ask`. Raise `_AbandonedError` if the caller was interrupted."""
        while True:
            with contextlib.suppress(Empty):
                return self._answers.get(timeout=_POLL_SECONDS)
            if self.is_abandoned():
                raise _AbandonedError

    def is_abandoned(self) -> bool:
        """Return whether the caller was interrupted, or has stopped waiting."""
        return self.abandoned or not self._waiting.locked()


def _clear_frames(error: BaseException) -> None:
    """Free the LLVM objects in the frames of an error in this thread, where no signal handler can run."""
    chain: BaseException | None = error
    visited: set[int] = set()
    while chain is not None and id(chain) not in visited:
        visited.add(id(chain))
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__cause__ or chain.__context__


@atexit.register
def _await_running() -> None:
    """Wait for threads inside LLVM before the process exits, because LLVM destroys its own tables at exit."""
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


def _running_code() -> Iterator[CodeType]:
    """Yield the code of this thread's frames, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def _is_inside_llvm() -> bool:
    """Return whether this thread runs a callback of LLVM. It then holds LLVM's lock, and an LLVM thread would wait forever.

    Side effect: release LLVM's lock if no call is running, because an interrupt can keep llvmlite from releasing it.
    """
    # llvmlite holds the lock during every call into LLVM, and wraps it in an object of its own. Some versions have no such lock.
    lock = getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)
    is_owned = getattr(lock, "_is_owned", None)
    if lock is None or is_owned is None or not is_owned():
        return False
    if any(code is llvm.ffi._lib_fn_wrapper.__call__.__code__ for code in _running_code()):
        return True
    while is_owned():
        lock.release()
    return False


def _release_import_lock() -> None:
    """Release the lock of Python's import system if an interrupt has kept this thread from releasing it.

    Otherwise the LLVM thread would wait forever at its next import. A signal handler that has interrupted the import system itself runs
    while the import system legitimately holds the lock.
    """
    if not _imp.lock_held():
        return
    running_functions = {(code.co_filename, code.co_name) for code in _running_code()}
    if not running_functions.isdisjoint([("<frozen importlib._bootstrap>", name) for name in ("_get_module_lock", "cb")]):
        return
    with suppress(RuntimeError):  # another thread holds the lock, for a moment
        while _imp.lock_held():
            _imp.release_lock()


def _forget_tasks() -> None:
    """Drop the running tasks in a forked child, which has no other thread."""
    _running.clear()
