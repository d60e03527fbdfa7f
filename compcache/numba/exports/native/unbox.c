/* Converts arguments to Numba's values. The functions return 0 for a value that does not fit. If they have not set an exception, `enter`
 * raises one that says what was expected. */
#include "objects.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------ scalars */

static int unbox_bool(PyObject *object, char *value) {
    const int truth = PyObject_IsTrue(object);
    *value = (char)(truth > 0);
    return truth >= 0;
}

static int fits(PyObject *number, int ok) {
    Py_DECREF(number);
    if (!ok && !PyErr_Occurred()) {
        PyErr_SetNone(PyExc_OverflowError);
    }
    return ok;
}

static int unbox_integer(const Node *node, PyObject *object, char *value) {
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) {
        return 0;
    }
    const unsigned unused = 64 - 8 * node->size;
    if (node->kind == KIND_SIGNED) {
        const int64_t wide = PyLong_AsLongLong(number);
        memcpy(value, &wide, node->size);
        return fits(number, !PyErr_Occurred() && (int64_t)((uint64_t)wide << unused) >> unused == wide);
    }
    const uint64_t wide = PyLong_AsUnsignedLongLong(number);
    memcpy(value, &wide, node->size);
    return fits(number, !PyErr_Occurred() && wide << unused >> unused == wide);
}

static void write_float(char *value, uint32_t size, double number) {
    if (size == sizeof(float)) {
        *(float *)value = (float)number;
    }
    else {
        *(double *)value = number;
    }
}

static int unbox_float(const Node *node, PyObject *object, char *value) {
    const double number = PyFloat_AsDouble(object);
    write_float(value, node->size, number);
    return number != -1.0 || !PyErr_Occurred();
}

static int unbox_complex(const Node *node, PyObject *object, char *value) {
    PyObject *number = PyComplex_Check(object) ? Py_NewRef(object)
                                               : PyObject_CallFunctionObjArgs((PyObject *)&PyComplex_Type, object, NULL);
    if (number == NULL || PyUnicode_Check(object)) {
        Py_XDECREF(number);
        return 0;
    }
    const uint32_t half = node->size / 2;
    write_float(value, half, PyComplex_RealAsDouble(number));
    write_float(value + half, half, PyComplex_ImagAsDouble(number));
    Py_DECREF(number);
    return 1;
}

/* --------------------------------------------------------------------------------------------------- containers */

static int unbox_optional(Plan *plan, const Node *node, PyObject *object, char *value) {
    value[node->detail] = object != Py_None;
    return object == Py_None || unbox(plan, &plan->nodes[node->first], object, value);
}

static int unbox_tuple(Plan *plan, const Node *node, PyObject *object, char *value) {
    if (!PyTuple_Check(object) || PyTuple_Size(object) != (Py_ssize_t)node->count) {
        return 0;
    }
    if (node->kind == KIND_NAMED_TUPLE) {
        PyObject *class = class_of(plan, node);
        if (class == NULL || (PyObject *)Py_TYPE(object) != class) {
            return 0;
        }
    }
    for (uint32_t i = 0; i < node->count; i++) {
        const Node *item = &plan->nodes[node->first + i];
        if (!unbox(plan, item, PyTuple_GetItem(object, i), value + item->offset)) {
            return 0; /* `enter` releases the items that were converted */
        }
    }
    return 1;
}

static int unbox_enum(Plan *plan, const Node *node, PyObject *object, char *value) {
    PyObject *class = class_of(plan, node);
    if (class == NULL || (PyObject *)Py_TYPE(object) != class) {
        return 0;
    }
    PyObject *number = PyObject_GetAttrString(object, "value");
    const int ok = number != NULL && unbox(plan, &plan->nodes[node->first], number, value);
    Py_XDECREF(number);
    return ok;
}

/* Return the characters of a text in this width, to be freed; NULL if memory is exhausted. */
static void *copy_narrowed(const Py_UCS4 *wide, Py_ssize_t length, int width) {
    char *data = malloc((size_t)(length + 1) * (size_t)width);
    for (Py_ssize_t i = 0; data != NULL && i <= length; i++) {
        memcpy(data + i * width, &wide[i], (size_t)width);
    }
    return data;
}

