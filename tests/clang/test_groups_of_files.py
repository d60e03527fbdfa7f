"""Groups of files of C, C++ and Rust, beside the same files in a shared object that a linker has made with ``-Bsymbolic``."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from cli_process import compcache
from helpers import run_fresh

from compcache import CompileError
from compcache.clang.compilers import find_compiler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")

COMMON = """
template <class T> struct Manager { static T kept; static void run(T &x) { x += 1; } };
template <class T> T Manager<T>::kept = 5;
struct S { virtual int f() { return 1; } virtual ~S() {} };
struct D : S { int f() override { return 2; } };
typedef int (S::*Pointer)();
inline thread_local int per_thread = 5;
inline int counter = 0;
inline int plus(int x) { return x + 7; }
inline int numbered() { static int number; return ++number; }
"""
FILES = {
    "first.cpp": COMMON + r"""
void (*manager())(int &); Pointer pointer(); int (*plus_of_second())(int); S *made(); int per_thread_of_second();
__attribute__((weak)) int maybe(); __attribute__((weak)) int never();
__attribute__((visibility("hidden"))) int helper(int);
static int local(int x) { return x * 3; }
extern "C" {
extern int __start_numbers[], __stop_numbers[];
__attribute__((section("numbers"), used)) static int own = 1;
int same_manager() { return manager() == &Manager<int>::run; }
int same_pointer() { return pointer() == static_cast<Pointer>(&S::f); }
int same_function() { return plus_of_second() == plus; }
int virtual_call() { S *s = made(); int r = s->f(); delete s; return r; }
int thread_local_variable() { per_thread = 9; return per_thread_of_second(); }
int template_variable() { Manager<int>::kept = 6; extern int kept_of_second(); return kept_of_second(); }
int set() { int sum = 0; for (int *p = __start_numbers; p != __stop_numbers; ++p) sum += *p; return sum; }
int weak() { return (maybe ? maybe() : -1) * 10 + (never ? 1 : 0); }
int hidden() { return helper(1) + local(1); }
int statics() { extern int numbered_of_second(); return numbered() * 10 + numbered_of_second(); }
int inline_variable() { counter = 4; extern int counter_of_second(); return counter_of_second(); }
int gamma(int x) { return x + 1000; }
int error(int x) { return x + 2000; }
}
""",
    "second.cpp": COMMON + r"""
void (*manager())(int &) { return &Manager<int>::run; }
Pointer pointer() { return static_cast<Pointer>(&S::f); }
int (*plus_of_second())(int) { return plus; }
S *made() { return new D; }
int per_thread_of_second() { return per_thread; }
int maybe() { return 77; }
__attribute__((visibility("hidden"))) int helper(int x) { return x + 100; }
static int local(int x) { return x * 5; }
extern "C" {
__attribute__((section("numbers"), used)) static int own = 20;
int kept_of_second() { return Manager<int>::kept; }
int numbered_of_second() { return numbered(); }
int counter_of_second() { return counter; }
int local_of_second() { return local(1); }
int gamma(int); int error(int);
int platform() { return gamma(1) + error(1); }
int constructed = 3;
}
namespace { struct Start { Start() { constructed += 4; } } start; }
extern "C" int constructor() { return constructed; }
""",
}  # fmt: skip
NAMES = (
    "same_manager", "same_pointer", "same_function", "virtual_call", "thread_local_variable", "template_variable", "set", "weak", "hidden",
    "statics", "inline_variable", "local_of_second", "platform", "constructor",
)  # fmt: skip
FLAGS = ("-O1", "-std=c++17", "-fno-rtti", "-fno-builtin")

_CACHED = """
from compcache import Cache
with Cache(directory) as c:
    targets = [c.get_target(name) for name in names]
    result = [target() for target in targets]
