/* Arrays of NumPy by the layout that is part of its C ABI (numpy/ndarraytypes.h, the same in versions 1 and 2): nothing here is
 * compiled against NumPy. Each extension compares the layout with one array before it trusts the layout: the runtime in arguments.c, the
 * Numba support in `compcache.numba.lazy.argument_types`.
 */
#ifndef COMPCACHE_NUMPY_ARRAYS_H
#define COMPCACHE_NUMPY_ARRAYS_H

#include "limited_api.h"

typedef struct {
    PyObject_HEAD
    char *data;
    int ndim;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *descriptor;
    int flags;
} Array;

enum { NP_C_CONTIGUOUS = 1, NP_F_CONTIGUOUS = 2, NP_ALIGNED = 0x100, NP_WRITEABLE = 0x400, NP_WARN_ON_WRITE = 1 << 31 };

#endif
