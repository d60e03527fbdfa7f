"""No stale answer of what extends Numba: attributes that code generators read by computed names, and types of a program's own."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest
from numba_edits import Edit, Told, assert_edit_counts, overloaded, run_own_edits  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from numba_helpers import Project

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1500)]
pytest.importorskip("numba")


def reading(name: str, read: str, defined: str = "") -> Edit:
    """An overload that reads 2.0, and 3.0 after the edit."""
    code = f"""
import collections, dataclasses, functools, inspect, operator, pickle, typing
{textwrap.dedent(defined or _CONFIG).strip()}

@overload(scaled)
def overload_scaled(x):
    factor = {read}
    return lambda x: x * factor
"""
    return Edit(name, overloaded(textwrap.indent(code, "    ").strip()), "2.0", "3.0")


_CONFIG = """
class Config:
    def __init__(self, inner=None):
        self.factor = 2.0
        self.inner = inner

CONFIG = Config(Config())
PREFIX, NAMES = "fac", ("factor",)
get_inner = operator.attrgetter("inner.factor")
table = {"get": getattr}
partial = functools.partial(getattr, CONFIG)
"""
_PROGRAM = """
    from llvmlite.ir import DoubleType
    from numba import njit, types
    from numba.core import cgutils
    from numba.core.imputils import lower_cast, lower_constant, lower_getattr_generic
    from numba.core.typing.templates import (
        AbstractTemplate, AttributeTemplate, CallableTemplate, ConcreteTemplate, infer_getattr, infer_global, signature
    )
    from numba.extending import (
        NativeValue, box, intrinsic, lower_builtin, make_attribute_wrapper, models, overload_attribute, register_model,
        type_callable, typeof_impl, unbox
    )
    DOUBLE = DoubleType()
    """
_TYPED = """
    def h(x): pass

    {typing}

    @lower_builtin(h, types.float64)
    def lower_h(context, builder, sig, args):
        return context.cast(builder, args[0], types.float64, sig.return_type)

    @njit(cache=True)
    def f(x, y): return h(x * 1.1)
    """
_TYPE = """
    class P:
        factor = 2.0

        def __init__(self, x, y):
            self.x, self.y = x, y

    class PType(types.Type):
        factor = 2.0

        def __init__(self):
            super().__init__(name="P")

    ptype = PType()

    @typeof_impl.register(P)
    def typeof_p(value, context): return ptype

    @register_model(PType)
    class Model(models.StructModel):
        def __init__(self, manager, kind):
            models.StructModel.__init__(self, manager, kind, [("x", types.float64), ("y", types.float64)])

    @unbox(PType)
    def unbox_p(kind, value, c):
        p = cgutils.create_struct_proxy(kind)(c.context, c.builder)
        for name in ("x", "y"):
            item = c.pyapi.object_getattr_string(value, name)
            setattr(p, name, c.pyapi.float_as_double(item))
            c.pyapi.decref(item)
        return NativeValue(p._getvalue())

    @box(PType)
    def box_p(kind, value, c):
        p = cgutils.create_struct_proxy(kind)(c.context, c.builder, value=value)
        return c.pyapi.float_from_double(p.x)

    make_attribute_wrapper(PType, "x", "x")
    make_attribute_wrapper(PType, "y", "y")

    @overload_attribute(PType, "scaled")
    def scaled(p):
        factor = p.factor
        return lambda p: p.x * factor

    @intrinsic
    def first(context, p):
        return types.float64(p), lambda context, builder, sig, args: builder.extract_value(args[0], 0)

    @lower_constant(PType)
    def constant_p(context, builder, kind, value):
        p = cgutils.create_struct_proxy(kind)(context, builder)
        p.x = p.y = context.get_constant(types.float64, value.factor)
        return p._getvalue()

    CONSTANT = P(1.0, 2.0)

    @njit(cache=True)
    def g(p): return {result}

    def f(x, y): return g(P(x, y))
    """
_REGISTRY = """
    from numba import njit, types
    from numba.core import imputils
    from numba.core.registry import cpu_target
    from numba.core.typing import templates

    def h(x): pass

    lowering, typing = imputils.Registry("own"), templates.Registry()

    @typing.register_global(h)
    class H(templates.AbstractTemplate):
        def generic(self, args, kws):
            return templates.signature(types.float64, *args)

    FACTOR = 2.0

    {lower}

    cpu_target.typing_context.install_registry(typing)
    {install}

    @njit(cache=True)
    def f(x, y): return h(x)
    """
_LOWER_H = """
    def lower_h(context, builder, sig, args):
        return builder.fmul(args[0], context.get_constant(types.float64, FACTOR))
    """


def typing(name: str, code: str) -> Edit:
    """A program that tells Numba the type of its function's result, which the edit changes."""
    source = _PROGRAM + _TYPED.replace("{typing}", textwrap.indent(textwrap.dedent(code).strip(), "    ").strip())
    return Edit(name, source, "types.float32", "types.float64")


