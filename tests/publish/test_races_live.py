"""Processes that change one directory at the same time: what each of them sees, and that every answer is right.

`COMPCACHE_TEST_SECONDS` is how long the stress test goes on, 60 by default.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, run_fresh
from mock_directory import MockDirectory
from processes import Crowd

import compcache
from compcache import Cache, ModuleSource, NotCachedError, UndefinedSymbolError
from compcache.miss import publication
from compcache.publish import writer
from compcache.publish.index_rebuild import rebuild_index

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("COMPCACHE_TEST_SECONDS", "60"))


def add_elsewhere(directory: Path, *sources: str) -> None:
    """Add modules in another process."""
    script = f"""
    from compcache import Cache, ModuleSource
    with Cache(directory) as cache:
        result = [cache.add_module(ModuleSource(ir)) for ir in {list(sources)!r}]
    """
    run_fresh(directory, script)


def remove_elsewhere(directory: Path, name: str) -> None:
    """Remove every module that holds a function, in another process."""
    script = f"""
    from compcache import Cache
    from compcache.publish.removal import remove_file
    with Cache(directory) as cache:
        modules = {{realization.module_id for realization in cache.realizations({name!r})}}
        result = [remove_file(cache._store, bytes.fromhex(module_id)) for module_id in modules]
    """
    assert all(run_fresh(directory, script))


# ------------------------------------------------------------------ what an open cache sees


@pytest.mark.slow
def test_additions_of_others_are_seen(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("known", 1)))
    assert not cache.has("f")  # the index has been read
    with pytest.raises(NotCachedError):
        cache.get_target("f")
    add_elsewhere(directory, adder("f", 1))
    assert cache.has("f")
    assert cache.get_target("f")(1) == 2
    assert len(cache.realizations("f")) == 1


@pytest.mark.slow
def test_another_realization_is_seen_beside_the_one_that_was_known(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    assert cache.get_target("f")(1) == 2
    add_elsewhere(directory, adder("f", 1) + adder("pad", 1))
    assert len(cache.realizations("f")) == 2
    assert cache.get_target("f")(1) == 2


@pytest.mark.slow
def test_so_many_additions_that_the_index_was_merged_are_seen(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("known", 1)))
    assert not cache.has("f0")
    add_elsewhere(directory, *[adder(f"f{number}", number) for number in range(20)])
    assert [cache.get_target(f"f{number}")(1) for number in range(20)] == list(range(1, 21))


def test_a_function_that_others_pruned_is_not_seen(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    assert cache.has("f")
    assert cache.get_target("f")(1) == 2  # and nobody keeps it
    remove_elsewhere(directory, "f")
    assert not cache.has("f")
    with pytest.raises(NotCachedError):
        cache.get_target("f")
    assert cache.realizations("f") == ()


def test_a_target_that_is_held_outlives_its_file(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    held = cache.get_target("f")
    remove_elsewhere(directory, "f")
    assert held(1) == 2
    assert not cache.has("f")


@pytest.mark.slow
def test_a_function_that_was_pruned_and_added_again_in_another_module_is_seen(
    cache: Cache, directory: Path
) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    assert cache.get_target("f")(1) == 2
    remove_elsewhere(directory, "f")
    add_elsewhere(directory, adder("f", 1) + adder("pad", 1))
    assert cache.has("f")
    assert cache.get_target("f")(1) == 2


@pytest.mark.slow
def test_a_dependency_that_was_pruned_and_added_again_in_another_module_is_found(
    cache: Cache, directory: Path
) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    cache.add_module(ModuleSource(caller("g", "f", plus=10)))
    assert cache.get_target("g")(1) == 12
    remove_elsewhere(directory, "f")
    with pytest.raises(UndefinedSymbolError, match="'f'"):
        cache.get_target("g")
    add_elsewhere(directory, adder("f", 1) + adder("pad", 1))
    assert cache.get_target("g")(1) == 12


def test_what_was_pruned_is_compiled_again(cache: Cache, directory: Path) -> None:
    source = ModuleSource(adder("f", 1))
    assert cache.get_or_compile("f", lambda: source)(1) == 2
    remove_elsewhere(directory, "f")
    assert cache.get_or_compile("f", lambda: source)(1) == 2
    assert (
        run_fresh(directory, "from compcache import Cache; result = Cache(directory).get_target('f')(1)") == 2
    )


@pytest.mark.parametrize("change", ["rebuilt", "deleted"])
def test_a_new_index_is_seen(cache: Cache, directory: Path, change: str) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    assert cache.get_target("f")(1) == 2
    with Cache(directory) as other:
        for number in range(3):
            other.add_module(ModuleSource(adder(f"f{number}", number)))
        if change == "rebuilt":
            rebuild_index(other._store)
        else:
            for segment in (directory / "index-v1").iterdir():
                segment.unlink()
    assert cache.get_target("f2")(1) == 3
    assert cache.get_target("f")(1) == 2


def test_a_module_that_is_pruned_while_it_is_published_is_compiled_all_the_same(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = writer.publish_additions

    def publish_and_lose(*args: Any, **kwargs: Any) -> Any:
        published = publish(*args, **kwargs)
        remove_elsewhere(directory, "f")
        return published

    monkeypatch.setattr(publication, "publish_additions", publish_and_lose)
    assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2


@pytest.mark.slow
def test_a_prune_by_others_is_seen(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    assert cache.has("f")
    script = """
    from compcache import Cache
    from compcache.maintain.policy import PrunePolicy
    with Cache(directory) as cache:
        result = len(cache.prune(PrunePolicy(max_modules=0)).removed)
    """
    assert run_fresh(directory, script) == 1
    assert not cache.has("f")


# ------------------------------------------------------------------------------ everybody at once

_COMMON = r"""
import collections, os, random, warnings
warnings.simplefilter("error")
from compcache import Cache, ModuleSource, NotCachedError, UndefinedSymbolError
import compcache.linker, compcache.miss.compile_once
chance = random.Random(number)
counts = collections.Counter()
cache = Cache(directory)
barrier()
end = time.monotonic() + SECONDS
"""
WRITER = (
    _COMMON
    + r"""
