"""Content names: digests of sources, and sources whose functions are named by a digest or an identity.

Programs compute names before a hit, so this file imports nothing slow, and never LLVM.
"""

from __future__ import annotations

import sys
from itertools import chain

from compcache.build.source import Function, ModuleSource
from compcache.content.assembled_files import assembled_files
from compcache.digest import blake2b, digest
from compcache.errors import CompileError, GlobalValidationError, LibraryError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from compcache.identity import Identity
    from compcache.store import Store

__all__ = [
    "NAMES", "NamedSource", "SealedSource", "as_source", "content_digest", "digest_beside_code", "digest_of", "encode_names",
    "exported_as", "freeze", "has_archives", "option_parts", "parts_given_by_name", "read_names", "seal", "source_digests", "source_of",
    "text_of_export",
]  # fmt: skip

#: The kind of entries of data with the names of a source's functions.
NAMES = "names"
_VERSION = b"1"  # the version of the digested content; a change gives all functions new names
_PERSON = b"compcache-source"
_NAME_BYTES = 16
#: The limit in bytes up to which parts are joined and digested in one step.
_MOST_COPIED = 1 << 20
_MAX_SHOWN_CODE = 4096  # characters of code that `explain` compares as text
_TAIL = -1 - 2 * _NAME_BYTES  # the position of the dash in a content name
_NO_CODE = "ir must be LLVM assembly (str), bitcode (bytes) or an llvmlite module, not {}"


class NamedSource:
    """A source whose functions have content names. Calling it returns a source that exports them under these names.

    `names` maps the plain name of each function to its func_name.
    """

    __slots__ = ("_sealed", "names")

    def __init__(self, sealed: SealedSource, names: dict[str, str]) -> None:
        self._sealed = sealed
        self.names = names

    def __call__(self) -> ModuleSource:
        """Return a source that exports all functions under their func_names."""
        return self.exporting(self.names.values())

    def exporting(self, func_names: Iterable[str]) -> ModuleSource:
        """Return a source that exports these functions, with an entry that lists all functions. See `freeze` for the exception."""
        sealed, names, exported = self._sealed, self.names, frozenset(func_names)
        source = freeze(sealed.source)
        functions = source.functions or {}
        source.functions = {name: exported_as(functions.get(plain), plain) for plain, name in names.items() if name in exported}
        source.identity = _compared_components(source) if source.identity is None else source.identity
        source.named_entries = {(NAMES, sealed.name): encode_names(names)}
        return source


class SealedSource:
    """The arguments of `Cache.compile` at the time of the call.

    `source` is frozen. `digest` is the digest of its content. `name` is the name of the entry of data that lists its functions' names.
    """

    __slots__ = ("digest", "name", "source")

    def __init__(self, source: ModuleSource) -> None:
        self.source = source
        self.digest = content_digest(source)
        self.name = f"source-{self.digest.hex()}"


def seal(code: Any) -> SealedSource:
    """Return a sealed copy of a source or of LLVM code. Later changes of the argument do not affect it.

    Raises:
        CompileError: `code` is neither a source nor LLVM code.
        GlobalValidationError: the value of a global cannot be stored.
    """
    source = freeze(as_source(code, "compile()"))
    if not isinstance(source.ir, (str, bytes)):
        raise CompileError(_NO_CODE.format(type(source.ir).__name__))
    if source.globals:
        from compcache.globals import define

        source.globals = {name: define(value) for name, value in source.globals.items()}
    return SealedSource(source)


def encode_names(names: Mapping[str, str]) -> bytes:
    """Encode func_names as the data of a `NAMES` entry. Each func_name is a plain name, a dash and a digest."""
    return "\0".join(names.values()).encode()


def read_names(store: Store, entry: str) -> dict[str, str] | None:
    """Read the func_names of a source's functions from the entry of data `entry`.

    Returns:
        The func_names by plain name, or None if the entry is not stored, or has no name. The functions themselves need not be stored.
    """
    record = store.read_entry(NAMES, entry, alone=False)
    if record is None or record.gone:
        return None
    names = [name for name in record.data.decode("utf-8", "replace").split("\0") if name[_TAIL : _TAIL + 1] == "-"]
    return {name[:_TAIL]: name for name in names} or None


