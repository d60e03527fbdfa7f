"""The realizations that a load skips because they do not have the link type that the importing code expects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache.errors import CompcacheError, FormatError
from compcache.files import reraise_interrupt
from compcache.formats.manifest import decode_function, decode_needs
from compcache.hit.link_types import fits, read_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.directory.module_file import ModuleFile
    from compcache.store import Store

__all__ = ["describe_passed_over"]


def describe_passed_over(store: Store, module_id: bytes, offset: int) -> tuple[str, ...]:
    """Return a text for each realization of a function's imports that does not have the expected link type.

    The record of the function is at `offset` of the module. The result is empty if the module cannot be read.
    """
    texts = []
    try:
        with store.open_module(module_id) as module:
            uses = {name: read_type(module.read_record, kind) for name, kind in _import_types(module, offset)}
    except (FileNotFoundError, CompcacheError, FormatError) as error:
        reraise_interrupt(error)
        return ()
    for name, used in uses.items():
        for provider, defined in _realization_types(store, name) if used else ():
            does_fit, reason = fits(defined, used)
            if not does_fit:
                texts.append(f"{name!r} of module {provider.hex()} is {defined}, and module {module_id.hex()} uses it as {used}: {reason}")
    return tuple(texts)


def _import_types(module: ModuleFile, offset: int) -> Iterator[tuple[str, bytes]]:
    """Yield the imports of a function and its closure in the module, with their link types."""
    waiting = [decode_function(module.read_record(offset)).needs]
    seen = {0, *waiting}
    while waiting:
        needs = waiting.pop()
        record = decode_needs(module.read_record(needs)) if needs else None
        if record is not None:
            yield from [(name, kind) for (_, name), kind in zip(record.imports, record.link_types, strict=False)]
            waiting += [child for child in record.children if child not in seen]
            seen.update(record.children)


def _realization_types(store: Store, name: str) -> Iterator[tuple[bytes, str]]:
    """Yield the module_id and the link type of each readable realization of a function."""
    for module_id, offset in store.find_all(name):
        try:
            with store.open_module(module_id) as module:
                kind = decode_function(module.read_record(offset)).link_type
                text = read_type(module.read_record, kind)
        except (FileNotFoundError, CompcacheError, FormatError) as error:
            reraise_interrupt(error)
            continue
        yield module_id, text
