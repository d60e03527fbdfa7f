"""``compcache add``: compile files into the cache."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compcache.build.source import Function, ModuleSource
from compcache.cli.completion import complete_files
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import Column, ProgressBar, is_terminal, plural, print_message, print_rows, short_id, size_text
from compcache.cli.session import Session, pass_session
from compcache.errors import CompcacheError, CompileError, LinkError, UndefinedSymbolError
from compcache.files import reraise_interrupt
from compcache.frontend import list_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from compcache import ExportedFunction
    from compcache.cache import Cache
    from compcache.clang.compile_commands import CompileCommand
    from compcache.clang.units import Unit

__all__ = ["command"]

_FLAGS = "compcache.cli.flags"  # a key in the `meta` of a context of click
#: The maximum number of names on a line of output.
_MOST_NAMED = 8
#: Line starts that occur in LLVM assembly and hardly in other text.
_CODE = re.compile(
    rb"^\s*(?:define |declare |target (?:triple|datalayout) |source_filename |module asm |[@$%][^ ]+ = |!\d+ = )", re.MULTILINE
)
_HEAD = 4096  # bytes of a file searched for NUL bytes
#: Parameters of `ModuleSource` and the options that set them.
_OPTIONS = {
    "imports": "--import", "globals": "--global", "libraries": "--library", "archives": "--archive", "functions": "--export",
    "cpu": "--cpu", "features": "--features", "targets": "--targets", "optimize": "--optimize", "cc": "--cc",
}  # fmt: skip
_OPTION = re.compile(rf"\b({'|'.join(_OPTIONS)})=(\[[^\]]*\])?")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r"'([^']*)'")
#: The maximum number of files whose names are joined to the name of their group.
_MOST_IN_NAME = 3
#: The reference to a member of a group in an error message.
_SOURCE = re.compile(r"\bsource (\d+)(?: \([^)\n]*\))?")


class _WithFlags(click.Command):
    """A command whose arguments after ``--`` are flags of a compiler."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments after ``--`` in the metadata of the context, and parse the arguments before ``--``."""
        if "--" in args:
            position = args.index("--")
            ctx.meta[_FLAGS] = tuple(args[position + 1 :])
            args = args[:position]
        return super().parse_args(ctx, args)


