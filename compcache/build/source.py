"""The sources that a caller gives the cache to compile: `ModuleSource` and `Function`."""

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
_LIKE = {
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
    """How one function of a module is exported.

    Args:
        signature: its signature as text; None reads it off the function's LLVM type.
        symbol: its name in the module; None where that is the func_name.
        nogil: release the GIL while it runs.
        shown: the text that listings show in place of the signature: for functions that another layer calls, and that users
            know by other types. The target's `signature` is not to be had then.
    """

    __slots__ = ("signature", "symbol", "nogil", "shown")
    signature: str | None
    symbol: str | None
    nogil: bool
    shown: str | None

    def __init__(self, signature: object = None, symbol: str | None = None, nogil: bool = False, shown: str | None = None) -> None:
        super().__init__(None if signature is None else str(signature), symbol, nogil, shown)


class ModuleSource:
    """LLVM code and what the cache must know to compile and store it.

    Args:
        ir: LLVM assembly text, bitcode bytes, an `llvmlite.ir.Module` or an `llvmlite.binding.ModuleRef`.
        functions: the functions to export, ``{func_name: signature text | Function | None}``; every other
            definition becomes private to the module. None exports every externally visible defined function
            under its own name, with the signature read off its LLVM type.
        globals: definitions of the module's external globals, ``{name: value}`` (see `compcache.globals`); a
            `NativeSymbol` may also stand for a declared function.
        imports: functions and variables that the module declares and another module of the cache provides, now or later: names,
            or ``{symbol: func_name}``, where a call target or an `Identity` may stand for its func_name. All modules that import
            a variable see one; a variable that two modules define in `globals` is two.
        libraries: shared libraries that define what the module uses: names as a linker takes them (``"stdc++"``),
            sonames or paths. An image that uses one records its soname, and the library is loaded with it. One of the system's that
            the process has loaded when the module is added needs no name.
        archives: static libraries to link, such as compilers' run time: paths, or names of files that are looked for where
            compilers have theirs (``"libflang_rt.runtime.a"``). What an image uses of them becomes a part of it,
            variables included, but for flang's input and output: all modules of a cache have these in common.
        optimize: 0 leaves the code as given; 1, 2 and 3 are LLVM's pipelines of these levels.
        cpu, features: what to compile for, in LLVM's terms; None is this machine. A cache that is shared between
            hosts wants the least of them (``cpu="x86-64-v3"``). `features` are changes to the CPU, ``"+avx2,-fma"``.
            The code is used by hosts that have all that these stand for, apart from tuning.
        targets: CPUs to compile for, a realization each, instead of one: ``("x86-64-v2", "x86-64-v3", "native")``. An item
            is a CPU's name, with changes behind commas (``"haswell,-avx2"``), or "native"; a text has several items
            with commas between them. Each host takes the best that it can run. None, and no `cpu` or `features`, reads
            $COMPCACHE_TARGETS, which is such a text.
        keep_bitcode: store the optimized code beside the image, for `show --ir` and `check --recompile`.
        identity: a `compcache.Identity`, or a mapping of named components, kept with the functions.
        entries: bytes that belong to each of its functions, by kind: stored with them, and read by `compcache.frontend.get_entry`.
        part_of: the func_name, the label or the `Identity` of the function that these are made for, as a wrapper or a loop of it is.
            Listings show them with it, and they are removed with it.
        makers: what has made the code, beside this package, llvmlite and LLVM, with its version: ``{"numba": "0.66.1"}``. Modules name
            their makers, so that what a version with a bug made can be found (``prune --made-by``).
        inline: whether small functions that it imports may be inlined: those with names of content, which say exactly what they do, and
            whose modules keep their code. It does the same with and without; `explain` and `graph` say which may be in it.
        untrusted: translate the code in a child process first, with limits of time and memory, so that code which ends LLVM or
            keeps it busy costs no more than an error. It takes about twice the time.

    Raises:
        TypeError: a parameter is of another type; the message names it, and the form that it has.
        ValueError: a maker has no such name or version.

    The source is read when it is added; changing any of these objects afterwards changes nothing stored.
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
        for name, value in (
            ("functions", functions),
            ("globals", globals),
            ("entries", entries),
            ("identity", identity),
            ("makers", makers),
        ):
            if value is not None and not hasattr(value, "items") and not hasattr(value, "components"):
                raise _wrong_type(name, value)
        for name, value in (("cpu", cpu), ("features", features)):
            if value is not None and not isinstance(value, str):
                raise _wrong_type(name, value)
        if part_of is not None:
            part_of = getattr(part_of, "func_name", part_of)
            if not isinstance(part_of, str):
                raise _wrong_type("part_of", part_of)
            check_name(part_of, "name of a function")
        self.ir = ir
        self.functions = functions
        self.globals = globals
        self.imports = imports if imports is None or hasattr(imports, "items") else _several("imports", imports)
        self.libraries = _several("libraries", () if libraries is None else libraries)
        self.archives = _several("archives", () if archives is None else archives, (str, PathLike))
        self.optimize = optimize
        self.cpu = cpu
        self.features = features
        self.targets = targets if targets is None else _several("targets", targets, (str,))
        self.keep_bitcode = keep_bitcode
        self.identity = identity
        self.entries = (
            None if entries is None else {check_name(kind, "kind of entries"): check_entry(kind, data) for kind, data in entries.items()}
        )
        self.part_of = part_of
        self.makers = _lines_of(makers) if makers else ""
        self.named_entries: dict[tuple[str, str], bytes] = {}  # of the source itself, by kind and name (compcache.content.names)
        self.untrusted = untrusted
        self.inline = inline

    def __repr__(self) -> str:
        names = "every function" if self.functions is None else ", ".join(map(repr, self.functions))
        return f"<ModuleSource of {type(self.ir).__name__} exporting {names}>"


def _lines_of(makers: Mapping[str, str]) -> str:
    from compcache.formats.makers import Maker, makers_text

    return makers_text([Maker(str(name), str(version)) for name, version in makers.items()])


def _several(name: str, value: Any, types: tuple[type, ...] = (object,)) -> Any:
    """Return the value of a parameter that accepts one text or several."""
    if isinstance(value, str):
        return value
    if isinstance(value, PathLike) and PathLike in types:
        return (value,)
    if isinstance(value, (bytes, bytearray)) or not hasattr(value, "__iter__"):
        raise _wrong_type(name, value)
    items = tuple(value)
    for item in items:
        if not isinstance(item, types):
            raise _wrong_type(name, item)
    return items


def _wrong_type(name: str, value: object) -> TypeError:
    return TypeError(f"ModuleSource(): {name} must be {_LIKE[name]}, not {type(value).__name__}")


def check_entry(kind: str, data: object) -> bytes:
    """Return the bytes of an entry of this kind.

    Raises:
        TypeError: they are not bytes.
        ValueError: there are too many.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"an entry of the kind {kind!r} must be bytes, not {type(data).__name__}")
    found = bytes(data)
    if len(found) > MOST_DATA:
        raise ValueError(f"an entry has at most {MOST_DATA >> 20} MiB, not {len(found):,} bytes (of the kind {kind!r})")
    return found


def check_name(name: object, what: str) -> str:
    """Return `name` as a usable name of a function or symbol.

    Names may hold slashes, newlines and any Unicode: they never become file names.

    Raises:
        InvalidNameError: it is not text, is empty, contains NUL or lone surrogates, or is longer than 64 KiB.
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"{_article(what)} must be a str, not {type(name).__name__}: {name!r}")
    if not name:
        raise InvalidNameError(f"{_article(what)} must not be empty")
    if "\0" in name:
        raise InvalidNameError(f"{_article(what)} must not contain NUL: {name[:80]!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(f"{_article(what)} must be encodable as UTF-8: {name[:80]!r}") from None
    if size > MAX_NAME_BYTES:
        raise InvalidNameError(f"{_article(what)} has at most {MAX_NAME_BYTES} bytes, not {size}: {name[:80]!r}...")
    return name


def _article(what: str) -> str:
    return f"an {what}" if what[:1] in "aeiou" else f"a {what}"
