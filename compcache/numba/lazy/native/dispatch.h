/* The native half of functions that Numba compiles and that are called without Numba: declarations that its files share.
 *
 *   dispatch.c   the extension module, and Function, which finds and calls the compiled code for the types of its arguments
 *   argument_types.c   the types of arguments as bytes; they distinguish at least as many types as Numba
 *   file_stamps.c    the states of many files
 *   marshalled.c     checks whether bytes encode values of a given shape for marshal
 *   calls.c      C helpers of Numba that need neither Numba nor NumPy, and raise exceptions; also for exports
 *   helpers.c    the addresses of these helpers, and environments
 *
 * All state belongs to the process, because the package works only in the main interpreter.
 */
#ifndef COMPCACHE_NUMBA_DISPATCH_H
#define COMPCACHE_NUMBA_DISPATCH_H

#include "../../../hit/native/limited_api.h"

/* The limit for the bytes of a signature. A longer signature is left to Numba. */
#define MOST_KEY_BYTES 256
#define MOST_ARGUMENTS 255

typedef struct {
    size_t size;
    unsigned char bytes[MOST_KEY_BYTES];
} TypeKey;

/* dispatch.c: the class of the functions; NULL until it is created. */
extern PyTypeObject *function_type;

/* argument_types.c */
/* Append the type of an argument; NULL is an omitted argument. Return 0, without an exception, if no bytes represent the type. */
int append_type(TypeKey *key, PyObject *value);
/* set_array_types(ndarray: type, scalars: {type: code}): registers NumPy's types once NumPy is imported. */
PyObject *set_array_types(PyObject *module, PyObject *args);
PyObject *type_of(PyObject *module, PyObject *value);

/* file_stamps.c */
/* file_stamps(paths: bytes) -> (bytes, int) or None: the states of files, 40 bytes each, and the newest time in nanoseconds. Each path
 * ends with a NUL. None is returned if a file cannot be examined. */
PyObject *file_stamps(PyObject *module, PyObject *paths);

/* marshalled.c */
/* is_marshalled(data: bytes, shape: str) -> bool */
PyObject *is_marshalled(PyObject *module, PyObject *args);

/* helpers.c */
/* helper_addresses() -> {name: address} */
PyObject *helper_addresses(PyObject *module, PyObject *nothing);
/* store_object(address: int, object): stores a reference to an object, which the caller keeps alive, at an address. */
PyObject *store_object(PyObject *module, PyObject *args);
/* make_environment(constants: list) -> object with the layout of Numba's environments. */
PyObject *make_environment(PyObject *module, PyObject *constants);
extern PyType_Spec environment_spec;
extern PyTypeObject *environment_type;

#endif
