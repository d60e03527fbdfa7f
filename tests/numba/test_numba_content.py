"""What code that runs while Numba compiles reads of a program's objects: each of it is part of keys, or refused, with Numba and without."""

from __future__ import annotations

import dataclasses
import gc
import re
import subprocess
import sys
import textwrap
import types
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
from helpers import PACKAGE_ROOT

pytest.importorskip("numba")

_MEMO = "from functools import lru_cache\nv = V\n"
_TEXT = "eval('lambda *_: V').__code__"
#: What is read, and the module that it is read of, in the version V (3 or 5).
_JIT = "from numba import njit\n@njit\ndef f(x): return x\n"
_COUNTS = [
    ("DEP.get('a')", "D = {'a': V}\nget = D.get"),
    ("DEP.find('b')", "find = ('a' * V + 'b').find"),
    ("DEP.total()", "import numpy as np\ntotal = np.ones(V).sum"),
    ("DEP.first('a')", "from collections import UserDict\nfirst = UserDict(a=V).get"),
    ("DEP.dtype.metadata['v']", "import numpy as np\ndtype = np.dtype('f8', metadata={'v': V})"),
    ("DEP.array.info", "import numpy as np\nclass A(np.ndarray): pass\narray = np.zeros(3).view(A)\narray.info = V"),
    ("DEP.E.A.extra", "import enum\nclass E(enum.Enum):\n    A = 1\nE.A.extra = V"),
    ("isinstance(DEP.C(), DEP.B)", "import abc\nclass B(abc.ABC): pass\nclass C: pass\nif V == 3: B.register(C)"),
    ("int(DEP.g.__doc__)", "def g():\n    'x'\ng.__doc__ = 'V'"),
    ("DEP.g(1)", "import functools\n@functools.singledispatch\ndef g(x): pass\n@g.register\ndef _(x: int): return V"),
    ("len(DEP.C())", "class C:\n    def __len__(self): return V"),
    ("getattr(DEP, 'late', 5)", "if V == 3: late = 3"),
    ("DEP.C().m()", "class A:\n    def m(self): return V\nclass C(A):\n    def m(self): return super().m()"),
    ("DEP.T.__args__[0].v", "import typing\nclass Q:\n    v = V\nT = typing.List[Q]"),
    ("DEP.n()", "def make():\n    n = V\n    return lambda: n\nn = make()"),
    ("int(DEP.table[0, 1])", "import numpy as np\ntable = np.array([[1, 2], [3, 4]], order='C' if V == 3 else 'F')"),
    ("DEP.zero", "zero = 0.0 if V == 3 else -0.0"),
    ("DEP.nan", "nan = float('nan') if V == 3 else -float('nan')"),
    # what a memo keeps was computed from what was there then
    ("DEP.g()", f"{_MEMO}@lru_cache\ndef g(): return v\ng()\nv = 9"),
    ("DEP.g(1, a=2)", f"{_MEMO}@lru_cache(maxsize=None)\ndef g(x, a): return v\ng(1, a=2)\nv = 9"),
    ("DEP.g(2)", f"{_MEMO}@lru_cache(2)\ndef g(x): return x * v\ng(1), g(2), g(0), g(2)\nv = 9"),
    ("DEP.C().g()", f"{_MEMO}class C:\n    @staticmethod\n    @lru_cache\n    def g(): return v\nC.g()\nv = 9"),
    ("DEP.g.v", "from functools import lru_cache\n@lru_cache\ndef g(): pass\ng.v = V"),
    ("DEP.g.v", "from functools import partial\ng = partial(int, 1)\ng.v = V"),
    # what the program adds to classes of a library, and what these keep in C
    ("DEP.o.v", "class L(list): pass\no = L()\no.v = V"),
    ("DEP.o.v", "class L(tuple):\n    v = V\no = L()"),
    ("DEP.o['a']", "class D(dict): pass\no = D(a=V)"),
    ("DEP.o['a'][0]['b']", "class D(dict): pass\no = D(a=[D(b=V)])\no['c'] = o"),
    ("DEP.o[0]", "from collections import deque\nclass D(deque): pass\no = D([V])"),
    ("DEP.o['a']", "from collections import defaultdict\nclass D(defaultdict): pass\no = D(lambda: V)"),
    ("DEP.o[0]", "from array import array\nclass A(array): pass\no = A('i', [V])"),
    ("DEP.o[0]", "class A(bytearray): pass\no = A([V])"),
    ("DEP.o[0]", "import ctypes\no = (ctypes.c_int * 2)(V)"),
    ("DEP.o.v", "from functools import partial\nclass P(partial):\n    v = V\no = P(int, 1)"),
    ("DEP.o.v", "import threading\nclass L(threading.local):\n    v = V\no = L()"),
    ("DEP.T.__bound__ is int", "from typing import TypeVar\nT = TypeVar('T', bound=int if V == 3 else str)"),
    ("DEP.T.__supertype__ is int", "from typing import NewType\nT = NewType('T', int if V == 3 else str)"),
    ("isinstance(1, DEP.Number)", "from numbers import Number, Real\nC = type('C%d' % V, (), {})\nReal.register(C)"),
    ("DEP.C().a", "from dataclasses import dataclass, field\n@dataclass\nclass C:\n    a: int = field(default_factory=lambda: V)"),
    # what is set on an object of any kind, and what one holds in C
    ("DEP.f.limit", f"{_JIT}f.limit = V"),
    ("DEP.f.limit", "from numba import njit\ndef f(x): return x\nf.limit = V\nf = njit(f)"),
    ("DEP.f.py_func.limit", f"{_JIT}f.py_func.limit = V"),
    ("int(DEP.f.__doc__)", f"{_JIT}f.__doc__ = 'V'"),
    ("DEP.a.flags.owndata", "import numpy as np\nb = np.zeros(4)\na = b[:] if V == 3 else b"),
    ("DEP.f.limit", "from numba import stencil\n@stencil\ndef f(x): return x[0]\nf.limit = V"),
    ("DEP.f.limit", "from numba.extending import intrinsic\n@intrinsic\ndef f(c, x): return x, None\nf.limit = V"),
    ("DEP.C.p.limit", "class P(property): pass\nclass C:\n    p = P(lambda s: 1)\nC.p.limit = V"),
    ("DEP.C.p.limit", "class P(property):\n    limit = V\nclass C:\n    p = P(lambda s: 1)"),
    ("DEP.C().p", "class P(property):\n    def __get__(self, o, t): return V\nclass C:\n    p = P(lambda s: 1)"),
    ("int(DEP.C.p.__doc__)", "class C:\n    p = property(lambda s: 1, doc='V')"),
    ("DEP.C().s()", "class S(staticmethod):\n    def __get__(self, o, t): return lambda: V\nclass C:\n    s = S(lambda: 1)"),
    ("DEP.C.__dict__['s'].limit", "class C:\n    s = staticmethod(lambda: 1)\nC.__dict__['s'].limit = V"),
    ("DEP.C().m()", "class S(classmethod):\n    def __get__(self, o, t): return lambda: V\nclass C:\n    m = S(int)"),
    ("DEP.C().p", "import functools\nclass P(functools.cached_property):\n    def __get__(self, *_): return V\nclass C:\n    p = P(int)"),
    ("DEP.a.base[0]", "import numpy as np\na = np.array([V, 1, 2])[1:]"),
    ("DEP.e.__cause__.args[0]", "e = ValueError(1)\ne.__cause__ = ValueError(V)"),
    ("DEP.g.__name__", "def g(): pass\ng.__name__ = 'gV' if V == 3 else 'g'"),
    ("isinstance([], DEP.P)",
     "import typing\n@typing.runtime_checkable\nclass P(typing.Protocol):\n    vars()['pop' if V == 3 else 'x'] = int"),
    ("isinstance([], DEP.A)", "from contextlib import AbstractContextManager as A\nA._abc_registry_clear()\nif V == 3: A.register(list)"),
    ("isinstance(1, DEP.A)", "import abc\nclass A(abc.ABC): pass\nclass B(A): pass\nif V == 3: B.register(int)"),
    ("DEP.T.limit", "from numba import types\nclass Q(types.Type): pass\nT = Q('q')\nT.limit = V"),
    ("DEP.T.fields[0]", "from numba import types\nclass Q(types.StructRef): pass\nT = Q([('aV' if V == 3 else 'b', types.int64)])"),
    # what is set on classes of libraries, on Numba's types and modules, and what C holds under names that are computed
    ("DEP.Formatter.limit", "from string import Formatter\nFormatter.limit = V"),
    ("DEP.f.limit", "from string import Formatter\nf = Formatter()\nFormatter.limit = V"),
    ("DEP.F().limit", "from string import Formatter\nclass F(Formatter): pass\nFormatter.limit = V"),
    ("getattr(DEP.Formatter, 'LIMIT'.lower())", "from string import Formatter\nFormatter.limit = V"),
    ("DEP.Formatter().parse('')", "from string import Formatter\nFormatter.parse = lambda *_: V"),
    ("DEP.Template.delimiter", "from string import Template\nTemplate.delimiter = '$' if V == 3 else '%'"),
    ("DEP.types.int64.limit", "from numba import types\ntypes.int64.limit = V"),
    ("DEP.t.limit", "from numba import types\nt = types.Array(types.int64, 7, 'C')\nt.limit = V"),
    ("DEP.types.Integer.limit", "from numba import types\ntypes.Integer.limit = V"),
    ("DEP.numba.LIMIT", "import numba\nnumba.LIMIT = V"),
    ("0\n    from numba import LIMIT\n    value = LIMIT", "import numba\nnumba.LIMIT = V"),
    ("0\n    import numba\n    value = numba.types.TABLE[1]", "import numba\nnumba.types.TABLE = {1: V}"),
    ("DEP.textwrap.dedent.limit", "import textwrap\ntextwrap.dedent.limit = V"),
    ("DEP.njit.limit", "from numba import njit\nnjit.limit = V"),
    ("DEP.numba.njit.limit", "import numba\nnumba.njit.limit = V"),
    ("DEP.prange.limit", "from numba import prange\nprange.limit = V"),
    ("DEP.C.__name__", "class C: pass\nC.__name__ = 'CV' if V == 3 else 'C'"),
    ("0\n    match DEP.o:\n        case DEP.C(v=w): value = w", "class C: v = V\no = C()"),
    ("getattr(DEP.a, 'BASE'.lower())[0]", "import numpy as np\na = np.array([V, 1, 2])[1:]"),
    ("getattr(DEP.e, '__CAUSE__'.lower()).args[0]", "e = ValueError(1)\ne.__cause__ = ValueError(V)"),
    # what is set on types that only arguments lead to, and on a type whose attributes other code reads
    ("x.most", "from numba import types\ntypes.int64.most = V"),
    ("x.least", "from numba import types\ntypes.Integer.least = V"),
    ("getattr(x, 'MO'.lower() + 'st')", "from numba import types\ntypes.int64.most = V"),
    ("DEP.t is x", "from numba import types\nclass T(types.Type): pass\nt = T('t')\nt.limit = V"),
    # other code, and other defaults, of functions of libraries, and of those that these call
    ("DEP.colorsys.rgb_to_yiq(1, 1, 1)", f"import colorsys\ncolorsys.rgb_to_yiq.__code__ = {_TEXT}"),
    ("DEP.colorsys.hls_to_rgb(.1, .2, .3)", f"import colorsys\ncolorsys._v.__code__ = {_TEXT}"),
    ("DEP.Formatter().vformat('', (), {})", f"from string import Formatter\nFormatter.check_unused_args.__code__ = {_TEXT}"),
    ("DEP.Formatter().vformat('', (), {})", "from string import Formatter\nFormatter.check_unused_args = lambda *_: V"),
    ("DEP.string.capwords('abc')", "import string\nstring.capwords.__defaults__ = ('V',)"),
    ("DEP.statistics.median_grouped([1])", "import statistics\nstatistics.median_grouped.__defaults__ = (V,)"),
    ("DEP.json.dumps(DEP)", "import json\njson.dumps.__kwdefaults__['default'] = lambda o: V"),
    ("DEP.utils.benchmark(1)", f"from numba.core import utils\nutils.benchmark.__code__ = {_TEXT}"),
    ("0\n    from numba.core.utils import benchmark\n    value = benchmark(1)",
     f"from numba.core import utils\nutils.benchmark.__code__ = {_TEXT}"),
    ("str(DEP.A)", "import numpy as np\nA = np.ones(1)\nnp.set_printoptions(precision=V)"),
    ("DEP.A / DEP.A", "import numpy as np\nA = np.zeros(1)\nnp.seterr(all='raise' if V == 3 else 'ignore')"),
    ("DEP.A / DEP.A", "import numpy as np\nA = np.zeros(1)\nnp.seterr(all='call')\nnp.seterrcall(lambda error, flag: V)"),
    ("len(str(10 ** 5000))", "import sys\nsys.set_int_max_str_digits(V * 2000)"),
    ("DEP.warn('x')", "import warnings\nfrom warnings import warn\nwarnings.filterwarnings('error', str(V))"),
    # members of classes that only methods of a library's base read
    ("DEP.E().encode(DEP)", "import json\nclass E(json.JSONEncoder):\n    def default(self, o): return V"),
    ("DEP.e.encode([1, 2])", "import json\nclass E(json.JSONEncoder):\n    item_separator = ',' * V\ne = E()"),
    ("DEP.v.visit(DEP.t)", "import ast\nt = ast.parse('1')\nclass W(ast.NodeVisitor):\n    def visit_Module(self, n): return V\nv = W()"),
    ("DEP.E(7).value",
     "import enum\nclass E(enum.Enum):\n    A = 1\n    @classmethod\n    def _missing_(cls, v): return cls.A if V == 3 else v"),
    ("DEP.E('A').value", "import enum\nclass E(enum.Enum):\n    A = 1\n    B = 2\nE._value2member_map_['A'] = E.A if V == 3 else E.B"),
    # what a program puts into a library reads other values of the program; constants of a library
    ("DEP.textwrap.fill('abc')", "import textwrap\nv = V\ntextwrap.TextWrapper._fix_sentence_endings = lambda self, chunks: v"),
    ("DEP.textwrap.fill('abc')",
     "import textwrap\ndef make(v): return lambda self, text: v and text\ntextwrap.TextWrapper._munge_whitespace = make(V)"),
    ("DEP.Formatter().format('')",
     "from string import Formatter\nclass C:\n    v = V\n    def __call__(s, *_): return s.v\nFormatter.check_unused_args = C()"),
    ("DEP.colorsys.hls_to_rgb(.1, .2, .3)", "import colorsys\ncolorsys.ONE_THIRD = V"),
    ("0\n    import copy\n    value = copy.copy(DEP.o)",
     "import copyreg\nclass C: pass\no = C()\ncopyreg.pickle(C, lambda o: (int, (V,)))"),
    # the order of numbers in a set, and of attributes
    ("next(iter(DEP.s))", "s = {8, 0} if V == 3 else {0, 8}"),
    ("(DEP.o.a, DEP.o.b, next(iter(DEP.o.__dict__)))", "class C: pass\no = C()\nfor n in ('ab' if V == 3 else 'ba'): setattr(o, n, 1)"),
]
_RETURNED = "0\n    def impl(x): return {}\n    return impl"
_DECORATED = "0\n    @DEP.{}\n    def impl(x): return x.ctypes.data + DEP.K\n    {}return lambda x: impl(x)"
_COUNTS += [
    (_RETURNED.format("x.ctypes.data + DEP.K"), "K = V"),
    (_DECORATED.format("njit", ""), "from numba import njit\nK = V"),
    (_DECORATED.format("extending.register_jitable", "if x: return impl\n    "), "from numba import extending\nK = V"),
    (_DECORATED.format("jit", "@DEP.jit\n    def other(x): return impl(x)\n    if x: return other\n    "), "from numba import jit\nK = V"),
    (_RETURNED.format("DEP.np.random.normal(0.0, DEP.K)"), "import numpy as np\nK = V"),
    ("0\n    m = DEP\n    def impl(x): return m.K\n    return impl", "K = V"),
    ("len({DEP.c})", "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass C:\n    a: int = V\nc = C()"),
    ("len({DEP.c})", "class C:\n    a = V\n    def __hash__(self): return hash(self.a) + id(self)\nc = C()"),
]
#: What no key has: addresses, the seed of hashes, lines, what a process was set to.
_REFUSED = [
    ("id(DEP.L)", "L = [1]"),
    ("len(DEP.f.signatures)", _JIT),
    ("len(DEP.f.overloads)", _JIT),
    ("x.dispatcher.limit", ""),
    ("DEP.a.fill_value", "import numpy as np\na = np.ma.array([1, 2], fill_value=3)"),
    ("DEP.A.ctypes.data", "import numpy as np\nA = np.ones(3)"),
    ("DEP.A.__array_interface__['data'][0]", "import numpy as np\nA = np.ones(3)"),
    ("DEP.ctypes.addressof(DEP.C)", "import ctypes\nC = (ctypes.c_int * 4)()"),
    ("hash('abc')", ""),
    ("'abc'.__hash__()", ""),
    ("DEP.C().get()", "class C:\n    def get(self): return id(self)"),
    ("0\n    def impl(x): return x.ctypes.data\n    impl(x)\n    return impl", ""),
    ("0\n    def impl(x): return x.ctypes.data\n    return DEP.g(impl)", "def g(f): return f"),
    (_DECORATED.format("register_jitable", "impl(x)\n    "), "from numba.extending import register_jitable\nK = 3"),
    (_DECORATED.format("njit", "def other(x): return impl(x)\n    other(x)\n    "), "from numba import njit\nK = 3"),
    (_DECORATED.format("njit", "other = impl\n    other(x)\n    "), "from numba import njit\nK = 3"),
    (_DECORATED.format("g", ""), "def g(f): return f\nK = 3"),
    (_DECORATED.format("cache", ""), "from functools import cache\nK = 3"),
    (_DECORATED.format("g if x else DEP.njit", ""), "from numba import njit\ndef g(f): return f\nK = 3"),
    (f"implementation(x)\n    value = {_RETURNED.format('x.ctypes.data')}", ""),
    ("DEP.typing.get_overloads(DEP.g)", "import typing\ndef g(): pass"),
    ("DEP.typing.get_type_hints(DEP.g)", "import typing\ndef g(x: 'T'): pass"),
    ("DEP.weakref.getweakrefcount(DEP.g)", "import weakref\ndef g(): pass"),
    ("DEP.sys.getsizeof([])", "import sys"),
    ("DEP.F('x').read()", "import io\nclass F(io.FileIO): pass"),
    ("DEP.F(0).tell()", "import io\nclass F(io.TextIOWrapper): pass"),
    ("DEP.callback.address", "from numba import cfunc\n@cfunc('f8(f8)')\ndef callback(x): return x"),
    ("DEP.g.__code__.co_firstlineno", "def g(): pass"),
    ("DEP.logging.getLogger('a').level", "import logging"),
    ("DEP.u(1)", "import numpy as np\nu = np.frompyfunc(lambda x: 3, 1, 1)"),
    ("DEP.threading.get_ident()", "import threading"),
    ("DEP.L.locked()", "import threading\nL = threading.Lock()"),
    ("DEP.L.isEnabledFor(1)", "import logging\nL = logging.getLogger('a')"),
    ("DEP.logging.root.manager.disable", "import logging"),
    ("DEP.g.cache_info()", "from functools import lru_cache\ng = lru_cache(int)"),
    ("DEP.f.peek()", "import weakref\nclass C: pass\nkept = C()\nf = weakref.finalize(kept, int, 3)\nf.atexit = False"),
    ("DEP.numba.get_num_threads()", "import numba"),
    ("DEP.numba.cuda.is_available()", "import numba, numba.cuda"),
    ("DEP.binding.get_host_cpu_name()", "from llvmlite import binding"),
    ("0\n    from numba import get_num_threads\n    value = get_num_threads()", ""),
    ("0\n    from numba.core import config\n    value = config.OPT", ""),
    ("0\n    import numba as n\n    value = n.config.OPT", ""),
]
_PROGRAM = """
import DEP
from numba.extending import overload

def stub(x):
    pass

@overload(stub)
def implementation(x):
    value = READ
    return lambda x: value

def f(x):
    return stub(x)
"""


