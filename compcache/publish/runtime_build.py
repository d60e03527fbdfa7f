"""Builds the native runtime from `runtime.ll`, and loads it where the cache directory cannot serve it.

Miss path: imports llvmlite. Where there is no linker the runtime is loaded as an object through ORC.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from compcache.build import codegen
from compcache.errors import CacheWarning, LinkerError, StorageError
from compcache.hit import runtime
from compcache.images import elf, platform_symbols, system_linker
from compcache.publish.writer import publish_file

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["build_and_load", "ensure_runtime"]

_API_VERSION = 1013  # PYTHON_API_VERSION, unchanged since Python 2.5


@cache
def _object() -> bytes:
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "hit", "runtime.ll")
    with open(path, encoding="utf-8") as file, codegen.new_context() as context:
        module = codegen.parse(file.read(), context)
        codegen.check_triple(module)
        machine = codegen.target_machine("", "", 2)
        module.data_layout = str(machine.target_data)
        codegen.optimize(module, machine, 2)
        return codegen.emit_object(module, machine)


def _shared(obj: bytes) -> bytes | None:
    """The runtime as a shared object; None where there is no linker."""
    linker = system_linker.find_linker() if elf.is_elf(obj) else None
    if linker is None:
        return None
    platform = [symbol for symbol in elf.undefined_symbols(obj) if platform_symbols.is_platform_symbol(symbol)]
    try:
        return system_linker.link_shared(
            linker,
            [obj],
            soname="compcache-runtime.so",
            libraries=platform_symbols.platform_paths(platform),
            export=[f"PyInit_{runtime.MODULE_NAME}"],
        )
    except LinkerError as error:
        import warnings

        warnings.warn(f"{error}; the native runtime is loaded without a linker", CacheWarning, stacklevel=2)
        return None


def ensure_runtime(store: Store) -> None:
    """Publish the runtime in the cache directory, unless it is there or cannot be; never fails."""
    if store.readonly or store.read_file(*runtime.runtime_file(store.signing_key)) is not None:
        return
    image = _shared(_object())
    if image is not None:
        _publish(store, image)


def _publish(store: Store, image: bytes) -> bool:
    try:
        publish_file(store, runtime.runtime_file(store.signing_key), image + runtime.seal(image, store.signing_key))
    except StorageError:
        return False
    return True


def build_and_load(store: Store) -> Any:
    """Build the runtime, publish it where possible, and load it."""
    obj = _object()
    image = _shared(obj)
    if image is None:
        return _load_object(obj)
    if not store.readonly and _publish(store, image) and not store.exposed:
        try:
            return runtime.load_extension(store.path(*runtime.runtime_file(store.signing_key)))
        except ImportError:
            pass  # a noexec mount: load a copy in memory
    return runtime.load_copy(image) or _load_object(obj)


def _load_object(obj: bytes) -> Any:
    from compcache.images.orc import link_object

    symbol = f"PyInit_{runtime.MODULE_NAME}"
    linked = link_object(obj, symbol)
    # As the interpreter does for an extension module with multi-phase initialization (PEP 489).
    definition = ctypes.PYFUNCTYPE(ctypes.py_object)(linked.address)()
    # The definition is static memory and the reference a borrowed one, which ctypes would give back.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    from importlib.machinery import ModuleSpec

    make = ctypes.pythonapi.PyModule_FromDefAndSpec2
    make.restype, make.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.py_object, ctypes.c_int]
    module = make(definition, ModuleSpec(runtime.MODULE_NAME, None), _API_VERSION)
    execute = ctypes.pythonapi.PyModule_ExecDef
    execute.restype, execute.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.py_object]
    execute(module, definition)
    module.keep = linked
    return module
