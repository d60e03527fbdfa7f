"""``compcache report``: what the page says is what was counted, in any browser, scheme and width, and without the charts' package."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from cli_process import compcache, on_terminal
from helpers import adder

from compcache import Cache, Function, ModuleSource, Signature
from compcache.cli.report.page import page
from compcache.cli.report.story import collect_story
from compcache.hit.recorder import encode_batch

if TYPE_CHECKING:
    from pathlib import Path

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None)
NOW = int(time.time())
DAY = 86400
EVIL = "<script>alert('x')</script>&\x1b[1m"
NAMES = ("linalg.dot", "linalg.norm", "stats.mean", EVIL)
#: Days ago, hits, misses by reason.
COUNTED = ((20, 10, {"absent": 5}), (10, 30, {"absent": 1, "cpu": 4}), (1, 40, {"damaged": 2}))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a past."""
    directory = tmp_path_factory.mktemp("told") / "cache"
    with Cache(directory) as cache:
        for number, name in enumerate(NAMES):
            cache.add_module(_module(name, number))
        cache.add_module(_module(NAMES[0], 99))
        cache.stats()
    lines = []
    for days, hits, reasons in COUNTED:
        when = NOW - days * DAY
        lines += [f"{when} hits {hits}", f"{when} added_bytes 5000", f"{when} compile_seconds 1.5", f"{when} saved_seconds 4"]
        lines += [f"{when} misses.{reason} {count}" for reason, count in reasons.items()]
    (directory / "stats" / "past.journal1").write_bytes(encode_batch(lines))
    return directory


def _module(name: str, number: int) -> ModuleSource:
    return ModuleSource(adder("f", number), {name: Function(Signature.parse("i64(i64)"), symbol="f")})


@pytest.fixture(scope="module")
def drawn(told: Path) -> str:
    with Cache(told) as cache:
        return "".join(page(collect_story(cache, None, 10), drawn=True))


class Reader(HTMLParser):
    """What of a page could need another file or run code, and its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.text = ""
        self.unlabelled = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.references += [(name, value or "") for name, value in attrs if name in ("src", "href", "xlink:href") or name.startswith("on")]
        self.unlabelled += tag == "svg" and not (found.get("role") and found.get("aria-label"))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_the_data_are_what_was_counted(told: Path) -> None:
    story = json.loads(compcache("--dir", told, "report", "--json").out)
    stats = story["stats"]
    assert (stats["hits"], stats["misses"], stats["miss_reasons"]) == (80, 12, {"absent": 6, "cpu": 4, "damaged": 2})
    assert [(p["hits"], p["miss_reasons"]) for p in story["periods"] if p["hits"]] == [(hits, reasons) for _, hits, reasons in COUNTED]
    assert sum(p["saved_seconds"] for p in story["periods"]) == pytest.approx(12)
    assert {group["name"] for group in story["packages"]} == {"linalg", "stats", EVIL}
    assert sum(group["size"] for group in story["packages"]) == pytest.approx(stats["size"], abs=8)
    assert sum(group["number"] for group in story["packages"]) == stats["realizations"] == stats["functions"] + 1
    assert [row["name"] for row in story["duplicates"]] == ["linalg.dot"]
    assert story["duplicate_modules"] == 1
    assert len(story["biggest"]) == 5
    week = json.loads(compcache("--dir", told, "report", "--since", "7d", "--json").out)
    assert (week["stats"]["hits"], [p["hits"] for p in week["periods"] if p["hits"]]) == (40, [40])


@pytest.mark.slow
def test_the_page_needs_nothing_and_runs_nothing(drawn: str) -> None:
    found = Reader(drawn)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(found.tags)
    assert found.references == []
    assert "url(" not in drawn
    assert "@import" not in drawn


@pytest.mark.slow
def test_the_page_tells_the_story_in_words_charts_and_tables(drawn: str) -> None:
    found = Reader(drawn)
    for text in ("87.0%", "80 of 92 requests", "prune --duplicates", "Misses by reason", "compcache check", "linalg.norm", r"\x1b[1m"):
        assert text in found.text, text
    assert '<th scope="col" class="number">realizations</th>' in drawn.partition('id="packages"')[2].partition("</figure>")[0]
    assert "\x1b" not in drawn
    assert found.tags.count("figure") == 7
    assert found.tags.count("svg") == 14  # each for wide and for narrow windows
    assert found.unlabelled == 0
    assert found.tags.count("table") >= found.tags.count("figure")
    assert drawn.count("<title>") > 40  # what the pointer is over has a tip
    assert drawn.index("<h1>") < drawn.index("<h2>")


@pytest.mark.slow
def test_long_names_lose_their_middle_before_they_are_drawn(tmp_path: Path) -> None:
    """Names of C++ templates have thousands of characters. A chart with a name of 64 KB took ten minutes."""
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(_module("i" * 65000 + "end.f", 1))
        text = "".join(page(collect_story(cache, None, 10), drawn=True))
    assert ">iiiiiiiiiiiiiiiiiiii\N{HORIZONTAL ELLIPSIS}iiiiiiiiiiiiiiiiend</text>" in text


def test_without_the_package_charts_are_tables(told: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from compcache.cli import main

    monkeypatch.setattr("compcache.cli.report.charts.can_draw", lambda: False)
    assert main(["--dir", str(told), "report", "-o", str(tmp_path / "r.html")]) == 0
    found = Reader((tmp_path / "r.html").read_text())
    assert "svg" not in found.tags
    assert found.tags.count("figure") == 7
    assert "40" in found.text


@pytest.mark.slow
def test_an_empty_cache_has_a_page(tmp_path: Path) -> None:
    with Cache(tmp_path / "empty") as cache:
        cache.add_module(_module("f", 1))
        cache.clear()
    text = compcache("--dir", tmp_path / "empty", "report").out
    assert "The cache is empty" in text
    assert 'id="packages"' not in text


def test_a_page_is_not_written_to_a_terminal(told: Path) -> None:
    done = on_terminal("--dir", told, "report")
    assert done.status == 2
    assert "give -o report.html" in done.out


_PROBE = """
<script>
const shown = [...document.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().width > 0);
const style = getComputedStyle(document.body);
const inks = shown.flatMap(svg => [...svg.querySelectorAll("[fill^=var], [stroke^=var]")].map(mark => {
  const own = getComputedStyle(mark);
  return mark.getAttribute("fill") ? own.fill : own.stroke;
}));
const result = {
  shown: shown.length, ground: style.backgroundColor, ink: style.color,
  fits: document.documentElement.scrollWidth <= innerWidth,
  inside: shown.every(svg => svg.getBoundingClientRect().right <= innerWidth),
  inks: [...new Set(inks)].filter(ink => ink !== "none").length, black: inks.includes("rgb(0, 0, 0)"),
};
document.body.textContent = JSON.stringify(result);
</script>
"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_page_fits_and_has_both_schemes(drawn: str, tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(drawn.replace("</body>", f"{_PROBE}</body>"))
    assert BROWSER is not None
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", *dark,
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.partition("<body>")[2].partition("</body>")[0])
    grounds = {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 28)"}
    assert found.pop("ground") == grounds[scheme]
    assert found.pop("ink") not in grounds.values()
    assert found.pop("inks") >= 4
    assert found == {"shown": 7, "fits": True, "inside": True, "black": False}
