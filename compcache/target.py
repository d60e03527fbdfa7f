"""Typed call targets: what Python sees of a compiled function.

`TypedCallTarget` is the Python half. The native half, a subclass that the runtime makes (`runtime.ll`), carries the
vectorcall slot and owns image and context, so that the code and everything that it uses live as long as the target.
"""

from __future__ import annotations

import sys

from compcache.errors import ArgumentBufferError, TargetUnloadedError
from compcache.record import Record, set_field
from compcache.signature import CSTR, POINTER, Signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from typing import Any, NoReturn

__all__ = ["TargetContext", "TypedCallTarget", "hooks", "install", "link_name_of"]

_PYTHON_TYPES = {"signed": "int", "unsigned": "int", "float": "float", "bool": "bool", "void": "None", CSTR: "str"}


def link_name_of(symbol: str, module_id: bytes) -> str:
    """The name of one realization: its symbol and the module that holds it."""
    return f"{symbol}@{module_id.hex()}"


class TargetContext(Record):
    """What a target owns and knows: the loaded module, its names, and where it came from."""

    __slots__ = ("func_name", "symbol", "module", "signature_text", "cache_path", "owner")
    func_name: str
    symbol: str
    module: Any
    signature_text: str
    cache_path: str
    owner: object

    def __init__(
        self, func_name: str, symbol: str, module: Any, signature_text: str, cache_path: str, owner: object
    ) -> None:
        set_field(self, "func_name", func_name)
        set_field(self, "symbol", symbol)
        set_field(self, "module", module)
        set_field(self, "signature_text", signature_text)
        set_field(self, "cache_path", cache_path)
        set_field(self, "owner", owner)


