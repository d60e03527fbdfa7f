"""Resolves the undefined symbols of a module before it is optimized, and turns them into import slots and storage.

In a shared object, functions and variables of the cache stay references to symbols. The image has places for their addresses, which are
filled when code is loaded. In an object, a function becomes a thunk, ``load slot; musttail call``, which LLVM inlines into an indirect
call. An external global that the caller defines becomes storage in the module, which is filled when code is loaded. Native symbols are not
changed.
"""

from __future__ import annotations

import os
import re
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache.build.ir_text import add_attributes, change_lines, parse_head, quote, references, symbol_counts, target_text, without_name
from compcache.build.llvm_types import split_words
from compcache.build.pic import ADDRESS_OF
from compcache.build.source import check_name
from compcache.errors import CompileError, GlobalValidationError, SignatureMismatchError, UndefinedSymbolError
from compcache.globals import GlobalDefinition, Storage, define
from compcache.globals.definition import describe_integer, invalid_error
from compcache.globals.elements import check_elements
from compcache.globals.scalars import Integer
from compcache.images import platform_symbols
from compcache.images.archives import STATE_PREFIXES, Archive, is_archive
from compcache.images.libraries import advice_on_runtime_library, demangle, library_with, loaded_libraries, open_libraries
from compcache.images.static_runtime import STATIC_RUNTIME, static_runtime_text
from compcache.llvm import llvm
from compcache.wording import join_first

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from compcache.build.ir_text import GlobalValue, GlobalValues
    from compcache.build.source import ModuleSource
    from compcache.images.libraries import Library

__all__ = [
    "SLOT_PREFIX", "Requests", "Resolution", "Unresolved", "imported_thread_locals", "is_known_by_name", "read_requests",
    "require_unused", "resolve_declarations", "restore_resolution", "shared_function", "undefined_symbols_error", "with_nobuiltin",
]  # fmt: skip

SLOT_PREFIX = "compcache.slot."
_NOT_PROVIDED = "which neither the cache nor globals= nor this process defines"
_MOST_SHOWN = 20  # a screenful
_LEAST_ALIGNMENT = 16  # vectorized code may rely on this alignment of arrays
#: Kinds of values that are not addresses of code, or are valid only in one process.
_NOT_CALLED = frozenset(("boolean", "buffer", "bytes", "float", "identity", "integer", "member", "object", "pickle", "text"))
_ALIGN = re.compile(r", align (\d+)")
_QUOTED = re.compile(r'"[^"]*"')
_LINKAGE_WORDS = frozenset(
    ("available_externally", "external", "extern_weak", "dso_local", "dso_preemptable", "hidden", "protected", "default", "dllimport")
)


class Requests(NamedTuple):
    """A copy of the caller's definitions for declarations.

    `imports` is {symbol: func_name}, `globals` is {symbol: definition}, and `libraries` are the names of libraries and archives.
    """

    imports: dict[str, str]
    globals: dict[str, GlobalDefinition]
    libraries: tuple[str, ...] = ()


class Resolution(NamedTuple):
    """The providers of a module's declarations.

    `imports`: {symbol: func_name} of imports for which the image has places.
    `slots`: {symbol of the slot: func_name} of imports with slots.
    `storage`: {symbol: (definition, storage)} of globals, and of the slots of functions that `globals=` defines.
    `support`: LLVM assembly to link into the module. `thunks`: the functions in it.
    `libraries`: the libraries that the source names. `library_symbols`: the declared symbols that they define.
    `null`: the weak references that stay undefined.
    `missing`: the symbols that nothing defines, and whether each is a function. Optimized code must not use them (`require_unused`).
    """

    slots: dict[str, str]
    storage: dict[str, tuple[GlobalDefinition, Storage]]
    support: str
    thunks: tuple[str, ...]
    libraries: tuple[Library | Archive, ...] = ()
    library_symbols: frozenset[str] = frozenset()
    imports: Mapping[str, str] = MappingProxyType({})
    null: tuple[str, ...] = ()
    missing: Mapping[str, bool] = MappingProxyType({})

    def imported(self) -> dict[str, str]:
        """Return all imports: {symbol, or symbol of the slot: func_name}."""
        return {**self.imports, **self.slots}


