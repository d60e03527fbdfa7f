"""Results, what is made of them, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import compcache_conformance
from compcache_conformance.adapters import all_adapters
from compcache_conformance.cli import main
from compcache_conformance.reports import WRITERS
from compcache_conformance.results import Outcome, Result, load, merge, save

TOY = Path(__file__).with_name("toy.py")
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
    assert '<a href="#numba-closure">wrong answer</a>' in table
    assert '<details id="numba-closure">' in table
    assert "log &amp; more" in table


def test_a_summary_has_no_logs() -> None:
    assert "log & more" not in WRITERS["summary"](RESULTS)


@pytest.mark.parametrize("name", WRITERS)
def test_reports_of_nothing_are_written(name: str) -> None:
    assert WRITERS[name]([])


def test_an_adapter_is_a_file_of_at_most_150_lines() -> None:
    folder = Path(compcache_conformance.__file__).parent / "adapters"
    assert {path.name: len(path.read_text().splitlines()) for path in folder.glob("*.py") if len(path.read_text().splitlines()) > 150} == {}
    assert len(all_adapters()) >= 15


def test_a_file_with_an_adapter_is_played_and_reported(tmp_path: Path) -> None:
    arguments = ["run", str(TOY), "-k", "closure", "--json", str(tmp_path / "json"), "--partial", str(tmp_path)]
    assert main(arguments) == 0
    assert [(result.system, result.result) for result in load(tmp_path / "json")] == [("toy", "held")]
    assert load(tmp_path / "toy.json") == load(tmp_path / "json")


def test_known_losses_do_not_fail_a_run(tmp_path: Path) -> None:
    known, broken = tmp_path / "known", tmp_path / "broken_toy.py"
    text = TOY.read_text().replace("__file__", repr(str(TOY))).replace('"TOY_FAULT": self.fault', '"TOY_FAULT": "ignores closures"')
    broken.write_text(text)
    assert main(["run", str(broken), "-k", "closure", "--json", str(known)]) == 1
    assert main(["run", str(broken), "-k", "closure", "--allow", str(known)]) == 0


def test_an_unknown_system_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nothing"]) == 2
    assert "there is no system 'nothing'" in capsys.readouterr().err
