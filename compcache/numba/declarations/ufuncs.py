"""Defines the objects that `vectorize` and `guvectorize` return: NumPy ufuncs of stored loops.

Numba's extension module for ufuncs needs NumPy, but no other module of Numba. If no loop of a ufunc accepts the types of the arguments,
even with casts, the ufunc requests a new loop. Therefore the same calls add the same loops, in the same order, as with Numba.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from functools import partial
from types import SimpleNamespace

from compcache.numba.declarations.signatures import DeclaredCode, load_declared_code
from compcache.numba.fingerprints.history import old_code_reason, record_code
from compcache.numba.fingerprints.stand_ins import record_real
from compcache.numba.lazy import has_numba
from compcache.numba.lazy.argument_types import is_derived_array, learn_numpy, scalar_name
from compcache.numba.lazy.c_helpers import load_extension
from compcache.numba.lazy.entries import RECORD, Record, count_hit, find_fields, key_of, load_entry, open_cache
from compcache.numba.lazy.stand_ins import COPIED_ATTRIBUTES, LazyWrapper, numbas_object
from compcache.numba.registered.refusals import NotLazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from compcache.numba.lazy.entries import Key, LoadedCode
    from compcache.numba.lazy.state import State

__all__ = ["LazyUfunc", "added_loops", "declare_ufunc"]

_LIBRARY = "numba.np.ufunc._internal"
_IDENTITIES = {0: "PyUFunc_Zero", 1: "PyUFunc_One", None: "PyUFunc_None", "reorderable": "PyUFunc_ReorderableNone"}
#: The attributes of a ufunc with declared signatures that do not require Numba.
_UFUNC_ATTRIBUTES = frozenset((
    "accumulate", "at", "identity", "nargs", "nin", "nout", "ntypes", "outer", "reduce", "reduceat", "signature", "types",
))  # fmt: skip
#: The special attributes that Numba's ufuncs have, but NumPy's do not.
_CLASS_ATTRIBUTES = frozenset(("__abstractmethods__", "__dict__"))
#: Held while a ufunc or one of its loops is created.
_creation_lock = allocate_lock()


class _NumbaNeeded(Exception):  # noqa: N818 - a result, not a failure
    """Raised, also through NumPy's C code, if Numba must perform a call: usually because a loop is not stored."""


class LazyUfunc(LazyWrapper):
    """A ufunc that is created from stored loops on first use. If a loop is not stored, Numba's own ufunc is used from then on."""

    __slots__ = ("_loops", "_state", "_stored")

    def __init__(self, state: State) -> None:
        super().__init__(state.function, state.options)
        object.__setattr__(self, "_state", state)
        object.__setattr__(self, "_stored", None)
        object.__setattr__(self, "_loops", [])

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the ufunc of stored loops. If an argument overrides ufuncs, or only Numba can perform the call, call Numba's ufunc."""
        if object.__getattribute__(self, "_made") is None and not _is_overridden((*args, *keywords.values())):
            state = object.__getattribute__(self, "_state")
            try:
                if state.decorator == "guvectorize" and state.signatures is None:
                    return _call_dynamic(self, state, args, dict(keywords))
                stored = _load_ufunc(self)
                if stored is not None:
                    return stored(*args, **keywords)
            except _NumbaNeeded:
                pass
        return numbas_object(self)(*args, **keywords)

    def _compcache_make(self) -> Any:
        """Import Numba if necessary, and return its ufunc with the decorator's arguments and the loops that were added."""
        from compcache.numba.takeover.ufuncs import make_ufunc

        return make_ufunc(object.__getattribute__(self, "_state"), added_loops(self))

    def _compcache_content(self, walk: Any) -> None:
        """Feed the data of the ufunc that compiled code uses to a walk.

        Raise `NotLazy` if the ufunc has no declared signatures, so its loops depend on earlier calls.
        """
        state = object.__getattribute__(self, "_state")
        if state.signatures is None:
            raise NotLazy(f"the function uses the ufunc {state.function.__qualname__}, which declares no signatures: declare signatures")
        walk.feed_token("ufunc of Numba", state.options.get("signature", ""), repr(state.options.get("identity")))
        walk.feed_declared(state.compiled, state.function)

    def __getattr__(self, name: str) -> Any:
        if name not in COPIED_ATTRIBUTES and object.__getattribute__(self, "_made") is None:
            state = object.__getattribute__(self, "_state")
            if name in _UFUNC_ATTRIBUTES and state.signatures is not None and not has_numba():
                stored = _load_ufunc(self)
                if stored is not None:
                    is_own_at = name == "at" and state.decorator == "vectorize"
                    return partial(_call_at, self) if is_own_at else getattr(getattr(stored, "ufunc", stored), name)
            if name.startswith("__") and name not in _CLASS_ATTRIBUTES and not has_numba():
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")  # `inspect` tests for protocols
        return super().__getattr__(name)


