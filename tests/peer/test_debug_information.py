"""What clang writes with debug information of every kind, and symbol versions: modules that import, shared objects, no LLVM on hits."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from compcache import Cache, ModuleSource

from .compilers import CompilerUnavailableError, find_clang
from .conftest import unavailable
from .freshpython import run_fresh

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.peer

CALLS = """\
#include <stdint.h>
#include <stdlib.h>
struct pair { int64_t first, second; };
#define PLUS(x) ((x) + 1)
extern int64_t imported(int64_t);
static __attribute__((noinline)) int64_t add(struct pair *pair) { return pair->first + pair->second; }
static int compare(const void *a, const void *b) {
  return (*(const int64_t *)a > *(const int64_t *)b) - (*(const int64_t *)a < *(const int64_t *)b);
}
int64_t calls(int64_t x) {
    struct pair pair = {imported(x), PLUS(x)};
    int64_t values[3] = {pair.second, add(&pair), pair.first};
    qsort(values, 3, sizeof *values, compare);
    return values[2];
}
"""
VERSIONS = """\
#include <stdint.h>
int64_t old_api(int64_t x) { return x + 1; }
int64_t new_api(int64_t x) { return x + 2; }
__asm__(".symver old_api,api@VERS_1");
__asm__(".symver new_api,api@@VERS_2");
int64_t at(int64_t x) __asm__("k@1");
int64_t at(int64_t x) { return x + 3; }
int64_t vectorcall(int64_t x) __asm__("vcall@@16");
int64_t vectorcall(int64_t x) { return x + 4; }
int64_t through(int64_t x) { int64_t (*volatile called)(int64_t) = at; return called(vectorcall(x)); }
"""
HIT = "result = [call(name, 10) for name in names]"
IMPORTED = "define i64 @imported(i64 %x) {\n  %y = add i64 %x, 100\n  ret i64 %y\n}\n"


def compiled(source: str, place: Path, flags: list[str]) -> bytes:
    (place / "source.c").write_text(source)
    output = place / "source.bc"
    try:
        clang = find_clang()
    except CompilerUnavailableError as error:
        unavailable(str(error))
    command = [clang, "-O1", "-fPIC", *flags, "-emit-llvm", "-c", "source.c", "-o", str(output)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        unavailable(f"{clang}: {done.stderr[:100]}")
    return output.read_bytes()


@pytest.mark.parametrize(
    "flags",
    [["-g"], ["-g3"], ["-gsplit-dwarf"], ["-gdwarf-5"], ["-gdwarf-4", "-gz"], ["-gline-tables-only"],
     ["-g", "-fdebug-macro", "-fvisibility=hidden"],
     ["-g3", "-gsplit-dwarf", "-gdwarf-5", "-gz", "-ffunction-sections", "-fdata-sections"]],
    ids=" ".join,
)  # fmt: skip
def test_debug_information_of_every_kind(tmp_path: Path, flags: list[str]) -> None:
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(IMPORTED))
        cache.add_module(ModuleSource(compiled(CALLS, tmp_path, flags), functions={"calls": None}, imports=["imported"]))
        assert cache.realizations("calls")[0].image_kind == "shared"
    assert run_fresh(tmp_path / "cache", HIT, names=["calls"]) == [121]


@pytest.mark.parametrize("flags", [[], ["-g"]], ids=["plain", "debug"])
def test_versions_of_symbols_as_compilers_write_them(tmp_path: Path, flags: list[str]) -> None:
    names = ["old_api", "new_api", "k@1", "vcall@@16", "through"]
    with Cache(tmp_path / "cache") as cache:
        cache.add_module(ModuleSource(compiled(VERSIONS, tmp_path, flags)))
        assert {cache.realizations(name)[0].image_kind for name in names} == {"shared"}
    assert run_fresh(tmp_path / "cache", HIT, names=names) == [11, 12, 13, 14, 17]
