"""An index and modules that are damaged together: nothing is left to rebuild the index of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, flip_byte, module_file

from compcache import Cache, ModuleSource, NotCachedError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*is damaged")
@pytest.mark.parametrize("readonly", [False, True])
def test_what_is_damaged_everywhere_is_a_miss(cache: Cache, directory: Path, readonly: bool) -> None:
    first = cache.add_module(ModuleSource(adder("f", 1)))
    known = set((directory / "index-v1").iterdir())
    second = cache.add_module(ModuleSource(adder("g", 1)))
    (segment,) = set((directory / "index-v1").iterdir()) - known
    module_file(directory, second).unlink()
    flip_byte(module_file(directory, first), 900)
    for offset in range(0, segment.stat().st_size, 16):
        flip_byte(segment, offset)
    with Cache(directory, readonly=readonly) as other:
        with pytest.raises(NotCachedError):
            other.get_target("f")
        assert other.get_or_compile("f", lambda: ModuleSource(adder("f", 1)))(1) == 2
