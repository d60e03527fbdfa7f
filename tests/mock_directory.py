"""Directory trees held in memory, and a double of the package's file operations.

`MockDirectory` builds the states that races and crashes leave behind: read two directories, merge them, dump the
result. `FaultyFiles` stands in for `compcache.files.Files` (``Store(root, files=...)``): it counts the operations on
a real directory, fails or stops at the n-th, tears writes, and knows what a power failure would leave behind.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compcache import Cache
from compcache.files import Files
from compcache.hit.loader import Loader
from compcache.hit.recorder import recorder_for
from compcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Plan = Callable[["Operation"], "BaseException | int | None"]

__all__ = [
    "READING",
    "ConflictError",
    "Crash",
    "DyingFiles",
    "FaultyFiles",
    "KilledError",
    "MockDirectory",
    "Operation",
    "cache_on",
    "crash_after",
    "crash_before",
    "fail_at",
    "full_disk",
    "no_permission",
    "read_only",
    "tear_at",
]

_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


class ConflictError(Exception):
    """Raised when two trees hold different files of the same name, and nothing says which one counts."""


class MockDirectory:
    """A tree of directories and files in memory: relative paths and bytes. Values; every operation makes a new one."""

    def __init__(self, files: Mapping[str, bytes] | None = None, directories: tuple[str, ...] = ()) -> None:
        self.files: dict[str, bytes] = {_checked(path): bytes(data) for path, data in (files or {}).items()}
        parents = [str(parent) for path in self.files for parent in Path(path).parents]
        below = [
            str(parent) for path in directories for parent in [Path(_checked(path)), *Path(path).parents]
        ]
        self.directories: frozenset[str] = frozenset([*parents, *below]) - {"."}
        for path in self.files:
            if path in self.directories:
                raise ConflictError(f"{path} is a file and a directory")

    @classmethod
    def read(cls, root: os.PathLike[str] | str) -> MockDirectory:
        """The tree at a path; symbolic links and special files are refused."""
        files: dict[str, bytes] = {}
        directories = []
        for path in sorted(Path(root).rglob("*")):
            mode = path.lstat().st_mode
            name = path.relative_to(root).as_posix()
            if stat.S_ISDIR(mode):
                directories.append(name)
            elif stat.S_ISREG(mode):
                files[name] = path.read_bytes()
            else:
                raise ValueError(f"{path} is neither a file nor a directory")
        return cls(files, tuple(directories))

    def merge(self, other: MockDirectory, *, conflict: str = "error") -> MockDirectory:
        """The union of two trees. `conflict`: "error", "ours" or "theirs" where the same file differs."""
        if conflict not in ("error", "ours", "theirs"):
            raise ValueError(f"conflict is 'error', 'ours' or 'theirs', not {conflict!r}")
        differing = [path for path, data in other.files.items() if self.files.get(path, data) != data]
        if differing and conflict == "error":
            raise ConflictError(f"both trees hold {', '.join(sorted(differing))}, with different content")
        first, last = (other, self) if conflict == "ours" else (self, other)
        return MockDirectory(first.files | last.files, (*self.directories, *other.directories))

    def without(self, *prefixes: str) -> MockDirectory:
        """The tree less the files and directories of these names."""

        def stays(path: str) -> bool:
            return not any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)

        files = {path: data for path, data in self.files.items() if stays(path)}
        return MockDirectory(files, tuple(filter(stays, self.directories)))

    def dump(self, root: os.PathLike[str] | str) -> Path:
        """Write the tree to a path that does not exist yet, private to this user; the path."""
        base = Path(root)
        base.mkdir(_DIRECTORY_MODE, parents=True)
        base.chmod(_DIRECTORY_MODE)
        for directory in sorted(self.directories):
            (base / directory).mkdir(_DIRECTORY_MODE, exist_ok=True)
        for name, data in self.files.items():
            (base / name).write_bytes(data)
            (base / name).chmod(_FILE_MODE)
        return base

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MockDirectory):
            return NotImplemented
        return self.files == other.files and self.directories == other.directories

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<MockDirectory of {len(self.files)} files in {len(self.directories)} directories>"


def _checked(path: str) -> str:
    parts = path.split("/")
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{path!r} is not a plain relative path")
    return path


class Crash(BaseException):
    """Stops the code under test as SIGKILL would: nothing that it does afterwards reaches the disk."""


class Operation(NamedTuple):
    """One file operation: its number, from 0, among those counted; its name, path (both for a rename) and size."""

    number: int
    name: str
    path: str
    target: str = ""
    size: int = 0
    creates: bool = False

    @property
    def mutates(self) -> bool:
        """Whether it changes what is on the disk."""
        return self.creates or self.name not in READING


#: The operations that change nothing, where `open` does not create a file. What is not named here changes something.
READING = frozenset(("open", "stat", "lstat", "fstat", "listdir", "pread"))


def fail_at(number: int, error: OSError) -> Plan:
    """Operation `number` fails."""
    return lambda operation: error if operation.number == number else None


def crash_before(number: int) -> Plan:
    """The process ends when it is about to do operation `number`."""
    return lambda operation: Crash(operation) if operation.number >= number else None


def crash_after(number: int) -> Plan:
    """The process ends when operation `number` has been done."""
    return crash_before(number + 1)


def tear_at(number: int, size: int) -> Plan:
    """Of write `number` only the first `size` bytes are written before the process ends."""

    def plan(operation: Operation) -> BaseException | int | None:
        if operation.number == number and operation.name == "write":
            return min(size, operation.size)
        return Crash(operation) if operation.number >= number else None

    return plan


def full_disk(room: int = 0) -> Plan:
    """No more than `room` bytes can be written, and then no file or directory be made."""
    left = room

    def plan(operation: Operation) -> BaseException | None:
        nonlocal left
        takes = operation.size if operation.name == "write" else 0
        if left <= 0 and (operation.name in ("mkdir", "write") or operation.creates):
            return _error(errno.ENOSPC, operation)
        if takes > left:
            left = 0
            return _error(errno.ENOSPC, operation)
        left -= takes
        return None

    return plan


def no_permission(*prefixes: str) -> Plan:
    """Every operation on a path that contains one of these texts is refused; without any, every mutation."""

    def plan(operation: Operation) -> BaseException | None:
        concerned = any(prefix in operation.path for prefix in prefixes) if prefixes else operation.mutates
        return _error(errno.EACCES, operation) if concerned else None

    return plan


def read_only() -> Plan:
    """A read-only file system."""
    return lambda operation: _error(errno.EROFS, operation) if operation.mutates else None


def _error(number: int, operation: Operation) -> OSError:
    return OSError(number, os.strerror(number), operation.path)


def cache_on(files: FaultyFiles) -> Cache:
    """A cache whose operations on its directory go through the double."""
    cache = Cache(files.root)
    cache._store.close()
    cache._store = Store(files.root, files=files, recorder=recorder_for)
    cache._loader = Loader(cache._store, allow_pickle=False)
    cache._plain, cache._targets = cache._loader, cache._loader.targets
    return cache


def _exists(path: Any, dir_fd: int | None) -> bool:
    try:
        os.lstat(path, dir_fd=dir_fd)
    except OSError:
        return False
    return True


class _Node:
    """A file: what is on the disk for certain."""

    __slots__ = ("synced",)

    def __init__(self, synced: bytes) -> None:
        self.synced = synced


class FaultyFiles(Files):
    """File operations on a real directory that can be made to go wrong.

    Once the process has ended (`crashed`) every operation raises `Crash` and does nothing, also one that reads, or is elsewhere, or
    is new in `Files`: whoever takes one from here gets it behind a gate (`__getattribute__`). Only `close` goes on, as the kernel does.

    Args:
        root: the directory; operations elsewhere are passed on, neither counted nor changed.
        plan: asked before every operation: an exception to raise, the number of bytes after which a write is torn
            and the process ends, or None. Assign `plan` to change it, `reset` to count anew.
        count: which operations get a number and meet the plan: by default those that change something.
    """

    __slots__ = ("_events", "_initial", "_nodes", "_opened", "count", "crashed", "operations", "plan", "root")

    def __init__(
        self,
        root: os.PathLike[str] | str,
        plan: Plan | None = None,
        *,
        count: Callable[[Operation], bool] = lambda operation: operation.mutates,
    ) -> None:
        self.root = os.path.abspath(root)
        self.plan = plan
        self.count = count
        self.reset()

    def reset(self) -> None:
        """Forget what happened: what is on the disk now is safe there, and the next operation is number 0."""
        exists = Path(self.root).is_dir()
        tree = MockDirectory.read(self.root) if exists else MockDirectory()
        self.operations: list[Operation] = []
        self.crashed = False
        self._initial: dict[str, _Node | None] = dict.fromkeys(tree.directories)
        self._initial.update({path: _Node(data) for path, data in tree.files.items()})
        self._nodes = dict(self._initial)
        self._events: list[tuple[str, str, str, _Node | None]] = []
        opened = getattr(self, "_opened", {})
        self._opened: dict[int, tuple[str, _Node | None]] = {
            descriptor: (name, self._nodes.get(name)) for descriptor, (name, _) in opened.items()
        }

    if not TYPE_CHECKING:  # the types of attributes are those of the class

        def __getattribute__(self, name):
            found = super().__getattribute__(name)
            if name.startswith("_") or name == "close" or not hasattr(Files, name):
                return found
            return partial(self._while_alive, name, found)

    def _while_alive(self, name: str, operation: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """The one gate before all operations of `Files`."""
        if self.crashed:
            raise Crash(f"{name} after the end of the process")
        return operation(*args, **named)

    # ------------------------------------------------------------- what a power failure leaves

    @property
    def names_changed(self) -> int:
        """How many operations have changed names: creations, renames, removals."""
        return len(self._events)

    def after_power_failure(self, names: int | None = None) -> MockDirectory:
        """What is on the disk after the power failed: content as of the last fsync of each file, empty without one.

        Args:
            names: how many of the changes of names had reached the disk, in their order (as journaling file
                systems do it); None means all of them.
        """
        tree = dict(self._initial)
        for name, path, target, node in self._events[:names]:
            if name in ("unlink", "rmdir"):
                tree.pop(path, None)
            elif name == "rename":
                tree.pop(path, None)
                tree[target] = node
            else:
                tree[path] = node
        files = {path: node.synced for path, node in tree.items() if node is not None}
        return MockDirectory(files, tuple([path for path, node in tree.items() if node is None and path]))

    # ------------------------------------------------------------------------ the operations

    def _inside(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path relative to the root; None where it is elsewhere. `path` may be a descriptor, or begin at one."""
        if isinstance(path, int):
            return self._opened.get(path, (None, None))[0]
        if dir_fd is not None:
            above = self._opened.get(dir_fd, (None, None))[0]
            return None if above is None else os.path.normpath(f"{above}/{path}").strip("/.")
        text = os.path.abspath(os.fspath(path))
        if text == self.root:
            return ""
        return text[len(self.root) + 1 :] if text.startswith(f"{self.root}/") else None

    def _meet(self, name: str, path: str | None, **details: Any) -> int | None:
        """Record an operation and let the plan decide; the number of bytes after which to tear a write."""
        if path is None:
            return None
        operation = Operation(len(self.operations), name, path, **details)
        if not self.count(operation):
            return None
        self.operations.append(operation)
        decision = self.plan(operation) if self.plan is not None else None
        if isinstance(decision, BaseException):
            self.crashed = self.crashed or isinstance(decision, Crash)
            raise decision
        return decision

    def _changed(self, name: str, path: str | None, target: str | None = None) -> None:
        if path is None:
            return
        if name == "rename":
            assert target is not None
            node = self._nodes.pop(path, None)
            self._nodes[target] = node
        elif name == "link":
            assert target is not None
            node = self._nodes.get(path)
            path, target = target, None
            self._nodes[path] = node
        elif name in ("unlink", "rmdir"):
            node = self._nodes.pop(path, None)
        else:
            node = self._nodes.setdefault(path, _Node(b"") if name == "create" else None)
        self._events.append((name, path, target or "", node))

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = self._inside(path, dir_fd)
        creates = bool(flags & os.O_CREAT) and name is not None and not _exists(path, dir_fd)
        self._meet("open", name, creates=creates)
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        if name is not None:
            if creates:
                self._changed("create", name)
            self._opened[descriptor] = name, self._nodes.get(name)
        return descriptor

    def close(self, descriptor: int) -> None:
        # A process that has ended has closed its files: never fails, never counts.
        self._opened.pop(descriptor, None)
        os.close(descriptor)

    def write(self, descriptor: int, data: Any) -> int:
        name = self._opened.get(descriptor, (None, None))[0]
        torn = self._meet("write", name, size=len(data))
        if torn is None:
            return os.write(descriptor, data)
        os.write(descriptor, bytes(data)[:torn])
        self.crashed = True
        raise Crash(f"after {torn} of {len(data)} bytes of {name}")

    def utime(self, descriptor: int, *, ns: tuple[int, int]) -> None:  # type: ignore[override]
        self._meet("utime", self._opened.get(descriptor, (None, None))[0])
        os.utime(descriptor, ns=ns)

    def fsync(self, descriptor: int) -> None:  # type: ignore[override]
        name, node = self._opened.get(descriptor, (None, None))
        self._meet("fsync", name)
        os.fsync(descriptor)
        if node is not None:
            node.synced = os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        name = self._inside(path, dir_fd)
        self._meet("mkdir", name)
        os.mkdir(path, mode, dir_fd=dir_fd)
        self._changed("mkdir", name)

    def rename(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        names = self._inside(source, src_dir_fd), self._inside(target, dst_dir_fd)
        self._meet("rename", names[0], target=names[1] or "")
        os.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._changed("rename", *names)

    def link(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> None:
        names = self._inside(source, src_dir_fd), self._inside(target, dst_dir_fd)
        self._meet("link", names[1])
        os.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
        if names[0] is None:  # of a file elsewhere
            self._changed("create", names[1])
        elif names[1] is not None:
            self._changed("link", *names)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        name = self._inside(path, dir_fd)
        self._meet("unlink", name)
        os.unlink(path, dir_fd=dir_fd)
        self._changed("unlink", name)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        name = self._inside(path, dir_fd)
        self._meet("rmdir", name)
        os.rmdir(path, dir_fd=dir_fd)
        self._changed("rmdir", name)

    def chmod(self, path: Any, mode: int) -> None:  # type: ignore[override]
        self._meet("chmod", self._inside(path))
        os.chmod(path, mode)

    def fchmod(self, descriptor: int, mode: int) -> None:
        self._meet("fchmod", self._opened.get(descriptor, (None, None))[0])
        os.fchmod(descriptor, mode)

    def stat(self, path: Any) -> os.stat_result:  # type: ignore[override]
        self._meet("stat", self._inside(path))
        return os.stat(path)

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        self._meet("lstat", self._inside(path, dir_fd))
        return os.lstat(path, dir_fd=dir_fd)

    def fstat(self, descriptor: int) -> os.stat_result:
        self._meet("fstat", self._opened.get(descriptor, (None, None))[0])
        return os.fstat(descriptor)

    def listdir(self, path: Any) -> list[str]:  # type: ignore[override]
        self._meet("listdir", self._inside(path))
        return os.listdir(path)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self._meet("pread", self._opened.get(descriptor, (None, None))[0], size=size)
        return os.pread(descriptor, size, offset)

    def mutations(self) -> Iterator[Operation]:
        """The operations so far that change something."""
        return (operation for operation in self.operations if operation.mutates)


class KilledError(Exception):
    """What a test raises in place of a kill."""


class DyingFiles(Files):
    """File operations that end with an exception at the n-th one that changes the disk."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KilledError

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:  # type: ignore[override]
        self._step()
        os.unlink(path, dir_fd=dir_fd)

    def rename(self, source: str, target: str, **directories: int) -> None:  # type: ignore[override]
        self._step()
        os.replace(source, target, **directories)
