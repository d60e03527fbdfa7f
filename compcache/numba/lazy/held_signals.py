"""Holds back the program's signal handlers while an extension module is imported that a process can import only once.

A program without a cache imports Numba and NumPy before it runs. Here, the import may run inside a call. If a handler raised an exception
there, like `KeyboardInterrupt`, and the program caught it, then each later import of NumPy would fail.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found] # importing `signal` is slow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

__all__ = ["hold_signals"]


def hold_signals(work: Callable[[], object]) -> None:
    """Call a function, and run the handlers of the signals that arrive meanwhile after it. Only the main thread runs handlers."""
    import threading

    if threading.current_thread() is threading.main_thread():
        _HeldSignals().run(work)
    else:
        work()


class _HeldSignals:
    """The handlers of the program, and the signals that have arrived."""

    def __init__(self) -> None:
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
        self._is_held = True
        self._arrived: set[int] = set()

    def run(self, work: Callable[[], object]) -> None:
        """Call a function with the handlers held back."""
        try:
            for number in self._handlers:
                signal.signal(number, self._receive)
            work()
        finally:
            self._is_held = False  # from here on, a handler may raise an exception at any instruction
            self._restore(list(self._handlers))

    def _receive(self, number: int, frame: FrameType | None) -> Any:
        """Record a signal, or call the program's handler if it is not restored yet."""
        if self._is_held:
            self._arrived.add(number)
        else:
            self._handlers[number](number, frame)

    def _restore(self, numbers: list[int]) -> None:
        """Restore the handlers of these signals, unless the function has set others, and send the process the signals that have arrived."""
        if not numbers:
            return
        number, *others = numbers
        try:
            if signal.getsignal(number) == self._receive:
                signal.signal(number, self._handlers[number])
            if number in self._arrived:
                signal.raise_signal(number)
        finally:
            self._restore(others)
