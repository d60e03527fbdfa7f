"""The form of journals, to which processes append counters (`compcache.hit.recorder`). `compcache.formats.statistics` reads them."""

from __future__ import annotations

__all__ = ["BATCH_END", "HOUR", "MISSES_ID"]

BATCH_END = "= "
HOUR = 3600  # seconds; what belongs to no module is counted by it
#: Where others have the id of a module: the event is a miss of the function.
MISSES_ID = bytes(16)
