"""The file operations that the package uses.

`Files` is the interface to the operating system. Every effect on disk goes through one of its methods, so tests can count, fail or drop
operations (`tests/mock_directory.py`). `Tree` accesses the files of a cache directory, and follows no symbolic links.
"""

from __future__ import annotations

import os
import stat as stat_module
from errno import EACCES, EBADF, EIO, ELOOP, EMFILE, ENAMETOOLONG, ENFILE, ENOENT, ENOMEM, ENOTDIR, EPERM, ESTALE, ETIMEDOUT
from sys import audit

from compcache.interrupts import reraise_interrupt, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol, TypeVar

    class Opened(Protocol):
        """An open file, which is closed with the last reference to this object. `number` is its descriptor."""

        number: int

    OpenBeneath = Callable[[int, str, int, int], Opened]
    _T = TypeVar("_T")

__all__ = [
    "DIRECTORY_MODE", "FILE_MODE", "READ_FLAGS", "SHORTAGES", "UNANSWERED", "UNUSABLE", "WRITABLE_BY_OTHERS", "Files", "Tree",
    "absolute_path", "not_missing", "read_at", "read_file", "writer",
]  # fmt: skip

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
WRITABLE_BY_OTHERS = 0o022
#: Flags that do not follow symbolic links, and do not wait for the other end of a pipe.
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
#: The errors of a file that does not exist or that this process may not or cannot open. Other errors may be gone at the next attempt.
UNUSABLE = (ENOENT, ENOTDIR, EACCES, EPERM, ELOOP, ENAMETOOLONG)
#: The errors of a file that exists, after which another attempt may succeed: shortages of this process or the system, and a disk or a
#: server that does not answer. ESTALE is not one: another host has removed the file. A disk may never answer, so `UNANSWERED` stops only
#: what would use other code instead. Questions are answered without the file.
SHORTAGES = (EMFILE, ENFILE, ENOMEM)
UNANSWERED = (*SHORTAGES, EIO, ETIMEDOUT)
_CHUNK = 1 << 20


def absolute_path(path: str) -> str:
    """Return the absolute form of a path.

    Raise `StorageError` if the path is empty or contains the character NUL, or it is relative and the current directory has been removed.
    """
    from compcache.errors import StorageError  # the module `errors` creates some thirty classes

    if not path:
        raise StorageError("the path is empty: give a path, or leave the argument out for the default", path=path)
    if "\0" in path:
        raise StorageError(f"the path {path!r} contains the character NUL: give a path without it", path=path)
    try:
        return os.path.abspath(path)
    except FileNotFoundError as error:
        reraise_interrupt(error)
        message = (
            f"the path {path!r} is relative, but the current directory no longer exists: change the directory, or use an absolute path"
        )
        raise StorageError(message, path=path, errno=error.errno) from error


def not_missing(paths: Iterable[str]) -> list[str]:
    """Return the paths that may name a file: those with a file or a link, even a broken one, and those that this user may not examine.

    A path below a broken link is returned, too. If this user may not search for the directory, as in the home of another user, the path
    is not returned.
    """
    found = []
    for path in paths:
        try:
            os.lstat(path)
        except OSError as error:
            reraise_interrupt(error)
            directory = os.path.dirname(path)
            if os.access(directory, os.F_OK):
                is_missing = error.errno in (ENOENT, ENOTDIR)
            else:
                while directory and not os.access(directory, os.F_OK, follow_symlinks=False):
                    directory = os.path.dirname(directory)
                is_missing = error.errno in UNUSABLE and (os.access(directory, os.F_OK) or not os.path.islink(directory))
            if is_missing:
                continue
        found.append(path)
    return found


class Files:
    """The calls of the operating system, as one method each. They raise the `OSError`s of `os`."""

    __slots__ = ()

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(os.stat)
    lstat = staticmethod(os.lstat)
    listdir = staticmethod(os.listdir)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    mkdir = staticmethod(os.mkdir)
    rename = staticmethod(os.replace)
    link = staticmethod(os.link)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    pread = staticmethod(os.pread)
    utime = staticmethod(os.utime)
    chmod = staticmethod(os.chmod)
    fchmod = staticmethod(os.fchmod)

    def open_owned(self, path: str, flags: int, mode: int = FILE_MODE) -> Opened:
        """Open a file as `os.open` does. It is closed when the last reference to the result is dropped, even if a signal handler raises."""
        return _Opened(self, self.open(path, flags, mode))

    def own(self, descriptor: int) -> Opened:
        """Return an object that closes a descriptor when its last reference is dropped."""
        return _Opened(self, descriptor)


