"""What a network file system says of files that other hosts changed, without a network: handles that are stale, and answers that were lost.

`tests/peer/test_file_systems.py` has two clients of a whole double.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder
from mock_directory import FaultyFiles, Operation, cache_on

from compcache import Cache, ModuleSource, NotCachedError
from compcache.directory.module_file import ModuleFile
from compcache.errors import UndefinedSymbolError
from compcache.files import READ_FLAGS, Files, Tree
from compcache.frontend import add_missing
from compcache.hit.target import path_opener
from compcache.miss.build import build_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALLER = "declare i64 @{1}(i64)\ndefine i64 @{0}(i64 %x) {{\n  %y = call i64 @{1}(i64 %x)\n  ret i64 %y\n}}"


def stale(operation: Operation) -> OSError | None:
    """Every file of the index and of the modules, and every listing of them, was removed by another host."""
    concerned = "index-v1" in operation.path or "modules-v1" in operation.path
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE), operation.path) if concerned else None


@pytest.mark.filterwarnings("ignore:.*was not stored")
@pytest.mark.parametrize("names", [("pread",), ("open", "pread"), ("listdir",)])
def test_what_another_host_removed_is_not_there(cache: Cache, directory: Path, names: tuple[str, ...]) -> None:
    cache.add_module(ModuleSource(adder("f", 1)))
    files = FaultyFiles(directory, stale, count=lambda operation: operation.name in names)
    with cache_on(files) as other:
        with pytest.raises(NotCachedError) as caught:
            other.get_target("f")
        assert "Stale" not in str(caught.value)
        assert other.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2


class Removed(Files):
    """Says of whatever a directory lists that another host has removed it."""

    lstat = staticmethod(lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ESTALE, "stale")))


def test_a_listed_file_may_be_stale(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Tree(Removed(), str(tmp_path)).statuses(str(tmp_path)) == {}


@pytest.mark.parametrize("read", range(4))
def test_a_list_of_modules_that_another_host_removes_while_it_is_read_is_made_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    monkeypatch.setattr("compcache.publish.module_lists._FEW", 0)
    with Cache(directory) as cache:
        for number in range(3):
            cache.add_module(ModuleSource(adder(f"f{number}", number)))
        expected = cache.modules()
    reads: list[str] = []

    def list_is_stale(operation: Operation) -> OSError | None:
        if operation.name == "pread" and operation.path.endswith(".list"):
            reads.append(operation.path)
            if len(reads) > read:
                return OSError(errno.ESTALE, os.strerror(errno.ESTALE), operation.path)
        return None

    with cache_on(FaultyFiles(directory, list_is_stale, count=lambda operation: operation.name == "pread")) as other:
        assert other.modules() == expected
    assert len(reads) > read


class Unanswered(Files):
    """Loses as many answers to `fstat` as `lost` says."""

    lost = 0

    def fstat(self, descriptor: int) -> os.stat_result:
        if self.lost:
            self.lost -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.fstat(descriptor)


def lose_the_root(files: Unanswered, tree: Tree) -> None:
    """Lose the answer about the root of a tree while another thread creates a directory there."""
    files.lost = 1
    thread = Thread(target=tree.mkdir, args=(f"{tree.root}/new",))
    thread.start()
    thread.join()
    assert os.path.isdir(f"{tree.root}/new")


def test_a_listing_keeps_its_root_while_another_thread_opens_the_root_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for directory, name in ((root, "right"), (elsewhere, "wrong")):
        (directory / "fan").mkdir(parents=True)
        (directory / "fan" / name).touch()
    monkeypatch.chdir(elsewhere)
    files = Unanswered()
    tree = Tree(files, str(root), path_opener())
    assert tree.listdir(f"{root}/fan") == ["right"]
    waiting: list[Callable[[], None]] = [partial(lose_the_root, files, tree)]
    monkeypatch.setattr("compcache.files.audit", lambda *_: waiting.pop()() if waiting else None)  # called between the root and its use
    assert tree.listdir(f"{root}/fan") == ["right"]
    assert not waiting


def test_a_rename_keeps_its_root_while_another_thread_opens_the_root_again(tmp_path: Path) -> None:
    for name in ("old", "new-place"):
        (tmp_path / name).mkdir()
    (tmp_path / "old" / "file").touch()
    files = Unanswered()
    tree = Tree(files, str(tmp_path))
    waiting: list[Callable[[], None]] = [partial(lose_the_root, files, tree)]

    def open_then_lose(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        if dir_fd is not None and waiting:
            waiting.pop()()
        return descriptor

    files.open = open_then_lose  # type: ignore[assignment]
    tree.rename(f"{tmp_path}/old/file", f"{tmp_path}/new-place/file")
    assert os.listdir(tmp_path / "new-place") == ["file"]


def test_a_root_whose_answers_are_lost_is_closed_when_it_is_opened_again(tmp_path: Path) -> None:
    files = Unanswered()
    tree = Tree(files, str(tmp_path), path_opener())
    tree.mkdir(f"{tmp_path}/a")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(8):
        files.lost = 1
        tree.mkdir(f"{tmp_path}/{number}")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("by_runtime", [False, True])
def test_a_read_keeps_its_file_while_another_thread_closes_the_module(cache: Cache, directory: Path, by_runtime: bool) -> None:
    """The number of the descriptor belongs to another file as soon as the module's file is closed."""
    module_id = bytes.fromhex(cache.add_module(ModuleSource(adder("f", 1))))
    other = directory / "other"
    other.write_bytes(b"other" * 100)
    waiting: list[ModuleFile] = []

    class Closing(Files):
        def pread(self, descriptor: int, size: int, offset: int) -> bytes:
            if waiting:
                waiting.pop().close()
                opened_since.append(os.open(other, os.O_RDONLY))
            return os.pread(descriptor, size, offset)

    opened_since: list[int] = []
    files = Tree(Closing(), str(directory), path_opener() if by_runtime else None)
    module = ModuleFile(files, cache._store.module_path(module_id), module_id)
    module.open(cache._store)
    waiting.append(module)
    assert module.read(0, 4) == b"\x7fELF"
    for number in opened_since:
        os.close(number)


