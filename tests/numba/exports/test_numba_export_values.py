"""Exported kernels take and give dates, records, enumerations, lists of anything, typed lists and dictionaries, sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_exports import COMPARE, COMPARED, EXPORT, KERNELS_HEAD
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]
pytest.importorskip("numba")

KERNELS = (
    KERNELS_HEAD
    + """
    import enum
    from collections import namedtuple
    from numba.typed import Dict, List

    THREE = np.timedelta64(3, "D")
    Pair = namedtuple("Pair", "day text")
    row = np.dtype([("n", np.int32), ("x", np.float64), ("tag", "U3"), ("rest", np.int16, (2,))], align=True)
    record = numba.from_dtype(row)
    seconds, days, steps = types.NPDatetime("s"), types.NPDatetime("D"), types.NPTimedelta("D")

    class Color(enum.Enum):
        RED = 1
        BLUE = 7

    class Level(enum.IntEnum):
        LOW = 0
        HIGH = 9

    colors, levels = types.EnumMember(Color, i8), types.IntEnumMember(Level, i8)

    by_number = types.DictType(i8, f8[::1])
    PLAIN = {}

    def plain(*signature):
        def decorate(function):
            PLAIN[function.__name__] = signature
            return njit(function)
        return decorate

    def reflected(item):
        return types.List(item, reflected=True)

    @kernel(seconds)
    def same_date(d):
        return d

    @kernel(days, days)
    def between(a, b):
        return b - a, a + THREE, a < b, np.isnat(a)

    @kernel(steps, types.optional(days))
    def later(step, day):
        if day is None:
            return None
        return day + step

    @kernel(days[:], steps[:, ::1])
    def dates(a, b):
        return a[::2], b.T, a[0], b[0, 0]

    @kernel(types.NamedTuple((days, text), Pair))
    def dated(pair):
        return Pair(pair.day, pair.text + "!")

    @kernel(record)
    def of_record(r):
        r.x += r.n
        return r

    @kernel(record, record)
    def two_records(r, s):
        r.n, s.n = s.n, r.n
        return r.x + s.x

    @kernel(record[:], i8)
    def one_record(a, i):
        if i < 0:
            raise IndexError("negative", i)
        return a[i]

    @kernel(record[:], i8)
    def field_of_record(a, i):
        return a[i].tag, a[i].rest, a[i].n

    @kernel(types.Array(types.UnicodeCharSeq(4), 1, "C"), types.Array(types.CharSeq(3), 1, "C"))
    def letters(names, octets):
        return names[1], octets[1], str(names[0]), names[::-1]

    @kernel(colors, levels)
    def members(color, level):
        return color, Color.RED, level, Level.HIGH, color == Color.BLUE, level + 1

    @kernel(reflected(text), text)
    def texts(items, more):
        items.append(more + "é")
        items[0] = items[0] + more
        return len(items), items[-1], "".join(items)

    @kernel(reflected(text))
    def popped(items):
        return items.pop(0), items.pop()

    @kernel(reflected(types.Tuple((i8, text))))
    def pairs(items):
        items.append((len(items), "new"))
        return [(name, number) for number, name in items]

    @kernel(reflected(types.complex128), reflected(days), reflected(types.boolean))
    def plain_lists(a, b, c):
        a.append(a[0] * 1j)
        b.append(b[0] + THREE)
        c[0] = not c[0]
        return a, b[-1], sum(c)

    @kernel(reflected(f8[::1]))
    def list_of_arrays(items):
        items.append(items[0] + 1)
        return items[0], items[-1]

    @kernel(types.optional(reflected(f8)), types.UniTuple(reflected(i8), 2))
    def lists_in(items, both):
        return 0.0 if items is None else sum(items) + sum(both[1])

    @kernel(reflected(text), i8)
    def changed_and_raised(items, n):
        items.append("x")
        if n > 1:
            raise ValueError("too many", n)
        return items.clear()

    @plain(i8)
    def made_dictionary(n):
        found = {"a": 0}
        for i in range(n):
            found["b" * i] = found.get("b" * i, 0) + i
        return found

    @plain(i8)
    def made_list(n):
        made = List()
        for i in range(n):
            made.append((i, "é" * i))
        return made

    @plain(i8)
    def made_sets(n):
        return set([i % 5 for i in range(n)]), set([str(i % 3) for i in range(n)])

    @plain(i8)
    def nested(n):
        arrays = Dict.empty(i8, f8[::1])
        for i in range(n):
            arrays[i] = np.full(i, 0.5)
        outer = Dict.empty(text, by_number)
        outer["all"] = arrays
        return outer, (n, [arrays, arrays][:n]), None if n < 2 else arrays

    @plain(types.DictType(text, i8), text)
    def counted(found, word):
        found[word] = found.get(word, 0) + 1
        if word == "raise":
            raise KeyError("raise", len(found))
        if len(found) > 3:
            found.clear()
        return len(found)

    @plain(types.ListType(f8), types.Set(i8))
    def both(items, found):
        items.append(items[0] * len(found))
        found.add(len(items))
        return items

    @plain(types.Set(i8, reflected=True))
    def more(found):
        found.add(99)
        return found, len(found)

    @plain(types.DictType(i8, types.Tuple((f8, text))), i8)
    def read(found, key):
        return found[key]
