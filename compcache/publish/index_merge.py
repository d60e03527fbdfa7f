"""Writes the index: adds, merges and replaces segments (miss path and tools). See `compcache.formats.index` for the format."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from compcache.digest import DIGEST_SIZE, KEY_SIZE, blake2b, check, digest, name_key
from compcache.errors import FormatError
from compcache.files import writer
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
from compcache.formats.table_writer import encoded_size, table_parts
from compcache.interrupts import reraise_interrupt, suppress
from compcache.publish.atomic_file import publish
from compcache.publish.locks import try_lock
from compcache.publish.module_lists import merge_list, remove_lists_of
from compcache.publish.open_segments import open_segments, readable_segments
from compcache.publish.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from compcache.formats.index import Index, Segment
    from compcache.formats.order import Order
    from compcache.formats.table import Table
    from compcache.publish.module_lists import SizeOf
    from compcache.store import Store

    MergePacks = Callable[[Store, list[Segment]], Container[bytes]]

__all__ = [
    "ALL_LEVELS", "FANOUT", "LARGE_LEVELS", "SMALL_LEVELS", "add_all", "encode_entries", "encode_function_entry", "encode_requirements",
    "encode_segment", "full_level", "greatest_number", "keep_newest", "merge",
    "merge_additions", "merge_all", "newest_additions", "publish_addition", "publish_segment", "remove_damaged", "replace_segments",
    "segment_level", "segments_to_merge",
]  # fmt: skip

#: A level with more segments is merged. A merged segment is at most this many times as large as one of the level below.
FANOUT = 8
ALL_LEVELS = range(100)
#: Segments with the entries of some hundreds of modules merge in some milliseconds. Merging more would delay an addition too much.
SMALL_LEVELS, LARGE_LEVELS = range(3), range(3, 100)
#: The size in bytes of the entries of a module with one function.
_MODULE_SIZE = FUNCTION.size + MODULE.size
#: How many entries are sorted at a time. A merge holds these in memory, in addition to the bytes of the result.
_RANGE = 1 << 13
#: The size of a function entry's leading fields: key, module_id and offset. Entries with the same ones differ only in the addition.
_ENTRY_IDENTITY = KEY_SIZE + DIGEST_SIZE + 4
#: The content digest of functions with content names, and of functions without a known digest.
NO_CONTENT = bytes(CONTENT_SIZE)


def encode_function_entry(name: str, module_id: bytes, offset: int, requirement: str, order: int = 0, content: bytes = NO_CONTENT) -> bytes:
    """Encode a function entry.

    Args:
        name: the func_name.
        module_id: the module that realizes the function.
        offset: the offset of the function's record.
        requirement: the requirement that a host must meet.
        order: the number of the addition.
        content: a digest of the function's content, or `NO_CONTENT`.
    """
    return FUNCTION.pack(name_key(name), module_id, offset, requirement_number(requirement), order, content)


def newest_additions(entries: Iterable[bytes]) -> list[bytes]:
    """Return function entries, sorted. Of entries that differ only in the addition number, only the entry with the greatest is returned."""
    newest: dict[bytes, bytes] = {}
    for entry in entries:
        newest_entry = newest.setdefault(entry[:_ENTRY_IDENTITY], entry)
        if newest_entry is not entry and _addition_number(newest_entry) < _addition_number(entry):
            newest[entry[:_ENTRY_IDENTITY]] = entry
    return sorted(newest.values())


def _addition_number(entry: bytes) -> int:
    """Return the number of the addition in a function entry."""
    number: int
    _, _, _, _, number, _ = FUNCTION.unpack(entry)
    return number


def greatest_number(index: Index) -> int:
    """Return the greatest addition number in the index, or 0. Unreadable segments are ignored."""
    return max([segment.greatest for segment in open_segments(index)], default=0)


def encode_requirements(texts: Iterable[str]) -> bytes:
    """Encode the requirements of a segment: a checksum, then each text, preceded by its number and its length."""
    encoded = sorted([(requirement_number(text), text.encode("utf-8", "surrogatepass")) for text in set(texts)])
    rows = b"".join([ROW.pack(number, len(data)) + data for number, data in encoded])
    return check(rows) + rows


def encode_segment(functions: Iterable[bytes], modules: Iterable[bytes], requirements: Iterable[str], greatest: int = 0) -> bytes:
    """Encode a segment from encoded, sorted entries. One item may contain several consecutive entries.

    `greatest` is the greatest addition number that the segment records. It may be greater than the numbers in the entries.
    """
    return b"".join(_segment_parts(Scratch(functions), Scratch(modules), requirements, greatest))


def _segment_parts(functions: Scratch, modules: Scratch, requirements: Iterable[str], greatest: int) -> Iterator[bytes]:
    """Yield the parts of a segment's file: the header, both tables and the requirements."""
    rows = encode_requirements(requirements)
    yield HEADER.pack(MAGIC, encoded_size(functions.size, FUNCTION.size), len(rows), greatest)
    yield from table_parts(functions.read, functions.size, FUNCTION.size)
    yield from table_parts(modules.read, modules.size, MODULE.size)
    yield rows


