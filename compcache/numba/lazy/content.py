"""Digests a function by content, without Numba: all that a compiler could see of it, or of its callees.

Both the process that compiles and the one that starts without Numba run this same code. It supports few kinds of values;
all others raise `NotLazy`, and the function is left to Numba and to the backend's own, wider identity. If it cannot tell
whether a value is read, it assumes so: a key that differs too often costs a start of Numba, never a wrong result.
"""

from __future__ import annotations

import os
import sys

from compcache.digest import blake2b
from compcache.numba.lazy.type_texts import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["Content", "NotLazy", "content_of", "find_by_name", "is_of_library", "note_real", "stand_for_prange"]

_SIZE = 16
_MOST_FUNCTIONS = 2000
_MOST_BYTES = 1 << 20  # of an array that is read as a constant
_DEEPEST = 20

_Function = type(lambda: 0)
_Code = type((lambda: 0).__code__)
_Module = type(sys)
_Builtin = type(len)
_MISSING = object()
_LIBRARIES = frozenset(("builtins", "llvmlite", "numba", "numpy"))
_STANDARD = os.path.dirname(os.__file__) + os.sep


class NotLazy(Exception):  # noqa: N818 - it is an answer, not a failure
    """Raised when a function cannot be used without Numba; the message says why."""


class Content:
    """The digest of all that a function reads, and that of each compiled function's own reads, the function itself first."""

    __slots__ = ("digest", "parts")

    def __init__(self, digest: str, parts: list[tuple[Any, bytes]]) -> None:
        self.digest = digest
        self.parts = parts


def content_of(function: Any, options: Any) -> Content:
    """The content of a function that is compiled with these options.

    Raises:
        NotLazy: it reads a value that is not supported here.
    """
    walk = _Walk()
    walk.value(options, "its options")
    walk.add(function)
    return walk.finish()


