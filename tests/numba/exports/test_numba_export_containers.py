"""Exported kernels use dictionaries, sets, typed lists and properties of characters, in processes that do not import Numba."""

from __future__ import annotations

import pytest
from numba_exports import COMPARE, COMPARED, EXPORT, KERNELS_HEAD
from numba_helpers import Project

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]
pytest.importorskip("numba")

KERNELS = (
    KERNELS_HEAD
    + """
    from numba.typed import Dict, List

    @kernel(i8)
    def counts(n):
        found = {0: 1}
        for i in range(n):
            found[i % 7] = found.get(i % 7, 0) + i
        if n > 10:
            del found[3]
        return list(found.items()), len(found), 3 in found

    @kernel(i8)
    def lookup(n):
        return {1: 2.5}[n]

    @kernel(text)
    def words(line):
        found = {"a": 0}
        for word in line.split():
            found[word] = found.get(word, 0) + 1
        return [(word, count) for word, count in found.items()], found.pop("a", -1)

    @kernel(i8)
    def emptied(n):
        found = {i: str(i) for i in range(n)}
        return [found.popitem() for _ in range(n + 1)]

    @kernel(i8)
    def changed(n):
        found = {i: i for i in range(n)}
        for i in found:
            found[i + n] = i
        return len(found)

    @kernel(i8)
    def arrays(n):
        found = Dict.empty(i8, f8[::1])
        for i in range(n):
            found[i % 3] = np.full(i, 0.5)
        return [array.sum() for array in found.values()]

    @kernel(i8)
    def listed(n):
        items = List()
        for i in range(n):
            items.append(i * 3 % 7)
        items.sort()
        items.insert(1, 50)
        items.reverse()
        del items[0]
        last = items.pop()
        items.extend(items[1:])
        return last, [item for item in items], len(items), items.index(50)

    @kernel(i8)
    def nested(n):
        rows = List()
        for i in range(n):
            row = List()
            row.append("x" + str(i))
            rows.append(row)
        return "".join([row[0] for row in rows])

    @kernel(i8)
    def sets(n):
        found = set([i % 5 for i in range(n)])
        found.add(n)
        return sorted(found), len(found.union(set([100]))), 3 in found

    @kernel(text, text)
    def text_set(one, other):
        return len({one, other, "x"}), one in {other, "y"}

    @kernel(text)
    def cases(line):
        return line.upper(), line.lower(), line.title(), line.capitalize(), line.swapcase(), line.casefold()

    @kernel(text)
    def properties(line):
        return [(c.isalpha(), c.isdigit(), c.isdecimal(), c.isnumeric(), c.isspace(), c.isupper(), c.islower(), c.istitle(),
                 c.isprintable(), c.isidentifier(), c.isalnum()) for c in line]

    @kernel(text)
    def parts(line):
        return line.split(), line.strip(), line.replace("a", "bb"), line.find("b"), line.zfill(20), line.center(30), line.splitlines()

    @kernel(text, f8, i8)
    def hashes(line, x, n):
        return hash(line), hash(x), hash((n, x)), hash(n), hash("a constant")

    @kernel(f8, types.float32, types.int32)
    def exponents(x, y, n):
        return math.frexp(x), math.frexp(y), math.ldexp(x, n), math.ldexp(y, n)

    @kernel(types.complex128, types.complex128, types.complex64)
    def powers(z, w, v):
        return z ** w, v ** v, z ** 2, z ** 0.5
"""
)
CASES = """
    import math
    LINES = ["", "a b a", "abc ABC Ŝ ß ﬁ", "añ 😀 ǅ \\uff11\\uff12 ½ Ⅷ\\t\\u2003x", "İstanbul ςΣ a\\nb\\r\\nc", "x" * 40]
    CASES = {
        "counts": [lambda n=n: (n,) for n in (0, 5, 100)], "lookup": [lambda: (1,), lambda: (2,)],
        "words": [lambda line=line: (line,) for line in LINES], "emptied": [lambda: (3,)], "changed": [lambda: (4,)],
        "arrays": [lambda: (5,)], "listed": [lambda: (9,)], "nested": [lambda: (3,)], "sets": [lambda: (3,), lambda: (50,)],
        "text_set": [lambda: ("x", "y"), lambda: ("é", "é")],
        "cases": [lambda line=line: (line,) for line in LINES], "properties": [lambda line=line: (line,) for line in LINES],
        "parts": [lambda line=line: (line,) for line in LINES],
        "hashes": [lambda line=line: (line, 2.5, -7) for line in LINES],
        "exponents": [lambda x=x: (x, x, 3) for x in (0.0, 1.5, -3.25, math.inf, math.nan, 5e-324)],
        "powers": [lambda z=z, w=w: (z, w, z) for z in (0j, 1 + 2j, -1.5j) for w in (0j, 2.5 - 1j, -1 + 0j)],
    }
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Kernels, exported once by one process."""
    made = Project(tmp_path_factory.mktemp("containers"))
    made.write(kernels=KERNELS, compared=COMPARED)
    made.run_in_fork(EXPORT)
    return made


