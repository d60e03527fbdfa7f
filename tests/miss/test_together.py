"""What sources that are added together define wins over the platform, libraries and the cache for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, run_fresh

from compcache import CacheWarning, ModuleSource
from compcache.images.linkers.find import find_linker
from compcache.miss import many

if TYPE_CHECKING:
    from pathlib import Path

    from compcache import Cache

#: Functions and variables of the C library, the mathematics library and C++'s run time.
PLATFORM = ("index", "error", "getopt", "gamma", "malloc", "_Znwm", "timezone_of")
OWN = "".join(adder(name, 1000 + number) for number, name in enumerate(PLATFORM[:-1])) + """
@timezone = global i64 77
@opterr = global i32 78
define i64 @timezone_of(i64 %x) {
  %y = load i64, ptr @timezone
  ret i64 %y
}
"""
USER = "".join(caller(f"use_{name}", name) for name in PLATFORM) + """
@timezone = external global i64
@opterr = external global i32
define i64 @variables() {
  %a = load i64, ptr @timezone
  %b = load i32, ptr @opterr
  %c = sext i32 %b to i64
  %d = mul i64 %a, 100
  %e = add i64 %c, %d
  ret i64 %e
}
"""
ANSWERS = [1000 + number for number in range(len(PLATFORM) - 1)] + [77]
SCRIPT = f"""
from compcache import Cache
with Cache(directory) as cache:
    result = [cache.get_target("use_" + name)(0) for name in {PLATFORM!r}], cache.get_target("variables")()
"""

pytestmark = pytest.mark.skipif(find_linker() is None, reason="variables are imported by what a linker has made")


@pytest.mark.parametrize("order", [(OWN, USER), (USER, OWN)], ids=["before", "after"])
def test_the_platforms_names_are_those_of_the_sources(cache: Cache, directory: Path, order: tuple[str, ...]) -> None:
    cache.add_modules([ModuleSource(code) for code in order])
    assert cache.stats().added_modules == 2
    assert run_fresh(directory, SCRIPT) == (ANSWERS, 7778)


def test_what_was_published_with_the_platforms_function_does_not_stay(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_BATCH", 1)
    codes = caller("user", "getopt"), adder("other", 1), adder("getopt", 5)
    module_ids = cache.add_modules([ModuleSource(code) for code in codes])
    assert cache.get_target("user")(-1) == 4
    assert sorted(module_ids) == sorted(module.module_id for module in cache.modules())


@pytest.mark.parametrize("own_first", [True, False])
def test_a_library_that_a_source_names_loses_to_another_source(cache: Cache, own_first: bool) -> None:
    given = [ModuleSource(adder("crc32", 5)), ModuleSource(caller("user", "crc32"), libraries=["z"])]
    cache.add_modules(given if own_first else given[::-1])
    assert cache.get_target("user")(1) == 6


def test_imports_and_globals_of_a_source_come_before_other_sources(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("elsewhere", 1)))
    user = ModuleSource(caller("user", "getopt"), imports={"getopt": "elsewhere"})
    variable = "@opterr = external global i64\ndefine i64 @get() {\n  %x = load i64, ptr @opterr\n  ret i64 %x\n}"
    own = adder("getopt", 100) + "@opterr = global i64 7\n"
    cache.add_modules([ModuleSource(own), user, ModuleSource(variable, globals={"opterr": 3})])
    assert cache.get_target("user")(1) == 2
    assert cache.get_target("get")() == 3


def test_a_day_later_the_platform_has_its_names_back(cache: Cache) -> None:
    cache.add_module(ModuleSource(adder("getopt", 100)))
    cache.add_modules([ModuleSource(caller("user", "getopt")), ModuleSource(adder("other", 1))])
    assert cache.dependencies("user") == ()


@pytest.mark.parametrize("own_first", [True, False])
def test_thread_local_variables_of_the_platform_lose_as_well(cache: Cache, own_first: bool) -> None:
    own = "@errno = thread_local global i32 55\ndefine i32 @mine() {\n  %x = load i32, ptr @errno\n  ret i32 %x\n}"
    user = "@errno = external thread_local global i32\ndefine i32 @user() {\n  %x = load i32, ptr @errno\n  ret i32 %x\n}"
    given = [ModuleSource(own), ModuleSource(user)]
    cache.add_modules(given if own_first else given[::-1])
    assert [cache.get_target(name)() for name in ("mine", "user")] == [55, 55]


WEAK = """\
declare extern_weak i64 @hook(i64)
declare extern_weak void @__gmon_start__()
define i64 @asks(i64 %x) {
  %there = icmp ne ptr @hook, null
  %other = icmp ne ptr @__gmon_start__, null
  %any = or i1 %there, %other
  br i1 %there, label %yes, label %no
yes:
  %y = call i64 @hook(i64 %x)
  ret i64 %y
no:
  %z = zext i1 %any to i64
  ret i64 %z
}
"""


def test_a_weak_reference_that_stays_null_is_said(cache: Cache) -> None:
    with pytest.warns(CacheWarning, match=r"weak references to 'hook' are null.*imports="):
        cache.add_module(ModuleSource(WEAK))
    cache.add_module(ModuleSource(adder("hook", 5)))
    assert cache.get_target("asks")(1) == 0


def test_a_weak_reference_is_to_what_is_added_with_it(cache: Cache) -> None:
    cache.add_modules([ModuleSource(WEAK), ModuleSource(adder("hook", 5))])
    assert cache.get_target("asks")(1) == 6