"""
)
CASES = """
    import numpy as np
    from kernels import Color, Level, Pair, row
    D = lambda t, u="D": np.datetime64(t, u)
    T = lambda n, u="D": np.timedelta64(n, u)
    rows = lambda: np.array([(i, i / 2, "ab"[:i], (i, -i)) for i in range(3)], row)
    CASES = {
        "same_date": [lambda t=t: (D(t, "s"),) for t in ("2024-02-29T10:11:12", "0001-01-01", "NaT")],
        "between": [lambda: (D("2024-02-28"), D("2025-03-01")), lambda: (D("NaT"), D("1969-01-01"))],
        "later": [lambda: (T(5), D("2024-02-28")), lambda: (T("NaT"), D("2024-02-28")), lambda: (T(1), None)],
        "dates": [lambda: (np.array(["2024-01-01", "NaT", "1969-12-31"], "M8[D]"), np.arange(6).reshape(2, 3).astype("m8[D]"))],
        "dated": [lambda: (Pair(D("2024-02-28"), "añ"),)],
        "of_record": [lambda: (rows()[2],), lambda: (rows().view(np.recarray)[1],)],
        "two_records": [lambda: tuple(rows()[1:]), lambda: (rows()[1],) * 2],
        "one_record": [lambda: (rows(), 1), lambda: (rows()[::-1], 0), lambda: (rows(), -1)],
        "field_of_record": [lambda: (rows(), 2)],
        "letters": [lambda: (np.array(["é", "abcd", ""], "U4"), np.array([b"a", b"b\\0c"], "S3"))],
        "members": [lambda: (Color.RED, Level.LOW), lambda: (Color.BLUE, Level.HIGH)],
        "texts": [lambda: (["a", "жук"], "x"), lambda: (["a" * 100, "😀"], "é")],
        "popped": [lambda: (["a", "é", "ccc"],), lambda: (["a"],)],
        "pairs": [lambda: ([(1, "a"), (2, "é")],)],
        "plain_lists": [lambda: ([1j, 2 + 0j], [D("2024-02-28")], [True, False])],
        "list_of_arrays": [lambda: ([np.arange(3.0), np.ones(2)],)],
        "lists_in": [lambda: ([1.5], ([1], [2])), lambda: (None, ([1], [2]))],
        "changed_and_raised": [lambda: (["a"], 1), lambda: (["a"], 2)],
    }
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Kernels, exported once by one process."""
    made = Project(tmp_path_factory.mktemp("values"))
    made.write(kernels=KERNELS.replace("import math", "import math, numba"), compared=COMPARED)
    made.run_in_fork(EXPORT.replace("kernels.SIGNATURES.items()", "{**kernels.SIGNATURES, **kernels.PLAIN}.items()"))
    return made


def test_results_are_those_of_numba(project: Project) -> None:
    """Types, values, what became of arguments, exceptions."""
    assert project.run(CASES + COMPARE, backend=False) == []


#: Numba's containers, as plain ones; those are what exports take and give.
PLAIN = """
    import numpy as np
    import numba, numba.typed
    import kernels
    from numba.typed import Dict, List
    from compared import shown
    from compcache import Cache

    def plain(value):
        if isinstance(value, (tuple, list, List)):
            return (tuple if isinstance(value, tuple) else list)(plain(item) for item in value)
        return {k: plain(v) for k, v in value.items()} if isinstance(value, (dict, Dict)) else value

    def numbas(value, type_):
        if isinstance(type_, numba.types.DictType):
            made = Dict.empty(type_.key_type, type_.value_type)
            made.update(value)
            return made
        return List.empty_list(type_.dtype) if value == [] else List(value) if isinstance(type_, numba.types.ListType) else value

    def outcome(function, arguments):
        try:
            made = plain(function(*arguments))
            return repr(shown(made)), repr(plain(tuple(arguments)))
        except Exception as error:
            return type(error).__name__, error.args

    CASES = {
        "made_dictionary": [(0,), (4,)], "made_list": [(0,), (3,)], "made_sets": [(1,), (20,)], "nested": [(1,), (3,)],
        "counted": [({}, "a"), ({"a": 1, "é": 2}, "é"), ({"a": 1, "b": 2, "c": 3}, "d"), ({"a": 1}, "raise")],
        "both": [([1.5, 2.0], {1, 2, 3})], "more": [({1, 2},), ({99},)], "read": [({1: (2.5, "é")}, 1), ({1: (2.5, "é")}, 2)],
    }
    cache = Cache("cache")
    result = sorted(set(kernels.PLAIN) - set(CASES))
    for name, cases in CASES.items():
        types = kernels.PLAIN[name]
        for number in range(len(cases)):
            ours = outcome(cache.get_target(f"kernels.{name}"), eval(repr(cases[number])))
            theirs = outcome(getattr(kernels, name), [numbas(*pair) for pair in zip(eval(repr(cases[number])), types)])
            if ours != theirs:
                result.append(f"{name} {number}: {ours} is not {theirs}")
