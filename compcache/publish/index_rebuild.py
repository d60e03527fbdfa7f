"""Rebuilds the index from the modules on disk (miss path and tools)."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from compcache.errors import FormatError, IncompatibleTargetError, IntegrityError, StorageError
from compcache.files import reraise_interrupt
from compcache.formats import host
from compcache.formats.footer import require_intact
from compcache.formats.index import Stamp
from compcache.formats.manifest import decode_module
from compcache.formats.manifest_writer import WholeManifest, image_flag
from compcache.publish import index_merge
from compcache.publish.atomic_file import is_settled
from compcache.publish.quarantine import is_shortage
from compcache.store import ModuleFile

if TYPE_CHECKING:
    from compcache.formats.index import ModuleEntry
    from compcache.store import Store

__all__ = ["describe", "index_module", "module_functions", "module_index", "rebuild_index"]

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


def describe(module: ModuleFile) -> str:
    """Set what the module's own records say of it; what it requires of a host.

    Raises:
        FormatError: they do not decode.
    """
    footer = module.footer()
    module.describe(footer.image, footer.records, bytes(8), 0, bytes(16))
    record = decode_module(module.read_record(0))
    module.describe(footer.image, footer.records, host.target_id(record.requirement()), image_flag(record.image_kind), record.key)
    return record.requirement()


def _intact_module(store: Store, module_id: bytes) -> ModuleFile | None:
    """An open module that is as it was published, whoever may use it; `elsewhere` says that it is not for this cache to run."""
    module = ModuleFile(store.files, store.module_path(module_id), module_id)
    try:
        module.open()
        status = store.files.fstat(module.descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError("it is not a regular file")
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
    functions: set[bytes] = set()
    requirements: set[str] = set()
    modules: dict[bytes, bytes] = {}
    for module_id in store.module_ids():
        entry = index_module(store, module_id, functions, requirements)
        if entry is not None:
            modules[module_id] = entry.encode()
    level = index_merge.segment_level(len(modules))
    index_merge.replace_segments(store.index, sorted(functions), [modules[key] for key in sorted(modules)], requirements, level, replaced)
    index_merge.remove_damaged(store.index)
    return len(modules)


def index_module(store: Store, module_id: bytes, functions: set[bytes], requirements: set[str]) -> ModuleEntry | None:
    """The index entry of a module, None if nobody can use it; its functions and requirements are added to the sets.

    A module that does not carry the signature of this cache's key is there for others.

    Raises:
        StorageError: nothing can be read now, for lack of descriptors or memory.
    """
    try:
        module = store.open_module(module_id, leave_stamp=False)
    except IntegrityError:
        other = _intact_module(store, module_id) if store.stamp_key else None
        if other is None:
            return None
        module = other
    except (FileNotFoundError, IncompatibleTargetError):
        return None
    except StorageError as error:
        if is_shortage(error):
            raise
        return None
    try:
        found = module_index(module)
        status = store.files.fstat(module.descriptor)
    except FormatError as error:
        store.condemn(module, error)
        return None
    finally:
        module.close()
    functions.update([index_merge.encode_function_entry(name, module_id, offset, needs) for name, offset, needs in found])
    requirements.update([needs for _, _, needs in found])
    believed = is_settled(status) and not module.elsewhere
    return store.entry_of(module, Stamp.of(status) if believed else _NO_STAMP, len(found))
