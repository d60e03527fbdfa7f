"""The display of progress: a bar on a terminal, plain lines elsewhere, or calls of the caller's function."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from compcache.batch.reports import BatchProgress, BuiltJob, CachedJob, FailedJob
from compcache.wording import join_first, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Display", "PlainLines", "TerminalBar", "progress_display"]

_NAME_WIDTH = 40  # characters, before the dots that mark a cut
_SHOWN = 3  # names of running jobs
_FAST = 100  # items per second; a higher rate is shown without decimals
_KIB = 1024.0


class Display(AbstractContextManager["Display"]):
    """A display that passes every `BatchProgress` to the caller's function, or shows nothing without a function."""

    def __init__(self, function: Callable[[BatchProgress], object] | None = None) -> None:
        self._function = function

    def __call__(self, progress: BatchProgress) -> None:
        """Pass the progress to the function."""
        if self._function is not None:
            self._function(progress)

    def __exit__(self, *_: object) -> None:
        return


class PlainLines(Display):
    """A display that prints a line on standard error for each job that ends, for logs."""

    def __call__(self, progress: BatchProgress) -> None:
        """Print a line about the job that has just ended; print nothing after the start of a job."""
        if progress.last is not None:
            width = len(str(progress.total))
            sys.stderr.write(f"[{progress.done:{width}}/{progress.total}] {describe(progress.last)}\n")


class TerminalBar:
    """A progress bar on a terminal: done items, rate, remaining time, and a text. `stop` removes the bar if it is `transient`."""

    def __init__(self, *, transient: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = Console(stderr=True)
        columns = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("done", "rate", "left", "text")]
        self._progress = Progress(BarColumn(bar_width=30), *columns, console=self.console, transient=transient)
        self._task = self._progress.add_task("", total=None, done="", rate="", left="", text="")

    def start(self) -> None:
        """Show the bar until `stop` is called."""
        self._progress.start()

    def stop(self) -> None:
        """End the updates of the bar, and remove a transient bar."""
        self._progress.stop()

    def update(self, done: int, total: int, rate: float, remaining: float | None, text: str) -> None:
        """Show the state of the work.

        Args:
            done: the number of done items.
            total: the number of all items.
            rate: items per second; 0 is not shown.
            remaining: the remaining time in seconds; None is not shown.
            text: the text behind the bar.
        """
        decimals = 0 if rate >= _FAST else 1
        self._progress.update(
            self._task, total=total, completed=done, done=f"{done:,}/{total:,}", text=text,
            rate=f"{rate:,.{decimals}f}/s" if rate else "", left=f"{_duration_text(remaining)} left" if remaining else "",
        )  # fmt: skip


class Bar(Display):
    """A display with a bar and the names of running jobs. Failures are printed above the bar."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = TerminalBar()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __call__(self, progress: BatchProgress) -> None:
        """Update the bar. If the job that has just ended failed, print its failure above the bar."""
        if isinstance(progress.last, FailedJob):
            self._bar.console.print(describe(progress.last), markup=False, highlight=False, soft_wrap=True)
        running = join_first(map(_printable_name, progress.running), _SHOWN)
        self._bar.update(progress.done, progress.total, progress.rate, progress.remaining, running)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def progress_display(progress: Callable[[BatchProgress], object] | bool | None) -> Display:
    """Return the display for the argument `progress` of `compile_many`: that function, a bar or lines for True, nothing otherwise."""
    if callable(progress):
        return Display(progress)
    if not progress:
        return Display()
    return Bar() if sys.stderr.isatty() else PlainLines()


def describe(record: BuiltJob | CachedJob | FailedJob) -> str:
    """Return a line about a job that has ended: result, name, seconds, and size or reason of the failure."""
    name = _printable_name(record.name)
    if isinstance(record, FailedJob):
        reason = " ".join(record.message.split())
        reason = reason if reason.isprintable() else repr(reason)[1:-1]
        return f"failed  {name}  {record.seconds:.3f} s  {reason}"
    kind = "built " if isinstance(record, BuiltJob) else "cached"
    return f"{kind}  {name}  {record.seconds:.3f} s  {record.size / _KIB:.1f} KiB"


def _printable_name(name: str) -> str:
    """Return a name with control characters escaped, cut after 40 characters."""
    return shorten(name if name.isprintable() else repr(name)[1:-1], _NAME_WIDTH)


def _duration_text(seconds: float) -> str:
    """Return a duration as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest_seconds = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{rest_seconds:02}" if hours else f"{minute}:{rest_seconds:02}"
