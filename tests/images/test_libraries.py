"""What C++ and other languages expect of a shared object: its own handle, finalizers, and libraries that are named."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from helpers import run_fresh

from compcache import Cache, LibraryError, ModuleSource, UndefinedSymbolError
from compcache.build.recipe import read_recipe
from compcache.images.elf.reading import needed_libraries
from compcache.linker import rebuild_module

if TYPE_CHECKING:
    from pathlib import Path

#: What a C++ compiler makes of a static object with a destructor: it registers for the image that it is in.
REGISTERED = """\
@__dso_handle = external hidden global i8
@text = private constant [9 x i8] c"finished\\00"
@object = internal global i64 7
declare i32 @__cxa_atexit(ptr, ptr, ptr)
declare i32 @puts(ptr)
define internal void @finish(ptr %object) {
  store i64 -1, ptr %object
  call i32 @puts(ptr @text)
  ret void
}
define internal void @start() {
  call i32 @__cxa_atexit(ptr @finish, ptr @object, ptr @__dso_handle)
  ret void
}
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @start, ptr null }]
define i64 @value() {
  %value = load i64, ptr @object
  ret i64 %value
}
"""
#: The same by atexit, which every shared object has of its own.
AT_EXIT = """\
@text = private constant [9 x i8] c"finished\\00"
declare i32 @atexit(ptr)
declare i32 @puts(ptr)
define internal void @finish() {
  call i32 @puts(ptr @text)
  ret void
}
define i32 @value() {
  %status = call i32 @atexit(ptr @finish)
  ret i32 %status
}
"""
AT_FORK = """\
@forks = internal global i32 0
declare i32 @pthread_atfork(ptr, ptr, ptr)
define internal void @count() {
  %old = load i32, ptr @forks
  %new = add i32 %old, 1
  store i32 %new, ptr @forks
  ret void
}
define i32 @register() {
  %status = call i32 @pthread_atfork(ptr @count, ptr null, ptr null)
  ret i32 %status
}
define i32 @forked() {
  %value = load i32, ptr @forks
  ret i32 %value
}
"""
RUN = """
import os, subprocess
script = (
    "import sys; sys.path.insert(0, %r); from compcache import Cache; c = Cache(%r); t = c.get_target('value'); t();"
    % (sys.path[0], directory)
    + {ending!r}
)
done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", script], capture_output=True, text=True)
result = done.returncode, done.stdout, done.stderr
"""
ENDINGS = {
    "held": "",
    "dropped": "del t; import gc; gc.collect(); print('dropped', flush=True)",
    "unloaded": "c.unload('value'); del t; print('unloaded', flush=True)",
    "closed": "c.close(); del t; print('closed', flush=True)",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("source", [REGISTERED, AT_EXIT], ids=["static object", "atexit"])
def test_what_an_image_registers_runs_once_when_it_goes(cache: Cache, source: str, ending: str) -> None:
    cache.add_module(ModuleSource(source))
    status, out, errors = run_fresh(cache.path, RUN.replace("{ending!r}", repr(ENDINGS[ending])))
    assert (status, errors) == (0, "")
    assert out.count("finished") == 1


def test_handlers_of_forks_go_with_their_image(cache: Cache) -> None:
    cache.add_module(ModuleSource(AT_FORK))
    script = """
    import gc, os
    from compcache import Cache
    cache = Cache(directory)
    register, forked = cache.get_target("register"), cache.get_target("forked")
    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    register()
    fork()
    result = [forked()]
    del register, forked
    gc.collect()
    fork()  # what was registered would run unmapped code
    result.append(cache.get_target("forked")())
    """
    assert run_fresh(cache.path, script) == [1, 0]


LIBRARY_C = "int from_library = 41;\n__thread int of_thread = 6;\nint add_one(int x) { return x + 1; }\n"
USER = """\
@from_library = external global i32
declare i32 @add_one(i32)
define i32 @answer() {
  %value = load i32, ptr @from_library
  %more = call i32 @add_one(i32 %value)
  ret i32 %more
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    directory = tmp_path_factory.mktemp("library")
    (directory / "own.c").write_text(LIBRARY_C)
    path = directory / "libown.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, directory / "own.c"], check=True)
    return path


def test_a_named_library_comes_with_the_code(cache: Cache, library: Path) -> None:
    cache.add_module(ModuleSource(USER, libraries=[str(library)]))
    assert cache.get_target("answer")() == 42
    script = "from compcache import Cache; result = Cache(directory).get_target('answer')()"
    assert run_fresh(cache.path, script) == 42


def test_a_link_before_two_dots_in_the_path_of_a_library_is_followed(cache: Cache, library: Path, tmp_path: Path) -> None:
    inner = tmp_path / "real" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "link").symlink_to(inner)
    shutil.copy(library, tmp_path / "real")
    path = f"{tmp_path}/link/../{library.name}"
    of_thread = "@of_thread = external thread_local global i32\ndefine i32 @get() {\n%x = load i32, ptr @of_thread\nret i32 %x\n}\n"
    for code in (USER, of_thread):
        cache.add_module(ModuleSource(code, libraries=[path]))
    script = "from compcache import Cache; result = [Cache(directory).get_target(name)() for name in ('answer', 'get')]"
    assert run_fresh(cache.path, script) == [42, 6]


