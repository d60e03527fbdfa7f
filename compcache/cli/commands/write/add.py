"""``compcache add``: compiles files of LLVM code into the cache."""

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
from compcache.cli.output import Column, ProgressBar, is_terminal, plural, print_rows, say, short_id, size_text
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

_FLAGS = "compcache.cli.flags"
#: How many names fit a line.
_MOST_NAMED = 8
#: The words at the start of lines that show LLVM code.
_CODE = re.compile(
    rb"^\s*(?:define |declare |target (?:triple|datalayout) |source_filename |module asm |[@$%][^ ]+ = |!\d+ = )", re.MULTILINE
)
_HEAD = 4096
#: Parameters of `ModuleSource`, with their values where messages give them, and the options that stand for them.
_OPTIONS = {
    "imports": "--import", "globals": "--global", "libraries": "--library", "archives": "--archive", "functions": "--export",
    "cpu": "--cpu", "features": "--features", "targets": "--targets", "optimize": "--optimize", "cc": "--cc",
}  # fmt: skip
_OPTION = re.compile(rf"\b({'|'.join(_OPTIONS)})=(\[[^\]]*\])?")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r"'([^']*)'")
#: A group of no more files is named after them.
_MOST_IN_NAME = 3
#: How errors name members of a group.
_SOURCE = re.compile(r"\bsource (\d+)(?: \([^)\n]*\))?")


