"""Numba's decorators without Numba: functions, ufuncs and callbacks with declared signatures."""
