"""Limits of a process: what cannot be stored is told, no system error comes through, and the compiled function works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import run_fresh

if TYPE_CHECKING:
    from pathlib import Path

LIMITED = """
import os, resource, warnings
from compcache import Cache, ModuleSource
import compcache.linker
def adder(name, number):
    return ModuleSource(f"define i64 @{{name}}(i64 %x) {{{{\\n%y = add i64 %x, {{number}}\\nret i64 %y\\n}}}}\\n")
with Cache(directory) as cache:
    cache.add_module(adder("warm", 1))
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.{limit}, ({amount}, {amount}))
warnings.simplefilter("ignore")
with Cache(directory, readonly={readonly}) as cache:
    held = [cache.get_or_compile(f"f{{n}}", lambda: adder(f"f{{n}}", n)) for n in range({functions})]
    values = [target(40) - n for n, target in enumerate(held)]
    more = len(os.listdir("/proc/self/fd")) - before
    open(os.devnull).close()
result = set(values), more
"""


@pytest.mark.parametrize("amount", [0, 3000, 5000])
def test_a_limit_of_the_size_of_files(directory: Path, amount: int) -> None:
    """Below the size of a module nothing is stored, and below that of an image nothing is linked."""
    script = LIMITED.format(limit="RLIMIT_FSIZE", amount=amount, readonly=False, functions=2)
    values, _ = run_fresh(directory, script)
    assert values == {40}


def test_a_limit_of_the_number_of_open_files(directory: Path) -> None:
    """Functions that are kept in memory hold no descriptor."""
    script = LIMITED.format(limit="RLIMIT_NOFILE", amount=24, readonly=True, functions=30)
    values, more = run_fresh(directory, script)
    assert values == {40}
    assert more <= 3
