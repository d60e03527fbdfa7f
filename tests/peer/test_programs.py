"""Programs of other people in C, C++, Fortran and Rust, in one module or in one for each file, beside ordinary shared objects.

simdjson with its implementations for several CPUs, QuickJS, FITPACK with flang's run time, a Rust crate with `std` whose panics are caught.
"""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from compcache import Cache, CompileError, ModulesNotAddedError, ModuleSource, clang

from .conftest import unavailable
from .debian import PackageUnavailableError, unpacked
from .libraries import CSRC
from .test_cpp_libraries import _json_text
from .test_many_modules import _symbols

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(3600)]
_INPUTS = 1000
_ROOM = 100_000
_PADDING = 64
_LINKERS = ("ld", "ld.lld", "none")
_FLANG = ("flang-22", "libflang-22-dev", "libmlir-22")


class Program(NamedTuple):
    """A source of ours that uses other people's, compiled together with these; its functions from bytes to bytes, and their inputs."""

    source: str
    compiler: str
    flags: tuple[str, ...]
    functions: tuple[str, ...]
    make_input: Callable[[random.Random], bytes]


def _script(generator: random.Random) -> bytes:
    one, two = generator.randrange(-9, 99), generator.randrange(1, 40)
    return generator.choice([
        f"[{one}, {two}].map(x => x ** 3).reduce((a, b) => a + b)",
        f"JSON.stringify({{a: [{one}, 'é'], b: new Date({two}e9).toISOString()}})",
        f"'{one}-{two}'.replace(/(\\d+)-(\\d+)/u, '$2:$1')",
        f"function f(n) {{ return n < 2 ? n : f(n - 1) + f(n - 2) }} f({two % 15})",
        f"let m = new Map(); for (let i = 0; i < {two}; i++) m.set(i * {one}, i); [...m.keys()].join()",
        f"class A {{ get x() {{ return {one} }} }} class B extends A {{ get x() {{ return super.x / {two} }} }} new B().x",
        f"{two}n ** {two}n % 1000007n",
        f"function* g() {{ for (let i = 0; i < {two}; i++) yield i }} Math.max(...g())",
        f"null.f{one}", f"throw new RangeError('{one}')", f"({one}", f"[{two}, 1, {one}].sort().toString() + typeof {one}",
        f"new Float64Array([{one}, NaN]).toString() + Math.hypot({one}, {two}).toFixed(12)",
    ]).encode()  # fmt: skip


def _words(generator: random.Random) -> bytes:
    words = ["he", "she", "hers", "his", "a", "ab", "abc", "12", "-7", "x\u00e9", "he"]
    return bytes([generator.randrange(33, 60)]) + " ".join(generator.choices(words, k=generator.randrange(1, 12))).encode() + generator.choice([
        b"\n" + " ".join(generator.choices(words, k=9)).encode(), b"", b"\nushers\xff"
    ])  # fmt: skip


def _noise(generator: random.Random) -> bytes:
    return generator.randbytes(generator.choice([0, 3, 12, 30, 66, 73]))


SIMDJSON = Program("simd_json", "clang++", ("-std=c++17",), ("simd_minify", "simd_on_demand", "simd_fallback", "simd_utf8"), _json_text)
MATCHER = Program("matcher", "rustc", ("--edition=2021",), ("find_patterns", "count_words", "catch_panics", "in_threads"), _words)
QUICKJS = Program("scripts", "clang", ("-D_GNU_SOURCE", '-DCONFIG_VERSION="1"', "-w", "-fPIC"), ("evaluate",), _script)
FITPACK = Program("splines", "clang", ("-fPIC",), ("curve", "surface"), _noise)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "debug"])
def debug(request: pytest.FixtureRequest) -> bool:
    chosen: bool = request.param
    return chosen


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, debug: bool) -> Path:
    """Where compilers put what all linkers are tried with."""
    return tmp_path_factory.mktemp("debug" if debug else "plain")


