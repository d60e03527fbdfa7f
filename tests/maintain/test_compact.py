"""Compaction: few files with the same functions in them, each as it was published, for everybody who reads, adds and removes."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import compcache
from helpers import PACKAGE_ROOT, adder, caller, constant, run_fresh
from mock_directory import FaultyFiles, Operation, cache_on

from compcache import Cache, CacheWarning, CompcacheError, ModuleSource, NotCachedError, PrunePolicy, StorageError
from compcache.formats.volume import Volume
from compcache.maintain import compact as compaction
from compcache.maintain import packing, size_limit
from compcache.publish import module_lists, module_rows
from compcache.publish import volumes as writing
from compcache.publish.locks import wait_lock
from compcache.publish.removal import remove_file
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from compcache.store import Store

COUNT = 30


def fill(cache: Cache, count: int = COUNT, first: int = 0) -> dict[str, int]:
    """Small modules; what each function answers to 1."""
    cache.add_modules([ModuleSource(adder(f"f{number}", number)) for number in range(first, first + count)])
    return {f"f{number}": number + 1 for number in range(first, first + count)}


def contents(cache: Cache) -> dict[str, tuple[str, ...]]:
    """What a directory says of its modules, byte by byte."""
    store = cache._store
    found: dict[str, tuple[str, ...]] = {}
    for module_id in store.module_ids():
        with store.open_module(module_id, leave_stamp=False) as module:
            found[module_id.hex()] = module.read(0, module.size).hex(), store.signatures_of(module_id).hex()
    return found


def answer(cache: Cache, name: str) -> int | None:
    try:
        value: int = cache.get_target(name)(1)
    except CompcacheError:
        return None
    return value


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.*") if path.parent.parent.name == "modules-v1")


def volumes(directory: Path) -> list[Path]:
    return sorted((directory / "volumes-v1").glob("*.volume"))


def require(cache: Cache, answers: dict[str, int]) -> None:
    assert {name: cache.get_target(name)(1) for name in answers} == answers
    assert cache.check().findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "signed", "published"])
def test_everything_is_there_as_it_was(directory: Path, how: str) -> None:
    key = generate_key("test")
    options = {"plain": {}, "signed": {"signing_key": b"a key of the tests, of some length"}, "published": {"publish_key": str(key)}}[how]
    with Cache(directory, **options) as cache:  # type: ignore[arg-type]
        answers = fill(cache) | {"h": 102}
        cache.add_module(ModuleSource(caller("h", "f1", plus=100)))
        before, listed = contents(cache), cache.functions()
        report = cache.compact(grace=0)
        assert (report.packed, report.modules, report.files_before, report.files_after) == (COUNT + 1, COUNT + 1, COUNT + 1, 1)
        assert 7 * report.size_after < 2 * report.size_before
        below = (path.stat().st_size for path in directory.rglob("*") if path.is_file() and path.parent.name != "volumes-v1")
        assert cache.info().other_size == sum(below)
        assert contents(cache) == before
        assert [(each.func_name, each.modules, each.created) for each in cache.functions()] == [
            (each.func_name, each.modules, each.created) for each in listed
        ]
    assert files(directory) == []
    assert not list(directory.glob("signatures-v1/*"))
    assert [path.stat().st_size for path in volumes(directory)] == [report.size_after]
    readers = [options, {"readonly": True}]
    readers += [{"trusted_keys": [str(key.public())]}] if how == "published" else []
    for reading in readers if how != "signed" else [options]:
        with Cache(directory, **reading) as cache:  # type: ignore[arg-type]
            require(cache, answers)
    with Cache(directory, trusted_keys=[str(generate_key("other").public())]) as cache, pytest.warns(CacheWarning, match="is not used"):
        assert answer(cache, "f1") is None


@pytest.mark.slow
def test_a_fresh_process_hits_without_llvm(directory: Path) -> None:
    """And without what hits need that are not plain."""
    with Cache(directory) as cache:
        answers = fill(cache)
        cache.compact(grace=0)
    script = f"""
