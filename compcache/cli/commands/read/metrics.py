"""``compcache metrics``: what was counted, in the text format of Prometheus (version 0.0.4 of the exposition format)."""

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

#: A metric: its name, its type, what it is, its value, and the address of the store that it is about, if it is about one.
_Metric = tuple[str, str, str, float, str]


@click.command("metrics")
@click.option("--textfile", type=click.Path(dir_okay=False), help="Write this file, which appears complete or not at all.")
@pass_session
def command(session: Session, textfile: str | None) -> None:
    """Show what was counted as text for Prometheus: hits, misses, seconds, sizes, and what the remote store did.

    The directory of --textfile is that of the textfile collector of Prometheus's node exporter. No store is asked anything.
    """
    with session.read() as cache:
        metrics = [*_of_cache(cache.stats()), *_of_stores(cache.stats(), cache.remote)]
    text = "".join(_lines(metrics))
    if textfile is None:
        print_text(text.rstrip("\n"))
        return
    path = os.path.abspath(textfile)
    publish(Files(), os.path.dirname(path), path, [text.encode()], sync=False)
    os.chmod(path, 0o644)  # the collector is another user


def _of_cache(stats: CacheStats) -> Iterator[_Metric]:
    yield "hits_total", "counter", "Functions that the directory had.", stats.hits, ""
    yield "misses_total", "counter", "Functions that it did not have.", stats.misses, ""
    yield "compilations_total", "counter", "Modules that were compiled.", stats.compilations, ""
    yield "compile_seconds_total", "counter", "How long that took.", stats.compile_seconds, ""
    yield "saved_seconds_total", "counter", "Compilation time that hits have saved.", stats.saved_seconds, ""
    yield "modules", "gauge", "Modules in the directory.", stats.modules, ""
    yield "size_bytes", "gauge", "Their size.", stats.size, ""


def _of_stores(stats: CacheStats, remote: RemoteStore | None) -> Iterator[_Metric]:
    if remote is None:
        return
    counts = stats.remote
    yield "remote_late_total", "counter", "Answers that came after the compilation.", counts.late, ""
    yield "remote_skipped_total", "counter", "Questions that were not asked after failures.", counts.skipped, ""
    yield "remote_offered_total", "counter", "Modules that were queued for upload.", counts.offered, ""
    yield "remote_dropped_total", "counter", "Modules that the queues had no room for.", counts.dropped, ""
    for store, breaker, outbox in zip(remote.settings.each, remote.breakers(), remote.outboxes(), strict=True):
        yield from _of_store(store.shown, stats.remote_stores.get(store_of(counter_of("", store.shown))[1], RemoteStats()), breaker, outbox)


def _of_store(store: str, counts: RemoteStats, breaker: Breaker, outbox: Outbox) -> Iterator[_Metric]:
    failures, seconds = breaker.state()
    yield "remote_hits_total", "counter", "Modules that came from the store.", counts.hits, store
    yield "remote_fetched_bytes_total", "counter", "Their size.", counts.size, store
    yield "remote_misses_total", "counter", "Functions that it did not have.", counts.misses, store
    yield "remote_rejected_total", "counter", "Modules that were not taken.", counts.rejected, store
    yield "remote_errors_total", "counter", "Look-ups that failed.", counts.errors, store
    yield "remote_answers_total", "counter", "Functions that it was asked for, and said something of.", counts.answers, store
    yield "remote_answer_seconds_total", "counter", "How long that took.", counts.seconds, store
    yield "remote_failures", "gauge", "Failures of the store in a row.", failures, store
    yield "remote_left_alone_seconds", "gauge", "For how long it is left alone.", seconds, store
    yield "remote_waiting_uploads", "gauge", "Uploads that wait.", len(outbox.names()), store
    yield "remote_waiting_bytes", "gauge", "Their size.", outbox.size(), store


def _lines(metrics: list[_Metric]) -> Iterator[str]:
    for (name, kind, what), rows in groupby(sorted(metrics), lambda metric: metric[:3]):  # the format wants the lines of one together
        yield f"# HELP compcache_{name} {what}\n# TYPE compcache_{name} {kind}\n"
        for *_, value, store in rows:
            yield f"compcache_{name}{_labels(store)} {value:.17g}\n"


def _labels(store: str) -> str:
    """Return the label of a store, with what the format wants escaped."""
    escaped = store.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{store="{escaped}"}}' if store else ""
