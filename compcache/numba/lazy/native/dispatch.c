/* The extension module, and the functions that find compiled code by the types of the arguments of a call.
 *
 * A call encodes the types of its arguments in a few bytes, and looks for them in the table of the function. The table contains Numba's
 * own wrappers in mapped images. A wrapper converts the arguments, calls the code and creates an object for the result, as in Numba. If
 * the types are not in the table, a hook finds the code or imports Numba. Once the function has Numba's dispatcher, the dispatcher gets
 * all calls.
 */
#include "dispatch.h"

#include <stddef.h>
#include <string.h>

#if defined(Py_LIMITED_API) && Py_LIMITED_API < 0x030C0000
/* It exists in every CPython since 3.9, and is declared for the limited API since 3.12. */
PyAPI_FUNC(PyObject *) PyObject_Vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames);
#endif

/* The wrapper that numba/core/callwrapper.py creates. `args` has an item for each parameter. The other parameters are not used. */
typedef PyObject *(*Wrapper)(PyObject *closure, PyObject *args, PyObject *keywords);

typedef struct {
    Wrapper code;
    PyObject *kept; /* objects that must live as long as the code, and the classes in the key */
    size_t size;
    unsigned char key[];
} Entry;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *real;  /* Numba's dispatcher, once it is needed */
    PyObject *names; /* of the parameters: a tuple of interned str; NULL if all calls go to the hook */
    Py_ssize_t parameters;
    Py_ssize_t required;
    int is_variadic; /* the last parameter is a tuple of all other positional arguments */
    Entry **entries;
    Py_ssize_t count;
    PyObject *attributes;
    PyObject *weak_references;
} Function;

PyTypeObject *function_type;
static PyObject *miss_hook;

/* ---------------------------------------------------------------------------------------------------------- calls */

static PyObject *call_missed(Function *self, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    PyObject *result = NULL, *callee = NULL, *keywords = PyDict_New(), *positional = PyTuple_New(given);
    if (keywords == NULL || positional == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < given; i++) {
        PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
    }
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_Size(names); i++) {
        if (PyDict_SetItem(keywords, PyTuple_GetItem(names, i), args[given + i]) < 0) {
            goto done;
        }
    }
    callee = PyObject_CallFunctionObjArgs(miss_hook, (PyObject *)self, positional, keywords, NULL);
    result = callee != NULL ? PyObject_Call(callee, positional, keywords) : NULL; /* here, so that tracebacks have no frame of the hook */
done:
    Py_XDECREF(callee);
    Py_XDECREF(keywords);
    Py_XDECREF(positional);
    return result;
}

/* Return the position of a parameter; -1 if there is none of this name. Names in calls are usually interned. */
static Py_ssize_t find_parameter(const Function *self, PyObject *name, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyTuple_GetItem(self->names, i) == name) {
            return i;
        }
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyUnicode_Compare(PyTuple_GetItem(self->names, i), name) == 0) {
            return i;
        }
    }
    PyErr_Clear();
    return -1;
}

/* Return a tuple of the arguments from `first` on; NULL with an exception. */
static PyObject *tuple_of_rest(PyObject *const *args, Py_ssize_t given, Py_ssize_t first) {
    PyObject *rest = PyTuple_New(given > first ? given - first : 0);
    for (Py_ssize_t i = first; rest != NULL && i < given; i++) {
        PyTuple_SetItem(rest, i - first, Py_NewRef(args[i]));
    }
    return rest;
}

/* Store the argument of each parameter, NULL for an omitted one. Return 0 if the call is not plain, or not valid. The last argument of a
 * function with *args is a new tuple, which `release` releases. */