import sys
from compcache import Cache
cache = Cache({str(directory)!r})
result = [{{name: cache.get_target(name)(1) for name in {list(answers)!r}}}]
result.append([name for name in ("llvmlite", "compcache.store", "compcache.hit.loader") if name in sys.modules])
result += [cache.has("f1"), cache.has("no")]
"""
    assert run_fresh(directory, script) == [answers, [], True, False]


@pytest.mark.slow
def test_an_open_cache_finds_what_others_put_together(directory: Path) -> None:
    with Cache(directory) as writer, Cache(directory) as reader:
        for first in (0, 2, 4):
            answers = fill(writer, 2, first=first)
            writer.compact(grace=0)
            assert {name: reader.get_target(name)(1) for name in answers} == answers


def test_each_file_is_read_once(directory: Path) -> None:
    with Cache(directory) as filling:
        fill(filling)
    files_of_system = FaultyFiles(directory, count=lambda operation: operation.path.endswith(".ccm"))
    with cache_on(files_of_system) as cache:
        cache.compact(grace=0)
    counted = Counter(operation.name for operation in files_of_system.operations)
    assert [counted.pop(name) for name in ("open", "pread", "fstat", "unlink")] == [COUNT] * 4
    assert list(counted) == ["lstat"]


def test_a_module_that_was_added_again_stays_signed(directory: Path) -> None:
    """Its signatures are in the volume of the first compaction only."""
    key = generate_key("test")
    with Cache(directory, publish_key=str(key)) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        cache.add_module(ModuleSource(adder("f", 2)))
        cache.compact(grace=0)
        cache.add_module(ModuleSource(adder("f", 1)))
        cache.compact(grace=0)
    with Cache(directory, trusted_keys=[str(key.public())]) as cache:
        require(cache, {"f": 2})


def test_duplicates_of_one_content_become_one(cache: Cache) -> None:
    first = cache.add_module(ModuleSource(adder("f", 1)))
    other = cache.add_module(ModuleSource(adder("f", 5)))
    both = cache.add_module(ModuleSource(adder("f", 1) + adder("g", 2)))
    user = cache.add_module(ModuleSource(caller("h", "f", plus=100)))
    assert cache.compact(grace=0).merged == (first,)
    assert {m.module_id for m in cache.modules()} == {other, both, user}
    require(cache, {"f": 2, "g": 3, "h": 102})
    assert cache.compact(grace=0).merged == ()


@pytest.mark.slow
def test_lists_have_the_sizes_of_what_is_put_together(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools need not read the modules again for that."""
    monkeypatch.setattr(module_lists, "_FEW", 1)
    fill(cache)
    assert module_lists.ModuleLists(cache._store).counts().modules == COUNT
    report = cache.compact(grace=0)
    monkeypatch.setattr(module_rows, "read_row_and_size", None)
    counts = module_lists.ModuleLists(cache._store).counts()
    assert counts.modules == COUNT
    assert 0 <= report.size_after - counts.size < COUNT, "but for what cannot be divided"
    assert cache.info().size == counts.size


@pytest.mark.slow
def test_what_is_removed_and_added_again(directory: Path) -> None:
    with Cache(directory) as cache:
        answers = fill(cache)
        cache.compact(grace=0)
        (removed,) = cache.remove("f3")
        assert not cache.has("f3")
        assert cache.add_module(ModuleSource(adder("f3", 3))) == removed
        require(cache, answers)
        answers |= fill(cache, 10, first=COUNT)
        pruned = cache.prune(PrunePolicy(match=["f1?"]))
        assert len(pruned.removed) == 10
        answers = {name: value for name, value in answers.items() if not (name.startswith("f1") and len(name) == 3)}
        with pytest.raises(NotCachedError):
            cache.get_target("f11")
        require(cache, answers)
        assert cache.compact(grace=0).packed == 11
        assert len(volumes(directory)) == 1
        require(cache, answers)
        assert cache.compact(grace=0).packed == 0
        before = volumes(directory)[0].stat().st_size
        cache.prune(PrunePolicy(max_modules=5))  # which writes what is half removed again
        assert volumes(directory)[0].stat().st_size < before
        assert len(files(directory)) == 0
        assert {name: cache.get_target(name)(1) for name in answers if cache.has(name)}.items() <= answers.items()
        assert cache.compact(grace=0).modules == 5
        assert [path.stem for path in (directory / "volumes-v1").glob("*.gone")] == [path.stem for path in volumes(directory)]
        assert cache.clear() == 5
        assert not list((directory / "volumes-v1").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="requires /proc")
def test_a_replaced_volume_is_closed_and_so_are_those_of_a_closed_cache(cache: Cache) -> None:
    """An open volume that was replaced takes space on the disk and a descriptor."""

    def opened() -> int:
        links = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        return sum(os.readlink(link).startswith(f"{cache.path}/volumes-v1/") for link in links if link.is_symlink())

    with Cache(cache.path) as held:
        for number in range(3):
            fill(cache, 3, first=3 * number)
            cache.compact(grace=0)
            assert len(held.modules()) == 3 * number + 3
        assert 1 <= opened() <= 2
    cache.close()
    assert opened() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="requires /proc")
