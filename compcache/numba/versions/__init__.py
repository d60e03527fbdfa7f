"""The supported versions of Numba. An unsupported version works as without compcache, with one warning.

A series (0.68) is supported if this directory has a file for it. `tools/numba_versions.py` writes these files, and shows the differences
between series. An imported Numba must also have every private name of the backend. Nothing is replaced before this is checked.
"""

from __future__ import annotations

import os
import sys

from compcache.numba.lazy import has_numba
from compcache.numba.registered.distributions import numba_version
from compcache.numba.registered.refusals import NotLazy

__all__ = ["is_supported", "series_supported", "unsupported_reason", "warn_if_unsupported"]

_FOLDER = os.path.dirname(__file__)
_ENDING = ".json"


def is_supported(version: str) -> bool:
    """Return whether a version of Numba belongs to a supported series."""
    return os.path.exists(os.path.join(_FOLDER, ".".join(version.split(".")[:2]) + _ENDING))


def series_supported() -> tuple[tuple[int, int], ...]:
    """Return all supported series, the oldest first."""
    names = [name.removesuffix(_ENDING).split(".") for name in os.listdir(_FOLDER) if name.endswith(_ENDING)]
    return tuple(sorted((int(major), int(minor)) for major, minor in names))


def unsupported_reason() -> str:
    """Return why this process's Numba is not supported, also if its version is not known; "" if it is supported, or none is installed."""
    import compcache

    is_imported = has_numba()
    try:
        version = str(sys.modules["numba"].__version__) if is_imported else numba_version()
    except NotLazy as error:
        return f"compcache {compcache.__version__} cannot determine the version of Numba ({error})"
    if version and not is_supported(version):
        names_of_series = [".".join(map(str, series)) for series in series_supported()]
        supported = f"Numba {names_of_series[0]} to {names_of_series[-1]}"
        return f"compcache {compcache.__version__} does not support Numba {version}, only {supported}"
    if is_imported:
        from compcache.numba.versions.private_names import missing_names

        names = ", ".join([private.name for private in missing_names()])
        return f"compcache {compcache.__version__} does not support this Numba {version}, which lacks {names}" if names else ""
    return ""


def warn_if_unsupported() -> bool:
    """Issue one `CacheWarning` per process if the backend does not support the Numba of this process.

    Return whether the Numba is unsupported. Then the backend must not be used.
    """
    global _warned  # noqa: PLW0603 - a process has one Numba
    reason = unsupported_reason()
    if reason and not _warned:
        _warned = True
        from compcache.warning import warn

        warn(f"{reason}; Numba works as without compcache")
    return bool(reason)


_warned = False
