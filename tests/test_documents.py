"""Every program of the README and of docs/ runs as it is written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cli_process import environment
from documents import PAGES, blocks_of, programs_of, shown_by, write_program

if TYPE_CHECKING:
    from pathlib import Path

#: Pages with programs: every other page must have none.
WITH_PROGRAMS = {
    "batch.md", "c.md", "ci.md", "dsl.md", "frontend.md", "numba.md", "platforms.md", "remote.md", "signatures.md", "start.md",
    "tutorial.md", "wheels.md"
}  # fmt: skip
_NEEDS = {"numba.md": [pytest.mark.peer], "c.md": [pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")]}


def test_pages_with_programs_are_known() -> None:
    assert {page.name for page in PAGES if programs_of(page)} == WITH_PROGRAMS


def test_programs_say_their_language() -> None:
    """A block without one escapes these tests."""
    for page in PAGES:
        for kind, text in blocks_of(page):
            looks_like_python = re.search(r"^(import|from \w+ import|def|with|class)\b", text, re.MULTILINE)
            assert kind or not looks_like_python, f"{page.name}: {text[:60]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=_NEEDS.get(page.name, []), id=page.name) for page in PAGES if programs_of(page)]
)
def test_the_program_of_a_page_runs_as_written_in_a_new_directory(page: Path, tmp_path: Path) -> None:
    program = write_program(page, tmp_path)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", program.name],
            cwd=tmp_path,
            env=environment({"COMPCACHE_DIR": str(tmp_path / "default")}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert [line for line in shown_by(page) if line not in done.stdout.splitlines()] == []
