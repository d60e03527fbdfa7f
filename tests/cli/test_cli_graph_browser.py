"""The page of ``compcache graph --format html`` in a browser: what is clicked, typed and turned has its effect."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache, fill
from helpers import adder

from compcache import Cache, ModuleSource
from compcache.cli import main
from compcache.cli.render.html import html
from compcache.inspect.descriptions import FunctionGraph, GraphNode

if TYPE_CHECKING:
    from pathlib import Path

_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_BROWSER = next(filter(None, map(shutil.which, _BROWSERS)), None)
_PROBE = """
<script>
function box(name) { return boxes[DATA.nodes.findIndex(node => node[NAME] === name)].rect; }
function click(name) { box(name).dispatchEvent(new MouseEvent("click", {bubbles: true})); }
function press(id, key) { element(id).dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true})); }
function type(text) { element("search").value = text; element("search").dispatchEvent(new Event("input")); }
function turn(delta) {
  canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: delta, clientX: 300, clientY: 300, cancelable: true}));
}
const result = {};
try { probe(); } catch (error) { result.error = String(error.stack); }
document.body.innerHTML = "";
document.body.appendChild(document.createElement("pre")).textContent = JSON.stringify(result);
</script>
"""

pytestmark = pytest.mark.skipif(_BROWSER is None, reason="no Chromium is installed")


def run_in_browser(page: str, probe: str, tmp_path: Path, size: str = "1400,900") -> dict[str, Any]:
    """What the JavaScript in `probe` left in `result`. The browser has no network, and a window of `size`."""
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", f"<script>function probe() {{{probe}}}</script>{_PROBE}</body>"))
    assert _BROWSER is not None
    done = subprocess.run(
        [
            _BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(unescape(done.stdout.partition("<pre>")[2].partition("</pre>")[0]))
    assert "error" not in found, found["error"]
    return found


def test_a_page_answers_to_mouse_and_keys(directory: Path, tmp_path: Path) -> None:
    fill(directory)
    page = compcache("--dir", directory, "graph", "--all", "--format", "html").out
    probe = """
        result.title = document.title;
        result.colours = new Set(boxes.map(({rect}) => rect.getAttribute("fill"))).size;
        click("norm");
        result.details = element("details").innerText;
        result.chosen = box("norm").classList.contains("chosen");
        result.dot_is_bright = !box("dot").parentNode.classList.contains("faded");
        result.sieve_is_faded = box("sieve").parentNode.classList.contains("faded");
        [...element("details").querySelectorAll("a")].find(a => a.textContent === "dot").click();
        result.followed = DATA.nodes[chosen][NAME];
        result.address = location.hash;
        press("search", "Escape");
        result.nothing_chosen = chosen === -1 && !document.querySelector(".faded");
        type("LEVEN");
        result.count = element("count").textContent;
        press("search", "Enter");
        result.step = element("count").textContent;
        result.found = DATA.nodes[chosen][NAME];
        const before = view.scale;
        turn(-500);
        result.closer = view.scale > before;
        turn(10000);
        result.names_hidden_from_afar = getComputedStyle(document.querySelector("svg text")).display;
        element("fit").click();
        const area = canvas.getBoundingClientRect();
        result.all_in_view = boxes.every(({rect}) => {
          const r = rect.getBoundingClientRect();
          return r.left >= area.left && r.right <= area.right && r.top >= area.top && r.bottom <= area.bottom;
        });
        element("data").click();
        result.malloc = getComputedStyle(box("malloc").parentNode).display;
        result.norm = getComputedStyle(box("norm").parentNode).display;
    """
    result = run_in_browser(page, probe, tmp_path)
    details = result.pop("details")
    assert details.splitlines()[0] == "norm"
    assert "f64(x: const f64[:])" in details
    assert "uses (1)" in details
    assert result.pop("title").startswith("compcache: /")
    assert result.pop("colours") >= 6  # five modules, and what belongs to none
    assert result == {
        "chosen": True, "dot_is_bright": True, "sieve_is_faded": True, "followed": "dot", "address": "#dot",
        "nothing_chosen": True, "count": "1 found", "step": "1 of 1", "found": "levenshtein", "closer": True,
        "names_hidden_from_afar": "none", "all_in_view": True, "malloc": "none", "norm": "inline",
    }  # fmt: skip


def large(number: int) -> FunctionGraph:
    names = [f"package.module{n % 40}.function{n}" for n in range(number)]
    nodes = tuple(
        GraphNode("function", name, "f64(f64[:])", f"{n % 40 * 6:02x}" * 16, "")
        for n, name in enumerate(names)
    )
    return FunctionGraph(nodes, tuple((m, n) for n in range(1, number) for m in {n // 2, n // 3, n // 7}))


@pytest.mark.parametrize(
    ("number", "slower"),
    [(400, 1), *(pytest.param(number, slower, marks=pytest.mark.peer) for number, slower in ((2_000, 1), (3_000, 4), (20_000, 25)))],
)
def test_large_graphs_stay_usable(tmp_path: Path, number: int, slower: int) -> None:
    probe = """
        const measure = act => {
          const start = performance.now();
          act();
          document.body.getBoundingClientRect();  // lays out what changed
          return performance.now() - start;
        };
        result.turn = measure(() => { for (let n = 0; n < 20; n++) turn(n % 2 ? -100 : 100); }) / 20;
        result.click = measure(() => click("package.module5.function5"));
        result.type = measure(() => type("function19"));
        result.found = matches.length;
        element("fit").click();
        const area = canvas.getBoundingClientRect();
        result.inView = boxes.filter(({rect}) => {
          const r = rect.getBoundingClientRect();
          return r.left >= area.left - 1 && r.right <= area.right + 1 && r.top >= area.top - 1 && r.bottom <= area.bottom + 1;
        }).length;
    """
    result = run_in_browser("".join(html(large(number), f"{number} nodes")), probe, tmp_path)
    assert result["found"] == sum("function19" in f"function{n}" for n in range(number))
    assert result["inView"] == number
    # A tenth of a second is what people take for immediate; these machines may be busy.
    assert result["turn"] < 100 * slower
    assert result["click"] < 1_000 * slower
    assert result["type"] < 1_000 * slower


def test_a_phone_shows_the_graph_and_what_is_chosen(tmp_path: Path) -> None:
    probe = """
        const width = document.documentElement.clientWidth;
        const inside = thing => { const r = thing.getBoundingClientRect(); return r.left >= 0 && r.right <= width && r.height > 0; };
        click("a.norm");
        result.width = width;
        result.scrolls = document.documentElement.scrollWidth > width;
        result.controls = [...document.querySelectorAll("header input, header button, header label")].every(inside);
        result.canvas = inside(canvas) && canvas.getBoundingClientRect().height > 200;
        result.below = element("details").getBoundingClientRect().top >= canvas.getBoundingClientRect().bottom - 1;
        result.details = inside(element("details")) && element("details").innerText.startsWith("a.norm");
        element("fit").click();
        const area = canvas.getBoundingClientRect();
        result.fits = boxes.every(({rect}) => {
          const r = rect.getBoundingClientRect();
          return r.left >= area.left && r.right <= area.right && r.top >= area.top && r.bottom <= area.bottom;
        });
    """
    result = run_in_browser("".join(html(small(), "phone")), probe, tmp_path, "390,780")
    assert result == {
        "width": 390, "scrolls": False, "controls": True, "canvas": True, "below": True, "details": True, "fits": True,
    }  # fmt: skip


def module_of(name: str) -> str:
    return {"a": "aa", "b": "bb"}[name[0]] * 16


NAMES = ("a.norm", "a.normal", "a.n", "b.norm.of", "b.last")


def small() -> FunctionGraph:
    nodes = tuple(GraphNode("function", name, "f64(f64)", module_of(name), "") for name in NAMES)
    return FunctionGraph(nodes, ((0, 1), (0, 3), (1, 2), (3, 4)))


def test_search_counts_and_steps_with_exact_matches_first(tmp_path: Path) -> None:
    probe = """
        const enter = shiftKey => element("search").dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", shiftKey}));
        type("A.NORM");
        result.steps = [];
        for (const back of [false, false, true]) {
            enter(back);
            result.steps.push([element("count").textContent, DATA.nodes[chosen][NAME]]);
        }
        type("norm");
        enter(true);
        result.last = [element("count").textContent, DATA.nodes[chosen][NAME]];
    """
    result = run_in_browser("".join(html(small(), "search")), probe, tmp_path)
    assert result["steps"] == [["1 of 2", "a.norm"], ["2 of 2", "a.normal"], ["1 of 2", "a.norm"]]
    assert result["last"] == ["3 of 3", "b.norm.of"]


def test_keys_follow_edges_and_readers_have_names(tmp_path: Path) -> None:
    probe = """
        const key = key => canvas.dispatchEvent(new KeyboardEvent("keydown", {key, cancelable: true}));
        result.walk = [];
        for (const k of ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown"]) {
            key(k);
            result.walk.push(DATA.nodes[chosen][NAME]);
        }
        result.active = document.getElementById(canvas.getAttribute("aria-activedescendant")).getAttribute("aria-label");
        const before = view.scale;
        key("+");
        result.closer = view.scale > before;
        result.focusable = canvas.tabIndex;
        result.roles = [element("boxes").getAttribute("role"), boxes[0].group.getAttribute("role")];
        result.title = boxes[0].group.querySelector("title").textContent;
    """
    result = run_in_browser("".join(html(small(), "keys")), probe, tmp_path)
    assert result["walk"] == ["a.norm", "a.normal", "a.n", "a.normal", "a.n"]
    assert result["active"] == "a.n, function, uses 0, used by 1"
    assert (result["closer"], result["focusable"], result["roles"]) == (True, 0, ["tree", "treeitem"])
    assert result["title"].startswith("a.norm  f64(f64)")


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_modules_close_and_open(tmp_path: Path) -> None:
    probe = """
        const drawn = () => paths.map(path => getComputedStyle(path).display !== "none");
        const shapes = () => paths.map(path => path.getAttribute("d"));
        result.clusters = clusters.map(cluster => cluster.members.size);
        const [whole, original] = [drawn(), shapes()];
        clusters[0].rect.dispatchEvent(new MouseEvent("click", {bubbles: true}));
        result.closed = drawn();
        result.hidden = DATA.nodes.filter((_, n) => getComputedStyle(boxes[n].group).display === "none").map(node => node[NAME]);
        type("a.n");
        press("search", "Enter");
        result.opened_by_search = !clusters[0].closed;
        result.restored = JSON.stringify([drawn(), shapes()]) === JSON.stringify([whole, original]);
    """
    result = run_in_browser("".join(html(small(), "modules")), probe, tmp_path)
    assert result == {
        "clusters": [3, 2], "closed": [False, True, False, True], "hidden": ["a.norm", "a.normal", "a.n"],
        "opened_by_search": True, "restored": True,
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_names_are_shown_from_afar(tmp_path: Path) -> None:
    nodes = tuple(GraphNode("function", f"f{n}", "f64(f64)", "", "") for n in range(300))
    graph = FunctionGraph(nodes, tuple((n // 2, n) for n in range(1, 300)))
    probe = "result.far = canvas.classList.contains('far'); result.names = element('labels').childElementCount;"
    result = run_in_browser("".join(html(graph, "300")), probe, tmp_path)
    assert result["far"]
    assert 10 <= result["names"] <= 60


def test_a_page_is_made_without_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    page = "".join(html(small(), "without"))
    assert '"routes":[]' in page.replace("()", "[]")
    result = run_in_browser(page, "result.edges = paths.length; click('a.norm'); result.chosen = chosen;", tmp_path)
    assert result == {"edges": 4, "chosen": 0}


@pytest.mark.parametrize(
    ("number", "status", "text"),
    [
        (3_000, 0, ""), (3_001, 0, "3,001 nodes and "), (20_000, 0, "browsers take a while to draw them; NAMEs choose a part"),
        (20_001, 2, "a page shows 20,000 at most: give NAMEs"), (200_000, 2, "the graph has 200,000 nodes"),
    ],
)  # fmt: skip
def test_large_graphs_have_a_notice_and_larger_ones_are_refused(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, status: int, text: str
) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    node = GraphNode("function", "f", "f64()", "", "")
    monkeypatch.setattr(Cache, "graph", lambda *_, **__: FunctionGraph((node,) * number, ((0, 1),)))
    monkeypatch.setattr("compcache.cli.render.html.html", lambda *_: ["<html>"])
    assert main(["--dir", cache.path, "graph", "--all", "--format", "html"]) == status
    captured = capsys.readouterr()
    assert text in captured.err
    assert bool(captured.err) == bool(text)
    assert captured.out == ("" if status else "<html>")
