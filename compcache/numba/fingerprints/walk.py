"""Computes fingerprints of Python functions by content.

A fingerprint digests everything that the compiler can read from a function: its code and nested code, constants, defaults, closure cells,
and every global and attribute chain that it reads. Values are digested by content and transitively, through jitted and plain functions.
Neither source files nor file times are read. A second digest contains line numbers, because they matter only to code that reports them.

A function has one of three modes. `COMPILED`: the compiler compiles it. `RUN`: it runs while code is generated (overloads, intrinsics and
their callees), so everything that it can reach counts (`reach`). `NAMED`: the compiler replaces it, or the program runs it later.

A value without content to digest raises `Unidentifiable`, with the path to the value.

The same walk works without Numba (`content`). Then the stand-ins for Numba objects feed themselves, this package's own table provides the
registrations, and nothing is imported. A value that only Numba knows raises `NotLazy`.
"""

from __future__ import annotations

import sys
import types as python_types
from importlib import import_module
from opcode import opmap

from compcache.digest import blake2b
from compcache.numba.fingerprints.code_digest import bits_of, digest_and_reads, file_of, plain_name
from compcache.numba.fingerprints.stand_ins import handler_without_numba, is_declared_as, is_generators_module, reads_object_mode
from compcache.numba.fingerprints.state import annotates, changed_settings, set_on_part
from compcache.numba.fingerprints.values import feed_class_and_attributes, handler_of, is_defined_by_text
from compcache.numba.registered.code_reads import MISSING, cells_of, is_part_of_hash, resolve, returned_functions
from compcache.numba.registered.library import (
    is_generator_module,
    is_library_module,
    is_made_by_library,
    module_name_of,
    package_of,
    qualified_name_of,
)
from compcache.numba.registered.marks import is_module
from compcache.numba.registered.refusals import NotLazy, TooLarge, Unidentifiable, Unrepeatable, examines_program
from compcache.numba.registered.reviewed import EVERYTHING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from compcache.numba.fingerprints.fixed_code import Compiled
    from compcache.numba.fingerprints.implementations import Implementation
    from compcache.numba.fingerprints.reach import Reach
    from compcache.numba.registered.code_reads import Reads

    _Chain = tuple[tuple[str, ...], Any, int]

__all__ = [
    "COMPILED",
    "NAMED",
    "RUN",
    "SIZE_OF_LINES",
    "Fingerprint",
    "Limits",
    "Part",
    "Walk",
    "fingerprint",
    "fingerprint_of_implementations",
    "fingerprint_of_value",
]

COMPILED, RUN, NAMED = "compiled", "run", "named"
WITH_NUMBA, WITHOUT_NUMBA = "with Numba", "without Numba"
_SIZE = 16
SIZE_OF_LINES = 2 * _SIZE
_MAX_DEPTH = 200
_MAX_VALUES = 50_000


class Part:
    """A function of a walk, and the digest of its own reads. The kind of the digest: with Numba, without Numba, or of code that runs."""

    __slots__ = ("digest", "function", "kind")

    def __init__(self, function: Any, digest: bytes, kind: str = WITH_NUMBA) -> None:
        self.function = function
        self.digest = digest
        self.kind = kind


class Fingerprint:
    """The result of a walk.

    Attributes:
        content: the digest of everything that the compiler can read.
        lines: the digest of source lines, followed after `SIZE_OF_LINES` characters by the digest of the paths of files.
        reads: the values that compiled functions read, and their code, for display: plain values, or digests.
        parts: the compiled functions, the fingerprinted function first.
    """

    __slots__ = ("content", "lines", "parts", "reads")

    def __init__(self, content: str, lines: str, reads: dict[str, str], parts: tuple[Part, ...]) -> None:
        self.content = content
        self.lines = lines
        self.reads = reads
        self.parts = parts