class _LazyGufunc(LazyUfunc):
    # A ufunc from `guvectorize`.
    __slots__ = ()


LazyUfunc.__name__, _LazyGufunc.__name__ = "DUFunc", "GUFunc"  # Python's error messages show the names of Numba's classes


def added_loops(ufunc: LazyUfunc) -> list[LoadedLoop]:
    """Return the loops of a ufunc without signatures, in the order in which they were added."""
    loops: list[LoadedLoop] = object.__getattribute__(ufunc, "_loops")
    return loops


#: The shapes of stored details (`decode_fields`): for each loop, NumPy's type numbers and the entry of the compiled function. For
#: `guvectorize`, the layout, the numbers of arguments and results, and whether each argument is writable precede the loops.
_SHAPES_OF_DETAILS = {"vectorize": "([[i]][(uu)])", "guvectorize": "(uii[?][[i]][(uu)])"}
#: The shapes of the records of loops that calls have added.
_SHAPES_OF_LOOPS = {"vectorize": f"({RECORD}[i](uu))", "guvectorize": f"({RECORD}[i](uu)[?])"}


class LoadedLoop:
    """A loop that was loaded by a call of a ufunc.

    Attributes:
        types: the names of the argument types.
        key: the key of the loop at the time of the call.
        entry_fields: the name and the lines of the compiled function's entry.
        loaded: the code of the loop.
        numbers: NumPy's type numbers.
    """

    __slots__ = ("entry_fields", "key", "loaded", "numbers", "types")

    def __init__(
        self, types: tuple[str, ...], key: Key, entry_fields: tuple[str, str], loaded: LoadedCode, numbers: tuple[int, ...]
    ) -> None:
        self.types = types
        self.key = key
        self.entry_fields = entry_fields
        self.loaded = loaded
        self.numbers = numbers


def _is_overridden(values: tuple[Any, ...]) -> bool:
    """Return whether an argument overrides calls of ufuncs, as the collections of Dask do."""
    kinds = [kind for kind in map(type, values) if kind.__module__ not in ("builtins", "numpy")]
    return any(_overrides_ufuncs(kind) or hasattr(kind, "__dask_graph__") for kind in kinds)


def _overrides_ufuncs(kind: Any) -> bool:
    """Return whether a class has an `__array_ufunc__` other than the method of NumPy's arrays."""
    method = getattr(kind, "__array_ufunc__", None)
    numpy: Any = sys.modules.get("numpy")
    return method is not None and (numpy is None or method is not numpy.ndarray.__array_ufunc__)


def declare_ufunc(state: State) -> Any:
    """Return the ufunc of a decorated function. If a loop of a declared signature is not stored, compile the loops with Numba now.

    As with Numba's decorators, a ufunc with ``target="parallel"`` is a plain NumPy ufunc.
    """
    ufunc = _LazyGufunc(state) if state.decorator == "guvectorize" else LazyUfunc(state)
    if state.signatures is not None:
        state.declared = load_declared_code(state, _SHAPES_OF_DETAILS[state.decorator])
        if state.declared is None:
            numbas_object(ufunc)
    if not state.is_parallel:
        return ufunc
    stored = _load_ufunc(ufunc) if state.declared is not None else None
    return numbas_object(ufunc) if stored is None else record_real(stored, ufunc)


def _load_ufunc(lazy: LazyUfunc) -> Any:
    """Return the NumPy ufunc of the stored loops, which the first call creates; None if Numba was imported before that call."""
    stored = object.__getattribute__(lazy, "_stored")
    if stored is None and not has_numba():
        learn_numpy(is_needed=True)
        with _creation_lock:  # all threads share one ufunc
            stored = object.__getattribute__(lazy, "_stored") or _make_ufunc(lazy)
            object.__setattr__(lazy, "_stored", stored)
    return stored


def _make_ufunc(lazy: LazyUfunc) -> Any:
    """Return the NumPy ufunc of the stored loops of a lazy ufunc."""
    state = object.__getattribute__(lazy, "_state")
    if state.decorator == "guvectorize":
        layout, nin, nout, writable, numbers, _entries = state.declared.details
        return _make_numpy_ufunc(state, state.declared.loaded, numbers, nin, nout, layout, writable)
    if state.is_parallel:
        numbers, *_ = state.declared.details
        return _make_numpy_ufunc(state, state.declared.loaded, numbers, state.function.__code__.co_argcount, 1)
    return _make_growing_ufunc(lazy, state)


