"""Source code through compilers: `compcache.clang.compile`, and files of source in `compcache add`."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from cli_process import compcache
from helpers import run_fresh

from compcache import Cache, CompileError, UndefinedSymbolError, clang

if TYPE_CHECKING:
    from pathlib import Path

needs_clang = pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
SCALE = "#define FACTOR 2.5\ndouble scale(double x) { return FACTOR * x; }\nstatic int unseen(void) { return 1; }\n"
#: Files that were written later before a compiler starts are looked at again by the next start (`compcache.clang.run`).
_SETTLED = 0.05
COUNTING = """#!/bin/sh
echo "$@" >> "{log}"
exec {clang} "$@"
"""

COROUTINE = """
#include <coroutine>
struct Numbers {
    struct promise_type {
        long value;
        Numbers get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(long next) { value = next; return {}; }
        void return_void() {}
        void unhandled_exception() {}
    };
    std::coroutine_handle<promise_type> handle;
};
static Numbers below(long end) { for (long i = 0; i < end; i++) co_yield i; }
extern "C" long sum_below(long end) {
    Numbers numbers = below(end);
    long sum = 0;
    for (numbers.handle.resume(); !numbers.handle.done(); numbers.handle.resume()) sum += numbers.handle.promise().value;
    numbers.handle.destroy();
    return sum;
}
"""


@pytest.fixture
def counting(tmp_path: Path) -> tuple[str, Path]:
    """A compiler that leaves a line for each of its runs, and where."""
    log, script = tmp_path / "runs", tmp_path / "counting-clang"
    log.touch()
    script.write_text(COUNTING.format(log=log, clang=shutil.which("clang")), encoding="utf-8")
    script.chmod(0o755)
    return str(script), log


@needs_clang
def test_c_is_compiled_to_functions(cache: Cache) -> None:
    kernels = clang.compile(SCALE, cache=cache)
    assert list(kernels) == ["scale"]
    assert kernels.scale(4.0) == 10.0
    assert str(kernels.scale.signature) == "f64(f64)"


@pytest.mark.slow
@needs_clang
def test_a_source_without_visible_functions_is_refused_and_only_its_own_names_are_told(cache: Cache) -> None:
    with pytest.raises(CompileError, match="c defines no externally visible function"):
        clang.compile("static int unseen(void) { return 1; }", cache=cache)
    with pytest.raises(UndefinedSymbolError, match="functions= names 'other', which the module does not define; the module defines scale"):
        clang.compile(SCALE, cache=cache, functions={"other": "i32()"})


@pytest.mark.slow
@needs_clang
def test_a_hit_runs_no_compiler_and_imports_nothing_slow(cache: Cache, counting: tuple[str, Path]) -> None:
    compiler, log = counting
    clang.compile(SCALE, cache=cache, cc=compiler)
    runs = log.read_text(encoding="utf-8")
    assert runs
    script = f"""
    from compcache import Cache, clang
    kernels = clang.compile({SCALE!r}, cache=Cache(directory), cc={compiler!r})
    result = kernels.scale(2.0), [name for name in ("llvmlite", "subprocess", "logging", "msgpack") if name in sys.modules]
    """
    assert run_fresh(cache.path, script) == (5.0, [])
    assert log.read_text(encoding="utf-8") == runs


@pytest.mark.slow
@needs_clang
def test_what_is_known_by_its_preprocessed_source_imports_no_llvm(cache: Cache, tmp_path: Path) -> None:
    first, moved = tmp_path / "scale.c", tmp_path / "moved" / "scale.c"
    first.write_text(SCALE, encoding="utf-8")
    clang.compile(first, cache=cache)
    moved.parent.mkdir()
    moved.write_text(f"/* moved, by some lines as well */\n\n{SCALE}", encoding="utf-8")
    script = f"""
    from compcache import Cache, clang
    result = clang.compile({str(moved)!r}, cache=Cache(directory)).scale(2.0), "llvmlite" in sys.modules
    """
    assert run_fresh(cache.path, script) == (5.0, False)


@pytest.mark.slow
@needs_clang
def test_after_an_edit_of_a_header_only_the_first_start_runs_the_compiler(cache: Cache, counting: tuple[str, Path], tmp_path: Path) -> None:
    compiler, log = counting
    header, source = tmp_path / "factor.h", tmp_path / "scale.c"
    source.write_text('#include "factor.h"\nlong scale(long x) { return FACTOR * x; }\n', encoding="utf-8")
    for factor in (2, 3):
        header.write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
        time.sleep(_SETTLED)
        assert clang.compile(source, cache=cache, cc=compiler).scale(10) == 10 * factor
    runs = log.read_text(encoding="utf-8")
    assert clang.compile(source, cache=cache, cc=compiler).scale(10) == 30
    assert log.read_text(encoding="utf-8") == runs


@pytest.mark.slow
@needs_clang
def test_what_is_removed_after_it_was_found_is_compiled_again(cache: Cache, tmp_path: Path) -> None:
    source = tmp_path / "two.c"
    source.write_text("long one(long x) { return x + 1; }\nlong two(long x) { return x + 2; }\n", encoding="utf-8")
    clang.compile(source, cache=cache)
    script = f"""
    import shutil, pathlib
    from compcache import Cache, clang, CompileError
    kernels = clang.compile({str(source)!r}, cache=Cache(directory))
    shutil.rmtree(directory)
    result = [kernels.two(1)]
    kernels = clang.compile({str(source)!r}, cache=Cache(directory))
    shutil.rmtree(directory)
    pathlib.Path({str(source)!r}).write_text("long one(long x) {{ return x; }}")
    try:
        kernels.one(1)
    except CompileError as error:
        result.append(str(error))
    """
    told = "two.c was changed after it was compiled, and the earlier code was removed from the cache: compile the source again"
    assert run_fresh(cache.path, script) == [3, told]


@pytest.mark.slow
@needs_clang
def test_a_changed_header_is_seen(cache: Cache, tmp_path: Path) -> None:
    header, source = tmp_path / "factor.h", tmp_path / "scale.c"
    source.write_text('#include "factor.h"\nlong scale(long x) { return FACTOR * x; }\n', encoding="utf-8")
    for factor in (2, 3, 2):
        header.write_text(f"#define FACTOR {factor}\n", encoding="utf-8")
        assert clang.compile(source, cache=cache).scale(10) == 10 * factor


@pytest.mark.slow
@needs_clang
def test_what_the_preprocessor_drops_changes_no_name(cache: Cache) -> None:
    first = clang.compile(SCALE, cache=cache).func_names
    assert clang.compile("/* said otherwise */\n" + SCALE, cache=cache).func_names == first
    assert clang.compile(SCALE, flags=["-O1"], cache=cache).func_names != first
    assert clang.compile(SCALE, flags=["-O2", "-DFACTOR2"], cache=cache).func_names != first


@needs_clang
def test_signatures_and_names_of_files_are_taken(cache: Cache, tmp_path: Path) -> None:
    source = tmp_path / "sum.c"
    source.write_text("double sum(const double *x, long n) { double s = 0; while (n--) s += *x++; return s; }\n", encoding="utf-8")
    kernels = clang.compile(str(source), functions={"sum": "f64(ptr, i64)"}, cache=cache)
    assert list(kernels) == ["sum"]
    assert kernels.func_names["sum"].startswith("sum-")


@needs_clang
def test_what_the_compiler_reports_is_told(cache: Cache) -> None:
    with pytest.raises(CompileError, match=r"clang reports errors:\n[^\n]*error: expected"):
        clang.compile("long broken( {\n", cache=cache)
    with pytest.raises(CompileError, match=r"no-such-compiler.*is not installed"):
        clang.compile(SCALE, cc="no-such-compiler", cache=cache)
    with pytest.raises(CompileError, match="'cobol' is not supported"):
        clang.compile(SCALE, language="cobol", cache=cache)


@needs_clang
def test_surrogates_are_the_bytes_for_which_they_stand_and_nothing_else(cache: Cache) -> None:
    assert clang.compile('unsigned char first(void) { return "\udcff"[0]; }', cache=cache).first() == 255
    for source, flags in (("// \ud800\n" + SCALE, None), ("\ud800.c", None), (SCALE, ["-DX=\ud800"])):
        with pytest.raises(CompileError, match="contains the surrogate"):
            clang.compile(source, flags=flags, cache=cache)


@pytest.mark.parametrize(("end", "text"), [("kill -9 $$", r"cc was ended by signal 9 \(Killed\)"), ("exit 3", "ended with status 3")])
def test_the_end_of_a_compiler_without_a_message_is_told(cache: Cache, tmp_path: Path, end: str, text: str) -> None:
    """Such as one that the system ends because the memory is short."""
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{end}\n", encoding="utf-8")
    compiler.chmod(0o755)
    with pytest.raises(CompileError, match=text):
        clang.compile(SCALE, cc=str(compiler), cache=cache)


def test_a_compiler_without_llvm_is_refused(cache: Cache) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    with pytest.raises(CompileError, match="does not write LLVM bitcode"):
        clang.compile(SCALE, cc="gcc", cache=cache)


@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_cpp_by_language(cache: Cache) -> None:
    text = 'template <class T> T twice(T x) { return x + x; }\nextern "C" long twice_long(long x) { return twice(x); }\n'
    assert clang.compile(text, language="c++", functions={"twice_long": None}, cache=cache).twice_long(21) == 42


@pytest.mark.slow
@needs_clang
def test_coroutines_are_divided_by_the_compiler_that_made_them(cache: Cache, tmp_path: Path) -> None:
    source = tmp_path / "sum.cpp"
    source.write_text(COROUTINE, encoding="utf-8")
    checked = subprocess.run(["clang++", "-std=c++20", "-fsyntax-only", source], capture_output=True, check=False)
    if checked.returncode:
        pytest.skip("this C++ library has no coroutines")
    script = f"""
    from compcache import Cache, clang
    result = clang.compile({str(source)!r}, flags=["-O2", "-std=c++20"], cache=Cache(directory)).sum_below(10)
    """
    assert run_fresh(cache.path, script) == 45  # LLVM may end the process


@pytest.mark.slow
@pytest.mark.parametrize("flags", [None, []])
def test_rust_by_the_ending_of_the_file(cache: Cache, tmp_path: Path, flags: list[str] | None) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    source = tmp_path / "triple.rs"
    source.write_text('#[no_mangle]\npub extern "C" fn triple(x: i64) -> i64 { x.wrapping_mul(3) }\n', encoding="utf-8")
    try:
        kernels = clang.compile(source, cache=cache, flags=flags)
    except CompileError as error:
        if "LLVM does not accept" in str(error):
            pytest.skip(f"this rustc writes bitcode of a newer LLVM: {error}")
        raise
    assert kernels.triple(14) == 42


@pytest.mark.slow
@needs_clang
def test_files_of_source_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "k.h").write_text("#define K 5\n", encoding="utf-8")
    (tmp_path / "x.c").write_text('#include "k.h"\nlong add_k(long x) { return x + K + MORE; }\n', encoding="utf-8")
    directory = os.fspath(tmp_path / "cache")
    done = compcache("--dir", directory, "add", tmp_path / "x.c", "--", "-O1", "-DMORE=10")
    assert done.status == 0, done.err
    assert Cache(directory).get_target("add_k")(1) == 16
    done = compcache("--dir", directory, "add", tmp_path / "x.c")
    assert done.status == 2
    assert "clang reports errors" in done.err


ONCE = """
#include <mutex>
#include <stdexcept>
static std::once_flag flag;
static long runs;
thread_local long calls;
extern "C" long once(void) { std::call_once(flag, [] { ++runs; }); return 10 * runs + ++calls; }
extern "C" long caught(long x) { try { if (x < 0) throw std::out_of_range("below"); return x; } catch (std::exception &) { return 0; } }
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_what_the_driver_links_by_itself_needs_no_name(cache: Cache) -> None:
    """C++'s library, with thread-local variables of its own (`std::__once_call`)."""
    clang.compile(ONCE, language="c++", cache=cache)
    script = f"""
    from compcache import Cache, clang
    kernels = clang.compile({ONCE!r}, language="c++", cache=Cache(directory))
    result = [kernels.once(), kernels.once(), kernels.caught(-1), kernels.caught(5)]
    """
    assert run_fresh(cache.path, script) == [11, 12, 0, 5]


