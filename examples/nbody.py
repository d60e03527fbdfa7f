"""A kernel that is not written down as text but generated, as a compiler would: gravitation with `llvmlite.ir`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llvmlite import ir

if TYPE_CHECKING:
    from collections.abc import Iterator

_F64 = ir.DoubleType()
_I64 = ir.IntType(64)
_FIELDS = 7  # of a body: x, y, z, the three components of its velocity, its mass
_MASS = 6


def build_nbody() -> ir.Module:
    """``f64 nbody(bodies: f64[:], dt: f64, steps: i64)``: move the bodies, return their energy afterwards."""
    module = ir.Module("nbody")
    function = ir.Function(module, ir.FunctionType(_F64, [_F64.as_pointer(), _I64, _F64, _I64]), "nbody")
    bodies, size, dt, steps = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    count = b.sdiv(size, _I64(_FIELDS))
    energy = b.alloca(_F64)
    with _loop(b, _I64(0), steps):
        with _pairs(b, count) as (i, j):
            _attract(b, bodies, i, j, dt)
        with _loop(b, _I64(0), count) as i:
            _move(b, bodies, i, dt)
    b.store(_F64(0.0), energy)
    with _loop(b, _I64(0), count) as i:
        _add(b, energy, _kinetic(b, bodies, i))
    with _pairs(b, count) as (i, j):
        _add(b, energy, _potential(b, bodies, i, j))
    b.ret(b.load(energy))
    return module


@contextmanager
def _loop(b: Any, start: Any, end: Any) -> Iterator[Any]:
    """What is built inside runs for each number from `start` up to `end`."""
    before = b.block
    head, body, after = (b.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    number = b.phi(_I64)
    number.add_incoming(start, before)
    b.cbranch(b.icmp_signed("<", number, end), body, after)
    b.position_at_end(body)
    yield number
    number.add_incoming(b.add(number, _I64(1)), b.block)
    b.branch(head)
    b.position_at_end(after)


@contextmanager
def _pairs(b: Any, count: Any) -> Iterator[tuple[Any, Any]]:
    """What is built inside runs for each pair of bodies."""
    with _loop(b, _I64(0), count) as i, _loop(b, b.add(i, _I64(1)), count) as j:
        yield i, j


def _field(b: Any, bodies: Any, body: Any, number: int) -> Any:
    return b.gep(bodies, [b.add(b.mul(body, _I64(_FIELDS)), _I64(number))])


def _add(b: Any, address: Any, value: Any) -> None:
    b.store(b.fadd(b.load(address), value), address)


def _distance(b: Any, bodies: Any, i: Any, j: Any) -> tuple[list[Any], Any]:
    """The three components of the distance of two bodies, and its square."""
    deltas = [b.fsub(b.load(_field(b, bodies, i, k)), b.load(_field(b, bodies, j, k))) for k in range(3)]
    squares = [b.fmul(delta, delta) for delta in deltas]
    return deltas, b.fadd(b.fadd(squares[0], squares[1]), squares[2])


def _sqrt(b: Any, value: Any) -> Any:
    return b.call(b.module.declare_intrinsic("llvm.sqrt", [_F64]), [value])


def _attract(b: Any, bodies: Any, i: Any, j: Any, dt: Any) -> None:
    deltas, square = _distance(b, bodies, i, j)
    magnitude = b.fdiv(dt, b.fmul(square, _sqrt(b, square)))
    pull_i = b.fneg(b.fmul(b.load(_field(b, bodies, j, _MASS)), magnitude))
    pull_j = b.fmul(b.load(_field(b, bodies, i, _MASS)), magnitude)
    for k, delta in enumerate(deltas):
        _add(b, _field(b, bodies, i, 3 + k), b.fmul(delta, pull_i))
        _add(b, _field(b, bodies, j, 3 + k), b.fmul(delta, pull_j))


def _move(b: Any, bodies: Any, i: Any, dt: Any) -> None:
    for k in range(3):
        _add(b, _field(b, bodies, i, k), b.fmul(dt, b.load(_field(b, bodies, i, 3 + k))))


def _kinetic(b: Any, bodies: Any, i: Any) -> Any:
    speeds = [b.load(_field(b, bodies, i, 3 + k)) for k in range(3)]
    squares = [b.fmul(speed, speed) for speed in speeds]
    square = b.fadd(b.fadd(squares[0], squares[1]), squares[2])
    return b.fmul(b.fmul(_F64(0.5), b.load(_field(b, bodies, i, _MASS))), square)


def _potential(b: Any, bodies: Any, i: Any, j: Any) -> Any:
    _, square = _distance(b, bodies, i, j)
    masses = b.fmul(b.load(_field(b, bodies, i, _MASS)), b.load(_field(b, bodies, j, _MASS)))
    return b.fneg(b.fdiv(masses, _sqrt(b, square)))
