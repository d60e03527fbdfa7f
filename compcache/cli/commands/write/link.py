"""``compcache link``: links the code of several modules into one image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import resolve_all
from compcache.cli.output import plural, print_text, printable
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.maintain.report_types import LinkReport

__all__ = ["command"]


@click.command("link")
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=complete_names)
@click.option("--all", "all_functions", is_flag=True, help="Link all functions.")
@click.option("--into", metavar="SET", help="Make one image for all of them, of this name.")
@json_option
@pass_session
def command(session: Session, names: tuple[str, ...], all_functions: bool, into: str | None, as_json: bool) -> int:
    """Link the code that functions reach in several modules.

    NAME is a function, a label, which stands for all functions that have it, or a glob over functions. The image has the code of
    all that a function calls, optimized as one program; variables stay in their modules. Loads use it for as long as nothing newer
    has one of the names in it. Exit status 1 if a function was not linked.
    """
    if bool(names) == all_functions:
        raise click.UsageError("give the names of functions, or --all")
    with session.change() as cache:
        report = cache.link(None if all_functions else resolve_all(cache, names), into=into)
    if as_json:
        rows = [{"module_id": c.module_id, "functions": c.functions, "module_ids": c.parts, "size": c.size} for c in report.linked]
        print_json({"linked": rows, "left": report.left})
    else:
        _print(report, told_all=not all_functions)
    return 1 if report.left and not all_functions else 0


def _print(report: LinkReport, *, told_all: bool) -> None:
    for closure in report.linked:
        shown = closure.functions[0] if len(closure.functions) == 1 else plural(len(closure.functions), "function")
        print_text(f"linked {shown} with code of {plural(len(closure.parts), 'module')}")
    for name, reason in report.left.items() if told_all else ():
        click.echo(printable(f"{name} was not linked: {reason}"), err=True)
