"""Installing the backend, and its end: what takes part, which directories are refused."""

from __future__ import annotations

import pytest
from numba_helpers import ADD, Project

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")


COUNT = ", backend.hits, backend.misses"

def test_uninstalling_restores_every_function_of_numba(project: Project) -> None:
    script = """
    import compcache.numba
    from numba.core import bytecode, caching, ccallback, compiler, dispatcher
    from numba.core.typing import templates
    from numba.np.ufunc import ufuncbuilder, wrappers
    places = [dispatcher.Dispatcher, ccallback.CFunc, ufuncbuilder.UFuncDispatcher, wrappers._GufuncWrapper, compiler,
              bytecode.FunctionIdentity, templates._OverloadFunctionTemplate, templates._IntrinsicTemplate,
              templates._OverloadAttributeTemplate, templates._OverloadMethodTemplate, caching.Cache]
    def state():
        return [dict(vars(place)) for place in places]
    before = state()
    with compcache.numba.installed("cache"):
        changed = sum(now != then for now, then in zip(state(), before))
    result = changed > 8, state() == before
    """
    assert project.run(script, backend=False) == (True, True)


def test_functions_decorated_before_the_installation_take_part_until_its_end(project: Project) -> None:
    project.write(adding=ADD)
    script = """
    import adding, compcache.numba
    with compcache.numba.installed("cache") as backend:
        total = adding.add(1, 2)
        path = adding.add.stats.cache_path
    result = total, path == backend.cache.path, backend.misses, adding.add.stats.cache_path.endswith("__pycache__")
    """
    assert project.run(script, backend=False) == (3, True, 1, True)


def test_a_block_leaves_a_backend_that_was_installed_before(project: Project) -> None:
    script = """
    import compcache.numba
    from compcache.numba.lazy import installed_backend
    outer = compcache.numba.install("cache")
    with compcache.numba.installed("cache") as inner:
        pass
    kept = inner is outer is installed_backend()
    compcache.numba.uninstall()
    result = kept, installed_backend()
    """
    assert project.run(script, backend=False) == (True, None)


def test_uninstalling_leaves_cache_objects_that_the_program_has_set_meanwhile(project: Project) -> None:
    project.write(adding=ADD, other=ADD)
    script = """
    import adding, other, compcache.numba
    from numba.core.caching import FunctionCache, NullCache
    with compcache.numba.installed("cache"):
        total = adding.add(1, 2) + other.add(3, 4)
        adding.add._cache = own = NullCache()
    result = total, adding.add._cache is own, type(other.add._cache) is FunctionCache
    """
    assert project.run(script, backend=False) == (10, True, True)


def test_functions_decorated_meanwhile_keep_the_directory(project: Project) -> None:
    project.write(adding=ADD)
    script = "import adding\ncompcache.numba.uninstall()\nresult = adding.add(1, 2)" + COUNT
    assert project.run(script, backend=True) == (3, 0, 1)
    assert project.run(script, backend=True) == (3, 1, 0)


#: The overload of `min` is no part of keys, so a compilation must record it.
WITH_OVERLOAD = """
from compcache.numba import njit
from numba import types
from numba.extending import overload

@overload(min)
def of_min(a, b, c):
    if isinstance(c, types.UnicodeType):
        return lambda a, b, c: 10 * a

@njit
def one(x):
    return x + 1

@njit
def other(x):
    return min(x, 1, "text")
"""


@pytest.mark.parametrize("is_first_call_before", [False, True])
def test_compilations_of_lazy_functions_are_recorded_after_uninstall(project: Project, *, is_first_call_before: bool) -> None:
    calls = "kernel.one(1)\nkernel.other(2.5)\n"
    script = "import compcache.numba, kernel\n" + calls * is_first_call_before
    script += f"with compcache.numba.installed({str(project.cache)!r}):\n    pass\n    "
    script += "\n    ".join(calls.splitlines() * (not is_first_call_before)) + "\nresult = kernel.other(3)"
    for factor in (10, 20):
        project.write(kernel=WITH_OVERLOAD.replace("10", str(factor)))
        assert project.run(script, backend=False, COMPCACHE_DIR=str(project.cache)) == 3 * factor


def test_registrations_are_read_once_if_reading_is_interrupted_or_registers_more(project: Project) -> None:
    script = """
    from numba.core import imputils, types
    from numba.core.typing import templates
    from numba.extending import overload
    from compcache.numba.fingerprints.implementations import find_overloads, registry

    def stub(x): ...

    @overload(stub)
    def of_stub(x):
        return lambda x: x

    def generate(context, builder, signature, arguments): ...

    class Registering:
        @property
        def templates(self):
            imputils.builtin_registry.lower(stub, types.int64)(generate)
            return ()

    class Interrupting:
        is_first = True

        @property
        def templates(self):
            if self.is_first:
                self.is_first = False
                raise KeyboardInterrupt
            return ()

    templates.builtin_registry.globals += [(stub, Registering()), (stub, Interrupting())]
    try:
        find_overloads(stub)
    except KeyboardInterrupt:
        found = len(find_overloads(stub))
    result = found, [len(rows) for name, rows in registry.by_name.items() if "generate" in name], len(find_overloads(stub))
    """
    assert project.run(script, backend=False) == (1, [1], 1)


EAGER = """
    from numba import cfunc, njit, vectorize

    @njit("int64(int64)", cache=True)
    def first(x):
        return x + 1

    @njit("int64(int64)")
    def uncached(x):
        return x * 2

    @njit("int64(int64)", cache=True)
    def second(x):
        return uncached(x)

    @vectorize(["int64(int64)"], cache=True)
    def third(x):
        return x + 3
"""


def test_an_environment_variable_installs_the_backend_for_every_function(project: Project) -> None:
    project.register()
    project.write(adding=ADD, eager=EAGER)
    lazy = "import adding\nresult = adding.add(1, 2),"
    eager = "import eager\nresult = eager.first(1), eager.second(1), int(eager.third(1)),"
    count = "\nfrom compcache.numba.lazy import installed_backend\ninstallation = installed_backend()\n"
    count += (
        "result += (installation.hits, installation.misses) if installation else ('not installed',)"
    )
    where = {"COMPCACHE_DIR": str(project.cache)}
    assert project.run(lazy + count, backend=False, COMPCACHE_NUMBA="0", **where) == (3, "not installed")
    for script, values in ((lazy, (3,)), (eager, (2, 2, 4))):
        found = [project.run(script + count, backend=False, COMPCACHE_NUMBA="1", **where) for _ in range(2)]
        assert found == [(*values, 0, len(values)), (*values, len(values), 0)]


def test_a_second_installation_elsewhere_is_an_error(project: Project) -> None:
    script = """
    compcache.numba.install(backend.cache.path)
    try:
        compcache.numba.install("elsewhere")
    except RuntimeError as error:
        result = "uninstall()" in str(error)
    """
    assert project.run(script, backend=True) is True


def test_a_cache_without_permission_for_pickles_is_refused(project: Project) -> None:
    script = """
    import compcache, compcache.numba
    try:
        compcache.numba.install(compcache.Cache("cache"))
    except ValueError as error:
        result = "allow_pickle" in str(error)
    """
    assert project.run(script, backend=False) is True


def test_a_directory_of_somebody_else_is_refused(project: Project) -> None:
    project.cache.mkdir()
    project.cache.chmod(0o777)
    script = f"""
    import compcache, compcache.numba
    try:
        compcache.numba.install({str(project.cache)!r})
    except compcache.UntrustedDirectoryError:
        result = "refused"
    """
    assert project.run(script, backend=False) == "refused"
