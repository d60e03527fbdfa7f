"""Kernels of packages, exported and compared with Numba's on a thousand inputs each: numba_stats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project, finish

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]
pytest.importorskip("numba")

_SECONDS = 1500
COMPARED = """
    import numpy as np

    def shown(value):
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.shape, value.strides, value.flags.writeable, value.tobytes()
        if isinstance(value, tuple):
            return tuple(map(shown, value))
        return type(value), np.float64(value).tobytes() if isinstance(value, float) else value

    def outcome(function, arguments):
        try:
            return shown(function(*arguments))
        except Exception as error:
            return type(error).__name__, error.args

    def differences(name, ours, theirs, inputs):
        for number, arguments in enumerate(inputs):
            one, other = outcome(ours, arguments), outcome(theirs, arguments)
            if one != other:
                return [f"{name}, input {number}: {one} is not {other}"]
        return []
"""

@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project with the comparison."""
    made = Project(tmp_path)
    made.write(compared=COMPARED)
    return made


STATISTICS = """
    import importlib
    import numpy as np
    from compared import differences, outcome
    from compcache import Cache, CompileError
    from compcache.numba import export
    random = np.random.default_rng(1)
    cache = Cache("cache")
    refused, different, exported = [], [], 0
    for module in MODULES:
        found = vars(importlib.import_module(f"numba_stats.{module}"))
        for kind in ("_logpdf", "_pdf", "_cdf", "_ppf", "_rvs", "_logpmf", "_pmf"):
            function = found.get(kind)
            if function is None:
                continue
            name, signature = f"{module}{kind}", function.nopython_signatures[-1]
            try:
                export(function, signature, cache=cache, name=name)
            except CompileError as error:
                refused.append(str(error))
                continue
            exported += 1
            numbers = len(signature.args) - (2 if kind == "_rvs" else 1)
            def inputs(n):
                values = [float(v) for v in random.random(numbers) * 3 + 0.1]
                if kind == "_rvs":
                    return (*values, 5, n)
                x = random.random(7) * 0.98 + 0.01 if kind == "_ppf" else random.standard_normal(7) * 2
                return (x.astype(str(signature.args[0].dtype)), *values)
            different += differences(name, cache.get_target(name), function, [inputs(n) for n in range(1000)])
    result = exported, refused, different
"""
MODULES = ["norm", "expon", "poisson", "truncnorm", "uniform", "laplace", "t", "voigt"]


def test_kernels_of_numba_stats(project: Project) -> None:
    pytest.importorskip("numba_stats")
    script = STATISTICS.replace("MODULES:", f"{MODULES!r}:")
    exported, refused, different = finish(project.start(script, backend=False), _SECONDS)
    assert (refused, different) == ([], [])
    assert exported >= 25
