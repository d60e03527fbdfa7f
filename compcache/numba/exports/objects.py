"""Generates the interface between exported code and the extension module `_objects`.

The interface consists of the kernel's plan, and of functions that call the functions in the extension module's table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = [
    "BOX_SYMBOL", "ENTER_SYMBOL", "HELPERS", "LEAVE_SYMBOL", "PARALLEL_SYMBOL", "PLAN_SYMBOL", "RANDOM_SYMBOL", "format_constant",
    "format_objects",
]  # fmt: skip

PLAN_SYMBOL, ENTER_SYMBOL = "compcache.numba.plan", "compcache.numba.enter"
LEAVE_SYMBOL, BOX_SYMBOL = "compcache.numba.leave", "compcache.numba.box"
RANDOM_SYMBOL, PARALLEL_SYMBOL = "compcache.numba.random_begin", "compcache.numba.parallel_raise"
_MODULE, _TABLE = "compcache.numba.exports._objects", "functions"
_Call = tuple[int, str, str]


def _number_calls(first: int, *calls: tuple[str, str, str]) -> dict[str, _Call]:
    """Return calls (symbol, result and parameters) with consecutive indexes in the table of functions, by symbol."""
    return {symbol: (number, result, parameters) for number, (symbol, result, parameters) in enumerate(calls, first)}


#: Indexes into the table of functions (`native/module.c`).
_PREPARE, _RESOLVE, _LINEAR_BEGIN, _LIBRARY = 0, 4, 16, 33
#: The calls of the wrapper, by symbol: the index in the table, the result and the parameters.
_WRAPPER_CALLS = {
    **_number_calls(1, (ENTER_SYMBOL, "i32", "ptr, ptr, ptr"), (LEAVE_SYMBOL, "void", "ptr, ptr, ptr"), (BOX_SYMBOL, "ptr", "ptr, ptr")),
    **_number_calls(5, (RANDOM_SYMBOL, "void", "")),
    **_number_calls(46, (PARALLEL_SYMBOL, "i32", "")),
}
_LINEAR_ALGEBRA = _number_calls(
    _LINEAR_BEGIN + 1,
    ("numba_xxdot", "i32", "i8 signext, i8 signext, i64, ptr, ptr, ptr"),
    ("numba_xxnrm2", "i32", "i8 signext, i64, ptr, i64, ptr"),
    ("numba_xxgemv", "i32", "i8 signext, i8 signext, i64, i64, ptr, ptr, i64, ptr, ptr, ptr"),
    ("numba_xxgemm", "i32", "i8 signext, i8 signext, i8 signext, i64, i64, i64, ptr, ptr, i64, ptr, i64, ptr, ptr, i64"),
    ("numba_xxgetrf", "i32", "i8 signext, i64, i64, ptr, i64, ptr"),
    ("numba_ez_xxgetri", "i32", "i8 signext, i64, ptr, i64, ptr"),
    ("numba_xxpotrf", "i32", "i8 signext, i8 signext, i64, ptr, i64"),
    ("numba_xgesv", "i32", "i8 signext, i64, i64, ptr, i64, ptr, ptr, i64"),
    ("numba_ez_rgeev", "i32", "i8 signext, i8 signext, i8 signext, i64, ptr, i64, ptr, ptr, ptr, i64, ptr, i64"),
    ("numba_ez_cgeev", "i32", "i8 signext, i8 signext, i8 signext, i64, ptr, i64, ptr, ptr, i64, ptr, i64"),
    ("numba_ez_xxxevd", "i32", "i8 signext, i8 signext, i8 signext, i64, ptr, i64, ptr"),
    ("numba_ez_gesdd", "i32", "i8 signext, i8 signext, i64, i64, ptr, i64, ptr, ptr, i64, ptr, i64"),
    ("numba_ez_geqrf", "i32", "i8 signext, i64, i64, ptr, i64, ptr"),
    ("numba_ez_xxgqr", "i32", "i8 signext, i64, i64, i64, ptr, i64, ptr"),
    ("numba_ez_gelsd", "i32", "i8 signext, i64, i64, i64, ptr, i64, ptr, i64, ptr, double, ptr"),
)
#: Numba's C helpers that the table provides.
HELPERS = {
    **_number_calls(
        6,
        ("numba_get_py_random_state", "ptr", ""),
        ("numba_get_np_random_state", "ptr", ""),
        ("numba_get_internal_random_state", "ptr", ""),
        ("numba_rnd_shuffle", "void", "ptr"),
        ("numba_rnd_init", "void", "ptr, i32"),
        ("numba_poisson_ptrs", "i64", "ptr, double"),
        ("numba_gil_ensure", "void", "ptr"),
        ("numba_gil_release", "void", "ptr"),
        ("numba_unpickle", "ptr", "ptr, i32, ptr"),
        ("numba_attempt_nocopy_reshape", "i32", "i64, ptr, ptr, i64, ptr, ptr, i64, i32"),
    ),
    **_LINEAR_ALGEBRA,
    **_number_calls(_LINEAR_BEGIN + 1 + len(_LINEAR_ALGEBRA), ("numba_fatal_error", "i32", "")),
    **_number_calls(
        _LIBRARY + 1,
        ("numba_parallel_for", "void", "ptr, ptr, ptr, ptr, ptr, i64, i64, i64"),
        ("get_num_threads", "i64", ""),
        ("get_thread_id", "i64", ""),
        ("get_parallel_chunksize", "i64", ""),
        ("set_parallel_chunksize", "void", "i64"),
        ("get_sched_size", "i64", "i64, i64, ptr, ptr"),
        ("do_scheduling_signed", "ptr", "i64, ptr, ptr, i64, ptr, i64"),
        ("do_scheduling_unsigned", "ptr", "i64, ptr, ptr, i64, ptr, i64"),
        ("allocate_sched", "ptr", "i64"),
        ("deallocate_sched", "void", "ptr"),
        ("numba_do_raise", "i32", "ptr"),
        ("numba_runtime_build_excinfo_struct", "ptr", "ptr, ptr"),
    ),
}


def format_objects(
    plan: bytes, helpers: Collection[str], functions: Mapping[str, tuple[str, ...]], library: Mapping[str, tuple[str, str]], numba: str
) -> str:
    """Return the assembly of the plan, of the function that prepares the plan once, and of functions that call the functions in the table.

    Args:
        plan: the encoded plan.
        helpers: the names of Numba's helpers that the code calls.
        functions: the module, the name and the type of each function of another package, by the variable for its address. The preparation
            of the plan assigns the addresses.
        library: the result and the parameters of each function of Numba's C library that the code calls, by the function's name.
        numba: the version of Numba that generated the code.
    """
    calls: dict[str, _Call] = {**_WRAPPER_CALLS, **{name: HELPERS[name] for name in helpers}}
    resolved = [_Resolved(_RESOLVE, description, f'@"{variable}"') for variable, description in functions.items()]
    resolved += [_Resolved(_LIBRARY, (name, numba), f"@compcache.numba.{name}") for name in library]
    replacements = {
        "PLAN_SIZE": str(len(plan)),
        "PREPARE_AT": str(_PREPARE),
        "LINEAR": _LINEAR_TEXT if _LINEAR_ALGEBRA.keys() & set(helpers) else "  br label %resolve0",
        "RESOLVING": "\n".join(_format_resolution(number, function) for number, function in enumerate(resolved)),
        "LAST": str(len(resolved)),
    }
    preparation = _PREPARE_TEXT
    for word, text in replacements.items():
        preparation = preparation.replace(word, text)
    return "\n".join([
        _format_bytes("compcache.numba.plan_bytes", plan, align=8),
        _format_bytes("compcache.numba.module", _MODULE.encode() + b"\0"),
        _format_bytes("compcache.numba.table_name", _TABLE.encode() + b"\0"),
        _format_bytes("compcache.numba.capsule", f"{_MODULE}.{_TABLE}".encode() + b"\0"),
        *[_format_bytes(f"compcache.numba.wanted.{number}", function.encode()) for number, function in enumerate(resolved)],
        *[f'@"{variable}" = external global ptr' for variable in functions],
        preparation,
        *[_format_call(symbol, *call) for symbol, call in calls.items()],
        *[_format_library_call(symbol, *types) for symbol, types in library.items()],
    ])  # fmt: skip


class _Resolved(NamedTuple):
    """A function of another package or library, whose address is found when the plan is prepared.

    Attributes:
        resolver: the index, in the table of functions, of the function that finds the address.
        description: the texts by which the resolver finds the function.
        variable: the variable for the address.
    """

    resolver: int
    description: tuple[str, ...]
    variable: str

    def encode(self) -> bytes:
        """Return the texts of the description, each with a NUL at the end."""
        return b"".join([text.encode() + b"\0" for text in self.description])


def _format_bytes(name: str, data: bytes, align: int = 1) -> str:
    """Return the definition of a constant with these bytes."""
    return f"@{name} = internal constant {format_constant(data)}, align {align}"


def format_constant(data: bytes) -> str:
    """Return the LLVM type and the value of a constant with these bytes."""
    text = "".join([f"\\{byte:02X}" for byte in data])
    return f'[{len(data)} x i8] c"{text}"'


def _format_resolution(number: int, function: _Resolved) -> str:
    """Return the instructions that find a function of another package or library, and store its address in its variable."""
    return f"""resolve{number}:
  %resolver_at{number} = getelementptr ptr, ptr %table, i64 {function.resolver}
  %resolver{number} = load ptr, ptr %resolver_at{number}
  %function{number} = call ptr %resolver{number}(ptr @compcache.numba.wanted.{number})
  %missing{number} = icmp eq ptr %function{number}, null
  br i1 %missing{number}, label %failed, label %resolved{number}
