"""Types of command-line options: sizes, durations and times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from typing import Any

    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # older versions of click have no type arguments

__all__ = ["DURATION", "MOMENT", "SIZE"]


class _Size(_Type):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return a size, given as text with or without a unit, in bytes. Raise `click.BadParameter` if it is not valid."""
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
        """Return a duration, given as text with a unit, in seconds. Raise `click.BadParameter` if it is not valid."""
        if isinstance(value, float):
            return value
        from compcache.usage.limits import parse_duration

        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Moment(_Type):
    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return a time, given as an age or an ISO date, in seconds since the epoch. Raise `click.BadParameter` if it is not valid."""
        if isinstance(value, float):
            return value
        from datetime import datetime

        from compcache.usage.limits import parse_duration

        try:
            return time.time() - parse_duration(value)
        except ValueError:
            pass
        try:
            return datetime.fromisoformat(value).timestamp()  # local time unless it has a zone
        except ValueError:
            self.fail(f"{value!r} is not a valid time: give an age (7d, 12h) or a date (2026-01-31)", param, ctx)


SIZE = _Size()
DURATION = _Duration()
MOMENT = _Moment()