class _WithFlags(click.Command):
    """A command whose arguments behind ``--`` are flags of a compiler."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_FLAGS] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command("add", cls=_WithFlags)
@click.argument("files", metavar="FILE...", nargs=-1, shell_complete=complete_files)
@click.option("-O", "--optimize", type=click.IntRange(0, 3), default=2, show_default=True, help="LLVM's level; 0: as given.")
@click.option(
    "--export",
    "exports",
    metavar="NAME[=SIGNATURE]",
    multiple=True,
    help="Export this function, for example --export 'dot=f64(const f64[:], const f64[:])'. Repeatable; without it every "
    "visible function is exported, with the signature of its LLVM type.",
)
@click.option(
    "--import",
    "imports",
    metavar="NAME",
    multiple=True,
    help="A declared function that another module of the cache defines, now or later. Repeatable; SYMBOL=NAME if "
    "the code uses another name.",
)
@click.option(
    "--global",
    "globals_",
    metavar="NAME=VALUE",
    multiple=True,
    help="Define an external global: a number, true or false, text:TEXT, bytes:HEX, @FILE (its bytes), "
    "native:SYMBOL[@LIBRARY] or object:MODULE:NAME. Repeatable.",
)
@click.option("--nogil", is_flag=True, help="Release the GIL while the exported functions run.")
@click.option("--cpu", metavar="NAME", help="Compile for this CPU, e.g. x86-64-v3, instead of this machine's.")
@click.option("--features", metavar="LIST", help="CPU features in LLVM's terms, e.g. +avx2,-avx512f.")
@click.option("--targets", metavar="LIST", help="Compile for each of these CPUs, e.g. x86-64-v2,x86-64-v3,native (COMPCACHE_TARGETS).")
@click.option(
    "--library",
    "libraries",
    metavar="NAME",
    multiple=True,
    help="A shared library that the code uses: stdc++, libz.so.1 or a path. Repeatable.",
)
@click.option("--archive", "archives", metavar="FILE", multiple=True, help="A static library to link. Repeatable.")
@click.option(
    "--compile-commands",
    "database",
    metavar="PATH",
    help="Compile source files as this compile_commands.json says, or the one in this directory: CMake, Meson and Bear write "
    "it. Without FILE, all its files in C, C++ and Fortran; flags behind -- come last.",
)
@click.option("--name", metavar="GROUP", help="The name of the group that the files make; without it their own names give one.")
@click.option("--replace", is_flag=True, help="Remove what is replaced: the group of this name, or the older module of one FILE.")
@click.option("--cc", metavar="COMPILER", help="The compiler of source files, instead of clang, clang++, flang or rustc.")
@click.option(
    "--untrusted", is_flag=True,
    help="Compile the code in a child process first, with limits of time and memory: it may crash LLVM.",
)  # fmt: skip
@click.option("--no-bitcode", is_flag=True, help="Do not keep the optimized code for 'show --ir'.")
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

    C, C++, Fortran and Rust (.c .cpp .f90 .rs) go through clang, clang++, flang and rustc, or the one that --cc names; what
    follows "--" are flags for it, and level 2 unless there are any.
    Objects (.o) and archives (.a) work if they hold bitcode (-flto, -ffat-lto-objects, -fembed-bitcode). One FILE becomes a
    module ("-" is standard input), several become a group: one module, as a linker makes one shared library of files, with hidden names of
    its own. Added again, only what was edited is optimized, and the newer group answers; --replace removes the older one. A file
    that fails is reported with those that need it, and the others are still added, but for --replace. What files define that
    are added another time, name with --import.
    """
    options = {
        "functions": _functions(exports, nogil=nogil),
        "globals": dict(_pair(text, "--global") for text in globals_) or None,
        "imports": _imports(imports),
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
    commands = _commands(database) if database is not None else {}
    files = files or tuple([os.path.relpath(path) for path in commands])
    if not files:
        raise click.MissingParameter(ctx=click.get_current_context(), param_type="argument", param_hint="'FILE...'")
    group = name or (_group_name(files) if len(files) > 1 else None)
    with session.open() as cache, ProgressBar("files added") as bar:
        reading = _Reading(files, options, cc, flags, commands if database is not None else None, bar)
        added = _add(cache, reading, group, replace=replace)
        shown = [] if as_json else [_shown(cache, row) for row in added]
    for line in [*_report(files, reading.errors), *reading.contradictions]:
        say("error", line)
    if len(files) == len(added) == 1 and group is None and _is_hidden(added[0]["functions"]):
        say(
            "warning",
            f"{files[0]}: all its functions are hidden, and cannot be called: name some with --export, or add it together with files "
            "that use them",
        )
    if as_json:
        print_json(added)
    elif added:
        print_rows(_COLUMNS, shown)
    return 2 if reading.errors or reading.contradictions else 0


class _Reading:
    """Reads the files, and has compilers translate them. `errors` are their errors, by position."""

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
        self.numbers: list[int] = []  # of the files whose sources were given
        self.errors: dict[int, Exception] = {}
        self.contradictions: list[str] = []  # an error that concerns the files together

    def __iter__(self) -> Iterator[ModuleSource]:
        for number, path in enumerate(self.files):
            self._bar.update(number, len(self.files))
            try:
                unit = _unit(path, self._cc, self._flags, self._commands)
                source = _compiled(unit, self._options) if unit is not None else ModuleSource(_read(path), **self._options)
            except (CompcacheError, OSError) as error:
                self.errors[number] = error
                continue
            self.numbers.append(number)
            yield source


def _group_name(files: Sequence[str]) -> str:
    """Return the name of a group that was given none: that of its files, or, if they are many, of their directory."""
    names = [os.path.basename(path).partition(".")[0] or path for path in files]
    directory = os.path.basename(os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files]))
    return "+".join(names) if len(names) <= _MOST_IN_NAME or not directory else directory


def _add(cache: Cache, reading: _Reading, group: str | None, *, replace: bool) -> list[dict[str, Any]]:
    """Add the files. Return rows for those that were added; put the reasons of the others into `reading.errors`."""
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
        paths = {str(number): reading.files[each] for number, each in enumerate(reading.numbers)}
        reading.contradictions += [_SOURCE.sub(lambda match: paths[match[1]], line.strip()) for line in _reason(error).splitlines()]
        return []
    added = [
        (reading.files[number], module_id) for number, module_id in zip(reading.numbers, module_ids, strict=True) if module_id is not None
    ]
    members = [member.functions for each in list_groups(cache, [group]) for member in each.members] if group else []
    return [_row(cache, path, module_id, members[n] if group else None) for n, (path, module_id) in enumerate(added)]


