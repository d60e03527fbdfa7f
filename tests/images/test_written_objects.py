"""Images that are written, and the tools around them: objects of other compilers, several versions of LLVM and GCC among them, do what they
do when they are linked; `perf` and `valgrind` name functions and lines; a process that may never make memory executable maps them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import compile_object
from test_writer import linked, run, written

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.peer
COMPILERS = ("gcc", "clang", *(f"clang-{number}" for number in range(13, 24)))
FLAGS = (
    ("-O0",),
    ("-O2",),
    ("-O2", "-g", "-ffunction-sections", "-fdata-sections"),
    ("-O1", "-g", "-fno-plt", "-fstack-protector-all"),
    ("-Os", "-fcommon", "-fno-asynchronous-unwind-tables"),
    ("-O3", "-march=native", "-fvisibility=protected"),
)
#: What is particular to objects: tables of addresses, jump tables, strings in common, thread-local, weak, common and aligned variables,
#: registries, constructors, aliases, and calls of the platform's libraries with callbacks and variable arguments.
SOURCE = r"""
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long (*operation)(long, long);
static long add(long a, long b) { return a + b; }
static long subtract(long a, long b) { return a - b; }
static long mix(long a, long b) { return (a << 3) ^ b; }
static const struct { const char *name; operation call; } operations[] = {{"add", add}, {"subtract", subtract}, {"mix", mix}};

long shared_counter;                                   /* common with -fcommon */
static _Thread_local long per_thread = 5;
static _Thread_local char per_thread_zero[100];
_Thread_local long visible_per_thread = 7;
extern long nobody_defines_this(long) __attribute__((weak));
static const long *const points[] = {&shared_counter, 0, &shared_counter};
static char aligned[64] __attribute__((aligned(256))) = "aligned";
static const char *const texts[] = {"one", "two", "three", "ee", "three"};
__attribute__((section("registry"), used)) static const long registered_a = 11, registered_b = 31;
extern const long __start_registry[], __stop_registry[];
static long constructed;
__attribute__((constructor(200))) static void second(void) { constructed = constructed * 10 + 2; }
__attribute__((constructor(101))) static void first(void) { constructed = constructed * 10 + 1; }
__attribute__((constructor)) static void last(void) { constructed = constructed * 10 + 3; }
long original(long x) { return x * 3; }
long other_name(long x) __attribute__((alias("original")));
__attribute__((weak)) long gives_way(long x) { return x + 1; }

static int compare(const void *a, const void *b) { return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b); }

static long select_one(int which, long x) {
    switch (which) {
    case 0: return x + 17;
    case 1: return x * 5;
    case 2: return x ^ 0x55;
    case 3: return x - 3;
    case 4: return labs(x);
    case 5: return x << 2;
    case 6: return x % 7;
    case 7: return other_name(x);
    default: return gives_way(x);
    }
}

static long sum(int count, ...) {
    va_list list;
    long total = 0;
    va_start(list, count);
    for (int i = 0; i < count; i++) total += va_arg(list, long);
    va_end(list);
    return total;
}

static long jump(long x) {
    static void *const labels[] = {&&one, &&two, &&three};
    long found = 0;
    goto *labels[x % 3];
one: found += 1;
two: found += 2;
three: found += 4;
    return found;
}

static jmp_buf there;
static void leave(int x) { longjmp(there, x); }

static unsigned long hash(unsigned long h, const void *data, size_t size) {
    for (size_t i = 0; i < size; i++) h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211ul;
    return h;
}

