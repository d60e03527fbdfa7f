"""Looking at a program's objects costs little; what their own code raises then is a reason not to cache, no error of the program."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers import PACKAGE_ROOT
from numba_helpers import Project, finish
from test_numba_stale import EDITS

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")

#: Objects that raise at every access, of classes with several bases.
_HOSTILE = """
    from types import ModuleType

    class LookedAtError(Exception):
        pass

    def raises(*_, **__):
        raise LookedAtError

    SPECIAL = {name for name in dir(object) if name.startswith("__")} | {
        "__getattr__", "__len__", "__bool__", "__iter__", "__call__", "__getitem__", "__contains__", "__index__", "__array__", "__get__",
    }
    SPECIAL -= {"__new__", "__init__", "__init_subclass__", "__class__", "__doc__", "__subclasshook__", "__module__", "__del__"}

    def hostile(base):
        members = dict.fromkeys(SPECIAL, raises) | {"__class__": property(raises), "__getattribute__": raises}
        return base.__new__(type("Hostile", (base,), members))

    class Meta(type):
        __getattribute__ = __instancecheck__ = __subclasscheck__ = __eq__ = __hash__ = __len__ = __bool__ = raises

    class Module(ModuleType):
        def __getattribute__(self, name):
            return object.__getattribute__(self, name) if name == "__class__" else raises()

    class Interrupting:
        def __init__(self, action):
            self.action = action

        @property
        def __class__(self):
            return object.__getattribute__(self, "action")()

    OBJECTS = [hostile(base) for base in (object, dict, list, tuple, str, int)] + [Meta("Class", (), {}), Module("hostile")]
"""
_OVERLOADED = """
    from numba import njit
    from numba.extending import overload
    {before}

    def stub(x):
        raise NotImplementedError

    @overload(stub)
    def implementation(x):
        {body}
        return lambda x: x + held

    @njit(cache=True)
    def f(x):
        return stub(x)
"""


def overloaded(before: str, body: str) -> str:
    return _OVERLOADED.format(before=before, body=body)


@pytest.mark.slow
def test_what_objects_raise_is_a_reason_not_to_cache(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(hostile=_HOSTILE)
    project.write(**{
        f"program{number}": overloaded(f"import hostile\n    value = hostile.OBJECTS[{number}]", "held = 1 if value is not None else 2")
        for number in range(8)
    })  # fmt: skip
    said, refused = project.run(
        """
        from importlib import import_module
        said = [import_module(f"program{number}").f(3) for number in range(8)]
        result = said, sorted(backend.refused.values())
        """,
        backend=True,
    )
    assert said == [4] * 8
    assert {reason.rpartition(" raised ")[2] for reason in refused} == {"LookedAtError when it was examined"}
    assert len(refused) == 8


_STAND_INS = """
class Raising(type):
    __getattribute__ = __instancecheck__ = __subclasscheck__ = __eq__ = __hash__ = lambda *_: 1 / 0

class Answering(type):
    def __getattr__(cls, name):
        return 3

from numba import njit
raising, answering = [object.__new__(meta("Class", (), {})) for meta in (Raising, Answering)]

@njit(cache=True)
def f(x):
    return x + 1

@njit(cache=True)
def g(x):
    return raising if x < 0 else answering

def said(x):
    try:
        return g(x)
    except Exception as error:
        return type(error).__name__

@njit(cache=True, nogil=raising)
def h(x):
    return x + 2

