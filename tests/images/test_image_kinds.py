"""The same behaviour with every linker, without one, and on platforms that have no shared objects of ELF's: objects through ORC."""

from __future__ import annotations

import importlib.util
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers import adder, caller, constant, run_fresh, store_objects

from compcache import (
    Cache,
    CacheWarning,
    Function,
    GlobalValidationError,
    LinkerError,
    ModuleSource,
    TargetUnloadedError,
    UndefinedSymbolError,
)
from compcache.globals import NativeSymbol, PythonObject

if TYPE_CHECKING:
    from pathlib import Path

LINKERS = ["written", "ld", "ld.lld", "mold", "ziglang", "none"]  # none at all is the last one: then there are objects

EVERYTHING = """
declare i64 @imported(i64)
declare i64 @missing(i64)
declare double @cos(double)
declare double @root(double)
@number = external global i64
@text = external global {ptr, i64}
@table = internal constant [2 x ptr] [ptr @helper, ptr @imported]
@count = internal global i64 0
define internal i64 @helper(i64 %x) {
  %n = load i64, ptr @number
  %y = add i64 %x, %n
  ret i64 %y
}
define i64 @calls(i64 %x) {
  %y = call i64 @imported(i64 %x)
  ret i64 %y
}
define i64 @through_table(i64 %i, i64 %x) {
  %at = getelementptr [2 x ptr], ptr @table, i64 0, i64 %i
  %f = load ptr, ptr %at
  %y = call i64 %f(i64 %x)
  ret i64 %y
}
define i64 @broken(i64 %x) {
  %y = call i64 @missing(i64 %x)
  ret i64 %y
}
define double @native(double %x) {
  %c = call double @cos(double %x)
  %y = call double @root(double %c)
  ret double %y
}
define ptr @words() {
  %p = load ptr, ptr @text
  ret ptr %p
}
define i64 @next() {
  %x = load i64, ptr @count
  %y = add i64 %x, 1
  store i64 %y, ptr @count
  ret i64 %y
}
define double @first(ptr %p, i64 %n) {
  %x = load double, ptr %p
  ret double %x
}
"""
FUNCTIONS = {
    "calls": "i64(i64)",
    "through_table": "i64(i64, i64)",
    "broken": "i64(i64)",
    "native": "f64(f64)",
    "words": "cstr()",
    "next": Function("i64()", nogil=True),
    "first": "f64(const f64[:])",
}


def available(linker: str) -> bool:
    if linker == "ziglang":
        return importlib.util.find_spec("ziglang") is not None
    return linker in ("none", "written") or shutil.which(linker) is not None


@pytest.fixture(params=LINKERS)
def linker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if not available(name):
        pytest.skip(f"{name} is not installed")
    choose(name, monkeypatch)
    return name


