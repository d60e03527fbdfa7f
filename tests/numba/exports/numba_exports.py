"""Kernels that tests export, and how their results are compared with Numba's: scripts for `numba_helpers.Project`."""

from __future__ import annotations

__all__ = ["COMPARE", "COMPARED", "EXPORT", "KERNELS_HEAD"]

#: How a module of kernels begins: `@kernel(types...)` tells the signature.
KERNELS_HEAD = """
    import math
    import numpy as np
    from numba import njit, prange, types
    SIGNATURES, OPTIONS = {}, {}

    def kernel(*signature, **options):
        def decorate(function):
            SIGNATURES[function.__name__], OPTIONS[function.__name__] = signature, options
            return njit(**options)(function)
        return decorate

    i8, f8, text = types.int64, types.float64, types.unicode_type
"""
EXPORT = """
    import kernels
    from compcache import Cache
    from compcache.numba import export
    with Cache("cache") as cache:
        result = [export(getattr(kernels, name), signature, cache=cache) for name, signature in kernels.SIGNATURES.items()]
"""
COMPARED = """
    import numpy as np

    def shown(value):
        if isinstance(value, np.ndarray):
            return ("array", str(value.dtype), value.shape, value.strides, value.flags.writeable, value.tolist())
        if isinstance(value, (tuple, list)):
            return (type(value).__name__, [shown(item) for item in value])
        return (type(value).__name__, value)

    def outcome(function, arguments):
        arguments = arguments()
        try:
            made = function(*arguments)
        except Exception as error:
            return type(error).__name__, error.args
        same = [number for number, argument in enumerate(arguments) if argument is made]
        return shown(made), shown(arguments), same
"""
#: For CASES, arguments by kernel: what differs from Numba, and kernels without arguments.
COMPARE = """
    import numba
    import kernels
    from compared import outcome
    from compcache import Cache
    cache = Cache("cache")
    result = sorted(set(kernels.SIGNATURES) - set(CASES))
    for name, cases in CASES.items():
        target = cache.get_target(f"kernels.{name}")
        options = getattr(kernels, "OPTIONS", {}).get(name, {})
        reference = numba.njit(kernels.SIGNATURES[name], **options)(getattr(kernels, name).py_func)
        for number, arguments in enumerate(cases):
            ours, numbas = outcome(target, arguments), outcome(reference, arguments)
            if repr(ours) != repr(numbas):
                result.append(f"{name} {number}: {ours} is not {numbas}")
"""
