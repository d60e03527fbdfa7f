"""The native runtime, for all that reads a format: its C code is the only reader of what a hit reads (`hit/native/formats.h`)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    runtime: Any
else:
    try:
        from compcache.hit import _runtime as runtime
    except ImportError as error:
        if error.name is None:  # the extension itself refuses
            raise
        from compcache.hit.native_build import missing

        raise missing(error) from error

__all__ = ["runtime"]
