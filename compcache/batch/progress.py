"""Shows the progress of a batch: a bar on a terminal, plain lines elsewhere, or a caller's function."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self, TextIO

from compcache.batch.reports import BatchProgress, BuiltJob, CachedJob, FailedJob

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Display", "PlainLines", "TerminalBar", "progress_display"]

_NAME_WIDTH = 40
_SHOWN = 3
_FAST = 100  # items per second, from which on no decimals are shown
_KIB = 1024.0


class Display(AbstractContextManager["Display"]):
    """Shows nothing, or passes every `BatchProgress` to a function."""

    def __init__(self, function: Callable[[BatchProgress], object] | None = None) -> None:
        self._function = function

    def __call__(self, moment: BatchProgress) -> None:
        """Show the progress."""
        if self._function is not None:
            self._function(moment)

    def __exit__(self, *_: object) -> None:
        return


class PlainLines(Display):
    """Prints a line for each job that ends, for logs."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr

    def __call__(self, moment: BatchProgress) -> None:
        """Print the line of the job that has just ended."""
        if moment.last is not None:
            width = len(str(moment.total))
            print(f"[{moment.done:{width}}/{moment.total}] {describe(moment.last)}", file=self._stream, flush=True)


class TerminalBar:
    """The progress of anything on a terminal: a bar, how much is done, the rate, the time left, and a text.

    With `transient` the bar is removed at the end.
    """

    def __init__(self, *, transient: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = Console(stderr=True)
        columns = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("done", "rate", "left", "text")]
        self._progress = Progress(BarColumn(bar_width=30), *columns, console=self.console, transient=transient)
        self._task = self._progress.add_task("", total=None, done="", rate="", left="", text="")

    def start(self) -> None:
        """Show the bar, until it is stopped."""
        self._progress.start()

    def stop(self) -> None:
        """Show the bar no more."""
        self._progress.stop()

    def update(self, done: int, total: int, rate: float, left: float | None, text: str) -> None:
        """Show how far the work is: `rate` is in items per second, `left` in seconds."""
        self._progress.update(
            self._task, total=total, completed=done, done=f"{done:,}/{total:,}", text=text,
            rate=f"{rate:,.0f}/s" if rate >= _FAST else f"{rate:.1f}/s" if rate else "", left=f"{_clock(left)} left" if left else "",
        )  # fmt: skip


class Bar(Display):
    """A bar with the functions being compiled; failures are printed above it."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = TerminalBar()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __call__(self, moment: BatchProgress) -> None:
        """Update the bar."""
        if isinstance(moment.last, FailedJob):
            self._bar.console.print(describe(moment.last), markup=False, highlight=False, soft_wrap=True)
        self._bar.update(moment.done, moment.total, moment.rate, moment.remaining, _running(moment.running))

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def progress_display(progress: Callable[[BatchProgress], object] | bool | None) -> Display:
    """Return the display for the argument `progress` of `compile_many`."""
    if callable(progress):
        return Display(progress)
    if not progress:
        return Display()
    return Bar() if sys.stderr.isatty() else PlainLines()


def describe(record: BuiltJob | CachedJob | FailedJob) -> str:
    """Return a line about a job that has ended."""
    name = short_name(record.name)
    if isinstance(record, FailedJob):
        reason = " ".join(record.message.split())
        reason = reason if reason.isprintable() else repr(reason)[1:-1]
        return f"failed  {name}  {record.seconds:.3f} s  {reason}"
    kind = "built " if isinstance(record, BuiltJob) else "cached"
    return f"{kind}  {name}  {record.seconds:.3f} s  {record.size / _KIB:.1f} KiB"


def short_name(name: str) -> str:
    """Return a printable name that fits into a line."""
    text = name if name.isprintable() else repr(name)[1:-1]
    return text if len(text) <= _NAME_WIDTH else f"{text[: _NAME_WIDTH - 3]}..."


def _running(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(short_name, names[:_SHOWN]))
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
