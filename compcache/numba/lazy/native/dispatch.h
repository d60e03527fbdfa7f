/* The native half of functions that are compiled by Numba and called without it: what the two files share.
 *
 *   dispatch.c   the extension module, and Function: finds the compiled code for the types of its arguments, and calls it
 *   argument_types.c   the types of arguments as bytes, as fine as Numba tells them apart
 *   file_stamps.c    the state of many files
 *   marshalled.c     whether bytes are what marshal makes of values of a shape
 *   calls.c      the C helpers of Numba that need neither Numba nor NumPy: those that raise exceptions; for the exports as well
 *   helpers.c    their addresses, and environments
 *
 * All state is the process's: the package works in the main interpreter only.
 */
#ifndef COMPCACHE_NUMBA_DISPATCH_H
#define COMPCACHE_NUMBA_DISPATCH_H

#include "../../../hit/native/limited_api.h"

/* The bytes of a signature; what needs more is left to Numba. */
#define MOST_KEY_BYTES 256
#define MOST_ARGUMENTS 64

typedef struct {
    size_t size;
    unsigned char bytes[MOST_KEY_BYTES];
} TypeKey;

/* dispatch.c: the class of the functions; NULL until it is made. */
extern PyTypeObject *function_type;

/* argument_types.c */
/* Append the type of an argument; NULL is an omitted one. 0 where there are no bytes for it; never an exception. */
int append_type(TypeKey *key, PyObject *value);
/* set_array_types(ndarray: type, scalars: {type: code}): what NumPy's objects are, once it is imported. */
PyObject *set_array_types(PyObject *module, PyObject *args);
PyObject *type_of(PyObject *module, PyObject *value);

/* file_stamps.c */
/* file_stamps(paths: bytes) -> (bytes, the newest time in nanoseconds): the states of files, whose paths each end with a NUL, 40 bytes
 * for each; None where that of one cannot be told. */
PyObject *file_stamps(PyObject *module, PyObject *paths);

/* marshalled.c */
/* is_marshalled(data: bytes, shape: str) -> bool */
PyObject *is_marshalled(PyObject *module, PyObject *args);

/* helpers.c */
/* helper_addresses() -> {name: address} */
PyObject *helper_addresses(PyObject *module, PyObject *nothing);
/* store_object(address: int, object) */
PyObject *store_object(PyObject *module, PyObject *args);
/* make_environment(constants: list) -> object, as compiled code expects environments. */
PyObject *make_environment(PyObject *module, PyObject *constants);
extern PyType_Spec environment_spec;
extern PyTypeObject *environment_type;

#endif
