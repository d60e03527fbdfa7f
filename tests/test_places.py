"""The table of what is in a cache directory: nothing else spells a name, and everything that walks the directory follows it."""

from __future__ import annotations

import ast
import os
import re
import time
from typing import TYPE_CHECKING

import pytest
from cli_process import compcache
from helpers import PACKAGE_ROOT, adder, caller, constant

from compcache import Cache, ModuleSource, PrunePolicy, frontend
from compcache.directory.places import BUNDLES, MERGED_LAYERS, MODULE_FILES, MODULES, PARTS, PLACES, QUARANTINE, TAG, TEMPORARY, Place
from compcache.inspect.uncached import record_refusal
from compcache.publish.module_lists import ModuleLists, write_list
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT = (PACKAGE_ROOT / "docs" / "format.md").read_text(encoding="utf-8")
#: The forms in the listing of `docs/format.md`, and what it says of each.
LISTED = dict(re.findall(r"^    <root>/(\S+(?: \S+)*?)(?: {2,}(.*))?$", FORMAT, re.MULTILINE))
#: What only the table may say: directories with a version, and how names end that nobody would write by chance.
SPELLINGS = sorted(
    {place.directory for place in PLACES if re.search(r"-v\d+$", place.directory)}
    | {place.suffix for place in PLACES if place.suffix}
    | {"size-v2", TAG.name}
)


