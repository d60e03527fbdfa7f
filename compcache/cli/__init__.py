"""The command line: ``compcache [--dir DIR] COMMAND ...``.

One file per command. The data that commands print comes from the library (`compcache.inspect.functions`); this package only
reads arguments and writes text. Nothing slow is imported before the command that needs it is known.
"""

from __future__ import annotations

from compcache.cli.app import main

__all__ = ["main"]
