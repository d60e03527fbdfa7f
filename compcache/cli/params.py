"""Option types of the maintenance commands: sizes, durations, and moments."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from typing import Any

    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # older versions of click have no type arguments

__all__ = ["DURATION", "MOMENT", "SIZE"]

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400, "y": 365 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w|y)", re.IGNORECASE)


class _Size(_Type):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes, with a unit or without."""
        from compcache.usage.limits import parse_size

        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Duration(_Type):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, from a number with a unit."""
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            why = "has no unit" if value.strip().isdecimal() else "is not a valid duration"
            self.fail(
                f"{value!r} {why}: give a number and s, min, h, d, w or y, like 36h or 30d", param, ctx
            )
        return float(match[1]) * _SECONDS[match[2].lower()]


class _Moment(_Type):
    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds since the epoch, from how long ago it was or an ISO date."""
        if isinstance(value, float):
            return value
        if _DURATION.fullmatch(value.strip()):
            return time.time() - DURATION.convert(value, param, ctx)
        from datetime import datetime

        try:
            return datetime.fromisoformat(value).timestamp()  # local time where no zone is given
        except ValueError:
            self.fail(
                f"{value!r} is not a valid moment: give how long ago (7d, 12h) or a date (2026-01-31)", param, ctx
            )


SIZE = _Size()
DURATION = _Duration()
MOMENT = _Moment()
