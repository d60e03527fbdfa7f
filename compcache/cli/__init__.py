"""The command line: ``compcache [--dir DIR] COMMAND ...``.

One file per command. The data that commands print comes from the library (`compcache.inspect.functions`); this package only
reads arguments and writes text. Nothing slow is imported before the command that needs it is known.
"""

from __future__ import annotations

from compcache.errors import MissingPackageError

try:
    import click  # noqa: F401 - what everything here is made with
except ImportError as error:
    raise SystemExit(f"compcache: error: {MissingPackageError.of('click', 'the command line')}") from error

try:
    from compcache.cli.app import main
except ImportError as error:  # the native runtime is missing, or a package is
    raise SystemExit(f"compcache: error: {error}") from error

__all__ = ["main"]
