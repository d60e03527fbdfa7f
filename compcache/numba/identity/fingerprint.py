"""The identity of Python functions by content: what is walked.

A fingerprint digests everything that the compiler can see of a function: its code and nested code, constants,
defaults, closure cells, and every global and attribute chain that it reads, by value and transitively, through jitted
functions and plain ones. It needs no source file and no file time. Line numbers go into a second digest, because they
matter only to code that reports them.

What has no content to digest raises `Unidentifiable`, with the way to the culprit.
"""

from __future__ import annotations

import types as python_types
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.numba.identity.code_digest import digest_and_reads, plain_name
from compcache.numba.identity.errors import Unidentifiable
from compcache.numba.identity.implementations import find_overloads
from compcache.numba.identity.library_code import is_library_module
from compcache.numba.identity.values import handler_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Fingerprint", "Walk", "fingerprint"]

_SIZE = 16
_MAX_DEPTH = 200


_MISSING = object()


class Fingerprint(NamedTuple):
    """`content` digests what the compiler sees, `lines` where it stands; `reads` names what was read, for people."""

    content: str
    lines: str
    reads: dict[str, str]


def fingerprint(*roots: object, soft: bool = False) -> Fingerprint:
    """The fingerprint of functions (or dispatchers, or other values that a function could read).

    With `soft`, what has no identity counts by its type alone: for functions that the compiler calls.

    Raises:
        Unidentifiable: something that they read has no identity by content.
    """
    walk = Walk()
    for number, root in enumerate(roots):
        if isinstance(root, python_types.FunctionType):
            # A function that is compiled counts by content even where its module is a library.
            walk.add_function(root, "", soft=soft)
        else:
            walk.value(root, f"argument {number}")
    walk.finish()
    return Fingerprint(walk.content.hexdigest(), walk.lines.hexdigest(), walk.reads)


class _Pending(NamedTuple):
    function: Any
    where: str
    soft: bool


class Walk:
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
        digest, reads = digest_and_reads(code)
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
        handler_of(value)(self, value, where)

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
        for overload in find_overloads(value):
            self.token("overload")
            self.add_function(overload, f"an overload of {where}")


def _all_attributes(code: python_types.CodeType) -> tuple[str, ...]:
    names = dict.fromkeys(digest_and_reads(code)[1].attributes)
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            names.update(dict.fromkeys(_all_attributes(constant)))
    return tuple(names)
