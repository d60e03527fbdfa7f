"""Code that is cached apart, beside the same as one module: a kernel that calls small helpers in a loop.

    python benchmarks/inlining.py

Prints nanoseconds a round: as one module, with helpers in modules of their own inlined when the kernel is added, and with calls
through slots; and what the addition takes in milliseconds of processor time. Minima of 30 calls of 200,000 rounds, and of 12 additions.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

from compcache import Cache, ModuleSource

ROUNDS, CALLS, ADDITIONS = 200_000, 30, 12

FLAT = {f"h{n}": f"define double @h{n}(double %x) {{\n%a = fmul double %x, 0x3FE{n}000000000000\n%b = fadd double %a, {n}.5\nret double %b\n}}\n" for n in range(5)}  # noqa: E501 - as one text
DEEP = {
    "scale": "define double @scale(double %x) {\n%r = fmul double %x, 1.25\nret double %r\n}\n",
    "branch": (
        "define double @branch(double %x) {\n%c = fcmp olt double %x, 3.0\nbr i1 %c, label %small, label %large\n"
        "small:\n%s = call double @scale(double %x)\nret double %s\nlarge:\n%l = fadd double %x, 1.5\nret double %l\n}\n"
    ),
    "root": "define double @root(double %x) {\n%a = call double @branch(double %x)\n%b = fsub double %a, %x\nret double %b\n}\n",
}
REDUCTION = {
    "total": (
        "define double @total(double %x) {\nentry:\nbr label %loop\nloop:\n%i = phi i64 [0, %entry], [%j, %loop]\n"
        "%s = phi double [0.0, %entry], [%t, %loop]\n%d = sitofp i64 %i to double\n%m = fmul double %d, %x\n%t = fadd double %s, %m\n"
        "%j = add i64 %i, 1\n%c = icmp slt i64 %j, 4\nbr i1 %c, label %loop, label %done\ndone:\nret double %t\n}\n"
    )
}
PAIR = {
    "pair": (
        "define { double, double } @pair(double %x) {\n%a = fmul double %x, 1.5\n%p = insertvalue { double, double } poison, double %a, 0\n"
        "%q = insertvalue { double, double } %p, double %x, 1\nret { double, double } %q\n}\n"
    ),
    "sum": (
        "define double @sum(double %x) {\n%p = call { double, double } @pair(double %x)\n%a = extractvalue { double, double } %p, 0\n"
        "%b = extractvalue { double, double } %p, 1\n%r = fadd double %a, %b\nret double %r\n}\n"
    ),
}
TYPES = {"pair": "{ double, double }"}


def kernel(names: list[str]) -> str:
    """A loop that adds up what these functions return."""
    lines, total = [], "%s"
    for number, name in enumerate(names):
        lines += [f"%v{number} = call double @{name}(double %x)", f"%s{number} = fadd double {total}, %v{number}"]
        total = f"%s{number}"
    return (
        "define double @kernel(i64 %n) {\nentry:\nbr label %loop\nloop:\n%i = phi i64 [0, %entry], [%j, %loop]\n"
        f"%s = phi double [0.0, %entry], [{total}, %loop]\n%x = sitofp i64 %i to double\n" + "\n".join(lines)
        + f"\n%j = add i64 %i, 1\n%c = icmp slt i64 %j, %n\nbr i1 %c, label %loop, label %done\ndone:\nret double {total}\n}}\n"
    )  # fmt: skip


def best(function: Any) -> float:
    """Nanoseconds a round."""
    found = []
    for _ in range(CALLS):
        start = time.perf_counter()
        function(ROUNDS)
        found.append(time.perf_counter() - start)
    return min(found) / ROUNDS * 1e9


def measure(label: str, helpers: dict[str, str], called: list[str]) -> None:
    """Print one line."""
    with tempfile.TemporaryDirectory() as place, Cache(place) as cache:
        names: dict[str, str] = {}
        for name, code in helpers.items():
            used = {other: names[other] for other in names if f"@{other}(" in code}
            names[name] = f"{name}-{abs(hash(code)) % 10**32:032d}"
            declared = "".join(f"declare {TYPES.get(other, 'double')} @{other}(double)\n" for other in used)
            cache.add_module(ModuleSource(declared + code, {names[name]: _exported(name)}, imports=used))
        code = "".join(f"declare double @{name}(double)\n" for name in called) + kernel(called)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        sides: dict[bool, Any] = {}
        for number in range(2 * ADDITIONS):
            inline = bool(number % 2)
            text = code.replace("@kernel", f"@kernel{number}")
            start = time.process_time()
            found = cache.compile(ModuleSource(text, imports={name: names[name] for name in called}, inline=inline))
            seconds[inline].append(time.process_time() - start)
            sides[inline] = found[f"kernel{number}"]
        text = "".join(code.replace("define", "define internal") for code in helpers.values()) + kernel(called)
        start = time.process_time()
        one = cache.compile(ModuleSource(text, {"kernel": None})).kernel
        alone = []
        for number in range(ADDITIONS):
            start = time.process_time()
            cache.compile(ModuleSource(text.replace("@kernel", f"@one{number}"), {f"one{number}": None}))
            alone.append(time.process_time() - start)
        assert sides[True](1000) == sides[False](1000) == one(1000)
        apart, slots, together = best(sides[True]), best(sides[False]), best(one)
        on, off, whole = min(seconds[True]) * 1e3, min(seconds[False]) * 1e3, min(alone) * 1e3
        print(
            f"{label}: one module {together:.2f} ns, inlined {apart:.2f} ({apart / together:.3f}), "
            f"slots {slots:.2f} ({slots / together:.2f}); "
            f"addition: one module {whole:.1f} ms, inlined {on:.1f}, slots {off:.1f} ({on / off:.2f}; {on / whole:.2f} of one module)"
        )


def _exported(symbol: str) -> Any:
    from compcache import Function

    return Function(None, symbol)


if __name__ == "__main__":
    measure("five helpers", FLAT, list(FLAT))
    measure("helpers of helpers, with a branch", DEEP, ["root"])
    measure("a reduction", REDUCTION, ["total"])
    measure("a structure as result", PAIR, ["sum"])
