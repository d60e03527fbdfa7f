"""``compcache metrics``: show the counters in the text format of Prometheus (version 0.0.4 of the exposition format)."""

from __future__ import annotations

import os
from itertools import groupby
from typing import TYPE_CHECKING

import click

from compcache.cli.output import print_text
from compcache.cli.session import Session, pass_session
from compcache.files import Files
from compcache.formats.statistics import counter_of, store_of
from compcache.publish.atomic_file import publish
from compcache.usage.summaries import RemoteStats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compcache.remote.breaker import Breaker
    from compcache.remote.client import RemoteStore
    from compcache.remote.outbox import Outbox
    from compcache.usage.summaries import CacheStats

__all__ = ["command"]

#: A metric: its name, type, description and value, and the address of its remote store; "" for a metric of the whole cache.
_Metric = tuple[str, str, str, float, str]


@click.command("metrics")
@click.option("--textfile", type=click.Path(dir_okay=False), help="Write to this file. The file is replaced atomically.")
@pass_session
def command(session: Session, textfile: str | None) -> None:
    """Show the counters in the text format of Prometheus: hits, misses, seconds, sizes, and the work of remote stores.

    --textfile is for the textfile collector of Prometheus's node exporter. The command sends no request to a remote store.
    """
    with session.open_to_read() as cache:
        stats = cache.stats()
        metrics = [*_cache_metrics(stats), *_remote_metrics(stats, cache.remote)]
    text = "".join(_format_metrics(metrics))
    if textfile is None:
        print_text(text.rstrip("\n"))
        return
    path = os.path.abspath(textfile)
    publish(Files(), os.path.dirname(path), path, [text.encode()], sync=False)
    os.chmod(path, 0o644)  # the collector runs as another user


def _cache_metrics(stats: CacheStats) -> Iterator[_Metric]:
    """Yield the metrics of the cache directory."""
    yield "hits_total", "counter", "Requested functions that were in the directory.", stats.hits, ""
    yield "misses_total", "counter", "Requested functions that were not in the directory.", stats.misses, ""
    yield "compilations_total", "counter", "Compiled modules.", stats.compilations, ""
    yield "compile_seconds_total", "counter", "Time spent on compilation.", stats.compile_seconds, ""
    yield "saved_seconds_total", "counter", "Compilation time saved by hits.", stats.saved_seconds, ""
    yield "modules", "gauge", "Modules in the directory.", stats.modules, ""
    yield "size_bytes", "gauge", "Size of the modules in the directory.", stats.size, ""


def _remote_metrics(stats: CacheStats, remote: RemoteStore | None) -> Iterator[_Metric]:
    """Yield the metrics of all remote stores together, and of each remote store; nothing without a remote store."""
    if remote is None:
        return
    counts = stats.remote
    yield "remote_late_total", "counter", "Answers that came after the function was compiled.", counts.late, ""
    yield "remote_skipped_total", "counter", "Requests that were not sent because earlier requests failed.", counts.skipped, ""
    yield "remote_offered_total", "counter", "Modules queued for upload.", counts.offered, ""
    yield "remote_dropped_total", "counter", "Modules not queued for upload because the queue was full.", counts.dropped, ""
    for store, breaker, outbox in zip(remote.settings.each, remote.breakers(), remote.outboxes(), strict=True):
        _, address = store_of(counter_of("", store.shown))  # as the statistics name the store
        own_counts = stats.remote_stores.get(address, RemoteStats())
        yield from _store_metrics(store.shown, own_counts, breaker, outbox)


def _store_metrics(store: str, counts: RemoteStats, breaker: Breaker, outbox: Outbox) -> Iterator[_Metric]:
    """Yield the metrics of one remote store."""
    failures, seconds = breaker.state()
    yield "remote_hits_total", "counter", "Modules fetched from the store.", counts.hits, store
    yield "remote_fetched_bytes_total", "counter", "Size of the modules fetched from the store.", counts.size, store
    yield "remote_misses_total", "counter", "Requested functions that were not in the store.", counts.misses, store
    yield "remote_rejected_total", "counter", "Fetched modules that failed a check and were not used.", counts.rejected, store
    yield "remote_errors_total", "counter", "Look-ups that failed.", counts.errors, store
    yield "remote_answers_total", "counter", "Requested functions for which the store gave an answer.", counts.answers, store
    yield "remote_answer_seconds_total", "counter", "Time until the answers of the store.", counts.seconds, store
    yield "remote_failures", "gauge", "Consecutive failures of the store.", failures, store
    yield "remote_left_alone_seconds", "gauge", "Time for which no request is sent to the store.", seconds, store
    yield "remote_waiting_uploads", "gauge", "Uploads waiting in the queue.", len(outbox.names()), store
    yield "remote_waiting_bytes", "gauge", "Size of the uploads waiting in the queue.", outbox.size(), store


def _format_metrics(metrics: list[_Metric]) -> Iterator[str]:
    """Yield the lines of the text format, the lines of each metric in one group, as the format requires."""
    for (name, kind, description), rows in groupby(sorted(metrics), lambda metric: metric[:3]):
        yield f"# HELP compcache_{name} {description}\n# TYPE compcache_{name} {kind}\n"
        for *_, value, store in rows:
            yield f"compcache_{name}{_label_text(store)} {value:.17g}\n"


def _label_text(store: str) -> str:
    """Return the label that names a store, escaped as the format requires; empty for a metric of the whole cache."""
    escaped = store.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{store="{escaped}"}}' if store else ""
