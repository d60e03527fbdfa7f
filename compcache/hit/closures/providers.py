"""The provider of a variable that several modules use: the module that was bound first, while it lives."""

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
    "defines_for_all",
    "have_providers",
    "living_provider",
    "provider_updates",
    "refuse_other_mapping",
    "refuse_second_provider",
    "second_provider",
]


def refuse_second_provider(loader: Loader, source: Source) -> None:
    """Refuse a module that defines a variable which another module provides: the module that was bound first provides it while it lives.

    The module is not loaded: where it is the provider itself, that one was unloaded and is still in use.

    Raises:
        LinkError: the module defines one that another module provides.
        FormatError: a record of it is damaged.
    """
    module_id = source.file.module_id
    for name, weak in list(loader.providers.items()):
        if weak() is not None and any(
            other == module_id and defines_for_all(loader, source, offset) for other, offset in loader.store.find(name)
        ):
            provider = living_provider(loader, loader.providers, name)
            if provider is not None:
                raise second_provider(name, module_id, provider.module_id)


def defines_for_all(loader: Loader, source: Source, offset: int) -> bool:
    """Return whether the record of a variable belongs to a definition that is not merged with others."""
    return decode_function(source.read_record(loader.store, offset)).signature.startswith(VARIABLE)


def refuse_other_mapping(loader: Loader, variable: str, module_id: bytes) -> None:
    """Refuse to map a module again if its variable is provided by an earlier mapping that was unloaded and is still in use.

    Raises:
        LinkError: the module would be mapped anew.
    """
    provider = living_provider(loader, loader.merged, variable)
    if provider is not None and provider.module_id == module_id and provider not in loader.loaded_modules():
        raise second_provider(variable, module_id, module_id)


def living_provider(loader: Loader, table: dict[str, ref[LoadedModule]], variable: str) -> LoadedModule | None:
    """Return the module that provides a variable. An unloaded one counts only while it is in use, not as garbage of its own cycle."""
    weak = table.get(variable)
    if weak is None or (module := weak()) is None or module in loader.loaded_modules():
        return weak() if weak is not None else None
    del module
    gc.collect()
    return weak()


def second_provider(variable: str, module_id: bytes, provider: bytes) -> LinkError:
    """Return why a module cannot be loaded: a shared variable would exist twice."""
    if module_id == provider:
        return LinkError(
            f"module {module_id.hex()} was unloaded, but code that uses its variable {variable!r} is still in use: let calls of it end, "
            "and drop what refers to it, before it is loaded again",
            module_id=module_id.hex(),
        )
    return LinkError(
        f"module {module_id.hex()} defines the variable {variable!r}, which other loaded code has from module {provider.hex()}: let "
        f"one of them export it under another name (functions={{name: Function(symbol={variable!r})}}) or keep it internal",
        module_id=module_id.hex(),
    )


def provider_updates(loader: Loader, chosen: dict[str, Choice], weak: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return what to record about the modules that provide the variables of a load."""
    updates = []
    shared = [(name, choice) for name, choice in chosen.items() if choice.record.signature.startswith(LINK_ONLY)]
    for prefix, table in ((VARIABLE, loader.providers), (MERGED, loader.merged)):
        bound = [(name, choice.loaded) for name, choice in shared if choice.record.signature.startswith(prefix)]
        updates += [table, {name: weak(table, name, module) for name, module in bound}]
    return updates


def have_providers(loader: Loader, chosen: dict[str, Choice]) -> bool:
    """Return whether the provider of each variable is still the chosen one. Another thread may have bound it."""
    for name, choice in chosen.items():
        if choice.record.signature.startswith(LINK_ONLY):
            known = loader.providers.get(name) or loader.merged.get(name)
            provider = known() if known is not None else None
            if provider is not None and provider is not choice.loaded:
                return False
    return True
