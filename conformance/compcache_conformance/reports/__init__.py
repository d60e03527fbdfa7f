"""Results as text, JSON, one HTML page, JUnit and the project's page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compcache_conformance.reports.html import as_html
from compcache_conformance.reports.junit import as_junit
from compcache_conformance.reports.page import as_page
from compcache_conformance.reports.text import as_text
from compcache_conformance.results import to_json, to_summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from compcache_conformance.results import Result

__all__ = ["WRITERS", "as_text"]

#: The option of the command line, and what it writes.
WRITERS: dict[str, Callable[[list[Result]], str]] = {
    "json": to_json,
    "summary": to_summary,
    "text": as_text,
    "html": as_html,
    "junit": as_junit,
    "page": as_page,
}