def _make_numpy_ufunc(state: State, loops: Sequence[LoadedCode], numbers: Any, nin: int, nout: int, *layout: Any) -> Any:
    """Return the NumPy ufunc of loaded loops.

    Args:
        state: the state of the function.
        loops: the code of the loops.
        numbers: NumPy's type numbers for each loop.
        nin: the number of inputs.
        nout: the number of results.
        layout: for `guvectorize`, the layout, and whether each argument is writable.
    """
    library = load_extension(_LIBRARY)
    return library.fromfunc(
        state.function.__name__, state.function.__doc__, [code.address for code in loops], [list(row) for row in numbers], nin, nout,
        [None] * len(loops), list(loops), _numpy_identity(state, library), *layout,
    )  # fmt: skip


def _numpy_identity(state: State, library: Any) -> Any:
    """Return the constant of NumPy's C interface for the identity of a ufunc."""
    return getattr(library, _IDENTITIES[state.options.get("identity")])


def _make_growing_ufunc(lazy: LazyUfunc, state: State) -> Any:
    """Return a ufunc like Numba's `DUFunc`, which requests a loop if none of its loops accepts the types of the arguments."""
    library: Any = load_extension(_LIBRARY)

    class Ufunc(library._DUFunc):  # type: ignore[misc]
        """A ufunc that requests missing loops from `_add_loop`."""

        def _compile_for_args(self, *args: Any, **keywords: Any) -> None:
            _add_loop(lazy, self, args, keywords)

    dispatcher = SimpleNamespace(py_func=state.function)  # the C code of a ufunc reads no other attribute
    ufunc = Ufunc(dispatcher, identity=_numpy_identity(state, library))
    declared: DeclaredCode | None = state.declared
    if declared is not None:
        for code, numbers in zip(declared.loaded, declared.details[0], strict=True):
            ufunc._add_loop(code.address, list(numbers))
        ufunc._frozen = True
    return ufunc