def test_results_are_those_of_numba(project: Project) -> None:
    """Values and exceptions; hashes with a seed of this process, and with another one."""
    assert project.run(CASES + COMPARE, backend=False, PYTHONHASHSEED="5") == []


def test_numba_is_not_imported(project: Project) -> None:
    script = """
    import sys
    from compcache import Cache
    cache = Cache("cache")
    calls = [("words", "b b"), ("listed", 5), ("cases", "ß"), ("text_set", "a", "b"), ("hashes", "añ", 1.5, 3), ("powers", 1j, 2, 1)]
    made = [cache.get_target("kernels." + name)(*args) for name, *args in calls]
    result = made[0], made[2][0], made[4][0] == hash("añ"), [name for name in sys.modules if name in ("numba", "llvmlite")]
    """
    assert project.run(script, backend=False) == (([("a", 0), ("b", 2)], 0), "SS", True, [])


@pytest.mark.parametrize(
    ("version", "reason"),
    [("return '0.1.2'", "numba 0.1.2 is installed"), ("raise NotLazy('no descriptors')", "no descriptors; install numba")],
)
def test_what_is_missing_is_said_in_words(project: Project, version: str, reason: str) -> None:
    script = f"""
    import numpy
    import compcache.numba.registered.distributions as distributions
    from compcache import Cache
    from compcache.numba.registered.refusals import NotLazy
    def numba_version():
        {version}
    distributions.numba_version = numba_version
    try:
        Cache("cache").get_target("kernels.words")("a")
    except ImportError as error:
        result = str(error)
    """
    told = project.run(script, backend=False)
    assert "containers or properties of characters" in told
    assert reason in told


def test_nothing_leaks(project: Project) -> None:
    script = """
    import resource
    from compcache import Cache
    cache = Cache("cache")
    calls = [("counts", 20), ("lookup", 3), ("words", "a ñ b"), ("emptied", 3), ("changed", 3), ("arrays", 5), ("listed", 9),
             ("nested", 4), ("sets", 9), ("text_set", "x", "é"), ("cases", "aéß"), ("parts", "a b é")]
    targets = [(cache.get_target("kernels." + name), args) for name, *args in calls]
    def repeat(times):
        for _ in range(times):
            for target, args in targets:
                try:
                    target(*args)
                except Exception:
                    pass
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = repeat(500)
    result = repeat(5000) - first
    """
    assert project.run(script, backend=False) < 1000  # KiB: 100 bytes for each round would be 500


def test_threads_use_dictionaries_at_the_same_time(project: Project) -> None:
    script = """
    from concurrent.futures import ThreadPoolExecutor
    from compcache import Cache
    target = Cache("cache").get_target("kernels.counts")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: [target(100) for _ in range(200)][-1][1], range(8)))
    result = answers
    """
    assert project.run(script, backend=False) == [6] * 8
