"""The sources that a caller passes to the cache: `ModuleSource` and `Function`."""

from __future__ import annotations

from os import PathLike

from compcache.errors import InvalidNameError
from compcache.formats.entry import MOST_DATA
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from compcache.identity import Identity

__all__ = ["MAX_NAME_BYTES", "Function", "ModuleSource", "check_entry", "check_name"]

MAX_NAME_BYTES = 1 << 16
#: The accepted types of each parameter.
_ACCEPTED = {
    "functions": "a mapping, like {'dot': 'f64(a: f64[:], b: f64[:])'}, or None",
    "globals": "a mapping, like {'limit': 10}, or None",
    "entries": "a mapping of kinds to bytes, like {'types': b'...'}, or None",
    "identity": "an Identity, a mapping, like {'version': '3'}, or None",
    "imports": "names, like ['dot'], a mapping of symbols to names, or None",
    "libraries": "names, like ['stdc++', 'z']",
    "archives": "paths or names, like ['libflang_rt.runtime.a']",
    "targets": "names of CPUs, like ('x86-64-v3', 'native'), or None",
    "cpu": "the name of a CPU, like 'x86-64-v3', or None",
    "features": "text, like '+avx2,-fma', or None",
    "part_of": "the name of a function, an Identity, or None",
    "makers": "a mapping of names to versions, like {'numba': '0.66.1'}, or None",
}


class Function(Record):
    """Options for exporting one function of a module.

    Args:
        signature: the signature as text; None derives the signature from the function's LLVM type.
        symbol: the function's name in the module; None if this is the func_name.
        nogil: whether calls release the GIL while the function runs.
        shown: the text that listings show instead of the signature, for functions that users know by other types. The attribute
            `signature` of the call target is not available then.
    """

    __slots__ = ("signature", "symbol", "nogil", "shown")
    signature: str | None
    symbol: str | None
    nogil: bool
    shown: str | None

    def __init__(self, signature: object = None, symbol: str | None = None, nogil: bool = False, shown: str | None = None) -> None:
        super().__init__(None if signature is None else str(signature), symbol, nogil, shown)


class ModuleSource:
    """LLVM code, and the options for compiling and storing it.

    The cache reads the source when it is added. Changing these objects afterwards does not change the stored module.

    Args:
        ir: LLVM assembly text, bitcode bytes, an `llvmlite.ir.Module` or an `llvmlite.binding.ModuleRef`.
        functions: the functions to export, ``{func_name: signature text | Function | None}``. All other definitions become private to the
            module. None exports every externally visible function under its own name, with the signature derived from its LLVM type.
        globals: definitions of the module's external globals, ``{name: value}`` (see `compcache.globals`). A `NativeSymbol` may also
            define a declared function.
        imports: functions and variables that the module declares, and that another module of the cache defines now or later: names,
            or ``{symbol: func_name}``. A call target or an `Identity` may be used instead of its func_name. All modules that import
            a variable share it. Modules that define a variable in `globals` have separate variables.
        libraries: shared libraries that define symbols of the module: linker names (``"stdc++"``), sonames or paths. An image records the
            sonames of the libraries that it uses, and the libraries are loaded with it. A system library that the process has loaded
            when the module is added need not be named.
        archives: static libraries to link, such as a compiler's runtime: paths, or file names (``"libflang_rt.runtime.a"``) that are
            searched in the directories of compilers. The members that an image uses become part of it, with their variables. Only the
            state of flang's input and output is shared by all modules of a cache.
        optimize: the level of LLVM's pipeline, 1, 2 or 3; levels 2 and 3 vectorize. 0 leaves the IR as it is, and generates code as 2.
        cpu, features: the CPU to compile for, and changes to its features (``"+avx2,-fma"``), in LLVM's terms; None selects this machine.
            Only hosts with all required features use the code; features for tuning are ignored. For a cache that hosts share, choose
            a CPU that all of them support (``cpu="x86-64-v3"``). Functions with attributes for a CPU, which compilers write, keep these.
        targets: several CPUs to compile for, with a realization for each: ``("x86-64-v2", "x86-64-v3", "native")``. An item is the name of
            a CPU, optionally with changes after commas (``"haswell,-avx2"``), or "native". A text contains items separated by commas.
            Each host uses the best realization that it can run. None reads $COMPCACHE_TARGETS, which is such a text, unless `cpu` or
            `features` is given.
        keep_bitcode: whether to store the optimized code beside the image, for `show --ir` and `check --recompile`.
        identity: a `compcache.Identity`, or a mapping of named components, stored with the functions. To find a function by an identity,
            export the function as ``identity.func_name``, too. (`Cache.get_or_compile` does both.)
        entries: bytes that are stored with each function of the module, by kind. `compcache.frontend.get_entry` reads them.
        part_of: the func_name, the label or the `Identity` of the function to which these functions belong, for example as its wrapper.
            Listings show these functions as parts of the other function, with which they are removed.
        makers: programs that made the code, with their versions, apart from this package, llvmlite and LLVM: ``{"numba": "0.66.1"}``.
            Modules record their makers, so that the modules made by a faulty version can be found (``prune --made-by``).
        inline: whether small imported functions may be inlined. Only functions whose names identify their content are inlined, and only if
            their modules keep their code. Inlining does not change results; `explain` and `graph` show which functions may be inlined.
        untrusted: whether to translate the code in a child process first, with limits of time and memory. Code that makes LLVM abort or
            run forever then raises an error. The translation takes about twice as long.

    Raises:
        TypeError: a parameter has an unsupported type. The message names the parameter and the supported types.
        ValueError: the name or the version of a maker is invalid, or an entry is too large.
        InvalidNameError: the name in `part_of`, or the kind of an entry, is not a valid name (`check_name`).
    """

    def __init__(
        self,
        ir: Any,
        functions: Mapping[str, Any] | None = None,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - the public name
        *,
        imports: Mapping[str, str] | Iterable[str] | None = None,
        optimize: int = 2,
        libraries: Iterable[str] | str | None = (),
        archives: Iterable[str | PathLike[str]] | str | PathLike[str] | None = (),
        cpu: str | None = None,
        features: str | None = None,
        targets: Iterable[str] | str | None = None,
        keep_bitcode: bool = True,
        identity: Any = None,
        entries: Mapping[str, bytes] | None = None,
        part_of: str | Identity | None = None,
        makers: Mapping[str, str] | None = None,
        untrusted: bool = False,
        inline: bool = True,
    ) -> None:
        self.ir = ir
        self.functions = _check_mapping("functions", functions)
        self.globals = _check_mapping("globals", globals)
        self.imports = imports if imports is None or hasattr(imports, "items") else _check_items("imports", imports)
        self.libraries = _check_items("libraries", () if libraries is None else libraries)
        self.archives = _check_items("archives", () if archives is None else archives, (str, PathLike))
        self.optimize = optimize
        self.cpu = _check_text("cpu", cpu)
        self.features = _check_text("features", features)
        self.targets = targets if targets is None else _check_items("targets", targets, (str,))
        self.keep_bitcode = keep_bitcode
        self.identity = _check_mapping("identity", identity)
        self.entries = _check_mapping("entries", entries)
        if entries is not None:
            self.entries = {check_name(kind, "kind of entries"): check_entry(kind, data) for kind, data in entries.items()}
        self.part_of = _check_text("part_of", getattr(part_of, "func_name", part_of))
        if self.part_of is not None:
            check_name(self.part_of, "name of a function")
        self.makers = _makers_text(_check_mapping("makers", makers))
        self.named_entries: dict[tuple[str, str], bytes] = {}  # entries of the source, by kind and name (compcache.content.names)
        self.untrusted = untrusted
        self.inline = inline

    def __repr__(self) -> str:
        names = "every function" if self.functions is None else ", ".join(map(repr, self.functions))
        return f"<ModuleSource of {type(self.ir).__name__} exporting {names}>"


