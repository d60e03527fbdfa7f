"""Add modules that know each other to a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compcache import Cache, ModuleSource

from .bitcode import imports_among

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def add_modules(cache_dir: Path, modules: Mapping[str, bytes], **options: Any) -> dict[str, str]:
    """Add each module as one of its own, with what the others define as its imports; the module_id of each."""
    imports = imports_among(modules)
    with Cache(cache_dir) as cache:
        return {
            name: cache.add_module(ModuleSource(bitcode, imports=imports[name], **options))
            for name, bitcode in modules.items()
        }
