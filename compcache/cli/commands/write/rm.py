"""``compcache rm``: remove functions by name."""

from __future__ import annotations

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import groups_among, resolve_all
from compcache.cli.output import confirm_removal, plural, print_text, printable
from compcache.cli.session import Session, pass_session
from compcache.frontend import remove_functions

__all__ = ["command"]


@click.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names)
@click.option("-f", "--force", is_flag=True, help="Remove even if other functions need it or share its module.")
@click.option("--derived", is_flag=True, help="Remove only the linked images that `compcache link` made of the functions.")
@click.option("--dry-run", is_flag=True, help="Only show which functions would be removed, and why others would be kept.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before removing the matches of a pattern.")
@json_option
@pass_session
def command(session: Session, names: tuple[str, ...], force: bool, derived: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove functions with all their realizations.

    NAME is a function, a group, a label, which selects all functions of this label, or a glob over functions: 'old.*'. A function
    is kept if it shares its module with another function, if another function imports it, or if it is pinned. --force removes such
    functions, too. Programs that have loaded a function keep the code; in other programs, the function is a miss. The command asks
    before it removes the matches of a glob or label. Without a terminal, -y is required. Exit status 1 if a function was kept.
    """
    with session.open_to_read() as cache:
        groups = groups_among(cache, names)
        functions = [name for name in names if name not in groups]
        chosen = [*groups, *resolve_all(cache, functions)]
    if not yes and not dry_run and not derived and any(name not in chosen for name in names):
        confirm_removal(f"{plural(len(chosen), 'function')} from {printable(str(session.directory))}")
    with session.open_to_read() if dry_run else session.open_existing() as cache:
        removed, remaining = remove_functions(cache, chosen, force=force, derived=derived, dry_run=dry_run)
    for message in remaining.values():
        click.echo(printable(message), err=True)
    _print_removed([name for name in chosen if name in removed], removed, dry_run=dry_run, as_json=as_json)
    return 1 if remaining else 0


def _print_removed(functions: list[str], removed: dict[str, tuple[str, ...]], *, dry_run: bool, as_json: bool) -> None:
    """Print removed functions; with `dry_run`, as those that would be removed. If `as_json` is true, print them and the modules as JSON."""
    if as_json:
        modules = sorted({module_id for module_ids in removed.values() for module_id in module_ids})
        print_json({"functions": functions, "modules": modules, "dry_run": dry_run})
        return
    for name in functions:
        print_text(f"{'would remove' if dry_run else 'removed'} {name}")
