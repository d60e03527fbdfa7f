"""The command line: what it plays and writes, and what it says to who asks for what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compcache_conformance.cli import main
from compcache_conformance.results import load

if TYPE_CHECKING:
    from collections.abc import Callable

TOY = Path(__file__).with_name("toy.py")


def test_a_file_with_an_adapter_is_played_and_reported(tmp_path: Path) -> None:
    arguments = ["run", str(TOY), "-k", "closure", "--json", str(tmp_path / "json"), "--partial", str(tmp_path)]
    assert main(arguments) == 0
    assert [(result.system, result.result) for result in load(tmp_path / "json")] == [("toy", "held")]
    assert load(tmp_path / "toy.json") == load(tmp_path / "json")


def test_known_losses_do_not_fail_a_run(tmp_path: Path) -> None:
    known, broken = tmp_path / "known", tmp_path / "broken_toy.py"
    text = TOY.read_text().replace("__file__", repr(str(TOY))).replace('"TOY_FAULT": self.fault', '"TOY_FAULT": "ignores closures"')
    broken.write_text(text)
    assert main(["run", str(broken), "-k", "closure", "--json", str(known)]) == 1
    assert main(["run", str(broken), "-k", "closure", "--allow", str(known)]) == 0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about processes without an end."""
    monkeypatch.setenv("COMPCACHE_CONFORMANCE_PATIENCE", "10")


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What is said of arguments that cannot be done."""

    def said(*arguments: str) -> str:
        assert main(arguments) == 2
        return capsys.readouterr().err

    return said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "numbaa"], "the system 'numbaa' is not known; did you mean 'numba'?"),
        (["run", str(TOY), "-k", "nothing such"], "no scenario or family matches 'nothing such'"),
        (["run", str(TOY), "-k", "ten thousand", "--quick"], "excludes all selected scenarios"),
        (["run", "not/there.py"], "there is no file not/there.py"),
        (["run", str(TOY), "--json", "not/there/x.json"], "cannot write not/there/x.json: the folder not/there does not exist"),
        (["run", str(TOY), "--results", __file__], "is not a results file of `run`"),
        (["report", "not/there.json"], "cannot read not/there.json: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_played(arguments: list[str], words: str, refusal: Callable[..., str]) -> None:
    assert words in refusal(*arguments)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:", "line 1\n"),
        ("import not_there", "No module named 'not_there'"),
        ("x = 1", "has no adapter"),
        ("class M(Adapter):\n    name = 'm'\n    driver = 'x'", "needs a language"),
        ("class M(Adapter):\n    name = 'm'\n    makes_llvm = True", "needs `driver`"),
        ("class M(Adapter):\n    name = 'm'\n    makes_llvm, driver, shapes = True, 'x', {'cal'}", "other `shapes` than cal"),
        ("class M(Adapter):\n    name = 'm'\n    makes_llvm, driver = True, 'import not_there'", "No module named 'not_there'"),
        ("class M(Adapter):\n    name, driver = 'm', 'x'\n    def write(self, *_): {}['key']", "the adapter: KeyError: 'key'"),
        (
            "class M(Adapter):\n    name, driver = 'm', 'x'\n    makes_llvm = True\n    programs = ('not-there',)",
            "not-there is not installed",
        ),
    ],
)
def test_a_broken_adapter_is_told_with_its_line(text: str, words: str, refusal: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"from compcache_conformance import Adapter\n{text}\n" if "Adapter" in text else text)
    assert words in refusal("run", str(file), "-k", "closure")


def test_a_report_that_cannot_be_written_keeps_the_others(refusal: Callable[..., str], tmp_path: Path) -> None:
    said = refusal("run", str(TOY), "-k", "closure", "--summary", "/dev/full", "--json", str(tmp_path / "json"))
    assert said == "compcache-conformance: cannot write /dev/full: No space left on device\n"
    assert len(load(tmp_path / "json")) == 1


def test_an_adapter_that_fails_later_fails_the_run(tmp_path: Path) -> None:
    file = tmp_path / "toy.py"
    method = "def limited_environment(self, size):\n        return {}[size]\n\n    def other("
    file.write_text(TOY.read_text().replace("__file__", repr(str(TOY))).replace("def limited_environment(", method))
    assert main(["run", str(file), "-k", "limit of the size", "--json", str(tmp_path / "json")]) == 2
    assert load(tmp_path / "json")[0].detail == "the adapter: KeyError: 65536"


def test_a_shape_that_the_system_cannot_compile_is_told_of_the_adapter(refusal: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "toy.py"
    by_zero = "front.callees = (lambda own: lambda name: own(name) and 1 / 0 or [])(front.callees)"
    broken = f'_TOY.read_text().replace("BUSY, HELD", "{by_zero}; BUSY, HELD")'
    text = TOY.read_text().replace("_TOY.read_text()", broken)
    file.write_text(text.replace("__file__", repr(str(TOY))))
    said = refusal("run", str(file), "-k", "closure")
    assert "its `shapes` name 'call', and a program that has one is not answered on an empty store" in said
