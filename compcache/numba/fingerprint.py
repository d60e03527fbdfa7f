"""The identity of Python functions by content.

A fingerprint digests everything that the compiler can see of a function: its code and nested code, constants,
defaults, closure cells, and every global and attribute chain that it reads, by value and transitively, through jitted
functions and plain ones. It needs no source file and no file time. Line numbers go into a second digest, because they
matter only to code that reports them.

What has no content to digest raises `Unidentifiable`, with the way to the culprit. Code of Numba, NumPy and
the standard library counts by name: their versions are part of every key.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import types as python_types
import weakref
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.reads import Reads, reads_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "Fingerprint",
    "Unidentifiable",
    "fingerprint",
    "is_library_module",
    "plain_name",
    "register_overload_source",
]

_SIZE = 16
_LIBRARIES = frozenset(("numba", "numpy", "llvmlite", "builtins"))
_OWN_TESTS = "numba.tests"
_ARRAY_EXPRESSION = re.compile("(__numba_array_expr)_*0x[0-9a-f]+")
_MAX_DEPTH = 200
_MISSING = object()


class Unidentifiable(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when something that a function reads has no identity by content; the message says what and where."""


class Fingerprint(NamedTuple):
    """`content` digests what the compiler sees, `lines` where it stands; `reads` names what was read, for people."""

    content: str
    lines: str
    reads: dict[str, str]


def is_library_module(name: object) -> bool:
    """Whether a module's content is covered by the versions in every key."""
    if not isinstance(name, str) or name.startswith(_OWN_TESTS):
        return False
    top = name.partition(".")[0]
    if top in _LIBRARIES:
        return True
    return top in sys.stdlib_module_names and top != "__main__" and _is_pythons_own(top)


@functools.cache
def _is_pythons_own(top: str) -> bool:
    """Whether a module with a name of the standard library is that one, and not a file of the user's."""
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    if not isinstance(origin, str):
        return top in sys.builtin_module_names
    return origin in ("built-in", "frozen") or (
        origin.startswith(os.path.dirname(os.__file__) + os.sep) and "site-packages" not in origin
    )


#: The digest and the reads of code objects that are alive. Code objects compare by content, hence the ids.
_codes: dict[int, tuple[Any, bytes, Reads]] = {}


def _no_overloads(_: object) -> Iterable[Any]:
    return ()


_overloads_of: Callable[[object], Iterable[Any]] = _no_overloads


def register_overload_source(source: Callable[[object], Iterable[Any]]) -> None:
    """Tell where the user's overloads of a callable are found."""
    global _overloads_of  # noqa: PLW0603 - Numba's registry is one per process
    _overloads_of = source


def fingerprint(*roots: object, soft: bool = False) -> Fingerprint:
    """The fingerprint of functions (or dispatchers, or other values that a function could read).

    With `soft`, what has no identity counts by its type alone: for functions that the compiler calls.

    Raises:
        Unidentifiable: something that they read has no identity by content.
    """
    walk = _Walk()
    for number, root in enumerate(roots):
        if isinstance(root, python_types.FunctionType):
            # A function that is compiled counts by content even where its module is a library.
            walk.add_function(root, "", soft=soft)
        else:
            walk.value(root, f"argument {number}")
    walk.finish()
    return Fingerprint(walk.content.hexdigest(), walk.lines.hexdigest(), walk.reads)


def _code_entry(code: python_types.CodeType) -> tuple[bytes, Reads]:
    known = _codes.get(id(code))
    if known is not None and known[0]() is code:
        return known[1], known[2]
    state = blake2b(digest_size=_SIZE)
    _feed_code(state, code)
    reads = reads_of(code)
    key = id(code)

    def forget(dead: Any) -> None:
        entry = _codes.get(key)
        if entry is not None and entry[0] is dead:
            del _codes[key]

    _codes[key] = weakref.ref(code, forget), state.digest(), reads
    return state.digest(), reads


def _feed_code(state: Any, code: python_types.CodeType) -> None:
    name = plain_name(code.co_name)
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    head = repr((numbers, names)).encode("utf-8", "surrogatepass")
    parts = (head, code.co_code, getattr(code, "co_exceptiontable", b""))
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    for constant in code.co_consts:
        _feed_constant(state, constant)
    state.update(b"end")


