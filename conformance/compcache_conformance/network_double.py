"""A file system that behaves as one client of an NFS server does; two of them on one directory are two hosts.

    python -m compcache_conformance.network_double SERVER MOUNT [--seconds 1] [--locks fail] ...

`SERVER` is the directory of the server. What a client shows at `MOUNT` is what the documents of NFS allow it to show (RFC 1813; nfs(5),
"data and metadata coherence"), as often as it can be shown:

* names, attributes, listings and absent names are what this client saw of them up to so many seconds ago, but for what it changed itself;
* what is written comes to the server when the file is closed or synced, and a file is looked at anew when it is opened;
* a file that another client removed or replaced is ESTALE to who has it open or still sees its name, so that pages which were mapped end
  the process with SIGBUS; one that this client removes while it has it open stays in its folder as `.nfs...`;
* a file that another client cut is EIO where it was;
* a rename is answered late, and what was done twice, as after an answer was lost, says that there is nothing to do (ENOENT, EEXIST);
* locks are of this client alone, or fail.

It needs mfusepy, and libfuse with its programs. The kernel caches nothing, so that all that is stale is stale by these rules.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from compcache_conformance.results import Lacking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["mounted"]

_TIMES = ("st_atime", "st_mtime", "st_ctime")
_PLAIN = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_blksize")


@dataclass
class _Open:
    """One open file of this client, which is closed with the last reference to this object: another thread may look at it meanwhile.

    `pending` is what was written and is not at the server yet.
    """

    descriptor: int
    size: int
    appends: bool
    hidden: str = ""
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    seen: tuple[float, dict[str, Any]] = (0.0, {})

    def __del__(self) -> None:
        os.close(self.descriptor)


def _fail(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


class Client:
    """The operations of one client, as mfusepy calls them."""

    use_ns = True

    def __init__(self, server: str, options: argparse.Namespace) -> None:
        self._server = server
        self._options = options
        self._random = random.Random(options.seed)
        self._seen: dict[str, tuple[float, dict[str, Any] | None]] = {}  # of paths: until when, and what
        self._listed: dict[str, tuple[float, list[tuple[str, dict[str, int], int]]]] = {}
        self._opened: dict[int, _Open] = {}
        self._folders: dict[int, str] = {}
        self._moved: dict[str, str] = {}
        self._lock = threading.RLock()
        self._numbers = 0
        self.counts: Counter[str] = Counter()

    def refuse_lock(self, *_: object) -> NoReturn:
        """A server without locks."""
        self.counts["locks refused"] += 1
        _fail(errno.ENOLCK)

    # ---------------------------------------------------------------- what this client believes

    def _real(self, path: str) -> str:
        self.counts["operations"] += 1
        return self._server + path

    def _until(self) -> float:
        return time.monotonic() + float(self._options.seconds)

    def _see(self, path: str, state: os.stat_result | None) -> dict[str, Any] | None:
        seen = _attributes(state) if state is not None else None
        self._seen[path] = self._until(), seen
        return seen

    @contextlib.contextmanager
    def _changing(self, *paths: str) -> Iterator[None]:
        """What this client changes, or fails to change, it sees anew."""
        try:
            yield
        finally:
            self._forget(*paths)

    def _forget(self, *paths: str) -> None:
        for opened in self._opened.copy().values():
            opened.seen = 0.0, {}
        for path in paths:
            self._seen.pop(path, None)
            self._seen.pop(os.path.dirname(path), None)
            self._listed.pop(os.path.dirname(path), None)

    def _perhaps(self, chance: float) -> bool:
        return self._random.random() < chance

    def _twice(self, number: int) -> int:
        """Say what a server says that did the same a moment ago, and whose answer was lost."""
        if self._perhaps(self._options.lost):
            self.counts["answers lost"] += 1
            _fail(number)
        return 0

    def init_with_config(self, _connection: object, config: Any) -> None:
        """Have the kernel ask for everything."""
        config.entry_timeout = config.negative_timeout = config.attr_timeout = 0.0
        config.use_ino = config.direct_io = config.hard_remove = config.nullpath_ok = 1

    def destroy(self, _path: str) -> None:
        """Say what was done."""
        if self._options.report:
            Path(self._options.report).write_text(json.dumps(self.counts))

    # ---------------------------------------------------------------- names

    def getattr(self, path: str | None, handle: int | None = None) -> dict[str, Any]:
        """What was seen of a name, or of an open file."""
        if handle is not None:
            return self._of_handle(self._opened[handle])
        assert path is not None
        real = self._real(path)
        until, seen = self._seen.get(path, (0.0, None))
        if time.monotonic() > until:
            try:
                seen = self._see(path, os.lstat(real))
            except FileNotFoundError:
                seen = self._see(path, None)
        if seen is None and path in self._moved:
            return self.getattr(self._moved[path])
        if seen is None:
            _fail(errno.ENOENT)
        return self._with_pending(seen)

    def _of_handle(self, opened: _Open) -> dict[str, Any]:
        until, seen = opened.seen
        if time.monotonic() > until:
            self._fresh(opened)
            seen = _attributes(os.fstat(opened.descriptor))
            opened.seen = self._until(), seen
        return self._with_pending(seen)

    def _with_pending(self, seen: dict[str, Any]) -> dict[str, Any]:
        """With what this client has written and not sent."""
        mine = [opened for opened in self._opened.copy().values() if opened.pending and _is(opened, seen["st_ino"])]
        ends = [offset + len(data) for opened in mine for offset, data in opened.pending]
        return {**seen, "st_size": max([seen["st_size"], *ends])}

    def opendir(self, path: str) -> int:
        """A folder that will be listed."""
        with self._lock:
            self._numbers += 1
            self._folders[self._numbers] = path
            return self._numbers

    def releasedir(self, _path: str | None, handle: int) -> int:
        """Close a folder."""
        del self._folders[handle]
        return 0

    def readdir(self, _path: str | None, handle: int) -> Iterable[tuple[str, dict[str, int], int]]:
        """What was listed."""
        path = self._folders[handle]
        real = self._real(path)
        until, entries = self._listed.get(path, (0.0, []))
        if time.monotonic() > until:
            with os.scandir(real) as found:
                entries = [(each.name, {"st_ino": each.inode()}, 0) for each in found]
            self._listed[path] = self._until(), entries
        return entries

    def readlink(self, path: str) -> str:
        """The text of a link."""
        return os.readlink(self._real(path))

    def symlink(self, path: str, text: str) -> int:
        """A link."""
        with self._changing(path):
            os.symlink(text, self._real(path))
        return self._twice(errno.EEXIST)

    def link(self, path: str, source: str) -> int:
        """Another name."""
        with self._changing(path, source):
            os.link(self._real(source), self._real(path), follow_symlinks=False)
        return self._twice(errno.EEXIST)

    def mkdir(self, path: str, mode: int) -> int:
        """A folder."""
        with self._changing(path):
            os.mkdir(self._real(path), mode)
            os.chmod(self._server + path, mode & 0o7777)
        return self._twice(errno.EEXIST)

    def rmdir(self, path: str) -> int:
        """Remove a folder."""
        with self._changing(path):
            os.rmdir(self._real(path))
        return self._twice(errno.ENOENT)

    def unlink(self, path: str) -> int:
        """Remove a name; a file that this client has open stays under another one."""
        real = self._real(path)
        with self._changing(path):
            if not self._hide(real):
                os.unlink(real)
        return self._twice(errno.ENOENT)

    def rename(self, old: str, new: str) -> int:
        """Rename, and answer late."""
        with self._changing(old, new):
            os.lstat(self._server + old)
            self._hide(self._server + new)
            os.rename(self._real(old), self._server + new)
        if self._perhaps(self._options.late):
            self.counts["late renames"] += 1
            time.sleep(self._options.late_seconds)
        if self._perhaps(self._options.lost):
            self._moved[old] = new  # for libfuse, an open file has the name that it had
            self.counts["answers lost"] += 1
            _fail(errno.ENOENT)
        return 0

    def _hide(self, real: str) -> bool:
        """Rename a file that this client has open and is about to lose, as clients do; whether it has."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            state = os.lstat(real)
            users = [opened for opened in self._opened.values() if _is(opened, state.st_ino)]
            if users and stat.S_ISREG(state.st_mode):
                self._numbers += 1
                hidden = os.path.join(os.path.dirname(real), f".nfs{id(self):012x}{self._numbers:08x}")
                os.rename(real, hidden)
                for opened in users:
                    opened.hidden = hidden
                self.counts["files hidden"] += 1
                return True
        return False

    # ---------------------------------------------------------------- attributes

    def chmod(self, path: str, mode: int) -> int:
        """Set the mode."""
        os.chmod(self._real(path), mode)
        self._forget(path)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        """Set the owner."""
        os.chown(self._real(path), uid, gid, follow_symlinks=False)
        self._forget(path)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Set the times, behind what was written."""
        real = self._real(path)
        inode = os.lstat(real).st_ino
        for opened in self._opened.copy().values():
            if opened.pending and _is(opened, inode):
                self._send(opened)
        now = time.time_ns()
        os.utime(real, ns=times or (now, now), follow_symlinks=False)
        self._forget(path)
        return 0

    def truncate(self, path: str | None, length: int, handle: int | None = None) -> int:
        """Cut a file."""
        if handle is not None:
            opened = self._fresh(self._opened[handle])
            self._send(opened)
            os.ftruncate(opened.descriptor, length)
        else:
            os.truncate(self._real(path or ""), length)
        if path:
            self._forget(path)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """The space of the server."""
        state = os.statvfs(self._real(path))
        return {name: getattr(state, name) for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize", "f_files", "f_ffree")}

    # ---------------------------------------------------------------- open files

    def create(self, path: str, mode: int, flags: int) -> int:
        """Open a file that is made if need be."""
        with self._changing(path):
            handle = self._open(self._real(path), flags, mode)
            os.fchmod(self._opened[handle].descriptor, mode & 0o7777)
        return handle

    def open(self, path: str, flags: int) -> int:
        """Open a file; what is known of it is renewed."""
        real = self._real(path)
        try:
            handle = self._open(real, flags)
        except FileNotFoundError:
            self.counts["stale"] += 1
            _fail(errno.ESTALE)  # the kernel has asked for the name, and was told that it is there
        self._see(path, os.fstat(self._opened[handle].descriptor))
        return handle

    def _open(self, real: str, flags: int, mode: int = 0) -> int:
        appends = bool(flags & os.O_APPEND)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        flags = flags & ~os.O_ACCMODE & ~os.O_APPEND & ~getattr(os, "O_DIRECT", 0) | (os.O_RDWR if writes else os.O_RDONLY)
        descriptor = os.open(real, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with self._lock:
            self._opened[descriptor] = _Open(descriptor, os.fstat(descriptor).st_size, appends)
        return descriptor

    def _fresh(self, opened: _Open) -> _Open:
        self.counts["operations"] += 1
        if os.fstat(opened.descriptor).st_nlink == 0:
            self.counts["stale"] += 1
            _fail(errno.ESTALE)
        return opened

    def read(self, _path: str | None, size: int, offset: int, handle: int) -> bytes:
        """Bytes of a file."""
        opened = self._fresh(self._opened[handle])
        self._send(opened)
        data = os.pread(opened.descriptor, size, offset)
        if not data and size and offset < opened.size:
            self.counts["cut"] += 1
            _fail(errno.EIO)
        return data

    def write(self, _path: str | None, data: bytes, offset: int, handle: int) -> int:
        """Keep bytes until they are sent."""
        self.counts["operations"] += 1
        opened = self._opened[handle]
        opened.pending.append((offset, data))
        return len(data)

    def _send(self, opened: _Open) -> None:
        with self._lock:
            pending, opened.pending = opened.pending, []
        if pending:
            opened.seen = 0.0, {}
        for offset, data in pending:
            os.pwrite(opened.descriptor, data, offset)
            opened.size = max(opened.size, offset + len(data))

    def flush(self, path: str | None, handle: int) -> int:
        """Send what was written."""
        opened = self._opened[handle]
        if opened.pending:
            self._send(self._fresh(opened))
            if path:
                self._forget(path)
        return 0

    def fsync(self, path: str | None, _data: int, handle: int) -> int:
        """The same; the server keeps what it has."""
        return self.flush(path, handle)

    def release(self, path: str | None, handle: int) -> int:
        """Close a file; what was kept for it alone goes."""
        with contextlib.suppress(OSError):
            self.flush(path, handle)
        with self._lock:
            opened = self._opened.pop(handle)
            if opened.hidden and not any(other.hidden == opened.hidden for other in self._opened.values()):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(opened.hidden)
        return 0


def _attributes(state: os.stat_result) -> dict[str, Any]:
    return {name: getattr(state, name) for name in _PLAIN} | {name: getattr(state, name + "_ns") for name in _TIMES}


def _is(opened: _Open, inode: int) -> bool:
    return os.fstat(opened.descriptor).st_ino == inode


# -------------------------------------------------------------------- mounts


@contextlib.contextmanager
def mounted(server: Path, place: Path, *options: str) -> Iterator[None]:
    """Have one client's view of a server's folder at a place, which is an empty folder.

    Raises:
        Lacking: this machine has no FUSE, or no package of it.
    """
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or not shutil.which("fusermount3"):
        raise Lacking("needs /dev/fuse and the programs of FUSE 3")
    if importlib.util.find_spec("mfusepy") is None:
        raise Lacking("needs mfusepy beside the suite: pip install './conformance[network]'")
    command = [sys.executable, "-m", "compcache_conformance.network_double", str(server), str(place), *options]
    package = str(Path(__file__).parent.parent)
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "FUSE_LIBRARY_NAME": "fuse3", "PYTHONPATH": paths}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    try:
        deadline = time.monotonic() + 20
        while not os.path.ismount(place):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                said = process.communicate()[1].decode(errors="replace").strip().splitlines()
                raise Lacking(f"FUSE cannot be used here: {said[-1] if said else 'nothing is mounted'}")
            time.sleep(0.02)
        yield
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(place)], check=False, capture_output=True)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()


def main() -> None:
    """Mount one client, until it is unmounted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("server", help="the folder of the server")
    parser.add_argument("mount", help="where the client shows it")
    parser.add_argument("--seconds", type=float, default=1.0, help="for how long what was seen is believed")
    parser.add_argument("--locks", choices=("own", "fail"), default="own", help="locks are of this client alone, or fail")
    parser.add_argument("--late", type=float, default=0.1, help="which part of the renames is answered late")
    parser.add_argument("--late-seconds", type=float, default=0.1, help="how late")
    parser.add_argument("--lost", type=float, default=0.0, help="which part of the answers to changes is lost, and asked for again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", help="a file for the numbers of what was done, as JSON")
    options = parser.parse_args()
    from mfusepy import FUSE, Operations

    client = type("Client", (Client, Operations), {})(os.path.abspath(options.server), options)
    mount = FUSE
    if options.locks == "fail":
        client.lock = client.flock = client.refuse_lock  # Operations has both, to be left alone
        mount = type("Mount", (FUSE,), {"flock": client.refuse_lock, "lock": client.refuse_lock})  # mfusepy wants a path, and there is none
    mount(client, options.mount, foreground=True, fsname="network-double", default_permissions=True)


if __name__ == "__main__":
    main()
