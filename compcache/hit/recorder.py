"""The counters of a process that uses a cache, and how they reach the disk without a lock.

Counting appends to a list; what is in the list is appended, as one batch, to the journal of this host
(`compcache.formats.journal`): at once where the last time is a while ago, else when the process exits or a cache is closed. A
process that is killed loses what it counted in its last second of counting. Appending to a file costs two microseconds, making one eighty.
Tools add journals up and fold them (`compcache.usage.ledger`). This is on the hit path: it imports nothing that is not loaded already,
never waits, and tolerates a disk that cannot be written to.
"""

import os
import sys
from _weakref import ref
from stat import S_ISREG
from time import time

from compcache.settings import is_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from compcache.directory.null_recorder import NullRecorder
    from compcache.files import Opened, Tree
    from compcache.hit import Door, PlainLoader

__all__ = ["DIRECTORY", "SUFFIX", "Recorder", "encode_batch", "recorder_for", "recorder_of"]

#: As `compcache.store.PLACES` has them, which a plain hit does not read.
DIRECTORY, SUFFIX = "stats", ".journal1"

SWITCH_VARIABLE = "COMPCACHE_STATS"
_PAUSE_SECONDS = 1.0
#: The shortest time between two records of modules in memory, whose uses are not counted.
_HELD_SECONDS = 60.0
#: A process whose journal is longer folds it at exit.
_LONG = 1 << 18
#: The most events that wait for a directory to be created.
_MOST_KEPT = 1000


class Recorder:
    """Counts the events of one cache directory; counts that cannot be written are dropped.

    Events are (time, counter, amount, func_name or "", module_id or b""): appending one is atomic, so that threads
    need no lock and none is counted twice or lost.
    """

    __slots__ = (
        "_directory", "_events", "_files", "_flushed", "_is_long", "_loaders", "_registered", "_seen", "_told", "unaccounted",
    )  # fmt: skip

    def __init__(self, files: "Tree | Door", root: str) -> None:
        self._files = files
        self._directory = f"{root}/{DIRECTORY}"
        self._registered = False
        self._is_long = False
        self._loaders: list[ref[PlainLoader]] = []
        self.reset()

    def reset(self) -> None:
        """Start counting, in a new recorder or in a forked child, whose parent writes the earlier counts."""
        self._events: list[tuple[float, str, float, str, bytes]] = []
        self._flushed = 0.0
        self._seen: dict[bytes, object] = {}
        self._told = time()  # when modules in memory were last recorded
        self._registered = self._registered and "multiprocessing.util" not in sys.modules
        self.unaccounted = 0  # bytes added that are not in the estimate yet (compcache.maintain.size_limit)

    def write_by(self, files: "Tree | Door") -> None:
        """Write through these files from now on, because the former ones may be closed."""
        self._files = files

    def watch(self, loader: "PlainLoader") -> None:
        """Count what this loader holds as used each time the journal is written."""
        self._loaders = [*[known for known in self._loaders if known() is not None], ref(loader)]
        if not self._registered:
            self._register()

    def hit(self, func_name: str, module_id: bytes, _: float = 0.0) -> None:
        """Record that a function was found and loaded from a module; the last argument is the time in seconds."""
        self.count("hits", 1, func_name, module_id)

    def missed(self, error: Exception) -> None:
        """Record that a function was missing or had no usable realization; `error` says why."""
        from compcache.formats.journal import MISSES_ID
        from compcache.hit.miss import miss_reason

        func_name = getattr(error, "func_name", "")
        self.count(f"misses.{miss_reason(error)}", 1, func_name, MISSES_ID if func_name else b"")

    def refused(self, name: str, reason: str) -> None:
        """Record that a file is not used, or a function was not cached: nothing is counted."""

    def asked(self, name: str, answer: str) -> None:
        """Record that the remote store answered about a function; the asking process counts it."""

    def waited(self, what: str, seconds: float, *, owned: "bool | None") -> None:
        """Record that another process was waited for: nothing is counted."""

    def compiled(self, seconds: float, _: "Sequence[str]" = ()) -> None:
        """Record that a module with these functions was compiled."""
        self.count("compilations")
        self.count("compile_seconds", seconds)

    def added(self, size: int) -> None:
        """Record that a module was published."""
        self.count("added_modules")
        self.count("added_bytes", size)

    def count(self, counter: str, amount: float = 1, func_name: str = "", module_id: bytes = b"") -> None:
        """Count something that happened `amount` times."""
        now = time()
        self._events.append((now, counter, amount, func_name, module_id))
        if not 0 <= now - self._flushed < _PAUSE_SECONDS:
            self._flushed = now
            self.flush()
        elif not self._registered:
            self._register()

    def _register(self) -> None:
        self._registered = True
        import atexit

        atexit.register(self._at_exit)
        # Workers of multiprocessing leave with os._exit: they run its finalizers, but not those of atexit.
        pool = sys.modules.get("multiprocessing.util")
        if pool is not None:
            pool.Finalize(None, self.flush, exitpriority=0)

    def _at_exit(self) -> None:
        self.flush()
        if self._is_long:
            try:
                from compcache.usage.ledger import fold_small

                fold_small(self._files.system, os.path.dirname(self._directory))
            except Exception as error:  # noqa: BLE001 - the next process that fills a journal folds it; an exit must not print tracebacks
                _reraise_interrupt(error)
                return

    def flush(self, *, now_held: bool = False) -> None:
        """Append the counts to the journal, if there are any. Also append what is held in memory, periodically or with `now_held`."""
        lines: list[str] = []
        if now_held or time() - self._told >= _HELD_SECONDS:
            from compcache.hit.memory import held_lines

            self._told = time()
            lines = held_lines(self._loaders, self._told)
        if not self._events and not lines:
            return
        from compcache.hit._runtime import digest

        sums: dict[tuple[float, str, str], float] = {}
        events = _drain(self._events)
        for when, counter, amount, func_name, module_id in events:
            if not any(module_id):  # programs may request missing functions very often
                from compcache.formats.journal import HOUR

                key = when // HOUR * HOUR, counter, func_name
                sums[key] = sums.get(key, 0) + amount
                continue
            seconds, number = int(when), module_id.hex()
            time_text = f"{seconds}.{int((when - seconds) * 1e6):06}"  # all digits of a float take 7,000 instructions
            lines.append(f"{time_text} {counter} {amount} {number} {_key(digest, func_name)}")
            mine = object()
            if self._seen.setdefault(module_id, mine) is mine:  # atomic: threads may meet here
                lines.append(f"{time_text} loads 1 {number}")
        for (hour, counter, func_name), amount in sums.items():
            missed = f" {bytes(16).hex()} {_key(digest, func_name)}" if func_name else ""
            lines.append(f"{hour} {counter} {amount}{missed}")
        if not self._write(encode_batch(lines)) and len(events) < _MOST_KEPT:
            self._events += events  # the directory is made by the first addition

    def _write(self, data: bytes) -> bool:
        """Append to the journal; return False if it has no directory."""
        # Two hosts append to two files: between them appending is not atomic.
        path = f"{self._directory}/{_host_name()}{SUFFIX}"
        try:
            journal = self._open(path)
            status = self._files.fstat(journal.number)
            if status.st_nlink != 1 or not S_ISREG(status.st_mode):
                return True  # it has further links, or is a pipe: no process of ours has made it
            self._files.write(journal.number, data)
        except OSError as error:
            _reraise_interrupt(error)
            return not isinstance(error, FileNotFoundError)
        if status.st_size + len(data) >= _LONG and not self._is_long:
            self._is_long = True
            self._register()
        return True

    def _open(self, path: str) -> "Opened":
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            return self._files.open_owned(path, flags)
        except FileNotFoundError as error:
            _reraise_interrupt(error)
            from compcache.files import FILE_MODE

            try:
                self._files.mkdir(self._directory)
            except FileExistsError as exists:  # another thread or process was faster, or only the file is missing
                _reraise_interrupt(exists)
            return self._files.open_owned(path, flags | os.O_CREAT, FILE_MODE)


