"""What is compiled and not cached: ``ls --uncached``, and `explain` by the last part of a name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_process import compcache
from helpers import constant

from compcache import Cache, Function, Identity, ModuleSource, frontend

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A cache with a function of an identity, one of a plain name, and two that were refused."""
    root = tmp_path / "cache"
    with Cache(root) as cache:
        cache.add_module(ModuleSource(constant("solvers.lu.solve", 1)))
        total = Identity("solvers.total(int64)", version=1).func_name
        cache.add_module(ModuleSource(constant("two", 2), {total: Function("i64()", symbol="two")}))
        mean = Identity("solvers.mean(units.Length)", version=1).func_name
        cache.add_module(ModuleSource(constant("three", 3), {mean: Function("i64()", symbol="three")}))
        frontend.note_uncached(cache, "solvers.cholesky(float64)", "it reads a file")
        frontend.note_uncached(cache, "others.cholesky(int64)", "it reads a socket")
        frontend.note_uncached(cache, "others.qr(int64)", "it reads minds")
    return root


def test_refusals_are_listed_with_their_reasons(directory: Path) -> None:
    listed = compcache("--dir", directory, "ls", "--uncached")
    assert listed.status == 0
    assert [(row.split("\t")[0], row.split("\t")[2]) for row in listed.out.splitlines()] == [
        ("others.cholesky(int64)", "it reads a socket"),
        ("others.qr(int64)", "it reads minds"),
        ("solvers.cholesky(float64)", "it reads a file"),
    ]
    chosen = compcache("--dir", directory, "ls", "--uncached", "--json", "solvers.*")
    (only,) = json.loads(chosen.out)
    assert (only["name"], only["reason"], only["created"] > 0) == ("solvers.cholesky(float64)", "it reads a file", True)
    newest = compcache("--dir", directory, "ls", "--uncached", "--sort", "age", "-n", "1")
    assert newest.out.startswith("others.qr(int64)\t")


def test_a_refusal_that_is_over_is_not_listed(directory: Path) -> None:
    with Cache(directory) as cache:
        frontend.forget_uncached(cache, "others.qr(int64)")
        assert [refusal.name for refusal in frontend.list_uncached(cache)] == ["others.cholesky(int64)", "solvers.cholesky(float64)"]
    assert "others.qr" not in compcache("--dir", directory, "ls", "--uncached").out


def test_modules_are_not_refused(directory: Path) -> None:
    done = compcache("--dir", directory, "ls", "--uncached", "--modules")
    assert (done.status, "--uncached" in done.err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("qr", 1, "others.qr: miss (refused): others.qr(int64) was compiled and not cached: it reads minds"),
        ("qr(int64)", 1, "others.qr(int64): miss (refused)"),
        ("solve", 0, "solvers.lu.solve: hit"),
        ("lu.solve", 0, "solvers.lu.solve: hit"),
        ("total", 0, "solvers.total(int64)-"),
        ("mean", 0, "solvers.mean(units.Length)-"),
        ("mean(units.Length)", 0, "solvers.mean(units.Length)-"),
        ("Length)", 1, "Length): miss (absent)"),
        ("olve", 1, "olve: miss (absent)"),
    ],
)
def test_explain_finds_by_the_last_part_of_a_name(directory: Path, name: str, status: int, said: str) -> None:
    done = compcache("--dir", directory, "explain", name)
    assert (done.status, done.out.startswith(said)) == (status, True), done.out + done.err


def test_explain_names_those_that_share_a_last_part(directory: Path) -> None:
    done = compcache("--dir", directory, "explain", "cholesky")
    assert done.status == 2
    assert "others.cholesky, solvers.cholesky; give a longer part of the name" in done.err
    done = compcache("--dir", directory, "explain", "solvers.cholesky")
    assert (done.status, done.out.startswith("solvers.cholesky: miss (refused)")) == (1, True)