def _module(name: str, text: str) -> Any:
    from compcache.numba.registered import named_objects

    # A module that is made anew stands for another process, in which its classes are the first of their names.
    named_objects._objects.clear()
    named_objects._latest_names.clear()
    module: Any = types.ModuleType(name)
    module.__file__ = f"/{name}.py"
    sys.modules[name] = module
    exec(compile(textwrap.dedent(text), module.__file__, "exec"), vars(module))
    return module


def _contents(read: str, dep: str, version: int) -> list[str]:
    """The content of the implementation as it is compared where Numba is imported, and that of the function as keys have it without."""
    from compcache.numba.fingerprints.content import content_of
    from compcache.numba.fingerprints.fingerprint import fingerprint_of_implementations
    from compcache.numba.fingerprints.implementations import Implementation
    from compcache.numba.registered.refusals import Unidentifiable

    def said(find: Any) -> str:
        try:
            return str(find())
        except Unidentifiable as error:
            return f"refused: {error}"

    try:
        with np.errstate(), np.printoptions(), warnings.catch_warnings():
            _module("content_dep", re.sub(r"\bV\b", str(version), dep))
            program = _module("content_program", _PROGRAM.replace("READ", read).replace("DEP", "content_dep"))
            return [
                said(lambda: fingerprint_of_implementations([Implementation(program.implementation, (), is_overload=True)]).content),
                said(lambda: content_of(program.f, ()).digest),
            ]
    finally:
        for name in ("content_dep", "content_program"):
            sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize(("read", "dep"), _COUNTS)
