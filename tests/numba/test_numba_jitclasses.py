"""Code that returns instances of jitclasses to Python: stored with the names of the classes, bound to the classes of each process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from numba_helpers import Project, _inherited

from compcache import Cache
from compcache.frontend import list_uncached

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_KERNELS = """
    import numpy as np
    from numba import float64, int64, njit, typed
    from numba.experimental import jitclass

    BY = 3.0

    class Base:
        def scaled(self, by):
            return self.a * by

    @jitclass([("a", float64)])
    class Point(Base):
        def __init__(self, a):
            self.a = a
        def moved(self, by):
            return Point(self.a + by * BY)
        @property
        def twin(self):
            return Point(self.a)
        @staticmethod
        def origin():
            return Point(0.0)

    def make(step):
        @jitclass([("a", float64)])
        class Point:
            def __init__(self, a):
                self.a = a + step
            def next(self):
                return self.a + step
        return Point

    First, Second = make(10.0), make(20.0)

    @jitclass([("point", Point.class_type.instance_type), ("b", int64)])
    class Holder:
        def __init__(self, point):
            self.point = point
            self.b = 7

    @njit(cache=True)
    def create(x):
        return Point(x)

    @njit(cache=True)
    def first(x):
        return First(x)

    @njit(cache=True)
    def second(x):
        return Second(x)

    @njit(cache=True)
    def pair(x):
        return Point(x), Holder(Point(x + 1))

    @njit(cache=True)
    def perhaps(x):
        return Point(x) if x > 0 else None

    @njit(cache=True)
    def listed(x):
        points = typed.List()
        points.append(First(x))
        return points

    @njit(cache=True)
    def caller(x):
        return create(x).moved(1.0)
"""
_LINKED = """
    from numba import deferred_type, float64, njit, optional
    from numba.experimental import jitclass

    node = deferred_type()

    @jitclass([("value", float64), ("rest", optional(node))])
    class Node:
        def __init__(self, value, rest):
            self.value = value
            self.rest = rest

    node.define(Node.class_type.instance_type)

    @njit(cache=True)
    def chain(x):
        return Node(x, Node(x + 1, None))

    @njit(cache=True)
    def value(head):
        return head.value
"""
_CALLS = """
    import kernels as k
    from numba import typeof, types

    def shown(value):
        kind = type(value).__name__, isinstance(value, k.Point), type(value) is type(k.Point(0.0))
        return [*kind, value.a, value.scaled(2.0), value.moved(1.0).a, value.twin.twin.a] if kind[1] else [kind, getattr(value, "a", None)]

    point, holder = k.pair(1.0)
    points = k.listed(5.0)
    points.append(k.first(6.0))
    answers = [
        shown(k.create(2.0)), shown(k.caller(2.0)), shown(k.first(2.0)), k.first(2.0).next(), k.second(2.0).next(),
        isinstance(k.second(2.0), k.Second), isinstance(k.second(2.0), k.First), shown(point), shown(holder), shown(holder.point), holder.b,
        shown(k.perhaps(1.0)), k.perhaps(-1.0), [isinstance(each, k.First) and each.next() for each in points],
        typeof(points) == types.ListType(k.First.class_type.instance_type),
        shown(k.Point(4.0)), shown(k.Point.origin()), shown(k.Holder(k.create(9.0)).point),
    ]
"""
_BRIEF = """
    import kernels as k
    point, holder = k.pair(1.0)
    answers = [
        [type(point).__name__, type(point) is type(k.create(1.0)), point.a, point.scaled(2.0), point.moved(1.0).a, point.twin.a],
        [k.caller(2.0).a, holder.point.a, holder.b, type(holder.point) is type(point), k.Point.origin().a],
        [[isinstance(f(2.0), c) for c in (k.First, k.Second)] + [f(2.0).next()] for f in (k.first, k.second)],
    ]
