"""Background work after a load, in a process of low priority.

The process compiles a function for exactly this host if a more generic realization was loaded (`compcache.miss.retarget`). It links
a function that reaches several modules if the function was loaded before, because linking does not pay off for a single load. One linking
process runs at a time in a directory.
"""

from __future__ import annotations

import marshal
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
from compcache.settings import KEY_VARIABLE
from compcache.usage.ledger import Uses

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from compcache.hit.target import TypedCallTarget
    from compcache.session import Session
    from compcache.store import Store

__all__ = ["reap_processes", "start_background_work", "unlinkable_file_name", "unlinkable_keys"]

_CHILD = """
import marshal
import os
from compcache import Cache
from compcache.closures.used import link_used
from compcache.miss.retarget import tune
from compcache.processes.detached import LateFiles
os.nice(19)
settings, func_name, must_tune, must_link = marshal.loads(bytes.fromhex(os.environ.pop("_COMPCACHE_BACKGROUND")))
with Cache(**settings) as cache:
    cache._store.files.system = LateFiles()
    if must_tune:
        tune(cache._session(), func_name)
    if must_link:
        link_used(cache._session(), func_name)
"""
#: The key of the linking process in the dictionary of processes, whose other keys are function names.
_LINKS = "\0links"
_KEY_SIZE = len(name_key(""))


def start_background_work(
    session: Session, processes: dict[str, int], target: TypedCallTarget, settings: Callable[[], dict[str, Any]], *, tune: bool
) -> None:
    """Start a background process after a load, if it may improve later loads. Do nothing if the system cannot start a process.

    Args:
        session: the open cache.
        processes: the PIDs of the processes that the cache has started, by function name or `_LINKS`; 0 if none is running. Updated.
        target: the call target that was loaded.
        settings: returns the arguments with which the process opens the cache.
        tune: whether to compile the function for exactly this host if only a more generic realization exists.
    """
    reap_processes(processes)
    name = target.func_name
    processes[name] = 0
    must_tune = tune and not loads_native_code(session, name)
    must_link = not processes.get(_LINKS) and _should_be_linked(session, target)
    if must_tune or must_link:
        with suppress(CompcacheError, OSError, ValueError):  # the next process tries again; ValueError is raised for a damaged key
            processes[_LINKS if must_link else name] = _start_process(settings(), name, tune=must_tune, link=must_link)


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


def _start_process(settings: dict[str, Any], func_name: str, *, tune: bool, link: bool) -> int:
    """Start a background process that tunes or links a function of the cache with these settings. Return its PID.

    Raise `OSError` if the process cannot be started.
    """
    work = marshal.dumps((settings, func_name, tune, link)).hex()  # only this user can read a process's environment
    return start_detached(_CHILD, [], {**os.environ, KEY_VARIABLE: "", "_COMPCACHE_BACKGROUND": work})


def unlinkable_file_name(store: Store) -> str:
    """Return the name of the file that lists functions that could not be linked, in the directory for files of linked closures."""
    return CLOSURES.file_name(digest([b"tried"]).hex() + key_suffix(store.stamp_key))


def unlinkable_keys(store: Store) -> set[bytes]:
    """Return the name keys of the functions that could not be linked in the current state of the index; empty if none are recorded."""
    content = read_sealed(store, unlinkable_file_name(store))
    if content is None or HEAD.unpack_from(content)[1] != store.state():
        return set()
    return {content[start : start + _KEY_SIZE] for start in range(HEAD.size, len(content), _KEY_SIZE)}
