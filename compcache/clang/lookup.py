"""Finds what a unit was compiled to, or compiles it.

Two names stand for a unit: one for all that is known without running the compiler, under which a function says which headers
were read and what the other name is; and one for the preprocessed source, the compiler's version and the flags, under which a
function says which functions there are.
"""

from __future__ import annotations

from compcache.build.source import Function, ModuleSource
from compcache.clang.units import file_digest
from compcache.content.names import seal
from compcache.errors import CompcacheError
from compcache.hit.compiled import CompiledFunctions
from compcache.identity import Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from compcache.cache import Cache
    from compcache.clang.run import Translation
    from compcache.clang.units import Unit

__all__ = ["compiled_functions", "source_of_unit"]

_LIST = "compcache.functions"
_TEXT = """\
@text = private constant [{size} x i8] c"{text}"
define ptr @{name}() {{ ret ptr @text }}
"""


def compiled_functions(cache: Cache, unit: Unit, functions: Mapping[str, Any] | None, options: Mapping[str, Any]) -> CompiledFunctions:
    """See `compcache.clang.compile`."""
    beside = seal(ModuleSource("", functions, **options)).digest  # all that decides what functions do, but for their code
    stored = {name: repr(options[name]) for name in ("entries", "part_of") if name in options}
    asked = {"functions": _described(functions), "options": {"digest": beside, **stored} if options else {}}
    given = Identity(f"{unit.label}.given", given=unit.given(), **asked).func_name
    names = _names_of(cache, given)
    if names is None:
        names = _compile(cache, unit, given, functions, options, asked)
    return CompiledFunctions(names, cache.get_target)


def _described(functions: Mapping[str, Any] | None) -> dict[str, str] | None:
    return None if functions is None else {str(name): repr(value) for name, value in functions.items()}


def _names_of(cache: Cache, given: str) -> dict[str, str] | None:
    """The names of the functions, if the headers are what they were."""
    try:
        if not cache.has(given):
            return None
        name, *files = _read(cache, given)
        if any(not digest or file_digest(path) != digest for digest, _, path in (line.partition(" ") for line in files)):
            return None
        return _functions_in(cache, name)
    except CompcacheError:
        return None


def _read(cache: Cache, name: str) -> list[str]:
    text = cache.get_target(name)()
    return str(text).split("\n")


def _functions_in(cache: Cache, name: str) -> dict[str, str]:
    pairs = [line.partition(" ") for line in _read(cache, name) if line]
    return {plain: func_name for plain, _, func_name in pairs}


def _compile(
    cache: Cache, unit: Unit, given: str, functions: Mapping[str, Any] | None, options: Mapping[str, Any], asked: Mapping[str, Any]
) -> dict[str, str]:
    from compcache.clang.run import identity_of_unit, preprocess

    translation = preprocess(unit)
    identity = identity_of_unit(unit, translation).extend(**asked)
    listed = identity.func_name
    if not cache.has(listed):
        source = source_of_unit(unit, translation, identity, functions, options)
        cache.get_or_compile(listed, lambda: source)
    _keep_shortcut(cache, unit, translation, given, listed)
    return _functions_in(cache, listed)


def _keep_shortcut(cache: Cache, unit: Unit, translation: Translation, given: str, listed: str) -> None:
    """Let the next call find the functions without the compiler, unless it could not tell that a header has changed."""
    files = translation.files
    if files is None or any("\n" in path for path in files):
        return
    lines = [f"{file_digest(path)} {path}" for path in files]
    if all(line[0] != " " for line in lines) and translation.is_settled(unit):
        cache.get_or_compile(given, lambda: _text_source(given, "\n".join([listed, *lines])))


def source_of_unit(
    unit: Unit, translation: Translation, identity: Identity, functions: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> ModuleSource:
    """The code of a unit with names of its content, and a function that lists these.

    Raises:
        CompileError: the compiler reports errors.
    """
    from compcache.clang.bitcode import symbols_of, with_text
    from compcache.clang.run import makers_of_unit, optimization_level, translate
    from compcache.clang.runtimes import with_runtime

    code = translate(unit, translation)
    symbols = symbols_of(code)
    code, options = with_runtime(unit, code, options, symbols)
    exports: dict[str, Any] = dict(functions) if functions is not None else dict.fromkeys(symbols.exported)
    names = {plain: Identity(plain, unit=identity).func_name for plain in exports}
    named: dict[str, Any] = {}
    for plain, value in exports.items():
        function = value if isinstance(value, Function) else Function(value)
        named[names[plain]] = Function(function.signature, function.symbol or plain, function.nogil, function.shown)
    named[identity.func_name] = Function("cstr()", _LIST)
    text = "\n".join(f"{plain} {func_name}" for plain, func_name in names.items())
    code = with_text(code, _constant(_LIST, text))
    return ModuleSource(
        code, named, **{"optimize": optimization_level(unit), "identity": identity, "makers": makers_of_unit(translation), **options}
    )


def _text_source(name: str, text: str) -> ModuleSource:
    return ModuleSource(_constant(_LIST, text), {name: Function("cstr()", _LIST)}, optimize=0, keep_bitcode=False)


def _constant(name: str, text: str) -> str:
    data = text.encode("utf-8", "surrogateescape") + b"\0"
    return _TEXT.format(size=len(data), text="".join(f"\\{byte:02X}" for byte in data), name=name)
