"""Modules whose dependency graphs are damaged: questions about dependencies give the reason, because the functions are in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, flip_byte, frees_callers, module_file

from compcache import Cache, FormatError, ModuleSource, NotCachedError
from compcache.formats.footer import FOOTER_SIZE, decode_footer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def damaged(directory: Path) -> Iterator[Cache]:
    """A cache with `f`, whose graph is damaged, and `h`, which calls `f`. Its files are not verified."""
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        cache.add_module(ModuleSource(caller("h", "f"), imports=["f"]))
        (copy,) = cache.realizations("f")
    path = module_file(directory, copy.module_id)
    data = path.read_bytes()
    footer = decode_footer(data[-FOOTER_SIZE:], len(data))
    flip_byte(path, footer.image + footer.records + 2)
    with Cache(directory, verify=False) as cache:
        yield cache


def test_the_functions_of_the_module_are_not_reported_as_missing(damaged: Cache) -> None:
    assert damaged.get_target("f")(1) == 2
    for ask in (lambda: damaged.dependencies("f"), lambda: damaged.graph(["f"])):
        with pytest.raises(FormatError, match="the graph section of the module is damaged"):
            ask()
        assert frees_callers(ask, FormatError)
    with pytest.raises(NotCachedError, match="'absent' is not in the cache"):
        damaged.dependencies("absent")


@pytest.mark.parametrize(("names", "is_reversed"), [(["h"], False), (["f"], True), (None, False)])
def test_the_node_of_the_function_has_the_reason(damaged: Cache, names: list[str] | None, is_reversed: bool) -> None:
    graph = damaged.graph(names, is_reversed)
    (node,) = [node for node in graph.nodes if node.name == "f"]
    assert node.kind == "missing"
    assert "the graph section of the module is damaged" in node.problem


def test_another_module_with_the_function_answers(damaged: Cache) -> None:
    damaged.add_module(ModuleSource(adder("g", 2)))
    damaged.add_module(ModuleSource(caller("f", "g", plus=1), imports=["g"]))
    assert damaged.dependencies("f") == ("g",)
    assert [node.name for node in damaged.graph(["f"]).nodes] == ["f", "g"]
