"""Generated programs in two versions: where a number comes from, what stands between it and its use, and how compiled code uses it.

A version differs from the other in that number alone: in a file, the environment, another module, the state of the process, or the
program's own text. All combinations are programs; a seed draws some.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import sqlite3
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Source(NamedTuple):
    """Where a number comes from.

    `expression` gives it; FILE, NAME and DEP are the program's own file of data, environment variable and module beside it. `data` is
    what the file holds, `dep` the text of the module, `state` what is run before the program is imported, each for the number V.
    """

    family: str
    expression: str
    data: Callable[[int], bytes] = lambda _: b""
    dep: str = ""
    state: str = ""


def _sqlite(value: int) -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (v)")
    connection.execute("insert into t values (?)", (value,))
    connection.commit()
    return connection.serialize()


def _saved(value: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([float(value)]))
    return file.getvalue()


def _text(value: int) -> bytes:
    return f"{value}\n".encode()


def _ini(value: int) -> bytes:
    return f"[s]\nv = {value}\n".encode()


_FILES: list[tuple[str, Callable[[int], bytes]]] = [
    ("float(open(FILE).read())", _text),
    ("float(__import__('io').open(FILE).readline())", _text),
    ("float(__import__('io').FileIO(FILE).read())", _text),
    ("float(__import__('codecs').open(FILE, 'r', 'ascii').read())", _text),
    ("float(pathlib.Path(FILE).read_text())", _text),
    ("float(pathlib.Path(FILE).open().read())", _text),
    ("float(pathlib.Path(FILE).stat().st_size)", bytes),
    ("float(os.stat(FILE).st_size)", bytes),
    ("float(os.path.getsize(FILE))", bytes),
    ("float(os.read(os.open(FILE, os.O_RDONLY), 9))", _text),
    ("float(np.load(FILE)[0])", _saved),
    ("float(np.loadtxt(FILE))", _text),
    ("float(np.fromfile(FILE, dtype=np.uint8)[0])", lambda value: bytes([value])),
    ("float(np.genfromtxt(FILE))", _text),
    ("float(json.load(open(FILE))['v'])", lambda value: json.dumps({"v": value}).encode()),
    ("float(__import__('tomllib').loads(open(FILE).read())['v'])", lambda value: f"v = {value}".encode()),
    ("float(next(__import__('csv').reader(open(FILE)))[0])", _text),
    ("float(gzip.open(FILE).read())", lambda value: gzip.compress(_text(value), mtime=0)),
    ("float(__import__('linecache').getline(FILE, 1))", _text),
    ("float(next(iter(__import__('fileinput').input(FILE))))", _text),
    ("float(sqlite3.connect(FILE).execute('select v from t').fetchone()[0])", _sqlite),
    ("float(read_ini(FILE))", _ini),
    ("float(runpy.run_path(FILE)['v'])", lambda value: f"v = {value}".encode()),
    ("float(__import__('pkgutil').get_data(__name__, os.path.basename(FILE)))", _text),
    ("float(__import__('subprocess').check_output(['cat', FILE]))", _text),
    ("float(os.popen('cat ' + FILE).read())", _text),
    ("float(len(glob.glob(FILE + '.*')))", _text),
    ("float(len([n for n in os.listdir(HERE) if n.startswith(os.path.basename(FILE) + '.')]))", _text),
    ("float(os.path.exists(FILE + '.3'))", _text),
    ("float(os.access(FILE + '.3', os.R_OK))", _text),
]
_ENVIRONMENT = [
    "float(os.environ['NAME'])", "float(os.getenv('NAME'))", "float(os.environ.get('NAME', 0))", "float(os.path.expandvars('$NAME'))",
    "float(dict(os.environ)['NAME'])", "float(os.environ.copy()['NAME'])", "float(os.environb[b'NAME'])",
    "float({k: v for k, v in os.environ.items()}['NAME'])", "float(__import__('subprocess').check_output('echo $NAME', shell=True))",
]  # fmt: skip
#: What a process can be asked, and how a program sets it.
_PROCESS = [
    ("float(sys.getrecursionlimit())", "sys.setrecursionlimit(1000 + V)"),
    ("float(np.getbufsize())", "import numpy; numpy.setbufsize(8192 + 16 * V)"),
    ("float(np.geterr()['over'] == 'raise')", "import numpy; numpy.seterr(over='raise' if V == 3 else 'warn')"),
    ("float(__import__('decimal').getcontext().prec)", "import decimal; decimal.getcontext().prec = V"),
    ("float(__import__('tempfile').gettempdir()[-1])", "import tempfile; tempfile.tempdir = '/tmp/V'"),
    ("float(__import__('logging').getLogger('NAME').level)", "import logging; logging.getLogger('NAME').setLevel(V)"),
    ("float(sys.argv[-1])", "sys.argv.append('V')"),
    ("float(sys.modules['builtins'].NAME)", "import builtins; builtins.NAME = V"),
    ("float(random.Random(V0).random() + random.getrandbits(8))", "import random; random.seed(V)"),
    ("float(len(str(np.full(1, 1 / 3))))", "import numpy; numpy.set_printoptions(precision=V)"),
    ("float(__import__('sys').getswitchinterval())", "sys.setswitchinterval(V / 100)"),
    ("float(len(os.sched_getaffinity(0)) * 0 + __import__('locale').localeconv()['frac_digits'] * 0 + np.get_printoptions()['precision'])",
     "import numpy; numpy.set_printoptions(precision=V)"),
]  # fmt: skip
_PACKAGES = [
    ("float(DEP.v)", "v = V"), ("float(DEP.get())", "def get():\n    return V"), ("float(DEP.C.v)", "class C:\n    v = V"),
    ("float(DEP.C().v)", "class C:\n    @property\n    def v(self):\n        return V"),
    ("float(DEP.d['a'][1])", "d = {'a': [1, V]}"), ("float(vars(DEP)['v'])", "v = V"), ("float(getattr(DEP, 'a' + 'b'))", "ab = V"),
    ("float(DEP.get())", "from functools import lru_cache\n@lru_cache\ndef get():\n    return V"),
    ("float(DEP.get.v)", "def get(): pass\nget.v = V"), ("float(next(DEP.get()))", "def get():\n    yield V"),
    ("float(DEP.__getattr__('x'))", "def __getattr__(name):\n    return V"), ("float(DEP.B.v)", "class A:\n    v = V\nclass B(A): pass"),
    ("float(DEP.K.A.value)", "import enum\nclass K(enum.Enum):\n    A = V"), ("float(DEP.get(1))", "get = lambda x, y=V: x + y"),
    ("float(DEP.T.__bound__ is int)", "import typing\nT = typing.TypeVar('T', bound=int if V == 3 else str)"),
    ("float(DEP.C().a)", "import dataclasses\n@dataclasses.dataclass\nclass C:\n    a: int = dataclasses.field(default_factory=lambda: V)"),
    ("float(DEP.v[1])", "import ctypes\nv = (ctypes.c_int * 2)(1, V)"), ("float(DEP.v.args[0])", "class E(ValueError): pass\nv = E(V)"),
    ("float(DEP.f.limit)", "from numba import njit\n@njit\ndef f(x): return x\nf.limit = V"),
    ("float(DEP.C().v)", "class P(property):\n    def __get__(self, o, t): return V\nclass C:\n    v = P(lambda self: 1)"),
    ("float(DEP.v.base[0])", "import numpy as np\nv = np.array([V, 1, 2])[1:]"),
    ("float(DEP.Formatter.limit)", "from string import Formatter\nFormatter.limit = V"),
    ("float(DEP.F().limit)", "from string import Formatter\nclass F(Formatter): pass\nFormatter.limit = V"),
    ("float(DEP.types.int64.NAME)", "from numba import types\ntypes.int64.NAME = V"),
    ("float(DEP.numba.NAME)", "import numba\nnumba.NAME = V"),
    ("float(DEP.get())", "class P:\n    v = V\ndef get():\n    match P():\n        case P(v=w): return w"),
    ("float(DEP.C.__name__[1])", "class C: pass\nC.__name__ = f'C{V}'"),
    ("float(DEP.get())",
     ("import functools\ndef by(v):\n    def deco(f):\n        @functools.wraps(f)\n        def inner(): return f() + v\n"
     "        return inner\n    return deco\n@by(V)\ndef get(): return 0")),
    ("float(DEP.B.known['D'])",
     "class B:\n    known = {}\n    def __init_subclass__(cls, v): B.known[cls.__name__] = v\nclass D(B, v=V): pass"),
    ("float(DEP.C.v)", "def mark(cls):\n    cls.v = V\n    return cls\n@mark\nclass C: pass"),
    ("float(DEP.C.d)",
     "class D:\n    def __set_name__(self, owner, name): self.v = V\n    def __get__(self, o, t): return self.v\nclass C:\n    d = D()"),
    ("float(DEP.get())", "def make():\n    n = V\n    def get():\n        nonlocal n\n        return n\n    return get\nget = make()"),
    ("float(DEP.P(1, 2)[1] + DEP.P.extra)", "from collections import namedtuple\nclass P(namedtuple('P', 'a b')):\n    extra = V"),
]  # fmt: skip
_STATE = [
    ("float(DEP.d['v'])", "d = {}", "DEP.d['v'] = V"), ("float(len(DEP.v))", "v = []", "DEP.v.extend(range(V))"),
    ("float(DEP.C.v)", "class C: pass", "DEP.C.v = V"), ("float(DEP.o.v)", "class C: pass\no = C()", "DEP.o.v = V"),
    ("float(DEP.get.v)", "def get(): pass", "DEP.get.v = V"), ("float(DEP.v)", "v = 0", "DEP.v = V"),
    ("float(DEP.v.get())", "import contextvars\nv = contextvars.ContextVar('v')", "DEP.v.set(V)"),
    ("float(DEP.v.x)", "import threading\nv = threading.local()", "DEP.v.x = V"),
    ("float(DEP.get())", "def make(v):\n    return lambda: v\nget = None", "DEP.get = DEP.make(V)"),
    ("float(DEP.a[1])", "import numpy as np\na = np.zeros(3)", "DEP.a[1] = V"),
    ("float(next(DEP.v))", "import itertools\nv = itertools.count()", "DEP.v = __import__('itertools').count(V)"),
    ("float(DEP.get())", "import functools\nv = 9\n@functools.lru_cache\ndef get():\n    return v", "DEP.v = V; DEP.get(); DEP.v = 9"),
    ("float(DEP.o.get)", "import functools\nv = 9\nclass C:\n    @functools.cached_property\n    def get(self):\n        return v\no = C()",
     "DEP.v = V; DEP.o.get; DEP.v = 9"),
    ("float(DEP.get(1))", "import functools\n@functools.singledispatch\ndef get(x): pass\ndef make(v):\n    return lambda x: v",
     "DEP.get.register(int, DEP.make(V))"),
    ("float(DEP.v[0])", "import collections\nclass D(collections.deque): pass\nv = D()", "DEP.v.append(V)"),
    ("float(DEP.v['x'])", "import collections\nclass D(collections.defaultdict): pass\nv = D()", "DEP.v.default_factory = lambda: V"),
    ("float(DEP.v['x'])", "class D(dict): pass\nv = D()", "DEP.v['x'] = V"),
    ("float(DEP.v.x)", "class L(list): pass\nv = L()", "DEP.v.x = V"),
    ("float(DEP.v.locked())", "import threading\nv = threading.Lock()", "V == 3 and DEP.v.acquire()"),
    ("float(DEP.v)", "import os\nv = int(os.environ.get('NAME', 0))", "import importlib; importlib.reload(DEP)"),
    ("float(DEP.get())",
     "def get(): return 0\ndef make(v):\n    def get(): return v\n    return get", "DEP.get.__code__ = (lambda: V).__code__"),
    ("float(DEP.get())", "class C:\n    def __call__(self): return self.v\nget = C()", "DEP.C.v = V"),
    ("float(DEP.C.__bases__[0].v)", "class A: v = 0\nclass B: v = 0\nclass C(A): pass", "DEP.B.v = V; DEP.C.__bases__ = (DEP.B,)"),
    ("float(DEP.v.most)", "import weakref\nclass C: pass\nkept = C()\nv = weakref.proxy(kept)", "DEP.kept.most = V"),
]  # fmt: skip
SOURCES = (
    *[Source("files", expression, data) for expression, data in _FILES],
    *[Source("environment", expression) for expression in _ENVIRONMENT],
    *[Source("environment", expression, state=state) for expression, state in _PROCESS],
    *[Source("packages", expression, dep=dep) for expression, dep in _PACKAGES],
    *[Source("state", expression, dep=dep, state=f"import DEP; {state}") for expression, dep, state in _STATE],
    *[Source("text", "float(V)")] * 12,
)

#: What stands between the number and its use: statements, and the expression that takes its place.
WAYS = (
    ("", "SRC"),
    ("def get():\n    return SRC", "get()"),
    ("def inner():\n    return SRC\ndef get():\n    return inner()", "get()"),
    ("class C:\n    v = SRC", "C.v"),
    ("class C:\n    @property\n    def v(self):\n        return SRC\no = C()", "o.v"),
    ("class C:\n    @staticmethod\n    def get():\n        return SRC", "C.get()"),
    ("class C:\n    @classmethod\n    def get(cls):\n        return SRC\nclass D(C): pass", "D.get()"),
    ("table = {'a': lambda: SRC}", "table['a']()"),
    ("import functools\ndef inner(x):\n    return SRC + x\nget = functools.partial(inner, 0)", "get()"),
    ("import functools\n@functools.lru_cache\ndef get():\n    return SRC", "get()"),
    ("def get(v=SRC):\n    return v", "get()"),
    ("def values():\n    yield SRC", "next(values())"),
    ("class C:\n    def __getattr__(self, name):\n        return SRC\no = C()", "o.anything"),
    ("class C:\n    def __call__(self):\n        return SRC\nget = C()", "get()"),
    ("def get():\n    try:\n        return SRC\n    finally:\n        pass", "get()"),
    ("def get():\n    return [x for x in [SRC]][0]", "get()"),
    ("class C:\n    def __init__(self):\n        self.v = SRC\no = C()", "o.v"),
)
_OVERLOAD = "def stub(x):\n    raise NotImplementedError\n@overload(stub)\ndef of_stub(x):\n"
_CALLS = "@njit(cache=True)\ndef f(x):\n    return stub(x)"
#: How compiled code uses it. Families of these are types, classes and registries.
USES = (
    ("", "K = VALUE\n@njit(cache=True)\ndef f(x):\n    return x * K"),
    ("", """\