def read_requests(source: ModuleSource) -> Requests:
    """Return the imports, globals and libraries of a source, checked and copied.

    Raise `InvalidNameError` if a name cannot be used, or `GlobalValidationError` if the value of a global cannot be stored.
    """
    imports = source.imports or ()
    pairs = imports.items() if hasattr(imports, "items") else ((name, name) for name in _as_tuple(imports))
    return Requests(
        {check_name(symbol, "imported symbol"): check_name(getattr(name, "func_name", name), "func_name") for symbol, name in pairs},
        {check_name(name, "global name"): define(value) for name, value in (source.globals or {}).items()},
        (
            *[check_name(name, "library") for name in _as_tuple(source.libraries)],
            *[_archive_name(name) for name in _as_tuple(source.archives)],
        ),
    )


def _archive_name(name: Any) -> str:
    """Return the file name of an archive. A bare name like ``m`` becomes ``libm.a``. Raise `InvalidNameError` for an invalid name."""
    name = check_name(os.fspath(name), "archive")
    return name if is_archive(name) else f"lib{name}.a"


def _as_tuple(names: Any) -> tuple[str, ...]:
    """Return one name or several names as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


@cache
def _attributes_are_of_functions() -> bool:
    """Return whether this version of llvmlite adds attributes to functions. Older versions add them to results, which is invalid."""
    probe = llvm.parse_assembly("declare i64 @probe(i64)", llvm.create_context())
    probe.get_function("probe").add_function_attribute("nonlazybind")
    return "nonlazybind" not in str(probe).partition("@")[0]


def is_known_by_name(symbol: str) -> bool:
    """Return whether LLVM may give a function a meaning by its name, like functions of the C library and C++'s allocation functions."""
    return symbol.startswith(("_Zn", "_Zd")) or platform_symbols.is_platform_symbol(symbol)


def with_nobuiltin(text: str, functions: Iterable[GlobalValue], imports: Collection[str]) -> str:
    """Return a printed module in which functions and imports with the names of platform functions are `nobuiltin`.

    Otherwise LLVM would treat them as the platform's functions. `functions` are the functions of the module. See `parse_head` for the
    exception.
    """
    imported = {symbol for symbol in imports if is_known_by_name(symbol)}
    definition_lines = {value.text for value in functions if not value.is_declaration and is_known_by_name(value.name)}
    if imported:
        text = change_lines(text, "declare ", lambda line: line if imported.isdisjoint(references(line)) else f"{line} nobuiltin")
    if definition_lines:
        text = change_lines(text, "define ", lambda line: _with_nobuiltin(line) if line in definition_lines else line)
    return text


def _with_nobuiltin(line: str) -> str:
    """Return the first line of a function's definition with the attribute `nobuiltin`. See `parse_head` for the exception."""
    suffix = parse_head(line[len("define ") :]).suffix
    return line.removesuffix(suffix) + add_attributes(suffix, ["nobuiltin"])


class Unresolved(NamedTuple):
    """A module whose declarations are not resolved.

    Attributes:
        module: the module.
        text: the module as LLVM prints it.
        values: its functions and variables.
        thread_locals: its thread-local variables.
        defined: the symbols that its assembly or the linker defines.
    """

    module: Any
    text: str
    values: GlobalValues
    thread_locals: Collection[str]
    defined: Collection[str]