def test_a_stale_handle_in_a_root_that_is_opened_again_is_not_there(tmp_path: Path) -> None:
    opener = path_opener()
    assert opener is not None

    def stale_below(directory: int, path: str, flags: int, mode: int) -> Any:
        if directory >= 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return opener(directory, path, flags, mode)

    files = Unanswered()
    tree = Tree(files, str(tmp_path), stale_below)
    tree.status()
    files.lost = 1
    with pytest.raises(FileNotFoundError) as caught:
        tree.open_owned(f"{tmp_path}/file", READ_FLAGS)
    assert caught.value.filename == f"{tmp_path}/file"


class Lost(FaultyFiles):
    """Renames that are done, and said to be of a file that is not there: their first answers were lost, and they were asked for again."""

    __slots__ = ()

    def rename(self, source: Any, target: Any, **at: Any) -> None:  # type: ignore[override]
        super().rename(source, target, **at)
        raise FileNotFoundError(errno.ENOENT, "no such file", str(source))


@pytest.mark.filterwarnings("error")
def test_a_rename_whose_answer_was_lost_has_been_done(directory: Path) -> None:
    with cache_on(Lost(directory)) as cache:
        assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2
    with Cache(directory) as cache:
        assert cache.get_target("f")(1) == 2


def test_a_rename_that_was_not_done_is_an_error(directory: Path) -> None:
    def plan(operation: Operation) -> OSError | None:
        return FileNotFoundError(errno.ENOENT, "no such file") if operation.name == "rename" and "modules-v1" in operation.target else None

    with cache_on(FaultyFiles(directory, plan)) as cache, pytest.warns(UserWarning, match="was not stored"):
        assert cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2


@pytest.mark.parametrize("times", [1, 3])
def test_a_callee_that_was_removed_meanwhile_is_asked_for_again(directory: Path, times: int) -> None:
    """Another process removes a function between the question for it and the load of its caller."""
    built = []
    with Cache(directory) as cache, Cache(directory) as other:

        def build() -> ModuleSource:
            other.add_module(ModuleSource(adder("f", 1)))
            built.append("g")
            return ModuleSource(CALLER.format("g", "f"), imports=["f"])

        load = cache._loader.load

        def removing(*arguments: Any) -> Any:
            if len(built) <= times and arguments[0] == "g":
                other.remove("f", force=True)
            return load(*arguments)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(cache._loader), "load", lambda _, *arguments: removing(*arguments))
            target = cache.get_or_compile("g", build)
        assert target(1) == 2
        assert built == ["g"] * (times + 1)


