"""What a hit and a call cost at the limit, counted: instructions beside `ctypes.CDLL`, and beside a C extension.

Instructions come from `valgrind --tool=callgrind` (they repeat to a fraction of a percent whatever else runs on the machine). What a
process does above an empty one is the difference of two processes, which repeats to some 300,000 instructions. What an operation costs
is counted within one process, after one repetition. Times are minima over processes that take turns. `python benchmarks/hit_limits.py
[--times N] [ROW...]` prints the table.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from time import perf_counter

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
MODULES = 24
#: How often an operation is repeated of which one is too little to be told from the noise.
REPEATED = 4000

CODE = """
define double @add(double %a, double %b) {
  %sum = fadd double %a, %b
  ret double %sum
}
define double @first(ptr %data, i64 %count) {
  %x = load double, ptr %data
  ret double %x
}
"""
SIGNATURES = {"add": "f64(f64, f64)", "first": "f64(const f64[:])"}
EXTENSION = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *add(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) { PyErr_SetString(PyExc_TypeError, "two arguments"); return NULL; }
    double a = PyFloat_AsDouble(args[0]), b = PyFloat_AsDouble(args[1]);
    if ((a == -1.0 || b == -1.0) && PyErr_Occurred()) return NULL;
    return PyFloat_FromDouble(a + b);
}
static PyObject *first(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Py_buffer view;
    if (count != 1) { PyErr_SetString(PyExc_TypeError, "one argument"); return NULL; }
    if (PyObject_GetBuffer(args[0], &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) return NULL;
    if (view.itemsize != 8 || view.format == NULL || view.format[0] != 'd' || view.format[1] != 0) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_TypeError, "doubles");
        return NULL;
    }
    double result = *(double *)view.buf;
    PyBuffer_Release(&view);
    return PyFloat_FromDouble(result);
}
static PyMethodDef methods[] = {
    {"add", (PyCFunction)(void *)add, METH_FASTCALL, NULL}, {"first", (PyCFunction)(void *)first, METH_FASTCALL, NULL}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "plain_extension", NULL, 0, methods};
PyMODINIT_FUNC PyInit_plain_extension(void) { return PyModule_Create(&module); }
"""


def prepare(work: Path) -> None:
    """The package with its bytecode as an installer leaves it, a cache, a library and an extension module."""
    shutil.copytree(PACKAGE_ROOT / "compcache", work / "site" / "compcache", ignore=shutil.ignore_patterns("__pycache__", "native"))
    compileall.compile_dir(work / "site", quiet=2)
    sys.path.insert(0, str(PACKAGE_ROOT))
    from compcache import Cache, ModuleSource

    with Cache(work / "cache") as cache:
        cache.add_module(ModuleSource(CODE, functions=SIGNATURES))
        names = [f"f{number}" for number in range(MODULES)]
        for name in names:
            text = f"define double @{name}(double %a) {{\n  %b = fadd double %a, 1.0\n  ret double %b\n}}\n"
            cache.add_module(ModuleSource(text, functions={name: "f64(f64)"}, optimize=0))
        declared = "".join(f"declare double @{name}(double)\n" for name in names)
        calls = "".join(f"  %x{number + 1} = call double @f{number}(double %x{number})\n" for number in range(MODULES))
        text = f"{declared}define double @all(double %x0) {{\n{calls}  ret double %x{MODULES}\n}}\n"
        cache.add_module(ModuleSource(text, functions={"all": "f64(f64)"}, imports=names, optimize=0, inline=False))
    (work / "plain.c").write_text("double add(double a, double b) { return a + b; }\n")
    _compile(["-shared", "-fPIC", str(work / "plain.c"), "-o", str(work / "libplain.so")])
    (work / "one.c").write_text("double f(double a) { return a + 1; }\n")
    for number in range(MODULES + 1):
        _compile(["-shared", "-fPIC", "-nostdlib", str(work / "one.c"), "-o", str(work / f"libone{number}.so")])
    (work / "extension.c").write_text(EXTENSION)
    include = sysconfig.get_path("include")
    (work / "site" / "plain").mkdir()
    _compile(["-shared", "-fPIC", f"-I{include}", str(work / "extension.c"), "-o", str(work / "site" / "plain_extension.so")])


def _compile(arguments: list[str]) -> None:
    subprocess.run([os.environ.get("CC", "cc"), "-O2", *arguments], check=True)


