"""The kernels: compiled by Numba where it is installed, as packaged in the wheel where it is not."""

import math

from compcache.numba import njit


@njit(["float64(float64[::1])", "float32(float32[::1])"], fastmath=True)
def total(values):
    """The sum of some numbers."""
    result = 0.0 * values[0] if len(values) else 0.0
    for value in values:
        result += value
    return result


@njit("void(float64[::1], float64)")
def wave(values, step):
    """Fill an array with a sine."""
    if step <= 0.0:
        raise ValueError("step must be positive")
    for i in range(len(values)):
        values[i] = math.sin(i * step)
