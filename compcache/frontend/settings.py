"""Settings of a cache and of this process that a front end reads on its miss path."""

from __future__ import annotations

from compcache import settings
from compcache.settings import setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from compcache.cache import Cache

__all__ = ["is_on", "targets_of", "temporary_directory"]


def temporary_directory(cache: Cache) -> str:
    """Return the path of a directory in the cache for temporary files. It may not exist. `Cache.prune` removes leftover files.

    Args:
        cache: an open cache.
    """
    return cache._store.temporary


def targets_of(targets: Iterable[str] | str | None) -> Iterable[str] | str | None:
    """Return `targets`, or the setting ``COMPCACHE_TARGETS`` if `targets` is empty; None to compile only for this host.

    Args:
        targets: the value of `ModuleSource(targets=...)`: names of CPUs, or None.
    """
    from compcache.targets.machine import TARGETS_VARIABLE

    return targets or setting(TARGETS_VARIABLE) or None


def is_on(variable: str) -> bool:
    """Return whether a setting is on (1, on, yes, true). A setting that is not set is off.

    Args:
        variable: the environment variable of the setting, like ``COMPCACHE_CHECK``. Configuration files are also read.

    Raises:
        SettingError: the setting is neither on nor off (0, off, no, false).
    """
    return settings.is_on(variable)
