/* The last step of a load: filling slots in the memory of images, together with the tables that record it. */
#include "runtime.h"

#include <string.h>

#define WORD sizeof(uint64_t)

/* One store: address, size, and the bytes, padded to a multiple of a word. */
typedef struct {
    uint64_t address;
    uint64_t size;
} StoreHead;

/* Other threads may be running the code that reads a slot, so a slot with a pointer is written by one store. */
static void store_bytes(void *address, const char *data, size_t size) {
    if (size == WORD && (uintptr_t)address % WORD == 0) {
        uint64_t value;
        memcpy(&value, data, WORD);
        __atomic_store_n((uint64_t *)address, value, __ATOMIC_RELEASE);
    } else {
        memcpy(address, data, size);
    }
}

/* Whether `writes` consists of whole stores. The caller made it: this guards against mistakes, not against malice. */
static int writes_are_whole(const char *writes, size_t size) {
    while (size >= sizeof(StoreHead)) {
        StoreHead head;
        memcpy(&head, writes, sizeof head);
        const size_t left = size - sizeof head;
        if (head.size > left || (head.size + WORD - 1) / WORD * WORD > left) {
            return 0;
        }
        const size_t whole = sizeof head + (head.size + WORD - 1) / WORD * WORD;
        writes += whole;
        size -= whole;
    }
    return size == 0;
}

static void store_all(const char *writes, size_t size) {
    for (const char *at = writes, *end = writes + size; at < end;) {
        StoreHead head;
        memcpy(&head, at, sizeof head);
        at += sizeof head;
        store_bytes((void *)(uintptr_t)head.address, at, head.size);
        at += (head.size + WORD - 1) / WORD * WORD;
    }
}

/* require_writable(image: Image, writes: bytes) -> None
 * Raises IndexError if one of the stores (see commit()) is outside of the image's writable memory: the records of a
 * module may say anything. */
PyObject *require_writable(PyObject *module, PyObject *args) {
    PyObject *image, *writes;
    if (!PyArg_ParseTuple(args, "OS:require_writable", &image, &writes) || table_of(module_state(module), image) == NULL) {
        return NULL;
    }
    const char *at = PyBytes_AsString(writes);
    const size_t size = (size_t)PyBytes_Size(writes);
    if (!writes_are_whole(at, size)) {
        PyErr_SetString(PyExc_ValueError, "require_writable() takes a sequence of whole stores");
        return NULL;
    }
    for (const char *end = at + size; at < end;) {
        StoreHead head;
        memcpy(&head, at, sizeof head);
        if (!image_can_be_written(image, head.address, head.size)) {
            PyErr_SetString(PyExc_IndexError, "a slot is outside of the writable memory of the image");
            return NULL;
        }
        at += sizeof head + (head.size + WORD - 1) / WORD * WORD;
    }
    Py_RETURN_NONE;
}

/* commit(writes: bytes, updates: tuple[dict, ...]) -> None
 * `updates` is a sequence of pairs of dicts; the second of a pair is merged into the first.
 *
 * This is one call, so that no signal handler and, if there is a GIL, no other thread sees half of it (the keys of the
 * tables are str, bytes and int: merging runs no Python code). The stores come first because they cannot fail. A slot
 * that is filled but not recorded is filled again by the next load; a slot that is recorded but not filled would be trusted. */
