"""`Cache.add_modules`: many modules, added together."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import textwrap
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from helpers import FreshProcessError, adder, caller, module_file, require_equal_modules, run_fresh, store_objects
from mock_directory import FaultyFiles, cache_on

import compcache
from compcache import Cache, CompileError, ModuleSource, StorageError, UndefinedSymbolError, linker
from compcache.build import codegen
from compcache.images.linkers.find import find_linker
from compcache.miss import many, publication
from compcache.translation import emission

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mock_directory import Operation

CONSTRUCTOR = """
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @begin, ptr null }]
define internal void @begin() { ret void }
define i64 @needs_a_linker(i64 %x) { ret i64 %x }
"""

#: What `#include <iostream>` puts into a file.
STREAMS = """
@object = internal global i8 0
@__dso_handle = external hidden global i8
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @begin, ptr null }]
declare void @_ZNSt8ios_base4InitC1Ev(ptr)
declare void @_ZNSt8ios_base4InitD1Ev(ptr)
declare i32 @__cxa_atexit(ptr, ptr, ptr)
define internal void @begin() {
  call void @_ZNSt8ios_base4InitC1Ev(ptr @object)
  %status = call i32 @__cxa_atexit(ptr @_ZNSt8ios_base4InitD1Ev, ptr @object, ptr @__dso_handle)
  ret void
}
"""


def sources(count: int, first: int = 0) -> list[ModuleSource]:
    return [ModuleSource(adder(f"f{number}", number)) for number in range(first, first + count)]


@pytest.mark.slow
def test_modules_are_added_in_order_as_each_would_be_alone(cache: Cache, directory: Path, tmp_path: Path) -> None:
    module_ids = cache.add_modules(sources(7))
    assert [cache.get_target(f"f{number}")(1) for number in range(7)] == [1 + number for number in range(7)]
    files = [module_file(directory, module_id) for module_id in module_ids]
    with Cache(tmp_path / "alone") as alone:
        require_equal_modules(files, [module_file(tmp_path / "alone", alone.add_module(source)) for source in sources(7)])
    require_equal_modules(files, [module_file(directory, module_id) for module_id in cache.add_modules(sources(7))])  # they are there
    assert len(list(directory.rglob("*.ccm"))) == 7
    assert cache.stats().added_modules == 7
    script = "from compcache import Cache\nwith Cache(directory) as c:\n    result = [c.get_target(f'f{n}')(1) for n in range(7)]"
    assert run_fresh(directory, script) == [1, 2, 3, 4, 5, 6, 7]
    assert not cache.check().errors


def test_what_differs_between_modules_is_told_by_section(cache: Cache, directory: Path) -> None:
    """Else nobody knows why equal sources gave different modules, once."""
    one, other = [module_file(directory, cache.add_module(ModuleSource(adder("f", 1), keep_bitcode=kept))) for kept in (True, False)]
    with pytest.raises(AssertionError, match=r"^0: bitcode differs from byte 0 of \d+ and 0: b.+ != b''$"):
        require_equal_modules([one], [other])


def test_nothing_is_nothing(cache: Cache) -> None:
    assert cache.add_modules([]) == []


def test_a_library_may_have_files_that_define_nothing(cache: Cache) -> None:
    """As those of which the configuration has switched all off; alone they are a mistake."""
    empty = '; ModuleID = "off.c"\n@mentioned = external global i32\n'
    first, _, last = cache.add_modules([ModuleSource(empty), ModuleSource(adder("one", 1)), ModuleSource(empty)])
    assert first == last
    assert cache.get_target("one")(1) == 2
    assert [summary.functions for summary in cache.modules() if summary.module_id == first] == [()]
    assert not cache.check().errors
    assert len(set(cache.add_modules([ModuleSource(empty), ModuleSource(STREAMS)]))) == 2
    with pytest.raises(UndefinedSymbolError, match="exports nothing"):
        cache.add_module(ModuleSource(empty))
    with pytest.raises(UndefinedSymbolError, match="has constructors, but exports nothing"):
        cache.add_module(ModuleSource(STREAMS))
    with pytest.raises(compcache.ModulesNotAddedError, match="has constructors, but exports nothing"):
        cache.add_modules([ModuleSource(CONSTRUCTOR.partition("define i64")[0])])


def test_hidden_functions_are_no_mistake_beside_others(cache: Cache) -> None:
    """Nobody can call them; what is added with them uses them. Alone they cause a warning (tests/images/test_compiler_output.py)."""
    hidden = "define hidden i64 @helper(i64 %x) {\nret i64 %x\n}\n"
    cache.add_modules([ModuleSource(caller("user", "helper")), ModuleSource(hidden)])
    assert cache.get_target("user")(1) == 1
    cache.add_module(ModuleSource(hidden + "@table = global i64 5\n"))


def test_a_source_may_import_functions_of_those_before_it(cache: Cache) -> None:
    cache.add_modules(ModuleSource(code) for code in (adder("one", 1), caller("two", "one", plus=1), caller("three", "two", plus=1)))
    assert cache.get_target("three")(10) == 13
    assert cache.dependencies("three", transitive=True) == ("two", "one")


def test_sources_may_use_each_other_in_any_order(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the files of a library do: functions, variables and aliases, in circles, across groups."""
    monkeypatch.setattr(many, "_BATCH", 2)
    even = (
        "declare i64 @odd(i64)\n@count = external global i64\ndefine i64 @even(i64 %n) {\n%c = load i64, ptr @count\n%d = add i64 %c, 1\n"
    )
    even += "store i64 %d, ptr @count\n%z = icmp eq i64 %n, 0\nbr i1 %z, label %yes, label %no\nyes:\nret i64 1\nno:\n"
    even += "%m = sub i64 %n, 1\n%r = call i64 @odd(i64 %m)\nret i64 %r\n}"
    odd = "declare i64 @even_alias(i64)\n@count = global i64 0\ndefine i64 @odd(i64 %n) {\n%z = icmp eq i64 %n, 0\n"
    odd += "br i1 %z, label %yes, label %no\nyes:\nret i64 0\nno:\n%m = sub i64 %n, 1\n%r = call i64 @even_alias(i64 %m)\nret i64 %r\n}\n"
    odd += "define i64 @counted() {\n%c = load i64, ptr @count\nret i64 %c\n}"
    user = caller("user", "even")
    codes = [user, even + "\n@even_alias = alias i64 (i64), ptr @even", adder("a", 1), adder("b", 1), odd]
    module_ids = cache.add_modules(ModuleSource(code) for code in codes)
    assert len(set(module_ids)) == len(codes)
    assert [cache.get_target(name)(7) for name in ("user", "even", "odd")] == [0, 0, 1]
    assert cache.get_target("counted")() == 12
    assert cache.stats().added_modules == len(codes)


