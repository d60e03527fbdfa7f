"""Groups on the command line: several files that are added together."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from cli_process import compcache
from helpers import adder, caller

from compcache import Cache
from compcache.frontend import list_groups

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of a library, with a hidden function."""
    hidden = adder("helper", 1).replace("define i64", "define hidden i64")
    texts = {"first.ll": hidden + adder("value", 2), "second.ll": caller("use", "value") + caller("use_helper", "helper")}
    for name, text in texts.items():
        (tmp_path / name).write_text(f'source_filename = "{name}"\n{text}', encoding="utf-8")
    return [tmp_path / name for name in texts]


@pytest.mark.slow
def test_several_files_are_one_module_and_one_file_is_none_of_a_group(directory: Path, files: list[Path]) -> None:
    done = compcache("--dir", directory, "add", *files, "--json")
    assert (done.status, done.err) == (0, "")
    rows = json.loads(done.out)
    assert [row["file"] for row in rows] == list(map(str, files))
    assert len({row["module_id"] for row in rows}) == 1
    assert [[function["func_name"] for function in row["functions"]] for row in rows] == [["value"], ["use", "use_helper"]]
    assert [row.split("\t")[:3] for row in compcache("--dir", directory, "ls").out.splitlines()] == [["first+second", "group", "1"]]
    assert compcache("--dir", directory, "call", "use_helper", "5").out == "6\n"
    assert compcache("--dir", directory, "add", files[0]).status == 0
    assert len(list_groups(Cache(directory))) == 1
    assert compcache("--dir", directory, "add", files[0], "--name", "alone").status == 0
    assert [group.name for group in list_groups(Cache(directory))] == ["alone", "first+second"]


@pytest.mark.slow
def test_names_of_files_in_another_encoding_name_a_group(directory: Path, files: list[Path], tmp_path: Path) -> None:
    other = files[0].rename(tmp_path / os.fsdecode(b"\xff.ll"))
    done = compcache("--dir", directory, "add", other, files[1])
    assert (done.status, done.err) == (0, "")
    assert [group.name for group in list_groups(Cache(directory))] == ["\\udcff+second"]


@pytest.mark.slow
def test_an_edited_group_is_replaced_as_a_whole(directory: Path, files: list[Path]) -> None:
    for number in (1, 100, 200, 300):
        files[0].write_text(adder("helper", 1) + adder("value", number), encoding="utf-8")
        assert compcache("--dir", directory, "add", *files, "--name", "lib", "--replace").status == 0
        assert compcache("--dir", directory, "call", "use", "5").out == f"{number + 5}\n"
    assert len(Cache(directory).modules()) == 1


@pytest.mark.slow
def test_the_newest_group_answers_as_a_whole_also_where_it_was_there_before(directory: Path, files: list[Path]) -> None:
    for number in (1, 100, 200, 1):
        files[0].write_text(adder("helper", 1) + adder("value", number), encoding="utf-8")
        assert compcache("--dir", directory, "add", *files).status == 0
        assert compcache("--dir", directory, "call", "use", "5").out == f"{number + 5}\n"
        assert compcache("--dir", directory, "call", "value", "5").out == f"{number + 5}\n"
    assert len(list_groups(Cache(directory))) == 1
    assert len(list_groups(Cache(directory))[0].modules) == 3
    assert compcache("--dir", directory, "add", *files, "--replace").status == 0
    assert len(Cache(directory).modules()) == 1


@pytest.mark.slow
def test_one_file_replaces_its_older_module(directory: Path, files: list[Path]) -> None:
    for number in (1, 2):
        files[0].write_text(adder("value", number), encoding="utf-8")
        done = compcache("--dir", directory, "add", files[0], "--replace")
        assert (done.status, done.err) == (0, "")
    assert compcache("--dir", directory, "call", "value", "5").out == "7\n"
    assert len(Cache(directory).modules()) == 1


@pytest.mark.slow
def test_a_replacement_needs_all_files(directory: Path, files: list[Path], tmp_path: Path) -> None:
    assert compcache("--dir", directory, "add", *files, "--name", "lib").status == 0
    (tmp_path / "broken.ll").write_text("define", encoding="utf-8")
    for broken in ("broken.ll", "missing.ll"):
        done = compcache("--dir", directory, "add", *files, tmp_path / broken, "--name", "lib", "--replace")
        assert (done.status, done.out) == (2, "")
    assert [len(group.members) for group in list_groups(Cache(directory))] == [2]


