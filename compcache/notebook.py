"""An extension for IPython and Jupyter, and the HTML of this package's objects.

``%load_ext compcache`` adds ``%%compcache`` for cells of LLVM IR, C, C++, Fortran or Rust, and ``%compcache COMMAND``. Caches, call
targets, graphs and reports are displayed as HTML with or without the extension.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from dataclasses import fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from compcache.cache import Cache
from compcache.cli.output import size_text
from compcache.cli.render.svg import svg
from compcache.errors import CompcacheError
from compcache.hit.compiled import CompiledFunctions
from compcache.hit.target import TypedCallTarget
from compcache.inspect.descriptions import FunctionGraph
from compcache.interrupts import reraise_interrupt
from compcache.wording import join_first, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


__all__ = ["html_of", "load_ipython_extension"]

#: The limits of rows and nodes in a cell. Larger tables are cut, and larger graphs are summarized.
_MOST_ROWS = 30
_MOST_NODES = 300
_IR = re.compile(r"^\s*(define|target (triple|datalayout)|source_filename)\b", re.MULTILINE)
_SECONDS = 600
#: The endings of the names of fields whose values are numbers of bytes.
_SIZES = ("size", "bytes_mapped")
_LANGUAGES = ("ir", "c", "c++", "fortran", "rust")


def html_of(value: object) -> str:
    """Return HTML for a cache, a call target, compiled functions, a graph, or a record of this package."""
    if isinstance(value, Cache):
        return _with_title(repr(value), _info_html(value))
    if isinstance(value, TypedCallTarget):
        return _with_title(repr(value), _table_html(_target_rows(value)))
    if isinstance(value, CompiledFunctions):
        return _with_title(
            plural(len(value), "compiled function"), _table_html(value.func_names.items(), ("function", "name in the cache"))
        )
    if isinstance(value, FunctionGraph):
        return _graph_html(value)
    return _with_title(type(value).__name__, _record_html(value))


def _info_html(cache: Cache) -> str:
    """Return the cache's information as HTML, or the error of `Cache.info`."""
    try:
        return _record_html(cache.info())
    except CompcacheError as error:  # the cache is closed, or LLVM is not installed
        return f"<p>{escape(str(error))}</p>"


def _graph_html(graph: FunctionGraph) -> str:
    """Return a graph as a drawing, or its counts if it is too large for a notebook."""
    if len(graph.nodes) > _MOST_NODES:
        kinds = sorted({node.kind for node in graph.nodes})
        counts = [(kind, sum(node.kind == kind for node in graph.nodes)) for kind in kinds]
        hint = "<p><code>compcache graph NAME -o graph.html</code> writes a page that shows a graph of this size.</p>"
        return _with_title("FunctionGraph", _table_html([*counts, ("edges", len(graph.edges))]) + hint)
    # Limit the style rules to the drawing, so that they do not affect the rest of the notebook.
    drawing = "".join(svg(graph)).replace("<style>", "<style>@scope{").replace("</style>", "}</style>", 1)
    return f'<div style="overflow:auto;background:#fff">{drawing}</div>'


def _record_html(value: object) -> str:
    """Return a table of the non-empty fields and properties of a record."""
    names = [field.name for field in fields(value)] if is_dataclass(value) else list(getattr(value, "_fields", ()))
    names += [name for name, member in vars(type(value)).items() if isinstance(member, property)]
    contents = [(name, getattr(value, name)) for name in names]
    return _table_html((name, _with_unit(name, content)) for name, content in contents if content not in (None, "", (), {}))


def _with_unit(name: str, value: object) -> object:
    """Return the text of a size, or another value unchanged. The name of a field shows whether the value is a size."""
    return size_text(value) if name.endswith(_SIZES) and isinstance(value, int) else value


def _target_rows(target: TypedCallTarget) -> Iterator[tuple[str, object]]:
    """Yield the properties of a function for its table. A function that can no longer be called has its error instead."""
    yield "function", target.__name__
    try:
        yield from (("signature", str(target.signature)), ("module", target.module_id), ("releases the GIL", target.nogil))
    except CompcacheError as error:
        yield "state", str(error)


def _with_title(title: str, body: str) -> str:
    """Return HTML with a title above a body, which is HTML."""
    return f"<div><code>{escape(title)}</code>{body}</div>"