def _row(cache: Cache, path: str, module_id: str, member: Sequence[str] | None) -> dict[str, Any]:
    """Return a row of a file; of a `member` of a group that exports these names."""
    summary = cache.module(module_id)
    functions = [function for function in summary.functions if member is None or function.func_name in member]
    return {"file": path, "module_id": module_id, "functions": functions, "size": summary.size, "seconds": summary.seconds}


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, CompcacheError):
        return f"cannot be read: {error.strerror}"
    return _OPTION.sub(_as_option, str(error).replace("imports/globals name", "imports= and globals= name")).replace("<string>:", "line ")


def _as_option(match: re.Match[str]) -> str:
    """Return a Python parameter, with its value if it has one, as the option of the command line."""
    option = _OPTIONS[match[1]]
    values = _QUOTED.findall(match[2] or "")
    return " ".join([f"{option} {value}" for value in values]) or option


def _report(files: Sequence[str], errors: Mapping[int, Exception]) -> Iterator[str]:
    """Report files that could not be added: first those with errors, then those that only lack definitions from the former."""
    waiting = _waiting(files, errors)
    for number, error in sorted(errors.items()):
        if number not in waiting:
            yield f"{files[number]}: {_reason(error)}"
    if waiting:
        names = [files[number] for number in sorted(waiting)]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        others = "1 other file needs" if len(names) == 1 else f"{len(names)} other files need"
        yield f"{others} what is defined there: {', '.join(names[:_MOST_NAMED])}{more}"


def _waiting(files: Sequence[str], errors: Mapping[int, Exception]) -> set[int]:
    """Return the files whose only error is a definition from another file that could not be added: they mention it and do not have it."""
    lacking = {number: error.symbols for number, error in errors.items() if isinstance(error, UndefinedSymbolError) and error.symbols}
    if len(errors) == 1 or not lacking:
        return set()
    from compcache.images.libraries import demangle

    words = {number: _words_in(files[number]) for number in errors}

    def is_elsewhere(symbol: str) -> bool:
        names = {symbol.lower(), symbol.lower().strip("_"), demangle(symbol).partition("(")[0].rpartition(":")[2].lower()}
        return any(symbol not in lacking.get(number, ()) and not found.isdisjoint(names) for number, found in words.items())

    found = {number for number, symbols in lacking.items() if all(map(is_elsewhere, symbols))}
    return found if len(found) < len(errors) else set()


def _words_in(path: str) -> frozenset[str]:
    """Return the words of a file in small letters, because Fortran ignores case."""
    try:
        content = b"" if path == "-" else Path(path).read_bytes()
    except OSError as error:
        reraise_interrupt(error)
        content = b""
    return frozenset([word.decode().lower() for word in _WORD.findall(content)])


def _functions(exports: tuple[str, ...], *, nogil: bool) -> dict[str, Any] | None:
    if not exports:
        if nogil:
            raise click.UsageError("--nogil needs --export: name the functions that release the GIL")
        return None
    functions = {}
    for text in exports:
        name, equals, signature = text.partition("=")
        functions[name] = Function(signature if equals else None, nogil=nogil)
    return functions


def _imports(texts: tuple[str, ...]) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in texts]
    return {symbol: name or symbol for symbol, _, name in pairs} or None


def _pair(text: str, option: str) -> tuple[str, Any]:
    from compcache.cli.values import parse_global

    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{option} {text!r} is not of the form NAME=VALUE")
    try:
        return name, parse_global(value)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"{option} {name}={value[:40]}: {error}") from error