def make(k):
    @njit(cache=True)
    def f(x):
        return x + k
    return f
f = make(VALUE)"""),
    ("", "@njit(cache=True)\ndef f(x, k=VALUE):\n    return x * k"),
    ("", "A = np.full(3, VALUE)\n@njit(cache=True)\ndef f(x):\n    return x + A[1]"),
    ("", "A = np.full(150_000, VALUE)\n@njit(cache=True)\ndef f(x):\n    return x + A[1]"),
    ("", "A = np.full(6, VALUE)[::2]\n@njit(cache=True)\ndef f(x):\n    return x + A.sum()"),
    ("", "K = (1, (VALUE, 'a'))\n@njit(cache=True)\ndef f(x):\n    return x + K[1][0]"),
    ("", """\
K = VALUE
@njit
def inner(x):
    return x - K
@njit(cache=True)
def f(x):
    return inner(x) * 2"""),
    ("", "K = VALUE\n@njit('f8(f8)', cache=True)\ndef f(x):\n    return x / (K + 1)"),
    ("", """\
K = VALUE
@vectorize(['f8(f8)'], cache=True)
def u(x):
    return x + K
def f(x):
    return float(u(x))"""),
    ("", "K = str(VALUE)\n@njit(cache=True)\ndef f(x):\n    return K + '!'"),
    ("registries", _OVERLOAD + """\
    k = VALUE
    def impl(x):
        return x * k
    return impl
