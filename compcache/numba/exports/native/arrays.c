/* Converts arrays: NumPy's arrays by NumPy's C interface, other arrays by the buffer protocol. NumPy is loaded only for a dtype that no
 * buffer format can express.
 *
 * The indexes into NumPy's table of functions are those of numpy/__multiarray_api.h, which are the same in versions 1 and 2. */
#include "objects.h"
#include "../../../hit/native/numpy_arrays.h"

#include <stdlib.h>
#include <string.h>

enum { NP_ARRAY = 2, NP_SCALAR = 60, NP_NEW_FROM_DESCRIPTOR = 94, NP_EQUIVALENT = 182, NP_SET_BASE = 282 };

static void **numpy; /* NumPy's table of functions, once NumPy is loaded */
static PyObject *make_dtype;
static PyTypeObject *array_type;

static void *const *table_in(const char *module_name) {
    PyObject *name = PyUnicode_FromString(module_name);
    PyObject *module = name != NULL ? PyImport_GetModule(name) : NULL;
    PyObject *capsule = module != NULL ? PyObject_GetAttrString(module, "_ARRAY_API") : NULL;
    PyObject *dtype = capsule != NULL ? PyObject_GetAttrString(module, "dtype") : NULL;
    void *const *table = dtype != NULL ? PyCapsule_GetPointer(capsule, NULL) : NULL;
    if (table != NULL && make_dtype == NULL) {
        make_dtype = Py_NewRef(dtype);
    }
    Py_XDECREF(name);
    Py_XDECREF(module);
    Py_XDECREF(capsule);
    Py_XDECREF(dtype);
    PyErr_Clear();
    return table;
}

static int has_numpy(void) {
    if (numpy == NULL) {
        void *const *table = table_in("numpy._core._multiarray_umath");
        if (table == NULL) {
            table = table_in("numpy.core._multiarray_umath");
        }
        if (table != NULL) {
            array_type = table[NP_ARRAY];
            numpy = (void **)table;
        }
    }
    return numpy != NULL;
}

/* Return the argument from which NumPy creates a dtype: a name, or a dictionary for a record; NULL with an exception. */
static PyObject *dtype_argument(const char *text) {
    if (*text != '{') {
        return PyUnicode_FromString(text);
    }
    PyObject *ast = PyImport_ImportModule("ast");
    PyObject *described = ast != NULL ? PyObject_CallMethod(ast, "literal_eval", "s", text) : NULL;
    Py_XDECREF(ast);
    return described;
}

/* Return the dtype whose scalars have the fields as attributes, like Numba's records. Take over the reference. */
static PyObject *dtype_of_records(PyObject *dtype) {
    PyObject *module = PyImport_ImportModule("numpy");
    PyObject *record = module != NULL ? PyObject_GetAttrString(module, "record") : NULL;
    PyObject *both = record != NULL ? PyTuple_Pack(2, record, dtype) : NULL;
    PyObject *made = both != NULL ? PyObject_CallFunctionObjArgs(make_dtype, both, NULL) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(record);
    Py_XDECREF(both);
    Py_DECREF(dtype);
    return made;
}

/* Return the dtype of an array type or of a scalar of NumPy, a borrowed reference; NULL with an exception. */
static PyObject *dtype_of(Plan *plan, const Node *node) {
    PyObject **cached = cached_of(plan, node);
    if (*cached == NULL) {
        PyObject *described = dtype_argument(text_of(plan, node->text));
        PyObject *dtype = described != NULL ? PyObject_CallFunctionObjArgs(make_dtype, described, NULL) : NULL;
        Py_XDECREF(described);
        *cached = dtype != NULL && node->kind == KIND_RECORD ? dtype_of_records(dtype) : dtype;
    }
    return *cached;
}

static int is_dtype(PyObject *one, PyObject *other) {
    return one == other || ((unsigned char (*)(PyObject *, PyObject *))numpy[NP_EQUIVALENT])(one, other);
}

/* ----------------------------------------------------------------------------------------------------- arguments */

static int fill(const Node *node, ArrayValue *value, void *data, const Py_ssize_t *shape, const Py_ssize_t *strides) {
    const uint32_t ndim = node->detail;
    value->data = data;
    value->itemsize = node->itemsize;
    value->count = 1;
    for (uint32_t i = 0; i < ndim; i++) {
        value->extents[i] = shape[i];
        value->extents[ndim + i] = strides[i];
        value->count *= shape[i];
    }
    return 1;
}

