"""Shares one copy of a runtime library with visible state, such as the open files of Fortran, among all modules of a cache.

A function that a module uses from a static library becomes part of the module, with its variables. For most functions of a runtime
library that makes no difference. However, the units of Fortran's input and output are such variables, and a unit that one file opens
may be written in another file. Therefore functions with such state are in a separate module with the whole library, and all modules that
use them import it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from compcache.build.slots import read_requests, shared_function
from compcache.build.source import ModuleSource
from compcache.errors import LinkError
from compcache.formats import host
from compcache.images.archives import STATE_PREFIXES, Archive
from compcache.images.libraries import open_libraries
from compcache.images.linkers.find import find_linker
from compcache.targets.cpu_table import baseline
from compcache.warning import warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache.session import Session

__all__ = ["share_runtime_libraries"]

_lock = threading.Lock()


def share_runtime_libraries(session: Session, source: ModuleSource, add: Callable[..., object]) -> None:
    """Add shared modules, by `add`, for the runtime libraries with state that the code uses, unless the cache has these modules.

    Issue a `CacheWarning` for a library that cannot be linked. Do nothing without a linker. See `open_libraries` for an exception.
    """
    if not isinstance(source, ModuleSource) or not source.archives or not _may_use_shared_state(source.ir) or find_linker() is None:
        return
    for archive in [library for library in open_libraries(read_requests(source).libraries) if isinstance(library, Archive)]:
        functions = archive.functions_with_state()
        if not functions or (isinstance(source.ir, str) and shared_function(functions[0], archive) in source.ir):
            continue  # the code is the module of the runtime library itself
        with _lock:
            if not session.can_import(shared_function(functions[0], archive)):
                _add_library_module(session, functions, archive, add)


def _add_library_module(session: Session, functions: list[str], archive: Archive, add: Callable[..., object]) -> None:
    """Add the shared module of one runtime library. Issue a `CacheWarning` if it cannot be linked."""
    try:
        add(session, _make_jumps(functions, archive), for_others=True)
    except LinkError as error:
        warn(f"{archive.name} cannot be shared, so each module has a copy with its own state: {error}")


def _may_use_shared_state(ir: Any) -> bool:
    """Return whether code may use a runtime library function with state. Bitcode contains names as plain bytes."""
    if isinstance(ir, (bytes, bytearray, memoryview)):
        return any(mark.encode() in bytes(ir) for mark in STATE_PREFIXES)
    text = str(ir)
    return any(mark in text for mark in STATE_PREFIXES)


def _make_jumps(functions: list[str], archive: Archive) -> ModuleSource:
    """Return a source that exports a thunk for each of these functions. It is compiled for the baseline CPU."""
    lines = [f'declare void @"{name}"(...)' for name in functions]
    for name in functions:
        lines.append(f'define hidden void @"{shared_function(name, archive)}"(...) "thunk" {{')
        lines += [f'  musttail call void (...) @"{name}"(...)', "  ret void", "}"]
    return ModuleSource("\n".join([*lines, ""]), archives=[archive.name], cpu=baseline(host.platform_name()))
