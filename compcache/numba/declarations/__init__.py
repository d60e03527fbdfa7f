"""Numba's decorators without Numba: functions, ufuncs, callbacks and stencils, and stand-ins for Numba's modules and types."""
