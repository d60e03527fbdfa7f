"""Creates Numba's callbacks for decorated functions, and records their code for starts without Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba.core import entrypoints, sigutils, types
from numba.core.ccallback import CFunc

from compcache.numba.entries.starts import find_stored_entry
from compcache.numba.lazy.argument_types import NUMBERS
from compcache.numba.lazy.stand_ins import numba_decorator
from compcache.numba.takeover import lazy_dispatchers
from compcache.numba.takeover.declared import compile_and_record, make_pinned_cache

if TYPE_CHECKING:
    from compcache.numba.dispatch import Backend
    from compcache.numba.lazy.state import State

__all__ = ["make_callback"]


def make_callback(state: State) -> Any:
    """Return Numba's callback for a decorated function, and record its code."""
    signature = (state.signatures or ("",))[0]
    backend = None if state.reason else lazy_dispatchers.find_lazy_backend()
    if backend is None:
        return numba_decorator("cfunc")(signature, **state.options)(state.function)
    entrypoints.init_all()
    options = {name: value for name, value in state.options.items() if name != "cache"}
    callback = CFunc(state.function, sigutils.normalize_signature(signature), locals={}, options=options)
    callback._cache = make_pinned_cache(state, backend, callback, [signature])
    compile_and_record(state, backend, callback.compile, lambda: _make_callback_fields(callback, backend))
    return callback


def _make_callback_fields(callback: Any, backend: Backend) -> tuple[Any, ...] | None:
    """Return the fields of a callback's record, or None if only Numba can use the callback."""
    entry = find_stored_entry(callback._cache, backend.cache, callback._sig)
    if entry is None:
        return None
    record = entry.create_record(entry.fndesc.llvm_cfunc_wrapper_name)
    type_names = [_type_and_depth(type_) for type_ in (callback._sig.return_type, *callback._sig.args)]
    if record is None or any(name not in _C_TYPES for name, _ in type_names):
        return None
    return [], [record.fields], (callback.native_name, type_names)


_C_TYPES = frozenset(("none", "voidptr", *[name for name in NUMBERS if not name.startswith("complex")]))


def _type_and_depth(type_: Any) -> tuple[str, int]:
    """Return the name of the type at the end of a chain of pointers, and the number of pointers. Other types have 0 pointers."""
    depth = 0
    while isinstance(type_, types.CPointer):
        type_, depth = type_.dtype, depth + 1
    return "voidptr" if type_ == types.voidptr else str(type_), depth
