/* The content of a module's section of records, as a hint: Python checks a record itself before using it. */
#include "runtime.h"

#include "formats.h"

/* Returns the name in the payload of a function's record; NULL without an exception if the payload is no such record, or if its name is
 * not text. */
static PyObject *name_in(Bytes payload) {
    FunctionFields found;
    if (decode_function_record(payload, &found) != NULL) {
        return NULL;
    }
    PyObject *name = PyUnicode_DecodeUTF8((const char *)found.name.at, (Py_ssize_t)found.name.size, "surrogatepass");
    if (name == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
    }
    return name;
}

/* Adds a function by its name, or only the name to `repeated` if it is known. Returns 0, or -1 with an exception. */
static int add_function(PyObject *functions, PyObject *repeated, PyObject *name, PyObject *module_id, size_t offset) {
    const int known = PyDict_Contains(functions, name);
    if (known != 0) {
        return known < 0 ? -1 : PySet_Add(repeated, name);
    }
    PyObject *place = Py_BuildValue("(On)", module_id, (Py_ssize_t)offset);
    const int status = place != NULL ? PyDict_SetItem(functions, name, place) : -1;
    Py_XDECREF(place);
    return status;
}

/* list_functions(section: bytes, module_id: bytes, functions: dict[str, tuple[bytes, int]], repeated: set[str]) -> None
 * Adds (module_id, offset) of each function's record by its name; names that are known already go to `repeated`. Stops at a damaged part of
 * the section. Checksums are not compared: the reader of a record does that. */
PyObject *list_functions(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *section, *module_id, *functions, *repeated;
    if (!PyArg_ParseTuple(args, "SSO!O!:list_functions", &section, &module_id, &PyDict_Type, &functions, &PySet_Type, &repeated)) {
        return NULL;
    }
    const uint8_t *start = (const uint8_t *)PyBytes_AsString(section);
    const size_t size = (size_t)PyBytes_Size(section);
    for (size_t at = 0; size - at > FRAME_HEAD_BYTES;) {
        const size_t length = number_at(start + at), left = size - at - FRAME_HEAD_BYTES;
        if (length > left) {
            break;
        }
        PyObject *name = name_in((Bytes){start + at + FRAME_HEAD_BYTES, length});
        if (name == NULL && PyErr_Occurred()) {
            return NULL;
        }
        if (name != NULL) {
            const int status = add_function(functions, repeated, name, module_id, at);
            Py_DECREF(name);
            if (status < 0) {
                return NULL;
            }
        }
        at += FRAME_HEAD_BYTES + length;
    }
    Py_RETURN_NONE;
}