static int arrange(const Function *self, PyObject *const *args, Py_ssize_t given, PyObject *names, PyObject **items) {
    const Py_ssize_t count = PyTuple_Size(self->names) - self->is_variadic;
    if (given > count && !self->is_variadic) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        items[i] = i < given ? args[i] : NULL;
    }
    const Py_ssize_t named = names != NULL ? PyTuple_Size(names) : 0;
    for (Py_ssize_t i = 0; i < named; i++) {
        const Py_ssize_t at = find_parameter(self, PyTuple_GetItem(names, i), count);
        if (at < 0 || items[at] != NULL) {
            return 0;
        }
        items[at] = args[given + i];
    }
    for (Py_ssize_t i = 0; i < self->required; i++) {
        if (items[i] == NULL) {
            return 0;
        }
    }
    if (self->is_variadic) {
        items[count] = tuple_of_rest(args, given, count);
        if (items[count] == NULL) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

static void release(const Function *self, PyObject *const *items) {
    if (self->is_variadic) {
        Py_DECREF(items[self->parameters - 1]);
    }
}

/* Return the code for these arguments; NULL if there is none yet. */
static const Entry *find_entry(const Function *self, PyObject *const *items) {
    TypeKey types, *key = &types;
    key->size = 0;
    for (Py_ssize_t i = 0; i < self->parameters; i++) {
        if (!append_type(key, items[i])) {
            return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const Entry *entry = self->entries[i];
        if (entry->size == key->size && memcmp(entry->key, key->bytes, key->size) == 0) {
            return entry;
        }
    }
    return NULL;
}

/* Return a tuple of the arguments, with None for omitted ones. `PyTuple_Pack` is one call; the loop makes many. */
static PyObject *pack(PyObject *const *items, Py_ssize_t count) {
    if (count == 1 && items[0] != NULL) {
        return PyTuple_Pack(1, items[0]);
    }
    if (count == 2 && items[0] != NULL && items[1] != NULL) {
        return PyTuple_Pack(2, items[0], items[1]);
    }
    if (count == 3 && items[0] != NULL && items[1] != NULL && items[2] != NULL) {
        return PyTuple_Pack(3, items[0], items[1], items[2]);
    }
    PyObject *packed = PyTuple_New(count);
    for (Py_ssize_t i = 0; packed != NULL && i < count; i++) {
        PyTuple_SetItem(packed, i, Py_NewRef(items[i] != NULL ? items[i] : Py_None));
    }
    return packed;
}

static PyObject *call_compiled(Function *self, const Entry *entry, PyObject *const *items, Py_ssize_t count) {
    PyObject *arguments = pack(items, count);
    if (arguments == NULL) {
        return NULL;
    }
    PyObject *result = entry->code((PyObject *)self, arguments, NULL);
    Py_DECREF(arguments);
    return result;
}

static PyObject *call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names) {
    Function *self = (Function *)callable;
    if (self->real != NULL) {
        return PyObject_Vectorcall(self->real, args, nargsf, names);
    }
    const Py_ssize_t given = (Py_ssize_t)(nargsf & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
    if (self->count == 0) {
        return call_missed(self, args, given, names);
    }
    PyObject *arranged[MOST_ARGUMENTS];
    PyObject *const *items = args;
    const Py_ssize_t count = self->parameters;
    const int is_arranged = names != NULL || given != count || self->is_variadic;
    if (is_arranged) {
        if (!arrange(self, args, given, names, arranged)) {
            return call_missed(self, args, given, names);
        }
        items = arranged;
    }
    const Entry *entry = find_entry(self, items);
    PyObject *result = entry != NULL ? call_compiled(self, entry, items, count) : call_missed(self, args, given, names);
    if (is_arranged) {
        release(self, items);
    }
    return result;
}

/* --------------------------------------------------------------------------------------- making and changing */

static Function *checked(PyObject *object) {
    if (Py_TYPE(object) != function_type) {
        PyErr_SetString(PyExc_TypeError, "the first argument must be a function from make_function");
        return NULL;
    }
    return (Function *)object;
}

/* make_function(names: tuple or None, required: int, is_variadic: bool, attributes: dict) -> function */
static PyObject *make_function(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *names, *attributes;
    Py_ssize_t required;
    int is_variadic;
    if (!PyArg_ParseTuple(args, "OnpO!:make_function", &names, &required, &is_variadic, &PyDict_Type, &attributes)) {
        return NULL;
    }
    Function *self = (Function *)PyType_GenericAlloc(function_type, 0);
    if (self != NULL) {
        self->vectorcall = call;
        self->names = PyTuple_Check(names) ? Py_NewRef(names) : NULL;
        self->parameters = self->names != NULL ? PyTuple_Size(names) : 0;
        self->required = required;
        self->is_variadic = self->names != NULL && is_variadic;
        self->attributes = Py_NewRef(attributes);
    }
    return (PyObject *)self;
}

/* Store the items of a call in the order of the parameters. Return 0 without an exception if the call is not plain. */
static int items_of_call(Function *self, PyObject *positional, PyObject *keywords, PyObject **items) {
    PyObject *values[2 * MOST_ARGUMENTS];
    const Py_ssize_t given = PyTuple_Size(positional);
    if (self->names == NULL || PyTuple_Size(self->names) > MOST_ARGUMENTS || given > MOST_ARGUMENTS
        || PyDict_Size(keywords) > MOST_ARGUMENTS) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < given; i++) {
        values[i] = PyTuple_GetItem(positional, i);
    }
    PyObject *names = PyTuple_New(PyDict_Size(keywords)), *name, *value;
    Py_ssize_t at = 0, named = 0;
    if (names == NULL) {
        PyErr_Clear();
        return 0;
    }
    while (PyDict_Next(keywords, &at, &name, &value)) {
        values[given + named] = value;
        PyTuple_SetItem(names, named++, Py_NewRef(name));
    }
    const int found = arrange(self, values, given, names, items);
    Py_DECREF(names);
    return found;
}

/* arguments_of(function, positional: tuple, keywords: dict) -> (bytes, tuple) or None: the types, and the argument of each parameter.
 * The function itself marks an omitted argument. None is returned if the call is not plain. */
static PyObject *arguments_of(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object, *positional, *keywords, *items[MOST_ARGUMENTS];
    if (!PyArg_ParseTuple(args, "OO!O!:arguments_of", &object, &PyTuple_Type, &positional, &PyDict_Type, &keywords)) {
        return NULL;
    }
    Function *self = checked(object);
    if (self == NULL) {
        return NULL;
    }
    if (!items_of_call(self, positional, keywords, items)) {
        Py_RETURN_NONE;
    }
    const Py_ssize_t count = PyTuple_Size(self->names);
    TypeKey key;
    key.size = 0;
    PyObject *arguments = PyTuple_New(count);
    if (arguments == NULL) {
        release(self, items);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!append_type(&key, items[i])) {
            release(self, items);
            Py_DECREF(arguments);
            Py_RETURN_NONE;
        }
        PyTuple_SetItem(arguments, i, Py_NewRef(items[i] != NULL ? items[i] : object));
    }
    release(self, items);
    return Py_BuildValue("y#N", (const char *)key.bytes, (Py_ssize_t)key.size, arguments);
}

