"""What programs register with Numba's compiler. Finds the functions that have registrations, and what identifies these, without Numba. Also
handles functions and arrays that programs pass by address.
"""
