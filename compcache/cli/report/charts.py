"""The charts of a report, drawn by Vega-Lite (https://vega.github.io/vega-lite) through the package ``vl-convert-python``.

Charts are SVG elements. The page needs no script, and so works on build servers that forbid scripts. Colours are CSS variables
of the page: the same drawing serves the light and the dark scheme. Each chart is drawn for wide and for narrow windows, and
the page shows one of the two drawings.
"""

from __future__ import annotations

import datetime as dt
import re
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from compcache.cli.output import printable, seconds_text, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from compcache.cli.report.story import Group, Story

__all__ = ["Chart", "can_draw", "charts", "draw"]

_WIDTHS = {"wide": 740, "narrow": 340}  # of drawings, in pixels
_HOUR, _DAY = 3600, 86400
#: Pairs of the longest span of time and the length of its steps, in seconds.
_STEPS = ((3 * _DAY, _HOUR), (120 * _DAY, _DAY), (900 * _DAY, 7 * _DAY), (float("inf"), 30 * _DAY))
_LEAST_STEPS = 12
_MOST_BARS = 12
_HIT, _MISS = "var(--hit)", "var(--miss)"
#: The encoding that gives each mark the field `text` of its value as its description, for screen readers.
_DESCRIPTION = {"description": {"field": "text", "type": "nominal"}}
_MARK = re.compile(r'<(path|line|circle)( aria-label="([^"]*)"[^>]*?)(?:/>|></\1>)')


class Chart(NamedTuple):
    """A chart: a summary in one sentence, a specification in Vega-Lite without the width, and its data as a table."""

    key: str
    title: str
    summary: str
    spec: dict[str, Any]
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class _Step(NamedTuple):
    """The counters of one step on the axis of time. `start` and `end` are seconds since the epoch, `label` is local time."""

    start: float
    end: float
    label: str
    hits: int
    misses: int
    saved: float
    spent: float
    added: int
    evicted: int


def can_draw() -> bool:
    """Return whether the package that draws charts is installed."""
    from importlib.util import find_spec

    return find_spec("vl_convert") is not None


def charts(story: Story) -> list[Chart]:
    """Return the charts of a story, without charts that have no data."""
    steps = _equal_steps(story)
    drawable = []
    if any(step.hits or step.misses for step in steps):
        drawable += [_hit_rate_chart(steps), _requests_chart(steps)]
    if story.stats.miss_reasons:
        drawable.append(_reasons_chart(story))
    if any(step.saved or step.spent for step in steps):
        drawable.append(_seconds_chart(steps))
    if story.packages:
        drawable += [
            _groups_chart("packages", "Size by package", story.packages, "realizations", "package"),
            _groups_chart("last-use", "Size by last use", story.last_uses, "modules", "last use", join_last=False),
        ]
    if any(step.added or step.evicted for step in steps):
        drawable.append(_growth_chart(steps))
    return drawable


def draw(chart: Chart) -> str:
    """Return the HTML of a chart: an SVG element for wide windows and one for narrow windows. `can_draw` must be true."""
    return "".join(f'<div class="{name}">{_chart_as_svg(chart, width)}</div>' for name, width in _WIDTHS.items())


def _chart_as_svg(chart: Chart, width: int) -> str:
    """Return a chart as an SVG element of `width` pixels, with its summary and the text of each mark for screen readers."""
    import vl_convert

    axis = {
        "labelColor": "var(--faint)", "titleColor": "var(--faint)", "gridColor": "var(--rule)", "domainColor": "var(--rule)",
        "tickColor": "var(--rule)", "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": width // 3,
    }  # fmt: skip
    legend = {"labelColor": "var(--ink)", "labelFontSize": 12, "title": None, "orient": "top"}
    config = {"background": None, "font": "sans-serif", "axis": axis, "legend": legend, "view": {"stroke": None}}
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json", "width": width, **chart.spec, "config": config,
        "autosize": {"type": "fit-x", "contains": "padding"}, "padding": 2,
    }  # fmt: skip
    text: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    label = f'role="graphics-document" aria-label="{escape(chart.summary)}" preserveAspectRatio="xMinYMin"'
    return _MARK.sub(r"<\1\2><title>\3</title></\1>", text.replace("<svg ", f"<svg {label} ", 1))


