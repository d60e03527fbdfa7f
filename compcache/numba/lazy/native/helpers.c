/* What compiled code calls of Numba's C helpers without needing NumPy: what raises exceptions. Numba's own versions of these
 * import Numba. The descriptions of exceptions are pickled; Python unpickles them (compcache.numba.lazy.raising).
 */
#include "dispatch.h"

static PyObject *unpickle;
static PyObject *make_exception;
static PyObject *unpack_exception;
static PyObject *find_helper;

PyObject *set_helpers(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *first, *second, *third, *fourth;
    if (!PyArg_ParseTuple(args, "OOOO:set_helpers", &first, &second, &third, &fourth)) {
        return NULL;
    }
    unpickle = Py_NewRef(first); /* once per process */
    make_exception = Py_NewRef(second);
    unpack_exception = Py_NewRef(third);
    find_helper = Py_NewRef(fourth);
    Py_RETURN_NONE;
}

/* The object that compiled code has pickled at an address; a new reference. */
static PyObject *helper_unpickle(const char *data, int size, const char *Py_UNUSED(digest)) {
    return PyObject_CallFunction(unpickle, "Ky#", (unsigned long long)(uintptr_t)data, data, (Py_ssize_t)size);
}

/* Raise what (class, arguments, location) describes, or a class or an exception itself, or what is being handled. Takes
 * over the reference. */
static int helper_raise(PyObject *described) {
    PyObject *value = PyObject_CallFunctionObjArgs(make_exception, described, NULL);
    Py_DECREF(described);
    if (value == NULL) {
        return 0;
    }
    PyObject *traceback = PyException_GetTraceback(value);
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(value)), value, traceback);
    return 1;
}

/* (class, arguments, location) of a description whose arguments were computed when it was raised. */
static PyObject *helper_build(PyObject *described, PyObject *arguments) {
    return PyObject_CallFunctionObjArgs(unpack_exception, described, arguments, NULL);
}

/* The two of Numba's memory runtime that code calls where it raises, found when they are first called: finding them
 * imports NumPy. */
static void *helper_named(const char *name) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *address = PyObject_CallFunction(find_helper, "s", name);
    void *found = address != NULL ? PyLong_AsVoidPtr(address) : NULL;
    if (found == NULL) {
        Py_FatalError("compcache: Numba's memory runtime does not load");
    }
    Py_DECREF(address);
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(state);
    return found;
}

static void helper_free(void *memory) {
    static void (*found)(void *);
    if (found == NULL) {
        found = (void (*)(void *))helper_named("NRT_Free");
    }
    found(memory);
}

static void *helper_allocate(size_t size) {
    static void *(*found)(size_t);
    if (found == NULL) {
        found = (void *(*)(size_t))helper_named("NRT_Allocate");
    }
    return found(size);
}

static void helper_ensure_gil(PyGILState_STATE *state) {
    *state = PyGILState_Ensure();
}

static void helper_release_gil(const PyGILState_STATE *state) {
    PyGILState_Release(*state);
}

PyObject *helper_addresses(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K}",
                         "numba_gil_ensure", (unsigned long long)(uintptr_t)helper_ensure_gil,
                         "numba_gil_release", (unsigned long long)(uintptr_t)helper_release_gil, "NRT_Free", (unsigned long long)(uintptr_t)helper_free,
                         "NRT_Allocate", (unsigned long long)(uintptr_t)helper_allocate,
                         "numba_unpickle", (unsigned long long)(uintptr_t)helper_unpickle,
                         "numba_do_raise", (unsigned long long)(uintptr_t)helper_raise,
                         "numba_runtime_build_excinfo_struct", (unsigned long long)(uintptr_t)helper_build);
}

/* ------------------------------------------------------------------------------------------------ environments */

/* store_object(address: int, object): put an object, which the caller keeps alive, where compiled code looks for it. */
PyObject *store_object(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long address;
    PyObject *object;
    if (!PyArg_ParseTuple(args, "KO:store_object", &address, &object)) {
        return NULL;
    }
    __atomic_store_n((PyObject **)(uintptr_t)address, object, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* As Numba's numba/_dynfunc.c has it: compiled code reads the two by their offsets. */
typedef struct {
    PyObject_HEAD
    PyObject *globals;
    PyObject *constants;
} Environment;

PyTypeObject *environment_type;

PyObject *make_environment(PyObject *Py_UNUSED(module), PyObject *constants) {
    if (!PyList_Check(constants)) {
        PyErr_SetString(PyExc_TypeError, "constants are a list");
        return NULL;
    }
    Environment *self = (Environment *)PyType_GenericAlloc(environment_type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->constants = Py_NewRef(constants);
    self->globals = PyDict_New();
    if (self->globals == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int environment_traverse(PyObject *object, visitproc visit, void *arg) {
    Environment *self = (Environment *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->globals);
    Py_VISIT(self->constants);
    return 0;
}

static void environment_dealloc(PyObject *object) {
    Environment *self = (Environment *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->globals);
    Py_XDECREF(self->constants);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyType_Slot environment_slots[] = {
    {Py_tp_dealloc, (void *)environment_dealloc},
    {Py_tp_traverse, (void *)environment_traverse},
    {0, NULL},
};

PyType_Spec environment_spec = {
    .name = "compcache.numba.lazy._dispatch.Environment",
    .basicsize = sizeof(Environment),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = environment_slots,
};
