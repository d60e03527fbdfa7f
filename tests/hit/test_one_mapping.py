"""A load maps each module once and opens its file once, so that constructors and destructors run once.

The modules here tell of themselves: their constructors write C, and their destructors D, to a file descriptor.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from helpers import adder, compile_object, run_fresh, sum_of
from mock_directory import FaultyFiles, cache_on
from test_lifetimes import _nothing_of_other_tests, mapped_images  # noqa: F401

from compcache import Cache, CompileError, ModuleSource
from compcache.hit import target as runtime_module
from compcache.images.linkers.find import find_linker
from compcache.images.linkers.link import link_shared

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: The descriptor that constructors write to.
CHANNEL = 900  # beyond those that a process of many tests has open
#: A module whose mapping and unmapping can be seen. `{number}` keeps modules apart, `{functions}` is the rest.
TELLING = """\
@C = private constant [1 x i8] c"C"
@D = private constant [1 x i8] c"D"
@number = private global i64 {number}
@llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @begin, ptr null }}]
@llvm.global_dtors = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @finish, ptr null }}]
declare i64 @write(i32, ptr, i64)
define internal void @begin() {{
  %n = call i64 @write(i32 900, ptr @C, i64 1)
  ret void
}}
define internal void @finish() {{
  %n = call i64 @write(i32 900, ptr @D, i64 1)
  ret void
}}
{functions}
"""
PARITY = """\
declare i64 @{other}(i64)
define i64 @{name}(i64 %n) {{
  %z = icmp eq i64 %n, 0
  br i1 %z, label %yes, label %ask
yes:
  ret i64 {at_zero}
ask:
  %m = sub i64 %n, 1
  %r = call i64 @{other}(i64 %m)
  ret i64 %r
}}
"""


def telling(functions: str, number: int = 0) -> str:
    return TELLING.format(functions=functions, number=number)


class Channel:
    """What the modules have told since the last time that somebody asked."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.dup2(writer, CHANNEL)
        os.close(writer)

    def told(self) -> str:
        try:
            return "".join(sorted(os.read(self._reader, 4096).decode()))
        except BlockingIOError:
            return ""

    def close(self) -> None:
        os.close(self._reader)
        os.close(CHANNEL)


@pytest.fixture
def channel() -> Iterable[Channel]:
    gc.collect()  # modules of other tests
    opened = Channel()
    yield opened
    opened.close()


@pytest.fixture
def provider(cache: Cache) -> Cache:
    """Five functions in one module, and one in another that calls them all."""
    names = [f"f{number}" for number in range(5)]
    cache.add_module(ModuleSource(telling("".join(adder(name, number) for number, name in enumerate(names)))))
    cache.add_module(ModuleSource(sum_of("total", names), imports=names))
    return cache


def test_several_functions_of_a_module_share_one_mapping(provider: Cache, directory: Path, channel: Channel) -> None:
    total = provider.get_target("total")
    assert channel.told() == "C"
    assert total(1) == 15
    assert mapped_images(directory) == 2
    state = provider.loaded()
    assert (len(state.modules), provider._loader.opened) == (2, 2)
    assert provider.get_target("f3")(1) == 4  # what is loaded is used
    assert channel.told() == ""
    del total
    gc.collect()
    assert channel.told() == "D"
    assert mapped_images(directory) == 0


def test_modules_that_import_each_other_are_mapped_once(cache: Cache, directory: Path, channel: Channel) -> None:
    functions = PARITY.format(name="even", other="odd", at_zero=1) + PARITY.format(name="even2", other="odd2", at_zero=1)
    cache.add_module(ModuleSource(telling(functions, 1), imports=["odd", "odd2"]))
    functions = PARITY.format(name="odd", other="even2", at_zero=0) + PARITY.format(name="odd2", other="even", at_zero=0)
    cache.add_module(ModuleSource(telling(functions, 2), imports=["even", "even2"]))
    target = cache.get_target("even")
    assert channel.told() == "CC"
    assert [target(number) for number in range(5)] == [1, 0, 1, 0, 1]
    assert mapped_images(directory) == 2
    del target
    gc.collect()
    assert channel.told() == "DD"