def _add_loop(lazy: LazyUfunc, ufunc: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Add a ufunc's stored loop for these arguments. Raise `_NumbaNeeded` if no loop is stored, or Numba must interpret the arguments."""
    state = object.__getattribute__(lazy, "_state")
    count = state.function.__code__.co_argcount
    has_only_operands = set(keywords) <= {"out"} and len(args) >= count and len(args) + len(keywords) <= count + 1
    if not has_only_operands:
        raise _NumbaNeeded
    types = _find_element_types(args[:count])
    added, _ = _find_and_count_loop(state, types)
    with _creation_lock:
        if any(loop.types == types for loop in added_loops(lazy)):
            return  # another thread has added the loop in the meantime
        _record_loop(lazy, added)
        ufunc._add_loop(added.loaded.address, list(added.numbers))


def _record_loop(lazy: LazyUfunc, loop: LoadedLoop) -> None:
    """Record a loop that a call adds, and the values that its functions read."""
    record_code(loop.key.content.reads, [loop.loaded.record])
    added_loops(lazy).append(loop)


def _find_and_count_loop(state: State, types: tuple[str, ...]) -> tuple[LoadedLoop, Any]:
    """Return a ufunc's stored loop for these types, and the further fields of the loop's record. Count a hit.

    Raise `_NumbaNeeded` if no loop is stored, only Numba can load it, or Numba is imported. See `load_entry` for other exceptions.
    """
    if has_numba():
        raise _NumbaNeeded
    try:
        key = key_of(state.function, state.key_options, f"{state.decorator} {types}")
        cache = None if old_code_reason(key.content.reads) else open_cache()
        fields = find_fields(cache, key.name, _SHAPES_OF_LOOPS[state.decorator]) if cache is not None else None
        if cache is None or fields is None:
            raise _NumbaNeeded
        loaded = load_entry(cache, Record(*fields[0]))
    except NotLazy:
        raise _NumbaNeeded from None
    if loaded is None or has_numba():
        raise _NumbaNeeded
    count_hit()
    _, numbers, entry_fields, *further = fields
    return LoadedLoop(types, key, tuple(entry_fields), loaded, tuple(numbers)), further


def _call_at(lazy: LazyUfunc, *args: Any, **keywords: Any) -> Any:
    """Implement `DUFunc.at` without Numba if a loop accepts the types; otherwise call Numba's method, which also reports errors."""
    stored = _load_ufunc(lazy)
    numpy: Any = sys.modules["numpy"]
    if stored is not None and not keywords and len(args) == stored.ufunc.nin + 1 and type(args[0]) is numpy.ndarray:
        operands = (args[0], *args[2:])  # without the indices
        try:
            has_loop = _has_loop_for(stored.ufunc, _find_element_types(operands))
        except _NumbaNeeded:
            has_loop = False
        if has_loop:
            return stored.ufunc.at(*args)
    return numbas_object(lazy).at(*args, **keywords)


def _call_dynamic(lazy: LazyUfunc, state: State, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Call a `guvectorize` ufunc without signatures. If none of its loops accepts the arguments, add the stored loop for their types.

    Raise `_NumbaNeeded` if no loop is stored, or Numba must interpret the arguments.
    """
    if "out" in keywords:
        args = (*args, keywords.pop("out"))
    layout = state.options["signature"]
    if len(args) != layout.count("("):
        raise _NumbaNeeded
    learn_numpy(is_needed=True)
    types = _find_element_types(args)
    stored = object.__getattribute__(lazy, "_stored")
    if stored is None or not _has_loop_for(stored, types):
        added, (writable,) = _find_and_count_loop(state, types)  # may import modules, which create ufuncs
        with _creation_lock:
            stored = object.__getattribute__(lazy, "_stored")
            if stored is None or not _has_loop_for(stored, types):  # otherwise another thread has added a loop in the meantime
                _record_loop(lazy, added)
                stored = _make_dynamic(state, added_loops(lazy), tuple(writable))
                object.__setattr__(lazy, "_stored", stored)
    return stored(*args, **keywords)


def _make_dynamic(state: State, loops: list[LoadedLoop], writable: tuple[bool, ...]) -> Any:
    """Return the NumPy ufunc of a `guvectorize` function without signatures. Its loops are those that calls have loaded so far."""
    layout = state.options["signature"]
    inputs, _, results = layout.partition("->")
    loaded, numbers = [loop.loaded for loop in loops], [loop.numbers for loop in loops]
    return _make_numpy_ufunc(state, loaded, numbers, inputs.count("("), results.count("("), layout, writable)


def _has_loop_for(ufunc: Any, types: tuple[str, ...]) -> bool:
    """Return whether a loop of a NumPy ufunc accepts types of arguments, casts included, by Numba's rules (`ufunc_find_matching_loop`).

    `types` are the names of the argument types. The names of result types may follow.
    """
    numpy: Any = sys.modules["numpy"]
    dtypes = [numpy.dtype(name) for name in types]
    inputs, results = dtypes[: ufunc.nin], dtypes[ufunc.nin :]
    kinds = {dtype.kind for dtype in inputs}
    is_mixed = bool(kinds & set("iu")) and bool(kinds & set("cf"))

    def can_cast(source: Any, target: Any, rule: str) -> bool:
        """Return whether NumPy casts a dtype to another dtype by a rule, or casts integers to floats because both occur."""
        return (is_mixed and source.kind in "iu" and target.kind in "cf") or numpy.can_cast(source, target, rule)

    for loop in ufunc.types:
        loop_dtypes = [numpy.dtype(letter) for letter in loop.replace("->", "")]
        loop_inputs, loop_results = loop_dtypes[: ufunc.nin], loop_dtypes[ufunc.nin :]
        accepts_inputs = all(can_cast(given, own, "safe") for given, own in zip(inputs, loop_inputs, strict=False))
        if accepts_inputs and all(can_cast(own, given, "same_kind") for given, own in zip(results, loop_results, strict=False)):
            return True
    return False


def _find_element_types(args: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the names of the types for which Numba compiles a loop. Raise `_NumbaNeeded` if only Numba can determine one of the types."""
    try:
        return tuple([_find_element_type(argument) for argument in args])
    except NotLazy:
        raise _NumbaNeeded from None


def _find_element_type(argument: Any) -> str:
    """Return the name of the type for which Numba compiles a loop for an argument. Raise `NotLazy` if only Numba can determine the type."""
    numpy: Any = sys.modules["numpy"]
    kind = type(argument)
    is_array = kind is numpy.ndarray or (is_derived_array(argument, numpy) and not kind.__module__.startswith("numpy.ma"))
    if is_array or (isinstance(argument, numpy.generic) and kind.__module__ == "numpy"):
        return scalar_name(argument.dtype)
    if kind in (bool, int, float, complex):
        return scalar_name(numpy.asarray(argument).dtype)
    raise NotLazy(
        f"an argument has the type {kind.__module__}.{kind.__qualname__}, for which compcache needs Numba: pass numbers or arrays of these"
    )