def _equal_steps(story: Story) -> list[_Step]:
    """Return the counters of a story in steps of equal length, empty steps included; no steps for a story without periods."""
    if not story.periods:
        return []
    span = max(story.created - story.periods[0].start, 1)
    length = next(step for longest, step in _STEPS if span <= longest)
    offset = _utc_offset(story.created) if length > _HOUR else 0  # steps of days begin at local midnight
    last_step = int(story.created + offset) // length
    first_step = min(int(story.periods[0].start + offset) // length, last_step + 1 - _LEAST_STEPS)
    starts = [number * length - offset for number in range(first_step, last_step + 1)]
    steps = [_Step(start, start + length, _step_label(start, length), 0, 0, 0.0, 0.0, 0, 0) for start in starts]
    for period in story.periods:
        number = min(int(period.start + offset) // length - first_step, len(steps) - 1)
        step = steps[number]
        steps[number] = step._replace(
            hits=step.hits + period.hits,
            misses=step.misses + period.misses,
            saved=step.saved + period.saved_seconds,
            spent=step.spent + period.compile_seconds,
            added=step.added + period.added_size,
            evicted=step.evicted + period.evicted_size,
        )
    return steps


def _utc_offset(when: float) -> int:
    """Return the offset of local time from UTC in seconds at a time in seconds since the epoch."""
    offset = dt.datetime.fromtimestamp(when).astimezone().utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _step_label(start: float, length: int) -> str:
    """Return the local time of a step as text: the hour, the day, or "from" and the first of several days."""
    label = dt.datetime.fromtimestamp(start).astimezone().strftime("%Y-%m-%d %H:%M" if length == _HOUR else "%Y-%m-%d")
    return f"from {label}" if length > _DAY else label


def _time_axis(steps: Sequence[_Step]) -> dict[str, Any]:
    """Return the axis of time. Local times are declared to be UTC, because charts are drawn without knowledge of time zones."""
    domain = [_local_ms(steps[0].start), _local_ms(steps[-1].end)]
    return {
        "field": "start", "type": "temporal", "scale": {"type": "utc", "domain": domain, "nice": False},
        "axis": {"title": None, "grid": False, "tickCount": 6},
    }  # fmt: skip


def _local_ms(seconds: float) -> int:
    """Return a time in seconds since the epoch as the local time in milliseconds, as if it were UTC."""
    return round((seconds + _utc_offset(seconds)) * 1000)


def _times_of_step(step: _Step) -> dict[str, Any]:
    """Return the times of a step for a chart, in milliseconds, and its text."""
    middle = _local_ms((step.start + step.end) / 2)
    return {"start": _local_ms(step.start), "end": _local_ms(step.end), "middle": middle, "when": step.label}


def _vertical_axis(field: str, title: str | None, format_: str = ",~f", **settings: Any) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "axis": {"title": title, "format": format_, "tickCount": 4}, **settings}


def _axis_unit(size: float) -> tuple[str, int]:
    """Return the unit for an axis that ends at `size` bytes, and the number of bytes in the unit."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = min(max(int(size).bit_length() - 1, 0) // 10, len(units) - 1)
    return units[power], 1 << 10 * power


def _hit_rate_chart(steps: Sequence[_Step]) -> Chart:
    """Return the chart of the hit rate over time. There must be a request."""
    requested = [step for step in steps if step.hits or step.misses]
    rates = [step.hits / (step.hits + step.misses) for step in requested]
    rated = list(zip(requested, rates, strict=True))
    values = [{**_times_of_step(step), "rate": rate, "text": f"{step.label}: {rate:.1%} hits"} for step, rate in rated]
    total = sum(step.hits for step in requested) / sum(step.hits + step.misses for step in requested)
    y_axis = _vertical_axis("rate", None, "%", scale={"domain": [0, 1]})
    spec = _lines(values, {"x": {**_time_axis(steps), "field": "middle"}, "y": y_axis}, 45, color=_HIT)
    return Chart(
        "hit-rate", "Hit rate", f"{total:.1%} of the requests not answered from memory were hits.", spec, ("time", "hit rate"),
        tuple((step.label, f"{rate:.1%}") for step, rate in rated),
    )  # fmt: skip


def _lines(values: list[dict[str, Any]], encoding: dict[str, Any], size: int, **settings: str) -> dict[str, Any]:
    """Return the specification of lines through circles of a size. Circles describe their values to screen readers; lines do not."""
    line = {"type": "line", "strokeWidth": 2, "aria": False, **settings}
    circle = {"type": "circle", "size": size, "opacity": 1, **settings}
    layers = [{"mark": line, "encoding": encoding}, {"mark": circle, "encoding": {**encoding, **_DESCRIPTION}}]
    return {"height": 150, "data": {"values": values}, "layer": layers}


def _stacked_bars(
    steps: Sequence[_Step],
    kinds: Sequence[tuple[str, str, Callable[[_Step], float]]],
    title: str,
    text: Callable[[float], str],
    factor: float = 1,
) -> dict[str, Any]:
    """Return the specification of stacked bars over time.

    `kinds` are the name, the colour and the value in a step of each kind of bar. A negative bar goes down from the axis. `text` formats a
    value. The vertical axis has the `title`, and shows values divided by `factor`.
    """
    values = []
    for step in steps:
        base = 0.0
        for name, _, value_of in kinds:
            value = value_of(step)
            low = base if value > 0 else 0.0
            if value:
                values.append({
                    **_times_of_step(step), "kind": name, "low": low / factor, "high": (low + value) / factor,
                    "text": f"{step.label}: {text(abs(value))} {name}",
                })  # fmt: skip
            base = max(base, low + value)
    names, colours, _ = zip(*kinds, strict=True)
    colour = {"field": "kind", "type": "nominal", "scale": {"domain": list(names), "range": list(colours)}}
    encoding = {
        "x": _time_axis(steps), "x2": {"field": "end"}, "y": _vertical_axis("low", title), "y2": {"field": "high"}, "color": colour,
        **_DESCRIPTION,
    }  # fmt: skip
    return {"height": 150, "data": {"values": values}, "mark": {"type": "bar", "binSpacing": 1}, "encoding": encoding}


def _requests_chart(steps: Sequence[_Step]) -> Chart:
    """Return the chart of hits and misses over time."""
    hits, misses = sum(step.hits for step in steps), sum(step.misses for step in steps)
    kinds = (("hits", _HIT, lambda step: step.hits), ("misses", _MISS, lambda step: step.misses))
    return Chart(
        "requests", "Requests", f"{hits:,} hits and {misses:,} misses.", _stacked_bars(steps, kinds, "requests", "{:,.0f}".format),
        ("time", "hits", "misses"),
        tuple((step.label, f"{step.hits:,}", f"{step.misses:,}") for step in steps if step.hits or step.misses),
    )  # fmt: skip


def _seconds_chart(steps: Sequence[_Step]) -> Chart:
    """Return the chart of the compilation time saved and spent so far."""
    values = []
    saved = spent = 0.0
    for step in steps:
        saved, spent = saved + step.saved, spent + step.spent
        for kind, value in (("saved by loads", saved), ("spent on compilation", spent)):
            values.append(
                {**_times_of_step(step), "kind": kind, "value": value, "text": f"{step.label}: {seconds_text(value)} {kind} so far"}
            )
    x_axis, y_axis = {**_time_axis(steps), "field": "end"}, _vertical_axis("value", "seconds, summed up")
    colour = {
        "field": "kind", "type": "nominal",
        "scale": {"domain": ["saved by loads", "spent on compilation"], "range": [_HIT, _MISS]},
    }  # fmt: skip
    spec = _lines(values, {"x": x_axis, "y": y_axis, "color": colour}, 24, interpolate="step-after")
    return Chart(
        "seconds", "Time saved", f"Loads saved {seconds_text(saved)} of compilation. Compilation took {seconds_text(spent)}.", spec,
        ("time", "saved", "spent"),
        tuple((step.label, seconds_text(step.saved), seconds_text(step.spent)) for step in steps if step.saved or step.spent),
    )  # fmt: skip


def _growth_chart(steps: Sequence[_Step]) -> Chart:
    """Return the chart of added and evicted bytes over time."""
    added, evicted = sum(step.added for step in steps), sum(step.evicted for step in steps)
    kinds = (("added", _HIT, lambda step: step.added), ("evicted", _MISS, lambda step: -step.evicted))
    unit, factor = _axis_unit(max(max(step.added, step.evicted) for step in steps))
    spec = _stacked_bars(steps, kinds, unit, size_text, factor)
    return Chart(
        "growth", "Added and evicted", f"{size_text(added)} added, {size_text(evicted)} evicted.", spec,
        ("time", "added", "evicted"),
        tuple((step.label, size_text(step.added), size_text(step.evicted)) for step in steps if step.added or step.evicted),
    )  # fmt: skip


def _reasons_chart(story: Story) -> Chart:
    """Return the chart of misses by reason. There must be a reason."""
    reasons = sorted(story.stats.miss_reasons.items(), key=lambda item: -item[1])
    (most_frequent, _), *_ = reasons
    values = [{"name": name, "value": count, "text": f"{name}: {count:,}"} for name, count in reasons]
    return Chart(
        "reasons", "Misses by reason", f"Misses: {story.stats.misses:,}. The most frequent reason is: {most_frequent}.",
        _flat_bars(values, "misses", _MISS), ("reason", "misses"), tuple((name, f"{count:,}") for name, count in reasons),
    )  # fmt: skip


def _groups_chart(key: str, title: str, groups: Sequence[Group], noun: str, head: str, *, join_last: bool = True) -> Chart:
    """Return a chart of the sizes of one or more groups. With `join_last`, the last of many groups share one bar."""
    shown = list(groups)
    if join_last and len(shown) > _MOST_BARS:
        smallest = shown[_MOST_BARS - 1 :]
        total_size, total_number = sum(group.size for group in smallest), sum(group.number for group in smallest)
        shown = [*shown[: _MOST_BARS - 1], type(smallest[0])(f"{len(smallest)} others", total_size, total_number)]
    largest = max(shown, key=lambda group: group.size)
    unit, factor = _axis_unit(largest.size)
    values = [
        {"name": printable(name) or "(no name)", "value": size / factor, "text": f"{printable(name)}: {size_text(size)}, {count:,} {noun}"}
        for name, size, count in shown
    ]  # fmt: skip
    return Chart(
        key, title, f"The largest group, with {size_text(largest.size)}, is: {printable(largest.name)}.", _flat_bars(values, unit, _HIT),
        (head, "size", noun), tuple((name, size_text(size), f"{count:,}") for name, size, count in groups),
    )  # fmt: skip


def _flat_bars(values: list[dict[str, Any]], title: str, colour: str) -> dict[str, Any]:
    """Return the specification of horizontal bars in the order of `values`.

    Long labels lose their middle before they are measured, which takes minutes for a name of 64 KB.
    """
    axis = {"title": None, "grid": False, "ticks": False, "domain": False, "labelExpr": "truncate(datum.label, 40, 'center')"}
    encoding = {
        "y": {"field": "name", "type": "nominal", "sort": None, "axis": axis},
        "x": {"field": "value", "type": "quantitative", "axis": {"title": title, "format": ",~f", "tickCount": 4}},
        **_DESCRIPTION,
    }  # fmt: skip
    return {"height": {"step": 24}, "data": {"values": values}, "mark": {"type": "bar", "color": colour}, "encoding": encoding}
