"""The page of ``compcache report``: one HTML file without scripts that refers to no other file."""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from compcache.cli.output import age_text, fullness_text, plural, printable, seconds_text, size_text, time_text
from compcache.cli.report.charts import charts, draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from compcache.cli.report.charts import Chart
    from compcache.cli.report.story import Duplicate, Group, ModuleRow, Story
    from compcache.usage.costs import Cost

__all__ = ["page"]

#: The meaning of each reason of a miss, and advice.
_REASONS = {
    "absent": "the function was not in the cache; the first request of each function is a miss for this reason",
    "cpu": "the function was compiled for another CPU: add it with --targets, or open the cache with retarget=True",
    "damaged": "the file was damaged: run compcache check",
    "untrusted": "no trusted key has signed the code, or another user may have written its file: run compcache explain NAME",
    "dependency": "a function that it imports was not in the cache: run compcache explain NAME",
    "global": "a global variable had another value than at compilation: run compcache explain NAME",
    "signature": "the function was stored with another signature: run compcache show NAME",
    "link": "the image could not be linked or mapped: run compcache explain NAME",
    "storage": "the cache directory could not be read: run compcache doctor",
    "other": "run compcache explain NAME",
}
_ALMOST_FULL = 0.9
_FEW_HITS, _MANY_REQUESTS = 0.5, 20


def page(story: Story, *, drawn: bool) -> Iterator[str]:
    """Yield the parts of the page. If `drawn` is false, the page has tables in place of charts."""
    template = resources.files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    head, _, tail = template.replace("<!--TITLE-->", _escape(f"compcache: {story.directory}")).partition("<!--STORY-->")
    yield head
    yield from _heading_parts(story)
    yield from _tile_parts(story)
    yield from _advice_section(story)
    for chart in charts(story):
        yield from _figure_parts(chart, drawn=drawn)
    yield from _list_sections(story)
    yield tail


def _escape(text: str) -> str:
    return escape(printable(text))


def _heading_parts(story: Story) -> Iterator[str]:
    """Yield the heading of the page, with the directory and the time from which it counts."""
    since = f"counted since {time_text(story.since)}" if story.since else "counted since the cache was created"
    yield (
        f"<header><h1>What this cache did</h1><p><code>{_escape(story.directory)}</code></p>"
        f"<p>{_escape(time_text(story.created))}, {since}; compcache {_escape(story.version)}</p></header>\n"
    )


def _tile_parts(story: Story) -> Iterator[str]:
    """Yield the four main numbers: hit rate, time saved, functions and size."""
    stats = story.stats
    requests = stats.hits + stats.misses
    share_text = f"{stats.size / stats.max_size:.1%} of {size_text(stats.max_size)}" if stats.max_size else "without a limit"
    tiles = [
        ("hit rate", f"{stats.hit_rate:.1%}" if requests else "none yet", f"{stats.hits:,} of {plural(requests, 'request')}"),
        ("time saved", seconds_text(stats.saved_seconds) if stats.saved_seconds else "none yet", _saved_time_text(story)),
        ("functions", f"{stats.functions:,}", f"in {plural(stats.modules, 'module')}"),
        ("size", size_text(stats.size), share_text),
    ]
    yield '<ul class="tiles">\n'
    for name, value, detail in tiles:
        yield f"<li><span>{name}</span><strong>{_escape(value)}</strong><small>{_escape(detail)}</small></li>\n"
    yield "</ul>\n"


def _saved_time_text(story: Story) -> str:
    """Return the ratio of the saved time to the compilation time as text; the number of loads if no time was spent on compilation."""
    stats = story.stats
    if not stats.compile_seconds:
        return f"by {plural(stats.loads, 'load')}"
    return f"{stats.saved_seconds / stats.compile_seconds:.1f} times the {seconds_text(stats.compile_seconds)} of compilation"


def _advice_section(story: Story) -> Iterator[str]:
    """Yield the section with the proposals; nothing without proposals."""
    items = list(_proposals(story))
    if items:
        yield '<section><h2>What to do</h2><ul class="advice">\n'
        yield from (f"<li>{item}</li>\n" for item in items)
        yield "</ul></section>\n"


def _proposals(story: Story) -> Iterator[str]:
    """Yield proposals for improvement as HTML, each with the command that shows or applies it."""
    stats = story.stats
    requests = stats.hits + stats.misses
    if not stats.modules:
        yield "The cache is empty: <code>compcache add FILE</code> or a program that uses the cache fills it."
    if requests >= _MANY_REQUESTS and stats.hit_rate < _FEW_HITS:
        yield (
            f"Only {stats.hit_rate:.0%} of the requests were hits. <code>compcache top --by misses</code> lists the functions with the "
            "most misses, whose identities may change too often."
        )
    if stats.max_size and stats.size > _ALMOST_FULL * stats.max_size:
        yield (
            f"The cache is almost full, {fullness_text(stats.size, stats.max_size)}. Additions evict modules: raise "
            "<code>COMPCACHE_MAX_SIZE</code> to keep more."
        )
    if story.duplicate_size:
        yield (
            f"<code>compcache prune --duplicates</code> removes {plural(story.duplicate_modules, 'module')} "
            f"({size_text(story.duplicate_size)}) whose functions are in other modules, too."
        )
    if story.unused_size:
        yield (
            f"<code>compcache prune --unused-for 30d</code> removes {plural(story.unused_modules, 'module')} "
            f"({size_text(story.unused_size)}) not used for 30 days."
        )
    if stats.corrupt:
        yield f"{plural(stats.corrupt, 'damaged file')} moved to quarantine: <code>compcache check</code> checks all other files."
    if stats.miss_reasons.get("cpu"):
        yield "Hosts with other CPUs use this cache: <code>compcache add --targets</code> compiles for several CPUs."


