"""``compcache rm``: remove functions by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import groups_among, resolve_all
from compcache.cli.output import confirm_removal, plural, print_text, printable
from compcache.cli.session import Session, pass_session
from compcache.errors import FunctionInUseError, NotCachedError

if TYPE_CHECKING:
    from compcache.cache import Cache

__all__ = ["command"]


@click.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names)
@click.option("-f", "--force", is_flag=True, help="Remove even if other functions need it or share its module.")
@click.option("--derived", is_flag=True, help="Remove only the linked images that `compcache link` made of the functions.")
@click.option("--dry-run", is_flag=True, help="Only show the chosen functions, also those that would be kept.")
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
        chosen = [*groups, *(resolve_all(cache, functions) if functions else ())]
    if dry_run:
        _print_removed(chosen, [], "would remove", as_json=as_json)
        return 0
    if derived:
        return _remove_derived(session, chosen, as_json=as_json)
    if not yes and any(name not in chosen for name in names):
        confirm_removal(f"{plural(len(chosen), 'function')} from {printable(str(session.directory))}")
    with session.open_existing() as cache:
        removed, remaining = _remove_functions(cache, chosen, force=force)
    for message in remaining.values():
        click.echo(printable(message), err=True)
    modules = sorted({module_id for module_ids in removed.values() for module_id in module_ids})
    _print_removed([name for name in chosen if name in removed], modules, "removed", as_json=as_json)
    return 1 if remaining else 0


def _remove_derived(session: Session, names: list[str], *, as_json: bool) -> int:
    """Remove the linked images of functions, print which functions had one (as JSON if `as_json` is true), and return exit status 0."""
    with session.open_existing() as cache:
        removed = {name: cache.remove(name, derived=True) for name in names}
    modules = sorted({module_id for module_ids in removed.values() for module_id in module_ids})
    _print_removed([name for name in names if removed[name]], modules, "removed", as_json=as_json)
    return 0


def _remove_functions(cache: Cache, names: list[str], *, force: bool) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Remove functions and groups, importers before the functions that they import. See `Cache.remove` for `force`.

    Return the removed modules by name, and the reason for each function or group that was kept.
    """
    removed: dict[str, tuple[str, ...]] = {}
    reasons = dict.fromkeys(names, "")
    progress = True
    while progress:
        progress = False
        for name in list(reasons):
            try:
                removed[name] = cache.remove(name, force)
            except NotCachedError:
                removed[name] = ()  # removed with another function's module
            except FunctionInUseError as error:
                reasons[name] = str(error)
                continue
            del reasons[name]
            progress = True
    return removed, reasons


def _print_removed(functions: list[str], modules: list[str], verb: str, *, as_json: bool) -> None:
    """Print the functions, each after `verb`: "removed" or "would remove". If `as_json` is true, print functions and modules as JSON."""
    if as_json:
        print_json({"functions": functions, "modules": modules, "dry_run": verb != "removed"})
        return
    for name in functions:
        print_text(f"{verb} {name}")