resolved{number}:
  store ptr %function{number}, ptr {function.variable}
  br label %resolve{number + 1}"""


def _format_call(symbol: str, number: int, result: str, parameters: str) -> str:
    """Return the definition of the function `symbol`, which calls the function at position `number` of the table."""
    load_function = [
        "  %table = load ptr, ptr @compcache.numba.table",
        f"  %at = getelementptr ptr, ptr %table, i64 {number}",
        "  %function = load ptr, ptr %at",
    ]
    return _format_definition(symbol, result, parameters, load_function)


def _format_library_call(symbol: str, result: str, parameters: str) -> str:
    """Return the definition of a function that calls a function of Numba's C library, and of the variable for its address."""
    variable = f"@compcache.numba.{symbol}"
    definition = _format_definition(symbol, result, parameters, [f"  %function = load ptr, ptr {variable}"])
    return f"{variable} = internal global ptr null\n{definition}"


def _format_definition(symbol: str, result: str, parameters: str, load_function: list[str]) -> str:
    """Return the definition of a function that calls another function. The instructions `load_function` load its address."""
    types = [part.strip() for part in parameters.split(",") if part.strip()]
    arguments = ", ".join(f"{type_} %{index}" for index, type_ in enumerate(types))
    call = f"call {result} %function({arguments})"
    return "\n".join([
        f"define {result} @{symbol}({arguments}) alwaysinline {{",
        "start:",
        *load_function,
        *([f"  {call}", "  ret void"] if result == "void" else [f"  %value = {call}", f"  ret {result} %value"]),
        "}",
    ])  # fmt: skip


