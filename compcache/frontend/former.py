"""Members of `Cache` that are functions of `compcache.frontend` now, and remain members until version 1.1."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

from compcache import frontend

if TYPE_CHECKING:
    from compcache.cache import Cache

__all__ = ["moved"]

#: The names of the functions that are not those of the members.
_RENAMED = {"find_target": "find", "settings": "settings_of", "allow_pickle": "allows_pickle"}
_PROPERTIES = ("settings", "allow_pickle", "temporary_directory")


def moved(cache: Cache, name: str) -> Any:
    """Return the value of a former property of `Cache`, or a former method, from the function that replaces it.

    Issue a `DeprecationWarning`, because version 1.1 removes these members.
    """
    new = getattr(frontend, _RENAMED.get(name, name))
    message = f"Cache.{name} will be removed in version 1.1: use compcache.frontend.{new.__name__}(cache, ...) instead"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return new(cache) if name in _PROPERTIES else functools.partial(new, cache)
