"""``compcache config``: show every setting with its source."""

from __future__ import annotations

import os

import click

from compcache.cli.environment import SETTINGS, Setting, setting_source
from compcache.cli.jsontext import json_option, print_json
from compcache.cli.output import Column, print_rows
from compcache.cli.session import Session, pass_session
from compcache.configuration import PROJECT_KEYS, project_setting
from compcache.remote.address import shown_url
from compcache.settings import setting as text_of

__all__ = ["command"]


@click.command("config")
@json_option
@pass_session
def command(session: Session, as_json: bool) -> None:
    """Show every setting: its value, the source of the value, and its purpose.

    In a pipe each line is one setting: name, value, source and purpose, separated by tabs.
    """
    rows = [_setting_row(setting, session) for setting in SETTINGS]
    if as_json:
        print_json([dict(zip(("name", "value", "source", "purpose"), row, strict=True)) for row in rows])
    else:
        columns = [Column("setting"), Column("value", flexible=True), Column("from", spare=2), Column("purpose", flexible=True, spare=1)]
        print_rows(columns, rows)


def _setting_row(setting: Setting, session: Session) -> tuple[str, str, str, str]:
    """Return the name, value, source and purpose of a setting. Secret values are hidden; URLs are shown without their secret parts."""
    value = text_of(setting.name)
    source = "environment" if os.environ.get(setting.name) else setting_source(setting.name)
    if setting.name == "COMPCACHE_DIR":
        value = session.directory
        source = "--dir" if session.chosen_by == "--dir" else source
    elif not value and setting.name.removeprefix("COMPCACHE_").lower() in PROJECT_KEYS:
        value, path = project_setting(setting.name, session.directory)
        source = f"{path}: [tool.compcache]" if value else source
    elif setting.secret and value:
        value = shown_url(value) if setting.name == "COMPCACHE_REMOTE" and value[0] not in "$@" else "(set)"
    return setting.name, value or setting.default, source, setting.purpose
