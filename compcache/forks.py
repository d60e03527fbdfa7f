"""Prepares the package for forks. This file lists all locks of the package, and the state of other threads.

A forked child has only the forking thread. In the child, a lock of another thread is never released, an import by another thread never
ends, and a build that another thread has claimed never ends. So before a fork, the forking thread waits until no other thread imports a
module that the child may need, and acquires the locks of the package in the order of `LOCKS`. Parent and child release the locks. The child
replaces locks that could not be acquired in time, or that are not worth waiting for. It then drops the state of the missing threads.

`compcache.hit.target`, which every process with a cache imports, registers the three functions. The first fork imports this file. If a
signal handler raises in one of the functions, the function is called again until it returns, and continues where it was. So a lock is
acquired and recorded, or released, in one call into C, in which no handler runs.

`OTHERS` has the locks of objects, threads, and locks in C. `tests/test_forks.py` fails if this file does not list a lock of the package.
"""

from __future__ import annotations

import importlib
import sys
import time
from _thread import RLock, allocate_lock, get_ident
from operator import methodcaller

from compcache.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["FORGOTTEN", "LOCKS", "OTHERS", "Lock", "after_in_child", "after_in_parent", "before"]

#: The number of seconds that a fork waits for imports of other threads, because such an import may wait for the forking thread.
_IMPORT_SECONDS = 5.0
_PAUSE_SECONDS = 0.001
#: The modules that a child may have to import: the package, its dependencies, and the standard library. Other modules are the program's.
_NEEDED = sys.stdlib_module_names | {"compcache", "filelock", "iced_x86", "llvmlite", "msgpack", "nacl", "numba", "numpy", "platformdirs"}


class Lock(Record):
    """A lock of a Python module.

    `path` is the lock's place in the module. `patience` is the number of seconds that a fork waits for the lock; with 0, the child replaces
    the lock. `why` is the reason, for people.
    """

    __slots__ = ("module", "path", "patience", "why")
    module: str
    path: str
    patience: float
    why: str

    def find(self) -> Any:
        """Return the current lock; None if the module is not imported, or does not have the lock."""
        value: Any = sys.modules.get(self.module)
        for name in self.path.split("."):
            value = getattr(value, name, None)
        return value

    def renew(self) -> None:
        """Replace the lock with a new, free lock."""
        owner, _, name = self.path.rpartition(".")
        holder: Any = sys.modules[self.module]
        for part in filter(None, owner.split(".")):
            holder = getattr(holder, part)
        setattr(holder, name, RLock() if isinstance(getattr(holder, name), RLock) else allocate_lock())


#: The locks in the order in which a fork acquires them. The holder of a lock may wait for later locks, but not for earlier locks.
LOCKS = (
    Lock("numba.core.compiler_lock", "global_compiler_lock._lock", 10.0, "Numba's lock: no thread compiles or adds functions"),
    Lock("compcache.hit", "_mapping", 10.0, "no thread maps an image, so that the dynamic linker's own lock is free in the child"),
    Lock("compcache.images.llvm_thread", "llvm.ffi.lib._lock._lock", 5.0, "llvmlite's lock: no thread is inside LLVM"),
    Lock("compcache.images.llvm_thread", "_stack_lock", 1.0, "the stack size of new threads is that of the program"),
    Lock("compcache.hit", "_lock", 1.0, "no table of modules and targets is half changed"),
    Lock("compcache.miss.builders", "_lock", 1.0, "no list of builders is half changed"),
    Lock("compcache.numba.lazy.garbage", "_thresholds._guard", 1.0, "the recorded limits of the garbage collector are those in use"),
    Lock("compcache.miss.run_times", "_lock", 0.0, "held while a module is compiled"),
    Lock("compcache.batch.executors", "_lock", 0.0, "held while a cache is opened"),
    Lock("compcache.numba.declarations.types", "_lock", 0.0, "held while types of Numba are made, which may import Numba"),
    Lock("compcache.numba.declarations.ufuncs", "_creation_lock", 0.0, "held while a loop is loaded"),
    Lock("compcache.numba.lazy.c_helpers", "_start_lock", 0.0, "held while a library of threads is loaded"),
)

#: The functions that drop the state of the parent's threads in a child: (module, function, state).
FORGOTTEN = (
    ("compcache.publish.locks", "_disown_all", "lock files, which the parent holds"),
    ("compcache.miss.builders", "_drop_threads", "claims of builds"),
    ("compcache.images.llvm_thread", "_forget_tasks", "work in LLVM's thread"),
    ("compcache.miss.entries", "_reset_all_in_child", "entries that wait to be written, with their locks: the parent writes them"),
    ("compcache.hit.recorder", "_reset_all_in_child", "counts that wait to be written: the parent writes them"),
    ("compcache.remote.connection", "_forget_connections", "connections to the helper: the child opens its own"),
)

