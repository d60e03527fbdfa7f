"""Rebuilds the index from the modules on disk (miss path and tools)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import FormatError, IncompatibleTargetError, IntegrityError, StorageError
from compcache.formats.index import Stamp
from compcache.formats.manifest_writer import WholeManifest
from compcache.publish import index_merge
from compcache.publish.atomic_file import is_settled
from compcache.publish.quarantine import is_shortage

if TYPE_CHECKING:
    from compcache.formats.index import ModuleEntry
    from compcache.store import ModuleFile, Store

__all__ = ["index_module", "module_functions", "rebuild_index"]

_NO_STAMP = Stamp(0, 0, 0, 0)


def module_functions(module: ModuleFile) -> list[tuple[str, int, str]]:
    """The (name, record offset, requirement) of every function that a module realizes.

    Raises:
        FormatError: a record is damaged.
    """
    return WholeManifest(module.read(module.image, module.records)).functions()


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
    index_merge.replace_segments(
        store.index, sorted(functions), [modules[key] for key in sorted(modules)], requirements, level, replaced
    )
    index_merge.remove_damaged(store.index)
    return len(modules)


def index_module(
    store: Store, module_id: bytes, functions: set[bytes], requirements: set[str]
) -> ModuleEntry | None:
    """The index entry of a module, None if it is not usable; its functions and requirements are added to the sets.

    Raises:
        StorageError: nothing can be read now, for lack of descriptors or memory.
    """
    try:
        module = store.open_module(module_id, leave_stamp=False)
    except (FileNotFoundError, IncompatibleTargetError, IntegrityError):
        return None
    except StorageError as error:
        if is_shortage(error):
            raise
        return None
    try:
        found = module_functions(module)
        status = store.files.fstat(module.descriptor)
    except FormatError as error:
        store.condemn(module, error)
        return None
    finally:
        module.close()
    functions.update([index_merge.encode_function_entry(name, module_id, offset, needs) for name, offset, needs in found])
    requirements.update([needs for _, _, needs in found])
    return store.entry_of(module, Stamp.of(status) if is_settled(status) else _NO_STAMP, len(found))
