"""C++ in several modules: constructors that use imports, merged definitions, exceptions and casts across modules."""

from __future__ import annotations

import gc
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from helpers import run_fresh

from compcache import Cache, ModuleSource, UndefinedSymbolError

if TYPE_CHECKING:
    from pathlib import Path

LINKERS = ["ld", "ld.lld", "mold", "ziglang"]

PROVIDER = """
@total = global i64 0
define void @enter(i64 %x) {
  %old = load i64, ptr @total
  %new = add i64 %old, %x
  store i64 %new, ptr @total
  ret void
}
define i64 @entered() {
  %x = load i64, ptr @total
  ret i64 %x
}
"""
STARTING = """
declare void @enter(i64)
define internal void @second() {
  call void @enter(i64 10)
  ret void
}
define internal void @first() {
  call void @enter(i64 1)
  ret void
}
define internal void @last() {
  call void @enter(i64 100)
  ret void
}
@llvm.global_ctors = appending global [2 x { i32, ptr, ptr }] [
  { i32, ptr, ptr } { i32 65535, ptr @second, ptr null }, { i32, ptr, ptr } { i32 5, ptr @first, ptr null }]
@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @last, ptr null }]
define i64 @f() { ret i64 1 }
define i64 @g() { ret i64 2 }
"""


