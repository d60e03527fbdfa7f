"""Einstein summation over NumPy arrays, a kernel for each specification.

    python examples/einsum.py

`einsum(cache, "ij,jk->ik", a, b)` is `numpy.einsum` for contiguous float64 arrays: a loop for each index, the innermost sum in
a register. The kernel is found again by the specification and the version of this generator; llvmlite is imported by the
process that compiles, and by no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import compcache

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from llvmlite import ir

VERSION = "1"


def parse(spec: str) -> tuple[list[str], str]:
    """The indices of each operand, and those of the result."""
    operands, arrow, result = spec.replace(" ", "").partition("->")
    if not arrow or not all(index.isalpha() for index in operands.replace(",", "") + result):
        raise ValueError(f"{spec!r} is not of the form 'ij,jk->ik'")
    if not set(result) <= set(operands):
        raise ValueError(f"{spec!r} has an index in its result that no operand has")
    return operands.split(","), result


def buffer(indices: str, *, readonly: bool) -> str:
    """The type of an operand in a signature: a pointer and an extent for each index."""
    shape = ", ".join([":"] * (len(indices) - 1) + ["::1"]) if indices else ":"
    return f"{'const ' if readonly else ''}f64[{shape}]"


class Loops:
    """Code in loops over indices. Counters are in memory, which LLVM turns into registers."""

    def __init__(self, builder: ir.IRBuilder, extents: dict[str, ir.Value]) -> None:
        self.builder = builder
        self.extents = extents
        self.counters: dict[str, ir.Value] = {}

    def nest(self, indices: str, emit: Callable[[], None]) -> None:
        """Emit code for each combination of values of the indices."""
        if not indices:
            emit()
            return
        index, builder = indices[0], self.builder
        size = builder.function.args[1].type
        counter = builder.alloca(size)
        head, body, end = (builder.append_basic_block(f"{index}.{part}") for part in ("head", "body", "end"))
        builder.store(size(0), counter)
        builder.branch(head)
        builder.position_at_end(head)
        now = self.counters[index] = builder.load(counter, typ=size)
        builder.cbranch(builder.icmp_signed("<", now, self.extents[index]), body, end)
        builder.position_at_end(body)
        self.nest(indices[1:], emit)
        builder.store(builder.add(now, size(1)), counter)
        builder.branch(head)
        builder.position_at_end(end)

    def element(self, pointer: ir.Value, indices: str, element_type: ir.Type) -> ir.Value:
        """The address of the element that the counters stand for: row-major."""
        size = self.builder.function.args[1].type
        offset = size(0)
        for index in indices:
            offset = self.builder.add(self.builder.mul(offset, self.extents[index]), self.counters[index])
        return self.builder.gep(pointer, [offset], source_etype=element_type)


def kernel(operands: list[str], result: str) -> compcache.ModuleSource:
    """The source of one kernel: a function of a pointer and the extents of each operand, and of the result."""
    from llvmlite import ir

    arrays, double = [*operands, result], ir.DoubleType()
    types = [t for indices in arrays for t in (ir.PointerType(), *[ir.IntType(64)] * max(len(indices), 1))]
    function = ir.Function(ir.Module("einsum"), ir.FunctionType(ir.VoidType(), types), "einsum")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    pointers, extents, rest = [], {}, iter(function.args)
    for indices in arrays:
        pointers.append(next(rest))
        for index in indices or "-":  # without indices there is one number all the same: that of elements
            extents.setdefault(index, next(rest))
    loops, total = Loops(builder, extents), builder.alloca(double, name="total")

    def accumulate() -> None:
        product = double(1.0)
        for pointer, indices in zip(pointers, operands, strict=False):
            product = builder.fmul(product, builder.load(loops.element(pointer, indices, double), typ=double))
        builder.store(builder.fadd(builder.load(total, typ=double), product), total)

    def compute() -> None:
        builder.store(double(0.0), total)
        loops.nest("".join(dict.fromkeys(index for index in "".join(operands) if index not in result)), accumulate)
        builder.store(builder.load(total, typ=double), loops.element(pointers[-1], result, double))

    loops.nest(result, compute)
    builder.ret_void()
    kinds = [buffer(indices, readonly=True) for indices in operands] + [buffer(result, readonly=False)]
    return compcache.ModuleSource(function.module, {"einsum": f"void({', '.join(kinds)})"}, optimize=3)


def einsum(cache: compcache.Cache, spec: str, *operands: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `numpy.einsum(spec, *operands)` gives.

    Raises:
        ValueError: the specification is malformed, or an index has two extents.
        ArgumentBufferError: an operand is not a contiguous float64 array of as many dimensions as it has indices.
    """
    import numpy as np

    inputs, output = parse(spec)
    if len(inputs) != len(operands):
        raise ValueError(f"{spec!r} is about {len(inputs)} operands, {len(operands)} given")
    extents: dict[str, int] = {}
    for indices, operand in zip(inputs, operands, strict=True):
        for index, extent in zip(indices, operand.shape, strict=True):
            if extents.setdefault(index, extent) != extent:
                raise ValueError(f"{spec!r}: {index} is {extents[index]} in one operand and {extent} in another")
    result = np.zeros([extents[index] for index in output])
    identity = compcache.Identity("einsum", operands=inputs, result=output, generator=VERSION)
    cache.get_or_compile(identity, lambda: kernel(inputs, output))(*operands, result)
    return result


if __name__ == "__main__":
    import numpy as np

    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    with compcache.Cache("examples-cache") as opened:
        print(einsum(opened, "ij,jk->ik", a, b))
