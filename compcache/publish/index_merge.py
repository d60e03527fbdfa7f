"""Writes the index (miss path and tools): additions, merges, replacements. Format: `compcache.formats.index`."""

from __future__ import annotations

import heapq
from functools import partial, reduce
from itertools import groupby
from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE, KEY_SIZE, check, digest, name_key
from compcache.errors import FormatError
from compcache.files import reraise_interrupt
from compcache.formats.index import (
    CONTENT_SIZE,
    FUNCTION,
    HEADER,
    MAGIC,
    MODULE,
    NAME_SIZE,
    ROW,
    STAMP_SIZE,
    ModuleEntry,
    requirement_number,
)  # fmt: skip
from compcache.formats.order import UNNUMBERED
from compcache.formats.table import all_entries
from compcache.formats.table_writer import encoded_size, table_parts
from compcache.interrupts import suppress
from compcache.publish.atomic_file import publish
from compcache.publish.locks import try_lock
from compcache.publish.module_lists import merge_list, remove_list
from compcache.publish.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from compcache.formats.index import Index, Segment
    from compcache.formats.order import Order
    from compcache.publish.module_lists import SizeOf
    from compcache.store import Store

    MergePacks = Callable[[Store, list[Segment]], Container[bytes]]

__all__ = [
    "ALL_LEVELS",
    "FANOUT",
    "LARGE_LEVELS",
    "SMALL_LEVELS",
    "add",
    "add_all",
    "encode_function_entry",
    "encode_requirements",
    "encode_segment",
    "entries_of",
    "entries_of_modules",
    "function_entries",
    "greatest_number",
    "keep_newest",
    "merge",
    "merge_additions",
    "merge_all",
    "module_entries",
    "needs_merge",
    "newest_additions",
    "publish_segment",
    "readable",
    "remove_damaged",
    "replace_segments",
    "segment_level",
    "segments_to_merge",
    "with_order",
]

FANOUT = 8
ALL_LEVELS = range(100)
#: Segments with some hundreds of modules merge in some milliseconds. Merging larger ones takes longer than an addition should.
SMALL_LEVELS, LARGE_LEVELS = range(3), range(3, 100)
#: How many entries are sorted at a time. A merge holds these in memory, in addition to the bytes of the result.
_RANGE = 1 << 13
#: The leading bytes of a function entry: key, module_id and offset. Entries that agree in them differ only in the addition.
_SAME = KEY_SIZE + DIGEST_SIZE + 4
NO_CONTENT = bytes(CONTENT_SIZE)


def encode_function_entry(name: str, module_id: bytes, offset: int, requirement: str, order: int = 0, content: bytes = NO_CONTENT) -> bytes:
    """Encode a function entry: the module realizes `name` in the record at `offset`, for hosts that meet the requirement.

    `order` is the number of the addition, and `content` a digest of the function's content.
    """
    return FUNCTION.pack(name_key(name), module_id, offset, requirement_number(requirement), order, content)


def function_entries(segment: Segment) -> list[bytes]:
    """Return the function entries of a segment, converted from former versions.

    Raises:
        FormatError: the segment is damaged.
        OSError: it cannot be read.
    """
    return _convert_entries(all_entries(segment.functions))


def _convert_entries(entries: Iterable[bytes]) -> list[bytes]:
    return [entry.ljust(FUNCTION.size, b"\0") for entry in entries]


def with_order(entry: bytes, change: Callable[[int], int]) -> bytes:
    """Return a function entry with the number of its addition replaced by `change(number)`."""
    *fields, order, content = FUNCTION.unpack(entry)
    return FUNCTION.pack(*fields, change(order), content)


def newest_additions(entries: Iterable[bytes]) -> list[bytes]:
    """Return the function entries, sorted. Of entries that differ only in the addition, the one with the greatest number is returned."""
    found: dict[bytes, bytes] = {}
    for entry in entries:
        known = found.setdefault(entry[:_SAME], entry)
        if known is not entry and _addition_number(known) < _addition_number(entry):
            found[entry[:_SAME]] = entry
    return sorted(found.values())


