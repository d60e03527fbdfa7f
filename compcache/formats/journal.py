"""Constants of journals. `compcache.hit.recorder` appends counters to journals, and `compcache.formats.statistics` reads them."""

from __future__ import annotations

__all__ = ["BATCH_END", "HOUR", "MISSES_ID"]

BATCH_END = "= "
HOUR = 3600  # seconds
#: The value that replaces a module_id in misses of a function.
MISSES_ID = bytes(16)
