/* C helpers of Numba that need neither Numba nor NumPy, for functions and for exported kernels: what compiled code calls and Python
 * answers (compcache.numba.lazy.c_helpers, compcache.numba.lazy.raising). Each of the two extensions has its own copy.
 */
#ifndef COMPCACHE_NUMBA_CALLS_H
#define COMPCACHE_NUMBA_CALLS_H

#include "../../../hit/native/limited_api.h"

/* The address that a function of c_helpers returns; NULL with an exception. Takes over the arguments. */
void *address_from_python(const char *name, PyObject *arguments);
/* The object that compiled code has pickled at an address. It is part of the code: whoever trusts one trusts the other. */
PyObject *unpickle(const char *data, int size, const char *digest);
/* The exception that (class, arguments, location) describes, or a class or an exception itself; where it cannot be made, what was
 * raised then. Takes over the reference. */
PyObject *exception_of(PyObject *described);
/* (class, arguments, location) of a pickled description whose arguments were computed when it was raised. */
PyObject *describe_exception(PyObject *pickled, PyObject *arguments);
void ensure_gil(PyGILState_STATE *state);
void release_gil(const PyGILState_STATE *state);

#endif
