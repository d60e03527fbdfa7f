"""Walks all values that functions can read, and digests them by content.

The digest covers everything that the compiler can read from a function: its code and nested code, constants, defaults, closure cells,
and every global and attribute chain that it reads. Values are digested by content and transitively, through jitted and plain functions.
Neither source files nor file times are read. A second digest contains line numbers, because they matter only to code that reports them.

A value without content to digest raises `Unidentifiable`, with the path to the value.

The same walk works without Numba (`content`). Then the stand-ins for Numba objects feed themselves, this package's own table provides the
registrations, and nothing is imported. A value that only Numba knows raises `NotLazy`.
"""

from __future__ import annotations

import types as python_types

from compcache.digest import blake2b
from compcache.numba.fingerprints import COMPILED, NAMED, RUN
from compcache.numba.fingerprints.code_digest import bits_of, plain_name
from compcache.numba.fingerprints.functions import feed_function, find_registrations
from compcache.numba.fingerprints.owners import hashed_reference, is_compared_by_identity, name_and_number_of_class
from compcache.numba.fingerprints.stand_ins import handler_without_numba, is_module_of_generators
from compcache.numba.fingerprints.values import feed_class_and_attributes, handler_of
from compcache.numba.registered.code_reads import MISSING
from compcache.numba.registered.library import is_library_module, module_name_of, qualified_name_of
from compcache.numba.registered.marks import is_module
from compcache.numba.registered.refusals import NotLazy, TooLarge, Unidentifiable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any
    from weakref import ref

    from compcache.numba.fingerprints.fixed_code import CodeIdentity
    from compcache.numba.fingerprints.implementations import Implementation
    from compcache.numba.fingerprints.reach import Reach

__all__ = ["CLASS", "SIZE_OF_LINES", "Fingerprint", "FunctionPart", "Walk"]

WITH_NUMBA, WITHOUT_NUMBA, CLASS = "with Numba", "without Numba", "class"
_SIZE = 16
SIZE_OF_LINES = 2 * _SIZE
_MAX_DEPTH = 200
_MAX_VALUES = 50_000


class FunctionPart:
    """A function of a walk, and the digest of its own reads; or a class of the program, with an empty digest.

    Attributes:
        function: the function or class.
        digest: the digest.
        kind: `WITH_NUMBA`, `WITHOUT_NUMBA`, `RUN` for code that runs, or `CLASS`.
        owners: weak references to those dispatchers of the function that the walk has reached, as `owner_of` returns them.
        callees: the functions to which the function refers, in order. The digest contains only their names.
    """

    __slots__ = ("callees", "digest", "function", "kind", "owners")

    def __init__(self, function: Any, digest: bytes, kind: str, owners: list[ref[Any]] | None = None, callees: Iterable[Any] = ()) -> None:
        self.function = function
        self.digest = digest
        self.kind = kind
        self.owners = [] if owners is None else owners
        self.callees = tuple(callees)