def resolve_declarations(
    code: Unresolved,
    requests: Requests,
    cached_among: Callable[[list[str]], Collection[str]],
    *,
    shared: bool,
    is_beside: Callable[[str], bool],
    assumed: dict[str, bool] | None = None,
) -> Resolution:
    """Choose the provider of every declaration of a module. The linkages and attributes of declarations in the module are changed.

    The providers are tried in this order: `imports=`, `globals=`, other sources that are added together with this source, code that is
    linked statically into every shared object, the platform's libraries, the libraries that the source names, modules of the cache, other
    symbols of the process, and system libraries that the process has loaded.

    Args:
        code: the module.
        requests: the imports, globals and libraries of the source.
        cached_among: returns which of these names the cache has.
        shared: whether the image will be a shared object, with places for imports.
        is_beside: returns whether a source that is added together with this source defines a symbol.
        assumed: collects the symbols that nothing defines, and whether each is a function. They become imports, and the caller ensures
            that modules will define them, or raises the error of `undefined_symbols_error`. None: they are `Resolution.missing`.

    Raises:
        UndefinedSymbolError: the module does not use a symbol that the source provides.
        SignatureMismatchError: a variable is thread-local in the cache but not in the module, or in the module but not in the cache.
        CompileError: a thread-local variable cannot be imported or defined, or `globals=` defines a function as a value.
        GlobalValidationError: a value does not fit its variable.
        LibraryError: a library that the source names cannot be opened.
    """
    module = code.module
    functions = _declared_values(code.values.functions, shared=shared)
    variables = _declared_values(code.values.variables, shared=shared)
    defined_functions = {function.name for function in code.values.functions if not function.is_declaration}
    resolver = _Resolver(requests, cached_among, shared=shared, defined=code.defined, own=defined_functions, is_beside=is_beside)
    resolver.add_values(functions)
    target_data = llvm.create_target_data(module.data_layout) if requests.globals else None  # not one of another module (`data_layout`)
    resolver.add_values(variables, lambda name: _storage_of(module.get_global_variable(name), target_data))
    _fit_values(resolver.storage, module)
    missing = _keep_optimizer_copies(resolver.missing, module, functions, variables)
    _check_no_thread_locals([*resolver.imports, *missing], code.thread_locals)
    missing = _used_names(missing, symbol_counts(code.text)) if missing else []
    if assumed is not None and missing:
        assumed |= resolver.assume(missing, functions)
        missing = []
    _require_same_thread_locality(missing, cached_among)
    _check_use(code.text, requests, functions, variables, missing)
    for name in resolver.imports:
        if name in functions and _attributes_are_of_functions():
            module.get_function(name).add_function_attribute("nonlazybind")  # an indirect call, instead of a call to a jump
    _check_no_defined_thread_locals(resolver.storage, code.thread_locals)
    missing_kinds = {name: name in functions for name in missing}
    return _resolution_of(resolver, module, functions, variables, target_data)._replace(missing=missing_kinds)


def require_unused(missing: Mapping[str, bool], optimized: str) -> None:
    """Raise `UndefinedSymbolError` if optimized code uses a symbol of `Resolution.missing`. Calls that never run have been removed."""
    used = _used_names(missing, symbol_counts(optimized)) if missing else []
    if used:
        raise undefined_symbols_error(used, [name for name in used if missing[name]])


def _resolution_of(
    resolver: _Resolver, module: Any, functions: Mapping[str, GlobalValue], variables: Collection[str], target_data: Any
) -> Resolution:
    """Return the choices of a resolver, with the code that the module needs for them. `functions` and `variables` are declarations."""
    slots, storage = resolver.slots, resolver.storage
    thunks = tuple([name for name in functions if SLOT_PREFIX + name in slots or SLOT_PREFIX + name in storage])
    support = _support_text(module, functions, variables, slots, storage, thunks, target_data) if thunks or storage else ""
    static = resolver.static_symbols()
    if static:
        support = (support or target_text(module)) + static_runtime_text(static)
    library_symbols = frozenset(resolver.from_libraries)
    return Resolution(slots, storage, support, thunks, resolver.libraries, library_symbols, resolver.imports, tuple(resolver.null))


def _declared_values(values: Iterable[GlobalValue], *, shared: bool) -> dict[str, GlobalValue]:
    """Return the symbols, except LLVM's own, that are only declared, by name; with `shared`, also those defined only for the optimizer."""
    symbols = [value for value in values if not value.name.startswith("llvm.")]
    return {value.name: value for value in symbols if value.is_declaration or (shared and value.linkage == "available_externally")}


def _keep_optimizer_copies(
    missing: Iterable[str], module: Any, functions: Mapping[str, GlobalValue], variables: Mapping[str, GlobalValue]
) -> list[str]:
    """Make the module's copies of missing symbols internal, and return the missing symbols without a copy.

    Copies are definitions for the optimizer, for example of C++ templates.
    """
    copies = [name for name in missing if (functions.get(name) or variables[name]).linkage == "available_externally"]
    for name in copies:
        value = module.get_function(name) if name in functions else module.get_global_variable(name)
        value.linkage = "internal"
    return [name for name in missing if name not in copies]


def shared_function(name: str, archive: Archive) -> str:
    """Return the func_name for a function of a static library whose state all modules share (`compcache.miss.run_times`)."""
    return f"{name}.{archive.digest[:16]}"


def _check_no_thread_locals(imports: Iterable[str], thread_locals: Collection[str]) -> None:
    """Raise `CompileError` if an import is a thread-local variable: its address differs between threads, so it cannot be bound once."""
    for name in imports:
        if name in thread_locals:
            raise CompileError(
                f"the module uses {_describe_symbol(name)}, a thread-local variable of another module, which cannot be imported: export a "
                "function that returns the variable's address from the other module"
            )


