"""The realizations that a load skips because they do not have the link type that the importing code expects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompcacheError
from compcache.formats.manifest import decode_function
from compcache.hit.link_types import compare_types, read_type
from compcache.interrupts import reraise_interrupt
from compcache.publish.module_reader import needs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.directory.module_file import ModuleFile
    from compcache.store import Store

__all__ = ["describe_passed_over"]


def describe_passed_over(store: Store, module_id: bytes, offset: int) -> tuple[str, ...]:
    """Return a text about each realization of a function's imports that a load skips because of its link type.

    The record of the function is at `offset` in the module. The result is empty if the module cannot be read.
    """
    texts = []
    try:
        with store.open_module(module_id) as module:
            import_types = _read_import_types(module, offset)
            expected_types = {name: read_type(module.read_record, link_type) for name, link_type in import_types}
    except (FileNotFoundError, CompcacheError) as error:
        reraise_interrupt(error)
        return ()
    for name, expected in expected_types.items():
        if expected:
            for provider, actual in _read_realization_types(store, name):
                is_fitting, reason = compare_types(actual, expected)
                if not is_fitting:
                    texts.append(
                        f"{name!r} of module {provider.hex()} is {actual}, and module {module_id.hex()} uses it as {expected}: {reason}"
                    )
    return tuple(texts)


def _read_import_types(module: ModuleFile, offset: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the expected link type of each import of a function and of its closure in the module.

    Raise `FormatError` if a record is damaged.
    """
    for record in needs_of(module, decode_function(module.read_record(offset)).needs):
        yield from [(name, link_type) for _, name, _, link_type in record.imports if link_type]


def _read_realization_types(store: Store, name: str) -> Iterator[tuple[bytes, str]]:
    """Yield the module_id and the link type of each realization of a function. Realizations that cannot be read are left out."""
    for module_id, offset in store.find_all(name):
        try:
            with store.open_module(module_id) as module:
                text = read_type(module.read_record, decode_function(module.read_record(offset)).link_type)
        except (FileNotFoundError, CompcacheError) as error:
            reraise_interrupt(error)
            continue
        yield module_id, text
