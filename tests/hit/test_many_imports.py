"""Functions with many imports: they are looked up together, and bound as one by one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, flip_byte, module_file, run_fresh, sum_of

from compcache import Cache, CacheWarning, CompcacheError, ModuleSource
from compcache.hit import PlainLoader
from compcache.hit.needs import read_needs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

NAMES = [f"part{number}" for number in range(60)]


def library(names: Iterable[str], plus: int = 0, *, number_of: list[str] = NAMES) -> str:
    return "".join(adder(name, number_of.index(name) + plus) for name in names)


def total(plus: int = 0) -> int:
    return len(NAMES) + sum(range(len(NAMES))) + plus


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(library(NAMES)))
        cache.add_module(ModuleSource(sum_of("total", NAMES), imports=NAMES))
    return tmp_path / "cache"


def loaded(directory: Path) -> object:
    """The answer without a plan, where that is possible, and with one (`trust`)."""
    found = []
    for trust in (False, True):
        with Cache(directory, trust=trust) as cache:
            found.append(cache.get_target("total")(1))
    assert found[0] == found[1]
    return found[0]


def test_all_are_bound(directory: Path) -> None:
    assert loaded(directory) == total()
    assert run_fresh(directory, "import compcache\nresult = compcache.Cache(directory).get_target('total')(1)") == total()


@pytest.mark.slow
def test_the_newest_of_several_realizations_is_taken(directory: Path) -> None:
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(library(NAMES[1:50], 100)))
        cache.add_module(ModuleSource(adder(NAMES[1], 100_000)))
    assert loaded(directory) == total(48 * 100 + 100_000 - 1)


def test_what_needs_something_itself_gets_it(directory: Path) -> None:
    calls = "declare i64 @below(i64)\n" + library(NAMES[1:]) + sum_of(NAMES[0], ["below"]).partition("\n")[2]
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("below", 10_000)))
        with pytest.warns(CacheWarning, match="the cache already has different code"):
            cache.add_module(ModuleSource(calls, imports=["below"]))
    assert loaded(directory) == total(10_000)


@pytest.mark.slow
def test_what_is_of_another_type_is_passed_over(directory: Path) -> None:
    of_numbers = "".join(f"define double @{name}(double %x) {{\n  ret double %x\n}}\n" for name in NAMES)
    with Cache(directory) as cache:
        with pytest.warns(CacheWarning, match="the cache already has different code"):
            cache.add_module(ModuleSource(of_numbers))
        assert cache.get_target(NAMES[0])(0.5) == 0.5
    assert loaded(directory) == total()


def test_what_there_is_only_of_another_type_is_not_run(tmp_path: Path) -> None:
    of_numbers = "".join(f"define double @{name}(double %x) {{\n  ret double %x\n}}\n" for name in NAMES[1:])
    with Cache(tmp_path) as cache:
        cache.add_module(ModuleSource(sum_of("total", NAMES), imports=NAMES))
        cache.add_module(ModuleSource(adder(NAMES[0], 0) + of_numbers))
    for trust in (False, True):
        with Cache(tmp_path, trust=trust) as cache, pytest.raises(CompcacheError, match="uses it as i64"):
            cache.get_target("total")


def test_a_damaged_record_is_met(directory: Path) -> None:
    with Cache(directory) as cache:
        (module_id,) = {r.module_id for r in cache.realizations(NAMES[7])}
    path = module_file(directory, module_id)
    at = path.read_bytes().index(NAMES[7].encode(), path.read_bytes().index(b"CCMODULE") // 2)
    flip_byte(path, at + 2)
    with pytest.warns(CacheWarning, match="damaged|digest"), pytest.raises(CompcacheError):
        loaded(directory)


@pytest.mark.slow
def test_what_is_read_does_not_grow_with_the_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(count: int) -> int:
        names = [f"p{number}" for number in range(count)]
        with Cache(tmp_path / str(count)) as cache:
            cache.add_module(ModuleSource(library(names, number_of=names), optimize=0))
            cache.add_module(ModuleSource(sum_of("total", names), imports=names, optimize=0))
        counted: list[int] = []
        pread = os.pread

        def counting(descriptor: int, size: int, at: int) -> bytes:
            counted.append(at)
            return pread(descriptor, size, at)

        with Cache(tmp_path / str(count)) as cache, monkeypatch.context() as patched:
            patched.setattr("os.pread", counting)
            assert cache.get_target("total")(0) == sum(range(count))
        return len(counted)

    few, many = reads(100), reads(600)
    assert many <= few + 20


@pytest.mark.slow
def test_without_a_plan_one_record_of_each_module_is_read_alone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = PlainLoader._read_function

    def reading(loader: PlainLoader, runtime: object, func_name: str, *rest: object) -> object:
        read.append(func_name)
        return real(loader, runtime, func_name, *rest)

    with Cache(directory) as cache:
        cache.add_module(ModuleSource(library([f"more{number}" for number in range(40)], number_of=[f"more{n}" for n in range(40)])))
        names = [*NAMES, *(f"more{number}" for number in range(40))]
        cache.add_module(ModuleSource(sum_of("both", names), imports=names))
    monkeypatch.setattr(PlainLoader, "_read_function", reading)
    with Cache(directory) as cache:
        assert cache.get_target("both")(0) == sum(range(60)) + sum(range(40))
    assert sorted(read) == ["both", "more0", "part0"]


@pytest.mark.slow
def test_what_is_bound_stays_so_when_another_function_of_the_module_is_loaded(directory: Path) -> None:
    with Cache(directory) as cache:
        code = sum_of("first", NAMES) + sum_of("second", NAMES).split("\n", len(NAMES))[-1]
        cache.add_module(ModuleSource(code, imports=NAMES))
        first = cache.get_target("first")
        assert first(1) == total()
        with Cache(directory) as other, pytest.warns(CacheWarning, match="the cache already has different code"):
            other.add_module(ModuleSource(library(NAMES, 100)))
        assert cache.get_target("second")(1) == total()
        assert first(1) == total()


def test_comparisons_do_not_grow_with_the_square_of_imports_of_two_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class CountedName(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    def read_counted(loader: Any, choice: Any) -> None:
        read_needs(loader, choice)
        choice.imports = [(key, CountedName(name), places, kind) for key, name, places, kind in choice.imports]

    names = [f"p{number}" for number in range(400)]
    ignoring = "".join(f"declare void @{name}(i64, i64)\n" for name in names) + "define i64 @ignoring(i64 %x) {\n"
    ignoring += "".join(f"  call void @{name}(i64 %x, i64 0)\n" for name in names) + "  ret i64 0\n}\n"
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(sum_of("root", [*names, "ignoring"]), imports=[*names, "ignoring"], optimize=0))
        cache.add_module(ModuleSource(ignoring, imports=names, optimize=0))
        cache.add_module(ModuleSource(library(names, number_of=names), optimize=0))
    with Cache(tmp_path / "layer") as cache:
        cache.add_module(ModuleSource(adder("other", 1)))
    monkeypatch.setattr("compcache.hit.plan.read_needs", read_counted)
    with Cache(tmp_path / "cache", layers=[tmp_path / "layer"]) as cache:  # with layers, imports are looked up one by one
        assert cache.get_target("root")(0) == sum(range(len(names)))
    assert 0 < compared < 20 * len(names)
