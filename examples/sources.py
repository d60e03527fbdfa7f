"""The example kernels: what each is made of, and how it is compiled. LLVM is imported by what compiles, not before.

A kernel is named by its `Identity`: the text of its code (or of the program that generates it), its signature, and the kernels
that it calls. An edited kernel is another kernel, and so are those that call it.
"""

from __future__ import annotations

import os

from compcache import Identity, ModuleSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    import array
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))

SIGNATURES = {
    "dot": "f64(a: const f64[:], b: const f64[:])",
    "norm": "f64(x: const f64[:])",
    "crc32": "u32(data: const u8[:])",
    "histogram": "bool(data: const u8[:], counts: u64[:])",
    "sieve": "i64(flags: u8[:])",
    "levenshtein": "i64(a: cstr, b: cstr)",
    "mandelbrot": "i64(image: u8[:], width: i64, limit: u8)",
    "nbody": "f64(bodies: f64[:], dt: f64, steps: i64)",
}
#: The other kernels that a kernel calls.
CALLS = {"norm": ("dot",)}


def identity(name: str) -> Identity:
    """All that a kernel depends on."""
    calls = {callee: identity(callee) for callee in CALLS.get(name, ())}
    return Identity(name, code=_text(name), signature=SIGNATURES[name], calls=calls)


def source(name: str) -> ModuleSource:
    """A kernel as what the cache compiles."""
    calls = {callee: identity(callee) for callee in CALLS.get(name, ())}
    return ModuleSource(_code(name), {name: SIGNATURES[name]}, _globals(name), imports=calls)


def _text(name: str) -> str:
    """The text that decides what the kernel does: LLVM assembly, or the program that generates it."""
    path = os.path.join(_HERE, "nbody.py") if name == "nbody" else os.path.join(_HERE, "kernels", f"{name}.ll")
    with open(path, encoding="utf-8") as file:
        return file.read()


def _code(name: str) -> Any:
    if name != "nbody":
        return _text(name)
    from nbody import build_nbody

    return build_nbody()


def _globals(name: str) -> dict[str, Any]:
    return {"crc_table": crc_table()} if name == "crc32" else {}


def crc_table() -> array.array[int]:
    """The table of CRC-32 for one byte at a time (polynomial 0xEDB88320, reflected)."""
    import array

    table = array.array("I")
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)  # noqa: PLW2901 - the register
        table.append(value)
    return table