def segment_level(size: int) -> int:
    """Return the level of a merged segment whose entries have this size in bytes."""
    level, capacity = 1, FANOUT * FANOUT * _MODULE_SIZE
    while size > capacity:
        level, capacity = level + 1, capacity * FANOUT
    return level


def add_all(index: Index, additions: Iterable[tuple[Sequence[tuple[str, int, str]], ModuleEntry, Order]]) -> None:
    """Publish index entries for modules in one segment. No other segment is opened.

    `additions` has the functions of each module as (name, record offset, requirement), its entry, and its order.

    A segment with more entries than eight modules of one function has the level of a merged segment, so that later merges do not take it
    for a small one. Raise `OSError` if the segment could not be written.
    """
    entries: set[bytes] = set()
    requirements: set[str] = set()
    modules = []
    greatest = 0
    for functions, module, order in additions:
        entries.update(encode_entries(functions, module.module_id, order))
        requirements.update([requirement for _, _, requirement in functions])
        modules.append(module.encode())
        greatest = max(greatest, order.number)
    publish_addition(index, sorted(entries), sorted(modules), requirements, greatest)


def publish_addition(
    index: Index, functions: Sequence[bytes], modules: Sequence[bytes], requirements: Iterable[str], greatest: int = 0
) -> None:
    """Publish the entries of an addition as a segment. See `encode_segment` for the content.

    The file is not synced: after a power failure prune indexes the modules again, or a program adds them again. This process uses the
    encoded content without reading the file. Raise `OSError` if the segment could not be written.
    """
    size = len(functions) * FUNCTION.size + len(modules) * MODULE.size
    level = segment_level(size) if size > FANOUT * _MODULE_SIZE else 0
    content = encode_segment(functions, modules, requirements, greatest)
    name = f"{level:02d}-{digest([content], size=NAME_SIZE).hex()}{index.suffix}"
    status = publish(index.files, index.temporary, f"{index.directory}/{name}", [content], sync=False)
    index.add(name, content, writer(status))


def encode_entries(indexed: Sequence[tuple[str, int, str]], module_id: bytes, order: Order) -> list[bytes]:
    """Encode the function entries of a module, given as (name, record offset, requirement), with the number and contents in `order`."""
    return [
        encode_function_entry(name, module_id, offset, requirement, order.number, order.content(position))
        for position, (name, offset, requirement) in enumerate(indexed)
    ]


def publish_segment(
    index: Index,
    functions: Iterable[bytes],
    modules: Iterable[bytes],
    requirements: Iterable[str],
    greatest: int = 0,
    prepare: Callable[[str], object] | None = None,
) -> tuple[str, int]:
    """Publish a segment whose size determines its level. Return its name, and the number of modules. See `encode_segment` for the content.

    `prepare` is called with the name before the segment becomes visible. `modules` is consumed before `functions`.

    Raise `OSError` if the segment could not be written.
    """
    spooled_modules = Scratch(modules)
    spooled_functions = Scratch(functions)
    level = segment_level(spooled_functions.size + spooled_modules.size)
    state, name = blake2b(digest_size=NAME_SIZE), ""

    def parts() -> Iterator[bytes]:
        """Yield the parts of the segment's file, and add them to the digest."""
        for part in _segment_parts(spooled_functions, spooled_modules, set(requirements), greatest):
            state.update(part)
            yield part

    def path() -> str:
        """Return the final path, which contains the digest of everything written before."""
        nonlocal name
        name = f"{level:02d}-{state.hexdigest()}{index.suffix}"
        if prepare is not None:
            prepare(name)
        return f"{index.directory}/{name}"

    publish(index.files, index.temporary, path, parts())
    return name, spooled_modules.size // MODULE.size


