"""Defines the state of lazy functions: their declarations, and the code that was loaded for them."""

from __future__ import annotations

from compcache.numba.fingerprints import STATE
from compcache.numba.fingerprints.code_digest import defaults_of, replaced_defaults_reason
from compcache.numba.lazy import numba_stand_in
from compcache.numba.lazy.stand_ins import are_decorators_replaced
from compcache.numba.registered.options import compiler_options
from compcache.numba.registered.refusals import NotLazy, examines_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from compcache.numba.fingerprints.fixed_code import CodeIdentity
    from compcache.numba.lazy.entries import Key, LoadedCode

__all__ = ["State", "lazy_state_of"]

_VARIADIC, _KEYWORDS = 0x04, 0x08  # flags of code objects: *args, **kwargs
_GENERATOR = 0x20 | 0x80 | 0x200  # generators and coroutines
#: Options that only Numba supports.
_OPTIONS_FOR_NUMBA = frozenset(("forceobj", "pipeline_class", "no_cpython_wrapper", "no_cfunc_wrapper", "target", "locals"))
#: The targets of ufuncs that can run without Numba.
_TARGETS = ("cpu", "parallel")
#: The reason for a function that needs Numba when Python calls it, but not when compiled code calls it.
CALLED_BY_CODE = "the function is a generator"
#: The reason for a function whose calls from Python are not cached. Callers in compiled code are cached, because they contain its code.
NOT_CACHED = "the function is declared with cache=False"
_PLAIN_TYPES = (bool, int, float, str, type(None))


class State:
    """The state of a lazy function.

    A function with declared signatures is compiled when it is declared.

    Attributes:
        function: the Python function.
        decorator: the name of its decorator.
        signatures: the declared signatures, as text if their types have texts; None for a function without declared signatures.
        options: the options of the decorator.
        defaults: the default values of the parameters at the time of the declaration, which Numba's dispatcher keeps, by name.
        make_real: creates Numba's dispatcher for a lazy function.
        loaded: the code that runs without Numba, and its key at that time, by the text of the argument types.
        reason: why only Numba can run the function, or "".
        key: the key of a declared function at the time of the declaration; None if the function has no key.
        declared: the code of a declared function that was found, or None.
        compiled: the identities of a declared function's code, or None if they are unknown.
    """

    __slots__ = (
        "compiled", "declared", "decorator", "defaults", "function", "key", "loaded", "make_real", "options", "reason",
        "signatures", "__weakref__", "_compcache_kept",
    )  # fmt: skip

    def __init__(
        self, function: Any, decorator: str, signatures: tuple[Any, ...] | None, options: dict[str, Any],
        make_real: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        self.function = function
        self.decorator = decorator
        self.signatures = signatures
        self.options = options
        self.defaults = defaults_of(function)
        self.make_real = make_real
        self.loaded: dict[str, tuple[LoadedCode, Key]] = {}
        self.reason = _reason_for_numba(function, decorator, signatures, options)
        self.key: Key | None = None
        self.declared: Any = None
        self.compiled: list[CodeIdentity] | None = None

    @property
    def requests_caching(self) -> bool:
        """Whether the program has requested caching. Then Numba warns if it cannot cache the function."""
        return bool(self.options.get("cache"))

    @property
    def is_parallel(self) -> bool:
        """Whether the loops of a ufunc run on Numba's threads."""
        return self.options.get("target") == "parallel"

    @property
    def key_options(self) -> dict[str, Any]:
        """The options that are part of the key, because they affect the compiler."""
        return compiler_options(self.options)

    def _compcache_content(self, walk: Any) -> None:
        """Feed the data of the function that compiled code can use: the function and its options, or the identities of declared code.

        Raise `NotLazy` if only Numba can run the function, or its default values were replaced, or its declared code has no identity.
        """
        if self.reason not in ("", CALLED_BY_CODE, NOT_CACHED):
            raise NotLazy(f"the callee {self.function.__qualname__} needs Numba: {self.reason}")
        if reason := replaced_defaults_reason(self.function, self.defaults):
            raise NotLazy(reason)
        if self.signatures is not None:  # the function's code does not change after the declaration
            walk.feed_declared(self.compiled, self.function)
            return
        walk.feed_jitted(self.function, self.key_options, owner=self)


def _reason_for_numba(function: Any, decorator: str, signatures: tuple[Any, ...] | None, options: dict[str, Any]) -> str:
    """Return why only Numba can run a function, or "" if stored code can.

    `cache=False` is a reason if the program uses the decorators of this package. For Numba's own decorators it is the default.
    """
    try:
        reason = _reason_in_options(decorator, options)
    except NotLazy as error:
        reason = str(error)
    if not {str}.issuperset(map(type, signatures or ())):
        reason = reason or "a declared signature contains a type that has no text"
    return reason or _reason_in_parameters(function, is_plain=signatures is None and decorator in ("jit", "njit"))


@examines_program(NotLazy)
def _reason_in_options(decorator: str, options: dict[str, Any]) -> str:
    """Return why the options of the decorator need Numba, or "" if they do not. Raise `NotLazy` if examining them fails."""
    if options.get("cache") is False and numba_stand_in() is None and not are_decorators_replaced():
        return NOT_CACHED
    if options.get("nopython") is False:
        return "the function is declared with nopython=False"
    for name, value in options.items():
        if name == "locals" and decorator in ("jit", "njit") and type(value) is dict and _have_texts(value.values()):
            continue
        is_target = name == "target" and decorator in ("vectorize", "guvectorize") and value in _TARGETS
        if (name in _OPTIONS_FOR_NUMBA and value and not is_target) or not _is_plain(value):
            return f"the function is declared with {name}={value!r}"
    return ""


def _reason_in_parameters(function: Any, *, is_plain: bool) -> str:
    """Return why the parameters of a function need Numba, or "" if Numba is not needed.

    `is_plain` is whether the function is declared without signatures, and is therefore compiled for the types of its calls.
    """
    flags, by_keyword = function.__code__.co_flags, function.__code__.co_kwonlyargcount
    if flags & _GENERATOR:
        return CALLED_BY_CODE
    has_defaults = bool(function.__defaults__ or function.__kwdefaults__)
    reasons = (
        (flags & _KEYWORDS, "the parameters include **kwargs"),
        (by_keyword and flags & _VARIADIC, "the parameters include both *args and keyword-only parameters"),
        (by_keyword and has_defaults, "the parameters include keyword-only parameters, and parameters with default values"),
        (not is_plain and flags & _VARIADIC, "the function is declared with signatures, and has the parameter *args"),
        (not is_plain and by_keyword, "the function is declared with signatures, and has keyword-only parameters"),
    )
    return next((text for holds, text in reasons if holds), "")


def _have_texts(types: Iterable[Any]) -> bool:
    """Return whether all of these are types that have a text."""
    from compcache.numba.registered.type_texts import text_of

    return None not in map(text_of, types)


def _is_plain(value: Any) -> bool:
    """Return whether an option's value is plain, or a set or tuple of texts and integers. Its text then identifies it."""
    if isinstance(value, (set, frozenset, tuple)):
        return all(isinstance(item, (str, int)) for item in value)
    return type(value) in _PLAIN_TYPES


def lazy_state_of(function: Any) -> State:
    """Return the state of a lazy function."""
    state: State = function.__dict__[STATE]
    return state
