"""C compilers that write LLVM bitcode: the clang in the `ziglang` wheel, and the distribution's.

Each `Compiler` is one way to compile: the clang versions differ in the age of their bitcode, the flags in
what they tell LLVM about CPU features, about position independence and about the source (`-g`). Code compiled without `-fPIC` has
`dso_local` on external data (`stderr`), which is not true in a shared object.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm

CLANG_VARIABLE = "COMPCACHE_PEER_CLANG"
_COMMON = ("-c", "-emit-llvm", "-g0", "-O1", "-Wno-everything")


class CompilerUnavailableError(Exception):
    """Raised when a compiler is not installed, or too new for the LLVM inside llvmlite."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that turns a C file into bitcode, and what identifies it."""

    name: str
    command: tuple[str, ...]
    version: str
    cache: Path

    def bitcode(self, source: Path, *flags: str) -> bytes:
        """The bitcode of one C file; the same file with the same flags is compiled once per cache directory.

        Headers are not part of the key: those of a source distribution are pinned with it.
        """
        key = repr((self.command, self.version, flags, str(source), source.read_bytes()))
        compiled = self.cache / f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.bitcode"
        if not compiled.exists():
            self._compile(source, flags, compiled)
        return compiled.read_bytes()

    def _compile(self, source: Path, flags: tuple[str, ...], compiled: Path) -> None:
        self.cache.mkdir(parents=True, exist_ok=True)
        zig_cache = {
            name: str(self.cache / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
        }
        with tempfile.TemporaryDirectory(dir=self.cache, prefix=".compile-") as scratch:
            output = Path(scratch, "module.bc")
            command = [*self.command, *flags, str(source), "-o", str(output)]
            done = subprocess.run(
                command,
                env=os.environ | zig_cache,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"{self.name} does not compile {source}:\n{done.stderr}")
            output.replace(compiled)


def _zig(cache: Path, name: str, cpu: str, debug: tuple[str, ...] = ()) -> Compiler:
    if importlib.util.find_spec("ziglang") is None:
        raise CompilerUnavailableError("the ziglang package is not installed")
    command = (sys.executable, "-m", "ziglang", "cc")
    flags = ("-fPIC", "-fno-sanitize=all", f"-mcpu={cpu}", *debug)
    return _checked(Compiler(name, (*command, *_COMMON, *flags), _version(command), cache))


def _clang(cache: Path, name: str, pic: str, debug: tuple[str, ...] = ()) -> Compiler:
    command = (find_clang(),)
    return _checked(Compiler(name, (*command, *_COMMON, pic, *debug), _version(command), cache))


def find_clang() -> str:
    """The distribution's clang. Raises `CompilerUnavailableError`."""
    candidates = [os.environ.get(CLANG_VARIABLE, ""), *(f"clang-{major}" for major in range(14, 23)), "clang"]
    for candidate in filter(None, candidates):
        found = shutil.which(candidate)
        if found:
            return found
    raise CompilerUnavailableError(f"no clang: install the distribution's package, or set {CLANG_VARIABLE}")


@functools.lru_cache
def _version(command: tuple[str, ...]) -> str:
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else ""


def _checked(compiler: Compiler) -> Compiler:
    match = re.search(r"clang version (\d+)", compiler.version)
    if match is None:
        raise CompilerUnavailableError(f"{compiler.command[0]} is not a clang: {compiler.version!r}")
    if int(match[1]) > llvm.llvm_version_info[0]:
        ours = llvm.llvm_version_info[0]
        raise CompilerUnavailableError(f"{compiler.version} writes newer bitcode than LLVM {ours} reads")
    return compiler


_MAKERS = {
    "zig": functools.partial(_zig, cpu="baseline"),
    "zig-native": functools.partial(_zig, cpu="native"),
    "clang": functools.partial(_clang, pic="-fPIC"),
    "clang-nopic": functools.partial(_clang, pic="-fno-pic"),
    # The later of two flags counts: debug information is metadata on everything, declarations included.
    "zig-debug": functools.partial(_zig, cpu="baseline", debug=("-g",)),
    "clang-debug": functools.partial(_clang, pic="-fPIC", debug=("-g",)),
}
ALL = tuple(_MAKERS)
OLD_AND_NEW = ("zig", "clang-nopic", "zig-debug")


def make_compiler(name: str, cache: Path) -> Compiler:
    """The compiler of that name (one of `ALL`); raises `CompilerUnavailableError` where it is not installed."""
    return _MAKERS[name](cache, name)
