"""The sources of the extension module, and the errors for an extension module that is missing or was built from other sources.

setup.py runs this file alone, for the paths and the digest, so it imports nothing of the package.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["missing_error", "require_same_sources", "source_digest", "source_paths"]

_SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native")
_BUILD = "in a source checkout run `make build`, or `pip install -e .`"


def source_paths() -> list[str]:
    """Return the paths of the C files and headers, sorted."""
    return [os.path.join(_SOURCES, name) for name in sorted(os.listdir(_SOURCES)) if name.endswith((".c", ".h"))]


def source_digest() -> str:
    """Return a digest of the names and contents of all C files and headers."""
    import hashlib

    digest = hashlib.blake2b(digest_size=16)
    for path in source_paths():
        with open(path, "rb") as file:
            content = file.read()
        digest.update(f"{os.path.basename(path)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def missing_error(error: ImportError) -> ImportError:
    """Return the exception to raise if `error` is the failed import of the extension module."""
    return ImportError(
        f"the native runtime of compcache cannot be imported ({error}): {_BUILD}; otherwise install compcache again for this Python",
        name=error.name,
    )


def require_same_sources(extension: ModuleType) -> None:
    """Check that an extension module was built from the sources beside it.

    Raise `ImportError` if the sources differ. The message names the command to run.
    """
    if source_digest() != extension.SOURCE_DIGEST:
        path = extension.__file__
        raise ImportError(f"{path} was not built from the sources that {_SOURCES} has now: {_BUILD}", path=path)
