/* Encodes the types of arguments as bytes. Two arguments have the same bytes only if Numba gives them the same type. */
#include "dispatch.h"
#include "../../../hit/native/numpy_arrays.h"

#include <string.h>

#define MOST_SCALAR_TYPES 24
#define DEEPEST 8

typedef struct {
    PyObject_HEAD
    PyTypeObject *scalar_type;
    char kind;
    char letter;
    char byte_order;
    char former_flags;
    int number;
} Descriptor;

static PyTypeObject *array_type;
static struct {
    PyTypeObject *type;
    unsigned char code;
} scalar_types[MOST_SCALAR_TYPES];
static int scalar_count;

PyObject *set_array_types(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *array, *scalars, *type, *code;
    if (!PyArg_ParseTuple(args, "O!O!:set_array_types", &PyType_Type, &array, &PyDict_Type, &scalars)) {
        return NULL;
    }
    Py_ssize_t at = 0;
    int count = 0;
    while (PyDict_Next(scalars, &at, &type, &code) && count < MOST_SCALAR_TYPES) {
        scalar_types[count].type = (PyTypeObject *)Py_NewRef(type); /* NumPy's types live as long as the process */
        scalar_types[count].code = (unsigned char)PyLong_AsLong(code);
        count++;
    }
    if (PyErr_Occurred()) {
        return NULL;
    }
    scalar_count = count;
    array_type = (PyTypeObject *)Py_NewRef(array);
    Py_RETURN_NONE;
}

static int append_byte(TypeKey *key, unsigned char byte) {
    if (key->size >= MOST_KEY_BYTES) {
        return 0;
    }
    key->bytes[key->size++] = byte;
    return 1;
}

/* Append the type of an array of booleans, numbers or complex numbers of Numba's sizes, in native byte order. Return 0 for other arrays. */
static int append_array(TypeKey *key, const Array *array) {
    const Descriptor *descriptor = (const Descriptor *)array->descriptor;
    const int number = descriptor->number;
    const int known = (number >= 0 && number <= 12) || number == 14 || number == 15;
    if (!known || (descriptor->byte_order != '=' && descriptor->byte_order != '|') || array->ndim > 32
        || (array->flags & NP_ALIGNED) == 0 || key->size + 4 > MOST_KEY_BYTES) {
        return 0;
    }
    const int order = array->flags & NP_C_CONTIGUOUS ? 'C' : array->flags & NP_F_CONTIGUOUS ? 'F' : 'A';
    unsigned char *to = key->bytes + key->size;
    to[0] = (unsigned char)(array->flags & NP_WRITEABLE ? 'A' : 'R');
    to[1] = (unsigned char)number;
    to[2] = (unsigned char)array->ndim;
    to[3] = (unsigned char)order;
    key->size += 4;
    return 1;
}

static int append_nested(TypeKey *key, PyObject *value, int depth);

/* Append the type of a tuple, or of an object of a derived class. The latter is represented by the address of the class, which the owner of
 * the key keeps alive. */
static int append_tuple(TypeKey *key, PyObject *value, int depth) {
    const Py_ssize_t count = PyTuple_Size(value);
    PyTypeObject *type = Py_TYPE(value);
    if (depth >= DEEPEST || count > 255 || key->size + 2 + sizeof type > MOST_KEY_BYTES) {
        return 0;
    }
    append_byte(key, type == &PyTuple_Type ? 'T' : 'M');
    append_byte(key, (unsigned char)count);
    if (type != &PyTuple_Type) {
        memcpy(key->bytes + key->size, &type, sizeof type);
        key->size += sizeof type;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!append_nested(key, PyTuple_GetItem(value, i), depth + 1)) {
            return 0;
        }
    }
    return 1;
}

static int append_scalar(TypeKey *key, PyTypeObject *type) {
    for (int i = 0; i < scalar_count; i++) {
        if (scalar_types[i].type == type) {
            return append_byte(key, scalar_types[i].code);
        }
    }
    return 0;
}

/* Append the address of an object that has its own type in Numba. The owner of the key keeps the object alive. */
static int append_address(TypeKey *key, char mark, const void *address) {
    if (key->size + 1 + sizeof address > MOST_KEY_BYTES) {
        return 0;
    }
    append_byte(key, (unsigned char)mark);
    memcpy(key->bytes + key->size, &address, sizeof address);
    key->size += sizeof address;
    return 1;
}

/* Append the type of an array whose class derives from NumPy's. It contains the address of the class, which the owner of the key keeps
 * alive. */
static int append_derived(TypeKey *key, PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (array_type == NULL || !PyType_IsSubtype(type, array_type)) {
        return 0;
    }
    return append_address(key, 'S', type) && append_array(key, (const Array *)value);
}

static int append_nested(TypeKey *key, PyObject *value, int depth) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyFloat_Type) {
        return append_byte(key, 'd');
    }
    if (type == &PyLong_Type) {
        int overflow;
        PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow ? 0 : append_byte(key, 'i');
    }
    if (type == array_type && array_type != NULL) {
        return append_array(key, (const Array *)value);
    }
    if (type == &PyBool_Type) {
        return append_byte(key, 'b');
    }
    if (value == Py_None) {
        return append_byte(key, 'N');
    }
    if (PyTuple_Check(value)) {
        return append_tuple(key, value, depth);
    }
    if (type == &PyUnicode_Type) {
        return append_byte(key, 's');
    }
    if (type == &PyComplex_Type) {
        return append_byte(key, 'D');
    }
    if (type == &PyBytes_Type) {
        return append_byte(key, 'y');
    }
    if (type == function_type && function_type != NULL) {
        return append_address(key, 'L', value);
    }
    return append_scalar(key, type) || append_derived(key, value);
}

int append_type(TypeKey *key, PyObject *value) {
    return value == NULL ? append_byte(key, 'o') : append_nested(key, value, 0);
}

/* type_of(value) -> bytes or None: the bytes for one argument; None if no bytes represent its type. */
PyObject *type_of(PyObject *Py_UNUSED(module), PyObject *value) {
    TypeKey key;
    key.size = 0;
    if (!append_type(&key, value)) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)key.bytes, (Py_ssize_t)key.size);
}