""" + _CALLS),
    ("registries", _OVERLOAD + "    if VALUE > 3:\n        return lambda x: x + 1\n    return lambda x: x - 1\n" + _CALLS),
    ("registries", _OVERLOAD + """\
    k = helper()
    return lambda x: x * k
def helper():
    return VALUE
""" + _CALLS),
    ("registries", """\
@register_jitable
def inner(x):
    return x + K
K = VALUE
@njit(cache=True)
def f(x):
    return inner(x)"""),
    ("registries", """\
@intrinsic
def stub(context, x):
    k = VALUE
    def generate(context, builder, signature, arguments):
        return context.get_constant(types.float64, k)
    return types.float64(x), generate
""" + _CALLS),
    ("registries", """\
@overload_attribute(types.Array, 'NAME')
def of(a):
    k = VALUE
    return lambda a: a.size + k
@njit(cache=True)
def g(a):
    return a.NAME
def f(x):
    return g(np.zeros(3))"""),
    ("registries", """\
@overload_method(types.Array, 'NAME')
def of(a):
    k = VALUE
    return lambda a: a.size - k
@njit(cache=True)
def g(a):
    return a.NAME()
def f(x):
    return g(np.zeros(3))"""),
    ("registries", """\
def factory(k):
    def stub(x):
        raise NotImplementedError
    @overload(stub)
    def of(x):
        return lambda x: x * k
    return stub
