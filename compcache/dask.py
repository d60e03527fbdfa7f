"""Dask's workers fetch what a graph calls, from a remote store, before its tasks run. Needs `distributed`.

    client.register_plugin(PrefetchPlugin(functions_of(graph)))

A `TypedCallTarget` in a task arrives as the path of its cache and its name. The plugin puts the function at that path on each worker, so
hosts need not share a directory, and no task waits for a request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from compcache.cache import Cache
from compcache.errors import CompcacheError
from compcache.files import reraise_interrupt
from compcache.hit.target import TypedCallTarget
from compcache.publish.quarantine import warn

try:
    from distributed import WorkerPlugin
except ImportError as error:
    reraise_interrupt(error)
    WorkerPlugin = object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["PrefetchPlugin", "functions_of"]


class PrefetchPlugin(WorkerPlugin):  # type: ignore[misc]
    """A worker plugin that fetches functions, with what they import, when a worker starts, or when it is registered.

    A failure is a warning on the worker: its tasks compile, or miss, as without the plugin.

    Args:
        names: names of functions, or targets; those of targets are fetched into the caches of the targets.
        directory: the cache directory for the others on each worker; None for the default.
        remote: the URL of the store, as of `Cache`; None for ``$COMPCACHE_REMOTE`` of the worker. Not a URL with a password: Dask's
            scheduler sees it.
    """

    name = "compcache-prefetch"

    def __init__(self, names: Iterable[str | TypedCallTarget], directory: str | None = None, remote: str | None = None) -> None:
        self._remote = remote
        self._wanted: dict[str | None, list[str]] = {}
        for each in names:
            path, name = _place_of(each) if isinstance(each, TypedCallTarget) else (directory, each)
            self._wanted.setdefault(path, []).append(name)

    async def setup(self, worker: object) -> None:
        """Prepare a worker: Dask calls this before it runs tasks.

        Args:
            worker: Dask's worker.
        """
        del worker
        await asyncio.to_thread(self._fetch)

    def _fetch(self) -> None:
        for path, names in self._wanted.items():
            try:
                with Cache(path, remote=self._remote) as cache:
                    cache.prefetch(names)
            except (CompcacheError, ValueError, OSError) as error:
                reraise_interrupt(error)
                warn(f"could not prefetch {len(names)} functions: {error}")


def functions_of(graph: Any) -> tuple[TypedCallTarget, ...]:
    """Return the functions of caches that a graph of Dask, or a collection, calls or passes to tasks, each once.

    Args:
        graph: a graph, a collection, or anything that holds call targets.
    """
    known: dict[tuple[str, str], TypedCallTarget] = {}
    layers = graph.__dask_graph__() if hasattr(graph, "__dask_graph__") else graph
    for target in _targets(layers, set()):
        known.setdefault(_place_of(target), target)
    return tuple(known.values())


def _place_of(target: TypedCallTarget) -> tuple[str, str]:
    """Return the cache directory and the name by which an unpickled target is found again."""
    path, name, *_ = target.__reduce__()[1]
    return path, name


def _targets(part: Any, seen: set[int]) -> Iterator[TypedCallTarget]:
    """Yield the targets in a part of a graph: those in containers and in Dask's tasks (`func`, `args`, `kwargs`, `value`)."""
    if isinstance(part, TypedCallTarget):
        yield part
    elif isinstance(part, (str, bytes, int, float, complex)) or part is None or id(part) in seen:
        return
    else:
        seen.add(id(part))
        if hasattr(part, "items") and callable(part.items):
            inner = [value for _, value in part.items()]
        elif isinstance(part, (list, tuple, set, frozenset)):
            inner = list(part)
        else:
            inner = [getattr(part, name, None) for name in ("func", "args", "kwargs", "value")]
        for each in inner:
            yield from _targets(each, seen)
