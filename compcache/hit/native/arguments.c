/* Functions that entry points call: checks and conversions of arguments that take more than one call of the C API. */
#include "numpy_arrays.h"
#include "runtime.h"

#include <limits.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------- errors */

static int fail_arity(const Callee *callee, int64_t given, int64_t Py_UNUSED(expected), PyObject *names) {
    RuntimeState *state = state_of_target(callee->target);
    PyObject *count = state != NULL ? PyLong_FromLongLong(given) : NULL;
    if (count == NULL) {
        return 0;
    }
    PyObject *shown = names != NULL ? names : Py_None;
    PyObject *result = PyObject_CallFunctionObjArgs(state->raise_arity, callee->target, count, shown, NULL);
    Py_DECREF(count);
    Py_XDECREF(result);
    return result != NULL;
}

static void raise_about(const Callee *callee, int64_t index, PyObject *object) {
    RuntimeState *state = state_of_target(callee->target);
    PyObject *number = state != NULL ? PyLong_FromLongLong(index) : NULL;
    if (number != NULL) {
        call_raising_hook(state->raise_value, callee->target, number, object);
        Py_DECREF(number);
    }
}

/* Whether the exception that is set only says that a value is not right. Other exceptions (MemoryError, an interrupt, an error
 * that an `__index__` or `__float__` of the caller's has raised) are not replaced. */
static int is_about_the_value(PyObject *object) {
    const int own_class = (PyType_GetFlags(Py_TYPE(object)) & Py_TPFLAGS_HEAPTYPE) != 0 && !PyLong_Check(object);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    const int converts = own_class && (PyObject_HasAttrString(object, "__index__") || PyObject_HasAttrString(object, "__float__"));
    PyErr_Restore(type, value, traceback);
    return !converts && (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_OverflowError)
        || PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_BufferError));
}

/* Raise the error that names function and parameter. The exception of a conversion, if any, becomes its context. */
static void fail_value(const Callee *callee, int64_t index, PyObject *object) {
    if (PyErr_Occurred() && !is_about_the_value(object)) {
        return;
    }
    PyObject *context = take_exception();
    raise_about(callee, index, object);
    PyObject *error = context != NULL ? take_exception() : NULL;
    if (error != NULL) {
        if (error != context) {
            PyException_SetContext(error, Py_NewRef(context));
        }
        restore_exception(error);
    }
    Py_XDECREF(context);
}

/* ------------------------------------------------------------------------------------------------------- buffers */

static const char kinds[UCHAR_MAX + 1] = {
    ['b'] = 'i', ['h'] = 'i', ['i'] = 'i', ['l'] = 'i', ['q'] = 'i', ['n'] = 'i', ['c'] = 'u', ['B'] = 'u', ['H'] = 'u',
    ['I'] = 'u', ['L'] = 'u', ['Q'] = 'u', ['N'] = 'u', ['f'] = 'f', ['d'] = 'f', ['?'] = 'b',
};

/* The kind of the only item in a format of the struct module, in native byte order: one of the letters i, u, f and b, or 0. */
static char format_kind(const char *format) {
    static const char native_order = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>';
    if (format == NULL) {
        return 'u'; /* no format means bytes */
    }
    if (format[0] != '\0' && format[1] == '\0') {
        return kinds[(unsigned char)format[0]];
    }
    const int has_order = *format == '@' || *format == '=' || *format == native_order;
    return has_order && format[1] != '\0' && format[2] == '\0' ? kinds[(unsigned char)format[1]] : 0;
}

/* Whether the error that an exporter raised is its answer about the buffer. Other errors (MemoryError, an interrupt) are
 * never replaced. */
static int exporter_refused(void) {
    return PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError)
        || PyErr_ExceptionMatches(PyExc_BufferError);
}

/* What a parameter requires of a buffer: the size of an element | its kind << 8 | writable << 16. */
#define SIZE_OF(wanted) ((Py_ssize_t)((wanted) & 0xff))
#define KIND_OF(wanted) ((char)((wanted) >> 8 & 0xff))
#define IS_WRITABLE(wanted) ((wanted) >> 16 & 1)

/* Raise the error for a buffer that does not meet the requirements; the exporter may have raised an error already. */
__attribute__((noinline, cold)) static int refuse_buffer(const Callee *callee, int64_t index, PyObject *object, Py_buffer *view) {
    if (!PyErr_Occurred()) {
        PyBuffer_Release(view); /* sets `obj` to NULL */
    } else {
        view->obj = NULL;
        if (!exporter_refused()) {
            return 0;
        }
        PyErr_Clear();
    }
    fail_value(callee, index, object); /* names the function and the parameter */
    return 0;
}