@click.command("add", cls=_WithFlags)
@click.argument("files", metavar="FILE...", nargs=-1, shell_complete=complete_files)
@click.option(
    "-O",
    "--optimize",
    type=click.IntRange(0, 3),
    default=2,
    show_default=True,
    help="LLVM's optimization level. 0 keeps the code as it is.",
)
@click.option(
    "--export",
    "exports",
    metavar="NAME[=SIGNATURE]",
    multiple=True,
    help="Export this function, for example --export 'dot=f64(const f64[:], const f64[:])'. Repeatable. By default every "
    "visible function is exported with the signature of its LLVM type.",
)
@click.option(
    "--import",
    "imports",
    metavar="NAME",
    multiple=True,
    help="Import this declared function from another module, which may be added later. Repeatable. SYMBOL=NAME if "
    "the code uses another name for it.",
)
@click.option(
    "--global",
    "globals_",
    metavar="NAME=VALUE",
    multiple=True,
    help="Define an external global: a number, true or false, text:TEXT, bytes:HEX, @FILE (the bytes of FILE), "
    "native:SYMBOL[@LIBRARY] or object:MODULE:NAME. Repeatable.",
)
@click.option("--nogil", is_flag=True, help="Release the GIL while the exported functions run.")
@click.option("--cpu", metavar="NAME", help="Compile for this CPU, e.g. x86-64-v3, instead of the CPU of this machine.")
@click.option("--features", metavar="LIST", help="CPU features in LLVM's terms, e.g. +avx2,-avx512f.")
@click.option("--targets", metavar="LIST", help="Compile for each of these CPUs, e.g. x86-64-v2,x86-64-v3,native (COMPCACHE_TARGETS).")
@click.option(
    "--library", "libraries", metavar="NAME", multiple=True, help="Use this shared library: stdc++, libz.so.1 or a path. Repeatable."
)
@click.option("--archive", "archives", metavar="FILE", multiple=True, help="Link this static library. Repeatable.")
@click.option(
    "--compile-commands",
    "database",
    metavar="PATH",
    help="Compile source files with the flags in this compile_commands.json, or in the compile_commands.json of this directory. "
    "CMake, Meson and Bear write such files. Without FILE, compile all its files in C, C++ and Fortran. Flags after -- come last.",
)
@click.option("--name", metavar="GROUP", help="The name of the group of several files. The default is the joined file names.")
@click.option("--replace", is_flag=True, help="Remove the older group of this name, or the older module of one FILE.")
@click.option("--cc", metavar="COMPILER", help="The compiler for source files, instead of clang, clang++, flang or rustc.")
@click.option(
    "--untrusted", is_flag=True,
    help="Compile the code in a child process first, with time and memory limits, because it may crash LLVM.",
)  # fmt: skip
@click.option("--no-bitcode", is_flag=True, help="Do not store the optimized code, which 'show --ir' prints.")
@json_option
@pass_session
def command(
    session: Session,
    files: tuple[str, ...],
    optimize: int,
    exports: tuple[str, ...],
    imports: tuple[str, ...],
    globals_: tuple[str, ...],
    nogil: bool,
    cpu: str | None,
    features: str | None,
    targets: str | None,
    libraries: tuple[str, ...],
    archives: tuple[str, ...],
    database: str | None,
    name: str | None,
    replace: bool,
    cc: str | None,
    untrusted: bool,
    no_bitcode: bool,
    as_json: bool,
) -> int:
    """Compile LLVM assembly (.ll), bitcode (.bc) or source files into the cache.

    C, C++, Fortran and Rust files (.c .cpp .f90 .rs) are compiled by clang, clang++, flang and rustc, or by the compiler that
    --cc names. Arguments after "--" are flags for the compiler. Without flags, it optimizes at level 2. Objects (.o) and archives
    (.a) are accepted if they hold bitcode (-flto, -ffat-lto-objects, -fembed-bitcode).

    One FILE becomes a module; "-" is standard input. Several FILEs become a group: one module, with its own hidden names, as a linker
    makes one shared library of several files. When a group is added again, only edited files are optimized. Look-ups find the newer
    group; --replace removes the older group. A FILE that fails is reported together with the FILEs that need it. The other FILEs are
    added, unless --replace is given. Use --import for functions of files that are added separately.
    """
    options = {
        "functions": _parse_exports(exports, nogil=nogil),
        "globals": dict(_parse_global_option(text, "--global") for text in globals_) or None,
        "imports": _parse_imports(imports),
        "optimize": optimize,
        "cpu": cpu,
        "features": features,
        "targets": targets,
        "keep_bitcode": not no_bitcode,
        "untrusted": untrusted,
        "libraries": libraries,
        "archives": archives,
    }
    flags = click.get_current_context().meta.get(_FLAGS)
    commands = _read_commands(database) if database is not None else {}
    files = files or tuple([os.path.relpath(path) for path in commands])
    if not files:
        raise click.MissingParameter(ctx=click.get_current_context(), param_type="argument", param_hint="'FILE...'")
    group = name or (_group_name(files) if len(files) > 1 else None)
    with session.open_or_create() as cache, ProgressBar("files added") as bar:
        reading = _Reading(files, options, cc, flags, commands if database is not None else None, bar)
        added = _add_files(cache, reading, group, replace=replace)
        cells = [] if as_json else [_row_cells(cache, row) for row in added]
    for line in [*_error_lines(files, reading.errors), *reading.common_errors]:
        print_message("error", line)
    if len(files) == len(added) == 1 and group is None and _is_completely_hidden(added[0]["functions"]):
        print_message(
            "warning",
            f"{files[0]}: all functions are hidden, and none can be called: name functions with --export, or add the file together "
            "with files that use its functions",
        )
    if as_json:
        print_json(added)
    elif added:
        print_rows(_COLUMNS, cells)
    return 2 if reading.errors or reading.common_errors else 0


