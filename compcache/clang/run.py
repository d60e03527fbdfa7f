"""Runs compilers to get the preprocessed source, the names of the files that the compiler reads, and bitcode."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from compcache.clang.searched import SearchPath, read_search_path, searched_paths
from compcache.clang.units import OVERRIDE
from compcache.errors import CompileError
from compcache.identity import Identity
from compcache.images.embedded_bitcode import BITCODE_MAGIC
from compcache.interrupts import reraise_interrupt, suppress
from compcache.processes.scratch import scratch_directory

if TYPE_CHECKING:
    from compcache.clang.units import Unit

__all__ = ["Translation", "identity_of_unit", "makers_of_unit", "optimization_level", "preprocess", "translate"]

#: The most seconds that a run of a compiler may take.
_SECONDS = 600.0
_LEVEL = re.compile(r"-O(\w*)$")
#: A compiler and its version in its own version text.
_COMPILER = re.compile(r"\b(clang|flang|rustc)\b(?:-new)?(?: version)? (\d\S*)")
_MAX_OUTPUT = 8_000  # characters of diagnostics in a message
#: The flag for code in shared objects, also for preprocessors: the macros ``__PIC__`` and ``__PIE__`` depend on it.
_POSITION_INDEPENDENT = ("-fPIC",)
_NO_BITCODE = "the compiler {} does not write LLVM bitcode: choose a compiler that is built on LLVM (cc=)"
#: The beginning of a line that clang's option ``-v`` writes. The line names a file with further flags, which no flag need name.
_CONFIGURATION = "Configuration file: "
#: A line of a list of macros, which the preprocessor writes instead of code (``-dM``).
_MACRO = re.compile(rb"#(?:define|undef) [^\n]*\n")
#: The version texts of compilers, by `Compiler.stamp`.
_versions: dict[str, str] = {}
#: The values of the option ``-x``, which sets the language if the compiler reads from standard input.
_INPUT = {"c": "c", "c++": "c++", "fortran": "f95-cpp-input"}
#: The line that a preprocessor writes where another file begins (GCC's manual, "Preprocessor Output"). The file name has C's escapes.
_MARKER = re.compile(rb'#(?:line)? \d+ "((?:[^"\\]|\\.)*)"((?: \d)*)\s*\Z')
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
#: Flags and words of a source that put line numbers into the code.
_LINE_FLAGS = ("-g", "-fsanitize", "-fprofile", "-fcoverage")
_LINE_WORDS = (b"__builtin_LINE", b"__builtin_COLUMN", b"__builtin_FILE", b"__builtin_source_location")
#: The beginning of a raw string, which may contain several lines (C++, "String literals"). Each line is part of the value.
_RAW_STRING = re.compile(rb'\b(?:u8|[uUL])?R"')
#: The beginning of the line that rustc writes for an environment variable that code reads (``env!``). The line contains the value.
_VARIABLE = b"# env-dep:"
#: The directives of assembly that read files.
_ASSEMBLER_WORDS = (b"incbin", b".include")
#: Lines of preprocessed code that import modules, whose content a preprocessor does not write.
_IMPORT = re.compile(rb"^\s*(?:#\s*pragma clang module import|(?:export\s+)?(?:@?import|__import_module__)\b)", re.MULTILINE)
#: The seconds by which the clock of a file system may be behind the system's clock.
_TICK = 0.02
_ATTEMPTS = 2


class Translation(NamedTuple):
    """The components of a unit's identity: the preprocessed source and the compiler's version.

    `files` are the headers that the compiler read or may have found; None if the name of a header is ambiguous, or if the compiler reads
    other files. `missing` are the paths at which the compiler found nothing. `started` is the time at which the compiler was started, in
    seconds since the epoch. `flag_files` are the digests and paths of the files that contain flags or that flags name.
    """

    preprocessed: bytes
    version: str
    flag_files: tuple[str, ...]
    files: tuple[str, ...] | None
    missing: tuple[str, ...]
    started: float

    def is_settled(self, unit: Unit) -> bool:
        """Return whether the source and the headers can be read, and are unchanged since the compiler was started.

        A file that was written shortly before the start counts as changed, because of the resolution of its times.
        """
        names = [*(self.files or ()), *([os.path.join(unit.directory, unit.path)] if unit.path else [])]
        with suppress(OSError):
            is_changed = any(os.stat(name).st_ctime > self.started - _TICK for name in names)
            return not is_changed and (not unit.path or _read_file(names[-1]) == unit.code)
        return False


def optimization_level(unit: Unit) -> int:
    """Return LLVM's optimization level for a unit's flags. The last level takes precedence, as in compilers."""
    levels = [match[1] for match in map(_LEVEL.match, unit.flags) if match]
    if unit.compiler.language == "rust":
        levels += [flag.rpartition("=")[2] for flag in unit.flags if "opt-level=" in flag]
    level = levels[-1] if levels else "0"
    if not level:  # the flag -O alone
        return 2 if unit.compiler.language == "rust" else 1
    return {"0": 0, "1": 1, "g": 1, "2": 2, "s": 2, "z": 2}.get(level, 3)


def preprocess(unit: Unit) -> Translation:
    """Run the preprocessor, and return its result. Run it once more if a file was written in the meantime.

    Raise `CompileError` if the preprocessor fails, or `OSError` if a file that it has read cannot be read.
    """
    for _ in range(_ATTEMPTS):
        translation = _run_preprocessor(unit)
        if translation.is_settled(unit):
            break
    return translation


def _run_preprocessor(unit: Unit) -> Translation:
    """Return the preprocessed code of a unit and the files that it depends on. The files are None if they cannot be listed completely.

    See `preprocess` for the exceptions.
    """
    started = time.time()
    source = _read_rust(unit) if unit.compiler.language == "rust" else _read_preprocessed(unit)
    version = _read_version(unit)
    flag_files = unit.flag_files(source.configurations)
    names = [line.partition(" ")[2] for line in flag_files] if source.configurations else []
    files = _absolute_paths([*source.names, *names], unit)
    if not source.is_complete or not all(map(os.path.isfile, files)):
        return Translation(source.code, version, flag_files, None, (), started)
    codes = {path: _read_file(path) for path in files} | {os.path.join(unit.directory, unit.path): unit.code}
    existing, missing = searched_paths(source.search_path, codes, unit.directory)
    return Translation(source.code, version, flag_files, tuple(dict.fromkeys([*files, *existing])), tuple(missing), started)


class _Preprocessed(NamedTuple):
    """Preprocessed code, the names of the files that it depends on, and whether it depends on nothing else.

    `search_path` is the search path of the compiler. `configurations` are the files of flags that the compiler read.
    """

    code: bytes
    names: list[str]
    is_complete: bool
    search_path: SearchPath = SearchPath((), ())
    configurations: tuple[str, ...] = ()


def _read_rust(unit: Unit) -> _Preprocessed:
    """Return a source of Rust with its included files and environment variables. See `preprocess` for the exceptions."""
    rule = _run_rustc(unit, ["--emit=dep-info"])
    names = _prerequisites(rule)
    variables = [line for line in rule.splitlines() if line.startswith(_VARIABLE)]
    files = [_read_file(path) for path in _absolute_paths(names, unit)]
    return _Preprocessed(b"\0".join([unit.code, *files, *variables]), names, not variables)


def _read_preprocessed(unit: Unit) -> _Preprocessed:
    """Return the preprocessed code of a source of C, C++ or Fortran, with the content of other inputs (`_unlisted_inputs`).

    Raise `CompileError` if the compiler fails, or writes a list of macros instead of code.
    """
    if unit.compiler.language == "fortran":
        completed, rule = _run_compiler(unit, ["-E", "-v", *unit.flags, "-o", "-"]), b""
        is_listed = b"\n#" in b"\n" + completed.stdout  # only line markers name the files
    else:
        completed, rule = _preprocess_c(unit)
        is_listed = True
    output, log = completed.stdout, os.fsdecode(completed.stderr)
    if output and not _MACRO.sub(b"", output):
        raise CompileError(f"flags of {unit.label} make {unit.compiler.path} write a list of macros instead of code: remove -dM")
    configurations = tuple([line.removeprefix(_CONFIGURATION) for line in log.splitlines() if line.startswith(_CONFIGURATION)])
    names = [*_prerequisites(rule), *_included_files(output)]
    code = output
    if not _depends_on_lines(unit, output):
        code = b"\n".join([line for line in output.splitlines() if line.strip() and not _MARKER.match(line)])
    unlisted = _unlisted_inputs(unit, code)
    is_complete = is_listed and not unlisted
    return _Preprocessed(b"\0".join([code, *unlisted]), names, is_complete, read_search_path(log)[0], configurations)


def _unlisted_inputs(unit: Unit, code: bytes) -> list[bytes]:
    """Return the inputs of preprocessed code that a preprocessor does not write.

    Code that imports modules is represented by its bitcode. Files that inline assembly reads are represented by their names and digests.

    Raise `CompileError` if the compiler fails.
    """
    if unit.compiler.language != "fortran" and _IMPORT.search(code):  # Fortran's `import` reads no file
        return [_run_translation(unit)]
    if not any(word in code for word in _ASSEMBLER_WORDS):
        return []
    from compcache.clang.bitcode import disassemble
    from compcache.content.assembled_files import assembled_files

    return assembled_files(disassemble(_run_translation(unit)))


def _depends_on_lines(unit: Unit, code: bytes) -> bool:
    """Return whether the machine code may depend on line numbers, file names or empty lines."""
    if any(flag.startswith(_LINE_FLAGS) and flag != "-g0" for flag in unit.flags):
        return True
    return any(word in code for word in _LINE_WORDS) or _RAW_STRING.search(code) is not None


def _included_files(code: bytes) -> list[str]:
    """Return the names of the included files, from line markers with flag 1. Other markers may come from the source itself.

    Names like ``<built-in>``, which are not of files, are left out.
    """
    quoted_names: dict[bytes, None] = {}
    for line in code.splitlines():
        match = _MARKER.match(line) if line.startswith(b"#") else None
        if match and b"1" in match[2].split():
            quoted_names[match[1]] = None
    names = [os.fsdecode(_ESCAPE.sub(_unescape, name)) for name in quoted_names]
    return [name for name in names if not (name.startswith("<") and name.endswith(">"))]


def _unescape(match: re.Match[bytes]) -> bytes:
    """Return the byte for an escape in the name of a file: one to three octal digits, `n`, `t` or `r`, or any other character itself."""
    if match[1]:
        return bytes([int(match[1], 8) & 0xFF])
    return {b"n": b"\n", b"t": b"\t", b"r": b"\r"}.get(match[2], match[2])


def identity_of_unit(unit: Unit, translation: Translation) -> Identity:
    """Return a unit's identity: preprocessed source, language, compiler's version, flags with their files, clang's override of flags."""
    return Identity(
        unit.label,
        source=translation.preprocessed,
        language=unit.compiler.language,
        compiler=translation.version,
        flags=unit.flags,
        **({"flag_files": translation.flag_files} if translation.flag_files else {}),
        **({"override": os.environ[OVERRIDE]} if OVERRIDE in os.environ else {}),
    )