/* add_entry(function, types: bytes, address: int, kept: object): calls with arguments of these types will run this code. */
static PyObject *add_entry(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object, *kept;
    const char *key;
    Py_ssize_t size;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "Oy#KO:add_entry", &object, &key, &size, &address, &kept)) {
        return NULL;
    }
    Function *self = checked(object);
    if (self == NULL) {
        return NULL;
    }
    Entry **entries = PyMem_Malloc((size_t)(self->count + 1) * sizeof *entries);
    Entry *entry = PyMem_Malloc(sizeof *entry + (size_t)size);
    if (entries == NULL || entry == NULL) {
        PyMem_Free(entries);
        PyMem_Free(entry);
        return PyErr_NoMemory();
    }
    *entry = (Entry){.code = (Wrapper)(uintptr_t)address, .kept = Py_NewRef(kept), .size = (size_t)size};
    memcpy(entry->key, key, (size_t)size);
    if (self->count > 0) {
        memcpy(entries, self->entries, (size_t)self->count * sizeof *entries);
    }
    entries[self->count] = entry;
    PyMem_Free(self->entries);
    self->entries = entries;
    self->count++;
    Py_RETURN_NONE;
}

/* set_real(function, dispatcher) -> dispatcher: passes all calls to the dispatcher from now on, unless there is one already. */
static PyObject *set_real(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object, *real;
    if (!PyArg_ParseTuple(args, "OO:set_real", &object, &real)) {
        return NULL;
    }
    Function *self = checked(object);
    if (self == NULL) {
        return NULL;
    }
    if (self->real == NULL) {
        self->real = Py_NewRef(real);
    }
    return Py_NewRef(self->real);
}

/* get_real(function) -> dispatcher or None */
static PyObject *get_real(PyObject *Py_UNUSED(module), PyObject *object) {
    Function *self = checked(object);
    return self == NULL ? NULL : Py_NewRef(self->real != NULL ? self->real : Py_None);
}

/* ------------------------------------------------------------------------------------------------------ the type */

