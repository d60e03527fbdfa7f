"""The form of journals, to which processes append counters (`compcache.hit.recorder`). `compcache.formats.statistics` reads them."""

from __future__ import annotations

__all__ = ["BATCH_END", "HOUR", "MISSES_ID"]

BATCH_END = "= "
HOUR = 3600  # seconds; the counter for events without a module
#: In place of a module_id: the event is a miss of the function.
MISSES_ID = bytes(16)