@pytest.mark.slow
@needs_clang
def test_libraries_of_flags_are_found_where_flags_say(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "own.c").write_text("__thread long mine = 5;\nlong own(long x) { return x + mine; }\n", encoding="utf-8")
    command = ["clang", "-shared", "-fPIC", "own.c", "-o", "libcompcache_own.so", "-Wl,-soname,libcompcache_own.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    text = "long own(long);\nextern __thread long mine;\nlong use(long x) { mine += 2; return own(x); }\n"
    flags = ["-O1", f"-L{tmp_path}", "-lcompcache_own"]
    clang.compile(text, flags=flags, cache=cache)
    script = f"""
    from compcache import Cache, clang
    result = clang.compile({text!r}, flags={flags!r}, cache=Cache(directory)).use(1)
    """
    assert run_fresh(cache.path, script) == 8


RUST = """
use std::cell::RefCell;
use std::panic;
struct Noted(i64);
static NOTES: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);
impl Drop for Noted { fn drop(&mut self) { NOTES.fetch_add(self.0, std::sync::atomic::Ordering::SeqCst); } }
thread_local! { static HELD: RefCell<Vec<Noted>> = RefCell::new(Vec::new()); }
#[no_mangle] pub extern "C" fn caught(n: i64) -> i64 {
    panic::set_hook(Box::new(|_| {}));
    match panic::catch_unwind(|| {
        let _one = Noted(1);
        if n % 3 == 0 { panic!("bad {}", n); }
        vec![7i64; n as usize][(2 * n) as usize % 5]
    }) {
        Ok(value) => value,
        Err(error) => -(error.downcast_ref::<String>().map_or(0, |text| text.len() as i64)),
    }
}
#[no_mangle] pub extern "C" fn threads(n: i64) -> i64 {
    let all: Vec<_> = (0..n).map(|i| std::thread::spawn(move || HELD.with(|held| held.borrow_mut().push(Noted(100 * i))))).collect();
    for one in all { one.join().unwrap(); }
    NOTES.load(std::sync::atomic::Ordering::SeqCst)
}
"""


@pytest.mark.peer
def test_rust_with_its_standard_library(cache: Cache, tmp_path: Path) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    (tmp_path / "noted.rs").write_text(RUST, encoding="utf-8")
    try:
        kernels = clang.compile(tmp_path / "noted.rs", cache=cache)
    except CompileError as error:
        if "LLVM does not accept" in str(error):
            pytest.skip(f"this rustc writes bitcode of a newer LLVM: {error}")
        raise
    assert [kernels.caught(n) for n in (3, 4, 12)] == [-5, 7, -6]
    assert kernels.threads(4) == 3 + 600


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_libraries_have_files_that_define_nothing(tmp_path: Path) -> None:
    texts = {
        "off.cpp": "#ifdef _WIN32\nint off;\n#endif\n",
        "streams.cpp": "#include <iostream>\n",
        "one.cpp": 'extern "C" long one(long x) { return x + 1; }\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = compcache("--dir", tmp_path / "cache", "add", *[tmp_path / name for name in texts])
    assert done.status == 0, done.err
    assert Cache(tmp_path / "cache").get_target("one")(1) == 2
