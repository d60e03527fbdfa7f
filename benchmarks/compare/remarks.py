"""What the document says about the figures; figures inside sentences come from the records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SECTION: dict[str, str] = {}


def summary(records: Mapping[str, Any]) -> str:
    """The section on where compcache loses."""
    return ""