def _with_trusted_stamps(index: Index, segment: Segment, entries: Iterable[bytes]) -> Iterator[bytes]:
    """Yield module entries of a segment, for copying to a new segment.

    The stamps are set to zero if the owner of the segment is not a user whose stamps are trusted (`Index.vouching`).
    """
    is_trusted = index.vouching is None or segment.owner in index.vouching
    for entry in entries:
        yield entry if is_trusted else entry[:DIGEST_SIZE] + bytes(STAMP_SIZE) + entry[DIGEST_SIZE + STAMP_SIZE :]


def full_level(segments: Iterable[Segment], levels: range = ALL_LEVELS, most: int = FANOUT) -> int | None:
    """Return the highest of these levels with more than `most` segments, or None. More segments than the default slow look-ups down."""
    present_levels = [segment.level for segment in segments]
    return max([level for level in {*present_levels} if level in levels and present_levels.count(level) > most], default=None)


def segments_to_merge(index: Index, levels: range = ALL_LEVELS, most: int = FANOUT) -> list[Segment]:
    """Refresh the index, and return the segments to merge, the lowest levels first. Segments that cannot be read count as empty.

    These are the segments of the lowest level, of all levels up to the highest with more than `most` segments, and of each higher level
    that the merged segment reaches. The segment that lifts the merged segment out of `levels` is the last, so that merges of small levels
    stay short.
    """
    index.refresh()
    chosen: list[Segment] = []
    candidates = sorted([segment for segment in index.segments if segment.level in levels], key=attrgetter("level"))
    level = full_level(candidates, levels, most) or levels[0]
    size = 0
    for segment in candidates:
        if segment.level > level or level not in levels:
            break
        with suppress(FormatError, OSError):  # merging it reports the error
            size += segment.functions.count * FUNCTION.size + segment.modules.count * MODULE.size
        chosen.append(segment)
        level = max(segment_level(size), level)
    return chosen


def merge(
    index: Index, store: Store | None = None, levels: range = ALL_LEVELS, most: int = FANOUT, merge_packs: MergePacks | None = None
) -> None:
    """Merge the additions, the full levels, and the levels that the merged segment fills. Segments that cannot be read are left out.

    Args:
        index: the index.
        store: if not None, the module lists of this store are merged too.
        levels: only segments of these levels are merged. With `SMALL_LEVELS`, no list is written, because that would take longer than the
            merge.
        most: a level with more segments is full.
        merge_packs: merges the packs in the chosen segments, and returns the module_ids of the replaced packs. The merged segment omits the
            entries of these packs. It includes the segments of the new packs.

    Raises:
        OSError: the merged segment could not be written. Nothing is lost.
    """
    chosen = segments_to_merge(index, levels, most)
    gone: Container[bytes] = ()
    if merge_packs is not None and store is not None:
        before = {segment.name for segment in index.segments}
        gone = merge_packs(store, chosen)
        index.refresh()
        chosen += [segment for segment in index.segments if segment.name not in before and segment.level in levels]
    while chosen:
        prepare: Callable[[str], object] | None = (lambda _: None) if levels is SMALL_LEVELS else None  # writes no list
        modules, functions = _merge_modules(index, chosen, gone), _merge_functions(chosen, gone)
        try:
            requirements = _merge_requirements(chosen)
            replace_segments(index, functions, modules, requirements, chosen, prepare=prepare, store=store, gone=gone)
        except _UnreadableError as error:
            chosen.remove(error.segment)
            if isinstance(error.error, FormatError):
                index.set_aside(error.segment, error.error)
        else:
            return