def exported_as(value: Any, symbol: str) -> Function:
    """Convert a value of `ModuleSource(functions=...)` to a `Function` with a symbol, which is `symbol` by default."""
    function = value if isinstance(value, Function) else Function(value)
    return Function(function.signature, function.symbol or symbol, function.nogil, function.shown)


def as_source(result: Any, caller: str) -> ModuleSource:
    """Return `result` if it is a source; otherwise return a source for the LLVM code `result`.

    `caller` is the start of the error message: the function that received or returned `result`.

    Raise `CompileError` if `result` is neither a source nor LLVM code.
    """
    if isinstance(result, ModuleSource):
        return result
    if isinstance(result, (str, bytes, bytearray, memoryview)) or hasattr(result, "as_bitcode") or _is_llvmlite_module(result):
        return ModuleSource(result)
    if hasattr(result, "__fspath__"):
        raise CompileError(f"{caller}: {str(result)!r} is a path, not code: pass the file's content, open({str(result)!r}, 'rb').read()")
    verb, requires = ("got", "requires") if caller == "compile()" else ("returned", "must return")
    result_type = "None" if result is None else f"an object of type {type(result).__name__}"
    raise CompileError(
        f"{caller} {verb} {result_type}, but {requires} a compcache.ModuleSource or LLVM code (assembly text, bitcode, an llvmlite module)"
    )


def source_of(result: Any, func_name: str, identity: Identity | None = None) -> ModuleSource:
    """Convert the return value of `build` to a source that exports a function under its func_name.

    With an identity, the code and `functions` may contain the identity's label instead of the func_name. Without one, a source is returned
    unchanged. Raise `CompileError` if `result` is neither a source nor LLVM code.
    """
    source = as_source(result, f"build() for {func_name!r}")
    if identity is None:
        return source
    source = freeze(source)
    symbol = func_name if _contains_name(source.ir, func_name) else identity.label
    if source.functions is None:
        source.functions = {func_name: Function(None, symbol)}
    elif func_name in source.functions:
        source.functions = {**source.functions, func_name: exported_as(source.functions[func_name], symbol)}
    else:
        renamed = {}
        for name, value in source.functions.items():
            is_label = name == identity.label
            renamed[func_name if is_label else name] = exported_as(value, symbol if is_label else name)
        source.functions = renamed
    if source.identity is None:
        source.identity = identity
    return source


def _contains_name(code: Any, name: str) -> bool:
    """Return whether a name occurs in LLVM assembly or bitcode; False for code in other forms."""
    if isinstance(code, str):
        return name in code
    return isinstance(code, bytes) and name.encode("utf-8", "surrogatepass") in code


def freeze(source: ModuleSource) -> ModuleSource:
    """Return a copy of a source whose code is str or bytes. Later changes of llvmlite objects do not affect it.

    Raise `CompileError` if the llvmlite module is closed.
    """
    ir = source.ir
    if isinstance(ir, (bytearray, memoryview)):
        ir = bytes(ir)
    elif hasattr(ir, "as_bitcode") or _is_llvmlite_module(ir):
        ir = _module_text(ir)
    copied = object.__new__(type(source))
    copied.__dict__.update(source.__dict__)
    copied.ir = ir
    if source.targets is not None and not isinstance(source.targets, str):
        copied.targets = tuple(source.targets)
    if not isinstance(source.libraries, str):
        copied.libraries = tuple(source.libraries)
    if not isinstance(source.archives, str):
        copied.archives = tuple(source.archives)
    if source.imports and not isinstance(source.imports, str) and not hasattr(source.imports, "items"):
        copied.imports = tuple(source.imports)
    return copied


def _module_text(module: Any) -> str:
    """Return the assembly text of a module. Writing bitcode would assemble inline assembly, which may abort the process.

    Raise `CompileError` if the module is closed.
    """
    if not hasattr(module, "as_bitcode"):
        return str(module)
    if module.closed:
        raise CompileError("the llvmlite module is closed: pass a module to the cache before you close it or link it into another module")
    from compcache.images.llvm_thread import in_llvm_thread

    return in_llvm_thread(lambda: str(module))


