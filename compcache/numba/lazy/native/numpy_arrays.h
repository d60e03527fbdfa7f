/* The layout of NumPy's arrays, which is part of NumPy's C ABI (numpy/ndarraytypes.h, the same in versions 1 and 2). Neither half of the
 * Numba support is compiled against NumPy. `compcache.numba.lazy.argument_types` compares the layout with what Python reads.
 */
#ifndef COMPCACHE_NUMBA_NUMPY_ARRAYS_H
#define COMPCACHE_NUMBA_NUMPY_ARRAYS_H

#include "../../../hit/native/limited_api.h"

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

enum { NP_C_CONTIGUOUS = 1, NP_F_CONTIGUOUS = 2, NP_ALIGNED = 0x100, NP_WRITEABLE = 0x400 };

#endif
