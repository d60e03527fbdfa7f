"""Random programs: plain Numba, the process that compiles and the one that starts without Numba answer the same, to the last bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.stress, pytest.mark.timeout(600)]
pytest.importorskip("numba")

COUNT = 16  # functions of a program
HEAD = """
import math
from collections import namedtuple
import numpy as np
from numba import njit, vectorize
Point = namedtuple("Point", "x y")
class Wrong(Exception):
    pass
def fixed(a):
    a.flags.writeable = False
    return a
G = {constant}
@njit
def helper(x, by=2):
    return x * by + G
"""
SCALARS = [
    "0", "1", "-1", "7", "2**31", "-2**63", "2**63 - 1", "True", "0.0", "-0.0", "2.5", "float('nan')", "float('inf')", "1+2j",
    "np.int8(-5)", "np.uint8(200)", "np.int32(-7)", "np.uint64(2**63 + 1)", "np.float32(1.1)", "np.bool_(True)", "np.complex64(1-1j)",
    "np.float16(1)", "None", "'text'", "2**64", "[1, 2]",
]  # fmt: skip
DTYPES = ("f8", "f4", "i8", "i4", "u1", "?", "c16")
BODIES = {
    "a": [
        "return a.sum()", "return a + 1", "a += 1\n    return a", "return a[::-1], a.T", "return a.copy().ravel()",
        "return a.astype(np.float32)", "return np.sort(a)", "return a.shape, a.strides", "return a[a > 0]", "return (a, Point(a, a.size))",
        "s = 0\n    for x in a.flat:\n        s += x\n    return s", "return [a, a]",
        "raise Wrong(a.size, 'array')", "return np.argmax(a), a.mean()", "return a is a, len(a)", "return np.cumsum(a)",
        "return np.zeros_like(a)",
    ],
    "t": [
        "return t", "return t[0]", "return t + (1,)", "return Point(t[0], t)", "return len(t), t == t", "x, y = t\n    return y, x",
        "return t.x", "return hash(t)",
        "raise Wrong(t)",
    ],
    "s": [
        "return s + 'x'", "return s[::-1]", "return s.upper()", "return len(s), s[:1]", "return s.split(',')", "return [c for c in s]",
        "raise Wrong(s, len(s))",
        "return {s: 1}[s]", "return s.find('b'), s * 2",
    ],
}  # fmt: skip
TEXTS = ["''", "'abc'", "'a,b'", "'\\xe9'", "'\\u20ac'", "'\\U0001f600b'", "b'ab'", "np.str_('q')", "1"]


def _expression(choose: random.Random, names: str, depth: int = 0) -> str:
    if depth == 3 or choose.random() < 0.2:
        return str(choose.choice([*names, "1", "0.5", "G", "-2", "np.float32(2)"]))
    left, right = (_expression(choose, names, depth + 1) for _ in range(2))
    forms = [f"({left} {operator} {right})" for operator in ("+", "-", "*", "/", "//", "%", "**", "&", "<<", "<", "==", "and", "if 1 else")]
    forms += [f"math.sin({left})", f"int({left})", f"abs({left})", f"min({left}, {right})", f"helper({left})"]
    forms += [f"helper({left}, by={right})", f"({left}, {right})[1]"]
    return choose.choice(forms)


def _array(choose: random.Random) -> str:
    shape = tuple(choose.choice([1, 2, 3]) for _ in range(choose.choice([0, 1, 1, 2, 3])))
    made = f"(np.arange({2 * 3**3})[:{_product(shape)}] % 5 - 1).astype({choose.choice(DTYPES)!r}).reshape({shape})"
    views = ["", "", ".T", f"[{'::-1' if shape else '...'}]", f"[{'::2' if shape else '()'}]"]
    return choose.choice([made + choose.choice(views), f"fixed({made})", f"np.asfortranarray({made})"])


def _product(shape: tuple[int, ...]) -> int:
    return shape[0] * _product(shape[1:]) if shape else 1


def _tuple(choose: random.Random) -> str:
    items = [choose.choice([choose.choice(SCALARS), _array(choose), "(1, 2.5)"]) for _ in range(2)]
    return f"{choose.choice(['', 'Point'])}({', '.join(items)})"


def _value(choose: random.Random, kind: str) -> str:
    made = {"a": _array, "t": _tuple}.get(kind)
    return made(choose) if made is not None else choose.choice(TEXTS if kind == "s" else SCALARS)


def _function(choose: random.Random, number: int) -> str:
    """A function, and the calls of it."""
    kind = choose.choice(["expression", "expression", "defaults", "signature", "ufunc", *BODIES])
    given = [_value(choose, kind) for _ in range(4)]
    calls = [f"f{number}({value})" for value in given]
    if kind in BODIES:
        text = f"@njit\ndef f{number}({kind}):\n    {choose.choice(BODIES[kind])}"
    elif kind == "defaults":
        text = f"@njit\ndef f{number}(a, b={given[3]}, *c):\n    return a, b, c"
        calls = [f"f{number}({form})" for form in (
            given[0], f"{given[1]}, {given[2]}", f"{given[0]}, b={given[1]}", "", f"{given[0]}, {given[1]}, {given[2]}", "1, d=2"
        )]
    elif kind == "signature":
        texts = choose.sample(["f8(f8)", "i8(i8)", "f4(f4)", "c16(c16)", "u1(u1)", "b1(b1)", "f8(optional(f8))"], 2)
        text = f"@njit({texts})\ndef f{number}(a):\n    return a"
    elif kind == "ufunc":
        text = f"@vectorize({choose.choice(['', repr(['f8(f8)']), repr(['i4(i4)', 'f8(f8)'])])})\ndef f{number}(a):\n    return a + 1"
        calls += [f"f{number}({_array(choose)})" for _ in range(2)]
    else:
        text = (
            f"@njit\ndef f{number}(a, b):\n    t = {_expression(choose, 'ab')}\n    if {_expression(choose, 'ab', 2)}:\n"
            "        raise Wrong(t, a)\n    return t"
        )
        calls = [f"f{number}({value}, {other})" for value, other in zip(given, reversed(given), strict=True)]
    return f"{text}\ndef calls{number}():\n    return [{', '.join(f'lambda: {call}' for call in calls)}]\n"


SCRIPT = """
import importlib, re, struct
import numpy as np
def seen(x):
    name = type(x).__module__ + "." + type(x).__qualname__
    if isinstance(x, np.ndarray):
        return name, x.dtype.str, x.shape, x.strides if x.size else 0, x.flags.writeable, x.tobytes().hex()
    if isinstance(x, np.generic):
        return name, x.dtype.str, x.tobytes().hex()
    if isinstance(x, (float, complex)):
        return name, struct.pack("<dd", x.real, x.imag).hex()
    if isinstance(x, (tuple, list)):
        return name, [seen(item) for item in x]
    return name, repr(x)
