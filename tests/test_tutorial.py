"""The tutorial's program runs as it is written, and the second time it compiles nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from helpers import PACKAGE_ROOT

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = r"""12\.56637\d*
0\.5 after [\d.]+ ms
f64\(f64, f64\)
True
21\.0
True
"""


def run(program: str, directory: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True, text=True, cwd=directory, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tutorial_runs_as_written(tmp_path: Path) -> None:
    text = (PACKAGE_ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert re.fullmatch(EXPECTED, run(program, tmp_path))
    modules = sorted((tmp_path / "tutorial-cache").glob("modules-v1/*/*"))
    assert len(modules) == 4
    compiles_nothing = "import compcache.linker as l\nl.build_module = None\n" + program.split("TWICE = ")[0]
    assert run(compiles_nothing, tmp_path).splitlines()[1].startswith("0.5 after")
    assert sorted((tmp_path / "tutorial-cache").glob("modules-v1/*/*")) == modules
