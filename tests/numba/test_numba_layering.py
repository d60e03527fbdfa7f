"""The folders of the Numba backend: each knows those below it, and says in a sentence what it is for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BACKEND = PACKAGE_ROOT / "compcache" / "numba"
#: From the bottom up. Folders on one floor do not know each other; "" is what lies beside the folders: the facade.
FLOORS = (
    ("kernels",), ("registered",), ("lazy",), ("declarations",), ("fingerprints",), ("identity",), ("compilation",), ("entries",),
    ("dispatch", "exports"), ("hooks",), ("takeover",),
    ("",),
)  # fmt: skip
#: What points up, and why.
DOORS = {
    ("declarations", "takeover"): "what is declared and not stored is compiled by Numba",
    ("lazy", "takeover"): "a lazy function that meets something unknown becomes Numba's own dispatcher",
    ("lazy", "entries"): "the request of an entry is one class, whoever makes it",
}
FLOOR_OF = {folder: number for number, floor in enumerate(FLOORS) for folder in floor}
FILES = sorted(BACKEND.rglob("*.py"))


def folder_of(path: Path) -> str:
    return "" if path.parent == BACKEND else path.parent.relative_to(BACKEND).as_posix()


def imported(path: Path) -> Iterator[str]:
    """The backend's modules that a file imports, anywhere in it, but for types alone: ``identity.key``."""
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = []
        yield from (
            name.removeprefix("compcache.numba").removeprefix(".") for name in names if f"{name}.".startswith("compcache.numba.")
        )
        todo += ast.iter_child_nodes(node)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(BACKEND).as_posix())
def test_imports_point_to_the_same_folder_or_down(path: Path) -> None:
    own = folder_of(path)
    for name in imported(path):
        other = name.partition(".")[0] if (BACKEND / name.partition(".")[0]).is_dir() else ""
        assert other == own or FLOOR_OF[other] < FLOOR_OF[own] or (own, other) in DOORS, f"{path.name} imports {name}"


@pytest.mark.parametrize("door", sorted(DOORS))
def test_a_door_is_in_use(door: tuple[str, str]) -> None:
    files = [path for path in FILES if folder_of(path) == door[0]]
    assert any(name.partition(".")[0] == door[1] for path in files for name in imported(path))


@pytest.mark.parametrize("folder", FLOOR_OF)
def test_a_folder_says_what_it_is_for(folder: str) -> None:
    files = list((BACKEND / folder).glob("*.py"))
    assert files
    if folder:
        content = (BACKEND / folder / "__init__.py").read_text()
        assert ast.get_docstring(ast.parse(content))
        assert len(ast.parse(content).body) == 1, "nothing is imported with a folder that is not asked for"


def test_every_folder_has_a_floor() -> None:
    assert {folder_of(path) for path in FILES} == set(FLOOR_OF)
