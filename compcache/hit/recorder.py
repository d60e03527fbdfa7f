"""The counters of a process that uses a cache, which reach the disk without a lock."""

# Counting appends to a list. The list is appended, as one batch, to a journal of this host (`compcache.formats.journal`): at once if the
# last batch is a while ago, otherwise when the process exits or a cache is closed. A process that is killed loses the counts of its last
# second. Appending to a file costs two microseconds, creating one eighty. Tools add journals up and fold them (`compcache.usage.ledger`).
# An append waits for other appends to the same file, even while their processes have no processor, so a host has several journals.
#
# This file is on the hit path: it imports nothing that is not loaded already, never waits, and tolerates a disk that cannot be written to.

import os
import sys
from _weakref import ref
from stat import S_ISREG
from time import time

from compcache.settings import is_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from compcache.directory.null_recorder import NullRecorder
    from compcache.files import Opened, Tree
    from compcache.hit import Door, PlainLoader

__all__ = ["DIRECTORY", "JOURNALS_OF_HOST", "SUFFIX", "Recorder", "encode_batch", "recorder_for", "shared_recorder"]

#: The values of `compcache.store.PLACES`, which a plain hit does not import.
DIRECTORY, SUFFIX = "stats", ".journal1"
#: The value of `compcache.files.FILE_MODE`.
_FILE_MODE = 0o600

SWITCH_VARIABLE = "COMPCACHE_STATS"
_PAUSE_SECONDS = 1.0
#: The shortest time in seconds between two records of modules in memory, whose uses are not counted.
_HELD_SECONDS = 60.0
#: The number of journals of a host.
JOURNALS_OF_HOST = 8
#: A process folds the journals at exit if its journal has more bytes than this.
_LONG = (1 << 18) // JOURNALS_OF_HOST
#: One in this many processes that create a journal folds the journals at exit, because each container may have its own host name.
_NEW = 64
#: The most events that are kept while the directory does not exist.
_MOST_KEPT = 1000