def _feed_constant(state: Any, constant: Any) -> None:
    """Constants are of few types; equal ones of different type (1, 1.0, True, -0.0) must differ."""
    if isinstance(constant, python_types.CodeType):
        state.update(b"code")
        state.update(_code_entry(constant)[0])
    elif isinstance(constant, (tuple, frozenset)):
        state.update(f"{type(constant).__name__}{len(constant)}".encode())
        items: Iterable[Any] = constant
        if isinstance(constant, frozenset):
            items = sorted(constant, key=lambda item: (type(item).__name__, repr(item)))
        for item in items:
            _feed_constant(state, item)
    else:
        text = f"{type(constant).__name__}:{constant!r}".encode("utf-8", "surrogatepass")
        state.update(len(text).to_bytes(8, "little"))
        state.update(text)


def plain_name(name: str) -> str:
    """The name of a function without the address that Numba puts into those that it makes of array expressions."""
    return _ARRAY_EXPRESSION.sub(r"\1", name) if "0x" in name else name


class _Pending(NamedTuple):
    function: Any
    where: str
    soft: bool


class _Walk:
    """One walk over everything that some functions can see."""

    def __init__(self) -> None:
        self.content = blake2b(digest_size=_SIZE, person=b"compcache-numba1")
        self.lines = blake2b(digest_size=_SIZE)
        self.reads: dict[str, str] = {}
        self._numbers: dict[tuple[int, bool], int] = {}
        self._alive: list[object] = []  # so that no id is used twice
        self._waiting: list[_Pending] = []
        self._soft = False
        self._depth = 0

    # ------------------------------------------------------------------ tokens

    def token(self, kind: str, *texts: object) -> None:
        """Feed a token; every text with its length, so that no two sequences of tokens are the same bytes."""
        for text in (kind, *texts):
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self.content.update(len(data).to_bytes(8, "little"))
            self.content.update(data)

    def unknown(self, value: object, where: str) -> None:
        """Something without an identity: an error where the code is compiled, a mark where it is only named."""
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if not self._soft:
            raise Unidentifiable(f"{where} is of type {kind}, which has no identity by content")
        self.token("opaque", kind)

    def finish(self) -> None:
        """Work off the functions that were found. A queue: call graphs are deeper than Python's stack."""
        done = 0
        while done < len(self._waiting):
            pending = self._waiting[done]
            done += 1
            self._soft = pending.soft
            self._function(pending.function, pending.where)

    # --------------------------------------------------------------- functions

    def add_function(self, function: Any, where: str, *, soft: bool = False) -> None:
        """Refer to a function, and walk it later if it is new."""
        soft = soft or self._soft
        key = (id(function), soft)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self._alive.append(function)
            self._waiting.append(_Pending(function, where, soft))
        self.token("function", number)

    def _function(self, function: Any, where: str) -> None:
        code = function.__code__
        name = f"{function.__module__}.{function.__qualname__}"
        self.token("def", function.__module__, plain_name(function.__qualname__))
        self._code(code, function.__globals__, name)
        self.sequence(function.__defaults__ or (), f"a default of {name}")
        for key, value in sorted((function.__kwdefaults__ or {}).items()):
            self.token("kw", key)
            self.value(value, f"the default of {key!r} of {name}")
        self._cells(function, name)
        if where:
            self.reads.setdefault(where, name)

    def _cells(self, function: Any, name: str) -> None:
        attributes = _all_attributes(function.__code__)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            where = f"the variable {variable!r} that {name} closes over"
            try:
                value = cell.cell_contents
            except ValueError:
                self.token("empty cell", variable)
                continue
            self.token("cell", variable)
            if isinstance(value, python_types.ModuleType):
                self._module(value, attributes, where)
            else:
                self.value(value, where)

    def _code(self, code: python_types.CodeType, namespace: dict[str, Any], name: str) -> None:
        digest, reads = _code_entry(code)
        self.token("code", digest)
        self.lines.update(f"{code.co_filename}:{code.co_firstlineno}:".encode("utf-8", "surrogatepass"))
        self.lines.update(code.co_linetable)
        for chain in reads.chains:
            self._chain(chain, namespace, reads.attributes, name)
        for constant in code.co_consts:
            if isinstance(constant, python_types.CodeType):
                self._code(constant, namespace, name)

    def _chain(
        self, chain: tuple[str, ...], namespace: dict[str, Any], attributes: tuple[str, ...], name: str
    ) -> None:
        value = namespace.get(chain[0], _MISSING)
        if value is _MISSING:
            builtins = namespace.get("__builtins__", {})
            table = builtins if isinstance(builtins, dict) else vars(builtins)
            value = table.get(chain[0], _MISSING)
            if value is _MISSING:
                self.token("undefined", chain[0])
                return
        at = 1
        while at < len(chain) and isinstance(value, python_types.ModuleType):
            found = getattr(value, chain[at], _MISSING)
            if found is _MISSING:
                self.token("no attribute", value.__name__, chain[at])
                return
            value = found
            at += 1
        shown = ".".join(chain[:at])
        self.token("global", shown)
        where = f"the global {shown!r} of {name}"
        if isinstance(value, python_types.ModuleType):
            self._module(value, attributes, where)
        else:
            self.value(value, where)
            self._enum_like(value, chain[at:])

    def _enum_like(self, value: object, rest: tuple[str, ...]) -> None:
        """Class attributes that a chain names count by value where they are plain."""
        if rest and isinstance(value, type) and not is_library_module(value.__module__):
            self.token("attributes", *rest)

    def _module(self, module: python_types.ModuleType, attributes: Iterable[str], where: str) -> None:
        """A module that is handled as a value: what could be read from it is what the code reads from anything."""
        self.token("module", module.__name__)
        if is_library_module(module.__name__) or (id(module), self._soft) in self._numbers:
            return
        self._numbers[id(module), self._soft] = len(self._numbers)
        for name in attributes:
            found = getattr(module, name, _MISSING)
            if found is _MISSING:
                continue
            self.token("attribute", name)
            if isinstance(found, python_types.ModuleType):
                self._module(found, attributes, f"{where}, {name!r}")
            else:
                self.value(found, f"{where}, {name!r}")

    # ------------------------------------------------------------------ values

    def sequence(self, values: Iterable[Any], where: str) -> None:
        """Every value of a sequence, and its length."""
        values = list(values)
        self.token("sequence", len(values))
        for value in values:
            self.value(value, where)

    def value(self, value: Any, where: str) -> None:
        """Feed one value, by content."""
        if self._depth > _MAX_DEPTH:
            raise Unidentifiable(f"{where} is nested too deeply")
        self._depth += 1
        try:
            self._value(value, where)
        finally:
            self._depth -= 1

    def _value(self, value: Any, where: str) -> None:
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes, type(Ellipsis)):
            self.token(kind.__name__, repr(value))
            return
        handler = _HANDLERS.get(kind)
        if handler is None:
            handler = _handler_of(value)
        handler(self, value, where)

    def by_name(self, value: Any, where: str) -> None:
        """Something that counts by its module and name."""
        module = getattr(value, "__module__", None)
        owner = getattr(value, "__self__", None)
        if module is None and owner is not None:
            module = owner.__name__ if isinstance(owner, python_types.ModuleType) else type(owner).__module__
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        if not isinstance(name, str) or "<locals>" in name:
            self.unknown(value, where)
            return
        self.token("named", module, name)

    def overloads(self, value: Any, where: str) -> None:
        """The user's implementations of a callable for the compiler."""
        for overload in _overloads_of(value):
            self.token("overload")
            self.add_function(overload, f"an overload of {where}")


