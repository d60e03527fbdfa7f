"""Which versions of Numba the backend supports."""

from __future__ import annotations

__all__ = ["SUPPORTED", "numba_version", "require_supported"]

#: From the first up to, but not including, the second.
SUPPORTED = ((0, 66), (0, 69))


def numba_version() -> str:
    """The version of Numba that is installed; imports it."""
    import numba

    return str(numba.__version__)


def require_supported() -> None:
    """Check the version of Numba.

    Raises:
        RuntimeError: it is not supported.
    """
    found = numba_version()
    version = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if not SUPPORTED[0] <= version < SUPPORTED[1]:
        low, high = (".".join(map(str, bound)) for bound in SUPPORTED)
        raise RuntimeError(f"compcache.numba supports Numba from {low} up to, but not including, {high};  this is {found}")
