"""Creates temporary directories. Only their creator removes them: a forked child that exits must not remove a directory of its parent."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["make_directory_until_exit", "scratch_directory"]


@contextmanager
def scratch_directory(prefix: str, parent: str | None = None) -> Iterator[str]:
    """Create a private directory in `parent` or among the temporary files, and remove it at exit of the context.

    Raise `OSError` if the directory cannot be created.
    """
    directory = tempfile.mkdtemp(prefix=prefix, dir=parent)
    creator = os.getpid()
    try:
        yield directory
    finally:
        _remove_in_creator(directory, creator)


def make_directory_until_exit(prefix: str) -> str:
    """Create a private directory among the temporary files, which this process removes at exit, and return its path.

    Raise `OSError` if the directory cannot be created.
    """
    directory = tempfile.mkdtemp(prefix=prefix)
    atexit.register(_remove_in_creator, directory, os.getpid())
    return directory


def _remove_in_creator(directory: str, creator: int) -> None:
    """Remove a directory, unless this process is a forked child of its creator."""
    if os.getpid() == creator:
        shutil.rmtree(directory, ignore_errors=True)