def makers_of_unit(translation: Translation) -> dict[str, str]:
    """Return the compiler and its version in the form of `ModuleSource.makers`; an empty dict if the version is unknown."""
    match = _COMPILER.search(translation.version)
    return {match[1]: match[2]} if match else {}


def translate(unit: Unit, translation: Translation) -> bytes:
    """Compile a unit and return its bitcode.

    Bitcode of C and C++ is not optimized if llvmlite's LLVM can run the passes that the flags request, and the code has no coroutines.
    Other bitcode is compiled with the given flags.

    Raise `CompileError` if the compiler fails, does not write bitcode, or the input has changed since `preprocess`. If the input may have
    changed, the preprocessor runs again; see `preprocess` for its exceptions.
    """
    bitcode = _run_translation(unit)
    if not translation.is_settled(unit) and _run_preprocessor(unit).preprocessed != translation.preprocessed:
        raise CompileError(f"the input of {unit.label} was changed during compilation: compile the source again")
    return bitcode


def _run_translation(unit: Unit) -> bytes:
    """Return the bitcode of a unit. Raise `CompileError` if the compiler fails, or does not write bitcode."""
    if unit.compiler.language == "rust":
        bitcode = _run_rustc(unit, ["--emit=llvm-bc", "-Ccodegen-units=1"])
    else:
        is_deferred = unit.compiler.language in ("c", "c++") and _can_defer_passes(unit)
        bitcode = _run_clang(unit, ["-Xclang", "-disable-llvm-passes"] if is_deferred else [])
        # Only the compiler's LLVM can split coroutines, because the intrinsics differ between versions.
        if is_deferred and b"llvm.coro." in bitcode:
            bitcode = _run_clang(unit, [])
    if not bitcode.startswith(BITCODE_MAGIC):
        raise CompileError(_NO_BITCODE.format(unit.compiler.path))
    return bitcode


