"""Imports between the modules of the package point downwards, and the hit path never points at the miss path."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT, constant, run_fresh

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = PACKAGE_ROOT / "compcache"

#: From the bottom up: a module may import, at module level, those of its own layer and of the layers below.
#: What is not named here is a caller or an extra and may import anything but the callers (checked below).
LAYERS: tuple[tuple[str, frozenset[str]], ...] = (
    ("foundation", frozenset(("errors", "digest", "record"))),
    (
        "plain files and formats",
        frozenset(("files", "table", "memory", "signature", "elf", "depgraph", "irtext")),
    ),
    (
        "values",
        frozenset(("module", "globals", "manifest", "container", "index", "host", "reports", "natives")),
    ),
    ("counters", frozenset(("statsfile", "stats"))),
    ("store", frozenset(("store", "locks"))),
    ("runtime and targets", frozenset(("target", "runtime"))),
    ("loader", frozenset(("loader",))),
    ("facade", frozenset(("cache",))),
    ("package", frozenset(("__init__",))),
)
#: What a hit of a function without dependencies and globals runs, all of it and no more.
HIT_PATH = frozenset(
    (
        "__init__",
        "cache",
        "digest",
        "errors",
        "files",
        "host",
        "index",
        "loader",
        "manifest",
        "record",
        "runtime",
        "stats",
        "store",
        "table",
        "target",
    )
)
#: What other hits need beside it: functions to plan the load of, globals to decode.
ALSO_OF_HITS = frozenset(("planning", "decoding", "globals"))
CALLERS = frozenset(("cli", "batch", "__main__"))
#: What a design section says of single modules: names that these must not import at all.
KNOWS_NOTHING_OF = {
    "depgraph": {"llvmlite", "files", "store", "os"},
    "store": {"llvmlite", "linker", "codegen", "loader", "cache"},
    "linker": {"store", "files", "cache", "loader", "os"},
    "prune": {"store", "files", "cache", "os", "time"},
    "table": {"files", "os"},
    "manifest": {"files", "os"},
    "container": {"files", "os"},
}


def module_names() -> list[str]:
    return sorted(path.stem for path in PACKAGE.glob("*.py"))


#: The miss path and the tools: imported inside of functions only by what hits run.
MISS_PATH = frozenset(module_names()) - HIT_PATH - ALSO_OF_HITS


@functools.cache
def imports_of(path: Path, *, everywhere: bool = False) -> frozenset[str]:
    """The first names of what a file imports: ``x`` for ``compcache.x``, else the top-level package.

    Only what runs when the module is imported, unless `everywhere`; nothing under ``if TYPE_CHECKING``.
    """
    return frozenset(_walk_imports(path, everywhere=everywhere))


def _walk_imports(path: Path, *, everywhere: bool) -> Iterator[str]:
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not everywhere:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _first(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are absolute"
            if node.module == "compcache":
                yield from (alias.name for alias in node.names)
            else:
                yield _first(node.module or "")
        todo += ast.iter_child_nodes(node)


def _first(name: str) -> str:
    parts = name.split(".")
    return parts[1] if parts[0] == "compcache" and len(parts) > 1 else parts[0]


def level_of(name: str) -> int | None:
    return next((number for number, (_, members) in enumerate(LAYERS) if name in members), None)


@pytest.mark.parametrize("name", sorted(member for _, members in LAYERS for member in members))
def test_imports_point_downwards(name: str) -> None:
    own = level_of(name)
    assert own is not None
    path = PACKAGE / f"{name}.py"
    if not path.exists():
        pytest.skip("not a module (any more)")
    upwards = [other for other in sorted(imports_of(path)) if other != name and (level_of(other) or 0) > own]
    assert upwards == [], f"{name} ({LAYERS[own][0]}) imports what is above it"


@pytest.mark.parametrize("name", module_names())
def test_nothing_imports_the_callers(name: str) -> None:
    if name in CALLERS:
        pytest.skip("is one")
    assert CALLERS.isdisjoint(imports_of(PACKAGE / f"{name}.py", everywhere=True))


@pytest.mark.parametrize("name", KNOWS_NOTHING_OF)
def test_a_module_knows_nothing_of_what_is_not_its_business(name: str) -> None:
    path = PACKAGE / f"{name}.py"
    if not path.exists():
        pytest.skip("not there yet")
    assert KNOWS_NOTHING_OF[name].isdisjoint(imports_of(path))


def test_imports_make_no_cycle() -> None:
    graph = {
        name: set(imports_of(PACKAGE / f"{name}.py")) - {name}
        for name in module_names()
        if name != "__init__"
    }
    while graph:
        free = [name for name, others in graph.items() if not others & graph.keys()]
        assert free, f"these import one another: {sorted(graph)}"
        for name in free:
            del graph[name]


def test_a_hit_runs_no_module_of_the_miss_path(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    script = """
    from compcache import Cache
    Cache(directory).get_target("f")()
    result = sorted(name for name in sys.modules if name.startswith("compcache."))
    """
    loaded = {name.removeprefix("compcache.") for name in run_fresh(cache.path, script)}
    assert loaded == HIT_PATH - {"__init__"}


@pytest.mark.parametrize("name", sorted(HIT_PATH | ALSO_OF_HITS))
def test_what_hits_run_imports_nothing_of_the_miss_path(name: str) -> None:
    assert MISS_PATH.isdisjoint(imports_of(PACKAGE / f"{name}.py"))


HEAVY = frozenset(("llvmlite", "filelock", "numpy", "logging", "dataclasses", "msgpack"))


@pytest.mark.parametrize("name", sorted(HIT_PATH | ALSO_OF_HITS))
def test_what_a_hit_may_need_imports_nothing_slow(name: str) -> None:
    assert HEAVY.isdisjoint(imports_of(PACKAGE / f"{name}.py"))
