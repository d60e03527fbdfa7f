"""``compcache add``: compiles files of LLVM code into the cache."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from compcache.build.source import Function, ModuleSource
from compcache.cli.completion import complete_files
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import Column, ProgressBar, is_terminal, plural, print_rows, say, short_id, size_text
from compcache.cli.session import Session, pass_session
from compcache.errors import CompcacheError, CompileError, LinkError, UndefinedSymbolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from compcache import ExportedFunction
    from compcache.cache import Cache

__all__ = ["command"]

_FLAGS = "compcache.cli.flags"
#: How many names fit a line.
_MOST_NAMED = 8
#: The names of how many files give that of their group.
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
@click.argument("files", metavar="FILE...", nargs=-1, required=True, shell_complete=complete_files)
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
@click.option("--name", metavar="GROUP", help="The name of the group that the files make; without it their own names give one.")
@click.option("--replace", is_flag=True, help="Put the group in place of the one of this name.")
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
    its own. Added again, only what was edited is compiled, and the newer group answers; --replace removes the older one. A file
    that fails is reported with those that need it, and the others are still added, but for --replace. What files define that
    are added another time, name with --import.
    """
    group = name or (_group_name(files) if len(files) > 1 else None)
    if replace and group is None:
        raise click.UsageError("--replace takes the place of a group: name it (--name), or give all its files")
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
    with session.open() as cache, ProgressBar("files added") as bar:
        reading = _Reading(files, options, cc, flags, bar)
        added = _add(cache, reading, group, replace=replace)
        shown = [] if as_json else [_shown(cache, row) for row in added]
    _print_errors(reading)
    if as_json:
        print_json(added)
    elif added:
        print_rows(_COLUMNS, shown)
    return 2 if reading.errors or reading.contradictions else 0


class _Reading:
    """Reads the files, and has compilers translate them. `errors` are what was wrong with them, by position."""

    def __init__(
        self, files: tuple[str, ...], options: dict[str, Any], cc: str | None, flags: tuple[str, ...] | None, bar: ProgressBar
    ) -> None:
        self.files, self._options, self._cc, self._flags, self._bar = files, options, cc, flags, bar
        self.numbers: list[int] = []  # of the files whose sources were given
        self.errors: dict[int, Exception] = {}
        self.contradictions: list[str] = []  # what is wrong with the files together

    def __iter__(self) -> Iterator[ModuleSource]:
        for number, path in enumerate(self.files):
            self._bar.update(number, len(self.files))
            try:
                source = _from_compiler(path, self._options, self._cc, self._flags) or ModuleSource(_read(path), **self._options)
            except (CompcacheError, OSError) as error:
                self.errors[number] = error
                continue
            self.numbers.append(number)
            yield source


def _group_name(files: Sequence[str]) -> str:
    """What a group is called that has no name: after its files, or, of many, after their directory."""
    names = [os.path.basename(path).partition(".")[0] or path for path in files]
    directory = os.path.basename(os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files]))
    return "+".join(names) if len(names) <= _MOST_IN_NAME or not directory else directory


def _print_errors(reading: _Reading) -> None:
    """Say what was wrong with files: causes first, then what follows from them."""
    ordered = sorted(reading.errors.items(), key=lambda item: (isinstance(item[1], UndefinedSymbolError), item[0]))
    causes = [item for item in ordered if not isinstance(item[1], UndefinedSymbolError)]
    shown = ordered if not causes else ordered[: len(causes) + _MOST_NAMED]
    for number, error in shown:
        reason = _reason(error)
        if causes and isinstance(error, UndefinedSymbolError) and error.symbols:
            reason = f"it uses {', '.join(map(repr, error.symbols))}, which no file defines that could be added"
        say("error", f"{reading.files[number]}: {reason}")
    for line in reading.contradictions:
        say("error", line)
    if len(ordered) > len(shown):
        say("error", f"{plural(len(ordered) - len(shown), 'more file')} wait for what could not be added")


def _add(cache: Cache, reading: _Reading, group: str | None, *, replace: bool) -> list[dict[str, Any]]:
    """Add the files; rows of those that were added, and in `reading.errors` why others were not."""
    from compcache import ModulesNotAddedError

    module_ids: Sequence[str | None]
    sources = list(reading)
    if replace and reading.errors:
        return []
    try:
        module_ids = cache.replace(sources, group=group) if replace and group is not None else cache.add_modules(sources, group)
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
    members = [member.functions for each in cache.groups() if each.name == group for member in each.members] if group else []
    return [_row(cache, path, module_id, members[n] if group else None) for n, (path, module_id) in enumerate(added)]


def _row(cache: Cache, path: str, module_id: str, member: Sequence[str] | None) -> dict[str, Any]:
    """A row of a file; of a `member` of a group that exports these names."""
    summary = cache.module(module_id)
    functions = [function for function in summary.functions if member is None or function.func_name in member]
    return {"file": path, "module_id": module_id, "functions": functions, "size": summary.size, "seconds": summary.seconds}


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, CompcacheError):
        return f"cannot be read: {error.strerror}"
    return (
        str(error)
        .replace("imports=", "--import")
        .replace("globals=", "--global")
        .replace("libraries=", "--library")
        .replace("archives=", "--archive")
        .replace("<string>:", "line ")
    )


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


def _from_compiler(path: str, options: dict[str, Any], cc: str | None, flags: tuple[str, ...] | None) -> ModuleSource | None:
    """The source of a file that a compiler has to translate; None for other files."""
    from compcache.clang.compilers import language_of

    if path.endswith((".s", ".S", ".asm")):
        raise CompileError(
            "this is assembly, not code for LLVM: assemble it (clang -c), and give the .o in a static library (ar rcs) to the file that calls it (--archive)"  # noqa: E501
        )
    if path == "-" or language_of(path) is None:
        return None
    from pathlib import Path

    from compcache.clang.run import identity_of_unit, preprocess, translate
    from compcache.clang.runtimes import with_runtime
    from compcache.clang.units import make_unit

    unit = make_unit(Path(path), flags, cc)
    translation = preprocess(unit)
    code, options = with_runtime(unit, translate(unit, translation), options)
    return ModuleSource(code, identity=identity_of_unit(unit, translation), **options)


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    with open(path, "rb") as file:
        return file.read()


_COLUMNS = [Column("module"), Column("file", flexible=True), Column("functions", flexible=True), Column("size", True)]


def _shown(cache: Cache, row: dict[str, Any]) -> tuple[str, ...]:
    """A row for readers."""
    return short_id(row["module_id"]), row["file"], _names(cache, row["functions"]), size_text(row["size"])


def _names(cache: Cache, exported: Sequence[ExportedFunction]) -> str:
    """The functions that can be called, and how many symbols there are for other modules alone: hidden functions, variables."""
    functions = [function.func_name for function in exported if cache.has(function.func_name)]
    others = len(exported) - len(functions)
    names = [plural(len(functions), "function")] if is_terminal() and len(functions) > _MOST_NAMED else functions
    return " ".join([*names, *([f"({plural(others, 'symbol')} for other modules)"] if others else [])])