static int acquire_by_protocol(const Callee *callee, int64_t index, PyObject *object, Py_buffer *view, uint32_t wanted) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (IS_WRITABLE(wanted) ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) == 0 && view->itemsize == SIZE_OF(wanted) && format_kind(view->format) == KIND_OF(wanted)) {
        return 1;
    }
    return refuse_buffer(callee, index, object, view);
}

#ifndef Py_GIL_DISABLED /* other threads may exchange the memory of an array while it is read */

/* NumPy creates a new description of a buffer for each request, which takes longer than the rest of a call. For exactly NumPy's arrays, the
 * layout is read instead, once one array was found to have the layout. */
static PyTypeObject *array_type; /* NULL until then; NumPy's types live as long as the process */
/* For each kind and size, the dtype of the last array with that kind and size, as its buffer described it. Arrays with the same dtype object
 * have the same elements. */
static PyObject *dtypes['u' - 'b' + 1][sizeof(uint64_t) + 1];
/* Other types, by a few bits of their addresses, which are not examined again; and the last one of them. */
static PyTypeObject *other_types[8], *last_other_type;

static PyTypeObject **other_type(PyTypeObject *type) {
    return &other_types[(uintptr_t)type >> 4 & 7];
}

static PyObject **dtype_of(uint32_t wanted) {
    const unsigned int kind = (unsigned int)KIND_OF(wanted) - 'b';
    return kind <= 'u' - 'b' && SIZE_OF(wanted) <= (Py_ssize_t)sizeof(uint64_t) ? &dtypes[kind][SIZE_OF(wanted)] : NULL;
}

/* Fill `view` from the layout of an array. Returns 0 if the array has other elements or another order, or if its exporter must be asked. */
static int acquire_array(Array *array, Py_buffer *view, uint32_t wanted) {
    const int needed = NP_C_CONTIGUOUS | NP_ALIGNED | (IS_WRITABLE(wanted) ? NP_WRITEABLE : 0);
    PyObject **dtype = dtype_of(wanted);
    if (dtype == NULL || array->descriptor != *dtype || (array->flags & (needed | NP_WARN_ON_WRITE)) != needed) {
        return 0;
    }
    Py_ssize_t count = 1;
    for (int i = 0; i < array->ndim; i++) {
        count *= array->shape[i];
    }
    view->buf = array->data;
    view->obj = Py_NewRef((PyObject *)array);
    view->len = count * SIZE_OF(wanted);
    view->readonly = (array->flags & NP_WRITEABLE) == 0;
    view->ndim = array->ndim;
    view->shape = array->shape;
    view->internal = NULL;
    return 1;
}

/* Whether an attribute of an object is `value`. Sets no exception. */
static int has_attribute(PyObject *object, const char *name, PyObject *value) {
    PyObject *found = PyObject_GetAttrString(object, name);
    if (found == NULL) {
        PyErr_Clear();
    }
    Py_XDECREF(found);
    return found != NULL && found == value; /* borrowed from the object */
}

static int is_array_type(PyTypeObject *type) {
    PyObject *modules = PySys_GetObject("modules");
    PyObject *numpy = modules != NULL && PyDict_Check(modules) ? PyDict_GetItemString(modules, "numpy") : NULL;
    return numpy != NULL && has_attribute(numpy, "ndarray", (PyObject *)type) && PyType_GetSlot(type, Py_bf_releasebuffer) == NULL;
}

/* Whether an array has the layout: its fields have the values that Python and the buffer report. */
static int has_layout(const Array *array, const Py_buffer *view) {
    return array->data == view->buf && array->ndim == view->ndim && has_attribute((PyObject *)array, "dtype", array->descriptor)
        && memcmp(array->shape, view->shape, (size_t)view->ndim * sizeof *view->shape) == 0
        && (array->flags & (NP_C_CONTIGUOUS | NP_ALIGNED)) == (NP_C_CONTIGUOUS | NP_ALIGNED)
        && ((array->flags & NP_WRITEABLE) == 0) == (view->readonly != 0);
}

/* Record what a suitable buffer shows about arrays. Sets no exception. */
static void learn(PyObject *object, const Py_buffer *view, uint32_t wanted) {
    PyTypeObject *type = Py_TYPE(object);
    if (array_type == NULL && !is_array_type(type)) {
        *other_type(type) = type;
    } else if (array_type == NULL && view->ndim > 0 && has_layout((const Array *)object, view)) {
        array_type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    }
    PyObject **dtype = type == array_type ? dtype_of(wanted) : NULL;
    if (dtype != NULL) {
        PyObject *former = *dtype;
        *dtype = Py_NewRef(((Array *)object)->descriptor);
        Py_XDECREF(former);
    }
}

