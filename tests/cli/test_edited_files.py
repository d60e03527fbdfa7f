"""Files that are edited and added again, and what the command line says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cli_process import compcache, fresh
from helpers import constant

from compcache.cli.app import translate_advice

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_the_version_that_was_added_last_answers_calls(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.ll"
    for value in (2, 101, 2):
        file.write_text(constant("f", value))
        assert compcache("--dir", directory, "-q", "add", file).status == 0
        assert compcache("--dir", directory, "call", "f").out.split() == [str(value)]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["add", "batch"])
def test_ci_fails_where_a_file_has_changed(directory: Path, tmp_path: Path, command: str) -> None:
    file = tmp_path / "a.ll"
    file.write_text(constant("f", 1))
    assert compcache("--dir", directory, "add", file).status == 0
    file.write_text(constant("f", 2) + constant("g", 1))
    check = {"COMPCACHE_CHECK": "1", "PYTHONWARNINGS": "error::UserWarning"}
    if command == "batch":
        file.write_text(constant("f", 2))
    done = fresh("--dir", directory, command, file, **check)
    assert done.status in (1, 2)
    assert "different code" in done.err
    assert "Traceback" not in done.err
    assert compcache("--dir", directory, "call", "f").out.split() == ["1"]
    file.write_text(constant("f", 1))
    assert fresh("--dir", directory, command, file, **check).status == 0


def test_two_files_of_one_name_in_one_batch(directory: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a.ll", tmp_path / "b.ll"]
    for value, file in enumerate(files):
        file.write_text(constant("scale", value))
    done = compcache("--dir", directory, "batch", *files)
    assert done.status == 2
    assert f"function 'scale' is defined by job 0 ('{files[0]}') and by job 1 ('{files[1]}'), whose sources differ" in done.err


def test_advice_names_commands(directory: Path, tmp_path: Path) -> None:
    for value in (1, 2):
        (tmp_path / "a.ll").write_text(constant("f", value))
        done = compcache("--dir", directory, "add", tmp_path / "a.ll")
    assert "the code that is added last is used. Add it with --replace, which removes the older code\n" in done.err
    assert translate_advice("remove it: cache.remove('a b')") == "remove it: compcache rm 'a b'"