def merge_all(store: Store, gone: set[bytes], present: Container[bytes], size_of: SizeOf | None = None) -> None:
    """Merge all readable segments into one.

    Args:
        store: the cache directory.
        gone: the modules to leave out. Modules that are not in `present` are added to this set.
        present: the modules that exist. It is queried in the order of module_ids.
        size_of: returns the size of a module on disk in bytes, for the lists. It is called in the order of module_ids.

    Raises:
        OSError: a segment could not be read or written. Nothing is lost.
        FormatError: a segment is damaged.
    """
    segments = readable_segments(store.index)

    def modules() -> Iterator[bytes]:
        """Yield the entries of modules that still exist, and add the others to `gone`. See `_merge_modules` for the exceptions."""
        for entry in _merge_modules(store.index, segments, ()):
            if entry[:DIGEST_SIZE] in gone or entry[:DIGEST_SIZE] not in present:
                gone.add(entry[:DIGEST_SIZE])
            else:
                yield entry

    replace_by_merged(store, segments, segments, modules(), gone, size_of)


class _UnreadableError(Exception):
    """Raised if a segment to be merged is damaged, missing or unreadable."""

    def __init__(self, segment: Segment, error: Exception) -> None:
        super().__init__(segment, error)
        self.segment = segment
        self.error = error


def _merge_modules(index: Index, segments: Sequence[Segment], gone: Container[bytes]) -> Iterator[bytes]:
    """Yield the newest module entry of each module in the segments, sorted, without those in `gone`. See `_read_ranges` for exceptions."""
    for parts in _read_ranges(segments, attrgetter("modules")):
        newest: dict[bytes, bytes] = {}
        for segment, entries in zip(segments, parts, strict=True):
            for entry in _with_trusted_stamps(index, segment, entries):
                keep_newest(newest, entry)
        yield from [newest[module_id] for module_id in sorted(newest) if module_id not in gone]


@contextmanager
def _as_unreadable_error(segment: Segment) -> Iterator[None]:
    """Convert an error of the block that shows that a segment is damaged or cannot be read into `_UnreadableError`."""
    try:
        yield
    except (FormatError, OSError) as error:
        reraise_interrupt(error)
        raise _UnreadableError(segment, error) from error


def _merge_functions(segments: Sequence[Segment], gone: Container[bytes]) -> Iterator[bytes]:
    """Yield the function entries of all segments, sorted, without duplicates and modules in `gone`.

    Each item contains some thousands of entries. See `_read_ranges` for the exceptions.
    """
    for parts in _read_ranges(segments, attrgetter("functions")):
        entries = set(chain.from_iterable(parts))
        remaining_entries = [entry for entry in entries if entry[KEY_SIZE : KEY_SIZE + DIGEST_SIZE] not in gone] if gone else entries
        yield b"".join(newest_additions(remaining_entries))