"""
_COUNTED = "    result = repr(answers), backend.misses, backend.refused\n"
_EDITS = [
    ('("a", float64)])\n    class Point(Base):', '("a", int64)])\n    class Point(Base):'),
    ('("a", float64)])\n    class Point(Base):', '("b", int64), ("a", float64)])\n    class Point(Base):'),
    ("self.a + by * BY", "self.a - by * BY"),
    ("return self.a * by", "return self.a / by"),
    ("class Point(Base):\n", "class Point(Other):\n"),
    ("BY = 3.0", "BY = 4.0"),
    ("First, Second = make(10.0), make(20.0)", "Second, First = make(10.0), make(20.0)"),
    ("First, Second = make(10.0), make(20.0)", "First, Second = make(20.0), make(10.0)"),
    ('("b", int64)])', '("b", float64)])'),
    ("return Point(0.0)", "return Point(5.0)"),
]
_OTHER = """
    class Other:
        def scaled(self, by):
            return self.a - by

    @jitclass([("a", float64)])
    class Point(Base):
"""


def _edited(old: str, new: str) -> str:
    source = _KERNELS.replace('\n    @jitclass([("a", float64)])\n    class Point(Base):\n', _OTHER, 1)
    assert source.count(old) == 1, old
    return source.replace(old, new)


def _in_main(project: Project) -> Any:
    """What the brief program prints under `run`, with its functions in its main module, how much it compiled, and what was refused."""
    (project.source / "main.py").write_text((project.source / "kernels.py").read_text() + textwrap.dedent(_MAIN))
    lines = _run(project, COMPCACHE_DEBUG="1").stderr.splitlines()
    refused = [line for line in lines if "refused" in line and "later processes" not in line and "was imported" not in line]
    return (project.source / "answers").read_text(), sum("compiled " in line for line in lines), refused


_MAIN = f"""
    import sys
    sys.modules["kernels"] = sys.modules["__main__"]
{_BRIEF}
    open("answers", "w").write(repr(answers))