/* Return a block with a reference to the object that owns a value's data; NULL with an exception. */
static MemInfo *hold_object(PyObject *object, void *data) {
    MemInfo *memory = new_block(data, 0, free_object, Py_NewRef(object));
    if (memory == NULL) {
        Py_DECREF(object);
    }
    return memory;
}

static int unbox_text(const Node *node, PyObject *object, TextValue *value) {
    Py_ssize_t bytes;
    if (!PyUnicode_Check(object)) {
        return 0;
    }
    *value = (TextValue){.length = PyUnicode_GetLength(object), .width = 1, .is_ascii = 1, .hash = -1, .parent = object};
    value->data = (void *)PyUnicode_AsUTF8AndSize(object, &bytes);
    if (value->data != NULL && bytes == value->length) {
        value->memory = node->flags & OWNED ? hold_object(object, value->data) : NULL; /* ASCII: the object's own characters */
        return value->memory != NULL || !(node->flags & OWNED);
    }
    PyErr_Clear(); /* a lone surrogate has no UTF-8 */
    Py_UCS4 *wide = PyUnicode_AsUCS4Copy(object);
    if (wide == NULL) {
        return 0;
    }
    Py_UCS4 all = 0;
    for (Py_ssize_t i = 0; i < value->length; i++) {
        all |= wide[i];
    }
    value->width = all < 0x100 ? 1 : all < 0x10000 ? 2 : 4;
    value->is_ascii = 0;
    value->data = copy_narrowed(wide, value->length, value->width);
    PyMem_Free(wide);
    value->memory = value->data != NULL ? new_block(value->data, 0, free_data, NULL) : NULL;
    if (value->memory == NULL) {
        free(value->data);
        PyErr_NoMemory();
        return 0;
    }
    return 1;
}

static int unbox_bytes(PyObject *object, ArrayValue *value) {
    if (!PyBytes_Check(object)) {
        return 0;
    }
    value->memory = hold_object(object, PyBytes_AsString(object));
    if (value->memory == NULL) {
        return 0;
    }
    value->data = PyBytes_AsString(object);
    value->count = PyBytes_Size(object);
    value->itemsize = value->extents[1] = 1;
    value->extents[0] = value->count;
    return 1;
}

