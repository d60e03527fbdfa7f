"""``--json`` has one vocabulary: every key of every command stands in docs/json.md, and nothing else does."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache, fill
from helpers import PACKAGE_ROOT, adder

from compcache import Cache, Identity, ModuleSource, NotCachedError, frontend
from compcache.cli.app import COMMANDS, group
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (PACKAGE_ROOT / "docs" / "json.md").read_text()
#: `{...}` in the table of keys: an object whose keys are names, so that they are in no table.
_ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]+) \|", re.MULTILINE)
COMMAND_LINES = (
    "link norm",
    "batch kernels/dot.ll broken.ll good.ll good.ll", "call crc32 1,2", "info", "ls", "ls --all", "ls --modules", "show norm", "show crc32",
    "show scale", "show norm sieve", "show norm --ir", "show norm --asm", "show signed --provenance", "graph --all", "explain norm",
    "explain scale", "explain absent", "top", "stats", "config", "doctor", "dir", "report", "check",
    "prune --dry-run --max-size 0 --stale 0s", "rm --dry-run sieve", "pin norm", "unpin norm", "clear --dry-run",
    "export norm -o {scratch}/n.ccb",
    "import {scratch}/n.ccb",
)  # fmt: skip

pytestmark = pytest.mark.slow  # the fixture runs every command


def documented() -> dict[str, set[str]]:
    """The types of every key in the tables of the page."""
    found: dict[str, set[str]] = {}
    for names, types in _ROW.findall(PAGE.partition("## Commands")[0]):
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found, f"{name} has two rows"
            found[name] = {part.strip() for part in types.split(",")}
    return found


def kind_of(value: Any) -> str:
    kinds = {bool: "bool", str: "text", int: "number", float: "number", list: "list", dict: "object", type(None): "null"}
    return kinds[type(value)]


def walk(value: Any, dynamic: set[str]) -> Iterator[tuple[str, str]]:
    """Every key and the type of its value; the keys of `dynamic` objects are names."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, kind_of(item)
            if key not in dynamic:
                yield from walk(item, dynamic)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item, dynamic)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every command prints for a cache that has something of everything."""
    scratch = tmp_path_factory.mktemp("json")
    directory = scratch / "cache"
    fill(directory)
    with Cache(directory) as cache:
        for number in range(2):
            scale = cache.get_or_compile(Identity("scale", code=str(number)), partial(ModuleSource, adder("scale", number)))
        cache.add_module(ModuleSource(adder("wrapper", 1), part_of=scale.func_name))
        frontend.put_entry(cache, scale.func_name, b"data", kind="types", requires=[scale.module_id])
        with pytest.raises(NotCachedError):
            cache.get_target("absent")
        cache.add_module(
            ModuleSource("declare i64 @later()\ndefine i64 @waits() {\n  %x = call i64 @later()\n  ret i64 %x\n}", imports=["later"])
        )
    with Cache(directory, publish_key=str(generate_key("team-1"))) as cache:
        cache.add_module(ModuleSource(adder("signed", 1)))
    (directory / "modules-v0").mkdir()
    (directory / "modules-v0" / "old").write_bytes(b"x" * 10)
    (scratch / "kernels").symlink_to(PACKAGE_ROOT / "examples" / "kernels")
    (scratch / "broken.ll").write_text("define i64 @broken(")
    (scratch / "good.ll").write_text(adder("good", 1))
    found: dict[str, Any] = {}
    for line in COMMAND_LINES:
        words = [str(scratch / word) if word.endswith(".ll") else word.format(scratch=scratch) for word in line.split()]
        done = compcache("--dir", directory, *words, "--json")
        assert done.status in (0, 1), done.err
        found[line] = json.loads(done.out)
    for line in ("graph --all", "prune --dry-run --max-size 0 --stale 0s", "top", "ls"):
        text = compcache("--dir", directory, *line.split(), "--jsonl").out
        found[f"{line} --jsonl"] = [json.loads(row) for row in text.splitlines()]
    found["add"] = json.loads(compcache("--dir", directory, "add", scratch / "good.ll", "--json").out)
    found["compact"] = json.loads(compcache("--dir", directory, "compact", "--json").out)  # changes sizes: last of all
    return found


def test_every_key_is_documented_with_its_types(outputs: dict[str, Any]) -> None:
    known = documented()
    dynamic = {name for name, types in known.items() if "object of names" in types}
    for line, value in outputs.items():
        for key, kind in walk(value, dynamic):
            assert key in known, f"{key} of {line} is not in docs/json.md"
            allowed = known[key] | ({"object"} if key in dynamic else set())
            assert any(kind == one or one.startswith(f"{kind} of") or one == "remote" for one in allowed), f"{key} of {line} is a {kind}"


def test_every_documented_key_is_printed(outputs: dict[str, Any]) -> None:
    known = documented()
    dynamic = {name for name, types in known.items() if "object of names" in types}
    printed = {key for value in outputs.values() for key, _ in walk(value, dynamic)}
    remote = {name for name, types in known.items() if "remote" in types}
    assert set(known) - printed - remote == set()


def test_sizes_have_one_word(outputs: dict[str, Any]) -> None:
    for line, value in outputs.items():
        for key, _ in walk(value, {"globals"}):
            assert "bytes" not in key, f"{key} of {line}"


def test_json_lines_are_the_items_of_json(outputs: dict[str, Any]) -> None:
    graph, lines = outputs["graph --all"], outputs["graph --all --jsonl"]
    assert [{key: row[key] for key in graph["nodes"][0]} for row in lines] == graph["nodes"]
    assert sorted([row["number"], used] for row in lines for used in row["edges"]) == sorted(graph["edges"])
    removed = outputs["prune --dry-run --max-size 0 --stale 0s"]
    lines = outputs["prune --dry-run --max-size 0 --stale 0s --jsonl"]
    assert lines == removed["removed"] + removed["removed_packs"] + removed["leftovers"]
    assert outputs["ls --jsonl"] == outputs["ls"]


def test_every_command_that_has_results_prints_json() -> None:
    import click

    context = click.Context(group)
    silent = {"completion", "key", "metrics", "remote"}  # a script; lines of text; text that programs read; a group
    for name in set(COMMANDS) - silent:
        command = group.get_command(context, name)
        assert command is not None
        assert any("--json" in parameter.opts for parameter in command.params), name
        assert f"`{name}" in PAGE.partition("## Commands")[2], name
