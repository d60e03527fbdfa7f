"""Programs of other people in C, C++, Fortran and Rust: how they become modules and an ordinary shared object, and what to call them with.

What is compared (`test_programs.py`) is also what is measured (`benchmarks/compare/curves/programs.py`); so nothing here knows pytest.
"""

from __future__ import annotations

import ctypes
import random
import re
import shlex
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from helpers import REFUSED_AS_OBJECT

from compcache import ModuleSource
from compcache.build.pic import aliases
from compcache.clang.run import identity_of_unit, optimization_level, preprocess, translate
from compcache.clang.runtimes import add_runtime_libraries
from compcache.clang.units import make_unit

from . import inputs
from .bitcode import link, parse
from .debian import PackageUnavailableError, source, unpacked
from .sdists import SdistUnavailableError, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CSRC = Path(__file__).with_name("csrc")
INPUTS = 1000
_ROOM = 100_000
_PADDING = 64
#: Tests of abseil, what they are made of, and files for other systems.
_NO_PART_OF_ABSEIL = re.compile(r"test|mock|matcher|benchmark|nonsecure|print_hash|gaussian|spy_hash|_main|_win|win32|/random/")
_FLANG = ("flang-22", "libflang-22-dev", "libmlir-22", "libclang-cpp22", "libllvm22")


class UnavailableError(Exception):
    """Raised where a compiler, a package or a source is not to be had; the message says which."""


class Places(NamedTuple):
    """Where downloads are kept and compilers put their results, and whether these have debug information."""

    downloads: Path
    out: Path
    debug: bool

    def sdist(self, name: str) -> Path:
        try:
            return fetch(name, self.downloads / "sdists")
        except SdistUnavailableError as error:
            raise UnavailableError(str(error)) from error

    def packages(self, *names: str) -> Path:
        try:
            return unpacked(names, self.downloads / "debian")
        except PackageUnavailableError as error:
            raise UnavailableError(str(error)) from error

    def source(self, package: str) -> Path:
        try:
            return source(package, self.downloads / "debian")
        except PackageUnavailableError as error:
            raise UnavailableError(str(error)) from error

    def level(self) -> tuple[str, ...]:
        return ("-O1", "-g") if self.debug else ("-O2",)

    def made(self, name: str, *command: str | Path) -> Path:
        """A file, made by the command unless it is there, which gets its path behind "-o". Another command has another name."""
        path = self.out / name
        words = [str(word) for word in (*command, "-o", path)]
        record = path.with_name(f"{name}.command")
        if not path.exists():
            if shutil.which(command[0]) is None:
                raise UnavailableError(f"{command[0]} is not installed")
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{command[0]} does not make {name}:\n{done.stderr}")
            record.write_text(shlex.join(words))
        elif not record.exists() or record.read_text() != shlex.join(words):
            raise RuntimeError(f"another command than {shlex.join(words)} has made {path}")
        return path


class Built(NamedTuple):
    """A program as modules for the cache, and as an ordinary shared object."""

    sources: list[ModuleSource]
    ordinary: Path


class Function(NamedTuple):
    """A function that is compared: how it is called with bytes, its types for ctypes, and what makes its inputs from a generator.

    `prepare` makes of these what the function takes, by the ordinary shared object.
    """

    name: str
    call: Callable[[Any, bytes], object]
    types: tuple[Any, ...]
    make_input: Callable[[random.Random], bytes]
    prepare: Callable[[ctypes.CDLL, bytes], bytes] | None = None

    def reference(self, library: ctypes.CDLL) -> Any:
        found = getattr(library, self.name)
        found.restype, *found.argtypes = self.types
        return found

    def inputs(self, library: ctypes.CDLL) -> list[bytes]:
        generator = random.Random(11)
        made = [self.make_input(generator) for _ in range(INPUTS)]
        return made if self.prepare is None else [self.prepare(library, data) for data in made]


class Program(NamedTuple):
    """A program: what it is for readers, how it is built, and the functions that are compared.

    `refusal` is what the cache says of it where images are objects.
    """

    name: str
    title: str
    build: Callable[[Places], Built]
    functions: tuple[Function, ...]
    refusal: str


# ----------------------------------------------------------------------- calls


def _bytes_to_bytes(function: Any, data: bytes) -> tuple[int, bytes]:
    """Our own sources' way: ``long f(const char *in, long size, char *out, long room)``, which returns the size of the result."""
    given, out = ctypes.create_string_buffer(data, len(data) + _PADDING), ctypes.create_string_buffer(_ROOM)
    size = function(ctypes.addressof(given), len(data), ctypes.addressof(out), _ROOM)
    return size, ctypes.string_at(out, max(size, 0))


