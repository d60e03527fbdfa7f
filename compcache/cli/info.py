"""``compcache info``: the cache as a whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from compcache.cli.output import json_option, print_fields, print_json, size_text
from compcache.cli.session import Session, pass_session

if TYPE_CHECKING:
    from compcache.reports import CacheInfo

__all__ = ["command"]


@click.command("info")
@json_option
@pass_session
def command(session: Session, as_json: bool) -> None:
    """Show where the cache is, what is in it, and what would be used to fill it."""
    from compcache.inspection import cache_info

    with session.look() as cache:
        info = cache_info(cache._store)
    if as_json:
        print_json({"directory": info.directory, "chosen_by": session.chosen_by, **asdict(info)})
    else:
        print_fields(_fields(info, session.chosen_by))


def _fields(info: CacheInfo, chosen_by: str) -> list[tuple[str, str]]:
    state = "" if info.exists else ", not there yet"
    return [
        ("directory", f"{info.directory} ({chosen_by}{state})"),
        ("format", info.format),
        ("modules", f"{info.modules:,}"),
        ("functions", f"{info.functions:,}"),
        ("realizations", f"{info.realizations:,}"),
        (
            "size",
            f"{size_text(info.size)} in modules, {size_text(info.other_size)} in index and support files",
        ),
        ("quarantine", f"{info.quarantined:,}"),
        ("linker", info.linker),
        ("loader", info.loader),
        ("host", f"{info.platform}, {info.cpu}"),
        ("llvm", info.llvm_version),
        ("compcache", info.version),
    ]
