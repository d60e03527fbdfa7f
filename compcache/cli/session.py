"""The cache directory that the command line chooses, and the ways to open it."""

from __future__ import annotations

import os
from functools import cached_property

import click

from compcache.cache import Cache
from compcache.cli.environment import setting_source
from compcache.facade import DIRECTORY_VARIABLE, default_directory
from compcache.files import absolute_path
from compcache.settings import setting

__all__ = ["Session", "pass_session"]


class Session:
    """The cache of this command line. Each method opens it for one kind of command (errors: see `Cache`). `given` is --dir, or None."""

    def __init__(self, directory: str | None, *, trust: bool) -> None:
        self.given = directory
        self.trust = trust

    @cached_property
    def directory(self) -> str:
        """Return the absolute path of the cache directory, which may not exist.

        Raise `SettingError` if --dir was not given and a configuration file cannot be used.
        """
        return absolute_path(self.given if self.given is not None else default_directory())

    @property
    def chosen_by(self) -> str:
        """Return the option, variable or key of a configuration file that chose the directory, or "default"."""
        return "--dir" if self.given is not None else setting_source(DIRECTORY_VARIABLE)

    def open_or_create(self, *, allow_pickle: bool = False) -> Cache:
        """Open the cache for a command that may create the directory. See `Cache` for `allow_pickle`."""
        return Cache(self.directory, trust=self.trust, allow_pickle=allow_pickle)

    def open_existing(self, *, allow_pickle: bool = False) -> Cache:
        """Open an existing cache. See `Cache` for `allow_pickle`. Raise `click.ClickException` if there is no cache."""
        return self._require_existing(self.open_or_create(allow_pickle=allow_pickle))

    def _require_existing(self, cache: Cache) -> Cache:
        """Return the cache if its directory exists. Otherwise close the cache and raise `click.ClickException`."""
        if not cache.exists:
            cache.close()
            self.require_no_file()
            raise click.ClickException(
                f"there is no cache at {self.directory} (chosen by: {self.chosen_by}): give the directory with --dir, or create the cache "
                "with 'compcache add' or a program that uses it"
            )
        return cache

    def require_no_file(self) -> None:
        """Raise `click.ClickException` if the path of the cache directory leads to a file."""
        if os.path.exists(self.directory) and not os.path.isdir(self.directory):
            raise click.ClickException(f"{self.directory} (chosen by: {self.chosen_by}) is not a directory: give the directory of a cache")

    def open_with_remote(self, url: str | None, mode: str | None) -> Cache:
        """Open the cache with remote stores. The directory may be created.

        Args:
            url: the URLs of the stores; None: the URLs in the settings.
            mode: "read" or "write"; None: the mode in the settings. If the settings have a mode for each store, the stores of the
                settings keep these modes, and None means "read" for `url`.

        Raises:
            click.UsageError: a URL or a mode is not valid.
        """
        has_several_modes = len(setting("COMPCACHE_REMOTE_MODE").split()) > 1
        if has_several_modes:
            mode = None if url is None else mode or "read"
        try:
            return Cache(self.directory, trust=self.trust, remote=url, remote_mode=mode)
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    def open_to_read(self) -> Cache:
        """Open the cache for a command that only reads an existing cache. Raise `click.ClickException` if there is no cache."""
        return self._require_existing(self.open_or_assume_empty())

    def open_or_assume_empty(self) -> Cache:
        """Open the cache for a command that only reads. A missing directory counts as an empty cache, and is not created."""
        # If the directory is writable, lists and verifications that the command computes are kept for later commands.
        readonly = not os.path.isdir(self.directory) or not os.access(self.directory, os.W_OK)
        return Cache(self.directory, trust=self.trust, readonly=readonly)


pass_session = click.make_pass_decorator(Session)
