"""Variables that one module defines and others use: one storage for each cache, bound when code is loaded."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import shutil
import sys
import types
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest
from helpers import caller, run_fresh, store_objects

from compcache import (
    Cache,
    CompcacheError,
    CompileError,
    Function,
    LinkError,
    ModuleSource,
    PrunePolicy,
    ShadowWarning,
    SignatureError,
    SignatureMismatchError,
    UndefinedSymbolError,
)
from compcache.files import Tree
from compcache.globals import PythonObject
from compcache.hit import Door

if TYPE_CHECKING:
    from collections.abc import Callable

PROVIDER = """
@counter = global i64 5
@table = constant [2 x ptr] [ptr @bump, ptr @triple]
declare i64 @triple(i64)
define i64 @bump(i64 %x) {
  %v = load i64, ptr @counter
  %n = add i64 %v, %x
  store i64 %n, ptr @counter
  ret i64 %n
}
define i64 @address_at_home() { ret i64 ptrtoint (ptr @bump to i64) }
"""
USER = """
@counter = external global i64
@table = external constant [2 x ptr]
@own = internal constant [3 x ptr] [ptr @bump, ptr getelementptr (i8, ptr @counter, i64 4), ptr @triple]
declare i64 @bump(i64)
define i64 @triple(i64 %x) {
  %r = mul i64 %x, 3
  ret i64 %r
}
define i64 @read() {
  %v = load i64, ptr @counter
  ret i64 %v
}
define i64 @through_table(i64 %i, i64 %x) {
  %p = getelementptr ptr, ptr @table, i64 %i
  %f = load ptr, ptr %p
  %r = call i64 %f(i64 %x)
  ret i64 %r
}
define i64 @own_at(i64 %i) {
  %p = getelementptr ptr, ptr @own, i64 %i
  %f = load volatile i64, ptr %p
  ret i64 %f
}
define i64 @address_of_bump() { ret i64 ptrtoint (ptr @bump to i64) }
define i64 @address_of_counter() { ret i64 ptrtoint (ptr @counter to i64) }
"""


def add_both(cache: Cache) -> tuple[str, str]:
    return cache.add_module(ModuleSource(PROVIDER, imports=["triple"])), cache.add_module(ModuleSource(USER))


@pytest.mark.parametrize("linker", ["ld", "ld.lld", "mold", "ziglang"])
def test_modules_share_a_variable(cache: Cache, linker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if linker != "ziglang" and shutil.which(linker) is None:
        pytest.skip(f"{linker} is not installed")
    monkeypatch.setenv("COMPCACHE_LINKER", linker)
    add_both(cache)
    read, bump, through = cache.get_target("read"), cache.get_target("bump"), cache.get_target("through_table")
    assert [read(), bump(3), read()] == [5, 8, 8]
    assert [through(0, 10), through(1, 10), read()] == [18, 30, 18]


def test_addresses_are_the_same_in_all_modules_and_tables(cache: Cache) -> None:
    add_both(cache)
    names = ("own_at", "address_of_bump", "address_of_counter", "address_at_home")
    own_at, of_bump, of_counter, at_home = (cache.get_target(name) for name in names)
    assert own_at(0) == of_bump() == at_home()
    assert own_at(1) == of_counter() + 4


def test_a_user_keeps_the_variable_and_its_value(cache: Cache) -> None:
    add_both(cache)
    read = cache.get_target("read")
    cache.get_target("bump")(37)
    gc.collect()
    assert read() == 42
    assert cache.get_target("bump")(0) == 42
    del read
    gc.collect()
    assert cache.get_target("read")() == 5  # nobody used it: the module was loaded anew


def test_each_cache_object_has_its_own(cache: Cache) -> None:
    add_both(cache)
    with Cache(cache.path) as other:
        read = other.get_target("read")
        cache.get_target("bump")(1)
        assert read() == 5


def test_a_fresh_process_finds_all_of_it(cache: Cache) -> None:
    add_both(cache)
    script = """
    from compcache import Cache
    cache = Cache(directory)
    read = cache.get_target("read")
    result = [read(), cache.get_target("bump")(2), read(), "llvmlite" in sys.modules]
    """
    assert run_fresh(cache.path, script) == [5, 7, 7, False]


def test_modules_that_use_each_others_variables(cache: Cache) -> None:
    text = """
    @{0} = global ptr @{1}
    @{1} = external global ptr
    define ptr @load_{0}() {{
      %p = load ptr, ptr @{0}
      %q = load ptr, ptr %p
      ret ptr %q
    }}
    define ptr @address_{0}() {{ ret ptr @{0} }}
    """
    cache.add_module(ModuleSource(text.format("a", "b"), imports=["b"]))
    cache.add_module(ModuleSource(text.format("b", "a")))
    assert cache.get_target("load_a")() == cache.get_target("address_a")()
    assert cache.get_target("load_b")() == cache.get_target("address_b")()


def test_what_globals_defines_stays_each_modules_own(cache: Cache) -> None:
    text = """
    @x = external global i64
    define i64 @read_{0}() {{
      %v = load i64, ptr @x
      ret i64 %v
    }}
    define void @write_{0}(i64 %v) {{
      store i64 %v, ptr @x
      ret void
    }}
    """
    for name in "ab":
        cache.add_module(ModuleSource(text.format(name), globals={"x": 7}))
    read = cache.get_target("read_b")
    cache.get_target("write_a")(1)
    assert read() == 7


def test_variables_are_no_functions(cache: Cache) -> None:
    add_both(cache)
    assert sorted(cache)[:2] == ["address_at_home", "address_of_bump"]
    assert "counter" not in cache
    assert "counter" not in list(cache)
    with pytest.raises(SignatureError, match=r"'counter' of module .* is a variable i64"):
        cache.get_target("counter")


def test_variables_are_in_the_graph(cache: Cache) -> None:
    provider, _ = add_both(cache)
    assert cache.dependencies("read") == ("counter",)
    assert set(cache.dependencies("through_table", transitive=True)) == {"table", "bump", "triple", "counter"}
    nodes = {node.name: node for node in cache.graph(["read"]).nodes}
    assert nodes["counter"].kind == "variable"
    assert (nodes["counter"].signature, nodes["counter"].module_id) == ("variable i64", provider)
    assert "read" in {node.name for node in cache.graph(["counter"], reverse=True).nodes}
    assert cache.check().findings == ()


def test_pruning_keeps_the_provider_of_what_is_kept(cache: Cache) -> None:
    add_both(cache)
    cache.add_module(ModuleSource("define i64 @unused() {\n  ret i64 0\n}\n"))
    cache.pin("read")
    cache.prune(PrunePolicy(max_modules=0))
    assert not cache.has("unused")
    with Cache(cache.path) as other:
        assert other.get_target("read")() == 5


def test_a_variable_that_nobody_defines_is_named(cache: Cache) -> None:
    text = "@nobody = external global i64\ndefine i64 @f() {\n  %x = load i64, ptr @nobody\n  ret i64 %x\n}\n"
    with pytest.raises(UndefinedSymbolError, match=r"'nobody'.*imports="):
        cache.add_module(ModuleSource(text))
    cache.add_module(ModuleSource(text, imports=["nobody"]))
    with pytest.raises(UndefinedSymbolError, match=r"'nobody'"):
        cache.get_target("f")
    cache.add_module(ModuleSource("@nobody = constant i64 9\n"))
    assert cache.get_target("f")() == 9


def test_only_named_symbols_are_exported_where_there_are_names(cache: Cache) -> None:
    text = "@shown = global i64 1\n@kept = global i64 2\ndefine i64 @f() {\n  ret i64 0\n}\n"
    cache.add_module(ModuleSource(text, {"f": None, "other name": Function(symbol="shown")}))
    user = "@v = external global i64\ndefine i64 @g() {\n  %x = load i64, ptr @v\n  ret i64 %x\n}\n"
    cache.add_module(ModuleSource(user, imports={"v": "other name"}))
    assert cache.get_target("g")() == 1
    with pytest.raises(UndefinedSymbolError, match=r"kept"):
        cache.add_module(ModuleSource(user.replace("@v", "@kept")))
    with pytest.raises(CompileError, match="a signature to the variable 'kept'"):
        cache.add_module(ModuleSource(text, {"kept": "i64()"}))


_OWNER = """
@v = thread_local global [2 x i64] [i64 5, i64 6]
@"its own" = hidden thread_local global i64 1
define i64 @bump() {
  %x = load i64, ptr @v
  %y = add i64 %x, 1
  store i64 %y, ptr @v
  ret i64 %y
}
"""
_THREAD_LOCAL_USER = """
@v = external thread_local global [2 x i64]
@"its own" = external hidden thread_local global i64
declare ptr @llvm.threadlocal.address.p0(ptr)
define i64 @read() {
entry:
  %x = load i64, ptr @v
  %y = load i64, ptr @"its own"
  %z = add i64 %x, %y
  ret i64 %z
}
define i64 @choose(i64 %n) {
  %c = icmp eq i64 %n, 0
  br i1 %c, label %a, label %b
a:
  br label %b
b:
  %p = phi ptr [ getelementptr inbounds (i8, ptr @v, i64 8), %a ], [ @v, %0 ]
  %x = load i64, ptr %p
  ret i64 %x
}
define i64 @distance() {
  %d = sub i64 ptrtoint (ptr getelementptr (i8, ptr @v, i64 8) to i64), ptrtoint (ptr @v to i64)
  ret i64 %d
}
define void @set_second(i64 %n) {
  %1 = call ptr @llvm.threadlocal.address.p0(ptr align 8 @v)
  %2 = getelementptr inbounds i8, ptr %1, i64 8
  store i64 %n, ptr %2
  ret void
}
"""


@pytest.mark.parametrize("order", ["provider first", "user first", "together"])
def test_thread_local_variables_are_one_for_each_thread_whatever_module_uses_them(cache: Cache, order: str) -> None:
    provider, user = ModuleSource(_OWNER), ModuleSource(_THREAD_LOCAL_USER)
    if order == "user first":
        cache.add_module(ModuleSource(_THREAD_LOCAL_USER, imports=["v", "its own"]))
        cache.add_module(provider)
    else:
        cache.add_modules([user, provider] if order == "together" else [provider, user])
    script = """