def _makers_text(makers: Mapping[str, str] | None) -> str:
    """Return `makers=` of a source as the lines of a makers record. Raise `ValueError` if one is not valid."""
    if not makers:
        return ""
    from compcache.formats.makers import Maker, makers_text

    return makers_text([Maker(str(name), str(version)) for name, version in makers.items()])


def _check_items(name: str, value: Any, types: tuple[type, ...] = (object,)) -> Any:
    """Return the value of a parameter that accepts one item or several: a text unchanged, other values as a tuple.

    Raise `TypeError` if the value is not iterable or is bytes, or if an item is not of one of the `types`.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, PathLike) and PathLike in types:
        return (value,)
    if isinstance(value, (bytes, bytearray)) or not hasattr(value, "__iter__"):
        raise _wrong_type_error(name, value)
    items = tuple(value)
    for item in items:
        if not isinstance(item, types):
            raise _wrong_type_error(name, item)
    return items


def _check_mapping(name: str, value: Any) -> Any:
    """Return the value of a parameter that accepts a mapping, an `Identity` or None. Raise `TypeError` if it is something else."""
    if value is not None and not hasattr(value, "items") and not hasattr(value, "components"):
        raise _wrong_type_error(name, value)
    return value


def _check_text(name: str, value: Any) -> str | None:
    """Return the value of a parameter that accepts a text or None. Raise `TypeError` if it is something else."""
    if value is not None and not isinstance(value, str):
        raise _wrong_type_error(name, value)
    return value


def _wrong_type_error(name: str, value: object) -> TypeError:
    """Return the exception for a parameter with a value of an unsupported type."""
    return TypeError(f"ModuleSource(): {name} must be {_ACCEPTED[name]}, not {type(value).__name__}")


def check_entry(kind: str, data: object) -> bytes:
    """Return the data of an entry as bytes. `kind` is the entry's kind, for messages.

    Raises:
        TypeError: `data` is not bytes, a bytearray or a memoryview.
        ValueError: `data` exceeds the size limit of entries.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"an entry of the kind {kind!r} must be bytes, not {type(data).__name__}")
    content = bytes(data)
    if len(content) > MOST_DATA:
        raise ValueError(
            f"an entry of the kind {kind!r} has {len(content):,} bytes, but entries may have at most {MOST_DATA >> 20} MiB: store less"
        )
    return content


def check_name(name: object, description: str) -> str:
    """Check the name of a function, symbol or similar item, and return it unchanged. `description` is for messages, like "func_name".

    Names may contain slashes, newlines and any Unicode text, because they never become file names.

    Raise `InvalidNameError` if the name is not a str, is empty, contains NUL or lone surrogates, or is longer than 64 KiB.
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"{_with_article(description)} must be a str, not {type(name).__name__}: {name!r}")
    if not name:
        raise InvalidNameError(f"{_with_article(description)} must not be empty")
    if "\0" in name:
        raise InvalidNameError(f"{_with_article(description)} must not contain NUL: {name[:80]!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(f"{_with_article(description)} must be encodable as UTF-8: {name[:80]!r}") from None
    if size > MAX_NAME_BYTES:
        raise InvalidNameError(f"{_with_article(description)} must have at most {MAX_NAME_BYTES} bytes, not {size}: {name[:80]!r}...")
    return name


def _with_article(description: str) -> str:
    """Return a description with the indefinite article."""
    return f"an {description}" if description[:1] in "aeiou" else f"a {description}"
