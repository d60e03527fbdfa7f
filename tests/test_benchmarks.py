"""Benchmarks that fill caches by internal functions, which no other test calls in their way, still make caches that answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

FILLS = {
    "filling": "from filling import *; add_small(root); fill(root, 30, sync=False, functions=2); name = function_name(29, 1)",
    "maintenance": "import maintenance; maintenance.ALONE = 20; maintenance.build(root, 30); name = 'function.00000020'",
}


@pytest.mark.parametrize("way", FILLS)
def test_functions_of_synthesized_modules_can_be_called(tmp_path: Path, way: str) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
root = {str(tmp_path)!r}
{FILLS[way]}
from compcache import Cache
with Cache(root) as cache:
    print(len(list(cache.functions())), type(cache.get_target(name)(1.0, 2.0)).__name__)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.split() == [{"filling": "61", "maintenance": "30"}[way], "float"]
