"""An index and modules that are damaged together: nothing is left to rebuild the index of."""

from __future__ import annotations

import os
import shutil
import warnings
from typing import TYPE_CHECKING

import pytest
from helpers import adder, flip_byte, module_file

from compcache import Cache, ModuleSource, NotCachedError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*(is damaged|cannot be used completely)")
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


@pytest.mark.parametrize("as_layer", [False, True])
def test_a_missing_index_that_cannot_be_rebuilt_is_reported_once(cache: Cache, tmp_path: Path, *, as_layer: bool) -> None:
    path = module_file(cache.path, cache.add_module(ModuleSource(adder("f", 1))))
    cache.close()
    shutil.rmtree(os.path.join(cache.path, "index-v1"))

    def ask() -> list[str]:
        with (
            warnings.catch_warnings(record=True) as caught,
            Cache(tmp_path / "above", layers=[cache.path]) if as_layer else Cache(cache.path, readonly=True) as reader,
        ):
            warnings.simplefilter("always")
            assert not reader.has("f")
            assert not reader.has("g")
        return [str(warning.message) for warning in caught]

    assert not ask()  # another process may be about to write the index entry of the new module
    os.utime(path, (0, 0))
    (message,) = ask()
    assert f"{cache.path} has no index, so none of its modules is found" in message


def test_an_open_cache_rebuilds_an_index_that_a_listing_has_missed(cache: Cache) -> None:
    assert not cache.has("f")  # the directory is empty
    cache.add_module(ModuleSource(adder("f", 1)))
    shutil.rmtree(os.path.join(cache.path, "index-v1"))
    assert list(cache) == ["f"]
    assert cache.get_target("f")(1) == 2
