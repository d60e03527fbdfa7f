"""``compcache graph``: the graph itself, and each way to draw it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache, fill
from helpers import adder, caller, constant

from compcache import Cache, ModuleSource
from compcache.cli.render.layout import HEIGHT, place
from compcache.cli.render.tree import tree
from compcache.inspect.descriptions import FunctionGraph, GraphNode

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = """\
@counter = external global i64
@table = internal global [2 x ptr] [ptr @one, ptr @two]
declare ptr @malloc(i64)
define internal i64 @one() { ret i64 1 }
define i64 @two() { ret i64 2 }
define i64 @user(i64 %n) {
  %old = load i64, ptr @counter
  %slot = getelementptr [2 x ptr], ptr @table, i64 0, i64 %n
  %function = load ptr, ptr %slot
  store ptr @two, ptr %slot
  %m = call ptr @malloc(i64 8)
  store volatile i64 %old, ptr %m
  %x = call i64 %function()
  ret i64 %x
}"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filled") / "cache"
    fill(root)
    return root


def graph(directory: Path, *arguments: object) -> dict[str, Any]:
    done = compcache("--dir", directory, "graph", "--json", *arguments)
    assert (done.status, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def edges(drawn: dict[str, Any]) -> set[tuple[str, str]]:
    nodes = drawn["nodes"]
    return {(nodes[a]["name"], nodes[b]["name"]) for a, b in drawn["edges"]}


def test_a_function_is_drawn_with_all_that_it_reaches(filled: Path) -> None:
    drawn = graph(filled, "norm")
    assert [node["name"] for node in drawn["nodes"]] == ["norm", "dot"]
    assert edges(drawn) == {("norm", "dot")}
    assert len({node["module_id"] for node in drawn["nodes"]}) == 2


def test_variables_natives_and_what_tables_refer_to_are_in_the_graph(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(MEMORY, globals={"counter": 3}))
    drawn = graph(directory, "user")
    kinds = {node["name"]: node["kind"] for node in drawn["nodes"]}
    assert kinds == {
        "user": "function", "two": "function", "counter": "global", "table": "variable", "malloc": "native",
    }  # fmt: skip
    assert ("table", "two") in edges(drawn)
    assert {node["kind"] for node in graph(directory, "user", "--functions-only")["nodes"]} == {"function"}


def test_what_is_not_there_is_drawn_as_missing(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(caller("caller", "absent"), imports=["absent"]))
    (missing,) = [node for node in graph(directory, "caller")["nodes"] if node["kind"] == "missing"]
    assert missing["name"] == "absent"
    assert (
        compcache("--dir", directory, "graph", "caller").out.splitlines()[1]
        == "└── absent  [missing: not in the cache]"
    )
    assert compcache("--dir", directory, "graph", "absent").status == 2


def test_all_draws_every_function_once(filled: Path) -> None:
    drawn = graph(filled, "--all")
    functions = [node["name"] for node in drawn["nodes"] if node["kind"] == "function"]
    assert sorted(functions) == ["crc32", "dot", "levenshtein", "norm", "sieve"]
    assert ("crc32", "crc_table") in edges(drawn)


def test_the_tree_unfolds_a_function_once_and_names_cycles(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("leaf", 1)))
        cache.add_module(ModuleSource(caller("middle", "leaf")))
        cache.add_module(ModuleSource(caller("ping", "pong"), imports=["pong"]))
        cache.add_module(ModuleSource(caller("pong", "ping"), imports=["ping"]))
        both = (
            "declare i64 @middle(i64)\ndeclare i64 @leaf(i64)\ndeclare i64 @ping(i64)\n"
            "define i64 @top(i64 %x) {\n  %a = call i64 @middle(i64 %x)\n  %b = call i64 @leaf(i64 %a)\n"
            "  %c = call i64 @middle(i64 %b)\n  %d = call i64 @ping(i64 %c)\n  ret i64 %d\n}"
        )
        cache.add_module(ModuleSource(both))
    done = compcache("--dir", directory, "graph", "top")
    lines = [line.replace("  i64(x: i64)", "").replace("  i64(i64)", "") for line in done.out.splitlines()]
    assert lines == [
        "top",
        "├── middle",
        "│   └── leaf",
        "├── leaf",
        "└── ping",
        "    └── pong",
        "        └── ping (cycle)",
    ]


