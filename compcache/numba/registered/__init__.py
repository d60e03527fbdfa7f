"""What programs register with Numba's compiler: which functions have it, and by what it is told from what it was, without Numba; and
functions that programs give it by address.
"""
