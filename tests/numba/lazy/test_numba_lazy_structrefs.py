"""Types that programs declare with `numba.experimental.structref` import Numba when such a value occurs or more is asked of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from typing import Any

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]
pytest.importorskip("numba")

PROGRAM = """
    from numba import njit, types
    from numba.experimental import structref
    from numba.experimental.structref import StructRefProxy, define_proxy

    @structref.register
    class PairType(types.StructRef):
        "A pair."

        def preprocess_fields(self, fields):
            return tuple((name, types.unliteral(kind)) for name, kind in fields)

    class Pair(StructRefProxy):
        def __new__(cls, x, y):
            return StructRefProxy.__new__(cls, x, y)

        @property
        def x(self):
            return get_x(self)

    FIELDS = ["x", "y"]
    define_proxy(Pair, PairType, FIELDS)
    FIELDS.append("z")  # which Numba does not see

    @structref.register
    class OneType(types.StructRef):
        pass

    class One(structref.StructRefProxy):
        __slots__ = ()

    structref.define_proxy(One, OneType, ("x",))

    @njit
    def get_x(pair):
        return pair.x

    @njit
    def made(x):
        return Pair(x, x + 1)

    @njit
    def plain(x):
        return x + 1
"""
#: Questions about the declarations, and whether they are answered without Numba.
QUESTIONS = {
    "[cls.__name__ + cls.__qualname__ + cls.__module__ + str(cls.__doc__) + repr(cls) for cls in (p.Pair, p.PairType)]": True,
    "isinstance(3, p.PairType), isinstance(3, p.Pair), isinstance(3, p.StructRefProxy), isinstance(3, p.types.StructRef)": True,
    "issubclass(p.Pair, p.StructRefProxy), issubclass(int, p.StructRefProxy), issubclass(int, p.PairType), p.Pair == p.One": True,
    "[pickle.loads(pickle.dumps(cls)) is cls for cls in (p.Pair, p.PairType)]": True,
    "issubclass(p.PairType, p.types.StructRef), issubclass(p.PairType, p.types.Type), issubclass(p.Pair, p.PairType)": False,
    "p.Pair(1, 2.5).x, p.made(4).x, type(p.made(4)) is p.Pair, str(p.made(4)._numba_type_)": False,
    "p.get_x(p.One(5)), str(p.One(5)._numba_type_), isinstance(p.One(5), p.StructRefProxy), isinstance(p.One(5), p.Pair)": False,
    "object.__new__(p.One).__class__ is p.One, hasattr(object.__new__(p.One), '_numba_type_'), p.One(2).__class__ is p.One": False,
    "[str(cls.__mro__) for cls in (p.PairType, p.OneType)]": False,
    "str(type(p.PairType)), str(type(p.Pair)), str(p.made(1)._numba_type_)": None,
    "sorted(vars(p.PairType)), sorted(dir(p.PairType)), p.PairType._is_internal": False,
    "p.made(1) and sorted(vars(p.Pair)) + sorted(dir(p.Pair))": False,
    "str(p.PairType([('x', p.types.int64)])), p.PairType([('x', p.types.int64)]) is p.PairType([('x', p.types.int64)])": False,
    "p.PairType.mutable, hasattr(p.PairType, 'nothing'), p.Pair._numba_box_.__qualname__": False,
    "str(type('Sub', (p.PairType,), {}).__mro__), raised(lambda: type('Sub', (p.Pair,), {})(1, 2))": False,
    "raised(lambda: p.define_proxy(p.Pair, p.PairType, ['x', 'x']))": False,
    "raised(lambda: p.structref.register(p.types.StructRef)), raised(lambda: p.structref.register(3))": False,
    "raised(lambda: p.PairType(3)), raised(lambda: p.Pair(1)), raised(lambda: p.made('x'))": False,
}
ASK = """
import pickle, sys
import program as p

def raised(function):
    try:
        return repr(function())
    except BaseException as error:
        return type(error).__name__
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The program, whose functions were compiled."""
    made = Project(tmp_path_factory.mktemp("structrefs"))
    made.write(program=PROGRAM)
    ask(made, "p.plain(1)")
    return made


def ask(project: Project, question: str, *, lazily: bool = True) -> Any:
    install = "import compcache.numba\ncompcache.numba.install(lazy=True)\n" if lazily else ""
    text = f"{install}{ASK}result = ({question}), 'numba.core' in sys.modules"
    return project.run(text, backend=False, COMPCACHE_DIR=str(project.cache))


def test_declarations_of_types_need_no_numba(project: Project) -> None:
    assert ask(project, "p.plain(1)") == (2, False)


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_about_declarations_have_numbas_answers(project: Project, question: str) -> None:
    answer, has_numba = ask(project, question)
    if QUESTIONS[question] is not None:
        assert has_numba is not QUESTIONS[question]
        assert answer == ask(project, question, lazily=False)[0]
    else:  # what `type` says needs the import
        assert ask(project, f"p.made(1) and ({question})")[0] == ask(project, question, lazily=False)[0]


@pytest.mark.parametrize("statement", [
    "class Other(types.StructRef, Exception if False else object): pass",
    "class Other(structref.StructRefProxy, metaclass=abc.ABCMeta): pass",
    "def other():\n    class Other(types.StructRef): pass\n    return Other\nOther = other()",
    "class Other(types.StructRef, flag=1): pass",
    "class Other(p.PairType): pass",
    "class Other(p.Pair): pass",
])  # fmt: skip
def test_other_class_statements_make_the_classes_that_numba_has(project: Project, statement: str) -> None:
    project.write(
        other=f"import abc\nimport program as p\nfrom numba import types\nfrom numba.experimental import structref\n{statement}\n"
    )
    question = "raised(lambda: [(str(type(o.Other)), str(o.Other.__mro__)) for o in [__import__('other')] if p.made(1)])"
    assert ask(project, question) == ask(project, question, lazily=False)
