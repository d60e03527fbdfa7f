"""A process that ends at any file operation: old state or new, nothing broken, nothing to repair by hand.

Deterministic through a double of the file operations; real SIGKILLs in the stress test at the end.
"""

from __future__ import annotations

import atexit
import itertools
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from helpers import PACKAGE_ROOT, adder, caller
from mock_directory import Crash, FaultyFiles, MockDirectory, Operation, cache_on, crash_before, tear_at

from compcache import Cache, CacheWarning, ModuleSource, NotCachedError, PrunePolicy
from compcache.hit.recorder import Recorder
from compcache.miss.build import build_source
from compcache.miss.publication import publish_built
from compcache.publish.removal import remove_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from compcache.linker import BuiltModule

KILLS = 200


class Scene(NamedTuple):
    """A directory before a change, the change, and what each function may answer to 1 afterwards."""

    before: MockDirectory
    change: Callable[[Cache], object]
    answers: dict[str, set[int | None]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuiltModule]:
    """Modules that are compiled once: publishing them takes no LLVM."""
    with Cache(tmp_path_factory.mktemp("builder") / "cache") as cache:
        modules = {
            f"f{number}": build_source(cache._session(), ModuleSource(adder(f"f{number}", number))) for number in range(12)
        }
        publish_built(cache._session(), [modules["f1"]])
        modules["h"] = build_source(cache._session(), ModuleSource(caller("h", "f1", plus=100)))
    return modules


def add(built: BuiltModule) -> Callable[[Cache], object]:
    return lambda cache: publish_built(cache._session(), [built])


def prune(cache: Cache) -> object:
    return cache.prune(PrunePolicy(match=["f[0-4]"]))


def count(cache: Cache) -> object:
    """Statistics alone: of a few hits and misses."""
    for name in ("f1", "f2", "none"):
        try:
            cache.get_target(name)
        except NotCachedError:
            continue
    cache._store.stats.flush()
    return None


def compact(cache: Cache) -> object:
    return cache.compact(grace=0)


def filled(directory: Path, built: dict[str, BuiltModule], *names: str) -> MockDirectory:
    with Cache(directory) as cache:
        for name in names:
            publish_built(cache._session(), [built[name]])
    return MockDirectory.read(directory)


def _long(kind: str) -> Any:
    return pytest.param(kind, marks=[pytest.mark.fault, pytest.mark.timeout(900)])


KINDS = ("first", "addition", "dependent", "again", "merge", "prune", "statistics", "rebuild")


@pytest.fixture(params=[*KINDS, *map(_long, ("compact", "volumes", "freed"))])
def scene(request: pytest.FixtureRequest, directory: Path, built: dict[str, BuiltModule]) -> Scene:
    return make_scene(request.param, directory, built)


def make_scene(kind: str, directory: Path, built: dict[str, BuiltModule]) -> Scene:  # noqa: PLR0911 - one each
    names = [f"f{number}" for number in range(9)]
    values = {f"f{number}": number + 1 for number in range(12)}
    if kind == "first":
        return Scene(MockDirectory(), add(built["f1"]), {"f1": {2, None}})
    if kind == "addition":
        return Scene(filled(directory, built, "f1"), add(built["f2"]), {"f1": {2}, "f2": {3, None}})
    if kind == "dependent":
        return Scene(filled(directory, built, "f1"), add(built["h"]), {"f1": {2}, "h": {102, None}})
    if kind == "again":
        return Scene(filled(directory, built, "f1"), add(built["f1"]), {"f1": {2}})
    if kind == "merge":
        before = filled(directory, built, *names[:8])
        assert sum(path.endswith(".idx") for path in before.files) == 8
        answers: dict[str, set[int | None]] = {name: {values[name]} for name in names[:8]}
        return Scene(before, add(built["f8"]), answers | {"f8": {9, None}})
    before = filled(directory, built, *names)
    kept: dict[str, set[int | None]] = {name: {values[name]} for name in names[5:]}
    if kind == "prune":
        return Scene(before, prune, kept | {name: {values[name], None} for name in names[:5]})
    if kind == "statistics":
        return Scene(before, count, kept)
    everything: dict[str, set[int | None]] = {name: {values[name]} for name in names}
    if kind == "compact":
        return Scene(before, compact, everything)
    if kind == "freed":  # half of a volume
        with Cache(directory) as cache:
            compact(cache)
        return Scene(MockDirectory.read(directory), prune, kept | {name: {values[name], None} for name in names[:5]})
    if kind == "volumes":
        with Cache(directory) as cache:
            compact(cache)
            for name in ("f9", "f10"):
                publish_built(cache._session(), [built[name]])
            cache.remove("f1", force=True)
        everything["f1"] = {None}
        return Scene(MockDirectory.read(directory), compact, everything | {"f9": {10}, "f10": {11}})
    return Scene(before.without("index-v1"), count, kept)


def answer(cache: Cache, name: str) -> int | None:
    try:
        value: int = cache.get_target(name)(1)
    except NotCachedError:
        return None
    return value


def require_healthy(place: Path, answers: dict[str, set[int | None]], *accepted: str) -> None:
    """Everything answers right, and a check finds no error but that the index, which is derived, is behind."""
    with Cache(place) as cache:
        for name, allowed in answers.items():
            assert answer(cache, name) in allowed, name
        findings = cache.check().errors if cache.exists else ()
        assert [error for error in findings if error.kind not in ("unindexed", *accepted)] == []


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / f"place-{number}" for number in itertools.count())


