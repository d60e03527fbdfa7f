"""Functions that format and write results and messages: tables on a terminal, one record per line in a pipe."""

from __future__ import annotations

import os
import re
import sys
import time
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache
from io import StringIO
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Self

import click

from compcache.cli.render.table import Column, table_lines
from compcache.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from compcache.batch.progress import TerminalBar

__all__ = [
    "PROGRAM", "QUIET", "Column", "ProgressBar", "age_text", "cell_texts", "confirm_removal", "did_you_mean", "end_progress",
    "fullness_text", "is_quiet", "is_terminal", "join_lines", "other_formats_text", "output_file", "plural", "print_code", "print_fields",
    "print_message", "print_note", "print_rows", "print_text", "printable", "seconds_text", "short_id", "show_progress", "size_text",
    "style", "time_text",
]  # fmt: skip

PROGRAM = "compcache"
QUIET = "compcache.quiet"  # a key in the `meta` of a context of click
_KIB = 1024
_LEAST_MODULES = 2_000  # for a progress bar
_MOST_PER_CALL = 512  # modules between two calls of `show_progress`
_DELAY = 0.3  # seconds before a progress bar appears
_BATCH = 1_000  # records searched for control characters at once
_FIRST_BATCH = 64  # as many as a listing reads first
_POINTER = re.compile(r"\s*[~^]+\s*")  # a line that marks the position of an error in the line above
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def printable(text: str) -> str:
    """Return a text with every control character, line breaks included, as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_text(text: str) -> None:
    """Print a text of one or more lines. On a terminal, control characters are escaped; in a pipe, the text is unchanged."""
    click.echo("\n".join(map(_printable_line, text.split("\n"))) if is_terminal() and not text.isprintable() else text)


def is_quiet() -> bool:
    """Return whether -q was given: then only results and errors are written."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def print_note(message: str) -> None:
    """Write a remark about the results to standard error, unless -q was given."""
    if not is_quiet():
        click.echo(printable(message), err=True)


def print_code(text: str, language: str) -> None:
    """Print code, with syntax colours on a terminal. `language` is Pygments' name of the language: ``llvm`` or ``gas``."""
    if style("x", bold=True) == "x":  # `style` adds no codes here
        print_text(text)
        return
    from pygments import highlight
    from pygments.formatters import TerminalFormatter
    from pygments.lexers import get_lexer_by_name

    printable_text = "\n".join(map(_printable_line, text.rstrip("\n").split("\n")))
    click.echo(highlight(printable_text, get_lexer_by_name(language, stripnl=False), TerminalFormatter()), nl=False)


def _printable_line(line: str) -> str:
    """Return a line with the escape sequences of characters that cannot be printed, and with its tabs."""
    return "\t".join(map(printable, line.split("\t")))


