"""The codecs for statistics files: journals of events, and sums of several files.

The processes of a host append to a journal. Each write is a batch: an empty line, lines of text, and ``= `` with a check of
these lines. A line is ``time counter amount [module_id [name key]]`` for an event. Incomplete batches are ignored. A journal
that was renamed to the name of a sum is sealed: processes no longer append to it.

A sum is published once, as a complete file::

    magic "CCSTATS1" | four section lengths u32 | counters | uses | inputs | check of all before it

(little-endian). *Counters* are rows of ``hour u32 | value f64 | name length u8 | name``, with the hours since the epoch.
*Uses* are rows of ``name key | module_id | count u64 | last use f64``. A name key of zeros counts the processes that loaded
the module and whose saved seconds are not yet in the counters. A module_id of zeros counts the misses of the name. *Inputs*
are the names, one per line, of the files whose counts are in the sum. A reader that finds a sum and its inputs counts only
the sum, so an interrupted summation counts nothing twice. The last section is empty.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from struct import Struct

from compcache.digest import CHECK_SIZE, DIGEST_SIZE, KEY_SIZE, blake2b, check
from compcache.errors import FormatError
from compcache.formats.journal import BATCH_END, HOUR, MISSES_ID
from compcache.interrupts import as_format_error, suppress
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Counters = Mapping[tuple[int, str], float]
    Uses = Mapping[tuple[bytes, bytes], tuple[int, float]]

__all__ = [
    "LOADS_KEY", "MISSES_ID", "StatsFile", "UsesInSum", "counter_of", "decode_journal", "decode_stats", "encode_stats", "encode_sum",
    "encode_use", "is_sum", "read_inputs", "store_of",
]  # fmt: skip

#: The name key for loads of a module whose compile seconds are not in the counters yet.
LOADS_KEY = bytes(KEY_SIZE)

_HEAD = Struct("<8s4I")
_COUNTER = Struct("<IdB")
_END_OF_TIME = HOUR << 32  # seconds; hours are stored in 32 bits
_MAX_AMOUNT = 1e15  # the limit of a count, so that no sum of counts is infinite
_USE = Struct("<16s16sQd")
_MAGIC = b"CCSTATS1"
_CHUNK = 1 << 20
_PAGE = 32  # the number of uses that are read at a time
#: A suffix that is greater than all name keys.
_BEHIND_ALL = b"\xff" * (KEY_SIZE + 1)
#: The separator of a counter's name and the address of its remote store, and the limit of an address in bytes. A sum stores both texts
#: together, in at most 255 bytes.
_AT, _LONGEST_ADDRESS = "@", 200


class StatsFile(Record):
    """The content of a statistics file of `size` bytes.

    `counters` has values by (hour, name). `uses` has (count, time of the last use) by (name key, module_id). `inputs` has the names of the
    files whose counts are in it.
    """

    __slots__ = ("counters", "inputs", "size", "uses")
    counters: dict[tuple[int, str], float]
    inputs: tuple[str, ...]
    size: int
    uses: dict[tuple[bytes, bytes], tuple[int, float]]


def counter_of(counter: str, store: str) -> str:
    """Return the name of a counter for one remote store, for example ``remote_hits@s3://bucket``. Long addresses end with a digest."""
    address = "%20".join(store.split()).encode(errors="backslashreplace")  # the path of a directory need not be UTF-8
    if len(address) > _LONGEST_ADDRESS:
        suffix = f"...{check(address).hex()}".encode()
        address = address[: _LONGEST_ADDRESS - len(suffix)] + suffix
    return f"{counter}{_AT}{address.decode(errors='ignore')}"


def store_of(counter: str) -> tuple[str, str]:
    """Split the name of a counter into its general name and the address of its remote store, which is "" for other counters."""
    name, _, store = counter.partition(_AT)
    return name, store


def encode_stats(counters: Counters, uses: Uses, inputs: Iterable[str] = ()) -> bytes:
    """Encode a sum. `uses` must be sorted by module_id and name key, because `UsesInSum` requires this order."""
    packed = b"".join([_USE.pack(*key, *value) for key, value in uses.items()])
    return b"".join(encode_sum(counters, len(packed), [packed], inputs))