def _figure_parts(chart: Chart, *, drawn: bool) -> Iterator[str]:
    """Yield the HTML of a chart and its table, or of the table alone if `drawn` is false."""
    table = "".join(_table_parts(chart.title, chart.heads, chart.rows, numeric=range(1, len(chart.heads))))
    notes = _reason_meanings(chart) if chart.key == "reasons" else ""
    yield f'<figure id="{chart.key}"><figcaption><h2>{chart.title}</h2><p>{_escape(chart.summary)}</p></figcaption>\n'
    if drawn:
        yield f"{draw(chart)}\n{notes}<details><summary>Table</summary>{table}</details></figure>\n"
    else:
        yield f"{table}{notes}</figure>\n"


def _reason_meanings(chart: Chart) -> str:
    """Return the explanation of each reason in a chart, as HTML."""
    items = (f"<dt>{_escape(name)}</dt><dd>{_escape(_REASONS.get(name, _REASONS['other']))}</dd>" for name, _ in chart.rows)
    return f'<dl class="reasons">{"".join(items)}</dl>'


def _list_sections(story: Story) -> Iterator[str]:
    """Yield the tables of modules, functions and groups."""
    yield from _module_section("Biggest modules", story.biggest)
    yield from _module_section("Oldest modules", story.oldest)
    yield from _module_section("Slowest to compile", story.slowest)
    yield from _function_section("Most used", story.most_used)
    yield from _function_section("Most missed", story.most_missed)
    yield from _duplicate_section(story.duplicates)
    yield from _group_section("Compiled for", "CPU", story.cpus)
    yield from _group_section("Compiled by LLVM", "version", story.llvm_versions)


def _module_section(title: str, rows: Sequence[ModuleRow]) -> Iterator[str]:
    """Yield a section with a table of modules; nothing without modules."""
    heads = ("functions", "size", "compiled in", "age", "uses", "last use", "module")
    cells: Callable[[ModuleRow], tuple[str, ...]] = lambda row: (  # noqa: E731 - one row of this table
        ", ".join(row.functions) + (f" and {row.more} more" if row.more else ""), size_text(row.size), seconds_text(row.seconds),
        age_text(row.created), f"{row.uses:,}", f"{age_text(row.last_used)} ago" if row.last_used else "never", row.module_id[:12],
    )  # fmt: skip
    yield from _section_parts(title, _table_parts(title, heads, map(cells, rows), numeric=(1, 2, 3, 4, 5)) if rows else ())


def _function_section(title: str, rows: Sequence[Cost]) -> Iterator[str]:
    """Yield a section with a table of functions; nothing without functions."""
    heads = ("function", "uses", "misses", "compiled in", "size", "realizations")
    cells = (
        (row.name, f"{row.uses:,}", f"{row.misses:,}", seconds_text(row.seconds), size_text(row.size), f"{row.realizations:,}") for row in rows  # noqa: E501
    )  # fmt: skip
    yield from _section_parts(title, _table_parts(title, heads, cells, numeric=range(1, 6)) if rows else ())


def _duplicate_section(rows: Sequence[Duplicate]) -> Iterator[str]:
    """Yield a section with a table of functions that several modules realize; nothing without such functions."""
    heads = ("function", "realizations", "size")
    cells = ((row.name, f"{row.realizations:,}", size_text(row.size)) for row in rows)
    yield from _section_parts(
        "Stored several times", _table_parts("Functions with several realizations", heads, cells, numeric=(1, 2)) if rows else ()
    )


def _group_section(title: str, head: str, rows: Sequence[Group]) -> Iterator[str]:
    """Yield a section with a table of groups of modules; nothing without groups."""
    cells = ((row.name, f"{row.number:,}", size_text(row.size)) for row in rows)
    yield from _section_parts(title, _table_parts(title, (head, "modules", "size"), cells, numeric=(1, 2)) if rows else ())


def _section_parts(title: str, parts: Iterable[str]) -> Iterator[str]:
    """Yield a section with a heading; nothing if `parts` are empty."""
    text = "".join(parts)
    if text:
        yield f"<section><h2>{title}</h2>{text}</section>\n"


def _table_parts(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Iterable[int]) -> Iterator[str]:
    """Yield the parts of a table that scrolls in a narrow window. The first column holds names; `numeric` columns hold numbers."""
    right = set(numeric)
    kinds = [' class="number"' if column in right else "" for column in range(len(heads))]
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{_escape(caption)}"><table><thead><tr>'
    yield from (f'<th scope="col"{kind}>{_escape(head)}</th>' for head, kind in zip(heads, kinds, strict=True))
    yield "</tr></thead><tbody>\n"
    for row_head, *others in rows:
        cells = "".join(f"<td{kind}>{_escape(cell)}</td>" for cell, kind in zip(others, kinds[1:], strict=True))
        yield f'<tr><th scope="row">{_escape(row_head)}</th>{cells}</tr>\n'
    yield "</tbody></table></div>"
