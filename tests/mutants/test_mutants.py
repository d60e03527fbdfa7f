"""Whether the lines of defence that mutants take away stand where these say: who moves one points its mutants to the new place."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT
from run import read_mutants

if TYPE_CHECKING:
    from pathlib import Path


@functools.cache
def text_of(path: str) -> str:
    """The text of a file of the repository, empty where it is none."""
    found = PACKAGE_ROOT / path
    return found.read_text(encoding="utf-8") if found.is_file() else ""


def is_there(test: str) -> bool:
    """Whether what is given to pytest is a file or folder, or a function in one."""
    path, _, name = test.partition("::")
    function = name.rpartition("::")[2].partition("[")[0]
    return f"def {function}(" in text_of(path) if name else (PACKAGE_ROOT / path).exists()


def test_every_mutant_applies_and_has_its_tests() -> None:
    mutants, problems = read_mutants(), list[str]()
    for mutant in mutants:
        try:
            if mutant.apply(text_of(mutant.file)) == text_of(mutant.file):
                problems.append(f"{mutant.name}: it changes nothing")
        except ValueError as error:
            problems.append(f"{mutant.name}: {error}")
        problems += [f"{mutant.name}: there is no {test}" for test in mutant.tests if not is_there(test)]
    problems += [f"two mutants are called {name}" for name, number in Counter(mutant.name for mutant in mutants).items() if number > 1]
    assert mutants
    assert not problems, "\n".join(problems)


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
def test_mutants_of_python_code_parse_and_use_names_that_exist(tmp_path: Path) -> None:
    """A test notices a `NameError` or a `SyntaxError`, whether or not it notices what the mutant is for."""
    for mutant in read_mutants():
        if mutant.file.endswith(".py"):
            (tmp_path / f"{mutant.group}.{mutant.name}.py").write_text(mutant.apply(text_of(mutant.file)), encoding="utf-8")
    options = "--isolated", "--no-cache", "--select=F821,F823", "--output-format=concise", "--target-version=py311"
    done = subprocess.run([sys.executable, "-m", "ruff", "check", *options, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
