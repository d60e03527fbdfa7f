"""Knows what programs register with Numba's compiler.

Finds the registrations for functions, and identifies them without Numba. Also identifies functions and arrays that programs pass by
address.
"""
