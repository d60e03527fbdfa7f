"""Writes results: tables on a terminal, one record per line in a pipe, JSON on request."""

from __future__ import annotations

import os
import re
import sys
import time
from functools import lru_cache
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Self

import click

from compcache.cli.render.table import Column, table_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from compcache.batch.progress import TerminalBar

__all__ = [
    "PROGRAM",
    "QUIET",
    "Column",
    "ProgressBar",
    "age_text",
    "end_progress",
    "fullness",
    "id_text",
    "is_quiet",
    "is_terminal",
    "near_name",
    "note",
    "one_line",
    "plural",
    "print_code",
    "print_fields",
    "print_rows",
    "print_text",
    "printable",
    "say",
    "seconds_text",
    "short_id",
    "show_progress",
    "size_text",
    "style",
    "time_text",
]

PROGRAM = "compcache"
QUIET = "compcache.quiet"  # in the meta data of click's contexts
_KIB = 1024
_LONG, _STEP = 2_000, 512  # least modules for a progress bar, most between two calls
_MOMENT = 0.3  # seconds without a progress bar
_BATCH = 1_000  # records searched for control characters at once
_POINTER = re.compile(r"\s*[~^]+\s*")  # the line that marks an error's position in the code above it
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def printable(text: str) -> str:
    """Return a name on one line: control characters are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_text(text: str) -> None:
    """Print a text of any number of lines; on a terminal control characters are escaped, in a pipe it is unchanged."""
    click.echo("\n".join(map(_printable_line, text.split("\n"))) if is_terminal() and not text.isprintable() else text)


def is_quiet() -> bool:
    """Return whether -q was given: only results and errors are written."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def note(message: str) -> None:
    """Write a note on the results to standard error, unless -q was given."""
    if not is_quiet():
        click.echo(printable(message), err=True)


def print_code(text: str, language: str) -> None:
    """Print code, with syntax colours on a terminal; `language` is that of `compcache.cli.render.code`."""
    if style("x", bold=True) == "x":
        print_text(text)
        return
    from compcache.cli.render.code import highlighted

    click.echo("\n".join(highlighted(_printable_line(line), language) for line in text.rstrip("\n").split("\n")))


def _printable_line(line: str) -> str:
    return "\t".join(map(printable, line.split("\t")))


def print_rows(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; in a pipe only the rows, with fields separated by tabs."""
    if is_terminal():
        _print_table(columns, rows)
        return
    rest = iter(rows)
    while batch := list(islice(rest, _BATCH)):
        if not "".join(chain.from_iterable(batch)).isprintable():
            batch = [list(map(printable, row)) for row in batch]
        sys.stdout.write("\n".join(map("\t".join, batch)) + "\n")


def _print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    import shutil

    rows = list(rows)
    if not "".join(chain.from_iterable(rows)).isprintable():
        rows = [list(map(printable, row)) for row in rows]
    lines = table_lines(columns, rows, shutil.get_terminal_size().columns)
    click.echo(style("  ".join(next(lines)).rstrip(), bold=True))
    before, after = style("|", fg="cyan").split("|")
    while batch := list(islice(lines, _BATCH)):  # one write per batch: a terminal is line buffered
        texts = [f"{before}{first}{after}  {'  '.join(others)}".rstrip() for first, *others in batch]
        sys.stdout.write("\n".join(texts) + "\n")


def print_fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Print ``name: value`` lines, the values aligned on a terminal."""
    pairs = list(pairs)
    width = max((len(name) for name, _ in pairs), default=0) + 2 if is_terminal() else 0
    for name, value in pairs:
        click.echo(f"{style(name, bold=True)}:{' ' * max(width - len(name) - 1, 1)}{printable(value)}")


def style(text: str, **styles: Any) -> str:
    """Colour a text if it goes to a terminal and NO_COLOR is not set (https://no-color.org)."""
    plain = not is_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else click.style(text, **styles)


def id_text() -> Callable[[str], str]:
    """Return the function that shortens module_ids on a terminal; options that take a module_id accept a prefix."""
    return itemgetter(slice(12)) if is_terminal() else str


def short_id(module_id: str) -> str:
    """Return a module_id, shortened on a terminal."""
    return id_text()(module_id)


@lru_cache(maxsize=4096)
def size_text(size: float) -> str:
    """Return a number of bytes with a unit."""
    if size < _KIB:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= _KIB
        if size < _KIB:
            return f"{size:.1f} {unit}"
    return f"{size / _KIB:.1f} TiB"


def fullness(size: int, limit: int | None) -> str:
    """Return a size, and its share of the limit."""
    return f"{size_text(size)} of {size_text(limit)} ({size / limit:.1%})" if limit else f"{size_text(size)} without a limit"


@lru_cache(maxsize=4096)
def seconds_text(seconds: float) -> str:
    """Return a duration with a unit."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def age_text(since: float) -> str:
    """Return the time since `since` with a unit; empty if it is unknown."""
    return seconds_text(max(int(time.time() - since), 1)) if since else ""


def time_text(since: float) -> str:
    """Return a time as local date and time; empty if it is unknown."""
    return _local_time(int(since)) if since else ""


@lru_cache(maxsize=4096)
def _local_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


class ProgressBar:
    """The progress of one loop of a command, on a terminal: shown once it has taken a moment, removed at its end.

    Used as a context, so that whatever ends the loop removes the bar.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._bar: TerminalBar | None = None
        self._started = time.monotonic()
        self._is_shown = sys.stderr.isatty() and not is_quiet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, done: int, total: int) -> None:
        """Show how many are done."""
        seconds = time.monotonic() - self._started
        if not self._is_shown or (self._bar is None and seconds < _MOMENT):
            return
        if self._bar is None:
            from compcache.batch.progress import TerminalBar

            self._bar = TerminalBar(transient=True)
            self._bar.start()
        rate = done / seconds if seconds else 0.0
        self._bar.update(done, total, rate, (total - done) / rate if rate else None, self._text)


def show_progress(done: int, total: int) -> None:
    """Show how many modules a command has read, if it reads thousands on a terminal; the bar disappears at the end."""
    if total < _LONG:
        return
    bar = _reading.setdefault("bar", ProgressBar("modules read"))
    bar.update(done, total)
    if done + _STEP >= total:
        end_progress()


def end_progress() -> None:
    """Remove the bar of `show_progress`, if there is one: a command that fails must not leave it."""
    bar = _reading.pop("bar", None)
    if bar is not None:
        bar.__exit__()


#: The bar of `show_progress` while something is read: the facade calls a function, which has no other place to keep it.
_reading: dict[str, ProgressBar] = {}


def plural(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def say(kind: str, message: str) -> None:
    """Write a message to standard error: one line, and below it the code that LLVM or the linker quotes."""
    first, *others = message.splitlines() or [""]
    if not any(_POINTER.fullmatch(line) for line in others):
        first, others = one_line(message), []
    lines = [f"{PROGRAM}: {kind}: {printable(first)}", *[f"  {printable(line)}".rstrip() for line in others]]
    click.echo("\n".join(lines), err=True)


def one_line(message: str) -> str:
    """Join the lines of a message; lines that only mark a column are left out."""
    lines = [line.strip() for line in message.splitlines()]
    return " ".join(line for line in lines if line.strip("^~ "))


def near_name(name: str, known: Iterable[str], separator: str) -> str:
    """Return a "did you mean" with the nearest known name, after a separator; empty if none is near."""
    from difflib import get_close_matches

    found = get_close_matches(name, known, n=1)
    return f"{separator}did you mean {found[0]!r}?" if found else ""