@pytest.mark.slow
@pytest.mark.parametrize(("commits", "told"), [(0, ""), (1, "CD")], ids=["before constructors run", "afterwards"])
def test_a_load_that_fails_destroys_once_what_it_constructed(provider: Cache, channel: Channel, commits: int, told: str) -> None:
    provider.add_module(ModuleSource(sum_of("more", ["total", "f4"]), imports=["total", "f4"]))
    real = runtime_module._loaded

    class NoCommit:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def commit(self, *arguments: object) -> None:
            done.append(arguments)
            if len(done) > commits:
                raise MemoryError
            real.commit(*arguments)

    done: list[object] = []
    runtime_module._loaded = NoCommit()
    try:
        with pytest.raises(MemoryError):
            provider.get_target("more")
    finally:
        runtime_module._loaded = real
    done.clear()
    gc.collect()
    assert channel.told() == told
    assert provider.get_target("more")(1) == 20
    gc.collect()
    assert channel.told() == "CD"


@pytest.mark.slow
def test_threads_that_need_one_module_share_one_mapping(provider: Cache, channel: Channel) -> None:
    names = ["total", "f0", "f1", "f2", "f3", "f4"]
    for _ in range(10):
        start = threading.Barrier(len(names))
        found: dict[str, Any] = {}

        def load(name: str, start: threading.Barrier = start, found: dict[str, Any] = found) -> None:
            start.wait()
            found[name] = provider.get_target(name)

        threads = [threading.Thread(target=load, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[name](1) for name in names] == [15, 1, 2, 3, 4, 5]
        assert channel.told() == "C"
        found.clear()
        gc.collect()
        assert channel.told() == "D"


def test_each_file_is_opened_once_per_load(directory: Path) -> None:
    names = [f"f{number}" for number in range(40)]
    with Cache(directory) as cache:
        cache.add_module(ModuleSource("".join(adder(name, 1) for name in names)))
        cache.add_module(ModuleSource(sum_of("some", names[:20]), imports=names[:20]))
        cache.add_module(ModuleSource(sum_of("all", [*names, "some"]), imports=[*names, "some"]))
    files = FaultyFiles(directory, count=lambda step: step.name == "open" and step.path.endswith(".ccm"))
    cache = cache_on(files)
    assert cache.get_target("all")(0) == 60
    opened = [step.path for step in files.operations]
    assert len(opened) == len(set(opened)) == 3


def test_a_held_target_survives_the_end_of_the_process(directory: Path) -> None:
    """`on_exit` in a constructor: with a second mapping, unmapped again, the process would jump into nothing."""
    text = telling(
        "declare i32 @on_exit(ptr, ptr)\n"
        "define internal void @at_exit(i32 %status, ptr %x) {\n  %n = call i64 @write(i32 900, ptr @D, i64 1)\n  ret void\n}\n"
        + "".join(adder(f"f{number}", number) for number in range(3))
    ).replace("define internal void @begin() {", "define internal void @begin() {\n  %r = call i32 @on_exit(ptr @at_exit, ptr null)")
    with Cache(directory) as cache:
        cache.add_module(ModuleSource(text))
        cache.add_module(ModuleSource(sum_of("total", ["f0", "f1", "f2"]), imports=["f0", "f1", "f2"]))
    script = f"""
        import os
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        child = os.fork()
        if child == 0:
            os.dup2(writer, {CHANNEL})
            import compcache
            target = compcache.Cache(directory).get_target("total")
            assert target(1) == 6
            sys.exit()
        _, status = os.waitpid(child, 0)
        result = status, os.read(reader, 100).decode()
    """
    status, told = run_fresh(directory, script)
    assert (status, sorted(told)) == (0, ["C", "D", "D"])  # the destructor, and what the constructor registered


def test_a_constructor_that_asks_for_its_own_module_gets_it(cache: Cache) -> None:
    text = """\
@text = private constant [33 x i8] c"import builtins; builtins.hook()\\00"
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @begin, ptr null }]
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyRun_SimpleString(ptr)
define internal void @begin() {
  %state = call i32 @PyGILState_Ensure()
  %r = call i32 @PyRun_SimpleString(ptr @text)
  call void @PyGILState_Release(i32 %state)
  ret void
}
"""
    cache.add_module(ModuleSource(text + adder("f", 1) + adder("g", 2)))
    cache.add_module(ModuleSource(adder("h", 3)))
    asked: list[object] = []

    def hook() -> None:
        assert cache.get_target("h")(0) == 3
        asked.extend(cache.get_target(name)(10) for name in ("f", "g"))

    import builtins

    builtins.hook = hook  # type: ignore[attr-defined]
    try:
        assert cache.get_target("f")(0) == 1
    finally:
        del builtins.hook  # type: ignore[attr-defined]
    assert asked == [11, 12]
    assert cache.get_target("g")(0) == 2


# ------------------------------------------------------------------- what mapping runs, every function needs

#: `unrelated` needs nothing, but what runs while the image is mapped calls a native that another process may lack.
RUN_BY_MAPPING = {
    "constructor": """\
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @outer, ptr null }]
""",
    "destructor": """\
@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @outer, ptr null }]
""",
    "section": """\
@entry = internal constant ptr @outer, section ".init_array.00200"
@llvm.used = appending global [1 x ptr] [ptr @entry], section "llvm.metadata"
""",
    "ifunc": """\
@chosen = internal ifunc void (), ptr @resolve
define internal ptr @resolve() {
  call void @outer()
  ret ptr @outer
}
define void @use() {
  call void @chosen()
  ret void
}
""",
}
AROUND = """\
declare i32 @only_in_my_library()
define internal void @outer() {
  call void @inner()
  ret void
}
define internal void @inner() noinline {
  %r = call i32 @only_in_my_library()
  ret void
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with the native that the modules call."""
    linker = find_linker()
    if linker is None:
        pytest.skip("no linker on this machine")
    path = tmp_path_factory.mktemp("library") / "mine.so"
    code = compile_object("define i32 @only_in_my_library() {\n  ret i32 0\n}\n")
    path.write_bytes(link_shared(linker, [code], soname="mine.so"))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUN_BY_MAPPING)
def test_what_mapping_runs_is_needed_by_every_function(directory: Path, library: Path, kind: str) -> None:
    text = RUN_BY_MAPPING[kind] + AROUND + adder("unrelated", 1)
    script = f"""
        import ctypes, os
        import compcache
        loaded = os.environ["LOADED"] == "yes"
        if loaded:
            ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL)
        cache = compcache.Cache(directory)
        if loaded:
            cache.add_module(compcache.ModuleSource({text!r}, optimize=1))
        try:
            result = cache.get_target("unrelated")(1)
        except compcache.UndefinedSymbolError as error:
            result = list(error.symbols)
    """
    assert run_fresh(directory, script, LOADED="yes") == 2
    assert run_fresh(directory, script, LOADED="no") == ["only_in_my_library"]


@pytest.mark.parametrize("kind", sorted(RUN_BY_MAPPING.keys() - {"constructor", "destructor"}))
def test_what_mapping_runs_cannot_use_what_is_bound_afterwards(cache: Cache, kind: str) -> None:
    text = RUN_BY_MAPPING[kind] + AROUND + adder("unrelated", 1)
    with pytest.raises(CompileError, match="'only_in_my_library'"):
        cache.add_module(ModuleSource(text, imports=["only_in_my_library"], optimize=1))
