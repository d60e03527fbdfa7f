"""Which directories the layers of a cache are, from its argument or the environment."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["places_of"]


def places_of(layers: Iterable[str | os.PathLike[str]] | None, root: str) -> list[str]:
    """The directories; bundles are unpacked, once, beside the cache's own directory `root`.

    Raises:
        TypeError: a single path stands in place of several.
        FormatError: a file is not a bundle.
    """
    paths = _paths(layers)
    for number, path in enumerate(paths):
        if os.path.isfile(path):
            from compcache.bundles.unpack import unpacked

            paths[number] = unpacked(path, root)
    return paths


def _paths(layers: Iterable[str | os.PathLike[str]] | None) -> list[str]:
    if layers is None:
        return [path for path in os.environ.get("COMPCACHE_LAYERS", "").split(os.pathsep) if path]
    if isinstance(layers, (str, bytes, os.PathLike)):
        raise TypeError(f"layers are several directories, [{os.fspath(layers)!r}] for example")
    try:
        return [os.fspath(path) for path in layers]
    except TypeError as error:
        raise TypeError(f"layers are several directories, ['/opt/app/cache'] for example: {error}") from None