int unbox(Plan *plan, const Node *node, PyObject *object, char *value) {
    switch ((enum Kind)node->kind) {
    case KIND_NONE:
        return object == Py_None;
    case KIND_BOOL:
        return unbox_bool(object, value);
    case KIND_SIGNED:
    case KIND_UNSIGNED:
        return unbox_integer(node, object, value);
    case KIND_FLOAT:
        return unbox_float(node, object, value);
    case KIND_COMPLEX:
        return unbox_complex(node, object, value);
    case KIND_OPTIONAL:
        return unbox_optional(plan, node, object, value);
    case KIND_TUPLE:
    case KIND_NAMED_TUPLE:
        return unbox_tuple(plan, node, object, value);
    case KIND_ARRAY:
        return unbox_array(plan, node, object, (ArrayValue *)value);
    case KIND_TEXT:
        return unbox_text(node, object, (TextValue *)value);
    case KIND_BYTES:
        return unbox_bytes(object, (ArrayValue *)value);
    case KIND_LIST:
        return unbox_list(plan, node, object, (ListValue *)value);
    case KIND_DATE:
        return unbox_date(plan, node, object, value);
    case KIND_RECORD:
        return unbox_record(plan, node, object, (RecordValue *)value);
    case KIND_ENUM:
        return unbox_enum(plan, node, object, value);
    case KIND_TYPED_LIST:
    case KIND_DICTIONARY:
    case KIND_SET:
        return unbox_container(plan, node, object, (ListValue *)value);
    case KIND_FIXED_TEXT:
    case KIND_FIXED_BYTES:
        return 0; /* results only */
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------------- the whole of a call */

void drop(const Plan *plan, const Node *node, char *value) {
    switch ((enum Kind)node->kind) {
    case KIND_OPTIONAL:
        if (value[node->detail] & 1) {
            drop(plan, &plan->nodes[node->first], value);
        }
        return;
    case KIND_TUPLE:
    case KIND_NAMED_TUPLE:
        for (uint32_t i = 0; i < node->count; i++) {
            const Node *item = &plan->nodes[node->first + i];
            drop(plan, item, value + item->offset);
        }
        return;
    case KIND_TEXT:
        release_block(((TextValue *)value)->memory);
        return;
    case KIND_ARRAY:
    case KIND_BYTES:
    case KIND_LIST:
        release_block(*(MemInfo **)value);
        return;
    case KIND_TYPED_LIST:
    case KIND_DICTIONARY:
    case KIND_SET:
        drop_container(*(MemInfo **)value);
        return;
    default:
        return;
    }
}

/* Return the description of an argument for messages; NULL without an exception if even that fails. */
static PyObject *describe_argument(const Node *node, PyObject *object) {
    PyObject *shown = NULL;
    if (PyTuple_Check(object) || PyList_Check(object)) {
        shown = PyUnicode_FromFormat("%.60R", object);
    }
    else if (node->kind == KIND_ARRAY && PyObject_HasAttrString(object, "dtype")) {
        PyObject *dtype = PyObject_GetAttrString(object, "dtype");
        PyObject *shape = PyObject_GetAttrString(object, "shape");
        PyObject *strides = PyObject_GetAttrString(object, "strides");
        if (dtype != NULL && shape != NULL && strides != NULL) {
            shown = PyUnicode_FromFormat("an array of %S, shape %S, strides %S", dtype, shape, strides);
        }
        Py_XDECREF(dtype);
        Py_XDECREF(shape);
        Py_XDECREF(strides);
    }
    if (shown == NULL) {
        PyErr_Clear();
        shown = PyType_GetName(Py_TYPE(object));
    }
    if (shown == NULL) {
        PyErr_Clear();
    }
    return shown;
}

/* Raise an exception for an argument that does not fit. An exception with another cause stays. */
static void raise_mismatch(const Plan *plan, const Node *node, PyObject *object) {
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_OverflowError)
            && !PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_BufferError)) {
            return;
        }
    }
    PyObject *class = PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError) ? PyExc_OverflowError
        : node->kind == KIND_ARRAY                                                    ? buffer_error
                                                                                      : PyExc_TypeError;
    PyErr_Clear();
    PyObject *described = describe_argument(node, object);
    PyErr_Format(class, "%s(): %s must be %s, not %V", plan->function, text_of(plan, node->name), text_of(plan, node->expected),
                 described, "an object of this type");
    Py_XDECREF(described);
}

static void drop_parameter(const Plan *plan, const Node *node, char *value) {
    if (node->kind != KIND_RECORD) {
        drop(plan, node, value);
        return;
    }
    Py_buffer *view = ((RecordValue *)value)->view;
    if (view != NULL) {
        PyBuffer_Release(view);
        free(view);
    }
}

static void drop_parameters(const Plan *plan, uint32_t count, void *const *places) {
    for (uint32_t i = 0; i < count; i++) {
        drop_parameter(plan, &plan->nodes[i], places[i]);
    }
}

/* Convert the arguments. Return 0 with an exception if one of them does not fit. */
int enter(Plan *plan, PyObject *const *objects, void *const *places) {
    for (uint32_t i = 0; i < plan->parameters; i++) {
        const Node *node = &plan->nodes[i];
        memset(places[i], 0, node->size);
        if (!unbox(plan, node, objects[i], places[i])) {
            raise_mismatch(plan, node, objects[i]);
            drop_parameters(plan, i + 1, places);
            return 0;
        }
    }
    return 1;
}

/* Write changes back to lists, and release the references of the values. A present exception stays. */
void leave(Plan *plan, PyObject *const *Py_UNUSED(objects), void *const *places) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    for (uint32_t i = 0; i < plan->parameters; i++) {
        if (!reflect(plan, &plan->nodes[i], places[i])) {
            break;
        }
    }
    if (type != NULL || !PyErr_Occurred()) {
        PyErr_Restore(type, value, traceback);
    }
    drop_parameters(plan, plan->parameters, places);
}