class Recorder:
    """Counts the events of one cache directory. Counts that cannot be written are dropped."""

    # Events are (time, counter, amount, func_name or "", module_id or b""). Appending an event is atomic, so threads need no lock, and
    # no event is lost or counted twice.
    #
    # `unaccounted` is the number of added bytes that the estimate of `compcache.maintain.size_limit` does not include yet.

    __slots__ = (
        "_events", "_files", "_flushed", "_folds", "_held_noted", "_journal", "_loaders", "_registered", "_root", "_seen", "unaccounted",
    )  # fmt: skip

    def __init__(self, files: "Tree | Door", root: str) -> None:
        self._files = files
        self._root = root
        self._registered = False
        self._folds = 0  # the journals are folded at exit if the number of files is a multiple of this; 0: never
        self._loaders: list[ref[PlainLoader]] = []
        self.reset()

    def reset(self) -> None:
        """Discard all events and counts, and choose the journal: in a new recorder, or in a forked child."""
        self._events: list[tuple[float, str, float, str, bytes]] = []
        self._flushed = 0.0
        self._seen: dict[bytes, object] = {}
        self._held_noted = time()  # when modules in memory were last recorded
        self._registered = self._registered and "multiprocessing.util" not in sys.modules
        # Each host has journals of its own, because appending is not atomic between hosts.
        self._journal = f"{self._root}/{DIRECTORY}/{_host_name()}.{os.getpid() % JOURNALS_OF_HOST}{SUFFIX}"
        self.unaccounted = 0

    def write_by(self, files: "Tree | Door") -> None:
        """Write through these files from now on. The former ones may be closed."""
        self._files = files

    def watch(self, loader: "PlainLoader") -> None:
        """Record uses of the modules of this loader that are in memory with each batch of counts."""
        self._loaders = [*[weak for weak in self._loaders if weak() is not None], ref(loader)]
        if not self._registered:
            self._register_exit()

    def hit(self, func_name: str, module_id: bytes, _: float = 0.0) -> None:
        """Record that a function was loaded from a module. The last argument is the time in seconds."""
        self.count("hits", 1, func_name, module_id)

    def missed(self, error: Exception) -> None:
        """Record that a function was missing or had no usable realization. `error` says why."""
        from compcache.formats.journal import MISSES_ID
        from compcache.hit.miss import miss_reason

        func_name = getattr(error, "func_name", "")
        self.count(f"misses.{miss_reason(error)}", 1, func_name, MISSES_ID if func_name else b"")

    def refused(self, name: str, reason: str) -> None:
        """Record that a file is not used, or that a function was not cached. Nothing is counted."""

    def remote_answered(self, name: str, answer: str) -> None:
        """Record an answer of the remote store. The asking process counts it."""

    def waited(self, lock: str, seconds: float, *, owned: "bool | None") -> None:
        """Record that this thread has waited for a lock. Nothing is counted."""

    def compiled(self, seconds: float, _: "Sequence[str]" = ()) -> None:
        """Record that a module was compiled in `seconds`."""
        self.count("compilations")
        self.count("compile_seconds", seconds)

    def added(self, size: int) -> None:
        """Record that a module was published."""
        self.count("added_modules")
        self.count("added_bytes", size)

    def count(self, counter: str, amount: float = 1, func_name: str = "", module_id: bytes = b"") -> None:
        """Add an amount to a counter, and write the journal if the last write was more than a second ago."""
        now = time()
        self._events.append((now, counter, amount, func_name, module_id))
        if not 0 <= now - self._flushed < _PAUSE_SECONDS:
            self._flushed = now
            self.flush()
        elif not self._registered:
            self._register_exit()

    def _register_exit(self) -> None:
        """Have the counts written when the process exits."""
        self._registered = True
        import atexit

        atexit.register(self._at_exit)
        # Workers of multiprocessing end by os._exit: they run its finalizers, but not those of atexit.
        pool = sys.modules.get("multiprocessing.util")
        if pool is not None:
            pool.Finalize(None, self.flush, exitpriority=0)

    def _at_exit(self) -> None:
        """Write the counts. Fold the journals if this journal is long, or new while the number of files is a multiple of `_NEW`."""
        self.flush()
        try:
            if self._folds and not len(os.listdir(f"{self._root}/{DIRECTORY}")) % self._folds:
                from compcache.usage.ledger import fold_small

                fold_small(self._files.system, self._root)
        except Exception as error:  # noqa: BLE001 - the next process that fills a journal folds it; an exit must not print tracebacks
            _reraise_interrupt(error)

    def flush(self, *, now_held: bool = False) -> None:
        """Append the counts; each minute, and with `now_held`, also uses of modules in memory."""
        lines: list[str] = []
        if now_held or time() - self._held_noted >= _HELD_SECONDS:
            from compcache.hit.memory import held_lines

            self._held_noted = time()
            lines = held_lines(self._loaders, self._held_noted)
        if not self._events and not lines:
            return
        import compcache.hit._runtime as runtime

        sums: dict[tuple[float, str, str], float] = {}
        events = _drain(self._events)
        for when, counter, amount, func_name, module_id in events:
            if not any(module_id):  # summed per hour, because programs may request missing functions very often
                from compcache.formats.journal import HOUR

                key = when // HOUR * HOUR, counter, func_name
                sums[key] = sums.get(key, 0) + amount
                continue
            line = runtime.use_line(when, counter, amount, module_id, func_name)
            lines.append(line)
            marker = object()
            if self._seen.setdefault(module_id, marker) is marker:  # atomic: threads may meet here
                lines.append(f"{line[: line.index(' ')]} loads 1 {module_id.hex()}")
        for (hour, counter, func_name), amount in sums.items():
            name_digest = runtime.digest(func_name.encode("utf-8", "surrogatepass"), 16, b"compcache-name")
            missed = f" {bytes(16).hex()} {name_digest.hex()}" if func_name else ""
            lines.append(f"{hour} {counter} {amount}{missed}")
        if not self._write(encode_batch(lines)) and len(events) < _MOST_KEPT:
            self._events += events  # the first addition creates the directory

    def _write(self, data: bytes) -> bool:
        """Append a batch to the journal, and return False if the cache directory is missing. Ignore other failures.

        A new or long journal may be folded with the others when the process exits.
        """
        try:
            journal = self._open()
            status = self._files.fstat(journal.number)
            if status.st_nlink != 1 or not S_ISREG(status.st_mode):
                return True  # a file with further links, or a pipe, which no process of ours has created
            if _FILE_MODE & ~status.st_mode:
                self._files._set_mode(journal.number, _FILE_MODE)  # the umask has changed it
            self._files.write(journal.number, data)
        except OSError as error:
            _reraise_interrupt(error)
            return not isinstance(error, FileNotFoundError)
        if status.st_size + len(data) >= _LONG:
            self._folds = 1
        elif not status.st_size:
            self._folds = _NEW
        else:
            return True
        if not self._registered:
            self._register_exit()
        return True

    def _open(self) -> "Opened":
        """Open the journal, creating it and its directory if the cache directory exists."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            return self._files.open_owned(self._journal, flags, _FILE_MODE)
        except FileNotFoundError as error:
            _reraise_interrupt(error)
            try:
                self._files.mkdir(f"{self._root}/{DIRECTORY}")
            except FileExistsError as exists:  # another thread or process has created it
                _reraise_interrupt(exists)
            return self._files.open_owned(self._journal, flags, _FILE_MODE)


def encode_batch(lines: "Iterable[str]") -> bytes:
    """Return one batch of a journal."""
    # The batch begins with an empty line, because an earlier batch may be torn.
    import compcache.hit._runtime as runtime

    text = "\n".join(lines)
    return f"\n\n{text}\n= {runtime.digest(text.encode(), 8).hex()}\n".encode()


def _reraise_interrupt(error: Exception) -> None:
    from compcache.interrupts import reraise_interrupt

    reraise_interrupt(error)


def _drain(items: list) -> list:  # type: ignore[type-arg]
    """Remove and return all items, one by one, because other threads append and remove, too."""
    drained = []
    try:
        while items:
            drained.append(items.pop())
    except IndexError:
        pass  # another thread has taken the last item
    return drained


def _host_name() -> str:
    """Return the name of this host, usable in a file name."""
    return os.uname().nodename.replace("/", "_")[:64] or "host"


#: One recorder per directory and process, whatever the number of caches. Counts that are not written are kept until the exit.
_recorders: "dict[str, Recorder]" = {}


def recorder_for(files: "Tree", root: str, *, readonly: bool) -> "Recorder | NullRecorder":
    """Return the recorder of a directory. See `is_on` for the exception."""
    # For a read-only cache, or with COMPCACHE_STATS=0, it counts nothing.
    from compcache.files import Files

    if readonly or not is_on(SWITCH_VARIABLE, default=True):
        from compcache.directory.null_recorder import NullRecorder

        return NullRecorder()
    return shared_recorder(files, root) if type(files.system) is Files else Recorder(files, root)


def shared_recorder(files: "Tree | Door", root: str) -> "Recorder":
    """Return the one recorder of a directory in this process, which writes by `files` from now on."""
    recorder = _recorders.get(root)
    if recorder is None:
        return _recorders.setdefault(root, Recorder(files, root))
    recorder.write_by(files)
    return recorder


def _reset_all_in_child() -> None:
    """Set all counters to zero in a forked child."""
    for recorder in _recorders.values():
        recorder.reset()