class Fingerprint:
    """The result of a walk.

    Attributes:
        content: the digest of everything that the compiler can read.
        lines: the digest of source lines, of `SIZE_OF_LINES` characters, followed by the digest of the paths of files.
        reads: the values that compiled functions read, and their code, for display: plain values, or digests.
        parts: the compiled functions, the fingerprinted function first, and then the classes of the program.
    """

    __slots__ = ("content", "lines", "parts", "reads")

    def __init__(self, content: str, lines: str, reads: dict[str, str], parts: tuple[FunctionPart, ...]) -> None:
        self.content = content
        self.lines = lines
        self.reads = reads
        self.parts = parts


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
        self.overlook_members = False  # the value of `overlook_values` for members that running code names
        self.overlook_values = False  # whether values without content count only by their type from here on
        self.max_values = self.max_unnamed = _MAX_VALUES
        self.lines = blake2b(digest_size=_SIZE)
        self.files = blake2b(digest_size=_SIZE)
        self.reads: dict[str, str] = {}
        self.mode = COMPILED
        self.compiled: Any = None  # the current function
        self.is_overload = False  # whether only the compiler calls the current function, and compiles the function that it returns
        self.function_has_object_mode = False  # whether the current function has such blocks
        self.defines_by_text = False  # whether the files of its package identify the current function, because it executes text
        self._numbers: dict[tuple[int, str, bool], int] = {}
        self._alive: list[object] = []  # references, so that no id is reused
        self._waiting: list[tuple[Any, str, str, bool]] = []
        self._parts: list[FunctionPart] = []
        self._classes: dict[int, FunctionPart] = {}
        self._class_names: dict[int, tuple[str, int]] = {}
        self._owners: dict[int, list[ref[Any]]] = {}  # by the id of the function
        self._total = blake2b(digest_size=_SIZE, person=b"compcache-numba5")
        self._state = blake2b(digest_size=_SIZE)
        self._references: list[int] = []
        self._value_numbers: dict[int, int] = {}
        self._callees: list[Any] = []
        self._reach: Reach | None = None
        self._depth = 0
        self._count = 0

    # ------------------------------------------------------------------ tokens

    def feed_token(self, kind: str, *texts: object) -> None:
        """Feed the texts of a token, each with its length, so that different sequences of texts never give the same bytes."""
        for text in (kind, *texts):
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self._state.update(len(data).to_bytes(8, "little"))
            self._state.update(data)

    def feed_unknown(self, value: object, where: str) -> None:
        """Feed the type of a value without an identity, if only the type matters. Raise `Unidentifiable` if the value matters."""
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if not self.needs_no_content() and not self.overlook_values:
            raise Unidentifiable(
                f"{where} has the type {kind}, whose content cannot be compared between processes: "
                "use numbers, texts, tuples or arrays of numbers instead"
            )
        self.feed_token("opaque", kind)

    def needs_no_content(self) -> bool:
        """Return whether values without content count only by their type, because the compiler does not read them."""
        return self.mode == NAMED or self.function_has_object_mode

    def feed_library(self, value: object, where: str) -> None:
        """Examine a value of a library that running code uses, and feed the code to which it refers.

        Record whether the value may read attributes that no code names. Do nothing for a value that only the compiler reads. Do not examine
        a value that no code names (`overlook_values`).

        Raise `Unidentifiable` if an examined value may give results that follow neither from versions nor from arguments.
        """
        if self.mode != RUN:
            return
        from compcache.numba.fingerprints.examined import call_once
        from compcache.numba.fingerprints.library_code import digest_library_code
        from compcache.numba.fingerprints.outside import may_read_anything
        from compcache.numba.registered.purity import external_state_of, is_external_state

        if not self.overlook_values:
            description = "external state" if is_external_state(value) else external_state_of(value)
            if description:
                raise Unidentifiable(
                    f"{where} refers to {description}; this value cannot be compared between processes: pass the value as an argument"
                )
            digest, replacements = call_once(digest_library_code, value)
            self.feed_token("code of a library", digest)
            for replacement in replacements:
                self.feed_value(replacement, f"an object of the program in {where}")
        if may_read_anything(value):
            self.reach().record_names((), everything=True)

    def feed_back_reference(self, value: object) -> bool:
        """Feed a back reference if the current function has reached the value before. Return whether it has."""
        number = self._value_numbers.get(id(value))
        if number is not None:
            self.feed_token("again", number)
            return True
        self._value_numbers[id(value)] = len(self._value_numbers)
        self._alive.append(value)
        return False

    def refer_to(self, kind: str, number: int, *texts: object) -> None:
        """Feed a reference. Its number depends on where the walk began, so only the digest of the walk covers the number."""
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
        self._value_numbers.clear()
        return digest

    def finish(self) -> Fingerprint:
        """Walk the functions in the queue and the values that running code can reach, and return the fingerprint.

        Raise `Unidentifiable` if a value has no identity by content, or `TooLarge` if there are more values than the limits allow.
        """
        self.end_part()
        self._feed_waiting_functions()
        self.overlook_values = self.overlook_members
        if self._reach is not None:
            self._feed_settings()
            self._feed_reach(self._reach)
        parts = (*self._parts, *self._classes.values())
        return Fingerprint(self._total.hexdigest(), self.lines.hexdigest() + self.files.hexdigest(), self.reads, parts)

    def _feed_waiting_functions(self) -> None:
        """Feed the functions in the queue, each as one part. There is a queue because call graphs are deeper than Python's stack."""
        while self._waiting:
            self._callees.clear()
            self.compiled, where, mode, self.is_overload = self._waiting.pop(0)
            self.mode = mode
            self.function_has_object_mode = self.defines_by_text = False
            feed_function(self, self.compiled, where)
            digest = self.end_part()
            if mode == COMPILED:
                kind = WITHOUT_NUMBA if self.without_numba else WITH_NUMBA
                owners = self._owners.setdefault(id(self.compiled), [])
                self._parts.append(FunctionPart(self.compiled, digest, kind, owners, self._callees))

    def _feed_reach(self, reach: Reach) -> None:
        """Feed the values that running code can reach under names in the code, and then all others if code computes names."""
        while True:
            self._feed_waiting_functions()
            while reach.follow(self):
                self._feed_waiting_functions()
            if not self.overlook_values:
                self.overlook_values = True  # from here on, no code names the values that are found
                self.max_values = min(self.max_values, self._count + self.max_unnamed)
            if not reach.follow_all(self):
                return

    def _feed_settings(self) -> None:
        """Feed the changed settings on which results of pure functions depend, as values that running code reads. The mode stays RUN."""
        from compcache.numba.fingerprints.state import changed_settings

        self.mode = RUN
        for name, setting in changed_settings():
            self.feed_token("setting", name)
            self.feed_value(setting, f"the setting {name!r}")
        self.end_part()

    # --------------------------------------------------------------- functions

    def refer_to_function(self, function: Any, where: str, mode: str | None = None, *, is_overload: bool = False) -> None:
        """Refer to a function. Queue it if this walk has not met it in this mode. `where` describes the function in error messages.

        If `mode` is None, the current mode is used. `is_overload` is whether the compiler calls the function here, and compiles the
        function that this call returns.
        """
        mode = mode or self.mode
        key = (id(function), mode, is_overload)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self._alive.append(function)
            self._waiting.append((function, where, mode, is_overload))
        if mode == COMPILED:
            self._callees.append(function)
        self.refer_to("function", number, mode, function.__module__, plain_name(function.__qualname__))

    def feed_stencil(self, function: Any, mode: str, options: dict[str, Any]) -> None:
        """Feed a stencil: its mode and options, and its function, which must have the globals from the time of the declaration."""
        self.feed_token("stencil", mode)
        self.feed_value(tuple(sorted(options.items())), "an option of a stencil")
        callees = self._callees.copy()
        self.refer_to_compiled(function)
        self._callees = callees  # each walk makes a new copy of the function

    def refer_to_compiled(self, function: Any, where: str = "", owner: Any = None) -> None:
        """Refer to a function that a dispatcher compiles. In mode `NAMED`, the reference only names the function.

        `owner` is the dispatcher, as `owner_of` returns it, or None if Numba creates the dispatcher.
        """
        if owner is not None:
            self._owners.setdefault(id(function), []).append(hashed_reference(owner))
        self.refer_to_function(function, where, NAMED if self.mode == NAMED else COMPILED)

    def record_class(self, cls: type) -> None:
        """Record a class of the program that this walk has reached, and feed its name and number, unless references cannot be keys."""
        if is_compared_by_identity(cls):
            if id(cls) not in self._classes:
                self._classes[id(cls)] = FunctionPart(cls, b"", CLASS)
                self._class_names[id(cls)] = name_and_number_of_class(cls)
            name, number = self._class_names[id(cls)]
            if name != cls.__qualname__ or number:
                self.feed_token("found as", name, number)

    def feed_declared(self, overloads: Iterable[CodeIdentity] | None, function: Any) -> None:
        """Feed the identities of the code of a dispatcher that compiles no more code.

        Raise `NotLazy` if `overloads` is None, because the code has no identity.
        """
        if overloads is None:
            name = function.__qualname__
            raise NotLazy(f"{name} was compiled when it was declared, from values that cannot be compared: pass these values as arguments")
        if self.without_numba:
            self.feed_token("declared")
        for compiled in overloads:
            self.feed_token("compiled", compiled.key)
            self.lines.update(f"{compiled.lines[:SIZE_OF_LINES]}:".encode())
            self.files.update(f"{compiled.lines[SIZE_OF_LINES:]}:".encode())
            self.registered += compiled.registered

    def feed_jitted(self, function: Any, options: dict[str, Any], where: str = "", *, owner: Any) -> None:
        """Feed a function that a dispatcher (`owner`) compiles for the types of its calls, and options from `registered.options`."""
        self.feed_token("jitted")
        self.feed_value(tuple(sorted(options.items())), f"an option of {where or function.__qualname__}")
        self.refer_to_compiled(function, where, owner)

    def refer_to_implementation(self, implementation: Implementation) -> None:
        """Refer to a function that runs while code is generated, and feed the options of its registration."""
        from compcache.numba.fingerprints.implementations import stable_name

        self.feed_token("implementation")
        mode, self.mode = self.mode, RUN
        for name, option in implementation.options:
            self.feed_token("option", name)
            self.feed_value(option, f"option {name!r} of {stable_name(implementation.function)}")
        self.refer_to_running(implementation.function, "", is_overload=implementation.is_overload)
        self.mode = mode

    def refer_to_running(self, function: Any, where: str, *, is_overload: bool = False) -> None:
        """Refer to a function that runs while code is generated, or feed another such callable. See also `refer_to_function`."""
        if isinstance(function, python_types.FunctionType):
            self.refer_to_function(function, where, is_overload=is_overload)
        else:
            from compcache.numba.fingerprints.implementations import stable_name

            self.feed_value(function, where or stable_name(function))

    def feed_overloads(self, value: Any) -> bool:
        """Feed the names of the user's implementations of a callable, in the order in which the compiler tries them.

        The content of the implementations is not fed, because the compiler may try only some of them. Their content is recorded when the
        compiler tries them (`identity.dependencies`), or walked separately.

        Return whether the callable itself is compiled (`register_jitable`). With Numba this is always False.
        """
        if not self.without_numba:
            from compcache.numba.fingerprints.implementations import find_overloads, numbered_name

            for implementation in find_overloads(value):
                self.feed_token("overload", *numbered_name(implementation))
            return False
        overloads, jitables = find_registrations(value)
        for function, options in overloads:
            self.refer_to_dependency("overload", function, options)
        for options in jitables:
            self.feed_token("jitable")
            self.registered.append(value)
            self.feed_value(tuple(sorted(options.items())), "an option")
        return bool(jitables)

    def refer_to_dependency(self, kind: str, function: Any, options: dict[str, Any], where: str = "") -> None:
        """Refer to a function that the compiler calls.

        Without Numba, only the name of the function is fed. The function and its options are added to `implementations`, for a walk of
        their own. `NotLazy` is raised if the callable is not a plain function.
        """
        if not self.without_numba:
            mode, self.mode = self.mode, NAMED if self.mode == NAMED else RUN
            self.refer_to_running(function, where)
            self.mode = mode
            return
        from compcache.numba.fingerprints.implementations import Implementation, stable_name

        if type(function) is not python_types.FunctionType:
            raise NotLazy(
                f"{where or f'the object {function!r}'}, the implementation of an {kind}, has the type "
                f"{type(function).__qualname__}, for which compcache needs Numba: use a plain function"
            )
        self.feed_token(kind, stable_name(function))
        self.registered.append(function)
        implementation = Implementation(function, tuple(sorted(options.items())), is_overload=kind == "overload")
        self.implementations.setdefault(id(function), implementation)

    def reach(self) -> Reach:
        """Return the reach of code that runs. The first call creates it."""
        if self._reach is None:
            from compcache.numba.fingerprints.reach import Reach

            self._reach = Reach()
        return self._reach

    def digest_of_value(self, value: Any, where: str, attributes: Iterable[str]) -> bytes:
        """Return the digest of a module or value. Its tokens are not part of the current digest."""
        outer, self._state = self._state, blake2b(digest_size=_SIZE)
        self.feed_module_or_value(value, where, attributes)
        inner, self._state = self._state.digest(), outer
        return inner

    def feed_module_or_value(self, value: Any, where: str, attributes: Iterable[str]) -> None:
        """Feed a value that code reads: a module by `feed_module`, any other value by content."""
        if is_module(value):
            self.feed_module(value, attributes, where)
        else:
            self.feed_value(value, where)

    def feed_module(self, module: python_types.ModuleType, attributes: Iterable[str], where: str) -> None:
        """Feed a module that is used as a value: its name, and for a module of the program the `attributes` that code reads.

        If code runs, feed a reference to the module, from which the code may read any attribute that it names.
        """
        self.feed_token("module", module.__name__)
        if self.without_numba and is_module_of_generators(module):
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
            self.feed_module_or_value(attribute, f"{where}, {name!r}", attributes)

    # ------------------------------------------------------------------ values

    def feed_sequence(self, values: Iterable[Any], where: str) -> None:
        """Feed the length and every value of a sequence."""
        values = list(values)
        self.feed_token("sequence", len(values))
        for value in values:
            self.feed_value(value, where)

    def feed_value(self, value: Any, where: str) -> None:
        """Feed a value by content. `where` describes the value in error messages.

        Raise `Unidentifiable` if the value has no identity by content, or `TooLarge` if the walk reaches too many values.
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
            raise TooLarge(f"{where} is nested more than {_MAX_DEPTH} levels deep: pass this value as an argument")
        if self._count > self.max_values:
            raise TooLarge(f"more than {self.max_values} values can be reached, the last one in {where}: pass large values as arguments")
        self._depth += 1
        try:
            handler = handler_without_numba(value) if self.without_numba else None
            (handler or handler_of(value, with_numba=not self.without_numba))(self, value, where)
            if handler is None and self.mode == RUN:
                feed_class_and_attributes(self, value, where)
        finally:
            self._depth -= 1

    def feed_by_name(self, value: Any, where: str) -> None:
        """Feed a value that its module and name identify. Of a value without a name, or from inside a function, feed only the type.

        Raise `Unidentifiable` if the type does not suffice (`feed_unknown`).
        """
        name = qualified_name_of(value)
        if name is None or "<locals>" in name:
            self.feed_unknown(value, where)
            return
        self.feed_token("named", module_name_of(value), name)


_PLAIN = frozenset((bool, int, str, bytes, type(Ellipsis)))
