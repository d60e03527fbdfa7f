"""Results, and what is made of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import compcache_conformance
from compcache_conformance.adapters import all_adapters
from compcache_conformance.reports import WRITERS
from compcache_conformance.results import Outcome, Result, load, merge, save
from compcache_conformance.runner import RACE_RUNS

RESULTS = [
    Result("closure", "stale", "compcache", Outcome.HELD, 1.0, log="<log>"),
    Result("closure", "stale", "numba", Outcome.WRONG, 2.0, "7.0, not 10.0", "documented: its documents say so", "log & more"),
    Result("truncated", "damage", "compcache", Outcome.ERROR, 1.0, "OSError: no", log="log"),
    Result("truncated", "damage", "numba", Outcome.CANNOT, 0.0, "has no such thing"),
]


def test_results_come_back_from_json(tmp_path: Path) -> None:
    save(tmp_path / "results.json", RESULTS)
    assert load(tmp_path / "results.json") == RESULTS
    row = json.loads((tmp_path / "results.json").read_text())["results"][0]
    assert {"scenario", "family", "system", "result", "seconds", "detail"} <= set(row)


def test_of_one_cell_the_newer_result_counts() -> None:
    newer = Result("closure", "stale", "numba", Outcome.HELD, 1.0)
    assert merge(RESULTS, [newer])[1] == newer


def test_junit_has_a_case_for_each_cell() -> None:
    root = ET.fromstring(WRITERS["junit"](RESULTS))
    assert len(root.findall(".//testcase")) == len(RESULTS)
    assert [failure.get("type") for failure in root.findall(".//failure")] == ["raw error", "wrong answer"]
    assert len(root.findall(".//skipped")) == 1


def test_the_page_begins_with_what_compcache_loses() -> None:
    page = WRITERS["page"](RESULTS)
    assert page.index("## What compcache loses") < page.index("## Stale")
    assert "| truncated | compcache | raw error | OSError: no |" in page
    assert "**wrong**†" in page


def test_cells_of_the_table_lead_to_their_logs() -> None:
    table = WRITERS["html"](RESULTS)
    assert '<a href="#numba/closure">wrong answer</a>' in table
    assert '<details id="numba/closure">' in table
    assert "log &amp; more" in table


def test_every_cell_of_the_table_leads_to_one_log() -> None:
    table = WRITERS["html"](RESULTS)
    targets = re.findall(r'<td[^>]*><a href="#([^"]*)">', table)
    assert sorted(targets) == sorted(re.findall(r'<details id="([^"]*)">', table))
    assert len(set(targets)) == len(RESULTS)


def test_a_race_that_was_run_once_is_marked() -> None:
    races = [Result("two starters", "races", system, Outcome.HELD, 1.0, runs=runs) for system, runs in (("once", 1), ("thrice", RACE_RUNS))]
    assert "| held¹ | held |" in WRITERS["page"](races)


def test_a_summary_has_no_logs() -> None:
    assert "log & more" not in WRITERS["summary"](RESULTS)


@pytest.mark.parametrize("name", WRITERS)
def test_reports_of_nothing_are_written(name: str) -> None:
    assert WRITERS[name]([])


def test_an_adapter_is_a_file_of_at_most_150_lines() -> None:
    folder = Path(compcache_conformance.__file__).parent / "adapters"
    assert {path.name: len(path.read_text().splitlines()) for path in folder.glob("*.py") if len(path.read_text().splitlines()) > 150} == {}
    assert len(all_adapters()) >= 15