from compcache import Cache
import threading
cache = Cache(directory)
bump, read, choose, distance, set_second = [cache.get_target(name) for name in ("bump", "read", "choose", "distance", "set_second")]
result = []
def run():
    set_second(bump())
    result.append((read(), choose(0), choose(1), distance(), bump()))
run()
thread = threading.Thread(target=run)
thread.start()
thread.join()
run()
"""
    expected = [(7, 6, 6, 8, 7), (7, 6, 6, 8, 7), (9, 8, 8, 8, 9)]
    assert run_fresh(cache.path, script) == expected


@pytest.mark.parametrize("linkage", ["linkonce_odr", "weak_odr"])
@pytest.mark.parametrize("exports", [True, False], ids=["named", "visible"])
def test_inline_thread_local_variables_are_one_for_each_thread(cache: Cache, linkage: str, exports: bool) -> None:
    """Of all modules that define one, added together or not; each keeps its own if it is loaded alone."""
    text = f"$v = comdat any\n@v = {linkage} hidden thread_local global i64 5, comdat\n"
    text += "define i64 @NAME() {\n  %a = load i64, ptr @v\n  %b = add i64 %a, 1\n  store i64 %b, ptr @v\n  ret i64 %b\n}\n"
    sources = [ModuleSource(text.replace("NAME", name), {name: None} if exports else None) for name in "fgh"]
    cache.add_modules(sources[:2])
    cache.add_module(sources[2])
    assert set(cache) == {*"fgh"}
    script = """
