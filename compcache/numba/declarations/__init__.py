"""Numba's decorators without Numba: functions, ufuncs and callbacks, with the signatures that they are declared with."""
