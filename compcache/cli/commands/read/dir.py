"""``compcache dir``: print the cache directory."""

from __future__ import annotations

import click

from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import print_text
from compcache.cli.session import Session, pass_session

__all__ = ["command"]


@click.command("dir")
@json_option
@pass_session
def command(session: Session, as_json: bool) -> None:
    """Print the cache directory, even if it does not exist yet."""
    if as_json:
        print_json({"directory": session.directory, "chosen_by": session.chosen_by})
    else:
        print_text(session.directory)