class _Reading:
    """An iterable that reads each file, compiles it if necessary, and yields its source.

    Iterating fills three fields: `numbers`, the positions of the files that were yielded; `errors`, by position, the
    errors of the other files; and `common_errors`, which `_add_files` fills too, the errors that concern several files.
    """

    def __init__(
        self,
        files: tuple[str, ...],
        options: dict[str, Any],
        cc: str | None,
        flags: tuple[str, ...] | None,
        commands: Mapping[str, CompileCommand] | None,
        bar: ProgressBar,
    ) -> None:
        self.files, self._options, self._cc, self._flags, self._commands, self._bar = files, options, cc, flags, commands, bar
        self.numbers: list[int] = []
        self.errors: dict[int, Exception] = {}
        self.common_errors: list[str] = []

    def __iter__(self) -> Iterator[ModuleSource]:
        for number, path in enumerate(self.files):
            self._bar.update(number, len(self.files))
            try:
                unit = _make_unit(path, self._cc, self._flags, self._commands)
                source = _compile(unit, self._options) if unit is not None else ModuleSource(_read_code(path), **self._options)
            except (CompcacheError, OSError) as error:
                self.errors[number] = error
                continue
            self.numbers.append(number)
            yield source


def _group_name(files: Sequence[str]) -> str:
    """Return a name for a group: the joined names of its files, or the name of their common directory for many files."""
    names = [os.path.basename(path).partition(".")[0] or path for path in files]
    directory = os.path.basename(os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files]))
    return "+".join(names) if len(names) <= _MOST_IN_NAME or not directory else directory


def _add_files(cache: Cache, reading: _Reading, group: str | None, *, replace: bool) -> list[dict[str, Any]]:
    """Add the files to the cache, and return a row for each added file.

    Put the errors of other files into `reading.errors` and `reading.common_errors`. With `replace`, an error of any file
    keeps all files from being added.
    """
    from compcache import ModulesNotAddedError

    module_ids: Sequence[str | None]
    sources = list(reading)
    if replace and reading.errors:
        return []
    try:
        module_ids = cache.replace(sources, group=group) if replace else cache.add_modules(sources, group)
    except ModulesNotAddedError as error:
        module_ids = error.module_ids
        for number, failure in error.failures.items():
            if not isinstance(failure, (CompcacheError, OSError)):
                raise failure from error
            reading.errors[reading.numbers[number]] = failure
    except (LinkError, CompileError) as error:
        paths = {str(number): reading.files[position] for number, position in enumerate(reading.numbers)}
        reading.common_errors += [_SOURCE.sub(lambda match: paths[match[1]], line.strip()) for line in _error_text(error).splitlines()]
        return []
    added = [
        (reading.files[number], module_id) for number, module_id in zip(reading.numbers, module_ids, strict=True) if module_id is not None
    ]
    members = [member.functions for summary in list_groups(cache, [group]) for member in summary.members] if group else []
    return [_added_row(cache, path, module_id, members[position] if group else None) for position, (path, module_id) in enumerate(added)]


def _added_row(cache: Cache, path: str, module_id: str, member: Sequence[str] | None) -> dict[str, Any]:
    """Return the row of an added file. `member` are the names that the file exports; None: all names of the module."""
    summary = cache.module(module_id)
    functions = [function for function in summary.functions if member is None or function.func_name in member]
    return {"file": path, "module_id": module_id, "functions": functions, "size": summary.size, "seconds": summary.seconds}


def _error_text(error: Exception) -> str:
    """Return the message of an error about a file, with command-line options in place of Python parameters."""
    if isinstance(error, OSError) and not isinstance(error, CompcacheError):
        return f"cannot be read: {error.strerror}"
    text = str(error).replace("imports/globals name", "imports= and globals= name")
    return _OPTION.sub(_option_text, text).replace("<string>:", "line ")