def test_what_is_read_of_objects_counts(read: str, dep: str) -> None:
    first, again, other = (_contents(read, dep, version) for version in (3, 3, 5))
    assert first == again
    assert not any(text.startswith("refused") for text in first)
    assert all(one != two for one, two in zip(first, other, strict=True))


_NAMED_TUPLE = "from collections import namedtuple\nP = namedtuple('P', 'a b')\n"


@pytest.mark.parametrize("text", [
    f"{_NAMED_TUPLE}P.__new__.__defaults__ = (V,)\ndef f(x): return P(x).b",
    f"{_NAMED_TUPLE}class Q(P):\n    def __new__(cls, a, b, *, c=V): pass\ndef f(x): return Q(x, 1).b",
    f"{_NAMED_TUPLE}class Q(P):\n    def __new__(cls, aV, b): pass\ndef f(x): return Q(x, b=1).b",
    f"{_NAMED_TUPLE}class Q(namedtuple('Q', 'b a' if V == 3 else 'a b')):\n    def __new__(cls, *v): pass\ndef f(x): return Q(x, 1).b",
    "import numpy as np\nA = np.ma.array([1.0, 2.0]) if V == 3 else np.array([1.0, 2.0])\ndef f(x): return x + A[1]",
])  # fmt: skip
def test_what_compiled_code_reads_counts(text: str) -> None:
    """The program's function is compared as it is where Numba is imported, and as keys have it without."""
    from compcache.numba.fingerprints.content import content_of
    from compcache.numba.fingerprints.fingerprint import fingerprint

    def digests(version: int) -> list[str]:
        function = _module("content_program", re.sub(r"V\b", str(version), text)).f
        return [fingerprint(function).content, content_of(function, ()).digest]

    try:
        first, again, other = (digests(version) for version in (3, 3, 5))
    finally:
        sys.modules.pop("content_program", None)
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("read", "dep"), _REFUSED)
def test_what_is_in_no_key_is_refused(read: str, dep: str) -> None:
    assert all(text.startswith("refused") for text in _contents(read, dep, 3))


