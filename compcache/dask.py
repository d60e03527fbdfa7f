"""A plugin for Dask's workers that fetches the functions of a graph from a remote store before tasks run. Needs `distributed`.

    client.register_plugin(PrefetchPlugin(functions_of(graph)))

A `TypedCallTarget` in a task is pickled as the path of its cache and its name. The plugin stores the function at this path on each worker,
so hosts need not share a directory, and tasks do not wait for requests.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from compcache.cache import Cache
from compcache.errors import CompcacheError
from compcache.hit.target import TypedCallTarget
from compcache.interrupts import reraise_interrupt
from compcache.warning import warn
from compcache.wording import join_first

try:
    from distributed import WorkerPlugin
except ImportError as error:
    reraise_interrupt(error)
    WorkerPlugin = object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["PrefetchPlugin", "functions_of"]


class PrefetchPlugin(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that fetches functions and their imports when a worker starts, or when the plugin is registered.

    If functions cannot be fetched, the worker issues a warning, and its tasks compile or miss as without the plugin.

    Args:
        names: names of functions, or call targets. The functions of call targets are fetched into the caches of the call targets.
        directory: the cache directory on each worker for functions given by name; None for the default.
        remote: the URL of the store, as for `Cache`; None for the worker's ``$COMPCACHE_REMOTE``. Do not pass a URL with a password,
            because Dask's scheduler sees it.
    """

    name = "compcache-prefetch"

    def __init__(self, names: Iterable[str | TypedCallTarget], directory: str | None = None, remote: str | None = None) -> None:
        self._remote = remote
        self._names_by_directory: dict[str | None, list[str]] = {}
        for function in names:
            path, name = _pickled_location(function) if isinstance(function, TypedCallTarget) else (directory, function)
            self._names_by_directory.setdefault(path, []).append(name)

    async def setup(self, worker: object) -> None:
        """Fetch the functions on a worker. Dask calls this before the worker runs tasks.

        Args:
            worker: Dask's worker.
        """
        del worker
        await asyncio.to_thread(self._fetch)

    def _fetch(self) -> None:
        """Fetch the functions of all directories. A failure is a warning, because the tasks then compile the functions."""
        for path, names in self._names_by_directory.items():
            try:
                with Cache(path, remote=self._remote) as cache:
                    cache.prefetch(names)
            except (CompcacheError, ValueError, OSError) as error:
                reraise_interrupt(error)
                directory = f"the cache directory {path}" if path is not None else "the default cache directory"
                warn(f"cannot fetch {join_first(names, 3)} into {directory}, so tasks compile these functions: {error}")


def functions_of(graph: Any) -> tuple[TypedCallTarget, ...]:
    """Return the call targets in a graph or collection of Dask, without duplicates.

    Args:
        graph: a graph, a collection, or a container of call targets.
    """
    targets: dict[tuple[str, str], TypedCallTarget] = {}
    layers = graph.__dask_graph__() if hasattr(graph, "__dask_graph__") else graph
    for target in _find_targets(layers, {}):
        targets.setdefault(_pickled_location(target), target)
    return tuple(targets.values())


def _pickled_location(target: TypedCallTarget) -> tuple[str, str]:
    """Return the cache directory and the func_name that a pickled call target contains."""
    path, name, *_ = target.__reduce__()[1]
    return path, name


def _find_targets(part: Any, visited: dict[int, Any]) -> Iterator[TypedCallTarget]:
    """Yield the call targets in a part of a graph: in containers, and in Dask's tasks (`func`, `args`, `kwargs`, `value`).

    `visited` receives the visited objects by `id`, and keeps them alive, so that no other object gets the same `id`.
    """
    if isinstance(part, TypedCallTarget):
        yield part
    elif isinstance(part, (str, bytes, int, float, complex)) or part is None or id(part) in visited:
        return
    else:
        visited[id(part)] = part
        if hasattr(part, "items") and callable(part.items):
            values = [value for _, value in part.items()]
        elif isinstance(part, (list, tuple, set, frozenset)):
            values = list(part)
        else:
            values = [getattr(part, name, None) for name in ("func", "args", "kwargs", "value")]
        for item in values:
            yield from _find_targets(item, visited)