other, stub = factory(100.0), factory(VALUE)
""" + _CALLS),
    ("classes", """\
class Maker:
    k = VALUE
    def of(self, x):
        k = self.k
        return lambda x: x + k
def stub(x): pass
maker = Maker()
overload(stub)(lambda x: maker.of(x))
""" + _CALLS),
    ("classes", """\
from numba.experimental import jitclass
K = VALUE
@jitclass([('a', types.float64)])
class J:
    def __init__(self, a):
        self.a = a
    def m(self):
        return self.a * K
@njit(cache=True)
def f(x):
    return J(x).m()"""),
    ("classes", """\
class C:
    K = VALUE
@njit(cache=True)
def f(x):
    return x + k
k = C.K"""),
    ("types", """\
from collections import namedtuple
P = namedtuple('P', 'a b')
K = P(1.0, VALUE)
@njit(cache=True)
def f(x):
    return x + K.b"""),
    ("registries", """\
@vectorize(['f8(f8)', 'i8(i8)'][::1 if VALUE > 3 else -1], cache=True)
def u(x):
    return x * x
@njit(cache=True)
def g(x):
    return u(x)
def f(x):
    return g(2 ** 40)"""),
    ("types", """\
import enum
class E(enum.IntEnum):
    A = int(VALUE)
