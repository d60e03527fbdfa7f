"""``compcache add``: compile files into the cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from compcache.build.source import Function
from compcache.cli.completion import complete_files
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import Column, ProgressBar, is_terminal, plural, print_message, print_rows, short_id, size_text
from compcache.cli.session import Session, pass_session
from compcache.cli.sources import Reading, common_error_lines, error_lines, read_commands
from compcache.errors import CompcacheError, CompileError, LinkError
from compcache.frontend import list_groups
from compcache.identity import encodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compcache import ExportedFunction
    from compcache.cache import Cache

__all__ = ["command"]

_FLAGS = "compcache.cli.flags"  # a key in the `meta` of a context of click
#: The maximum number of names on a line of output.
_MOST_NAMED = 8
#: The maximum number of files whose names are joined to the name of their group.
_MOST_IN_NAME = 3


class _CommandWithFlags(click.Command):
    """A command whose arguments after ``--`` are flags of a compiler."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments after ``--`` in the metadata of the context, and parse the arguments before ``--``."""
        if "--" in args:
            position = args.index("--")
            ctx.meta[_FLAGS] = tuple(args[position + 1 :])
            args = args[:position]
        return super().parse_args(ctx, args)


@click.command("add", cls=_CommandWithFlags)
@click.argument("files", metavar="FILE...", nargs=-1, shell_complete=complete_files)
@click.option(
    "-O", "--optimize", type=click.IntRange(0, 3), default=2, show_default=True,
    help="LLVM's optimization level. 0 keeps the code as it is.",
)  # fmt: skip
@click.option(
    "--export", "exports", metavar="NAME[=SIGNATURE]", multiple=True,
    help="Export this function, for example --export 'dot=f64(const f64[:], const f64[:])'. Repeatable. By default every "
    "visible function is exported with the signature of its LLVM type.",
)  # fmt: skip
@click.option(
    "--import", "imports", metavar="NAME", multiple=True,
    help="Import this declared function from another module, which may be added later. Repeatable. SYMBOL=NAME if "
    "the code uses another name for it.",
)  # fmt: skip
@click.option(
    "--global", "globals_", metavar="NAME=VALUE", multiple=True,
    help="Define an external global: a number, true or false, text:TEXT, bytes:HEX, @FILE (the bytes of FILE), "
    "native:SYMBOL[@LIBRARY] or object:MODULE:NAME. Repeatable.",
)  # fmt: skip
@click.option("--nogil", is_flag=True, help="Release the GIL while the exported functions run.")
@click.option("--cpu", metavar="NAME", help="Compile for this CPU, e.g. x86-64-v3, not for this machine. Compilers' code has its own CPU.")
@click.option("--features", metavar="LIST", help="CPU features in LLVM's terms, e.g. +avx2,-avx512f.")
@click.option("--targets", metavar="LIST", help="Compile for each of these CPUs, e.g. x86-64-v2,x86-64-v3,native (COMPCACHE_TARGETS).")
@click.option(
    "--library", "libraries", metavar="NAME", multiple=True, help="Use this shared library: stdc++, libz.so.1 or a path. Repeatable."
)
@click.option("--archive", "archives", metavar="FILE", multiple=True, help="Link this static library. Repeatable.")
@click.option(
    "--compile-commands", "database", metavar="PATH",
    help="Compile source files with the flags in this compile_commands.json, or in the compile_commands.json of this directory. "
    "CMake, Meson and Bear write such files. Without FILE, compile all its files in C, C++ and Fortran. Flags after -- come last.",
)  # fmt: skip
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
    session: Session, /, files: tuple[str, ...], database: str | None, name: str | None, replace: bool, cc: str | None, as_json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Compile LLVM assembly (.ll), bitcode (.bc) or source files into the cache.

    C, C++, Fortran and Rust files (.c .cpp .f90 .rs) are compiled by clang, clang++, flang and rustc, or by the compiler that
    --cc names. Arguments after "--" are flags for the compiler. Without flags, it optimizes at level 2. Objects (.o) and archives
    (.a) are accepted if they hold bitcode (-flto, -ffat-lto-objects, -fembed-bitcode).

    One FILE becomes a module; "-" is standard input. Several FILEs become a group: one module, with its own hidden names, as a linker
    makes one shared library of several files. When a group is added again, only edited files are optimized. Look-ups find the newer
    group; --replace removes the older group. A FILE that fails is reported together with the FILEs that need it. The other FILEs are
    added, unless --replace is given. Use --import for functions of files that are added separately.
    """
    source_arguments = _parse_source_options(**options)
    flags = click.get_current_context().meta.get(_FLAGS)
    commands = read_commands(database) if database is not None else None
    files = files or tuple([os.path.relpath(path) for path in commands or ()])
    if not files:
        raise click.MissingParameter(ctx=click.get_current_context(), param_type="argument", param_hint="'FILE...'")
    group = name or (_group_name(files) if len(files) > 1 else None)
    with session.open_or_create() as cache, ProgressBar("files added") as bar:
        reading = Reading(files, source_arguments, cc, flags, commands, bar)
        added = _add_files(cache, reading, group, replace=replace)
        cells = [
            (short_id(row["module_id"]), row["file"], _names_text(cache, row["functions"]), size_text(row["size"]))
            for row in (() if as_json else added)
        ]
    for line in [*error_lines(files, reading.errors), *reading.common_errors]:
        print_message("error", line)
    if len(files) == len(added) == 1 and group is None:
        _warn_if_hidden(files[0], added[0]["functions"])
    if as_json:
        print_json(added)
    elif added:
        print_rows(_COLUMNS, cells)
    return 2 if reading.errors or reading.common_errors else 0


def _parse_source_options(
    *, exports: tuple[str, ...], imports: tuple[str, ...], globals_: tuple[str, ...], nogil: bool, no_bitcode: bool, **others: Any
) -> dict[str, Any]:
    """Return the arguments of `ModuleSource` that the options stand for. Each argument has the value of the option of the same name.

    Raise `click.UsageError` if an option is not valid.
    """
    return {
        "functions": _parse_exports(exports, nogil=nogil),
        "globals": dict(map(_parse_global_option, globals_)) or None,
        "imports": _parse_imports(imports),
        "keep_bitcode": not no_bitcode,
        **others,
    }


def _group_name(files: Sequence[str]) -> str:
    """Return a name for a group: the joined names of its files; for many files, the name of their common directory if it has one."""
    names = [encodable(os.path.basename(path).partition(".")[0] or path) for path in files]
    directory = os.path.basename(os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files]))
    return "+".join(names) if len(names) <= _MOST_IN_NAME or not directory else encodable(directory)


def _add_files(cache: Cache, reading: Reading, group: str | None, *, replace: bool) -> list[dict[str, Any]]:
    """Add the files to the cache, and return a row for each added file, [] if none is added.

    Put the errors of other files into `reading.errors` and `reading.common_errors`. With `replace`, add no file if one has an error. See
    `Cache.add_modules` for exceptions that do not concern files. An unexpected exception of a file is raised, too.
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
        reading.common_errors += common_error_lines(error, [reading.files[position] for position in reading.numbers])
        return []
    files = [reading.files[number] for number in reading.numbers]
    added = [(path, module_id) for path, module_id in zip(files, module_ids, strict=True) if module_id is not None]
    if group is None:
        return [_added_row(cache, path, module_id, None) for path, module_id in added]
    members = [member.functions for summary in list_groups(cache, [group]) for member in summary.members]
    return [_added_row(cache, path, module_id, functions) for (path, module_id), functions in zip(added, members, strict=False)]


