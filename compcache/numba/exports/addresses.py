"""Names the functions whose addresses compiled code contains, because the addresses are valid only in this process.

Numba keeps an address from ctypes or from a Cython module in a variable, and puts the address into the variable's name. Functions that
Cython modules export (SciPy's special functions, BLAS and LAPACK), functions of Numba's threads, and the C library's functions, which Numba
calls by names of its own, have names that are valid in every process.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from compcache.numba.entries import named_addresses
from compcache.numba.entries.named_addresses import find_thread_functions, parse_address

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MATHEMATICS", "find_named_functions", "use_python_hash_secret"]


def find_named_functions(variables: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Return the module, the name and the type, in Cython's spelling, of each function whose address a variable of Numba contains.

    The keys are the names of the variables. Variables with other addresses are omitted.
    """
    names = tuple(variables)
    # Numba's threading layer gives addresses of its own functions, which the extension module replaces.
    replacements = {address: (_OBJECTS, *_THREADS[name]) for address, name in find_thread_functions(_THREADS).items()}
    thread_functions = {name: replacements[parse_address(name)] for name in names if parse_address(name) in replacements}
    return named_addresses.find_cython_functions(names) | thread_functions


_OBJECTS = "compcache.numba.exports._objects"
#: Functions of Numba's threading layer, with the name and the type of the function of `_objects` that replaces each of them.
_THREADS = {
    "get_num_threads": ("parallel_threads", "int (void)"),
    "set_num_threads": ("set_parallel_threads", "void (int)"),
    "get_thread_id": ("parallel_thread", "int (void)"),
    "get_parallel_chunksize": ("parallel_chunk", "unsigned (void)"),
    "set_parallel_chunksize": ("set_parallel_chunk", "unsigned (unsigned)"),
}
#: Numba's copies of parts of Python's hash secret, with their offsets in the secret (`_Py_HashSecret_t`).
_SECRETS = {"siphash_k0": 0, "siphash_k1": 8, "djbx33a_suffix": 16}
_SECRET = "_Py_HashSecret"  # noqa: S105 - a symbol


def use_python_hash_secret(text: str) -> str:
    """Return LLVM assembly that reads Python's hash secret, which differs between processes, instead of Numba's copies."""
    replaced = text
    for name, offset in _SECRETS.items():
        symbol = f"@_numba_hashsecret_{name}"
        replaced = re.sub(rf"^{symbol} = external .*\n", "", replaced, flags=re.MULTILINE)
        replaced = re.sub(rf"{symbol}\b", f"getelementptr (i8, ptr @{_SECRET}, i64 {offset})", replaced)
    return replaced if replaced == text else f"{replaced}\n@{_SECRET} = external global [24 x i8]\n"


def _format_forwarding(name: str, function: str, second: str | None = None) -> str:
    """Return the assembly of a function that calls a function of the C library.

    The first parameter and the result are floats if the name of the calling function ends with "f", otherwise doubles. `second` is the LLVM
    type of the second parameter; None if there is only one parameter.
    """
    type_ = "float" if name.endswith("f") else "double"
    parameters = f"{type_} %x" if second is None else f"{type_} %x, {second} %y"
    return f"""\
declare {type_} @{function}({type_}{"" if second is None else f", {second}"})
define {type_} @{name}({parameters}) alwaysinline {{
  %value = call {type_} @{function}({parameters})
  ret {type_} %value
}}"""


def _format_frexp(type_: str, suffix: str) -> str:
    """Return the assembly of `frexp` with exponent 0 for numbers that are not finite, as in Numba. C leaves this exponent undefined."""
    return f"""\
declare {type_} @frexp{suffix}({type_}, ptr)
define {type_} @numba_frexp{suffix}({type_} %x, ptr %exponent) {{
  %difference = fsub {type_} %x, %x
  %is_finite = fcmp oeq {type_} %difference, 0.0
  br i1 %is_finite, label %split, label %same
split:
  %fraction = call {type_} @frexp{suffix}({type_} %x, ptr %exponent)
  ret {type_} %fraction
same:
  store i32 0, ptr %exponent
  ret {type_} %x
}}"""


#: Python's power of complex numbers. The result is NaN where Python raises ZeroDivisionError.
_POWER = """\
declare { double, double } @_Py_c_pow(double, double, double, double)
define internal { double, double } @compcache.numba.power(double %x, double %y, double %a, double %b) {
  %real_zero = fcmp oeq double %x, 0.0
  %imaginary_zero = fcmp oeq double %y, 0.0
  %is_zero = and i1 %real_zero, %imaginary_zero
  %negative = fcmp olt double %a, 0.0
  %turning = fcmp une double %b, 0.0
  %dividing = or i1 %negative, %turning
  %is_undefined = and i1 %is_zero, %dividing
  br i1 %is_undefined, label %none, label %some
none:
  ret { double, double } { double 0x7FF8000000000000, double 0x7FF8000000000000 }
some:
  %power = call { double, double } @_Py_c_pow(double %x, double %y, double %a, double %b)
  ret { double, double } %power
}"""


def _format_power(type_: str, suffix: str, widening: str, narrowing: str) -> str:
    """Return the assembly of Numba's function for the power of complex numbers whose parts have an LLVM type."""
    return f"""\
define void @numba_cpow{suffix}(ptr %base, ptr %exponent, ptr %result) {{
  %base_at = getelementptr {type_}, ptr %base, i64 1
  %exponent_at = getelementptr {type_}, ptr %exponent, i64 1
  %result_at = getelementptr {type_}, ptr %result, i64 1
  %x = load {type_}, ptr %base
  %y = load {type_}, ptr %base_at
  %a = load {type_}, ptr %exponent
  %b = load {type_}, ptr %exponent_at
  %wide_x = {widening} {type_} %x to double
  %wide_y = {widening} {type_} %y to double
  %wide_a = {widening} {type_} %a to double
  %wide_b = {widening} {type_} %b to double
  %power = call {{ double, double }} @compcache.numba.power(double %wide_x, double %wide_y, double %wide_a, double %wide_b)
  %real = extractvalue {{ double, double }} %power, 0
  %imaginary = extractvalue {{ double, double }} %power, 1
  %narrow_real = {narrowing} double %real to {type_}
  %narrow_imaginary = {narrowing} double %imaginary to {type_}
  store {type_} %narrow_real, ptr %result
  store {type_} %narrow_imaginary, ptr %result_at
  ret void
}}"""


_NAMES = {"numba_gamma": "tgamma", "numba_gammaf": "tgammaf", "numba_lgamma": "lgamma", "numba_lgammaf": "lgammaf"}
_SCALING = {"numba_ldexp": "ldexp", "numba_ldexpf": "ldexpf"}
#: Assembly that defines mathematical functions under Numba's names.
MATHEMATICS = "\n".join([
    *(_format_forwarding(*pair) for pair in _NAMES.items()), *(_format_forwarding(*pair, "i32") for pair in _SCALING.items()),
    _format_frexp("double", ""), _format_frexp("float", "f"),
    _POWER, _format_power("double", "", "bitcast", "bitcast"), _format_power("float", "f", "fpext", "fptrunc"),
])  # fmt: skip