class TypedCallTarget:
    """A compiled function: call it with positional arguments of the types in its `signature`.

    A call checks the number and the types of the arguments and raises `TypeError`, `OverflowError` or `ValueError`
    as CPython's own functions do. Arguments of buffer type (`T[:]`) are taken from any C-contiguous buffer of that
    element type, without a copy. A target keeps alive all that its code needs; it can be pickled, copied and
    weakly referenced. After `unload` or `close` it raises `TargetUnloadedError`.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _name: str
        _context: TargetContext
        _function: int

        def __call__(self, *args: Any) -> Any:
            """Call the function."""

    @property
    def func_name(self) -> str:
        """The identity under which the cache knows the function."""
        _require_valid(self)
        return self._name

    @property
    def link_name(self) -> str:
        """The name of the realization that was loaded, unique among all modules."""
        context = _require_valid(self)
        return link_name_of(context.symbol, context.module.module_id)

    @property
    def module_id(self) -> str:
        """The module that the code is in, as `Cache.add_module` returned it."""
        module_id: bytes = _require_valid(self).module.module_id
        return module_id.hex()

    @property
    def signature(self) -> Signature:
        """The types of parameters and result."""
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
    def __signature__(self) -> inspect.Signature:
        import inspect

        signature = self.signature
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY, annotation=str(parameter))
            for name, parameter in zip(signature.parameter_names(), signature.parameters, strict=True)
        ]
        return inspect.Signature(parameters, return_annotation=str(signature.result))

    def __repr__(self) -> str:
        context = self._context
        if context is None or not _is_valid(self):
            return f"<TypedCallTarget {self._name!r} (unloaded)>"
        return f"<TypedCallTarget {self._name!r}: {context.signature_text} in module {context.module.module_id.hex()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        context = _require_valid(self)
        from compcache.cache import find_again

        return find_again, (context.cache_path, self._name)

    def __copy__(self) -> TypedCallTarget:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TypedCallTarget:
        return self


def _documentation(target: TypedCallTarget) -> str:
    """What `help()` shows of one target."""
    if not _is_valid(target):
        return f"{target._name}: unloaded"
    signature = target.signature
    names = signature.parameter_names()
    head = ", ".join(f"{n}: {p}" for n, p in zip(names, signature.parameters, strict=True))
    lines = [f"{target._name}({head}) -> {signature.result}", "", "A compiled function.", ""]
    for name, parameter in zip(names, signature.parameters, strict=True):
        lines.append(f"    {name}: {_explain(parameter)}")
    result = _PYTHON_TYPES.get(signature.result.kind, "int")
    lines.append(f"    returns: {result}{' or None' if signature.result.kind == CSTR else ''}")
    lines += ["", f"From module {target.module_id} of the cache {target._context.cache_path}."]
    return "\n".join(lines)


def _explain(parameter: Any) -> str:
    if parameter.is_buffer:
        return f"a C-contiguous buffer of {parameter.type} elements"
    if parameter.type.kind == CSTR:
        return "str (passed as UTF-8) or bytes, without NUL"
    if parameter.type.kind == POINTER:
        return "an address: int, None, a ctypes object, a call target or a buffer"
    return f"{_PYTHON_TYPES[parameter.type.kind]} ({parameter.type})"


# ------------------------------------------------------------------------- the runtime's side

_runtime: Any = None


def _is_valid(target: TypedCallTarget) -> bool:
    return _runtime is not None and bool(_runtime.is_valid(target)) and target._context is not None


def _require_valid(target: TypedCallTarget) -> TargetContext:
    if not _is_valid(target):
        _raise_unloaded(target)
    return target._context


def install(runtime: Any) -> None:
    """Give the native runtime its base class and hooks; once per process, before any target is made."""
    global _runtime  # noqa: PLW0603 - the native module is one per process, and so is what it calls back
    native_type = runtime.setup(TypedCallTarget, *hooks())
    native_type.__doc__ = property(_documentation)
    _runtime = runtime


def hooks() -> tuple[Any, ...]:
    """What native code calls when it needs words: unloaded, arity, value, pointer."""
    return _raise_unloaded, _raise_arity, _raise_value, _find_pointer


def _raise_unloaded(target: TypedCallTarget) -> NoReturn:
    name = target._name
    raise TargetUnloadedError(
        f"the compiled function {name!r} was unloaded: Cache.unload() was called for its module, or its cache was "
        f"closed; ask an open cache for it again with get_target({name!r})",
        func_name=name,
    )


def _raise_arity(target: TypedCallTarget, given: int, names: tuple[str, ...] | None) -> None:
    expected = len(target.signature.parameters)
    name = target._name
    if names:
        raise TypeError(f"{name}() takes no keyword arguments")
    if given != expected:
        if expected == 0:
            raise TypeError(f"{name}() takes no arguments ({given} given)")
        plural = "" if expected == 1 else "s"
        raise TypeError(f"{name}() takes exactly {expected} argument{plural} ({given} given)")


def _raise_value(target: TypedCallTarget, index: int, value: object) -> NoReturn:
    parameter = target.signature.parameters[index]
    where = f"{target._name}() argument {index + 1}"
    kind = type(value).__name__
    if parameter.is_buffer:
        raise ArgumentBufferError(f"{where} must be {_buffer_wish(target, index)}, not {_buffer_offer(value)}")
    if parameter.type.kind == CSTR:
        raise TypeError(f"{where} must be str or bytes, not {kind}")
    if parameter.type.kind == POINTER:
        raise TypeError(f"{where} must be int, None, a ctypes object, a call target or a buffer, not {kind}")
    low, high = _range(parameter.type.kind == "signed", parameter.type.size)
    raise OverflowError(f"{where} must be between {low} and {high} ({parameter.type}), not {value!r}")


def _range(signed: bool, size: int) -> tuple[int, int]:
    bits = 8 * size
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def _buffer_wish(target: TypedCallTarget, index: int) -> str:
    return f"a C-contiguous buffer of {target.signature.parameters[index].type}"


def _buffer_offer(value: object) -> str:
    try:
        with memoryview(value) as view:  # type: ignore[arg-type]
            shape = [] if view.c_contiguous else ["non-contiguous"]
            shape += ["read-only"] if view.readonly else []
            return f"a {' '.join([*shape, type(value).__name__])} of format {view.format!r}"
    except (TypeError, ValueError, BufferError):
        return type(value).__name__


def _find_pointer(value: object) -> int | None:
    """The address that a pointer-like object stands for; None where it is its buffer, or nothing."""
    if isinstance(value, TypedCallTarget):
        return value.address
    ctypes = sys.modules.get("ctypes")
    if ctypes is None:
        return None
    if isinstance(value, (ctypes._Pointer, ctypes._CFuncPtr, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p)):
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    if type(value).__name__ == "CArgObject":  # what ctypes.byref() returns; it has no public class
        return ctypes.cast(value, ctypes.c_void_p).value or 0
    return None
