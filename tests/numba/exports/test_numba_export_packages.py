"""Kernels of packages, exported and compared with Numba's on a thousand inputs each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba_helpers import Project, finish

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]
pytest.importorskip("numba")

COMPARED = """
    import numpy as np

    def shown(value):
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.shape, value.strides, value.flags.writeable, value.tobytes()
        if isinstance(value, tuple):
            return tuple(map(shown, value))
        return type(value), np.float64(value).tobytes() if isinstance(value, float) else value

    def outcome(function, given):
        arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in given]
        try:
            return shown(function(*arguments)), shown(tuple(arguments))
        except Exception as error:
            return type(error).__name__, error.args

    def differences(name, ours, theirs, inputs):
        for number, arguments in enumerate(inputs):
            one, other = outcome(ours, arguments), outcome(theirs, arguments)
            if one != other:
                return [f"{name}, input {number}: {one} is not {other}"]
        return []

    def far_apart(name, ours, theirs, inputs):
        # fastmath allows the compiler to add up in any order, and code that is linked with more is optimized with it
        for number, arguments in enumerate(inputs):
            one, other = ours(*arguments), theirs(*arguments)
            pairs = zip(np.atleast_1d(one), np.atleast_1d(other))
            same = all(type(a) is type(b) and np.allclose(a, b, 1e-5, equal_nan=True) for a, b in pairs)
            if not same or type(one) is not type(other):
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
    exported, refused, different = finish(project.start(script, backend=False))
    assert (refused, different) == ([], [])
    assert exported >= 25