def _commands(database: str) -> dict[str, CompileCommand]:
    """Return the commands of a compilation database by the path of the file; for a file with several, the first."""
    from compcache.clang.compile_commands import read_compile_commands
    from compcache.cli.output import say

    try:
        commands = read_compile_commands(database)
    except (OSError, CompileError) as error:
        reason = str(error) if isinstance(error, CompileError) else f"{database} cannot be read: {error.strerror}"
        raise click.UsageError(f"--compile-commands: {reason}") from error
    found: dict[str, CompileCommand] = {}
    for command in commands:
        if found.setdefault(command.path, command) is not command:
            say("warning", f"{os.path.relpath(command.path)} is compiled in several ways by {database}: the first is used")
    if not found:
        raise click.UsageError(f"--compile-commands: {database} has no files in C, C++ or Fortran")
    return found


def _unit(path: str, cc: str | None, flags: tuple[str, ...] | None, commands: Mapping[str, CompileCommand] | None) -> Unit | None:
    """Return a file that a compiler has to translate, and how; None for other files."""
    from compcache.clang.compilers import language_of

    if path.endswith((".s", ".S", ".asm")):
        raise CompileError(
            "this is assembly, not code for LLVM: assemble it (clang -c), and give the .o in a static library (ar rcs) to the file that calls it (--archive)"  # noqa: E501
        )
    if path == "-" or language_of(path) is None:
        return None
    from compcache.clang.units import make_unit

    if commands is None:
        return make_unit(Path(path), flags, cc)
    command = commands.get(os.path.abspath(path))
    if command is None:
        raise CompileError("the compile commands have no entry for it: add it without --compile-commands, with its flags after --")
    return make_unit(Path(command.name), (*command.flags, *(flags or ())), cc or command.compiler, directory=command.directory)


def _compiled(unit: Unit, options: dict[str, Any]) -> ModuleSource:
    """Return the source of a file that a compiler has to translate."""
    from compcache.clang.run import identity_of_unit, makers_of_unit, preprocess, translate
    from compcache.clang.runtimes import with_runtime

    translation = preprocess(unit)
    code, options = with_runtime(unit, translate(unit, translation), options)
    return ModuleSource(code, identity=identity_of_unit(unit, translation), makers=makers_of_unit(translation), **options)


def _read(path: str) -> bytes:
    """Return the content of a file of LLVM code."""
    if path == "-":
        return sys.stdin.buffer.read()
    with open(path, "rb") as file:
        content = file.read()
    ending = os.path.splitext(path)[1]
    if ending != ".ll" and _is_text(content) and not _CODE.search(content):
        from compcache.clang.compilers import LANGUAGES

        known = " ".join([ending for _, endings in LANGUAGES.values() for ending in endings])
        what = f"the ending {ending!r} is not that of a language" if ending else "a name without an ending tells no language"
        raise CompileError(f"{what} ({known}), and the file holds no LLVM code")
    return content


def _is_text(content: bytes) -> bool:
    return b"\0" not in content[:_HEAD] and not content.startswith(b"BC")


_COLUMNS = [Column("module"), Column("file", flexible=True), Column("functions", flexible=True), Column("size", True)]


def _shown(cache: Cache, row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row for display."""
    return short_id(row["module_id"]), row["file"], _names(cache, row["functions"]), size_text(row["size"])


def _is_hidden(exported: Sequence[ExportedFunction]) -> bool:
    """Return whether there are hidden functions, and nothing else."""
    return bool(exported) and all(function.signature == "hidden function" for function in exported)


def _names(cache: Cache, exported: Sequence[ExportedFunction]) -> str:
    """Return the callable functions, and the number of symbols that only other modules can use: hidden functions, variables."""
    functions = [function.func_name for function in exported if cache.has(function.func_name)]
    others = len(exported) - len(functions)
    names = [plural(len(functions), "function")] if is_terminal() and len(functions) > _MOST_NAMED else functions
    return " ".join([*names, *([f"({plural(others, 'symbol')} for other modules)"] if others else [])])
