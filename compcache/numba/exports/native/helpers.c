/* Finds functions of other packages by name, and implements C helpers of Numba. */
#include "objects.h"

#include <string.h>

/* Raise ImportError for a missing function, with the present exception as its cause. Return NULL. */
static void *raise_missing(const char *module, const char *name, const char *type) {
    PyObject *cause = take_exception();
    PyErr_Format(PyExc_ImportError, "a compiled function calls %s of the module %s with the type '%s', which this process does not have",
                 name, module, type);
    if (cause != NULL) {
        PyObject *error = take_exception();
        PyException_SetCause(error, cause); /* takes the reference */
        restore_exception(error);
    }
    return NULL;
}

void *resolve_function(const char *described) {
    const char *module = described;
    const char *name = module + strlen(module) + 1;
    const char *type = name + strlen(name) + 1;
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *exported = imported != NULL ? PyObject_GetAttrString(imported, "__pyx_capi__") : NULL;
    PyObject *capsule = exported != NULL ? PyMapping_GetItemString(exported, name) : NULL;
    void *found = capsule != NULL && PyCapsule_IsValid(capsule, type) ? PyCapsule_GetPointer(capsule, type) : NULL;
    Py_XDECREF(imported);
    Py_XDECREF(exported);
    Py_XDECREF(capsule);
    return found != NULL ? found : raise_missing(module, name, type);
}

void *resolve_helper(const char *described) {
    return address_from_python("library_function", Py_BuildValue("(ss)", described, described + strlen(described) + 1));
}

/* Raise an exception in a part of a kernel that handles exceptions itself, for example a parallel loop. Take over the reference. */
int raise_described(PyObject *described) {
    PyObject *exception = exception_of(described);
    if (!keep_exception(exception)) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return 0;
}

/* End the process. Compiled code calls this after an invalid call of BLAS or LAPACK. */
int fail(void) {
    PyGILState_Ensure();
    Py_FatalError("compcache: a compiled function called BLAS or LAPACK with invalid arguments, or memory is exhausted");
}

/* ------------------------------------------------------------------------------------------------------- reshaping */

enum { MOST_AXES = 64 };

static Py_ssize_t product(Py_ssize_t count, const Py_ssize_t *factors) {
    Py_ssize_t result = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        result *= factors[i];
    }
    return result;
}

/* Compute the strides of an array in another shape, in C order. Return 0 if only a copy can have this shape. Axes are handled in the
 * smallest groups that have the same size in both shapes. In a group of the old shape, each axis must continue the next axis. */
int reshape_without_copy(Py_ssize_t ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, Py_ssize_t new_ndim,
                         const Py_ssize_t *new_shape, Py_ssize_t *new_strides, Py_ssize_t itemsize, int Py_UNUSED(is_fortran)) {
    Py_ssize_t sizes[MOST_AXES], steps[MOST_AXES], count = 0;
    const Py_ssize_t total = product(ndim, shape);
    if (total != product(new_ndim, new_shape) || ndim > MOST_AXES) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < ndim; i++) { /* strides of axes of length 1 do not matter */
        if (shape[i] != 1) {
            sizes[count] = shape[i];
            steps[count++] = strides[i];
        }
    }
    Py_ssize_t to = 0;
    for (Py_ssize_t from = 0; total != 0 && from < count && to < new_ndim;) {
        Py_ssize_t end = from + 1, new_end = to + 1, size = sizes[from], new_size = new_shape[to];
        while (size != new_size) {
            if (new_size < size) {
                new_size *= new_shape[new_end++];
            }
            else {
                size *= sizes[end++];
            }
        }
        for (Py_ssize_t i = from; i + 1 < end; i++) {
            if (steps[i] != sizes[i + 1] * steps[i + 1]) {
                return 0;
            }
        }
        Py_ssize_t step = steps[end - 1];
        for (Py_ssize_t i = new_end - 1; i >= to; i--) {
            new_strides[i] = step;
            step *= new_shape[i];
        }
        from = end;
        to = new_end;
    }
    const Py_ssize_t last = to > 0 ? new_strides[to - 1] : itemsize;
    for (; to < new_ndim; to++) { /* axes of length 1, or an array without elements */
        new_strides[to] = last;
    }
    return 1;
}