COMPARE_FUNCTIONS = """
    import importlib
    import warnings
    import numba
    import numpy as np
    from compared import differences, far_apart
    from compcache import Cache, CompileError
    from compcache.numba import export
    warnings.simplefilter("ignore")
    random = np.random.default_rng(1)
    cache = Cache("cache")
    refused, different, exported = [], [], 0
    for where, signature, inputs in CASES:
        module, _, attribute = where.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        function = getattr(function, "func", function)
        try:
            export(function, signature, cache=cache, name=where)
        except CompileError as error:
            refused.append(str(error))
            continue
        exported += 1
        options = {k: v for k, v in getattr(function, "targetoptions", {}).items() if k != "nopython"}
        plain = getattr(function, "py_func", function)
        types = numba.core.sigutils.normalize_signature(signature)[0]
        declared = [signature] if plain.__code__.co_argcount == len(types) else []
        reference = numba.njit(*declared, locals=getattr(function, "locals", {}), **options)(plain)
        make = eval("lambda r, n: " + inputs, {"np": np})
        compare = far_apart if options.get("fastmath") else differences
        different += compare(where, cache.get_target(where), reference, [make(random, n) for n in range(1000)])
    result = exported, refused, different
"""
_VECTORS = "(r.random(16).astype('f'), r.random(16).astype('f'))"
_SPARSE = (
    "(np.sort(r.choice(30, 9, False)).astype('i4'), r.random(9).astype('f'), np.sort(r.choice(30, 7, False)).astype('i4'), "
    "r.random(7).astype('f'))"
)
_SPARSE_TYPES = "(i4[::1], f4[::1], i4[::1], f4[::1])"
_HOLES = "np.where(r.random(12) < 0.3, np.nan, r.random(12))"
#: Module and function, signature, and an expression that makes inputs of `r`, a generator, and `n`.
PACKAGES: dict[str, list[tuple[str, str, str]]] = {
    "librosa": [
        ("librosa.util.utils:__count_unique", "(f8[::1],)", "(r.integers(0, 5, 9).astype(float),)"),
        ("librosa.util.utils:__is_unique", "(f8[::1],)", "(r.integers(0, 15, 4).astype(float),)"),
        ("librosa.util.matching:__jaccard", "(f8[::1], f8[::1])", "(np.sort(r.random(2)), np.sort(r.random(2)))"),
        ("librosa.core.notation:__o_fold", "(f8,)", "(r.random() * 9 + 0.1,)"),
        ("librosa.core.notation:__bo_fold", "(f8,)", "(r.random() * 9 + 0.1,)"),
        ("librosa.core.constantq:__num_two_factors", "(i8,)", "(n,)"),
        ("librosa.filters:__window_ss_fill", "(f8[::1], f8[::1], i8, i8)", "(np.zeros(40), r.random(16), 5, n % 7 + 1)"),
        ("librosa.core.spectrum:__overlap_add", "(f8[:, ::1], f8[:, :, ::1], i8)", "(np.zeros((2, 30)), r.random((2, 8, 4)), n % 5 + 1)"),
        ("librosa.sequence:_viterbi", "(f8[:, ::1], f8[:, ::1], f8[::1])",
         "(np.log(r.random((6, 3))), np.log(r.random((3, 3))), np.log(r.random(3)))"),
    ],
    "quantecon": [
        ("quantecon._gridtools:num_compositions_jit", "(i8, i8)", "(n % 20, n // 20)"),
        ("quantecon._gridtools:simplex_grid", "(i8, i8)", "(n % 4 + 1, n % 7)"),
        ("quantecon._inequality:lorenz_curve", "(f8[::1],)", "(r.random(n % 30 + 1),)"),
        ("quantecon._inequality:gini_coefficient", "(f8[::1],)", "(r.random(n % 30 + 1),)"),
        ("quantecon.util.array:searchsorted", "(f8[::1], f8)", "(np.sort(r.random(9)), r.random())"),
        ("quantecon.util.combinatorics:next_k_array", "(i8[::1],)", "(np.sort(r.choice(20, 4, False)),)"),
        ("quantecon.util.combinatorics:k_array_rank_jit", "(i8[::1],)", "(np.sort(r.choice(20, 4, False)),)"),
        ("quantecon.util.numba:comb_jit", "(i8, i8)", "(n % 40, n // 40)"),
        ("quantecon.quad:_qnwsimp1", "(i8, f8, f8)", "(n % 9 * 2 + 3, r.random(), r.random() + 1)"),
        ("quantecon.quad:_qnwlege1", "(i8, f8, f8)", "(n % 12 + 1, r.random(), r.random() + 1)"),
        ("quantecon.quad:_qnwnorm1", "(i8,)", "(n % 12 + 1,)"),
        ("quantecon.quad:_qnwbeta1", "(i8, f8, f8)", "(n % 8 + 1, r.random() + 1, r.random() + 1)"),
        ("quantecon.markov.approximation:std_norm_cdf", "(f8,)", "(r.standard_normal(),)"),
        ("quantecon.markov.gth_solve:_gth_solve_jit", "(f8[:, ::1], f8[::1])", "(r.random((4, 4)), np.zeros(4))"),
        ("quantecon._lss:simulate_linear_model", "(f8[:, ::1], f8[::1], f8[:, ::1], i8)",
         "(r.random((3, 3)), r.random(3), r.random((3, 5)), 6)"),
    ],
    "umap": [
        ("umap.layouts:clip", "(f4,)", "(r.standard_normal() * 5,)"), ("umap.layouts:rdist", "(f4[::1], f4[::1])", _VECTORS),
        ("umap.utils:fast_knn_indices", "(f4[:, ::1], i8)", "(r.random((9, 9)).astype('f'), n % 8 + 1)"),
        ("umap.utils:submatrix", "(f4[:, ::1], i4[:, ::1], i8)",
         "(r.random((5, 6)).astype('f'), r.integers(0, 6, (5, 3)).astype('i4'), 3)"),
        ("umap.utils:tau_rand_int", "(i8[::1],)", "(r.integers(100, 1 << 31, 3),)"),
        ("umap.utils:tau_rand", "(i8[::1],)", "(r.integers(100, 1 << 31, 3),)"),
        ("umap.utils:norm", "(f4[::1],)", "(r.random(9).astype('f'),)"),
        ("umap.umap_:smooth_knn_dist", "(f4[:, ::1], f8)", "(np.sort(r.random((6, 5)).astype('f')), 5.0)"),
        ("umap.umap_:compute_membership_strengths", "(i4[:, ::1], f4[:, ::1], f4[::1], f4[::1])",
         "(r.integers(0, 6, (6, 4)).astype('i4'), r.random((6, 4)).astype('f'), r.random(6).astype('f'), r.random(6).astype('f'))"),
        ("umap.sparse:sparse_euclidean", _SPARSE_TYPES, _SPARSE), ("umap.sparse:sparse_cosine", _SPARSE_TYPES, _SPARSE),
        ("umap.sparse:sparse_jaccard", _SPARSE_TYPES, _SPARSE), ("umap.sparse:sparse_sum", _SPARSE_TYPES, _SPARSE),
        ("umap.sparse:sparse_hellinger", _SPARSE_TYPES, _SPARSE), ("umap.sparse:sparse_ll_dirichlet", _SPARSE_TYPES, _SPARSE),
    ],
    "numbagg": [
        *[(f"numbagg.funcs:{name}", "(f8[::1], f8[::1])", f"({_HOLES}, np.zeros(1))") for name in (
            "allnan", "anynan", "nancount", "nansum", "nanmean"
        )],
        *[(f"numbagg.funcs:{name}", "(f8[::1], i8, f8[::1])", f"({_HOLES}, n % 2, np.zeros(1))") for name in ("nanvar", "nanstd")],
        *[(f"numbagg.funcs:{name}", "(f8[::1],)", f"({_HOLES},)") for name in ("nanargmax", "nanargmin", "nanmax", "nanmin")],
        *[(f"numbagg.funcs:{name}", "(f8[::1], i8, f8[::1])", f"({_HOLES}, n % 4, np.zeros(12))") for name in ("bfill", "ffill")],
        *[(f"numbagg.moving:{name}", "(f8[:], i8, i8, f8[:])", f"({_HOLES}, n % 5 + 1, n % 3, np.zeros(12))")
          for name in ("move_mean", "move_sum", "move_std", "move_var")],
    ],
}  # fmt: skip


