"""Symbolic links, hard links, pipes and exchanged directories in a cache directory: nothing acts on what they lead to.

Who can write to a directory, or whoever packed it into an archive, can put anything there. Each test lets every operation
run on such a directory and looks at what is outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, run_fresh
from mock_directory import FaultyFiles

from compcache import Cache, CompcacheError, ModuleSource, PrunePolicy, frontend
from compcache.bundles.unpack import import_bundle
from compcache.directory.places import MODULES, PLACES
from compcache.files import READ_FLAGS, Files, Tree
from compcache.hit.target import path_opener
from compcache.inspect.uncached import record_refusal
from compcache.signing.keys import generate_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DIRECTORIES = sorted({place.directory for place in PLACES if place.directory})
KEY = b"a key of this test"
OLD = 1_000_000_000


@pytest.fixture(scope="module")
def full(_prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every kind of file, and each old enough to be removed."""
    directory = tmp_path_factory.mktemp("full") / "cache"
    shutil.copytree(_prepared, directory)
    with Cache(directory) as cache:
        for number in range(12):
            cache.add_module(
                ModuleSource(adder(f"f{number}", number) if number < 10 else caller(f"f{number}", f"f{number - 1}"), optimize=0)
            )
        cache.get_target("f11")
        cache.get_target("f1")
        cache.pin("f1")
        cache.pin("f2")
        record_refusal(cache._store, "refused", "for a reason")
        frontend.put_entry(cache, "about the system", b"content", kind="data")
        cache.prune(PrunePolicy(max_modules=1000))
        cache.stats()
    with Cache(directory, publish_key=str(generate_key("test"))) as cache:
        cache.add_module(ModuleSource(adder("signed", 1)))
    with Cache(directory.with_name("layer")) as layer:
        layer.add_module(ModuleSource(adder("of_a_layer", 1)))
    with Cache(directory, layers=[directory.with_name("layer")]) as cache:
        cache.get_target("of_a_layer")
        cache.export(["of_a_layer"], directory.with_name("app.ccb"))
    with Cache(directory, layers=[directory.with_name("app.ccb")]) as cache:
        cache.get_target("of_a_layer")
    for name in ("tmp", "quarantine", "locks"):
        (directory / name).mkdir(exist_ok=True, mode=0o700)
        (directory / name / "left").write_bytes(b"behind")
    return directory


@pytest.fixture
def filled(full: Path, tmp_path: Path) -> Path:
    """A copy of that."""
    directory = tmp_path / "cache"
    shutil.copytree(full, directory)
    shutil.copytree(full.with_name("layer"), tmp_path / "layer")
    shutil.copy(full.with_name("app.ccb"), tmp_path / "app.ccb")
    age(directory)
    return directory


def age(place: Path) -> None:
    for path in [place, *place.rglob("*")]:
        os.utime(path, (OLD, OLD), follow_symlinks=False)


def outside(place: Path) -> dict[str, tuple[int, bytes, int]]:
    """Names, modes, content and times of what must not change."""
    return {
        str(path.relative_to(place)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else b"",
            path.lstat().st_mtime_ns,
        )
        for path in [place, *place.rglob("*")]
    }


