"""The backend as its users meet it: hits and misses, many processes, remote stores."""

from __future__ import annotations

import shutil
import textwrap
import time
from typing import Any

import pytest
from numba_helpers import ADD, WITHOUT_NUMBA, Project, finish

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
NUMBA_VERSION = tuple(map(int, pytest.importorskip("numba").__version__.split(".")[:2]))


COUNT = ", backend.hits, backend.misses"


# ------------------------------------------------------------------------- hits and misses


def test_comments_and_blank_lines_change_nothing_where_no_line_is_told(project: Project) -> None:
    project.write(adding=ADD)
    script = "import adding\nresult = adding.add(1, 2)" + COUNT
    assert project.run(script, backend=True) == (3, 0, 1)
    project.write(
        adding=ADD.replace("    @njit", "    # a comment\n\n    @njit").replace(
            "return", "# here\n        return"
        )
    )
    assert project.run(script, backend=True) == (3, 1, 0)


RAISES = """
    from numba import njit

    @njit(cache=True)
    def check(x):
        if x < 0:
            raise ValueError("negative")
        return x
"""


def test_line_numbers_count_where_an_exception_tells_them(project: Project) -> None:
    script = """
    import check, traceback
    try:
        check.check(-1)
    except ValueError:
        last = traceback.format_exc()
    result = "check.py\\", line {line}," in last, backend.hits, backend.misses
    """
    project.write(check=RAISES)
    assert project.run(script.format(line=7), backend=True) == (True, 0, 1)
    assert project.run(script.format(line=7), backend=True) == (True, 1, 0)
    project.write(check="\n\n\n" + RAISES)
    assert project.run(script.format(line=10), backend=True) == (True, 0, 1)
    assert project.run(script.format(line=10), backend=True) == (True, 1, 0)
    project.write(check=RAISES)
    assert project.run(script.format(line=7), backend=True) == (True, 1, 0)


_TEXT_OF_A_SESSION = """
    import os, traceback
    {header}
    text = "@njit(cache=True)\\ndef check(x):\\n    if x < 0:\\n        raise ValueError('negative')\\n    return x\\n"
    exec(compile("\\n" * {above} + text, f"/tmp/session_{{os.getpid()}}/cell.py", "exec"), globals())
    try:
        check(-1)
    except ValueError:
        last = traceback.format_exc()
    result = "cell.py\\", line {line}," in last, {misses}
"""


@pytest.mark.parametrize(("header", "misses"), [
    ("from numba import njit", "backend.misses"),
    ("from compcache.numba import njit", "'numba.core' in sys.modules"),
])  # fmt: skip
def test_text_that_each_process_compiles_under_a_name_of_its_own_hits(project: Project, header: str, misses: str) -> None:
    def run(above: int) -> Any:
        line = above + 4
        script = _TEXT_OF_A_SESSION.format(header=header, above=above, line=line, misses=misses)
        environment = {"COMPCACHE_DIR": str(project.cache)} if "compcache" in header else {}
        return project.run(script, backend="compcache" not in header, **environment)

    assert run(0) == (True, 1)
    assert run(0) == (True, 0)
    assert run(3) == (True, 1), "its lines count"
    assert run(3) == (True, 0)


def test_functions_without_a_file_hit(project: Project) -> None:
    script = """
    from numba import njit
    space = {{"njit": njit, "__name__": "made"}}
    if {named}:
        import sys, types
        sys.modules["made"] = types.ModuleType("made")
    else:
        del space["__name__"]
    exec("@njit(cache=True)\\ndef f(x):\\n    return x + {plus}\\n", space)
    result = space["f"](1)"""
    for named in (True, False):
        for plus in (1, 2):
            counted = script.format(named=named, plus=plus) + COUNT
            assert project.run(counted, backend=True) == (1 + plus, 0, 1)
            assert project.run(counted, backend=True) == (1 + plus, 1, 0)


CONTENT = """
    import enum
    import numpy as np
    from numba import njit

    class Color(enum.IntEnum):
        RED = {red}

    TABLE = np.array([1, 2, {last}])
    PAIR = (1.5, {second})

    def helper(x, by={default}):
        return x + by
    helper = njit(helper)

    def make(n):
        @njit
        def inner(x):
            return x * n
        return inner
    scaled = make({closed})

    @njit(cache=True)
    def f(x):
        def nested(y):
            return y + {nested}
        return nested(scaled(helper(x))) + TABLE[2] + PAIR[1] + Color.RED
"""
FIELDS = {"red": 1, "last": 3, "second": 4, "default": 5, "closed": 6, "nested": 7}