@njit(cache=True)
def f(x):
    return x + E.A"""),
    ("types", """\
class T(types.Type):
    def __init__(self, unit):
        self.unit = unit
        super().__init__(name='T')
class O: pass
@typeof_impl.register(O)
def of(o, c):
    return T(VALUE)
register_model(T)(models.OpaqueModel)
@unbox(T)
def unbox_t(t, o, c):
    return NativeValue(c.context.get_dummy_value())
@overload(len)
def length(o):
    if isinstance(o, T):
        k = int(o.unit)
        return lambda o: k
@njit(cache=True)
def g(o):
    return len(o)
def f(x):
    return g(O())"""),
    ("classes", """\
from numba.core import ir, untyped_passes
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
K = VALUE
@register_pass(mutates_CFG=False, analysis_only=False)
class Pass(FunctionPass):
    _name = 'NAME'
    def __init__(self):
        super().__init__()
    def run_pass(self, state):
        found = [a.value for b in state.func_ir.blocks.values() for a in b.find_insts(ir.Assign) if isinstance(a.value, ir.Const)]
        for constant in found:
            if constant.value == 77:
                constant.value = K
        return True
class Pipeline(CompilerBase):
    def define_pipelines(self):
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(Pass, untyped_passes.IRProcessing)
        passes.finalize()
        return [passes]
