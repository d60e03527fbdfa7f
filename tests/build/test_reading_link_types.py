"""Link types that are read off code of compilers: definition and use of one declaration are equal, and sizes are LLVM's."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
import pytest

from compcache import Cache, ModuleSource
from compcache.build import codegen
from compcache.build.ir_text import read_module
from compcache.build.link_types import read_link_types
from compcache.build.llvm_types import Types
from compcache.hit.link_types import type_digest, unite_types
from compcache.images.llvm_thread import in_llvm_thread
from compcache.miss.build import build_source

if TYPE_CHECKING:
    from pathlib import Path

HEADER = """\
#include <stdbool.h>
#include <stddef.h>
typedef struct {float x, y;} F2; typedef struct {float x, y, z;} F3; typedef struct {double x, y;} D2;
typedef struct {long a, b, c;} Big; typedef struct {void *p; size_t n;} Slice; typedef struct {char c[3];} C3;
typedef struct {int a; float f;} IF; typedef struct {double d; long n;} DL; typedef union {long n; double d; void *p;} U;
typedef int v4 __attribute__((vector_size(16)));
#define EACH(X) X(F2) X(F3) X(D2) X(Big) X(Slice) X(C3) X(IF) X(DL) X(U) X(v4) X(bool) X(char) X(short) X(int) X(float) X(__int128)
#define DECLARE(T) T f_##T(T, T *);
EACH(DECLARE)
int f_variable(const char *, ...);
extern int v_int; extern const int v_const; extern int v_array[10]; extern Big v_big; extern const char *v_text;
"""
DEFINITIONS = """\
#define DEFINE(T) T f_##T(T x, T *y) {*y = x; return x;}
EACH(DEFINE)
int f_variable(const char *format, ...) {return *format;}
int v_int = 3; const int v_const = 4; int v_array[10] = {1}; Big v_big = {1, 2, 3}; const char *v_text = "x";
"""
USES = """\
#define USE(T) T u_##T(T x, T *y) {return f_##T(x, y);}
EACH(USE)
void ignores(int x, int *y) {f_int(x, y);}
int uses(int x) {v_int = x; v_big.b = 7; return f_variable("x", 1) + f_variable("y", 2.0) + v_const + v_array[x] + v_text[x];}
"""
#: Sizes and alignments of these are LLVM's.
TYPES = ["i1", "i24", "i64", "i128", "i129", "float", "x86_fp80", "<3 x i32>", "<16 x i1>", "[5 x i16]", "ptr", "{ i8, i64, i8 }",
         "<{ i8, i64 }>", "[3 x { i16, [3 x i8] }]", "%pair", "{ i8, i128 }", "{ i1, x86_fp80 }"]  # fmt: skip


def compiled(directory: Path, name: str, code: str, *options: str) -> ModuleSource:
    clang = shutil.which("clang")
    if clang is None:
        pytest.skip("needs clang")
    (directory / f"{name}.c").write_text(HEADER + code)
    subprocess.run([clang, "-w", "-emit-llvm", "-c", *options, f"{name}.c", "-o", f"{name}.bc"], cwd=directory, check=True)
    return ModuleSource((directory / f"{name}.bc").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_what_one_declaration_is_of_has_one_type(cache: Cache, tmp_path: Path, level: str) -> None:
    definitions, uses = compiled(tmp_path, "definitions", DEFINITIONS, "-O1"), compiled(tmp_path, "uses", USES, level)
    defined = build_source(cache._session(), definitions).defined
    cache.add_module(definitions)
    used = build_source(cache._session(), uses).used
    assert used.keys() == defined.keys()
    used_digests = {name: type_digest(unite_types(types)) for name, types in used.items()}
    assert used_digests == {name: type_digest(text) for name, text in defined.items()}


def test_sizes_are_those_of_llvm() -> None:
    lines = [f"@v{number} = external global {text}" for number, text in enumerate(TYPES)]
    head = f'target datalayout = "{in_llvm_thread(layout)}"\n%pair = type {{ ptr, i32 }}\n'
    with codegen.new_context() as context:
        module = codegen.parse("\n".join([head, *lines]), context)
        data = llvm.create_target_data(module.data_layout)
        text = str(module)
        sizes = [(data.get_abi_size(v.global_value_type), data.get_abi_alignment(v.global_value_type)) for v in module.global_variables]
    definitions = read_module(text)
    found = read_link_types(text, definitions, definitions, {}, (), {}).definitions
    assert [found[f"v{number}"] for number in range(len(TYPES))] == [f"variable {size} align {align}" for size, align in sizes]


def layout() -> str:
    llvm.initialize_native_target()
    return str(llvm.Target.from_default_triple().create_target_machine().target_data)


def test_a_call_through_anything_else_says_nothing(cache: Cache) -> None:
    """The type of a function whose address is taken is that of its declaration, where it has one."""
    code = """
declare i64 @f(i64)
declare i64 @any(...)
@table = global [2 x ptr] [ptr @f, ptr @any]
"""
    cache.add_module(ModuleSource("define i64 @f(i64 %x) {\n  ret i64 %x\n}\ndefine i64 @any(ptr %x) {\n  ret i64 0\n}\n"))
    assert build_source(cache._session(), ModuleSource(code)).used == {"f": {"i64(i64) address": "table"}}


@pytest.mark.parametrize("text", ["", "{ i32", "<{ i8, ", "[2 x i8", "<4 x ", "{ [2 x { i32"])
def test_a_truncated_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the LLVM assembly"):
        Types("").read(text)
