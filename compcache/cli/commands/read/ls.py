"""``compcache ls``: list the functions, modules or refused functions of a cache."""

from __future__ import annotations

import fnmatch
import heapq
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from compcache.cli.jsontext import json_option, jsonl_option, print_json, print_json_lines
from compcache.cli.names import common_prefix, literal_prefix, short_name, split_name
from compcache.cli.output import Column, age_text, cell_texts, is_terminal, print_rows, printable, show_progress, size_text, time_text
from compcache.cli.session import Session, pass_session
from compcache.frontend import list_entries, list_functions, list_modules, list_uncached
from compcache.identity import label_of
from compcache.publish.module_lists import base_of
from compcache.usage.summaries import FunctionSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from compcache.cache import Cache
    from compcache.inspect.uncached import Refusal
    from compcache.usage.summaries import EntrySummary, ModuleSummary

__all__ = ["command"]

#: The columns that a table of functions has only if one of their cells is not empty.
_OPTIONAL_COLUMNS = ("identity", "with", "problem", "in")
_SORTS: dict[str, Callable[[Any], Any]] = {
    "name": lambda row: row[0],
    "size": lambda row: -getattr(row, "size", 0),
    "age": lambda row: -row.created,
    "uses": lambda row: -getattr(row, "uses", 0),
    "last-use": lambda row: -getattr(row, "last_used", 0.0),
}


@click.command("ls")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--modules", "by_module", is_flag=True, help="List modules instead of functions.")
@click.option("-a", "--all", "is_unfolded", is_flag=True, help="List each variant, each part and each entry of data on its own row.")
@click.option("--uncached", "is_refused", is_flag=True, help="List functions that were compiled and not cached, with the reason.")
@click.option(
    "--sort", type=click.Choice(list(_SORTS)), default="name", show_default=True,
    help="The order. The largest, newest or most used rows come first.",
)  # fmt: skip
@click.option("-r", "--reverse", is_flag=True, help="Reverse the order.")
@click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="List only the first N rows.")
@json_option
@jsonl_option
@pass_session
def command(
    session: Session, patterns: tuple[str, ...], by_module: bool, is_unfolded: bool, is_refused: bool, sort: str, reverse: bool,
    limit: int | None, as_json: bool, as_lines: bool,
) -> None:  # fmt: skip
    """List the functions of the cache, its modules (--modules), or the functions that it refused to cache (--uncached).

    The functions of a label are one row. The row counts their parts, such as loops and wrappers, and their entries of data.
    PATTERN is a glob over function names and labels of content names: 'linalg.*', '*dot*'. Several PATTERNs are alternatives.
    With --modules, a PATTERN selects modules that hold a matching function, and modules whose id starts with the PATTERN.

    On a terminal, a content name is shown as its label and its identity, the first digits; 'label-digits' is a NAME. A label
    with several variants is shown with their number. In a pipe each line is one record with tabs between the fields: name (the
    label of several variants), signature, realizations, size in bytes, time, uses, time of the last use, problem. If there are
    layers, the directories follow. The signature of an entry of data (--all) is 'entry' and its kind.
    """
    if is_refused and (by_module or is_unfolded):
        raise click.UsageError("--uncached cannot be combined with --modules or --all")
    with session.open_to_read() as cache:
        rows = _read_rows(cache, patterns, by_module=by_module, is_unfolded=is_unfolded, is_refused=is_refused)
        rows = islice(_sort_rows(rows, sort, reverse=reverse, limit=limit, is_refused=is_refused), limit)
        listed = list(rows) if is_terminal() else rows  # in a pipe, rows are printed while they are read
        if as_lines:
            print_json_lines(listed)
        elif not listed and not as_json:
            if limit != 0:
                click.echo(_nothing_found_text(session.directory, patterns, is_refused=is_refused), err=True)
        elif as_json:
            print_json(list(listed))
        elif is_refused:
            _print_refusals(listed)
        elif by_module:
            _print_modules(listed, cache.layers)
        else:
            _print_functions(listed, cache.layers)


def _nothing_found_text(directory: str, patterns: tuple[str, ...], *, is_refused: bool) -> str:
    """Return the message for an empty listing of functions or modules, or, if `is_refused` is true, of refused functions."""
    if patterns:
        return f"nothing matches in {printable(directory)}"
    return f"nothing {'was refused' if is_refused else 'is cached'} in {printable(directory)}"


def _sort_rows(rows: Iterator[Any], sort: str, *, reverse: bool, limit: int | None, is_refused: bool) -> Iterator[Any]:
    """Return the rows in the order `sort`, the value of --sort, or in the opposite order if `reverse` is true.

    Rows of functions and modules may not fit into memory, so if they are sorted, return only the first `limit` of them. Rows in the order
    of their names, and rows of refused functions (`is_refused`), are all returned.
    """
    if sort == "name" and not reverse:
        return rows  # rows are read in the order of their names
    key = _SORTS[sort] if sort != "name" else lambda _: 0
    if is_refused:
        refused = sorted(rows, key=key)
        return iter(refused[::-1] if reverse else refused)
    from compcache.usage.sorting import in_order

    return in_order(rows, key, reverse=reverse, limit=limit)