def _table_html(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return rows as a table. Rows beyond the most that is shown are only counted."""
    all_rows = list(rows)
    lines = [_row_html("td", map(_cell_html, row)) for row in all_rows[:_MOST_ROWS]]
    if len(all_rows) > _MOST_ROWS:
        lines.append(_row_html("td", [f"and {len(all_rows) - _MOST_ROWS} more"]))
    titles = f"<thead>{_row_html('th', map(escape, head))}</thead>" if head else ""
    return f"<table>{titles}<tbody>{''.join(lines)}</tbody></table>"


def _row_html(tag: str, cells: Iterable[str]) -> str:
    """Return a row of a table. `tag` is the HTML tag of its cells, ``td`` or ``th``, and `cells` is HTML."""
    style = "text-align:left;overflow-wrap:anywhere;max-width:60em"  # lists of CPU features are long
    return f"<tr>{''.join(f'<{tag} style={style}>{cell}</{tag}>' for cell in cells)}</tr>"


def _cell_html(value: object) -> str:
    """Return a value as HTML: mappings and records as tables, other tuples as lines, anything else as text."""
    if isinstance(value, dict):
        return _table_html(value.items())
    first: Any = value[0] if isinstance(value, tuple) and value else None
    if isinstance(value, tuple) and (is_dataclass(first) or hasattr(first, "_fields")):
        names = [field.name for field in fields(first)] if is_dataclass(first) else list(first._fields)
        return _table_html([[_with_unit(name, getattr(item, name)) for name in names] for item in value], names)
    if is_dataclass(value) or hasattr(value, "_fields"):
        return _record_html(value)
    if isinstance(value, tuple):
        return join_first([escape(str(item)) for item in value], _MOST_ROWS, "<br>")
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def load_ipython_extension(shell: Any) -> None:
    """Register the magics in an IPython shell. ``%load_ext compcache`` calls this function.

    Args:
        shell: the shell.
    """

    def compcache(line: str, cell: str | None = None) -> Any:
        """%compcache COMMAND ... runs a command. %%compcache compiles or loads the cell, and defines its functions."""
        try:
            return _run_command(shell, line) if cell is None else _compile_cell(shell, line, cell)
        except CompcacheError as error:  # let IPython show only the message, because the error is in the cell
            lines = [f"{type(error).__name__}: {error}"]
            vars(error)["_render_traceback_"] = lambda: lines
            raise

    shell.register_magic_function(compcache, magic_kind="line_cell")


def _run_command(shell: Any, line: str) -> None:
    """Run a command of ``compcache``, and print its output. Variables with functions become function names.

    Raise `subprocess.TimeoutExpired` after `_SECONDS`. A malformed line is reported, and runs no command.
    """
    words = _split_line(line)
    if words is None:
        return
    arguments = [_replace_variable(word, shell.user_ns) for word in words]
    completed = subprocess.run(
        [sys.executable, "-m", "compcache", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    sys.stdout.write(completed.stdout)
    sys.stderr.write(completed.stderr)


def _split_line(line: str) -> list[str] | None:
    """Split a line into words like a shell. Print an error and return None for a malformed line."""
    try:
        return shlex.split(line)
    except ValueError as error:
        reraise_interrupt(error)
        sys.stderr.write(f"compcache: {error}: {line}\n")
        return None


def _replace_variable(word: str, variables: Mapping[str, Any]) -> str:
    """Return a word of a command. A word that names a variable with a function is replaced by the function's name in the cache."""
    value = variables.get(word)
    func_name = getattr(value, "func_name", None)  # of a call target or an Identity
    if isinstance(func_name, str):
        return func_name
    function = getattr(value, "py_func", None)  # of a function that Numba compiles
    return f"{function.__module__}.{function.__qualname__}" if function is not None else word


def _compile_cell(shell: Any, line: str, cell: str) -> CompiledFunctions | None:
    """Compile a cell, and define its functions in the notebook. Return None if the options are not valid; the reason has been printed."""
    words = _split_line(line)
    if words is None:
        return None
    try:
        if words and words[0] in _LANGUAGES:
            words.insert(0, "--language")
        options, flags = _option_parser().parse_known_args(words)
        language = options.language or ("ir" if _IR.search(cell) else "c")
        if flags and language == "ir":
            _option_parser().error(f"unrecognized arguments: {' '.join(flags)}")
    except SystemExit:  # argparse has printed an error or help
        return None
    cache = shell.user_ns.get(options.cache) if options.cache else None
    if not isinstance(cache, Cache):
        cache = Cache(options.cache)
    if language == "ir":
        compiled = cache.compile(cell)
    else:
        from compcache import clang

        compiled = clang.compile(cell, language=language, flags=flags or None, cc=options.cc, cache=cache)
    shell.push({name: compiled[name] for name in compiled if name.isidentifier()})
    return compiled


def _option_parser() -> argparse.ArgumentParser:
    """Return the parser for the options of a cell."""
    parser = argparse.ArgumentParser(
        "%%compcache",
        description="Compile the cell, or load it from the cache, and define its functions. Other options are passed to the compiler.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--language",
        choices=_LANGUAGES,
        help="the language of the cell; it may also be the first word; default: LLVM IR if the cell looks like it, otherwise C",
    )
    parser.add_argument("--cc", help="the compiler")
    parser.add_argument("--cache", help="the name of a variable with a Cache, or a cache directory")
    return parser
