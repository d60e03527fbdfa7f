"""Opens all segments of an index together. A segment that is open stays readable while other processes merge or replace it.

Code that needs the whole index opens it here: a segment that is opened later may have been merged into a segment that was not listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE

if TYPE_CHECKING:
    from compcache.formats.index import Index, Segment

__all__ = ["open_segments", "readable_segments"]


def readable_segments(index: Index) -> tuple[Segment, ...]:
    """Refresh the index, open all its segments, and return those that can be read."""
    index.refresh()
    return open_segments(index)


def open_segments(index: Index) -> tuple[Segment, ...]:
    """Open all segments of the index, and return those that can be read. The directory is listed again only if a segment was replaced."""
    segments: tuple[Segment, ...] = ()
    while index.segments is not segments:  # a look-up lists the directory again where a segment was replaced
        segments = index.segments
        for segment in segments:
            if not segment.greatest:  # not open yet: any look-up opens it, or reports that it cannot be read
                index.look_up(segment, bytes(DIGEST_SIZE), modules=True)
    return segments
