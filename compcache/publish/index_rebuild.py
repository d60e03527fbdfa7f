"""Rebuilds the index from the modules on disk (miss path and tools)."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

from compcache.directory.module_file import ModuleFile
from compcache.directory.places import PARTS
from compcache.errors import FormatError, IncompatibleTargetError, IntegrityError, StorageError
from compcache.files import UNANSWERED
from compcache.formats import host
from compcache.formats.footer import LARGEST_FOREIGN, require_intact
from compcache.formats.index import Segment, Stamp
from compcache.formats.known_faults import fault_of
from compcache.formats.makers import read_makers
from compcache.formats.manifest import SUSPECT
from compcache.formats.manifest_writer import WholeManifest, image_flag
from compcache.formats.order import Order, order_of
from compcache.formats.records import decode_module
from compcache.hit.target import path_opener
from compcache.interrupts import reraise_interrupt, suppress
from compcache.processes.detached import LateFiles
from compcache.publish import index_merge
from compcache.publish.atomic_file import is_settled, publish
from compcache.publish.index_parts import MARK, OtherReader, fans_of, is_current, known_parts, part_name
from compcache.publish.module_lists import remove_lists_of, write_list
from compcache.publish.module_reader import read_notes
from compcache.publish.module_rows import make_row
from compcache.publish.open_segments import readable_segments
from compcache.publish.small_modules import IndexData, read_small_module
from compcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.publish.module_rows import Row

__all__ = [
    "IndexCollector", "describe_from_records", "index_modules", "mark_unfinished", "read_from_the_end", "read_functions",
    "read_indexed_names", "read_order", "rebuild_index",
]  # fmt: skip

_NO_STAMP = Stamp(0, 0, 0, 0)


def read_functions(module: ModuleFile) -> list[tuple[str, int, str]]:
    """Return (name, record offset, requirement) for each function that a module realizes. See `read_indexed_names` for the exceptions."""
    return WholeManifest(module.read(module.image, module.records)).functions()


def read_indexed_names(module: ModuleFile) -> list[tuple[str, int, str]]:
    """Return (name, record offset, requirement) for each function and each entry of data in a module.

    Raise `FormatError` if a record is damaged, or `StorageError` if the file cannot be read.
    """
    return WholeManifest(module.read(module.image, module.records)).indexed()


def read_order(module: ModuleFile) -> Order:
    """Return a module's addition number and content digests from its notes: 0 and no digests if the notes are damaged.

    Raise `FormatError` if the footer is damaged, or `StorageError` if the file cannot be read.
    """
    return order_of(read_notes(module))


def describe_from_records(module: ModuleFile) -> str:
    """Set the fields of `module` that its records determine, and return the requirement that a host must meet.

    Raise `FormatError` if the records are malformed, or `StorageError` if the file cannot be read.
    """
    footer = module.footer()
    module.describe(footer.image, footer.records, bytes(8), 0, bytes(16))  # the sizes, by which the first record is found
    record = decode_module(module.read_record(0))
    module.describe(footer.image, footer.records, host.target_id(record.requirement()), image_flag(record.image_kind), record.key)
    if fault_of(read_makers(module.read_record, module.records)):
        module.flags = SUSPECT
    return record.requirement()


def _open_intact(store: Store, module_id: bytes) -> ModuleFile | None:
    """Open a module for indexing, even if this cache does not use it.

    Return None if the module is damaged, too large, unreadable, or not a regular file. The module's `elsewhere` is set, because this cache
    must not run its code.
    """
    module = ModuleFile(store.files, store.module_path(module_id), module_id)
    with suppress(OSError, FormatError):
        status = module.open(store)
        if stat.S_ISREG(status.st_mode) and module.size <= LARGEST_FOREIGN:
            require_intact(module.footer(), module_id, module.read)
            describe_from_records(module)
            module.elsewhere = True
            return module
    module.close()
    return None


def mark_unfinished(store: Store) -> None:
    """Record that the index is incomplete until it is rebuilt. Raise `OSError` if the mark cannot be written."""
    publish(store.files, store.temporary, store.path(PARTS, MARK), [], sync=False)
    store.index.refresh()


def rebuild_index(store: Store) -> int:
    """Replace the index with a new index built from the module files, and return the number of indexed modules.

    Damaged modules are quarantined. Concurrent additions by other processes are kept. The index is built in parts, which look-ups do not
    use until they are merged, because a single part may contain an outdated realization. An interrupted rebuild is continued.

    Raises:
        OSError: the index could not be written, or a module not read (see `_read_module`). Only damaged segments were removed.
        FormatError: a part was damaged during the rebuild. Only damaged segments were removed.
    """
    index = store.index
    mark_unfinished(store)
    replaced = readable_segments(index)
    index_merge.remove_damaged(index)
    known_names = known_parts(store)
    parts = {name: fans_of(name) for name in known_names if is_current(store, name)}
    fans = sorted(set(store.fans()).difference(*parts.values()))
    with OtherReader(store, fans, {*known_names}) as other_reader:
        reading = _read_parts(store, fans, parts, other_reader)
    if parts:
        count = index_merge.replace_by_merged(store, [Segment(index, name) for name in parts], replaced)
    else:
        rows = reading.rows
        count = index_merge.replace_segments(
            index, *reading.entries(), replaced, reading.greatest, lambda name: write_list(store, name, rows), store=store
        )
    finished = {*parts, *known_names, *known_parts(store), MARK}
    remove_lists_of(store, finished)
    for name in finished:
        with suppress(OSError):
            store.files.unlink(store.path(PARTS, name))
    index.refresh()
    return count


#: A part is written after this many modules, which are read within about a second.
_MODULES_PER_PART = 4096


def _read_parts(store: Store, fans: list[str], parts: dict[str, set[str]], other_reader: OtherReader) -> IndexCollector:
    """Read directories into parts of the new index. Add the written parts, and the other process's parts, to `parts`.

    Directories that the other process has read are skipped. Raise `OSError` if a part cannot be written, or a module not read (see
    `_read_module`).

    Returns:
        The modules that were read after the last part.
    """
    reading = IndexCollector()
    for fan in fans:
        parts.update(other_reader.take_new_parts(parts))
        if not any(fan in directories for directories in parts.values()):
            reading.read(store, fan)
        if len(reading.modules) >= _MODULES_PER_PART:
            parts.update(reading.write_part(store))
            reading = IndexCollector()
    parts.update(other_reader.take_new_parts(parts))
    if parts and reading.modules:
        parts.update(reading.write_part(store))
    return reading


def read_from_the_end(root: str, *, trust: bool) -> None:
    """Read the module directories into parts, backwards from the last, until a directory that another process has read.

    Also stop if the parent has ended or has finished the rebuild. In each of these cases, modules that are not in a part yet are left out:
    the parent reads them. This is the main function of a process that the rebuilding process starts. It skips directories with large or
    possibly damaged modules, because only the rebuilding process reports damage. `trust` is the argument of `Cache`. Raise `OSError` if a
    part cannot be written.
    """
    parent = os.getppid()
    store = Store(root, files=LateFiles(), trust=trust, open_beneath=path_opener())
    former_parts = known_parts(store)
    read_fans = {fan for name in former_parts if is_current(store, name) for fan in fans_of(name)}
    reading, known_names = IndexCollector(), {*former_parts, MARK}
    for fan in sorted(set(store.fans()) - read_fans, reverse=True):
        names = {*store.names(PARTS)}
        if os.getppid() != parent or MARK not in names or any(fan in fans_of(name) for name in names - known_names):
            return
        is_read = reading.read_small(store, fan)
        if reading.modules and (not is_read or len(reading.modules) >= _MODULES_PER_PART):
            known_names.update(reading.write_part(store))
            reading = IndexCollector()
    if reading.modules:
        reading.write_part(store)


class IndexCollector:
    """Collects index entries from modules that are read one by one.

    Attributes:
        modules: the encoded module entries by module_id.
        rows: the rows of the modules, each with the size of the file in bytes.
        greatest: the greatest addition number.
    """

    def __init__(self) -> None:
        self._functions: set[bytes] = set()
        self._requirements: set[str] = set()
        self.modules: dict[bytes, bytes] = {}
        self.rows: list[tuple[Row, int]] = []
        self.greatest = 0
        self._fans: list[str] = []  # the directories that were read
        self._begun = 0  # when the reading began, in nanoseconds since the epoch

    def read(self, store: Store, fan: str) -> None:
        """Read all modules in a directory. See `add` for the exceptions."""
        self._begun = self._begun or time.time_ns()
        for module_id in store.module_ids(fan):
            self.add(store, module_id)
        self._fans.append(fan)

    def read_small(self, store: Store, fan: str) -> bool:
        """Read a directory and return True if all its modules are small and intact. Otherwise add nothing and return False."""
        start_time = self._begun or time.time_ns()
        modules = [(module_id, read_small_module(store, module_id)) for module_id in store.module_ids(fan)]
        intact = [(module_id, module) for module_id, module in modules if module is not None]
        if len(intact) < len(modules):
            return False
        for module_id, module in intact:
            self._add_entries(module_id, module)
        self._begun = start_time
        self._fans.append(fan)
        return True

    def add(self, store: Store, module_id: bytes) -> None:
        """Read a module and collect its entries. Unusable modules are skipped.

        Modules without this cache's signature are included, because other caches may use them. See `_read_module` for the exception.
        """
        module = _read_module(store, module_id)
        if module is not None:
            self._add_entries(module_id, module)

    def _add_entries(self, module_id: bytes, module: IndexData) -> None:
        """Add the entries of a module to the tables."""
        indexed, entry, order, row, size = module
        self.modules[module_id] = entry
        self.rows.append((row, size))
        self._functions.update(index_merge.encode_entries(indexed, module_id, order))
        self._requirements.update([needs for _, _, needs in indexed])
        self.greatest = max(self.greatest, order.number)

    def write_part(self, store: Store) -> dict[str, set[str]]:
        """Write the collected entries as a part. Return its name and directories. Raise `OSError` if it cannot be written."""
        name = part_name(self._fans, self._begun)
        write_list(store, name, self.rows)
        data = index_merge.encode_segment(*self.entries(), self.greatest)
        publish(store.files, store.temporary, store.path(PARTS, name), [data], sync=False)
        return {name: fans_of(name)}

    def entries(self) -> tuple[list[bytes], list[bytes], set[str]]:
        """Return the sorted function entries, the sorted module entries, and the requirements."""
        return sorted(self._functions), [self.modules[key] for key in sorted(self.modules)], self._requirements


def _read_module(store: Store, module_id: bytes) -> IndexData | None:
    """Return the index data of a module, or None if the module is missing, unreadable, not for this host, or damaged.

    A damaged module is moved to quarantine. Raise `StorageError` for a shortage, and if the disk or the server failed to read the module:
    without the newest code of a name, older code would be used.
    """
    small = read_small_module(store, module_id)
    if small is not None:
        return small
    try:
        module, size, stamp = _open_module(store, module_id)
    except (FileNotFoundError, IncompatibleTargetError, IntegrityError) as error:
        reraise_interrupt(error)
        return None
    except StorageError as error:
        if error.errno in UNANSWERED:
            raise
        return None
    try:
        return _index_data_of(store, module, size, stamp)
    except FormatError as error:
        store.condemn(module, error)
        return None
    finally:
        module.close()


def _index_data_of(store: Store, module: ModuleFile, size: int, stamp: Stamp) -> IndexData:
    """Return everything that the index stores about a module, read from the module's own file.

    Raise `FormatError` if a record is damaged, or `StorageError` if the file cannot be read.
    """
    footer = module.footer()
    indexed = read_indexed_names(module)
    row = make_row(module.module_id, module.read(footer.image, footer.records), module.read(footer.content, footer.notes))
    return IndexData(indexed, store.entry_of(module, stamp, len(indexed)).encode(), read_order(module), row, size)


def _open_module(store: Store, module_id: bytes) -> tuple[ModuleFile, int, Stamp]:
    """Open a module. Return the module, the number of bytes that it takes on disk, and its stamp.

    The stamp is zero if the file must be verified again.

    Raises:
        FileNotFoundError, IncompatibleTargetError, IntegrityError, StorageError: the module cannot be used or read.
    """
    try:
        module = store.open_module(module_id, leave_stamp=False)
    except IntegrityError:
        intact = _open_intact(store, module_id) if store.stamp_key else None
        if intact is None:
            raise
        module = intact
    status = module.status()
    is_trusted = is_settled(status) and not module.elsewhere
    return module, module.stored, Stamp.of(status) if is_trusted else _NO_STAMP


def index_modules(store: Store, module_ids: Iterable[bytes]) -> tuple[bytes, ...]:
    """Publish an index segment for these modules, and return the ids of the indexed modules. Unreadable modules are left out.

    Raise `OSError` if the segment could not be written.
    """
    indexed = IndexCollector()
    for module_id in sorted(module_ids):
        indexed.add(store, module_id)
    if indexed.modules:
        index_merge.publish_segment(store.index, *indexed.entries(), indexed.greatest)
        store.index.refresh()
    return tuple(indexed.modules)
