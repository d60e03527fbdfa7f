"""Adds modules and removes the older modules that they replace: modules whose names all have newer realizations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.digest import name_key
from compcache.formats.manifest import LINKED
from compcache.maintain.remove import remove_modules
from compcache.miss.groups import add_group
from compcache.miss.many import add_modules
from compcache.publish.module_rows import read_row
from compcache.store import is_ordered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.build.source import ModuleSource
    from compcache.session import Session
    from compcache.store import Store

__all__ = ["replace"]


def replace(session: Session, source_or_sources: ModuleSource | Iterable[ModuleSource], group: str | None) -> tuple[str, ...]:
    """Add sources, and remove the older modules that they replace: those with the same functions, or those of the group.

    Return the module_ids of the added modules. See `Cache.replace` for the exceptions.
    """
    sources = source_or_sources if hasattr(source_or_sources, "__iter__") else [source_or_sources]
    if group is not None:
        return add_group(session, sources, group, replace=True)
    module_ids = add_modules(session, sources, replace=True)
    _remove_superseded(session.store, module_ids)
    return module_ids


def _remove_superseded(store: Store, module_ids: Iterable[str]) -> None:
    """Remove older modules that share names with these modules and whose names all have newer realizations.

    Modules with content names stay, because code with the same content name is equal.

    Raise `StorageError` if a module could not be removed. Some modules may have been removed.
    """
    store.renew_index()
    added = {bytes.fromhex(module_id) for module_id in module_ids}
    names = {name for module_id in added for name in _function_names(store, module_id)}
    older_ids = {module_id for name in names for module_id in _addition_numbers(store, name)} - added
    remove_modules(store, sorted(module_id for module_id in older_ids if _is_superseded(store, module_id)))


def _function_names(store: Store, module_id: bytes) -> tuple[str, ...]:
    """Return the names of a module's functions. The result is empty if the module cannot be read."""
    row = read_row(store, module_id)
    return tuple(row.names) if row is not None else ()


def _addition_numbers(store: Store, name: str) -> dict[bytes, int]:
    """Return the addition numbers of the modules in this directory that realize a plain name. The result is empty for a content name."""
    if not is_ordered(name):
        return {}
    rows = store.index.find_numbered(name_key(name))
    return {module_id: number for number, _, module_id, offset, _ in rows if offset < LINKED and store.exists(module_id)}


def _is_superseded(store: Store, module_id: bytes) -> bool:
    """Return whether all names of a module have newer realizations."""
    names = _function_names(store, module_id)
    numbers_by_name = [_addition_numbers(store, name) for name in names]
    return bool(names) and all(module_id in numbers and max(numbers.values()) > numbers[module_id] for numbers in numbers_by_name)