def _addition_number(entry: bytes) -> int:
    number: int = FUNCTION.unpack(entry)[4]
    return number


def greatest_number(index: Index) -> int:
    """Return the greatest number of an addition in the index, or 0. Unreadable segments do not count."""
    greatest = 0
    for segment in index.segments:
        if not segment.greatest:  # not open yet
            index.look_up(segment, bytes(DIGEST_SIZE), modules=True)
        greatest = max(greatest, segment.greatest)
    return greatest


def encode_requirements(texts: Iterable[str]) -> bytes:
    """Encode the requirements of a segment: a checksum, then each text, preceded by its number and its length."""
    encoded = sorted([(requirement_number(text), text.encode("utf-8", "surrogatepass")) for text in set(texts)])
    rows = b"".join([part for number, data in encoded for part in (ROW.pack(number, len(data)), data)])
    return check(rows) + rows


def encode_segment(functions: Iterable[bytes], modules: Iterable[bytes], requirements: Iterable[str], greatest: int = 0) -> bytes:
    """Encode a segment from entries, which must be encoded and sorted. One item may contain entries consecutive entries.

    `greatest` is the greatest number of an addition that the segment must remember, which may exceed the numbers in its entries.
    """
    return b"".join(_segment_parts(Scratch(functions), Scratch(modules), requirements, greatest))


def _segment_parts(functions: Scratch, modules: Scratch, requirements: Iterable[str], greatest: int) -> Iterator[bytes]:
    rows = encode_requirements(requirements)
    yield HEADER.pack(MAGIC, encoded_size(functions.size, FUNCTION.size), len(rows), greatest)
    yield from table_parts(functions.read, functions.size, FUNCTION.size)
    yield from table_parts(modules.read, modules.size, MODULE.size)
    yield rows


def segment_level(modules: int) -> int:
    """Return the level of a merged segment with this many modules."""
    level, capacity = 1, FANOUT * FANOUT
    while modules > capacity:
        level, capacity = level + 1, capacity * FANOUT
    return level


def add(index: Index, functions: Sequence[tuple[str, int, str]], module: ModuleEntry) -> None:
    """Publish the entry of a module and of the functions that it realizes, given as (name, offset of its record, requirement).

    Raises:
        OSError: the segment could not be written.
    """
    add_all(index, [(functions, module, UNNUMBERED)])


def add_all(index: Index, additions: Iterable[tuple[Sequence[tuple[str, int, str]], ModuleEntry, Order]]) -> None:
    """Publish entries modules in one segment. See `add`. No other segment is opened.

    Raises:
        OSError: the segment could not be written.
    """
    entries: set[bytes] = set()
    requirements: set[str] = set()
    modules = []
    greatest = 0
    for functions, module, order in additions:
        entries.update(entries_of(functions, module.module_id, order))
        requirements.update([needs for _, _, needs in functions])
        modules.append(module.encode())
        greatest = max(greatest, order.number)
    index.add(publish_segment(index, 0, sorted(entries), sorted(modules), requirements, greatest))


def entries_of(indexed: Sequence[tuple[str, int, str]], module_id: bytes, order: Order) -> list[bytes]:
    """Return the function entries of a module, given as (name, offset of its record, requirement)."""
    return [
        encode_function_entry(name, module_id, at, needs, order.number, order.content(position))
        for position, (name, at, needs) in enumerate(indexed)
    ]


