"""`add_modules(group=)`: sources that are one module, as files are that a linker makes one shared object of.

What `tests/clang/test_groups_of_files.py` does with compilers is done here with little modules.
"""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, caller, run_fresh

import compcache
from compcache import (
    Cache,
    CacheWarning,
    CompileError,
    Function,
    LinkError,
    ModuleSource,
    SignatureMismatchError,
    UndefinedSymbolError,
)  # fmt: skip
from compcache.build import codegen
from compcache.frontend import list_groups
from compcache.images.linkers.find import find_linker
from compcache.miss import retarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HAS_LINKER = find_linker() is not None


def named(file: str, *codes: str) -> ModuleSource:
    return ModuleSource(f'source_filename = "{file}"\n' + "\n".join(codes))


def hidden(code: str) -> str:
    """The code with its functions hidden."""
    return code.replace("define i64", "define hidden i64").replace("declare i64", "declare hidden i64")


def library(number: int) -> list[ModuleSource]:
    """Two files of a library: a hidden helper, a function that all libraries have, and one that only this one has."""
    return [
        named("a.c", hidden(adder("helper", number)), adder("init", number * 10)),
        named("b.c", f"declare hidden i64 @helper(i64)\ndeclare i64 @init(i64)\ndefine i64 @run{number}(i64 %x) {{",
              "  %y = call i64 @helper(i64 %x)\n  %z = call i64 @init(i64 %y)\n  ret i64 %z\n}"),
    ]  # fmt: skip


