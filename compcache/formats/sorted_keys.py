"""The codec for files of sorted keys with values, in blocks. Finding the keys with a common prefix reads few blocks of a large file.

Layout (little-endian), version 1::

    blocks: check | msgpack array key, value, key, value, ...
    index of blocks: check | msgpack array of the first key, offset and length of each block
    magic "CCKEYS01" | offset and length of the index u64 | length u32 and 64 bytes of the summary | check of the 92 bytes before it

Keys are distinct bytes in ascending order. The summary describes all keys, in a form of the writer. The file is written sequentially, and
the keys need not be in memory together. It is read through a function `read(offset, size)`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any

from compcache.digest import CHECK_SIZE, check
from compcache.errors import FormatError
from compcache.interrupts import as_format_error
from compcache.messagepack import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Item = tuple[bytes, bytes]
    Read = Callable[[int, int], bytes]

__all__ = ["SUMMARY_SIZE", "TAIL_SIZE", "SortedKeys", "encode_keys", "merge_keys"]

_MAGIC = b"CCKEYS01"
_TAIL = Struct("<8sQQI64s")
SUMMARY_SIZE = 64
TAIL_SIZE = _TAIL.size + CHECK_SIZE
_BLOCK = 1 << 13
_MAX_BLOCK = 1 << 26
_MAX_INDEX = 1 << 30


def merge_keys(sources: Iterable[Iterable[Item]]) -> Iterator[Item]:
    """Merge sorted sources. If several sources have the same key, only the item of the first source is yielded."""
    last_key = None
    for item in heapq.merge(*sources, key=itemgetter(0)):
        key, _ = item
        if key != last_key:
            last_key = key
            yield item


def encode_keys(items: Iterable[Item], summary: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield the parts of a file with sorted items. `summary` is called after the last item, and returns the summary.

    Raise `ValueError` if the summary has more than `SUMMARY_SIZE` bytes.
    """
    firsts: list[tuple[bytes, int, int]] = []
    offset = 0
    for first_key, packed in _blocks(items):
        block = check(packed) + packed
        firsts.append((first_key, offset, len(block)))
        offset += len(block)
        yield block
    packed = pack([field for row in firsts for field in row])
    yield check(packed) + packed
    content = summary()
    if len(content) > SUMMARY_SIZE:
        raise ValueError(f"the summary of sorted keys has {len(content)} bytes, but at most {SUMMARY_SIZE} are allowed")
    tail = _TAIL.pack(_MAGIC, offset, CHECK_SIZE + len(packed), len(content), content)
    yield tail + check(tail)


def _blocks(items: Iterable[Item]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the first key and the content of each block."""
    block: list[bytes] = []
    size = 0
    for key, value in items:
        block += (key, value)
        size += len(key) + len(value)
        if size >= _BLOCK:
            yield block[0], pack(block)
            block, size = [], 0
    if block:
        yield block[0], pack(block)


class SortedKeys:
    """An open file of sorted keys. `summary` is the writer's summary.

    Args:
        read: returns `size` bytes of the file at `offset`, or fewer at the end.
        size: the size of the file in bytes.

    Raises:
        FormatError: the file is not a file of sorted keys, or is damaged. All methods may raise this exception.
    """

    __slots__ = ("_blocks", "_firsts", "_index", "_read", "summary")

    def __init__(self, read: Read, size: int) -> None:
        tail = read(max(size - TAIL_SIZE, 0), TAIL_SIZE)
        if len(tail) != TAIL_SIZE:
            raise FormatError(f"the file of sorted keys is truncated: it has {size} bytes, fewer than the {TAIL_SIZE} of its end")
        if tail[: len(_MAGIC)] != _MAGIC:
            raise FormatError("the file does not end like a file of sorted keys")
        if check(tail[:-CHECK_SIZE]) != tail[-CHECK_SIZE:]:
            raise FormatError("the file of sorted keys is damaged: the checksum of its end does not match")
        _, index_offset, index_length, summary_size, summary = _TAIL.unpack_from(tail)
        if index_offset + index_length + TAIL_SIZE != size:
            raise FormatError(f"the file of sorted keys is damaged: its size of {size} bytes does not match its end")
        if index_length > _MAX_INDEX or summary_size > SUMMARY_SIZE:
            raise FormatError(
                f"the file of sorted keys is damaged: it states an index of {index_length} bytes and a summary of {summary_size} bytes, "
                f"but the limits are {_MAX_INDEX} and {SUMMARY_SIZE} bytes"
            )
        self._read = read
        self.summary: bytes = summary[:summary_size]
        self._index = self._read_index(index_offset, index_length)
        self._firsts: list[bytes] = self._index[::3]
        self._blocks: dict[bytes, tuple[int, list[bytes]]] = {}

    def _read_checked(self, offset: int, length: int) -> Any:
        """Return a decoded block. Raise `FormatError` if it is damaged."""
        data = self._read(offset, length)
        if len(data) != length or check(data[CHECK_SIZE:]) != data[:CHECK_SIZE]:
            raise FormatError(f"the block of sorted keys at byte {offset} is damaged: its checksum does not match")
        with as_format_error(f"the block of sorted keys at byte {offset} is not valid msgpack"):
            return unpack(memoryview(data)[CHECK_SIZE:])

    def _read_index(self, offset: int, length: int) -> list[Any]:
        """Return the first key, the offset and the length of each block, in one list. Raise `FormatError` for other data.

        Offsets and lengths are checked by `_load_block`.
        """
        index = self._read_checked(offset, length)
        if not isinstance(index, list) or len(index) % 3 or {*map(type, index[::3])} - {bytes}:
            raise FormatError("the index of a file of sorted keys is not a list of keys and places")
        return index

    def _load_block(self, number: int, key: bytes) -> list[bytes]:
        """Return the keys and values of a block, alternating.

        The last block for each first byte of requested keys is kept, because the next request often needs the same block. Raise
        `FormatError` if the index or the block is damaged.
        """
        kept_block = self._blocks.get(key[:1])
        if kept_block is not None:
            kept_number, kept_items = kept_block
            if kept_number == number:
                return kept_items
        offset, size = self._index[3 * number + 1 : 3 * number + 3]
        if type(offset) is not int or type(size) is not int or not (CHECK_SIZE <= size <= _MAX_BLOCK and 0 <= offset < 1 << 60):
            raise FormatError(f"the index of a file of sorted keys contains an invalid position of block {number}: {offset!r}, {size!r}")
        block: list[bytes] = self._read_checked(offset, size)
        if not isinstance(block, list) or len(block) % 2 or not block or {*map(type, block)} != {bytes}:
            raise FormatError(f"the block of sorted keys at byte {offset} is not a list of keys and values")
        self._blocks[key[:1]] = number, block
        return block

    def between(self, start: bytes, end: bytes) -> Iterator[Item]:
        """Yield the items with `start` <= key < `end`, in order."""
        for number in range(max(bisect_right(self._firsts, start) - 1, 0), bisect_left(self._firsts, end)):
            block = self._load_block(number, start)
            keys = block[::2]
            first = 0 if keys[0] >= start else bisect_left(keys, start)
            last = len(keys) if keys[-1] < end else bisect_left(keys, end)
            yield from zip(keys[first:last], islice(block, 2 * first + 1, None, 2), strict=False)

    def find(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the file does not have the key."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return None
        block = self._load_block(number, key)
        keys = block[::2]
        position = bisect_left(keys, key)
        return block[2 * position + 1] if keys[position : position + 1] == [key] else None
