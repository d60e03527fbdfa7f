"""The example kernels as `ModuleSource` objects: what a compiler would hand to the cache (imports llvmlite)."""

from __future__ import annotations

import array
import os
from typing import TYPE_CHECKING

from compcache import ModuleSource

if TYPE_CHECKING:
    from collections.abc import Callable

_KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels")


def _text(name: str) -> str:
    with open(os.path.join(_KERNELS, f"{name}.ll"), encoding="utf-8") as file:
        return file.read()


def crc_table() -> array.array[int]:
    """The table of CRC-32 for one byte at a time (polynomial 0xEDB88320, reflected)."""
    table = array.array("I")
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)  # noqa: PLW2901 - the register
        table.append(value)
    return table


def dot() -> ModuleSource:
    return ModuleSource(_text("dot"), {"dot": "f64(a: const f64[:], b: const f64[:])"})


def norm() -> ModuleSource:
    return ModuleSource(_text("norm"), {"norm": "f64(x: const f64[:])"}, imports=["dot"])


def crc32() -> ModuleSource:
    return ModuleSource(_text("crc32"), {"crc32": "u32(data: const u8[:])"}, {"crc_table": crc_table()})


def histogram() -> ModuleSource:
    return ModuleSource(_text("histogram"), {"histogram": "bool(data: const u8[:], counts: u64[:])"})


def sieve() -> ModuleSource:
    return ModuleSource(_text("sieve"), {"sieve": "i64(flags: u8[:])"})


def levenshtein() -> ModuleSource:
    return ModuleSource(_text("levenshtein"), {"levenshtein": "i64(a: cstr, b: cstr)"})


def mandelbrot() -> ModuleSource:
    signature = "i64(image: u8[:], width: i64, limit: u8)"
    return ModuleSource(_text("mandelbrot"), {"mandelbrot": signature})


def nbody() -> ModuleSource:
    from nbody import build_nbody

    return ModuleSource(build_nbody(), {"nbody": "f64(bodies: f64[:], dt: f64, steps: i64)"})


#: What compiles each kernel. `norm` imports `dot`; the cache does not mind which of them comes first.
BUILDERS: dict[str, Callable[[], ModuleSource]] = {
    "dot": dot,
    "norm": norm,
    "crc32": crc32,
    "histogram": histogram,
    "sieve": sieve,
    "levenshtein": levenshtein,
    "mandelbrot": mandelbrot,
    "nbody": nbody,
}
