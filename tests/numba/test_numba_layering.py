"""The Numba backend as a house of its own: what it uses of the package, who uses it, and its folders, floor by floor.

Imports inside functions count, and so do those for types alone where the house ends: it is a front end as any other project could
write one. Between its own folders an import for types counts where a parameter of that type is asked for something.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT
from test_layering import Import, imports_of, is_for_types, modules, own_imports, path_of, used_types, walk_imports

import compcache

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUSE = "numba"
FOLDER = PACKAGE_ROOT / "compcache" / HOUSE
#: What it uses of the package: the public names, what authors of front ends have, the ground, and its temporary directories.
USED = {"__init__", "cache", "frontend", "errors", "globals", "digest", "files", "interrupts", "processes.scratch", "record", "warning",
        "wording"}
#: Who uses it, and why.
USERS = {
    "__init__": "`compcache.numba` is a public name",
    "cli.commands.read.doctor": "it says which versions of Numba are supported",
    "forks": "the lock of the collector's settings stands in the list of all locks, as text",
    "hit.plain_imports": "a plain hit stores addresses of Numba's helpers, whose module is named as text",
    "globals.definition": "the table of homes names the modules of its kinds of globals, as text",
    "packaging.build": "the kernels of projects are compiled and put into their wheels",
}
#: From the bottom up. Folders on one floor do not know each other; "" is what lies beside the folders: the facade.
FLOORS = (
    ("kernels",), ("registered",), ("fingerprints",), ("lazy",), ("versions",), ("declarations",), ("identity",), ("compilation",),
    ("entries",),
    ("dispatch", "exports"), ("hooks",), ("takeover",),
    ("",),
)  # fmt: skip
#: What points up, and why.
DOORS = {
    ("declarations", "takeover"): "a declaration without code becomes Numba's own object, and only then the compiler's half is loaded",
}
FLOOR_OF = {folder: number for number, floor in enumerate(FLOORS) for folder in floor}
MODULES = [name for name in modules() if name.partition(".")[0] == HOUSE]
OTHERS = [name for name in modules() if name.partition(".")[0] != HOUSE]


def folder_of(module: str) -> str:
    inner = module.removeprefix(HOUSE).removeprefix(".")
    return inner.partition(".")[0] if (FOLDER / inner.partition(".")[0]).is_dir() else ""


def imported_folders(module: str) -> set[str]:
    names = own_imports(module) | used_types(module)
    return {folder_of(name) for name in names if name.partition(".")[0] == HOUSE}


def for_types(module: str) -> Iterator[Import]:
    """What is imported for annotations alone."""
    for node in ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8"))):
        if is_for_types(node):
            yield from walk_imports(ast.Module(node.body, []), module)


def test_the_house_uses_what_front_ends_have() -> None:
    found = {(module, one.name) for module in MODULES for one in [*imports_of(module), *for_types(module)] if one.ours}
    assert [(module, name) for module, name in found if name.partition(".")[0] != HOUSE and name not in USED] == []


def test_what_it_takes_of_a_module_is_public() -> None:
    for module in MODULES:
        for node in ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in {"compcache", "compcache.cache", "compcache.frontend"}:
                public = import_module(node.module).__all__
                assert {alias.name for alias in node.names} <= {*public, "frontend"}, module


@pytest.mark.slow
def test_the_house_is_used_by_few() -> None:
    found = {module for module in OTHERS for name in own_imports(module) | used_types(module) if name.partition(".")[0] == HOUSE}
    texts = {module for module in OTHERS if f'"compcache.{HOUSE}' in path_of(module).read_text(encoding="utf-8")}
    assert found | texts | {"__init__"} == set(USERS)
    assert HOUSE in dir(compcache)


def test_imports_point_to_the_same_folder_or_down() -> None:
    for module in MODULES:
        own = folder_of(module)
        for other in imported_folders(module):
            assert other == own or FLOOR_OF[other] < FLOOR_OF[own] or (own, other) in DOORS, f"{module} imports {other}"


@pytest.mark.parametrize("door", sorted(DOORS))
def test_a_door_is_in_use(door: tuple[str, str]) -> None:
    assert any(door[1] in imported_folders(module) for module in MODULES if folder_of(module) == door[0])
    eager = {name for module in MODULES if folder_of(module) == door[0] for name in own_imports(module, eager=True)}
    assert door[1] not in {folder_of(name) for name in eager if name.partition(".")[0] == HOUSE}


@pytest.mark.parametrize("folder", FLOOR_OF)
def test_a_folder_says_what_it_is_for(folder: str) -> None:
    files = list((FOLDER / folder).glob("*.py"))
    assert files
    if folder:
        content = (FOLDER / folder / "__init__.py").read_text()
        assert ast.get_docstring(ast.parse(content))
        imported = own_imports(f"{HOUSE}.{folder}", eager=True)
        assert not [name for name in imported if name.startswith(f"{HOUSE}.{folder}.")], "no other file of a folder is imported with it"


def test_every_folder_has_a_floor() -> None:
    assert {folder_of(module) for module in MODULES} == set(FLOOR_OF)


def test_the_page_of_the_house_has_every_folder_from_the_top() -> None:
    page = (PACKAGE_ROOT / "docs" / "numba-architecture.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE) == [folder for floor in reversed(FLOORS[:-1]) for folder in floor]


def test_the_page_of_the_house_names_files_that_are_there() -> None:
    page = (PACKAGE_ROOT / "docs" / "numba-architecture.md").read_text(encoding="utf-8")
    places = re.findall(r"`((?:\w+/)+\w*(?:\.\w+)?)`", page)
    assert places
    assert [place for place in places if not any((root / place).exists() for root in (FOLDER, FOLDER / "exports", PACKAGE_ROOT))] == []