static int unbox_numpy_array(Plan *plan, const Node *node, Array *array, ArrayValue *value) {
    const int order = node->flags & LAYOUT_C ? NP_C_CONTIGUOUS : node->flags & LAYOUT_F ? NP_F_CONTIGUOUS : 0;
    const int wanted = order | NP_ALIGNED | (node->flags & READ_ONLY ? 0 : NP_WRITEABLE);
    if ((uint32_t)array->ndim != node->detail || (array->flags & wanted) != wanted) {
        return 0;
    }
    PyObject *dtype = dtype_of(plan, node);
    if (dtype == NULL || !is_dtype(array->descriptor, dtype)) {
        return 0;
    }
    if (node->flags & OWNED) {
        value->memory = new_block(array->data, 0, free_object, Py_NewRef((PyObject *)array));
        if (value->memory == NULL) {
            Py_DECREF(array);
            return 0;
        }
    }
    value->parent = (PyObject *)array;
    return fill(node, value, array->data, array->shape, array->strides);
}

/* Return whether a buffer's format is equivalent to the wanted one. Integers of one size have several letters. */
static int is_format(const char *given, const char *wanted, Py_ssize_t itemsize) {
    static const char signed_letters[] = "bhilqn", unsigned_letters[] = "BHILQN";
    if (given == NULL) {
        given = "B";
    }
    if (*given == '@' || *given == '=' || *given == '<') {
        given++;
    }
    if (strcmp(given, wanted) == 0) {
        return 1;
    }
    if (given[0] == '\0' || given[1] != '\0' || wanted[0] == '\0' || wanted[1] != '\0' || itemsize > 8) {
        return 0;
    }
    return (strchr(signed_letters, given[0]) != NULL && strchr(signed_letters, wanted[0]) != NULL)
        || (strchr(unsigned_letters, given[0]) != NULL && strchr(unsigned_letters, wanted[0]) != NULL);
}

static int is_usable(const Plan *plan, const Node *node, const Py_buffer *view) {
    const char *format = text_of(plan, node->format);
    return (uint32_t)view->ndim == node->detail && view->itemsize == (Py_ssize_t)node->itemsize && *format != '\0'
        && is_format(view->format, format, view->itemsize);
}

/* Unbox an array that is not NumPy's. A block owns the buffer. If the result cannot refer to the array, only the value owns the block. */
static int unbox_buffer(const Plan *plan, const Node *node, PyObject *object, ArrayValue *value) {
    Py_buffer *view = malloc(sizeof *view);
    if (view == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    const int order = node->flags & LAYOUT_C ? PyBUF_C_CONTIGUOUS : node->flags & LAYOUT_F ? PyBUF_F_CONTIGUOUS : PyBUF_STRIDES;
    if (PyObject_GetBuffer(object, view, order | PyBUF_FORMAT | (node->flags & READ_ONLY ? 0 : PyBUF_WRITABLE)) != 0) {
        free(view);
        return 0;
    }
    if (!is_usable(plan, node, view) || (value->memory = new_block(view->buf, 0, free_buffer, view)) == NULL) {
        PyBuffer_Release(view);
        free(view);
        return 0;
    }
    value->parent = object;
    return fill(node, value, view->buf, view->shape, view->strides);
}

/* Return whether an object is a scalar of NumPy with this dtype. There are no such scalars if NumPy is not loaded. */
static int is_scalar(Plan *plan, const Node *node, PyObject *object) {
    PyObject *wanted = has_numpy() ? dtype_of(plan, node) : NULL;
    PyObject *dtype = wanted != NULL && !PyObject_TypeCheck(object, array_type) ? PyObject_GetAttrString(object, "dtype") : NULL;
    const int is_equal = dtype != NULL && PyObject_TypeCheck(dtype, (PyTypeObject *)make_dtype) && is_dtype(dtype, wanted);
    Py_XDECREF(dtype);
    return is_equal;
}

int unbox_date(Plan *plan, const Node *node, PyObject *object, char *value) {
    Py_buffer view;
    if (!is_scalar(plan, node, object) || PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0) {
        return 0;
    }
    memcpy(value, view.buf, node->size);
    PyBuffer_Release(&view);
    return 1;
}

/* As in Numba, the kernel changes the record itself, and the array that contains it. */
int unbox_record(Plan *plan, const Node *node, PyObject *object, RecordValue *value) {
    Py_buffer *view = is_scalar(plan, node, object) ? malloc(sizeof *view) : NULL;
    if (view == NULL) {
        return 0;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) != 0) {
        free(view);
        return 0;
    }
    *value = (RecordValue){view->buf, view};
    return 1;
}

int unbox_array(Plan *plan, const Node *node, PyObject *object, ArrayValue *value) {
    if (has_numpy() && PyObject_TypeCheck(object, array_type)) {
        return unbox_numpy_array(plan, node, (Array *)object, value);
    }
    return unbox_buffer(plan, node, object, value);
}

