"""The native runtime, for all readers of formats: its C code is the only reader of the formats of hits (`hit/native/formats.h`)."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["runtime"]


def _load() -> "Any":
    try:
        import compcache.hit._runtime as extension
    except ImportError as error:
        if error.name is None:  # the extension itself refuses
            raise
        from compcache.hit.native_build import missing

        raise missing(error) from error
    return extension


#: Raises ImportError if the extension module is missing, or cannot work here. The message says what to do.
runtime: "Any" = _load()