def encode_sum(counters: Counters, size: int, uses: Iterable[bytes], inputs: Iterable[str]) -> Iterator[bytes]:
    """Yield the parts of a sum.

    Args:
        counters: values by (hour, name).
        size: the exact total size of the uses in bytes.
        uses: uses that `encode_use` has encoded, sorted by module_id and key, in parts of any size.
        inputs: the names of the files whose counts are in the sum.
    """
    texts = [(hour, value, name.encode()) for (hour, name), value in counters.items()]
    counted = b"".join([_COUNTER.pack(hour, value, len(name)) + name for hour, value, name in texts])
    names = "\n".join(inputs).encode()
    state = blake2b(digest_size=CHECK_SIZE)
    head = _HEAD.pack(_MAGIC, len(counted), size, len(names), 0)
    for part in chain((head, counted), uses, (names,)):
        state.update(part)
        yield part
    yield state.digest()


def encode_use(module_id: bytes, key: bytes, count: int, last_time: float) -> bytes:
    """Return an encoded use for a sum. `key` is the name key, `last_time` the time of the last use in seconds since the epoch."""
    return _USE.pack(key, module_id, count, last_time)


def decode_stats(data: bytes) -> StatsFile:
    """Decode a statistics file. Incomplete batches of a journal are ignored. Raise `FormatError` for a sum that is damaged or unknown."""
    if not data.startswith(_MAGIC):
        return decode_journal(data)
    if len(data) < _HEAD.size + CHECK_SIZE or check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
        raise FormatError("the statistics file is damaged: its checksum does not match")
    _, *sizes = _HEAD.unpack_from(data)
    if _HEAD.size + sum(sizes) + CHECK_SIZE != len(data):
        raise FormatError("the statistics file has an unknown version: its size does not match its header")
    sections = []
    start = _HEAD.size
    for size in sizes:
        sections.append(data[start : start + size])
        start += size
    counters, packed_uses, inputs, _ = sections
    with as_format_error("the statistics file is damaged"):
        uses = {
            (name, module): (count, last_time)
            for name, module, count, last_time in _USE.iter_unpack(packed_uses)
            if 0 <= last_time < _END_OF_TIME  # false for NaN
        }
        return StatsFile(counters=_decode_counters(counters), inputs=tuple(inputs.decode().split()), size=len(data), uses=uses)


def decode_journal(data: bytes) -> StatsFile:
    """Decode a journal. Incomplete and damaged batches are ignored."""
    counters: dict[tuple[int, str], float] = {}
    uses: dict[tuple[bytes, bytes], tuple[int, float]] = {}
    for batch in data.split(b"\n\n"):  # an empty line precedes each batch, and no batch contains one
        text, _, expected = batch.strip(b"\n").rpartition(b"\n" + BATCH_END.encode())
        if text and check(text).hex().encode() == expected:
            _add_batch(counters, uses, text.decode("utf-8", "replace").split("\n"))
    return StatsFile(counters=counters, inputs=(), size=len(data), uses=uses)


def _add_batch(counters: dict[tuple[int, str], float], uses: dict[tuple[bytes, bytes], tuple[int, float]], lines: list[str]) -> None:
    """Add the lines of a batch, up to the first line that this version cannot read."""
    with suppress(ValueError, IndexError):  # another version has written the batch
        for line in lines:
            time_text, counter, *fields = line.split(" ")
            if _AT in counter:  # earlier versions wrote addresses of any length
                counter = counter_of(*store_of(counter))
            seconds = float(time_text)
            amount = float(fields[0])
            if not (0 <= seconds < _END_OF_TIME and 0 <= amount < _MAX_AMOUNT):
                return
            if counter != "loads":  # loads are counted when the seconds of their compilation are known
                hour_and_name = int(seconds) // HOUR, counter
                counters[hour_and_name] = counters.get(hour_and_name, 0) + amount
            if len(fields) > 1 and fields[1]:
                key = bytes.fromhex(fields[2]) if len(fields) > 2 and fields[2] else LOADS_KEY  # noqa: PLR2004
                use = key, bytes.fromhex(fields[1])
                count, last_time = uses.get(use, (0, 0.0))
                uses[use] = count + round(amount), max(last_time, seconds)