def test_what_a_later_source_defines_is_preferred_to_what_the_process_has(cache: Cache) -> None:
    """As it is for those before it: not the function of a library that happens to be loaded."""
    pytest.importorskip("ctypes")  # which loads libffi
    cache.add_modules([ModuleSource(caller("user", "ffi_prep_cif")), ModuleSource(adder("ffi_prep_cif", 5))])
    assert cache.get_target("user")(1) == 6
    assert cache.stats().added_modules == 2


def test_what_was_published_before_a_later_source_changed_it_does_not_stay(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctypes")  # as above
    monkeypatch.setattr(many, "_BATCH", 1)
    user, own = ModuleSource(caller("user", "ffi_prep_cif")), ModuleSource(adder("ffi_prep_cif", 5))
    module_ids = cache.add_modules([user, *sources(2), own])
    assert cache.get_target("user")(1) == 6
    assert sorted(module_ids) == sorted(module.module_id for module in cache.modules())


def test_of_sources_that_need_each_other_none_is_added_without_the_others(cache: Cache) -> None:
    broken = (
        caller("broken", "first")
        + "\ndeclare i64 @nowhere(i64)\ndefine i64 @g(i64 %x) {\n%r = call i64 @nowhere(i64 %x)\nret i64 %r\n}"
    )
    given = [caller("first", "second"), caller("second", "broken"), broken, adder("other", 1)]
    with pytest.raises(compcache.ModulesNotAddedError) as caught:
        cache.add_modules([ModuleSource(code) for code in given])
    failures = caught.value.failures
    assert list(failures) == [0, 1, 2]
    assert "'nowhere'" in str(failures[2])
    assert "'broken', whose source could not be added" in str(failures[1])
    assert cache.has("other")
    assert not cache.has("first")


def test_two_definitions_of_a_function_are_told(cache: Cache) -> None:
    with pytest.warns(compcache.ShadowWarning, match="two added sources that define 'main' differ"):
        cache.add_modules([ModuleSource(adder("main", 1)), ModuleSource(adder("other", 1)), ModuleSource(adder("main", 2))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.add_modules([ModuleSource(adder("same", 1)), ModuleSource(adder("same", 1) + "\n; a comment")])


WEAK = """
define weak hidden noundef i64 @"hook.x"(i64 noundef %0) #0 {
  %r = add i64 %0, 1
  ret i64 %r
}
define internal i64 @standard(i64 %x) {
  ret i64 0
}
@aliased = weak alias i64 (i64), ptr @standard
define i64 @call(i64 %x) {
  %h = call i64 @"hook.x"(i64 %x)
  %a = call i64 @aliased(i64 %x)
  %r = add i64 %h, %a
  ret i64 %r
}
attributes #0 = { noinline }
"""


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_weak_functions_give_way_to_those_of_other_sources(cache: Cache, order: tuple[int, ...]) -> None:
    """As when files are linked, whichever is first."""
    given = [WEAK, adder("hook.x", 100), adder("aliased", 1000)]
    cache.add_modules([ModuleSource(given[number]) for number in order])
    assert [cache.get_target(name)(1) for name in ("call", "hook.x", "aliased")] == [1102, 101, 1001]
    assert len(cache.realizations("hook.x")) == 1


def test_weak_functions_that_nothing_overrides_stay(cache: Cache) -> None:
    cache.add_modules([ModuleSource(WEAK), ModuleSource(caller("user", "hook.x"))])
    assert [cache.get_target(name)(1) for name in ("call", "user")] == [2, 2]


def test_weak_functions_that_a_source_does_not_export_are_its_own(cache: Cache) -> None:
    cache.add_modules([ModuleSource(WEAK, {"call": "i64(i64)"}), ModuleSource(adder("hook.x", 7))])
    assert cache.get_target("call")(1) == 2


#: Definitions whose names, sections and values look like other definitions. Users are in another source.
LOOKALIKES = """
@"x, ptr y" = global i64 5
@"z = alias i64, ptr w" = alias i64, ptr @"x, ptr y"
@"external = v" = constant i64 7
@"constant, ptr u" = alias i64, ptr @"external = v"
@s = global [38 x i8] c"@q = alias i64, ptr @p = weak global  ", section "my = alias i64, ptr "
define i64 @"f, trunc (h"(i64 %n) {
  ret i64 %n
}
@"fa alias fb" = alias i64 (i64), ptr @"f, trunc (h"
@"wa), ptr wb" = weak unnamed_addr alias i64 (i64), ptr @"f, trunc (h"
"""
OF_LOOKALIKES = """
@"x, ptr y" = external global i64
@"z = alias i64, ptr w" = external global i64
@"external = v" = external global i64
@"constant, ptr u" = external global i64
@s = external global [38 x i8]
declare i64 @"f, trunc (h"(i64)
declare i64 @"fa alias fb"(i64)
declare i64 @"wa), ptr wb"(i64)
define i64 @user(i64 %n) {
  %a = load i64, ptr @"x, ptr y"
  %b = load i64, ptr @"z = alias i64, ptr w"
  %c = load i64, ptr @"external = v"
  %d = load i64, ptr @"constant, ptr u"
  %e = load i8, ptr getelementptr (i8, ptr @s, i64 1)
  %f = zext i8 %e to i64
  %g = call i64 @"f, trunc (h"(i64 %n)
  %h = call i64 @"fa alias fb"(i64 %n)
  %i = call i64 @"wa), ptr wb"(i64 %n)
  %1 = add i64 %a, %b
  %2 = add i64 %1, %c
  %3 = add i64 %2, %d
  %4 = add i64 %3, %f
  %5 = add i64 %4, %g
  %6 = add i64 %5, %h
  %7 = add i64 %6, %i
  ret i64 %7
}
"""


@pytest.mark.parametrize("group", [None, "group"])
def test_names_and_values_that_look_like_definitions(cache: Cache, group: str | None) -> None:
    override = adder("other", 1000).replace("@other", '@"wa), ptr wb"')
    cache.add_modules(map(ModuleSource, (LOOKALIKES, OF_LOOKALIKES, override)), group)
    assert cache.get_target("user")(1) == 5 + 5 + 7 + 7 + ord("q") + 1 + 1 + 1001


def test_a_string_that_looks_like_an_alias_of_a_weak_function_stays(cache: Cache) -> None:
    text = "an alias i64 (), ptr @hook "
    weak = f'@text = constant [{len(text)} x i8] c"{text}"\n@same = alias i64 (), ptr @hook\ndefine weak i64 @hook() {{\n  ret i64 1\n}}\n'
    at = "define i8 @at(i64 %i) {\n  %p = getelementptr i8, ptr @text, i64 %i\n  %c = load i8, ptr %p\n  ret i8 %c\n}\n"
    cache.add_modules([ModuleSource(weak + at), ModuleSource("define i64 @hook() {\n  ret i64 2\n}\n")])
    assert "".join([chr(cache.get_target("at")(number)) for number in range(len(text))]) == text
    assert cache.get_target("same")() == 1


@pytest.mark.parametrize("name", ["external = v", "constant, ptr u"])
def test_a_constant_whose_name_looks_like_a_definition_is_not_written_to(cache: Cache, name: str) -> None:
    write = f'@"{name}" = external global i64\ndefine void @write() {{\n  store i64 1, ptr @"{name}"\n  ret void\n}}\n'
    cache.add_module(ModuleSource(LOOKALIKES))
    with pytest.raises(compcache.SignatureMismatchError, match="it is constant, and its user writes to it"):
        cache.add_module(ModuleSource(write))


def test_a_source_that_fails_costs_the_others_nothing(cache: Cache) -> None:
    given: list[Any] = [*sources(2), ModuleSource("not LLVM"), "not a source", *sources(2, 2), ModuleSource(caller("g", "not_there"))]
    with pytest.raises(compcache.ModulesNotAddedError) as caught:
        cache.add_modules(given)
    error = caught.value
    assert list(error.failures) == [2, 3, 6]
    assert [type(failure) for failure in error.failures.values()] == [CompileError, CompileError, UndefinedSymbolError]
    assert [module_id is None for module_id in error.module_ids] == [False, False, True, True, False, False, True]
    assert str(error).startswith("3 of 7 sources could not be added:\n  source 2 (<ModuleSource of str")
    assert "UndefinedSymbolError" in str(error)
    assert "'not_there'" in str(error)
    assert error.__cause__ is error.failures[2]
    assert [cache.get_target(f"f{number}")(1) for number in range(4)] == [1, 2, 3, 4]
    copy = pickle.loads(pickle.dumps(error))
    assert list(copy.failures) == [2, 3, 6]
    assert copy.module_ids == error.module_ids


def test_causes_stand_before_what_others_lack_for_them(cache: Cache) -> None:
    with pytest.raises(compcache.ModulesNotAddedError) as caught:
        cache.add_modules([ModuleSource(caller("a", "lacking")), ModuleSource(adder("b", 1).replace("add", "nonsense"))])
    assert str(caught.value).index("source 1") < str(caught.value).index("source 0")
    assert isinstance(caught.value.__cause__, CompileError)
    assert list(caught.value.failures) == [0, 1]


def test_a_long_list_of_failures_is_cut(cache: Cache) -> None:
    with pytest.raises(compcache.ModulesNotAddedError, match="and 15 more") as caught:
        cache.add_modules([ModuleSource("no")] * 25)
    assert len(caught.value.failures) == 25


def test_what_imports_a_module_that_cannot_be_linked_fails_with_it(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    store_objects(monkeypatch)
    user = caller("user", "needs_a_linker")
    with pytest.raises(compcache.ModulesNotAddedError) as caught:
        cache.add_modules(
            [
                ModuleSource(CONSTRUCTOR, optimize=0),
                ModuleSource(user),
                ModuleSource(user.replace("@user", "@patient"), imports=["needs_a_linker"]),
                ModuleSource(adder("other", 1)),
            ]
        )
    assert list(caught.value.failures) == [0, 1]
    assert isinstance(caught.value.failures[1], UndefinedSymbolError)
    assert cache.has("other")
    assert cache.has("patient")
    assert not cache.has("user")


def test_groups_share_index_segments_and_become_visible_one_by_one(
    cache: Cache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "_BATCH", 3)
    seen = []

    def lazily() -> Iterator[ModuleSource]:
        for source in sources(8):
            with Cache(directory) as other:
                seen.append(sum(other.has(f"f{number}") for number in range(8)))
            yield source

    cache.add_modules(lazily())
    assert seen == [0, 0, 0, 3, 3, 3, 6, 6]
    assert len(list((directory / "index-v1").iterdir())) == 3


@pytest.mark.slow
def test_renames_are_one_for_each_module_and_one_for_all(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("first", 1)))
    files = FaultyFiles(directory, count=lambda _: True)
    with cache_on(files) as watched:
        watched.add_modules(sources(2, 50))  # the size of the directory is known from now on
        files.reset()
        watched.add_modules(sources(20))
        renamed = [operation.target for operation in files.operations if operation.name == "rename"]
        synced = [operation for operation in files.operations if operation.name == "fsync"]
    assert len(renamed) == 21  # and the index
    assert len([target for target in renamed if target.endswith(".ccm")]) == 20
    assert len(synced) == 20


def full_for_the_index(operation: Operation) -> OSError | None:
    is_index = operation.name == "rename" and operation.target.endswith(".idx")
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if is_index else None


def test_what_cannot_be_stored_is_named_and_the_rest_is_there(cache: Cache, directory: Path) -> None:
    cache.add_module(ModuleSource(adder("first", 1)))
    files = FaultyFiles(directory)
    with cache_on(files) as watched:
        files.plan = full_for_the_index
        with pytest.raises(compcache.ModulesNotAddedError) as caught:
            watched.add_modules(sources(3))
    assert {type(error) for error in caught.value.failures.values()} == {StorageError}
    assert list(caught.value.failures) == [0, 1, 2]
    assert not list((directory / "tmp").iterdir())
    assert cache.add_modules(sources(3))
    assert cache.get_target("f2")(1) == 3


def test_a_read_only_cache_is_told_before_anything_is_compiled(directory: Path) -> None:
    read: list[int] = []

    def given() -> Iterator[ModuleSource]:
        for number in range(3):
            read.append(number)
            yield ModuleSource(adder("f", number))

    with Cache(directory, readonly=True) as cache, pytest.raises(StorageError, match="readonly=True"):
        cache.add_modules(given())
    assert read == []


def test_an_interrupt_ends_it_and_what_was_published_stays(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_BATCH", 2)

    def interrupted() -> Iterator[ModuleSource]:
        yield from sources(5)
        os.kill(os.getpid(), signal.SIGINT)
        yield from sources(5, 5)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        cache.add_modules(interrupted())
    assert threading.active_count() <= before
    assert [cache.has(f"f{number}") for number in range(6)] == [True] * 4 + [False] * 2
    assert not cache.check().errors


def test_threads_may_add_at_the_same_time(cache: Cache) -> None:
    with ThreadPoolExecutor(3) as threads:
        results = list(threads.map(lambda _: cache.add_modules(sources(5)), range(3)))
    assert results[0] == results[1] == results[2]
    assert cache.get_target("f4")(1) == 5


def test_all_targets_of_each_source_are_added(cache: Cache, directory: Path) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("names CPUs of x86-64")
    given = [ModuleSource(adder(f"f{n}", n), targets=("x86-64", "native")) for n in range(3)]
    module_ids = cache.add_modules(given)
    assert len(list(directory.rglob("*.ccm"))) == 6
    assert module_ids == [cache.get_target(f"f{n}").module_id for n in range(3)]


@pytest.mark.slow
def test_a_killed_addition_leaves_a_healthy_cache(directory: Path) -> None:
    script = """
    import os
    from compcache import Cache, ModuleSource
    from compcache.miss import many
    many._BATCH = 2
    def sources():
        for number in range(10):
            if number == 5:
                os.kill(os.getpid(), 9)
            yield ModuleSource("define i64 @f%d(i64 %%x) { ret i64 %%x }" % number)
    Cache(directory).add_modules(sources())
    """
    with pytest.raises(FreshProcessError, match="exit status -9"):
        run_fresh(directory, script)
    with Cache(directory) as cache:
        assert [cache.has(f"f{number}") for number in range(5)] == [True] * 4 + [False]
        assert not cache.check().errors


@pytest.mark.slow
def test_a_module_is_the_same_whatever_the_process_has_compiled_before(tmp_path: Path) -> None:
    """Entry points of one signature are compiled once for all modules of a process."""
    script = """
    from compcache import Cache, ModuleSource
    given = ["define i64 @%s(i64 %%x, double %%y) { ret i64 %%x }" % name for name in names]
    with Cache(directory) as cache:
        result = [cache.add_module(ModuleSource(text)) for text in given][-1]
        assert cache.get_target("last")(7, 1.0) == 7
    """
    linker = find_linker()
    assert linker is not None
    alone, after = [
        run_fresh(tmp_path / str(n), f"names = {names}\n" + textwrap.dedent(script), COMPCACHE_LINKER=linker.argv[0])
        for n, names in enumerate([["last"], ["a", "b", "last"]])
    ]
    assert alone == after


def test_an_entry_point_is_compiled_once_for_all_modules(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other signatures they have, and in which order: those of functions with calling conventions of their own."""
    if find_linker() is None:
        pytest.skip("entry points are in the module's object")
    emitted: list[str] = []

    def emit_object(module: Any, machine: Any) -> bytes:
        emitted.append(str(module))
        return real(module, machine)

    real = codegen.emit_object
    monkeypatch.setattr(codegen, "emit_object", emit_object)
    emission._objects_of.cache_clear()
    kinds = {"i64": "add", "i32": "sub", "double": "fadd"}
    lists = (("i64", "i32"), ("double", "i64"), ("i32", "double", "i64"))
    given = [
        "".join(
            f"define fastcc {kind} @{kind}_{number}({kind} %x) {{\n  %y = {kinds[kind]} {kind} %x, %x\n  ret {kind} %y\n}}\n"
            for kind in some
        )
        for number, some in enumerate(lists)
    ]
    cache.add_modules([ModuleSource(code) for code in given])
    assert sum("@compcache.entry." in text and "@compcache_module" not in text for text in emitted) == len(kinds)
    assert [cache.get_target(f"double_{number}")(1.5) for number in (1, 2)] == [3.0, 3.0]
    assert [cache.get_target(f"i64_{number}")(4) for number in (0, 1, 2)] == [8, 8, 8]
    assert cache.get_target("i32_2")(4) == 0


def test_modules_that_wait_for_a_later_source_do_not_divide_the_groups_of_others(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_BATCH", 4)
    groups: list[int] = []
    publish = publication.publish_built

    def count(session: Any, modules: Any, **options: Any) -> Any:
        groups.append(len(modules))
        return publish(session, modules, **options)

    monkeypatch.setattr(many, "publish_built", count)
    waiting = [ModuleSource(caller(f"w{number}", "late"), optimize=0) for number in range(3)]
    others = [ModuleSource(adder(f"f{number}", number), optimize=0) for number in range(12)]
    cache.add_modules([*waiting, *others, ModuleSource(adder("late", 5), optimize=0)])
    assert sum(groups) == 16
    assert len(groups) <= 6, groups
    assert cache.get_target("w2")(1) == 6


@pytest.mark.parametrize("group", [None, "library"])
def test_a_call_that_never_runs_needs_no_definition(cache: Cache, group: str | None) -> None:
    """As in `if (HAVE_X && x())`, whose call a compiler removes: a linker does not look for `x` either."""
    text = """\
declare i64 @absent(i64)
define i64 @{name}(i64 %x) {{
  br i1 {condition}, label %dead, label %live
dead:
  %r = call i64 @absent(i64 %x)
  ret i64 %r
live:
  ret i64 %x
}}
"""
    cache.add_modules([ModuleSource(text.format(name=name, condition="false")) for name in ("first", "second")], group=group)
    assert [cache.get_target(name)(5) for name in ("first", "second")] == [5, 5]
    if group is None:
        cache.add_module(ModuleSource(text.format(name="third", condition="false")))
        assert cache.get_target("third")(5) == 5
    for optimize, condition in ((0, "false"), (2, "true")):
        with pytest.raises(compcache.ModulesNotAddedError, match="absent"):
            cache.add_modules([ModuleSource(text.format(name="fourth", condition=condition), optimize=optimize)], group=group)
        with pytest.raises(UndefinedSymbolError, match="absent"):
            cache.add_module(ModuleSource(text.format(name="fourth", condition=condition), optimize=optimize))


@pytest.mark.parametrize("adds_one", [True, False])
@pytest.mark.parametrize(("linkage", "runs"), [("weak", False), ("available_externally", True)])
def test_the_stored_code_decides_which_calls_never_run(cache: Cache, linkage: str, runs: bool, adds_one: bool) -> None:
    """A weak function is that of its module; of a function that is defined only for the optimizer, another module may have the code."""
    cache.add_module(ModuleSource("define i1 @has_it() {\n  ret i1 true\n}\n"))
    text = f"""\
declare i64 @absent(i64)
define {linkage} i1 @has_it() {{
  ret i1 false
}}
define i64 @top(i64 %x) {{
  %c = call i1 @has_it()
  br i1 %c, label %dead, label %live
dead:
  %r = call i64 @absent(i64 %x)
  ret i64 %r
live:
  ret i64 %x
}}
"""

    def add() -> None:
        """Add the module alone, or as one of several."""
        cache.add_module(ModuleSource(text)) if adds_one else cache.add_modules([ModuleSource(text)])

    if runs:
        with pytest.raises((UndefinedSymbolError, compcache.ModulesNotAddedError), match="the module uses 'absent', which neither"):
            add()
    else:
        add()
        assert cache.get_target("top")(5) == 5


HOOKS = """
@labels = internal constant [2 x ptr] [ptr blockaddress(@hook, %one), ptr blockaddress(@hook, %two)]
define weak i64 @hook(i64 %x) section "my comdat" {
  %i = and i64 %x, 1
  %p = getelementptr [2 x ptr], ptr @labels, i64 0, i64 %i
  %t = load ptr, ptr %p
  indirectbr ptr %t, [label %one, label %two]
one:
  ret i64 10
two:
  ret i64 11
}
@named = alias i64 (i64), ptr @hook
@chain = alias i64 (i64), ptr @named
@given = weak alias i64 (i64), ptr @hook
define i64 @ask(i64 %x) {
  %r = call i64 @hook(i64 %x)
  ret i64 %r
}
%levels = type { i64, i64 }
@levels = weak hidden global %levels { i64 5, i64 6 }
@given_level = weak alias i64, ptr getelementptr (i8, ptr @levels, i64 8)
@level = alias i64, ptr getelementptr (i8, ptr @levels, i64 8)
define i64 @ask_level(i64 %x) {
  %v = load i64, ptr @level
  %g = load i64, ptr @given_level
  %l = load i64, ptr @levels
  %s = add i64 %v, %g
  %r = add i64 %s, %l
  ret i64 %r
}
@own = weak thread_local global i64 7
@own_alias = thread_local alias i64, ptr @own
define i64 @ask_own(i64 %x) {
  %p = call ptr @llvm.threadlocal.address.p0(ptr @own)
  %v = load i64, ptr %p
  %q = call ptr @llvm.threadlocal.address.p0(ptr @own_alias)
  %a = load i64, ptr %q
  %r = add i64 %v, %a
  ret i64 %r
}
declare ptr @llvm.threadlocal.address.p0(ptr)
"""


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("group", [None, "group"])
def test_labels_and_aliases_of_an_overridden_definition_are_those_of_its_own_body(cache: Cache, group: str | None, order: int) -> None:
    """As in an object file, where an alias is another symbol at the place of the body."""
    variables = "@levels = hidden global [2 x i64] [i64 100, i64 200]\n@given_level = global i64 1000\n@own = thread_local global i64 70\n"
    texts = [HOOKS, adder("hook", 100) + variables, adder("given", 1000)]
    cache.add_modules(map(ModuleSource, texts[::order]), group)
    held = [cache.get_target(name) for name in ("hook", "ask", "named", "chain", "given", "ask_level", "ask_own")]
    assert [target(1) for target in held] == [101, 101, 11, 11, 1001, 1106, 77]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("kind", ["weak global", "weak thread_local global", "weak_odr constant"])
def test_of_several_weak_variables_that_of_the_first_source_counts(cache: Cache, kind: str, order: int) -> None:
    read = "define i64 @{}() {{\n  %v = load i64, ptr @level\n  ret i64 %v\n}}\n"
    declared = f"@level = {kind.replace('weak_odr', 'external').replace('weak', 'external')} i64\n"
    section = ', section "my comdat"' if "constant" in kind else ""
    texts = [f"@level = {kind} i64 {number}{section}\n{read.format(f'user{number}')}" for number in range(4)]
    cache.add_modules(map(ModuleSource, [*texts[::order], declared + read.format("reader")]))
    held = [cache.get_target(name) for name in ("reader", "user0", "user1", "user2", "user3")]
    assert [target() for target in held] == [{1: 0, -1: 3}[order]] * 5


@pytest.mark.parametrize("order", [1, -1])
def test_a_tentative_definition_goes_before_a_weak_one(cache: Cache, order: int) -> None:
    """As GNU ld has it, whichever is first."""
    read = "define i64 @{}() {{\n  %v = load i64, ptr @level\n  ret i64 %v\n}}\n"
    texts = [f"@level = {kind}\n{read.format(name)}" for name, kind in (("user", "weak global i64 5"), ("owner", "common global i64 0"))]
    cache.add_modules(map(ModuleSource, texts[::order]))
    held = [cache.get_target(name) for name in ("user", "owner")]
    assert [target() for target in held] == [0, 0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_of_several_weak_functions_that_of_the_first_source_counts(cache: Cache, order: tuple[int, ...]) -> None:
    given = [weak("hook", number) + caller(f"user{number}", "hook").partition("\n")[2] for number in range(3)]
    cache.add_modules([ModuleSource(given[number]) for number in order])
    assert [cache.get_target(name)(1) for name in ("hook", "user0", "user1", "user2")] == [1 + order[0]] * 4


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_source_whose_functions_are_all_overridden_is_added(cache: Cache, order: tuple[int, int]) -> None:
    """A file of default hooks is linked, though nothing of it is used."""
    helper = "define internal i64 @helper(i64 %x) noinline {\n  ret i64 0\n}\n"
    given = [helper + weak("hook", 1) + weak("other", 1), adder("hook", 100) + adder("other", 200)]
    assert len(cache.add_modules([ModuleSource(given[number]) for number in order])) == 2
    assert [cache.get_target(name)(1) for name in ("hook", "other")] == [101, 201]
    assert not cache.check(recompile=True).findings


def weak(name: str, number: int) -> str:
    return adder(name, number).replace("define ", "define weak ")


UNUSUAL = r"""
%"pair (@" = type { i64, i64 }
%0 = type { i64, i64 }
$inline = comdat any
@text = constant [25 x i8] c"x blockaddress(@made, %y)"
@table = constant [1 x ptr] [ptr blockaddress(@made, %here)]
@body = internal global %"pair (@" { i64 7, i64 8 }
@pair = weak alias %"pair (@", ptr @body
@place = weak global ptr addrspace(1) inttoptr (i64 4 to ptr addrspace(1))
@place_alias = alias ptr addrspace(1), ptr @place
@own = internal thread_local global i64 6
@level = weak thread_local alias i64, ptr @own
@made_alias = alias %"pair (@" (%0), ptr @made
define weak %"pair (@" @made(%0 %x) {
  br label %here
here:
  ret %"pair (@" { i64 1, i64 2 }
}
define weak i64 @inline() section ".text.a comdat" comdat {
  ret i64 3
}
define i64 @ask(i64 %x) {
  %a = call %"pair (@" @made(%0 zeroinitializer)
  %b = extractvalue %"pair (@" %a, 1
  ret i64 %b
}
define i64 @ask_alias(i64 %x) {
  %a = call %"pair (@" @made_alias(%0 zeroinitializer)
  %b = extractvalue %"pair (@" %a, 1
  ret i64 %b
}
define i64 @ask_pair(i64 %x) {
  %r = load i64, ptr @pair
  ret i64 %r
}
define i64 @ask_place(i64 %x) {
  %a = load i64, ptr @place
  %b = load i64, ptr @place_alias
  %m = mul i64 %a, 10
  %r = add i64 %m, %b
  ret i64 %r
}
define i64 @ask_level(i64 %x) {
  %p = call ptr @llvm.threadlocal.address.p0(ptr @level)
  %r = load i64, ptr %p
  ret i64 %r
}
define i64 @ask_inline(i64 %x) {
  %r = call i64 @inline()
  ret i64 %r
}
declare ptr @llvm.threadlocal.address.p0(ptr)
"""
OVERRIDING = """
%pair = type { i64, i64 }
@pair = global %pair { i64 70, i64 80 }
@place = global ptr addrspace(1) inttoptr (i64 40 to ptr addrspace(1))
@level = thread_local global i64 60
define %pair @made(%pair %x) {
  ret %pair { i64 10, i64 20 }
}
define i64 @inline() {
  ret i64 30
}
"""


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("group", [None, "group"])
def test_weak_definitions_are_overridden_whatever_their_names_and_types(cache: Cache, group: str | None, order: int) -> None:
    """Types that are named with brackets, or by numbers; strings that look like labels; inline functions with the attribute `weak`."""
    cache.add_modules(map(ModuleSource, [UNUSUAL, OVERRIDING][::order]), group)
    held = [cache.get_target(name) for name in ("ask", "ask_alias", "ask_pair", "ask_place", "ask_level", "ask_inline")]
    assert [target(1) for target in held] == [20, 2, 70, 404, 60, 30]


@pytest.mark.parametrize("linkage", ["weak ", ""])
@pytest.mark.parametrize("fault", [caller("broken", "absent"), caller("broken", "number"), CONSTRUCTOR])
def test_a_source_that_cannot_be_added_overrides_nothing(cache: Cache, fault: str, linkage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever that is noticed: its symbol is missing, its import has another type, or it cannot be linked."""
    link = linker.link_module

    def link_module(translation: Any) -> Any:
        """Link a module, unless it is the faulty one."""
        if "needs_a_linker" in translation.functions:
            raise compcache.LinkError("the linker failed")
        return link(translation)

    monkeypatch.setattr("compcache.miss.many.link_module", link_module)
    faulty = adder("hook", 100).replace("define ", f"define {linkage}") + adder("also", 1) + fault
    number = "@number = global i64 4\n"
    users = [weak("hook", place) + caller(f"user{place}", "hook").partition("\n")[2] for place in (1, 2)]
    given = [faulty, *users, caller("user3", "hook") + number, caller("user4", "also")]
    with pytest.raises(compcache.ModulesNotAddedError) as caught:
        cache.add_modules(map(ModuleSource, given))
    assert sorted(caught.value.failures) == [0, 4]
    assert [cache.get_target(name)(1) for name in ("hook", "user1", "user2", "user3")] == [2, 2, 2, 2]


def test_counters_whose_distances_are_stored_are_those_of_each_module(cache: Cache) -> None:
    """`-fprofile-instr-generate` stores the distance from a function's record to its counter, both of which linkers merge by name."""
    text = """
$count = comdat any
@count = weak hidden global [1 x i64] zeroinitializer, comdat, align 8
@record = internal constant {{ i64 }} {{ i64 sub (i64 ptrtoint (ptr @count to i64), i64 ptrtoint (ptr @record to i64)) }}, comdat($count)
@llvm.compiler.used = appending global [1 x ptr] [ptr @record], section "llvm.metadata"
define i64 @{}(i64 %x) {{
  %p = load volatile i64, ptr @record
  %q = add i64 %p, ptrtoint (ptr @record to i64)
  %r = inttoptr i64 %q to ptr
  %v = atomicrmw add ptr %r, i64 1 seq_cst
  %w = load volatile i64, ptr @count
  ret i64 %w
}}
"""
    cache.add_modules([ModuleSource(text.format(name)) for name in ("first", "second")])
    held = [cache.get_target(name) for name in ("first", "first", "second")]
    assert [target(0) for target in held] == [1, 2, 1]