def test_a_callee_that_a_build_has_received_is_there_whatever_others_remove(directory: Path) -> None:
    """Another process removes a function, and what that calls, each time that their caller is loaded."""
    built = []
    with Cache(directory) as cache, Cache(directory) as other:

        def build_callee() -> ModuleSource:
            cache.get_or_compile("e", lambda: ModuleSource(adder("e", 1).replace(") {", ") noinline {")))
            return ModuleSource(CALLER.format("f", "e"), imports=["e"])

        def build() -> ModuleSource:
            cache.get_or_compile("f", build_callee)
            built.append("g")
            return ModuleSource(CALLER.format("g", "f"), imports=["f"])

        load = cache._loader.load

        def removing(*arguments: Any) -> Any:
            for name in filter(other.has, ("e", "f") if arguments[0] == "g" else ()):
                other.remove(name, force=True)
            return load(*arguments)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(cache._loader), "load", lambda _, *arguments: removing(*arguments))
            target = cache.get_or_compile("g", build)
        assert target(1) == 2
        assert built == ["g"]
        assert other.has("g")
        assert not other.has("f")


@pytest.mark.parametrize("imports", [["f"], None])
def test_a_callee_that_nobody_provides_is_asked_for_once_more(cache: Cache, imports: list[str] | None) -> None:
    """The load misses a function that `imports` names, the compilation any other one."""
    built = []

    def build() -> ModuleSource:
        built.append("g")
        return ModuleSource(CALLER.format("g", "f"), imports=imports)

    with pytest.raises(UndefinedSymbolError, match="f"):
        cache.get_or_compile("g", build)
    assert built == ["g", "g"]


def test_a_source_without_the_requested_function_is_not_asked_for_again(cache: Cache) -> None:
    built = []

    def build() -> ModuleSource:
        built.append("g")
        return ModuleSource(adder("other", 1))

    with pytest.raises(UndefinedSymbolError, match="export each requested function"):
        cache.get_or_compile("g", build)
    assert built == ["g"]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("way", ["get_or_compile", "add_missing"])
def test_a_callee_that_is_removed_before_the_compilation_is_asked_for_again(
    directory: Path, way: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes a function after `build` has seen it in the directory."""
    built = []
    with Cache(directory) as cache, Cache(directory) as other:

        def build() -> ModuleSource:
            other.add_module(ModuleSource(adder("f", 1)))
            built.append("g")
            return ModuleSource(CALLER.format("g", "f"))

        def removing(session: Any, source: ModuleSource, *arguments: Any, **options: Any) -> Any:
            if session is cache._session() and len(built) <= times:
                other.remove("f", force=True)
            return build_source(session, source, *arguments, **options)

        monkeypatch.setattr("compcache.miss.build.build_source", removing)
        if way == "add_missing":
            assert add_missing(cache, ["g"], build).functions == ("g",)
        assert cache.get_or_compile("g", build)(1) == 2
        assert built == ["g"] * (times + 1)


def test_a_callee_that_a_build_has_received_is_compiled_against_whatever_others_remove(directory: Path) -> None:
    """Another process removes a function each time that the compilation looks for it in the directory."""
    built = []
    with Cache(directory) as cache, Cache(directory) as other:

        def build() -> ModuleSource:
            cache.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))
            built.append("g")
            return ModuleSource(CALLER.format("g", "f"))

        holds = type(cache._loader).holds

        def removing(loader: Any, name: str, *, to_import: bool = False) -> bool:
            if to_import and name == "f" and other.has("f"):
                other.remove("f", force=True)
            return holds(loader, name, to_import=to_import)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(cache._loader), "holds", removing)
            target = cache.get_or_compile("g", build)
        assert target(1) == 2
        assert built == ["g"]