#: Flags for the directories on a path, which are opened only as paths. Below the root, symbolic links are refused.
_PASSING = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_ENTERING = _PASSING | os.O_NOFOLLOW
_LISTING = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class _Opened:
    """Implements `Opened` without the native runtime: `Files` closes the descriptor."""

    __slots__ = ("_files", "number")

    def __init__(self, files: Files, number: int) -> None:
        self._files = files
        self.number = number

    def __del__(self) -> None:
        if self.number >= 0:
            try:
                self._files.close(self.number)
            except OSError:
                return  # other code has closed the descriptor, and a finalizer cannot raise


class _Root:
    """The open root of a tree. Its descriptor `number` never changes, and is closed with the last reference to the root."""

    __slots__ = ("identity", "is_link", "is_new", "number", "opened")

    def __init__(self, opened: Opened, identity: tuple[int, int], *, is_link: bool) -> None:
        self.opened = opened
        self.number = opened.number
        self.identity = identity
        self.is_link = is_link
        self.is_new = True


class Tree(Files):
    """The files below a directory, the root, by their paths. Symbolic links below the root are never followed.

    Every operation starts from a descriptor of the root, opens the directory that contains the file, and acts in this directory, with the
    ``*at`` calls of POSIX. If another process replaces a directory, the operation fails or acts in the opened directory, never elsewhere.
    A symbolic link on the path raises an ``OSError`` with ELOOP. The root and the directories above it may be links, because the user who
    opens the cache chooses them, unless the tree is a part of another tree. `status`, `look_again`, listings, and operations that fail
    detect that the root was removed or replaced. Other operations act in the directory that was opened.

    Args:
        files: the operating system.
        root: the directory, absolute. It need not exist.
        open_beneath: opens (descriptor of a directory, path below it, flags, mode) in one call, following no links. None opens one
            directory after another.

    Attributes:
        require_trusted: called with the status of each opened root and the status of its path, before the tree uses the root. If it raises,
            the tree does not use the root. None: any root is used.
    """

    __slots__ = (
        "_above", "_beneath", "_prefix", "_root", "close", "fstat", "fsync", "pread", "require_trusted", "root", "system", "utime", "write",
    )  # fmt: skip

    def __init__(self, files: Files, root: str, open_beneath: OpenBeneath | None = None) -> None:
        self.root = root
        self._prefix = root if root.endswith("/") else root + "/"
        self.system = files
        self._beneath = open_beneath
        self.require_trusted: Callable[[os.stat_result, os.stat_result], object] | None = None
        self._above: Tree | None = None
        self._root: _Root | None = None
        for name in ("close", "fstat", "fsync", "pread", "utime", "write"):  # operations on descriptors do not use paths
            setattr(self, name, getattr(files, name))

    # --------------------------------------------------------------- the root

    def part(self, root: str) -> Tree:
        """Return the tree of a directory below this root. Its root must not be a link either."""
        tree = Tree(self.system, root, self._beneath)
        tree._above = self
        return tree

    def status(self, *, is_trusted: bool = False) -> tuple[os.stat_result, os.stat_result]:
        """Open the root, and return its status and the status of its path. They differ if the path is a link.

        With `is_trusted`, `require_trusted` is not called.
        """
        root, status = self._enter_root(is_trusted=is_trusted)
        return status, self._status_of_path(root, status)

    def _status_of_path(self, root: _Root, status: os.stat_result) -> os.stat_result:
        """Return the status of the root's path. `status` is the status of the root itself."""
        return self.system.lstat(self.root) if root.is_link else status

    def look_again(self) -> None:
        """Forget the root if it was removed or replaced. The first call after the root was opened does not check this."""
        root = self._root
        if root is not None and not root.is_new and not self._is_at_path(root):
            self._root = None
        elif root is not None:
            root.is_new = False

    def forget(self) -> None:
        """Close the root. The next operation opens it again."""
        self._root = None

    def _enter_root(self, *, is_trusted: bool = False) -> tuple[_Root, os.stat_result]:
        """Open the root of the tree, keep it for later calls, and return it with its status.

        Check that the root can be trusted, unless `is_trusted` is true. Raise `OSError` if it cannot be opened, or is not trusted.
        """
        self._root, is_link = None, False
        try:
            opened = self._above.open_owned(self.root, _ENTERING) if self._above else self._open_outside(self.root, _ENTERING)
        except OSError as error:  # the root is a link, or cannot be opened; the error number depends on the system
            reraise_interrupt(error)
            if self._above is not None:
                raise
            opened = self._open_outside(self.root, _PASSING)
            is_link = True
        status = self.system.fstat(opened.number)
        root = _Root(opened, (status.st_dev, status.st_ino), is_link=is_link)
        if self.require_trusted is not None and not is_trusted:
            self.require_trusted(status, self._status_of_path(root, status))
        self._root = root
        return root, status

    def _open_outside(self, path: str, flags: int, mode: int = FILE_MODE) -> Opened:
        """Open a path that is not below the root. Links to directories on the path are followed."""
        if self._beneath is None:
            return self.system.open_owned(path, flags, mode)
        audit("open", path, None, flags)
        return self._beneath(-1, path, flags, mode)

    def _is_open(self, root: _Root) -> bool:
        """Return whether the root's descriptor still refers to the opened directory. If its status cannot be read, it does not."""
        try:
            opened = self.system.fstat(root.number)
            if (opened.st_dev, opened.st_ino) != root.identity:
                raise OSError(EBADF, "the descriptor belongs to another file", self.root)
        except OSError as error:
            reraise_interrupt(error)
            if error.errno == EBADF:  # a program may close all descriptors, as daemons do; then the number may belong to another file
                root.opened.number = -1
            return False
        return True

    def _is_at_path(self, root: _Root) -> bool:
        """Return whether the open root is still the directory at its path. If the path cannot be read, it is not."""
        with suppress(OSError):
            status = (self._above or self.system).stat(self.root)
            return (status.st_dev, status.st_ino) == root.identity
        return False

    # ------------------------------------------------------------- on the way

    def _relative(self, path: str) -> str:
        """Return a path relative to the root. Raise `OSError` if the path is outside of the root."""
        relative = path[len(self._prefix) :]
        if path.startswith(self._prefix) and not (".." in relative and "/../" in f"/{relative}/"):
            return relative
        if path == self.root:
            return "."
        raise OSError(f"the path {path} is not in the directory {self.root}")

    def _open_at(self, root: _Root, relative: str, flags: int, mode: int = 0) -> Opened:
        """Open a path relative to the root. No component of the path may be a symbolic link."""
        if self._beneath is not None:
            audit("open", self._prefix + relative, None, flags)  # as `os.open` does
            return self._beneath(root.number, relative, flags, mode)
        parent, name = self._open_parent(root, relative)
        return _Opened(self.system, self.system.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=parent.number))

    def _open_parent(self, root: _Root, relative: str) -> tuple[Opened, str]:
        """Open the directory that contains a file; return it and the file's name."""
        above, _, name = relative.rpartition("/")
        parent: Opened = root
        if not above:
            return parent, name
        for part in (above,) if self._beneath is not None else above.split("/"):
            parent = self._open_child(parent, part)
        return parent, name

    def _open_child(self, parent: Opened, part: str) -> Opened:
        """Open a directory in an opened directory. A symbolic link raises `OSError`."""
        if self._beneath is not None:
            return self._beneath(parent.number, part, _ENTERING, 0)
        return _Opened(self.system, self.system.open(part, _ENTERING, dir_fd=parent.number))

    def _run_in_root(self, path: str, act: Callable[[_Root, str], _T], *, changes: bool = True, also: str = "") -> _T:
        """Call `act` with the root and the relative path of a file; return its result.

        If `act` fails because the root was removed or replaced, it is repeated in the new root.

        Args:
            path: the file.
            act: the operation.
            changes: whether `act` changes files. Then the root's descriptor is checked first, because it may refer to another directory.
            also: another path that `act` uses, for messages.

        Raises:
            OSError: the operation fails. With ELOOP, the message names the symbolic link.
        """
        relative = self._relative(path)
        root, is_current = self._root, False
        if root is None or (changes and not self._is_open(root)):
            root = self._enter_root()[0]
        while True:
            root.is_new = False
            try:
                return act(root, relative)
            except OSError as error:
                reraise_interrupt(error)
                if error.errno in (ELOOP, ENOTDIR):  # the error number for a link depends on the system and the flags
                    link = self.first_link(path) or (self.first_link(also) if also else None)
                    if link is not None:
                        reason = "links in a cache directory are not followed: replace it by the file or directory"
                        raise OSError(ELOOP, f"{link} is a symbolic link, and {reason}", path) from error
                error.filename = path
                if is_current or (self._is_open(root) and self._is_at_path(root)):
                    _raise_gone(error, path)
                    raise
            root, is_current = self._enter_root()[0], True

    def first_link(self, path: str) -> str | None:
        """Return the path of the first symbolic link among a file and its directories, for messages; None if there is no link."""
        end = len(self._prefix)
        with suppress(OSError):
            root = self._root or self._enter_root()[0]
            while end >= 0:
                end = path.find("/", end + 1)
                prefix = path[:end] if end >= 0 else path
                parent, name = self._open_parent(root, self._relative(prefix))
                if stat_module.S_ISLNK(self.system.lstat(name, dir_fd=parent.number).st_mode):
                    return prefix
        return None

    # -------------------------------------------------------------- operations

    def open(self, path: str, flags: int, mode: int = FILE_MODE) -> int:  # type: ignore[override]
        """Open a file like `open_owned`, and return a descriptor that the caller has to close."""
        opened = self.open_owned(path, flags, mode)
        number, opened.number = opened.number, -1
        return number

    def open_owned(self, path: str, flags: int, mode: int = FILE_MODE) -> Opened:
        """Open a file as `os.open` does. A new file gets this mode despite the umask. Paths outside the root are opened directly."""
        if path != self.root and not path.startswith(self._prefix):
            return self._open_outside(path, flags, mode)
        creates = bool(flags & os.O_CREAT)
        opened = self._run_in_root(path, lambda root, relative: self._open_at(root, relative, flags, mode), changes=creates)
        if creates:
            self._set_mode(opened.number, mode)
        return opened

    def _set_mode(self, descriptor: int, mode: int) -> None:
        """Set the mode of an open file if the umask has changed it. Files of other users keep their mode."""
        if self.system.fstat(descriptor).st_mode & 0o777 & mode != mode:
            with suppress(OSError):
                self.system.chmod(f"/proc/self/fd/{descriptor}", mode)

    def stat(self, path: str) -> os.stat_result:  # type: ignore[override]
        """Return the status of a file or of a link, as `os.lstat` does."""

        def status(root: _Root, relative: str) -> os.stat_result:
            parent, name = self._open_parent(root, relative)
            return self.system.lstat(name, dir_fd=parent.number)

        return self._run_in_root(path, status, changes=False)

    lstat = stat  # type: ignore[assignment]

    def listdir(self, path: str) -> list[str]:  # type: ignore[override]
        """Return the names in a directory, as `os.listdir` does."""
        directory = self._open_directory(path)
        return self._list_opened(directory, path)

    def _list_opened(self, directory: Opened, path: str) -> list[str]:
        """Return the names in an opened directory. Raise `FileNotFoundError` if the directory was removed meanwhile."""
        try:
            return self.system.listdir(directory.number)  # type: ignore[arg-type]
        except OSError as error:
            reraise_interrupt(error)
            _raise_gone(error, path)
            raise

    def statuses(self, path: str) -> dict[str, os.stat_result]:
        """Return the statuses (`os.lstat`) of all files in a directory, by name, except files that are removed meanwhile.

        Raise `OSError` if the directory or a status cannot be read, `FileNotFoundError` if the directory was removed.
        """
        directory = self._open_directory(path)
        statuses = {}
        for name in self._list_opened(directory, path):
            try:
                statuses[name] = self.system.lstat(name, dir_fd=directory.number)
            except OSError as error:
                reraise_interrupt(error)
                if error.errno not in (ENOENT, ESTALE):
                    raise
                continue  # removed meanwhile
        return statuses

    def _open_directory(self, path: str) -> Opened:
        """Open a directory to list it. The root is opened again if it was removed or replaced."""
        self.look_again()
        return self._run_in_root(path, lambda root, relative: self._open_at(root, relative, _LISTING), changes=False)

    def mkdir(self, path: str, mode: int = DIRECTORY_MODE) -> None:  # type: ignore[override]
        """Create a directory as `os.mkdir` does, with this mode, independent of the umask. The root can also be created."""

        def create(root: _Root, relative: str) -> None:
            parent, name = self._open_parent(root, relative)
            self.system.mkdir(name, mode, dir_fd=parent.number)
            created = self._open_child(parent, name)
            self._set_mode(created.number, mode)

        if path != self.root and path.startswith(self._prefix):
            self._run_in_root(path, create)
            return
        if self._above is not None:
            self._above.mkdir(path, mode)
            return
        self.system.mkdir(path, mode)
        created = self._open_outside(path, _ENTERING)
        self._set_mode(created.number, mode)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        """Rename a file, replacing the target, as `os.replace` does."""
        self._run_with_two_paths(source, target, self.system.rename)

    def link(self, source: str, target: str) -> None:  # type: ignore[override]
        """Create a hard link as `os.link` does. Symbolic links are not followed."""
        self._run_with_two_paths(
            source, target, lambda *names, **directories: self.system.link(*names, follow_symlinks=False, **directories)
        )

    def _run_with_two_paths(self, source: str, target: str, do: Callable[..., None]) -> None:
        """Call `do` with the names of two paths of this tree and their opened directories, as `os.rename` takes them."""
        end = self._relative(target)

        def act(root: _Root, relative: str) -> None:
            old, old_name = self._open_parent(root, relative)
            new, new_name = self._open_parent(root, end)
            do(old_name, new_name, src_dir_fd=old.number, dst_dir_fd=new.number)

        self._run_in_root(source, act, also=target)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        """Remove a file, as `os.unlink` does."""
        self._remove(path, self.system.unlink)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        """Remove an empty directory, as `os.rmdir` does."""
        self._remove(path, self.system.rmdir)

    def _remove(self, path: str, remove: Callable[..., None]) -> None:
        """Call `remove` with the name of a path and its opened directory, as `os.unlink` takes them."""

        def act(root: _Root, relative: str) -> None:
            parent, name = self._open_parent(root, relative)
            remove(name, dir_fd=parent.number)

        self._run_in_root(path, act)

    def chmod(self, path: str, mode: int) -> None:  # type: ignore[override]
        """Set the mode of a file or directory. Symbolic links raise `OSError`."""
        if path == self.root:
            (self._above or self.system).chmod(path, mode)
            return
        opened = self._run_in_root(path, lambda root, relative: self._open_at(root, relative, READ_FLAGS))
        self.system.fchmod(opened.number, mode)


