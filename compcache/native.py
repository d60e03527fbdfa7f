"""Imports the native runtime for the readers of formats. Only its C code reads the formats of hits (`hit/native/formats.h`)."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["runtime"]


def _load() -> "Any":
    """Import the extension module. Raise an `ImportError` with advice if it is not installed."""
    try:
        import compcache.hit._runtime as extension
    except ImportError as error:
        if error.name is None:  # the extension module itself raised the error
            raise
        from compcache.hit.native_build import missing_error

        raise missing_error(error) from error
    return extension


#: The extension module. If it is missing or cannot be used, importing this file raises ImportError with a message that says what to do.
runtime: "Any" = _load()
