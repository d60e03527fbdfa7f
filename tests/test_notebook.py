"""IPython: cells that are compiled once ever, commands, and what objects show of themselves."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from compcache import Cache, CompileError, Identity, ModuleSource, PrunePolicy
from compcache.notebook import html_of

if TYPE_CHECKING:
    from pathlib import Path

NEEDS_CLANG = pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
SCALE = "define double @scale(double %x) {\n  %r = fmul double %x, 2.5\n  ret double %r\n}\n"


class Balanced(HTMLParser):
    """Fails for a tag that is not closed; keeps the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - html.parser's
        if tag not in ("br", "path", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "rect"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COMPCACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "compcache")
    yield made
    made.history_manager.end_session()
    InteractiveShell.clear_instance()


def test_a_cell_of_ir_defines_its_functions_and_hits_the_second_time(shell: Any, tmp_path: Path) -> None:
    compiled = shell.run_cell_magic("compcache", "", SCALE)
    assert shell.user_ns["scale"](4.0) == 10.0
    assert list(compiled) == ["scale"]
    shell.run_cell_magic("compcache", "", SCALE)
    with Cache(tmp_path / "cache") as cache:
        assert cache.info().modules == 1


@pytest.mark.slow
@NEEDS_CLANG
def test_the_language_may_be_the_first_word(shell: Any) -> None:
    shell.run_cell_magic("compcache", "c -O1", "double half(double x) { return x / 2; }")
    assert shell.user_ns["half"](3.0) == 1.5
    shell.run_cell_magic("compcache", "ir", SCALE)
    assert shell.user_ns["scale"](4.0) == 10.0


def test_a_cell_goes_to_the_cache_that_is_named(shell: Any, tmp_path: Path) -> None:
    with Cache(tmp_path / "other") as other:
        shell.user_ns["mine"] = other
        shell.run_cell_magic("compcache", "--cache mine", SCALE)
        assert other.info().modules == 1
    shell.run_cell_magic("compcache", f"--cache {tmp_path / 'third'}", SCALE)
    assert (tmp_path / "third").is_dir()
    assert not (tmp_path / "cache").exists()


@NEEDS_CLANG
def test_a_cell_of_c(shell: Any) -> None:
    shell.run_cell_magic("compcache", "-O3 -DTWICE=2", "double cube(double x) { return x * x * x * TWICE; }")
    assert shell.user_ns["cube"](3.0) == 54.0


def test_options_that_do_not_exist_are_told_without_a_traceback(shell: Any) -> None:
    with capture_output() as captured:
        assert shell.run_cell_magic("compcache", "--langauge c", SCALE) is None
    assert "--langauge" in captured.stderr
    assert "scale" not in shell.user_ns
    with capture_output() as captured:
        assert shell.run_line_magic("compcache", "ls 'dot") is None
    assert "quotation" in captured.stderr


@pytest.mark.parametrize("cell", ["define double @bad() { ret double %y }", pytest.param("int f() { return y; }", marks=NEEDS_CLANG)])
def test_an_error_in_a_cell_is_told_without_the_calls_that_found_it(shell: Any, cell: str) -> None:
    with capture_output() as captured:
        ended = shell.run_cell(f"%%compcache\n{cell}")
    assert isinstance(ended.error_in_exec, CompileError)
    assert captured.stdout.startswith("CompileError: ")
    assert cell in captured.stdout
    assert len(captured.stdout.splitlines()) < 8


@pytest.mark.slow
def test_commands_take_objects_of_the_notebook_by_name(shell: Any, tmp_path: Path) -> None:
    name = Identity("kernels.one", options={"size": 4})
    cache = Cache(tmp_path / "cache")
    shell.user_ns |= {"wanted": name, "f": cache.get_or_compile(name, lambda: ModuleSource(adder("kernels.one", 1)))}
    for argument in ("f", "wanted", "kernels.one"):
        with capture_output() as captured:
            shell.run_line_magic("compcache", f"explain {argument}")
        assert "hit" in captured.stdout, captured.stderr
    cache.close()
    with capture_output() as captured:
        shell.run_line_magic("compcache", "show nothing_like_it")
    assert "nothing_like_it" in captured.stderr


def test_what_objects_show_is_html_of_what_they_hold(tmp_path: Path) -> None:
    with Cache(tmp_path / "a<b") as cache:
        cache.add_module(ModuleSource(adder("callee", 1)))
        cache.add_module(ModuleSource(caller("f", "callee")))
        target = cache.get_target("f")
        for value in (cache, target, cache.graph(["f"]), cache.stats(), cache.explain("f"), cache.check(), cache.function("f")):
            text = Balanced(value._repr_html_()).text
            assert "f" in text
        assert "a<b" in Balanced(cache._repr_html_()).text
        assert re.search(r"size [\d.]+ KiB", Balanced(cache._repr_html_()).text)
        assert "callee" in Balanced(cache.graph(["f"])._repr_html_()).text
        assert cache.get_target("f").module_id in Balanced(target._repr_html_()).text
        pruned = cache.prune(PrunePolicy(max_bytes=0))
        assert "removed" in Balanced(pruned._repr_html_()).text
    assert "closed" in Balanced(cache._repr_html_()).text
    assert "was unloaded" in Balanced(target._repr_html_()).text


def test_long_lists_are_counted(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        source = "".join(adder(f"f{number}", number) for number in range(40))
        kernels = cache.compile(source)
        assert "and 10 more" in Balanced(html_of(kernels)).text