from compcache import Cache
import threading
cache = Cache(directory)
result = [Cache(directory).get_target("g")()]
f, g, h = map(cache.get_target, "fgh")
def run():
    result.append((f(), g(), h(), f()))
run()
thread = threading.Thread(target=run)
thread.start()
thread.join()
run()
"""
    assert run_fresh(cache.path, script) == [6, (6, 7, 8, 9), (6, 7, 8, 9), (10, 11, 12, 13)]


def test_an_inline_thread_local_variable_with_an_alias_is_the_modules_own(cache: Cache) -> None:
    text = "@v = linkonce_odr thread_local global i64 5\n@w = internal thread_local alias i64, ptr @v\ndefine i64 @f() {\n"
    text += "  %a = load i64, ptr @v\n  %b = add i64 %a, 1\n  store i64 %b, ptr @w\n  ret i64 %a\n}\n"
    cache.add_module(ModuleSource(text))
    function = cache.get_target("f")
    assert [function(), function()] == [5, 6]


def test_inline_thread_local_variables_of_other_sizes_are_other_variables(cache: Cache) -> None:
    """As if two versions of a header were in use."""
    text = "%v = type { [COUNT x i64] }\n@v = linkonce_odr thread_local global %v zeroinitializer\ndefine i64 @fCOUNT() {\n"
    text += "  %p = getelementptr %v, ptr @v, i64 0, i32 0, i64 LAST\n  %a = load i64, ptr %p\n  %b = add i64 %a, 1\n"
    text += "  store i64 %b, ptr %p\n  ret i64 %b\n}\n"
    for count in (5000, 1):
        cache.add_module(ModuleSource(text.replace("COUNT", str(count)).replace("LAST", str(count - 1))))
    large, small = map(cache.get_target, ("f5000", "f1"))
    assert [large(), small(), large()] == [1, 1, 2]


_DESTROYED = """
%T = type { i64, ptr, [8000000 x i8] }
@v = linkonce_odr thread_local global %T zeroinitializer
@__dso_handle = external hidden global i8
declare i32 @__cxa_thread_atexit(ptr, ptr, ptr)
define internal void @destroy(ptr %v) {
  %n = load i64, ptr %v
  %p = getelementptr %T, ptr %v, i64 0, i32 1
  %result = load ptr, ptr %p
  store i64 %n, ptr %result
  ret void
}
define void @NAME(ptr %result) {
  store i64 100, ptr @v
  store ptr %result, ptr getelementptr (%T, ptr @v, i64 0, i32 1)
  call i32 @__cxa_thread_atexit(ptr @destroy, ptr @v, ptr @__dso_handle)
  ret void
}
"""


def test_a_destructor_finds_the_variable_of_another_module_that_was_unloaded(cache: Cache) -> None:
    for name in ("f", "g"):  # the newest module has the variable
        cache.add_module(ModuleSource(_DESTROYED.replace("NAME", name)))
    cache.add_module(ModuleSource("@w = thread_local global [9000000 x i8] zeroinitializer\ndefine ptr @h() {\n  ret ptr @w\n}\n"))
    script = """