def writer(status: os.stat_result) -> int:
    """Return the user id of the only user who can write to a file; -1 if other users can write to it too."""
    return -1 if status.st_mode & WRITABLE_BY_OTHERS else status.st_uid


def read_file(files: Files, path: str, limit: int, *, owners: frozenset[int] | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        files: the operations to use.
        path: the path of the file. A symbolic link is not followed.
        limit: the largest accepted size in bytes.
        owners: the user ids that may own the file; None for all.

    Raises:
        OSError: the file cannot be read, is not a regular file, is longer than `limit` bytes, shrinks while it is read, belongs to another
            user, or is writable by other users while `owners` is given.
    """
    opened = files.open_owned(path, READ_FLAGS)
    status = files.fstat(opened.number)
    size = status.st_size
    if not stat_module.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not a regular file")
    if owners is not None and writer(status) not in owners:
        if writer(status) < 0:
            raise OSError(f"other users can write to {path}: run chmod go-w on it")
        raise OSError(f"{path} belongs to user {status.st_uid}, who is not trusted: change its owner")
    if size > limit:
        raise OSError(f"{path} has {size} bytes, but at most {limit} are allowed")
    data = read_at(files, opened, 0, size)
    if len(data) < size:
        raise OSError(f"{path} ended after {len(data)} of {size} bytes")
    return data


def read_at(files: Files, opened: Opened, offset: int, size: int) -> bytes:
    """Return `size` bytes of an open file, or fewer at its end. Short reads are continued. The file stays open until the return.

    Raises:
        FileNotFoundError: another host has removed the file.
        OSError: the file cannot be read.
    """
    try:
        part = files.pread(opened.number, min(size, _CHUNK), offset)
        parts = [part]
        while part and len(part) < size:
            offset += len(part)
            size -= len(part)
            part = files.pread(opened.number, min(size, _CHUNK), offset)
            parts.append(part)
    except OSError as error:
        reraise_interrupt(error)
        _raise_gone(error, "an open file")
        raise
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _raise_gone(error: OSError, path: str) -> None:
    """Raise `FileNotFoundError` if an error says that another host has removed the file (ESTALE)."""
    if error.errno == ESTALE:
        raise FileNotFoundError(ENOENT, "another host has removed this file", path) from error
