"""What a look-up costs in instructions, which valgrind counts the same on any machine, beside what it is to be compared with."""

from __future__ import annotations

import runpy
import shutil
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.stress, pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")]

#: The first look-up of a function, in a process that has had others, to `ctypes.CDLL` of a known path and a symbol.
MOST_OF_A_LIBRARY = 1.3
#: Of `get_target` of what is in memory.
MOST_OF_WHAT_IS_KNOWN = 1_200


def test_a_look_up_costs_little_more_than_a_library(tmp_path: Path) -> None:
    benchmark = runpy.run_path(str(PACKAGE_ROOT / "benchmarks" / "hit_limits.py"))
    benchmark["prepare"](tmp_path)

    def cost(label: str) -> float:
        return float(benchmark["cost"](tmp_path, label))

    assert cost("first look-up, warm") <= MOST_OF_A_LIBRARY * cost("CDLL and a symbol, warm")
    assert cost("get_target, repeated") - cost("an empty loop") <= MOST_OF_WHAT_IS_KNOWN
