"""The cache that the options before the command choose, and how to open it."""

from __future__ import annotations

import os
from functools import cached_property

import click

from compcache.cache import Cache
from compcache.cli.environment import source_of
from compcache.facade import DIRECTORY_VARIABLE, default_directory
from compcache.files import absolute_path
from compcache.settings import setting

__all__ = ["Session", "pass_session"]


class Session:
    """The cache of this command line; each method opens it for one kind of command."""

    def __init__(self, directory: str | None, *, trust: bool) -> None:
        self.given = directory
        self.trust = trust

    @cached_property
    def directory(self) -> str:
        """Return the path of the cache, whether it exists or not.

        Raises:
            SettingError: a configuration file cannot be used.
        """
        return absolute_path(self.given if self.given is not None else default_directory())

    @property
    def chosen_by(self) -> str:
        """The option or variable that chose the directory, or "default"."""
        if self.given is not None:
            return "--dir"
        return source_of(DIRECTORY_VARIABLE)

    def open(self, *, allow_pickle: bool = False) -> Cache:
        """Open the cache for a command that may create it."""
        return Cache(self.directory, trust=self.trust, allow_pickle=allow_pickle)

    def change(self, *, allow_pickle: bool = False) -> Cache:
        """Open the cache for a command that changes an existing one.

        Raises:
            click.ClickException: there is no cache.
        """
        return self._existing(self.open(allow_pickle=allow_pickle))

    def _existing(self, cache: Cache) -> Cache:
        if not cache.exists:
            cache.close()
            raise click.ClickException(f"no cache at {self.directory} (chosen by: {self.chosen_by})")
        return cache

    def remote(self, url: str | None, mode: str | None) -> Cache:
        """Open the cache with remote stores, those of the environment where none is given.

        Args:
            url: the URLs of the stores; None: those that the settings name.
            mode: "read" or "write", which a setting with a mode for each store overrides; None: as the settings say.
        """
        several = len(setting("COMPCACHE_REMOTE_MODE").split()) > 1
        alone = mode or "read" if several else mode
        chosen = None if several and url is None else alone
        try:
            return Cache(self.directory, trust=self.trust, remote=url, remote_mode=chosen)
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    def read(self) -> Cache:
        """Open the cache for a command that only reads an existing one.

        Raises:
            click.ClickException: there is no cache.
        """
        return self._existing(self.look())

    def look(self) -> Cache:
        """Open the cache for a command that only reads; a missing directory is not created, and treated as empty."""
        readonly = not os.path.isdir(self.directory) or not os.access(self.directory, os.W_OK)
        return Cache(self.directory, trust=self.trust, readonly=readonly)


pass_session = click.make_pass_decorator(Session)