def leaf(k, pad):
    text = "define i64 @leaf%d(i64 %%x) {\n  %%y = add i64 %%x, %d\n  ret i64 %%y\n}\n" % (k, k)
    if pad:
        text += "define i64 @pad%d_%d() {\n  ret i64 %d\n}\n" % (k, pad, pad)
    return ModuleSource(text)
def branch(k):
    return ModuleSource(
        "declare i64 @leaf%d(i64)\ndefine i64 @branch%d(i64 %%x) {\n  %%y = call i64 @leaf%d(i64 %%x)\n"
        "  %%z = mul i64 %%y, 2\n  ret i64 %%z\n}\n" % (k, k, k), imports=["leaf%d" % k])
while time.monotonic() < end:
    k, x = chance.randrange(NAMES), chance.randrange(1000)
    if chance.random() < 0.3:
        cache.add_module(leaf(k, chance.randrange(1, 20)))
        counts["added"] += 1
    leaf_target = cache.get_or_compile("leaf%d" % k, lambda: leaf(k, 0))
    assert leaf_target(x) == x + k, "leaf"
    try:
        assert cache.get_or_compile("branch%d" % k, lambda: branch(k))(x) == 2 * (x + k), "branch"
    except UndefinedSymbolError:
        counts["dependency pruned"] += 1
    counts["calls"] += 2
result = dict(counts)
"""
)
READER = (
    _COMMON
    + r"""
