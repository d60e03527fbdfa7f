"""Runs compilers: the preprocessed source, the files that were read, bitcode."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from compcache.errors import CompileError
from compcache.identity import Identity

if TYPE_CHECKING:
    from compcache.clang.units import Unit

__all__ = ["Translation", "identity_of_unit", "optimization_level", "preprocess", "translate"]

_SECONDS = 600.0
_LEVEL = re.compile(r"-O(\w*)$")
_MAX_OUTPUT = 8_000
_NO_BITCODE = "{} gives no LLVM bitcode: choose a compiler that is built on LLVM (cc=, --cc)"
_VERSIONS: dict[str, str] = {}
#: Where a language is named to compilers that read from standard input.
_INPUT = {"c": "c", "c++": "c++", "fortran": "f95-cpp-input"}


class Translation(NamedTuple):
    """What the identity of a unit is made of: the preprocessed source, the compiler's version; and the files that were read."""

    preprocessed: bytes
    version: str
    files: tuple[str, ...]


def optimization_level(unit: Unit) -> int:
    """LLVM's level for the flags of a unit; the last one counts."""
    levels = [match[1] for match in map(_LEVEL.match, unit.flags) if match]
    if unit.compiler.language == "rust":
        levels += [flag.rpartition("=")[2] for flag in unit.flags if "opt-level=" in flag]
    level = levels[-1] if levels else "0"
    return {"": 2 if unit.compiler.language == "rust" else 1, "0": 0, "1": 1, "g": 1, "2": 2, "s": 2, "z": 2}.get(level, 3)


def preprocess(unit: Unit) -> Translation:
    """Run the preprocessor.

    Raises:
        CompileError: it reports errors.
    """
    with tempfile.TemporaryDirectory(prefix="compcache-clang-") as scratch:
        listed = os.path.join(scratch, "files.d")
        if unit.compiler.language == "rust":
            _run(unit, ["--emit=dep-info", "--crate-type=lib", *unit.flags, "-o", listed])
            files = _listed_files(listed, unit)
            code = b"\0".join([unit.code, *map(_content, files)])
        else:
            lines = [] if any(flag.startswith("-g") and flag != "-g0" for flag in unit.flags) else ["-P"]
            depends = [] if unit.compiler.language == "fortran" else ["-MD", "-MF", listed]
            code = _run(unit, ["-E", *lines, *unit.flags, *depends])
            if lines:  # no numbers of lines: empty ones mean nothing
                code = b"\n".join([line for line in code.splitlines() if line.strip()])
            files = _listed_files(listed, unit)
    return Translation(code, _version(unit), files)


def identity_of_unit(unit: Unit, translation: Translation) -> Identity:
    """What decides the code of a unit: the preprocessed source, the compiler and its version, the flags."""
    return Identity(
        unit.label,
        source=translation.preprocessed,
        language=unit.compiler.language,
        compiler=translation.version,
        flags=unit.flags,
    )


def translate(unit: Unit) -> bytes:
    """The bitcode of a unit, not optimized yet where that can be left to the LLVM that makes machine code of it.

    Raises:
        CompileError: the compiler reports errors, or gives something else.
    """
    with tempfile.TemporaryDirectory(prefix="compcache-clang-") as scratch:
        output = os.path.join(scratch, "unit.bc")
        if unit.compiler.language == "rust":
            _run(unit, ["--emit=llvm-bc", "--crate-type=lib", "-Ccodegen-units=1", *unit.flags, "-o", output])
        else:
            later = ["-Xclang", "-disable-llvm-passes"] if unit.compiler.language in ("c", "c++") and _leaves_passes(unit) else []
            _run(unit, ["-fPIC", *unit.flags, *later, "-emit-llvm", "-c", "-o", output])
        bitcode = _content(output)
    if not bitcode.startswith((b"BC\xc0\xde", b"\xde\xc0\x17\x0b")):
        raise CompileError(_NO_BITCODE.format(unit.compiler.path))
    return bitcode


def _leaves_passes(unit: Unit) -> bool:
    """Whether nothing but LLVM's usual passes is asked for: instrumentation is a pass as well."""
    return optimization_level(unit) > 0 and not any(flag.startswith(("-fsanitize", "-fprofile", "-fcoverage", "-flto")) for flag in unit.flags)


def _version(unit: Unit) -> str:
    """The first line that the compiler prints of itself."""
    stamp = unit.compiler.stamp
    if stamp not in _VERSIONS:
        done = subprocess.run([unit.compiler.path, "--version"], capture_output=True, timeout=_SECONDS, check=False)
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        _VERSIONS[stamp] = "\n".join([line for line in lines if "InstalledDir" not in line])
    return _VERSIONS[stamp]


def _run(unit: Unit, arguments: list[str]) -> bytes:
    """What the compiler prints; it reads the file where there is one, else its standard input."""
    where = [unit.path] if unit.path else ["-x", _INPUT[unit.compiler.language], "-"] if unit.compiler.language in _INPUT else ["-"]
    command = [unit.compiler.path, *arguments, *where]
    try:
        done = subprocess.run(
            command,
            input=None if unit.path else unit.code,
            stdin=subprocess.DEVNULL if unit.path else None,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            cwd=unit.directory,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{unit.compiler.path} did not finish within {_SECONDS:g} s and was stopped") from error
    except OSError as error:
        raise CompileError(f"{unit.compiler.path} cannot be started: {error.strerror}") from error
    if done.returncode:
        if b"-Xclang" in done.stderr or b"-emit-llvm" in done.stderr:
            raise CompileError(_NO_BITCODE.format(unit.compiler.path))
        printed = done.stderr.decode("utf-8", "replace").strip()[:_MAX_OUTPUT]
        raise CompileError(f"{os.path.basename(unit.compiler.path)} reports errors:\n{printed}")
    return done.stdout


def _listed_files(path: str, unit: Unit) -> tuple[str, ...]:
    """The files that a makefile rule says were read, without the source itself."""
    text = _content(path).decode("utf-8", "surrogateescape").replace("\\\n", " ")
    rule = text.partition("\n")[0].partition(": ")[2]
    names = [name.replace("\\ ", " ").replace("$$", "$") for name in re.findall(r"(?:\\ |\S)+", rule)]
    found = [os.path.join(unit.directory, name) for name in names if name not in (unit.path, "-", "<stdin>")]
    return tuple(dict.fromkeys(found))


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
