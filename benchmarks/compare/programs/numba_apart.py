"""Seconds of the first call and of a round of a loop over five jitted helpers, with Numba's own cache."""

import json
import time

from numba import njit

ROUNDS = 200_000


@njit(cache=True)
def h0(x):
    return x * 1.5 + 1.0


@njit(cache=True)
def h1(x):
    return x * 2.5 + 1.0


@njit(cache=True)
def h2(x):
    return x * 3.5 + 1.0


@njit(cache=True)
def h3(x):
    return x * 4.5 + 1.0


@njit(cache=True)
def h4(x):
    return x * 5.5 + 1.0


@njit(cache=True)
def kernel(x, n):
    total = 0.0
    for i in range(n):
        total += h4(h3(h2(h1(h0(i + x)))))
    return total


started = time.perf_counter()
kernel(1.5, 1)
first = time.perf_counter() - started
rounds = []
for _ in range(30):
    started = time.perf_counter()
    kernel(1.5, ROUNDS)
    rounds.append(time.perf_counter() - started)
print(json.dumps({"ns": min(rounds) / ROUNDS * 1e9, "ms": first * 1e3}))