def _run_clang(unit: Unit, flags: list[str]) -> bytes:
    """Run the compiler with additional flags and return the bitcode of a unit. Raise `CompileError` if the compiler fails."""
    return _run_compiler(unit, [*_POSITION_INDEPENDENT, *unit.flags, *flags, "-emit-llvm", "-c", "-o", "-"]).stdout


def _can_defer_passes(unit: Unit) -> bool:
    """Return whether the flags request optimization, and llvmlite's LLVM has all passes for it.

    llvmlite's LLVM lacks the passes for instrumentation, and code for link-time optimization needs passes of its own.
    """
    return optimization_level(unit) > 0 and not any(
        flag.startswith(("-fsanitize", "-fprofile", "-fcoverage", "-flto")) for flag in unit.flags
    )


def _read_version(unit: Unit) -> str:
    """Return the compiler's version text without the directory of the installation. Raise `CompileError` as `_run_process` does."""
    stamp = unit.compiler.stamp
    if stamp not in _versions:
        lines = _run_process(unit, ["--version"]).stdout.decode("utf-8", "replace").splitlines()
        _versions[stamp] = "\n".join([line for line in lines if "InstalledDir" not in line and not line.startswith(_CONFIGURATION)])
    return _versions[stamp]


def _run_rustc(unit: Unit, arguments: list[str]) -> bytes:
    """Run rustc and return the file that it writes, because rustc, unlike the other compilers, cannot write to a pipe.

    Raise `CompileError` if rustc fails.
    """
    with scratch_directory("compcache-clang-") as scratch:
        path = os.path.join(scratch, "output")
        _run_compiler(unit, ["--crate-type=lib", *arguments, *unit.flags, "-o", path])
        return _read_file(path)


