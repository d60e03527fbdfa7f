"""Files that cannot be read for a moment: what is unknown neither brings removed or former code back, nor replaces newer code.

A missing file means that nothing was removed, numbered or pinned. A file that exists and cannot be read means nothing: the answer is then
the right one, a miss or an error, in this process and in later ones.
"""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller
from mock_directory import READING, FaultyFiles, cache_on, fail_at

from compcache import Cache, CompcacheError, ModuleSource, PrunePolicy, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mock_directory import Operation

#: Not EACCES: a file that this user may not read is known to be of no use to this user.
NUMBERS = (errno.EIO, errno.EMFILE, errno.ENOMEM)
#: What each function returns for 1.
ANSWERS = {"kept": 2, "newer": 31, "pinned": 5, "single": 7, "user": 31}
REMOVED = ("gone", "volatile")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Functions in a volume and in files. Some were removed from either, one has newer code than the volume has, and one is pinned."""
    directory = tmp_path_factory.mktemp("filled") / "cache"
    with Cache(directory) as cache:
        for name, value in (("kept", 1), ("newer", 20), ("pinned", 4), ("gone", 5)):
            cache.add_module(ModuleSource(adder(name, value)))
        cache.add_module(ModuleSource(caller("user", "newer")))
        cache.compact(grace=0)
        for name, value in (("newer", 30), ("volatile", 5), ("single", 6)):
            cache.add_module(ModuleSource(adder(name, value)))
        cache.pin("pinned")
        cache.remove("gone")
        cache.remove("volatile")
        assert [cache.get_target(name)(1) for name in ANSWERS] == list(ANSWERS.values())
    return directory


def without_index(cache: Cache) -> None:
    shutil.rmtree(f"{cache.path}/index-v1")
    cache.has("kept")


def add_newer(cache: Cache) -> dict[str, int]:
    cache.add_module(ModuleSource(adder("newer", 40)))
    return {"newer": 41, "user": 41}


def add_newer_without_index(cache: Cache) -> dict[str, int]:
    shutil.rmtree(f"{cache.path}/index-v1")
    return add_newer(cache)


#: What is done while a file cannot be read. The result has the answers that are right afterwards. They are possible if an addition fails.
OPERATIONS: dict[str, Callable[[Cache], dict[str, int] | None]] = {
    "look-up": lambda _: None,
    "look-up-without-index": without_index,
    "add": add_newer,
    "add-without-index": add_newer_without_index,
    "compact": lambda cache: (cache.compact(grace=0), None)[1],
    "prune": lambda cache: (cache.prune(PrunePolicy(max_modules=3)), None)[1],
    "repair": lambda cache: (cache.check(repair=True), None)[1],
    "export": lambda cache: (cache.export(["kept", "newer"], f"{cache.path}.ccb"), None)[1],
}
#: The cases that CI runs: each has found what the others find.
QUICK = (("look-up", errno.EMFILE), ("look-up-without-index", errno.EIO), ("add-without-index", errno.EIO))


def answers_of(cache: Cache) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for name in (*ANSWERS, *REMOVED):
        try:
            answers[name] = cache.get_target(name)(1)
        except CompcacheError:
            answers[name] = None
    return answers


def problems_of(answers: dict[str, Any], *expected: dict[str, int]) -> list[str]:
    possible = {name: [None, *[answer[name] for answer in expected if name in answer]] for name in answers}
    return [f"{name}(1) is {answer}" for name, answer in answers.items() if answer not in possible[name]]


def kinds_of(place: Path) -> list[str]:
    """A part of the path of each kind of file: directories, and endings in them."""
    paths = [path.relative_to(place) for path in place.rglob("*") if path.is_file()]
    kinds = {f"{path.parts[0]}" for path in paths} | {path.suffix for path in paths if path.suffix}
    return sorted(kinds)


def attempt(place: Path, do: Callable[[Cache], dict[str, int] | None], concerns: Callable[[Operation], bool], number: int) -> list[str]:
    """The wrong answers while the operations that `concerns` selects fail, and afterwards."""
    files = FaultyFiles(place, None, count=lambda operation: operation.name in READING)
    expected = [ANSWERS]
    found: list[str] = []
    with cache_on(files) as cache:
        files.reset()
        files.plan = lambda operation: OSError(number, os.strerror(number)) if concerns(operation) else None
        try:
            expected = [ANSWERS | (do(cache) or {})]
        except CompcacheError:
            expected.append({"newer": 41, "user": 41})
        found += problems_of(answers_of(cache), *expected)
        files.plan = None
    with Cache(place) as after:
        answers = answers_of(after)
        found += [f"later, {problem}" for problem in problems_of(answers, *expected)]
        if answers["pinned"] is None:
            found.append("later, the pinned function is gone")
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, marks=() if (name, number) in QUICK else pytest.mark.fault, id=f"{name}-{errno.errorcode[number]}")
        for name in OPERATIONS
        for number in NUMBERS
    ],
)
def test_each_kind_of_file_cannot_be_read(filled: Path, tmp_path: Path, name: str, number: int) -> None:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in kinds_of(filled):
            place = shutil.copytree(filled, tmp_path / "cache")
            problems = attempt(place, OPERATIONS[name], lambda operation, kind=kind: kind in operation.path, number)  # type: ignore[misc]
            found += [f"{kind}: {problem}" for problem in problems]
            shutil.rmtree(place)
    assert not found


def test_an_import_gets_no_older_code_in_place_of_newer_code_that_cannot_be_read(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_module(ModuleSource(adder("newer", 20)))
        cache.add_module(ModuleSource(caller("user", "newer")))
        newest = cache.add_module(ModuleSource(adder("newer", 30)))
    files = FaultyFiles(tmp_path, None, count=lambda operation: operation.name in READING)
    with cache_on(files) as cache:
        files.plan = lambda operation: OSError(errno.EIO, os.strerror(errno.EIO)) if newest in operation.path else None
        with pytest.raises(CompcacheError):
            cache.get_target("user")
    with Cache(tmp_path) as cache:
        assert cache.get_target("user")(1) == 31


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_nothing_is_added_to_an_index_that_may_be_missing(filled: Path, tmp_path: Path, failures: int) -> None:
    """It would count as complete. The directory of the index is listed more than once before an addition is numbered."""
    place = shutil.copytree(filled, tmp_path / "cache")
    failed: list[int] = []

    def is_early_listing(operation: Operation) -> bool:
        if operation.path == "index-v1" and len(failed) < failures:
            failed.append(operation.number)
        return operation.number in failed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert attempt(place, OPERATIONS["add-without-index"], is_early_listing, errno.EIO) == []
    assert len(failed) == failures


def test_removing_a_function_that_cannot_be_read_brings_no_former_code_back(tmp_path: Path) -> None:
    with Cache(tmp_path / "stored") as cache:
        for value in (10, 20, 30):
            cache.add_module(ModuleSource(adder("f", value)))
    outcomes = set()
    for at in range(1000):
        place = shutil.copytree(tmp_path / "stored", tmp_path / f"at{at}")
        files = FaultyFiles(place, count=lambda operation: operation.path.startswith(("modules-v1", "volumes-v1")))
        with cache_on(files) as cache:
            files.reset()
            files.plan = fail_at(at, OSError(errno.EIO, os.strerror(errno.EIO)))
            try:
                cache.remove("f")
                is_removed = True
            except StorageError:
                is_removed = False
        with Cache(place) as cache:
            outcomes.add((is_removed, cache.get_target("f")(1) if cache.has("f") else None))
        if at >= len(files.operations):
            break
    # An error after the last module was removed is reported, too.
    assert {(True, None), (False, 31)} <= outcomes <= {(True, None), (False, 31), (False, None)}


def test_a_function_on_a_bad_sector_is_removed_by_force(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        for value in (10, 20):
            module_id = cache.add_module(ModuleSource(adder("f", value)))

    def plan(operation: Operation) -> OSError | None:
        return OSError(errno.EIO, "bad sector") if operation.name == "pread" and module_id in operation.path else None

    with cache_on(FaultyFiles(tmp_path, plan, count=lambda _: True)) as cache:
        with pytest.raises(StorageError, match="cannot be read; pass force=True"):
            cache.remove("f")
        assert len(cache.remove("f", force=True)) == 2
        assert not cache.has("f")
