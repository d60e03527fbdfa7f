"""What the options before the command say: which cache, and how to open it."""

from __future__ import annotations

import os

import click

from compcache.cache import DIRECTORY_VARIABLE, Cache, default_directory

__all__ = ["Session", "pass_session"]


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
        """The cache, for a command that may write to it."""
        return Cache(self.directory, trust=self.trust, allow_pickle=allow_pickle)

    def look(self) -> Cache:
        """The cache, for a command that only looks: a directory that is not there is not created."""
        readonly = not os.path.isdir(self.directory) or not os.access(self.directory, os.W_OK)
        return Cache(self.directory, trust=self.trust, readonly=readonly)


pass_session = click.make_pass_decorator(Session)
