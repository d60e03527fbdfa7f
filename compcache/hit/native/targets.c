/* The native half of TypedCallTarget.
 *
 * A call goes through the target's vectorcall slot: the trampoline `call_entry` of a valid target, or `call_unloaded`
 * after it was invalidated. The entry point receives a Callee, so images know nothing of this struct.
 */
#include "runtime.h"

#include <stddef.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall; /* call_entry or call_unloaded */
    EntryPoint entry;          /* inside `image` */
    Callee callee;             /* its `function` is inside `image` */
    PyObject *name;            /* str */
    PyObject *image;           /* keeps the code mapped */
    PyObject *context;         /* keeps alive the objects that the code uses; NULL once the collector has cleared the target */
    PyObject *weak_references;
} Target;

/* ---------------------------------------------------------------------------------------------------- calls */

/* Returns the arguments in the order of the parameters; `order` has the number of the argument for each parameter. */
static PyObject **arrange(PyObject *order, PyObject *const *args, Py_ssize_t available) {
    const Py_ssize_t count = PyTuple_Check(order) ? PyTuple_Size(order) : -1;
    PyObject **arranged = PyMem_Malloc((size_t)(count > 0 ? count : 1) * sizeof *arranged);
    if (arranged == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GetItem(order, i));
        if (number < 0 || number >= available) {
            PyMem_Free(arranged);
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_SystemError, "keyword arguments were put in an impossible order");
            }
            return NULL;
        }
        arranged[i] = args[number];
    }
    return arranged;
}

/* A call with keyword arguments: the hook assigns the arguments to the parameters, or raises. Not inlined, so that other calls save no
 * registers for it. */
__attribute__((noinline)) static PyObject *call_with_keywords(Target *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    if (PyTuple_Size(names) == 0) {
        return self->entry(&self->callee, args, nargsf, NULL);
    }
    RuntimeState *state = state_of_target((PyObject *)self);
    const Py_ssize_t given = positional_count(nargsf);
    PyObject *count = state != NULL ? PyLong_FromSsize_t(given) : NULL;
    if (count == NULL) {
        return NULL;
    }
    PyObject *order = PyObject_CallFunctionObjArgs(state->raise_arity, (PyObject *)self, count, names, NULL);
    Py_DECREF(count);
    if (order == NULL) {
        return NULL;
    }
    PyObject **arranged = arrange(order, args, given + PyTuple_Size(names));
    PyObject *result = NULL;
    if (arranged != NULL) {
        result = self->entry(&self->callee, arranged, (size_t)PyTuple_Size(order), NULL);
        PyMem_Free(arranged);
    }
    Py_DECREF(order);
    return result;
}

static PyObject *call_entry(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    Target *self = (Target *)object;
    if (names != NULL) {
        return call_with_keywords(self, args, nargsf, names);
    }
    return self->entry(&self->callee, args, nargsf, NULL);
}

/* `target.__call__` is a builtin function: interpreters before 3.13 call only builtin functions without checking their type. */
static PyObject *call_method(PyObject *object, PyObject *const *args, Py_ssize_t given, PyObject *names) {
    return __atomic_load_n(&((Target *)object)->vectorcall, __ATOMIC_ACQUIRE)(object, args, (size_t)given, names);
}

static PyObject *call_unloaded(PyObject *object, PyObject *const *Py_UNUSED(args), size_t Py_UNUSED(nargsf),
                               PyObject *Py_UNUSED(names)) {
    RuntimeState *state = state_of_target(object);
    if (state != NULL) {
        call_raising_hook(state->raise_unloaded, object, NULL, NULL);
    }
    return NULL;
}

RuntimeState *state_of_target(PyObject *target) {
    return (RuntimeState *)PyType_GetModuleState(Py_TYPE(target));
}

void call_raising_hook(PyObject *hook, PyObject *target, PyObject *second, PyObject *third) {
    PyObject *result = NULL;
    if (hook != NULL) {
        result = PyObject_CallFunctionObjArgs(hook, target, second, third, NULL);
        if (result == NULL) {
            return;
        }
        Py_DECREF(result);
    }
    PyErr_SetString(PyExc_SystemError, "a call target failed, but the hook that reports the reason is gone or did not raise");
}

/* ------------------------------------------------------------------------------------------ making, invalidating */

/* make_target(image: Image, function: int, entry: int, name: str, context: object) -> TypedCallTarget
 * `function` and `entry` are numbers in the table of the image. */
