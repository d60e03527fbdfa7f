"""``compcache remote``: status, push, pull, verify and gc on a directory as the store."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from cli_process import Outcome
from cli_process import compcache as command
from helpers import constant

from compcache import Cache, ModuleSource
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield (tmp_path / "store").as_uri()
    shutil.rmtree(runtime)


def compcache(*arguments: object, **variables: str) -> Outcome:
    """Run a command, with the helper process of this test."""
    return command(*arguments, XDG_RUNTIME_DIR=os.environ.get("XDG_RUNTIME_DIR", ""), **variables)


@pytest.mark.slow
def test_what_is_pushed_is_pulled_and_what_leads_nowhere_is_removed(url: str, tmp_path: Path) -> None:
    with Cache(tmp_path / "a") as cache:
        cache.add_module(ModuleSource(constant("f", 4)))
    pushed = compcache("--dir", tmp_path / "a", "remote", "push", "f", "--remote", url)
    assert (pushed.status, pushed.out) == (0, "1 module uploaded\n")
    pulled = compcache("--dir", tmp_path / "b", "remote", "pull", "f", "g", "--json", "--remote", url)
    assert pulled.status == 1
    assert json.loads(pulled.out) == {"fetched": ["f"], "present": [], "missing": ["g"]}
    assert f"'g' was not fetched: {url}: missing: it has no code" in pulled.err
    with Cache(tmp_path / "b") as cache:
        assert cache.get_target("f")() == 4
    assert compcache("remote", "verify", "--remote", url).out.startswith("1 function, 1 card, 0 modules, ")
    (card,) = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and "f" in path.parts]
    card.write_bytes(card.read_bytes()[:-1])
    assert compcache("remote", "verify", "--remote", url).status == 1
    assert compcache("remote", "gc", "--remote", url).out == "removed 0 objects, 0 B; 1 garbage object left for a later run\n"
    assert compcache("remote", "gc", "--remote", url).out.startswith("removed 0 objects, ")
    assert compcache("remote", "gc", "--grace", "0s", "--dry-run", "--remote", url).out.startswith("would remove 1 object, ")
    assert card.exists()
    assert compcache("remote", "gc", "--grace", "0s", "--remote", url).out.startswith("removed 1 object, ")
    assert not card.exists()
    (status,) = json.loads(compcache("remote", "status", "--json", "--remote", url).out)
    assert (status["url"], status["waiting_uploads"], status["waiting_size"], status["uploads"]) == (url, 0, 0, 1)


@pytest.mark.slow
def test_pushed_code_replaces_former_code_of_its_name(url: str, tmp_path: Path) -> None:
    """Also if the directory has the former code too, and if that is added again."""
    for turn, values in enumerate([(4,), (4, 5), (4, 5, 4)]):
        with Cache(tmp_path / f"a{turn}") as cache:
            for value in values:
                cache.add_module(ModuleSource(constant("f", value)))
        pushed = compcache("--dir", tmp_path / f"a{turn}", "remote", "push", "f", "--remote", url)
        assert (pushed.status, pushed.out) == (0, "1 module uploaded\n")
        assert compcache("--dir", tmp_path / f"b{turn}", "remote", "pull", "f", "--remote", url).status == 0
        with Cache(tmp_path / f"b{turn}") as cache:
            assert cache.get_target("f")() == values[-1]


@pytest.mark.slow
def test_a_pull_says_why_a_function_was_not_accepted(url: str, tmp_path: Path) -> None:
    with Cache(tmp_path / "a") as cache:
        cache.add_module(ModuleSource(constant("f", 4)))
    assert compcache("--dir", tmp_path / "a", "remote", "push", "f", "--remote", url).status == 0
    trusted = str(generate_key("team").public())
    pulled = compcache("--dir", tmp_path / "b", "remote", "pull", "f", "--remote", url, COMPCACHE_TRUSTED_KEYS=trusted)
    assert pulled.status == 1
    assert "'f' was not fetched: " in pulled.err
    assert ": rejected: module " in pulled.err
    assert "is not signed with a key that is trusted here" in pulled.err


@pytest.mark.slow
def test_status_shows_the_mode_that_is_set(url: str) -> None:
    def mode(**settings: str) -> str:
        (status,) = json.loads(compcache("remote", "status", "--json", **settings).out)
        return str(status["mode"])

    assert mode(COMPCACHE_REMOTE=url) == "read"
    assert mode(COMPCACHE_REMOTE=url, COMPCACHE_REMOTE_MODE="write") == "write"
    assert "COMPCACHE_REMOTE_MODE=off disables" in compcache("remote", "status", "--remote", url, COMPCACHE_REMOTE_MODE="off").err


@pytest.mark.slow
def test_metrics_are_text_for_prometheus(url: str, tmp_path: Path) -> None:
    """Each has a type and a value, those of the store its address without a password; nobody is asked for them."""
    with Cache(tmp_path / "a") as cache:
        cache.add_module(ModuleSource(constant("f", 4)))
    assert compcache("--dir", tmp_path / "a", "remote", "push", "f", "--remote", url).status == 0
    assert compcache("--dir", tmp_path / "b", "remote", "pull", "f", "g", "--remote", url).status == 1
    shutil.rmtree(tmp_path / "store")
    file = tmp_path / "compcache.prom"
    assert compcache("--dir", tmp_path / "b", "metrics", "--textfile", file, COMPCACHE_REMOTE=url).out == ""
    text = file.read_text()
    assert text == compcache("--dir", tmp_path / "b", "metrics", COMPCACHE_REMOTE=url).out
    lines = text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert len(lines) == 3 * len(values)
    assert values["compcache_modules"] == "1"
    names = "hits_total", "misses_total", "waiting_uploads"
    of_store = {name: float(values[f'compcache_remote_{name}{{store="{url}"}}']) for name in names}
    assert of_store == {"hits_total": 1, "misses_total": 1, "waiting_uploads": 0}
    secret = compcache("--dir", tmp_path / "b", "metrics", COMPCACHE_REMOTE="https://user:secret@host/x").out
    assert 'store="https://host/x"' in secret
    assert "secret" not in secret


@pytest.mark.slow
def test_what_nobody_used_is_removed_on_demand(url: str) -> None:
    assert compcache("remote", "gc", "--unused-for", "30d", "--remote", url).out == "removed 0 objects, 0 B\n"
    assert compcache("remote", "gc", "--unused-for", "200d", "--remote", url).status == 2


@pytest.mark.slow
def test_explain_and_stats_tell_of_the_store(url: str, tmp_path: Path) -> None:
    with Cache(tmp_path / "a") as cache:
        cache.add_module(ModuleSource(constant("f", 4)))
    compcache("--dir", tmp_path / "a", "remote", "push", "f", "--remote", url)
    compcache("--dir", tmp_path / "b", "remote", "pull", "f", "--remote", url)
    assert "remote store: 1 hit (" in " ".join(compcache("--dir", tmp_path / "b", "stats").out.split())
    out = compcache("--dir", tmp_path / "b", "explain", "f", COMPCACHE_REMOTE=url).out
    assert f"remote store {url}: found: it has module " in out
    assert (
        json.loads(compcache("--dir", tmp_path / "b", "explain", "f", "--json", COMPCACHE_REMOTE=url).out)["remote"]["outcome"] == "found"
    )


def test_without_a_store_it_says_how_to_name_one() -> None:
    done = compcache("remote", "verify")
    assert done.status == 2
    assert "pass --remote URL, or set COMPCACHE_REMOTE" in done.err