class _Walk:
    """A walk over a queue of functions, each with its own digest; they refer to each other by number."""

    def __init__(self) -> None:
        self._total = blake2b(digest_size=_SIZE, person=b"compcache-lazy1")
        self._state = blake2b(digest_size=_SIZE)
        self._numbers: dict[int, int] = {}
        self._functions: list[Any] = []
        self._references: list[int] = []
        self._modules: set[int] = set()
        self._depth = 0

    def token(self, *texts: object) -> None:
        """Feed texts and bytes, each with its length."""
        for text in texts:
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self._state.update(len(data).to_bytes(4, "little"))
            self._state.update(data)

    def add(self, function: Any) -> None:
        """Refer to a function, and walk it later if it is new."""
        number = self._numbers.get(id(function))
        if number is None:
            number = self._numbers[id(function)] = len(self._functions)
            if number >= _MOST_FUNCTIONS:
                raise NotLazy("it reaches too many functions")
            self._functions.append(function)
        self.token("function")
        self._references.append(number)

    def finish(self) -> Content:
        """Walk the functions that were found, and those that these lead to."""
        self._end_part()
        parts = []
        done = 0
        while done < len(self._functions):
            function = self._functions[done]
            done += 1
            self._function(function)
            parts.append((function, self._end_part()))
        return Content(self._total.hexdigest(), parts)

    def _end_part(self) -> bytes:
        digest = self._state.digest()
        self._total.update(digest)
        for number in self._references:
            self._total.update(number.to_bytes(4, "little"))
        self._total.update(b"end.")
        self._state = blake2b(digest_size=_SIZE)
        self._references.clear()
        self._modules.clear()
        return digest

    def _function(self, function: Any) -> None:
        code = function.__code__
        where = f"{function.__module__}.{function.__qualname__}"
        self.token("def", where)
        names: dict[str, None] = {}
        namespace = function.__globals__
        self._code(code, names, namespace.get("__file__"))
        builtins = namespace.get("__builtins__", {})
        builtins = builtins if isinstance(builtins, dict) else vars(builtins)
        for name in names:
            value = namespace.get(name, _MISSING)
            if value is _MISSING:
                value = builtins.get(name, _MISSING)
            if value is not _MISSING and not _is_declared_as(value, function):
                self.token("global", name)
                self._read(value, names, f"the global {name!r} of {where}")
        self.value(function.__defaults__, f"a default of {where}")
        if function.__kwdefaults__:
            raise NotLazy(f"{where} has keyword-only parameters")
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                raise NotLazy(f"{where} closes over {name!r}, which is not set") from None
            self.token("cell", name)
            self._read(value, names, f"the variable {name!r} that {where} closes over")

    def _code(self, code: Any, names: dict[str, None], home: Any) -> None:
        """Feed a code object with its lines, nested ones included; collect the names that it reads from any object.

        `home` is the file of its module; text that was compiled under another name (a notebook's cell) has one that other processes do not have.
        """
        self.token(
            "code", code.co_name, code.co_qualname, code.co_filename if code.co_filename == home else "", code.co_firstlineno,
            (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags | _OPTIMIZED),
            code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_code, code.co_linetable,
            code.co_exceptiontable, len(code.co_consts),
        )  # fmt: skip
        names.update(dict.fromkeys(code.co_names))
        for constant in code.co_consts:
            if type(constant) is _Code:
                self._code(constant, names, home)
            elif type(constant) is frozenset:
                self.token("frozenset", len(constant))
                for item in sorted(constant, key=lambda item: (type(item).__name__, repr(item))):
                    self.value(item, "a constant")
            else:
                self.value(constant, "a constant")

    # ------------------------------------------------------------------ values

    def _read(self, value: Any, names: Iterable[str], where: str) -> None:
        """Feed the value of a name; for a module, every attribute that the code names and the module has."""
        if type(value) is not _Module:
            self.value(value, where)
            return
        name = value.__name__
        self.token("module", name)
        if id(value) in self._modules or name == "numba" or name.startswith("numba."):
            return
        self._modules.add(id(value))
        if _is_library(name):
            self._library_module(value, names, where)
            return
        held = vars(value)
        for attribute in names:
            found = held.get(attribute, _MISSING)
            if found is not _MISSING:
                self.token("attribute", attribute)
                self._read(found, names, f"{where}, {attribute!r}")

    def _library_module(self, module: Any, names: Iterable[str], where: str) -> None:
        """Numbers, and what a program has put into the module. The rest follows from versions, and appears there as it is
        first used.
        """
        held = vars(module)
        for attribute in names:
            found = held.get(attribute, _MISSING)
            kind = type(found)
            if kind is _Module:
                if _is_library(found.__name__) and id(found) not in self._modules:
                    self._modules.add(id(found))
                    self._library_module(found, names, where)
            elif (
                kind in _NUMBERS
                or hasattr(kind, "_compcache_content")
                or (kind is _Function and not is_of_library(found))
            ):
                self.token("attribute", attribute)
                self.value(found, f"{where}, {attribute!r}")

    def value(self, value: Any, where: str) -> None:
        """Feed a value by content, or something of a library by its name."""
        kind = type(value)
        if value is None or kind in _PLAIN:
            self.token(kind.__name__, repr(value))
        elif kind in (float, complex):
            self.token(kind.__name__, _bits(value))
        elif kind is tuple or kind is list:
            self._items(value, kind.__name__, where)
        elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
            self._class(kind, where)
            self._items(value, "named tuple", where)
        elif kind is _Function:
            if not is_of_library(value):
                self.add(value)
            else:
                self.token("library function", value.__module__, value.__qualname__)
        elif hasattr(kind, "_compcache_content"):
            kind._compcache_content(value, self)
        elif id(value) in _stand_ins:
            _stand_ins[id(value)][1]._compcache_content(self)
        elif isinstance(value, type):
            self._class(value, where)
        else:
            self._object(value, where)

    def _items(self, value: Any, name: str, where: str) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotLazy(f"{where} is nested too deeply")
        self.token(name, len(value))
        for item in value:
            self.value(item, where)
        self._depth -= 1

    def _class(self, value: Any, where: str) -> None:
        module, name = value.__module__, value.__qualname__
        if value in _PRANGE or (name == "prange" and module == "numba.misc.special"):
            self.token("prange")
            return
        self.token("class", module, name)
        if not find_by_name(value) or module == "__main__":
            raise NotLazy(f"{where} is a class that cannot be found under its name")
        if _is_library(module):
            return
        if issubclass(value, tuple) and hasattr(value, "_fields"):
            self.value(tuple(value._fields), where)
            self.value(tuple(getattr(value, "_field_defaults", {}).values()), where)
        elif not issubclass(value, BaseException):
            raise NotLazy(f"{where} is the class {module}.{name}")

    def _object(self, value: Any, where: str) -> None:
        kind = type(value)
        module = kind.__module__
        if module == "numpy" or module.startswith("numpy."):
            self._of_numpy(value, kind, where)
        elif module.startswith("numba.core.types."):
            text = text_of(value)
            if text is None:
                raise NotLazy(f"{where} is the type {value}")
            self.token("numba type", text)
        elif kind is _Builtin or _is_library(getattr(value, "__module__", None)):
            if not find_by_name(value):
                raise NotLazy(f"{where} is a {kind.__name__} that cannot be found under its name")
            owner = getattr(value, "__self__", None)
            self.token("named", value.__module__ or getattr(owner, "__name__", ""), value.__qualname__)
        else:
            raise NotLazy(f"{where} is of type {module}.{kind.__qualname__}")

    def _of_numpy(self, value: Any, kind: Any, where: str) -> None:
        numpy: Any = sys.modules["numpy"]
        if kind is numpy.ndarray:
            if value.dtype.hasobject or value.dtype.names or value.nbytes > _MOST_BYTES:
                raise NotLazy(f"{where} is an array of {value.dtype}, or a large one")
            flags = value.flags
            self.token("array", value.dtype.str, value.shape, flags.c_contiguous, flags.f_contiguous, flags.aligned,
                       flags.writeable, value.tobytes())  # fmt: skip
        elif isinstance(value, numpy.generic) and not value.dtype.hasobject and not value.dtype.names:
            self.token("scalar", value.dtype.str, value.tobytes())
        elif isinstance(value, numpy.dtype) and not value.hasobject and not value.names:
            self.token("dtype", value.str)
        elif kind is numpy.ufunc and vars(numpy).get(value.__name__) is value:
            self.token("ufunc", value.__name__, *value.types)
        elif find_by_name(value):
            self.token("named", value.__module__, getattr(value, "__qualname__", None) or value.__name__)
        else:
            raise NotLazy(f"{where} is of type {kind.__module__}.{kind.__qualname__}")


