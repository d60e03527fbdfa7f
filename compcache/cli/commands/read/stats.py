"""``compcache stats``: show the statistics of all processes that use the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.jsontext import fields_of, json_option, print_json
from compcache.cli.output import fullness_text, plural, print_fields, seconds_text, show_progress, size_text, time_text
from compcache.cli.params import MOMENT
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.usage.summaries import CacheStats, RemoteStats

__all__ = ["command"]


@click.command("stats")
@click.option("--since", type=MOMENT, help="Count only from this time on: an age (7d, 12h) or a date.")
@click.option("--zero", is_flag=True, help="Set the counters to zero. The times of the last uses are kept.")
@json_option
@pass_session
def command(session: Session, since: float | None, zero: bool, as_json: bool) -> None:
    """Show hits, misses and their reasons, compilation times spent and saved, additions and evictions.

    The numbers cover all processes and hosts that use the directory; a killed process may lose its last second.
    Requests answered from memory are not counted. In a cache of thousands of modules, removed modules count until the next prune.
    """
    if zero:
        with session.open_existing() as cache:
            cache.zero_stats()
    with session.open_to_read() as cache:
        stats = cache.stats(since, progress=show_progress)
    if as_json:
        print_json({**fields_of(stats), "hit_rate": stats.hit_rate})
    else:
        print_fields(_statistics_fields(stats))


def _remote_text(remote: RemoteStats) -> str:
    """Return the counters of all remote stores as text."""
    parts = [f"{plural(remote.hits, 'hit')} ({size_text(remote.size)})", f"{remote.misses:,} {'miss' if remote.misses == 1 else 'misses'}"]
    for count, text in ((remote.late, "late"), (remote.skipped, "not asked"), (remote.rejected, "rejected"), (remote.dropped, "dropped")):
        parts += [f"{count:,} {text}"] * bool(count)
    parts += [plural(remote.errors, "error"), f"{1000 * remote.latency:.1f} ms until an answer"]
    return ", ".join(parts)


def _statistics_fields(stats: CacheStats) -> list[tuple[str, str]]:
    """Return the statistics as pairs of name and text."""
    remote = [("remote store", _remote_text(stats.remote))] if any(stats.remote) else []
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in stats.miss_reasons.items())
    return [
        ("directory", stats.directory),
        ("counted since", time_text(stats.since) or "creation"),
        ("hits", f"{stats.hits:,} ({stats.hit_rate:.1%} of requests not answered from memory)"),
        ("misses", f"{stats.misses:,}{f' ({reasons})' if reasons else ''}"),
        ("compiled", f"{plural(stats.compilations, 'module')} in {seconds_text(stats.compile_seconds)}"),
        ("loaded", f"{plural(stats.loads, 'module')}, which saved {seconds_text(stats.saved_seconds)}"),
        *remote,
        ("added", f"{plural(stats.added_modules, 'module')}, {size_text(stats.added_size)}"),
        ("evicted", f"{plural(stats.evicted_modules, 'module')}, {size_text(stats.evicted_size)}"),
        ("damaged", f"{stats.corrupt:,}"),
        ("modules", f"{stats.modules:,}"),
        ("functions", f"{stats.functions:,} ({plural(stats.realizations, 'realization')})"),
        ("size", fullness_text(stats.size, stats.max_size)),
    ]
