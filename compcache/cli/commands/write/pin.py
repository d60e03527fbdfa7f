"""``compcache pin`` and ``compcache unpin``: protect functions from pruning, and end the protection."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names, complete_pinned
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import resolve_all
from compcache.cli.output import Column, print_note, print_rows
from compcache.cli.session import Session, pass_session
from compcache.identity import label_of

if TYPE_CHECKING:
    from compcache.cache import Cache

__all__ = ["command", "unpin"]


@click.command("pin")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names)
@json_option
@pass_session
def command(session: Session, names: tuple[str, ...], as_json: bool) -> None:
    """Protect functions and their dependencies from pruning; without NAME, list the pinned functions.

    NAME is a function, a label, a group or a glob. A function may be pinned before it is cached.
    """
    if names:
        with session.open_or_create() as cache:
            for name in resolve_all(cache, names, missing_ok=True):
                cache.pin(name)
                if not cache.has(name):
                    print_note(f"{name!r} is not in the cache; the pin takes effect when the function is added")
    with session.open_or_assume_empty() as cache:
        pinned = cache.pinned()
    if as_json:
        print_json(list(pinned))
    elif not names:
        print_rows([Column("pinned", flexible=True)], [(name,) for name in pinned])


@click.command("unpin")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_pinned)
@json_option
@pass_session
def unpin(session: Session, names: tuple[str, ...], as_json: bool) -> int:
    """Allow the pruning of functions again. NAME is a pinned function, a label or a glob. Exit status 1 if a NAME was not pinned."""
    with session.open_existing() as cache:
        missing = [name for name in _matching_pins(cache, names) if not cache.unpin(name)]
        pinned = cache.pinned()
    for name in missing:
        print_note(f"{name!r} was not pinned")
    if as_json:
        print_json(list(pinned))
    return 1 if missing else 0


def _matching_pins(cache: Cache, names: tuple[str, ...]) -> list[str]:
    """Return the pinned functions that match NAMEs, cached or not, and the NAMEs that match no pinned function."""
    pinned = cache.pinned()
    chosen: dict[str, None] = {}
    for name in names:
        matching = [pin for pin in pinned if fnmatch.fnmatchcase(pin, name) or label_of(pin) == name]
        chosen.update(dict.fromkeys([name] if name in pinned or not matching else matching))
    return list(chosen)
