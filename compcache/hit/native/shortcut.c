/* A method that C code answers if the result is known, and a function in Python otherwise. */
#include "runtime.h"

#include <stddef.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;
    PyObject *attribute; /* str */
} Shortcut;

/* The known result for this name; NULL, without an exception, if it is not known. */
static PyObject *known(const Shortcut *self, PyObject *object, PyObject *name) {
    PyObject *table = PyObject_GenericGetAttr(object, self->attribute);
    PyObject *weak = table != NULL && PyDict_CheckExact(table) && PyUnicode_CheckExact(name) ? item_of(table, name) : NULL;
    PyObject *found = weak != NULL ? PyObject_CallNoArgs(weak) : NULL;
    Py_XDECREF(weak);
    Py_XDECREF(table);
    if (found == NULL) {
        PyErr_Clear(); /* the function raises it again, with its own message */
    } else if (found == Py_None) {
        Py_CLEAR(found);
    }
    return found;
}

static PyObject *call_function(const Shortcut *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    const Py_ssize_t named = names != NULL ? PyTuple_Size(names) : 0;
    PyObject *positional = PyTuple_New(count), *by_name = named > 0 ? PyDict_New() : NULL, *result = NULL;
    int status = positional != NULL && (named == 0 || by_name != NULL) ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        status = PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
    }
    for (Py_ssize_t i = 0; status == 0 && i < named; i++) {
        status = PyDict_SetItem(by_name, PyTuple_GetItem(names, i), args[count + i]);
    }
    if (status == 0) {
        result = PyObject_Call(self->function, positional, by_name);
    }
    Py_XDECREF(positional);
    Py_XDECREF(by_name);
    return result;
}

static PyObject *call_shortcut(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    const Shortcut *self = (const Shortcut *)object;
    const Py_ssize_t count = positional_count(nargsf);
    PyObject *found = count == 2 && names == NULL ? known(self, args[0], args[1]) : NULL;
    return found != NULL ? found : call_function(self, args, count, names);
}

/* shortcut(function, attribute: str) -> a method that looks like `function`, of an object and a str. Called as a method, it returns the
 * object to which the dict in this attribute has a living weak reference by that str, if any; otherwise it calls `function`. */
PyObject *shortcut(PyObject *module, PyObject *args) {
    PyObject *function, *attribute;
    if (!PyArg_ParseTuple(args, "OU:shortcut", &function, &attribute)) {
        return NULL;
    }
    Shortcut *self = (Shortcut *)PyType_GenericAlloc(module_state(module)->shortcut_type, 0);
    if (self != NULL) {
        self->vectorcall = call_shortcut;
        self->function = Py_NewRef(function);
        self->attribute = Py_NewRef(attribute);
    }
    return (PyObject *)self;
}

static PyObject *shortcut_get(PyObject *object, PyObject *owner, PyObject *type) {
    PyObject *function = ((Shortcut *)object)->function;
    return owner != NULL ? PyObject_CallMethod(function, "__get__", "OO", owner, type != NULL ? type : Py_None) : Py_NewRef(function);
}

static int shortcut_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Shortcut *)object)->function);
    return 0;
}

static int shortcut_clear(PyObject *object) {
    Py_CLEAR(((Shortcut *)object)->function);
    return 0;
}

static void shortcut_dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    shortcut_clear(object);
    Py_CLEAR(((Shortcut *)object)->attribute);
    release_object(object);
}

static PyMemberDef shortcut_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Shortcut, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *shortcut_doc(PyObject *object, void *Py_UNUSED(closure)) {
    return PyObject_GetAttrString(((Shortcut *)object)->function, "__doc__");
}

static PyGetSetDef shortcut_properties[] = {
    {"__doc__", shortcut_doc, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot shortcut_slots[] = {
    {Py_tp_dealloc, (void *)shortcut_dealloc},
    {Py_tp_traverse, (void *)shortcut_traverse},
    {Py_tp_clear, (void *)shortcut_clear},
    {Py_tp_call, (void *)PyVectorcall_Call},
    {Py_tp_descr_get, (void *)shortcut_get},
    {Py_tp_members, shortcut_members},
    {Py_tp_getset, shortcut_properties},
    {0, NULL},
};

/* The flag of a method: the interpreter calls it with the object, without making a bound method first. */
PyType_Spec shortcut_spec = {
    .name = "compcache.hit._runtime.Shortcut",
    .basicsize = sizeof(Shortcut),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR
        | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = shortcut_slots,
};
