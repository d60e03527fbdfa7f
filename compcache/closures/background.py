"""Background work after a load, in a process of low priority.

The process compiles a function for exactly this host if a more generic realization was loaded (`compcache.miss.retarget`). It links
a function that reaches several modules if the function was loaded before, because linking does not pay off for a single load. One linking
process runs at a time in a directory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache.digest import digest, key_suffix, name_key
from compcache.directory.places import CLOSURES
from compcache.errors import CompcacheError
from compcache.hit.closures import HEAD, read_sealed
from compcache.hit.memory import modules_behind
from compcache.interrupts import suppress
from compcache.miss.retarget import loads_native_code
from compcache.processes.detached import has_ended, start_detached
from compcache.processes.secret_references import literal
from compcache.settings import REMOTE_MODE_VARIABLE, REMOTE_VARIABLE
from compcache.usage.ledger import Uses

if TYPE_CHECKING:
    from compcache.hit.target import TypedCallTarget
    from compcache.session import Session
    from compcache.store import Store

__all__ = ["reap_processes", "start_background_work", "unlinkable_file_name", "unlinkable_keys"]

_CHILD = """
import os
import sys
from compcache import Cache
from compcache.closures.used import link_used
from compcache.miss.retarget import tune
from compcache.processes.detached import LateFiles
os.nice(19)
path, func_name, trust, must_tune, must_link = sys.argv[1:]
with Cache(path, trust=trust == "1") as cache:
    cache._store.files.system = LateFiles()
    if must_tune == "1":
        tune(cache._session(), func_name)
    if must_link == "1":
        link_used(cache._session(), func_name)
"""
#: The key of the linking process in the dictionary of processes, whose other keys are function names.
_LINKS = "\0links"
_KEY_SIZE = len(name_key(""))


def start_background_work(session: Session, processes: dict[str, int], target: TypedCallTarget, *, tune: bool) -> None:
    """Start a background process after a load, if it may improve later loads. Do nothing if the system cannot start a process.

    Args:
        session: the open cache.
        processes: the PIDs of the processes that the cache has started, by function name or `_LINKS`; 0 if none is running. Updated.
        target: the call target that was loaded.
        tune: whether to compile the function for exactly this host if only a more generic realization exists.
    """
    reap_processes(processes)
    name = target.func_name
    processes[name] = 0
    must_tune = tune and not loads_native_code(session, name)
    must_link = not processes.get(_LINKS) and _should_be_linked(session, target)
    if must_tune or must_link:
        with suppress(CompcacheError, OSError):  # the next process tries again
            processes[_LINKS if must_link else name] = _start_process(session, name, tune=must_tune, link=must_link)


def reap_processes(processes: dict[str, int]) -> None:
    """Set the PIDs of processes that have ended to 0, and collect their exit statuses, without waiting for running processes."""
    for key, process in list(processes.items()):  # other threads start processes meanwhile
        if process and has_ended(process) and processes[key] == process:
            processes[key] = 0


def _should_be_linked(session: Session, target: TypedCallTarget) -> bool:
    """Return whether to link a loaded function.

    This holds for a function that reaches several modules, whose module was used before, and which is neither linked nor in
    `unlinkable_keys`, if the directory supports linked closures.
    """
    store, linked, context = session.store, session.loader.linked, target._context
    if context is None or len(modules_behind(context.module)) < 2 or not store.has_closures():  # noqa: PLR2004
        return False
    module_id = context.module.module_id
    if linked is not None and module_id in linked:
        return False
    return bool(Uses(store).of([module_id]).uses) and name_key(target.func_name) not in unlinkable_keys(store)


def _start_process(session: Session, func_name: str, *, tune: bool, link: bool) -> int:
    """Start a background process that tunes or links a function, with the settings of a session. Return its PID.

    Raise `OSError` if the process cannot be started. See `Session.remote_mode` for another exception.
    """
    store = session.store
    environment = dict(os.environ)
    environment["COMPCACHE_SIGNING_KEY"] = ""  # set explicitly, so that no configuration file is read
    environment["COMPCACHE_LAYERS"] = os.pathsep.join([layer.source for layer in store.layers])
    environment["COMPCACHE_TRUSTED_KEYS"] = " ".join(map(str, store.trusted_keys))
    environment["COMPCACHE_PUBLISH_KEY"] = str(store.publish_key or "")
    environment["COMPCACHE_MIN_LLVM"] = store.min_llvm
    environment[REMOTE_MODE_VARIABLE] = session.remote_mode() or ""
    if session.remote_given is not None:
        environment[REMOTE_VARIABLE] = session.remote_given
    if session.max_size is not None:
        environment["COMPCACHE_MAX_SIZE"] = str(session.max_size)
    if store.signing_key:
        environment["COMPCACHE_SIGNING_KEY"] = literal(store.signing_key.decode("utf-8", "surrogateescape"))
    return start_detached(_CHILD, [store.root, func_name, str(int(store.trust)), str(int(tune)), str(int(link))], environment)


def unlinkable_file_name(store: Store) -> str:
    """Return the name of the file that lists functions that could not be linked, in the directory for files of linked closures."""
    return CLOSURES.file_name(digest([b"tried"]).hex() + key_suffix(store.stamp_key))


def unlinkable_keys(store: Store) -> set[bytes]:
    """Return the name keys of the functions that could not be linked in the current state of the index; empty if none are recorded."""
    content = read_sealed(store, unlinkable_file_name(store))
    if content is None or HEAD.unpack_from(content)[1] != store.state():
        return set()
    return {content[start : start + _KEY_SIZE] for start in range(HEAD.size, len(content), _KEY_SIZE)}
