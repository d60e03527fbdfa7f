"""The doubles that other tests build on: trees in memory, and file operations that go wrong."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from helpers import constant
from mock_directory import (
    ConflictError,
    Crash,
    FaultyFiles,
    MockDirectory,
    crash_after,
    crash_before,
    fail_at,
    full_disk,
    no_permission,
    read_only,
    tear_at,
)

from compcache.directory.places import Place
from compcache.files import Files, Tree
from compcache.publish.atomic_file import make_directories, publish
from compcache.publish.writer import publish_file
from compcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DATA = b"0123456789"


def write(files: Files, root: Path, name: str = "a/file", *, sync: bool = True) -> None:
    publish(files, f"{root}/tmp", f"{root}/{name}", [DATA], sync=sync)


def test_a_tree_that_is_dumped_and_read_again_is_the_same(tmp_path: Path) -> None:
    tree = MockDirectory({"a/b/c": b"1", "d": b""}, ("e/f",))
    root = tree.dump(tmp_path / "there")
    assert MockDirectory.read(root) == tree
    assert tree.directories == {"a", "a/b", "e", "e/f"}
    assert root.stat().st_mode & 0o777 == 0o700
    assert (root / "a/b/c").stat().st_mode & 0o777 == 0o600


def test_a_dump_never_mixes_with_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        MockDirectory({"a": b""}).dump(tmp_path)


def test_a_merge_is_the_union() -> None:
    first, second = (
        MockDirectory({"a": b"1", "same": b"s"}, ("x",)),
        MockDirectory({"b/c": b"2", "same": b"s"}),
    )
    merged = first.merge(second)
    assert merged == MockDirectory({"a": b"1", "b/c": b"2", "same": b"s"}, ("x",))
    assert first == MockDirectory({"a": b"1", "same": b"s"}, ("x",))  # as it was


def test_a_merge_does_not_choose_between_different_files_unless_told() -> None:
    ours, theirs = MockDirectory({"a": b"ours"}), MockDirectory({"a": b"theirs"})
    with pytest.raises(ConflictError, match="a, with different content"):
        ours.merge(theirs)
    assert ours.merge(theirs, conflict="ours") == ours
    assert ours.merge(theirs, conflict="theirs") == theirs
    with pytest.raises(ValueError, match="'newest'"):
        ours.merge(theirs, conflict="newest")


def test_a_file_and_a_directory_of_one_name_do_not_merge() -> None:
    with pytest.raises(ConflictError):
        MockDirectory({"a": b""}).merge(MockDirectory({"a/b": b""}))


def test_without_leaves_the_rest() -> None:
    tree = MockDirectory({"a/b": b"", "ab": b"", "c": b""}, ("a/d",))
    assert tree.without("a", "c") == MockDirectory({"ab": b""})


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "", "a//b", "."])
def test_paths_outside_the_tree_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="plain relative path"):
        MockDirectory({path: b""})


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(ValueError, match="neither"):
        MockDirectory.read(tmp_path)


def test_faulty_files_without_a_plan_do_what_files_do(tmp_path: Path) -> None:
    plain, faulty = tmp_path / "plain", tmp_path / "faulty"
    write(Files(), plain)
    files = FaultyFiles(faulty)
    write(files, faulty)
    assert MockDirectory.read(plain) == MockDirectory.read(faulty)
    names = [operation.name for operation in files.operations if operation.path]
    assert names == ["open", "mkdir", "mkdir", "open", "write", "utime", "fsync", "rename", "mkdir", "rename"]


def test_it_overrides_every_operation_of_the_real_one() -> None:
    made_of_others = ("open_owned", "own")
    operations = [name for name in vars(Files) if not name.startswith("_") and name not in made_of_others]
    assert operations
    assert [name for name in operations if name not in vars(FaultyFiles)] == []


def test_operations_elsewhere_are_not_counted(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path / "root", crash_before(0))
    write(files, tmp_path / "elsewhere")
    assert files.operations == []


def test_the_nth_operation_fails(tmp_path: Path) -> None:
    for number in range(8):
        root = tmp_path / str(number)
        files = FaultyFiles(root)
        make_directories(files, f"{root}/a")
        make_directories(files, f"{root}/tmp")
        files.reset()
        files.plan = fail_at(number, OSError(errno.EIO, "it broke"))
        if number in (0, 1, 3, 4):  # not what sets the time, which may fail
            with pytest.raises(OSError, match="it broke"):
                write(files, root)
            assert not (root / "a/file").exists()
        else:
            write(files, root)
            assert (root / "a/file").read_bytes() == DATA
        assert MockDirectory.read(root).without("a").files == {}  # and no leftovers in tmp


def test_after_a_crash_nothing_reaches_the_disk_not_even_tidying(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    make_directories(files, f"{tmp_path}/tmp")
    files.reset()
    files.plan = crash_after(1)  # the write; a process that could still act would remove the scratch file
    with pytest.raises(Crash):
        write(files, tmp_path)
    assert [data for path, data in MockDirectory.read(tmp_path).files.items()] == [DATA]
    with pytest.raises(Crash):
        files.mkdir(f"{tmp_path}/more")
    assert files.crashed


def operations_of_files() -> list[str]:
    """The public operations of the class that the double stands in for."""
    return [name for name in vars(Files) if not name.startswith("_")]


@pytest.mark.parametrize("name", operations_of_files())
def test_after_its_death_it_does_nothing_at_all(tmp_path: Path, name: str) -> None:
    files = FaultyFiles(tmp_path)
    tree = Tree(files, str(tmp_path))  # which takes some operations once and for all
    descriptor = files.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    files.plan = crash_before(0)
    files.reset()
    with pytest.raises(Crash):
        files.mkdir(tmp_path / "more")
    if name == "close":  # the kernel closes what the process had open
        files.close(descriptor)
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            os.fstat(descriptor)
        return
    with pytest.raises(Crash):
        getattr(files, name)()  # not a TypeError: the gate is before everything
    if name in Tree.__slots__:
        with pytest.raises(Crash):
            getattr(tree, name)()
    files.close(descriptor)


def test_links_modes_and_times_do_not_change_after_its_death(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    files = FaultyFiles(tmp_path, crash_before(0))
    before = (tmp_path / "file").stat()
    late: list[Callable[[], object]] = [
        lambda: files.mkdir(tmp_path / "more"),
        lambda: files.link(tmp_path / "file", tmp_path / "second"),
        lambda: files.chmod(tmp_path / "file", 0o400),
        lambda: files.utime(0, ns=(1, 1)),
        lambda: files.listdir(tmp_path),
        lambda: files.mkdir(elsewhere),
    ]
    for operation in late:
        with pytest.raises(Crash):
            operation()
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").stat()[:9] == before[:9]
    assert not elsewhere.exists()


def test_a_link_keeps_what_was_synced_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(DATA)
    files = FaultyFiles(tmp_path)
    files.link(tmp_path / "old", tmp_path / "new")
    files.unlink(tmp_path / "old")
    assert [files.after_power_failure(names).files for names in range(3)] == [
        {"old": DATA},
        {"old": DATA, "new": DATA},
        {"new": DATA},
    ]


def test_a_torn_write_leaves_its_first_bytes(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    make_directories(files, f"{tmp_path}/tmp")
    files.reset()
    files.plan = tear_at(1, 4)
    with pytest.raises(Crash):
        write(files, tmp_path)
    assert list(MockDirectory.read(tmp_path).files.values()) == [DATA[:4]]


def test_a_power_failure_keeps_what_was_synced(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    files = FaultyFiles(tmp_path)
    write(files, tmp_path, "synced")
    write(files, tmp_path, "unsynced", sync=False)
    files.unlink(tmp_path / "old")
    assert files.after_power_failure().files == {"synced": DATA, "unsynced": b""}
    assert files.after_power_failure(0) == MockDirectory({"old": b"old"})
    states = [files.after_power_failure(names) for names in range(files.names_changed + 1)]
    assert [sorted(name for name in state.files if "/" not in name) for state in states] == [
        ["old"],
        ["old"],  # tmp/ was made
        ["old"],  # the first scratch file
        ["old", "synced"],
        ["old", "synced"],  # the second scratch file
        ["old", "synced", "unsynced"],
        ["synced", "unsynced"],
    ]
    assert all(state.files.get("synced", DATA) == DATA for state in states)


def test_renaming_onto_a_file_replaces_it_after_a_power_failure_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    files = FaultyFiles(tmp_path)
    write(files, tmp_path, "file")
    contents = [files.after_power_failure(names).files["file"] for names in range(files.names_changed + 1)]
    assert contents == [b"old", b"old", b"old", DATA]


@pytest.mark.parametrize(
    ("plan", "number"),
    [(full_disk(), errno.ENOSPC), (no_permission(), errno.EACCES), (read_only(), errno.EROFS)],
)
def test_disks_that_refuse(tmp_path: Path, plan: object, number: int) -> None:
    files = FaultyFiles(tmp_path, plan)  # type: ignore[arg-type]
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        write(files, tmp_path)
    assert caught.value.errno == number
    assert MockDirectory.read(tmp_path) == MockDirectory()
    assert files.listdir(tmp_path) == []  # reading goes on


def test_a_disk_fills_up(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path, full_disk(25))
    write(files, tmp_path, "1")
    write(files, tmp_path, "2")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write(files, tmp_path, "3")
    assert MockDirectory.read(tmp_path).without("tmp").files == {"1": DATA, "2": DATA}


def test_permissions_can_be_denied_to_one_directory(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path, no_permission("secret"), count=lambda _: True)
    files.mkdir(f"{tmp_path}/plain")
    with pytest.raises(PermissionError):
        files.listdir(f"{tmp_path}/secret")


def test_a_store_works_on_faulty_files(directory: Path) -> None:
    files = FaultyFiles(directory)
    store = Store(str(directory), files=files)
    publish_file(store, Place("somewhere/<name>"), "some", constant("f", 1).encode())
    assert [operation.name for operation in files.mutations()] == [
        "mkdir",
        "open",
        "write",
        "utime",
        "fsync",
        "mkdir",
        "rename",
    ]
    assert files.after_power_failure().files["somewhere/some"] == constant("f", 1).encode()
