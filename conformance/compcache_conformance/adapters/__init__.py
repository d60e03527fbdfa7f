"""The adapters, a file for each system or for a few alike."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import traceback
from typing import TYPE_CHECKING

from compcache_conformance.adapter import Adapter
from compcache_conformance.language import SHAPES

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["AdapterError", "all_adapters", "from_file"]


class AdapterError(Exception):
    """A file has no adapter that can be played; the text says what to change in it."""


def all_adapters() -> dict[str, type[Adapter]]:
    """Every adapter of this folder by its name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    found = [kind for kind in _below(Adapter) if kind.name and kind.__module__.startswith(__name__)]
    return {kind.name: kind for kind in sorted(found, key=lambda kind: kind.name)}


def from_file(path: Path) -> dict[str, type[Adapter]]:
    """The adapters of a file that is not a part of the suite.

    Raises:
        AdapterError: it cannot be read or run, has no adapter, or one that is not whole.
    """
    if not path.is_file():
        raise AdapterError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"conformance_adapter_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 - whatever the file does
        raise AdapterError(f"{path} cannot be run as Python:\n{_told(error, path)}") from None
    kinds = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Adapter)]
    own = [kind for kind in kinds if kind.__module__ == module.__name__]
    if not any(kind.name for kind in own):
        raise AdapterError(f"{path} has no adapter: a class below compcache_conformance.Adapter with a `name`")
    for kind in own:
        _require_whole(kind, path)
    return {kind.name: kind for kind in own if kind.name}


def _below(kind: type[Adapter]) -> list[type[Adapter]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _below(child))]


def _told(error: Exception, path: Path) -> str:
    """The error with the line of the file that it comes from, without the suite's own lines."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    lines = traceback.format_list(frames[-1:]) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def _require_whole(kind: type[Adapter], path: Path) -> None:
    missing = []
    if not kind.driver:
        missing.append("`driver`, the program that calls `serve(ask)`")
    if kind.spelling is None and not kind.makes_llvm and kind.write is Adapter.write:
        missing.append("a language: `spelling`, `makes_llvm = True`, or a method `write`")
    unknown = kind.shapes - SHAPES
    if unknown:
        missing.append(f"other `shapes` than {', '.join(sorted(unknown))}: there are {', '.join(sorted(SHAPES))}")
    if kind.name and missing:
        raise AdapterError(f"the adapter {kind.__name__} in {path} needs {'; and '.join(missing)}")
