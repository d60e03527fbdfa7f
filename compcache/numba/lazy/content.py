"""Digests a function by content, without Numba: all that a compiler could see of it, or of its callees.

Both the process that compiles and the one that starts without Numba run this same code. It supports few kinds of values;
all others raise `NotLazy`, and the function is left to Numba and to the backend's own, wider identity. If it cannot tell
whether a value is read, it assumes so: a key that differs too often costs a start of Numba, never a wrong result.
"""

from __future__ import annotations

import os
import sys

from compcache.digest import blake2b
from compcache.numba.registered.library import find_by_name, is_library_function, is_library_module
from compcache.numba.registered.refusals import NotLazy, looks_at_programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from compcache.numba.registered.table import Registered

__all__ = ["Content", "content_of", "jitted", "note_real", "stand_for_prange"]

_SIZE = 16
_MOST_FUNCTIONS = 2000
_DEEPEST = 20
_MOST_ITEMS = 20_000  # tuples, lists and dictionaries

_Function = type(lambda: 0)
_Code = type((lambda: 0).__code__)
_Module = type(sys)
_Builtin = type(len)
_MISSING = object()


class Content:
    """The digest of all that a function reads, and that of each compiled function's own reads, the function itself first.

    `lines` is the digest of the lines where they are written; `at_compile_time` has those of the program's functions that only run while
    it is compiled; `registered` all functions that the compiler only knows because they were registered.
    """

    __slots__ = ("at_compile_time", "digest", "lines", "parts", "registered")

    def __init__(
        self, digest: str, lines: str, parts: list[tuple[Any, bytes]], at_compile_time: list[tuple[Any, bytes]], registered: list[Any]
    ) -> None:
        self.digest = digest
        self.lines = lines
        self.parts = parts
        self.at_compile_time = at_compile_time
        self.registered = registered


@looks_at_programs(NotLazy)
def content_of(function: Any, options: Any, given: Iterable[Any] = ()) -> Content:
    """The content of a function that is compiled with these options, and of jitted functions that it is `given` as arguments.

    Raises:
        NotLazy: it reads a value that is not supported here, or one whose own code raised something when it was looked at.
    """
    walk = _Walk(shows_files=any(name == "debug" and value for name, value in options) or "NUMBA_DEBUGINFO" in os.environ)
    walk.value(options, "its options")
    walk.add(function)
    for other in given:
        walk.value(other, "a function that is an argument")
    return walk.finish()