PyObject *commit(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *writes, *updates;
    if (!PyArg_ParseTuple(args, "SO!:commit", &writes, &PyTuple_Type, &updates)) {
        return NULL;
    }
    const char *bytes = PyBytes_AsString(writes);
    const size_t size = (size_t)PyBytes_Size(writes);
    const Py_ssize_t count = PyTuple_Size(updates);
    if (!writes_are_whole(bytes, size) || count % 2 != 0) {
        PyErr_SetString(PyExc_ValueError, "commit() takes a sequence of whole stores and pairs of dicts");
        return NULL;
    }
    store_all(bytes, size);
    for (Py_ssize_t i = 0; i < count; i += 2) {
        if (PyDict_Update(PyTuple_GetItem(updates, i), PyTuple_GetItem(updates, i + 1)) != 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* Removes the rows of an object that is gone: `self` is (remove, table, key, table, key, ...). */
static PyObject *remove_rows(PyObject *self, PyObject *Py_UNUSED(weak)) {
    for (Py_ssize_t i = 1; i + 1 < PyTuple_Size(self); i += 2) {
        PyObject *done = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 0), PyTuple_GetItem(self, i), PyTuple_GetItem(self, i + 1), NULL);
        if (done == NULL) {
            return NULL;
        }
        Py_DECREF(done);
    }
    Py_RETURN_NONE;
}

/* weak_row(object, remove, table, key, ...) -> weakref
 * A weak reference for rows of tables. When the object is gone, remove(table, key) is called for each row. No module is needed then: when the
 * interpreter ends, the last objects outlive the globals of Python files. */
PyObject *weak_row(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    static PyMethodDef forget = {"forget", remove_rows, METH_O, NULL};
    if (count < 4 || count % 2 != 0) {
        PyErr_SetString(PyExc_TypeError, "weak_row() takes an object, a function, and pairs of a table and a key");
        return NULL;
    }
    PyObject *rows = PyTuple_New(count - 1);
    for (Py_ssize_t i = 1; rows != NULL && i < count; i++) {
        if (PyTuple_SetItem(rows, i - 1, Py_NewRef(args[i])) < 0) {
            Py_CLEAR(rows);
        }
    }
    PyObject *callback = rows != NULL ? PyCFunction_NewEx(&forget, rows, NULL) : NULL;
    Py_XDECREF(rows);
    PyObject *weak = callback != NULL ? PyWeakref_NewRef(args[0], callback) : NULL;
    Py_XDECREF(callback);
    return weak;
}

/* A place in an image that contains the address of an imported symbol, plus a number. */
typedef struct {
    int64_t distance; /* from the module table */
    int64_t addend;
} Place;

/* One import of an image: its slot or places there, and the address that it is bound to. */
typedef struct {
    char *slot; /* contains the address; NULL for an import with places */
    const char *places;
    size_t count; /* the number of places */
    uint64_t address;
} Binding;

/* Reads (slot number or -1, places, image of the provider, number of the symbol there). Returns 0, or -1 with an exception. */
static int read_binding(RuntimeState *state, PyObject *image, PyObject *item, Binding *binding) {
    PyObject *places, *provider;
    Py_ssize_t slot, number;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "bind() takes a list of tuples");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "nSOn:bind", &slot, &places, &provider, &number)) {
        return -1;
    }
    binding->address = (uint64_t)(uintptr_t)symbol_address(state, provider, number);
    binding->slot = slot >= 0 ? symbol_address(state, image, slot) : NULL;
    binding->places = PyBytes_AsString(places);
    binding->count = slot >= 0 ? 1 : (size_t)PyBytes_Size(places) / sizeof(Place);
    return binding->address == 0 || (slot >= 0 && binding->slot == NULL) ? -1 : 0;
}

/* Writes the stores of one import; returns the position for the next store. */
static char *write_binding(const ModuleTable *table, const Binding *binding, char *to) {
    for (size_t i = 0; i < binding->count; i++) {
        Place at = {binding->slot - (const char *)table, 0};
        if (binding->slot == NULL) {
            memcpy(&at, binding->places + i * sizeof at, sizeof at);
        }
        const StoreHead head = {(uint64_t)(uintptr_t)table + (uint64_t)at.distance, WORD};
        const uint64_t value = binding->address + (uint64_t)at.addend;
        memcpy(to, &head, sizeof head);
        memcpy(to + sizeof head, &value, WORD);
        to += sizeof head + WORD;
    }
    return to;
}

/* bind(image: Image, imports: list[tuple[int, bytes, Image, int]]) -> bytes
 * Returns the stores, for commit(), that bind imports of the image. An import is the number of its slot (or -1) and its places, the image
 * that provides it, and its number there. Raises IndexError if an image has no symbol with that number. */
PyObject *bind_imports(PyObject *module, PyObject *args) {
    RuntimeState *state = module_state(module);
    PyObject *image, *imports;
    if (!PyArg_ParseTuple(args, "OO!:bind", &image, &PyList_Type, &imports)) {
        return NULL;
    }
    const ModuleTable *table = table_of(state, image);
    PyObject *items = table != NULL ? PyList_AsTuple(imports) : NULL; /* a copy, which no other thread changes */
    if (items == NULL) {
        return NULL;
    }
    PyObject *result = NULL;
    const Py_ssize_t count = PyTuple_Size(items);
    size_t stores = 0;
    Binding *bindings = PyMem_Malloc((size_t)(count + 1) * sizeof *bindings);
    if (bindings == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; bindings != NULL && i < count; i++) {
        if (read_binding(state, image, PyTuple_GetItem(items, i), &bindings[i]) < 0) {
            goto done;
        }
        stores += bindings[i].count;
    }
    if (bindings != NULL) {
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(stores * (sizeof(StoreHead) + WORD)));
    }
    if (result != NULL) {
        char *to = PyBytes_AsString(result);
        for (Py_ssize_t i = 0; i < count; i++) {
            to = write_binding(table, &bindings[i], to);
        }
    }
done:
    PyMem_Free(bindings);
    Py_DECREF(items);
    return result;
}

/* peek(address: int, size: int) -> bytes; the caller knows that the memory is there */
PyObject *peek(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *number;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "On:peek", &number, &size)) {
        return NULL;
    }
    const char *address = PyLong_AsVoidPtr(number);
    if (address == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "there is nothing at address 0");
        }
        return NULL;
    }
    return PyBytes_FromStringAndSize(address, size);
}

/* buffer_address(object) -> int; the caller keeps the object alive and does not resize it */
PyObject *buffer_address(PyObject *Py_UNUSED(module), PyObject *object) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0) {
        return NULL;
    }
    void *address = view.buf;
    PyBuffer_Release(&view);
    return PyLong_FromVoidPtr(address);
}
