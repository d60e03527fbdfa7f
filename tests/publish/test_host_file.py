"""What a cache directory keeps about this host: who reads it, and when LLVM is asked instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, run_fresh

from compcache import Cache, ModuleSource
from compcache.directory.places import HOSTS
from compcache.formats.host_file import HostFile, _seal, decode_host, encode_host
from compcache.publish.writer import publish_file

if TYPE_CHECKING:
    from pathlib import Path

INFO = """
from compcache import Cache
with Cache(directory) as cache:
    info = cache.info()
result = info.cpu, info.features, info.llvm_version, "llvmlite" in sys.modules
"""


def test_a_summary_loads_no_llvm_where_this_one_has_described_the_host(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        host = cache._store.host()
    cpu, features, version, is_loaded = run_fresh(directory, INFO)
    assert (cpu, features, is_loaded) == (host.cpu, host.features, False)
    assert version


@pytest.mark.slow
def test_a_summary_asks_llvm_where_another_one_has_described_the_host(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        name, known = cache._store.host_file()
        assert known is not None
        other = HostFile("other", "999.0", "+other", "of another library")
        publish_file(cache._store, HOSTS, name, encode_host(other, name))
    assert run_fresh(directory, INFO) == (known.cpu, known.features, known.llvm_version, True)


def test_an_older_description_of_the_same_llvm_is_replaced(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f", 1)))
        name, known = cache._store.host_file()
        assert known is not None
        publish_file(cache._store, HOSTS, name, encode_host(HostFile(known.cpu, known.llvm_version, "", ""), name))
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("g", 1)))
        assert cache._store.host_file()[1] == known


def test_a_description_by_version_1_0_is_read() -> None:
    text = b"znver4\x0022.1.0"
    assert decode_host(_seal(text, "name", None) + text, "name") == HostFile("znver4", "22.1.0", "", "")
