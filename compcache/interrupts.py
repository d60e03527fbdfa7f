"""Recognizes interrupts: exceptions that a signal handler or another thread raises in this thread, at any instruction.

An interrupt belongs to the program, and is not a failure of the interrupted work. It may have any class, including `ValueError` and
`FileNotFoundError` with an error number, so exception handlers must check for it. Three signs identify an interrupt:

* Python calls a signal handler with the interrupted frame. No other function is called with the frame of its caller.
* The function of a signal handler that has overwritten its parameters is still installed as a handler.
* An exception from another thread has no arguments, and arrives at an instruction that raises nothing. This sign is used only for
`OSError`, because C code raises other exceptions without arguments.

A library may replace an interrupt by another exception, as `zipfile` does. The interrupt is the context of the other exception.
"""

from __future__ import annotations

from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, TracebackType

__all__ = ["as_format_error", "interrupt_in", "reraise_interrupt", "suppress"]

#: Flags of functions that take any arguments: `inspect.CO_VARARGS` and `CO_VARKEYWORDS`, without that slow import.
_ANY_ARGUMENTS, _ANY_KEYWORDS = 4, 8


def reraise_interrupt(error: BaseException) -> None:
    """Raise the interrupt if an exception is an interrupt, or was created while handling one; otherwise return.

    An interrupt is raised by a signal handler, belongs to the program, and is not a failure. Handlers of Python's own exception classes
    call this first. An exception is examined only if code outside of the package took part.
    """
    context = error.__context__
    if _is_own(error) and (context is None or (context.__context__ is None and _is_own(context))):
        return
    interrupt = interrupt_in(error)
    if interrupt is not None:
        raise interrupt


def _is_own(error: BaseException) -> bool:
    """Return whether an exception has arguments, and passed only through code of the package. Signal handlers are other code."""
    step = error.__traceback__
    while step is not None and str(step.tb_frame.f_globals.get("__name__")).startswith("compcache."):
        step = step.tb_next
    return step is None and bool(error.args)


def interrupt_in(error: BaseException) -> BaseException | None:
    """Return the exception itself, or the one of its contexts, that is an interrupt; None if no interrupt caused the exception."""
    visited: set[int] = set()
    frames: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        steps = list(_traceback_steps(cause))
        # A context that was not caught below the caller is an exception that the program was already handling.
        if cause is not error and (not steps or id(steps[0].tb_frame) not in frames):
            break
        if _is_interrupt(cause, steps):
            return cause
        frames.update(id(step.tb_frame) for step in (steps[1:] if cause is error else steps))  # without the caller's frame
        cause = cause.__context__
    return None


class suppress:  # noqa: N801 - the name in the standard library
    """Suppresses exceptions like `contextlib.suppress`, but not interrupts."""

    def __init__(self, *errors: type[Exception]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if not isinstance(error, self._errors):
            return False
        reraise_interrupt(error)
        return True


class as_format_error:  # noqa: N801 - like `suppress`
    """Replaces an exception of a decoder by a `FormatError`, whose text is `problem`, a colon, and the text or the class of the exception.

    Exceptions that do not come from the decoded bytes pass unchanged: `OSError`, `MemoryError` and interrupts. So does a `FormatError`,
    which already says what is wrong.
    """

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, (OSError, MemoryError)):
            return
        from compcache.errors import FormatError

        if not isinstance(error, FormatError):
            reraise_interrupt(error)
            raise FormatError(f"{self._problem}: {str(error) or type(error).__name__}") from error


def _traceback_steps(error: BaseException) -> Iterator[TracebackType]:
    """Yield the steps of an error's traceback, from the outermost call to the raising one."""
    step = error.__traceback__
    while step is not None:
        yield step
        step = step.tb_next


def _is_interrupt(error: BaseException, steps: list[TracebackType]) -> bool:
    """Return whether an exception came from a signal handler and not from the code that was interrupted, judged by its traceback."""
    if not steps:
        return False
    frames = [step.tb_frame for step in steps]
    if any(_was_given(frame, caller) for caller, frame in pairwise(frames)):
        return True
    handlers = _codes_of_handlers()
    if any(frame.f_code in handlers for frame in frames[1:]):
        return True
    return isinstance(error, OSError) and not error.args and not _raises(steps[-1])


def _was_given(frame: FrameType, caller: FrameType) -> bool:
    """Return whether the function of a frame was called with the frame of its caller."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[: count + bool(code.co_flags & _ANY_ARGUMENTS) + bool(code.co_flags & _ANY_KEYWORDS)]
    values = frame.f_locals
    arguments = [values.get(name) for name in names]
    arguments += [item for value in arguments if type(value) is tuple for item in value]
    return any(value is caller for value in arguments)


def _codes_of_handlers() -> set[CodeType]:
    """Return the code of all installed signal handlers."""
    # Built in: a process may have lost the right to read the standard library.
    import _signal as signal  # type: ignore[import-not-found]

    installed = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [getattr(handler, "func", handler) for handler in installed if callable(handler)]  # `functools.partial`
    called = [function if hasattr(function, "__code__") else getattr(function, "__call__", None) for function in functions]  # noqa: B004
    return {code for function in called if (code := getattr(function, "__code__", None)) is not None}


def _raises(step: TracebackType) -> bool:
    """Return whether the instruction at which an exception began is a ``raise`` statement."""
    import dis

    return dis.opname[step.tb_frame.f_code.co_code[step.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
