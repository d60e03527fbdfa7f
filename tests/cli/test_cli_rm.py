"""Removing functions by name, settings, and where the options about the directory may stand."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from cli_process import SIGNATURES, compcache, fill, on_terminal
from helpers import PACKAGE_ROOT

from compcache.cli.environment import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    directory = tmp_path / "kernels"
    fill(directory)
    return directory


def functions(directory: Path) -> set[str]:
    return {line.split("\t")[0] for line in compcache("ls", "--dir", directory).out.splitlines()}


def test_rm_removes_what_nothing_needs(kernels: Path) -> None:
    done = compcache("rm", "norm", "--dir", kernels)
    assert (done.status, done.out, done.err) == (0, "removed norm\n", "")
    assert functions(kernels) == set(SIGNATURES) - {"norm"}


@pytest.mark.slow
def test_rm_keeps_what_others_need_and_says_so(kernels: Path) -> None:
    kept = compcache("--dir", kernels, "rm", "dot")
    assert kept.status == 1
    assert kept.out == ""
    assert "'norm' imports it" in kept.err
    assert "--force" in kept.err
    assert functions(kernels) == set(SIGNATURES)
    assert compcache("--dir", kernels, "rm", "--force", "dot").out == "removed dot\n"
    assert functions(kernels) == set(SIGNATURES) - {"dot"}


def test_rm_takes_what_it_was_given_in_an_order_that_works(kernels: Path) -> None:
    assert compcache("--dir", kernels, "rm", "dot", "norm").status == 0
    assert functions(kernels) == set(SIGNATURES) - {"dot", "norm"}


@pytest.mark.slow
def test_a_dry_run_says_what_the_run_does(kernels: Path) -> None:
    """Pins, importers, the functions that the same command removes before, and linked images count as in the run."""
    arguments = ("--dir", kernels, "rm", "dot", "norm")
    assert (compcache(*arguments, "--derived", "--dry-run").out, compcache(*arguments, "--derived").out) == ("", "")
    assert compcache("--dir", kernels, "link", "norm").status == 0
    told = compcache(*arguments, "--derived", "--dry-run", "--json")
    assert json.loads(told.out)["functions"] == ["norm"]
    done = compcache(*arguments, "--derived", "--json")
    assert json.loads(done.out) == {**json.loads(told.out), "dry_run": False}
    compcache("--dir", kernels, "pin", "norm")
    told, done = compcache(*arguments, "--dry-run"), compcache(*arguments)
    assert told == done
    assert (done.status, done.out) == (1, "")
    assert "it is pinned" in done.err
    assert "'norm' imports it" in done.err
    compcache("--dir", kernels, "unpin", "norm")
    told, done = compcache(*arguments, "--dry-run", "--json"), compcache(*arguments, "--json")
    assert (told.status, json.loads(told.out)) == (0, {**json.loads(done.out), "dry_run": True})
    assert len(json.loads(done.out)["modules"]) == 2


def test_what_only_a_layer_has_is_not_removed(kernels: Path, tmp_path: Path) -> None:
    layered = {"COMPCACHE_LAYERS": str(kernels)}
    compcache("--dir", tmp_path / "own", "pin", "other", **layered)  # creates the directory
    for more in ((), ("--dry-run",)):
        done = compcache("--dir", tmp_path / "own", "rm", "norm", *more, **layered)
        assert (done.status, done.out) == (1, "")
        assert f"only in the layer {kernels}" in done.err


@pytest.mark.slow
def test_rm_by_a_pattern_asks(kernels: Path) -> None:
    refused = compcache("--dir", kernels, "rm", "n*")
    assert refused.status == 2
    assert "give --yes" in refused.err
    assert on_terminal("--dir", kernels, "rm", "n*", typed="n\n").status == 130
    assert functions(kernels) == set(SIGNATURES)
    told = compcache("--dir", kernels, "rm", "--dry-run", "n*")
    assert told.out == "would remove norm\n"
    done = compcache("--dir", kernels, "rm", "-y", "n*", "--json")
    assert json.loads(done.out)["functions"] == ["norm"]
    assert len(json.loads(done.out)["modules"]) == 1
    assert functions(kernels) == set(SIGNATURES) - {"norm"}


def test_rm_suggests_a_near_name(kernels: Path) -> None:
    done = compcache("--dir", kernels, "rm", "nrm")
    assert done.status == 2
    assert "did you mean 'norm'?" in done.err
    assert functions(kernels) == set(SIGNATURES)


def test_who_needs_a_function_is_drawn(kernels: Path) -> None:
    shown = compcache("--dir", kernels, "graph", "--reverse", "dot", "--functions-only").out.splitlines()
    assert shown[0].startswith("dot")
    assert "norm" in shown[1]


def test_the_directory_is_printed(kernels: Path) -> None:
    assert compcache("dir", "--dir", kernels).out == f"{kernels}\n"
    assert compcache("--dir", "elsewhere", "dir", "--dir", kernels).out == f"{kernels}\n"


def test_settings_say_where_they_come_from(kernels: Path) -> None:
    settings = {"COMPCACHE_MAX_SIZE": "7M", "COMPCACHE_SIGNING_KEY": "hush"}
    done = compcache("config", "--dir", kernels, "--json", **settings)
    rows = {row["name"]: (row["value"], row["source"]) for row in json.loads(done.out)}
    assert rows["COMPCACHE_DIR"] == (str(kernels), "--dir")
    assert rows["COMPCACHE_MAX_SIZE"] == ("7M", "environment")
    assert rows["COMPCACHE_SIGNING_KEY"] == ("(set)", "environment")
    assert rows["COMPCACHE_LOCKS"] == ("1", "default")
    assert "hush" not in done.out


def test_every_variable_that_the_code_reads_is_in_the_table() -> None:
    read = {
        name
        for path in (PACKAGE_ROOT / "compcache").rglob("*.py")
        for name in re.findall(r'"(COMPCACHE_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert read == {variable.name for variable in SETTINGS}


def test_bare_compcache_prints_its_help() -> None:
    bare, asked = compcache(), compcache("--help")
    assert bare == asked
    assert bare.status == 0
    assert "\nCommands:\n" in bare.out
