"""Finds the processor features that each function of a module requires, including those of the code that it reaches in the module.

Compilers rarely use all features for which they compile, AVX-512 for example. The features are read from the machine code, if the code
reader of the architecture (`compcache.arch`) knows all instructions. Otherwise a function requires all features that the compiler was
allowed to use. The same holds if machine code does not show all features: inline assembly may hide instructions, and the registers of
vector arguments depend on the CPU.

A call to a function with additional features by its own attributes adds no requirement, because the caller checks the processor at run
time. A call through a variable requires the features of the called functions that have no own attributes.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from compcache.build.ir_text import functions_with_assembly, lines_from, passes_vectors, read_functions
from compcache.build.trial import has_module_assembly
from compcache.errors import FormatError
from compcache.formats.host import platform_name
from compcache.images.elf.reading import architecture_of, code_sections
from compcache.targets.cpu_table import basic_features, table_of
from compcache.targets.used_features import function_features, target_attributes, used_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from compcache.arch.architecture import CodeReader
    from compcache.build.exports import Export
    from compcache.build.ir_text import Definition
    from compcache.build.pic import Alias
    from compcache.targets.machine import Machine

__all__ = ["Code", "allowed_features", "own_features", "requirements_of"]

_Features = frozenset[str]
#: Features whose encodings LLVM also writes for processors without them. Such processors execute another instruction with the same result
#: (BSF for TZCNT), or none (RDSSP). The encodings require the feature only if the compiler was allowed to use it.
_READ_OTHERWISE = frozenset(("bmi", "shstk"))


class Code(NamedTuple):
    """A compiled module.

    Attributes:
        text: the optimized module as LLVM prints it.
        allowed: the result of `allowed_features`.
        definitions: the definitions in the module, by symbol.
        aliases: the aliases, by symbol.
        object: the object.
    """

    text: str
    allowed: Mapping[str, _Features]
    definitions: Mapping[str, Definition]
    aliases: Mapping[str, Alias]
    object: bytes


def requirements_of(code: Code, exports: Iterable[Export], startup: Iterable[str], machine: Machine) -> dict[str, _Features]:
    """Return the required features of each exported symbol.

    Args:
        code: the compiled module.
        exports: the exports of the module.
        startup: the functions that run when the module is mapped, loaded or unloaded. All exports require their features.
        machine: the machine for which the code was compiled.
    """
    functions = {export.symbol: _aliased_function(code.aliases, export.symbol) for export in exports}
    used_by_symbol = _used_by_functions(code.object)
    used = cache(partial(used_by, code.text))
    if used_by_symbol is None or has_module_assembly(code.text) or passes_vectors(code.text):
        all_features = used(machine.requires) | (machine.requires & machine.explicit)
        return {symbol: all_features | used(code.allowed.get(name, all_features)) for symbol, name in functions.items()}
    own_requirements = _own_requirements(code, used, used_by_symbol, machine)
    reached = _ReachedFeatures(code, own_requirements, code.allowed, machine.requires)
    # No definition tells who calls this code, so all exports require its features.
    unnamed_features = frozenset[str]().union(*[features for name, features in own_requirements.items() if name not in code.definitions])
    at_start = unnamed_features.union(*[reached.of(name) for name in startup])
    return {symbol: at_start | reached.of(name) for symbol, name in functions.items()}


def _own_requirements(
    code: Code, used: Callable[[_Features], _Features], used_by_symbol: Mapping[str, _Features], machine: Machine
) -> dict[str, _Features]:
    """Return the features that the machine code of each function requires, and those that they imply, without those of all processors.

    `used` returns the features that the code may use, out of those that it is given.

    A feature of `_READ_OTHERWISE` counts only if the compiler was allowed to use it. Inline assembly hides features, so a function with
    inline assembly requires all features that the compiler was allowed to use in it.
    """
    table = table_of(platform_name())
    basic = basic_features(platform_name())
    with_assembly = functions_with_assembly(code.text)
    required = {}
    required_by_features: dict[_Features, _Features] = {}  # many functions use the same features
    for name, features in used_by_symbol.items():
        allowed = code.allowed.get(name, machine.requires)
        if name in with_assembly:
            required[name] = used(allowed) - basic
            continue
        certain = features - (_READ_OTHERWISE - allowed)
        if certain not in required_by_features:
            required_by_features[certain] = (table.closure(certain) & table.required if table else certain) - basic
        required[name] = required_by_features[certain]
    return required


def _aliased_function(aliases: Mapping[str, Alias], symbol: str) -> str:
    """Return the function for which an exported symbol is an alias, otherwise the symbol itself."""
    return aliases[symbol].target if symbol in aliases else symbol


def own_features(
    allowed: Mapping[str, _Features], exports: Iterable[Export], aliases: Mapping[str, Alias], machine: Machine
) -> dict[str, _Features]:
    """Return the features that exported functions may use in addition to the machine's features, by symbol.

    Functions without additional features are left out, and so are features that another returned feature implies. `allowed` is the result
    of `allowed_features`.
    """
    functions = {export.symbol: _aliased_function(aliases, export.symbol) for export in exports}
    extra_features = {symbol: allowed[name] - machine.requires for symbol, name in functions.items() if name in allowed}
    table = table_of(platform_name())
    implied = {name: table.closure({name}) - {name} for features in extra_features.values() for name in features} if table else {}
    strongest = {
        symbol: features.difference(*[implied[name] for name in features if name in implied]) for symbol, features in extra_features.items()
    }
    return {symbol: features for symbol, features in strongest.items() if features}


def allowed_features(text: str) -> dict[str, _Features]:
    """Return the features that functions with attributes for their CPU may use, by function name; {} without such functions.

    `text` is the printed module.
    """
    if '"target-' not in text:
        return {}
    attributes = target_attributes(lines_from(text, "attributes #"), read_functions(text))
    groups = [group for group in set(attributes.values()) if '"target-' in group]  # others only tune the code
    features_by_group = {group: function_features(group, platform_name()) for group in groups}
    return {name: features_by_group[group] for name, group in attributes.items() if group in features_by_group}


class _ReachedFeatures:
    """Computes the features that functions use, directly or in the code that they reach. Code that may use more features does not count.

    Functions that may use the same features form a class. A variable passes on the features of each class of functions that it refers to.
    """

    def __init__(self, code: Code, own_features: Mapping[str, _Features], allowed: Mapping[str, _Features], default: _Features) -> None:
        self._default = default
        functions = [name for name, definition in code.definitions.items() if definition.kind == "function"]
        self._class = {name: allowed.get(name, default) for name in functions}
        self._used: dict[str, dict[_Features, _Features]] = {name: {} for name in code.definitions}
        for name, features in own_features.items():
            if name in self._class:
                self._used[name] = {self._class[name]: features}
        users: dict[str, list[str]] = {}
        for name, definition in code.definitions.items():
            for reference in definition.references:
                users.setdefault(_aliased_function(code.aliases, reference), []).append(name)
        self._propagate_features(users)

    def of(self, name: str) -> _Features:
        """Return the features that a function uses, directly or indirectly.

        For a variable, return the features of the functions that are called through it without a check of the processor.
        """
        used_features, own_class = self._used.get(name, {}), self._class.get(name, self._default)
        return frozenset[str]().union(*[features for class_, features in used_features.items() if class_ <= own_class])

    def _propagate_features(self, users: Mapping[str, list[str]]) -> None:
        """Add the features of each function to all functions that use it."""
        waiting = [name for name, used in self._used.items() if used]
        while waiting:
            name = waiting.pop()
            passed = self._used.get(name, {})
            waiting += [user for user in users.get(name, ()) if self._add_features(user, passed)]

    def _add_features(self, user: str, passed: Mapping[_Features, _Features]) -> bool:
        """Add the features in `passed` to the features of a user. Return whether any feature was new."""
        user_features, count_before = self._used[user], sum(map(len, self._used[user].values()))
        own_class = self._class.get(user)
        for class_, features in passed.items():
            if own_class is None:
                user_features[class_] = user_features.get(class_, frozenset()) | features
            elif class_ <= own_class:
                user_features[own_class] = user_features.get(own_class, frozenset()) | features
        return sum(map(len, user_features.values())) > count_before


def _used_by_functions(obj: bytes) -> dict[str, frozenset[str]] | None:
    """Return the features that each function in a relocatable object uses, by their LLVM names, or None if they are unknown.

    They are unknown if there is no code reader for the architecture, if an instruction or its feature is unknown, or if code sections
    contain bytes other than functions and padding.
    """
    try:
        reader = _reader_of(obj)
        sections = code_sections(obj) if reader is not None else ()
    except FormatError:
        return None
    if reader is None:
        return None
    features: dict[str, frozenset[str]] = {}
    for section in sections:
        position = 0
        for start, end, name in section.functions:
            used_features = reader.used_features(section.code[start:end]) if start < end else None
            if used_features is None or not reader.is_padding(section.code[position:start]):
                return None
            features[name] = features.get(name, frozenset()) | used_features
            position = max(position, end)
        if not reader.is_padding(section.code[position:]):
            return None
    return features


def _reader_of(obj: bytes) -> CodeReader | None:
    """Return the code reader for the architecture of an object, or None if there is none. See `architecture_of` for the exception."""
    return architecture_of(obj).code_reader()