def expected(fields: dict[str, int]) -> int:
    """What `f(10)` of CONTENT gives."""
    inner = (10 + fields["default"]) * fields["closed"] + fields["nested"]
    return inner + fields["last"] + fields["second"] + fields["red"]


def test_everything_that_a_function_reads_counts_by_value(project: Project) -> None:
    script = "import content\nresult = int(content.f(10))" + COUNT
    project.write(content=CONTENT.format(**FIELDS))
    assert project.run(script, backend=True)[:2] == (expected(FIELDS), 0)
    assert project.run(script, backend=True)[:2] == (expected(FIELDS), 1)
    for field in FIELDS:
        fields = {**FIELDS, field: 50}
        project.write(content=CONTENT.format(**fields))
        assert project.run(script, backend=True)[:2] == (expected(fields), 0), field


KINDS = (
    """
    import numpy as np
    from numba import cfunc, generated_jit, guvectorize, njit, vectorize
""".replace(", generated_jit", "")
    + """
    @njit(cache=True)
    def gives_array(n):
        return np.arange(n) * 2

    @njit(cache=True)
    def gives_tuple(x):
        return x, str(x), {"a": x}["a"]

    @vectorize(["int64(int64)", "float64(float64)"], cache=True)
    def ufunc(x):
        return x + 1

    @guvectorize(["void(int64[:], int64, int64[:])"], "(n),()->(n)", cache=True)
    def gufunc(a, b, out):
        for i in range(len(a)):
            out[i] = a[i] + b

    @cfunc("float64(float64)", cache=True)
    def callback(x):
        return x * 2

    @njit(cache=True)
    def generator(n):
        for i in range(n):
            yield i

    @njit(cache=True)
    def recursive(n):
        return 1 if n < 2 else n * recursive(n - 1)

    @njit(parallel=True, cache=True)
    def parallel(a):
        return (a + 1).sum()

    @njit(cache=True)
    def uses_generator(n):
        total = 0
        for i in generator(n):
            total += i
        return total

    @njit(cache=True)
    def sorts(a):
        return np.sort(a)[::-1].copy()
"""
)
USE_KINDS = """
    import kinds, numpy as np
    result = (
        kinds.gives_array(3).tolist(), kinds.gives_tuple(5), kinds.ufunc(np.arange(3)).tolist(),
        kinds.gufunc(np.arange(3), 10).tolist(), kinds.callback.ctypes(4.0), list(kinds.generator(3)),
        kinds.recursive(5), float(kinds.parallel(np.ones(4))), kinds.uses_generator(4), kinds.sorts(np.arange(3)).tolist(),
    )"""
KINDS_RESULT = ([0, 2, 4], (5, "5", 5), [1, 2, 3], [10, 11, 12], 8.0, [0, 1, 2], 120, 8.0, 6, [2, 1, 0])


def test_every_kind_of_compiled_function_hits(project: Project) -> None:
    project.write(kinds=KINDS)
    assert project.run_in_fork(USE_KINDS) == KINDS_RESULT
    result, hits, misses, refused = project.run(USE_KINDS + COUNT + ", backend.refused", backend=True)
    assert (result, refused) == (KINDS_RESULT, {})
    assert misses >= 12
    assert project.run(USE_KINDS + COUNT, backend=True) == (KINDS_RESULT, misses + hits, 0)


CALLED_BY_COMPILED_CODE = """
    import numpy as np
    from numba import njit
    from numba.extending import overload, overload_attribute, overload_method, register_jitable, types

    @register_jitable(cache=True)
    def through_register(x):
        return x * 3 + 1

    def through_overload(x):
        return x * 5

    @overload(through_overload, jit_options={"cache": True})
    def _(x):
        return lambda x: x * 5 + 2

    @overload_method(types.Array, "weighed", jit_options={"cache": True})
    def _(a, by):
        return lambda a, by: a.sum() * by

    @overload_attribute(types.Array, "doubled", jit_options={"cache": True})
    def _(a):
        return lambda a: a.sum() * 2

    @njit{options}
    def f(x):
        a = np.arange(x)
        return through_register(x) + through_overload(x) + a.weighed(7) + a.doubled
"""


@pytest.mark.parametrize("options", ["", "(cache=True)"], ids=["uncached caller", "cached caller"])
def test_entries_that_only_compiled_code_calls_hit(project: Project, options: str) -> None:
    """They have no wrapper for calls from Python."""
    source = CALLED_BY_COMPILED_CODE.replace("{options}", options)
    project.write(called=source)
    call = "import called\nresult = int(called.f(4)),"
    assert project.run_in_fork(call) == (13 + 22 + 42 + 12,)
    script = call + " backend.hits, backend.misses, backend.refused"
    value, _, misses, refused = project.run(script, backend=True)
    assert (value, refused) == (89, {})
    assert misses >= 4
    edited = source.replace("a.weighed(7)", "a.weighed(8)")
    assert project.run(script, backend=True) == (89, 1 if options else misses, 0, {})
    project.write(called=edited)  # another caller of the same entries links their code in
    assert project.run(script, backend=True)[0] == 95