def own_registry(name: str, install: str, decorator: str = "") -> Edit:
    """A program that generates code by a function of a registry that it made for itself."""
    lower = f"{decorator}{_LOWER_H}".strip()
    return Edit(name, _REGISTRY.replace("{lower}", lower).replace("{install}", install), "FACTOR = 2.0", "FACTOR = 3.0")


def preferred(name: str, generic: str, better: str, result: str) -> Edit:
    """A program that gets another function to generate code, which the compiler prefers to the one that it has."""
    code = f"""
    @intrinsic
    def as_float(context, p):
        return types.float64(p), lambda context, builder, sig, args: context.cast(builder, args[0], sig.args[0], types.float64)

    {generic}

    # one more

    @njit(cache=True)
    def g(p):"""
    edit = own_type(name, result, "# one more", textwrap.indent(better, " " * 4).strip())
    return edit._replace(source=edit.source.replace("\n    @njit(cache=True)\n    def g(p):", code))


def own_type(name: str, result: str, old: str, new: str) -> Edit:
    """A program with a type of its own."""
    return Edit(name, _PROGRAM + _TYPE.replace("{result}", result), old, new)


EDITS = [
    reading("a name with a dot", "operator.attrgetter('inner.factor')(CONFIG)"),
    reading("an attribute getter that is there already", "get_inner(CONFIG)"),
    reading("a name that is computed", "getattr(CONFIG, PREFIX + 'tor')"),
    reading("a name of a table", "[getattr(CONFIG, name) for name in NAMES][0]"),
    reading("getattr as an argument", "list(map(getattr, [CONFIG], NAMES))[0]"),
    reading("getattr of a table", "table['get'](CONFIG, ''.join(['fac', 'tor']))"),
    reading("getattr of a partial function", "partial(PREFIX + 'tor')"),
    reading("a field of a format", "float('{0.factor}'.format(CONFIG))"),
    reading("a format that is computed", "float(('{0.' + PREFIX + 'tor}').format(CONFIG))"),
    reading("object.__getattribute__", "object.__getattribute__(CONFIG, PREFIX + 'tor')"),
    reading("all members", "dict(inspect.getmembers(CONFIG))['factor']"),
    reading("a pickle", "1.0 + (b'@\\x08' in pickle.dumps(CONFIG))"),
    reading("an annotation", "h.__annotations__['x']", "def h(x: 2.0): pass"),
    reading("a parameter's annotation", "inspect.signature(h).parameters['x'].annotation", "def h(x: 2.0): pass"),
    reading("a type hint", "typing.get_type_hints(C, include_extras=True)['x'].__metadata__[0]",
            "class C:\n    x: typing.Annotated[int, 2.0]"),
    reading("the metadata of a field", "dataclasses.fields(C)[0].metadata['factor']",
            "@dataclasses.dataclass\nclass C:\n    x: int = dataclasses.field(default=1, metadata={'factor': 2.0})"),
    reading("an instance as a dictionary", "list(dataclasses.asdict(C(2.0)).values())[0]",
            "@dataclasses.dataclass(eq=False, repr=False)\nclass C:\n    x: float"),
    reading("a docstring", "float(inspect.getdoc(C))", "class C:\n    '2.0'"),
    reading("a source line", "float(inspect.getsource(h).split()[-1])", "def h():\n    pass  # 2.0"),
    reading("a class that nobody names", "A.__subclasses__()[0].factor", "class A: pass\nclass B(A):\n    factor = 2.0"),
    reading("a mapping of the program's class", "table['a']", "class C(collections.UserDict): pass\ntable = C(a=2.0)"),
    typing("type_callable", """
        @type_callable(h)
        def type_h(context): return lambda x: types.float32
        """),
    typing("a template with a method", """
        @infer_global(h)
        class H(AbstractTemplate):
            def generic(self, args, kws): return signature(types.float32, *args)
        """),
    typing("a template with cases", """
        @infer_global(h)
        class H(ConcreteTemplate):
            cases = [signature(types.float32, types.float64)]
        """),
    typing("a template of a callable", """
        @infer_global(h)
        class H(CallableTemplate):
            def generic(self): return lambda x: types.float32
        """),
    own_registry(
        "a registry of the program's", "cpu_target.target_context.install_registry(lowering)", "@lowering.lower(h, types.float64)"
    ),
    own_registry("a function that is in no registry", "cpu_target.target_context.insert_func_defn([(lower_h, h, (types.float64,))])"),
    preferred("a function for one type instead of many",
              "def h(x): pass\n\n    @type_callable(h)\n    def type_h(context): return lambda x: types.float64\n\n"
              "    @lower_builtin(h, types.Float)\n    def lower_h(context, builder, sig, args): return args[0]",
              "@lower_builtin(h, types.float64)\ndef lower_this(context, builder, sig, args): return builder.fadd(args[0], args[0])",
              "h(p.x)"),
    preferred("a conversion to one type instead of many",
              "@lower_cast(PType, types.Float)\n    def cast_p(context, builder, old, new, value): return builder.extract_value(value, 0)",
              "@lower_cast(PType, types.float64)\ndef cast_this(context, builder, old, new, value): return builder.extract_value(value, 1)",
              "as_float(p)"),
    preferred("a constant of one type instead of a class",
              "OTHER = P(1.0, 2.0)", "@lower_constant(ptype)\ndef constant_this(context, builder, kind, value):\n"
              "    p = cgutils.create_struct_proxy(kind)(context, builder)\n    p.x = p.y = context.get_constant(types.float64, 9.0)\n"
              "    return p._getvalue()",
              "OTHER.x"),
    preferred("an attribute of one type instead of its class",
              "@infer_getattr\n    class Attributes(AttributeTemplate):\n        key = PType\n"
              "        def generic_resolve(self, p, name): return types.float64\n\n"
              "    @lower_getattr_generic(PType)\n    def get(context, builder, kind, value, name): return builder.extract_value(value, 0)",
              "@lower_getattr_generic(ptype)\ndef get_this(context, builder, kind, value, name): return builder.extract_value(value, 1)",
              "p.z"),
    own_type("what makes a Python object", "p", "float_from_double(p.x)", "float_from_double(p.y)"),
    own_type("what reads a Python object", "p.x - p.y", "setattr(p, name,", "setattr(p, 'xy'[name == 'x'],"),
    own_type("attributes that change places", "p.x - p.y", '"x", "x")\n    make_attribute_wrapper(PType, "y", "y")',
             '"x", "y")\n    make_attribute_wrapper(PType, "y", "x")'),
    own_type("the data model", "first(p)", '[("x", types.float64), ("y", types.float64)]', '[("y", types.float64), ("x", types.float64)]'),
    own_type("an attribute of the type's class", "p.scaled",
             "factor = 2.0\n\n        def __init__(self):", "factor = 3.0\n\n        def __init__(self):"),
    own_type("an attribute of a constant's class", "CONSTANT.x",
             "factor = 2.0\n\n        def __init__(self, x, y)", "factor = 3.0\n\n        def __init__(self, x, y)"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(EDITS)), ids=[edit.name for edit in EDITS])