"""


def _run(project: Project, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "compcache.numba", "run", "main.py"]
    environment = _inherited() | {"COMPCACHE_DIR": str(project.cache)} | environment
    return subprocess.run(command, cwd=project.source, env=environment, capture_output=True, text=True, check=True)


def test_every_process_has_instances_of_its_own_classes(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels=_KERNELS)
    plain = project.run_in_fork(_CALLS + "    result = answers\n")
    assert plain[0] == ["Point", True, True, 2.0, 4.0, 5.0, 2.0]
    for misses in (7, 0):
        assert project.run(_CALLS + _COUNTED, backend=True) == (repr(plain), misses, {})
    ours = _KERNELS.replace(", njit,", ",").replace("BY = 3.0", "from compcache.numba import njit\n    BY = 3.0")
    project.write(kernels=ours)
    for _ in range(2):
        assert project.run(_CALLS + "    result = answers\n", backend=False, COMPCACHE_DIR=str(project.cache)) == plain


def test_an_environment_variable_suffices(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.register()
    project.write(kernels=_KERNELS)
    plain = project.run_in_fork(_BRIEF + "    result = answers\n")
    script = _BRIEF + "    from compcache.numba.lazy import installed_backend\n    result = answers, installed_backend().misses\n"
    environment = {"COMPCACHE_NUMBA": "1", "COMPCACHE_DIR": str(project.cache)}
    assert [project.run(script, backend=False, **environment) for _ in range(2)] == [(plain, 5), (plain, 0)]


def test_every_edit_counts_and_the_old_version_is_found_again(tmp_path: Path) -> None:
    project = Project(tmp_path)
    first = ("BY = 3.0", "BY = 3.0")
    said = []
    for old, new in (first, *_EDITS, first):
        project.write(kernels=_edited(old, new))
        said.append(project.run_in_fork(_BRIEF + "    result = repr(answers)\n"))
        answers, misses, refused = project.run(_BRIEF + _COUNTED, backend=True)
        assert (answers, refused) == (said[-1], {}), new
    assert misses == 0
    assert len(set(said)) == 9  # the others change no answer


def test_programs_are_right_under_run(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for old, new in (("BY = 3.0", "BY = 3.0"), _EDITS[0], _EDITS[3], _EDITS[6], ("BY = 3.0", "BY = 3.0")):
        project.write(kernels=_edited(old, new))
        plain = project.run_in_fork(_BRIEF + "    result = repr(answers)\n")
        answers, compiled, refused = _in_main(project)
        assert (answers, refused) == (plain, []), new
    assert compiled == 0


def test_classes_are_found_whatever_was_used_before(tmp_path: Path) -> None:
    """A class of the same name and fields that is met first has another number, so no code gets its instances."""
    project = Project(tmp_path)
    project.write(kernels=_KERNELS)
    script = """
        import kernels as k
        first, second = ORDER
        {"first": k.first, "second": k.second}[first](1.0)
        result = [[isinstance(f(2.0), c) for c in (k.First, k.Second)] + [f(2.0).next()] for f in (k.first, k.second)], backend.refused
    """
    for order in ("'first', 'second'", "'second', 'first'", "'first', 'second'"):
        assert project.run(script.replace("ORDER", order), backend=True) == ([[True, False, 22.0], [False, True, 42.0]], {})


def test_linked_structures_are_compiled_in_each_process(tmp_path: Path) -> None:
    """Numba completes a deferred type when it compiles code for it. Code that it compiles later needs the complete type."""
    project = Project(tmp_path)
    project.write(kernels=_LINKED)
    for _ in range(2):
        answers, refused = project.run("import kernels as k\nresult = k.value(k.chain(1.0)), backend.refused", backend=True)
        assert answers == 1.0
        assert [name.partition("(")[0] for name in refused] == ["kernels.chain", "kernels.value"]
        assert all("a deferred type" in reason for reason in refused.values())
    with Cache(project.cache) as cache:
        assert len(cache) == 0


def test_a_refused_constructor_says_its_class(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (project.source / "main.py").write_text(textwrap.dedent("""
        import ctypes
        from numba import int64, types
        from numba.experimental import jitclass

        class Absolute(types.WrapperAddressProtocol):
            def __wrapper_address__(self):
                return ctypes.cast(ctypes.CDLL(None).llabs, ctypes.c_void_p).value
            def signature(self):
                return int64(int64)

        absolute = Absolute()

        @jitclass([("a", int64)])
        class Point:
            def __init__(self, a):
                self.a = absolute(a)

        print(Point(-3).a)
    """))
    assert _run(project).stdout == "3\n"
    with Cache(project.cache) as cache:
        labels = [row.name for row in list_uncached(cache)]
    assert "__main__.Point(int64)" in labels


_METHODS = """
    from numba import float64, njit
    from numba.experimental import jitclass

    K = 1.0

    @jitclass([("a", float64)])
    class Point:
        def __init__(self, a):
            self.a = a
        def scaled(self):
            return self.a * K
        def moved(self):
            return self.a + K

    @njit(cache=True)
    def scale(point):
        return point.scaled()

    @njit(cache=True)
    def move(point):
        return point.moved()

    @njit(cache=True)
    def both(points):
        return points[0].moved() + points[1].scaled()
"""
_CHANGED = """
    import kernels as k
    point, answers = k.Point(2.0), []
    k.K = {first}
    answers.append(k.scale(point))
    k.K = 10.0
    answers += [point.scaled(), k.move(point)]
    k.K = 20.0
    answers += [point.moved(), k.both((point, point))]
    result = answers
"""


def test_methods_of_an_argument_keep_the_values_of_loaded_code(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels=_METHODS)
    for first in (1.0, 5.0, 5.0, 1.0):
        script = _CHANGED.format(first=first)
        expected = [2.0 * first, 2.0 * first, 12.0, 12.0, 12.0 + 2.0 * first]
        assert project.run(script, backend=True) == expected
