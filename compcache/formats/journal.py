"""How processes append their counters to the journal of their host: `compcache.formats.statistics` describes it."""

from __future__ import annotations

from compcache.digest import check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BATCH_END", "HOUR", "MISSES_ID", "encode_batch"]

BATCH_END = "= "
HOUR = 3600  # seconds; what belongs to no module is counted by it
#: Where others have the id of a module: the event is a miss of the function.
MISSES_ID = bytes(16)


def encode_batch(lines: Iterable[str]) -> bytes:
    """One batch: the empty line separates it from one before it that was torn within a line."""
    text = "\n".join(lines)
    return f"\n\n{text}\n{BATCH_END}{check(text.encode()).hex()}\n".encode()
