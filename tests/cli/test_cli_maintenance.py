"""The commands that keep a cache in order: prune, check, stats, pin and explain."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_process import SIGNATURES, compcache, fill, on_terminal
from faulty_makers import made_by
from helpers import flip_byte, module_file, snapshot

from compcache import Cache, frontend

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    directory = tmp_path / "kernels"
    fill(directory)
    return directory


def functions(directory: Path) -> set[str]:
    return {line.split("\t")[0] for line in compcache("--dir", directory, "ls").out.splitlines()}


@pytest.mark.slow
def test_prune_dry_run_lists_exactly_what_prune_removes(kernels: Path) -> None:
    told = compcache("--dir", kernels, "prune", "--max-modules", 2, "--dry-run")
    assert told.status == 0
    assert functions(kernels) == set(SIGNATURES)
    assert "would remove 3 modules" in told.err
    done = compcache("--dir", kernels, "prune", "--max-modules", 2, "-y")
    assert done.out == told.out
    assert len(done.out.splitlines()) == 3
    assert all(line.startswith("count\t") for line in done.out.splitlines())
    gone = {line.split("\t")[-1] for line in done.out.splitlines()}
    assert functions(kernels) == set(SIGNATURES) - gone
    assert not ("norm" not in gone and "dot" in gone)


@pytest.mark.slow
def test_prune_asks_on_a_terminal_and_refuses_without_one(kernels: Path) -> None:
    refused = compcache("--dir", kernels, "prune", "--max-modules", 0)
    assert refused.status == 2
    assert "give --yes" in refused.err
    assert on_terminal("--dir", kernels, "prune", "--max-modules", 0, typed="n\n").status == 130
    assert functions(kernels) == set(SIGNATURES)
    shown = on_terminal("--dir", kernels, "prune", "--max-modules", 0, typed="y\n")
    assert shown.status == 0
    assert "Remove 5 modules" in shown.out
    assert functions(kernels) == set()


@pytest.mark.slow
def test_prune_by_name_keeps_what_others_need(kernels: Path) -> None:
    done = compcache("--dir", kernels, "prune", "--match", "*", "--keep", "norm", "-y")
    assert functions(kernels) == {"norm", "dot"}
    assert done.status == 0
    compcache("--dir", kernels, "prune", "--match", "dot", "-y")
    assert functions(kernels) == {"norm", "dot"}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-size", "lots", "'lots' is not a valid size"),
        ("--unused-for", "a while", "'a while' is not a valid duration"),
        ("--max-modules", "-1", "-1"),
    ],
)
def test_prune_says_what_is_wrong_with_an_option(
    kernels: Path, option: str, value: str, message: str
) -> None:
    done = compcache("--dir", kernels, "prune", option, value)
    assert done.status == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_durations_and_sizes_have_units(kernels: Path) -> None:
    assert compcache("--dir", kernels, "prune", "--older-than", "1h", "--max-size", "1 GiB", "-y").out == ""
    assert len(compcache("--dir", kernels, "prune", "--older-than", "0s", "--dry-run").out.splitlines()) == 5


@pytest.mark.slow
def test_pins_are_kept_listed_and_undone(kernels: Path) -> None:
    assert compcache("--dir", kernels, "pin", "norm", "sieve").status == 0
    assert compcache("--dir", kernels, "pin").out.splitlines() == ["norm", "sieve"]
    done = compcache("--dir", kernels, "prune", "--max-size", 0, "-y")
    assert functions(kernels) == {"norm", "dot", "sieve"}
    assert "still over the limits" in done.err
    assert json.loads(compcache("--dir", kernels, "unpin", "sieve", "--json").out) == ["norm"]
    again = compcache("--dir", kernels, "unpin", "sieve")
    assert again.status == 1
    assert again.err == "'sieve' was not pinned\n"


def test_a_pin_can_be_undone_before_the_first_addition(tmp_path: Path) -> None:
    assert compcache("--dir", tmp_path / "new", "pin", "norm").status == 0
    assert compcache("--dir", tmp_path / "new", "unpin", "norm") == (0, "", "")
    assert compcache("--dir", tmp_path / "new", "pin") == (0, "", "")


@pytest.mark.slow
def test_check_is_quiet_in_health_and_says_where_it_hurts(kernels: Path) -> None:
    done = compcache("--dir", kernels, "check")
    assert (done.status, done.out) == (0, "")
    assert done.err.startswith("healthy: 0 errors")
    with Cache(kernels) as cache:
        module_id = cache.realizations("sieve")[0].module_id
    flip_byte(module_file(kernels, module_id), 100)
    before = snapshot(kernels)
    hurt = compcache("--dir", kernels, "check")
    assert hurt.status == 1
    assert hurt.out.startswith(f"error\tdamaged\t{module_id}\t")
    assert snapshot(kernels) == before
    found = json.loads(compcache("--dir", kernels, "check", "--json").out)
    assert found["healthy"] is False
    assert found["findings"][0]["subject"] == module_id
    assert compcache("--dir", kernels, "check", "--no-checksums").status == 0
    repaired = compcache("--dir", kernels, "check", "--repair")
    assert repaired.status == 0
    assert "repaired\tdamaged" in repaired.out
    assert compcache("--dir", kernels, "check").out == ""
    assert functions(kernels) == set(SIGNATURES) - {"sieve"}


def test_check_shows_its_steps_on_a_terminal(kernels: Path) -> None:
    shown = on_terminal("--dir", kernels, "check").out
    assert [name in shown for name in ("permissions", "checksums", "edges", "index", "healthy")] == [True] * 5


@pytest.mark.slow
def test_stats_count_hits_and_can_be_zeroed(kernels: Path) -> None:
    for _ in range(2):
        assert compcache("--dir", kernels, "call", "sieve", "bytes:" + "01" * 10).status in (0, 2)
    found = json.loads(compcache("--dir", kernels, "stats", "--json").out)
    assert found["hits"] == found["loads"] == 2
    assert found["modules"] == found["compilations"] == 5
    assert found["saved_seconds"] > 0
    lines = dict(line.split(": ", 1) for line in compcache("--dir", kernels, "stats").out.splitlines())
    assert lines["hits"].startswith("2 (")
    assert lines["compiled"].startswith("5 modules in ")
    assert json.loads(compcache("--dir", kernels, "stats", "--since", "1h", "--json").out)["hits"] == 2
    zeroed = json.loads(compcache("--dir", kernels, "stats", "--zero", "--json").out)
    assert (zeroed["hits"], zeroed["compilations"], zeroed["modules"]) == (0, 0, 5)
    bad = compcache("--dir", kernels, "stats", "--since", "yesterday")
    assert bad.status == 2
    assert "'yesterday' is not a valid time" in bad.err


@pytest.mark.slow
def test_explain_tells_a_hit_from_a_miss(kernels: Path) -> None:
    hit = compcache("--dir", kernels, "explain", "norm")
    assert hit.status == 0
    assert hit.out.startswith("norm: hit\n  module ")
    miss = compcache("--dir", kernels, "explain", "nothing")
    assert miss.status == 1
    assert miss.out.startswith("nothing: miss (absent): ")
    assert json.loads(compcache("--dir", kernels, "explain", "norm", "--json").out)["hit"] is True


@pytest.mark.parametrize(
    "command", [("check",), ("stats",), ("prune", "--dry-run"), ("prune",), ("pin",), ("explain", "f")]
)
def test_looking_at_a_directory_that_is_not_there_does_not_make_it(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = compcache("--dir", tmp_path / "nowhere", *command)
    assert (done.status, done.out) == ((0, "") if command[0] in ("pin", "prune") else (2, "")), done.err
    if command[0] == "prune":
        assert done.err.startswith(f"there is no cache at {tmp_path / 'nowhere'} yet (chosen by: --dir)\n")
    elif command[0] != "pin":
        assert done.err.startswith(f"compcache: error: there is no cache at {tmp_path / 'nowhere'} (chosen by: --dir): ")
    assert not (tmp_path / "nowhere").exists()


def test_a_prune_of_an_empty_directory_is_no_failure_and_of_a_file_is_one(tmp_path: Path) -> None:
    """A timer may run before the first program, on a volume that is empty."""
    (tmp_path / "volume").mkdir()
    for options, verb in (((), "removed"), (("--dry-run",), "would remove")):
        done = compcache("--dir", tmp_path / "volume", "prune", "--max-size", "1G", *options)
        assert done.status == 0
        assert done.err.startswith(f"there is no cache at {tmp_path / 'volume'} yet (chosen by: --dir)\n{verb} 0 modules")
    assert list((tmp_path / "volume").iterdir()) == []
    (tmp_path / "file").touch()
    done = compcache("--dir", tmp_path / "file", "prune", "--max-size", "1G")
    assert (done.status, done.err.partition(" (")[0]) == (2, f"compcache: error: {tmp_path / 'file'}")


@pytest.mark.slow
def test_prune_by_makers(directory: Path) -> None:
    with Cache(directory) as cache:
        wrong = cache.add_module(made_by("f", 1, numba="0.66.0"))
        cache.add_module(made_by("g", 1, numba="0.66.1"))
        cache.add_module(made_by("h", 1))
    told = compcache("--dir", directory, "prune", "--made-by", "numba<0.66.1", "--dry-run")
    assert [line.split("\t")[:2] for line in told.out.splitlines()] == [["made_by", wrong]]
    assert compcache("--dir", directory, "prune", "--made-by", "numba<0.66.1", "-y").out == told.out
    assert functions(directory) == {"g", "h"}
    unknown = compcache("--dir", directory, "prune", "--made-by", "nubma<0.66.1", "-y")
    assert (unknown.status, unknown.out) == (0, "")
    assert "no module was made by nubma; known makers: compcache, " in unknown.err
    assert "llvm, llvmlite, numba" in unknown.err
    assert compcache("--dir", directory, "prune", "--made-by", "numba<").status == 2
    assert functions(directory) == {"g", "h"}


@pytest.mark.slow
def test_prune_tells_what_packs_free(directory: Path) -> None:
    with Cache(directory) as cache:
        frontend.put_entry(cache, "a name", b"x" * 2000, kind="k")
    said = compcache("--dir", directory, "prune", "--max-size", 0, "--dry-run").err
    assert "would remove 0 modules and 1 pack of data with 2.3 KiB (2.3 KiB); 0 modules" in said
    assert "give --yes to remove 0 modules and 1 pack of data (2.3 KiB)" in compcache("--dir", directory, "prune", "--max-size", 0).err
    done = compcache("--dir", directory, "prune", "--max-size", 0, "-y")
    assert done.out.startswith("size\t")
