"""``compcache info``: show a summary of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compcache.cli.jsontext import fields_of, json_option, print_json
from compcache.cli.output import fullness_text, other_formats_text, plural, print_fields, show_progress, size_text
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.inspect.descriptions import CacheInfo

__all__ = ["command"]


@click.command("info")
@json_option
@pass_session
def command(session: Session, as_json: bool) -> None:
    """Show where the cache is, its content and size, and the linker, loader and host that it uses.

    In a cache of thousands of modules, removed modules count until the next prune.
    """
    with session.open_or_assume_empty() as cache:
        info = cache.info(progress=show_progress)
    if as_json:
        origin = {"directory": info.directory, "chosen_by": session.chosen_by}
        print_json({**origin, **fields_of(info), "hit_rate": info.hit_rate})
    else:
        print_fields(_summary_fields(info, session.chosen_by))


def _summary_fields(info: CacheInfo, chosen_by: str) -> list[tuple[str, str]]:
    """Return the fields of the summary as pairs of name and text."""
    state = "" if info.exists else ", does not exist yet"
    return [
        ("directory", f"{info.directory} ({chosen_by}{state})"),
        ("format", info.format),
        *([("other formats", other_formats_text(info.other_formats))] if info.other_formats else []),
        ("modules", f"{info.modules:,}"),
        ("functions", f"{info.functions:,}"),
        ("realizations", f"{info.realizations:,}"),
        ("size", f"{fullness_text(info.size, info.max_size)}, and {size_text(info.other_size)} of index and support files"),
        ("hit rate", _hit_rate_text(info)),
        ("quarantine", f"{info.quarantined:,}"),
        ("linker", info.linker),
        ("loader", info.loader),
        ("host", f"{info.platform}, {info.cpu}"),
        ("llvm", info.llvm_version),
        ("compcache", info.version),
    ]


def _hit_rate_text(info: CacheInfo) -> str:
    """Return the hit rate as text, with the numbers of hits and requests; "no requests yet" without requests."""
    if not info.hits + info.misses:
        return "no requests yet"
    return f"{info.hit_rate:.1%} ({info.hits:,} of {plural(info.hits + info.misses, 'request')})"
