"""Loads of several modules that share variables, wait for one another, and are in use when they are unloaded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from helpers import adder, caller, run_fresh, sum_of

from compcache import Cache, CompcacheError, ModuleSource, UndefinedSymbolError

if TYPE_CHECKING:
    from pathlib import Path

COUNTER = """
@counter = global i64 100
define i64 @count(i64 %x) {
  %v = load i64, ptr @counter
  %n = add i64 %v, %x
  store i64 %n, ptr @counter
  ret i64 %n
}
"""
READER = """
@counter = external global i64
declare i64 @count(i64)
define i64 @twice(i64 %x) {
  %a = call i64 @count(i64 %x)
  %v = load i64, ptr @counter
  %r = add i64 %a, %v
  ret i64 %r
}
"""
#: What `top` returns of 1 in a process that has just loaded it.
TOP = 2 * 101 + 6


def fill(directory: Path) -> None:
    """Four modules, of which `top` needs all."""
    with Cache(directory) as cache:
        cache.add_modules(
            [ModuleSource(COUNTER), ModuleSource(READER), ModuleSource(adder("five", 5)), ModuleSource(sum_of("top", ["twice", "five"]))]
        )


def test_variables_are_shared_and_bound_once(tmp_path: Path) -> None:
    fill(tmp_path)
    with Cache(tmp_path) as cache:
        top, count, twice = cache.get_target("top"), cache.get_target("count"), cache.get_target("twice")
        assert (count(1), twice(1), top(1)) == (101, 204, 2 * 103 + 6)
        assert len(cache._loader.loaded_modules()) == 4
        assert cache.unload("twice") > 0
        assert cache.get_target("twice")(0) == 2 * 103


def test_threads_that_load_at_once_share_modules(tmp_path: Path) -> None:
    fill(tmp_path)
    with Cache(tmp_path) as cache:
        gate = threading.Barrier(4)
        found = []

        def load(name: str) -> None:
            gate.wait()
            found.append(cache.get_target(name))

        threads = [threading.Thread(target=load, args=(name,)) for name in ("top", "twice", "count", "top")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cache.get_target("count")(0) == 100
        assert cache.get_target("top")(1) == TOP
        assert cache.get_target("count")(0) == 101
        assert len(cache._loader.loaded_modules()) == 4


#: Two modules that define one variable, which is that of the first that is bound.
SHARING = """
@shared = linkonce_odr global i64 100
define i64 @{name}(i64 %x) {{
  %v = load i64, ptr @shared
  %r = add i64 %v, %x
  store i64 %r, ptr @shared
  ret i64 %r
}}
"""
UNLOADED = {
    "imported": ([COUNTER, READER, adder("five", 5), sum_of("top", ["twice", "five"])], ["count", "twice", "five", "top"]),
    "merged": (
        [SHARING.format(name="first"), SHARING.format(name="second"), sum_of("top", ["first", "second"])],
        ["first", "second", "top"],
    ),
}


@pytest.mark.parametrize("kind", UNLOADED)
def test_variables_of_unloaded_modules_that_are_in_use_are_not_mapped_twice(tmp_path: Path, kind: str) -> None:
    modules, names = UNLOADED[kind]
    found: list[object] = []

    def load_again(cache: Cache) -> None:
        try:
            found.append(cache.get_target("top"))
        except CompcacheError as error:
            found.append(error)

    with Cache(tmp_path / "cache") as cache:
        cache.add_modules([ModuleSource(text) for text in modules])
        first = cache.get_target("top")(1)
    with Cache(tmp_path / "cache") as cache:
        top = cache.get_target("top")
        assert top(1) == first
        in_use = cache._loader.loaded_modules()  # as by a call that has not returned
        for name in names:
            cache.unload(name)
        thread = threading.Thread(target=load_again, args=(cache,), daemon=True)
        thread.start()
        thread.join(20)
        assert len(found) == 1, "the load does not end"
        assert isinstance(found[0], UndefinedSymbolError)
        assert "was unloaded, but its variable" in str(found[0])
        found.clear()
        in_use.clear()
        del top
        assert cache.get_target("top")(1) == first


LIBRARY = """
import ctypes, warnings
import llvmlite.binding as llvm
from compcache import Cache, ModuleSource
from compcache.images.linkers.find import find_linker
from compcache.images.linkers.link import link_shared
llvm.initialize_native_target(); llvm.initialize_native_asmprinter()
machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="default")
obj = machine.emit_object(llvm.parse_assembly({native!r}))
with open({library!r}, "wb") as file:
    file.write(link_shared(find_linker(), [obj], soname="mine.so"))
ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL)
warnings.simplefilter("ignore")
with Cache(directory, trust=True) as cache:
    cache.add_module(ModuleSource({other!r}))
    cache.add_module(ModuleSource({caller!r}))  # it is the newest
    cache.add_modules([ModuleSource({six!r}), ModuleSource({top!r})])