def strings_of(path: Path) -> Iterator[str]:
    """The string constants of a file that its code uses: all but docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def test_one_file_spells_what_is_on_disk() -> None:
    names = re.compile("|".join(re.escape(name) + r"(?![\w.])" for name in SPELLINGS))
    plain = {place.directory for place in PLACES if place.directory}
    found = set()
    package = PACKAGE_ROOT / "compcache"
    for path in package.rglob("*.py"):
        if path.is_relative_to(package / "remote"):
            continue  # what is in a remote store has names of its own
        if path == package / "numba" / "registered" / "reviewed.py":
            continue  # `builtins.list` is no file
        content = path.read_text(encoding="utf-8")
        if not names.search(content) and not any(directory in content for directory in plain):
            continue  # this is told faster without a syntax tree
        for text in strings_of(path):
            parts = set(text.split("/")) if "/" in text else set()
            if (names.search(text) or parts & plain) and not text.startswith("commands."):  # modules of the CLI
                found.add(path.relative_to(PACKAGE_ROOT / "compcache").as_posix())
    # A remote store's places are the server's, and where the helper listens is not below a cache directory.
    # What plain hits spell is compared in formats/test_native_readers.py.
    plain_hits = {"hit/__init__.py", "hit/recorder.py"}
    assert {name for name in found if not name.startswith("remote/")} == {"directory/places.py", *plain_hits}


def test_the_format_lists_every_place_and_no_other() -> None:
    assert set(LISTED) == {place.form for place in PLACES}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.form)
def test_the_format_says_what_is_derived_and_what_clear_removes(place: Place) -> None:
    assert ("derived" in LISTED[place.form]) == place.derived
    cleared = re.search(r"`compcache clear` removes (.*?)\. Directories", FORMAT, re.DOTALL)
    assert cleared is not None
    assert (f"`{place.form}`" in cleared[1]) == place.cleared


@pytest.fixture
def everything(cache: Cache) -> Cache:
    """A cache that has one file of every kind at least."""
    cache.add_module(ModuleSource(constant("one", 1)))
    cache.get_target("one")
    cache.add_module(ModuleSource(adder("first", 2)))
    cache.add_module(ModuleSource(caller("second", "first")))
    cache.add_module(ModuleSource(caller("third", "second")))
    cache.get_target("third")
    cache.pin("one")
    record_refusal(cache._store, "two", "a reason")
    frontend.put_entry(cache, "a front end's", b"data", kind="data")
    cache._entries.flush()  # type: ignore[union-attr]
    cache.add_module(ModuleSource(constant("four", 4)))
    cache.compact(grace=0)
    cache.remove("four")
    cache.add_module(ModuleSource(constant("five", 5)))
    cache.link(["third"])
    with Cache(cache.path) as linked:
        linked.get_target("third")
    for directory in (MODULES, *PLACES):  # everything that is listed is old enough to be remembered
        path = cache._store.directory(directory)
        for folder, _, _ in os.walk(path) if directory is MODULES else ():
            os.utime(folder, (1, 1))
    cache.prune(PrunePolicy(older_than=1e9))
    cache.stats()
    cache.zero_stats()
    cache._store.stats.count("hits")
    cache._store.stats.flush()
    root = cache._store
    for place, name in ((TEMPORARY, "left"), (QUARANTINE, "bad.ccm.1")):
        os.makedirs(root.directory(place), exist_ok=True)
        with open(root.path(place, name), "wb"):
            pass
    with open(f"{root.root}/locks/{'0' * 32}.lock", "wb"):
        pass
    layer = f"{root.root}-layer"
    with Cache(cache.path, publish_key=str(generate_key("test"))) as signing:
        signing.add_module(ModuleSource(constant("one", 1)))
    with Cache(layer) as other:
        other.add_module(ModuleSource(constant("below", 1)))
    for folder, _, names in os.walk(f"{layer}/{MODULES.directory}"):
        for name in names:
            os.utime(f"{folder}/{name}", (1, 1))
    time.sleep(0.15)  # what changed just now may change again unnoticed
    with Cache(cache.path, layers=[layer]) as layered:
        layered.get_target("below")
        layered.export(["below"], f"{layer}.ccb")
    with Cache(cache.path, layers=[f"{layer}.ccb"]) as bundled:
        bundled.get_target("below")
    for segment in root.index.segments:  # as if there were many modules, and somebody rebuilt the index
        rows = [row for first in range(256) for row in ModuleLists(root).rows_of_directory(first).values()]
        write_list(root, segment.name, [(row, 1) for row in rows] * 600)
    with open(root.path(PARTS, "begun.idx-part"), "wb"):
        pass
    return cache


def kinds_present(cache: Cache) -> set[str]:
    found = set()
    for folder, folders, names in os.walk(cache.path):
        top = os.path.relpath(folder, cache.path).partition("/")[0].replace(".", "", 1)
        units = list(names)
        if folder == cache._store.directory(BUNDLES):  # of directories that are one thing each
            units += folders
            folders.clear()
        for name in units:
            kinds = [place for place in PLACES if place.directory == top and place.includes(name)]
            assert len(kinds) == 1, f"{folder}/{name} is of {[kind.form for kind in kinds]}"
            found.add(kinds[0].form)
    return found


@pytest.mark.slow
def test_every_file_that_is_written_is_of_one_kind(everything: Cache) -> None:
    assert kinds_present(everything) == {place.form for place in PLACES if place not in (MERGED_LAYERS, MODULE_FILES)}


@pytest.mark.slow
def test_clear_removes_what_the_table_says(everything: Cache) -> None:
    assert everything.clear() == 6
    assert kinds_present(everything) == {place.form for place in PLACES if not place.cleared}


def test_clear_leaves_what_is_of_no_kind(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("one", 1)))
    cache.get_target("one")
    cache.stats()
    beside = [f"{place.directory}/mine" for place in PLACES if place.directory and not place.includes("mine")]
    assert len(beside) > 5
    mine = [f"{cache.path}/{name}" for name in ("notes.txt", "mine/file", *beside)]
    for path in mine:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
    assert cache.clear() == 1
    assert [path for path in mine if not os.path.exists(path)] == []


def test_check_names_what_is_of_no_kind(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("one", 1)))
    expected = set()
    for name in ("modules-v1/zz", "index-v1", "pins-v1", "module-lists-v5", "stats", "locks"):
        path = f"{cache.path}/{name}/a stranger"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
        expected.add(path)
    found = {finding.subject for finding in cache.check().findings if finding.kind == "stranger"}
    assert found == expected


def test_prune_of_stale_formats_removes_former_and_other_versions_only(cache: Cache) -> None:
    cache.add_module(ModuleSource(constant("one", 1)))
    theirs = ["modules-v7", "index-v0", "pins-v9", "uncached-v1"]
    strange = ["mine", "modules", "stats-v1"]
    for name in [*theirs, *strange]:
        os.mkdir(f"{cache.path}/{name}")
        os.utime(f"{cache.path}/{name}", (1, 1))
    before = set(os.listdir(cache.path))
    assert cache.info().other_formats == tuple(sorted(theirs))
    shown = compcache("--dir", cache.path, "info").out
    assert all(name in shown for name in theirs)
    assert "mine" not in shown
    cache.prune(PrunePolicy(stale=7 * 24 * 3600))
    assert before - set(os.listdir(cache.path)) == set(theirs)
    assert cache.info().other_formats == ()
    assert "other formats" not in compcache("--dir", cache.path, "info").out