def _added_row(cache: Cache, path: str, module_id: str, exported: Sequence[str] | None) -> dict[str, Any]:
    """Return the row of an added file. `exported` are the names that the file exports; None: all names of the module."""
    summary = cache.module(module_id)
    functions = [function for function in summary.functions if exported is None or function.func_name in exported]
    return {"file": path, "module_id": module_id, "functions": functions, "size": summary.size, "seconds": summary.seconds}


def _parse_exports(exports: tuple[str, ...], *, nogil: bool) -> dict[str, Any] | None:
    """Return the functions given by --export, by name; None without --export. Raise `click.UsageError` for --nogil without --export."""
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


def _parse_global_option(text: str) -> tuple[str, Any]:
    """Return the name and the definition of a global variable from NAME=VALUE. Raise `click.UsageError` for an invalid text."""
    from compcache.cli.values import parse_global

    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--global {text!r} does not have the form NAME=VALUE")
    try:
        return name, parse_global(value)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"--global {name}={value[:40]}: {error}") from error


_COLUMNS = [Column("module"), Column("file", flexible=True), Column("functions", flexible=True), Column("size", True)]


def _warn_if_hidden(path: str, exported: Sequence[ExportedFunction]) -> None:
    """Write a warning if the module of a file has functions and none can be called."""
    if exported and all(function.signature == "hidden function" for function in exported):
        print_message(
            "warning",
            f"{path}: all functions are hidden, and none can be called: name functions with --export, or add the file together "
            "with files that use its functions",
        )


def _names_text(cache: Cache, exported: Sequence[ExportedFunction]) -> str:
    """Return the names of the callable functions, and the number of symbols that only other modules can use.

    Hidden functions and variables are such symbols. On a terminal, many names are replaced by their number.
    """
    functions = [function.func_name for function in exported if cache.has(function.func_name)]
    texts = [plural(len(functions), "function")] if is_terminal() and len(functions) > _MOST_NAMED else functions
    if len(exported) > len(functions):
        texts = [*texts, f"({plural(len(exported) - len(functions), 'symbol')} for other modules)"]
    return " ".join(texts)
