#include "calls.h"

/* Call a function of `compcache.numba.lazy`. Take over the arguments; NULL if they could not be created. Return NULL with an exception. */
static PyObject *call_python(const char *module, const char *name, PyObject *arguments) {
    PyObject *imported = arguments != NULL ? PyImport_ImportModule(module) : NULL;
    PyObject *function = imported != NULL ? PyObject_GetAttrString(imported, name) : NULL;
    PyObject *result = function != NULL ? PyObject_CallObject(function, arguments) : NULL;
    Py_XDECREF(imported);
    Py_XDECREF(function);
    Py_XDECREF(arguments);
    return result;
}

void *address_from_python(const char *name, PyObject *arguments) {
    PyObject *address = call_python("compcache.numba.lazy.c_helpers", name, arguments);
    void *found = address != NULL ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    return found;
}

PyObject *unpickle(const char *data, int size, const char *Py_UNUSED(digest)) {
    return call_python("compcache.numba.lazy.c_helpers", "unpickle",
                       Py_BuildValue("(Ky#)", (unsigned long long)(uintptr_t)data, data, (Py_ssize_t)size));
}

PyObject *exception_of(PyObject *described) {
    PyObject *exception = call_python("compcache.numba.lazy.raising", "make_exception", Py_BuildValue("(N)", described));
    return exception != NULL ? exception : take_exception();
}

PyObject *describe_exception(PyObject *pickled, PyObject *arguments) {
    return call_python("compcache.numba.lazy.raising", "unpack_exception", Py_BuildValue("(OO)", pickled, arguments));
}

void ensure_gil(PyGILState_STATE *state) {
    *state = PyGILState_Ensure();
}

void release_gil(const PyGILState_STATE *state) {
    PyGILState_Release(*state);
}
