"""Four parallel kernels of Numba, as any program has them: `python -m compcache.numba run examples/particles.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange


@njit(parallel=True, cache=True)
def kinetic(mass: Any, speed: Any) -> Any:
    total = 0.0
    for i in prange(len(mass)):
        total += 0.5 * mass[i] * speed[i] ** 2
    return total


@njit(parallel=True, cache=True)
def move(place: Any, speed: Any, step: float) -> None:
    for i in prange(len(place)):
        place[i] += speed[i] * step


@njit(parallel=True, cache=True)
def reflect(place: Any, speed: Any, width: float) -> None:
    for i in prange(len(place)):
        if place[i] < 0.0 or place[i] > width:
            speed[i] = -speed[i]


@njit(parallel=True, cache=True)
def spread(place: Any) -> Any:
    mean = place.sum() / len(place)
    total = 0.0
    for i in prange(len(place)):
        total += (place[i] - mean) ** 2
    return (total / len(place)) ** 0.5


if __name__ == "__main__":
    mass, place, speed = np.ones(1000), np.linspace(0.0, 1.0, 1000), np.linspace(-1.0, 1.0, 1000)
    for _ in range(3):
        move(place, speed, 0.5)
        reflect(place, speed, 1.0)
    print(f"{kinetic(mass, speed):.6f} {spread(place):.6f}")