@njit(pipeline_class=Pipeline)
def inner(x):
    return x + 77
@njit(cache=True)
def f(x):
    return inner(x)"""),
    ("ufuncs", """\
@vectorize
def u(x):
    return x * K
K = VALUE
@njit(cache=True)
def g(a):
    return u(a).sum()
def f(x):
    return float(g(np.full(2, x))), u.types, u(np.arange(2)).dtype.name, u.types"""),
    ("ufuncs", """\
K = VALUE
@vectorize
def u(x, y):
    return x * y + K
@njit
def inner(a):
    return u(a, 2)
@njit(cache=True)
def g(a):
    return inner(a).sum()
def f(x):
    return float(g(np.arange(3))), u.types, float(u(x, x)), float(u.reduce(np.full(3, x))), u.types"""),
    ("ufuncs", """\
K = VALUE
@guvectorize('(n)->(n)')
def u(a, out):
    for i in range(a.size):
        out[i] = a[i] + K
@njit(cache=True)
def g(a):
    out = np.empty_like(a)
    u(a, out)
    return out.sum()
def f(x):
    return float(g(np.full(2, x)))"""),
    ("dispatchers", """\
K = VALUE
def plain(x):
    return x * K
helper = njit(plain)
@njit(cache=True)
def g(x):
    return helper(x)
def f(x):
    global K
    K = VALUE
    first = g(x)
    K = 50.0
    return first, njit(plain)(x), helper(x), njit(plain, fastmath=True)(x), float(vectorize(plain)(x))"""),
    ("dispatchers", """\
def make(k):
    @njit(cache=True)
    def f(x):
        return x + k
    return f
def chain(function, k):
    @njit(cache=True)
    def f(x):
        return function(x) * 2 + k
    return f
f = make(VALUE)
for number in range(3):
    f = chain(f, number)"""),
    ("dispatchers", """\
K = VALUE
@njit(cache=True)
def first(x):
    return x + K
@njit(cache=True)
def second(x):
    return x * K
@njit(cache=True)
def applied(functions, x):
    return functions[0](functions[1](x))
def f(x):
    return applied((first, second), x), applied((second, first), x)"""),
    ("dispatchers", """\
K = VALUE
@njit('f8(f8)')
def first(x):
    return x + K
@njit('f8(f8)')
def second(x):
    return x * K
@njit(cache=True)
def f(x):
    chosen = first if x < K else second
    return chosen(x)"""),
    ("classes", """\
from numba.experimental import jitclass
@jitclass([('a', types.float64 if VALUE > 3 else types.int64)])
class J:
    def __init__(self, a):
        self.a = a
    @property
    def p(self):
        return self.a / 2
    @staticmethod
    def s(x):
        return x + 1
@njit(cache=True)
def g(x):
    j = J(x)
    return j.p + j.s(x)
def f(x):
    return g(x + 0.7), J(x + 0.7).p"""),
    ("classes", """\
from numba.experimental import structref
@structref.register
class T(types.StructRef):
    pass
class S(structref.StructRefProxy):
    def __new__(cls, *fields):
        return structref.StructRefProxy.__new__(cls, *fields)
structref.define_proxy(S, T, ['a', 'b'] if VALUE > 3 else ['b', 'a'])
@overload_method(T, 'total')
def of(s):
    k = VALUE
    return lambda s: s.a * k + s.b
@njit(cache=True)
def g(s):
    return s.total()
def f(x):
    return g(S(x, 1))"""),
    ("types", """\
from collections import namedtuple
P = namedtuple('P', 'a b' if VALUE > 3 else 'b a')
@njit(cache=True)
def g(p):
    return p.a * 10 + p.b