def _is_declared_as(value: Any, function: Any) -> bool:
    """Whether a function that was compiled when it was declared reads itself: the name was not set then."""
    is_declaration = getattr(type(value), "_compcache_is_declaration", None)
    return is_declaration is not None and bool(is_declaration(value, function))


#: A flag that all functions have, until Numba calls them under a profiler: then it takes it from the code object.
_OPTIMIZED = 1
_NUMBERS = frozenset((bool, int, float, complex))
_PLAIN = frozenset((bool, int, str, bytes, type(Ellipsis)))
#: Classes that are treated as `numba.prange`.
_PRANGE: set[Any] = set()


#: What Numba has made in the place of lazy objects, and these, by the id of the former.
_stand_ins: dict[int, tuple[Any, Any]] = {}


def note_real(real: Any, lazy: Any) -> None:
    """Let an object that Numba has made have the content of the lazy one that it replaces in globals."""
    if hasattr(type(lazy), "_compcache_content"):
        _stand_ins[id(real)] = real, lazy


def stand_for_prange(cls: Any) -> None:
    """Treat a class as `numba.prange`."""
    _PRANGE.add(cls)


def _bits(value: Any) -> bytes:
    """All bits: text would lose the sign of a NaN."""
    from marshal import dumps

    return dumps(value, 2)


def find_by_name(value: Any) -> bool:
    """Whether an object's module holds it under its own name."""
    owner = getattr(value, "__self__", None)
    module = getattr(value, "__module__", None) or (owner.__name__ if type(owner) is _Module else None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _is_library(module: object) -> bool:
    """Whether a module's content is covered by the versions of Python, NumPy and Numba."""
    if not isinstance(module, str) or module.startswith("numba.tests"):
        return False
    top = module.partition(".")[0]
    if top in _LIBRARIES:
        return True
    if top not in sys.stdlib_module_names or top == "__main__":
        return False
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    return origin in (None, "built-in", "frozen") or (origin.startswith(_STANDARD) and "site-packages" not in origin)


def is_of_library(function: Any) -> bool:
    """Whether a function's code belongs to a library, whatever attributes `functools.wraps` has set."""
    module = function.__globals__.get("__name__")
    if not _is_library(module) or "<locals>" in function.__code__.co_qualname:
        return False
    home = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or ""
    path = function.__code__.co_filename
    if os.path.basename(home) == "__init__.py":
        return bool(path.startswith(os.path.dirname(home) + os.sep))
    return bool(path == home or path.startswith("<frozen"))