def everything(directory: Path, key: bytes | None = None) -> list[str]:
    """Run every operation that reads, publishes or removes; the names of those that worked."""
    worked = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = Cache(directory, signing_key=key, layers=[directory.with_name("layer")])
        operations: dict[str, Callable[[], object]] = {
            "get": lambda: cache.get_target("f3"),
            "layer": lambda: cache.get_target("of_a_layer"),
            "bundle": lambda: Cache(
                directory, signing_key=key, layers=[directory.with_name("app.ccb")]
            ).close(),
            "compile": lambda: cache.get_or_compile("new", lambda: ModuleSource(adder("new", 1), optimize=0)),
            "add": lambda: cache.add_module(ModuleSource(adder("newer", 1), optimize=0)),
            "pin": lambda: cache.pin("f4"),
            "unpin": lambda: cache.unpin("f1"),
            "note": lambda: record_refusal(cache._store, "another", "reason"),
            "put entry": lambda: (frontend.put_entry(cache, "about the system", b"other", kind="data"), cache._entries.flush()),  # type: ignore[union-attr]
            "get entry": lambda: frontend.get_entry(cache, "about the system", "data"),
            "stats": cache.stats,
            "zero": cache.zero_stats,
            "modules": cache.modules,
            "dry": lambda: cache.prune(PrunePolicy(max_modules=1, stale=1), dry_run=True),
            "prune": lambda: cache.prune(PrunePolicy(max_modules=3, stale=1, older_than=10**6)),
            "check": cache.check,
            "repair": lambda: cache.check(repair=True, checksums=True),
            "clear": cache.clear,
        }
        for name, operation in operations.items():
            with contextlib.suppress(CompcacheError, OSError):
                operation()
                worked.append(name)
        cache.close()
    return worked


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
@pytest.mark.parametrize("name", [*DIRECTORIES, "fan"])
def test_no_operation_acts_through_a_directory_that_is_a_link(
    filled: Path, tmp_path: Path, name: str, key: bytes | None
) -> None:
    place = next((filled / MODULES.directory).iterdir()) if name == "fan" else filled / name
    elsewhere = tmp_path / "elsewhere"
    if not place.exists():  # what small caches have none of
        place.mkdir()
        (place / "kept").write_bytes(b"")
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    age(elsewhere)
    before = outside(elsewhere)
    assert len(before) > 1
    assert "get" in everything(filled, key) or name in ("modules-v1", "index-v1", "fan") or key
    assert outside(elsewhere) == before


