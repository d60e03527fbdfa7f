/* Python.h, and declarations that the limited API of 3.11 lacks.
 *
 * The extension is built once for every CPython from 3.11 on (abi3). Free-threaded builds have no limited API before
 * 3.15. There setup.py does not define the macro, and the extension is for that version alone.
 */
#ifndef COMPCACHE_LIMITED_API_H
#define COMPCACHE_LIMITED_API_H

#ifndef Py_GIL_DISABLED
#ifdef COMPCACHE_LIMITED_API
#define Py_LIMITED_API COMPCACHE_LIMITED_API
#endif
#endif

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h> /* PyMemberDef and the T_ constants: in Python.h itself only since 3.12 */

#if defined(Py_LIMITED_API) && Py_LIMITED_API < 0x030C0000
/* Vectorcall (PEP 590) is in every CPython since 3.8 and its ABI has not changed since, but it was declared for the
 * limited API only in 3.12. These are 3.12's declarations; the function is exported by all versions. */
typedef PyObject *(*vectorcallfunc)(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames);
PyAPI_FUNC(PyObject *) PyVectorcall_Call(PyObject *callable, PyObject *args, PyObject *kwargs);
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)

/* Before 3.12, references to these objects are counted. The first headers of 3.12 and 3.13 do not do so, and an extension that is
 * built with them takes away a reference to None with each result, until 3.11 ends with "deallocating None". */
#undef Py_RETURN_NONE
#undef Py_RETURN_TRUE
#undef Py_RETURN_FALSE
#define Py_RETURN_NONE return Py_NewRef(Py_None)
#define Py_RETURN_TRUE return Py_NewRef(Py_True)
#define Py_RETURN_FALSE return Py_NewRef(Py_False)
#endif

/* Formats with '#' have lengths of type Py_ssize_t. Before 3.13, functions without a suffix refuse such formats. The headers of 3.13 no
 * longer declare the functions with the suffix, which all versions export: an extension that was built with these headers did not find any
 * entry of Numba in 3.11 and 3.12. */
#if defined(Py_LIMITED_API) && Py_LIMITED_API < 0x030D0000 && PY_VERSION_HEX >= 0x030D0000
PyAPI_FUNC(int) _PyArg_ParseTuple_SizeT(PyObject *, const char *, ...);
PyAPI_FUNC(PyObject *) _Py_BuildValue_SizeT(const char *, ...);
PyAPI_FUNC(PyObject *) _PyObject_CallFunction_SizeT(PyObject *, const char *, ...);
PyAPI_FUNC(PyObject *) _PyObject_CallMethod_SizeT(PyObject *, const char *, const char *, ...);
#define PyArg_ParseTuple _PyArg_ParseTuple_SizeT
#define Py_BuildValue _Py_BuildValue_SizeT
#define PyObject_CallFunction _PyObject_CallFunction_SizeT
#define PyObject_CallMethod _PyObject_CallMethod_SizeT
#endif

/* A new reference to an item of a dict, or NULL, perhaps with an exception. A borrowed reference is not safe beside other threads. */
static inline PyObject *item_of(PyObject *dict, PyObject *key) {
#ifdef Py_GIL_DISABLED
    PyObject *item;
    return PyDict_GetItemRef(dict, key, &item) > 0 ? item : NULL;
#else
    return Py_XNewRef(PyDict_GetItemWithError(dict, key));
#endif
}

/* Ends the deallocation of an object of a heap type. */
static inline void release_object(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* Returns the exception that is set, with its traceback, and clears it; NULL if there is none. */
static inline PyObject *take_exception(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

/* Sets an exception that take_exception() has returned. Takes over the reference. */
static inline void restore_exception(PyObject *exception) {
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exception)), exception, PyException_GetTraceback(exception));
}

/* A slot of module definitions that 3.13 introduced. Older interpreters refuse numbers that they do not know, so module.c adds it
 * only if the running interpreter has that version. */
#ifndef Py_mod_gil
#define Py_mod_gil 4
#define Py_MOD_GIL_USED ((void *)0)
#define Py_MOD_GIL_NOT_USED ((void *)1)
#endif

#endif
