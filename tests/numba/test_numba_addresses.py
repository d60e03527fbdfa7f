"""Code that calls functions of Cython modules by their addresses: stored with their names, bound to the addresses of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")

#: A module that offers functions as Cython's do: those of the C library's mathematics that variables name, with a type.
OFFERS = """
    import ctypes, os

    library = ctypes.CDLL("libm.so.6")
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    kept = []

    def capsule(name, type_):
        kept.append(type_.encode())
        return new(ctypes.cast(getattr(library, name), ctypes.c_void_p).value, kept[-1], None)

    __pyx_capi__ = {
        "wave": capsule(os.environ.get("WAVE", "sin"), os.environ.get("WAVE_TYPE", "double (double)")),
        "root": capsule("sqrt", "double (double)"),
    }
"""
KERNELS = """
    import ctypes
    from {numba} import njit
    from {numba}.extending import get_cython_function_address
    from {numba}.types import WrapperAddressProtocol, float64
    import numpy as np
    import offers

    def make(name):
        address = get_cython_function_address("offers", name)
        members = {"__wrapper_address__": lambda self: address, "signature": lambda self: float64(float64)}
        return type(name, (WrapperAddressProtocol,), members)()

    wave = make("wave")
    root = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(get_cython_function_address("offers", "root"))

    @njit
    def scaled(x, by):
        return wave(x) * by

    @njit("float64(float64)")
    def declared(x):
        return wave(x) + 1

    @njit
    def both(values):
        result = 0.0
        for value in values:
            result += scaled(value, 2.0) + root(value)
        return result
"""
CALLS = """
import plain as k, numpy as np
answers = [k.scaled(0.5, 3.0), k.declared(0.25), k.both(np.arange(4.0))]
"""
RESULT = "\nresult = answers, 'numba.core.compiler' in sys.modules, backend.hits, backend.misses, backend.refused"


def run(project: Project, script: str, **environment: str) -> Any:
    return project.run(script, backend=False, COMPCACHE_DIR=str(project.cache), **environment)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.write(offers=OFFERS, plain=KERNELS.replace("{numba}", "numba"))
    return made


LAZY = "import sys, compcache.numba\nbackend = compcache.numba.install(lazy=True)\n"
INSTALLED = "import sys, compcache.numba\nbackend = compcache.numba.install()\n"


@pytest.mark.parametrize(("first", "imports_numba"), [(LAZY, False), (INSTALLED, True)])
def test_functions_are_found_by_their_names(project: Project, first: str, *, imports_numba: bool) -> None:
    plain = run(project, "import sys\n" + CALLS + "result = answers")
    if first == INSTALLED:
        kernels = KERNELS.replace("{numba}", "numba").replace("@njit\n", "@njit(cache=True)\n")
        project.write(plain=kernels.replace('(float64)")', '(float64)", cache=True)'))
    answers, _, hits, misses, refused = run(project, first + CALLS + RESULT)
    assert (answers, hits, refused) == (plain, 0, {})
    assert misses >= 3
    answers, imported, hits, misses, refused = run(project, first + CALLS + RESULT)
    assert (answers, imported, misses, refused) == (plain, imports_numba, 0, {})
    assert hits == 3


def test_the_address_is_that_of_the_process(project: Project) -> None:
    """A module that offers something else under the name is called where the program calls it."""
    plain = [run(project, "import sys\n" + CALLS + "result = answers", WAVE=name) for name in ("sin", "cos", "sin")]
    assert plain[0] == plain[2] != plain[1]
    assert [run(project, LAZY + CALLS + RESULT, WAVE=name)[0] for name in ("sin", "cos", "sin")] == plain
    *_, imported, hits, misses, refused = run(project, LAZY + CALLS + RESULT, WAVE="cos")
    assert (imported, hits, misses, refused) == (False, 3, 0, {})


def test_another_type_of_the_function_is_another_function(project: Project) -> None:
    run(project, LAZY + CALLS + RESULT)
    answers, imported, *_ = run(project, LAZY + CALLS + RESULT, WAVE_TYPE="double (double, int __pyx_skip_dispatch)")
    assert imported
    assert answers == run(project, "import sys\n" + CALLS + "result = answers")


def test_callers_are_linked_with_stored_code_that_calls_by_name(project: Project) -> None:
    outer = """
import numba
@numba.njit
def outer(x):
    return k.scaled(x, 2.0) + k.declared(x) + k.both(np.array([x]))
answers += [outer(0.75), outer(0.5)]
"""
    plain = run(project, "import sys\n" + CALLS + outer + "result = answers")
    run(project, LAZY + CALLS + RESULT)
    for _ in range(3):
        assert run(project, LAZY + CALLS + outer + RESULT)[0] == plain


def test_what_a_function_has_of_an_address_besides_calls_is_not_stored(project: Project) -> None:
    """An object that tells an address, given to Python by compiled code, is an object of the process."""
    script = """
import plain as k
answers = []
@k.njit
def itself():
    return k_wave
k_wave = k.wave
"""
    calls = script + "answers = [itself() is k.wave if not isinstance(itself(), int) else 'int']\n"
    plain = run(project, "import sys\n" + calls + "result = answers")
    for _ in range(2):
        answers, imported, *_ = run(project, LAZY + calls + RESULT)
        assert (answers, imported) == (plain, True)


UFUNCS = """
    import numpy as np
    from numba import cfunc, guvectorize, njit, vectorize
    from plain import root, wave

    @vectorize(["float64(float64)"])
    def declared(x):
        return wave(x) + root(x)

    @vectorize
    def found(x):
        return wave(x) * 2

    @guvectorize(["float64[:], float64[:]"], "(n)->(n)")
    def rows(values, result):
        for i in range(len(values)):
            result[i] = wave(values[i])

    @cfunc("float64(float64)")
    def callback(x):
        return wave(x) + 2