from compcache import Cache
import ctypes, gc, os, threading
destroyed, loaded, unloaded = ctypes.c_int64(), threading.Event(), threading.Event()
cache = Cache(directory)
targets = [cache.get_target("f"), cache.get_target("g")]
def run():
    targets[0](ctypes.addressof(destroyed))
    loaded.set()
    unloaded.wait()
    Cache(directory).get_target("h")()
thread = threading.Thread(target=run)
thread.start()
loaded.wait()
targets.clear()
cache.close()
gc.collect()
unloaded.set()
thread.join()
while len(os.listdir("/proc/self/task")) > 1:
    pass
result = destroyed.value
"""
    assert run_fresh(cache.path, script) == 100


def test_thread_local_variables_are_exported_and_imported_by_name(cache: Cache) -> None:
    cache.add_module(ModuleSource(_OWNER, {"bump": None, "public": Function(symbol="v")}))
    user = "@w = external thread_local global i64\ndefine ptr @g() {\n  ret ptr @w\n}\n"
    cache.add_module(ModuleSource(user, imports={"w": "public"}))
    bump, g = cache.get_target("bump"), cache.get_target("g")
    assert bump() == ctypes.c_int64.from_address(g()).value == 6
    with pytest.raises(UndefinedSymbolError, match=r"'its own', a thread-local variable, which neither"):
        cache.add_module(ModuleSource('@"its own" = external thread_local global i64\ndefine ptr @h() {\n  ret ptr @"its own"\n}\n'))
    with pytest.raises(CompileError, match=r"a variable's initializer contains the address of 'w'"):
        cache.add_module(ModuleSource(user + "@p = global ptr @w\n", imports={"w": "public"}))


def test_in_an_object_variables_are_refused_and_functions_are_not(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add_module(ModuleSource(PROVIDER, imports=["triple"]))
    store_objects(monkeypatch)
    with pytest.raises(CompileError, match=r"images are objects.*imported variable 'counter'"):
        cache.add_module(ModuleSource(USER))
    cache.add_module(ModuleSource("define i64 @triple(i64 %x) {\n  ret i64 %x\n}\n"))
    caller = "declare i64 @bump(i64)\ndefine i64 @f(i64 %x) {\n  %y = call i64 @bump(i64 %x)\n  ret i64 %y\n}\n"
    cache.add_module(ModuleSource(caller))
    assert cache.get_target("f")(1) == 6


def test_hidden_symbols_are_for_the_other_modules(cache: Cache) -> None:
    text = "@limit = hidden global i64 4\ndefine hidden i64 @inner(i64 %x) {\n  %l = load i64, ptr @limit\n  ret i64 %l\n}\n"
    cache.add_module(ModuleSource(text))
    user = "@limit = external hidden global i64\ndeclare hidden i64 @inner(i64)\ndefine i64 @outer(i64 %x) {\n  store i64 %x, ptr @limit\n"
    cache.add_module(ModuleSource(user + "  %y = call i64 @inner(i64 %x)\n  ret i64 %y\n}\n"))
    assert cache.get_target("outer")(11) == 11
    assert list(cache) == ["outer"]
    with pytest.raises(SignatureError, match=r"hidden function.*name it in functions="):
        cache.get_target("inner")
    with pytest.raises(SignatureError, match=r"a variable i64, .*: export a function that returns its value$"):
        cache.get_target("limit")


@pytest.mark.parametrize("first", ["read", "bump"])
def test_a_second_realization_is_not_loaded_beside_the_first(cache: Cache, first: str) -> None:
    add_both(cache)
    cache.add_module(ModuleSource(PROVIDER, imports=["triple"], optimize=0))
    assert len(cache.realizations("bump")) == 2
    held = [cache.get_target(first), cache.get_target("through_table"), cache.get_target("bump"), cache.get_target("read")]
    held[2](1)
    assert held[3]() == 6
    assert len({target.module_id for target in held}) == 2


def test_another_module_with_the_variable_is_not_loaded_beside_the_first(cache: Cache) -> None:
    add_both(cache)
    other = "@counter = global i64 100\ndefine i64 @other() {\n  %v = load i64, ptr @counter\n  ret i64 %v\n}\n"
    cache.add_module(ModuleSource(other))
    read = cache.get_target("read")
    held = cache.get_target("bump") if read() == 5 else cache.get_target("other")
    refused = "other" if read() == 5 else "bump"
    with pytest.raises(LinkError, match=r"defines the variable 'counter', which other loaded code has from module"):
        cache.get_target(refused)
    del read, held
    gc.collect()
    assert cache.get_target(refused) is not None


TENTATIVE = """
@block = {} global [{} x i8] zeroinitializer
define i64 @{}() {{
  %p = getelementptr i64, ptr @block, i64 {}
  %v = load i64, ptr %p
  %n = add i64 %v, 1
  store i64 %n, ptr %p
  ret i64 %n
}}
"""
DEFINITION = "@block = global [2 x i64] [i64 10, i64 20]"


@pytest.mark.parametrize(("linkage", "order"), [("common", "0123"), ("common", "3210"), ("weak", "1032")])
def test_a_definition_is_preferred_to_weak_and_tentative_ones(cache: Cache, linkage: str, order: str) -> None:
    """A block of Fortran with its BLOCK DATA, `int x;` in one file of C and `int x = 5;` in another: their order decides nothing."""
    texts = [
        DEFINITION,
        TENTATIVE.format(linkage, 16, "first", 0),
        TENTATIVE.format(linkage, 16, "second", 1),
        TENTATIVE.format(linkage, 16, "again", 0),
    ]
    cache.add_modules([ModuleSource(texts[int(number)]) for number in order])
    held = [cache.get_target(name) for name in ("first", "second", "again")]
    assert [target() for target in held] == [11, 21, 12]
    with Cache(cache.path) as other:
        held = [other.get_target(name) for name in ("again", "second", "first")]
        assert [target() for target in held] == [11, 21, 12]


def test_a_definition_that_cannot_be_loaded_is_passed_over(cache: Cache) -> None:
    incomplete = "declare void @gone()\n@block = global [2 x i64] [i64 ptrtoint (ptr @gone to i64), i64 20]"
    cache.add_module(ModuleSource(incomplete, imports=["gone"]))
    cache.add_module(ModuleSource(TENTATIVE.format("common", 16, "first", 0)))
    assert cache.get_target("first")() == 1


@pytest.mark.parametrize("trust", [True, False])
def test_a_weak_definition_is_not_used_while_a_stronger_one_cannot_be_read(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, *, trust: bool
) -> None:
    module_id = cache.add_module(ModuleSource(DEFINITION))
    cache.add_module(ModuleSource(TENTATIVE.format("common", 16, "first", 0)))
    with monkeypatch.context() as patch, Cache(cache.path, trust=trust) as other:
        for kind in (Tree, Door):

            def fail(self: Any, path: str, *arguments: Any, usual: Any = kind.open_owned, **options: Any) -> Any:
                if module_id in path:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), path)
                return usual(self, path, *arguments, **options)

            patch.setattr(kind, "open_owned", fail)
        with pytest.raises(CompcacheError):
            other.get_target("first")
    assert cache.get_target("first")() == 11


@pytest.mark.parametrize("order", [1, -1])
def test_the_longest_common_block_is_the_one_that_all_use(cache: Cache, order: int) -> None:
    last = TENTATIVE.format("common", 80000, "last", 9999)
    texts = [TENTATIVE.format("common", 16, "first", 0), last, TENTATIVE.format("common", 8, "short", 0)]
    cache.add_modules([ModuleSource(text) for text in texts[::order]])
    held = [cache.get_target(name) for name in ("short", "last", "first")]
    assert [target() for target in held] == [1, 1, 2]


#: A block of numbers, as C writes it: its number of elements, the name of a function, and the element that this function counts up.
NUMBERS = """
@block = {} [{} x i64] {}
define i64 @{}() {{
  %p = getelementptr i64, ptr @block, i64 {}
  %v = load i64, ptr %p
  %n = add i64 %v, 1
  store i64 %n, ptr %p
  ret i64 %n
}}
"""
SHORT = NUMBERS.format("common global", 2, "zeroinitializer, align 16", "first", 0) + "@guard = global [9000 x i64] zeroinitializer\n"
LONG = NUMBERS.format("common global", 9000, "zeroinitializer, align 16", "last", 8999)
OUTSIDE = NUMBERS.format("external global", 9000, "", "outside", 8999)


@pytest.mark.parametrize("order", list(permutations([SHORT, LONG, OUTSIDE])))
@pytest.mark.parametrize("group", [None, "numbers"])
def test_the_longest_tentative_definition_of_c_is_the_one_that_all_use(cache: Cache, order: tuple[str, ...], group: str | None) -> None:
    cache.add_modules([ModuleSource(text) for text in order], group=group)
    held = [cache.get_target(name) for name in ("first", "last", "outside")]
    assert [target() for target in held] == [1, 1, 2]


def test_a_longer_block_is_refused_while_a_shorter_one_is_in_use(cache: Cache) -> None:
    cache.add_module(ModuleSource(SHORT))
    held = cache.get_target("first")
    cache.add_module(ModuleSource(LONG))
    with pytest.raises(UndefinedSymbolError, match="it has 16 bytes, and its user expects 72000"):
        cache.get_target("last")
    assert held() == 1
    del held
    gc.collect()
    assert cache.get_target("last")() == 1


@pytest.mark.parametrize("linkage", ["weak", "linkonce"])
@pytest.mark.parametrize("before", ["{} global [3 x i64] [i64 1, i64 2, i64 3]", "{} global i64 1, align 64", "common global i64 0"])
def test_a_weak_variable_has_the_value_of_its_newest_definition(cache: Cache, linkage: str, before: str) -> None:
    """Also if the definition before the edit was longer or had a larger alignment: only blocks without values are exchangeable."""
    read = "\ndefine i64 @read() {\n  %v = load i64, ptr @table\n  ret i64 %v\n}\n"
    cache.add_module(ModuleSource(f"@table = {before.format(linkage)}{read}"))
    with pytest.warns(ShadowWarning):
        cache.add_module(ModuleSource(f"@table = {linkage} global i64 5{read}"))
    assert cache.get_target("read")() == 5


@pytest.mark.parametrize("order", [1, -1])
def test_a_longer_block_is_not_bound_to_a_shorter_definition(cache: Cache, order: int) -> None:
    """Nor does it take the place of the definition, whose module would have another block."""
    sources = [ModuleSource(text) for text in (NUMBERS.format("global", 2, "[i64 10, i64 20]", "given", 0), LONG)[::order]]
    for source in (*sources, ModuleSource(OUTSIDE)):
        cache.add_module(source)
    for name in ("last", "outside"):
        with pytest.raises(UndefinedSymbolError, match="it has 16 bytes, and its user expects 72000"):
            cache.get_target(name)
    assert cache.get_target("given")() == 11
    with pytest.raises(SignatureMismatchError, match="it has 16 bytes, and its user expects 72000"):
        cache.add_modules(sources, group="numbers")


def test_a_definition_that_is_added_later_goes_before_weak_ones(cache: Cache) -> None:
    calls = (
        "declare i64 @first()\ndeclare i64 @second()\ndefine i64 @top() {\n  %a = call i64 @first()\n  %b = call i64 @second()\n"
        "  %r = add i64 %a, %b\n  ret i64 %r\n}\n"
    )
    texts = [calls, TENTATIVE.format("common", 16, "first", 0), TENTATIVE.format("common", 16, "second", 1)]
    cache.add_modules([ModuleSource(text) for text in texts])
    with Cache(cache.path) as weak:
        assert weak.get_target("top")() == 2
    cache.add_module(ModuleSource(DEFINITION))
    with Cache(cache.path) as other:
        assert other.get_target("top")() == 32


def test_stored_code_is_compiled_again_with_its_imports(cache: Cache) -> None:
    for text, names in ((PROVIDER, ["triple"]), (USER, [])):
        cache.add_module(ModuleSource(text, imports=names, targets=("x86-64", "native")))
    assert cache.get_target("read")() == 5
    assert cache.check(recompile=True).findings == ()


_MERGED = """
@shared = linkonce_odr global i64 100
define i64 @{name}(i64 %x) {{
  %v = load i64, ptr @shared
  %r = add i64 %v, %x
  store i64 %r, ptr @shared
  ret i64 %r
}}
"""


def test_a_load_takes_the_variable_that_another_one_has_bound_meanwhile(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two modules would bring its own; the second load ends while the first, which has planned to take that, is under way."""
    held: list[Callable[..., int]] = []

    class Asking(types.ModuleType):
        @property
        def thing(self) -> object:
            if "top" in cache and not held:
                held.append(cache.get_target("second"))
            return self

    monkeypatch.setitem(sys.modules, "module_that_asks", Asking("module_that_asks"))
    text = "@thing = external global ptr\n" + caller("top", "first").replace("  ret", "  %p = load volatile ptr, ptr @thing\n  ret")
    cache.add_modules([ModuleSource(_MERGED.format(name=name)) for name in ("first", "second")])
    cache.add_module(ModuleSource(text, globals={"thing": PythonObject("module_that_asks", "thing")}))
    top = cache.get_target("top")
    assert len(held) == 1
    assert [held[0](1), top(1), held[0](1)] == [101, 102, 103]


@pytest.mark.parametrize("functions", [None, {"second": None, "get": None}])
def test_a_second_name_of_a_variable_is_the_variable(cache: Cache, functions: dict[str, None] | None) -> None:
    code = """
@first = global i32 5
@second = alias i32, ptr @first
define i32 @get() {
  %x = load i32, ptr @first
  ret i32 %x
}
"""
    user = """
@second = external global i32
define void @set(i32 %x) {
  store i32 %x, ptr @second
  ret void
}
"""
    cache.add_module(ModuleSource(code, functions=functions))
    cache.add_module(ModuleSource(user))
    get = cache.get_target("get")
    cache.get_target("set")(9)
    assert get() == 9
    with pytest.raises(SignatureError, match="variable i32"):
        cache.get_target("second")
