/* The extension module compcache.hit._runtime: its state, its functions, its initialization (PEP 489). */
#include "runtime.h"

/* The digest of the sources, which Python compares with the sources beside the extension. COMPCACHE_SOURCES, the names of the files,
 * is empty unless the extension was built in a source checkout: installed packages compare nothing. */
#if !defined(COMPCACHE_SOURCE_DIGEST) || !defined(COMPCACHE_SOURCES)
#error "setup.py defines these: build with `pip install -e .` or `make`"
#endif

/* Sets a pointer unless another thread has set it first. */
static void set_once(PyObject **place, PyObject *value) {
    PyObject *nothing = NULL;
    Py_INCREF(value);
    if (!__atomic_compare_exchange_n(place, &nothing, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        Py_DECREF(value);
    }
}

/* setup(base: type, raise_unloaded, raise_arity, raise_value, find_pointer) -> type
 * Makes the type of all targets, a subclass of `base`. A second call returns the same type. */
static PyObject *setup(PyObject *module, PyObject *args) {
    RuntimeState *state = module_state(module);
    PyObject *base, *unloaded, *arity, *value, *pointer;
    if (!PyArg_ParseTuple(args, "O!OOOO:setup", &PyType_Type, &base, &unloaded, &arity, &value, &pointer)) {
        return NULL;
    }
    if (__atomic_load_n(&state->target_type, __ATOMIC_ACQUIRE) == NULL) {
        PyObject *type = make_target_type(module, base);
        if (type == NULL) {
            return NULL;
        }
        set_once(&state->raise_unloaded, unloaded);
        set_once(&state->raise_arity, arity);
        set_once(&state->raise_value, value);
        set_once(&state->find_pointer, pointer);
        set_once((PyObject **)&state->target_type, type); /* last, so that a thread that sees the type sees the hooks */
        Py_DECREF(type);
    }
    return Py_NewRef((PyObject *)state->target_type);
}

static PyMethodDef functions[] = {
    {"map_image", map_image, METH_VARARGS, NULL},
    {"file_system", file_system, METH_O, NULL},
    {"stored", stored, METH_O, NULL},
    {"is_linking", is_linking, METH_NOARGS, NULL},
    {"open_library", open_named_library, METH_O, NULL},
    {"adopt_image", adopt_image, METH_VARARGS, NULL},
    {"address", image_address, METH_VARARGS, NULL},
    {"starter", starter, METH_VARARGS, NULL},
    {"start", start, METH_O, NULL},
    {"find_symbol", find_symbol, METH_VARARGS, NULL},
    {"find_undefined", find_undefined, METH_O, NULL},
    {"segment_names", segment_names, METH_O, NULL},
    {"open_segment", open_segment, METH_VARARGS, NULL},
    {"function_entry", function_entry, METH_O, NULL},
    {"is_ordered", is_ordered, METH_O, NULL},
    {"newest", newest, METH_VARARGS, NULL},
    {"module_entry", module_entry, METH_O, NULL},
    {"stamped", stamped, METH_VARARGS, NULL},
    {"requirements", requirements, METH_VARARGS, NULL},
    {"read_frame", read_frame, METH_VARARGS, NULL},
    {"function_record", function_record, METH_O, NULL},
    {"read_function", read_function, METH_VARARGS, NULL},
    {"find_in_closure", (PyCFunction)(void *)find_in_closure, METH_FASTCALL, NULL},
    {"uses_by_module", uses_by_module, METH_VARARGS, NULL},
    {"plain_functions", plain_functions, METH_VARARGS, NULL},
    {"needs_record", needs_record, METH_O, NULL},
    {"global_record", global_record, METH_O, NULL},
    {"entry_record", entry_record, METH_O, NULL},
    {"valid_closure", valid_closure, METH_VARARGS, NULL},
    {"open_volume", open_volume, METH_VARARGS, NULL},
    {"member_status", member_status, METH_O, NULL},
    {"unpack_member", unpack_member, METH_VARARGS, NULL},
    {"platform_serves", platform_serves, METH_VARARGS, NULL},
    {"processor_meets", processor_meets, METH_VARARGS, NULL},
    {"digest", digest, METH_VARARGS, NULL},
    {"use_line", (PyCFunction)(void *)use_line, METH_FASTCALL, NULL},
    {"list_functions", list_functions, METH_VARARGS, NULL},
    {"make_target", make_target, METH_VARARGS, NULL},
    {"invalidate", invalidate, METH_O, NULL},
    {"is_valid", is_valid, METH_O, NULL},
    {"commit", (PyCFunction)(void *)commit, METH_FASTCALL, NULL},
    {"weak_row", (PyCFunction)(void *)weak_row, METH_FASTCALL, NULL},
    {"bind", bind_imports, METH_VARARGS, NULL},
    {"require_writable", require_writable, METH_VARARGS, NULL},
    {"buffer_address", buffer_address, METH_O, NULL},
    {"processor", processor, METH_NOARGS, NULL},
    {"processor_words", processor_words, METH_O, NULL},
    {"processor_word", processor_word, METH_O, NULL},
    {"open_beneath", open_beneath, METH_VARARGS, NULL},
    {"memory_file", memory_file, METH_O, NULL},
    {"is_at", is_at, METH_VARARGS, NULL},
    {"stamp_of", stamp_of, METH_VARARGS, NULL},
    {"is_unchanged", is_unchanged, METH_VARARGS, NULL},
    {"names_beneath", names_beneath, METH_VARARGS, NULL},
    {"shortcut", shortcut, METH_VARARGS, NULL},
    {"uninterrupted", uninterrupted, METH_O, NULL},
    {"setup", setup, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* The runtime of one interpreter knows which files are mapped, but the dynamic linker has one mapping of a file for all
 * interpreters: two interpreters would share slots and global variables without knowing it. */
static int require_main_interpreter(void) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError, "compcache works only in the main interpreter of a process, not in "
                                           "subinterpreters: call compiled code from the main interpreter");
        return -1;
    }
    return 0;
}

