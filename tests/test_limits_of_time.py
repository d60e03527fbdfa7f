"""What ends a test that hangs: pytest's own limit, which allows for a busy machine. A shorter one fails tests that only take long."""

from __future__ import annotations

import ast

import pytest
from helpers import PACKAGE_ROOT

TESTS = PACKAGE_ROOT / "tests"
_WAITS = ("run", "check_call", "check_output", "communicate")


def limits(code: str) -> list[int]:
    """The lines of calls that give a process a limit of time, in a file that does not handle the end of it."""
    return [
        call.lineno
        for call in ast.walk(ast.parse(code))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _WAITS
        if "TimeoutExpired" not in code and any(keyword.arg == "timeout" for keyword in call.keywords)
    ]


def test_limits_are_found() -> None:
    code = "process.communicate(timeout=2)\nsubprocess.run([])\nsubprocess.run([], timeout=9)\n"
    assert (limits(code), limits(f"{code}subprocess.TimeoutExpired\n")) == ([1, 3], [])


@pytest.mark.parametrize("folder", sorted({path.parent.relative_to(TESTS) for path in TESTS.rglob("*.py")}), ids=str)
def test_no_process_has_a_limit_of_its_own(folder: str) -> None:
    assert {path.name: found for path in (TESTS / folder).glob("*.py") if (found := limits(path.read_text()))} == {}
