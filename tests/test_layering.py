"""The structure of the package: floors of folders, arrows that point down, and a hit path that meets nothing slow.

Every folder and every file at the top has a floor here; one that has none fails. Imports inside functions count as
those at the head of a file do. What must point up is a door, named with its reason; a door that nobody uses any more
fails as well. An import for types alone counts where a parameter of that type is used; taking the package's modules out of `sys.modules` is
refused.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import pytest
from helpers import PACKAGE_ROOT, constant, run_fresh

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE, TESTS = PACKAGE_ROOT / "compcache", PACKAGE_ROOT / "tests"

#: From the bottom up: folders, and the files at the top of the package. What stands on one floor does not import one
#: another, but for the ground.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors", "files", "interrupts", "digest", "record", "signature", "identity", "depgraph", "llvm", "settings", "configuration",
     "display", "forks", "messagepack", "native", "warning", "wording"),
    ("arch",),
    ("formats", "globals", "processes"),
    ("images",),
    ("targets",),
    ("directory",),
    ("store",),
    ("hit", "layers", "signing"),
    ("build",),
    ("content",),
    ("translation",),
    ("linker",),
    ("publish",),
    ("remote",),
    ("session",),
    ("usage",),
    ("maintain", "inspect", "bundles"),
    ("miss",),
    ("closures",),
    ("facade",),
    ("cache",),
    ("frontend",),
    ("__init__",),
    ("batch", "clang", "dask", "numba"),
    ("packaging",),
    ("cli",),
    ("notebook",),
    ("__main__",),
)
_GROUND = frozenset(FLOORS[0])
#: What points up, and why. A hit meets these only where something unusual has to be done.
DOORS = {
    ("native", "hit"): "the extension module in C is in the folder of the path that it is the native half of",
    ("native", "hit.native_build"): "what to do where it is missing is said in one place",
    ("store", "publish.verify"): "a look-up that meets a file which no stamp vouches for verifies it, or sets it aside",
    ("layers.unpacked_bundle", "bundles.unpacked_layer"): "a bundle that is given as a layer is unpacked before it is first used",
    ("layers.layered_store", "publish.verify"): "that a file of a layer was verified is remembered in the writable directory",
    ("directory", "publish.verify"): "that a directory is not trusted is said where files are verified",
    ("store", "publish.quarantine"): "a file that a look-up finds damaged is set aside",
    ("store", "publish.host_file"): "what is compiled for this host asks LLVM what it is",
    ("directory", "hit.target"): "the native runtime reads what the processor says of itself",
    ("images.anonymous_file", "hit.target"): "a file in memory that no interrupt leaves open is made by the native runtime",
    ("hit.recorder", "usage.ledger"): "a process that has filled a journal folds it when it exits",
    ("publish.additions", "usage.ledger"): "the process that merges large segments folds the journals of the additions, too",
    ("hit.target", "cache"): "a pickled target names the function that opens its cache again",
    ("display", "notebook"): "what shows itself in a notebook is drawn by what knows all of it",
    ("hit.closures", "publish.atomic_file"): "whether a linked closure holds is kept for the next process",
    ("hit.target", "hit"): "the extension module in C is in the folder of the path that it is the native half of",
    ("facade", "cache"): "what a hit does not need of the class comes when it is first asked for",
    ("facade", "miss.compile_once"): "what is not found is compiled",
    ("settings", "hit"): "the extension module in C, which a hit has loaded, tells missing files from unreadable ones",
    ("settings", "configuration"): "configuration files are read where there are some",
    ("inspect.functions", "__init__"): "the version of the package stands in one place",
    ("build.codegen", "__init__"): "modules name the version of the package among their makers",
}

#: What a hit of a function without dependencies and globals runs, all of it and no more.
HIT_PATH = frozenset(("__init__", "facade", "hit", "hit.recorder", "hit.target", "settings"))
#: What other hits need beside it: functions to plan the load of, globals to decode.
ALSO_OF_HITS = frozenset(
    (
        "globals",
        "globals.blocks",
        "globals.definition",
        "globals.scalars",
        "formats.table",
        "hit.closures",
        "hit.closures.providers",
        "hit.needs",
        "hit.plan",
        "store",
        "directory",
        "directory.module_file",
        "directory.places",
        "record",
        "native",
        "hit.loader",
        "formats.manifest",
        "formats.index",
        "formats.host",
        "formats",
        "files",
        "errors",
        "digest",
        "cache",
    )
)
#: The rooms that hits visit.
HIT_ROOMS = _GROUND | {"directory", "formats", "hit", "store", "facade", "cache", "__init__", "globals"}
HEAVY = frozenset(("llvmlite", "filelock", "numpy", "logging", "dataclasses", "msgpack", "ctypes"))
#: Names that single modules must not import at all.
KNOWS_NOTHING_OF = {
    "depgraph": {"llvmlite", "files", "store", "os"},
    "store": {"llvmlite", "linker", "build", "hit", "cache"},
    "directory": {"llvmlite", "linker", "build", "hit", "cache"},
    "linker": {"store", "files", "cache", "hit"},
    "translation.translate": {"store", "files", "cache", "hit"},
    "maintain.policy": {"store", "files", "cache", "os", "time"},
    "formats.table": {"files", "os"},
    "formats.manifest": {"files", "os"},
    "formats.footer": {"files", "os"},
    "formats.graph": {"files", "os"},
    "formats.statistics": {"files", "os"},
}
#: Folders of tests that are named after none of the package's, and why.
OTHER_FOLDERS = {
    "faults": "what fails is the system, at whichever operation of whichever folder",
    "mutants": "lines of defence of every folder, taken away",
    "peer": "programs, compilers, packages and servers of others use the whole package",
    "trust": "what other users leave in the way meets whichever folder opens it first",
}
#: Tests beside the folders, and why.
TESTS_OF_THE_WHOLE = {
    "test_configuration": "configuration.py and settings.py",
    "test_docstrings": "what public names say of their parameters and fields",
    "test_documents": "the programs and commands of all pages",
    "test_benchmarks": "that benchmarks run with the package as it is",
    "test_embeddings": "where the package runs at all",
    "test_example_programs": "compilers that are built on the package",
    "test_facade": "facade.py and cache/",
    "test_forks": "forks.py, and every lock there is",
    "test_identity": "identity.py",
    "test_layering": "the folders themselves",
    "test_limits_of_time": "what ends a test that hangs",
    "test_mock_directory": "what tests of several folders use",
    "test_notebook": "notebook.py and display.py",
    "test_places": "directory/, and everything that walks a cache directory",
    "test_public_api": "what the package and its modules export",
    "test_recipes": "the recipes of the documents",
    "test_readme": "the README",
    "test_site": "what pages and code both say",
    "test_state_machine": "a whole cache against a model of it",
    "test_tutorial": "the tutorial",
    "test_values": "files on the ground floor",
    "test_words": "messages, wherever they come from",
    "test_wording": "wording.py",
    "test_wrong_arguments": "cache/ and the classes that it takes",
}


class Import(NamedTuple):
    """A module or package that is imported, relative to the package where it is one of ours."""

    name: str
    ours: bool
    lazy: bool


def path_of(name: str) -> Path:
    plain = PACKAGE.joinpath(*name.split("."))
    return plain / "__init__.py" if plain.is_dir() else plain.with_suffix(".py")


@functools.cache
def modules() -> tuple[str, ...]:
    """Every module of the package: ``formats.index``, ``formats`` (its __init__), ``store``, ``__init__``."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.name.startswith("hook-"):  # PyInstaller's name for a script
            continue
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts))
    return tuple(sorted(found))