def test_a_hit_does_not_make_numba_ready_to_compile(project: Project) -> None:
    project.write(adding=ADD)
    script = """
    import sys
    import adding
    result = adding.add(1, 2), backend.hits, "numba.cpython.unicode" in sys.modules and "numba.np.linalg" in sys.modules
    """
    own = {"PYTHONHASHSEED": "0"}  # an interpreter of its own: forks have imported these modules
    assert project.run(script, backend=True, **own) == (3, 0, True)
    assert project.run(script, backend=True, **own) == (3, 1, False)


def test_a_function_that_hit_can_be_linked_into_another(project: Project) -> None:
    project.write(
        adding=ADD.replace(
            "return x + y", "if x < 0:\n            raise ValueError('negative')\n        return x + y"
        )
    )
    script = """
    import adding
    from numba import njit
    @njit
    def outer(x):
        return adding.add(x, 1) * 2
    first = adding.add(1, 2)
    try:
        outer(-1)
    except ValueError as error:
        second = str(error)
    result = first, outer(1), second, backend.hits
    """
    assert project.run(script, backend=True) == (3, 4, "negative", 0)
    assert project.run(script, backend=True) == (3, 4, "negative", 2)  # for an int64 and for a literal


EXPRESSIONS = """
    import numpy as np
    from numba import njit

    @njit
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    @njit(cache=True)
    def first(a):
        return (a * 2 + factorial(5)).sum()

    @njit(cache=True)
    def second(a):
        return np.sort(a)[::-1].copy() + first(a)
"""


@pytest.mark.skipif(NUMBA_VERSION < (0, 68), reason="before 0.68 Numba names constants after addresses")
def test_the_same_source_gives_the_same_modules(project: Project) -> None:
    project.write(same=EXPRESSIONS)
    script = """
    import same, numpy as np
    same.first(np.arange(3.0)), same.second(np.arange(3.0))
    result = sorted(module for function in backend.cache.functions() for module in function.modules)
    """
    first = project.run(script, backend=True, PYTHONHASHSEED="1")
    assert len(first) == 2
    for path in [*project.cache.rglob("*.ccm"), *project.cache.rglob("*.idx")]:
        path.unlink()
    assert project.run(script, backend=True, PYTHONHASHSEED="2") == first


def test_tools_know_entries_where_numba_is_not_installed(project: Project) -> None:
    project.write(kinds=KINDS)
    project.run(USE_KINDS, backend=True)
    script = WITHOUT_NUMBA.format(cache=str(project.cache)) + textwrap.dedent("""
    listed = {row["func_name"].rpartition("-")[0]: row for row in run("ls")}
    shown = [run("show", row["func_name"]) for row in listed.values()]
    reasons = {run("explain", row["func_name"])["reason"] for row in listed.values()}
    definitions = [g["definition"] for report in shown for g in report["globals"]]
    result = {name: row["signature"] for name, row in listed.items()}, definitions, sorted(reasons)
    """)
    signatures, definitions, reasons = project.run(script, backend=False)
    assert signatures["kinds.gives_array(int64)"] == "array(int64, 1d, C)(int64)"
    assert signatures["kinds.callback(float64)"] == "float64(float64)"
    assert signatures["kinds.gufunc(array(int64, 1d, A), int64, array(int64, 1d, A))"].startswith(
        "void(array("
    )
    assert not [text for text in definitions if "is not registered" in text]
    assert set(reasons) <= {"", "global"}  # where Numba's C helpers are needed, it says so


# ------------------------------------------------------------------------- many processes, many functions


RACER = """
    import adding, pathlib, time
    pathlib.Path("ready{number}").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.0005)
    result = {call}
"""
RACED = {"add(1, 2)": 3, "add(1.0, 2)": 3.0, "add(1, 2.0)": 3.0, "add(1j, 2)": 2 + 1j}