"""


def test_containers_of_numba_are_plain_ones(project: Project) -> None:
    """Typed lists, typed dictionaries and sets: contents, order, what became of arguments, exceptions."""
    assert project.run(PLAIN, backend=False) == []


def test_nothing_leaks(project: Project) -> None:
    """Memory and references after a million calls, where they succeed and where they raise."""
    script = """
    import resource, sys
    import numpy as np
    from compcache import Cache
    from kernels import Color, Level, row
    cache = Cache("cache")
    day, key, rows, array = np.datetime64("2024-02-28"), "añ" * 20, np.zeros(2, row), np.ones(2000)
    calls = [("between", day, day), ("of_record", rows[0]), ("one_record", rows, 1), ("one_record", rows, -1),
             ("members", Color.RED, Level.LOW),
             ("texts", [key, "a"], key), ("texts", [key, 5], key), ("popped", [key, key, "x"]), ("pairs", [(1, key)]), ("pairs", [(1, 2)]),
             ("list_of_arrays", [array]), ("list_of_arrays", [array, 1]), ("changed_and_raised", [key], 2), ("made_dictionary", 5),
             ("made_list", 5), ("made_sets", 9), ("nested", 3), ("counted", {"a": 1, key: 3}, key), ("counted", {"a": "b"}, key),
             ("counted", {"a": 1}, "raise"), ("both", [1.5], {1, 2}), ("read", {1: (2.5, key)}, 1), ("read", {1: (2.5, key)}, 2)]
    targets = [(cache.get_target("kernels." + name), args) for name, *args in calls]
    def repeat(times):
        for _ in range(times):
            for target, args in targets:
                try:
                    target(*[type(a)(a) if isinstance(a, (list, dict, set)) else a for a in args])
                except (TypeError, ValueError, KeyError, IndexError):
                    pass
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, *map(sys.getrefcount, (array, key, rows, day))
    first = repeat(300)
    result = [after - before for before, after in zip(first, repeat(1_000_000 // len(targets)))]
    """
    grown = project.run(script, backend=False)
    assert grown[0] < 3000  # KiB: a byte of each call would be 1,000
    assert grown[1:] == [0] * 4


def test_numba_is_not_imported(project: Project) -> None:
    script = """
    import sys
    from compcache import Cache
    cache = Cache("cache")
    words = {"a": 1}
    counted, texts, sets = (cache.get_target(f"kernels.{name}") for name in ("counted", "texts", "made_sets"))
    answers = counted(words, "b"), words, texts(["x"], "y"), sets(3)
    result = answers, sorted(n for n in sys.modules if n in ("numba", "llvmlite"))
    """
    expected = (2, {"a": 1, "b": 1}, (2, "yé", "xyyé"), ({0, 1, 2}, {"0", "1", "2"}))
    assert project.run(script, backend=False) == (expected, [])


def test_what_is_not_carried_is_refused(tmp_path: Path) -> None:
    """With the type that has no conversion."""
    from numba import njit, types

    from compcache import Cache, CompileError
    from compcache.numba import export

    kernel = njit(lambda found: len(found) + 0)
    inner = types.DictType(types.int64, types.int64)
    with Cache(tmp_path / "cache") as cache:
        for type_ in (types.DictType(types.int64, inner), types.ListType(inner), types.List(types.List(types.int64))):
            with pytest.raises(CompileError, match=r"no conversion|exports do not support"):
                export(kernel, (type_,), cache=cache)
