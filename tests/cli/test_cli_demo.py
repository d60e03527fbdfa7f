"""The demo and the example kernels."""

from __future__ import annotations

import array
import functools
import math
import random
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from cli_process import environment
from helpers import PACKAGE_ROOT

from compcache import Cache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLES = PACKAGE_ROOT / "examples"
KERNELS = ("dot", "norm", "crc32", "histogram", "sieve", "levenshtein", "mandelbrot", "nbody")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Every example kernel as a call target."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import sources  # type: ignore[import-not-found]

        with Cache(tmp_path_factory.mktemp("kernels") / "cache") as cache:
            yield {
                name: cache.get_or_compile(sources.identity(name), functools.partial(sources.source, name))
                for name in sources.SIGNATURES
            }


@pytest.mark.slow
def test_the_demo_compiles_once_and_loads_without_llvm(tmp_path: Path) -> None:
    def run() -> list[str]:
        command = [sys.executable, str(EXAMPLES / "demo.py"), str(tmp_path / "cache")]
        done = subprocess.run(command, env=environment({}), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    first = run()
    assert "first run: compile" in first[0]
    assert "second run: load" in first[0]
    assert [line.split()[0] for line in first[1:10]] == [*KERNELS, "together"]
    assert any(line.startswith("first process") and "llvmlite" in line for line in first)
    assert any(line.startswith("second process") and line.endswith("imported -") for line in first)
    results = [line.split()[10:] for line in first[1:9]]
    assert [line.split()[10:] for line in run()[1:9]] == results


@pytest.mark.slow
def test_dot_and_norm(kernels: dict[str, Any]) -> None:
    a = array.array("d", [random.Random(1).random() for _ in range(99)])
    b = array.array("d", reversed(a))
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += x * y
    assert kernels["dot"](a, b) == total
    assert kernels["dot"](a, b[:0]) == 0.0
    assert kernels["dot"](a[:2], b) == a[0] * b[0] + a[1] * b[1]
    assert kernels["norm"](array.array("d", [3.0, 4.0])) == 5.0


@pytest.mark.parametrize("data", [b"", b"a", b"123456789", bytes(range(256)) * 3])
def test_crc32(kernels: dict[str, Any], data: bytes) -> None:
    assert kernels["crc32"](data) == zlib.crc32(data)


def test_histogram(kernels: dict[str, Any]) -> None:
    counts = array.array("Q", bytes(8 * 256))
    assert kernels["histogram"](b"mississippi", counts) is True
    assert {chr(i): n for i, n in enumerate(counts) if n} == {"m": 1, "i": 4, "s": 4, "p": 2}
    assert kernels["histogram"](b"x", counts[:255]) is False


@pytest.mark.parametrize(("size", "primes"), [(0, 0), (2, 0), (3, 1), (30, 10), (1_000, 168)])
def test_sieve(kernels: dict[str, Any], size: int, primes: int) -> None:
    flags = bytearray(b"\xff" * size)
    assert kernels["sieve"](flags) == primes
    assert [n for n in range(min(size, 30)) if flags[n]] == [
        n for n in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29) if n < size
    ]


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("kitten", "sitting", 3),
        ("flaw", "lawn", 2),
        ("same", "same", 0),
    ],
)
def test_levenshtein(kernels: dict[str, Any], a: str, b: str, distance: int) -> None:
    assert kernels["levenshtein"](a, b) == distance


def test_mandelbrot(kernels: dict[str, Any]) -> None:
    width, height, limit = 24, 18, 50
    image = bytearray(width * height)
    inside = kernels["mandelbrot"](image, width, limit)
    expected = bytearray(
        _escape_time(complex(-2 + column * (2.5 / width), -1.25 + row * (2.5 / height)), limit)
        for row in range(height)
        for column in range(width)
    )
    assert image == expected
    assert inside == expected.count(limit)
    assert kernels["mandelbrot"](bytearray(5), 0, 10) == 0


def _escape_time(c: complex, limit: int) -> int:
    x = y = 0.0
    for count in range(limit):
        if x * x + y * y > 4.0:
            return count
        x, y = x * x - y * y + c.real, (x + x) * y + c.imag
    return limit


def test_nbody_keeps_the_energy_of_a_circular_orbit(kernels: dict[str, Any]) -> None:
    bodies = array.array("d", [0, 0, 0, 0, 0, 0, 1.0, 1, 0, 0, 0, 1, 0, 1e-9])
    before = kernels["nbody"](bodies, 0.0, 0)
    steps = 1_000
    after = kernels["nbody"](bodies, 2 * math.pi / steps, steps)
    assert before == pytest.approx(-0.5e-9)
    assert after == pytest.approx(before, rel=1e-3)
    assert bodies[7:9].tolist() == pytest.approx([1.0, 0.0], abs=0.05)