@pytest.mark.slow
def test_causes_stand_before_what_follows_from_them(directory: Path, files: list[Path], tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"w{number}.ll").write_text(caller(f"waits{number}", "broken"), encoding="utf-8")
    (tmp_path / "broken.ll").write_text("define i64 @broken", encoding="utf-8")
    waiting = [tmp_path / f"w{number}.ll" for number in range(10)]
    done = compcache("--dir", directory, "add", *waiting, tmp_path / "broken.ll", *files)
    assert done.status == 2
    errors = [line for line in done.err.splitlines() if line.startswith("compcache: error: ")]
    assert f"{tmp_path / 'broken.ll'}: LLVM cannot parse the code" in errors[0]
    assert [str(path) in error and "'broken'" in error for path, error in zip(waiting, errors[1:], strict=True)] == [True] * 10
    assert compcache("--dir", directory, "call", "use", "5").out == "7\n"


def test_two_definitions_name_both_files(directory: Path, files: list[Path]) -> None:
    done = compcache("--dir", directory, "add", *files, files[1])
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines() == [
        f"compcache: error: the symbol '{name}' has several definitions: in {files[1]} and {files[1]}; rename one"
        for name in ("use", "use_helper")
    ]
    assert Cache(directory).modules() == ()


@pytest.mark.slow
def test_groups_are_shown_removed_and_exported_as_a_whole(directory: Path, files: list[Path], tmp_path: Path) -> None:
    assert compcache("--dir", directory, "add", *files, "--name", "lib").status == 0
    shown = compcache("--dir", directory, "show", "lib")
    lines = dict(line.split(": ", 1) for line in shown.out.splitlines())
    assert (lines["group"], lines["file first.ll"], lines["file second.ll"]) == ("lib", "value", "use use_helper")
    assert json.loads(compcache("--dir", directory, "show", "lib", "--json").out)["members"][0]["functions"] == ["value"]
    bundle = tmp_path / "lib.zip"
    assert compcache("--dir", directory, "export", "lib", "-o", bundle).status == 0
    assert compcache("--dir", tmp_path / "other", "import", bundle).status == 0
    assert [group.functions for group in list_groups(Cache(tmp_path / "other"))] == [("value", "use", "use_helper")]
    refused = compcache("--dir", directory, "rm", "use")
    assert refused.status == 1
    assert "it is a part of the group 'lib', which can only be removed completely" in refused.err
    assert compcache("--dir", directory, "pin", "lib").status == 0
    assert compcache("--dir", directory, "rm", "lib").status == 1
    assert compcache("--dir", directory, "rm", "lib", "--force").out == "removed lib\n"
    assert Cache(directory).modules() == ()
    assert Cache(directory).pinned() == ()


@pytest.mark.slow
def test_a_group_that_others_import_from_is_kept(directory: Path, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "outside.ll").write_text(caller("outside", "value"), encoding="utf-8")
    assert compcache("--dir", directory, "add", *files, "--name", "lib").status == 0
    assert compcache("--dir", directory, "add", tmp_path / "outside.ll").status == 0
    done = compcache("--dir", directory, "rm", "lib")
    assert done.status == 1
    assert "group 'lib' was not removed: 'outside' imports it" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paths", "name"),
    [(["a.c", "b.c"], "a+b"), (["x/a.tar.ll", "x/b.ll", "x/c.ll"], "a+b+c"), (["src/a.c", "src/b.c", "src/c.c", "src/d.c"], "src")],
)
def test_a_group_is_called_after_its_files_or_their_directory(tmp_path: Path, paths: list[str], name: str) -> None:
    given = [tmp_path / path for path in paths]
    for number, path in enumerate(given):
        path.parent.mkdir(exist_ok=True)
        path.write_text(adder(f"f{number}", 1), encoding="utf-8")
    for path in [path for path in given if path.suffix == ".c"]:
        path.write_text(f"long f{path.stem}(long x) {{ return x; }}\n", encoding="utf-8")
    done = compcache("--dir", tmp_path / "cache", "add", *given)
    if "is not installed" in done.err:
        pytest.skip(done.err)
    assert [group.name for group in list_groups(Cache(tmp_path / "cache"))] == [name]
