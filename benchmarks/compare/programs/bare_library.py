"""The floor: a shared object whose path is known, ctypes, and nothing else."""

import ctypes


def get(path: str, symbol: str):
    """The function."""
    function = getattr(ctypes.CDLL(path), symbol)
    function.restype = ctypes.c_double
    function.argtypes = (ctypes.c_double, ctypes.c_double)
    return function
