"""Typed call targets: compiled functions as Python callables. Also loads the native runtime of this process, which makes them."""

# `TypedCallTarget` is the Python half. The native half, a subclass that the runtime makes (`native/targets.c`), has the vectorcall slot
# and owns image and context, so the code and everything that it uses live as long as the target.
#
# The runtime is the extension module `compcache.hit._runtime` (C sources in `native/`). It is built with the package, once for all
# versions of CPython except free-threaded ones. `install` gives it the Python functions that it calls.

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, Generic, NoReturn

    from typing_extensions import ParamSpec, TypeVar

    from compcache.files import OpenBeneath
    from compcache.signature import Signature

    Parameters = ParamSpec("Parameters", default=...)
    Result = TypeVar("Result", default=Any)

    class _Typed(Generic[Parameters, Result]):
        def __call__(self, *args: Parameters.args, **named: Parameters.kwargs) -> Result:
            """Call the function."""

else:
    Parameters = Result = None

    class _Typed:  # `Generic`, without the import
        __slots__ = ()
        __class_getitem__ = classmethod(type(list[int]))


__all__ = ["TargetContext", "TypedCallTarget", "install", "link_name_of", "load_runtime", "path_opener"]


def link_name_of(symbol: str, module_id: bytes) -> str:
    """Return the name of one realization: its symbol and the id of its module."""
    return f"{symbol}@{module_id.hex()}"


class TargetContext:
    """The state of a call target: the loaded module, its names, and its origin. It never changes."""

    __slots__ = ("func_name", "symbol", "module", "signature_text", "cache_path", "signed", "owner", "layers")

    def __init__(
        self, func_name: str, symbol: str, module: "Any", signature_text: str, cache_path: str, signed: bool, owner: object,
        layers: "tuple[str, ...]" = (),
    ) -> None:  # fmt: skip
        self.func_name = func_name
        self.symbol = symbol
        self.module = module  # the loaded module
        self.signature_text = signature_text
        self.cache_path = cache_path  # the directory of the cache
        self.signed = signed  # whether the cache has a signing key
        self.owner = owner  # kept alive by the target
        self.layers = layers  # the directories of the cache's layers