@examines_program(Unidentifiable)
def fingerprint(function: Any) -> Fingerprint:
    """Return the fingerprint of a function that Numba compiles.

    Raises:
        Unidentifiable: the function reads a value that has no identity by content.
        Unrepeatable: code that runs while the function is compiled, for example an intrinsic, reads such a value.
    """
    walk = Walk()
    try:
        walk.refer_to_function(function, "")
        return _finish(walk)
    except Unidentifiable as error:
        raise (Unrepeatable(*error.args) if walk.mode == RUN else error) from error.__cause__


@examines_program(Unidentifiable)
def _finish(walk: Walk) -> Fingerprint:
    return walk.finish()


@examines_program(Unidentifiable)
def fingerprint_of_value(value: object, where: str) -> str:
    """Return the digest of a value that compiled code could read.

    Args:
        value: the value.
        where: the description of the value, for error messages.

    Raises:
        Unidentifiable: the value has no identity by content.
    """
    walk = Walk()
    walk.feed_value(value, where)
    return walk.finish().content


@examines_program(Unidentifiable)
def fingerprint_of_implementations(
    implementations: Iterable[Implementation], *, overlooks_members: bool = False, reads_all: bool = False, limits: Limits | None = None
) -> str:
    """Return the digest of functions that run while code is generated.

    Args:
        implementations: the functions, with their options.
        overlooks_members: whether a value without an identity counts only by its type, if it is a member of an object that the functions
            can access, and no function that they name refers to it.
        reads_all: whether attributes that none of the functions names count too.
        limits: the limits of the walk; None for the usual limits.

    Raises:
        Unidentifiable: a value has no identity by content.
        TooLarge: the walk reaches more values than the limits allow.
    """
    walk = Walk()
    walk.mode = RUN
    if limits is not None:
        walk.max_values, walk.max_unnamed = limits.values, limits.unnamed
    walk.overlooks_members = overlooks_members
    if reads_all:
        walk.reach().record_names((), everything=True)
    for implementation in implementations:
        walk.refer_to_implementation(implementation, "")
    return walk.finish().content


class Limits:
    """The limits of a walk.

    Attributes:
        values: the maximum number of values.
        unnamed: the maximum number of values that no code names.
    """

    __slots__ = ("unnamed", "values")

    def __init__(self, values: int, unnamed: int) -> None:
        self.values = values
        self.unnamed = unnamed