def test_a_removal_that_is_not_written_completely_fails(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache)
    cache.compact(grace=0)

    def write(descriptor: int, data: Any) -> int:
        """Write as if the disk had space for half of a list of removed modules."""
        is_list = os.readlink(f"/proc/self/fd/{descriptor}").endswith(".gone")
        return os.write(descriptor, data[: len(data) // 2] if is_list else data)

    monkeypatch.setattr(cache._store.files, "write", write)
    with pytest.raises(StorageError, match="No space left on device"):
        cache.remove("f3")
    with Cache(cache.path) as other:
        assert other.get_target("f3")(1) == 4


@pytest.mark.slow
def test_what_is_removed_meanwhile_stays_removed(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache)
    cache.compact(grace=0)
    fill(cache, 60, first=COUNT)
    lost = {name: bytes.fromhex(cache.realizations(name)[0].module_id) for name in ("f1", "f40")}
    write = writing.write_volume

    def written(store: Store, given: object, replaced: list[Volume]) -> Volume | None:
        assert replaced
        listed = list(given)  # type: ignore[call-overload]
        for module_id in lost.values():
            remove_file(store, module_id)
        return write(store, listed, replaced)

    monkeypatch.setattr(packing, "write_volume", written)
    cache.compact(grace=0)
    with Cache(cache.path) as other:
        assert [other.has(name) for name in lost] == [False, False]
        assert other.get_target("f2")(1) == 3
        assert len(other.modules()) == COUNT + 60 - 2


def test_without_its_list_a_volume_is_not_used(directory: Path) -> None:
    """The list says what was removed. Volumes of version 1.0 do not name themselves, and may have none."""
    with Cache(directory) as cache:
        answers = fill(cache, 4)
        cache.compact(grace=0)
        (written,) = volumes(directory)
        assert remove_file(cache._store, bytes.fromhex(cache.realizations("f3")[0].module_id))
        with Cache(directory) as other:
            os.utime(written.parent, (1e9, 1e9))
            assert [answer(other, name) for name in ("f0", "f3")] == [1, None]
            written.with_suffix(".gone").unlink()
            os.utime(written.parent, (1e9, 1e9))  # so that it is not listed again
            assert [answer(other, name) for name in ("f1", "f3")] == [None, None]
        with Cache(directory) as other:
            assert [answer(other, name) for name in answers] == [None] * 4
        written.rename(written.with_name("0" * 24 + ".volume"))
        with Cache(directory) as other:
            assert [answer(other, name) for name in ("f1", "f3")] == [2, 4]


@pytest.mark.slow
def test_what_is_put_elsewhere_while_it_is_asked_for_is_found(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache, 3)
    cache.compact(grace=0)
    module_id = bytes.fromhex(cache.realizations("f1")[0].module_id)
    asked: list[Volume] = []
    find = Volume.find

    def replaced(volume: Volume, module_id: bytes) -> bytes | None:
        asked.append(volume)
        if len(asked) == 1:
            fill(cache, 1, first=COUNT)
            cache.compact(grace=0)
        return find(volume, module_id)

    with Cache(cache.path) as other:
        monkeypatch.setattr(Volume, "find", replaced)
        assert other._store.exists(module_id)
    assert len({volume.name for volume in asked}) > 1


def test_without_its_list_a_volume_replaces_nothing(directory: Path, tmp_path: Path) -> None:
    with Cache(directory) as cache:
        answers = fill(cache, 4)
        cache.compact(grace=0)
        shutil.copytree(directory / "volumes-v1", tmp_path / "former")
        fill(cache, 1, first=COUNT)
        cache.compact(grace=0)
    volumes(directory)[0].with_suffix(".gone").unlink()
    shutil.copytree(tmp_path / "former", directory / "volumes-v1", dirs_exist_ok=True)
    with Cache(directory) as cache:
        assert {name: answer(cache, name) for name in answers} == answers


@pytest.mark.slow
def test_what_is_published_again_meanwhile_stays(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is added again has a new file, which is newer than what the volume has."""
    fill(cache, 3)
    monkeypatch.setattr(
        time, "sleep", lambda _: [cache.add_module(ModuleSource(adder("f1", number))) for number in (7, 1)]
    )
    cache.compact(grace=5)
    with Cache(cache.path) as other:
        require(other, {"f0": 1, "f1": 2, "f2": 3})
        monkeypatch.undo()
        other.compact(grace=0)
        shutil.rmtree(Path(cache.path) / "index-v1")
    with Cache(cache.path) as other:
        require(other, {"f0": 1, "f1": 2, "f2": 3})


@pytest.mark.slow
def test_an_index_is_made_again_of_volumes(directory: Path) -> None:
    with Cache(directory) as cache:
        answers = fill(cache)
        cache.compact(grace=0)
    shutil.rmtree(directory / "index-v1")
    with Cache(directory) as cache:
        require(cache, answers)


@pytest.mark.slow
def test_layers_bundles_and_copies_of_what_is_compact(directory: Path, tmp_path: Path) -> None:
    with Cache(directory) as cache:
        answers = fill(cache)
        shutil.copytree(directory / "modules-v1", tmp_path / "copy" / "modules-v1")  # a copy that is made meanwhile
        cache.compact(grace=0)
        shutil.copytree(directory, tmp_path / "copy", dirs_exist_ok=True)
        cache.export(list(answers), tmp_path / "all.ccb")
    (tmp_path / "copy").chmod(0o700)
    for name, layers in (("copy", []), ("a", [directory]), ("b", [tmp_path / "all.ccb"])):
        with Cache(tmp_path / name, layers=layers) as place:
            assert {name: place.get_target(name)(1) for name in answers} == answers


@pytest.mark.slow
def test_damage_is_a_miss_at_worst(directory: Path, tmp_path: Path) -> None:
    with Cache(directory) as cache:
        answers = fill(cache, 12)
        cache.compact(grace=0)
    (volume,) = volumes(directory)
    size = volume.stat().st_size
    for number, at in enumerate([*range(3, size, size // 8), *range(size - 34, size, 7)]):
        place = tmp_path / str(number)
        shutil.copytree(directory, place)
        data = bytearray(volume.read_bytes())
        data[at] ^= 1 << at % 8
        (place / "volumes-v1" / volume.name).write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            with Cache(place) as cache:
                for name in list(answers) if number % 2 else ():
                    assert answer(cache, name) in (answers[name], None)
                cache.check(repair=True)
            with Cache(place) as cache:
                assert cache.check()
                assert [name for name in answers if answer(cache, name) not in (answers[name], None)] == []
                assert fill(cache, len(answers)) == answers
                require(cache, answers)


def test_the_volume_of_another_user_is_not_used(directory: Path) -> None:
    with Cache(directory) as cache:
        fill(cache, 3)
        cache.compact(grace=0)
    os.chmod(volumes(directory)[0], 0o666)
    with Cache(directory) as cache, pytest.warns(CacheWarning, match="other users can write"):
        assert answer(cache, "f1") is None


@pytest.mark.slow
@pytest.mark.parametrize(("first", "suffix"), [(0, ".volume"), (5, ".volume"), (0, ".gone")])
def test_a_volume_that_the_disk_cannot_read_is_named(directory: Path, first: int, suffix: str) -> None:
    """With its directory alone, or a module of it, nobody finds the file to restore or remove. So many reads succeed at first."""
    with Cache(directory) as cache:
        fill(cache)
        cache.compact(grace=0.0)
        cache.remove("f0")
    volume = volumes(directory)[0].with_suffix(suffix)

    def has_bad_sector(operation: Operation) -> OSError | None:
        return OSError(errno.EIO, os.strerror(errno.EIO)) if operation.number >= first else None

    reads = FaultyFiles(directory, has_bad_sector, count=lambda operation: operation.name == "pread" and operation.path.endswith(suffix))
    with cache_on(reads) as cache:
        try:
            told = "\n".join(finding.message for finding in cache.check().errors)
        except StorageError as error:
            told = str(error)
        assert f"{os.strerror(errno.EIO)} in {volume}" in told
        with pytest.warns(CacheWarning, match=f"was not stored, .* in {volume}"):
            assert cache.get_or_compile("f1", lambda: ModuleSource(adder("f1", 1)))(1) == 2


def test_one_at_a_time_and_never_where_nothing_is_written(cache: Cache) -> None:
    fill(cache, 2)
    with Cache(cache.path, readonly=True) as reader, pytest.raises(StorageError, match="readonly"):
        reader.compact()
    with wait_lock(cache._store, "compact", timeout=0), Cache(cache.path) as other:
        holder = subprocess.run(
            [sys.executable, "-m", "compcache", "--dir", other.path, "compact", "--grace", "0s"],
            capture_output=True, text=True, check=False, cwd=PACKAGE_ROOT, env={**os.environ, "COMPCACHE_TEST": "1"},
        )  # fmt: skip
    assert holder.returncode
    assert "another process is compacting" in holder.stderr
    for grace in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="grace"):
            cache.compact(grace=grace)


@pytest.mark.slow
def test_the_command(directory: Path) -> None:
    with Cache(directory) as cache:
        fill(cache, 5)
    assert compcache("--dir", directory, "compact", "--grace", "0s").out == "5 modules packed\n"
    assert compcache("--dir", directory, "call", "f4", "1").out == "5\n"


@pytest.mark.slow
def test_readers_find_every_function_all_the_time(directory: Path) -> None:
    """A reader in another process asks for each function again and again while the directory is compacted, and functions are added."""
    with Cache(directory) as cache:
        answers = fill(cache)
        script = f"""
import sys
sys.path.insert(0, {str(PACKAGE_ROOT)!r})
from compcache import Cache
answers = {answers!r}
print("ready", flush=True)
while not sys.stdin.readline().startswith("end"):
    for _ in range(3):
        with Cache({str(directory)!r}) as cache:
            assert {{name: cache.get_target(name)(1) for name in answers}} == answers
    print("done", flush=True)
"""
        command = [sys.executable, "-W", "error", "-c", script]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            for turn in range(5):
                reader.stdin.write("on\n")
                reader.stdin.flush()
                cache.add_module(ModuleSource(constant(f"c{turn}", turn)))
                cache.compact(grace=0)
                assert reader.stdout.readline() == "done\n"
            reader.stdin.write("end\n")
            reader.stdin.flush()
            assert reader.wait() == 0


@pytest.mark.slow
def test_a_reader_that_has_seen_the_volumes_finds_those_that_are_newer(cache: Cache, directory: Path) -> None:
    fill(cache)
    cache.compact(grace=0)
    with Cache(directory) as reader:
        os.utime(directory / "volumes-v1", (1e9, 1e9))  # a folder that has not changed for long is not listed again
        assert reader.get_target("f0")(1) == 1
        wanted = fill(cache, first=COUNT)
        cache.compact(grace=0)
        assert not list(directory.glob("modules-v1/*/*"))
        assert {name: reader.get_target(name)(1) for name in wanted} == wanted


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A dozen small files are many; what processes of their own are started for, which run in this one."""
    started: list[str] = []

    def start(store: Store, module: str, function: str) -> None:
        started.append(function)
        getattr(importlib.import_module(module), function)(store.root, trust=store.trust)

    monkeypatch.setattr(size_limit, "_MANY", 12)
    monkeypatch.setattr(compaction, "GRACE", 0.0)
    monkeypatch.setattr(os, "nice", lambda _: None)
    monkeypatch.setattr(size_limit, "run_in_subprocess", start)
    return started


@pytest.mark.slow
def test_a_size_limit_puts_small_files_together_before_it_removes_any(directory: Path, few: list[str]) -> None:
    with Cache(directory, max_size=100_000) as cache:
        answers: dict[str, int] = {}
        for number in range(40):
            answers |= fill(cache, 1, first=number)
        assert {*few} == {"compact_at_low_priority"}
        require(cache, answers)
        assert cache.stats().evicted_modules == 0
        assert cache.stats().size < 100_000
        assert volumes(directory)


@pytest.mark.slow
def test_a_size_limit_is_kept_where_nothing_is_put_together(
    directory: Path, few: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*arguments: object) -> None:
        few.append(str(arguments[2]))

    monkeypatch.setattr(size_limit, "run_in_subprocess", start)
    with Cache(directory, max_size=80_000) as cache:
        for number in range(40):
            fill(cache, 1, first=number)
            assert sum(path.stat().st_size for path in (directory / "modules-v1").rglob("*.ccm")) <= 80_000 * 9 // 8 + 6_000
        assert cache.stats().evicted_modules > 0
    assert few
    keys = {"signing_key": b"a key of the tests, of some length"}
    few.clear()
    with Cache(directory.with_name("signed"), max_size=80_000, **keys) as cache:  # type: ignore[arg-type]
        for number in range(20):
            fill(cache, 1, first=number)
        assert cache.stats().evicted_modules > 0, "another process would need the key"
    assert not few
