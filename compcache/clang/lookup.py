"""Finds the compiled functions of a unit, or compiles it.

A unit has two names. The first name contains a digest of everything that is known without running the compiler. The entry of this name
contains the second name and the headers that the compiler read. The second name contains a digest of the preprocessed source, the
compiler's version and the flags. The function of the second name returns the list of the unit's functions.
"""

from __future__ import annotations

import os

from compcache import frontend
from compcache.build.source import Function, ModuleSource
from compcache.clang.units import file_digest
from compcache.content.names import seal
from compcache.errors import CompcacheError, CompileError
from compcache.hit.compiled import CompiledFunctions
from compcache.identity import Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from compcache.cache import Cache
    from compcache.clang.run import Translation
    from compcache.clang.units import Unit

__all__ = ["compiled_functions", "source_of_unit"]

_LIST = "compcache.functions"
#: The kind of the entries with which a unit's functions are found without running the compiler.
_KIND = "clang"
_TEXT = """\
@compcache.text = private constant [{size} x i8] c"{text}"
define ptr @{name}() {attributes} {{ ret ptr @compcache.text }}
"""


def compiled_functions(cache: Cache, unit: Unit, functions: Mapping[str, Any] | None, options: Mapping[str, Any]) -> CompiledFunctions:
    """Return the functions of a unit. Compile the unit if the cache does not contain them.

    See `compcache.clang.compile` for `functions`, `options` and the exceptions.
    """
    options_digest = seal(ModuleSource("", functions, **options)).digest  # everything except the code that affects the functions
    stored = {name: repr(options[name]) for name in ("entries", "part_of") if name in options}
    signatures = None if functions is None else {str(name): repr(value) for name, value in functions.items()}
    fields = {"functions": signatures, "options": {"digest": options_digest, **stored} if options else {}}
    shortcut_name = Identity(f"{unit.label}.given", given=unit.input_digest(), **fields).func_name
    names = _stored_names(cache, shortcut_name)
    if names is None:
        names = _compile_and_store(cache, unit, shortcut_name, functions, options, fields)

    def build() -> ModuleSource:
        """Return the unit's module, to replace removed or unreadable code. Raise `CompileError` if the changed source lacks a function."""
        source = _make_source(unit, functions, options, fields)
        if not set(names.values()) <= set(source.functions or ()):
            raise CompileError(
                f"{unit.label} was changed after it was compiled, and the earlier code was removed from the cache: compile the source again"
            )
        return source

    return CompiledFunctions(names, lambda name: cache.get_or_compile(name, build))


def _stored_names(cache: Cache, shortcut_name: str) -> dict[str, str] | None:
    """Return the functions' names in the cache, by their names in the source.

    The result is None if the unit is not stored, an input differs, or the cache cannot be read.
    """
    try:
        data = frontend.get_entry(cache, shortcut_name, _KIND)
        if data is None:
            return None
        list_name, *files = data.decode("utf-8", "surrogateescape").split("\n")
        for digest, _, path in [line.partition(" ") for line in files]:
            if file_digest(path) != digest if digest else os.path.exists(path):
                return None
        return _read_function_list(cache.get_target(list_name))
    except CompcacheError:
        return None


def _read_function_list(target: Callable[[], object]) -> dict[str, str]:
    """Return the func_names of a unit's functions by plain name. `target` is the stored function that returns them as a text."""
    pairs = [line.partition(" ") for line in str(target()).split("\n") if line]
    return {plain: func_name for plain, _, func_name in pairs}


def _compile_and_store(
    cache: Cache, unit: Unit, shortcut_name: str, functions: Mapping[str, Any] | None, options: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, str]:
    """Preprocess a unit, compile it unless its text is cached, and store a shortcut. Return the func_names of its functions by plain name.

    See `compcache.clang.compile` for the exceptions.
    """
    from compcache.clang.run import preprocess

    translation = preprocess(unit)
    identity = _identity_of(unit, translation, fields)
    list_name = identity.func_name
    target = cache.get_or_compile(list_name, lambda: source_of_unit(unit, translation, identity, functions, options))
    _store_shortcut(cache, unit, translation, shortcut_name, list_name)
    return _read_function_list(target)


