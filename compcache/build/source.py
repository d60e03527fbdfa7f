"""The sources that a caller gives the cache to compile: `ModuleSource` and `Function`."""

from __future__ import annotations

from compcache.errors import InvalidNameError
from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

__all__ = ["MAX_NAME_BYTES", "Function", "ModuleSource", "check_name"]

MAX_NAME_BYTES = 1 << 16
_FUNCTIONS_LIKE = "{'dot': 'f64(a: f64[:], b: f64[:])'}"
_GLOBALS_LIKE = "{'limit': 10}"


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

    def __init__(
        self, signature: object = None, symbol: str | None = None, nogil: bool = False, shown: str | None = None
    ) -> None:
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
            sonames or paths. An image that uses one records its soname, and the library is loaded with it.
        archives: static libraries to link, such as compilers' run time: paths, or names of files that are looked for where
            compilers have theirs (``"libflang_rt.runtime.a"``). What an image uses of them becomes a part of it.
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
        untrusted: translate the code in a child process first, with limits of time and memory, so that code which ends LLVM or
            keeps it busy costs no more than an error. It takes about twice the time.

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
        libraries: Iterable[str] = (),
        archives: Iterable[str] = (),
        cpu: str | None = None,
        features: str | None = None,
        targets: Iterable[str] | str | None = None,
        keep_bitcode: bool = True,
        identity: Any = None,
        untrusted: bool = False,
    ) -> None:
        for name, value, like in (("functions", functions, _FUNCTIONS_LIKE), ("globals", globals, _GLOBALS_LIKE)):
            if value is not None and not hasattr(value, "items"):
                raise TypeError(f"ModuleSource(): {name} must be a mapping, like {like}, or None, not {type(value).__name__}")
        self.ir = ir
        self.functions = functions
        self.globals = globals
        self.imports = imports
        self.libraries = libraries
        self.archives = archives
        self.optimize = optimize
        self.cpu = cpu
        self.features = features
        self.targets = targets
        self.keep_bitcode = keep_bitcode
        self.identity = identity
        self.untrusted = untrusted

    def __repr__(self) -> str:
        names = "every function" if self.functions is None else ", ".join(map(repr, self.functions))
        return f"<ModuleSource of {type(self.ir).__name__} exporting {names}>"


def check_name(name: object, what: str) -> str:
    """`name` as a usable name of a function or symbol.

    Names may hold slashes, newlines and any Unicode: they never become file names.

    Raises:
        InvalidNameError: it is not text, is empty, contains NUL or lone surrogates, or is longer than 64 KiB.
    """
    if not isinstance(name, str):
        raise InvalidNameError(f"a {what} must be a str, not {type(name).__name__}: {name!r}")
    if not name:
        raise InvalidNameError(f"a {what} must not be empty")
    if "\0" in name:
        raise InvalidNameError(f"a {what} must not contain NUL: {name[:80]!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(f"a {what} must be encodable as UTF-8: {name[:80]!r}") from None
    if size > MAX_NAME_BYTES:
        raise InvalidNameError(f"a {what} has at most {MAX_NAME_BYTES} bytes, not {size}: {name[:80]!r}...")
    return name
