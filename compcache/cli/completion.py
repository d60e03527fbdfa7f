"""``compcache completion``: the script for completing commands, options and function names in a shell."""

from __future__ import annotations

import click

__all__ = ["command", "complete_names"]

_MAX_NAMES = 1_000
_SHELLS = {
    "bash": 'eval "$(compcache completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(compcache completion zsh)" in ~/.zshrc',
    "fish": "compcache completion fish > ~/.config/fish/completions/compcache.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    r"""Print the script that completes commands, options and function names in a shell.

    \b
    bash   eval "$(compcache completion bash)" in ~/.bashrc
    zsh    eval "$(compcache completion zsh)" in ~/.zshrc
    fish   compcache completion fish > ~/.config/fish/completions/compcache.fish
    """
    from click.shell_completion import get_completion_class

    from compcache.cli.output import PROGRAM

    found = get_completion_class(shell)
    assert found is not None  # click knows these three
    click.echo(found(ctx.find_root().command, {}, PROGRAM, "_COMPCACHE_COMPLETE").source())


def complete_names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The functions of the cache whose names start with `incomplete`."""
    from compcache.cli.session import Session
    from compcache.errors import CompcacheError

    root = ctx.find_root()
    here = ctx.find_object(Session)  # set by a --dir after the command
    session = here or Session(root.params.get("directory"), trust=bool(root.params.get("trust")))
    try:
        with session.look() as cache:
            names = [f.func_name for f in cache.functions(lambda name: name.startswith(incomplete) and name.isprintable())]
    except (CompcacheError, OSError):
        return []  # a message would disturb the shell's prompt
    return names[:_MAX_NAMES]
