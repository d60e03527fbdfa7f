"""``compcache export``: write functions and their dependencies to one file, a bundle."""

from __future__ import annotations

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import resolve_all
from compcache.cli.output import plural
from compcache.cli.session import Session, pass_session
from compcache.settings import PUBLISH_VARIABLE, setting

__all__ = ["command"]


@click.command("export")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names)
@click.option("-o", "--output", metavar="FILE", required=True, help="The bundle to write, like app.ccb.")
@click.option(
    "--closure/--no-closure", default=True, show_default=True, help="Include the functions that the named functions import, transitively."
)
@click.option("--targets", metavar="LIST", help="Include only the realizations that these CPUs use, e.g. x86-64-v2,x86-64-v3.")
@click.option("--minisign", is_flag=True, help="Also write FILE.minisig, the signature of the file, for `minisign -V`.")
@click.option("--linked", is_flag=True, help="Include the linked closures whose parts are all in the bundle.")
@json_option
@pass_session
def command(
    session: Session, names: tuple[str, ...], output: str, closure: bool, targets: str | None, minisign: bool, linked: bool, as_json: bool
) -> None:
    """Write functions to a bundle: a file that `compcache import` reads and that a cache can use as a layer.

    The same modules give the same bytes. With COMPCACHE_PUBLISH_KEY, the key signs the modules in the bundle.
    """
    if minisign and not setting(PUBLISH_VARIABLE):
        raise click.UsageError(
            f"--minisign requires a secret key: set {PUBLISH_VARIABLE} to the key, or to '@' and the path of a file with the key"
        )
    with session.open_to_read() as cache:
        functions = cache.export(resolve_all(cache, names), output, targets=targets, closure=closure, minisign=minisign, linked=linked)
    if as_json:
        print_json(list(functions))
    else:
        click.echo(f"{output}: {plural(len(functions), 'function')}", err=True)
