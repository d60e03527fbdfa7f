"""``compcache pin`` and ``unpin``: keep functions from being pruned."""

from __future__ import annotations

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import Column, print_rows
from compcache.cli.session import Session, pass_session

__all__ = ["command", "unpin"]


@click.command("pin")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names)
@json_option
@pass_session
def command(session: Session, names: tuple[str, ...], as_json: bool) -> None:
    """Keep functions and their dependencies from being pruned; without NAME list the pinned functions.

    A function may be pinned before it is cached.
    """
    if names:
        with session.open() as cache:
            for name in [session.resolve(cache, name) for name in names]:
                cache.pin(name)
                if not cache.has(name):
                    click.echo(f"{name!r} is not in the cache; the pin takes effect when it is added", err=True)
    with session.look() as cache:
        pinned = cache.pinned()
    if as_json:
        print_json(list(pinned))
    elif not names:
        print_rows([Column("pinned", flexible=True)], [(name,) for name in pinned])


@click.command("unpin")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@json_option
@pass_session
def unpin(session: Session, names: tuple[str, ...], as_json: bool) -> int:
    """Let functions be pruned again. Exit status 1 if one was not pinned."""
    with session.change() as cache:
        missing = [name for name in names if not cache.unpin(session.resolve(cache, name))]
        pinned = cache.pinned()
    for name in missing:
        click.echo(f"{name!r} was not pinned", err=True)
    if as_json:
        print_json(list(pinned))
    return 1 if missing else 0
