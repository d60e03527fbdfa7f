"""Code that calls functions through ctypes: stored with their names, bound to the addresses that they have in each process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_KERNELS = """
    import ctypes
    import numpy as np
    from NUMBA import njit

    mathematics, c = ctypes.CDLL("libm.so.6"), ctypes.CDLL(None)

    def declare(function, result, *parameters):
        function.restype, function.argtypes = result, parameters
        return function

    wave = declare(mathematics.sin, ctypes.c_double, ctypes.c_double)
    split = declare(mathematics.frexp, ctypes.c_double, ctypes.c_double, ctypes.POINTER(ctypes.c_int))
    absolute = declare(c.labs, ctypes.c_longlong, ctypes.c_longlong)
    other_name = declare(c.imaxabs, ctypes.c_longlong, ctypes.c_longlong)  # the same address
    callback = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
    STEP = 3.0
    times, plus = callback(lambda x: x * STEP), callback(lambda x: x + STEP)

    @njit(cache=True)
    def waves(x):
        return wave(x)

    @njit(cache=True)
    def called(x):
        return 100 * times(x) + plus(x)

    @njit(cache=True)
    def last(x):
        return plus(x)

    @njit(cache=True)
    def magnitudes(x):
        return absolute(x), other_name(x)

    @njit(cache=True)
    def parts(x):
        exponent = np.zeros(1, np.int32)
        return split(x, exponent.ctypes), exponent[0]

    @njit(cache=True)
    def caller(x):
        return waves(x) + last(x)
"""
_CALLS = """
    import sys
    import kernels as k
    answers = [ORDER, k.waves(0.5), k.called(2.0), k.last(2.0), k.magnitudes(-300), k.parts(5.0), k.caller(0.5)]
    result = answers, COUNTED
"""
_EDITS = [
    ("mathematics.sin", "mathematics.cos"),
    ("STEP = 3.0", "STEP = 4.0"),
    ("times, plus = ", "plus, times = "),
    ("declare(c.labs, ctypes.c_longlong, ctypes.c_longlong)", "declare(c.labs, ctypes.c_ubyte, ctypes.c_longlong)"),
    ("declare(c.labs, ctypes.c_longlong,", "declare(c.ffsll, ctypes.c_longlong,"),
    ("declare(mathematics.sin, ctypes.c_double, ctypes.c_double)", "declare(mathematics.sinf, ctypes.c_float, ctypes.c_float)"),
]


def _script(counted: str, order: str = "0") -> str:
    return _CALLS.replace("COUNTED", counted).replace("ORDER", order)


def _write(project: Project, numba: str, old: str = "", new: str = "") -> None:
    assert not old or _KERNELS.count(old) == 1, old
    project.write(kernels=_KERNELS.replace(old, new).replace("NUMBA", numba) if old else _KERNELS.replace("NUMBA", numba))


def test_with_numba_every_edit_counts_and_nothing_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path)
    said = []
    for old, new in (("", ""), *_EDITS, ("", "")):
        _write(project, "numba", old, new)
        said.append(project.run_in_fork(_script("0"))[0])
        answers, counts = project.run(_script("(backend.misses, backend.refused)"), backend=True)
        assert answers == said[-1], new
        assert counts[1] == {}
    assert counts[0] == 0
    assert len({repr(answers) for answers in said}) == len(_EDITS) + 1


def test_starts_without_numba_call_the_functions_of_their_process(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for old, new in (("", ""), *_EDITS[:3], ("", "")):
        _write(project, "numba", old, new)
        plain = project.run_in_fork(_script("0"))[0]
        _write(project, "compcache.numba", old, new)
        starts = [
            project.run(_script("'numba.core' in sys.modules"), backend=False, COMPCACHE_DIR=str(project.cache)) for _ in range(2)
        ]
        assert [answers for answers, _ in starts] == [plain, plain], new
    assert starts[1][1] is False


def test_names_do_not_depend_on_what_was_used_before(tmp_path: Path) -> None:
    """Callbacks have no names of their own. One that is met first has another number, and code for the other number is not used."""
    project = Project(tmp_path)
    _write(project, "numba")
    plain = project.run_in_fork(_script("0"))[0][1:]
    for order in ("k.last(1.0)", "k.called(1.0)", "k.magnitudes(1)"):
        answers, refused = project.run(_script("backend.refused", order), backend=True)
        assert (answers[1:], refused) == (plain, {})


def test_code_is_not_used_if_its_names_mean_several_functions(tmp_path: Path) -> None:
    """Code that calls one of two names of a function is stored with both. Another library may have two functions under these names."""
    project = Project(tmp_path)
    added = """
    INTEGERS = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_longlong)
    OTHER
    @njit(cache=True)
    def only(x):
        return absolute(x)
    """
    script = "import kernels as k\nresult = k.magnitudes(-3), k.only(-3), backend.misses, backend.refused"
    source = _KERNELS.replace("NUMBA", "numba") + added
    project.write(kernels=source.replace("OTHER", ""))
    assert project.run(script, backend=True) == ((3, 3), 3, 2, {})
    assert project.run(script, backend=True) == ((3, 3), 3, 0, {})
    project.write(kernels=source.replace("OTHER", "other_name = INTEGERS(lambda x: 7)\n    other_name.__name__ = 'imaxabs'"))
    assert project.run(script, backend=True) == ((3, 7), 3, 2, {})
