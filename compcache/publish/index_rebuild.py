"""Rebuilds the index from the modules on disk (miss path and tools)."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from compcache.errors import FormatError, IncompatibleTargetError, IntegrityError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats import host
from compcache.formats.footer import LARGEST_FOREIGN, require_intact
from compcache.formats.graph import decode_notes
from compcache.formats.index import Stamp
from compcache.formats.known_faults import fault_of
from compcache.formats.makers import read_makers
from compcache.formats.manifest import SUSPECT
from compcache.formats.manifest_writer import WholeManifest, image_flag
from compcache.formats.order import UNNUMBERED, Order, order_of
from compcache.formats.records import decode_module
from compcache.publish import index_merge
from compcache.publish.atomic_file import is_settled
from compcache.publish.quarantine import is_shortage
from compcache.store import ModuleFile

if TYPE_CHECKING:
    from compcache.formats.index import ModuleEntry
    from compcache.store import Store

__all__ = ["IndexedModules", "describe", "module_functions", "module_index", "module_order", "rebuild_index"]

_NO_STAMP = Stamp(0, 0, 0, 0)


def module_functions(module: ModuleFile) -> list[tuple[str, int, str]]:
    """The (name, record offset, requirement) of every function that a module realizes.

    Raises:
        FormatError: a record is damaged.
    """
    return WholeManifest(module.read(module.image, module.records)).functions()


def module_index(module: ModuleFile) -> list[tuple[str, int, str]]:
    """The same of everything that the index has of a module: functions and entries of data.

    Raises:
        FormatError: a record is damaged.
    """
    return WholeManifest(module.read(module.image, module.records)).indexed()


def module_order(module: ModuleFile) -> Order:
    """The order of a module among additions, as its notes have it."""
    footer = module.footer()
    try:
        return order_of(decode_notes(module.read(footer.content, footer.notes)))
    except FormatError:
        return UNNUMBERED


def describe(module: ModuleFile) -> str:
    """Set what the module's own records say of it; what it requires of a host.

    Raises:
        FormatError: they do not decode.
    """
    footer = module.footer()
    module.describe(footer.image, footer.records, bytes(8), 0, bytes(16))
    record = decode_module(module.read_record(0))
    module.describe(footer.image, footer.records, host.target_id(record.requirement()), image_flag(record.image_kind), record.key)
    if fault_of(read_makers(module.read_record, module.records)):
        module.flags = SUSPECT
    return record.requirement()


def _intact_module(store: Store, module_id: bytes) -> ModuleFile | None:
    """An open module that is as it was published, whoever may use it; `elsewhere` says that it is not for this cache to run."""
    module = ModuleFile(store.files, store.module_path(module_id), module_id)
    try:
        module.open()
        status = store.files.fstat(module.descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError("it is not a regular file")
        if status.st_size > LARGEST_FOREIGN:
            raise FormatError("it is larger than what is read of others")
        module.size = status.st_size
        require_intact(module.footer(), module_id, module.read)
        describe(module)
    except (OSError, FormatError) as error:
        reraise_interrupt(error)
        module.close()
        return None
    module.elsewhere = True
    return module


def rebuild_index(store: Store) -> int:
    """Replace the index with one built from the module files; return the number of usable modules.

    Damaged modules go to quarantine. Additions that other processes publish meanwhile are kept.

    Raises:
        OSError: the new index could not be written; the old one is unchanged.
    """
    replaced = index_merge.readable(store.index)
    indexed = IndexedModules()
    for module_id in store.module_ids():
        indexed.add(store, module_id)
    level = index_merge.segment_level(len(indexed.modules))
    index_merge.replace_segments(store.index, *indexed.entries(), level, replaced, indexed.greatest)
    index_merge.remove_damaged(store.index)
    return len(indexed.modules)


class IndexedModules:
    """What an index has of modules that are read one by one: their entries are `modules`, their greatest number is `greatest`."""

    def __init__(self) -> None:
        self._functions: set[bytes] = set()
        self._requirements: set[str] = set()
        self.modules: dict[bytes, bytes] = {}
        self.greatest = 0

    def add(self, store: Store, module_id: bytes) -> None:
        """Read a module; nothing is known of one that nobody can use.

        A module that does not carry the signature of this cache's key is there for others.

        Raises:
            StorageError: nothing can be read now, for lack of descriptors or memory.
        """
        found = _read_module(store, module_id)
        if found is None:
            return
        indexed, entry, order = found
        self.modules[module_id] = entry.encode()
        self._functions.update(index_merge.entries_of(indexed, module_id, order))
        self._requirements.update([needs for _, _, needs in indexed])
        self.greatest = max(self.greatest, order.number)

    def entries(self) -> tuple[list[bytes], list[bytes], set[str]]:
        """The entries of functions and of modules, sorted, and the requirements."""
        return sorted(self._functions), [self.modules[key] for key in sorted(self.modules)], self._requirements


def _read_module(store: Store, module_id: bytes) -> tuple[list[tuple[str, int, str]], ModuleEntry, Order] | None:
    try:
        module = store.open_module(module_id, leave_stamp=False)
    except IntegrityError:
        other = _intact_module(store, module_id) if store.stamp_key else None
        if other is None:
            return None
        module = other
    except (FileNotFoundError, IncompatibleTargetError) as error:
        reraise_interrupt(error)
        return None
    except StorageError as error:
        if is_shortage(error):
            raise
        return None
    try:
        found, order = module_index(module), module_order(module)
        status = store.files.fstat(module.descriptor)
    except FormatError as error:
        store.condemn(module, error)
        return None
    finally:
        module.close()
    believed = is_settled(status) and not module.elsewhere
    return found, store.entry_of(module, Stamp.of(status) if believed else _NO_STAMP, len(found)), order