def test_dot_quotes_what_must_be_quoted(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant('"a\\22b\\5Cc\\0Ad"', 1)))
    text = compcache("--dir", directory, "graph", "--all", "--format", "dot").out
    assert text.startswith("digraph compcache {")
    assert text.endswith("}\n")
    assert r'label="a\"b\\c\nd\ni64()"' in text


def test_svg_is_well_formed_and_complete(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant('"<script>&\\01"', 1)))
        cache.add_module(ModuleSource(MEMORY, globals={"counter": 3}))
    text = compcache("--dir", directory, "graph", "--all", "--format", "svg").out
    root = ET.fromstring(text)
    space = {"s": "http://www.w3.org/2000/svg"}
    assert len(root.findall(".//s:rect", space)) == 6
    assert any(
        element.text == "<script>&\N{REPLACEMENT CHARACTER}" for element in root.findall(".//s:text", space)
    )
    assert "href" not in text


def test_html_is_one_file_with_everything_in_it(filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "graph.html"
    done = compcache("--dir", filled, "graph", "--all", "--output", path)
    assert (done.status, done.out, done.err) == (0, "", "")
    text = path.read_text()
    assert not re.search(
        r"""(src|href)\s*=|@import|https?://(?!www\.w3\.org/2000/svg)""", text.replace("link.href =", "")
    )
    data = json.loads(text.partition("const DATA = ")[2].partition(";\n")[0])
    assert {node[1] for node in data["nodes"]} >= {"norm", "dot", "crc_table", "malloc"}
    assert len(data["edges"]) == 5


def test_a_name_cannot_break_out_of_the_page(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(constant('"</script><script>alert(1)</script>"', 1)))
    text = compcache(
        "--dir", directory, "graph", "</script><script>alert(1)</script>", "--format", "html"
    ).out
    assert text.count("</script>") == 1
    assert "<title>compcache: &lt;/script&gt;" in text


def test_an_output_that_cannot_be_written_is_an_error(filled: Path, tmp_path: Path) -> None:
    done = compcache("--dir", filled, "graph", "--all", "-o", tmp_path / "no" / "graph.svg")
    assert (done.status, done.out) == (2, "")
    assert done.err.count("\n") == 1


def chain(length: int) -> FunctionGraph:
    nodes = tuple(GraphNode("function", f"f{n}", "i64()", "00" * 16, "") for n in range(length))
    return FunctionGraph(nodes, tuple((n, n + 1) for n in range(length - 1)))


def test_a_deep_graph_is_drawn_without_recursion() -> None:
    deep = chain(3_000)
    assert sum(1 for _ in tree(deep)) == 3_000
    assert len(place(deep).boxes) == 3_000


def test_callers_stand_to_the_left_and_boxes_do_not_overlap() -> None:
    nodes = tuple(GraphNode("function", f"f{n}", "i64()", f"{n % 7:02x}" * 16, "") for n in range(300))
    graph = FunctionGraph(nodes, tuple((n, m) for n in range(300) for m in (2 * n + 1, 2 * n + 2) if m < 300))
    boxes = place(graph).boxes
    assert all(boxes[a].x + boxes[a].width < boxes[b].x for a, b in graph.edges)
    columns: dict[float, list[float]] = {}
    for box in boxes:
        columns.setdefault(box.x, []).append(box.y)
    for tops in columns.values():
        tops.sort()
        assert all(below - above >= HEIGHT for above, below in pairwise(tops))


def test_two_thousand_nodes_are_placed_in_a_drawing_of_sane_proportions() -> None:
    nodes = tuple(GraphNode("function", f"f{n}", "i64()", f"{n % 50:02x}" * 16, "") for n in range(2_000))
    wide = FunctionGraph(nodes, tuple((0, n) for n in range(1, 2_000)))
    layout = place(wide)
    assert 0.1 < layout.width / layout.height < 10
