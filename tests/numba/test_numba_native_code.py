"""Machine code is generated once: a function that is stored runs the stored image, in the process that compiled it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from numba_helpers import Project

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
pytest.importorskip("numba")


KERNELS = """
    import numpy as np
    from numba import cfunc, njit, types, vectorize

    @njit(cache=True)
    def inner(a):
        if a.size == 0:
            raise ValueError("nothing to add", a.size)
        return np.sort(a).sum()

    @njit(cache=True)
    def outer(a, n):
        return inner(a) * n

    @njit(cache=True)
    def broken(n):
        return "text" + n

    @njit(cache=True)
    def numbers(n):
        for i in range(n):
            yield i

    @njit
    def plain(a):
        return outer(a, 2) + inner(a)

    @njit
    def apply(f, a):
        return f(a)

    @vectorize(["float64(float64)"], cache=True)
    def double(x):
        return x * 2

    @cfunc("float64(float64)", cache=True)
    def triple(x):
        return x * 3
"""
#: What of the functions has machine code by Numba's own engine, by their names.
GENERATED = """
    from numba.core import codegen
    modules = []
    add = codegen.JitEngine.add_module
    def add_module(self, module):
        modules.extend(f.name for f in module.functions if not f.is_declaration)
        return add(self, module)
    codegen.JitEngine.add_module = add_module
    import numpy as np, kernels
    def generated(name):
        return any(f"7kernels{len(name)}{name}B" in symbol and symbol.startswith("_ZN7kernels") for symbol in modules)
"""


def test_a_stored_function_has_no_code_but_its_image(project: Project) -> None:
    project.write(kernels=KERNELS)
    script = f"""
    {GENERATED}
    a = np.array([3.0, 1.0])
    values = kernels.outer(a, 2), kernels.inner(a), kernels.double(a).tolist(), kernels.triple.ctypes(2.0)
    values += kernels.outer(a, 3.5), list(kernels.numbers(3))
    errors = []
    for _ in range(2):
        try:
            kernels.inner(np.zeros(0))
        except ValueError as error:
            errors.append(error.args)
    shown = "define" in kernels.outer.inspect_llvm(kernels.outer.signatures[0])
    result = values, errors, shown, generated("outer"), generated("triple"), backend.misses, backend.refused
    """
    values, errors, shown, outer, triple, misses, refused = project.run(script, backend=True)
    assert values == (8.0, 4.0, [6.0, 2.0], 6.0, 14.0, [0, 1, 2])
    assert errors == [("nothing to add", 0)] * 2
    assert (shown, outer, triple) == (True, False, False)
    assert (misses, refused) == (6, {})
    script = f"""
    {GENERATED}
    kernels.outer(np.array([3.0, 1.0]), 2)
    result = generated("outer"), generated("triple")
    """
    assert project.run(script, backend=False) == (True, True), "plain Numba does, so the test sees it"


def test_code_that_is_asked_for_is_there(project: Project) -> None:
    project.write(kernels=KERNELS)
    script = """
    import ctypes, gc
    import numpy as np, kernels
    a = np.array([3.0, 1.0])
    values = [kernels.plain(a), kernels.apply(kernels.inner, a), kernels.apply(kernels.plain, a)]
    compiled = kernels.outer.get_compile_result(kernels.outer.nopython_signatures[0])
    address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    values.append(bool(address))
    wrapper = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cpython_wrapper_name)
    values.append(bool(wrapper) and not compiled.library.get_pointer_to_function("no such function"))
    for _ in range(3):
        try:
            kernels.broken(1)
        except Exception as error:
            values.append(type(error).__name__)
    result = values
    """
    plain = project.run_in_fork(script)
    assert plain[-1] == "TypingError"
    assert project.run(script, backend=True) == plain
    assert project.run(script, backend=True) == plain


def test_code_outlives_the_installation(project: Project) -> None:
    project.write(kernels=KERNELS)
    script = f"""
    import numba, numpy as np, compcache.numba
    import kernels
    a = np.array([3.0, 1.0])
    @numba.njit
    def helper(x):
        return x.sum() + 1
    with compcache.numba.installed({str(project.cache)!r}):
        values = [kernels.outer(a, 2), helper(a)]  # decorated before, so that nothing keeps the directory
    @numba.njit
    def late(x):
        return kernels.outer(x, 2) + helper(x) + kernels.inner(x)
    values += [late(a), kernels.apply(helper, a), kernels.apply(kernels.inner, a), kernels.plain(a)]
    values.append(numba.core.codegen.JITCodeLibrary._finalize_specific.__module__)
    result = values
    """
    values = project.run(script, backend=False)
    assert values == [8.0, 5.0, 17.0, 5.0, 4.0, 12.0, "numba.core.codegen"]
    assert project.run(script, backend=False) == values


def test_functions_that_are_made_and_dropped_keep_their_environments(project: Project) -> None:
    project.write(
        closures="""
        from numba import njit
        def make(n):
            @njit(cache=True)
            def inner(x):
                if x < 0:
                    raise ValueError("negative by", x, n)
                return x + n
            @njit
            def outer(x):
                return inner(x) * 2
            return outer
        """
    )
    script = """
    import gc
    from closures import make
    values = []
    for n in range(4):
        outer = make(n)
        values.append(outer(1))
        gc.collect()
        try:
            outer(-n - 1)
        except ValueError as error:
            values.append(error.args)
    result = values
    """
    plain = project.run_in_fork(script)
    assert plain[:2] == [2, ("negative by", -1, 0)]
    assert project.run(script, backend=True) == plain
    assert project.run(script, backend=True) == plain