def _read_ranges(segments: Sequence[Segment], table_of: Callable[[Segment], Table]) -> Iterator[list[list[bytes]]]:
    """Yield the entries of one table of each segment, range by range. The keys of a range have the same first bits.

    A range has some thousands of entries, because keys are uniformly distributed. Raise `_UnreadableError` if a segment is damaged or
    cannot be read.
    """
    tables = []
    for segment in segments:
        with _as_unreadable_error(segment):
            tables.append(table_of(segment))
    bits = (sum(table.count for table in tables) // _RANGE).bit_length()
    for number in range(1 << bits):
        parts = []
        for segment, table in zip(segments, tables, strict=True):
            with _as_unreadable_error(segment):
                parts.append(table.entries_of_range(number, bits))
        yield parts


def _merge_requirements(segments: Iterable[Segment]) -> set[str]:
    """Return the requirements that occur in any of the segments. Raise `_UnreadableError` if a segment is damaged or cannot be read."""
    texts: set[str] = set()
    for segment in segments:
        with _as_unreadable_error(segment):
            texts.update(segment.requirements.values())
    return texts


def keep_newest(modules: dict[bytes, bytes], data: bytes) -> None:
    """Store the module entry `data` in `modules`, unless the entry there has a later change time.

    If the times are equal, an entry with a MAC is preferred. Only caches with a key use MACs.
    """
    key = data[:DIGEST_SIZE]
    present = modules.get(key)
    modules[key] = data if present is None else max(present, data, key=_change_key)


def _change_key(data: bytes) -> tuple[int, bytes]:
    """Return a key by which the entry for the latest change of a module's file is the greatest."""
    _, _, _, _, ctime, *_, entry_mac = MODULE.unpack(data)
    return ctime, entry_mac


def replace_segments(
    index: Index,
    functions: Iterable[bytes],
    modules: Iterable[bytes],
    requirements: Iterable[str],
    replaced: Sequence[Segment],
    greatest: int = 0,
    prepare: Callable[[str], object] | None = None,
    *,
    store: Store | None = None,
    gone: Container[bytes] = (),
    size_of: SizeOf | None = None,
    parts: Sequence[Segment] | None = None,
) -> int:
    """Publish a segment (see `encode_segment`), and remove the segments that it replaces. Return the number of modules.

    The module lists of a `store` are merged too, without modules in `gone` and with the sizes that `size_of` returns. These are the lists
    of `parts`, or of the replaced segments. If `prepare` is given, it is called with the new segment's name instead.

    Raise `OSError` if a segment could not be written or removed. No entry is lost.
    """
    greatest = max([greatest, *[segment.greatest for segment in replaced]])

    def merge_lists(name: str) -> None:
        """Write the list of the new segment, unless a replaced segment has its content and name, and so its list."""
        if store is not None and (parts is not None or name not in [segment.name for segment in replaced]):
            merge_list(store, name, replaced if parts is None else parts, gone, size_of)

    prepare = merge_lists if prepare is None else prepare
    name, modules_count = publish_segment(index, functions, modules, requirements, greatest, prepare)
    for segment in replaced:
        if segment.name != name:
            _remove_segment(index, segment.name)
    if store is not None:
        remove_lists_of(store, {segment.name for segment in replaced} - {name})
    index.refresh()
    return modules_count


def replace_by_merged(
    store: Store,
    parts: Sequence[Segment],
    replaced: Sequence[Segment],
    modules: Iterable[bytes] | None = None,
    gone: Container[bytes] = (),
    size_of: SizeOf | None = None,
) -> int:
    """Publish one segment with the entries of all `parts`, and remove the segments in `replaced`. Return the number of modules.

    The module lists of the parts are merged. `modules` are the module entries if not all are kept, and `gone` the modules that are not.

    Raises:
        OSError: a segment could not be read, written or removed.
        FormatError: a part is damaged.
    """
    if modules is None:
        modules = _merge_modules(store.index, parts, ())
    greatest = max([part.greatest for part in parts], default=0)
    try:
        functions, requirements = _merge_functions(parts, gone), _merge_requirements(parts)
        return replace_segments(
            store.index, functions, modules, requirements, replaced, greatest, store=store, gone=gone, size_of=size_of, parts=parts
        )
    except _UnreadableError as problem:
        raise problem.error from problem


def remove_damaged(index: Index) -> None:
    """Remove the damaged segments. The caller must restore their entries. A segment that cannot be removed is ignored from now on."""
    for name in list(index.damaged):
        try:
            _remove_segment(index, name)
        except OSError as error:
            reraise_interrupt(error)
            index.ignored.add(name)
    index.damaged.clear()


def _remove_segment(index: Index, name: str) -> None:
    """Remove the file of a segment, unless another process has removed it."""
    with suppress(FileNotFoundError):
        index.files.unlink(f"{index.directory}/{name}")


def merge_additions(
    store: Store, index: Index | None = None, *, most: int = FANOUT, merge_packs: MergePacks | None = None, levels: range = ALL_LEVELS
) -> None:
    """Merge an index if one of the `levels` has more than `most` segments, unless another process is merging it. See `merge`.

    `index` is the store's index (the default) or another index in its directory.

    Raise `OSError` if the merged segment could not be written. Nothing is lost.
    """
    index = index or store.index
    index.refresh()
    if full_level(index.segments, levels, most) is not None:
        with try_lock(store, f"{'index' if index is store.index else index.directory}-merge") as owned:
            if owned:
                merge(index, store if index is store.index else None, levels, most, merge_packs)