CDLL = "import ctypes; lib = ctypes.CDLL({work!r} + '/libplain.so'); f = lib.add\n"
TYPED = CDLL + "f.restype = ctypes.c_double; f.argtypes = (ctypes.c_double, ctypes.c_double)\n"
OPEN = "import compcache; cache = compcache.Cache({work!r} + '/cache')\n"
HIT = OPEN + "f = cache.get_target('add')\n"
#: Statistics are written once a second, which valgrind would make once in a few look-ups. Here they are written at the end.
STATISTICS = "import compcache.hit.recorder as statistics; statistics._PAUSE_SECONDS = 1e9\n"
WRITE = "[known.flush() for known in statistics._recorders.values()]"
ALL = OPEN + "f = cache.get_target('all')\n"
FIRST = OPEN + "f = cache.get_target('first')\n"
#: Calls are counted in a function, whose names are not looked up.
NUMBERS = "def run(f, count):\n    for _ in range(count): f(1.0, 2.0)\n"
BUFFER = "def run(f, count):\n    a = argument\n    for _ in range(count): f(a)\n"
ARRAY = "from array import array; argument = array('d', [1.0, 2.0])\n" + BUFFER
NUMPY = "sys.path.append({packages!r}); import numpy; argument = numpy.array([1.0, 2.0])\n" + BUFFER
PLAIN = "import plain_extension as e\n"
#: Of whole processes, above an empty one.
PROCESSES = {
    "ctypes.CDLL of a known path, and one call": TYPED + "f(1.0, 2.0)",
    "import compcache": "import compcache",
    "import compcache, Cache(path)": OPEN,
    "a hit and one call": HIT + "f(1.0, 2.0)",
    f"{MODULES + 1} libraries by ctypes.CDLL": f"import ctypes\nfor i in range({MODULES + 1}): "
    "ctypes.CDLL({work!r} + f'/libone{{i}}.so')",
    f"a hit of {MODULES + 1} modules and one call": ALL + "f(1.0)",
}
#: Set-up, what is repeated, how often.
OPERATIONS = {
    "CDLL and a symbol, warm": (
        "import ctypes\n", "[ctypes.CDLL({work!r} + f'/libone{{i}}.so').f for i in range(N)]", MODULES,
    ),
    "first look-up, warm": (HIT + STATISTICS, f"keep = [cache.get_target(f'f{{{{i}}}}') for i in range(N)]; {WRITE}", MODULES),
    "get_target, repeated": (HIT, "for _ in range(N): cache.get_target('add')", REPEATED),
    "an empty loop": ("", "for _ in range(N): pass", REPEATED),
    "f64(f64, f64)": (HIT + NUMBERS, "run(f, N)", REPEATED),
    "f64(f64, f64), its __call__": (HIT + NUMBERS, "run(f.__call__, N)", REPEATED),
    "f64(f64, f64), C extension": (PLAIN + NUMBERS, "run(e.add, N)", REPEATED),
    "const f64[:], array.array": (FIRST + ARRAY, "run(f, N)", REPEATED),
    "const f64[:], array.array, its __call__": (FIRST + ARRAY, "run(f.__call__, N)", REPEATED),
    "const f64[:], array.array, C extension": (PLAIN + ARRAY, "run(e.first, N)", REPEATED),
    "const f64[:], numpy": (FIRST + NUMPY, "run(f, N)", REPEATED),
    "const f64[:], numpy, its __call__": (FIRST + NUMPY, "run(f.__call__, N)", REPEATED),
    "const f64[:], numpy, C extension": (PLAIN + NUMPY, "run(e.first, N)", REPEATED),
}  # fmt: skip


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows])


def command(work: Path, code: str) -> list[str]:
    # The interpreter itself: what `.pth` files and `sitecustomize` import would be no part of an empty process elsewhere.
    made = code.format(work=str(work), packages=sysconfig.get_path("purelib"))
    start = f"import os, sys; sys.path.insert(0, {str(work / 'site')!r})"
    return [os.path.realpath(sys.executable), "-I", "-S", "-c", f"{start}\n{made}"]


def callgrind(work: Path, code: str, *options: str) -> str:
    """The last output file of callgrind for a process with this code."""
    out = work / "callgrind.out"
    made = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options, *command(work, code)]
    done = subprocess.run(made, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return str(out)


def total(file: str) -> int:
    found = re.search(r"^(?:summary|totals): (\d+)", Path(file).read_text(errors="replace"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def instructions(work: Path, code: str) -> int:
    """Of a whole process."""
    return total(callgrind(work, code))


def cost(work: Path, label: str) -> float:
    """Instructions of an operation, counted between two calls of a function of the C library that nothing else calls."""
    setup, repeated, times = OPERATIONS[label]
    code = f"{setup}from os import getppid\nN = 1\n{repeated}\nN = {times}\ngetppid()\n{repeated}\ngetppid()"
    return total(callgrind(work, code, "--dump-before=getppid*") + ".2") / (times - 1)


def counted(work: Path, only: list[str]) -> list[list[str]]:
    empty = instructions(work, "pass")
    rows = [["an empty process (of which the others are above)", f"{empty / 1e6:.1f} M"]]
    for label, code in PROCESSES.items():
        if not only or any(word in label for word in only):
            instructions(work, code)  # what is remembered for the next process
            rows.append([label, f"{(instructions(work, code) - empty) / 1e6:.2f} M"])
    rows += [[label, f"{cost(work, label):,.0f}"] for label in OPERATIONS if not only or any(word in label for word in only)]
    return rows


def timed(work: Path, turns: int) -> list[list[str]]:
    best = dict.fromkeys(["an empty process", *PROCESSES], 1e9)
    for _ in range(turns):
        for label in best:
            made = command(work, PROCESSES.get(label, "pass"))
            started = perf_counter()
            subprocess.run(made, check=True)
            best[label] = min(best[label], perf_counter() - started)
    empty = best.pop("an empty process")
    return [["an empty process", f"{empty * 1e3:.2f} ms"], *[[label, f"{(t - empty) * 1e3:.2f} ms"] for label, t in best.items()]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=0, metavar="N", help="time each process N times as well")
    parser.add_argument("rows", nargs="*", help="only rows whose name has one of these words")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        prepare(work)
        print(table(["what", "instructions"], counted(work, options.rows)))
        if options.times:
            print(table(["what", "time, minimum"], timed(work, options.times)))


if __name__ == "__main__":
    main()
