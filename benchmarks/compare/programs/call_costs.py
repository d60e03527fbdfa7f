"""WORK_DIRECTORY CALLS REPETITIONS: nanoseconds of calls through each of the bindings, in one process, in turns.

Scalars `f64(f64, f64)` and `i64(i64)`, a string whose length is returned, a buffer of 16 doubles whose first element is
returned: what is timed is the way in and out.
"""

from __future__ import annotations

import array
import ctypes
import json
import math
import os
import subprocess
import sys
import sysconfig
from functools import partial
from importlib import machinery, util
from time import perf_counter

from children.timing import take_turns

CODE = """
define double @add(double %a, double %b) {
  %sum = fadd double %a, %b
  ret double %sum
}
define i64 @increment(i64 %a) {
  %sum = add i64 %a, 1
  ret i64 %sum
}
declare i64 @strlen(ptr)
define i64 @length(ptr %text) {
  %n = call i64 @strlen(ptr %text)
  ret i64 %n
}
define double @first(ptr %data, i64 %count) {
  %x = load double, ptr %data
  ret double %x
}
"""
SIGNATURES = {
    "add": "f64(f64, f64)",
    "increment": "i64(i64)",
    "length": "i64(cstr)",
    "first": "f64(const f64[:])",
}
EXTENSION = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

static PyObject *wrong(void) { PyErr_SetString(PyExc_TypeError, "wrong arguments"); return NULL; }

static PyObject *add(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) return wrong();
    double a = PyFloat_AsDouble(args[0]), b = PyFloat_AsDouble(args[1]);
    if ((a == -1.0 || b == -1.0) && PyErr_Occurred()) return NULL;
    return PyFloat_FromDouble(a + b);
}

static PyObject *increment(PyObject *self, PyObject *arg) {
    long long a = PyLong_AsLongLong(arg);
    if (a == -1 && PyErr_Occurred()) return NULL;
    return PyLong_FromLongLong(a + 1);
}

static PyObject *length(PyObject *self, PyObject *arg) {
    const char *text = PyUnicode_AsUTF8(arg);
    if (!text) return NULL;
    return PyLong_FromLongLong((long long)strlen(text));
}

static PyObject *first(PyObject *self, PyObject *arg) {
    Py_buffer view;
    if (PyObject_GetBuffer(arg, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)) return NULL;
    if (!view.format || strcmp(view.format, "d") || view.len < 8) { PyBuffer_Release(&view); return wrong(); }
    double x = *(double *)view.buf;
    PyBuffer_Release(&view);
    return PyFloat_FromDouble(x);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, NULL},
    {"increment", increment, METH_O, NULL},
    {"length", length, METH_O, NULL},
    {"first", first, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "floor_builtins", NULL, -1, methods};
