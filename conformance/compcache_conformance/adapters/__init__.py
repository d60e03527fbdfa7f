"""The adapters, a file for each system or for a few alike."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from typing import TYPE_CHECKING

from compcache_conformance.adapter import Adapter

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["all_adapters", "from_file"]


def all_adapters() -> dict[str, type[Adapter]]:
    """Every adapter of this folder by its name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return {name: kind for name, kind in sorted(_named(Adapter), key=lambda pair: pair[0]) if kind.__module__.startswith(__name__)}


def from_file(path: Path) -> dict[str, type[Adapter]]:
    """The adapters of a file that is not a part of the suite."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: kind for name, kind in _named(Adapter) if kind.__module__ == path.stem}


def _named(kind: type[Adapter]) -> list[tuple[str, type[Adapter]]]:
    below = [pair for child in kind.__subclasses__() for pair in _named(child)]
    return [*below, (kind.name, kind)] if kind.name else below