def print_rows(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on a terminal. In a pipe, print only the rows, with a tab between two fields. Control characters are escaped.

    The first rows are written early, because a reader like `head` may close the pipe after some lines.
    """
    if is_terminal():
        _print_table(columns, rows)
        return
    remaining, size = iter(rows), _FIRST_BATCH
    while batch := list(islice(remaining, size)):
        if not "".join(chain.from_iterable(batch)).isprintable():
            batch = [list(map(printable, row)) for row in batch]
        sys.stdout.write("\n".join(map("\t".join, batch)) + "\n")
        sys.stdout.flush()
        size = min(2 * size, _BATCH)


def _print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, if possible within the width of the terminal, with control characters escaped."""
    import shutil

    rows = list(rows)
    if not "".join(chain.from_iterable(rows)).isprintable():
        rows = [list(map(printable, row)) for row in rows]
    lines = table_lines(columns, rows, shutil.get_terminal_size().columns)
    click.echo(style("  ".join(next(lines)).rstrip(), bold=True))
    bar_start, bar_end = style("|", fg="cyan").split("|")  # the codes before and after a first cell
    while batch := list(islice(lines, _BATCH)):  # one write per batch: a terminal is line buffered
        texts = [f"{bar_start}{first_cell}{bar_end}  {'  '.join(other_cells)}".rstrip() for first_cell, *other_cells in batch]
        sys.stdout.write("\n".join(texts) + "\n")


def print_fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Print a ``name: value`` line for each pair, with control characters in the value escaped. On a terminal, the values are aligned."""
    pairs = list(pairs)
    width = max((len(name) for name, _ in pairs), default=0) + 2 if is_terminal() else 0
    for name, value in pairs:
        click.echo(f"{style(name, bold=True)}:{' ' * max(width - len(name) - 1, 1)}{printable(value)}")


@contextmanager
def output_file(path: str | None) -> Iterator[None]:
    """Write what the block prints to a file when the block has ended without an exception. None and "-" stand for standard output."""
    if path in (None, "-"):
        yield
        return
    text = StringIO()
    with redirect_stdout(text):
        yield
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text.getvalue())


def style(text: str, **styles: Any) -> str:
    """Return a text with colour codes; unchanged without a terminal, on a dumb one, or with NO_COLOR (https://no-color.org)."""
    plain = not is_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else click.style(text, **styles)


def short_id(module_id: str) -> str:
    """Return the first 12 digits of a module_id on a terminal, which commands accept, and all digits in a pipe."""
    return module_id[:12] if is_terminal() else module_id


def cell_texts() -> tuple[Callable[[str], str], Callable[[int], str], Callable[[float], str]]:
    """Return functions for the cells of a table: module_ids, sizes and times. On a terminal, they are short, and times are ages."""
    return (itemgetter(slice(12)), size_text, age_text) if is_terminal() else (str, str, time_text)


def other_formats_text(names: Sequence[str]) -> str:
    """Return the text about directories of other formats: their names, and how to remove them."""
    return f"{', '.join(names)}: not used by this version; 'compcache prune --stale 0s' removes them"


@lru_cache(maxsize=4096)
def size_text(size: float) -> str:
    """Return a number of bytes with a unit: ``512 B``, ``1.5 MiB``."""
    if size < _KIB:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= _KIB
        if size < _KIB:
            return f"{size:.1f} {unit}"
    return f"{size / _KIB:.1f} TiB"


def fullness_text(size: int, limit: int | None) -> str:
    """Return a size in bytes as text, with its share of the limit. None and 0 are no limit."""
    return f"{size_text(size)} of {size_text(limit)} ({size / limit:.1%})" if limit else f"{size_text(size)} without a limit"


@lru_cache(maxsize=4096)
def seconds_text(seconds: float) -> str:
    """Return a duration with a unit: ``3.2 ms``, ``90 s``, ``2 h``."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def age_text(since: float) -> str:
    """Return the time since `since` (seconds since the epoch) with a unit; empty if `since` is 0, which means unknown."""
    return seconds_text(max(int(time.time() - since), 1)) if since else ""


def time_text(since: float) -> str:
    """Return `since` (seconds since the epoch) as local date and time; empty if `since` is 0, which means unknown."""
    return _local_time(int(since)) if since else ""


@lru_cache(maxsize=4096)
def _local_time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


class ProgressBar:
    """A progress bar for one loop of a command, on a terminal only. It appears when the loop has run for 0.3 seconds.

    This is a context manager. The bar is removed at the end of the block, even if an exception ends the block.
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
        """Show that `done` of `total` items are done."""
        seconds = time.monotonic() - self._started
        if not self._is_shown or (self._bar is None and seconds < _DELAY):
            return
        if self._bar is None:
            from compcache.batch.progress import TerminalBar

            self._bar = TerminalBar(transient=True)
            self._bar.start()
        rate = done / seconds if seconds else 0.0
        self._bar.update(done, total, rate, (total - done) / rate if rate else None, self._text)


def show_progress(done: int, total: int) -> None:
    """Show on a terminal that `done` of `total` modules are read, if `total` is 2,000 or more. The bar disappears at the end."""
    if total < _LEAST_MODULES:
        return
    bar = _progress_bar.setdefault("bar", ProgressBar("modules read"))
    bar.update(done, total)
    if done + _MOST_PER_CALL >= total:
        end_progress()


def end_progress() -> None:
    """Remove the bar of `show_progress` if it is shown. A command that fails must not leave a bar."""
    bar = _progress_bar.pop("bar", None)
    if bar is not None:
        bar.__exit__()


#: The bar of `show_progress` between two calls. The cache calls a plain function, which has no other place for the bar.
_progress_bar: dict[str, ProgressBar] = {}


def print_message(kind: str, message: str) -> None:
    """Write ``compcache: KIND: MESSAGE`` to standard error, on one line.

    The code that a message of LLVM or the linker quotes is written below that line.
    """
    first_line, *quoted = message.splitlines() or [""]
    if not any(_POINTER.fullmatch(line) for line in quoted):
        first_line, quoted = join_lines(message), []
    lines = [f"{PROGRAM}: {kind}: {printable(first_line)}", *[f"  {printable(line)}".rstrip() for line in quoted]]
    click.echo("\n".join(lines), err=True)


def confirm_removal(text: str, *, advice: str = "") -> None:
    """Ask whether to remove the modules or functions that `text` describes. `advice` is the end of the message without a terminal.

    Raises:
        click.UsageError: there is no terminal to ask on.
        click.Abort: the answer is no.
    """
    if not sys.stdin.isatty():
        raise click.UsageError(f"confirmation requires a terminal: give --yes to remove {text}{advice}")
    click.confirm(f"Remove {text}?", abort=True, err=True)


def join_lines(message: str) -> str:
    """Return the lines of a message as one line, without lines that only mark a column."""
    lines = [line.strip() for line in message.splitlines()]
    return " ".join(line for line in lines if line.strip("^~ "))


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "did you mean" and the known name nearest to `name`, after a comma; empty if no known name is similar."""
    from difflib import get_close_matches

    nearest = get_close_matches(name, names, n=1)
    return f", did you mean {nearest[0]!r}?" if nearest else ""