def imported_thread_locals(
    declared: Iterable[str], requests: Requests, is_cached: Callable[[str], bool], is_beside: Callable[[str], bool]
) -> frozenset[str]:
    """Return the declared thread-local variables that modules define, not libraries.

    `is_cached` returns whether the cache has a name, and `is_beside` whether a source that is added together with this source defines a
    symbol. Raise `LibraryError` if a library cannot be opened.
    """
    opened_libraries = open_libraries(requests.libraries)

    def is_of_module(name: str) -> bool:
        """Return whether another module, not the platform or a loaded library, must define the thread-local variable."""
        if name in requests.imports or name in requests.globals:
            return name in requests.imports
        if is_beside(ADDRESS_OF + name):
            return True
        if platform_symbols.is_platform_symbol(name) or any(library.path_of(name) for library in opened_libraries):
            return False
        if is_cached(ADDRESS_OF + name):
            return True
        return not platform_symbols.in_process(name) and library_with(name, loaded_libraries()) is None

    return frozenset(filter(is_of_module, declared))


def _require_same_thread_locality(missing: Iterable[str], cached_among: Callable[[list[str]], Collection[str]]) -> None:
    """Raise `SignatureMismatchError` if a variable is thread-local only in the cache, or only in the module."""
    for name in missing:
        is_thread_local = name.startswith(ADDRESS_OF)
        plain = name.removeprefix(ADDRESS_OF)
        if cached_among([plain if is_thread_local else ADDRESS_OF + name]):
            use_text, cached_text = ("a thread-local", "not thread-local") if is_thread_local else ("a normal", "thread-local")
            raise SignatureMismatchError(
                f"the module uses {plain!r} as {use_text} variable, but the cached variable with this name is {cached_text}: declare the "
                "variable as the defining module does",
                func_name=plain,
            )


def _check_no_defined_thread_locals(storage: Iterable[str], thread_locals: Collection[str]) -> None:
    """Raise `CompileError` if `globals=` defines a thread-local variable of the module."""
    for name in storage:
        if name in thread_locals:
            raise CompileError(
                f"the external global {name!r} is thread-local, which globals= cannot define: define the variable in a module"
            )


def restore_resolution(
    module: Any, slots: Mapping[str, str], storage: Mapping[str, tuple[GlobalDefinition, Storage]], names: tuple[str, ...]
) -> Resolution:
    """Return the resolution of a stored module's declarations.

    `slots` has the imports (`Resolution.imported`), `storage` the globals, and `names` the libraries that the source names.

    Raise `LibraryError` if a library cannot be opened.
    """
    libraries = open_libraries(names)
    declared = [value.name for value in (*module.functions, *module.global_variables) if value.is_declaration]
    others = [name for name in declared if not platform_symbols.is_platform_symbol(name)]
    from_libraries = [name for name in others if any(library.path_of(name) for library in libraries)]
    plain = {symbol: name for symbol, name in slots.items() if not symbol.startswith(SLOT_PREFIX)}
    with_slots = {symbol: name for symbol, name in slots.items() if symbol not in plain}
    return Resolution(with_slots, dict(storage), "", (), libraries, frozenset(from_libraries), plain)


