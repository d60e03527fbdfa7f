"""``compcache graph``: draw the dependencies of functions as a tree or a picture."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import fields_of, jsonl_option, print_json, print_json_lines
from compcache.cli.names import resolve_all
from compcache.cli.output import output_file, print_note, show_progress
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from compcache.cache import Cache
    from compcache.inspect.descriptions import FunctionGraph

__all__ = ["command"]

_PICTURES = ("png", "pdf", "jpg", "jpeg", "gif", "webp", "ps", "eps")
_MANY = 3_000  # nodes that browsers are slow to draw in one picture
_MAX_SHOWN = 20_000  # nodes on a page
_FORMATS = ("text", "dot", "svg", "html", "json", "jsonl")


@click.command("graph")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names)
@click.option("--all", "everything", is_flag=True, help="Draw every function of the cache.")
@click.option("--format", "format_", type=click.Choice(_FORMATS), help="The format. Default: by the extension of FILE, else text.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write to FILE, not to standard output.")
@click.option("--reverse", is_flag=True, help="Show dependents instead of dependencies.")
@click.option("--functions-only", is_flag=True, help="Leave out globals, variables and native symbols.")
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@jsonl_option
@pass_session
def command(
    session: Session, names: tuple[str, ...], everything: bool, format_: str | None, output: str | None, reverse: bool,
    functions_only: bool, as_json: bool, as_lines: bool,
) -> None:  # fmt: skip
    """Draw the dependencies of functions, or (--reverse) their dependents, across modules.

    The formats: text is a tree, dot the language of Graphviz, and svg a picture. html is a page in one file that shows packages
    and modules, which a click opens; it can be panned, zoomed and searched. json has the nodes, and the edges as pairs of node
    numbers. jsonl has one node on each line, with the numbers of the nodes that it uses; the first line has number 0.
    """
    if bool(names) == everything:
        raise click.UsageError("give the names of functions, or --all" if not names else "--all cannot be combined with NAMEs")
    if as_lines:
        format_ = "jsonl"
    elif as_json:
        format_ = "json"
    chosen = format_ or _file_format(output)
    with session.open_to_read() as cache:
        chosen_names = None if everything else resolve_all(cache, names)
        graph = cache.graph(chosen_names, reverse, progress=show_progress)
        sizes = _module_sizes(cache, graph) if chosen == "html" else {}
    if functions_only:
        graph = _functions_only(graph)
    _check_size(graph, chosen)
    title = "compcache: " + (" ".join(names) or session.directory)
    with output_file(output):
        _write_graph(graph, chosen, title, sizes)


def _check_size(graph: FunctionGraph, format_: str) -> None:
    """Raise `click.UsageError` for a graph that a page cannot show. Write a note if a picture is too large for browsers."""
    if format_ == "html" and len(graph.nodes) > _MAX_SHOWN:
        raise click.UsageError(
            f"the graph has {len(graph.nodes):,} nodes, more than the {_MAX_SHOWN:,} that a page can show: give NAMEs or "
            "--functions-only, or write json or dot"
        )
    if format_ == "svg" and len(graph.nodes) > _MANY:
        print_note(
            f"browsers are slow to draw {len(graph.nodes):,} nodes and {len(graph.edges):,} edges; --format html shows the graph in parts"
        )


def _module_sizes(cache: Cache, graph: FunctionGraph) -> dict[str, int]:
    """Return the sizes of a graph's modules in bytes, by module_id; empty if the graph is too large for a page."""
    module_ids = {node.module_id for node in graph.nodes if node.module_id}
    if len(graph.nodes) > _MAX_SHOWN:
        return {}
    return {row.module_id: row.size for row in cache.modules() if row.module_id in module_ids}


def _functions_only(graph: FunctionGraph) -> FunctionGraph:
    """Return a graph without globals, variables and native symbols."""
    selected = [number for number, node in enumerate(graph.nodes) if node.kind in ("function", "missing")]
    numbers = {old_number: new_number for new_number, old_number in enumerate(selected)}
    edges = [(numbers[user], numbers[dependency]) for user, dependency in graph.edges if user in numbers and dependency in numbers]
    return type(graph)(tuple(graph.nodes[number] for number in selected), tuple(edges))


def _file_format(output: str | None) -> str:
    """Return the format for the extension of a file name; "text" without a file or for an unknown extension.

    Raise `click.UsageError` if this command cannot write the format of the extension.
    """
    _, _, suffix = (output or "").lower().rpartition(".")
    if suffix in _PICTURES:
        raise click.UsageError(f"-o {output}: compcache does not write {suffix} files; write .svg, .html or .dot, and convert the file")
    if suffix in _FORMATS:
        return suffix
    return {"gv": "dot", "htm": "html"}.get(suffix, "text")


def _write_graph(graph: FunctionGraph, format_: str, title: str, sizes: Mapping[str, int]) -> None:
    """Write a graph to standard output. `title` and `sizes`, the sizes of modules in bytes by module_id, are for html."""
    if format_ == "json":
        print_json(graph)
        return
    if format_ == "jsonl":
        print_json_lines(_nodes_with_edges(graph))
        return
    sys.stdout.writelines(_drawing_parts(graph, format_, title, sizes))


def _nodes_with_edges(graph: FunctionGraph) -> Iterator[dict[str, Any]]:
    """Yield the fields of each node, with its number and the numbers of the nodes to which it refers."""
    dependencies: list[list[int]] = [[] for _ in graph.nodes]
    for user, dependency in graph.edges:
        dependencies[user].append(dependency)
    for number, node in enumerate(graph.nodes):
        yield {"number": number, **fields_of(node), "edges": dependencies[number]}


def _drawing_parts(graph: FunctionGraph, format_: str, title: str, sizes: Mapping[str, int]) -> Iterator[str]:
    """Return the parts of the text of a drawing in this format."""
    if format_ == "html":
        from compcache.cli.render.html import html

        return html(graph, title, sizes)
    if format_ == "svg":
        from compcache.cli.render.svg import svg as draw
    elif format_ == "dot":
        from compcache.cli.render.dot import dot as draw
    else:
        from compcache.cli.render.tree import tree as draw
    return (f"{line}\n" for line in draw(graph))
