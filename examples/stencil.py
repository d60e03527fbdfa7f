"""Stencils: weights of neighbours -> a kernel that sweeps a grid.

    python examples/stencil.py

`Stencil({(0, 0): 0.6, (0, 1): 0.1, ...})` computes each inner cell from its neighbours. The generated assembly holds the weights,
and `Cache.compile` names it by its content: other weights are other code, the same weights are never compiled twice.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import compcache

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAT = {(0, 0): 0.6, (0, 1): 0.1, (0, -1): 0.1, (1, 0): 0.1, (-1, 0): 0.1}

SWEEP = """\
define void @sweep(ptr noalias %next, i64 %size, ptr noalias readonly %u, i64 %same, i64 %width) {{
entry:
  %height = sdiv i64 %size, %width
  %last_row = sub i64 %height, {reach}
  %last_column = sub i64 %width, {reach}
  br label %rows
rows:
  %y = phi i64 [ {reach}, %entry ], [ %y_next, %row_done ]
  %more_rows = icmp slt i64 %y, %last_row
  br i1 %more_rows, label %row, label %done
row:
  %row_start = mul i64 %y, %width
  br label %columns
columns:
  %x = phi i64 [ {reach}, %row ], [ %x_next, %cell ]
  %more_columns = icmp slt i64 %x, %last_column
  br i1 %more_columns, label %cell, label %row_done
cell:
  %at = add i64 %row_start, %x
{terms}
  %out = getelementptr double, ptr %next, i64 %at
  store double %sum{count}, ptr %out
  %x_next = add i64 %x, 1
  br label %columns
row_done:
  %y_next = add i64 %y, 1
  br label %rows
done:
  ret void
}}
"""

TERM = """\
  %row{n} = mul i64 %width, {dy}
  %offset{n} = add i64 %row{n}, {dx}
  %place{n} = add i64 %at, %offset{n}
  %from{n} = getelementptr double, ptr %u, i64 %place{n}
  %value{n} = load double, ptr %from{n}
  %term{n} = fmul double %value{n}, {weight}
  %sum{after} = fadd double %sum{n}, %term{n}"""


def assembly(weights: Mapping[tuple[int, int], float]) -> str:
    """The sweep for these weights, by (row, column) relative to the cell."""
    terms = ["  %sum0 = fadd double 0.0, 0.0"]
    for n, ((dy, dx), weight) in enumerate(sorted(weights.items())):
        terms.append(TERM.format(n=n, after=n + 1, dy=dy, dx=dx, weight=f"0x{_bits(weight):016X}"))
    reach = max(max(abs(dy), abs(dx)) for dy, dx in weights)
    return SWEEP.format(reach=reach, terms="\n".join(terms), count=len(weights))


def _bits(value: float) -> int:
    """A double as LLVM assembly writes one exactly."""
    return int.from_bytes(array("d", [value]).tobytes(), "little")


def stencil(cache: compcache.Cache, weights: Mapping[tuple[int, int], float]) -> compcache.TypedCallTarget:
    """The compiled sweep: ``sweep(next, u, width)`` over buffers of doubles."""
    signature = "void(next: f64[:], u: const f64[:], width: i64)"
    return cache.compile(compcache.ModuleSource(assembly(weights), {"sweep": signature}, optimize=3))["sweep"]


def simulate(cache: compcache.Cache, grid: Any, width: int, steps: int) -> Any:
    """The grid after some steps of heat flow; its border stays as it is."""
    sweep = stencil(cache, HEAT)
    now, after = array("d", grid), array("d", grid)
    for _ in range(steps):
        sweep(after, now, width=width)
        now, after = after, now
    return now


if __name__ == "__main__":
    hot = array("d", bytes(8 * 25))
    hot[12] = 100.0
    with compcache.Cache("examples-cache") as opened:
        result = simulate(opened, hot, width=5, steps=2)
        for row in range(5):
            print("".join(f"{value:8.3f}" for value in result[5 * row : 5 * row + 5]))