static int function_traverse(PyObject *object, visitproc visit, void *arg) {
    Function *self = (Function *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->real);
    Py_VISIT(self->attributes);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->entries[i]->kept);
    }
    return 0;
}

static void free_entries(Function *self) {
    Entry **entries = self->entries;
    const Py_ssize_t count = self->count;
    self->entries = NULL;
    self->count = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(entries[i]->kept);
        PyMem_Free(entries[i]);
    }
    PyMem_Free(entries);
}

static int function_clear(PyObject *object) {
    Function *self = (Function *)object;
    Py_CLEAR(self->real);
    Py_CLEAR(self->attributes);
    free_entries(self); /* entries keep functions that were arguments */
    return 0;
}

static void function_dealloc(PyObject *object) {
    Function *self = (Function *)object;
    PyObject_GC_UnTrack(object);
    if (self->weak_references != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    function_clear(object);
    Py_XDECREF(self->names);
    release_object(object);
}

static PyMemberDef function_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Function, vectorcall), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Function, weak_references), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Function, attributes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef function_getters[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot function_slots[] = {
    {Py_tp_dealloc, (void *)function_dealloc},
    {Py_tp_traverse, (void *)function_traverse},
    {Py_tp_clear, (void *)function_clear},
    {Py_tp_call, (void *)PyVectorcall_Call},
    {Py_tp_members, function_members},
    {Py_tp_getset, function_getters},
    {0, NULL},
};

static PyType_Spec function_spec = {
    .name = "compcache.numba.lazy.function.LazyFunction",
    .basicsize = sizeof(Function),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = function_slots,
};

/* setup(base: type, miss) -> type: once per process. `miss(function, positional, keywords)` answers calls with unknown types. */
static PyObject *setup(PyObject *module, PyObject *args) {
    PyObject *base, *miss;
    if (!PyArg_ParseTuple(args, "O!O:setup", &PyType_Type, &base, &miss)) {
        return NULL;
    }
    if (function_type == NULL) {
        function_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &function_spec, base);
        if (function_type == NULL) {
            return NULL;
        }
        miss_hook = Py_NewRef(miss);
    }
    return Py_NewRef((PyObject *)function_type);
}

/* compile_source(source: bytes, path: str) -> code: the code of a file that is run as a program. The function `compile` first creates the
 * classes of syntax trees, which takes as many instructions as a quarter of a Python's start. */
static PyObject *compile_source(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *path, *code = NULL;
    const char *source;
    if (PyArg_ParseTuple(args, "yO&:compile_source", &source, PyUnicode_FSConverter, &path)) {
        code = Py_CompileString(source, PyBytes_AsString(path), Py_file_input);
        Py_DECREF(path);
    }
    return code;
}

static PyMethodDef functions[] = {
    {"compile_source", compile_source, METH_VARARGS, NULL},
    {"setup", setup, METH_VARARGS, NULL},
    {"make_function", make_function, METH_VARARGS, NULL},
    {"arguments_of", arguments_of, METH_VARARGS, NULL},
    {"add_entry", add_entry, METH_VARARGS, NULL},
    {"set_real", set_real, METH_VARARGS, NULL},
    {"get_real", get_real, METH_O, NULL},
    {"set_array_types", set_array_types, METH_VARARGS, NULL},
    {"type_of", type_of, METH_O, NULL},
    {"file_stamps", file_stamps, METH_O, NULL},
    {"is_marshalled", is_marshalled, METH_VARARGS, NULL},
    {"helper_addresses", helper_addresses, METH_NOARGS, NULL},
    {"store_object", store_object, METH_VARARGS, NULL},
    {"make_environment", make_environment, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError, "compcache.numba supports only the main interpreter of a process");
        return -1;
    }
    if (environment_type == NULL) {
        environment_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &environment_spec, NULL);
    }
    return environment_type != NULL ? 0 : -1;
}

static PyModuleDef_Slot slots_3_11[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

/* The tables of functions grow under the GIL, and Numba's wrappers expect it. On a free-threaded build, this module enables the GIL. */
static PyModuleDef_Slot slots_3_13[] = {
    {Py_mod_exec, (void *)execute},
    {Py_mod_gil, Py_MOD_GIL_USED},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "compcache.numba.lazy._dispatch",
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__dispatch(void) {
    definition.m_slots = Py_Version >= 0x030D0000 ? slots_3_13 : slots_3_11;
    return PyModuleDef_Init(&definition);
}