PyObject *make_target(PyObject *module, PyObject *args) {
    RuntimeState *state = module_state(module);
    PyObject *image, *name, *context;
    Py_ssize_t function_index, entry_index;
    if (!PyArg_ParseTuple(args, "OnnUO:make_target", &image, &function_index, &entry_index, &name, &context)) {
        return NULL;
    }
    void *function = symbol_address(state, image, function_index);
    void *entry = function != NULL ? symbol_address(state, image, entry_index) : NULL;
    if (entry == NULL) {
        return NULL;
    }
    if (state->target_type == NULL) {
        PyErr_SetString(PyExc_SystemError, "make_target() was called before setup()");
        return NULL;
    }
    Target *self = (Target *)PyType_GenericAlloc(state->target_type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = call_entry;
    self->entry = (EntryPoint)entry;
    self->callee = (Callee){.function = function, .api = &entry_api, .target = (PyObject *)self};
    self->name = Py_NewRef(name);
    self->image = Py_NewRef(image);
    self->context = Py_NewRef(context);
    return (PyObject *)self;
}

static Target *checked_target(PyObject *module, PyObject *object) {
    if (Py_TYPE(object) != module_state(module)->target_type) {
        PyErr_SetString(PyExc_TypeError, "the argument is not a TypedCallTarget");
        return NULL;
    }
    return (Target *)object;
}

/* invalidate(target) -> None; a running call finishes, every later call raises */
PyObject *invalidate(PyObject *module, PyObject *target) {
    Target *self = checked_target(module, target);
    if (self == NULL) {
        return NULL;
    }
    /* Other threads may be calling: in free-threaded builds nothing else orders this store. */
    __atomic_store_n(&self->vectorcall, call_unloaded, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* is_valid(target) -> bool */
PyObject *is_valid(PyObject *module, PyObject *target) {
    Target *self = checked_target(module, target);
    if (self == NULL) {
        return NULL;
    }
    return PyBool_FromLong(__atomic_load_n(&self->vectorcall, __ATOMIC_ACQUIRE) == call_entry);
}

/* -------------------------------------------------------------------------------------------------- the type */

static int target_traverse(PyObject *object, visitproc visit, void *arg) {
    Target *self = (Target *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    return 0;
}

/* A cleared target can no longer be called: the objects that its code needs may be gone before the target. Its image stays as long as the
 * target. */
static int target_clear(PyObject *object) {
    Target *self = (Target *)object;
    __atomic_store_n(&self->vectorcall, call_unloaded, __ATOMIC_RELEASE);
    Py_CLEAR(self->context);
    return 0;
}

static void target_dealloc(PyObject *object) {
    Target *self = (Target *)object;
    PyObject_GC_UnTrack(object);
    if (self->weak_references != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    Py_XDECREF(self->name);
    /* The context goes before the image: its objects may have destructors that expect mapped code. */
    Py_CLEAR(self->context);
    Py_XDECREF(self->image);
    release_object(object);
}

static PyMethodDef target_methods[] = {
    {"__call__", (PyCFunction)(void *)call_method, METH_FASTCALL | METH_KEYWORDS,
     "__call__($self, /, *args, **named)\n--\n\nCall the function."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef target_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Target, vectorcall), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Target, weak_references), READONLY, NULL},
    {"_function", T_ULONGLONG, offsetof(Target, callee.function), READONLY, NULL},
    {"_name", T_OBJECT, offsetof(Target, name), READONLY, NULL},
    {"_image", T_OBJECT, offsetof(Target, image), READONLY, NULL},
    {"_context", T_OBJECT, offsetof(Target, context), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot target_slots[] = {
    {Py_tp_dealloc, (void *)target_dealloc},
    {Py_tp_traverse, (void *)target_traverse},
    {Py_tp_clear, (void *)target_clear},
    {Py_tp_call, (void *)PyVectorcall_Call},
    {Py_tp_members, target_members},
    {Py_tp_methods, target_methods},
    {0, NULL},
};

/* The name is that of the base class, which Python code uses. */
static PyType_Spec target_spec = {
    .name = "compcache.hit.target.TypedCallTarget",
    .basicsize = sizeof(Target),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = target_slots,
};

/* `__call__` replaces the wrapper of the slot that types get otherwise. The flag that asks for the replacement is then removed from the
 * method: interpreters have instructions for calls of functions with exactly the other two flags. */
PyObject *make_target_type(PyObject *module, PyObject *base) {
    target_methods[0].ml_flags |= METH_COEXIST;
    PyObject *type = PyType_FromModuleAndSpec(module, &target_spec, base);
    target_methods[0].ml_flags &= ~METH_COEXIST;
    return type;
}
