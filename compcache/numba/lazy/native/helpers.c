/* C helpers of Numba that do not need NumPy, for compiled code in a process without Numba. calls.c has the helpers that exported kernels
 * call too. Numba's own versions import Numba.
 */
#include "calls.h"
#include "dispatch.h"

/* Take over the reference. */
static int helper_raise(PyObject *described) {
    PyObject *exception = exception_of(described);
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
    return 1;
}

/* Return a function of Numba's memory runtime that code calls when it raises an exception. It is found on the first call, because finding
 * it imports NumPy. */
static void *helper_named(const char *name) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    void *found = address_from_python("address_in_numba", Py_BuildValue("(s)", name));
    if (found == NULL) {
        Py_FatalError("compcache: Numba's memory runtime cannot be loaded, which a compiled function needs to raise an exception");
    }
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

PyObject *helper_addresses(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K}",
                         "numba_gil_ensure", (unsigned long long)(uintptr_t)ensure_gil,
                         "numba_gil_release", (unsigned long long)(uintptr_t)release_gil, "NRT_Free", (unsigned long long)(uintptr_t)helper_free,
                         "NRT_Allocate", (unsigned long long)(uintptr_t)helper_allocate,
                         "numba_unpickle", (unsigned long long)(uintptr_t)unpickle,
                         "numba_do_raise", (unsigned long long)(uintptr_t)helper_raise,
                         "numba_runtime_build_excinfo_struct", (unsigned long long)(uintptr_t)describe_exception);
}

/* ------------------------------------------------------------------------------------------------ environments */

/* store_object(address: int, object): stores a reference to an object, which the caller keeps alive, for compiled code. */
PyObject *store_object(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned long long address;
    PyObject *object;
    if (!PyArg_ParseTuple(args, "KO:store_object", &address, &object)) {
        return NULL;
    }
    __atomic_store_n((PyObject **)(uintptr_t)address, object, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* The layout in Numba's numba/_dynfunc.c. Compiled code reads the two fields by their offsets. */
typedef struct {
    PyObject_HEAD
    PyObject *globals;
    PyObject *constants;
} Environment;

PyTypeObject *environment_type;

PyObject *make_environment(PyObject *Py_UNUSED(module), PyObject *constants) {
    if (!PyList_Check(constants)) {
        PyErr_SetString(PyExc_TypeError, "constants must be a list");
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
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->globals);
    Py_XDECREF(self->constants);
    release_object(object);
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
