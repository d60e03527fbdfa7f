"""Runs compilers, for the preprocessed source, the files that they read, and bitcode."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

from compcache.clang.units import OVERRIDE
from compcache.errors import CompileError
from compcache.files import reraise_interrupt
from compcache.identity import Identity

if TYPE_CHECKING:
    from compcache.clang.units import Unit

__all__ = ["Translation", "identity_of_unit", "makers_of_unit", "optimization_level", "preprocess", "translate"]

_SECONDS = 600.0
_LEVEL = re.compile(r"-O(\w*)$")
#: A compiler and its version in its own version text.
_COMPILER = re.compile(r"\b(clang|flang|rustc)\b(?:-new)?(?: version)? (\d\S*)")
_MAX_OUTPUT = 8_000
_NO_BITCODE = "{} gives no LLVM bitcode: choose a compiler that is built on LLVM (cc=, --cc)"
_VERSIONS: dict[str, str] = {}
#: The options that name the language to compilers that read from standard input.
_INPUT = {"c": "c", "c++": "c++", "fortran": "f95-cpp-input"}
#: The line by which preprocessors say that another file begins (GCC's manual, "Preprocessor Output"); the name is written as in C.
_MARKER = re.compile(rb'#(?:line)? \d+ "((?:[^"\\]|\\.)*)"((?: \d)*)\s*\Z')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.DOTALL)
#: Flags and words of a source that put line numbers into the code.
_LINE_FLAGS = ("-g", "-fsanitize", "-fprofile", "-fcoverage")
_LINE_WORDS = (b"__builtin_LINE", b"__builtin_COLUMN", b"__builtin_FILE", b"__builtin_source_location")
#: Where a text over several lines may begin, in which any line counts (C++, "String literals").
_RAW_STRING = re.compile(rb'\b(?:u8|[uUL])?R"')
#: The line of rustc about an environment variable that code reads (env!), and its value.
_VARIABLE = b"# env-dep:"
#: The words by which assembly names files to read.
_ASSEMBLER_WORDS = (b"incbin", b".include")
#: File systems may take times from a clock that is late by this many seconds.
_TICK = 0.02
_ATTEMPTS = 2


class Translation(NamedTuple):
    """The components of a unit's identity: the preprocessed source and the compiler's version.

    `files` are the headers that were read; None if one of them has no unambiguous name, or if other files were read. `started` is the time
    when reading began, in seconds since the epoch.
    """

    preprocessed: bytes
    version: str
    files: tuple[str, ...] | None
    started: float

    def is_settled(self, unit: Unit) -> bool:
        """Return whether source and headers are unchanged: none was written after, or just before, it was read."""
        names = [*(self.files or ()), *([os.path.join(unit.directory, unit.path)] if unit.path else [])]
        try:
            late = any(os.stat(name).st_ctime > self.started - _TICK for name in names)
            return not late and (not unit.path or _content(names[-1]) == unit.code)
        except OSError as error:
            reraise_interrupt(error)
            return False


def optimization_level(unit: Unit) -> int:
    """Return LLVM's level for the flags of a unit; the last one counts."""
    levels = [match[1] for match in map(_LEVEL.match, unit.flags) if match]
    if unit.compiler.language == "rust":
        levels += [flag.rpartition("=")[2] for flag in unit.flags if "opt-level=" in flag]
    level = levels[-1] if levels else "0"
    return {"": 2 if unit.compiler.language == "rust" else 1, "0": 0, "1": 1, "g": 1, "2": 2, "s": 2, "z": 2}.get(level, 3)


def preprocess(unit: Unit) -> Translation:
    """Run the preprocessor, twice if a file was being written.

    Raises:
        CompileError: it reports errors.
    """
    for _ in range(_ATTEMPTS):
        translation = _preprocess(unit)
        if translation.is_settled(unit):
            break
    return translation


def _preprocess(unit: Unit) -> Translation:
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="compcache-clang-") as scratch:
        listed = os.path.join(scratch, "files.d")
        if unit.compiler.language == "rust":
            _run(unit, ["--emit=dep-info", "--crate-type=lib", *unit.flags, "-o", listed])
            names = _listed_names(listed)
            others = [line for line in _content(listed).splitlines() if line.startswith(_VARIABLE)]
            code = b"\0".join([unit.code, *[_content(path) for path in _paths(names, unit)], *others])
        else:
            depends = [] if unit.compiler.language == "fortran" else ["-MD", "-MF", listed]
            printed = _run(unit, ["-E", *unit.flags, *depends])
            names = [*_listed_names(listed), *_entered_names(printed)]
            code = printed if _numbers_lines(unit, printed) else _without_markers(printed)
            others = _read_by_assembler(unit, code)
            code = b"\0".join([code, *others])
    files = _paths(names, unit)
    told = not others and all(map(os.path.isfile, files))
    if not told or (unit.compiler.language == "fortran" and b"\n#" not in b"\n" + printed):
        return Translation(code, _version(unit), None, started)
    return Translation(code, _version(unit), files, started)


