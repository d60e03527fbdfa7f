"""``compcache key``: make, show and trust keys that sign modules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import click

from compcache.cli.output import print_text
from compcache.signing.keys import new_key, parse_public, parse_publics, parse_secret
from compcache.signing.minisign import minisign_public_key
from compcache.signing.trusted_file import add_trusted, trusted_file

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["command"]

_T = TypeVar("_T")


@click.group("key")
def command() -> None:
    """Make, show and trust keys.

    Modules are signed with a secret key (COMPCACHE_PUBLISH_KEY) and used by those who trust its public key
    (COMPCACHE_TRUSTED_KEYS). Both are written name:base64.
    """


@command.command("new")
@click.argument("name")
@click.option("-o", "--output", metavar="FILE", help="Where the secret key goes; a new file, readable by you alone.")
def new(name: str, output: str | None) -> None:
    """Make a secret key; prints its public key.

    NAME tells readers whose it is, like example.org-1. Without -o the secret key goes to NAME.secret.
    """
    key = _usable(lambda: new_key(name))
    public = key.public()
    path = output or f"{name}.secret"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{key}\n")
    click.echo(f"the secret key is in {path}: COMPCACHE_PUBLISH_KEY=@{path} signs with it", err=True)
    print_text(str(public))


@command.command("show")
@click.argument("file", required=False)
@click.option("--minisign", is_flag=True, help="Print it as `minisign -V -P` takes it, for signatures of `compcache export --minisign`.")
def show(file: str | None, minisign: bool) -> None:
    """Print the public key of a secret key's FILE; without FILE the keys that are trusted."""
    written = minisign_public_key if minisign else str
    if file is None:
        for key in parse_publics(f"@{trusted_file()}") if os.path.exists(trusted_file()) else ():
            print_text(written(key))
        return
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.ClickException(f"cannot read {file}: {reason}") from error
    print_text(written(_usable(lambda: parse_secret(text)).public()))


@command.command("trust")
@click.argument("key")
def trust(key: str) -> None:
    """Add a public KEY (name:base64) to the file of trusted keys.

    `compcache import` asks for a signature of one of them; COMPCACHE_TRUSTED_KEYS=@FILE makes every cache do so.
    """
    public = _usable(lambda: parse_public(key))
    path = add_trusted(public)
    click.echo(f"{public.name} is trusted by `compcache import`; for all caches: COMPCACHE_TRUSTED_KEYS=@{path}", err=True)


def _usable(make: Callable[[], _T]) -> _T:
    try:
        return make()
    except ValueError as error:
        raise click.ClickException(str(error)) from error
