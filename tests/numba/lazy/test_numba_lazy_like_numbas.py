"""A lazy function is to programs what Numba's dispatcher is, and a switch is on or off whatever its spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("numba")

KERNELS = "from {decorators} import njit\n@njit\ndef f(x):\n    return x + 1\n"
SCRIPT = """
import copy, pickle
import kernels
f = kernels.f
value = f(1)
shown = type(f).__module__, type(f).__name__, f.__module__, f.__qualname__
copies = [pickle.loads(pickle.dumps(f, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
result = value, shown, [other is f for other in copies], copies[0](3), copy.copy(f) is f, pickle.loads(pickle.dumps([f, f]))[1] is f
"""


@pytest.mark.slow
def test_a_pickle_of_a_function_is_the_function_and_its_class_is_numbas(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels=KERNELS.format(decorators="numba"))
    plain = project.run_in_fork(SCRIPT)
    assert all(plain[2])
    project.write(kernels=KERNELS.format(decorators="compcache.numba"))
    for _ in range(2):
        assert project.run(SCRIPT, backend=False, COMPCACHE_DIR=str(project.cache)) == plain


ATTRIBUTES = """
import kernels
f = kernels.f
f.limit, f.__doc__ = 3, "one"
before = f(1), f.limit, f.__doc__
try:
    f("text")  # only Numba can raise this error
except Exception as error:
    name = type(error).__name__
f.limit, f.__doc__, f.__name__, f.other = 4, "two", "renamed", 5
after = f.limit, f.__doc__, f.__name__, f.other, vars(f)["limit"], [hasattr(f, name) for name in ("limit", "py_func", "nothing")]
del f.limit
f.py_func = len
result = before, name, after, hasattr(f, "limit"), f.py_func([1]), f(1), f(1.5), f.__wrapped__(2)
"""


@pytest.mark.slow
def test_attributes_of_a_function_are_those_that_the_program_has_set_last(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write(kernels=KERNELS.format(decorators="numba"))
    plain = project.run_in_fork(ATTRIBUTES)
    project.write(kernels=KERNELS.format(decorators="compcache.numba"))
    for _ in range(2):
        assert project.run(ATTRIBUTES, backend=False, COMPCACHE_DIR=str(project.cache)) == plain


USES_PY_FUNC = """
import kernels
kernels.f.py_func = lambda x: x
result = kernels.g(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("decorators", ["numba", "compcache.numba"])
def test_a_caller_is_compiled_again_if_a_function_changes_whose_py_func_is_another(tmp_path: Path, decorators: str) -> None:
    project = Project(tmp_path)
    uses = "\n@njit(cache=True)\ndef g(x):\n    return f(x) * 10\n"
    for number, answer in ((1, 20), (2, 30)):
        project.write(kernels=KERNELS.format(decorators=decorators).replace("x + 1", f"x + {number}") + uses)
        assert project.run(USES_PY_FUNC, backend=decorators == "numba", COMPCACHE_DIR=str(project.cache)) == answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "is_on"),
    [(text, True) for text in ("1", "True", "ON", " yes ")] + [(text, False) for text in ("", "0", "False", "Off", "no")],
)
def test_a_switch_is_on_or_off_whatever_its_spelling(tmp_path: Path, value: str, is_on: bool) -> None:
    project = Project(tmp_path)
    project.register()
    script = """
    from numba.core import entrypoints
    entrypoints.init_all()
    from compcache.numba.lazy import installed_backend
    result = installed_backend() is not None
    """
    assert project.run_in_fork(script, COMPCACHE_NUMBA=value, COMPCACHE_DIR=str(project.cache)) == is_on


@pytest.mark.slow
def test_a_switch_that_is_neither_is_said(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.register()
    script = """
    import warnings
    from numba.core import entrypoints
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entrypoints.init_all()
    result = [str(warning.message) for warning in caught]
    """
    (said,) = project.run_in_fork(script, COMPCACHE_NUMBA="maybe", COMPCACHE_DIR=str(project.cache))
    assert "COMPCACHE_NUMBA: 'maybe' is neither on nor off: use 1 or 0" in said
