"""The page of ``compcache graph --format html`` in a browser: what is clicked, typed and turned has its effect."""

from __future__ import annotations

import json
import shutil
import subprocess
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache, fill

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


def run_in_browser(page: str, probe: str, tmp_path: Path) -> dict[str, Any]:
    """What the JavaScript in `probe` left in `result`. The browser has no network."""
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", f"<script>function probe() {{{probe}}}</script>{_PROBE}</body>"))
    assert _BROWSER is not None
    done = subprocess.run(
        [
            _BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
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
        "nothing_chosen": True, "count": "1 found", "found": "levenshtein", "closer": True,
        "names_hidden_from_afar": "none", "all_in_view": True, "malloc": "none", "norm": "inline",
    }  # fmt: skip


def test_two_thousand_nodes_stay_usable(tmp_path: Path) -> None:
    names = [f"package.module{n % 40}.function{n}" for n in range(2_000)]
    nodes = tuple(
        GraphNode("function", name, "f64(f64[:])", f"{n % 40 * 6:02x}" * 16, "")
        for n, name in enumerate(names)
    )
    graph = FunctionGraph(nodes, tuple((m, n) for n in range(1, 2_000) for m in {n // 2, n // 3, n // 7}))
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
    """
    result = run_in_browser("".join(html(graph, "2,000 nodes")), probe, tmp_path)
    assert result["found"] == 111
    # A tenth of a second is what people take for immediate; these machines may be busy.
    assert result["turn"] < 100
    assert result["click"] < 1_000
    assert result["type"] < 1_000
