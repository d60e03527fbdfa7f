"""Questions while others change the directory: what vanishes or is replaced between two steps of a question is no damage and no error.

The last test makes every change before operations on files of every question in turn.
"""

from __future__ import annotations

import shutil
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller
from mock_directory import FaultyFiles, Operation, cache_on

from compcache import Cache, ModuleSource, NotCachedError, PrunePolicy, StorageError, frontend
from compcache.cli.report.story import collect_story
from compcache.files import Tree
from compcache.formats.index import Index
from compcache.formats.volumes import Volumes
from compcache.inspect import functions
from compcache.miss.build import build_source
from compcache.miss.publication import publish_built
from compcache.publish import module_lists
from compcache.publish.index_merge import greatest_number
from compcache.publish.index_rebuild import rebuild_index
from compcache.publish.module_lists import ModuleLists
from compcache.store import Store
from compcache.usage import ledger
from compcache.usage.module_files import modules_by_directory, statuses_by_directory
from compcache.usage.snapshot import Slices

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from compcache.linker import BuiltModule

# --------------------------------------------------------------------------------------------------------------- one change, at one place


def merge_elsewhere(directory: Path, name: str) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder(name, 1)))
        rebuild_index(cache._store)


def test_lists_answer_while_others_merge_their_segments(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    cache.add_module(ModuleSource(adder("g", 2)))
    lists = ModuleLists(Store(str(directory)))
    merge_elsewhere(directory, "h")
    assert list(lists.bases()) == ["f", "g"]


@pytest.mark.parametrize("way", ["of_all", "of_files", "of_changed"])
def test_modules_that_move_to_volumes_are_found(cache: Cache, directory: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction that begins when a question has read the volumes, of which there are none."""
    modules = {bytes.fromhex(cache.add_module(ModuleSource(adder(name, 1)))) for name in "fgh"}
    questions: dict[str, Callable[[Store], Iterable[bytes]]] = {
        "of_all": Store.module_ids,
        "of_files": lambda store: [module_id for _, found in modules_by_directory(store) for module_id in found],
        "of_changed": lambda store: [module_id for found in statuses_by_directory(store) for module_id in found],
    }
    query, others = Volumes._query_readable, [cache]

    def query_before_a_compaction(volumes: Volumes, question: Callable[[Any], Any]) -> Any:
        answers = query(volumes, question)
        if volumes is reading.volumes and others:
            others.pop().compact(grace=0)
        return answers

    reading = Store(str(directory))
    monkeypatch.setattr(Volumes, "_query_readable", query_before_a_compaction)
    assert set(questions[way](reading)) == modules
    assert not others


def test_a_function_that_is_removed_while_it_is_described_is_not_cached(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    realizations = functions.realizations

    def realizations_before_a_removal(*arguments: Any) -> Any:
        copies = realizations(*arguments)
        with Cache(directory) as other:
            other.clear()
        return copies

    monkeypatch.setattr(functions, "realizations", realizations_before_a_removal)
    monkeypatch.setattr(Store, "find_all", Store.find_known)  # as if the index were read before the removal
    with pytest.raises(NotCachedError):
        cache.function("f")


def test_the_greatest_number_is_found_while_others_merge(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An addition with too small a number would be older than the functions that it replaces."""
    cache.add_module(ModuleSource(adder("f", 1)))
    cache.add_module(ModuleSource(adder("f", 2)))
    reading, look_up, names = Store(str(directory)), Index.look_up, ["h"]

    def look_up_after_a_merge(index: Index, *arguments: Any, **keywords: Any) -> Any:
        if index is reading.index and names:
            merge_elsewhere(directory, names.pop())
        return look_up(index, *arguments, **keywords)

    monkeypatch.setattr(Index, "look_up", look_up_after_a_merge)
    assert greatest_number(reading.index) == greatest_number(Store(str(directory)).index) > 0


def test_a_use_is_seen_whose_journal_others_seal_meanwhile(cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prune keeps what was used since its plan."""
    module_id = bytes.fromhex(cache.add_module(ModuleSource(adder("f", 1))))
    reading, stat, others = Store(str(directory)), Tree.stat, [fold]
    earlier = ledger.Uses(reading)
    with Cache(directory) as other:
        other.get_target("f")

    def stat_after_a_fold(tree: Tree, path: str) -> os.stat_result:
        if tree is reading.files and others:
            others.pop()(directory)
        return stat(tree, path)

    monkeypatch.setattr(Tree, "stat", stat_after_a_fold)
    assert list(ledger.last_uses_since(reading, earlier)) == [module_id]
    assert not others


# ------------------------------------------------------------------------------------------------------- all changes, at all operations

#: No change removes these functions. The importer calls the first.
KEPT = {*[f"kept{number}" for number in range(10)], "importer"}
#: Some changes remove these.
LOST = {f"lost{number}" for number in range(4)}


# ------------------------------------------------------------------------------------------------ questions, with their right answers


def has_kept(names: Iterable[str]) -> bool:
    found = set(names)
    return found >= KEPT and all(name in KEPT | LOST or name.startswith("new") for name in found)


def of_functions(rows: Any) -> bool:
    return has_kept([row.func_name for row in rows]) and all(
        row.realizations == 1 and row.uses == (row.func_name == "kept0") for row in rows if row.func_name in KEPT
    )


def of_modules(rows: Any) -> bool:
    return has_kept([function[0] for row in rows for function in row.functions]) and len({row.module_id for row in rows}) == len(rows)


def check(cache: Cache, *, checksums: bool = True, recompile: bool = False) -> bool:
    report = cache.check(checksums=checksums, recompile=recompile)
    return not [finding for finding in report.findings if finding.kind != "stale"] or report.findings  # type: ignore[return-value]


def describe_one(cache: Cache) -> bool:
    (copy,) = cache.realizations("kept3")
    return [function[0] for function in cache.module(copy.module_id).functions] == ["kept3"]


def describe_lost(cache: Cache) -> bool:
    try:
        answers = [
            cache.function("lost1").func_name,
            *cache.dependencies("lost1"),
            len(cache.graph("lost1").nodes) > 0,
            bool(cache.explain("lost1")),
        ]
    except NotCachedError:
        return not cache.has("lost1")
    return answers == ["lost1", True, True]


def remove_lost(cache: Cache) -> bool:
    with suppress(NotCachedError):  # others have removed it
        cache.remove("lost2", force=True)
    return not cache.has("lost2")


def info_of(cache: Cache) -> bool:
    info = cache.info()
    return len(KEPT) <= info.functions <= len(KEPT | LOST) + 1 and len(KEPT) <= info.modules and info.hits == 1


def stats_of(cache: Cache) -> bool:
    stats = cache.stats()
    return stats.loads == 1 and len(KEPT) <= stats.modules


def export(cache: Cache) -> bool:
    path = f"{cache._store.root}.bundle"
    return cache.export(["importer"], path) == ("importer", "kept0")


def proposal_of(cache: Cache) -> bool:
    report = cache.prune(PrunePolicy(max_modules=3, match=["kept*"]), dry_run=True)
    return len(KEPT) <= report.modules_before and not report.leftovers


QUESTIONS: dict[str, Callable[[Cache], object]] = {
    "functions": lambda cache: of_functions(cache.functions()),
    "list_functions": lambda cache: of_functions(frontend.list_functions(cache)),
    "list_names": lambda cache: has_kept(frontend.list_names(cache, "", 100)),
    "modules": lambda cache: of_modules(cache.modules()),
    "list_modules": lambda cache: of_modules([*frontend.list_modules(cache)]),
    "module": describe_one,
    "function": lambda cache: cache.function("importer").dependencies == ("kept0",),
    "of another": describe_lost,
    "graph": lambda cache: has_kept([node.name for node in cache.graph().nodes if node.kind == "function"]),
    "graph, reverse": lambda cache: {node.name for node in cache.graph("kept0", reverse=True).nodes} == {"kept0", "importer"},
    "explain": lambda cache: not cache.explain("kept1").reason,
    "info": info_of,
    "stats": stats_of,
    "report": lambda cache: collect_story(cache, None, 50) is not None,
    "export": export,
    "check": check,
    "check without checksums": lambda cache: check(cache, checksums=False),
    "check, recompile": lambda cache: check(cache, recompile=True),
    "prune, dry": proposal_of,
    "pinned": lambda cache: cache.pinned() == ("kept1",),
    "len": lambda cache: len(cache) >= len(KEPT),
    "prune": lambda cache: not cache.prune(PrunePolicy(match=["lost0"])).leftovers,
    "compact": lambda cache: cache.compact(grace=0) is not None,
    "rm": remove_lost,
    "rebuild": lambda cache: rebuild_index(cache._store) >= len(KEPT),
}


# ------------------------------------------------------------------------------------------------------------------- changes of others


def merge(place: Path, built: BuiltModule) -> None:
    with Cache(place) as cache:
        publish_built(cache._session(), [built])
        rebuild_index(cache._store)


def prune(place: Path, _: BuiltModule) -> None:
    with Cache(place) as cache:
        cache.prune(PrunePolicy(match=["lost*"]))


def remove(place: Path, _: BuiltModule) -> None:
    with Cache(place) as cache:
        cache.remove("lost1", force=True)


def compact(place: Path, built: BuiltModule) -> None:
    with Cache(place) as cache:
        publish_built(cache._session(), [built])
        with suppress(StorageError):  # the question is a compaction
            cache.compact(grace=0)


def fold(place: Path, _: BuiltModule | None = None) -> None:
    store = Store(str(place))
    ledger.fold(store, Slices(store).lists.seconds_of, now=1e10)


def change_everything(place: Path, built: BuiltModule) -> None:
    for change in (merge, fold, remove, prune, compact):
        change(place, built)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltModule:
    with Cache(tmp_path_factory.mktemp("builder") / "cache") as cache:
        return build_source(cache._session(), ModuleSource(adder("new", 7)))


@pytest.fixture(scope="module", params=["files", "volumes"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with modules in files, or some of them in a volume, and with statistics, a pin and stored lists of modules."""
    directory = tmp_path_factory.mktemp("filled") / "cache"
    with pytest.MonkeyPatch.context() as patch, Cache(directory) as cache:
        patch.setattr(module_lists, "_FEW", 3)
        patch.setattr(module_lists, "_FEWEST", 2)
        for number, name in enumerate([*sorted(LOST), *sorted(KEPT - {"importer"}), "importer"]):
            cache.add_module(ModuleSource(adder(name, number) if name != "importer" else caller(name, "kept0")))
            if name == "kept5" and request.param == "volumes":
                cache.compact(grace=0)
        cache.get_target("kept0")
        cache.has("absent")
        cache.pin("kept1")
        cache._store.stats.flush()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def stored(filled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with lists of modules stored as soon as in the directory's making."""
    monkeypatch.setattr(module_lists, "_FEW", 3)
    monkeypatch.setattr(module_lists, "_FEWEST", 2)
    return filled


def ask(place: Path, question: str, change: Callable[[], None] | None, at: int) -> tuple[list[Operation], str]:
    """The operations on files of a question, and what is wrong with its answer where the change comes before operation `at`."""
    files, problem = FaultyFiles(place, None, count=lambda _: True), ""

    def plan(operation: Operation) -> None:
        if operation.number == at and change is not None:
            files.plan = None
            with ThreadPoolExecutor(1) as others:  # a thread that requests a lock that it holds releases the lock
                others.submit(change).result()

    with cache_on(files) as cache, warnings.catch_warnings():
        warnings.simplefilter("error")
        files.reset()
        files.plan = plan
        try:
            answer = QUESTIONS[question](cache)
            if answer is not True:
                problem = f"the answer is {answer}"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            problem = "".join(traceback.format_exception(error)[-16:])
        files.plan = None
    return files.operations, problem


def moments(operations: Iterable[Operation]) -> list[int]:
    """Of operations that follow one another in the same way, the first, the second, the fourth, and so on."""
    seen: dict[tuple[object, ...], int] = {}
    chosen, former = [], ("", "")
    for operation in operations:
        current = operation.name, operation.path.partition("/")[0]
        number = seen[former, current] = seen.get((former, current), 0) + 1
        if number & (number - 1) == 0:
            chosen.append(operation.number)
        former = current
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("step", [74, pytest.param(1, marks=[pytest.mark.stress, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_are_answered_while_others_change_everything(
    stored: Path, tmp_path: Path, built: BuiltModule, question: str, step: int, request: pytest.FixtureRequest
) -> None:
    """At every moment in the stress test; otherwise at a few, which are others in a directory with volumes than in one of files."""

    def ask_in_copy(at: int, change: Callable[[Path, BuiltModule], None] | None) -> tuple[list[Operation], str]:
        place = tmp_path / "place"
        shutil.copytree(stored, place)
        try:
            return ask(place, question, None if change is None else lambda: change(place, built), at)
        finally:
            shutil.rmtree(place)

    operations, problem = ask_in_copy(-1, None)
    assert not problem
    problems: dict[str, list[int]] = {}
    chosen = moments(operations)
    first = step // 2 if request.node.callspec.params["filled"] == "volumes" else 0
    chosen = chosen[first % max(len(chosen), 1) :: step]
    for at in chosen:
        _, problem = ask_in_copy(at, change_everything)
        if problem:
            problems.setdefault(problem, []).append(at)
    assert not problems
    print(f"{len(chosen)} of {len(operations)} operations")