def test_an_edit_counts(number: int, told: Told) -> None:
    assert_edit_counts(told, number)


def test_the_programs_are_cached(told: Told) -> None:
    """All but those that read their source or the modules that annotations name, and the one that is in no registry."""
    hits, _, refused = told.warm
    assert hits == len(EDITS) - 3
    assert len(refused) == 3


#: Numba registers the function that boxes literals when the first wrapper is compiled.
DERIVED = """
from numba import njit, types
from numba.core.datamodel.models import OpaqueModel, register_default
from numba.extending import NativeValue, typeof_impl, unbox

class Unit(tuple):
    pass

class UnitType(types.Literal, types.Dummy):
    pass

register_default(UnitType)(OpaqueModel)

@unbox(UnitType)
def unbox_unit(type_, value, context):
    return NativeValue(context.context.get_dummy_value())

@typeof_impl.register(Unit)
def type_of_unit(value, context):
    return UnitType(value)

@njit(cache=True)
def scaled(unit, x):
    return 2 * x

@njit(cache=True)
def caller(unit, x):
    return scaled(unit, x) + 1
"""


def test_types_derived_from_types_of_numba_have_one_content_in_each_process(project: Project) -> None:
    project.write(kernel=DERIVED)
    script = "import kernel\nresult = kernel.caller(kernel.Unit(('m',)), 20), backend.hits, backend.misses, backend.refused"
    assert project.run(script, backend=True) == (41, 0, 2, {})
    assert project.run(script, backend=True) == (41, 1, 0, {})
