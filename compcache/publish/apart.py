"""Runs long work on a directory in a separate process, which continues after this process has ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compcache.files import Files
from compcache.processes.detached import has_ended, start_detached

if TYPE_CHECKING:
    from compcache.store import Store

__all__ = ["can_use_subprocess", "run_in_subprocess", "start_subprocess"]

_CHILD = "import sys\nfrom {module} import {function}\n{function}(sys.argv[1], trust=sys.argv[2] == '1')\n"
#: The ids of the processes, by directory and function. A child that has ended is reaped before the next one starts.
_running: dict[tuple[str, str], int] = {}


def can_use_subprocess(store: Store) -> bool:
    """Return whether this process can start another one that works on this store.

    The other process receives only the directory and `trust`. So the store must have no keys and no custom file operations, and other users
    must not be able to write to the directory.
    """
    has_keys = store.stamp_key or store.publish_key
    return type(store.files.system) is Files and not (has_keys or store.exposed)


def start_subprocess(store: Store, module: str, function: str) -> int:
    """Start a process that calls a function of a module with the directory and `trust`. Return its PID.

    Raise `OSError` if the process could not be started.
    """
    return start_detached(_CHILD.format(module=module, function=function), [store.root, str(int(store.trust))], os.environ)


def run_in_subprocess(store: Store, module: str, function: str) -> None:
    """Start a process as `start_subprocess` does, unless an earlier process for the same function and directory is still running.

    Raise `OSError` if the process could not be started.
    """
    key = store.root, function
    process = _running.pop(key, 0)
    _running[key] = process if process and not has_ended(process) else start_subprocess(store, module, function)