@pytest.mark.parametrize("distinct", [True, False], ids=["different signatures", "equal signatures"])
def test_sixteen_processes_behind_a_barrier_agree(project: Project, distinct: bool) -> None:
    project.write(adding=ADD)
    calls = list(RACED) * 4 if distinct else ["add(1, 2)"] * 16
    racers = [
        project.start(RACER.format(number=number, call=f"adding.{call}"), backend=True)
        for number, call in enumerate(calls)
    ]
    while len(list(project.source.glob("ready*"))) < len(racers) and all(r.poll() is None for r in racers):
        time.sleep(0.01)
    (project.source / "go").touch()
    assert [finish(racer) for racer in racers] == [RACED[call] for call in calls]
    wanted = dict.fromkeys(calls)
    results = ", ".join(f"adding.{call}" for call in wanted)
    script = f"import adding\nresult = [{results}]{COUNT}"
    assert project.run(script, backend=True) == ([RACED[call] for call in wanted], len(wanted), 0)


def package_module(number: int) -> str:
    """Fifty functions, most of which call another one, across modules too."""
    lines = ["from numba import njit"]
    if number:
        lines.append(f"from part{number - 1} import f{50 * number - 1}")
    for n in range(50 * number, 50 * number + 50):
        callee = f"f{n - 1}(x)" if n % 10 or (n and n % 50 == 0) else "x"
        lines += ["@njit(cache=True)", f"def f{n}(x):", f"    return x * {n} + {callee}"]
    return "\n".join(lines)


@pytest.mark.stress
def test_a_package_of_three_hundred_functions_starts_warm(project: Project) -> None:
    project.write(**{f"part{number}": package_module(number) for number in range(6)})
    script = """
    from importlib import import_module
    parts = [import_module(f"part{number}") for number in range(6)]
    total = sum(getattr(part, f"f{n}")(2) for p, part in enumerate(parts) for n in range(50 * p, 50 * p + 50))
    result = total, backend.hits, backend.misses
    """
    total, _, misses = project.run(script, backend=True)
    assert misses == 300
    assert project.run(script, backend=True) == (total, 300, 0)


# --------------------------------------------------------------------- remote store


def test_what_one_directory_compiled_another_one_takes_from_the_remote_store(project: Project) -> None:
    """Numba's entries are pickled, so they travel only with a signature that the reader checks."""
    script = """
        from compcache import numba as backend_module
        from compcache.miss import compile_once
        compile_once.HEDGE_SECONDS = 60.0  # the machine may be busy
        options = {"remote": %r, "signing_key": b"key"}
        with backend_module.installed(%r, remote_mode=%r, **options) as backend:
            from numba import njit

            @njit(cache=True)
            def add(x, y):
                return x + y

            result = add(1, 2), backend.hits, backend.misses
            if %r == "write":
                backend.cache.push(list(backend.cache))
                backend.cache.flush_uploads(60)
    """
    runtime = project.directory / "run"
    runtime.mkdir(mode=0o700)
    store = (project.directory / "store").as_uri()
    first, second = str(project.directory / "a"), str(project.directory / "b")
    environment = {"XDG_RUNTIME_DIR": str(runtime)}
    try:
        assert project.run(script % (store, first, "write", "write"), backend=False, **environment) == (3, 0, 1)
        assert project.run(script % (store, second, "read", "read"), backend=False, **environment) == (3, 1, 0)
    finally:
        shutil.rmtree(runtime)  # the helper process ends with it


def test_a_process_that_has_stored_several_functions_leaves_one_segment_of_each_level(project: Project) -> None:
    names = [f"f{number}" for number in range(5)]
    project.write(p="from numba import njit\n" + "".join(f"@njit(cache=True)\ndef {name}(x):\n    return x\n" for name in names))
    script = f"import p\nresult = [getattr(p, name)(1) for name in {names}]"
    assert project.run(script, backend=True) == [1] * 5
    levels = [path.name.partition("-")[0] for path in (project.cache / "index-v1").iterdir()]
    assert len(levels) == len(set(levels)) < 5
    assert project.run(script, backend=True) == [1] * 5


def test_functions_that_exec_creates_in_no_module_are_found(project: Project) -> None:
    """Their environments have the name of a module that cannot be imported."""
    project.write(made="""
        from numba import guvectorize, njit
        namespace = {"__name__": "made_up", "njit": njit}
        exec("@njit\\ndef inner(x):\\n    if x < 0: raise ValueError\\n    return x + 1", namespace)
        inner = namespace["inner"]
        @njit(cache=True)
        def f(x):
            return inner(x) * 2
        @guvectorize(["(f8[:], f8[:])"], "(n)->()", cache=True)
        def g(values, result):
            result[0] = inner(values[0])
    """)
    text = "import made\nimport numpy as np\nresult = made.f(1), float(made.g(np.ones(3))), backend.hits, backend.misses"
    assert project.run(text, backend=True) == (4, 2.0, 0, 3)
    assert project.run(text, backend=True) == (4, 2.0, 3, 0)