class _Resolver:
    """Chooses the providers of declarations.

    `defined` are the symbols that assembly or the linker defines, and `own` are the functions that the module itself defines.
    See `resolve_declarations` for the other arguments.
    """

    def __init__(
        self,
        requests: Requests,
        cached_among: Callable[[list[str]], Collection[str]],
        *,
        shared: bool,
        defined: Collection[str],
        own: Collection[str],
        is_beside: Callable[[str], bool],
    ) -> None:
        self._requests = requests
        self._defined = defined
        self._own = own
        self._cached_among = cached_among
        self._shared = shared
        self._is_beside = is_beside
        self.imports: dict[str, str] = {}
        self.libraries = open_libraries(requests.libraries)
        self.slots: dict[str, str] = {}
        self.storage: dict[str, tuple[GlobalDefinition, Storage]] = {}
        self.static: list[str] = []
        self.from_libraries: set[str] = set()
        self.missing: list[str] = []
        self.null: list[str] = []
        self._loaded: tuple[Library, ...] | None = None

    def add_values(self, values: Mapping[str, GlobalValue], storage_of: Callable[[str], Storage] | None = None) -> None:
        """Choose the providers of functions; with `storage_of`, of variables with this storage. See `_add_provided` for the exceptions."""
        remaining = [name for name in values if not self._add_provided(name, storage_of) and not self._add_linked(name)]
        cached = frozenset(self._cached_among(remaining) if remaining else ())
        for name in remaining:
            if name in cached:
                self._add_import(name, name, is_function=storage_of is None)
            else:
                self._find_in_process(name, values[name])

    def _add_import(self, symbol: str, name: str, *, is_function: bool) -> None:
        """Import a symbol under an exported name. `is_function` is whether the symbol is a function.

        A function of an object gets a slot. Other imports stay references to the symbol.
        """
        if self._shared or not is_function:
            self.imports[symbol] = name
        else:
            self.slots[SLOT_PREFIX + symbol] = name

    def assume(self, names: list[str], functions: Collection[str]) -> dict[str, bool]:
        """Turn undefined symbols into imports. Return, for each name, whether it is a function."""
        for name in names:
            self._add_import(name, name, is_function=name in functions)
        return {name: name in functions for name in names}

    def _add_provided(self, name: str, storage_of: Callable[[str], Storage] | None) -> bool:
        """Add a name that this source, or another source of the same addition, provides. Return False if no source provides the name.

        `storage_of` returns the storage of a variable; None for functions.

        Raise `CompileError` if a global that is called is defined by a value, or `GlobalValidationError` if a variable's type has no size.
        """
        definition, is_function = self._requests.globals.get(name), storage_of is None
        if name in self._requests.imports:
            self._add_import(name, self._requests.imports[name], is_function=is_function)
        elif definition is not None and storage_of is None:
            self.storage[SLOT_PREFIX + name] = definition, _function_storage(name, definition)
        elif definition is not None and storage_of is not None:
            self.storage[name] = definition, storage_of(name)
        elif name not in self._defined and self._is_beside(name):
            self._add_import(name, name, is_function=is_function)
        else:
            return False
        return True

    def _add_linked(self, name: str) -> bool:
        """Add a symbol that the image's own code, the platform or a named library defines. Return False if none of them defines it.

        A function of an archive whose state all modules share becomes an import, if the cache has it and the module does not define it.
        """
        if name in self._defined:
            return True
        if name in STATIC_RUNTIME:
            self.static.append(name)
            return True
        if platform_symbols.is_platform_symbol(name):
            return True
        library = next((library for library in self.libraries if library.path_of(name)), None)
        if library is None:
            return False
        func_name = shared_function(name, library) if isinstance(library, Archive) and name.startswith(STATE_PREFIXES) else ""
        if func_name and func_name not in self._own and self._cached_among([func_name]):
            self._add_import(name, func_name, is_function=True)
        else:
            self.from_libraries.add(name)
        return True

    def static_symbols(self) -> list[str]:
        """Return the symbols of the static runtime that the image needs and the module does not define."""
        archives = [library for library in self.libraries if isinstance(library, Archive)]
        if any(archive.path_of(name) for archive in archives for name in self.from_libraries):  # members may use any of these symbols
            return [name for name in sorted(STATIC_RUNTIME) if name not in self._own]
        return self.static

    def _find_in_process(self, name: str, value: GlobalValue) -> None:
        """Find a symbol in this process. A weak reference to a symbol outside the global scope becomes null.

        Any other symbol outside the global scope is added to `from_libraries`, and its library to `libraries`. If no loaded library defines
        the symbol, it is added to `missing`.
        """
        if platform_symbols.in_process(name):
            return
        if value.linkage == "external_weak":
            self.null.append(name)
            return
        if self._loaded is None:
            self._loaded = loaded_libraries()
        library = library_with(name, self._loaded)
        if library is None:
            self.missing.append(name)
        else:
            self.from_libraries.add(name)
            if library not in self.libraries:
                self.libraries = (*self.libraries, library)


def _check_use(text: str, requests: Requests, functions: Collection[str], variables: Collection[str], missing: list[str]) -> None:
    """Raise `UndefinedSymbolError` for symbols that the source provides and the module does not use. The error names `missing`, too."""
    provided = {*requests.imports, *requests.globals}
    counts = symbol_counts(text) if provided else {}
    declared = {name for name in provided if name in functions or name in variables}
    unused = sorted(provided.difference([name for name in _used_names(provided, counts) if name in declared]))
    if unused:
        raise undefined_symbols_error(missing, functions, unused, [name for name in unused if name in counts and name not in declared])