#: Instructions that look up BLAS and LAPACK before the kernel runs, because the kernel cannot raise an exception if they are missing.
_LINEAR_TEXT = f"""\
  %linear_at = getelementptr ptr, ptr %table, i64 {_LINEAR_BEGIN}
  %linear = load ptr, ptr %linear_at
  %has_linear = call i32 %linear()
  %no_linear = icmp eq i32 %has_linear, 0
  br i1 %no_linear, label %failed, label %resolve0"""
_PREPARE_TEXT = """
@compcache.numba.table = internal global ptr null
@compcache.numba.prepared = internal global ptr null
declare ptr @PyImport_ImportModule(ptr)
declare ptr @PyObject_GetAttrString(ptr, ptr)
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare void @Py_DecRef(ptr)

define ptr @compcache.numba.plan() {
  %known = load atomic ptr, ptr @compcache.numba.prepared acquire, align 8
  %is_known = icmp ne ptr %known, null
  br i1 %is_known, label %done, label %first
first:
  %plan = call ptr @compcache.numba.prepare()
  ret ptr %plan
done:
  ret ptr %known
}

; The capsule lives as long as the extension module, which is never unloaded.
define internal ptr @compcache.numba.prepare() cold noinline {
  %module = call ptr @PyImport_ImportModule(ptr @compcache.numba.module)
  %no_module = icmp eq ptr %module, null
  br i1 %no_module, label %failed, label %imported
imported:
  %capsule = call ptr @PyObject_GetAttrString(ptr %module, ptr @compcache.numba.table_name)
  call void @Py_DecRef(ptr %module)
  %no_capsule = icmp eq ptr %capsule, null
  br i1 %no_capsule, label %failed, label %found
found:
  %table = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr @compcache.numba.capsule)
  call void @Py_DecRef(ptr %capsule)
  %no_table = icmp eq ptr %table, null
  br i1 %no_table, label %failed, label %known
known:
  %prepare_at = getelementptr ptr, ptr %table, i64 PREPARE_AT
  %preparing = load ptr, ptr %prepare_at
  %plan = call ptr %preparing(ptr @compcache.numba.plan_bytes, i64 PLAN_SIZE)
  %no_plan = icmp eq ptr %plan, null
  br i1 %no_plan, label %failed, label %start_resolving
start_resolving:
LINEAR
RESOLVING
resolveLAST:
  store ptr %table, ptr @compcache.numba.table
  store atomic ptr %plan, ptr @compcache.numba.prepared release, align 8
  ret ptr %plan
failed:
  ret ptr null
}
"""