"""
_LINKED = "import ctypes\nlibrary = ctypes.CDLL(path)\nresult = [getattr(library, name)() for name in names]\n"


def write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def answers_of_cache(directory: Path, names: Sequence[str]) -> list[int]:
    found: list[int] = run_fresh(directory, f"names = {names!r}\n{_CACHED}")
    return found


def answers_of_linker(files: Sequence[Path], names: Sequence[str], *words: object) -> list[int]:
    path = files[0].parent / "linked.so"
    command = ["clang++", "-shared", "-fPIC", "-Wl,-Bsymbolic", *map(str, files), *map(str, words), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    found: list[int] = run_fresh(files[0].parent / "unused", f"names = {names!r}\npath = {str(path)!r}\n{_LINKED}")
    return found


@pytest.mark.slow
def test_a_group_is_what_a_linker_makes_of_the_files(tmp_path: Path) -> None:
    """Templates, inline functions and variables, their addresses, virtual tables, thread-local variables, linker sets, weak references,
    hidden and internal names, names of the platform.
    """
    files = write(tmp_path, FILES)
    done = compcache("--dir", tmp_path / "cache", "add", *files, "--", *FLAGS)
    assert done.status == 0, done.err
    found = dict(zip(NAMES, answers_of_cache(tmp_path / "cache", NAMES), strict=True))
    assert found == dict(zip(NAMES, answers_of_linker(files, NAMES, *FLAGS), strict=True))
    assert found["set"] == 21


ARCHIVED = "static long count; long add(void) { return ++count; } long added(void) { return count; }\n"
USERS = {
    "one.c": "extern long add(void); extern long added(void); long one(void) { return add() * 10 + added(); }\n",
    "two.c": "extern long add(void); extern long added(void); long two(void) { return add() * 10 + added(); }\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("given_as_a_file", [False, True])
def test_an_archive_is_linked_once_and_a_file_comes_before_it(tmp_path: Path, *, given_as_a_file: bool) -> None:
    files, (archived,) = write(tmp_path, USERS), write(tmp_path, {"state.c": ARCHIVED})
    subprocess.run(["clang", "-fPIC", "-c", archived, "-o", tmp_path / "state.o"], check=True)
    subprocess.run(["ar", "rcs", tmp_path / "libstate.a", tmp_path / "state.o"], check=True)
    if given_as_a_file:
        archived.write_text(ARCHIVED.replace("++count", "count += 100"), encoding="utf-8")
        files.append(archived)
    done = compcache("--dir", tmp_path / "cache", "add", *files, "--archive", tmp_path / "libstate.a")
    assert done.status == 0, done.err
    assert answers_of_cache(tmp_path / "cache", ("one", "two", "one")) == ([1100, 2200, 3300] if given_as_a_file else [11, 22, 33])


RUST = {
    "catches.rs": """
extern "Rust" { fn fails(x: i64) -> i64; }
#[no_mangle] pub extern "C" fn caught() -> i64 {
    std::panic::set_hook(Box::new(|_| ()));
    std::panic::catch_unwind(|| unsafe { fails(5) }).unwrap_or(-7)
}
""",
    "panics.rs": """
use std::sync::atomic::{AtomicI64, Ordering};
static COUNT: AtomicI64 = AtomicI64::new(0);
#[no_mangle] pub fn fails(x: i64) -> i64 { COUNT.fetch_add(1, Ordering::SeqCst); if x > 3 { panic!("no") } x }
#[no_mangle] pub extern "C" fn count() -> i64 { COUNT.load(Ordering::SeqCst) }
""",
}


@pytest.mark.peer
def test_files_of_rust_have_one_standard_library(tmp_path: Path) -> None:
    """A panic of one is caught in the other."""
    try:
        find_compiler("rust", None)
    except CompileError as error:
        pytest.skip(str(error))
    done = compcache("--dir", tmp_path / "cache", "add", *write(tmp_path, RUST))
    if "LLVM does not accept" in done.err:
        pytest.skip(f"this rustc writes bitcode of a newer LLVM: {done.err}")
    assert done.status == 0, done.err
    assert answers_of_cache(tmp_path / "cache", ("caught", "caught", "count")) == [-7, -7, 2]


ANY = {
    "makes.cpp": """
#include <any>
#include <string>
std::any made() { return std::string("four"); }
void thrown() { throw std::string("six"); }
""",
    "takes.cpp": """
#include <any>
#include <iostream>
#include <string>
std::any made();
void thrown();
static std::string prefix = std::to_string(12345);
extern "C" int taken() { std::any a = made(); auto *s = std::any_cast<std::string>(&a); return s ? int(s->size()) : -1; }
extern "C" int caught() { try { thrown(); } catch (const std::string &s) { return int(s.size() + prefix.size()); } return -1; }
extern "C" int printed() { std::cout << "" << std::flush; return 1; }
""",
}  # fmt: skip


@pytest.mark.peer
def test_values_of_the_standard_library_go_from_file_to_file(tmp_path: Path) -> None:
    """`std::any` without type information compares addresses of templates' functions."""
    files, names = write(tmp_path, ANY), ("taken", "caught", "printed")
    done = compcache("--dir", tmp_path / "cache", "add", *files, "--", *FLAGS)
    assert done.status == 0, done.err
    assert answers_of_cache(tmp_path / "cache", names) == answers_of_linker(files, names, *FLAGS) == [4, 8, 1]