def _all_attributes(code: python_types.CodeType) -> tuple[str, ...]:
    names = dict.fromkeys(_code_entry(code)[1].attributes)
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            names.update(dict.fromkeys(_all_attributes(constant)))
    return tuple(names)


# ---------------------------------------------------------------------- handlers


def _plain_function(walk: _Walk, value: Any, where: str) -> None:
    """A plain function: its own code is compiled only through an overload, but what it says may still matter."""
    walk.overloads(value, where)
    if is_library_module(value.__module__) and "<locals>" not in value.__qualname__:
        walk.token("library function", value.__module__, value.__qualname__)
    else:
        walk.add_function(value, where, soft=True)


def _sequence(walk: _Walk, value: Any, where: str) -> None:
    kind = type(value)
    walk.token("items", kind.__name__)
    if kind not in (tuple, list):
        walk.value(kind, where)
    walk.sequence(value, f"an item of {where}")


def _set(walk: _Walk, value: Any, where: str) -> None:
    walk.token("set", type(value).__name__)
    walk.sequence(sorted(value, key=lambda item: (type(item).__name__, repr(item))), f"an item of {where}")


def _dict(walk: _Walk, value: Any, where: str) -> None:
    walk.token("dict", type(value).__name__, len(value))
    for key, item in value.items():
        walk.value(key, f"a key of {where}")
        walk.value(item, f"{where}[{key!r}]")


