"""The state of lazy functions: their declarations, and what was loaded for them."""

from __future__ import annotations

from compcache.numba.lazy.awaited import stand_in_of
from compcache.numba.lazy.stand_ins import are_decorators_taken
from compcache.numba.registered.options import of_compiler
from compcache.numba.registered.refusals import NotLazy, looks_at_programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.numba.fingerprints.fixed_code import Compiled
    from compcache.numba.lazy.entries import Key, Loaded

__all__ = ["STATE", "State", "state_of"]

#: The attribute of a lazy function that contains its state.
STATE = "_compcache_state"
_VARIADIC, _KEYWORDS = 0x04, 0x08  # flags of code objects: *args, **kwargs
_GENERATOR = 0x20 | 0x80 | 0x200
#: Options with which functions are left to Numba.
_FOR_NUMBA = frozenset(("forceobj", "pipeline_class", "no_cpython_wrapper", "no_cfunc_wrapper", "target", "locals"))
#: The targets of ufuncs whose code runs without Numba.
_TARGETS = ("cpu", "parallel")
#: The reason for a function that needs Numba when Python calls it, but not when compiled code does.
CALLED_BY_CODE = "it is a generator"
_PLAIN = (bool, int, float, str, type(None))


class State:
    """The state of a lazy function.

    `loaded` has the code that runs here without Numba, by the text of its types, with the function's content at that time. `reason` tells
    why the function is left to Numba, or is "". `loaded_signatures` are Numba's names of the overloads that were loaded when the dispatcher
    was created.

    A function with declared `signatures` is compiled on declaration. `key` is its key at that time (None if it has none), and `declared`
    the code that was found. `compiled` is what this code, or Numba's, was compiled from. `make_real` creates Numba's dispatcher for a lazy
    function.
    """

    __slots__ = (
        "compiled", "declared", "decorator", "function", "key", "loaded", "loaded_signatures", "make_real", "options", "reason",
        "signatures",
    )  # fmt: skip

    def __init__(
        self, function: Any, decorator: str, signatures: tuple[str, ...] | None, options: dict[str, Any],
        make_real: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        self.function = function
        self.decorator = decorator
        self.signatures = signatures
        self.options = options
        self.make_real = make_real
        self.loaded: dict[str, tuple[Loaded, Key]] = {}
        self.loaded_signatures: set[Any] = set()
        self.reason = _why_numba(function, decorator, signatures, options)
        self.key: Key | None = None
        self.declared: Any = None
        self.compiled: list[Compiled] | None = None

    @property
    def asks_for_caching(self) -> bool:
        """Whether the program has asked for caching: then Numba warns if it cannot cache."""
        return bool(self.options.get("cache"))

    @property
    def is_parallel(self) -> bool:
        """Whether the loops of a ufunc run on Numba's threads."""
        return self.options.get("target") == "parallel"

    @property
    def key_options(self) -> dict[str, Any]:
        """The options that are part of the key: all that affect the compiler."""
        return of_compiler(self.options)

    def _compcache_content(self, walk: Any) -> None:
        """Feed everything that compiled code can see of the function: it and its options."""
        if self.reason and self.reason != CALLED_BY_CODE and not self.reason.startswith("it is declared with cache"):
            raise NotLazy(f"{self.function.__qualname__}: {self.reason}")
        if self.signatures is not None:  # it does not change after its declaration
            walk.feed_declared(self.compiled, self.function)
            return
        walk.feed_jitted(self.function, self.key_options)


def _why_numba(function: Any, decorator: str, signatures: tuple[str, ...] | None, options: dict[str, Any]) -> str:
    """Return why a function is left to Numba, or "". `cache=False` is a reason if the program uses the decorators of this package; for
    Numba's own decorators it is the default.
    """
    try:
        reason = _why_options(decorator, options)
    except NotLazy as error:
        reason = str(error)
    return reason or _why_parameters(function, is_plain=signatures is None and decorator in ("jit", "njit"))


@looks_at_programs(NotLazy)
def _why_options(decorator: str, options: dict[str, Any]) -> str:
    """Return why the options need Numba, or ""."""
    if options.get("cache") is False and stand_in_of() is None and not are_decorators_taken():
        return "it is declared with cache=False"
    if options.get("nopython") is False:
        return "it is declared with nopython=False"
    for name, value in options.items():
        if name == "locals" and decorator in ("jit", "njit") and type(value) is dict and None not in _texts(value).values():
            continue
        is_target = name == "target" and decorator in ("vectorize", "guvectorize") and value in _TARGETS
        if (name in _FOR_NUMBA and value and not is_target) or not _is_plain(value):
            return f"it is declared with {name}={value!r}"
    return ""


def _why_parameters(function: Any, *, is_plain: bool) -> str:
    """Return why the parameters need Numba, or "". `is_plain`: the function is compiled for the types of its calls."""
    flags, by_keyword = function.__code__.co_flags, function.__code__.co_kwonlyargcount
    if flags & _GENERATOR:
        return CALLED_BY_CODE
    if flags & _KEYWORDS or (by_keyword and (flags & _VARIADIC or function.__defaults__ or function.__kwdefaults__)):
        return "it has arguments by keyword only beside defaults, or a variable number of them"
    if not is_plain and (flags & _VARIADIC or by_keyword):
        return "it is declared with signatures, and has a variable number of arguments or some by keyword only"
    return ""


def _texts(types: dict[str, Any]) -> dict[str, str | None]:
    from compcache.numba.registered.type_texts import text_of

    return {name: text_of(type_) for name, type_ in types.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (set, frozenset, tuple)):
        return all(isinstance(item, (str, int)) for item in value)
    return type(value) in _PLAIN


def state_of(function: Any) -> State:
    """Return the state of a lazy function."""
    state: State = function.__dict__[STATE]
    return state