class Walk:
    """A walk over all values that some functions can read.

    Each function has its own digest, which does not depend on where the walk began. The total is computed from these digests and from the
    numbers of the functions to which each function refers.

    Args:
        without_numba: whether to compute the digest that processes without Numba compute. Then `implementations` contains the functions
            that are registered with the compiler for the functions reached, and `registered` lists all functions that the compiler knows
            only because they were registered.
    """

    def __init__(self, *, without_numba: bool = False) -> None:
        self.without_numba = without_numba
        self.implementations: dict[int, Implementation] = {}
        self.registered: list[Any] = []
        self.has_object_mode = False  # whether a function has blocks in object mode
        self.mode = COMPILED
        self.has_lenient_function = False  # whether the current function has blocks in object mode
        self.defines_by_text = False  # whether the files of its package identify the current function, because it executes text
        self.overlooks_members = False
        self.max_values = self.max_unnamed = _MAX_VALUES
        self._overlooks = self._has_fed_settings = False
        self._lines = blake2b(digest_size=_SIZE)
        self._files = blake2b(digest_size=_SIZE)
        self._reads: dict[str, str] = {}
        self._numbers: dict[tuple[int, str, bool], int] = {}
        self._alive: list[object] = []  # references, so that no id is reused
        self._waiting: list[tuple[Any, str, str, bool]] = []
        self._is_overload = False  # whether only the compiler calls the current function, and compiles the function that it returns
        self._parts: list[Part] = []
        self._total = blake2b(digest_size=_SIZE, person=b"compcache-numba5")
        self._state = blake2b(digest_size=_SIZE)
        self._references: list[int] = []
        self._seen: dict[int, int] = {}
        self._reach: Reach | None = None
        self.compiled: Any = None
        self._depth = 0
        self._count = 0

    # ------------------------------------------------------------------ tokens

    def feed_token(self, kind: str, *texts: object) -> None:
        """Feed a token, with the length of each text, so that different sequences of tokens never give the same bytes."""
        for text in (kind, *texts):
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self._state.update(len(data).to_bytes(8, "little"))
            self._state.update(data)

    def feed_unknown(self, value: object, where: str) -> None:
        """Feed the type of a value without an identity, if only the type matters.

        Raises:
            Unidentifiable: the value matters.
        """
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if not self.is_only_named() and not self._overlooks:
            raise Unidentifiable(f"{where} is of type {kind}, which has no identity by content")
        self.feed_token("opaque", kind)

    def is_only_named(self) -> bool:
        """Return whether values without content count only by their type, because the compiler does not read them."""
        return self.mode == NAMED or self.has_lenient_function

    def feed_library(self, value: object, where: str) -> None:
        """Examine a value of a library that running code uses, and feed the code to which it refers.

        Record whether the value may read attributes that no code names.

        Raises:
            Unidentifiable: the value may give results that follow neither from versions nor from arguments.
        """
        if self.mode != RUN:
            return
        from compcache.numba.fingerprints.examined import remembered
        from compcache.numba.fingerprints.library_code import code_of_library
        from compcache.numba.fingerprints.outside import may_read_anything
        from compcache.numba.registered.purity import external_state_of, is_external_state

        if not self._overlooks:
            description = "a state outside of the program" if is_external_state(value) else external_state_of(value)
            if description:
                raise Unidentifiable(f"{where} refers to {description}, which has no identity by content")
            digest, replacements = remembered(code_of_library, value)
            self.feed_token("code of a library", digest)
            for replacement in replacements:
                self.feed_value(replacement, f"an object of the program in {where}")
        if may_read_anything(value):
            self.reach().record_names((), everything=True)

    def feed_back_reference(self, value: object) -> bool:
        """Feed a back reference if the current function has reached the value before. Return whether it has."""
        number = self._seen.get(id(value))
        if number is not None:
            self.feed_token("again", number)
            return True
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return False

    def refer_to(self, kind: str, number: int, *texts: object) -> None:
        """Feed a reference. The total contains the number, which depends on where the walk began; the digest of the part does not."""
        self._references.append(number)
        self.feed_token(kind, *texts)

    def end_part(self) -> bytes:
        """Add the tokens since the last call to the total, as one part, and return the digest of the part."""
        digest = self._state.digest()
        self._total.update(digest)
        for number in self._references:
            self._total.update(number.to_bytes(8, "little"))
        self._total.update(b"end.")
        self._state = blake2b(digest_size=_SIZE)
        self._references.clear()
        self._seen.clear()
        return digest

    def finish(self) -> Fingerprint:
        """Walk the functions in the queue, and return the fingerprint.

        There is a queue because call graphs are deeper than Python's stack.

        Raises:
            Unidentifiable: a value has no identity by content.
            TooLarge: there are more values than the limits allow.
        """
        self.end_part()
        done = 0
        while True:
            while done < len(self._waiting):
                function, where, self.mode, self._is_overload = self._waiting[done]
                mode, done = self.mode, done + 1
                self.has_lenient_function = self.defines_by_text = False
                self._feed_function(function, where)
                digest = self.end_part()
                if mode == COMPILED:
                    self._parts.append(Part(function, digest, WITHOUT_NUMBA if self.without_numba else WITH_NUMBA))
            self._overlooks = self._overlooks or self.overlooks_members
            if self._reach is None:
                break
            if not self._has_fed_settings:
                self._feed_settings()
                continue
            if self._reach.follow(self):
                continue
            if not self._overlooks:
                self._overlooks = True  # from here on, no code names the values that are found
                self.max_values = min(self.max_values, self._count + self.max_unnamed)
            if not self._reach.follow_all(self):
                break
        return Fingerprint(self._total.hexdigest(), self._lines.hexdigest() + self._files.hexdigest(), self._reads, tuple(self._parts))

    def _feed_settings(self) -> None:
        """Feed the settings on which results of pure functions depend."""
        self._has_fed_settings = True
        self.mode = RUN
        for name, setting in changed_settings():
            self.feed_token("setting", name)
            self.feed_value(setting, f"the setting {name!r}")
        self.end_part()

    # --------------------------------------------------------------- functions

    def refer_to_function(self, function: Any, where: str, mode: str | None = None, *, is_overload: bool = False) -> None:
        """Refer to a function. Queue it if this walk has not met it in this mode.

        Args:
            function: the function.
            where: the description of the function, for error messages.
            mode: the mode; None for the mode of the function that refers to it.
            is_overload: whether the compiler calls the function here, and compiles the function that it returns.
        """
        mode = mode or self.mode
        key = (id(function), mode, is_overload)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self._alive.append(function)
            self._waiting.append((function, where, mode, is_overload))
        self.refer_to("function", number, mode, function.__module__, plain_name(function.__qualname__))

    def feed_stencil(self, function: Any, mode: str, options: dict[str, Any]) -> None:
        """Feed a stencil: its function, with the globals from the time of the declaration, and its options."""
        self.feed_token("stencil", mode)
        self.feed_value(tuple(sorted(options.items())), "an option of a stencil")
        self.refer_to_compiled(function)

    def refer_to_compiled(self, function: Any, where: str = "") -> None:
        """Refer to a compiled function. If the function that refers to it is only named, it is only named too."""
        self.refer_to_function(function, where, NAMED if self.mode == NAMED else COMPILED)

    def feed_declared(self, overloads: Iterable[Compiled] | None, function: Any) -> None:
        """Feed the identities of the code of a dispatcher that compiles no more code.

        Raises:
            NotLazy: the code has no identity (`overloads` is None).
        """
        if overloads is None:
            raise NotLazy(f"{function.__qualname__} was compiled when it was declared, from values without identity")
        if self.without_numba:
            self.feed_token("declared")
        for compiled in overloads:
            self.feed_token("compiled", compiled.key)
            self._lines.update(f"{compiled.lines[:SIZE_OF_LINES]}:".encode())
            self._files.update(f"{compiled.lines[SIZE_OF_LINES:]}:".encode())
            self.registered += compiled.registered

    def feed_jitted(self, function: Any, options: dict[str, Any], where: str = "") -> None:
        """Feed a function that is compiled with these options (`registered.options`) for the types of its calls."""
        self.feed_token("jitted")
        self.feed_value(tuple(sorted(options.items())), f"an option of {where or function.__qualname__}")
        self.refer_to_compiled(function, where)

    def refer_to_implementation(self, implementation: Implementation, where: str) -> None:
        """Refer to a function that runs while code is generated, and to the options of its registration."""
        from compcache.numba.fingerprints.implementations import name_of

        self.feed_token("implementation")
        mode, self.mode = self.mode, RUN
        for name, option in implementation.options:
            self.feed_token("option", name)
            self.feed_value(option, f"option {name!r} of {where or name_of(implementation.function)}")
        self.refer_to_running(implementation.function, where, is_overload=implementation.is_overload)
        self.mode = mode

    def refer_to_running(self, function: Any, where: str, *, is_overload: bool = False) -> None:
        """Refer to a callable that runs while code is generated: a function, a method, a partial function, or an object."""
        if isinstance(function, python_types.FunctionType):
            self.refer_to_function(function, where, is_overload=is_overload)
        else:
            from compcache.numba.fingerprints.implementations import name_of

            self.feed_value(function, where or name_of(function))

    def feed_overloads(self, value: Any) -> bool:
        """Feed the names of the user's implementations of a callable, in the order in which the compiler asks them.

        Their content is not fed, because the compiler may ask only some of them. Their content is recorded when the compiler asks them
        (`identity.dependencies`), or walked separately.

        Returns:
            Whether the callable itself is compiled (`register_jitable`). With Numba this is always False.
        """
        from compcache.numba.fingerprints.implementations import find_overloads, name_of

        if not self.without_numba:
            for implementation in find_overloads(value):
                self.feed_token("overload", name_of(implementation.function))
            return False
        from compcache.numba.fingerprints.implementations import registered_here

        overloads, jitables = registered_here(value)
        for function, options in overloads:
            self.refer_to_dependency("overload", function, options)
        for options in jitables:
            self.feed_token("jitable")
            self.registered.append(value)
            self.feed_value(tuple(sorted(options.items())), "an option")
        return bool(jitables)

    def refer_to_dependency(self, kind: str, function: Any, options: dict[str, Any], where: str = "") -> None:
        """Refer to a function that the compiler calls.

        Without Numba, only the name of the function is fed, and its content is a separate walk (`implementations`).

        Raises:
            NotLazy: without Numba, the callable is not a plain function.
        """
        if not self.without_numba:
            mode, self.mode = self.mode, NAMED if self.mode == NAMED else RUN
            self.refer_to_running(function, where)
            self.mode = mode
            return
        from compcache.numba.fingerprints.implementations import Implementation, name_of

        if type(function) is not python_types.FunctionType:
            raise NotLazy(f"the implementation of an {kind} has the type {type(function).__qualname__}, which only Numba supports")
        self.feed_token(kind, name_of(function))
        self.registered.append(function)
        row = Implementation(function, tuple(sorted(options.items())), is_overload=kind == "overload")
        self.implementations.setdefault(id(function), row)

    def reach(self) -> Reach:
        """Return the reach of code that runs. The first call creates it."""
        if self._reach is None:
            from compcache.numba.fingerprints.reach import Reach

            self._reach = Reach()
        return self._reach

    def _feed_function(self, function: Any, where: str) -> None:
        """Feed one function of the queue: its code, defaults and closure cells."""
        code = function.__code__
        self.compiled = function
        name = f"{function.__module__}.{function.__qualname__}"
        self.feed_token("def", self.mode, function.__module__, plain_name(function.__qualname__))
        if self.mode == RUN and function.__name__ != code.co_name:
            self.feed_token("name", function.__name__)
        if self.mode == RUN and _is_reviewed(function):
            self.feed_token("closure of a library", function.__globals__["__name__"], code.co_qualname)
        else:
            self._feed_code(code, function.__globals__, name)
        for number, value in enumerate(function.__defaults__ or ()):
            self.feed_token("default")
            self._feed_read_value(value, f"the default {number + 1} of {name}")
        for key, value in sorted((function.__kwdefaults__ or {}).items()):
            self.feed_token("kw", key)
            self._feed_read_value(value, f"the default of {key!r} of {name}")
        self._feed_cells(function, name)
        if self.mode == RUN and (function.__dict__ or annotates(function) or function.__doc__ not in (None, *code.co_consts)):
            self.reach().refer_to_owner(self, function, name)
        if where:
            self._reads.setdefault(where, name)

    def _feed_cells(self, function: Any, name: str) -> None:
        """Feed the values of the closure cells of a function."""
        attributes = _all_attributes(function.__code__)
        compiles = self.mode == RUN and is_made_by_library(function)  # Numba's closure around a user's function
        for variable, value in cells_of(function):
            where = f"the variable {variable!r} that {name} closes over"
            self.feed_token("empty cell" if value is MISSING else "cell", variable)
            if value is MISSING:
                continue
            if compiles and isinstance(value, python_types.FunctionType):
                self.refer_to_function(value, where, COMPILED)
            else:
                self._feed_read_value(value, where, attributes)

    def _feed_code(self, code: python_types.CodeType, namespace: dict[str, Any], name: str) -> None:
        """Feed a code object, its nested code objects, and the values that they read."""
        digest, reads = digest_and_reads(code)
        self.feed_token("code", digest)
        if self.mode != RUN and code is self.compiled.__code__:
            self._reads[f"the code of {name}"] = digest.hex()
        self._files.update(f"{file_of(code, namespace)}:".encode("utf-8", "surrogatepass"))
        self._lines.update(f"{code.co_firstlineno}:".encode())
        self._lines.update(code.co_linetable)
        chains = self._chains_of(code, namespace)
        if reads_object_mode(chains):
            self.has_lenient_function = self.has_object_mode = True
        if self.mode == RUN:
            self._record_reads_of_run(code, reads, [value for _, value, _ in chains])
        for chain, value, at in chains:
            if not (self.mode == RUN and is_part_of_hash(code, value)):
                self._feed_chain(chain, value, at, reads.attributes, name)
        if self.mode == RUN and reads.imports:
            self._feed_imports(code, namespace, name)
        compiled = returned_functions(code) if self._is_overload and code is self.compiled.__code__ else ()
        for constant in code.co_consts:
            if isinstance(constant, python_types.CodeType):
                if constant in compiled and not reads_object_mode(self._chains_of(constant, namespace)):
                    self._feed_code_to_compile(constant, namespace, name)
                else:
                    self._feed_code(constant, namespace, name)

    def _feed_code_to_compile(self, code: python_types.CodeType, namespace: dict[str, Any], name: str) -> None:
        """Feed the code of a function that an overload returns, so that it is compiled and does not run."""
        self.reach().record_names(_all_attributes(code), everything=False)  # its variables may refer to modules
        mode, self.mode = self.mode, COMPILED
        self._feed_code(code, namespace, name)
        self.mode = mode

    def _record_reads_of_run(self, code: python_types.CodeType, reads: Reads, values: list[Any]) -> None:
        """Record the attributes that running code reads by names, and whether it computes names."""
        from compcache.numba.fingerprints.outside import names_by_text, reads_by_name
        from compcache.numba.registered.package_files import digest_of_package

        self.defines_by_text = self.defines_by_text or (
            any(map(names_by_text, values)) and digest_of_package(package_of(self.compiled)) is not None
        )
        names, reads_all = reads_by_name(code, reads, may_lead_anywhere=self._overlooks)
        self.reach().record_names(names, everything=reads_all)
        if _MATCH_CLASS in code.co_code[::2]:
            self.reach().matches_classes = True
            tuples = [constant for constant in code.co_consts if isinstance(constant, tuple)]
            keywords = [item for constant in tuples for item in constant if isinstance(item, str)]  # for example, `case Point(x=1)`
            self.reach().record_names(keywords, everything=False)

    def _feed_imports(self, code: python_types.CodeType, namespace: dict[str, Any], name: str) -> None:
        """Feed the attributes that code reads from modules that it imports: any attribute, if it uses a module in other ways."""
        from compcache.numba.registered.code_reads import imported_reads

        for module, chains in imported_reads(code):
            self.feed_token("import", module)
            any_attribute = [(attribute,) for attribute in code.co_names]
            if self.without_numba and self._feed_known_import(module, any_attribute if chains is None else chains, name):
                continue
            if chains is None or not is_library_module(module):
                self.reach().refer_to_import(self, module, namespace, name)
                continue
            imported = import_module(module)
            for chain in chains:
                if chain[0] not in vars(imported):
                    self.reach().refer_to_import(self, f"{module}.{chain[0]}", {}, name)
                value, at = resolve(chain, vars(imported))
                self._feed_chain(chain, value, at, (), name)

    def _feed_known_import(self, module: str, chains: Iterable[tuple[str, ...]], name: str) -> bool:
        """Feed the import of a code generator's module, whose parts follow from its version. Return False for any other module.

        Raises:
            NotLazy: the module belongs to no code generator, and the program has not imported it. The walk imports nothing.
        """
        if is_generator_module(module):
            for chain in (*chains, ()):
                self._feed_assigned_value(module, chain, f"the import of {module} in {name}, which runs at compile time,")
            return True
        if module not in sys.modules:
            raise NotLazy(f"{name} runs at compile time, and imports {module or 'its package'}, which is not imported yet")
        return False

    def _chains_of(self, code: python_types.CodeType, namespace: dict[str, Any]) -> list[_Chain]:
        """Return the chains that code reads, each with its value and the number of names that lead to the value."""
        return [(chain, *self._resolve_chain(chain, namespace)) for chain in digest_and_reads(code)[1].chains]

    def _resolve_chain(self, chain: tuple[str, ...], namespace: dict[str, Any]) -> tuple[Any, int]:
        """Return the value of a chain. The name of a function that is being declared, not assigned yet, refers to the function."""
        if self.without_numba:
            value, at = resolve(chain, namespace, is_generators_module)
            return (MISSING, 1) if at == 1 and is_declared_as(value, self.compiled) else (value, at)
        value, at = resolve(chain, namespace)
        if value is MISSING and at == 1 and self.mode == COMPILED:
            from numba.core import typeinfer

            itself = typeinfer._temporary_dispatcher_map.get(chain[0])
            if itself is not None and itself.py_func is self.compiled:
                return itself, at
        return value, at

    def _feed_chain(self, chain: tuple[str, ...], value: Any, at: int, attributes: tuple[str, ...], name: str) -> None:
        """Feed the value of an attribute chain that code reads."""
        if self.defines_by_text and at == 1 and (value is MISSING or is_defined_by_text(value, self.compiled.__globals__)):
            self.feed_token("defined by text", chain[0])  # this code defines the name, perhaps earlier for other types
            return
        if value is MISSING:
            self.feed_token("undefined", *chain[:at])
            return
        shown = ".".join(chain[:at])
        self.feed_token("global", shown)
        where = f"the global {shown!r} of {name}"
        if at < len(chain) and self.without_numba and is_generators_module(value):
            self._feed_generators_part(value, chain[at:], where)
        elif self.mode == RUN:
            self._feed_chain_of_run(value, chain[at - 1], where, attributes)
        else:
            self._feed_read_value(value, where, attributes)

    def _feed_generators_part(self, module: python_types.ModuleType, names: tuple[str, ...], where: str) -> None:
        """Feed a part of Numba by its name. The version determines it, except for settings and values that the program has assigned."""
        self.feed_token("of a generator of code", module.__name__, *names)
        self._feed_assigned_value(module.__name__, names, where)

    def _feed_assigned_value(self, module: str, names: tuple[str, ...], where: str) -> None:
        """Feed the value that the program has assigned to a part of Numba, if there is one.

        Raises:
            NotLazy: the part is a setting, or running code reads from it data that only this process or host has.
        """
        from compcache.numba.registered.purity import reads_external_state

        name = ".".join((module, *names))
        if not _SETTINGS.isdisjoint(name.split(".")):
            raise NotLazy(f"{where} reads Numba's settings")
        if self.mode == RUN and reads_external_state(name):
            raise NotLazy(f"{where} reads data that only this process or host has")
        assigned = set_on_part(module, names)
        if assigned is not MISSING:
            self.feed_value(assigned, where)

    def _feed_chain_of_run(self, value: Any, name: str, where: str, attributes: Iterable[str]) -> None:
        """Feed the value of an attribute chain that running code reads."""
        from compcache.numba.fingerprints.outside import is_reader
        from compcache.numba.registered.purity import is_external_state

        if self._feed_names_by_text(value) or is_reader(value, name):
            self.feed_by_name(value, where)
            return
        if is_external_state(value):
            self.feed_library(value, where)
        self._feed_read_value(value, where, attributes)

    def _feed_read_value(self, value: Any, where: str, attributes: Iterable[str] = ()) -> None:
        """Feed a value that a function reads. For a compiled function, store a digest of the value, by which `explain` shows changes."""
        if self.mode == RUN:
            self._feed_module_or_value(value, where, attributes)
            return
        outer, self._state = self._state, blake2b(digest_size=_SIZE)
        self._feed_module_or_value(value, where, attributes)
        read, self._state = self._state.digest(), outer
        self.feed_token("read", read)
        self._reads[where] = _shown(value) if value is None or type(value) in _SHOWN else read.hex()

    def _feed_module_or_value(self, value: Any, where: str, attributes: Iterable[str]) -> None:
        if is_module(value):
            self.feed_module(value, attributes, where)
        else:
            self.feed_value(value, where)

    def _feed_names_by_text(self, value: Any) -> bool:
        """Feed the values that code can read if it computes names: the files of its package, and plain globals of any origin.

        Returns:
            False, without feeding anything, if the value is not `eval` or similar, or if the function belongs to no package with files.
        """
        from compcache.numba.fingerprints.outside import names_by_text
        from compcache.numba.registered.package_files import digest_of_package

        files = digest_of_package(package_of(self.compiled)) if names_by_text(value) else None
        if files is None:
            return False
        self.feed_token("by text", files)
        for name, item in sorted(self.compiled.__globals__.items()):
            if type(item) in _SHOWN and not name.startswith("__"):
                self.feed_token(name, type(item).__name__, repr(item))
        return True

    def feed_module(self, module: python_types.ModuleType, attributes: Iterable[str], where: str) -> None:
        """Feed a module that is used as a value: the attributes whose names the code reads from any object."""
        self.feed_token("module", module.__name__)
        if self.without_numba and is_generators_module(module):
            return
        if self.mode == RUN:
            self.reach().refer_to_owner(self, module, where)
            return
        if is_library_module(module.__name__) or self.feed_back_reference(module):
            return
        for name in attributes:
            attribute: Any = getattr(module, name, MISSING)
            if attribute is MISSING:
                continue
            self.feed_token("attribute", name)
            if is_module(attribute):
                self.feed_module(attribute, attributes, f"{where}, {name!r}")
            else:
                self.feed_value(attribute, f"{where}, {name!r}")

    # ------------------------------------------------------------------ values

    def feed_sequence(self, values: Iterable[Any], where: str) -> None:
        """Feed the length and every value of a sequence."""
        values = list(values)
        self.feed_token("sequence", len(values))
        for value in values:
            self.feed_value(value, where)

    def feed_value(self, value: Any, where: str) -> None:
        """Feed a value by content.

        Args:
            value: the value.
            where: the description of the value, for error messages.

        Raises:
            Unidentifiable: the value has no identity by content.
            TooLarge: the walk reaches too many values.
        """
        kind = type(value)
        if value is None or kind in _PLAIN:
            self.feed_token(kind.__name__, repr(value))
            return
        if kind is float or kind is complex:
            self.feed_token(kind.__name__, bits_of(value))
            return
        self._count += 1
        if self._depth > _MAX_DEPTH:
            raise TooLarge(f"{where} is nested too deeply")
        if self._count > self.max_values:
            raise TooLarge(f"{where} contains too many values")
        self._depth += 1
        try:
            handler = handler_without_numba(value) if self.without_numba else None
            (handler or handler_of(value, with_numba=not self.without_numba))(self, value, where)
            if handler is None and self.mode == RUN:
                feed_class_and_attributes(self, value, where)
        finally:
            self._depth -= 1

    def feed_by_name(self, value: Any, where: str) -> None:
        """Feed a value that its module and name identify.

        Raises:
            Unidentifiable: the value has no name, or is defined inside a function.
        """
        name = qualified_name_of(value)
        if name is None or "<locals>" in name:
            self.feed_unknown(value, where)
            return
        self.feed_token("named", module_name_of(value), name)


_PLAIN = frozenset((bool, int, str, bytes, type(Ellipsis)))


_SHOWN = _PLAIN | {float, complex}
_MAX_SHOWN = 100


def _shown(value: object) -> str:
    """Return a plain value as text for display. A long text is replaced by its beginning and its digest."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... {blake2b(text.encode(), digest_size=8).hexdigest()}"


def _is_reviewed(function: Any) -> bool:
    """Return whether a reviewed function of a library has created a function, such as the `__repr__` of a data class.

    Only the values of its closure belong to the program.
    """
    exceptions = EVERYTHING.get(function.__globals__.get("__name__"))
    return exceptions is not None and is_made_by_library(function) and function.__code__.co_qualname.partition(".")[0] not in exceptions


_MATCH_CLASS = opmap["MATCH_CLASS"]
#: Names of Numba's settings, or of objects that contain them.
_SETTINGS = frozenset(("NUMBA_NUM_THREADS", "config"))


def _all_attributes(code: python_types.CodeType) -> tuple[str, ...]:
    """Return the names of all attributes that a code object and its nested code objects read."""
    names = dict.fromkeys(digest_and_reads(code)[1].attributes)
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            names.update(dict.fromkeys(_all_attributes(constant)))
    return tuple(names)