def _is_llvmlite_module(ir: object) -> bool:
    """Return whether `ir` is a module of llvmlite.ir. That package is not imported for the answer."""
    return isinstance(ir, getattr(sys.modules.get("llvmlite.ir"), "Module", ()))  # another thread may be importing it


def content_digest(source: ModuleSource) -> bytes:
    """Return a digest of everything that determines the behaviour of a frozen source's functions.

    It covers the code, the functions with their signatures, the definitions of globals, the imports, the options, and the requested CPU.
    If no CPU is requested, the digest is the same on all hosts, although hosts with different CPUs have different realizations.
    """
    return digest(_frame_parts([*_code_parts(source), *option_parts(source)]), size=_NAME_BYTES, person=_PERSON)


def digest_of(parts: Iterable[bytes]) -> bytes:
    """Return a digest of parts for a content name."""
    versioned = (_VERSION, *parts)
    if sum(map(len, versioned)) > _MOST_COPIED:
        return digest(_frame_parts(versioned), size=_NAME_BYTES, person=_PERSON)
    # The same bytes as those of `_frame_parts`, in one step, which is faster for many small parts.
    framed = b"%d:%b" * len(versioned) % tuple(chain.from_iterable(zip(map(len, versioned), versioned, strict=True)))
    return blake2b(framed, digest_size=_NAME_BYTES, person=_PERSON).digest()


def parts_given_by_name(source: ModuleSource) -> dict[str, list[bytes]]:
    """Return the imports and the globals of a frozen source as parts for a digest, by symbol."""
    parts: dict[str, list[bytes]] = {}
    for symbol, name in _import_pairs(source.imports):
        parts.setdefault(symbol, []).extend(_encode_texts(["import", name]))
    for name, definition in (source.globals or {}).items():
        parts.setdefault(name, []).extend(_global_parts({name: definition}))
    return parts


def option_parts(source: ModuleSource) -> list[bytes]:
    """Return the options, the CPUs, the libraries, the identity and the files in inline assembly of a frozen source, for a digest."""
    options = [str(source.optimize), str(source.cpu), str(source.features), str(source.keep_bitcode)]
    for values in (source.targets, source.libraries):
        options += ["list", *map(str, values or ())]
    options += _archive_digests(source)
    options += [text for pair in _identity_components(source).items() for text in pair]
    return [*_encode_texts(options), *(assembled_files(source.ir) if isinstance(source.ir, str) else ())]


def _as_tuple(names: Any) -> tuple[Any, ...]:
    """Return one or several names, or None, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names or ())


def _archives_among(libraries: Any) -> list[str]:
    """Return the names of the static libraries among `libraries`."""
    return [name for name in map(str, _as_tuple(libraries)) if name.endswith((".a", ".rlib"))]


def has_archives(source: ModuleSource) -> bool:
    """Return whether a source is linked with static libraries."""
    return bool(source.archives or _archives_among(source.libraries))


def _archive_digests(source: ModuleSource) -> list[str]:
    """Return the names and digests of a source's static libraries. The digest of an unreadable library is left out; linking reports it."""
    archives = [*_archives_among(source.libraries), *_as_tuple(source.archives)]
    if not archives:
        return []
    from compcache.images.archives import open_archive

    digests = []
    for name in archives:
        try:
            digests += [str(name), open_archive(str(name)).digest]
        except LibraryError:
            digests.append(str(name))
    return digests


def source_digests(source: ModuleSource) -> tuple[bytes, bytes]:
    """Return a digest of a frozen source without options, CPU and identity, and its `content_digest`. The code is hashed only once."""
    state = blake2b(digest_size=_NAME_BYTES, person=_PERSON)
    for _ in map(state.update, _frame_parts(_code_parts(source))):  # large code is not joined
        pass
    code = state.digest()
    state.update(b"".join(_frame_parts(option_parts(source))))
    return code, state.digest()