class _Walk:
    """A walk over a queue of functions, each with its own digest; they refer to each other by number."""

    def __init__(self, *, shows_files: bool = False) -> None:
        self._total = blake2b(digest_size=_SIZE, person=b"compcache-lazy1")
        self._state = blake2b(digest_size=_SIZE)
        self._lines = blake2b(digest_size=_SIZE)
        self._files = blake2b(digest_size=_SIZE)
        self._shows_files = shows_files
        self._numbers: dict[tuple[int, bool], int] = {}
        self._functions: list[tuple[Any, bool]] = []
        self._registered: list[Any] = []
        self._is_compile_time = False
        self._has_module = False
        self._references: list[int] = []
        self._modules: set[int] = set()
        self._depth = 0
        self._count = 0

    def token(self, *texts: object) -> None:
        """Feed texts and bytes, each with its length."""
        for text in texts:
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self._state.update(len(data).to_bytes(4, "little"))
            self._state.update(data)

    def add(self, function: Any) -> None:
        """Refer to a function that is compiled, and walk it later if it is new."""
        self._refer(function, is_compile_time=False)

    def _plain_function(self, function: Any) -> None:
        """Refer to what is registered for a function of the program that is not jitted."""
        from compcache.numba.registered.table import registered_for

        known = registered_for(function)
        if known is not None:
            self._add_registered(function, known)
        if known is None or not known.overloads or self._is_compile_time:
            self._refer(function, is_compile_time=self._is_compile_time)

    def add_implementation(self, kind: str, function: Any, options: dict[str, Any]) -> None:
        """Refer to a function that the compiler calls, and to all that it can read then."""
        self.registered([function])
        self.token(kind)
        was, self._is_compile_time = self._is_compile_time, True
        self.value(tuple(sorted(options.items())), "an option")
        self._refer(function, is_compile_time=True)
        self._is_compile_time = was

    def registered(self, functions: list[Any]) -> None:
        """Note functions that are known to the compiler because they were registered, and are in this content."""
        self._registered += functions

    def _add_registered(self, function: Any, known: Registered) -> None:
        self.token("registered", function.__module__, function.__qualname__, len(known.overloads), len(known.options_of_jitable))
        for implementation, options in known.overloads:
            if type(implementation) is not _Function:
                raise NotLazy(f"an overload of {function.__qualname__} is not a plain function")
            self.add_implementation("overload", implementation, options)
        for options in known.options_of_jitable:
            self.registered([function])
            self.value(tuple(sorted(options.items())), "an option")

    def _refer(self, function: Any, *, is_compile_time: bool) -> None:
        key = id(function), is_compile_time
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._functions)
            if number >= _MOST_FUNCTIONS:
                raise NotLazy("it reaches too many functions")
            self._functions.append((function, is_compile_time))
        self.token("function")
        self._references.append(number)

    def finish(self) -> Content:
        """Walk the functions that were found, and those that these lead to."""
        self._end_part()
        parts: tuple[list[Any], list[Any]] = [], []
        done = 0
        while done < len(self._functions):
            function, self._is_compile_time = self._functions[done]
            done += 1
            self._function(function)
            parts[self._is_compile_time].append((function, self._end_part()))
        if self._shows_files:
            self._total.update(self._files.digest())
        return Content(self._total.hexdigest(), self._lines.hexdigest(), *parts, self._registered)

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
        if self._is_compile_time:
            self._compile_time(function, where)
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
                self._ascertain_name(value, name, where)
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
            self._ascertain_name(value, name, where)
            self._read(value, names, f"the variable {name!r} that {where} closes over")
        if self._is_compile_time and self._has_module:
            from compcache.numba.registered.compile_time import reads_attributes_by_name

            if reads_attributes_by_name(function):
                raise NotLazy(f"{where} runs at compile time, and reads attributes by name")

    def _ascertain_name(self, value: Any, name: str, where: str) -> None:
        if self._is_compile_time:
            from compcache.numba.registered.compile_time import is_hidden

            if is_hidden(value, name):
                raise NotLazy(f"{where} runs at compile time, and uses {value.__name__}")

    def _library(self, value: object, where: str) -> None:
        """Refuse what code that runs at compile time may not use of the libraries."""
        if self._is_compile_time:
            from compcache.numba.registered.purity import is_held, outside

            found = "it" if is_held(value) else outside(value)
            if found:
                raise NotLazy(f"{where} is read at compile time, and leads to {found}")

    def _compile_time(self, function: Any, where: str) -> None:
        """Refuse what reads from outside of all code; code that makes names of text may read each plain global of its module."""
        from compcache.numba.registered.compile_time import makes_names_of_text, reads_from_outside

        self.token("at compile time")
        self._has_module = False
        outside = reads_from_outside(function)
        if outside:
            raise NotLazy(f"{where} runs at compile time, and reads {outside}")
        if makes_names_of_text(function):
            from compcache.numba.registered.package_files import digest_of_package

            package = str(function.__globals__.get("__name__", "")).partition(".")[0]
            files = digest_of_package(package)
            if files is None:
                raise NotLazy(f"{where} runs at compile time, and makes names of text")
            plain = {name: value for name, value in function.__globals__.items() if type(value) in _PLAIN or type(value) in _NUMBERS}
            self.token("files", package, files)
            self.value(tuple(sorted((name, value) for name, value in plain.items() if name[:2] != "__")), where)

    def _code(self, code: Any, names: dict[str, None], home: Any) -> None:
        """Feed a code object, nested ones included; collect the names that it reads from any object. Its lines and its file have digests of
        their own, for only some code shows them.

        `home` is the file of its module; text that was compiled under another name (a notebook's cell) has one that other processes do
        not have.
        """
        self.token(
            "code", code.co_name, code.co_qualname,
            (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags | _OPTIMIZED),
            code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_code, code.co_exceptiontable,
            len(code.co_consts),
        )  # fmt: skip
        self._lines.update(b"%d:" % code.co_firstlineno + code.co_linetable)
        self._files.update((code.co_filename if code.co_filename == home else "").encode("utf-8", "surrogatepass") + b":")
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
        if is_library_module(name):
            self._library_module(value, names, where)
            return
        self._has_module = True
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
                if is_library_module(found.__name__) and id(found) not in self._modules:
                    self._modules.add(id(found))
                    self._library_module(found, names, where)
            elif kind in _NUMBERS or hasattr(kind, "_compcache_content") or (kind is _Function and not is_library_function(found)):
                self.token("attribute", attribute)
                self.value(found, f"{where}, {attribute!r}")

    def value(self, value: Any, where: str) -> None:
        """Feed a value by content, or something of a library by its name."""
        kind = type(value)
        if value is None or kind in _PLAIN:
            self.token(kind.__name__, repr(value))
        elif kind in (float, complex):
            self.token(kind.__name__, _bits(value))
        elif kind is tuple or kind is list or (kind is dict and self._is_compile_time):
            self._items(value, kind.__name__, where)
        elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
            self._class(kind, where)
            self._items(value, "named tuple", where)
        elif kind is _Function:
            if not is_library_function(value):
                self._plain_function(value)
            else:
                self._library(value, where)
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
        self._count += 1
        if self._depth > _DEEPEST or self._count > _MOST_ITEMS:
            raise NotLazy(f"{where} is nested too deeply or holds too many values")
        self.token(name, len(value))
        for item in value if name != "dict" else (*value, *value.values()):
            self._ascertain_name(item, "", where)
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
        if is_library_module(module):
            self._library(value, where)
            return
        if issubclass(value, tuple) and hasattr(value, "_fields"):
            self.value(tuple(value._fields), where)
            self.value(tuple(getattr(value, "_field_defaults", {}).values()), where)
        elif not issubclass(value, BaseException):
            raise NotLazy(f"{where} is the class {module}.{name}")

    def _object(self, value: Any, where: str) -> None:
        kind = type(value)
        module = kind.__module__
        if _tells_address(kind) and not self._is_compile_time:
            self._of_cython(value, where)
            return
        if module == "numpy" or module.startswith("numpy."):
            self._of_numpy(value, kind, where)
        elif module == "numba.core.withcontexts":
            name = next((name for name in _CONTEXTS if getattr(sys.modules["numba"], name, None) is value), None)
            if name is None:
                raise NotLazy(f"{where} is of type {module}.{kind.__qualname__}")
            self.token("context", "numba", name)
            self._shows_files = True  # what runs as Python has its file in tracebacks
        elif module.startswith("numba.core.types."):
            from compcache.numba.lazy.type_texts import text_of

            text = text_of(value)
            if text is None:
                raise NotLazy(f"{where} is the type {value}")
            self.token("numba type", text)
        elif kind is _Builtin or is_library_module(getattr(value, "__module__", None)):
            if not find_by_name(value):
                raise NotLazy(f"{where} is a {kind.__name__} that cannot be found under its name")
            owner = getattr(value, "__self__", None)
            home = value.__module__ or getattr(owner, "__name__", "")
            self._library(value, where)
            self.token("named", home, value.__qualname__)
        else:
            raise NotLazy(f"{where} is of type {module}.{kind.__qualname__}")

    def _of_cython(self, value: Any, where: str) -> None:
        """Feed a function whose address an object tells (`WrapperAddressProtocol`, ctypes), by its name."""
        from compcache.numba.lazy.type_texts import signature_text
        from compcache.numba.registered.cython_functions import of_ctypes, told_by

        described: tuple[object, ...] | None
        if hasattr(type(value), "__wrapper_address__"):
            described, given = told_by(value)
            signature = signature_text(given)
        else:
            described, signature = of_ctypes(value), ""
        if described is None or signature is None:
            raise NotLazy(f"{where} is an address of this process")
        self.token("function of Cython", *described, signature)

    def _of_numpy(self, value: Any, kind: Any, where: str) -> None:
        numpy: Any = sys.modules["numpy"]
        if kind is numpy.ndarray:
            from compcache.numba.registered.program_arrays import is_copied, name_of

            if value.dtype.hasobject or value.dtype.names:
                raise NotLazy(f"{where} is an array of {value.dtype}")
            flags = value.flags
            self.token("array", value.dtype.str, value.shape, flags.c_contiguous, flags.f_contiguous, flags.aligned,
                       flags.writeable, value.tobytes() if is_copied(value) else name_of(value))  # fmt: skip
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


def _tells_address(kind: Any) -> bool:
    """Whether objects of a class give compiled code the address of a function."""
    return any((base.__module__, base.__name__) in _WITH_ADDRESSES for base in kind.__mro__[1:])


_WITH_ADDRESSES = frozenset((
    ("_ctypes", "CFuncPtr"), ("compcache.numba.declarations.registrations", "WrapperAddressProtocol"),
    ("numba.core.types.function_type", "WrapperAddressProtocol"),
))  # fmt: skip


#: Numba's contexts: parts of functions in them run otherwise, with the globals of that moment.
_CONTEXTS = ("objmode", "parallel_chunksize")
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


def jitted(value: Any) -> Any:
    """The jitted function that a value is, or that it was made for by Numba; None for other values."""
    lazy = value if hasattr(type(value), "_compcache_is_declaration") else _stand_ins.get(id(value), (None, None))[1]
    return lazy if hasattr(type(lazy), "_compcache_is_declaration") else None


def stand_for_prange(cls: Any) -> None:
    """Treat a class as `numba.prange`."""
    _PRANGE.add(cls)


def _bits(value: Any) -> bytes:
    """All bits: text would lose the sign of a NaN."""
    from marshal import dumps

    return dumps(value, 2)
