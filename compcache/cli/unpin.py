"""``compcache unpin``: see `compcache.cli.pin`."""

from __future__ import annotations

from compcache.cli.pin import unpin as command

__all__ = ["command"]
