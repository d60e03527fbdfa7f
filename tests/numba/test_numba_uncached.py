"""What is compiled and not cached, and how `explain` tells why."""

from __future__ import annotations

import pytest
from numba_helpers import ADD, WITHOUT_NUMBA, Project

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")



UNKNOWN = """
    import ctypes
    from numba import int64, njit, types

    class Absolute(types.WrapperAddressProtocol):
        def __wrapper_address__(self):
            return ctypes.cast(ctypes.CDLL(None).llabs, ctypes.c_void_p).value
        def signature(self):
            return int64(int64)

    absolute = Absolute()

    @njit(cache=True)
    def f(x):
        return absolute(x)
"""


def test_what_has_no_identity_is_compiled_and_not_cached_with_the_reason(project: Project) -> None:
    project.write(unknown=UNKNOWN)
    script = """
    import warnings
    warnings.simplefilter("ignore")
    import unknown
    result = unknown.f(-1), backend.refused
    """
    for _ in range(2):
        value, refused = project.run(script, backend=True)
        assert value == 1
        assert refused == {"unknown.f(int64)": "it uses dynamic globals (such as ctypes pointers and large global arrays)"}


#: With Numba, whose C functions the code may need.
EXPLAIN = WITHOUT_NUMBA.replace('sys.modules["numba"] = sys.modules["llvmlite"] = None\n', "") + (
    "result = run('explain', {name!r})"
)


def test_explain_tells_why_a_function_is_not_cached(project: Project) -> None:
    project.write(unknown=UNKNOWN)
    project.run(
        "import unknown, warnings\nwarnings.simplefilter('ignore')\nresult = unknown.f(-1)", backend=True
    )
    script = (
        WITHOUT_NUMBA.format(cache=str(project.cache)) + "result = [run('explain', n) for n in {names!r}]"
    )
    names = ["unknown.f", "unknown.f(int64)", "unknown.f(int32)", "unknown"]
    *found, other, module = project.run(script.replace("{names!r}", repr(names)), backend=False)
    for explanation in found:
        assert (explanation["hit"], explanation["reason"]) == (False, "refused")
        assert explanation["message"].startswith(
            "unknown.f(int64) was compiled and not cached: it uses dynamic globals"
        )
    assert other["reason"] == module["reason"] == "absent"


def test_a_function_that_is_cached_at_last_is_refused_no_more(project: Project) -> None:
    project.write(unknown=UNKNOWN)
    script = "import unknown, warnings\nwarnings.simplefilter('ignore')\nresult = unknown.f(-1)"
    project.run(script, backend=True)
    project.write(unknown=UNKNOWN.replace("return absolute(x)", "return -x"))
    project.run(script, backend=True)
    explanation = project.run(EXPLAIN.format(cache=str(project.cache), name="unknown.f"), backend=False)
    assert (explanation["hit"], explanation["reason"], explanation["refusals"]) == (True, "", [])
    assert explanation["func_name"].startswith("unknown.f(int64)-")


def test_explain_says_hit_for_each_signature(project: Project) -> None:
    project.write(adding=ADD)
    project.run("import adding\nresult = adding.add(1, 2), adding.add(1.0, 2)", backend=True)
    explanation = project.run(EXPLAIN.format(cache=str(project.cache), name="adding.add"), backend=False)
    assert (explanation["hit"], explanation["reason"]) == (True, "")
    told = {overload["label"]: overload["hit"] for overload in explanation["overloads"]}
    assert told == {"adding.add(float64, int64)": True, "adding.add(int64, int64)": True}


def test_code_that_was_compiled_before_the_installation_is_not_linked_into_entries(project: Project) -> None:
    """What the compiler was told for it is not known, hence neither when it changes."""
    outer = "from adding import add\nfrom numba import njit\n@njit(cache=True)\ndef outer(x):\n    return add(x, x)\n"
    project.write(adding=ADD.replace("(cache=True)", ""), outer=outer)
    script = """
    import adding, compcache.numba, warnings
    warnings.simplefilter("ignore")
    adding.add(1, 2)
    import outer
    with compcache.numba.installed("cache") as backend:
        outer.outer(1)
    result = list(backend.refused.values())
    """
    (reason,) = project.run(script, backend=False)
    assert reason.startswith("the function calls adding.add, which was compiled before compcache.numba was installed, or loaded from")


INTERNAL = """
    from numba import njit, types
    from numba.extending import lower_builtin, type_callable

    K = 1

    def target(x): ...

    def implementation(x):
        return x + K

    @type_callable(target)
    def type_target(context):
        return lambda x: types.int64

    @lower_builtin(target, types.int64)
    def generate(context, builder, sig, args):
        return context.compile_internal(builder, implementation, sig, args)

    @njit
    def early(x):
        return target(x)

    @njit(cache=True)
    def caller(x):
        return target(x) * 2
"""


@pytest.mark.slow
def test_what_code_generators_compiled_before_the_installation_is_not_linked_into_entries(project: Project) -> None:
    """Numba's own cache, which has the directory `plain` here, does not compare the value."""
    project.write(internal=INTERNAL)
    script = """
    import compcache.numba, internal
    if {is_early}:
        internal.early(1)
    internal.K = 5
    compcache.numba.install("cache")
    result = internal.caller(1)
    """
    answers = [project.run(script.format(is_early=early), backend=False, NUMBA_CACHE_DIR=f"plain {early}") for early in (True, False)]
    assert answers == [4, 12]