def f(x):
    return g(P(x, 1))"""),
    ("types", """\
R = np.dtype({'names': ['a', 'b'], 'formats': ['f8', 'f8'], 'offsets': [0, 8] if VALUE > 3 else [8, 0], 'itemsize': 16})
@njit(cache=True)
def g(r):
    return r[0].a * 10 + r[0].b
def f(x):
    return g(np.array([x, 1.0]).view(R))"""),
    ("", """\
K = VALUE
def callee(x):
    return x * K
@njit(cache=True)
def f(x):
    with objmode(y='float64'):
        y = callee(x)
    return y + 1"""),
    ("", """\
T = (1, 2.5, 'ab', VALUE)
@njit(cache=True)
def f(x):
    for item in literal_unroll(T):
        if isinstance(item, str):
            x += len(item)
        else:
            x += item
    return x"""),
    ("", """\
K = VALUE
@njit(inline='always')
def inner(x):
    return x * K
@njit(cache=True)
def f(x):
    return inner(x) + 1"""),
    ("", """\
K = VALUE
@stencil
def kernel(a):
    return a[-1] + a[1] * K
@njit(cache=True)
def g(a):
    return kernel(a).sum()
def f(x):
    return g(np.full(4, x))"""),
    ("", """\
K = VALUE
@njit(cache=True)
def values(n):
    for i in range(n):
        yield i * K
@njit(cache=True)
def f(x):
    total = 0.0
    for value in values(3):
        total += value
    return total + x"""),
    ("registries", _OVERLOAD.replace("@overload(stub)", "@overload(stub, prefer_literal=VALUE > 3)") + """\
    is_literal = isinstance(x, types.Literal)
    return lambda x: is_literal
@njit(cache=True)
def f(x):
    return stub(5)"""),
    ("types", """\
R = np.dtype([('a', 'f8'), ('b', 'i8')], align=VALUE > 3)
A = np.zeros(2, R)
A['a'] = VALUE
@njit(cache=True)
def f(x):
    return x + A[1].a"""),
)  # fmt: skip
_HEAD = """
import glob, gzip, json, os, pathlib, random, runpy, sqlite3, sys
import numpy as np
from numba import guvectorize, literal_unroll, njit, objmode, stencil, types, vectorize
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox
from numba.extending import intrinsic, overload, overload_attribute, overload_method, register_jitable
DEPENDS
HERE = os.path.dirname(os.path.abspath(__file__))
FILE = os.path.join(HERE, "DATA")
def read_ini(path):
    import configparser
    parser = configparser.ConfigParser()
    parser.read(path)
    return parser["s"]["v"]
"""
#: The two versions: of one digit, so that sizes tell nothing.
VALUES = (3, 4)


class Program(NamedTuple):
    """A program: its number, its parts, and the families that it belongs to.

    If it `changes`, it calls `g` after the state of the process has become that of the other version.
    """

    number: int
    source: Source
    way: tuple[str, str]
    use: tuple[str, str]
    changes: bool = False

    @property
    def families(self) -> set[str]:
        """The families that it belongs to."""
        return {self.source.family, self.use[0]} - {""}

    @property
    def name(self) -> str:
        """The name of its module."""
        return f"generated{self.number}"

    def _own(self, text: str, value: int) -> str:
        pairs = [("DEP", f"dep{self.number}"), ("NAME", f"GENERATED_{self.number}"), ("V0", "5")]
        for old, new in pairs:
            text = text.replace(old, new)
        return _replace_word(text, "V", str(value))

    def text(self, value: int) -> str:
        """The text of its module."""
        source = self._own(self.source.expression, value)
        statements, way = (part.replace("SRC", source) for part in self.way)
        use = self._own(self.use[1].replace("VALUE", way), value)
        depends = f"import dep{self.number}" if self.source.dep else ""
        return "\n".join([_HEAD.replace("DEPENDS", depends).replace("DATA", f"data{self.number}"), statements, use, ""])

    def state(self, value: int) -> str:
        """What runs before it is imported."""
        return self._own(self.source.state, value)

    def write(self, place: Path, value: int) -> dict[str, str]:
        """Write one version; what the environment has of it."""
        _write(place / f"{self.name}.py", self.text(value))
        if self.source.dep:
            _write(place / f"dep{self.number}.py", self._own(self.source.dep, value))
        for old in place.glob(f"data{self.number}.*"):
            old.unlink()
        if self.source.family == "files":
            (place / f"data{self.number}").write_bytes(self.source.data(value))
            for number in range(value):
                (place / f"data{self.number}.{number}").write_text("")
        return {f"GENERATED_{self.number}": str(value)}


def _write(path: Path, text: str) -> None:
    """Write a file unless it has this text: Numba's own cache, to which refused functions go, knows a file by its time."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _replace_word(text: str, word: str, new: str) -> str:
    import re

    return re.sub(rf"\b{word}\b", new, text)