"""
LOAD = """
import ctypes
from compcache import Cache
if {library!r}:
    ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL)
with Cache(directory, trust=True) as cache:
    result = cache.get_target("top")(1)
"""


@pytest.mark.slow
def test_what_one_process_has_to_pass_over_another_need_not(tmp_path: Path) -> None:
    directory, library = tmp_path / "cache", str(tmp_path / "mine.so")
    run_fresh(
        directory,
        LIBRARY.format(
            native=adder("only_there", 1000),
            library=library,
            other=adder("five", 5),
            caller=caller("five", "only_there"),
            six=adder("six", 6),
            top=sum_of("top", ["five", "six"]),
        )
        + "result = None\n",
    )
    assert run_fresh(directory, LOAD.format(library="")) == 1 + 5 + 7
    assert run_fresh(directory, LOAD.format(library=library)) == 1001 + 7
    assert run_fresh(directory, LOAD.format(library="")) == 1 + 5 + 7
    assert run_fresh(directory, LOAD.format(library=library)) == 1001 + 7


_LOG = """
@noted = global i64 0
define i64 @note(i64 %digit) {
  %old = load i64, ptr @noted
  %shifted = mul i64 %old, 10
  %new = add i64 %shifted, %digit
  store i64 %new, ptr @noted
  ret i64 %new
}
define i64 @look(i64 %x) {
  %v = load i64, ptr @noted
  ret i64 %v
}
"""


def _started(digit: int, imported: str) -> str:
    """A module with a constructor and a destructor that use what it imports, and a function `f` with its digit."""
    return f"""
declare i64 @note(i64)
declare i64 @{imported}(i64)
@llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @begin, ptr null }}]
define internal void @begin() {{
  %x = call i64 @note(i64 {digit})
  ret void
}}
define i64 @f{digit}(i64 %x) {{
  %y = call i64 @{imported}(i64 0)
  ret i64 %y
}}
"""


def test_constructors_that_wait_run_once_behind_those_of_what_they_import(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_modules([ModuleSource(code) for code in (_started(1, "f2"), _started(2, "f3"), _started(3, "look"), _LOG)])
    script = """
from compcache import Cache
with Cache(directory) as cache:
    f1 = cache.get_target("f1")
    result = f1(0), f1(0)
"""
    assert run_fresh(tmp_path, script) == (321, 321)


@pytest.mark.slow
def test_a_load_may_have_more_modules_than_open_files(tmp_path: Path) -> None:
    count = 150
    with Cache(tmp_path) as cache:
        cache.add_modules([ModuleSource(adder("g0", 1)), *(ModuleSource(caller(f"g{n}", f"g{n - 1}", plus=1)) for n in range(1, count))])
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
from compcache import Cache
with Cache(directory) as cache:
    result = cache.get_target("g{count - 1}")(0)
"""
    assert run_fresh(tmp_path, script) == count