class TypedCallTarget(_Typed[Parameters, Result]):
    """A compiled function: call it with arguments of the types in its `signature`, by position, or by name if the parameters have names.

    A call checks the number and the types of the arguments and raises `TypeError`, `OverflowError` or `ValueError` as CPython's own
    functions do. For a buffer type (`T[:]`), it accepts any C-contiguous buffer of that element type, and makes no copy. A target
    keeps everything alive that its code needs. It can be pickled, copied and weakly referenced. After `unload` or `close` a call
    raises `TargetUnloadedError`.

    For type checkers it is generic in the types that Python passes and receives: ``TypedCallTarget[[float, int], float]``. Without them,
    all types are accepted. The signature itself is known only at run time.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _name: str
        _context: TargetContext
        _function: int

    @property
    def func_name(self) -> str:
        """The name under which the cache knows the function."""
        _require_valid(self)
        return self._name

    @property
    def link_name(self) -> str:
        """The name of the realization that was loaded, unique among all modules."""
        context = _require_valid(self)
        return link_name_of(context.symbol, context.module.module_id)

    @property
    def module_id(self) -> str:
        """The id of the module that contains the code, as `Cache.add_module` returned it."""
        module_id: bytes = _require_valid(self).module.module_id
        return module_id.hex()

    @property
    def signature(self) -> "Signature":
        """The types of parameters and result."""
        from compcache.signature import Signature

        return Signature.parse(_require_valid(self).signature_text.removeprefix("nogil "))

    @property
    def nogil(self) -> bool:
        """Whether calls release the GIL."""
        return _require_valid(self).signature_text.startswith("nogil ")

    @property
    def address(self) -> int:
        """The address of the native function, for other native code; valid as long as the target is alive."""
        _require_valid(self)
        return self._function

    @property
    def __name__(self) -> str:
        return self._name

    @property
    def __signature__(self) -> "inspect.Signature":
        import inspect

        signature = self.signature
        names = signature.parameter_names()
        by_name = list(names) == [parameter.name for parameter in signature.parameters]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if by_name else inspect.Parameter.POSITIONAL_ONLY
        parameters = [
            inspect.Parameter(name, kind, annotation=str(parameter)) for name, parameter in zip(names, signature.parameters, strict=True)
        ]
        return inspect.Signature(parameters, return_annotation=str(signature.result))

    def __repr__(self) -> str:
        context = self._context
        if context is None or not _is_valid(self):
            return f"<TypedCallTarget {self._name!r} (unloaded)>"
        return f"<TypedCallTarget {self._name!r}: {context.signature_text} in module {context.module.module_id.hex()}>"

    def _repr_html_(self) -> str:
        from compcache.display import html

        return html(self)

    def __reduce__(self) -> "tuple[Any, ...]":
        context = _require_valid(self)
        from compcache.cache import find_again

        where = context.cache_path, self._name, context.signed
        return find_again, (*where, context.layers) if context.layers else where

    def __copy__(self) -> "TypedCallTarget":
        return self

    def __deepcopy__(self, memo: "dict[int, Any]") -> "TypedCallTarget":
        return self


_runtime: "Any" = None
_loaded: "Any" = None  # the installed runtime; tests replace it by doubles


def load_runtime() -> "Any":
    """Return the native runtime of this process, installed at the first call.

    Raise `ImportError` if the extension module is missing, was not built from the sources beside it, or cannot work here (in a
    subinterpreter). The message says what to do.
    """
    global _loaded  # noqa: PLW0603 - a process has one extension module
    if _loaded is None:
        try:
            import compcache.hit._runtime as extension
        except ImportError as error:
            if error.name is None:  # the extension itself raised the error
                raise
            from compcache.hit.native_build import missing_error

            raise missing_error(error) from error
        if extension.SOURCES:
            _require_current(extension)
        _register_forks(extension)
        install(extension)
        _loaded = extension
    return _loaded


def _register_forks(runtime: "Any") -> None:
    """Let `compcache.forks` act around each fork."""
    # An exception of a signal handler meanwhile does not stop it.
    bind = type(_at_fork.__get__(runtime))  # the type of methods, which calls like `functools.partial` without an import
    hooks = {when: bind(runtime.uninterrupted, _at_fork(when)) for when in ("before", "after_in_parent", "after_in_child")}
    os.register_at_fork(**hooks)


def _at_fork(when: str) -> "Callable[[list[Any]], None]":
    """Return the hook for one moment of a fork."""

    def act(done: "list[Any]") -> None:
        from compcache import forks

        getattr(forks, when)(done)

    return act


def path_opener() -> "OpenBeneath | None":
    """Return the function that opens files below a directory in one call, or None if the native runtime cannot be loaded."""
    try:
        opener: OpenBeneath = load_runtime().open_beneath
    except ImportError:  # a load reports the reason
        return None
    return opener


def _require_current(extension: "ModuleType") -> None:
    """Raise `ImportError` if the extension in a source checkout was not built from the present sources."""
    # The sources are read only if a file, or their folder, is newer than the extension.
    folder = f"{os.path.dirname(str(extension.__file__))}/native/"
    built = os.stat(str(extension.__file__)).st_mtime_ns
    try:
        changed = any(os.stat(folder + name).st_mtime_ns > built for name in ("", *extension.SOURCES.split()))
    except FileNotFoundError:
        changed = os.path.isdir(folder)
    if changed:
        from compcache.hit.native_build import require_same_sources

        require_same_sources(extension)


def _is_valid(target: "TypedCallTarget") -> bool:
    # Whether the target was not unloaded.
    return _runtime is not None and bool(_runtime.is_valid(target)) and target._context is not None


def _require_valid(target: "TypedCallTarget") -> "TargetContext":
    """Return the context of a target. Raise `TargetUnloadedError` if the target was unloaded."""
    if not _is_valid(target):
        _raise_unloaded(target)
    return target._context


def install(runtime: "Any") -> None:
    """Give the native runtime its base class and hooks. Called once per process, before any target is made."""
    global _runtime  # noqa: PLW0603 - a process has one native runtime
    native_type = runtime.setup(TypedCallTarget, _raise_unloaded, _match_arguments, _raise_value, _pointer_address)
    native_type.__doc__ = property(_documentation)
    _runtime = runtime


# Native code and `help()` call these functions for messages. The messages are in a file that a hit does not import.


def _documentation(target: "TypedCallTarget") -> str:
    """Return the text of `help()` for a target."""
    if not _is_valid(target):
        return f"{target._name}: unloaded"
    from compcache.hit.call_errors import describe

    return describe(target)


def _raise_unloaded(target: "TypedCallTarget") -> "NoReturn":
    from compcache.hit.call_errors import raise_unloaded

    raise_unloaded(target)


def _match_arguments(target: "TypedCallTarget", given: int, names: "tuple[str, ...] | None") -> "tuple[int, ...] | None":
    from compcache.hit.call_errors import match_arguments

    return match_arguments(target, given, names)


def _raise_value(target: "TypedCallTarget", index: int, value: object) -> "NoReturn":
    from compcache.hit.call_errors import raise_value

    raise_value(target, index, value)


def _pointer_address(value: object) -> "int | None":
    """Return the address that a call target, a NumPy integer or a ctypes pointer contains, or None for other arguments."""
    if isinstance(value, TypedCallTarget):
        return value.address
    from compcache.hit.call_errors import pointer_address

    return pointer_address(value)