"""


def test_loops_of_ufuncs_and_callbacks_call_by_name(project: Project) -> None:
    project.write(ufuncs=UFUNCS)
    script = """
import numpy as np, ufuncs as u
x = np.arange(6.0).reshape(2, 3)
answers = [u.declared(x).tolist(), u.found(x).tolist(), u.rows(x).tolist(), u.callback.ctypes(0.5)]
"""
    plain = run(project, script + "result = answers")
    answers = [run(project, LAZY + script + RESULT) for _ in range(3)]
    assert [found for found, *_ in answers] == [plain] * 3
    assert answers[2][1:4:2] == (False, 0)


HANDED_ON = """
    from numba import njit
    import numpy as np

    @njit
    def distance(x, y):
        return (x - y) ** 2

    @njit
    def nearest(values, distance_of, limit):
        total = 0.0
        for i in range(len(values)):
            for j in range(len(values)):
                if distance_of(values[i], values[j]) < limit:
                    total += np.sqrt(distance_of(values[i], values[j]))
                else:
                    total -= 1
        return total

    @njit
    def of_all(values):
        return nearest(values, distance, 2.0)

    @njit
    def itself(values):
        return nearest(values, distance, 2.0), distance
"""


def test_functions_that_are_handed_on_are_known_by_their_types(project: Project) -> None:
    """The address of the function, which Numba has in the code, is read by nobody; unless it is given to Python."""
    project.write(handed=HANDED_ON)
    script = "import numpy as np, handed as h\nanswers = [h.of_all(np.arange(5.0))]\nimport sys\n"
    plain = run(project, script + "result = answers")
    answers = [run(project, LAZY + script + RESULT) for _ in range(2)]
    assert [found for found, *_ in answers] == [plain] * 2
    assert answers[1][1:] == (False, 1, 0, {})
    script += "value, function = h.itself(np.arange(5.0))\nanswers += [value, function is h.distance, function(3.0, 1.0)]\n"
    plain = run(project, script + "result = answers")
    for _ in range(2):
        answers, imported, _, _, refused = run(project, LAZY + script + RESULT)
        assert (answers, imported, len(refused)) == (plain, True, 1)
    project.write(handed=HANDED_ON.replace("** 2", "** 4"))
    assert run(project, LAZY + script + RESULT)[0] == run(project, script + "result = answers")


THREADS = """
    from numba import get_num_threads, get_thread_id, njit, prange
    import numpy as np

    @njit(parallel=True)
    def pieces(values):
        count = get_num_threads()
        result = np.zeros(count)
        for piece in prange(count):
            for i in range(piece, len(values), count):
                result[piece] += values[i]
        return result

    @njit
    def plain():
        return get_num_threads()
"""


@pytest.mark.parametrize("count", ["1", "2"])
def test_functions_of_threads_are_numbas_own(project: Project, count: str) -> None:
    project.write(threads=THREADS)
    script = "import sys, numpy as np, threads as t\nanswers = [t.pieces(np.arange(9.0)).tolist(), t.plain()]\n"
    later = "import numba\nnumba.set_num_threads(1)\nanswers += [t.plain(), len(t.pieces(np.arange(9.0))), numba.get_num_threads()]\n"
    plain = run(project, script + later + "result = answers", NUMBA_NUM_THREADS=count)
    run(project, LAZY + script + RESULT, NUMBA_NUM_THREADS="2")
    assert run(project, LAZY + script + RESULT, NUMBA_NUM_THREADS=count) == (plain[:2], False, 2, 0, {})
    assert run(project, LAZY + script + later + RESULT, NUMBA_NUM_THREADS=count)[0] == plain
    outer = script + "import numba\n@numba.njit\ndef outer():\n    return t.plain() + 1\nanswers = [outer()]\n"
    assert run(project, LAZY + outer + RESULT, NUMBA_NUM_THREADS=count)[0] == [plain[1] + 1]


def test_exports_are_read_again_only_after_a_change(project: Project) -> None:
    """The capsules of all modules are read once for any number of addresses that are not Cython's, and again if a module exports more."""
    script = """
import ctypes, sys
from numba import njit
from compcache.numba.registered.cython_functions import function_at
import offers
calls = []
sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
unknown = [function_at(number) for number in range(1, 100)]
sys.setprofile(None)
counts = [calls.count("_functions_among") > 0, calls.count("_functions_among") < 99]
first, last = (offers.address(name) for name in ("sqrt", "cosh"))
answers = [function_at(first), function_at(last)]
offers.__pyx_capi__["more"] = offers.capsule("cosh", "double (double)")
answers += [function_at(last)]
del offers.__pyx_capi__["more"]
result = set(unknown), counts, answers + [function_at(last)]
"""
    project.write(offers=OFFERS + "\n    address = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value\n")
    unknown, counts, answers = run(project, script)
    assert (unknown, counts) == ({None}, [True, True])
    assert answers == [("offers", "root", "double (double)"), None, ("offers", "more", "double (double)"), None]