def _used_names(names: Iterable[str], counts: Mapping[str, int]) -> list[str]:
    """Return the symbols that the module uses and does not only declare, sorted."""
    return sorted(name for name in names if counts.get(name, 0) > 1)  # the declaration counts as one


def undefined_symbols_error(
    missing: list[str], functions: Collection[str], unused: Collection[str] = (), defined: Collection[str] = ()
) -> UndefinedSymbolError:
    """Return the error about symbols that nothing defines, and about provided symbols that the module does not use.

    Args:
        missing: the symbols that nothing defines.
        functions: the declared functions, which get other advice than variables.
        unused: the symbols that `imports=` or `globals=` names, and that the module does not use.
        defined: the symbols of `unused` that the module or its group defines.
    """
    parts = []
    if len(missing) == 1:
        parts.append(
            f"the module uses {_describe_symbol(missing[0])}, {_NOT_PROVIDED}: "
            f"{_advice_on_symbol(missing[0], is_function=missing[0] in functions)}"
        )
    elif missing:
        lines = [f"{_describe_symbol(name)}: {_advice_on_symbol(name, is_function=name in functions)}" for name in missing]
        parts.append(f"the module uses {len(missing)} symbols {_NOT_PROVIDED}:\n  " + join_first(lines, _MOST_SHOWN, "\n  "))
    for names, problem in (
        (defined, "which the module or its group defines: remove the name"),
        ([name for name in unused if name not in defined], "which the module does not use: remove the name, or use the symbol"),
    ):
        if names:
            parts.append(f"imports= or globals= names {join_first(map(_describe_symbol, sorted(names)), _MOST_SHOWN)}, {problem}")
    return UndefinedSymbolError(("\n" if len(missing) > 1 else "; ").join(parts), symbols=missing, unused=unused)


def _advice_on_symbol(name: str, *, is_function: bool) -> str:
    """Return what to do about an undefined symbol. `is_function` is whether the module declares it as a function."""
    advice = advice_on_runtime_library(name.removeprefix(ADDRESS_OF))
    if advice is not None:
        return advice
    if name.startswith(ADDRESS_OF):
        return "name the variable in imports= if another module will define it, or name its library in libraries= or archives="
    definition = "globals= if it is a function of this process (NativeSymbol)" if is_function else "globals= with its value"
    return f"name the symbol in imports= if another module will define it, in {definition}, or name its library in libraries= or archives="


def _describe_symbol(name: str) -> str:
    """Return a symbol as messages show it: quoted, with the demangled name if it has one."""
    if name.startswith(ADDRESS_OF):
        return f"{_describe_symbol(name.removeprefix(ADDRESS_OF))}, a thread-local variable"
    plain = demangle(name)
    return repr(name) if plain == name else f"{name!r} ({plain})"


def _function_storage(name: str, definition: GlobalDefinition) -> Storage:
    """Return the storage of a global that is called. Raise `CompileError` if its definition gives a value instead of an address."""
    if definition.kind in _NOT_CALLED:
        raise CompileError(
            f"the module declares {name!r} as a function, but globals= gives it the value {definition!r}: use a NativeSymbol, or a "
            "definition of a registered kind (compcache.globals.register) that gives an address"
        )
    return Storage("pointer", 8)


def _storage_of(variable: Any, target_data: Any) -> Storage:
    """Return the form and the size of a variable's storage, from its LLVM type. Raise `GlobalValidationError` if the type has no size."""
    llvm_type = variable.global_value_type
    if not _has_size(llvm_type):
        raise GlobalValidationError(
            f"globals= defines {variable.name!r}, whose type in the code has no size: declare the variable as an array of bytes"
        )
    size = target_data.get_abi_size(llvm_type)
    text = str(llvm_type)
    if llvm_type.is_pointer:
        return Storage("pointer", size)
    if re.fullmatch(r"i\d+", text):
        return Storage("int", size)
    if text in ("float", "double"):
        return Storage("float", size)
    fields = [str(field) for field in llvm_type.elements] if llvm_type.is_struct else []
    if fields == ["ptr", "i64"]:
        return Storage("span", size)
    return Storage("inline", size)