print(f(1), h(1), said(1))
"""


@pytest.mark.slow
def test_what_metaclasses_answer_makes_nothing_a_stand_in(tmp_path: Path) -> None:
    """Where Numba is not imported yet, what stands for its objects is told by classes, and metaclasses are the program's."""
    program = tmp_path / "program.py"
    program.write_text(_STAND_INS)
    environment = {**os.environ, "COMPCACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(PACKAGE_ROOT)}
    said = [
        subprocess.run([sys.executable, *way, program], env=environment, capture_output=True, text=True, check=True).stdout
        for way in ([], ["-m", "compcache.numba", "run"])
    ]
    assert said == ["2 3 ZeroDivisionError\n"] * 2


@pytest.mark.slow
def test_interrupts_while_objects_are_looked_at_reach_the_program(tmp_path: Path) -> None:
    """What a signal handler raises is the program's, also where it is an ordinary exception."""
    project = Project(tmp_path)
    before = "import actions\n    value = actions.value"
    project.write(hostile=_HOSTILE, program=overloaded(before, "held = 1 if value is not None else 2"))
    project.write(actions="""
        import signal
        from hostile import Interrupting
        def late(*_):
            raise TimeoutError("too late")
        signal.signal(signal.SIGALRM, late)
        def interrupt():
            raise KeyboardInterrupt
        actions = [interrupt, lambda: signal.raise_signal(signal.SIGALRM)]
        value = Interrupting(lambda: actions[0]())
    """)  # fmt: skip
    said = project.run(
        """
        import actions
        from compcache.numba.fingerprints.fingerprint import walk_value
        result = []
        for _ in range(2):
            try:
                walk_value(actions.value, "a value")
            except BaseException as error:
                result.append(type(error).__name__)
            actions.actions.pop(0)
        """,
        backend=True,
    )
    assert said == ["KeyboardInterrupt", "TimeoutError"]


@pytest.mark.slow
def test_which_of_equal_objects_and_what_a_type_holds_counts(tmp_path: Path) -> None:
    named = ("an attribute of a type's instance", "an overload reads an object through one of two equal references")
    edits = [edit for edit in EDITS if edit.name in named]
    project = Project(tmp_path)
    said = []
    for version in range(2):
        sources = [edit.source.replace(edit.old, edit.new) if version else edit.source for edit in edits]
        project.write(**{f"program{number}": source for number, source in enumerate(sources)})
        said.append(project.run("import program0, program1\nresult = program0.f(7.0, 2.0), program1.f(7.0, 2.0)", backend=True))
    assert said == [(5.0, 23.0), (6.0, 30.0)]


@pytest.mark.slow
def test_what_linked_structures_cost_grows_with_their_size(tmp_path: Path) -> None:
    """Counted in lines that the backend runs: four times as large a structure costs four times as much, not sixteen times."""
    project = Project(tmp_path)
    build = """
    class Node:
        def __init__(self, value, following):
            self.value, self.following = value, following

    first = None
    for number in range({size}):
        first = Node(number, first)
    """
    loop = "held, node = 0, first\n        while node is not None:\n            held, node = held + {value}, {following}"
    before = build + "\n    VALUE, FOLLOWING = 'value', 'following'\n"
    ways = {"named": ("node.value", "node.following"), "computed": ("getattr(node, VALUE)", "getattr(node, FOLLOWING)")}
    for size in (1, 2, 100, 400):
        for name, (value, following) in ways.items():
            text = overloaded(before.format(size=size), loop.format(value=value, following=following))
            project.write(**{f"{name}{size}": text})
    said, lines, refused = project.run(
        """
        import sys
        from importlib import import_module

        def count(frame, event, argument):
            global counted
            if "/compcache/numba/" not in frame.f_code.co_filename:
                return None
            counted += event == "line"
            return count

        said, lines = [], []
        for name in ("named", "computed"):
            for size in (1, 2, 100, 400):  # the first imports what the others use
                f, counted = import_module(f"{name}{size}").f, 0
                sys.settrace(count)
                said.append(f(1))
                sys.settrace(None)
                lines.append(counted)
        result = said, lines, backend.refused
        """,
        backend=True,
    )
    assert said == [1, 2, 4951, 79801] * 2
    assert not refused
    for _, fixed, small, large in (lines[:4], lines[4:]):
        assert large - fixed < 6 * (small - fixed), lines


@pytest.mark.slow
def test_explain_tells_what_a_function_reads_that_differs(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(program="""
        from numba import njit
        BASE = 1

        def make(number, table):
            @njit(cache=True)
            def f(x):
                return x + number + table[0] + BASE
            return f
    """)  # fmt: skip
    said, differences = project.run(
        """
        import program
        said = [program.make(2, (3,))(1), program.make(5, (3,))(1), program.make(2, (8,))(1)]
        label = "program.make.<locals>.f(int64)"
        names = [variant.func_name for variant in backend.cache.explain(label).variants]
        variants = [variant for name in names for variant in backend.cache.explain(name).variants]
        result = said, sorted({difference.component for variant in variants for difference in variant.differences})
        """,
        backend=True,
    )
    assert said == [7, 10, 12]
    where = "that program.make.<locals>.f closes over"
    assert differences == ["function", f"read the variable 'number' {where}", f"read the variable 'table' {where}"]


def test_a_callee_with_a_pipeline_of_the_program_is_refused() -> None:
    from numba import njit
    from numba.core.compiler import CompilerBase

    from compcache.numba.fingerprints.content import content_of
    from compcache.numba.fingerprints.fingerprint import fingerprint
    from compcache.numba.registered.refusals import NotLazy, Unrepeatable

    class Own(CompilerBase):  # type: ignore[misc]
        """It may change constants."""

    callee = njit(pipeline_class=Own)(lambda x: x)
    with pytest.raises(Unrepeatable, match="pipeline"):
        fingerprint(lambda x: callee(x) + 1)
    with pytest.raises(NotLazy, match="pipeline"):
        content_of(lambda x: callee(x) + 1, ())


def test_a_callee_whose_defaults_were_replaced_after_its_declaration_is_refused() -> None:
    from numba import njit

    import compcache.numba
    from compcache.numba.fingerprints.content import content_of
    from compcache.numba.fingerprints.fingerprint import fingerprint
    from compcache.numba.registered.refusals import NotLazy, Unidentifiable

    def replaced(x: int, y: int = 2) -> int:
        return x + y

    for decorate, digest, reason in (
        (njit, fingerprint, Unidentifiable),
        (compcache.numba.njit, lambda function: content_of(function, ()), NotLazy),
    ):
        callee = decorate(replaced)
        digest(lambda x, callee=callee: callee(x))
        for defaults in ((3,), None):
            replaced.__defaults__ = defaults
            with pytest.raises(reason, match="replaced after its declaration"):
                digest(lambda x, callee=callee: callee(x))
        replaced.__defaults__ = (2,)


@pytest.mark.slow
def test_the_first_ufunc_leaves_the_compilers_candidates_in_the_order_of_uncached_numba(tmp_path: Path) -> None:
    """The compiler takes the first candidate that accepts the types, and the time to try others is the time of a cold run."""
    project = Project(tmp_path)
    project.write(
        squares="""
    from numba import vectorize

    @vectorize(["float64(float64)"], cache={cache})
    def square(x):
        return x * x
    """
    )
    script = """
    import operator
    from pathlib import Path
    path = Path("squares.py")
    path.write_text(path.read_text().replace("{cache}", "CACHE"))
    import squares
    from numba.core.registry import cpu_target
    templates = cpu_target.typing_context.resolve_value_type(operator.getitem).templates
    result = [getattr(getattr(template, "_overload_func", template), "__name__", "") for template in templates]
    path.write_text(path.read_text().replace("CACHE", "{cache}"))
    """
    plain = finish(project.start(script.replace("CACHE", "False"), backend=False))
    cached = finish(project.start(script.replace("CACHE", "True"), backend=True))
    assert cached == plain


def test_the_classes_that_singledispatch_remembers_are_no_content() -> None:
    """Each call adds the class of its argument. A process that finds the first function of a program makes no such call."""
    import functools

    from compcache.numba.fingerprints.fingerprint import fingerprint_of_implementations
    from compcache.numba.fingerprints.implementations import Implementation

    @functools.singledispatch
    def kind(_: object) -> int:
        return 1

    kind.register(int, lambda _: 2)

    def implement(value: object) -> int:
        return kind(value)

    def digest() -> str:
        return fingerprint_of_implementations([Implementation(implement, ())]).content

    before = digest()
    assert (kind(3), kind("a")) == (2, 1)
    assert digest() == before
    kind.register(str, lambda _: 3)
    assert digest() != before
