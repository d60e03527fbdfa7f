"""``compcache dir``: where the cache is."""

from __future__ import annotations

import click

from compcache.cli.output import print_text
from compcache.cli.session import Session, pass_session

__all__ = ["command"]


@click.command("dir", epilog='Example: du -sh "$(compcache dir)"')
@pass_session
def command(session: Session) -> None:
    """Print the cache directory, whether it is there yet or not."""
    print_text(str(session.directory))
