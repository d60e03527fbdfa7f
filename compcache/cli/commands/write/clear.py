"""``compcache clear``: remove every module from the cache."""

from __future__ import annotations

import click

from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import confirm_removal, plural, printable, size_text
from compcache.cli.session import Session, pass_session

__all__ = ["command"]


@click.command("clear")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option
@pass_session
def command(session: Session, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove every module from the cache.

    Loaded code stays loaded; later look-ups are misses. The command asks for confirmation, unless -y is given. Without a terminal,
    -y is required.
    """
    with session.open_to_read() as cache:
        info = cache.info()
    modules, size = info.modules, info.size
    text = f"{plural(modules, 'module')} ({size_text(size)}) in {printable(str(session.directory))}"
    if not dry_run and modules:
        if not yes:
            confirm_removal(text)
        with session.open_existing() as cache:
            cache.clear()
    if as_json:
        print_json({"modules": modules, "size": size, "dry_run": dry_run})
    else:
        click.echo(f"{'would remove' if dry_run else 'removed'} {text}")
