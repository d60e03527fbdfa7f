"""The README and the first steps do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from cli_process import KERNELS, compcache, environment, on_terminal
from helpers import PACKAGE_ROOT

if TYPE_CHECKING:
    from pathlib import Path

README = (PACKAGE_ROOT / "README.md").read_text(encoding="utf-8")
START = (PACKAGE_ROOT / "docs/start.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", START, re.MULTILINE | re.DOTALL)


def session() -> list[tuple[str, str]]:
    """The commands of the page's terminal session, each with what it is shown to print."""
    lines = [line.removeprefix("    ") for line in START.splitlines() if line.startswith("    ")]
    text = "\n".join(lines)
    block = text[text.index("$ compcache add") :]
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [
        (command.split("  #")[0].strip(), shown.strip("\n"))
        for command, _, shown in (p.partition("\n") for p in parts)
    ]


def test_the_examples_compile_once_and_then_meet_no_llvm(tmp_path: Path) -> None:
    imported = "\nimport sys; print('llvmlite' in sys.modules)"
    for compiles in (True, False):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", "\n".join(PROGRAMS) + imported],
            cwd=tmp_path,
            env=environment({}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout.splitlines()[-1], done.stderr) == (str(compiles), "")
    assert len(PROGRAMS) == 2


def test_the_session_prints_what_is_shown(directory: Path, tmp_path: Path) -> None:
    commands = session()
    assert len(commands) == 7
    for command, shown in commands:
        arguments = [
            str(KERNELS / word[8:]) if word.startswith("kernels/") else word for word in _words(command)
        ][1:]
        arguments = [str(tmp_path / word) if word == "graph.html" else word for word in arguments]
        run = on_terminal if command.startswith("compcache ls") else compcache
        done = run("--dir", directory, *arguments, NO_COLOR="1")
        assert done.status == 0
        if shown:
            assert _comparable(done.out) == _comparable(shown)
    assert (tmp_path / "graph.html").stat().st_size > 5_000


def _words(command: str) -> list[str]:
    import shlex

    return shlex.split(command)


def _comparable(text: str) -> list[str]:
    """What is shown without sizes and ages, which depend on the machine and the day."""
    return [
        re.sub(r" +[\d.]+ (KiB|s|ms)\b| +(size|age)\b", "", line).rstrip()
        for line in text.strip("\n").splitlines()
    ]


def test_links_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", README) if "://" not in target]
    assert len(targets) > 5
    missing = [target for target in targets if not (PACKAGE_ROOT / target.partition("#")[0]).exists()]
    assert missing == []


def test_it_is_one_screen() -> None:
    lines = README.splitlines()
    assert len(lines) <= 65
    assert max(map(len, lines)) <= 150
    assert not re.search(r"^\|", README, re.MULTILINE)  # tables have pages of their own
