"""``compcache completion``: the script for completing commands, options and function names in a shell."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from click.shell_completion import CompletionItem

    from compcache.cache import Cache

__all__ = ["command", "complete_files", "complete_names", "complete_pinned"]

_MAX_NAMES = 1_000
_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and function names in a shell.

    Put one of the examples into ~/.bashrc or ~/.zshrc. For fish, write the script to ~/.config/fish/completions/compcache.fish.
    """
    from click.shell_completion import get_completion_class

    from compcache.cli.output import PROGRAM

    completion_class = get_completion_class(shell)
    assert completion_class is not None  # click knows these three
    click.echo(completion_class(ctx.find_root().command, {}, PROGRAM, "_COMPCACHE_COMPLETE").source())


def complete_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return up to 1,000 printable names of cached functions that start with `incomplete`; empty if the cache cannot be used."""
    from compcache.frontend import list_names

    return _query_cache(ctx, lambda cache: filter(str.isprintable, list_names(cache, incomplete, _MAX_NAMES)))


def complete_pinned(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return up to 1,000 printable names of pinned functions that start with `incomplete`; empty if the cache cannot be used."""
    return _query_cache(ctx, lambda cache: [name for name in cache.pinned() if name.startswith(incomplete) and name.isprintable()])


def _query_cache(ctx: click.Context, query: Callable[[Cache], Iterable[str]]) -> list[str]:
    """Return up to 1,000 names that `query` finds in the cache of this command line; no names if the cache cannot be opened or read."""
    from compcache.cli.session import Session
    from compcache.errors import CompcacheError

    root = ctx.find_root()
    chosen_here = ctx.find_object(Session)  # set by a --dir after the command
    session = chosen_here or Session(root.params.get("directory"), trust=bool(root.params.get("trust")))
    try:
        with session.open_or_assume_empty() as cache:
            return list(islice(query(cache), _MAX_NAMES))
    except (CompcacheError, OSError):
        return []  # a message would disturb the shell's prompt


def complete_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return one item that makes the shell complete file names."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]