def needs(linker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if linker != "ziglang" and shutil.which(linker) is None:
        pytest.skip(f"{linker} is not installed")
    monkeypatch.setenv("COMPCACHE_LINKER", linker)


@pytest.mark.slow
@pytest.mark.parametrize("linker", LINKERS)
def test_constructors_run_once_after_their_imports_are_bound(cache: Cache, linker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(linker, monkeypatch)
    cache.add_module(ModuleSource(PROVIDER))
    cache.add_module(ModuleSource(STARTING))
    entered = cache.get_target("entered")
    f = cache.get_target("f")
    assert (f(), entered()) == (1, 11)
    g = cache.get_target("g")
    assert (g(), entered()) == (2, 11)
    del f, g
    gc.collect()
    assert entered() == 111  # the destructor, which needs the provider


def test_destructors_of_what_never_started_do_not_run(cache: Cache) -> None:
    cache.add_module(ModuleSource(PROVIDER))
    cache.add_module(
        ModuleSource(
            STARTING + "declare void @nobody()\ndefine void @broken() {\n  call void @nobody()\n  ret void\n}\n", imports=["nobody"]
        )
    )
    entered = cache.get_target("entered")
    with pytest.raises(UndefinedSymbolError, match="nobody"):
        cache.get_target("broken")
    gc.collect()
    assert entered() == 0


def test_constructors_may_use_what_globals_defines(cache: Cache) -> None:
    text = """
    @given = external global i64
    @copy = internal global i64 0
    define internal void @start() {
      %x = load i64, ptr @given
      store i64 %x, ptr @copy
      ret void
    }
    @llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @start, ptr null }]
    define i64 @copied() {
      %x = load i64, ptr @copy
      ret i64 %x
    }
    """
    cache.add_module(ModuleSource(text, globals={"given": 31}))
    assert cache.get_target("copied")() == 31


def test_modules_that_start_each_other(cache: Cache) -> None:
    text = """
    @{0} = global i64 1
    @{1} = external global i64
    @seen_{0} = internal global i64 0
    define internal void @start() {{
      %x = load i64, ptr @{1}
      %y = add i64 %x, 1
      store i64 %y, ptr @seen_{0}
      ret void
    }}
    @llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @start, ptr null }}]
    define i64 @get_{0}() {{
      %x = load i64, ptr @seen_{0}
      ret i64 %x
    }}
    """
    cache.add_module(ModuleSource(text.format("a", "b"), imports=["b"]))
    cache.add_module(ModuleSource(text.format("b", "a")))
    assert (cache.get_target("get_a")(), cache.get_target("get_b")()) == (2, 2)


#: Modules that import each other, whose destructors use what they import.
ENDING_EACH_OTHER = """
@{0} = global i64 1
@{1} = external global i64
declare void @enter(i64)
declare i64 @get_{1}()
define internal void @start() {{
  %x = load i64, ptr @{1}
  call void @enter(i64 %x)
  ret void
}}
define internal void @end() {{
  %x = call i64 @get_{1}()
  %y = mul i64 %x, 10
  call void @enter(i64 %y)
  ret void
}}
@llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @start, ptr null }}]
@llvm.global_dtors = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @end, ptr null }}]
define i64 @get_{0}() {{
  %x = load i64, ptr @{0}
  ret i64 %x
}}
"""


def test_modules_that_end_each_other(cache: Cache) -> None:
    """All destructors run before anything that they use is unmapped. Otherwise the process ends here."""
    cache.add_modules([ModuleSource(PROVIDER), *(ModuleSource(ENDING_EACH_OTHER.format(*names)) for names in ("ab", "ba"))])
    script = """
import gc
from compcache import Cache
with Cache(directory) as cache:
    entered, get_a = cache.get_target("entered"), cache.get_target("get_a")
    begun = get_a(), entered()
    del get_a
    gc.collect()
    result = begun, entered()
"""
    assert run_fresh(cache.path, script) == ((1, 2), 22)


MERGED = """
$shared = comdat any
@shared = linkonce_odr {hidden} global i64 5, comdat, align 8
@place_{0} = internal constant ptr @shared
define i64 @bump_{0}() {{
  %x = load i64, ptr @shared
  %y = add i64 %x, 1
  store i64 %y, ptr @shared
  ret i64 %y
}}
define ptr @address_{0}() {{ ret ptr @shared }}
define ptr @stored_{0}() {{
  %p = load volatile ptr, ptr @place_{0}
  ret ptr %p
}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("linker", LINKERS)
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("hidden", ["", "hidden"])
def test_there_is_one_of_a_merged_variable(cache: Cache, linker: str, named: bool, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(linker, monkeypatch)
    for name in "ab":
        functions = {f"{kind}_{name}": None for kind in ("bump", "address", "stored")} if named else None
        cache.add_module(ModuleSource(MERGED.format(name, hidden=hidden), functions))
    a, b = cache.get_target("bump_a"), cache.get_target("bump_b")
    assert [a(), b(), a()] == [6, 7, 8]
    addresses = {cache.get_target(f"{kind}_{name}")() for kind in ("address", "stored") for name in "ab"}
    assert len(addresses) == 1
    del a
    gc.collect()
    assert b() == 9  # whoever provides it lives as long as it is used
    assert cache.get_target("bump_a")() == 10


def test_two_modules_with_variables_of_one_name_stay_apart(cache: Cache) -> None:
    text = (
        "@counter = global i64 0\ndefine i64 @{0}() {{\n  %x = load i64, ptr @counter\n  %y = add i64 %x, 1\n"
        "  store i64 %y, ptr @counter\n  ret i64 %y\n}}\n"
    )
    for name in "ab":
        cache.add_module(ModuleSource(text.format(name)))
    assert (cache.get_target("a")(), cache.get_target("b")()) == (1, 1)


HEADER = """
#include <cstdio>
#include <stdexcept>
#include <string>
struct Base { virtual ~Base(); virtual long value() const; long x = 1; };
struct Derived : Base { Derived(); ~Derived() override; long value() const override; };
struct Failure : std::runtime_error { using std::runtime_error::runtime_error; };
inline int counter = 100;
inline int& next() { static int n = 10; return ++n; }
template <class T> struct Stat { static T v; };
template <class T> T Stat<T>::v = 5;
inline std::string label = "label";
extern "C" Base* make();
extern "C" void fail(int);
"""
SOURCES = {
    "a": """
Base::~Base() {}
long Base::value() const { return x; }
extern "C" void fail(int k) { if (k == 1) throw Failure("one"); if (k == 2) throw 7; }
extern "C" int counter_a() { return ++counter; }
extern "C" int next_a() { return next(); }
extern "C" int stat_a() { return ++Stat<int>::v; }
extern "C" long label_a() { label += "x"; return label.size(); }
""",
    "b": """
Derived::Derived() { x = 2; }
Derived::~Derived() { std::fputs("derived\\n", stderr); }
long Derived::value() const { return x * 10 + Base::value(); }
static Derived object;
extern "C" Base* make() { return new Derived; }
extern "C" long object_value() { return object.value(); }
extern "C" long caught(int k) {
  try { fail(k); } catch (const Failure& f) { return f.what()[0]; } catch (int i) { return i; }
  return 0;
}
extern "C" int counter_b() { return ++counter; }
extern "C" int next_b() { return next(); }
extern "C" int stat_b() { return ++Stat<int>::v; }
extern "C" long label_b() { return label.size(); }
""",
    "c": """
#include <typeinfo>
extern "C" long use() {
  Base* b = make();
  Derived* d = dynamic_cast<Derived*>(b);
  long result = d && typeid(*b) == typeid(Derived) ? d->value() : -1;
  delete b;
  return result;
}
""",
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    compiler = shutil.which("clang++")
    if compiler is None:
        pytest.skip("clang++ is not installed")
    directory = tmp_path_factory.mktemp("cpp")
    found = {}
    for name, text in SOURCES.items():
        source: Path = directory / f"{name}.cpp"
        source.write_text(HEADER + text, encoding="utf-8")
        command = [compiler, "-std=c++17", "-O1", "-fPIC", "-emit-llvm", "-c", str(source), "-o", f"{source}.bc"]
        subprocess.run(command, check=True)
        found[name] = (directory / f"{name}.cpp.bc").read_bytes()
    return found


@pytest.mark.slow
def test_classes_exceptions_and_statics_across_modules(cache: Cache, compiled: dict[str, bytes]) -> None:
    later = {"c": ["make", "_ZTI4Base", "_ZTI7Derived"]}
    for name in ("c", "a", "b"):
        cache.add_module(ModuleSource(compiled[name], imports=later.get(name), libraries=["stdc++"]))
    script = """
    from compcache import Cache
    cache = Cache(directory)
    held = {name: cache.get_target(name) for name in ("counter_a", "counter_b", "next_a", "next_b", "stat_a", "stat_b", "caught")}
    result = [held[name]() for name in held if name != "caught"] + [held["caught"](k) for k in range(3)]
    result += [cache.get_target(name)() for name in ("use", "object_value")]
    labels = [cache.get_target(name) for name in ("label_a", "label_b")]
    result += [label() for label in labels]
    """
    assert run_fresh(cache.path, script) == [101, 102, 11, 12, 6, 7, 0, ord("o"), 7, 22, 22, 6, 6]
    assert cache.check(recompile=True).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "del f; import gc; gc.collect()", "cache.unload('object_value')", "cache.close()"])
def test_static_objects_of_imported_classes_end_once(cache: Cache, compiled: dict[str, bytes], ending: str) -> None:
    cache.add_module(ModuleSource(compiled["a"], libraries=["stdc++"]))
    cache.add_module(ModuleSource(compiled["b"], libraries=["stdc++"]))
    script = """
    import subprocess
    script = (
        "import sys; sys.path.insert(0, %r); from compcache import Cache; cache = Cache(%r); f = cache.get_target('object_value'); f();"
        % (sys.path[0], directory) + ENDING
    )
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script], capture_output=True, text=True)
    result = done.returncode, done.stdout, done.stderr
    """
    assert run_fresh(cache.path, script.replace("ENDING", repr(ending))) == (0, "", "derived\n")