@pytest.mark.slow
def test_no_operation_acts_through_files_that_are_links(filled: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, path in enumerate([path for path in filled.rglob("*") if path.is_file()]):
        target = elsewhere / f"{number}"
        path.rename(target)
        path.symlink_to(target)
    age(elsewhere)
    before = outside(elsewhere)
    everything(filled)
    assert outside(elsewhere) == before


def test_a_file_with_a_second_name_outside_is_never_changed_in_place(filled: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, path in enumerate([path for path in filled.rglob("*") if path.is_file()]):
        os.link(path, elsewhere / f"{number}")
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    everything(filled)
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_nothing_waits_for_what_is_no_file(filled: Path, kind: str) -> None:
    for path in [path for path in filled.rglob("*") if path.is_file()]:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path, 0o600)
        else:
            path.mkdir(0o700)
    assert "compile" in everything(filled)


@pytest.mark.slow
def test_exchanging_directories_for_links_wins_no_race(filled: Path, tmp_path: Path) -> None:
    """A thread swaps every directory for a link to a copy outside, and back, while everything runs."""
    elsewhere, spare = tmp_path / "elsewhere", tmp_path / "spare"
    shutil.copytree(filled, elsewhere)
    age(elsewhere)
    spare.mkdir()
    for name in DIRECTORIES:
        (spare / name).symlink_to(elsewhere / name)
    before = outside(elsewhere)
    stop = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            for name in DIRECTORIES:
                with contextlib.suppress(OSError):
                    (filled / name).rename(spare / "away")
                    (spare / name).rename(filled / name)
                    (filled / name).rename(spare / name)
                    (spare / "away").rename(filled / name)
                    swaps += 1
                shutil.rmtree(spare / "away", ignore_errors=True)
                if not (spare / name).is_symlink():
                    with contextlib.suppress(OSError):
                        (spare / name).symlink_to(elsewhere / name)

    thread = threading.Thread(target=swap)
    thread.start()
    rounds = 0
    try:
        end = time.monotonic() + 2
        while time.monotonic() < end or rounds < 2:
            everything(filled)
            rounds += 1
    finally:
        stop.set()
        thread.join()
    assert swaps > 20
    assert outside(elsewhere) == before


# ------------------------------------------------------------------------------------ the mechanism


@pytest.fixture(params=["one call", "walk", "double", "part"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    """A tree with ``a/b/file``, and beside it ``outside/file``."""
    root = tmp_path / "root"
    for place in (root / "a" / "b", tmp_path / "outside"):
        place.mkdir(parents=True)
        (place / "file").write_bytes(b"content")
    opener = path_opener()
    assert opener is not None
    made = {
        "one call": lambda: Tree(Files(), str(root), opener),
        "walk": lambda: Tree(Files(), str(root)),
        "double": lambda: Tree(FaultyFiles(root), str(root)),
        "part": lambda: Tree(Files(), str(tmp_path), opener).part(str(root)),
    }[request.param]()
    yield made
    made.forget()


ON_FILES: dict[str, Callable[[Tree, str], object]] = {
    "open": lambda tree, path: os.close(tree.open(path, READ_FLAGS)),
    "create": lambda tree, path: os.close(tree.open(path + "2", os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
    "append": lambda tree, path: os.close(tree.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)),
    "stat": lambda tree, path: tree.stat(path),
    "unlink": lambda tree, path: tree.unlink(path),
    "rmdir": lambda tree, path: tree.rmdir(os.path.dirname(path)) if "b" not in path else tree.rmdir(path),
    "mkdir": lambda tree, path: tree.mkdir(path + "3"),
    "rename from": lambda tree, path: tree.rename(path, f"{tree.root}/moved"),
    "rename to": lambda tree, path: tree.rename(f"{tree.root}/loose", path),
    "listdir": lambda tree, path: tree.listdir(os.path.dirname(path)),
    "statuses": lambda tree, path: tree.statuses(os.path.dirname(path)),
    "chmod": lambda tree, path: tree.chmod(path, 0o600),
}


@pytest.mark.parametrize("operation", [name for name in ON_FILES if name != "rmdir"])
@pytest.mark.parametrize("part", ["a", "a/b"])
def test_no_operation_of_a_tree_passes_a_link(tree: Tree, tmp_path: Path, operation: str, part: str) -> None:
    root = tmp_path / "root"
    (root / "loose").write_bytes(b"loose")
    path = f"{root}/a/b/file"
    (root / part).rename(tmp_path / "real")
    (root / part).symlink_to(tmp_path / "real")
    before = outside(tmp_path / "real")
    with pytest.raises(OSError, match="is a symbolic link, and links in a cache directory are not followed") as caught:
        ON_FILES[operation](tree, path)
    assert caught.value.errno == errno.ELOOP
    assert f"{root}/{part} is a symbolic link" in str(caught.value)
    assert outside(tmp_path / "real") == before


@pytest.mark.parametrize("operation", [name for name in ON_FILES if name != "rmdir"])
def test_the_operations_work_where_there_is_no_link(tree: Tree, tmp_path: Path, operation: str) -> None:
    (tmp_path / "root" / "loose").write_bytes(b"loose")
    ON_FILES[operation](tree, str(tmp_path / "root" / "a" / "b" / "file"))


@pytest.mark.parametrize("operation", [name for name in ON_FILES if name != "rmdir"])
def test_no_link_leads_to_the_root_of_a_part_of_a_tree(tmp_path: Path, operation: str) -> None:
    """A store in the directory of another one, such as the one that a bundle is unpacked to."""
    place = tmp_path / "elsewhere" / "part" / "a"
    place.mkdir(parents=True)
    (place / "file").write_bytes(b"content")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "tmp").symlink_to(tmp_path / "elsewhere")
    root = str(tmp_path / "root" / "tmp" / "part")
    part = Tree(Files(), str(tmp_path / "root"), path_opener()).part(root)
    before = outside(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a symbolic link, and links in a cache directory are not followed"):
        ON_FILES[operation](part, f"{root}/a/file")
    with pytest.raises(OSError, match="is a symbolic link, and links in a cache directory are not followed"):
        part.mkdir(root)
    assert outside(tmp_path / "elsewhere") == before


def test_no_store_is_unpacked_through_a_link_that_appears_meanwhile(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory for temporary files is exchanged after the one to unpack to was made in it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.rmtree(filled / "bundles-v1")

    def exchange(*arguments: Any, **options: Any) -> Any:
        scratch = Path(arguments[0].root)
        if (tmp_path / "real").exists():  # the second attempt, in a temporary directory
            return import_bundle(*arguments, **options)
        (elsewhere / scratch.name).mkdir()
        scratch.parent.rename(tmp_path / "real")
        scratch.parent.symlink_to(elsewhere)
        age(elsewhere)
        return import_bundle(*arguments, **options)

    monkeypatch.setattr("compcache.bundles.unpacked_layer.import_bundle", exchange)
    with contextlib.suppress(CompcacheError), Cache(filled, layers=[tmp_path / "app.ccb"]) as cache:
        cache.get_target("of_a_layer")
    assert [path.relative_to(elsewhere) for path in elsewhere.rglob("*/*")] == []


@pytest.mark.parametrize("operation", ["open", "append", "chmod"])
def test_a_file_that_is_a_link_is_not_opened(tree: Tree, tmp_path: Path, operation: str) -> None:
    link = tmp_path / "root" / "a" / "link"
    link.symlink_to(tmp_path / "outside" / "file")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - whose number is looked at
        ON_FILES[operation](tree, str(link))
    assert caught.value.errno == errno.ELOOP
    tree.unlink(str(link))
    assert (tmp_path / "outside" / "file").read_bytes() == b"content"


@pytest.mark.parametrize("path", ["../outside/file", "a/../../outside/file", "a/..", ".."])
def test_no_path_leads_out_of_a_tree(tree: Tree, path: str) -> None:
    with pytest.raises(OSError, match="is not in"):
        tree.stat(f"{tree.root}/{path}")
    with pytest.raises(OSError, match="is not in"):
        tree.unlink(f"{tree.root}/{path}")


def test_a_tree_notices_that_its_root_was_exchanged(tree: Tree, tmp_path: Path) -> None:
    path = f"{tree.root}/a/b/file"
    assert tree.stat(path).st_size == 7
    (tmp_path / "root").rename(tmp_path / "old")
    with pytest.raises(FileNotFoundError):
        tree.listdir(tree.root)
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    tree.mkdir(f"{tree.root}/here")
    assert sorted(os.listdir(tree.root)) == ["a", "here"]
    with pytest.raises(FileNotFoundError):
        tree.unlink(path)
    assert (tmp_path / "old" / "a" / "b" / "file").exists()


def test_a_tree_survives_that_its_descriptors_are_closed_and_used_by_others(
    tree: Tree, tmp_path: Path
) -> None:
    """Daemons close all descriptors: the numbers then stand for other things, here for a directory outside."""
    path = f"{tree.root}/a/b/file"
    tree.stat(path)
    assert tree._root is not None
    number = tree._root.opened.number
    os.close(number)
    (tmp_path / "outside" / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "a" / "b" / "file").write_bytes(b"theirs")
    outside = os.open(tmp_path / "outside", os.O_RDONLY | os.O_DIRECTORY)
    if outside != number:  # garbage of other tests may have left a lower one
        os.dup2(outside, number)
        os.close(outside)
    tree.unlink(path)
    assert not os.path.exists(path)
    assert (tmp_path / "outside" / "a" / "b" / "file").exists()
    assert os.fstat(number), "it is closed by whoever opened it"
    os.close(number)


def test_a_tree_leaks_no_descriptor(tree: Tree) -> None:
    path = f"{tree.root}/a/b/file"
    tree.stat(path)
    before = len(os.listdir("/proc/self/fd"))  # with that of the root
    for _ in range(3):
        for operation in ("stat", "listdir", "statuses", "chmod", "mkdir", "create"):
            with contextlib.suppress(FileExistsError):
                ON_FILES[operation](tree, path)
    assert len(os.listdir("/proc/self/fd")) <= before  # garbage of other tests may hold some, and go meanwhile
    tree.forget()
    assert len(os.listdir("/proc/self/fd")) < before


@pytest.mark.parametrize("one_call", [True, False])
def test_what_is_created_has_its_mode_under_any_umask(
    directory: Path, tmp_path: Path, one_call: bool
) -> None:
    script = f"""
    import os
    os.umask(0o777)
    from compcache.files import Files, Tree
    from compcache.hit.target import path_opener
    tree = Tree(Files(), {str(tmp_path)!r} + "/new", path_opener() if {one_call} else None)
    tree.mkdir(tree.root)
    tree.mkdir(tree.root + "/directory")
    os.close(tree.open(tree.root + "/directory/file", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    paths = [tree.root, tree.root + "/directory", tree.root + "/directory/file"]
    result = [os.lstat(path).st_mode & 0o777 for path in paths]
    """
    assert run_fresh(directory, script) == [0o700, 0o700, 0o600]