@functools.cache
def is_module(name: str) -> bool:
    return name in modules()


def room_of(name: str) -> str:
    return name.partition(".")[0]


def floor_of(name: str) -> int | None:
    room = room_of(name)
    return next((number for number, rooms in enumerate(FLOORS) if room in rooms), None)


@functools.cache
def imports_of(name: str) -> frozenset[Import]:
    return frozenset(walk_imports(ast.parse(path_of(name).read_text(encoding="utf-8")), name))


def is_for_types(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def walk_imports(tree: ast.AST, name: str) -> Iterator[Import]:
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, lazy = todo.pop()
        if is_for_types(node):
            todo += [(child, lazy) for child in node.orelse]
            continue
        if isinstance(node, ast.Import):
            yield from (_import(alias.name, lazy=lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            yield from (_import(f"{node.module}.{alias.name}", lazy=lazy) for alias in node.names)
        inner = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        todo += [(child, inner) for child in ast.iter_child_nodes(node)]


def _import(dotted: str, *, lazy: bool) -> Import:
    first, _, rest = dotted.partition(".")
    if first != "compcache":
        return Import(first, ours=False, lazy=lazy)
    while rest and not is_module(rest):
        rest = rest.rpartition(".")[0]
    return Import(rest or "__init__", ours=True, lazy=lazy)


def own_imports(name: str, *, eager: bool = False) -> set[str]:
    return {found.name for found in imports_of(name) if found.ours and not (eager and found.lazy)} - {name}


@functools.cache
def used_types(name: str) -> set[str]:
    """The modules whose classes are imported for annotations alone, and whose objects functions are given and ask for something."""
    tree = ast.parse(path_of(name).read_text(encoding="utf-8"))
    types = {
        alias.asname or alias.name: _import(f"{statement.module}.{alias.name}", lazy=True)
        for node in ast.walk(tree)
        if is_for_types(node)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    types = {name: found for name, found in types.items() if found.ours}
    found = set()
    for node in ast.walk(tree) if types else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = {}
            for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                named = {inner.id for inner in ast.walk(argument.annotation or argument) if isinstance(inner, ast.Name)} & types.keys()
                if named:
                    arguments[argument.arg] = {types[one].name for one in named}
            for inner in ast.walk(node) if arguments else ():
                if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
                    found |= arguments.get(inner.value.id, set())
    return found


def violations(name: str) -> Iterator[str]:
    """The imports of a module that point up or sideways, doors left out."""
    own = floor_of(name)
    for other in sorted(own_imports(name) | used_types(name)):
        there = floor_of(other)
        if (name, other) in DOORS or room_of(other) == room_of(name) or own is None or there is None:
            continue
        if there > own or (there == own and room_of(name) not in _GROUND):
            yield f"{name} imports {other}"


def test_every_module_has_a_floor() -> None:
    assert [name for name in modules() if floor_of(name) is None] == [], "say in FLOORS where they belong"


def test_imports_point_downwards() -> None:
    assert [violation for name in modules() for violation in violations(name)] == []


def test_no_module_reaches_another_one_through_the_interpreter() -> None:
    reaches = re.compile(r'sys\.modules\[?\.?(get\()?["\']compcache')
    assert [name for name in modules() if reaches.search(path_of(name).read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("door", sorted(DOORS))
def test_a_door_is_in_use(door: tuple[str, str]) -> None:
    name, other = door
    assert other in own_imports(name)
    assert other not in own_imports(name, eager=True), "a door opens where it is needed, not with the module"


def test_floors_name_what_is_there() -> None:
    assert {room for rooms in FLOORS for room in rooms} == {room_of(name) for name in modules()}


def test_the_picture_shows_every_floor() -> None:
    """``python tools/draw_folders.py`` draws it anew."""
    picture = (PACKAGE_ROOT / "docs" / "images" / "folders.svg").read_text(encoding="utf-8")
    shown = set(re.findall(r'class="name">(\w+)(?:/|\.py)<', picture))
    assert shown == {name for floor in FLOORS for name in floor} - {"__init__", "__main__"}


def test_imports_make_no_circle() -> None:
    """Lazy ones and those of one folder included, but for doors, and for packages that offer what is in them."""
    graph = {
        name: {other for other in own_imports(name) if (name, other) not in DOORS and not _offers(name, other)}
        for name in modules()
        if name != "__init__"
    }
    while graph:
        free = [name for name, others in graph.items() if not others & graph.keys()]
        assert free, f"these import one another: {sorted(graph)}"
        for name in free:
            del graph[name]


def _offers(name: str, other: str) -> bool:
    """Whether the import is lazy, and one by which a package hands out a module of its own."""
    return other == "__init__" or (other.startswith(f"{name}.") and other not in own_imports(name, eager=True))


FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")})


def test_a_folder_says_what_it_is_for() -> None:
    assert [folder for folder in FOLDERS if not ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))] == []


def test_a_module_knows_nothing_of_what_is_not_its_business() -> None:
    known = {name: {room_of(found.name) for found in imports_of(name) if not found.lazy} for name in KNOWS_NOTHING_OF}
    assert [(name, found) for name, rooms in known.items() if (found := rooms & KNOWS_NOTHING_OF[name])] == []


CALLERS = sorted(name for name in modules() if room_of(name) in {"batch", "cli", "numba"})


@pytest.mark.slow
def test_callers_use_what_the_facade_offers() -> None:
    """Nobody but the package's lower floors knows what a `Cache` is made of."""
    private = {name for name in {*vars(Cache(".")), *vars(Cache)} if name[0] == "_" and name[1] != "_"}
    used = [
        (name, ast.unparse(node))
        for name in CALLERS
        for node in ast.walk(ast.parse(path_of(name).read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in private and ast.unparse(node.value) != "self"
    ]
    assert used == []
    assert [name for name in CALLERS if {"store", "hit.loader"} & own_imports(name)] == []


def test_a_hit_runs_no_module_of_the_miss_path(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("f", 1)))
    script = """
    from compcache import Cache
    Cache(directory).get_target("f")()
    result = sorted(name for name in sys.modules if name.startswith("compcache."))
    """
    loaded = {name.removeprefix("compcache.") for name in run_fresh(cache.path, script)}
    assert loaded == HIT_PATH - {"__init__"} | {"hit._runtime"}  # the extension module in C


def test_a_hit_out_of_a_volume_runs_what_one_out_of_a_file_runs(cache: Cache) -> None:
    for number in range(3):
        cache.add_module(ModuleSource(constant(f"f{number}", number)))
    cache.compact(grace=0.0)
    cache.add_module(ModuleSource(constant("f3", 3)))
    cache.compact(grace=0.0)
    cache.remove("f2")
    assert not list(Path(cache.path, "modules-v1").rglob("*.ccm"))
    script = """
    from compcache import Cache
    answers = [Cache(directory).get_target(name)() for name in ("f0", "f1", "f3")]
    result = answers, sorted(name for name in sys.modules if name.startswith("compcache.")), "zlib" in sys.modules
    """
    answers, modules, has_zlib = run_fresh(cache.path, script)
    assert answers == [0, 1, 3]
    assert {name.removeprefix("compcache.") for name in modules} == HIT_PATH - {"__init__"} | {"hit._runtime"}
    assert not has_zlib


def test_what_hits_run_imports_neither_other_rooms_nor_anything_slow() -> None:
    eager = {name: [found for found in imports_of(name) if not found.lazy] for name in sorted(HIT_PATH | ALSO_OF_HITS)}
    wrong = [
        (name, one.name)
        for name, found in eager.items()
        for one in found
        if (room_of(one.name) not in HIT_ROOMS if one.ours else one.name in HEAVY)
    ]
    assert wrong == []


FOLDERS_OF_TESTS = sorted({path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} - {"."})


@pytest.mark.parametrize("folder", FOLDERS_OF_TESTS)
def test_the_tests_of_a_folder_are_in_one_of_its_name(folder: str, pytestconfig: pytest.Config) -> None:
    assert (PACKAGE / folder).is_dir() != (folder in OTHER_FOLDERS), f"say in OTHER_FOLDERS why tests/{folder} mirrors nothing"
    skipped = pytestconfig.getini("norecursedirs")
    assert not [part for part in folder.split("/") if any(fnmatch.fnmatch(part, pattern) for pattern in skipped)]


def test_a_test_beside_the_folders_concerns_the_whole() -> None:
    """Others go where the tested code is: ``tests/remote/`` for ``compcache/remote/``."""
    assert {path.stem for path in TESTS.glob("test_*.py")} == set(TESTS_OF_THE_WHOLE)


def test_each_folder_of_tests_is_described() -> None:
    page = (PACKAGE_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w/]+)/` \|", page, re.MULTILINE) == sorted({*FOLDERS_OF_TESTS, *OTHER_FOLDERS})
