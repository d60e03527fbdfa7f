"""``compcache top``: lists the most expensive functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, jsonl_option, print_json, print_json_lines
from compcache.cli.names import split
from compcache.cli.output import Column, is_terminal, note, print_rows, seconds_text, show_progress, size_text
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.usage.summaries import FunctionSummary, ModuleSummary

__all__ = ["Cost", "command", "costs"]

_KEYS = ("seconds", "size", "misses", "uses", "realizations")
_MOST = 20


class Cost(NamedTuple):
    """The cost of one function, or of all content-named functions with the same label.

    `seconds` is the compile time, `size` the bytes of its modules, `uses` their loads; those of a module with several
    functions are divided equally among them. `misses` are the requests that found no usable realization; `realizations` is
    the number of stored copies.
    """

    name: str
    seconds: float
    size: int
    misses: int
    uses: int
    realizations: int


def costs(modules: Iterable[ModuleSummary], functions: Iterable[FunctionSummary]) -> list[Cost]:
    """The costs of all functions, by name."""
    found: dict[str, list[float]] = {}
    for module in modules:
        share = 1 / max(len(module.functions), 1)
        for func_name, _ in module.functions:
            sums = found.setdefault(split(func_name)[0], [0.0, 0.0, 0, 0.0, 0])
            for position, value in enumerate((module.seconds * share, module.size * share, 0, module.uses * share, 1)):
                sums[position] += value
    for function in functions:
        if function.misses:
            found.setdefault(split(function.func_name)[0], [0.0, 0.0, 0, 0.0, 0])[2] += function.misses
    return [Cost(name, s[0], round(s[1]), int(s[2]), round(s[3]), int(s[4])) for name, s in sorted(found.items())]


@click.command("top")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=complete_names)
@click.option("--by", type=click.Choice(_KEYS), default="seconds", show_default=True, help="The cost to sort by.")
@click.option("-n", "--limit", type=click.IntRange(0), metavar="N", default=_MOST, show_default=True, help="Only the first N.")
@json_option
@jsonl_option
@pass_session
def command(session: Session, patterns: tuple[str, ...], by: str, limit: int, as_json: bool, as_lines: bool) -> None:
    """Show which functions cost most: seconds of compilation, bytes, misses, uses, stored copies.

    Functions named by content are added up under their label: a label with many misses and realizations has an identity that
    changes more often than it should. The cost of a module is divided equally among its functions; misses are counted for each
    function. PATTERN is a glob over names and labels. In a pipe each line is name, seconds, bytes, misses, uses and
    realizations, with tabs between them.
    """
    import fnmatch

    with session.read() as cache:
        found = costs(cache.modules(progress=show_progress), cache.functions(progress=show_progress))
        seconds = sum(cost.seconds for cost in found)
    if patterns:
        found = [cost for cost in found if any(fnmatch.fnmatchcase(cost.name, pattern) for pattern in patterns)]
    found.sort(key=lambda cost: -getattr(cost, by))
    shown = found[:limit]
    if as_lines or as_json:
        (print_json_lines if as_lines else print_json)(shown)
        return
    if shown or not is_terminal():
        _print(shown)
    if is_terminal():
        note(f"{len(shown)} of {len(found)} shown; the whole cache took {seconds_text(seconds)} to compile")


def _print(shown: list[Cost]) -> None:
    columns = [
        Column("function", flexible=True), Column("compiled in", True), Column("size", True), Column("misses", True, spare=1),
        Column("uses", True, spare=2), Column("copies", True, spare=3),
    ]  # fmt: skip
    seconds, size = (seconds_text, size_text) if is_terminal() else ("{:.6f}".format, str)
    rows = [(c.name, seconds(c.seconds), size(c.size), str(c.misses), str(c.uses), str(c.realizations)) for c in shown]
    print_rows(columns, rows)