PyMODINIT_FUNC PyInit_floor_builtins(void) { return PyModule_Create(&module); }
"""


def with_compcache(directory: str):
    from compcache import Cache, ModuleSource

    cache = Cache(f"{directory}/calls-cache")
    cache.add_module(ModuleSource(CODE, SIGNATURES))
    return {name: cache.get_target(name) for name in SIGNATURES}, cache


def library(directory: str) -> str:
    import orc_objects

    from compcache.images.linkers.find import find_linker
    from compcache.images.linkers.link import link_shared

    path = f"{directory}/calls.so"
    linker = find_linker()
    assert linker is not None
    obj = orc_objects.compile_object(CODE)
    image = link_shared(linker, [obj], soname="calls.so", libraries=[], export=list(SIGNATURES))
    with open(path, "wb") as file:
        file.write(image)
    return path


def with_ctypes(path: str):
    dll = ctypes.CDLL(path)
    types = {
        "add": (ctypes.c_double, ctypes.c_double, ctypes.c_double),
        "increment": (ctypes.c_int64, ctypes.c_int64),
        "length": (ctypes.c_int64, ctypes.c_char_p),
        "first": (ctypes.c_double, ctypes.c_void_p, ctypes.c_int64),
    }
    functions = {}
    for name, (result, *arguments) in types.items():
        functions[name] = getattr(dll, name)
        functions[name].restype, functions[name].argtypes = result, arguments
    raw_length, raw_first = functions["length"], functions["first"]

    def length(text):
        return raw_length(text.encode())

    def first(data):
        view = (ctypes.c_double * len(data)).from_buffer(data)
        return raw_first(ctypes.addressof(view), len(data))

    return functions | {"length": length, "first": first}


def with_cffi(path: str):
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(
        "double add(double, double); int64_t increment(int64_t);"
        " int64_t length(const char *); double first(const double *, int64_t);"
    )
    dll = ffi.dlopen(path)
    raw_length, raw_first, from_buffer = dll.length, dll.first, ffi.from_buffer

    def length(text):
        return raw_length(text.encode())

    def first(data):
        return raw_first(from_buffer("double[]", data), len(data))

    return {"add": dll.add, "increment": dll.increment, "length": length, "first": first}


def with_numba():
    import numba

    @numba.njit
    def add(a, b):
        return a + b

    @numba.njit
    def increment(a):
        return a + 1

    @numba.njit
    def length(text):
        return len(text)

    @numba.njit
    def first(data):
        return data[0]

    return {"add": add, "increment": increment, "length": length, "first": first}


def with_extension(directory: str):
    source, path = f"{directory}/floor_builtins.c", f"{directory}/floor_builtins.so"
    with open(source, "w", encoding="utf-8") as file:
        file.write(EXTENSION)
    include = sysconfig.get_paths()["include"]
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-O2", "-fPIC", "-shared", f"-I{include}", source, "-o", path], check=True)
    loader = machinery.ExtensionFileLoader("floor_builtins", path)
    module = util.module_from_spec(util.spec_from_file_location("floor_builtins", path, loader=loader))
    loader.exec_module(module)
    return {name: getattr(module, name) for name in SIGNATURES}


def ns(call, arguments, calls, _turn):
    counter = range(calls)
    if len(arguments) == 2:
        a, b = arguments
        started = perf_counter()
        for _ in counter:
            call(a, b)
    else:
        (a,) = arguments
        started = perf_counter()
        for _ in counter:
            call(a)
    return (perf_counter() - started) / calls * 1e9


def main(directory: str, calls: int, repetitions: int) -> None:
    os.makedirs(directory, exist_ok=True)
    skipped, bindings = {}, {}
    bindings["compcache"], keep = with_compcache(directory)
    bindings["compcache, its __call__"] = {name: target.__call__ for name, target in bindings["compcache"].items()}
    path = library(directory)
    makers = {
        "ctypes": partial(with_ctypes, path),
        "cffi (ABI mode)": partial(with_cffi, path),
        "Numba's dispatcher": with_numba,
        "C extension (gcc)": partial(with_extension, directory),
    }
    for label, make in makers.items():
        try:
            bindings[label] = make()
        except (ImportError, OSError, subprocess.CalledProcessError) as error:
            skipped[label] = f"{type(error).__name__}: {error}"
    data = array.array("d", map(float, range(16)))
    arguments = {"add": (1.5, 2.5), "increment": (41,), "length": ("sixteen letters!",), "first": (data,)}
    expected = {"add": 4.0, "increment": 42, "length": 16, "first": 0.0}
    cases = {}
    for case, values in arguments.items():
        for label, functions in list(bindings.items()):
            given = values
            if case == "first" and label.startswith("Numba"):
                import numpy as np

                given = (np.array(data),)
            cases.setdefault(case, {})[label] = functions[case], given
            assert functions[case](*given) == expected[case], (label, case)
        if case == "first" and "Numba's dispatcher" in bindings:
            import numpy as np

            cases[case]["compcache, NumPy array"] = bindings["compcache"][case], (np.array(data),)
    cases["add"]["Python lambda"] = (lambda a, b: a + b), arguments["add"]
    cases["add"]["math.copysign"] = math.copysign, arguments["add"]
    timed = {
        (case, label): partial(ns, call, values, calls)
        for case, sides in cases.items()
        for label, (call, values) in sides.items()
    }
    samples = {case: {} for case in cases}
    for (case, label), values in take_turns(timed, repetitions).items():
        samples[case][label] = values
    keep.close()
    print(json.dumps({"samples": samples, "skipped": skipped}))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
