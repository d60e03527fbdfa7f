/* C helpers of Numba that need neither Numba nor NumPy, for lazy functions and for exported kernels. Compiled code calls them, and
 * functions of compcache.numba.lazy.c_helpers and compcache.numba.lazy.raising implement them. Each of the two extensions has its own copy.
 */
#ifndef COMPCACHE_NUMBA_CALLS_H
#define COMPCACHE_NUMBA_CALLS_H

#include "../../../hit/native/limited_api.h"

/* Return the address that a function of c_helpers returns; NULL with an exception. Take over the arguments. */
void *address_from_python(const char *name, PyObject *arguments);
/* Return the object whose pickle compiled code contains at an address. The pickle is as trusted as the code. NULL with an exception. */
PyObject *unpickle(const char *data, int size, const char *digest);
/* Return the exception that (class, arguments, location), a class or an exception describes. If it cannot be created, return the exception
 * that was raised instead. Take over the reference. */
PyObject *exception_of(PyObject *described);
/* Return (class, arguments, location) of a pickled description whose arguments were computed when the exception was raised. */
PyObject *describe_exception(PyObject *pickled, PyObject *arguments);
void ensure_gil(PyGILState_STATE *state);
void release_gil(const PyGILState_STATE *state);

#endif