def outcome(call):
    try:
        return seen(call())
    except Exception as error:
        kind = type(error)
        is_compilers = kind.__module__.startswith("numba.")  # its text is indented by what failed before
        return "raised", kind.__module__, kind.__qualname__, "" if is_compilers else re.sub("0x[0-9a-f]+", "", str(error))
result = []
for number in range({start}, {count}):
    result.append([outcome(call) for call in getattr(importlib.import_module(f"random{{number}}"), f"calls{{number}}")()])
    if {stops} and "numba.core" in sys.modules:
        break
"""
LAZY = "import compcache.numba\ncompcache.numba.install(lazy=True)\n"


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_answer_as_with_plain_numba(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    project = Project(tmp_path)
    head = HEAD.format(constant=choose.choice(["3", "1.5", "np.float32(2)"]))
    project.write(**{f"random{number}": head + _function(choose, number) for number in range(COUNT)})

    def answers(start: int, first: str, *, stops: bool) -> list[Any]:
        script = first + SCRIPT.format(start=start, count=COUNT, stops=stops)
        found: list[Any] = project.run(script, backend=False, COMPCACHE_DIR=str(project.cache))
        return found

    plain = answers(0, "", stops=False)
    assert answers(0, LAZY, stops=False) == plain
    later: list[Any] = []
    while len(later) < COUNT:  # a process goes on until a function needs Numba, the next one begins after it
        later += answers(len(later), LAZY, stops=True)
    assert later == plain
