"""What a call of an exported kernel costs, beside a call through Numba's dispatcher: nanoseconds, the least of several rounds.

python benchmarks/numba_export_calls.py
"""

from __future__ import annotations

import tempfile
import timeit
from typing import Any

import numpy as np
from numba import njit, types

from compcache import Cache
from compcache.numba import export

ROUNDS, CALLS = 7, 20_000


def scalar(x: float) -> float:
    """A number for a number."""
    return x + 1.0


def total(a: Any) -> Any:
    """A number for an array."""
    return a[0] + a[-1]


def strided(a: Any) -> Any:
    """A number for an array of any strides."""
    return a[0] + a[-1]


def same(a: Any) -> Any:
    """The argument."""
    return a


def view(a: Any) -> Any:
    """A view of the argument."""
    return a[1:]


def made(n: int) -> Any:
    """An array that the kernel makes."""
    return np.empty(n)


def pair(z: complex) -> Any:
    """A complex number, and a nested tuple."""
    return z * 2, (z.real, True)


def text(s: str) -> str:
    """The argument, a text."""
    return s


def drawn(n: int) -> float:
    """A random number."""
    return np.random.random() + n  # noqa: NPY002 - what Numba compiles


CASES: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [
    (scalar, (types.float64,), (1.5,)),
    (total, (types.float64[::1],), (np.ones(8),)),
    (strided, (types.float64[:],), (np.ones(16)[::2],)),
    (same, (types.float64[::1],), (np.ones(8),)),
    (view, (types.float64[::1],), (np.ones(8),)),
    (made, (types.int64,), (8,)),
    (pair, (types.complex128,), (1 + 2j,)),
    (text, (types.unicode_type,), ("abc",)),
    (drawn, (types.int64,), (1,)),
]


def _least(function: Any, arguments: tuple[Any, ...]) -> float:
    function(*arguments)
    timer = timeit.Timer("function(*arguments)", globals={"function": function, "arguments": arguments})
    return min(timer.repeat(ROUNDS, CALLS)) / CALLS * 1e9


def main() -> None:
    """Print a table."""
    print("| kernel | exported | Numba's dispatcher |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as directory, Cache(directory) as cache:
        for function, signature, arguments in CASES:
            target = cache.get_target(export(function, signature, cache=cache))
            dispatcher = njit(signature)(function)
            described = (function.__doc__ or "").rstrip(".").lower()
            print(f"| {described} | {_least(target, arguments):.0f} | {_least(dispatcher, arguments):.0f} |", flush=True)


if __name__ == "__main__":
    main()