def _option_text(match: re.Match[str]) -> str:
    """Return the command-line option for a Python parameter in a message, once for each value in the message."""
    option = _OPTIONS[match[1]]
    values = _QUOTED.findall(match[2] or "")
    return " ".join([f"{option} {value}" for value in values]) or option


def _error_lines(files: Sequence[str], errors: Mapping[int, Exception]) -> Iterator[str]:
    """Yield a message for each file with its own error, and one message for all files that only lack definitions in such files."""
    dependents = _dependent_files(files, errors)
    for number, error in sorted(errors.items()):
        if number not in dependents:
            yield f"{files[number]}: {_error_text(error)}"
    if dependents:
        names = [files[number] for number in sorted(dependents)]
        rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        subject = "1 other file needs" if len(names) == 1 else f"{len(names)} other files need"
        yield f"{subject} definitions of the files above: {', '.join(names[:_MOST_NAMED])}{rest}"


def _dependent_files(files: Sequence[str], errors: Mapping[int, Exception]) -> set[int]:
    """Return the positions of files whose only errors are undefined symbols that other failed files seem to define.

    A failed file cannot be parsed. A file seems to define a symbol if it contains the name, and the symbol is not undefined in it.
    Return an empty set if all files would be in the result.
    """
    lacking = {number: error.symbols for number, error in errors.items() if isinstance(error, UndefinedSymbolError) and error.symbols}
    if len(errors) == 1 or not lacking:
        return set()
    from compcache.images.libraries import demangle

    words = {number: _read_words(files[number]) for number in errors}

    def is_defined_elsewhere(symbol: str) -> bool:
        names = {symbol.lower(), symbol.lower().strip("_"), demangle(symbol).partition("(")[0].rpartition(":")[2].lower()}
        return any(symbol not in lacking.get(number, ()) and not found.isdisjoint(names) for number, found in words.items())

    dependents = {number for number, symbols in lacking.items() if all(map(is_defined_elsewhere, symbols))}
    return dependents if len(dependents) < len(errors) else set()


def _read_words(path: str) -> frozenset[str]:
    """Return the words of a file in lower case, because Fortran ignores case; empty for a file that cannot be read."""
    try:
        content = b"" if path == "-" else Path(path).read_bytes()
    except OSError as error:
        reraise_interrupt(error)
        content = b""
    return frozenset([word.decode().lower() for word in _WORD.findall(content)])


def _parse_exports(exports: tuple[str, ...], *, nogil: bool) -> dict[str, Any] | None:
    """Return the functions given by --export, by name; None without --export."""
    if not exports:
        if nogil:
            raise click.UsageError("--nogil requires --export: name the functions that release the GIL")
        return None
    functions = {}
    for text in exports:
        name, equals, signature = text.partition("=")
        functions[name] = Function(signature if equals else None, nogil=nogil)
    return functions


def _parse_imports(texts: tuple[str, ...]) -> dict[str, str] | None:
    """Return the names given by --import, by symbol; None without --import."""
    pairs = [text.partition("=") for text in texts]
    return {symbol: name or symbol for symbol, _, name in pairs} or None


def _parse_global_option(text: str, option: str) -> tuple[str, Any]:
    """Return the name and the definition of a global variable from NAME=VALUE. Raise `click.UsageError` for an invalid text."""
    from compcache.cli.values import parse_global

    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{option} {text!r} does not have the form NAME=VALUE")
    try:
        return name, parse_global(value)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"{option} {name}={value[:40]}: {error}") from error


def _read_commands(database: str) -> dict[str, CompileCommand]:
    """Return the first compile command of each file in a compilation database, by path. Warn of files with several commands.

    Raises:
        click.UsageError: the database cannot be read or has no usable file.
    """
    from compcache.clang.compile_commands import read_compile_commands

    try:
        commands = read_compile_commands(database)
    except (OSError, CompileError) as error:
        reason = str(error) if isinstance(error, CompileError) else f"{database} cannot be read: {error.strerror}"
        raise click.UsageError(f"--compile-commands: {reason}") from error
    by_path: dict[str, CompileCommand] = {}
    for command in commands:
        if by_path.setdefault(command.path, command) is not command:
            print_message("warning", f"{database} has several commands for {os.path.relpath(command.path)}: the first command is used")
    if not by_path:
        raise click.UsageError(f"--compile-commands: {database} has no files in C, C++ or Fortran")
    return by_path