def publish_segment(
    index: Index,
    level: int | None,
    functions: Iterable[bytes],
    modules: Iterable[bytes],
    requirements: Iterable[str],
    greatest: int = 0,
    prepare: Callable[[str], object] | None = None,
) -> str:
    """Publish a segment made of the arguments of `encode_segment`, and return its name.

    `prepare` is called with the name before the segment becomes visible. Without a level, the number of modules determines it.
    `modules` is consumed before `functions`.

    Raises:
        OSError: the segment could not be written.
    """
    spooled = Scratch(modules)
    if level is None:
        level = segment_level(spooled.size // MODULE.size)
    write = partial(_segment_parts, Scratch(functions), spooled, set(requirements), greatest)
    name = f"{level:02d}-{digest(write(), size=NAME_SIZE).hex()}{index.suffix}"
    path = f"{index.directory}/{name}"
    if prepare is not None:
        prepare(name)
    # Additions are not synced: after a power failure prune indexes their modules again, or a program adds the modules again.
    publish(index.files, index.temporary, path, write(), sync=level > 0)
    return name


def module_entries(index: Index, module_id: bytes) -> list[ModuleEntry]:
    """Return the entries of a module, one for each stamp by a trusted writer."""
    return [
        ModuleEntry.decode(module_id + value)
        for segment in index.segments
        for value in index.look_up(segment, module_id, modules=True) or ()
        if _is_trusted(index, segment)
    ]


def entries_of_modules(index: Index, segment: Segment) -> Iterator[bytes]:
    """Yield the module entries of a segment, for a segment that this user will write. Stamps by writers that are not trusted are zeroed.

    Raises:
        FormatError: the segment is damaged.
        OSError: it cannot be read.
    """
    for entry in all_entries(segment.modules):
        yield entry if _is_trusted(index, segment) else entry[:DIGEST_SIZE] + bytes(STAMP_SIZE) + entry[DIGEST_SIZE + STAMP_SIZE :]


def _is_trusted(index: Index, segment: Segment) -> bool:
    return index.vouching is None or segment.owner in index.vouching


def needs_merge(index: Index, most: int = FANOUT) -> bool:
    """Refresh the index and return whether it has more than `most` additions. The default is the maximum for fast look-ups."""
    index.refresh()
    return sum(1 for segment in index.segments if segment.level == 0) > most


def segments_to_merge(index: Index, levels: range = ALL_LEVELS) -> list[Segment]:
    """Refresh the index and return its segments of these levels that `merge` would merge now."""
    index.refresh()
    return _choose_segments(index.segments, levels)[0]


def merge(index: Index, gone: Container[bytes] = (), store: Store | None = None, levels: range = ALL_LEVELS) -> None:
    """Merge the additions, and each level that they fill, leaving out the modules in `gone`. With a store, its lists are merged too.

    Only segments of these `levels` are merged. With `SMALL_LEVELS` no list is made, because making it takes longer than the merge.
    Segments that cannot be read are left out.

    Raises:
        OSError: the merged segment could not be written. Nothing is lost.
    """
    index.refresh()
    unreadable: set[str] = set()
    while True:
        chosen, level = _choose_segments([segment for segment in index.segments if segment.name not in unreadable], levels)
        if not chosen:
            return
        prepare = _make_no_list if levels is SMALL_LEVELS else None
        modules, functions = _merge_modules(index, chosen, gone), _merge_functions(chosen, gone)
        try:
            requirements = _merge_requirements(chosen)
            replace_segments(index, functions, modules, requirements, level, chosen, prepare=prepare, store=store, gone=gone)
        except _UnreadableError as error:
            unreadable.add(error.segment.name)
            if isinstance(error.error, FormatError):
                index.set_aside(error.segment, error.error)
            continue
        return


def merge_all(store: Store, gone: set[bytes], present: Container[bytes], size_of: SizeOf | None = None) -> None:
    """Merge all readable segments into one, without modules in `gone` or missing from `present`. Missing modules are added to `gone`.

    `size_of` returns the bytes that a module takes on disk, for the lists. `size_of` and `present` are called in the order of module_ids.

    Raises:
        OSError: a segment could not be read or written. Nothing is lost.
        FormatError: a segment is damaged.
    """
    index = store.index
    segments = readable(index)

    def modules() -> Iterator[bytes]:
        for entry in _merge_modules(index, segments, ()):
            if entry[:DIGEST_SIZE] in gone or entry[:DIGEST_SIZE] not in present:
                gone.add(entry[:DIGEST_SIZE])
            else:
                yield entry

    try:
        functions, requirements = _merge_functions(segments, gone), _merge_requirements(segments)
        replace_segments(index, functions, modules(), requirements, None, segments, store=store, gone=gone, size_of=size_of)
    except _UnreadableError as problem:
        raise problem.error from problem


def _make_no_list(_: str) -> None:
    """Do nothing; as `prepare`, it prevents the making of a list."""


class _UnreadableError(Exception):
    """Raised if a segment to be merged is damaged, missing or unreadable."""

    def __init__(self, segment: Segment, error: Exception) -> None:
        super().__init__(segment, error)
        self.segment = segment
        self.error = error


def _choose_segments(segments: Iterable[Segment], levels: range) -> tuple[list[Segment], int]:
    """Return the segments to merge and the level of the merged segment.

    The segments are those of the first level with any, and of each next level that the merged modules reach.
    """
    chosen: list[Segment] = []
    level = levels[0]
    modules = 0
    for segment in sorted([segment for segment in segments if segment.level in levels], key=lambda segment: segment.level):
        if segment.level > level:
            break
        with suppress(FormatError, OSError):  # merging it reports the error
            modules += segment.modules.count
        chosen.append(segment)
        level = max(segment_level(modules), level)
    return chosen, level


def _merge_modules(index: Index, segments: Iterable[Segment], gone: Container[bytes]) -> Iterator[bytes]:
    """Yield the newest module entry of each module in the segments, sorted, without modules in `gone`."""
    read = [_read_entries(segment, partial(entries_of_modules, index, segment)) for segment in segments]
    for module_id, entries in groupby(heapq.merge(*read), key=_module_id_of):
        if module_id not in gone:
            yield reduce(_newer, entries)


def _module_id_of(entry: bytes) -> bytes:
    return entry[:DIGEST_SIZE]


def _read_entries(segment: Segment, read: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the entries that `read` returns.

    Raises:
        _UnreadableError: the segment is damaged or cannot be read.
    """
    try:
        yield from read()
    except (FormatError, OSError) as error:
        reraise_interrupt(error)
        raise _UnreadableError(segment, error) from error


def _merge_functions(segments: Sequence[Segment], gone: Container[bytes]) -> Iterator[bytes]:
    """Yield the function entries of all segments, sorted, without duplicates and modules in `gone`. Each item contains some thousands.

    Keys are uniformly distributed, so each item contains the entries whose keys have the same first bits.
    """
    bits = (sum(map(_count_functions, segments)) // _RANGE).bit_length()
    for number in range(1 << bits):
        entries: set[bytes] = set()
        for segment in segments:
            entries.update(_convert_entries(_read_entries(segment, partial(_read_range, segment, number, bits))))
        kept = [entry for entry in entries if entry[KEY_SIZE : KEY_SIZE + DIGEST_SIZE] not in gone] if gone else entries
        yield b"".join(newest_additions(kept))


def _count_functions(segment: Segment) -> int:
    try:
        return segment.functions.count
    except (FormatError, OSError) as error:
        reraise_interrupt(error)
        raise _UnreadableError(segment, error) from error


def _read_range(segment: Segment, number: int, bits: int) -> list[bytes]:
    return segment.functions.entries_of_range(number, bits)


def _merge_requirements(segments: Iterable[Segment]) -> set[str]:
    found: set[str] = set()
    for segment in segments:
        try:
            found.update(segment.requirements.values())
        except (FormatError, OSError) as error:
            reraise_interrupt(error)
            raise _UnreadableError(segment, error) from error
    return found


def keep_newest(modules: dict[bytes, bytes], data: bytes) -> None:
    """Replace a module's entry in `modules` by `data` if its file changed later.

    At equal times an entry with a MAC wins. Only caches with a key need the MAC.
    """
    key = data[:DIGEST_SIZE]
    other = modules.get(key)
    modules[key] = data if other is None else _newer(other, data)


def _newer(one: bytes, other: bytes) -> bytes:
    return max(one, other, key=_newness)


def _newness(data: bytes) -> tuple[int, bytes]:
    entry = ModuleEntry.decode(data)
    return entry.stamp.ctime, entry.mac


def replace_segments(
    index: Index,
    functions: Iterable[bytes],
    modules: Iterable[bytes],
    requirements: Iterable[str],
    level: int | None,
    replaced: Sequence[Segment],
    greatest: int = 0,
    prepare: Callable[[str], object] | None = None,
    *,
    store: Store | None = None,
    gone: Container[bytes] = (),
    size_of: SizeOf | None = None,
) -> None:
    """Publish a segment made of the arguments of `encode_segment`, and remove the segments that it replaces.

    Without `prepare`, the lists of a `store`'s index are merged too, without modules in `gone` and with the sizes that `size_of` returns.
    `prepare` is called with the new segment's name instead.

    Raises:
        OSError: a segment could not be written or removed. No entry is lost.
    """
    greatest = max([greatest, *[segment.greatest for segment in replaced]])

    def merge_lists(name: str) -> None:
        if store is not None and name not in [segment.name for segment in replaced]:
            merge_list(store, name, replaced, gone, size_of)

    prepare = merge_lists if prepare is None else prepare
    name = publish_segment(index, level, functions, modules, requirements, greatest, prepare)
    for segment in replaced:
        if segment.name != name:
            _remove_segment(index, segment.name)
            if store is not None:
                remove_list(store, segment.name)
    index.refresh()


def replace_by_merged(store: Store, parts: Sequence[Segment], replaced: Sequence[Segment]) -> int:
    """Publish one segment with the entries of all `parts`, and return the number of its modules.

    The lists of the parts are merged. The segments in `replaced` are removed.

    Raises:
        OSError: a segment could not be read, written or removed.
        FormatError: a part is damaged.
    """
    greatest = max([part.greatest for part in parts])
    modules, functions = _merge_modules(store.index, parts, ()), _merge_functions(parts, ())
    count = 0

    def count_modules() -> Iterator[bytes]:
        nonlocal count
        for entry in modules:
            count += 1
            yield entry

    try:
        requirements = _merge_requirements(parts)
        replace_segments(
            store.index, functions, count_modules(), requirements, None, replaced, greatest, lambda name: merge_list(store, name, parts)
        )
    except _UnreadableError as problem:
        raise problem.error from problem
    for segment in replaced:
        remove_list(store, segment.name)
    return count


def readable(index: Index) -> tuple[Segment, ...]:
    """Refresh the index, open all its segments, and return those that can be read."""
    index.refresh()
    for segment in index.segments:
        index.look_up(segment, bytes(DIGEST_SIZE), modules=True)
    return index.segments


def remove_damaged(index: Index) -> None:
    """Remove the segments that were found damaged.

    A segment that cannot be removed is ignored from now on. The caller rebuilds the entries.
    """
    for name in list(index.damaged):
        try:
            _remove_segment(index, name)
        except OSError as error:
            reraise_interrupt(error)
            index.ignored.add(name)
    index.damaged.clear()


def _remove_segment(index: Index, name: str) -> None:
    with suppress(FileNotFoundError):
        index.files.unlink(f"{index.directory}/{name}")


def merge_additions(
    store: Store, index: Index | None = None, *, most: int = FANOUT, merge_packs: MergePacks | None = None, levels: range = ALL_LEVELS
) -> None:
    """Merge the additions of an index if there are more than `most` and no other process is merging them. See `merge`.

    `index` is the store's own (the default) or another index in its directory. `merge_packs` merges the packs of the chosen segments
    first, and returns the module_ids of the packs that it replaced.

    Raises:
        OSError: the merged segment could not be written. Nothing is lost.
    """
    index = index or store.index
    if needs_merge(index, most):
        with try_lock(store, f"{'index' if index is store.index else index.directory}-merge") as owned:
            if owned:
                gone = merge_packs(store, segments_to_merge(index, levels)) if merge_packs is not None else ()
                merge(index, gone, store if index is store.index else None, levels)