def _class(walk: _Walk, value: Any, where: str) -> None:
    import enum

    walk.token("class", value.__module__, value.__qualname__)
    walk.overloads(value, where)
    if is_library_module(value.__module__):
        return
    if hasattr(value, "class_type"):
        walk.unknown(value, where + " (a jitclass)")
    elif issubclass(value, enum.Enum):
        walk.sequence([(name, member.value) for name, member in value.__members__.items()], where)
    elif issubclass(value, tuple) and hasattr(value, "_fields"):
        walk.sequence(value._fields, where)


def _array(walk: _Walk, value: Any, where: str) -> None:
    if value.dtype.hasobject:
        walk.unknown(value, f"{where} (an array of objects)")
        return
    flags = value.flags
    walk.token("array", repr(value.dtype) if value.dtype.names else value.dtype.str, value.shape,
               flags.c_contiguous, flags.f_contiguous, flags.aligned, flags.writeable)  # fmt: skip
    walk.token("data", value.tobytes())


def _scalar(walk: _Walk, value: Any, where: str) -> None:
    if value.dtype.hasobject:
        walk.unknown(value, where)
    else:
        walk.token("scalar", repr(value.dtype) if value.dtype.names else value.dtype.str, value.tobytes())


def _jitted(walk: _Walk, value: Any, where: str) -> None:
    """A dispatcher: what it compiles, and how."""
    function = value.py_func
    walk.token("jitted", type(value).__name__)
    if is_library_module(function.__module__) and "<locals>" not in function.__qualname__:
        walk.token("library function", function.__module__, function.__qualname__)
        return
    options = dict(value.targetoptions)
    _options(walk, options, where)
    walk.token("locals", sorted((k, type_text(v)) for k, v in (value.locals or {}).items()))
    compiler = getattr(value, "_compiler", None)
    if compiler is not None:
        walk.token("pipeline", compiler.pipeline_class.__module__, compiler.pipeline_class.__qualname__)
    soft, walk._soft = walk._soft, False
    try:
        walk.add_function(value.py_func, where)
    finally:
        walk._soft = soft
    if not getattr(value, "_can_compile", True):
        walk.token("signatures", *[type_text(s) for s in getattr(value, "nopython_signatures", ())])


def _options(walk: _Walk, options: dict[str, Any], where: str) -> None:
    for key, option in sorted(options.items()):
        walk.token("option", key)
        value = getattr(option, "flags", option)  # fast-math flags in their wrapper
        walk.value(list(value) if isinstance(value, tuple) else value, f"option {key!r} of {where}")


def _intrinsic(walk: _Walk, value: Any, where: str) -> None:
    walk.token("intrinsic", value._name)
    if is_library_module(value._defn.__module__) and "<locals>" not in value._defn.__qualname__:
        walk.token("library", value._defn.__module__, value._defn.__qualname__)
    else:
        walk.add_function(value._defn, where)


def _ufunc(walk: _Walk, value: Any, where: str) -> None:
    inner = getattr(value, "_dispatcher", None)
    if inner is not None:
        walk.token("dufunc", value.identity)
        walk.value(inner, where)
        return
    walk.token("ufunc", getattr(value, "__name__", ""), *value.types)
    if is_library_module(getattr(value, "__module__", "numpy")):
        return
    walk.overloads(value, where)


def _gufunc(walk: _Walk, value: Any, where: str) -> None:
    builder = value.gufunc_builder
    walk.token("gufunc", value.signature, value.identity)
    walk.value(builder.nb_func, where)


def _cfunc(walk: _Walk, value: Any, where: str) -> None:
    walk.token("cfunc", type_text(value._sig))
    _options(walk, dict(value._compiler.targetoptions), where)
    walk.add_function(value._pyfunc, where)


