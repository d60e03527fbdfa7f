"""The command line: ``compcache [--dir DIR] COMMAND ...``.

One file per command. The library (`compcache.inspect.functions`) supplies the data that commands print. This package reads
arguments and writes text. A slow module is imported by the command that needs it.
"""

from __future__ import annotations

from compcache.errors import MissingPackageError

try:
    import click  # noqa: F401 - reports a missing click before any module of this package imports it
except ImportError as error:
    raise SystemExit(f"compcache: error: {MissingPackageError.of('click', 'the command line')}") from error

try:
    from compcache.cli.app import main
except ImportError as error:  # the native runtime or a required package is missing
    raise SystemExit(f"compcache: error: {error}") from error

__all__ = ["main"]
