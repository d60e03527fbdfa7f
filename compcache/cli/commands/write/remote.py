"""``compcache remote``: show a remote store, fetch modules from it, upload modules to it, and clean it up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from compcache.cli.completion import complete_names
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.names import resolve_all
from compcache.cli.output import plural, print_fields, print_text, printable, size_text
from compcache.cli.params import DURATION
from compcache.cli.session import Session, pass_session
from compcache.remote import maintenance
from compcache.settings import setting

if TYPE_CHECKING:
    from collections.abc import Sized

    from compcache.cache import Cache
    from compcache.remote.client import RemoteStore

__all__ = ["command"]

_SECONDS = "_seconds"
_url_option = click.option(
    "--remote", "url", metavar="URL", help="The remote store, or several stores separated by spaces. Default: $COMPCACHE_REMOTE."
)


@click.group("remote")
def command() -> None:
    """Show a remote store, fetch from it, upload to it, and clean it up."""


@command.command("status", epilog="Example: compcache remote status --json")
@_url_option
@json_option
@pass_session
def status(session: Session, url: str | None, as_json: bool) -> None:
    """Show for each store whether it answers, the uploads that wait, and the counters of the helper process."""
    with session.open_with_remote(url, None) as cache:
        states = _require_remote(cache, url).status()
    if as_json:
        print_json(states)
        return
    for store in states:
        print_fields([_status_field(name, value) for name, value in store.items()])


def _status_field(name: str, value: Any) -> tuple[str, str]:
    """Return a field of a store's status as text: seconds as milliseconds, and sizes with a unit."""
    if name.endswith(_SECONDS):
        return name.removesuffix(_SECONDS).replace("_", " "), f"{1000 * value:.1f} ms"
    return name.replace("_", " "), size_text(value) if name.endswith("size") else str(value)


@command.command("pull", epilog="Example: compcache remote pull kernels.scale-1f0e...")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@_url_option
@json_option
@pass_session
def pull(session: Session, names: tuple[str, ...], url: str | None, as_json: bool) -> int:
    """Fetch functions and the functions that they import. Exit status 1 if neither the cache nor a store has a function."""
    with session.open_with_remote(url, "read") as cache:
        _require_remote(cache, url)
        stored = [name for name in names if cache.has(name)]
        fetched = cache.prefetch(names)
        missing = [name for name in names if name not in stored and name not in fetched]
        answers = [cache.explain(name).remote for name in missing]
    if as_json:
        print_json({"fetched": list(fetched), "present": stored, "missing": missing})
    else:
        print_text(f"{plural(len(fetched), 'function')} fetched, {len(stored)} already in the cache")
    for name, answer in zip(missing, answers, strict=True):
        if answer is not None:
            click.echo(printable(f"{name!r} was not fetched: {answer.url}: {answer.outcome}: {answer.message}"), err=True)
    return 1 if missing else 0


@command.command("push", epilog="Example: compcache remote push kernels.scale --timeout 5min")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--timeout", type=DURATION, default="1min", show_default=True, help="The maximum time to wait for the upload, like 30s.")
@_url_option
@json_option
@pass_session
def push(session: Session, names: tuple[str, ...], timeout: float, url: str | None, as_json: bool) -> int:
    """Upload the modules of functions and of the functions that they import. Exit status 1 if a module is not uploaded in time."""
    with session.open_with_remote(url, "write") as cache:
        _require_remote(cache, url)
        count = cache.push(resolve_all(cache, names))
        is_done = cache.flush_uploads(timeout)
    if as_json:
        print_json({"modules": count, "uploaded": is_done})
    else:
        state = "uploaded" if is_done else "queued and not uploaded yet: 'compcache remote status' shows the reason"
        print_text(f"{plural(count, 'module')} {state}")
    return 0 if is_done else 1


@command.command("verify", epilog="Example: compcache remote verify --json")
@_url_option
@json_option
@pass_session
def verify(session: Session, url: str | None, as_json: bool) -> int:
    """Read every card of each store and look for its module. Exit status 1 if a card is damaged or its module is missing."""
    with session.open_with_remote(url, "read") as cache:
        stores = _require_remote(cache, url).settings
        reports = [(store.shown, maintenance.verify(store)) for store in stores.separately()]
    if as_json:
        print_json([{"url": store, **report._asdict()} for store, report in reports])
    for store, report in () if as_json else reports:
        packs = f"{plural(report.packs, 'pack')}, " if report.packs else ""
        print_text(
            f"{_store_prefix(store, reports)}{plural(len(report.functions), 'function')}, {plural(report.cards, 'card')}, "
            f"{plural(report.modules, 'module')}, {packs}{size_text(report.size)}"
        )
        for key, problem in report.problems.items():
            print_text(printable(f"{key}: {problem}"))
    return 1 if any(report.problems for _, report in reports) else 0


def _store_prefix(store: str, stores: Sized) -> str:
    """Return the name of the store for the start of a line; empty for a single store."""
    return printable(f"{store}: ") if len(stores) > 1 else ""


@command.command("gc", epilog="Example: compcache remote gc --older-than 30d --dry-run")
@click.option("--older-than", type=DURATION, help="Also remove cards and packs written longer ago than this, like 30d.")
@click.option(
    "--unused-for", type=DURATION, help="Also remove cards and packs that no host has fetched for this long, like 30d; 90d at most."
)
@click.option(
    "--grace", type=DURATION, default="1d", show_default=True,
    help="The time for which garbage stays in the store. It must be longer than any upload.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@_url_option
@json_option
@pass_session
def gc(
    session: Session, older_than: float | None, unused_for: float | None, grace: float, dry_run: bool, url: str | None, as_json: bool
) -> None:
    """Remove damaged cards, cards without their module, modules without a card, and on demand old or unused cards.

    A run records garbage objects in the store. A later run removes the objects if they are still garbage. If the store does not
    answer a request, the command ends with status 2.
    """
    with session.open_with_remote(url, "write") as cache:
        if unused_for is not None and unused_for > maintenance.LONGEST_UNUSED:
            raise click.UsageError(
                f"--unused-for must be at most {maintenance.LONGEST_UNUSED / 86400:.0f}d: records of use are not kept longer"
            )
        collect = partial(maintenance.collect_garbage, older_than=older_than, unused_for=unused_for, grace=grace, dry_run=dry_run)
        reports = [(store.shown, collect(store)) for store in _require_remote(cache, url).settings.separately() if store.writable]
    if as_json:
        print_json([{"url": store, "dry_run": dry_run, **report._asdict()} for store, report in reports])
        return
    verb = "would remove" if dry_run else "removed"
    for store, report in reports:
        size = size_text(sum(item.size for item in report.removed))
        remainder = f"; {plural(len(report.left), 'garbage object')} left for a later run" if report.left else ""
        print_text(f"{_store_prefix(store, reports)}{verb} {plural(len(report.removed), 'object')}, {size}{remainder}")


def _require_remote(cache: Cache, url: str | None) -> RemoteStore:
    """Return the remote stores of a cache. Raise `click.UsageError` if neither `url` (--remote) nor a setting names one, or all are off."""
    if cache.remote is None and (url or setting("COMPCACHE_REMOTE")):
        raise click.UsageError("COMPCACHE_REMOTE_MODE=off disables the remote store: set this variable to read or write")
    if cache.remote is None:
        raise click.UsageError("no remote store is set: pass --remote URL, or set COMPCACHE_REMOTE")
    return cache.remote
