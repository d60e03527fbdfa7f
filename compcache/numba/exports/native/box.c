/* Converts Numba's values to results. */
#include "objects.h"

#include <string.h>

static PyObject *box_signed(const char *value, uint32_t size) {
    int64_t number = 0;
    switch (size) {
    case 1: number = *(const int8_t *)value; break;
    case 2: number = *(const int16_t *)value; break;
    case 4: number = *(const int32_t *)value; break;
    default: number = *(const int64_t *)value;
    }
    return PyLong_FromLongLong(number);
}

static PyObject *box_unsigned(const char *value, uint32_t size) {
    uint64_t number = 0;
    memcpy(&number, value, size); /* all platforms of Numba are little-endian */
    return PyLong_FromUnsignedLongLong(number);
}

static double read_float(const char *value, uint32_t size) {
    return size == sizeof(float) ? (double)*(const float *)value : *(const double *)value;
}

static PyObject *box_tuple(Plan *plan, const Node *node, char *value) {
    PyObject *tuple = PyTuple_New(node->count);
    for (uint32_t i = 0; tuple != NULL && i < node->count; i++) {
        const Node *item = &plan->nodes[node->first + i];
        PyObject *made = box(plan, item, value + item->offset);
        if (made == NULL || PyTuple_SetItem(tuple, i, made) != 0) {
            Py_CLEAR(tuple);
        }
    }
    if (tuple == NULL || node->kind == KIND_TUPLE) {
        return tuple;
    }
    PyObject *class = class_of(plan, node);
    PyObject *named = class != NULL ? PyObject_Call(class, tuple, NULL) : NULL;
    Py_DECREF(tuple);
    return named;
}

/* Numba's texts have the width of their widest character. Lone surrogates count as characters. */
static PyObject *box_text(const TextValue *value) {
    if (value->parent != NULL) {
        return Py_NewRef(value->parent);
    }
    if (value->width == 1) {
        return PyUnicode_DecodeLatin1(value->data, value->length, NULL);
    }
    if (value->width == 4) {
        return PyUnicode_DecodeUTF32(value->data, 4 * value->length, "surrogatepass", &(int){-1});
    }
    uint32_t *wide = PyMem_Malloc((size_t)(value->length + 1) * sizeof *wide);
    if (wide == NULL) {
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < value->length; i++) {
        wide[i] = ((const uint16_t *)value->data)[i];
    }
    PyObject *text = PyUnicode_DecodeUTF32((const char *)wide, 4 * value->length, "surrogatepass", &(int){-1});
    PyMem_Free(wide);
    return text;
}

static PyObject *box_enum(Plan *plan, const Node *node, char *value) {
    PyObject *class = class_of(plan, node);
    PyObject *number = class != NULL ? box(plan, &plan->nodes[node->first], value) : NULL;
    PyObject *member = number != NULL ? PyObject_CallFunctionObjArgs(class, number, NULL) : NULL;
    Py_XDECREF(number);
    return member;
}

/* Return an element of an array of fixed-size texts or bytes without the trailing zeros. */
static PyObject *box_fixed_text(const Node *node, const uint32_t *characters) {
    Py_ssize_t length = node->detail;
    while (length > 0 && characters[length - 1] == 0) {
        length--;
    }
    return PyUnicode_DecodeUTF32((const char *)characters, 4 * length, "surrogatepass", &(int){-1});
}

static PyObject *box_fixed_bytes(const Node *node, const char *bytes) {
    Py_ssize_t length = node->detail;
    while (length > 0 && bytes[length - 1] == 0) {
        length--;
    }
    return PyBytes_FromStringAndSize(bytes, length);
}

PyObject *box(Plan *plan, const Node *node, char *value) {
    switch ((enum Kind)node->kind) {
    case KIND_NONE:
        Py_RETURN_NONE;
    case KIND_BOOL:
        return PyBool_FromLong(*value & 1);
    case KIND_SIGNED:
        return box_signed(value, node->size);
    case KIND_UNSIGNED:
        return box_unsigned(value, node->size);
    case KIND_FLOAT:
        return PyFloat_FromDouble(read_float(value, node->size));
    case KIND_COMPLEX:
        return PyComplex_FromDoubles(read_float(value, node->size / 2), read_float(value + node->size / 2, node->size / 2));
    case KIND_OPTIONAL:
        if (value[node->detail] & 1) {
            return box(plan, &plan->nodes[node->first], value);
        }
        Py_RETURN_NONE;
    case KIND_TUPLE:
    case KIND_NAMED_TUPLE:
        return box_tuple(plan, node, value);
    case KIND_ARRAY:
        return box_array(plan, node, (ArrayValue *)value);
    case KIND_TEXT:
        return box_text((const TextValue *)value);
    case KIND_BYTES:
        return PyBytes_FromStringAndSize(((const ArrayValue *)value)->data, ((const ArrayValue *)value)->count);
    case KIND_LIST:
        return box_list(plan, node, (const ListValue *)value);
    case KIND_DATE:
    case KIND_RECORD:
        return box_scalar(plan, node, value);
    case KIND_ENUM:
        return box_enum(plan, node, value);
    case KIND_FIXED_TEXT:
        return box_fixed_text(node, (const uint32_t *)value);
    case KIND_FIXED_BYTES:
        return box_fixed_bytes(node, value);
    case KIND_TYPED_LIST:
    case KIND_DICTIONARY:
    case KIND_SET:
        return box_container(plan, node, (const ListValue *)value);
    }
    PyErr_SetString(PyExc_SystemError, "the plan of an exported kernel contains an unknown kind of value; export the kernel again");
    return NULL;
}

/* Return the object for a result; NULL with an exception. The references of the result are released. */
PyObject *box_result(Plan *plan, void *value) {
    const Node *node = &plan->nodes[plan->result];
    PyObject *object = box(plan, node, value);
    drop(plan, node, value);
    return object;
}