@pytest.fixture
def optimized(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Counts how often LLVM's optimizer was run since the last time."""
    runs: list[int] = []
    real = codegen.optimize

    def optimize(*arguments: Any) -> None:
        runs.append(1)
        real(*arguments)

    monkeypatch.setattr(codegen, "optimize", optimize)

    def count() -> int:
        number = len(runs)
        runs.clear()
        return number

    return count


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    """Groups of one name replace one another; nothing is shadowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", compcache.ShadowWarning)
        yield


def test_a_group_of_hidden_functions_is_refused_unless_one_is_named(cache: Cache) -> None:
    """As with `-fvisibility=hidden`: no other code could use such a group, and nothing in it could be called."""
    texts = ["declare i64 @b(i64)\n" + _function("a", "b"), _function("b", "")]
    with pytest.raises(UndefinedSymbolError, match=r"exports nothing.*'a' \(hidden\), 'b' \(hidden\)\): name the functions"):
        cache.add_modules([ModuleSource(text) for text in texts], group="library")
    cache.add_modules([ModuleSource(texts[0], {"a": None}), ModuleSource(texts[1])], group="library")
    assert cache.get_target("a")(5) == 5


def _function(name: str, callee: str) -> str:
    """Return a hidden function that returns its argument, or what another function returns for it."""
    call, result = (f"  %r = call i64 @{callee}(i64 %x)\n", "%r") if callee else ("", "%x")
    return f"define hidden i64 @{name}(i64 %x) {{\n{call}  ret i64 {result}\n}}\n"


def test_a_group_is_one_module_whose_hidden_names_stay_inside(cache: Cache, directory: Path) -> None:
    """Two libraries with a hidden `helper` and a plain `init` do not run one another's code."""
    first, second = cache.add_modules(library(1), group="one"), cache.add_modules(library(2), group="two")
    assert first == [first[0]] * 2
    assert second == [second[0]] * 2
    assert not cache.has("helper")
    names = {function.func_name for module in cache.modules() for function in module.functions}
    assert names == {"init", "run1", "run2"}
    script = "from compcache import Cache\nwith Cache(directory) as c:\n    result = [c.get_target(n)(0) for n in ('run1', 'run2')]"
    assert run_fresh(directory, script) == [11, 22]
    assert not cache.check(recompile=True).findings


def test_two_definitions_are_an_error_in_a_linkers_words(cache: Cache) -> None:
    twice = [named("a.c", adder("f", 1), adder("g", 1)), named("b.c", adder("f", 2)), named("c.c", hidden(adder("g", 2)))]
    with pytest.raises(LinkError) as caught:
        cache.add_modules(twice, group="lib")
    lines = str(caught.value).splitlines()
    assert [line.strip() for line in lines] == [
        "the symbol 'f' has several definitions: in source 0 (a.c) and source 1 (b.c); rename one",
        "the symbol 'g' has several definitions: in source 0 (a.c) and source 2 (c.c); rename one",
    ]
    assert not cache.modules()
    alias = adder("own", 3) + "@f = alias i64 (i64), ptr @own"
    with pytest.raises(LinkError, match="'f' has several definitions: in source 0 and source 1"):
        cache.add_modules([ModuleSource(adder("f", 1)), ModuleSource(alias)], group="lib")


@pytest.mark.parametrize("linkages", [("linkonce", "weak"), ("weak", "linkonce"), ("linkonce", "linkonce")])
@pytest.mark.parametrize("optimize", [0, 2])
def test_the_first_weak_definition_is_that_of_the_group(cache: Cache, linkages: tuple[str, str], optimize: int) -> None:
    sources = [
        ModuleSource(
            f"define {linkage} i64 @either() noinline {{\n  ret i64 {number}\n}}\n"
            f"define i64 @ask_{number}() {{\n  %r = call i64 @either()\n  ret i64 %r\n}}\n",
            optimize=optimize,
        )
        for number, linkage in enumerate(linkages, 1)
    ]
    cache.add_modules(sources, "g")
    assert [cache.get_target(name)() for name in ("ask_1", "ask_2", "either")] == [1, 1, 1]


@pytest.mark.parametrize("optimize", [0, 2])
def test_linkonce_functions_of_a_group_that_nothing_uses_are_dropped(cache: Cache, optimize: int) -> None:
    unused = (
        "declare i64 @missing()\ndefine linkonce i64 @inner() {\n  %r = call i64 @missing()\n  ret i64 %r\n}\n"
        "define linkonce i64 @outer() {\n  %r = call i64 @inner()\n  ret i64 %r\n}\n"
    )
    sources = [ModuleSource(adder(name, 1) + "\n" + unused, optimize=optimize) for name in ("f", "g")]
    cache.add_modules(sources, "g")
    assert [function.func_name for function in cache.functions()] == ["f", "g"]


@pytest.mark.parametrize("name", ["plain", "a$b", "a = b"])
def test_weak_aliases_of_several_members_are_one(cache: Cache, name: str) -> None:
    codes = [f'@"{name}" = weak alias i64 (i64), ptr @own{number}\n{adder(f"own{number}", number)}' for number in (1, 2)]
    cache.add_modules(map(ModuleSource, codes), group="group")
    assert cache.get_target(name)(0) == 1


def test_sources_that_contradict_each_other_are_an_error(cache: Cache) -> None:
    flags = '!llvm.module.flags = !{{!0}}\n!0 = !{{i32 1, !"wchar_size", i32 {}}}\n'
    with pytest.raises(LinkError, match=r"source 1 \(b.c\) cannot be linked with the sources before it: .*wchar_size"):
        cache.add_modules([named("a.c", adder("f", 1), flags.format(4)), named("b.c", adder("g", 1), flags.format(2))], group="lib")
    if os.uname().machine == "x86_64":
        with pytest.raises(CompileError, match=r"source 0 is for .*, but source 1 for x86-64.*: give all sources of a group the same cpu="):
            cache.add_modules([ModuleSource(adder("f", 1), cpu="x86-64"), ModuleSource(adder("g", 1), cpu="x86-64-v3")], group="lib")
    with pytest.raises(CompileError, match="import 'g' as 'one' and as 'two'"):
        cache.add_modules([ModuleSource(caller(n, "g"), imports={"g": n}) for n in ("one", "two")], group="lib")
    assert not cache.modules()


INLINE = """
$inl = comdat any
$counter = comdat any
@counter = linkonce_odr global i64 0, comdat
@table = common global i64 0
define linkonce_odr i64 @inl(i64 %x) noinline comdat {
  ret i64 %x
}
define i64 @count_of_NAME(i64 %x) {
  %a = load i64, ptr @counter
  %b = add i64 %a, 1
  store i64 %b, ptr @counter
  %c = load i64, ptr @table
  %d = add i64 %c, 100
  store i64 %d, ptr @table
  %e = add i64 %b, %d
  ret i64 %e
}
define ptr @inl_of_NAME() {
  ret ptr @inl
}
"""


def test_inline_functions_and_variables_are_one_in_a_group_and_others_in_another(cache: Cache) -> None:
    for group in "pq":
        cache.add_modules([ModuleSource(INLINE.replace("NAME", group + file)) for file in "ab"], group=group)
    targets = {name: cache.get_target(f"inl_of_{name}") for name in ("pa", "pb", "qa", "qb")}
    addresses = {name: target() for name, target in targets.items()}
    assert addresses["pa"] == addresses["pb"]
    assert addresses["qa"] == addresses["qb"]
    assert addresses["pa"] != addresses["qa"]
    counters = {name: cache.get_target(f"count_of_{name}") for name in targets}
    assert [counters[name](0) for name in ("pa", "pb", "qa", "pb")] == [101, 202, 101, 303]


@pytest.mark.skipif(not HAS_LINKER, reason="thread-local variables and sections need a linker")
def test_thread_locals_sections_and_weak_references_are_those_of_all(cache: Cache) -> None:
    """Inline `thread_local` variables, and linker sets, included."""
    common = "$tls = comdat any\n@tls = linkonce_odr thread_local global i64 5, comdat\n"
    common += '@item = internal constant i64 NUMBER, section "myset", align 8\n@llvm.used = appending global [1 x ptr] [ptr @item], '
    common += 'section "llvm.metadata"\ndefine i64 @bump_NUMBER() {\n  %a = load i64, ptr @tls\n  %b = add i64 %a, 1\n'
    common += "  store i64 %b, ptr @tls\n  ret i64 %b\n}\n"
    bounds = "@__start_myset = external constant i64\n@__stop_myset = external constant i64\ndefine i64 @bytes() {\n"
    bounds += "  %n = sub i64 ptrtoint (ptr @__stop_myset to i64), ptrtoint (ptr @__start_myset to i64)\n  ret i64 %n\n}\n"
    weak = "declare extern_weak i64 @bump_1()\ndeclare extern_weak i64 @nowhere()\ndefine i1 @there() {\n"
    weak += "  %r = icmp ne ptr @bump_1, null\n  ret i1 %r\n}\ndefine i1 @not_there() {\n  %r = icmp ne ptr @nowhere, null\n"
    weak += "  ret i1 %r\n}\n"
    codes = [common.replace("NUMBER", "1") + bounds, common.replace("NUMBER", "2") + weak]
    with pytest.warns(CacheWarning, match=r"weak references to 'nowhere' are null"):
        cache.add_modules([ModuleSource(code) for code in codes], group="lib")
    targets = [cache.get_target(name) for name in ("bump_1", "bump_2", "bytes", "there", "not_there")]
    assert [target() for target in targets] == [6, 7, 16, True, False]


@pytest.mark.parametrize("defined", ["thread_local global", "global"])
def test_a_variable_is_thread_local_in_all_members_or_in_none(cache: Cache, defined: str) -> None:
    used = "external global" if defined.startswith("thread_local") else "external thread_local global"
    user = f"@v = {used} i64\ndefine i64 @get() {{\n  %x = load i64, ptr @v\n  ret i64 %x\n}}\n"
    with pytest.raises(SignatureMismatchError, match=r"'v' is variable .* thread-local, and its user expects a variable that is"):
        cache.add_modules([named("a.c", user), named("b.c", f"@v = {defined} i64 5\n")], group="g")


@pytest.mark.skipif(not HAS_LINKER, reason="thread-local variables need a linker")
def test_other_modules_reach_thread_locals_that_are_not_hidden_by_a_function(cache: Cache) -> None:
    defined = "@seen = thread_local global i64 3\n@unseen = hidden thread_local global i64 4\n"
    user = "@seen = external thread_local global i64\n@unseen = external hidden thread_local global i64\ndefine i64 @both() {\n"
    user += "  %a = load i64, ptr @seen\n  %b = load i64, ptr @unseen\n  %c = add i64 %a, %b\n  ret i64 %c\n}\n"
    cache.add_modules([ModuleSource(defined + adder("f", 1)), ModuleSource(user)], group="lib")
    outside = "@seen = external thread_local global i64\ndefine i64 @outside() {\n  %a = load i64, ptr @seen\n  ret i64 %a\n}\n"
    cache.add_modules([ModuleSource(outside)], group="other")
    assert [cache.get_target(name)() for name in ("both", "outside")] == [7, 3]
    assert not any("unseen" in function.func_name for module in cache.modules() for function in module.functions)


@pytest.mark.skipif(not HAS_LINKER, reason="constructors need a linker")
def test_constructors_of_all_run_in_the_linkers_order(cache: Cache) -> None:
    """Those with a priority first, then in the order of the sources; whichever function is loaded."""
    text = "@log = external global i64\n@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } "
    text += "{ i32 PRIORITY, ptr @start, ptr null }]\ndefine internal void @start() {\n  %a = load i64, ptr @log\n"
    text += "  %b = mul i64 %a, 10\n  %c = add i64 %b, NUMBER\n  store i64 %c, ptr @log\n  ret void\n}\n"
    given = [text.replace("PRIORITY", p).replace("NUMBER", n) for p, n in (("65535", "1"), ("65535", "2"), ("101", "3"))]
    log = "@log = global i64 0\ndefine i64 @log_of() {\n  %a = load i64, ptr @log\n  ret i64 %a\n}\n"
    cache.add_modules([ModuleSource(code) for code in (*given, log)], group="lib")
    assert cache.get_target("log_of")() == 312


def test_the_platforms_functions_are_those_of_the_group_even_where_llvm_calls_them(cache: Cache) -> None:
    """A `memcpy` of its own is called for copies that only the compiler sees, as in a shared object."""
    own = "@copied = global i64 0\ndefine ptr @memcpy(ptr %to, ptr %from, i64 %n) {\n  store i64 %n, ptr @copied\n  ret ptr %to\n}\n"
    own += "define i64 @copied_of() {\n  %a = load i64, ptr @copied\n  ret i64 %a\n}\n" + adder("gamma", 5)
    user = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\ndefine void @copy(ptr %a, ptr %b, i64 %n) {\n"
    user += "  call void @llvm.memcpy.p0.p0.i64(ptr %a, ptr %b, i64 %n, i1 false)\n  ret void\n}\n" + caller("use_gamma", "gamma")
    cache.add_modules([ModuleSource(user, {"copy": "void(ptr, ptr, i64)", "use_gamma": None}), ModuleSource(own)], group="lib")
    copy, copied, use_gamma = [cache.get_target(name) for name in ("copy", "copied_of", "use_gamma")]
    copy(bytearray(8), bytearray(8), 8)
    assert [copied(), use_gamma(1)] == [8, 6]


def test_members_export_what_they_name_and_others_all_that_is_visible(cache: Cache) -> None:
    first = ModuleSource(adder("f", 1) + adder("internal_of_f", 2), {"renamed": Function("i64(x: i64)", "f")})
    second = ModuleSource(caller("g", "internal_of_f") + hidden(adder("h", 3)))
    cache.add_modules([first, second], group="lib")
    assert list(cache) == ["g", "renamed"]
    assert [cache.get_target(name)(1) for name in ("renamed", "g")] == [2, 3]


def test_globals_and_imports_are_those_of_all_members(cache: Cache) -> None:
    get = "@limit = external global i64\ndefine i64 @limit_of_NAME(i64 %x) {\n  %a = load i64, ptr @limit\n  ret i64 %a\n}\n"
    cache.add_module(ModuleSource(adder("outside", 50)))
    given = [ModuleSource(get.replace("NAME", name) + caller(f"use_{name}", "outside"), globals={"limit": 7}) for name in "ab"]
    cache.add_modules([*given, ModuleSource(caller("later", "not_yet"), imports=["not_yet"])], group="lib")
    assert [cache.get_target(name)(1) for name in ("limit_of_a", "limit_of_b", "use_a", "use_b")] == [7, 7, 51, 51]
    cache.add_module(ModuleSource(adder("not_yet", 9)))
    assert cache.get_target("later")(1) == 10


def test_copies_for_the_optimizer_serve_where_nothing_provides_them(cache: Cache) -> None:
    """As for modules of their own; where a member defines the function that one is called."""
    inline = adder("square", 1000).replace("define i64", "define available_externally i64").replace(") {", ") noinline {")
    inline += caller("NAME", "square").split("\n", 1)[1]
    cache.add_modules([ModuleSource(inline.replace("NAME", name)) for name in "ab"], group="lib")
    assert [cache.get_target(name)(1) for name in "ab"] == [1001, 1001]
    cache.add_modules([ModuleSource(inline.replace("NAME", "c")), ModuleSource(adder("square", 2))], group="with")
    assert cache.get_target("c")(1) == 3


# ----------------------------------------------------------------------------------------------------- what changes


def test_an_edited_file_is_compiled_and_the_others_are_not(cache: Cache, directory: Path, optimized: Callable[[], int]) -> None:
    def given(number: int) -> list[ModuleSource]:
        return [named(f"{n}.c", adder(f"f{n}", number if n == 2 else n)) for n in range(5)]

    first = cache.add_modules(given(10), group="lib")
    assert optimized() == 5
    assert cache.add_modules(given(10), group="lib") == first
    assert optimized() == 0
    with Cache(directory) as other:
        second = other.add_modules(given(20), group="lib")
    assert optimized() == 1
    assert second != first
    cache.replace(given(30), group="lib")
    assert optimized() == 1
    assert [cache.get_target(f"f{n}")(0) for n in range(5)] == [0, 1, 30, 3, 4]
    assert len(cache.modules()) == 1
    cache.replace(given(10), group="lib")  # the code of 0, 1, 3 and 4 came along
    assert optimized() == 1


@pytest.mark.slow
def test_a_replaced_group_answers_as_a_whole(cache: Cache, directory: Path) -> None:
    """`compcache add a.c b.c`, edit, again, three times: each time the new file's function."""
    user = named("b.c", caller("use", "value"))
    for number in (1, 100, 200, 300):
        cache.replace([named("a.c", adder("value", number)), user], group="lib")
        script = "from compcache import Cache\nwith Cache(directory) as c:\n    result = c.get_target('use')(1), c.get_target('value')(1)"
        assert run_fresh(directory, script) == (number + 1, number + 1)
    assert len(cache.modules()) == 1
    assert not cache.check().findings


def test_an_edited_group_takes_nothing_from_an_older_one(cache: Cache) -> None:
    cache.add_modules([ModuleSource(adder("gone", 1)), ModuleSource(caller("use", "gone"))], group="lib")
    with pytest.raises(compcache.ModulesNotAddedError, match="'gone'"):
        cache.add_modules([ModuleSource(adder("other", 1)), ModuleSource(caller("use", "gone"))], group="lib")
    cache.add_modules([ModuleSource(caller("elsewhere", "gone"))], group="another")
    assert cache.get_target("elsewhere")(1) == 2


def test_a_part_does_not_take_the_place_of_a_group(cache: Cache) -> None:
    cache.add_modules([ModuleSource(adder("f", 1)), ModuleSource(adder("g", 1))], group="lib")
    with pytest.raises(compcache.ModulesNotAddedError) as caught:
        cache.replace([ModuleSource(adder("f", 2)), ModuleSource("not LLVM")], group="lib")
    assert caught.value.module_ids == (None, None)
    assert [cache.get_target(name)(1) for name in "fg"] == [2, 2]


def test_what_is_not_right_is_left_out_with_what_needs_it(cache: Cache) -> None:
    """The first cause stands first, and says which file uses what."""
    given: list[Any] = [caller("a", "broken"), caller("b", "a"), "define broken", adder("fine", 1), caller("uses_fine", "fine")]
    not_a_source: Any = "not a source"
    with pytest.raises(compcache.ModulesNotAddedError) as caught:
        cache.add_modules([*map(ModuleSource, given), not_a_source], group="lib")
    error = caught.value
    assert list(error.failures) == [5, 2, 0, 1]
    assert isinstance(error.__cause__, CompileError)
    for number, name in enumerate(("broken", "a")):
        expected = f"the source uses {name!r}, which no source that could be added defines: add such a source, or use imports="
        assert str(error.failures[number]) == expected
    assert [module_id is None for module_id in error.module_ids] == [True, True, True, False, False, True]
    assert len(cache.modules()) == 1
    assert cache.get_target("uses_fine")(1) == 2
    with pytest.raises(compcache.ModulesNotAddedError) as caught:
        cache.add_modules([ModuleSource(caller("x", "nowhere")), ModuleSource(adder("y", 1))], group="second")
    assert list(caught.value.failures) == [0]
    assert isinstance(caught.value.failures[0], UndefinedSymbolError)
    assert "name the symbol in imports=" in str(caught.value.failures[0])


def test_members_have_no_entries_of_their_own(cache: Cache) -> None:
    with pytest.raises(compcache.ModulesNotAddedError, match="cannot have entries= or part_of="):
        cache.add_modules([ModuleSource(adder("f", 1), part_of="other")], group="lib")


def test_a_group_of_nothing_is_nothing(cache: Cache) -> None:
    assert cache.add_modules([], group="lib") == []
    assert not cache.modules()


# ------------------------------------------------------------------------------------------------ hosts and targets


def test_hosts_without_a_linker_have_the_same_groups(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_LINKER", "none")
    cache.add_module(ModuleSource(adder("outside", 50)))
    cache.add_modules([*library(3), ModuleSource(caller("use", "outside"))], group="lib")
    assert [cache.get_target("run3")(0), cache.get_target("use")(1)] == [33, 51]
    assert [module.image_kind for module in cache.modules()] == ["shared", "shared"]


def test_a_group_has_a_module_for_each_target(cache: Cache, optimized: Callable[[], int]) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("names CPUs of x86-64")
    given = [ModuleSource(source.ir, targets=("x86-64", "native")) for source in library(4)]
    module_ids = cache.add_modules(given, group="lib")
    assert optimized() == 4
    assert len(cache.modules()) == 2
    assert cache.get_target("run4")(0) == 44
    assert cache.add_modules(given, group="lib") == module_ids
    assert optimized() == 0
    cache.replace([*given[:1], ModuleSource(adder("run4", 0), targets=("x86-64", "native"))], group="lib")
    assert optimized() == 2
    assert len(cache.modules()) == 2


LARGE = """
@large_NAME = LINKAGE global [1200000 x i8] c"SEED{}"
define i64 @get_NAME(i64 %at) {{
  %p = getelementptr i8, ptr @large_NAME, i64 %at
  %a = load i8, ptr %p
  %b = zext i8 %a to i64
  ret i64 %b
}}
""".format("\\00" * 1199999)


@pytest.mark.slow
def test_large_variables_of_several_members_keep_their_values(cache: Cache) -> None:
    """They are taken out of the code, into sections of their own."""
    given = [LARGE.replace("NAME", name).replace("SEED", name).replace("LINKAGE", "internal") for name in "ab"]
    cache.add_modules([ModuleSource(code) for code in given], group="lib")
    assert [cache.get_target(f"get_{name}")(0) for name in "ab"] == [ord("a"), ord("b")]


def test_what_a_member_was_compiled_for_tells_it_from_others(cache: Cache, optimized: Callable[[], int]) -> None:
    options: list[dict[str, Any]] = [{"optimize": 1}, {"optimize": 2}]
    options += [{"optimize": 2, "cpu": "x86-64"}, {"optimize": 2, "cpu": "x86-64-v2"}] if os.uname().machine == "x86_64" else []
    for each in options:
        cache.replace([ModuleSource(adder("f", 1), **each), ModuleSource(adder("g", 1), **each)], group="lib")
        assert optimized() == 2
    cache.replace([ModuleSource(adder("f", 1), **options[0]), ModuleSource(adder("g", 1), **options[0])], group="lib")
    assert optimized() == 2  # nothing is kept of what was replaced


def test_a_group_serves_other_processors(cache: Cache) -> None:
    """Its code is compiled for this host from what is kept, as one module; its name and its members stay."""
    given = library(5)
    cache.add_modules(given, group="lib")
    assert retarget._retarget_function(cache._session(), "run5")
    assert cache.get_target("run5")(0) == 55
    assert [(group.name, len(group.members)) for group in list_groups(cache)] == [("lib", 2)]
    assert not cache.check(recompile=True).findings


def test_groups_tell_what_is_in_them(cache: Cache) -> None:
    cache.add_modules([*library(6), ModuleSource(adder("renamed", 1), {"shown": Function("i64(x: i64)", "renamed")})], group="lib")
    (group,) = list_groups(cache)
    assert [(member.label, member.functions) for member in group.members] == [
        ("a.c", ("init",)), ("b.c", ("run6",)), ("<string>", ("shown",)),
    ]  # fmt: skip
    assert group.functions == ("init", "run6", "shown")
    assert [row.func_name for row in cache.functions(folded=True)] == ["lib"]
    (row,) = cache.functions(lambda name: name == "run6", folded=True)
    assert (row.func_name, row.signature, row.parts, row.size) == ("lib", "group", 3, group.size)
    cache.add_module(ModuleSource(adder("init", 1)))
    assert [row.func_name for row in cache.functions(folded=True)] == ["init", "lib"]
    assert cache.remove("lib") == group.modules
    assert list_groups(cache) == ()


def test_an_unchanged_group_is_published_again_where_others_have_its_names(cache: Cache, optimized: Callable[[], int]) -> None:
    """What was added last answers, also where it had been there before."""
    cache.add_modules(library(7), group="lib")
    cache.add_modules(library(7), group="lib")
    assert cache.stats().added_modules == 1
    cache.add_modules([ModuleSource(adder("init", 1)), ModuleSource(adder("more", 1))], group="other")
    assert optimized() == 4
    cache.add_modules(library(7), group="lib")
    assert optimized() == 0
    assert cache.stats().added_modules == 3


def test_groups_are_found_in_layers_and_by_an_index_that_was_made_again(
    directory: Path, tmp_path: Path, optimized: Callable[[], int]
) -> None:
    with Cache(directory) as cache:
        first = cache.add_modules(library(8), group="lib")
        shutil.rmtree(directory / "index-v1")
    with Cache(directory) as cache:
        assert cache.add_modules(library(8), group="lib") == first
        assert cache.check(repair=True)
    assert optimized() == 2
    edited = [*library(8)[:1], named("b.c", caller("run8", "init", plus=1000))]
    with Cache(tmp_path / "above", layers=[directory]) as above:
        above.replace(edited, group="lib")
        assert optimized() == 1
        assert len(Cache(directory).modules()) == 1
        assert above.get_target("run8")(0) == 1080


@pytest.mark.slow
def test_untrusted_members_are_tried_and_code_is_not_kept_unless_all_are(cache: Cache, optimized: Callable[[], int]) -> None:
    given = [ModuleSource(source.ir, untrusted=True, keep_bitcode=number > 0) for number, source in enumerate(library(9))]
    cache.add_modules(given, group="lib")
    assert cache.get_target("run9")(0) == 99
    with pytest.raises(LookupError, match="without its code"):
        cache.ir("run9")
    assert optimized() == 2
    cache.replace([*given, ModuleSource(adder("more", 1))], group="lib")
    assert optimized() == 3
    bad = 'define void @bad() {\n  call void asm sideeffect alignstack "this is no instruction", ""()\n  ret void\n}\n'
    with pytest.raises(compcache.ModulesNotAddedError) as caught:
        cache.add_modules([*given, ModuleSource(bad)], group="lib")
    assert list(caught.value.failures) == [2]


def test_members_use_one_another_as_they_are(cache: Cache) -> None:
    """By link type, as modules do; what C does on purpose is accepted."""
    number = "define double @number(double %x) {\n  ret double %x\n}\n"
    with pytest.raises(compcache.SignatureMismatchError) as caught:
        cache.add_modules([named("a.c", number), named("b.c", caller("use", "number"))], group="lib")
    text = str(caught.value)
    assert "'number' is " in text
    assert "in source 0 (a.c), but source 1 (b.c) uses it as " in text
    assert "in 'use'" in text
    assert not cache.modules()
    ignoring = "declare void @value(i64, i64)\ndefine void @ignore() {\n  call void @value(i64 1, i64 2)\n  ret void\n}\n"
    cache.add_modules([ModuleSource(adder("value", 1)), ModuleSource(ignoring)], group="lib")
    assert cache.get_target("ignore")() is None
    aligned = "@wide = external global i64, align 16\ndefine i64 @read() {\n  %v = load i64, ptr @wide, align 16\n  ret i64 %v\n}\n"
    with pytest.warns(CacheWarning, match=r"'wide' is .*aligned to 8") as warned:
        cache.add_modules([ModuleSource("@wide = global i64 1, align 8\n"), ModuleSource(aligned)], group="wide")
    assert [warning.filename for warning in warned] == [__file__]


def test_a_group_has_the_same_id_in_every_process(tmp_path: Path) -> None:
    script = """
    from compcache import Cache, ModuleSource
    names = [f"g{number}" for number in range(8)]
    values = "".join(f"@{name} = external global i64\\n" for name in names)
    code = "".join(f"  %r{number} = load volatile i64, ptr @{name}\\n" for number, name in enumerate(names))
    source = ModuleSource(f"{values}define i64 @f() {{\\n{code}  ret i64 %r7\\n}}\\n", imports=names)
    with Cache(directory) as cache:
        result = cache.add_modules([source], group="lib")
    """
    ids = [run_fresh(tmp_path / str(number), script) for number in range(3)]
    assert ids[0] == ids[1] == ids[2]


@pytest.mark.parametrize("order", [1, -1])
def test_what_one_member_promises_of_a_function_is_not_valid_for_calls_of_others(cache: Cache, order: int) -> None:
    """The square root of a negative number sets `errno`, unless `-fno-math-errno` permits an instruction instead of the call."""
    quick = "declare double @sqrt(double) memory(none) nounwind willreturn\ndefine double @quick(double %x) {\n"
    quick += "  %r = call double @sqrt(double %x)\n  ret double %r\n}\n"
    careful = """\
@result = global double 0.0
declare ptr @__errno_location()
declare double @sqrt(double)
define i32 @careful(double %x) {
  %p = call ptr @__errno_location()
  store i32 0, ptr %p
  %r = call double @sqrt(double %x)
  store double %r, ptr @result
  %e = load i32, ptr %p
  ret i32 %e
}
"""
    cache.add_modules([ModuleSource(source) for source in (quick, careful)[::order]], group="roots")
    assert cache.get_target("careful")(-4.0) == errno.EDOM


def test_a_function_that_becomes_an_import_is_no_longer_the_platforms(cache: Cache) -> None:
    """LLVM replaces `pow(x, 2)` by a multiplication if `pow` is the platform's."""
    square = "declare double @pow(double, double)\ndefine double @square(double %x) {\n"
    square += "  %r = call double @pow(double %x, double 2.0)\n  ret double %r\n}\n"
    cache.add_module(ModuleSource("define double @constant(double %x, double %y) { ret double 7.0 }\n"))
    cache.add_modules([ModuleSource(square)], group="squares")
    assert cache.get_target("square")(3.0) == 9.0
    cache.add_modules([ModuleSource(square, imports={"pow": "constant"})], group="squares")
    assert cache.get_target("square")(3.0) == 7.0
