"""``compcache key``: make, show and trust keys that sign modules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import click

from compcache.cli.output import print_text
from compcache.signing.keys import add_trusted_key, generate_key, parse_public_key, parse_secret_key, trusted_keys
from compcache.signing.minisign import minisign_public_key

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["command"]

_T = TypeVar("_T")


@click.group("key")
def command() -> None:
    """Make, show and trust keys.

    A secret key (COMPCACHE_PUBLISH_KEY) signs modules. Users who trust its public key (COMPCACHE_TRUSTED_KEYS) can use the
    modules. Secret and public keys have the form name:base64.
    """


@command.command("new")
@click.argument("name")
@click.option("-o", "--output", metavar="FILE", help="The new file for the secret key, readable by you alone. Default: NAME.secret.")
def new(name: str, output: str | None) -> None:
    """Write a new secret key to a file, and print its public key. NAME identifies the owner of the key, like example.org-1."""
    key = _call_or_exit(lambda: generate_key(name))
    public = key.public()
    path = output or f"{name}.secret"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror or error}; give another file with -o, or another NAME") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{key}\n")
    click.echo(f"the secret key is in {path}; set COMPCACHE_PUBLISH_KEY=@{path} to sign with it", err=True)
    print_text(str(public))


@command.command("show")
@click.argument("file", required=False)
@click.option("--minisign", is_flag=True, help="Print the key for `minisign -V -P`, which checks `compcache export --minisign`.")
def show(file: str | None, minisign: bool) -> None:
    """Print the public key of the secret key in FILE; without FILE, print the trusted keys."""
    format_key = minisign_public_key if minisign else str
    if file is None:
        for key in trusted_keys() or ():
            print_text(format_key(key))
        return
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise click.ClickException(f"cannot read {file} ({reason}): give the file that 'compcache key new' wrote") from error
    print_text(format_key(_call_or_exit(lambda: parse_secret_key(text).public())))


@command.command("trust")
@click.argument("key")
def trust(key: str) -> None:
    """Add a public KEY (name:base64) to the file of trusted keys.

    `compcache import` requires a signature by one of these keys. COMPCACHE_TRUSTED_KEYS=@FILE makes every cache require it.
    """
    public = _call_or_exit(lambda: parse_public_key(key))
    path = add_trusted_key(public)
    click.echo(f"`compcache import` trusts the key {public.name}; set COMPCACHE_TRUSTED_KEYS=@{path} for all caches", err=True)


def _call_or_exit(make: Callable[[], _T]) -> _T:
    """Call a function and return its result. Convert its `ValueError` to `click.ClickException`."""
    try:
        return make()
    except ValueError as error:
        raise click.ClickException(str(error)) from error
