/* Functions of other packages, by name, and what else compiled code calls of Numba's C helpers. */
#include "objects.h"

#include <string.h>

/* Say that a function is not there; keeps a more particular exception as its cause. */
static void *missing(const char *module, const char *name, const char *type) {
    PyObject *kind, *value, *traceback;
    PyErr_Fetch(&kind, &value, &traceback);
    PyErr_NormalizeException(&kind, &value, &traceback);
    PyErr_Format(PyExc_ImportError, "a compiled function needs %s of %s with the type '%s', which this process does not have", name,
                 module, type);
    if (value != NULL) {
        PyObject *new_kind, *new_value, *new_traceback;
        PyErr_Fetch(&new_kind, &new_value, &new_traceback);
        PyErr_NormalizeException(&new_kind, &new_value, &new_traceback);
        PyException_SetCause(new_value, Py_NewRef(value));
        PyErr_Restore(new_kind, new_value, new_traceback);
    }
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return NULL;
}

void *resolve_function(const char *described) {
    const char *module = described;
    const char *name = module + strlen(module) + 1;
    const char *type = name + strlen(name) + 1;
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *offered = imported != NULL ? PyObject_GetAttrString(imported, "__pyx_capi__") : NULL;
    PyObject *capsule = offered != NULL ? PyMapping_GetItemString(offered, name) : NULL;
    void *found = capsule != NULL && PyCapsule_IsValid(capsule, type) ? PyCapsule_GetPointer(capsule, type) : NULL;
    Py_XDECREF(imported);
    Py_XDECREF(offered);
    Py_XDECREF(capsule);
    return found != NULL ? found : missing(module, name, type);
}

void ensure_gil(PyGILState_STATE *state) {
    *state = PyGILState_Ensure();
}

void release_gil(const PyGILState_STATE *state) {
    PyGILState_Release(*state);
}

/* What a part in object mode was pickled with. It is part of the code: whoever trusts one trusts the other. */
PyObject *unpickle(const char *data, int size, const char *Py_UNUSED(digest)) {
    PyObject *pickle = PyImport_ImportModule("pickle");
    PyObject *object = pickle != NULL ? PyObject_CallMethod(pickle, "loads", "y#", data, (Py_ssize_t)size) : NULL;
    Py_XDECREF(pickle);
    return object;
}
