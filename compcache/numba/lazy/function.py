"""Defines the object that `compcache.numba.njit` returns. It behaves like Numba's dispatcher, and is replaced by a dispatcher if necessary.

A call with known types runs in native code (`native/dispatch.c`). The first call with other types is handled here. If an entry with the
same content is stored, it is mapped and used from then on. Otherwise Numba is imported, and its dispatcher handles all further calls.
"""

from __future__ import annotations

from compcache.numba.fingerprints import STATE
from compcache.numba.fingerprints.code_digest import replaced_defaults_reason
from compcache.numba.fingerprints.history import old_code_reason, record_code
from compcache.numba.lazy import _dispatch, has_numba
from compcache.numba.lazy.argument_types import learn_numpy, type_text_of_value
from compcache.numba.lazy.entries import count_hit, find_record, key_of, load_entry, open_cache
from compcache.numba.lazy.stand_ins import is_probe
from compcache.numba.lazy.state import State, lazy_state_of
from compcache.numba.registered.refusals import NotLazy, examines_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from compcache.numba.lazy.entries import LoadedCode

__all__ = ["LazyFunction", "is_lazy_function", "make_lazy_function"]


class LazyFunction:
    """A function that Numba compiles, or that it has compiled in another process."""

    __slots__ = ()

    if TYPE_CHECKING:
        __dict__: dict[str, Any]
        py_func: Any

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call the compiled function."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of Numba's dispatchers once Numba is imported. Before that, no caller can test for Numba's class."""
        if has_numba():
            real = _dispatch.get_real(self)
            if real is not None:
                return type(real)
            from numba.core.registry import CPUDispatcher

            return CPUDispatcher
        return type(self)

    def __get__(self, owner: Any, cls: Any = None) -> Any:
        return self if owner is None else _Method(self, owner)

    def __copy__(self) -> Any:
        return self  # like Numba's dispatchers

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTION_ATTRIBUTES:
            return getattr(lazy_state_of(self).function, name)
        is_unknown = name.startswith("__") and not has_numba() and name not in _DISPATCHER_ATTRIBUTES
        if is_unknown or (is_probe(name) and _dispatch.get_real(self) is None):
            raise AttributeError(f"'CPUDispatcher' object has no attribute {name!r}")
        return getattr(_make_real(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        real = _dispatch.get_real(self)
        if real is not None:
            setattr(real, name, value)
        elif name not in _DISPATCHER_STATE:
            self.__dict__[name] = value
        else:
            setattr(_make_real(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_make_real(self), name)

    def __repr__(self) -> str:
        return f"CPUDispatcher({self.py_func!r})"

    def __reduce__(self) -> Any:
        return self.__reduce_ex__(2)

    def __reduce_ex__(self, protocol: Any) -> Any:
        real = _make_real(self)
        from compcache.numba.lazy.pickles import reduce_real

        reduced = reduce_real(real, protocol)
        if hasattr(real, "_memo"):
            real._memo[str(real._uuid)] = self  # so that unpickling in this process returns this object
        return reduced

    def __dir__(self) -> list[str]:
        return dir(_make_real(self))

    def _compcache_is_declaration(self, function: Any) -> bool:
        """Return whether this object is the declaration of a function with signatures."""
        state = lazy_state_of(self)
        return state.function is function and state.signatures is not None

    def _compcache_content(self, walk: Any) -> None:
        """Feed the data of the function that compiled code can use. See `State` for the exception."""
        lazy_state_of(self)._compcache_content(walk)

    def _compcache_owner(self) -> State:
        """Return the object that stands for the function's dispatcher, whether Numba has created it or not."""
        return lazy_state_of(self)

    def _compcache_attributes(self) -> dict[str, Any]:
        """Return the attributes that code can read from this object, and that the program may have set."""
        from compcache.numba.fingerprints.state import state_of as attributes_of  # most keys do not need it

        real = _dispatch.get_real(self)
        return {name: item for name, item in self.__dict__.items() if name != STATE} if real is None else attributes_of(real)

    def _compcache_real(self) -> Any:
        """Return Numba's dispatcher, or None if it was not created yet."""
        return _dispatch.get_real(self)


_Method = type(LazyFunction.__repr__.__get__(object()))  # `types.MethodType`, without importing `types`
#: The special attributes that Numba's dispatchers have and plain objects do not.
_DISPATCHER_ATTRIBUTES = frozenset(("__numba__",))
#: The special attributes that dispatchers copy from their function.
_FUNCTION_ATTRIBUTES = frozenset(("__code__", "__defaults__"))
#: Attributes that belong to the state of a dispatcher. Setting one of them has an effect.
_DISPATCHER_STATE = frozenset((
    "targetoptions", "locals", "overloads", "targetctx", "typingctx", "_cache", "_can_compile", "_compiler", "_impl_kind",
    "typeof_pyval", "_type", "_make_finalizer", "stats", "nopython_signatures",
))  # fmt: skip
_COPIED_ATTRIBUTES = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__", "__type_params__")
_VARIADIC = 0x04  # a flag of code objects: *args


def make_lazy_function(state: State) -> Any:
    """Return the lazy function of the decorated function in `state`, without importing Numba."""
    function = state.function
    attributes = {name: getattr(function, name) for name in _COPIED_ATTRIBUTES if hasattr(function, name)}
    attributes |= function.__dict__
    attributes |= {"__wrapped__": function, "py_func": function, STATE: state}
    code = function.__code__
    is_variadic = bool(code.co_flags & _VARIADIC)
    # Numba also accepts keyword-only parameters by position. A function with such parameters and defaults needs Numba (`State.reason`).
    parameter_count = code.co_argcount + code.co_kwonlyargcount
    names = None if state.reason else code.co_varnames[: parameter_count + is_variadic]  # without names, `_find_callee` handles each call
    return _dispatch.make_function(names, parameter_count - len(function.__defaults__ or ()), is_variadic, attributes)


def is_lazy_function(value: Any) -> bool:
    """Return whether an object is a lazy function. Its `__class__` does not matter."""
    return type(value) is _type


def _make_real(function: Any) -> Any:
    """Return Numba's dispatcher of a lazy function, which is created if necessary."""
    return lazy_state_of(function).make_real(function)


def _find_callee(function: Any, positional: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return what a call calls: the function with its stored code, or Numba's dispatcher if no code can be used without Numba."""
    state = lazy_state_of(function)
    reason = state.reason  # `imports` reads it from this frame
    if not reason and not has_numba():
        try:
            if _load_for_call(function, state, positional, keywords):
                return function
        except NotLazy as error:
            reason = str(error)
    return _make_real(function)


@examines_program(NotLazy)
def _load_for_call(function: Any, state: State, positional: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Make stored code for these arguments callable. Return whether such code is stored, and can be used now.

    Raise `NotLazy` if only Numba can run the call, or if an argument, the stored code or the imported NumPy cannot be examined.
    """
    if reason := replaced_defaults_reason(state.function, state.defaults):
        raise NotLazy(reason)
    learn_numpy()
    encoded = _dispatch.arguments_of(function, positional, keywords)
    if encoded is None:
        return False
    native_types, arguments = encoded
    functions: list[Any] = []
    texts = [type_text_of_value(argument, function, functions) for argument in arguments]
    if state.signatures is None:
        loaded = _load_overload(state, ", ".join(texts), functions)
    else:
        loaded = state.declared.select(texts) if state.declared is not None else None
    if loaded is None:
        return False
    classes = list(_classes_of(arguments))  # the native types contain addresses of classes and functions, which must stay alive
    _dispatch.add_entry(function, native_types, loaded.address, (loaded, classes))
    return True


def _load_overload(state: State, types: str, functions: list[Any]) -> LoadedCode | None:
    """Return the code for these argument types. The first such call loads it, and counts a hit. Return None if no usable code is stored.

    Raise `NotLazy` if only Numba can run the call. See `load_entry` for other exceptions.
    """
    name = f"{types} {[id(other) for other in functions]}" if functions else types
    if name in state.loaded:
        return state.loaded[name][0]
    key = key_of(state.function, state.key_options, types, functions)
    if old_code_reason(key.content.reads):
        return None  # Numba would link the code that this process ran earlier
    cache = open_cache()
    record = find_record(cache, key) if cache is not None else None
    loaded = load_entry(cache, record) if cache is not None and record is not None else None
    if loaded is None or has_numba():
        return None
    state.loaded[name] = loaded, key
    record_code(key.content.reads, [loaded.record])
    count_hit()
    return loaded


def _classes_of(arguments: tuple[Any, ...]) -> Iterator[type]:
    """Yield the classes of arguments and of the items of tuples among them."""
    for argument in arguments:
        yield type(argument)
        if isinstance(argument, tuple):
            yield from _classes_of(argument)


_type: Any = _dispatch.setup(LazyFunction, _find_callee)
_type.__name__, _type.__module__ = "CPUDispatcher", "numba.core.registry"  # error messages show the name of Numba's class
