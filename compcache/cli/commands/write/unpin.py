"""``compcache unpin``: see `compcache.cli.commands.write.pin`."""

from __future__ import annotations

from compcache.cli.commands.write.pin import unpin as command

__all__ = ["command"]