def _read_by_assembler(unit: Unit, code: bytes) -> list[bytes]:
    """Return the names and digests of files that inline assembly reads. The compiler leaves these to the assembler."""
    if not any(word in code for word in _ASSEMBLER_WORDS):
        return []
    from compcache.clang.bitcode import printed
    from compcache.content.assembled_files import assembled_files

    return assembled_files(printed(_translate(unit)))


def _numbers_lines(unit: Unit, code: bytes) -> bool:
    """Return whether the machine code may depend on line numbers, file names or empty lines."""
    flags = any(flag.startswith(_LINE_FLAGS) and flag != "-g0" for flag in unit.flags)
    return flags or any(word in code for word in _LINE_WORDS) or _RAW_STRING.search(code) is not None


def _without_markers(code: bytes) -> bytes:
    return b"\n".join([line for line in code.splitlines() if line.strip() and not _MARKER.match(line)])


def _entered_names(code: bytes) -> list[str]:
    """Return the files that line markers enter (flag 1). Other markers come from the source itself."""
    found: dict[bytes, None] = {}
    for line in code.splitlines():
        match = _MARKER.match(line) if line.startswith(b"#") else None
        if match and b"1" in match[2].split():
            found[match[1]] = None
    names = [os.fsdecode(_ESCAPE.sub(_unescaped, name)) for name in found]
    return [name for name in names if not (name.startswith("<") and name.endswith(">"))]


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)]) if match[1].isdigit() else {b"n": b"\n", b"t": b"\t", b"r": b"\r"}.get(match[1], match[1])


def identity_of_unit(unit: Unit, translation: Translation) -> Identity:
    """Return the identity of a unit: the preprocessed source, the compiler and its version, the flags."""
    return Identity(
        unit.label,
        source=translation.preprocessed,
        language=unit.compiler.language,
        compiler=translation.version,
        flags=unit.flags,
        **({"flag_files": unit.flag_files()} if unit.flag_files() else {}),
        **({"override": os.environ[OVERRIDE]} if OVERRIDE in os.environ else {}),
    )


def makers_of_unit(translation: Translation) -> dict[str, str]:
    """Return the compiler and its version, as `ModuleSource.makers` names them; nothing if the version is unknown."""
    match = _COMPILER.search(translation.version)
    return {match[1]: match[2]} if match else {}


def translate(unit: Unit, translation: Translation) -> bytes:
    """Return the bitcode of a unit, unoptimized if the optimization can be left to the LLVM that makes its machine code.

    Raises:
        CompileError: the compiler reports errors or does not return bitcode, or the source has changed since `preprocess`.
    """
    bitcode = _translate(unit)
    if not translation.is_settled(unit) and _preprocess(unit).preprocessed != translation.preprocessed:
        raise CompileError(f"{unit.label}, or a file that it includes, was changed while it was compiled: compile it again")
    return bitcode


def _translate(unit: Unit) -> bytes:
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
    """Return whether only LLVM's usual passes are requested; instrumentation counts as a pass."""
    return optimization_level(unit) > 0 and not any(
        flag.startswith(("-fsanitize", "-fprofile", "-fcoverage", "-flto")) for flag in unit.flags
    )


def _version(unit: Unit) -> str:
    """Return the first line of the compiler's version text."""
    stamp = unit.compiler.stamp
    if stamp not in _VERSIONS:
        done = subprocess.run([unit.compiler.path, "--version"], capture_output=True, timeout=_SECONDS, check=False)
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        _VERSIONS[stamp] = "\n".join([line for line in lines if "InstalledDir" not in line])
    return _VERSIONS[stamp]


def _run(unit: Unit, arguments: list[str]) -> bytes:
    """Return the compiler's output. It reads the file if there is one, otherwise standard input."""
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
        reraise_interrupt(error)
        raise CompileError(f"{unit.compiler.path} cannot be started: {error.strerror}") from error
    if done.returncode:
        if b"-Xclang" in done.stderr or b"-emit-llvm" in done.stderr:
            raise CompileError(_NO_BITCODE.format(unit.compiler.path))
        printed = done.stderr.decode("utf-8", "replace").strip()[:_MAX_OUTPUT]
        raise CompileError(f"{os.path.basename(unit.compiler.path)} reports errors:\n{printed}")
    return done.stdout


def _listed_names(path: str) -> list[str]:
    """Return the files in a makefile rule, as far as makefile syntax can express their names."""
    text = _content(path).decode("utf-8", "surrogateescape").replace("\\\n", " ")
    rule = text.partition(": ")[2].strip("\n").split("\n\n")[0]
    return [re.sub(r"\\([ #])", r"\1", name).replace("$$", "$") for name in re.findall(r"(?:\\ |\S)+", rule)]


def _paths(names: list[str], unit: Unit) -> tuple[str, ...]:
    """Return the absolute paths of these files, without the source itself."""
    found = [os.path.join(unit.directory, name) for name in names if name not in (unit.path, "-", "<stdin>")]
    return tuple(dict.fromkeys(found))


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        reraise_interrupt(error)
        return b""