static int execute(PyObject *module) {
    RuntimeState *state = module_state(module);
    if (require_main_interpreter() < 0 || prepare_linking() < 0) {
        return -1;
    }
    state->image_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &image_spec, NULL);
    state->descriptor_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &descriptor_spec, NULL);
    state->table_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &table_spec, NULL);
    state->shortcut_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &shortcut_spec, NULL);
    state->starter_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &starter_spec, NULL);
    if (state->image_type == NULL || state->descriptor_type == NULL || state->table_type == NULL
        || state->shortcut_type == NULL || state->starter_type == NULL) {
        return -1;
    }
    if (PyModule_AddType(module, state->table_type) < 0) {
        return -1;
    }
    if (PyModule_AddIntConstant(module, "ABI_VERSION", COMPCACHE_ABI_VERSION) < 0
        || PyModule_AddStringConstant(module, "SOURCE_DIGEST", COMPCACHE_SOURCE_DIGEST) < 0
        || PyModule_AddStringConstant(module, "SOURCES", COMPCACHE_SOURCES) < 0) {
        return -1;
    }
    return 0;
}

enum { STATE_OBJECTS = sizeof((RuntimeState){0}.objects) / sizeof(PyObject *) };
_Static_assert(sizeof(RuntimeState) == STATE_OBJECTS * sizeof(PyObject *), "all fields are objects");

static int traverse(PyObject *module, visitproc visit, void *arg) {
    RuntimeState *state = module_state(module);
    for (size_t i = 0; i < STATE_OBJECTS; i++) {
        Py_VISIT(state->objects[i]);
    }
    return 0;
}

static int clear(PyObject *module) {
    RuntimeState *state = module_state(module);
    for (size_t i = 0; i < STATE_OBJECTS; i++) {
        Py_CLEAR(state->objects[i]);
    }
    return 0;
}

static void release(void *module) {
    clear((PyObject *)module);
}

/* An interpreter with a GIL of its own (3.12) refuses a module without a slot that allows it, so `execute` need not check. */
static PyModuleDef_Slot slots_3_11[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

static PyModuleDef_Slot slots_3_13[] = {
    {Py_mod_exec, (void *)execute},
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "compcache.hit._runtime",
    .m_doc = "The native half of the hit path.",
    .m_size = sizeof(RuntimeState),
    .m_methods = functions,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__runtime(void) {
    definition.m_slots = Py_Version >= 0x030D0000 ? slots_3_13 : slots_3_11;
    return PyModuleDef_Init(&definition);
}
