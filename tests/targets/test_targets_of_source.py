"""`ModuleSource(targets=...)` and COMPCACHE_TARGETS: a realization for each CPU, each optimized for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import constant
from hosts import NEEDS_AVX2, SUM, host_like, on_host

from compcache import Cache, CompileError, ModuleSource, SettingError
from compcache.formats.host import platform_name
from compcache.targets.machine import parse_targets

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64")

THREE = ("x86-64-v2", "x86-64-v3", "native")


def cpus(cache: Cache, name: str) -> dict[str, str]:
    return {r.cpu: r.module_id for r in cache.realizations(name)}


def test_each_target_is_a_realization_and_the_id_is_that_of_this_host(cache: Cache, directory: Path) -> None:
    module_id = cache.add_module(ModuleSource(constant("f", 1), targets=THREE))
    found = cpus(cache, "f")
    assert len(found) == 3
    assert {"x86-64-v2", "x86-64-v3"} < set(found)
    assert module_id == found[cache._store.host().cpu]
    assert cache.get_target("f").module_id == module_id
    for cpu in ("x86-64-v2", "x86-64-v3"):
        with on_host(Cache(directory, retarget=False), host_like(cpu)) as other:
            assert other.get_target("f").module_id == found[cpu]


def test_each_target_is_optimized_for_it(cache: Cache) -> None:
    cache.add_module(ModuleSource(SUM, {"sum": "f64(f64[:])"}, targets=("x86-64-v2", "x86-64-v3", "x86-64-v4")))
    found = cpus(cache, "sum")
    from compcache.build.kept_code import read_code

    wide = {cpu: "ymm" in read_code(cache._store, module_id).assembly(2) for cpu, module_id in found.items()}
    assert wide == {"x86-64-v2": False, "x86-64-v3": True, "x86-64-v4": True}


def test_the_environment_names_targets_where_the_source_does_not(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_TARGETS", "x86-64-v2,native")
    cache.get_or_compile("f", lambda: ModuleSource(constant("f", 1)))
    assert len(cpus(cache, "f")) == 2
    cache.add_module(ModuleSource(constant("g", 1), targets=["x86-64-v3"]))
    cache.add_module(ModuleSource(constant("h", 1), cpu="x86-64"))
    assert (set(cpus(cache, "g")), set(cpus(cache, "h"))) == ({"x86-64-v3"}, {"x86-64"})
    monkeypatch.setenv("COMPCACHE_TARGETS", "x86-64-v2,haswel")
    with pytest.raises(SettingError, match=r"^COMPCACHE_TARGETS: .*haswel"):
        cache.add_module(ModuleSource(constant("i", 1)))


@pytest.mark.usefixtures("undecoded")
def test_targets_for_other_hosts_alone_are_stored_for_them(cache: Cache, directory: Path) -> None:
    on_host(cache, host_like("nehalem"))
    first = cache.add_module(ModuleSource(constant("f", 1), targets=["haswell", "znver4"]))
    assert first == cpus(cache, "f")["haswell"]
    assert not cache.has("f")
    with on_host(Cache(directory, retarget=False), host_like("znver4")) as other:
        assert other.get_target("f")() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ["x86-64-v2", "x86-64-v9"]}, "'x86-64-v9', which is not a CPU of x86_64"),
        ({"targets": []}, "contains no CPU name"),
        ({"targets": ["+avx2"]}, "comes before the first CPU"),
        ({"targets": ["native"], "cpu": "haswell"}, "use either targets=, or cpu= and features="),
    ],
)
def test_targets_that_are_not_right_are_refused(cache: Cache, options: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        cache.add_module(ModuleSource(constant("f", 1), **options))  # type: ignore[arg-type]
    assert not cache.has("f")


@pytest.mark.slow
def test_code_that_a_target_cannot_have_names_the_target(cache: Cache) -> None:
    with pytest.raises(CompileError, match="for the target 'x86-64-v2': LLVM cannot translate the code"):
        cache.add_module(ModuleSource(NEEDS_AVX2, targets=["x86-64-v3", "x86-64-v2"]))
    assert cache.realizations("shuffle") == ()


def test_a_list_of_targets_is_read_as_people_write_it() -> None:
    expected = [("x86-64-v2", None), ("haswell", "-avx2,+aes"), ("native", None)]
    assert parse_targets("x86-64-v2, haswell,-avx2,+aes ,native") == expected
    assert parse_targets(["x86-64-v2", "haswell,-avx2,+aes", "native", "native"]) == expected