def choose(linker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have images made by a linker, written, or no shared objects made."""
    if linker == "none":
        store_objects(monkeypatch)
    else:
        monkeypatch.setenv("COMPCACHE_LINKER", linker.replace("written", ""))


@pytest.fixture
def filled(linker: str, cache: Cache) -> Cache:
    """A cache with two modules, made with this linker."""
    assert linker
    cache.add_module(ModuleSource(adder("imported", 100)))
    given = {"number": 5, "text": "words", "root": NativeSymbol("sqrt", "libm.so.6")}
    cache.add_module(ModuleSource(EVERYTHING, FUNCTIONS, given, imports=["imported", "missing"]))
    return cache


def test_the_image_is_of_the_kind_that_the_linker_makes(filled: Cache, linker: str) -> None:
    kinds = {r.image_kind for name in ("calls", "imported") for r in filled.realizations(name)}
    assert kinds == {"object" if linker == "none" else "shared"}


def test_calls_imports_tables_globals_natives_and_statics_work(filled: Cache) -> None:
    get = filled.get_target
    assert get("calls")(1) == 101
    assert [get("through_table")(i, 1) for i in (0, 1)] == [6, 101]
    assert get("native")(0.0) == 1.0
    words = get("words")
    assert words() == "words"
    step = get("next")
    assert [step(), step()] == [1, 2]
    assert get("first")(np.array([2.5])) == 2.5
    with pytest.raises(TypeError, match="takes 1 argument"):
        get("calls")()
    with pytest.raises(OverflowError):
        get("calls")(2**63)


@pytest.mark.slow
def test_only_what_is_needed_is_satisfied(filled: Cache) -> None:
    for _ in range(2):
        with pytest.raises(UndefinedSymbolError, match="'missing'"):
            filled.get_target("broken")
        assert filled.get_target("calls")(1) == 101
    filled.add_module(ModuleSource(adder("missing", 7)))
    assert filled.get_target("broken")(1) == 8


def test_unloading_invalidates_and_loading_again_works(filled: Cache) -> None:
    target = filled.get_target("next")
    assert target() == 1
    filled.unload("next")
    with pytest.raises(TargetUnloadedError):
        target()
    del target
    assert filled.get_target("next")() == 1


@pytest.mark.slow
def test_a_fresh_process_loads_what_this_one_made(filled: Cache, linker: str, directory: Path) -> None:
    script = """
    from compcache import Cache
    cache = Cache(directory)
    loaded = cache.get_target("words"), cache.get_target("calls"), cache.get_target("next")
    result = [f() if f.func_name != "calls" else f(1) for f in loaded], "llvmlite" in sys.modules
    """
    values, llvm = run_fresh(directory, script)
    assert values == ["words", 101, 1]
    assert llvm is (linker == "none"), "shared objects need no LLVM"
    assert filled.has("calls")


@pytest.mark.slow
def test_a_global_that_no_longer_holds_is_told(linker: str, cache: Cache) -> None:
    text = "@g = external global ptr\ndefine ptr @f() {\n%p = load ptr, ptr @g\nret ptr %p\n}"
    cache.add_module(ModuleSource(text, globals={"g": PythonObject("sys", "path")}))
    with Cache(cache.path) as later:
        assert later.get_target("f")() != 0
    cache.add_module(
        ModuleSource(text.replace("@f", "@h"), globals={"g": PythonObject("helpers", "CONSTANT")})
    )
    script = """
    from compcache import Cache, GlobalValidationError
    try:
        Cache(directory).get_target("h")
    except GlobalValidationError as error:
        result = error.global_name, error.func_name
    """
    assert run_fresh(cache.path, script) == ("g", "h")
    assert linker
    assert issubclass(GlobalValidationError, ValueError)


@pytest.mark.slow
def test_a_fresh_machine_without_a_linker_compiles_stores_and_loads(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    add = f"""
    from compcache import Cache, ModuleSource
    with Cache(directory) as cache:
        cache.add_module(ModuleSource({adder("add1", 1)!r}))
        cache.add_module(ModuleSource({caller("f", "add1")!r}))
        f = cache.get_target("f")
        result = f(1), [r.image_kind for r in cache.realizations("f")], repr(f).startswith("<TypedCallTarget 'f'")
    """
    assert run_fresh(root, add, COMPCACHE_LINKER="none") == (2, ["shared"], True)
    use = """
    import pickle
    from compcache import Cache
    cache = Cache(directory)
    f = cache.get_target("f")
    try:
        f("x")
    except TypeError as error:
        wrong = str(error)
    result = f(1), cache.get_target("f") is f, pickle.loads(pickle.dumps(f)) is f, wrong, cache.unload("f")
    """
    value, same, again, wrong, unloaded = run_fresh(root, use, COMPCACHE_LINKER="none")
    assert (value, same, again, unloaded) == (2, True, True, True)
    assert "integer" in wrong


def test_a_linker_that_fails_is_no_reason_not_to_store(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad-linker"
    bad.write_text("#!/bin/sh\necho 'this is broken' >&2\nexit 3\n")
    bad.chmod(0o700)
    monkeypatch.setenv("COMPCACHE_LINKER", str(bad))
    with pytest.warns(CacheWarning, match=r"written without the linker that COMPCACHE_LINKER names: .*this is broken") as caught:
        cache.add_module(ModuleSource(constant("f", 1)))
    assert [warning.filename for warning in caught] == [__file__]
    assert cache.get_target("f")() == 1
    assert cache.realizations("f")[0].image_kind == "shared"
    with pytest.raises(LinkerError, match="this is broken"):  # which is not written
        cache.add_module(ModuleSource('@c = constant i64 1, section ".unheard_of"\n' + constant("g", 1)))
    assert not cache.has("g")


def test_a_linker_that_does_not_exist_is_told(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPCACHE_LINKER", "/no/such/linker")
    with pytest.raises(LinkerError, match="/no/such/linker"):
        cache.add_module(ModuleSource(constant("f", 1)))
    assert not cache.has("f")


def test_all_linkers_give_the_same_answers_side_by_side(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules made by different linkers import one another."""
    names = [name for name in LINKERS if available(name)]
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(adder("f0", 1)))
        for number, name in enumerate(names, 1):
            choose(name, monkeypatch)
            cache.add_module(ModuleSource(caller(f"f{number}", f"f{number - 1}", plus=10)))
        assert cache.get_target(f"f{len(names)}")(0) == 1 + 10 * len(names)
