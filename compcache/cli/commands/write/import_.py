"""``compcache import``: add the functions of bundles to the cache."""

from __future__ import annotations

import click

from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import plural
from compcache.cli.session import Session, pass_session
from compcache.signing.keys import trusted_keys

__all__ = ["command"]


@click.command("import")
@click.argument("bundles", metavar="FILE...", nargs=-1, required=True)
@click.option("--unsigned", is_flag=True, help="Import modules without a signature by a trusted key, too.")
@json_option
@pass_session
def command(session: Session, bundles: tuple[str, ...], unsigned: bool, as_json: bool) -> None:
    """Add the functions of bundles to the cache.

    Each module is checked against its digest. If there are trusted keys (`compcache key trust`, COMPCACHE_TRUSTED_KEYS), a trusted
    key must have signed the module. Modules with pickled values always require a signature by a trusted key.
    """
    trusted = None if unsigned else [str(key) for key in trusted_keys() or ()]
    imported: list[str] = []
    with session.open_or_create() as cache:
        for bundle in bundles:
            functions = cache.import_bundle(bundle, trusted_keys=trusted)
            imported += functions
            if not as_json:
                click.echo(f"{bundle}: {plural(len(functions), 'function')}", err=True)
    if as_json:
        print_json(sorted(set(imported)))