def _compress(function: Any, data: bytes) -> tuple[int, bytes]:
    quality, text = data[0], data[1:]
    given, room = ctypes.create_string_buffer(text, len(text)), ctypes.create_string_buffer(len(text) + 1000)
    size = ctypes.c_size_t(len(room))
    status = function(quality, 22, 0, len(text), ctypes.addressof(given), ctypes.addressof(size), ctypes.addressof(room))
    return status, room.raw[: size.value]


def _decompress(function: Any, data: bytes) -> tuple[int, bytes]:
    given, room = ctypes.create_string_buffer(data, len(data)), ctypes.create_string_buffer(_ROOM)
    size = ctypes.c_size_t(len(room))
    status = function(len(data), ctypes.addressof(given), ctypes.addressof(size), ctypes.addressof(room))
    return status, room.raw[: size.value]


def _render(function: Any, data: bytes) -> bytes:
    given = ctypes.create_string_buffer(data, len(data))
    return ctypes.string_at(function(ctypes.addressof(given), len(data), 0))


def _own(make_input: Callable[[random.Random], bytes], *names: str) -> tuple[Function, ...]:
    types = (ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_long)
    return tuple([Function(name, _bytes_to_bytes, types, make_input) for name in names])


# ------------------------------------------------------------ one module for each file


def _bitcode(places: Places, compiler: str | Path, source: Path, flags: Sequence[str]) -> bytes:
    name = "-".join([*source.parts[-3:-1], source.stem])
    return places.made(f"{name}.bc", compiler, *flags, "-emit-llvm", "-c", source).read_bytes()


def modules_of(codes: Sequence[bytes], archives: Sequence[str] = ()) -> list[ModuleSource]:
    """A module for each; what another one defines is imported."""
    symbols = [symbols_of(code) for code in codes]
    defined = frozenset[str]().union(*(own for own, _ in symbols))
    return [
        ModuleSource(code, imports=sorted(declared & defined), archives=archives)
        for code, (_, declared) in zip(codes, symbols, strict=True)
    ]


