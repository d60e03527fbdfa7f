"""What a module is said to have cost is processor time of this process, and each second of it is counted once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest
from helpers import adder

from compcache import Cache, ModuleSource

if TYPE_CHECKING:
    from pathlib import Path


def _sources(first: int, number: int) -> list[ModuleSource]:
    return [ModuleSource(adder(f"f{n}", n)) for n in range(first, first + number)]


@pytest.mark.slow
def test_recorded_seconds_are_no_more_than_the_process_used(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("first", 0)))  # what LLVM does once
        before, started = sum(module.seconds for module in cache.modules()), time.process_time()
        with ThreadPoolExecutor(4) as pool:  # which wait for each other: by the clock each takes what all take
            list(pool.map(cache.add_module, _sources(0, 24)))
        cache.add_modules(_sources(100, 24))
        cache.add_modules(_sources(200, 8), "group")
        for n in range(300, 308):
            cache.get_or_compile(f"f{n}", partial(ModuleSource, adder(f"f{n}", n)))
        used = time.process_time() - started
        recorded = sum(module.seconds for module in cache.modules()) - before
        counted = cache.stats().compile_seconds
    assert 0 < recorded <= used
    assert counted <= used + before + 0.001
