"""The formats of statistics files: what one process counted, or the sum of several of them.

A journal is what the processes of one host append to, each write one batch: an empty line,
lines of text, and ``= `` with a check of these. A line is ``time counter amount [module_id [name key]]`` for an
event, or ``row <hex>`` for an item of the module rows of modules that were added. A batch that is torn does not count.
A journal that was renamed to the name of a sum is sealed: no process opens it to append any more.

A sum is published once, complete or not at all::

    magic "CCSTATS1" | four section lengths u32 | counters | uses | inputs | rows | check of all before it

(little-endian). *Counters* are rows of ``hour u32 | value f64 | name length u8 | name``: what was counted in
that hour since the epoch. *Uses* are rows of ``name key | module_id | count u64 | last use f64``; a name key of
zeros counts the processes that loaded the module and whose saved seconds are not in the counters yet, a module_id of
zeros the misses of the name. *Inputs*
are the names, one per line, of the files that were folded into this one: who finds both counts only this one,
so that a fold that was interrupted counts nothing twice. *Rows* are items of the module rows of modules that were
added (`compcache.usage.module_rows.encode_rows`), opaque here.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception class

from compcache.digest import CHECK_SIZE, DIGEST_SIZE, KEY_SIZE, check
from compcache.errors import FormatError
from compcache.formats.journal import BATCH_END, HOUR, MISSES_ID
from compcache.interrupts import reraise_interrupt
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Counters = Mapping[tuple[int, str], float]
    Uses = Mapping[tuple[bytes, bytes], tuple[int, float]]

__all__ = ["HEAD_SIZE", "LOADS_KEY", "MISSES_ID", "StatsFile", "decode_stats", "encode_stats", "read_inputs", "size_of_rows"]

#: The name key under which the loads of a module are counted that its compile seconds still have to be saved for.
LOADS_KEY = bytes(KEY_SIZE)

_HEAD = Struct("<8s4I")
HEAD_SIZE = _HEAD.size
_COUNTER = Struct("<IdB")
_END_OF_TIME = HOUR << 32  # seconds; hours are stored in 32 bits
_MAX_AMOUNT = 1e15  # of anything that is counted: no sum of these is infinite
_USE = Struct("<16s16sQd")
_MAGIC = b"CCSTATS1"


class StatsFile(Record):
    """The content of one file of `size` bytes: counters by (hour, name), uses by (name key, module_id) as (count, last use)."""

    __slots__ = ("counters", "inputs", "rows", "size", "uses")
    counters: dict[tuple[int, str], float]
    inputs: tuple[str, ...]
    rows: bytes
    size: int
    uses: dict[tuple[bytes, bytes], tuple[int, float]]


def encode_stats(counters: Counters, uses: Uses, inputs: Iterable[str] = (), rows: bytes = b"") -> bytes:
    """The bytes of a statistics file."""
    texts = [(hour, value, name.encode()) for (hour, name), value in counters.items()]
    sections = [
        b"".join([_COUNTER.pack(hour, value, len(name)) + name for hour, value, name in texts]),
        b"".join([_USE.pack(*key, *value) for key, value in uses.items()]),
        "\n".join(inputs).encode(),
        rows,
    ]
    data = b"".join([_HEAD.pack(_MAGIC, *map(len, sections)), *sections])
    return data + check(data)


def decode_stats(data: bytes) -> StatsFile:
    """The content of a statistics file; of a journal the batches that are complete.

    Raises:
        FormatError: it is a sum that is damaged.
    """
    if not data.startswith(_MAGIC):
        return decode_journal(data)
    if len(data) < _HEAD.size + CHECK_SIZE or check(data[:-CHECK_SIZE]) != data[-CHECK_SIZE:]:
        raise FormatError("the statistics file is damaged or incomplete")
    _, *sizes = _HEAD.unpack_from(data)
    if _HEAD.size + sum(sizes) + CHECK_SIZE != len(data):
        raise FormatError("this is not a statistics file of a known version")
    sections = []
    at = _HEAD.size
    for size in sizes:
        sections.append(data[at : at + size])
        at += size
    try:
        uses = {
            (name, module): (count, last)
            for name, module, count, last in _USE.iter_unpack(sections[1])
            if 0 <= last < _END_OF_TIME  # NaN is neither
        }
        return StatsFile(
            counters=_decode_counters(sections[0]), inputs=tuple(sections[2].decode().split()), rows=sections[3], size=len(data), uses=uses
        )

    except (StructError, ValueError) as error:
        reraise_interrupt(error)
        raise FormatError(f"the statistics file does not decode: {error}") from error


def decode_journal(data: bytes) -> StatsFile:
    """The counts in the complete batches of a journal; torn or damaged ones are left out."""
    counters: dict[tuple[int, str], float] = {}
    uses: dict[tuple[bytes, bytes], tuple[int, float]] = {}
    rows: list[bytes] = []
    for part in data.split(b"\n\n"):  # an empty line is before each batch, and in none
        text, _, expected = part.strip(b"\n").rpartition(b"\n" + BATCH_END.encode())
        if text and check(text).hex().encode() == expected:
            _add_batch(counters, uses, rows, text.decode("utf-8", "replace").split("\n"))
    return StatsFile(counters=counters, inputs=(), rows=b"".join(rows), size=len(data), uses=uses)


def _add_batch(
    counters: dict[tuple[int, str], float], uses: dict[tuple[bytes, bytes], tuple[int, float]], rows: list[bytes], lines: list[str]
) -> None:
    try:
        for line in lines:  # of half a million, after a long batch
            first, counter, *rest = line.split(" ")
            if first == "row":
                rows.append(bytes.fromhex(counter))
                continue
            when = float(first)
            amount = float(rest[0])
            if not (0 <= when < _END_OF_TIME and 0 <= amount < _MAX_AMOUNT):
                raise ValueError(f"{when} is not a time, or {amount} not an amount")
            if counter != "loads":  # they are counted when their compile seconds are known
                hour = int(when) // HOUR, counter
                counters[hour] = counters.get(hour, 0) + amount
            if len(rest) > 1 and rest[1]:
                key = bytes.fromhex(rest[2]) if len(rest) > 2 and rest[2] else LOADS_KEY  # noqa: PLR2004
                use = key, bytes.fromhex(rest[1])
                count, last = uses.get(use, (0, 0.0))
                uses[use] = count + round(amount), max(last, when)
    except (ValueError, IndexError) as error:
        reraise_interrupt(error)
        return  # of another version


def size_of_rows(head: bytes) -> int | None:
    """The bytes of module rows in the sum that begins with `head` (`HEAD_SIZE` bytes); None where it is not a sum."""
    return _HEAD.unpack(head)[-1] if len(head) == HEAD_SIZE and head.startswith(_MAGIC) else None


def read_inputs(read: Callable[[int, int], bytes]) -> tuple[str, ...]:
    """The names of the files that were folded into one, which `read(offset, size)` reads pieces of."""
    head = read(0, _HEAD.size)
    if len(head) != _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
        return ()
    _, counters, uses, inputs, _ = _HEAD.unpack(head)
    return tuple(read(_HEAD.size + counters + uses, inputs).decode("utf-8", "replace").split())


def _decode_counters(section: bytes) -> dict[tuple[int, str], float]:
    counters: dict[tuple[int, str], float] = {}
    at = 0
    while at < len(section):
        hour, value, length = _COUNTER.unpack_from(section, at)
        at += _COUNTER.size + length
        if 0 <= value < _MAX_AMOUNT:  # NaN is neither
            counters[hour, section[at - length : at].decode()] = value
    return counters


assert _USE.size == KEY_SIZE + DIGEST_SIZE + 16
assert len(MISSES_ID) == DIGEST_SIZE