/* ------------------------------------------------------------------------------------------------------- results */

/* Return whether a result is the argument from which it was created. */
static int is_parent(Plan *plan, const Node *node, const ArrayValue *value) {
    if (numpy == NULL || !PyObject_TypeCheck(value->parent, array_type)) {
        return 0;
    }
    const Array *array = (const Array *)value->parent;
    const size_t bytes = node->detail * sizeof *array->shape;
    PyObject *dtype = dtype_of(plan, node);
    return dtype != NULL && array->data == value->data && (uint32_t)array->ndim == node->detail
        && is_dtype(array->descriptor, dtype) && memcmp(array->shape, value->extents, bytes) == 0
        && memcmp(array->strides, value->extents + node->detail, bytes) == 0;
}

/* Copy an array with its strides, because its data belongs to code that may be unmapped. Return its block; NULL with an exception. */
static MemInfo *copy_of(const Node *node, ArrayValue *value) {
    const uint32_t ndim = node->detail;
    Py_ssize_t before = 0, after = value->count > 0 ? (Py_ssize_t)node->itemsize : 0; /* the range of the elements, relative to the first */
    for (uint32_t axis = 0; value->count > 0 && axis < ndim; axis++) {
        const Py_ssize_t distance = (value->extents[axis] - 1) * value->extents[ndim + axis];
        *(distance < 0 ? &before : &after) += distance;
    }
    char *copy = malloc((size_t)(after - before) + 1);
    MemInfo *memory = copy != NULL ? new_block(copy, 0, free_data, NULL) : NULL;
    if (memory == NULL) {
        free(copy);
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(copy, (const char *)value->data + before, (size_t)(after - before));
    value->data = copy - before;
    return memory;
}

static PyObject *make_numpy_array(Plan *plan, const Node *node, ArrayValue *value, PyObject *owner) {
    PyObject *dtype = dtype_of(plan, node);
    if (dtype == NULL) {
        Py_DECREF(owner);
        return NULL;
    }
    PyObject *(*make)(PyTypeObject *, PyObject *, int, const Py_ssize_t *, const Py_ssize_t *, void *, int, PyObject *) =
        (PyObject * (*)(PyTypeObject *, PyObject *, int, const Py_ssize_t *, const Py_ssize_t *, void *, int, PyObject *))
            numpy[NP_NEW_FROM_DESCRIPTOR];
    int (*set_base)(PyObject *, PyObject *) = (int (*)(PyObject *, PyObject *))numpy[NP_SET_BASE];
    const int flags = node->flags & READ_ONLY ? 0 : NP_WRITEABLE;
    PyObject *array = make(array_type, Py_NewRef(dtype), (int)node->detail, value->extents, value->extents + node->detail,
                           value->data, flags, NULL);
    if (array == NULL) {
        Py_DECREF(owner);
        return NULL;
    }
    if (set_base(array, owner) != 0) { /* this takes the reference even if it fails */
        Py_CLEAR(array);
    }
    return array;
}

static int load_numpy(void) {
    if (!has_numpy()) {
        PyObject *module = PyImport_ImportModule("numpy");
        Py_XDECREF(module);
        if (module == NULL) {
            return 0;
        }
    }
    return has_numpy();
}

PyObject *box_scalar(Plan *plan, const Node *node, char *value) {
    PyObject *dtype = load_numpy() ? dtype_of(plan, node) : NULL;
    return dtype != NULL ? ((PyObject * (*)(void *, PyObject *, PyObject *))numpy[NP_SCALAR])(value, dtype, NULL) : NULL;
}

/* Return NumPy's array if NumPy is loaded or needed, otherwise a memoryview; NULL with an exception. */
PyObject *box_array(Plan *plan, const Node *node, ArrayValue *value) {
    const char *format = text_of(plan, node->format);
    if (*format == '\0' && !load_numpy()) { /* only NumPy can describe the elements */
        return NULL;
    }
    const int is_numpys = has_numpy();
    if (value->parent != NULL && is_parent(plan, node, value)) {
        return Py_NewRef(value->parent);
    }
    MemInfo *memory = value->memory;
    if (memory != NULL && is_independent(memory)) {
        __atomic_add_fetch(&memory->references, 1, __ATOMIC_RELAXED);
    }
    else if ((memory = copy_of(node, value)) == NULL) {
        return NULL;
    }
    PyObject *owner = make_memory(plan, node, value, memory);
    if (owner == NULL || is_numpys) {
        return owner != NULL ? make_numpy_array(plan, node, value, owner) : NULL;
    }
    PyObject *view = PyMemoryView_FromObject(owner);
    Py_DECREF(owner);
    return view;
}