DISTANCES = """
    import pynndescent.distances
    # Those whose default matrices and weights are for two elements, and one of two coordinates.
    two = ("mahalanobis", "kantorovich", "sinkhorn", "standardised_euclidean", "weighted_minkowski", "haversine")
    CASES = []
    for function in {id(f): f for f in pynndescent.distances.named_distances.values()}.values():
        name = function.__name__
        type_, made = ("u1", "r.integers(0, 256, 16).astype('u1')") if name.startswith("bit_") else ("f4", "r.random(16).astype('f')")
        made = made.replace("16", "2") if name in two else made
        CASES.append((f"pynndescent.distances:{name}", f"({type_}[::1], {type_}[::1])", f"({made}, {made})"))
    for name, function in vars(pynndescent.distances).items():
        if not hasattr(function, "py_func"):
            continue
        if name.startswith(("alternative_", "proxy_")):
            made = "r.random(2).astype('f')" if name in ("proxy_kantorovich", "proxy_sinkhorn") else "r.random(16).astype('f')"
            CASES.append((f"pynndescent.distances:{name}", "(f4[::1], f4[::1])", f"({made}, {made})"))
        elif name.startswith("quantized_int8_"):
            made, norms = "r.integers(-127, 128, 16).astype('i1')", name.endswith("_norms")
            types, values = f"(i1[::1], i1[::1]{', f4, f4' * norms})", f"({made}, {made}{', 0.5, 0.25' * norms})"
            CASES.append((f"pynndescent.distances:{name}", types, values))
        elif name.startswith("quantized_"):
            made, size = "r.integers(0, 256, 16).astype('u1')", 16 if "uint4" in name else 256
            values = f"({made}, {made}, r.random({size}).astype('f'))"
            CASES.append((f"pynndescent.distances:{name}", "(u1[::1], u1[::1], f4[::1])", values))
    given = "(r.random(9).astype('f'), r.random(9).astype('f'), r.random((9, 9)).astype('f4'))"
    CASES.append(("pynndescent.distances:mahalanobis", "(f4[::1], f4[::1], f4[:, ::1])", given))
    CASES.append(("pynndescent.distances:kantorovich", "(f4[::1], f4[::1], f8[:, ::1])", given.replace("f4", "f8")))
"""


def test_distances_of_pynndescent(project: Project) -> None:
    """All functions behind its named distances, what they stand in for, and those that take a matrix with one."""
    pytest.importorskip("pynndescent")
    exported, refused, different = finish(project.start(DISTANCES + COMPARE_FUNCTIONS, backend=False))
    assert (refused, different) == ([], [])
    assert exported >= 38 + 24 + 2


UMAP_DISTANCES = """
    import inspect
    import umap.distances
    import umap.sparse
    CASES = []
    for module in (umap.distances, umap.sparse):
        for name, function in vars(module).items():
            if not hasattr(function, "py_func") or function.py_func.__module__ != module.__name__:
                continue
            needed = tuple(n for n, p in inspect.signature(function.py_func).parameters.items() if p.default is p.empty)
            if needed == ("x", "y") and name not in TWO and "grad" not in name:
                CASES.append((f"umap.distances:{name}", "(f4[::1], f4[::1])", "(r.random(16).astype('f'), r.random(16).astype('f'))"))
            elif needed[:4] == ("ind1", "data1", "ind2", "data2") and needed[4:] in ((), ("n_features",)):
                more = needed[4:] != ()
                types, values = (SPARSE_TYPES[:-1] + ", i8)", SPARSE[:-1] + ", 30)") if more else (SPARSE_TYPES, SPARSE)
                CASES.append((f"umap.sparse:{name}", types, values))
"""
#: Not for two vectors of any length: defaults that are matrices for two elements, two coordinates, categories, text, numbers.
_TWO = (
    "mahalanobis", "mahalanobis_f64", "standardised_euclidean", "weighted_minkowski", "haversine", "sinkhorn_distance", "log_beta",
    "hierarchical_categorical_distance", "ordinal_distance", "count_distance", "levenshtein_myers_ascii",
)  # fmt: skip


def test_distances_of_umap(project: Project) -> None:
    """Distances of vectors and of sparse vectors; those with gradients are these and a vector."""
    pytest.importorskip("umap")
    cases = UMAP_DISTANCES.replace("SPARSE_TYPES", repr(_SPARSE_TYPES)).replace("SPARSE", repr(_SPARSE)).replace("TWO", repr(_TWO))
    exported, refused, different = finish(project.start(cases + COMPARE_FUNCTIONS, backend=False))
    assert (refused, different) == ([], [])
    assert exported >= 40


@pytest.mark.parametrize("package", PACKAGES)
def test_kernels_of_packages(project: Project, package: str) -> None:
    """Results, what became of arguments, dtypes, strides and exceptions; with threads where a kernel has them."""
    pytest.importorskip(package)
    script = COMPARE_FUNCTIONS.replace("CASES:", f"{PACKAGES[package]!r}:")
    exported, refused, different = finish(project.start(script, backend=False))
    assert (refused, different) == ([], [])
    assert exported == len(PACKAGES[package])
