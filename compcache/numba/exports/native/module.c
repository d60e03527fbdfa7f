/* The extension module, and the table of functions that exported code calls. */
#include "objects.h"

PyObject *buffer_error;

/* Exported code contains indexes into this table (compcache/numba/exports/plan.py). */
static void *const functions[] = {
    (void *)prepare_plan,
    (void *)enter,
    (void *)leave,
    (void *)box_result,
    (void *)resolve_function,
    (void *)random_begin,
    (void *)random_python,
    (void *)random_numpy,
    (void *)random_internal,
    (void *)random_shuffle,
    (void *)random_seed,
    (void *)random_poisson,
    (void *)ensure_gil,
    (void *)release_gil,
    (void *)unpickle,
    (void *)reshape_without_copy,
    (void *)linear_begin,
    (void *)linear_dot,
    (void *)linear_norm,
    (void *)linear_matrix_vector,
    (void *)linear_matrix_matrix,
    (void *)linear_lu,
    (void *)linear_inverse,
    (void *)linear_cholesky,
    (void *)linear_solve,
    (void *)linear_eigen_real,
    (void *)linear_eigen_complex,
    (void *)linear_eigen_symmetric,
    (void *)linear_singular,
    (void *)linear_qr,
    (void *)linear_q_of_qr,
    (void *)linear_least_squares,
    (void *)fail,
    (void *)resolve_helper,
    (void *)parallel_for,
    (void *)parallel_threads,
    (void *)parallel_thread,
    (void *)parallel_chunk,
    (void *)set_parallel_chunk,
    (void *)schedule_size,
    (void *)schedule,
    (void *)schedule,
    (void *)allocate_schedule,
    (void *)free_schedule,
    (void *)raise_described,
    (void *)describe_exception,
    (void *)parallel_raise,
};
const uint32_t function_count = sizeof functions / sizeof *functions;

/* Functions that kernels call by address. The exporter replaces their addresses by these names (compcache/numba/exports/addresses.py). */
static const struct {
    const char *name, *type;
    void *function;
} exported[] = {
    {"parallel_threads", "int (void)", (void *)parallel_threads},
    {"set_parallel_threads", "void (int)", (void *)set_parallel_threads},
    {"parallel_thread", "int (void)", (void *)parallel_thread},
    {"parallel_chunk", "unsigned (void)", (void *)parallel_chunk},
    {"set_parallel_chunk", "unsigned (unsigned)", (void *)set_parallel_chunk},
};

static int add_exported(PyObject *module) {
    PyObject *table = PyDict_New();
    for (size_t i = 0; table != NULL && i < sizeof exported / sizeof *exported; i++) {
        PyObject *capsule = PyCapsule_New(exported[i].function, exported[i].type, NULL);
        if (capsule == NULL || PyDict_SetItemString(table, exported[i].name, capsule) != 0) {
            Py_CLEAR(table);
        }
        Py_XDECREF(capsule);
    }
    const int added = table != NULL ? PyModule_AddObjectRef(module, "__pyx_capi__", table) : -1;
    Py_XDECREF(table);
    return added;
}

static int execute(PyObject *module) {
    if (memory_type == NULL) {
        memory_type = (PyTypeObject *)PyType_FromSpec(&memory_spec); /* once per process */
    }
    static int is_prepared;
    if (!is_prepared && (prepare_random() != 0 || prepare_threads() != 0)) {
        PyErr_NoMemory();
        return -1;
    }
    is_prepared = 1;
    PyObject *errors = PyImport_ImportModule("compcache.errors");
    buffer_error = errors != NULL ? PyObject_GetAttrString(errors, "ArgumentBufferError") : NULL;
    Py_XDECREF(errors);
    if (memory_type == NULL || buffer_error == NULL) {
        return -1;
    }
    PyObject *capsule = PyCapsule_New((void *)functions, "compcache.numba.exports._objects.functions", NULL);
    const int added = capsule != NULL ? PyModule_AddObjectRef(module, "functions", capsule) : -1;
    Py_XDECREF(capsule);
    return added != 0 || add_exported(module) != 0 ? -1 : PyModule_AddObjectRef(module, "Memory", (PyObject *)memory_type);
}

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
    .m_name = "compcache.numba.exports._objects",
    .m_doc = "Functions that exported kernels call to convert values other than numbers and contiguous buffers.",
};

PyMODINIT_FUNC PyInit__objects(void) {
    definition.m_slots = Py_Version >= 0x030D0000 ? slots_3_13 : slots_3_11;
    return PyModuleDef_Init(&definition);
}
