"""The same work for every contender: one entry function over many polynomials, as LLVM assembly and as Python."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

STEPS = 12
ARGUMENTS = (0.75, 0.5)


class Work(NamedTuple):
    """One size of code: `count` polynomials of twelve steps, and `entry(x, y)`, which adds them all up."""

    name: str
    count: int

    @property
    def entry(self) -> str:
        """The name of the function that is asked for."""
        return f"entry_{self.name}"

    @property
    def coefficients(self) -> list[list[float]]:
        """The constants of every polynomial, the same in every run."""
        random = Random(self.count)
        return [[random.randrange(1, 64) / 64 for _ in range(STEPS)] for _ in range(self.count)]

    @property
    def expected(self) -> float:
        """What `entry(*ARGUMENTS)` returns, but for rounding."""
        x, y = ARGUMENTS
        total = 0.0
        for constants in self.coefficients:
            value = x + y
            for constant in constants:
                value = value * x + constant
            total += value
        return total

    def assembly(self) -> str:
        """As LLVM assembly, every function visible from outside."""
        parts = []
        for number, constants in enumerate(self.coefficients):
            lines = [
                f"define double @{self.entry}_{number}(double %x, double %y) {{",
                "  %v0 = fadd double %x, %y",
            ]
            for step, constant in enumerate(constants):
                lines.append(f"  %m{step} = fmul double %v{step}, %x")
                lines.append(f"  %v{step + 1} = fadd double %m{step}, {constant:.8e}")
            parts.append("\n".join([*lines, f"  ret double %v{STEPS}", "}"]))
        lines = [f"define double @{self.entry}(double %x, double %y) {{"]
        for number in range(self.count):
            before = f"%t{number - 1}" if number else "0.0"
            lines.append(f"  %p{number} = call double @{self.entry}_{number}(double %x, double %y)")
            lines.append(f"  %t{number} = fadd double {before}, %p{number}")
        return "\n".join([*parts, *lines, f"  ret double %t{self.count - 1}", "}", ""])

    def python(self, decorator: str, entry_decorator: str, preamble: str) -> str:
        """As a Python module, its functions decorated as given."""
        parts = [preamble]
        for number, constants in enumerate(self.coefficients):
            lines = [decorator, f"def polynomial_{number}(x, y):", "    v = x + y"]
            lines += [f"    v = v * x + {constant!r}" for constant in constants]
            parts.append("\n".join([*lines, "    return v\n"]))
        lines = [entry_decorator, f"def {self.entry}(x, y):", "    total = 0.0"]
        lines += [f"    total = total + polynomial_{number}(x, y)" for number in range(self.count)]
        return "\n".join([*parts, *lines, "    return total", ""])


def sizes(*, quick: bool) -> list[Work]:
    """Small, medium and large code."""
    return [Work("small", 1), Work("medium", 40), Work("large", 80 if quick else 200)]
