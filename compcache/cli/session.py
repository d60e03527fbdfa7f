"""What the options before the command say: which cache, and how to open it."""

from __future__ import annotations

import os

import click

from compcache.cache import DIRECTORY_VARIABLE, Cache, default_directory

__all__ = ["Session", "pass_session"]

_SHOWN = 3


class Session:
    """The cache that this command line is about, opened when a command first needs it."""

    def __init__(self, directory: str | None, *, trust: bool) -> None:
        self.given = directory
        self.trust = trust
        self.directory = os.path.abspath(directory if directory is not None else default_directory())

    @property
    def chosen_by(self) -> str:
        """How the directory was chosen, for people."""
        if self.given is not None:
            return "--dir"
        return f"${DIRECTORY_VARIABLE}" if os.environ.get(DIRECTORY_VARIABLE) else "default"

    def open(self, *, allow_pickle: bool = False) -> Cache:
        """The cache, for a command that may make it."""
        return Cache(self.directory, trust=self.trust, allow_pickle=allow_pickle)

    def change(self, *, allow_pickle: bool = False) -> Cache:
        """The cache, for a command that changes what is there.

        Raises:
            click.ClickException: there is no cache.
        """
        return self._existing(self.open(allow_pickle=allow_pickle))

    def _existing(self, cache: Cache) -> Cache:
        if not cache.exists:
            cache.close()
            raise click.ClickException(f"no cache at {self.directory} (chosen by: {self.chosen_by})")
        return cache

    def resolve(self, cache: Cache, name: str) -> str:
        """The func_name that a command line means: itself, or the only one of that label.

        Raises:
            click.ClickException: several functions have that label.
        """
        if cache.has(name):
            return name
        found = cache.labelled(name)
        if len(found) > 1 and name not in found:
            shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
            raise click.ClickException(f"{len(found)} functions are called {name!r}: {shown}; give more of the name")
        return found[0] if found else name

    def read(self) -> Cache:
        """The cache, for a command that only reads what is there.

        Raises:
            click.ClickException: there is no cache.
        """
        return self._existing(self.look())

    def look(self) -> Cache:
        """The cache, for a command that only looks: a directory that is not there is not created, and serves."""
        readonly = not os.path.isdir(self.directory) or not os.access(self.directory, os.W_OK)
        return Cache(self.directory, trust=self.trust, readonly=readonly)


pass_session = click.make_pass_decorator(Session)