def test_a_stand_in_for_a_class_of_numba_is_the_class() -> None:
    """A class that derives from a stand-in, where Numba is imported already, has the stand-in among its attributes."""
    from numba.core import types as numba_types

    from compcache.numba.declarations.structrefs import CONTAINER_STAND_INS
    from compcache.numba.fingerprints.fingerprint import fingerprint_of_implementations
    from compcache.numba.fingerprints.implementations import Implementation

    def digest(base: Any) -> str:
        module = _module("content_program", "def implementation(x): return BASE")
        module.BASE = base
        return fingerprint_of_implementations([Implementation(module.implementation, ())]).content

    assert digest(CONTAINER_STAND_INS["StructRef"]) == digest(numba_types.StructRef) != digest(numba_types.Type)


@pytest.mark.slow
def test_a_function_of_cython_is_known_at_first_sight() -> None:
    """What was looked at before does not decide what has content: starts without Numba would compute keys of their own."""
    script = f"""
import sys
sys.path.insert(0, {str(PACKAGE_ROOT)!r})
import numpy as np
from compcache.numba.fingerprints.content import content_of
def seeded(n):
    np.random.seed(n)
first = content_of(seeded, ()).digest
print(first == content_of(seeded, ()).digest, any(name.startswith("numba") for name in sys.modules))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr) == ("True False\n", "")


def test_attributes_of_arguments_count() -> None:
    from compcache.numba.fingerprints.content import content_of

    assert content_of(lambda x: x.real, ()).digest != content_of(lambda x: x.imag, ()).digest


_HOLDER = """
class Box:
    pass