def _identity_of(unit: Unit, translation: Translation, fields: Mapping[str, Any]) -> Identity:
    """Return the identity of a unit, with further fields. See `identity_of_unit`."""
    from compcache.clang.run import identity_of_unit

    return identity_of_unit(unit, translation).extend(**fields)


def _make_source(unit: Unit, functions: Mapping[str, Any] | None, options: Mapping[str, Any], fields: Mapping[str, Any]) -> ModuleSource:
    """Preprocess and compile a unit, and return the module for the cache. See `preprocess` and `source_of_unit` for the exceptions."""
    from compcache.clang.run import preprocess

    translation = preprocess(unit)
    return source_of_unit(unit, translation, _identity_of(unit, translation, fields), functions, options)


def _store_shortcut(cache: Cache, unit: Unit, translation: Translation, shortcut_name: str, list_name: str) -> None:
    """Store the entry by which later calls find the functions without running the compiler.

    The entry contains digests of the headers, and the paths at which the compiler found none. It is not stored if these may not be all
    inputs (`Translation.files`), if the source or a header has changed or cannot be read, or if the cache cannot store it.
    """
    files = translation.files
    if files is None or any("\n" in path for path in (*files, *translation.missing)):
        return
    lines = [f"{file_digest(path)} {path}" for path in files]
    if any(line[0] == " " for line in lines) or not translation.is_settled(unit):
        return
    lines += [f" {path}" for path in translation.missing]
    try:
        frontend.put_entry(cache, shortcut_name, "\n".join([list_name, *lines]).encode("utf-8", "surrogateescape"), kind=_KIND)
        frontend.write_entries(cache)
    except CompcacheError:
        pass  # the next call runs the preprocessor again


def source_of_unit(
    unit: Unit, translation: Translation, identity: Identity, functions: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> ModuleSource:
    """Return the module of a unit. The functions have content names. One more function returns the list of these names.

    The content names are derived from `identity`. See `compcache.clang.compile` for `functions` and `options`.

    Raise `CompileError` if the compiler reports errors, or the source defines no externally visible function. See `translate` and
    `add_runtime_libraries` for other exceptions.
    """
    from compcache.clang.bitcode import link_assembly, read_symbols
    from compcache.clang.run import makers_of_unit, optimization_level, translate
    from compcache.clang.runtimes import add_runtime_libraries

    code = translate(unit, translation)
    symbols = read_symbols(code)
    code, options = add_runtime_libraries(unit, code, options, symbols)
    exports: dict[str, Any] = dict(functions) if functions is not None else dict.fromkeys(symbols.exported)
    if not exports:
        raise CompileError(f"{unit.label} defines no externally visible function: define at least one")
    content_names = {name: Identity(name, unit=identity).func_name for name in exports}
    exported_functions: dict[str, Any] = {}
    for name, value in exports.items():
        function = value if isinstance(value, Function) else Function(value)
        exported_functions[content_names[name]] = Function(function.signature, function.symbol or name, function.nogil, function.shown)
    exported_functions[identity.func_name] = Function("cstr()", _LIST)
    text = "\n".join(f"{name} {func_name}" for name, func_name in content_names.items())
    code = link_assembly(code, _list_function(text))
    defaults = {"optimize": optimization_level(unit), "identity": identity, "makers": makers_of_unit(translation)}
    return ModuleSource(code, exported_functions, **{**defaults, **options})


def _list_function(text: str) -> str:
    """Return LLVM assembly of a function that returns `text`, the list of a unit's functions. The function runs on all CPUs."""
    from compcache.formats.host import platform_name
    from compcache.targets.cpu_table import baseline, table_of

    platform = platform_name()
    attributes = f'"target-cpu"="{baseline(platform)}" "target-features"' if table_of(platform) else ""
    data = text.encode("utf-8", "surrogateescape") + b"\0"
    return _TEXT.format(size=len(data), text="".join(f"\\{byte:02X}" for byte in data), name=_LIST, attributes=attributes)