class UsesInSum:
    """Looks up uses in a sum without reading the whole file, and therefore without verifying its checksum (`require_intact`).

    Args:
        read: returns `size` bytes of the file at `offset`, or fewer at the end.
        size: the size of the file in bytes.

    Raises:
        FormatError: the file is not a sum of this size.
    """

    __slots__ = ("_count", "_end", "_firsts", "_read", "_start", "inputs")

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        head = read(0, _HEAD.size)
        if len(head) != _HEAD.size:
            raise FormatError(f"the statistics file is truncated: it has {len(head)} bytes, fewer than the {_HEAD.size} of its header")
        if head[: len(_MAGIC)] != _MAGIC:
            raise FormatError(f"the statistics file does not contain merged statistics: it starts with {head[: len(_MAGIC)]!r}")
        _, counters, uses, *other_sizes = _HEAD.unpack(head)
        if _HEAD.size + counters + uses + sum(other_sizes) + CHECK_SIZE != size or uses % _USE.size:
            raise FormatError(f"the statistics file is damaged: its size of {size} bytes does not match its header")
        self._read = read
        self._start = _HEAD.size + counters
        self._end = size - CHECK_SIZE
        self._count = uses // _USE.size
        self._firsts: dict[int, bytes] = {}
        self.inputs = read_inputs(read)

    def require_intact(self) -> None:
        """Read the complete file, and verify its checksum. Raise `FormatError` if the file is damaged."""
        state, offset = blake2b(digest_size=CHECK_SIZE), 0
        while offset < self._end:
            chunk = self._read(offset, min(_CHUNK, self._end - offset))
            if not chunk:
                break
            state.update(chunk)
            offset += len(chunk)
        if state.digest() != self._read(self._end, CHECK_SIZE):
            raise FormatError("the statistics file is damaged: its checksum does not match")

    def counters(self) -> dict[tuple[int, str], float]:
        """Return the values of counters by (hour, name). Raise `FormatError` if they are damaged."""
        with as_format_error("the counters of the statistics file are damaged"):
            return _decode_counters(self._read(_HEAD.size, self._start - _HEAD.size))

    def uses_of(self, module_id: bytes, key: bytes = b"") -> Iterator[tuple[bytes, tuple[int, float]]]:
        """Yield (name key, (number of uses, time of the last use)) of a module, for all name keys or only for `key`."""
        start = module_id + key
        for (_, name), count, last_time in self.uses_between(start, start + (b"\0" if key else _BEHIND_ALL)):
            yield name, (count, last_time)

    def uses_between(self, start: bytes, end: bytes) -> Iterator[tuple[tuple[bytes, bytes], int, float]]:
        """Yield ((module_id, name key), number of uses, time of the last use) from `start` to before `end`, in order.

        The bounds are prefixes of a module_id followed by a name key.
        """
        page = max(bisect_left(range(-(-self._count // _PAGE)), start, key=self._first_key_of_page) - 1, 0)
        while page * _PAGE < self._count:
            data = self._read(self._start + page * _PAGE * _USE.size, min(_PAGE, self._count - page * _PAGE) * _USE.size)
            for name, module, count, last_time in _USE.iter_unpack(data[: len(data) // _USE.size * _USE.size]):
                use_key = module + name
                if use_key >= end:
                    return
                if use_key >= start and 0 <= last_time < _END_OF_TIME:  # false for NaN
                    yield (module, name), count, last_time
            page += 1

    def _first_key_of_page(self, page: int) -> bytes:
        """Return the module_id and the name key, joined, of the first use on a page."""
        first_key = self._firsts.get(page)
        if first_key is None:
            data = self._read(self._start + page * _PAGE * _USE.size, 2 * KEY_SIZE)
            first_key = self._firsts[page] = data[KEY_SIZE:] + data[:KEY_SIZE]  # a use begins with the name key
        return first_key


def is_sum(head: bytes) -> bool:
    """Return whether a statistics file that begins with these bytes is a sum. Other files are journals."""
    return head.startswith(_MAGIC)


def read_inputs(read: Callable[[int, int], bytes]) -> tuple[str, ...]:
    """Return the names of the files whose counts are in a sum; none for another file. `read(offset, size)` returns bytes of the file."""
    head = read(0, _HEAD.size)
    if len(head) != _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
        return ()
    _, counters, uses, inputs, _ = _HEAD.unpack(head)
    return tuple(read(_HEAD.size + counters + uses, inputs).decode("utf-8", "replace").split())


def _decode_counters(section: bytes) -> dict[tuple[int, str], float]:
    """Return the counters by hour and name. Values that are negative, too large or not a number are omitted."""
    counters: dict[tuple[int, str], float] = {}
    offset = 0
    while offset < len(section):
        hour, value, length = _COUNTER.unpack_from(section, offset)
        offset += _COUNTER.size + length
        if 0 <= value < _MAX_AMOUNT:  # false for NaN
            counters[hour, section[offset - length : offset].decode()] = value
    return counters


assert _USE.size == KEY_SIZE + DIGEST_SIZE + 16
assert len(MISSES_ID) == DIGEST_SIZE
