"""Finds the realizations that a load skips because their link type is not the one that the using code expects."""

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

__all__ = ["passed_over"]


def passed_over(store: Store, module_id: bytes, offset: int) -> tuple[str, ...]:
    """Return, in words, which realizations of a function's imports do not fit; `record` is that of the function."""
    found = []
    try:
        with store.open_module(module_id) as module:
            uses = {name: read_type(module.read_record, kind) for name, kind in _imports(module, offset)}
    except (FileNotFoundError, CompcacheError, FormatError) as error:
        reraise_interrupt(error)
        return ()
    for name, used in uses.items():
        for other, defined in _realizations(store, name) if used else ():
            fit, why = fits(defined, used)
            if not fit:
                found.append(f"{name!r} of module {other.hex()} is {defined}, and module {module_id.hex()} uses it as {used}: {why}")
    return tuple(found)


def _imports(module: ModuleFile, offset: int) -> Iterator[tuple[str, bytes]]:
    """Yield the imports of a function and of what it reaches in its module, with their link types."""
    waiting = [decode_function(module.read_record(offset)).needs]
    seen = {0, *waiting}
    while waiting:
        at = waiting.pop()
        record = decode_needs(module.read_record(at)) if at else None
        if record is not None:
            yield from [(name, kind) for (_, name), kind in zip(record.imports, record.link_types, strict=False)]
            waiting += [child for child in record.children if child not in seen]
            seen.update(record.children)


def _realizations(store: Store, name: str) -> Iterator[tuple[bytes, str]]:
    for module_id, offset in store.find_all(name):
        try:
            with store.open_module(module_id) as module:
                kind = decode_function(module.read_record(offset)).link_type
                text = read_type(module.read_record, kind)
        except (FileNotFoundError, CompcacheError, FormatError) as error:
            reraise_interrupt(error)
            continue
        yield module_id, text