#: Locks, threads and pools that a fork does not wait for, by file and creator, and the reason why a fork does not break them.
OTHERS = {
    ("images/llvm_thread.py", "_Task._waiting"): "belongs to one piece of work; the child of a waiting thread gets CompileError",
    ("images/llvm_thread.py", "start_new_thread"): "ends with its work; a fork waits for the current step by llvmlite's lock",
    ("miss/entries.py", "PendingEntries._lock"): "`_reset_all_in_child` creates a new one in the child",
    ("remote/helper/uploads.py", "Uploads._turn"): "belongs to the helper process, which does not fork",
    ("remote/helper/requests.py", "Requests._slots"): "belongs to the helper process, which does not fork",
    ("batch/worker.py", "Thread"): "watches the parent of a worker process; children of a job are ended by the pool",
    ("miss/many.py", "ThreadPoolExecutor"): "belongs to one call; a child of its thread waits for no result",
    ("miss/many.py", "unclaimed"): "belongs to one module, which one thread claims; nothing waits for it",
    ("publish/atomic_file.py", "ThreadPoolExecutor"): "belongs to one call; a child of its thread waits for no result",
    ("hit/native/linking.c", "lock"): "has its own pthread_atfork, also for forks that Python does not run",
    ("numba/exports/native/threads.c", "in_use"): "has its own pthread_atfork, also in programs without this package",
    ("numba/exports/native/threads.c", "lock"): "has its own pthread_atfork, also in programs without this package",
    ("numba/exports/native/threads.c", "started"): "has its own pthread_atfork; the child starts a new pool",
}

#: The locks that each thread has acquired for its current forks. A signal handler may fork while another fork waits.
_taken: dict[int, list[list[Any]]] = {}


def before(acquired: list[Any]) -> None:
    """Wait at most 5 seconds for the imports of other threads, and acquire the locks that become free within their `patience`.

    The list `acquired` belongs to this fork, and collects the acquired locks.
    """
    held = _taken.setdefault(get_ident(), [])
    if not _is_one_of(acquired, held):
        held.append(acquired)
    deadline = time.monotonic() + _IMPORT_SECONDS
    while True:
        while _unfinished_imports() and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        for lock in LOCKS:
            current = lock.find() if lock.patience else None
            if current is not None and not _is_among(current, held):
                acquired.extend(filter(methodcaller("acquire", timeout=lock.patience), (current,)))  # in one call of C
        if not _unfinished_imports() or time.monotonic() >= deadline:
            return
        _release(acquired)  # the import of another thread may need one of the locks


def after_in_parent(ended: list[Any]) -> None:
    """Release the locks of the forks in `ended` in the parent. Each item is a fork's list `acquired`.

    An empty `ended` receives the list of this thread's latest fork. An interrupted call is repeated with the same `ended`, and continues.
    """
    held = _taken.get(get_ident(), [])
    if held and not ended:
        ended.append(held[-1])
    for acquired in ended:
        _release(acquired)
    held[:] = [acquired for acquired in held if not _is_one_of(acquired, ended)]
    if not held:
        _taken.pop(get_ident(), None)


def after_in_child(ended: list[Any]) -> None:
    """Release the acquired locks in the child, replace all other locks, and drop the state of threads that the child does not have."""
    held = _taken.get(get_ident(), [])
    for lock in LOCKS:
        current = lock.find()
        if current is not None and not _is_among(current, held):
            lock.renew()
    after_in_parent(ended)
    for thread in _taken.keys() - {get_ident()}:
        del _taken[thread]
    for name in _unfinished_imports():
        _restart_import(name)
    for module, function, _ in FORGOTTEN:
        forget = getattr(sys.modules.get(module), function, None)
        if forget is not None:
            forget()


def _is_among(lock: Any, held: list[list[Any]]) -> bool:
    """Return whether a lock is in one of the lists `held`, by identity."""
    return any(_is_one_of(lock, acquired) for acquired in held)


def _is_one_of(item: Any, items: list[Any]) -> bool:
    """Return whether an object is in a list, by identity, because a comparison could raise."""
    return any(item is other for other in items)


def _release(locks: list[Any]) -> None:
    """Release all locks of the list, and empty the list."""
    release = map(methodcaller("release"), iter(locks.pop, None))
    while locks:
        next(release)  # in one call of C


def _import_locks() -> dict[str, Any]:
    """Return weak references to Python's locks of modules that are being imported, by the module's name."""
    locks: dict[str, Any] = getattr(importlib._bootstrap, "_module_locks", {})
    return locks


def _unfinished_imports() -> list[str]:
    """Return the names of the modules that other threads import and a child may need. In a child, these are the imports during the fork."""
    mine = get_ident()
    names = []
    for name, weak_lock in list(_import_locks().items()):
        owner = getattr(weak_lock(), "owner", None)
        if owner is not None and owner != mine and name.partition(".")[0] in _NEEDED:
            names.append(name)
    return names


def _restart_import(name: str) -> None:
    """Remove a module that a missing thread was importing, so that the next import starts again."""
    _import_locks().pop(name, None)
    module = sys.modules.get(name)
    if getattr(getattr(module, "__spec__", None), "_initializing", False):  # the import system marks unfinished modules so
        del sys.modules[name]