held = collections.deque(maxlen=8)
while time.monotonic() < end:
    k, x = chance.randrange(NAMES), chance.randrange(1000)
    for name, right in (("leaf%d" % k, x + k), ("branch%d" % k, 2 * (x + k))):
        try:
            target = cache.get_target(name)
        except (NotCachedError, UndefinedSymbolError) as error:
            counts[type(error).__name__] += 1
            continue
        assert target(x) == right, name
        held.append((target, x, right))
        counts["calls"] += 1
    for target, y, right in held:
        assert target(y) == right
    counts["has"] += cache.has("leaf%d" % k)
    counts["realizations"] += len(cache.realizations("leaf%d" % k))
    try:
        assert set(cache.dependencies("branch%d" % k)) <= {"leaf%d" % k}
    except NotCachedError:
        counts["no dependencies"] += 1
result = dict(counts)
"""
)
PRUNER = (
    _COMMON
    + r"""
while time.monotonic() < end:
    time.sleep(0.25)
    if counts["removals"] > counts["prunes"]:  # in turns: a busy machine prunes a few times only
        from compcache.maintain.policy import PrunePolicy
        cache.prune(PrunePolicy(max_modules=NAMES))
        counts["prunes"] += 1
    else:
        from compcache.publish.removal import remove_file
        counts["removals"] += 1
        modules = list(cache._store.module_ids())
        for module_id in chance.sample(modules, -(-len(modules) // 10)):
            counts["removed"] += remove_file(cache._store, module_id)
result = dict(counts)
"""
)
REBUILDER = (
    _COMMON
    + r"""
from compcache.publish.index_rebuild import rebuild_index
while time.monotonic() < end:
    time.sleep(0.1)
    counts["modules"] = rebuild_index(cache._store)
    counts["rebuilds"] += 1
result = dict(counts)
"""
)
UPKEEP = (
    _COMMON
    + r"""
from compcache import PrunePolicy, StorageError
while time.monotonic() < end:
    time.sleep(0.25)
    cache.prune(PrunePolicy(max_modules=NAMES))
    counts["prunes"] += 1
    try:
        cache.compact(grace=0)
        counts["compactions"] += 1
    except StorageError as error:  # an addition compacts it at this moment
        assert "another process is compacting" in str(error), error
result = dict(counts)
"""
)
ASKER = (
    _COMMON
    + r"""
import threading
from compcache import PrunePolicy, frontend
from compcache.cli.report.story import collect_story
kept = {"kept%d" % k for k in range(8)}
def of(name, rows):
    counts[name] += 1
    names = {row if isinstance(row, str) else row[0] for row in rows}
    assert kept <= names, (name, kept - names)
    assert all(name.startswith(("kept", "leaf", "branch", "pad")) for name in names)
def may_be_gone(question):
    try:
        return question()
    except (NotCachedError, FileNotFoundError) as error:  # FileNotFoundError: as documented, of one module
        counts["gone"] += 1
        assert not isinstance(error, FileNotFoundError) or error.errno is None, error
def check(cache):
    findings = cache.check(checksums=chance.random() < 0.5).errors
    assert all(finding.kind == "dangling" for finding in findings), findings
    counts["check"] += 1
def report(cache):
    info, stats, story = cache.info(), cache.stats(), collect_story(cache, None, 20)
    assert min(info.modules, info.functions, stats.modules) >= len(kept), (info, stats)
    counts["report"] += 1
def of_one(cache):
    name = "%s%d" % (chance.choice(["leaf", "branch", "kept"]), chance.randrange(8))
    for question in (cache.function, cache.realizations, cache.dependencies, cache.graph, cache.explain):
        answer = may_be_gone(lambda: question(name))
        assert answer or not name.startswith("kept") or question == cache.dependencies, (question, name)
    may_be_gone(lambda: cache.graph(name, reverse=True))
    may_be_gone(lambda: cache.module(chance.choice(cache.modules()).module_id))
    may_be_gone(lambda: cache.export([name], "%s.%d-%s.bundle" % (directory, number, threading.get_ident())))
    counts["one"] += 1
QUESTIONS = [
    lambda cache: of("functions", cache.functions()),
    lambda cache: of("list_functions", frontend.list_functions(cache)),
    lambda cache: of("list_names", frontend.list_names(cache, "kept", 100)),
    lambda cache: of("modules", [function for row in cache.modules() for function in row.functions]),
    lambda cache: of("list_modules", [function for row in frontend.list_modules(cache) for function in row.functions]),
    lambda cache: of("graph", [node.name for node in cache.graph().nodes if node.kind == "function"]),
    lambda cache: of("pinned", cache.pinned()),
    lambda cache: cache.prune(PrunePolicy(max_modules=NAMES), dry_run=True),
    check, report, of_one,
]
errors = []
def ask(cache):
    try:
        while time.monotonic() < end and not errors:
            chance.choice(QUESTIONS)(cache)
    except BaseException as error:
        import traceback
        errors.append(traceback.format_exc())
threads = [threading.Thread(target=ask, args=[each]) for each in (cache, cache, Cache(directory))]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors[0]
result = dict(counts)
"""
)


def run_everybody(directory: Path, seconds: float, crowd: list[str], names: int) -> dict[str, int]:
    scripts = [script.replace("SECONDS", repr(seconds)).replace("NAMES", str(names)) for script in crowd]
    total: dict[str, int] = {}
    with Crowd(directory, scripts) as processes:
        processes.release()
        for result in processes.results():
            for name, value in result.items():
                total[name] = total.get(name, 0) + value
    return total


def run_until(directory: Path, crowd: list[str], fewest: dict[str, int]) -> None:
    """Run everybody for `SECONDS`, and again where a busy machine did less of something than `fewest` says."""
    total: Counter[str] = Counter()
    for _ in range(6):
        total.update(run_everybody(directory, SECONDS, crowd, 40))
        print(total)
        if all(total[name] >= number for name, number in fewest.items()):
            return
    pytest.fail(f"less was done than {fewest}: {total}")


def require_clean(directory: Path) -> None:
    """Nothing is damaged, nothing is left over, and everything that is there works."""
    tree = MockDirectory.read(directory)
    assert [path for path in tree.files if path.startswith(("tmp/", "quarantine/"))] == []
    with Cache(directory) as cache:
        # A dependency that was pruned while a dependent was compiled is a miss, not damage.
        assert [finding for finding in cache.check().errors if finding.kind != "dangling"] == []
        rebuild_index(cache._store)
        for module_id in cache._store.module_ids():
            cache._store.open_module(module_id).close()


@pytest.mark.stress
@pytest.mark.timeout(6 * SECONDS + 540)
def test_all_questions_beside_everybody_at_once(directory: Path) -> None:
    """All questions, in threads and processes, beside additions, prunes, compactions and rebuilds. Pinned functions are always there."""
    with Cache(directory) as cache:
        for number in range(8):
            cache.add_module(ModuleSource(adder(f"kept{number}", number)))
            cache.pin(f"kept{number}")
    done = ("calls", "prunes", "compactions", "rebuilds", "check", "report", "one", "functions")
    run_until(directory, [WRITER, WRITER, UPKEEP, REBUILDER, ASKER, ASKER], dict.fromkeys(done, 1))
    require_clean(directory)


@pytest.mark.stress
@pytest.mark.timeout(6 * SECONDS + 540)
def test_everybody_at_once(directory: Path) -> None:
    """8 writers, 8 readers, a pruner and an index rebuild, at the same time for a minute; longer where a busy machine does little in it."""
    run_until(directory, [WRITER] * 8 + [READER] * 8 + [PRUNER, REBUILDER], {"calls": 101, "removed": 1, "rebuilds": 1})
    require_clean(directory)


def test_the_package_under_test_is_the_one_that_was_imported() -> None:
    """The fresh processes import the package from beside the tests; so must this one."""
    from helpers import PACKAGE_ROOT

    assert os.path.dirname(os.path.dirname(os.path.abspath(compcache.__file__))) == str(PACKAGE_ROOT)