def _has_size(llvm_type: Any) -> bool:
    """Return whether LLVM knows the size of a type. LLVM aborts the process for the size of other types."""
    if llvm_type.is_struct or llvm_type.is_array:
        return not str(llvm_type).endswith(" = type opaque") and all(map(_has_size, llvm_type.elements))
    return not str(llvm_type).startswith("target(")


def _fit_values(storage: dict[str, tuple[GlobalDefinition, Storage]], module: Any) -> None:
    """Check that values fit the types of their variables, and truncate integers in `storage` to the widths of their types.

    Raise `GlobalValidationError` if a value does not fit.
    """
    for name, (definition, form) in storage.items():
        if form.form not in ("inline", "int"):
            continue
        type_ = str(module.get_global_variable(name).global_value_type)
        try:
            if form.form == "inline":
                check_elements(definition, type_, form.size)
            elif isinstance(definition, Integer) and int(type_[1:]) != 8 * form.size:
                storage[name] = _truncate_integer(definition, int(type_[1:])), form
        except GlobalValidationError as error:
            raise GlobalValidationError(f"global variable {name!r}: {error}", global_name=name, reason=error.reason) from error


def _truncate_integer(definition: Integer, bits: int) -> Integer:
    """Return an integer as an unsigned value of its type's width, because code relies on zeros in the other bits of the storage.

    Raise `GlobalValidationError` if the type cannot represent the integer.
    """
    if not -(1 << (bits - 1)) <= definition.value < 1 << bits:
        raise invalid_error(f"{describe_integer(definition.value)} does not fit the type i{bits}: give another value, or change the type")
    return Integer(definition.value & ((1 << bits) - 1))


def _support_text(
    module: Any,
    functions: Mapping[str, GlobalValue],
    variables: Collection[str],
    slots: Mapping[str, str],
    storage: Mapping[str, tuple[GlobalDefinition, Storage]],
    thunks: tuple[str, ...],
    target_data: Any,
) -> str:
    """Return a module that defines the slots, the storage of global values and the thunks of `module`, as LLVM assembly."""
    lines = [target_text(module)]
    if thunks:
        lines += [str(struct) for struct in module.struct_types if " = type " in str(struct)]
    lines += [f"@{quote(slot)} = hidden externally_initialized global ptr null, align 8" for slot in slots]
    for name, (_, form) in storage.items():
        value, align = "ptr null", 8  # the slot of a function
        if name in variables:
            value = {"pointer": "ptr null", "int": f"i{8 * form.size} 0"}.get(form.form, f"[{form.size} x i8] zeroinitializer")
            align = _alignment_of(module.get_global_variable(name), target_data)
        lines.append(f"@{quote(name)} = hidden externally_initialized global {value}, align {align}")
    lines += [_thunk_text(name, functions[name].text, str(module.get_function(name).global_value_type)) for name in thunks]
    return "\n".join([*lines, ""])


def _alignment_of(variable: Any, target_data: Any) -> int:
    """Return an alignment in bytes that satisfies all code: the greatest of the declared, the type's and the least alignment."""
    declared = _ALIGN.search(_QUOTED.sub("", str(variable)))
    usual: int = target_data.get_abi_alignment(variable.global_value_type)
    return max(_LEAST_ALIGNMENT, usual, int(declared[1]) if declared else 0)


def _thunk_text(name: str, line: str, function_type: str) -> str:
    """Return LLVM assembly that defines a function as a call through its slot.

    `line` declares the function, or defines it for the optimizer. See `parse_head` for the exception.
    """
    head = parse_head(line.partition(" ")[2])
    prefix = " ".join(word for word in head.prefix.split(" ") if word not in _LINKAGE_WORDS)
    result = function_type.removesuffix(split_words(function_type)[-1]).rstrip()  # without the parameters
    call_prefix = prefix.removesuffix(result).strip()
    parameters = map(without_name, head.parameters)
    arguments = [type_text if type_text == "..." else f"{type_text} %a{number}" for number, type_text in enumerate(parameters)]
    joined = ", ".join(arguments)
    call = " ".join(filter(None, ["musttail call", call_prefix, function_type, f"%target({joined})"]))
    value, back = ("", "ret void") if result == "void" else ("%result = ", f"ret {result} %result")
    return "\n".join([
        f"define {prefix} @{quote(name)}({joined}) alwaysinline {{",
        f"  %target = load ptr, ptr @{quote(SLOT_PREFIX + name)}, align 8",
        f"  {value}{call}",
        f"  {back}",
        "}",
    ])  # fmt: skip