def _read_rows(cache: Cache, patterns: tuple[str, ...], *, by_module: bool, is_unfolded: bool, is_refused: bool) -> Iterator[Any]:
    """Return an iterator over the selected rows, which are read in the order of their names.

    The rows are the refused functions if `is_refused` is true, else the modules if `by_module` is true, else the functions. If
    `is_unfolded` is true, the rows of functions are not combined by label, and include the entries of data.
    """
    matches = _make_matcher(patterns) if patterns else None
    if is_refused:
        refusals = [row for row in list_uncached(cache) if not matches or matches(row.name)]
        return iter(sorted(refusals, key=lambda row: row.name))
    if by_module:
        modules = list_modules(cache, progress=show_progress)
        if not matches:
            return iter(modules)
        return (row for row in modules if row.module_id.startswith(patterns) or any(matches(name) for name, _ in row.functions))
    rows: Iterator[Any] = list_functions(cache, literal_prefix(patterns), matches, folded=not is_unfolded, progress=show_progress)
    if not is_unfolded:
        return rows
    entries = [entry for entry in list_entries(cache) if not matches or matches(entry.name)]
    return heapq.merge(rows, entries, key=lambda row: (base_of(row[0]), row[0]))


def _make_matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Return a predicate for names. It is true if the name or its label matches one of the globs."""
    match = re.compile("|".join(map(fnmatch.translate, patterns))).match
    return lambda name: match(name) or ("-" in name and match(label_of(name) or name))


def _as_function(row: FunctionSummary | EntrySummary) -> FunctionSummary:
    """Convert an entry of data to a row for the table of functions. Return a function unchanged."""
    if isinstance(row, FunctionSummary):
        return row
    return FunctionSummary(
        row.name, f"entry {row.kind}", realizations=1, size=row.size, created=row.created, problem="", modules=(row.module_id,), uses=0,
        last_used=0.0, directories=(row.directory,), misses=0,
    )  # fmt: skip


def _print_refusals(rows: Iterable[Refusal]) -> None:
    """Print a table of the functions that the cache refused, with the reasons."""
    columns = [Column("function", flexible=True), Column("age", True), Column("reason", flexible=True)]
    _, _, age = cell_texts()
    print_rows(columns, [(row.name, age(row.created), row.reason) for row in rows])


def _print_functions(rows: Iterable[FunctionSummary | EntrySummary], layers: tuple[str, ...]) -> None:
    """Print functions and entries of data: a table on a terminal, one record per line in a pipe."""
    if is_terminal():
        _print_function_table(rows, layers)
        return
    print_rows([], (_record_of(row, with_directories=bool(layers)) for row in map(_as_function, rows)))


def _record_of(row: FunctionSummary, *, with_directories: bool) -> tuple[str, ...]:
    """Return the fields of a function for a line in a pipe. If `with_directories` is true, the last field is the directories."""
    name, signature, copies, size, created, problem, _modules, uses, last_used, directories, *_ = row
    record = name, signature, str(copies), str(size), time_text(created), str(uses), time_text(last_used), problem
    return (*record, " ".join(directories)) if with_directories else record


def _print_function_table(listed: Iterable[FunctionSummary | EntrySummary], layers: tuple[str, ...]) -> None:
    """Print a table of functions and entries of data, without columns that would be empty."""
    rows = [*map(_as_function, listed)]
    names = [split_name(row.func_name) if row.variants == 1 else (row.func_name, f"{row.variants} variants") for row in rows]
    prefix = common_prefix([label for label, _ in names])
    table = [
        (Column(f"function ({prefix}…)" if prefix else "function", flexible=True), [label[len(prefix) :] for label, _ in names]),
        (Column("identity"), [identity for _, identity in names]),
        (Column("signature", flexible=True, spare=2), [row.signature for row in rows]),
        (Column("copies", True, spare=4), [str(row.realizations) for row in rows]),
        (Column("size", True), [size_text(row.size) for row in rows]),
        (Column("age", True, spare=3), [age_text(row.created) for row in rows]),
        (Column("uses", True, spare=1), [str(row.uses) for row in rows]),
        (Column("last use", True), [age_text(row.last_used) for row in rows]),
        (Column("with", spare=2), [_attachments_text(row.parts, row.entries) for row in rows]),
        (Column("problem", flexible=True), [row.problem for row in rows]),
        (Column("in", flexible=True), [" ".join(row.directories) if layers else "" for row in rows]),
    ]
    shown_columns = [(column, cells) for column, cells in table if column.head not in _OPTIONAL_COLUMNS or any(cells)]
    print_rows([column for column, _ in shown_columns], zip(*[cells for _, cells in shown_columns], strict=True))


def _attachments_text(parts: int, entries: int) -> str:
    """Return the numbers of a function's parts and data entries as text. A number of 0 is left out."""
    counts = (parts, "part", "parts"), (entries, "entry", "entries")
    return ", ".join(f"{number} {singular if number == 1 else plural}" for number, singular, plural in counts if number)


def _print_modules(rows: Iterable[ModuleSummary], layers: tuple[str, ...]) -> None:
    """Print a table of modules, with the directory of each module if there are layers."""
    columns = [
        Column("module"), Column("functions", True, spare=2), Column("size", True), Column("age", True, spare=3),
        Column("uses", True, spare=1), Column("last use", True), Column("cpu", spare=4), Column("llvm", spare=5),
        Column("image", spare=6), Column("holds", flexible=True),
    ]  # fmt: skip
    if layers:
        columns.append(Column("in", flexible=True))
    shorten, size, age = cell_texts()
    names_text = _short_names if is_terminal() else " ".join

    def make_cells(row: ModuleSummary) -> tuple[str, ...]:
        """Return the cells of a module's row."""
        names = [name for name, _ in row.functions]
        cells = (
            shorten(row.module_id), str(len(names)), size(row.size), age(row.created), str(row.uses), age(row.last_used), row.cpu,
            row.llvm_version, row.image_kind, names_text(names),
        )  # fmt: skip
        return (*cells, row.directory) if layers else cells

    print_rows(columns, map(make_cells, rows))


def _short_names(names: list[str]) -> str:
    """Return the first function name of a module and the number of the other names as text, for a terminal."""
    if not names:
        return ""
    first, *others = names
    return short_name(first) + (f" +{len(others)}" if others else "")
