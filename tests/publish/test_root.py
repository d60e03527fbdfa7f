"""The directory itself: who creates it, and what is put beside files that were there before."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from cli_process import compcache
from helpers import constant

from compcache import Cache, ModuleSource
from compcache.files import Files, Tree

if TYPE_CHECKING:
    from pathlib import Path

TAG = "CACHEDIR.TAG"


def test_a_folder_of_the_users_is_not_tagged(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    with Cache(tmp_path) as cache:
        cache.add_module(ModuleSource(constant("f", 1)))
        assert cache.get_or_compile("g", lambda: ModuleSource(constant("g", 2)))() == 2
    assert not (tmp_path / TAG).exists()


def test_a_folder_that_the_user_is_faster_to_make_is_not_tagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "folder"

    def the_user_is_faster(*_: object) -> bool:
        root.mkdir()
        return False

    monkeypatch.setattr("compcache.publish.root.make_directories", the_user_is_faster)
    with Cache(root) as cache:
        cache.add_module(ModuleSource(constant("f", 1)))
    assert root.is_dir()
    assert not (root / TAG).exists()


def test_what_a_compilation_creates_is_tagged_before_anything_is_locked(tmp_path: Path) -> None:
    with Cache(tmp_path / "new") as cache:
        cache.get_or_compile("g", lambda: ModuleSource(constant("g", 2)))
    assert (tmp_path / "new" / TAG).exists()


def test_changes_go_to_the_root_after_a_program_has_closed_its_descriptor(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    tree = Tree(Files(), str(root))
    tree.listdir(str(root))
    assert tree._root is not None
    number = tree._root.number
    os.close(number)  # as daemons close all descriptors
    opened = os.open(other, os.O_RDONLY | os.O_DIRECTORY)
    assert opened == number
    tree.mkdir(f"{root}/made")
    os.close(opened)
    assert (root / "made").is_dir()
    assert not (other / "made").exists()


@pytest.mark.slow
@pytest.mark.parametrize("question", ["info", "ls", "stats", "check", "report", "top", "dir"])
def test_a_question_creates_nothing(tmp_path: Path, question: str) -> None:
    for directory in (tmp_path / "there", tmp_path / "absent"):
        if directory.name == "there":
            directory.mkdir()
        compcache("--dir", directory, question)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert list((tmp_path / "there").iterdir()) == []