def symbols_of(code: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """The functions, variables and aliases that a module defines for others, and what it declares."""
    module = parse(code)
    values = [*module.functions, *module.global_variables]
    own = [v.name for v in values if not v.is_declaration and v.linkage.name not in ("internal", "private")]
    return frozenset([*own, *aliases(str(module))]), frozenset([v.name for v in values if v.is_declaration])


class CFiles(NamedTuple):
    """A library in C by file: where its files are, what is left out, flags, folders of headers, and what of our own comes with it."""

    sdist: str
    patterns: tuple[str, ...]
    without: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def build(self, places: Places, modules: int) -> Built:
        """`modules` of them, made of neighbouring files where that is less than there are files."""
        root = places.sdist(self.sdist)
        found = sorted(path for pattern in self.patterns for path in root.glob(pattern) if path.name not in self.without)
        files = [*(CSRC / f"{name}.c" for name in self.own), *found]
        flags = [*self.flags, "-fPIC", "-w", *places.level(), *(f"-I{root / folder}" for folder in self.folders)]
        codes = [_bitcode(places, "clang", file, flags) for file in files]
        count = len(codes)
        groups = [codes[number * count // modules : (number + 1) * count // modules] for number in range(modules)]
        if len(codes) < modules or not all(groups):
            raise RuntimeError(f"{self.sdist} has {count} files, not {modules}")
        ordinary = places.made(f"{self.sdist}.so", "clang", "-shared", *flags, *files, "-lm")
        return Built(modules_of([link(group) if len(group) > 1 else group[0] for group in groups]), ordinary)


BROTLI = CFiles("brotli", ("c/common/*.c", "c/dec/*.c", "c/enc/*.c"), folders=("c/include",))
CMARK = CFiles(
    "cmarkgfm",
    ("third_party/cmark/src/*.c", "third_party/cmark/extensions/*.c"),
    ("main.c",),
    ("-DCMARK_GFM_STATIC_DEFINE", "-DCMARK_GFM_EXTENSIONS_STATIC_DEFINE"),
    ("third_party/cmark/src", "third_party/cmark/extensions", "generated/unix"),
)
QUICKJS = CFiles(
    "quickjs",
    tuple([f"upstream-quickjs/{name}.c" for name in ("quickjs", "cutils", "libbf", "libregexp", "libunicode")]),
    flags=("-D_GNU_SOURCE", '-DCONFIG_VERSION="1"'),
    folders=("upstream-quickjs",),
    own=("scripts",),
)


def files_of_expressions(places: Places) -> tuple[list[Path], tuple[str, ...]]:
    """The files of re2 and abseil behind one of our own, and their flags."""
    root = places.sdist("grpcio") / "third_party"
    files = [path for path in sorted(root.glob("abseil-cpp/absl/**/*.cc")) if not _NO_PART_OF_ABSEIL.search(path.as_posix())]
    files += [*sorted(root.glob("re2/re2/*.cc")), root / "re2/util/rune.cc", root / "re2/util/strutil.cc", CSRC / "expressions.cpp"]
    return files, ("-std=c++17", "-fPIC", "-w", "-pthread", "-DNDEBUG", f"-I{root / 're2'}", f"-I{root / 'abseil-cpp'}")


def _expressions(places: Places) -> Built:
    """re2 on abseil, a module for each file; nothing says which imports what."""
    files, flags = files_of_expressions(places)
    codes = [_bitcode(places, "clang++", file, (*flags, *places.level())) for file in files]
    ordinary = places.made("expressions.so", "clang++", "-shared", "-pthread", *sorted(places.out.glob("*.bc")))
    return Built([ModuleSource(code, libraries=("stdc++",)) for code in codes if symbols_of(code)[0]], ordinary)


def _xml(places: Places) -> Built:
    """pugixml and a file of ours that calls it, added one after the other: exceptions of the one are caught in the other."""
    root = places.source("pugixml") / "src"
    flags = ("-std=c++17", "-fPIC", "-w", "-pthread", f"-I{root}", *places.level())
    files = (root / "pugixml.cpp", CSRC / "xml.cpp")
    codes = [_bitcode(places, "clang++", file, flags) for file in files]
    ordinary = places.made("xml.so", "clang++", "-shared", *flags, *files)
    return Built([ModuleSource(code, libraries=("stdc++",)) for code in codes], ordinary)


def _fitpack(places: Places) -> Built:
    compiler, runtime = flang(places)
    flags = ("-fPIC", *places.level())
    files = sorted((places.sdist("scipy") / "scipy/interpolate/fitpack").glob("*.f"))
    codes = [_bitcode(places, compiler, file, flags) for file in files]
    codes.append(_bitcode(places, "clang", CSRC / "splines.c", flags))
    own = places.made("splines.o", "clang", *flags, "-c", CSRC / "splines.c")
    ordinary = places.made("fitpack.so", compiler, "-shared", *flags, *files, own)
    return Built(modules_of(codes, [str(runtime)]), ordinary)


def flang(places: Places) -> tuple[Path, Path]:
    """A flang, and its run time as an archive."""
    root = places.packages(*_FLANG)
    compiler = next(root.glob("usr/lib/llvm-*/bin/flang"))
    for library in root.glob("usr/lib/*/libLLVM.so.*"):
        link = compiler.parents[1] / "lib" / library.name
        if not link.exists():  # else it is looked for in the system
            link.symlink_to(library)
    if subprocess.run([compiler, "--version"], capture_output=True, check=False).returncode:
        raise UnavailableError(f"{compiler} does not run: its libraries of LLVM are not installed")
    return compiler, next(root.glob("usr/lib/llvm-*/lib/clang/*/lib/*/libflang_rt.runtime.a"))


# -------------------------------------------------------------------- one module


def compiled(source: Path, flags: Sequence[str], functions: Sequence[str]) -> ModuleSource:
    """What ``compcache add SOURCE -- FLAGS`` adds."""
    unit = make_unit(source, flags)
    translation = preprocess(unit)
    options: dict[str, Any] = {"functions": dict.fromkeys(functions), "optimize": optimization_level(unit)}
    code, options = add_runtime_libraries(unit, translate(unit, translation), options)
    return ModuleSource(code, identity=identity_of_unit(unit, translation), **options)


def _cpp(places: Places, name: str, functions: Sequence[str], include: Callable[[Places], Path]) -> Built:
    source, flags = CSRC / f"{name}.cpp", ("-std=c++17", "-w", *places.level(), f"-I{include(places)}")
    ordinary = places.made(f"{name}.so", "clang++", *flags, "-shared", "-fPIC", source)
    return Built([compiled(source, flags, functions)], ordinary)


def _rust(places: Places) -> Built:
    crates = places.packages("librust-memchr-dev", "librust-aho-corasick-dev") / "usr/share/cargo/registry"
    for name, edition in (("memchr", "2021"), ("aho-corasick", "2018")):
        crate = name.replace("-", "_")
        own = () if name == "memchr" else ("--extern", f"memchr={places.out}/libmemchr.rlib")
        command = ("--crate-type=rlib", "-Copt-level=2", "--cap-lints=allow", "--cfg", 'feature="std"', "-L", places.out)
        root = next(crates.glob(f"{name}-*")) / "src/lib.rs"
        places.made(f"lib{crate}.rlib", "rustc", root, "--crate-name", crate, f"--edition={edition}", *command, *own)
    level = ("-g", "-Copt-level=1") if places.debug else ("-Copt-level=2",)
    extern = ("-L", str(places.out), "--extern", f"aho_corasick={places.out}/libaho_corasick.rlib")
    source, flags = CSRC / "matcher.rs", ("--edition=2021", *level, *extern)
    ordinary = places.made("matcher.so", "rustc", *flags, "--crate-type=cdylib", source)
    return Built([compiled(source, flags, MATCHER_FUNCTIONS)], ordinary)


def _program_in_cpp(name: str, title: str, functions: tuple[Function, ...], include: Callable[[Places], Path]) -> Program:
    build = partial(_cpp, name=name, functions=[function.name for function in functions], include=include)
    return Program(name, title, build, functions, REFUSED_AS_OBJECT)


# ----------------------------------------------------------------------- all of them

MATCHER_FUNCTIONS = ("find_patterns", "count_words", "catch_panics", "in_threads")
_VARIABLES = f"(?s){REFUSED_AS_OBJECT}.*the imported variable '"
_SIZE, _POINTER, _INT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
_ENCODER = Function(
    "BrotliEncoderCompress", _compress, (_INT, _INT, _INT, _INT, _SIZE, _POINTER, _POINTER, _POINTER), inputs.text_to_compress
)


def _compressed(library: ctypes.CDLL, data: bytes) -> bytes:
    """What the ordinary encoder makes of it; a bit of every third is flipped."""
    _, packed = _compress(_ENCODER.reference(library), data)
    generator = random.Random(data)
    if len(packed) > 1 and generator.randrange(3) == 0:
        at = generator.randrange(len(packed))
        packed = packed[:at] + bytes([packed[at] ^ 1 << generator.randrange(8)]) + packed[at + 1 :]
    return packed


_DECODER_TYPES = (_INT, _SIZE, _POINTER, _POINTER, _POINTER)
_BROTLI_FUNCTIONS = (
    _ENCODER,
    Function("BrotliDecoderDecompress", _decompress, _DECODER_TYPES, inputs.text_to_compress, _compressed),
)

PROGRAMS = {
    program.name: program
    for program in (
        Program("brotli_16", "brotli, 35 files in 16 modules", partial(BROTLI.build, modules=16), _BROTLI_FUNCTIONS, _VARIABLES),
        Program("brotli_35", "brotli, 35 modules", partial(BROTLI.build, modules=35), _BROTLI_FUNCTIONS, _VARIABLES),
        Program(
            "cmark", "cmark with its extensions, 34 modules", partial(CMARK.build, modules=34),
            (Function("cmark_markdown_to_html", _render, (_POINTER, _POINTER, _SIZE, ctypes.c_int), inputs.markdown),), _VARIABLES,
        ),
        Program("quickjs", "QuickJS, 6 modules", partial(QUICKJS.build, modules=6), _own(inputs.script, "evaluate"), _VARIABLES),
        Program(
            "fitpack", "FITPACK (Fortran), 86 modules", _fitpack, _own(inputs.noise, "curve", "surface"),
            REFUSED_AS_OBJECT,
        ),
        Program(
            "expressions", "re2 and abseil (C++), a module for each file", _expressions,
            (*_own(inputs.expression, "match_expression", "match_set"),
             *_own(inputs.text_to_compress, "text_tools"), *_own(inputs.date, "times")),
            REFUSED_AS_OBJECT,
        ),
        _program_in_cpp(
            "simd_json", "simdjson", _own(inputs.json_text, "simd_minify", "simd_on_demand", "simd_fallback", "simd_utf8"),
            lambda places: places.sdist("pysimdjson") / "simdjson",
        ),
        _program_in_cpp(
            "json", "nlohmann::json", _own(inputs.json_text, "json_round", "json_cbor", "json_sum"),
            lambda places: places.packages("nlohmann-json3-dev") / "usr/include",
        ),
        _program_in_cpp(
            "format", "fmt", _own(inputs.format_text, "format_numbers", "format_as_told", "format_range"),
            lambda places: places.packages("libfmt-dev") / "usr/include",
        ),
        _program_in_cpp(
            "matrices", "Eigen",
            _own(inputs.bytes_of_matrices, "matrix_inverse", "matrix_singular_values", "matrix_product", "matrix_eigenvalues"),
            lambda places: places.packages("libeigen3-dev") / "usr/include/eigen3",
        ),
        Program(
            "xml", "pugixml (C++), 2 modules", _xml, _own(inputs.document, "query_document", "query_in_threads"), REFUSED_AS_OBJECT,
        ),
        Program(
            "matcher", "memchr and aho-corasick (Rust, `std`)", _rust, _own(inputs.words, *MATCHER_FUNCTIONS),
            REFUSED_AS_OBJECT,
        ),
    )
}  # fmt: skip