def digest_beside_code(source: ModuleSource) -> bytes:
    """Return a digest of a frozen source's imports, globals and libraries, which affect its functions but are not in its code."""
    provided = parts_given_by_name(source)
    parts = [part for symbol in sorted(provided) for part in [*_encode_texts([symbol]), *provided[symbol]]]
    return digest_of([*_encode_texts([*map(str, _as_tuple(source.libraries)), "archives", *_archive_digests(source)]), *parts])


def _code_parts(source: ModuleSource) -> Iterator[bytes]:
    """Yield the parts of a module that determine its code: the IR, the functions, the values of `globals=`, and the names in `imports=`."""
    yield _VERSION
    yield source.ir.encode("utf-8", "surrogatepass") if isinstance(source.ir, str) else bytes(source.ir)
    yield from _encode_texts(_function_texts(source))
    yield from _global_parts(source.globals)
    yield from _encode_texts(_import_texts(source.imports))


def _frame_parts(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts, each after its length, so that different parts never join to the same bytes."""
    for part in parts:
        yield b"%d:" % len(part)
        yield part


def _encode_texts(texts: list[str]) -> list[bytes]:
    """Return texts as parts for a digest. The number of texts comes first, so that different lists never join to the same parts."""
    return [b"%d" % len(texts), *[text.encode("utf-8", "surrogatepass") for text in texts]]


def _function_texts(source: ModuleSource) -> list[str]:
    """Return the export options of the functions as texts for a digest."""
    if source.functions is None:
        return ["every function"]
    return [text_of_export(name, exported_as(value, name)) for name, value in source.functions.items()]


def text_of_export(name: str, function: Function) -> str:
    """Return the export options of a function as text, for a digest."""
    return repr((name, function.signature, function.symbol, function.nogil, function.shown))


def _global_parts(values: Mapping[str, Any] | None) -> Iterator[bytes]:
    """Yield the bytes that identify the values of globals. A value that cannot be stored is represented by its error."""
    if not values:
        return
    from compcache.globals import define
    from compcache.globals.definition import call_encode

    for name, value in sorted(values.items()):
        try:
            definition = define(value)
            parts = [*_encode_texts([name, definition.kind]), call_encode(definition)]
        except GlobalValidationError as error:  # compiling the source reports it
            parts = _encode_texts([name, str(error)])
        yield from parts


def _import_texts(imports: Any) -> list[str]:
    """Return the imports as texts for a digest: symbols and names, alternating."""
    return [text for pair in _import_pairs(imports) for text in pair]


def _import_pairs(imports: Any) -> list[tuple[str, str]]:
    """Return the imported symbols with their func_names, sorted; [] without imports."""
    if not imports:
        return []
    if isinstance(imports, str):
        imports = (imports,)
    pairs = imports.items() if hasattr(imports, "items") else ((name, name) for name in imports)
    # A value in `imports` is a name, a call target or an identity.
    return sorted((str(symbol), str(getattr(function, "func_name", function))) for symbol, function in pairs)


def _identity_components(source: ModuleSource) -> dict[str, str]:
    """Return the components of the module's identity, or {} if it has none."""
    identity = source.identity
    if identity is None:
        return {}
    components = identity.components() if hasattr(identity, "components") else identity
    return {str(name): str(text) for name, text in dict(components).items()}


def _compared_components(source: ModuleSource) -> dict[str, str]:
    """Return the components that `explain` compares for a function with a content name."""
    code = source.ir if isinstance(source.ir, str) else ""
    if not 0 < len(code) <= _MAX_SHOWN_CODE:
        raw = source.ir.encode("utf-8", "surrogatepass") if isinstance(source.ir, str) else bytes(source.ir)
        code = f"digest {digest([raw]).hex()} of {len(raw)} bytes"
    components = {"code": code, "optimize": str(source.optimize), "cpu": str(source.cpu), "features": str(source.features)}
    if source.globals:
        components["globals"] = digest(_frame_parts(_global_parts(source.globals))).hex()
    if source.imports:
        components["imports"] = " ".join(_import_texts(source.imports))
    return components