def test_a_library_that_is_gone_is_named(cache: Cache, library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "libgone.so"
    shutil.copy(library, copy)
    cache.add_module(ModuleSource(USER, libraries=[str(copy)]))
    copy.unlink()
    script = """
    from compcache import Cache, CompcacheError
    try:
        Cache(directory).get_target("answer")
    except CompcacheError as error:
        result = str(error)
    """
    assert "libgone.so" in run_fresh(cache.path, script)


def test_a_library_that_is_not_there_is_refused(cache: Cache) -> None:
    for name in ("no-such-thing", "libno-such-thing.so.9"):
        with pytest.raises(LibraryError, match=name) as caught:
            cache.add_module(ModuleSource(USER, libraries=[name]))
        assert caught.value.library == name


def using(symbol: str) -> ModuleSource:
    """A module with a function that calls this symbol."""
    return ModuleSource(f'declare void @"{symbol}"()\ndefine void @f() {{\n  call void @"{symbol}"()\n  ret void\n}}\n')


@pytest.mark.parametrize(
    ("symbol", "advice"),
    [
        ("_FortranAStop", r"archives=\['libflang_rt.runtime.a'\]"),
        ("__zig_probe", "-fcompiler-rt"),
        ("__ubsan_handle_nothing", r"libraries=\['ubsan'\]"),
        ("__ubsan_handle_nothing_minimal", r"libclang_rt.ubsan_minimal.* in archives="),
        ("__asan_nothing", "without -fsanitize"),
        ("__safestack_nothing", "without -fsanitize"),
        ("nobody", "libraries="),
    ],
)
def test_missing_symbols_are_told_as_people_write_them_and_where_they_are(cache: Cache, symbol: str, advice: str) -> None:
    with pytest.raises(UndefinedSymbolError, match=advice):
        cache.add_module(using(symbol))


@pytest.mark.parametrize(("symbol", "advice"), [("helper", "as an operand, or add"), ("__none", "in archives=")])
def test_symbols_that_only_assembly_names_are_not_taken_for_those_of_the_compiler(cache: Cache, symbol: str, advice: str) -> None:
    """Code generators call helper routines without a declaration, too. Their names begin with an underscore."""
    with pytest.raises(UndefinedSymbolError, match=f"'{symbol}'.*{advice}"):
        cache.add_module(ModuleSource(f'define void @f() {{\n  call void asm sideeffect ".quad {symbol}", ""()\n  ret void\n}}\n'))


@pytest.mark.parametrize("more", ["", '@llvm.compiler.used = appending global [1 x ptr] [ptr @__hwasan_tls], section "llvm.metadata"\n'])
def test_thread_local_variables_of_sanitizers_are_told_as_their_functions(cache: Cache, more: str) -> None:
    """Clang lists the variable as used, so that its own optimizations keep it."""
    code = "@__hwasan_tls = external thread_local(initialexec) global i64\ndefine ptr @f() {\n  ret ptr @__hwasan_tls\n}\n"
    with pytest.raises(UndefinedSymbolError, match=r"'__hwasan_tls'.* without -fsanitize"):
        cache.add_module(ModuleSource(code + more))


_RUST_USER = "declare void @_RNvC6_123foo3bar()\ndefine void @f() {\n  call void @_RNvC6_123foo3bar()\n  ret void\n}\n"


def test_names_of_rust_are_told_as_the_first_demangler_on_the_path_prints_them(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "c++filt"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ntest "$1" = _RNvC6_123foo3bar && echo "123foo::bar"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(UndefinedSymbolError, match=r"'_RNvC6_123foo3bar' \(123foo::bar\)"):
        cache.add_module(ModuleSource(_RUST_USER))
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(UndefinedSymbolError, match=r"'_RNvC6_123foo3bar', which"):
        cache.add_module(ModuleSource(_RUST_USER))
    program.unlink()
    with pytest.raises(UndefinedSymbolError, match=r"'_RNvC6_123foo3bar', which"):
        cache.add_module(ModuleSource(_RUST_USER))


def test_an_import_that_is_missing_when_it_is_loaded_is_told_demangled(cache: Cache) -> None:
    source = "declare void @_ZN4BaseD2Ev()\ndefine void @f() {\n  call void @_ZN4BaseD2Ev()\n  ret void\n}\n"
    cache.add_module(ModuleSource(source, imports=["_ZN4BaseD2Ev"]))
    with pytest.raises(UndefinedSymbolError, match=r"'_ZN4BaseD2Ev' \(Base::~Base\(\)\)"):
        cache.get_target("f")


def test_one_library_may_be_given_as_a_text(cache: Cache, library: Path) -> None:
    cache.add_module(ModuleSource(USER, libraries=str(library)))
    assert cache.get_target("answer")() == 42


def test_retargeted_code_brings_its_libraries(cache: Cache, library: Path) -> None:
    module_id = cache.add_module(ModuleSource(USER, libraries=[str(library)]))
    with cache._store.open_module(bytes.fromhex(module_id)) as module:
        footer = module.footer()
        section = module.read(footer.image + footer.records + footer.graph, footer.bitcode)
        recipe = read_recipe(section, module.read_record)
    built = rebuild_module(recipe, {}, {}, cache._store.host())
    assert any(name.endswith("libown.so") for name in needed_libraries(built.sections[0]))


#: What C++ has of templates that a library may have as well: a body for the optimizer alone. Optimized at level 0, it is called.
FOR_THE_OPTIMIZER = """\
@shared = available_externally constant i64 5
define available_externally i64 @body(i64 %x) {
  %shared = load volatile i64, ptr @shared
  %y = add i64 %x, %shared
  ret i64 %y
}
define i64 @calls(i64 %x) {
  %y = call i64 @body(i64 %x)
  ret i64 %y
}
"""


@pytest.mark.parametrize("level", [0, 2])
def test_a_body_for_the_optimizer_is_used_where_nothing_provides_one(cache: Cache, level: int) -> None:
    cache.add_module(ModuleSource(FOR_THE_OPTIMIZER, optimize=level))
    assert cache.get_target("calls")(4) == 9


SEVERAL = """\
declare void @_ZNSt6thread4joinEv(ptr)
declare void @_RNvNtCsgEmfK2I1SDS_4core9panicking5panic()
declare i64 @nobodys(i64)
declare i64 @nobody_calls_this(i64)
@nobodys_variable = external global i64
define i64 @f(i64 %x) {
  call void @_ZNSt6thread4joinEv(ptr null)
  call void @_RNvNtCsgEmfK2I1SDS_4core9panicking5panic()
  %y = call i64 @nobodys(i64 %x)
  %z = load i64, ptr @nobodys_variable
  ret i64 %z
}
"""


def test_each_of_several_missing_symbols_gets_its_own_advice(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compcache.build.slots.loaded_libraries", tuple)  # as in a process without libstdc++
    with pytest.raises(UndefinedSymbolError) as caught:
        cache.add_module(ModuleSource(SEVERAL))
    assert len(caught.value.symbols) == 4
    assert "nobody_calls_this" not in str(caught.value)
    first, *lines = str(caught.value).splitlines()
    assert "4 symbols" in first
    for symbol, advice in (
        ("_ZNSt6thread4joinEv' (std::thread::join())", "libraries=['stdc++']"),
        ("_RNvNtCsgEmfK2I1SDS_4core9panicking5panic", "--crate-type=staticlib"),
        ("nobodys'", "imports="),
        ("nobodys_variable'", "globals= with its value"),
    ):
        assert any(symbol in line and advice in line for line in lines), (symbol, lines)


def test_code_of_numbas_is_told_what_to_do(cache: Cache) -> None:
    """What `inspect_llvm()` gives needs the run time of the process that made it."""
    with pytest.raises(UndefinedSymbolError, match=r"'NRT_Free', .*: this code comes from Numba \(.*compcache\.numba\.njit"):
        cache.add_module(ModuleSource(
            "declare void @NRT_Free(ptr)\ndefine void @f(ptr %x) {\n  call void @NRT_Free(ptr %x)\n  ret void\n}\n"
        ))


def test_advice_names_no_library_that_is_not_there(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compcache.images.libraries._is_installed", lambda name: name != "objc")
    with pytest.raises(UndefinedSymbolError, match=r"libraries=\['objc'\], after installing this library"):
        cache.add_module(ModuleSource(
            "declare i64 @objc_msgSend(i64)\ndefine i64 @f(i64 %x) {\n  %y = call i64 @objc_msgSend(i64 %x)\n  ret i64 %y\n}\n"
        ))
