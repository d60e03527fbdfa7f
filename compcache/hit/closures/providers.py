"""The provider of a variable that several modules use: the module that was bound first, for as long as it lives."""

from __future__ import annotations

import gc

from compcache.errors import LinkError
from compcache.formats.manifest import LINK_ONLY, MERGED, VARIABLE, decode_function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any
    from weakref import ref

    from compcache.hit.loader import Choice, LoadedModule, Loader, Source

__all__ = [
    "agree_with_providers", "defines_for_all", "living_provider", "provider_updates", "refuse_other_mapping", "refuse_second_provider",
    "second_provider_error",
]  # fmt: skip


def refuse_second_provider(loader: Loader, source: Source) -> None:
    """Check that a module does not define a variable which another module provides.

    An earlier mapping of the same module is another provider, too, if it was unloaded and is still in use.

    Raises:
        LinkError: the module defines such a variable.
        FormatError: a record of the module is damaged.
    """
    module_id = source.file.module_id
    for name, weak in list(loader.providers.items()):
        if weak() is not None and any(
            holder == module_id and defines_for_all(loader, source, offset) for holder, offset in loader.store.find(name)
        ):
            provider = living_provider(loader, loader.providers, name)
            if provider is not None:
                raise second_provider_error(name, module_id, provider.module_id)


def defines_for_all(loader: Loader, source: Source, offset: int) -> bool:
    """Return whether the record at `offset` defines a variable that linkers do not merge. See `decode_function` for the exception."""
    return decode_function(source.read_record(loader.store, offset)).signature.startswith(VARIABLE)


def refuse_other_mapping(loader: Loader, variable: str, module_id: bytes) -> None:
    """Check that a module is not mapped again while an earlier mapping, unloaded but still in use, provides its variable.

    Raise `LinkError` if the earlier mapping is still in use.
    """
    provider = living_provider(loader, loader.merged, variable)
    if provider is not None and provider.module_id == module_id and provider not in loader.loaded_modules():
        raise second_provider_error(variable, module_id, module_id)


def living_provider(loader: Loader, table: dict[str, ref[LoadedModule]], variable: str) -> LoadedModule | None:
    """Return the module that provides a variable, or None if no living module does.

    An unloaded module counts only if it is in use. A garbage collection finds out whether only reference cycles keep it alive.
    """
    weak = table.get(variable)
    module = weak() if weak is not None else None
    if weak is None or module is None or module in loader.loaded_modules():
        return module
    del module  # this reference would keep it alive
    gc.collect()
    return weak()


def second_provider_error(variable: str, module_id: bytes, provider: bytes) -> LinkError:
    """Return the error for a module that cannot be loaded because a shared variable would exist twice."""
    if module_id == provider:
        return LinkError(
            f"module {module_id.hex()} was unloaded, but its variable {variable!r} is still used by loaded code: wait for running "
            "calls to end, and drop all objects that refer to this code, before loading the module again",
            module_id=module_id.hex(),
        )
    return LinkError(
        f"module {module_id.hex()} defines the variable {variable!r}, which other loaded code has from module {provider.hex()}: export "
        f"it from one of them under another name (functions={{name: Function(symbol={variable!r})}}), or keep it internal",
        module_id=module_id.hex(),
    )


def provider_updates(loader: Loader, chosen: dict[str, Choice], weak: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return updates for the modules that provide the variables of a load: each table of `loader`, followed by its new rows."""
    updates = []
    shared = [(name, choice) for name, choice in chosen.items() if choice.record.signature.startswith(LINK_ONLY)]
    for prefix, table in ((VARIABLE, loader.providers), (MERGED, loader.merged)):
        bound = [(name, choice.loaded) for name, choice in shared if choice.record.signature.startswith(prefix)]
        updates += [table, {name: weak(table, name, module) for name, module in bound}]
    return updates


def agree_with_providers(loader: Loader, chosen: dict[str, Choice]) -> bool:
    """Return whether no variable of a load has another provider than the chosen module. Another thread may have bound the variable."""
    for name, choice in chosen.items():
        if choice.record.signature.startswith(LINK_ONLY):
            weak = loader.providers.get(name) or loader.merged.get(name)
            provider = weak() if weak is not None else None
            if provider is not None and provider is not choice.loaded:
                return False
    return True