long check(void) {
    unsigned long h = 14695981039346656037ul;
    char text[200];
    int numbers[50];
    volatile int left = 0;
    for (int i = 0; i < 3; i++) {
        long value = operations[i].call(1000 + i, 77);
        h = hash(hash(h, &value, sizeof value), operations[i].name, strlen(operations[i].name));
    }
    for (int i = 0; i < 10; i++) { long value = select_one(i, 99 + shared_counter) + jump(i); h = hash(h, &value, sizeof value); }
    for (int i = 0; i < 50; i++) numbers[i] = (i * 7919) % 101;
    qsort(numbers, 50, sizeof *numbers, compare);
    h = hash(h, numbers, sizeof numbers);
    per_thread += ++shared_counter;
    visible_per_thread += per_thread;
    per_thread_zero[99]++;
    double number = sin(0.5) + sqrtf(2.0f);
    int size = snprintf(text, sizeof text, "%ld %s %.6f %ld %d", per_thread, texts[2], number, visible_per_thread, per_thread_zero[99]);
    h = hash(h, text, size);
    h ^= nobody_defines_this ? 1 : 2;
    h = hash(h, &points[0][0], sizeof(long));
    h += ((size_t)aligned & 255) + (points[1] != 0) + strlen(texts[3]);
    for (const long *one = __start_registry; one != __stop_registry; one++) h = hash(h, one, sizeof *one);
    h = hash(h, &constructed, sizeof constructed);
    long total = sum(5, 1l, 2l, 3l, 4l, (long)(pow(1.5, per_thread) * 1000));
    h = hash(h, &total, sizeof total);
    if (setjmp(there) == 0) leave(3); else left = 9;
    return (long)(h + left);
}
"""


def compiled(compiler: str, flags: tuple[str, ...], directory: Path) -> bytes:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source, result = directory / "code.c", directory / "code.o"
    source.write_text(SOURCE)
    command = [compiler, *flags, "-w", "-fPIC", "-c", str(source), "-o", str(result)]
    subprocess.run(command, check=True)
    return result.read_bytes()


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_objects_of_compilers_do_what_they_do_when_linked(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    code = compiled(compiler, flags, tmp_path)
    ours, theirs = run(written(code, optional=("nobody_defines_this",))), run(linked(code))
    results = [ours(), ours(), ours()]
    assert results == [theirs(), theirs(), theirs()]
    assert len({*results}) == len(results)


#: Reads behind a block of memory, in a function that only the image's own table of symbols names.
_FAULTY = """\
#include <stdlib.h>
static long reads_behind(volatile char *block) { return block[10]; }
static long spins(long n) { volatile long x = n; while (--n) x = x * 3 + n; return x; }
long check(long n) {
    volatile char *block = malloc(10);
    long found = reads_behind(block);
    free((void *)block);
    return n > 1 ? spins(n) : found;
}
"""
_HOST = """\
#include <dlfcn.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    void *image = dlopen(arguments[1], RTLD_NOW);
    long (*check)(long) = image ? (long (*)(long))dlsym(image, "check") : 0;
    return check ? (check(atol(arguments[2])), 0) : 1;
}
"""


def host_of_image(tmp_path: Path, *needed: str) -> list[str]:
    """A program, and the image that it maps."""
    for tool in ("gcc", *needed):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    (tmp_path / "faulty.c").write_text(_FAULTY)
    (tmp_path / "host.c").write_text(_HOST)
    subprocess.run(["gcc", "-g", "-O0", "-fPIC", "-c", "faulty.c"], cwd=tmp_path, check=True)
    subprocess.run(["gcc", "host.c", "-o", "host", "-ldl"], cwd=tmp_path, check=True)
    (tmp_path / "image.so").write_bytes(written((tmp_path / "faulty.o").read_bytes()))
    return [str(tmp_path / "host"), str(tmp_path / "image.so")]


def test_valgrind_names_functions_and_lines(tmp_path: Path) -> None:
    command = ["valgrind", *host_of_image(tmp_path, "valgrind"), "1"]
    told = re.sub(r"==\d+== *|0x\w+", "", subprocess.run(command, capture_output=True, text=True, check=True).stderr)
    assert "Invalid read of size 1\nat : reads_behind (faulty.c:2)\nby : check (faulty.c:6)\n" in told


def test_perf_names_functions(tmp_path: Path) -> None:
    data = str(tmp_path / "perf.data")
    command = ["perf", "record", "-q", "-g", "-e", "cpu-clock", "-o", data, "--", *host_of_image(tmp_path, "perf"), "100000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"perf cannot record here: {done.stderr[-200:]}")
    shown = subprocess.run(["perf", "script", "-i", data], capture_output=True, text=True, check=True).stdout
    assert re.search(r"\bspins\+0x\w+ \([^)]*image\.so\)\n\s+\w+ check\+0x\w+ \([^)]*image\.so\)", shown)


_DENIED = """\
import ctypes, mmap, sys
denied = ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
if denied:
    sys.exit(77)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x22, -1, ctypes.c_size_t(0))
assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(4096), 5) == -1, "the system lets memory become executable"
check = ctypes.CDLL(sys.argv[1]).check
check.restype = ctypes.c_long
print(check())
"""


def test_a_process_in_which_no_memory_becomes_executable_maps_images(tmp_path: Path) -> None:
    """As SELinux has it with `execmod` and `execmem`: neither mapping nor relocation may write to code."""
    code = compiled("gcc", ("-O2",), tmp_path)
    (tmp_path / "image.so").write_bytes(written(code, optional=("nobody_defines_this",)))
    done = subprocess.run([sys.executable, "-c", _DENIED, tmp_path / "image.so"], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("the system cannot forbid it")
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == run(linked(code))()


def test_objects_with_properties_are_written_beside_one_without(tmp_path: Path) -> None:
    """An image has a property where all of its objects do; what LLVM emits of entry points has none."""
    code = compiled("gcc", ("-O2", "-fcf-protection=full"), tmp_path)
    beside = compile_object("define hidden void @without_properties() {\n  ret void\n}\n")
    assert run(written(code, beside, optional=("nobody_defines_this",)))() == run(linked(code))()