def run(scene: Scene, place: Path, plan: Any) -> FaultyFiles:
    """The change, as far as the plan lets it go."""
    if scene.before.files:
        scene.before.dump(place)
    files = FaultyFiles(place, plan)
    cache = cache_on(files)
    try:
        scene.change(cache)
    except Crash:
        assert files.crashed
    cache._closed = True  # a process that was killed closes nothing, and has no end of its own
    cache._store.stats.reset()
    recorder = cache._store.stats
    assert isinstance(recorder, Recorder)
    atexit.unregister(recorder._at_exit)
    return files


@pytest.mark.slow
def test_a_crash_before_any_operation_leaves_the_old_state_or_the_new(
    scene: Scene, places: Iterator[Path]
) -> None:
    for number in itertools.count():  # how many there are may differ: times that are too near are not remembered
        place = next(places)
        files = run(scene, place, crash_before(number))
        require_healthy(place, scene.answers)
        if not files.crashed:
            break
    assert number > 0
    print(f"{number} crashes")


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["when its volume is there", _long("anywhere")])
def test_what_others_remove_at_any_moment_of_a_compaction_stays_removed(
    directory: Path, built: dict[str, BuiltModule], places: Iterator[Path], ends: str
) -> None:
    """Of a file and of a volume, by another process, before each operation; the compaction is killed behind that."""
    scene = make_scene("volumes", directory, built)
    answers = scene.answers | {"f3": {None}, "f9": {None}}
    with Cache(directory) as cache:
        lost = [bytes.fromhex(cache.realizations(name)[0].module_id) for name in ("f3", "f9")]
    whole = run(scene, next(places), None).operations
    (there,) = [operation.number for operation in whole if operation.name == "rename" and operation.target.endswith(".volume")]
    for removal in range(len(whole) if ends == "anywhere" else there + 2):
        for end in range(removal, len(whole) + 9) if ends == "anywhere" else (max(removal, there + 1),):
            place = next(places)

            def plan(operation: Operation, place: Path = place, removal: int = removal, end: int = end) -> Crash | None:
                if operation.number == removal:
                    with Cache(place) as other:
                        assert [remove_file(other._store, module_id) for module_id in lost] == [True, True]
                return Crash(operation) if operation.number >= end else None

            run(scene, place, plan)
            require_healthy(place, answers)


@pytest.mark.slow
def test_a_torn_write_leaves_the_old_state_or_the_new(scene: Scene, places: Iterator[Path]) -> None:
    operations = run(scene, next(places), None).operations
    writes = [operation for operation in operations if operation.name == "write"]
    assert writes
    for operation, part in itertools.product(writes, (0, 1, 2)):
        place = next(places)
        run(scene, place, tear_at(operation.number, operation.size * part // 2))
        require_healthy(place, scene.answers)
    print(f"{3 * len(writes)} torn writes")


@pytest.mark.slow
def test_a_power_failure_leaves_the_old_state_or_the_new(scene: Scene, places: Iterator[Path]) -> None:
    """What was not synced is empty. One warning may say that the index was rebuilt."""
    files = run(scene, next(places), None)
    for names in range(files.names_changed + 1):
        place = files.after_power_failure(names).dump(next(places))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            require_healthy(place, scene.answers, "index")
        assert all("index" in str(warning.message) for warning in caught), [str(w.message) for w in caught]
        assert len(caught) <= 1
    print(f"{files.names_changed + 1} power failures")


def test_what_is_left_is_cleared_by_a_prune(
    directory: Path, built: dict[str, BuiltModule], tmp_path: Path
) -> None:
    scene = Scene(filled(directory, built, "f1"), add(built["f2"]), {})
    for number in range(6):
        place = tmp_path / str(number)
        run(scene, place, crash_before(number))
        with Cache(place) as cache:
            cache.prune(PrunePolicy(grace=0))
            assert list((place / "tmp").iterdir()) == []
            assert answer(cache, "f1") == 2


# ------------------------------------------------------------------------------------ real kills

WORKER = """
import random, sys, time, warnings
sys.path.insert(0, {root!r})
warnings.simplefilter("error")
from compcache import Cache, ModuleSource, PrunePolicy
random.seed({seed})
cache = Cache({directory!r})
print("ready", flush=True)
while True:
    number = random.randrange(40)
    name = f"f{{number}}"
    ir = f"define i64 @{{name}}(i64 %x) {{{{ %y = add i64 %x, {{number}} ret i64 %y }}}}"
    if cache.get_or_compile(name, lambda: ModuleSource(ir, optimize=0))(1) != number + 1:
        print("WRONG", name, flush=True)
    if random.random() < 0.3:
        cache.prune(PrunePolicy(max_modules=random.randrange(5, 30)))
    if random.random() < 0.1:
        cache.stats()
    if random.random() < 0.3:
        cache.unload(name)
"""


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_random_kills_lose_nothing(directory: Path) -> None:
    """Two workers add, prune, merge and count; one is killed at a random moment, again and again."""
    seconds = float(os.environ.get("COMPCACHE_TEST_SECONDS", "120"))
    rng = random.Random(4)
    deadline = time.monotonic() + seconds
    kills = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        while kills < 4 or (kills < KILLS and time.monotonic() < deadline):
            workers = [start_worker(directory, kills + number) for number in range(2)]
            for worker in workers:
                assert worker.stdout is not None
                assert worker.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.4))
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
                output, errors = worker.communicate()
                assert (output, errors) == ("", "")
                assert worker.returncode == -signal.SIGKILL
                kills += 1
            with Cache(directory) as cache:
                for number in range(40):
                    assert answer(cache, f"f{number}") in (number + 1, None)
                if kills % 20 == 0:
                    assert [f for f in cache.check().errors if f.kind != "unindexed"] == []
    print(f"{kills} kills, nothing lost")


def start_worker(directory: Path, seed: int) -> subprocess.Popen[str]:
    script = WORKER.format(root=str(PACKAGE_ROOT), directory=str(directory), seed=seed)
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