def draw(seed: int, count: int) -> list[Program]:
    """Programs of a seed."""
    choose = random.Random(seed)
    return [Program(number, choose.choice(SOURCES), choose.choice(WAYS), choose.choice(USES)) for number in range(count)]


def write_all(place: Path, programs: list[Program], value: int) -> dict[str, str]:
    """Write one version of all, and what the environment has then. Old bytecode goes: the edits are of the same size and second."""
    shutil.rmtree(place / "__pycache__", ignore_errors=True)
    return {name: text for program in programs for name, text in program.write(place, value).items()}


DRIVER = textwrap.dedent("""
    import importlib, sys, warnings
    warnings.simplefilter("ignore")

    def exported(function):
        if not hasattr(function, "py_func"):  # the attempt to type Python's code would add loops to its ufuncs
            return function
        import compcache.numba
        cache = compcache.numba.install().cache
        try:
            return cache.get_target(compcache.numba.export(function, "(float64,)", cache=cache))
        except compcache.CompileError:
            return function

    def outcome(name, state, later):
        try:
            exec(state, {"sys": sys})
            module = importlib.import_module(name)
            function = module.f
            said = repr(HOW(7.0))
            if later:
                exec(later, {"sys": sys})
                said += f", then {module.g(7.0)}"
            return said
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[:1]}"

    print(repr([outcome(*program) for program in PROGRAMS]))
""")
#: The statement with which programs of a mode begin.
_FIRST = {"install": "import sys, compcache.numba\ncompcache.numba.install(lazy=True)"}


def driver(programs: list[Program], value: int, mode: str) -> str:
    """A program that imports all and prints the list of what each says."""
    other = sum(VALUES) - value
    rows = [(program.name, program.state(value), program.state(other) if program.changes else "") for program in programs]
    how = "exported(function)" if mode == "export" else "function"
    return f"{_FIRST.get(mode, '')}\nPROGRAMS = {rows!r}\n{DRIVER.replace('HOW', how)}"


def each_source() -> list[Program]:
    """A program for each source: an overload asks a function for the number while types are inferred."""
    (use,) = [use for use in USES if "k = VALUE\n    def impl" in use[1]]
    return [Program(number, source, WAYS[1], use) for number, source in enumerate(dict.fromkeys(SOURCES))]


def each_use() -> list[Program]:
    """A program for each use of a number that stands in the text of the program."""
    (source,) = {source for source in SOURCES if source.family == "text"}
    return [Program(number, source, WAYS[0], use) for number, use in enumerate(USES)]


def each_state(*, changes: bool) -> list[Program]:
    """A program for each state of the process: one overload has two callers, `f` and `g`."""
    use = _OVERLOAD + "    k = VALUE\n    return lambda x: x * k\n" + _CALLS + "\n@njit(cache=True)\ndef g(x):\n    return stub(x) + 100"
    sources = [source for source in SOURCES if source.family == "state"]
    return [Program(number, source, WAYS[0], ("registries", use), changes) for number, source in enumerate(sources)]