box = Box()
box.first = 1
"""
_LAZY = """
import content_holder, sys
def __getattr__(name):
    if name != "lazy":
        raise AttributeError(name)
    content_holder.box.second = sys.content_value
    def lazy():
        return content_holder.box.second
    lazy.__module__ = __name__
    globals()["lazy"] = lazy
    return lazy
"""
_USES_LAZY = """
import content_holder, content_lazy
def implementation(x):
    first = content_holder.box.first
    module = content_lazy
    value = first + module.lazy()
    return lambda x: value
"""


def test_attributes_that_a_module_sets_when_its_own_are_read_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from compcache.numba.fingerprints.fingerprint import fingerprint_of_implementations
    from compcache.numba.fingerprints.implementations import Implementation

    contents = []
    for value in (3, 3, 5):
        monkeypatch.setattr(sys, "content_value", value, raising=False)
        try:
            _module("content_holder", _HOLDER), _module("content_lazy", _LAZY)
            program = _module("content_program", _USES_LAZY)
            contents.append(fingerprint_of_implementations([Implementation(program.implementation, (), is_overload=True)]).content)
        finally:
            for name in ("content_holder", "content_lazy", "content_program"):
                sys.modules.pop(name, None)
    first, again, other = contents
    assert first == again != other


def test_classes_that_libraries_make_are_freed() -> None:
    from compcache.numba.fingerprints.state import tables_of

    made = dataclasses.make_dataclass("Made", ["x"], namespace={"__module__": "types"})
    freed = weakref.ref(made)
    tables_of(made)
    del made
    gc.collect()
    assert freed() is None


def test_changes_of_a_class_of_a_library_count_whenever_they_are_made() -> None:
    """The class was examined before: what the program sets, replaces and removes since counts."""
    import sched

    from compcache.numba.fingerprints.state import set_on_library

    Scheduler: Any = sched.scheduler  # noqa: N806 - a class
    assert set_on_library(Scheduler) == {}
    original, other = Scheduler.empty.__code__, (lambda _self: True).__code__
    try:
        Scheduler.limit = 3
        assert set_on_library(Scheduler) == {"limit": 3}
        Scheduler.limit = 5
        assert set_on_library(Scheduler) == {"limit": 5}
        del Scheduler.limit
        assert set_on_library(Scheduler) == {}
        Scheduler.empty.__code__ = other
        assert list(set_on_library(Scheduler)) == ["empty"]
    finally:
        Scheduler.empty.__code__ = original
    assert set_on_library(Scheduler) == {}