def _preprocess_c(unit: Unit) -> tuple[subprocess.CompletedProcess[bytes], bytes]:
    """Return the outputs of the preprocessor, and the makefile rule in its standard error that names the files that it reads.

    Raise `CompileError` if the compiler fails.
    """
    target = os.urandom(16).hex()  # no diagnostic contains it
    # A preprocessor that misses a header removes the rule's file. Nothing in /proc can be removed, but root's /dev/stderr can.
    arguments = ["-E", *_POSITION_INDEPENDENT, *unit.flags, "-o", "-", "-v", "-MD", "-MF", "/dev/fd/2", "-MT", target]
    completed = _run_compiler(unit, arguments)
    _, found_target, prerequisites = completed.stderr.rpartition(target.encode())  # the first is in the compiler's command
    return completed, found_target + prerequisites if found_target else b""


def _run_compiler(unit: Unit, arguments: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run the compiler and return its outputs. If the unit has no file, the compiler reads the code from standard input.

    Raise `CompileError` if the compiler reports errors, cannot be started, or does not end within `_SECONDS`.
    """
    completed = _run_process(unit, [*arguments, *_input_arguments(unit)], None if unit.path else unit.code)
    if completed.returncode:
        if b"-Xclang" in completed.stderr or b"-emit-llvm" in completed.stderr:
            raise CompileError(_NO_BITCODE.format(unit.compiler.path))
        diagnostics = read_search_path(completed.stderr.decode("utf-8", "replace"))[1].strip()[:_MAX_OUTPUT]
        raise CompileError(_failure_text(os.path.basename(unit.compiler.path), completed.returncode, diagnostics))
    return completed


def _run_process(unit: Unit, arguments: list[str], code: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run the compiler in the unit's directory, and return its status and outputs. `code` is its standard input, which is empty by default.

    Raise `CompileError` if the compiler cannot be started, or does not end within `_SECONDS`.
    """
    path = unit.compiler.path
    try:
        return subprocess.run(
            [path, *arguments],
            input=code,
            stdin=subprocess.DEVNULL if code is None else None,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            cwd=unit.directory or None,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"the compiler {path} did not end within {_SECONDS:g} s: split the source") from error
    except OSError as error:
        reraise_interrupt(error)
        if unit.directory and not os.path.isdir(unit.directory):
            raise CompileError(f"the directory {unit.directory} of {unit.label} does not exist: create it") from error
        raise CompileError(f"the compiler {path} cannot be started ({error.strerror or error}): choose another compiler (cc=)") from error


def _failure_text(compiler: str, status: int, diagnostics: str) -> str:
    """Return the message for a compiler that failed. A negative `status` is the number of the signal that ended the process."""
    if status < 0:
        text = f"{compiler} was ended by signal {-status} ({signal.strsignal(-status)})"
        return f"{text}:\n{diagnostics}" if diagnostics else f"{text}: compile the source again"
    return f"{compiler} reports errors:\n{diagnostics or f'(it wrote no message, and ended with status {status})'}"


def _input_arguments(unit: Unit) -> list[str]:
    """Return the arguments that name the compiler's input: the unit's file, or standard input and its language."""
    if unit.path:
        return [unit.path]
    language = _INPUT.get(unit.compiler.language)
    return ["-"] if language is None else ["-x", language, "-"]


def _prerequisites(rule: bytes) -> list[str]:
    """Return the prerequisites of a makefile rule. A name that makefiles cannot express is not restored correctly."""
    text = rule.decode("utf-8", "surrogateescape").replace("\\\n", " ")
    names = text.partition(": ")[2].strip("\n").split("\n\n")[0]  # a blank line ends the rule of rustc
    return [re.sub(r"\\([ #])", r"\1", name).replace("$$", "$") for name in re.findall(r"(?:\\ |\S)+", names)]


def _absolute_paths(names: list[str], unit: Unit) -> tuple[str, ...]:
    """Return the absolute paths of files, without the unit's own source file."""
    paths = [os.path.join(unit.directory, name) for name in names if name not in (unit.path, "-", "<stdin>")]
    return tuple(dict.fromkeys(paths))


def _read_file(path: str) -> bytes:
    """Return the content of a file, or no bytes if the file does not exist. Raise `OSError` if it cannot be read."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read()
    return b""