def _make_unit(path: str, cc: str | None, flags: tuple[str, ...] | None, commands: Mapping[str, CompileCommand] | None) -> Unit | None:
    """Return the compilation of a source file; None for a file of LLVM code.

    Raises:
        CompileError: the file is assembly, or the compile commands have no entry for it.
    """
    from compcache.clang.compilers import language_of

    if path.endswith((".s", ".S", ".asm")):
        raise CompileError(
            "this is native assembly, not LLVM code: assemble it (clang -c), put the object into a static library (ar rcs), and add the "
            "file that calls it with --archive LIBRARY"
        )
    if path == "-" or language_of(path) is None:
        return None
    from compcache.clang.units import make_unit

    if commands is None:
        return make_unit(Path(path), flags, cc)
    command = commands.get(os.path.abspath(path))
    if command is None:
        raise CompileError("the compile commands have no entry for this file: add it without --compile-commands, with its flags after --")
    return make_unit(Path(command.name), (*command.flags, *(flags or ())), cc or command.compiler, directory=command.directory)


def _compile(unit: Unit, options: dict[str, Any]) -> ModuleSource:
    """Compile a source file to bitcode, and return it as the source of a module."""
    from compcache.clang.run import identity_of_unit, makers_of_unit, preprocess, translate
    from compcache.clang.runtimes import add_runtime_libraries

    translation = preprocess(unit)
    code, options = add_runtime_libraries(unit, translate(unit, translation), options)
    return ModuleSource(code, identity=identity_of_unit(unit, translation), makers=makers_of_unit(translation), **options)


def _read_code(path: str) -> bytes:
    """Return the content of a file of LLVM code; of standard input for "-".

    Raises:
        OSError: the file cannot be read.
        CompileError: the file is text, and not LLVM assembly.
    """
    if path == "-":
        return sys.stdin.buffer.read()
    with open(path, "rb") as file:
        content = file.read()
    ending = os.path.splitext(path)[1]
    if ending != ".ll" and _is_text(content) and not _CODE.search(content):
        from compcache.clang.compilers import LANGUAGES

        known = " ".join([ending for _, endings in LANGUAGES.values() for ending in endings])
        name = f"the extension {ending!r}" if ending else "its name without an extension"
        raise CompileError(f"the file is not LLVM code, and {name} does not identify its language; known extensions: {known}")
    return content


def _is_text(content: bytes) -> bool:
    return b"\0" not in content[:_HEAD] and not content.startswith(b"BC")


_COLUMNS = [Column("module"), Column("file", flexible=True), Column("functions", flexible=True), Column("size", True)]


def _row_cells(cache: Cache, row: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of an added file as text, one cell for each of `_COLUMNS`."""
    return short_id(row["module_id"]), row["file"], _names_text(cache, row["functions"]), size_text(row["size"])


def _is_completely_hidden(exported: Sequence[ExportedFunction]) -> bool:
    """Return whether a module has functions and all are hidden."""
    return bool(exported) and all(function.signature == "hidden function" for function in exported)


def _names_text(cache: Cache, exported: Sequence[ExportedFunction]) -> str:
    """Return the names of the callable functions, and the number of symbols that only other modules can use.

    Hidden functions and variables are such symbols. On a terminal, many names are replaced by their number.
    """
    functions = [function.func_name for function in exported if cache.has(function.func_name)]
    words = [plural(len(functions), "function")] if is_terminal() and len(functions) > _MOST_NAMED else functions
    if len(exported) > len(functions):
        words = [*words, f"({plural(len(exported) - len(functions), 'symbol')} for other modules)"]
    return " ".join(words)