def encode_batch(lines: "Iterable[str]") -> bytes:
    """Return one batch of a journal: the empty line separates it from one before it that was torn within a line."""
    from compcache.hit._runtime import digest

    text = "\n".join(lines)
    return f"\n\n{text}\n= {digest(text.encode(), 8).hex()}\n".encode()


def _key(digest: "Callable[..., bytes]", func_name: str) -> str:
    return digest(func_name.encode("utf-8", "surrogatepass"), 16, b"compcache-name").hex()


def _reraise_interrupt(error: Exception) -> None:
    from compcache.files import reraise_interrupt

    reraise_interrupt(error)


def _drain(items: list) -> list:  # type: ignore[type-arg]
    """Remove and yield all items, one by one, because other threads may append and remove at the same time."""
    taken = []
    try:
        while items:
            taken.append(items.pop())
    except IndexError:
        pass  # another thread took the last one
    return taken


def _host_name() -> str:
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return name.replace("/", "_")[:64] or "host"


#: One recorder per directory and process, however many cache objects there are. Pending counts are kept until the exit.
_recorders: "dict[str, Recorder]" = {}


def recorder_for(files: "Tree", root: str, *, readonly: bool) -> "Recorder | NullRecorder":
    """Return the recorder of a directory. It counts nothing for a cache that must not be written to."""
    from compcache.files import Files

    if readonly or not is_on(SWITCH_VARIABLE, default=True):
        from compcache.directory.null_recorder import NullRecorder

        return NullRecorder()
    return recorder_of(files, root) if type(files.system) is Files else Recorder(files, root)


def recorder_of(files: "Tree | Door", root: str) -> "Recorder":
    """Return the one recorder of a directory."""
    known = _recorders.get(root)
    if known is None:
        return _recorders.setdefault(root, Recorder(files, root))
    known.write_by(files)
    return known


def _forget_all() -> None:
    for recorder in _recorders.values():
        recorder.reset()