static int acquire_and_learn(const Callee *callee, int64_t index, PyObject *object, Py_buffer *view, uint32_t wanted) {
    const int acquired = acquire_by_protocol(callee, index, object, view, wanted);
    if (acquired) {
        learn(object, view, wanted);
    }
    return acquired;
}

__attribute__((noinline)) static int acquire_by_type(const Callee *callee, int64_t index, PyObject *object, Py_buffer *view,
                                                     uint32_t wanted) {
    PyTypeObject *type = Py_TYPE(object);
    if (type == array_type && acquire_array((Array *)object, view, wanted)) {
        return 1;
    }
    if (*other_type(type) != type) {
        return acquire_and_learn(callee, index, object, view, wanted);
    }
    last_other_type = type;
    return acquire_by_protocol(callee, index, object, view, wanted);
}
#endif

/* Get a C-contiguous buffer of one element type. */
static int acquire_buffer(const Callee *callee, int64_t index, PyObject *object, Py_buffer *view, uint32_t wanted) {
#ifndef Py_GIL_DISABLED
    if (Py_TYPE(object) != last_other_type) {
        return acquire_by_type(callee, index, object, view, wanted);
    }
#endif
    return acquire_by_protocol(callee, index, object, view, wanted);
}

/* ------------------------------------------------------------------------------------------------------ pointers */

static int address_of(const Callee *callee, int64_t index, PyObject *number, void **out) {
    *out = PyLong_AsVoidPtr(number);
    if (*out == NULL && PyErr_Occurred()) {
        fail_value(callee, index, number);
        return 0;
    }
    return 1;
}

/* Get the address of an int, None, an object that the hook knows (ctypes, targets), or else any contiguous buffer. Entry points
 * decide by the `readonly` of the view whether it may be read-only: those of older images accept any buffer. */
static int acquire_pointer(const Callee *callee, int64_t index, PyObject *object, Py_buffer *view, void **out) {
    if (object == Py_None) {
        *out = NULL;
        return 1;
    }
    if (PyLong_Check(object)) {
        return address_of(callee, index, object, out);
    }
    RuntimeState *state = state_of_target(callee->target);
    PyObject *answer = state != NULL ? PyObject_CallFunctionObjArgs(state->find_pointer, object, NULL) : NULL;
    if (answer == NULL) {
        return 0;
    }
    const int known = answer != Py_None;
    const int converted = known && address_of(callee, index, answer, out);
    Py_DECREF(answer);
    if (known) {
        return converted;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) != 0) {
        view->obj = NULL;
        if (exporter_refused()) {
            PyErr_Clear();
            fail_value(callee, index, object);
        }
        return 0;
    }
    *out = view->buf;
    return 1;
}

/* ------------------------------------------------------------------------------------------------ numbers, text */

static int to_u64(const Callee *callee, int64_t index, PyObject *object, uint64_t *out) {
    PyObject *integer = PyNumber_Index(object);
    if (integer != NULL) {
        *out = PyLong_AsUnsignedLongLong(integer);
        Py_DECREF(integer);
        if (*out != UINT64_MAX || !PyErr_Occurred()) {
            return 1;
        }
    }
    fail_value(callee, index, object);
    return 0;
}

/* Get a str as UTF-8, or bytes, without an embedded NUL. */
static int to_cstr(const Callee *callee, int64_t index, PyObject *object, const char **out) {
    if (PyUnicode_Check(object)) {
        Py_ssize_t size;
        *out = PyUnicode_AsUTF8AndSize(object, &size);
        if (*out != NULL && strlen(*out) != (size_t)size) {
            fail_value(callee, index, object);
            return 0;
        }
        return *out != NULL;
    }
    if (PyBytes_Check(object)) {
        /* Without a pointer for the size, this function itself raises ValueError for an embedded NUL. */
        if (PyBytes_AsStringAndSize(object, (char **)out, NULL) == 0) {
            return 1;
        }
    }
    fail_value(callee, index, object);
    return 0;
}

static PyObject *from_cstr(const char *text) {
    if (text == NULL) {
        Py_RETURN_NONE;
    }
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
}

const EntryApi entry_api = {
    .fail_arity = fail_arity,
    .fail_value = fail_value,
    .acquire_buffer = acquire_buffer,
    .acquire_pointer = acquire_pointer,
    .to_u64 = to_u64,
    .to_cstr = to_cstr,
    .from_cstr = from_cstr,
};