@pytest.fixture(params=_LINKERS)
def linker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name != "none" and shutil.which(name) is None:
        unavailable(f"{name} is not installed")
    monkeypatch.setenv("COMPCACHE_LINKER", name)
    return name


def _need(*programs: str) -> None:
    for name in programs:
        if shutil.which(name) is None:
            unavailable(f"{name} is not installed")


def _packages(peer_dir: Path, *names: str) -> Path:
    try:
        return unpacked(names, peer_dir / "debian")
    except PackageUnavailableError as error:
        return unavailable(str(error))


def _make(result: Path, *command: str | Path) -> None:
    """Run a command unless what it makes is there."""
    if result.exists():
        return
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------- one module


def test_simdjson(sdist: Callable[[str], Path], out: Path, tmp_path: Path, linker: str, debug: bool) -> None:
    root = sdist("pysimdjson") / "simdjson"
    flags = (*SIMDJSON.flags, *(("-O1", "-g") if debug else ("-O2",)), f"-I{root}")
    _one_module(SIMDJSON, CSRC / "simd_json.cpp", flags, ("-shared", "-fPIC"), (out, tmp_path), linker)


def test_a_rust_crate_with_its_standard_library(peer_dir: Path, out: Path, tmp_path: Path, linker: str, debug: bool) -> None:
    _need("rustc")
    crates = _packages(peer_dir, "librust-memchr-dev", "librust-aho-corasick-dev") / "usr/share/cargo/registry"
    common: list[str | Path] = ["--crate-type=rlib", "-Copt-level=2", "--cap-lints=allow", "--cfg", 'feature="std"', "-L", out, "--out-dir", out]
    for name, edition in (("memchr", "2021"), ("aho-corasick", "2018")):
        crate = name.replace("-", "_")
        own = () if name == "memchr" else ("--extern", f"memchr={out}/libmemchr.rlib")
        root = next(crates.glob(f"{name}-*")) / "src/lib.rs"
        _make(out / f"lib{crate}.rlib", "rustc", root, "--crate-name", crate, f"--edition={edition}", *common, *own)
    extern = ("-L", str(out), "--extern", f"aho_corasick={out}/libaho_corasick.rlib")
    flags = (*MATCHER.flags, *(("-g", "-Copt-level=1") if debug else ("-Copt-level=2",)), *extern)
    _one_module(MATCHER, CSRC / "matcher.rs", flags, ("--crate-type=cdylib",), (out, tmp_path), linker)


def _one_module(
    program: Program, source: Path, flags: tuple[str, ...], shared: tuple[str, ...], places: tuple[Path, Path], linker: str
) -> None:
    _need(program.compiler)
    out, tmp_path = places
    with Cache(tmp_path / "cache") as cache:
        if linker == "none":
            with pytest.raises(CompileError, match=r"needs a shared object.*install a linker"):
                clang.compile(source, flags=flags, functions=dict.fromkeys(program.functions), cache=cache)
            return
        ordinary = out / f"{program.source}.so"
        _make(ordinary, program.compiler, *flags, *shared, source, "-o", ordinary)
        compiled = clang.compile(source, flags=flags, functions=dict.fromkeys(program.functions), cache=cache)
        _compare(program, compiled.__getitem__, ordinary)


# -------------------------------------------------------------- a module for each file


def test_quickjs_by_file(sdist: Callable[[str], Path], out: Path, tmp_path: Path, linker: str, debug: bool) -> None:
    _need("clang")
    root = sdist("quickjs") / "upstream-quickjs"
    sources = [CSRC / "scripts.c", *(root / f"{name}.c" for name in ("quickjs", "cutils", "libbf", "libregexp", "libunicode"))]
    flags = (*QUICKJS.flags, f"-I{root}", *(("-O1", "-g") if debug else ("-O2",)))
    codes = [_bitcode("clang", source, flags, out) for source in sources]
    ordinary = out / "quickjs.so"
    _make(ordinary, "clang", "-shared", *flags, *sources, "-lm", "-o", ordinary)
    if linker == "none":  # it has variables that are used by more than one file
        with pytest.raises(ModulesNotAddedError, match=r"imported variable .*needs a shared object.*install a linker"):
            _add_files(codes, [], tmp_path)
        return
    _add_files(codes, [], tmp_path)
    with Cache(tmp_path / "cache") as cache:
        _compare(QUICKJS, cache.get_target, ordinary)