def _numba_type(walk: _Walk, value: Any, where: str) -> None:
    dispatcher = getattr(value, "dispatcher", None)
    if dispatcher is not None:
        walk.token("type of")
        walk.value(dispatcher, where)
        return
    walk.token("type", f"{type(value).__module__}.{type(value).__qualname__}", type_text(value, where))


def _external(walk: _Walk, value: Any, where: str) -> None:
    walk.token("external", value.symbol, type_text(value.sig, where))


def _signature(walk: _Walk, value: Any, where: str) -> None:
    walk.token("signature", type_text(value, where))


def _dtype(walk: _Walk, value: Any, where: str) -> None:
    if value.hasobject:
        walk.unknown(value, where)
    else:
        walk.token("dtype", repr(value) if value.names else value.str, value.itemsize, value.isalignedstruct)


def _library_object(walk: _Walk, value: Any, where: str) -> None:
    walk.by_name(value, where)
    walk.overloads(value, where)


def _unknown(walk: _Walk, value: Any, where: str) -> None:
    walk.overloads(value, where)
    walk.unknown(value, where)


def _range(walk: _Walk, value: Any, _where: str) -> None:
    walk.token("repr", type(value).__name__, repr(value))


def _enum_member(walk: _Walk, value: Any, where: str) -> None:
    walk.value(type(value), where)
    walk.token("member", value.name)


_HANDLERS: dict[type, Callable[[_Walk, Any, str], None]] = {
    python_types.FunctionType: _plain_function,
    python_types.BuiltinFunctionType: _library_object,
    python_types.MethodDescriptorType: _library_object,
    python_types.WrapperDescriptorType: _library_object,
    python_types.GetSetDescriptorType: _library_object,
    tuple: _sequence,
    list: _sequence,
    set: _set,
    frozenset: _set,
    dict: _dict,
    range: _range,
    slice: _range,
}


def type_text(value: object, where: str = "a type") -> str:
    """The text of a Numba type or signature, refused where it holds an address or a number of this process."""
    text = str(value)
    if " at 0x" in text or "jitclass." in text or "object at " in text:
        raise Unidentifiable(f"{where} is of the type {text}, which is another one in each process")
    return text


def _handler_of(value: Any) -> Callable[[_Walk, Any, str], None]:
    """The handler of a value whose exact type is not in the table; remembered where the type alone decides."""
    for test, handler in _late_handlers():
        if isinstance(value, test):
            return handler
    if isinstance(value, type):
        return _class
    kind = type(value)
    if isinstance(value, (tuple, list)):
        return _sequence
    import enum

    if isinstance(value, enum.Enum):
        return _enum_member
    if is_library_module(kind.__module__) and _is_found_by_name(value):
        return _library_object
    return _unknown


def _is_found_by_name(value: Any) -> bool:
    """Whether a library holds this very object under the name that it bears."""
    module, name = (
        getattr(value, "__module__", None),
        getattr(value, "__qualname__", getattr(value, "__name__", None)),
    )
    if not is_library_module(module) or not isinstance(name, str):
        return False
    found: Any = sys.modules.get(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


_late: list[tuple[Any, Callable[[_Walk, Any, str], None]]] = []


def _late_handlers() -> list[tuple[Any, Callable[[_Walk, Any, str], None]]]:
    if not _late:
        import numpy as np
        from numba.core import types
        from numba.core.ccallback import CFunc
        from numba.core.dispatcher import Dispatcher
        from numba.core.extending import _Intrinsic
        from numba.core.typing.templates import Signature
        from numba.np.ufunc.gufunc import GUFunc
        from numba.np.ufunc.ufuncbuilder import UFuncDispatcher

        _late.extend(
            [
                ((Dispatcher, UFuncDispatcher), _jitted),
                (types.ExternalFunction, _external),
                (types.Type, _numba_type),
                (np.ndarray, _array),
                (np.generic, _scalar),
                (np.dtype, _dtype),
                (np.ufunc, _ufunc),
                (GUFunc, _gufunc),
                (CFunc, _cfunc),
                (_Intrinsic, _intrinsic),
                (Signature, _signature),
            ]
        )
    return _late
