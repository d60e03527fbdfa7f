"""Results as JUnit's XML, which CI systems show: a suite for each system, a case for each scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from compcache_conformance.reports.table import Table
from compcache_conformance.results import Outcome

if TYPE_CHECKING:
    from compcache_conformance.results import Result

__all__ = ["as_junit"]


def as_junit(results: list[Result]) -> str:
    """What holds passes, what is lost fails, what cannot be played is skipped."""
    table = Table.of(results)
    root = ET.Element("testsuites")
    for system in table.systems:
        suite = ET.SubElement(root, "testsuite", name=system)
        for family in table.families():
            for row in table.rows(family):
                _add_case(suite, table.cell(row.name, system))
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _add_case(suite: ET.Element, result: Result | None) -> None:
    if result is None:
        return
    case = ET.SubElement(suite, "testcase", classname=result.family, name=result.scenario, time=f"{result.seconds:.2f}")
    if Outcome(result.result).is_loss:
        ET.SubElement(case, "failure", type=result.result, message=_legal(result.detail)).text = _legal(result.log)
    elif result.result == Outcome.CANNOT:
        ET.SubElement(case, "skipped", message=_legal(result.detail))


def _legal(text: str) -> str:
    """The text without characters that XML has not."""
    return "".join(letter for letter in text if letter >= " " or letter in "\n\t")
