"""``compcache dir``: prints the cache directory."""

from __future__ import annotations

import click

from compcache.cli.output import print_text
from compcache.cli.session import Session, pass_session

__all__ = ["command"]


@click.command("dir", epilog='Example: du -sh "$(compcache dir)"')
@pass_session
def command(session: Session) -> None:
    """Print the cache directory, even if it does not exist yet."""
    print_text(str(session.directory))