@pytest.mark.usefixtures("linker")
def test_fitpack_by_file(sdist: Callable[[str], Path], peer_dir: Path, out: Path, tmp_path: Path, debug: bool) -> None:
    _need("clang")
    compiler, runtime = _flang(peer_dir)
    level = ("-O1", "-g") if debug else ("-O2",)
    sources = sorted((sdist("scipy") / "scipy/interpolate/fitpack").glob("*.f"))
    assert len(sources) > 80
    codes = [_bitcode(str(compiler), source, ("-fPIC", *level), out) for source in sources]
    codes.append(_bitcode("clang", CSRC / "splines.c", (*FITPACK.flags, *level), out))
    own, ordinary = out / "splines.o", out / "fitpack.so"
    _make(own, "clang", *FITPACK.flags, *level, "-c", CSRC / "splines.c", "-o", own)
    _make(ordinary, compiler, "-shared", "-fPIC", *level, *sources, own, "-o", ordinary)
    _add_files(codes, [str(runtime)], tmp_path)
    with Cache(tmp_path / "cache") as cache:
        _compare(FITPACK, cache.get_target, ordinary)


def _flang(peer_dir: Path) -> tuple[Path, Path]:
    """A flang, and its run time as an archive."""
    root = _packages(peer_dir, *_FLANG)
    compiler = next(root.glob("usr/lib/llvm-*/bin/flang"))
    if subprocess.run([compiler, "--version"], capture_output=True, check=False).returncode:
        unavailable(f"{compiler} does not run: its libraries of LLVM are not installed")
    return compiler, next(root.glob("usr/lib/llvm-*/lib/clang/*/lib/*/libflang_rt.runtime.a"))


def _bitcode(compiler: str, source: Path, flags: tuple[str, ...], out: Path) -> bytes:
    path = out / f"{source.stem}.bc"
    _make(path, compiler, *flags, "-emit-llvm", "-c", source, "-o", path)
    return path.read_bytes()


def _add_files(codes: list[bytes], archives: list[str], out: Path) -> None:
    """Add a module for each file; what another one defines is imported."""
    symbols = [_symbols(code) for code in codes]
    defined = frozenset[str]().union(*(own for own, _ in symbols))
    with Cache(out / "cache") as cache:
        cache.add_modules([
            ModuleSource(code, imports=sorted(declared & defined), archives=archives)
            for code, (_, declared) in zip(codes, symbols, strict=True)
        ])


# ----------------------------------------------------------------------- comparing


def _compare(program: Program, get_target: Callable[[str], Callable[..., int]], ordinary: Path) -> None:
    library = ctypes.CDLL(str(ordinary))
    generator = random.Random(11)
    inputs = [program.make_input(generator) for _ in range(_INPUTS)]
    for name in program.functions:
        target, reference = get_target(name), getattr(library, name)
        reference.restype = ctypes.c_long
        reference.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_long)
        found = [_result(target, data) for data in inputs]
        assert found == [_result(reference, data) for data in inputs], name
        assert len(set(found)) > _INPUTS // 100, "the inputs make no difference"


def _result(function: Callable[..., int], data: bytes) -> tuple[int, bytes]:
    given, out = ctypes.create_string_buffer(data, len(data) + _PADDING), ctypes.create_string_buffer(_ROOM)
    size = function(ctypes.addressof(given), len(data), ctypes.addressof(out), _ROOM)
    return size, ctypes.string_at(out, max(size, 0))
