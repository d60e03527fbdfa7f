"""Numba's code and CPUs: hosts share what each of them can run, and code is stored for those that are named."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from helpers import PACKAGE_ROOT
from numba_helpers import Project

from compcache.formats.host import platform_name

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(300),
    pytest.mark.skipif(platform_name() != "x86_64-linux-elf", reason="names CPUs of x86-64"),
]
pytest.importorskip("numba")
binding = pytest.importorskip("llvmlite.binding")

TOTAL = """
    import numpy as np
    from numba import njit

    @njit(cache=True, fastmath=True)
    def total(values):
        result = 0.0
        for value in values:
            result += value * 2.0
        return result

    @njit(cache=True)
    def collect(n):
        for i in range(n):
            yield i
"""
CALL = """
    import numpy as np, totals
    host = {host!r}
    if host:
        import sys
        sys.path.insert(0, {tests!r})
        from hosts import host_like, on_host
        on_host(backend.cache, host_like(host))
    values = np.arange(100.0)
    value = totals.total(values), [*totals.collect(3)]
    result = value, backend.hits, backend.misses, sorted(
        r.cpu for name in backend.cache if name.startswith("totals.total") for r in backend.cache.realizations(name)
    )
"""
VALUE = (9900.0, [0, 1, 2])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A module with kernels, and an empty cache."""
    made = Project(tmp_path)
    made.write(totals=TOTAL)
    return made


def call(project: Project, host: str = "", **environment: Any) -> Any:
    return project.run(CALL.format(host=host, tests=str(PACKAGE_ROOT / "tests")), backend=True, **environment)


def test_code_for_a_baseline_is_a_hit_without_the_setting(project: Project) -> None:
    assert call(project, NUMBA_CPU_NAME="x86-64", NUMBA_CPU_FEATURES="") == (VALUE, 0, 2, ["x86-64"])
    assert call(project) == (VALUE, 2, 0, ["x86-64"])


def test_who_names_a_cpu_gets_code_for_it_alone(project: Project) -> None:
    first = call(project)
    native = first[3]
    assert first == (VALUE, 0, 2, native)
    named: dict[str, Any] = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": ""}
    assert call(project, **named) == (VALUE, 0, 2, sorted([*native, "nehalem"]))
    assert call(project, **named) == (VALUE, 2, 0, sorted([*native, "nehalem"]))
    assert call(project) == (VALUE, 2, 0, sorted([*native, "nehalem"]))


@pytest.mark.parametrize("disable", ["NUMBA_ENABLE_AVX", "numba.config.ENABLE_AVX"])
def test_who_disables_avx_gets_code_without_it(project: Project, disable: str) -> None:
    if not any(name.startswith("avx") and has for name, has in binding.get_host_cpu_features().items()):
        pytest.skip("this host has no AVX")
    call(project)
    by_program = disable.startswith("numba")
    variables: dict[str, Any] = {} if by_program else {disable: "0"}
    script = f"import numba\n{disable} = 0\n" * by_program + textwrap.dedent(CALL).format(host="", tests="")
    assert project.run(script, backend=True, **variables)[:3] == (VALUE, 0, 2)
    assert project.run(script, backend=True, **variables)[:3] == (VALUE, 2, 0)
    assert call(project)[:3] == (VALUE, 2, 0)


@pytest.mark.quick_answer
def test_code_that_a_host_lacks_features_for_is_made_again_for_it(project: Project) -> None:
    """The loop is translated again from its kept code; the generator uses nothing that the host lacks."""
    call(project)
    value, hits, misses, cpus = call(project, "nehalem")
    assert (value, hits, misses) == (VALUE, 2, 0)
    assert "nehalem" in cpus


@pytest.mark.quick_answer
def test_targets_of_the_environment_are_stored(project: Project) -> None:
    value, hits, misses, cpus = call(project, COMPCACHE_TARGETS="x86-64,x86-64-v2,native")
    assert (value, hits, misses) == (VALUE, 0, 2)
    assert {"x86-64", "x86-64-v2"} < set(cpus)
    assert len(cpus) == 3


@pytest.mark.quick_answer
def test_exports_are_for_each_target_and_as_wide_as_it(project: Project) -> None:
    script = """
    import compcache, compcache.numba, totals
    from compcache.build.kept_code import read_code
    cache = compcache.Cache("exports")
    for _ in range(2):
        name = compcache.numba.export(totals.total, "float64(float64[::1])", cache=cache, targets=["x86-64", "x86-64-v3"])
    found = {r.cpu: read_code(cache._store, r.module_id).assembly(2) for r in cache.realizations(name)}
    result = {cpu: "ymm" in text for cpu, text in found.items()}
    """
    assert project.run(script, backend=False) == {"x86-64": False, "x86-64-v3": True}
