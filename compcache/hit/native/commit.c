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
 * tables are str, bytes and int: merging runs no Python code). The call creates no tuple, whose allocation could run a garbage
 * collection between the caller's last check and this. The stores come first because they cannot fail. A slot
 * that is filled but not recorded is filled again by the next load; a slot that is recorded but not filled would be trusted. */
PyObject *commit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    const int has_types = count == 2 && PyBytes_Check(args[0]) && PyTuple_Check(args[1]);
    const char *bytes = has_types ? PyBytes_AsString(args[0]) : NULL;
    const size_t size = has_types ? (size_t)PyBytes_Size(args[0]) : 0;
    if (!has_types || !writes_are_whole(bytes, size) || PyTuple_Size(args[1]) % 2 != 0) {
        PyErr_SetString(PyExc_ValueError, "commit() takes a sequence of whole stores and a tuple of pairs of dicts");
        return NULL;
    }
    store_all(bytes, size);
    for (Py_ssize_t i = 0; i < PyTuple_Size(args[1]); i += 2) {
        if (PyDict_Update(PyTuple_GetItem(args[1], i), PyTuple_GetItem(args[1], i + 1)) != 0) {
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

/* The stores that bind() returns. */
typedef struct {
    char *at;
    size_t size, room;
} Stores;

static int append_store(Stores *stores, uint64_t address, uint64_t value) {
    const StoreHead head = {address, WORD};
    if (stores->room - stores->size < sizeof head + WORD) {
        const size_t room = 2 * stores->room + 64 * (sizeof head + WORD);
        char *at = PyMem_Realloc(stores->at, room);
        if (at == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        stores->at = at;
        stores->room = room;
    }
    memcpy(stores->at + stores->size, &head, sizeof head);
    memcpy(stores->at + stores->size + sizeof head, &value, WORD);
    stores->size += sizeof head + WORD;
    return 0;
}

/* Appends the stores that bind a use of the image (runtime.h) to an address. Returns 0, or -1 with an exception. */
static int bind_use(RuntimeState *state, PyObject *image, PyObject *use, const char *address, Stores *stores) {
    if (require_use(use) < 0) {
        return -1;
    }
    PyObject *key = PyTuple_GetItem(use, USE_KEY), *places = PyTuple_GetItem(use, USE_PLACES);
    const uint64_t value = (uint64_t)(uintptr_t)address;
    if (PyLong_Check(key)) {
        const Py_ssize_t number = PyLong_AsSsize_t(key);
        const char *slot = number == -1 && PyErr_Occurred() ? NULL : symbol_address(state, image, number);
        return slot != NULL ? append_store(stores, (uint64_t)(uintptr_t)slot, value) : -1;
    }
    const char *table = (const char *)table_of(state, image);
    int status = table != NULL ? 0 : -1;
    for (size_t at = 0; status == 0 && at + sizeof(Place) <= (size_t)PyBytes_Size(places); at += sizeof(Place)) {
        Place place;
        memcpy(&place, PyBytes_AsString(places) + at, sizeof place);
        status = append_store(stores, (uint64_t)(uintptr_t)table + (uint64_t)place.distance, value + (uint64_t)place.addend);
    }
    return status;
}

/* Appends the stores that bind a group of uses of the image. Returns 0, or -1 with an exception. */
static int bind_group(RuntimeState *state, PyObject *image, PyObject *group, Stores *stores) {
    PyObject *provider, *use_list, *number_list;
    if (!PyTuple_Check(group)) {
        PyErr_SetString(PyExc_TypeError, "bind() takes a list of tuples");
        return -1;
    }
    if (!PyArg_ParseTuple(group, "OO!O!:bind", &provider, &PyList_Type, &use_list, &PyList_Type, &number_list)) {
        return -1;
    }
    PyObject *uses = PyList_AsTuple(use_list), *numbers = uses != NULL ? PyList_AsTuple(number_list) : NULL; /* copies: see uses_by_module() */
    int status = numbers != NULL ? 0 : -1;
    if (status == 0 && PyTuple_Size(uses) != PyTuple_Size(numbers)) {
        PyErr_SetString(PyExc_ValueError, "bind() takes a number for each use");
        status = -1;
    }
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(uses); i++) {
        const Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GetItem(numbers, i));
        const char *address = number == -1 && PyErr_Occurred() ? NULL : symbol_address(state, provider, number);
        status = address != NULL ? bind_use(state, image, PyTuple_GetItem(uses, i), address, stores) : -1;
    }
    Py_XDECREF(uses);
    Py_XDECREF(numbers);
    return status;
}

/* bind(image: Image, groups: list[tuple[Image, list, list]]) -> bytes
 * Returns the stores, for commit(), that bind uses of the image (runtime.h). A group is the image that provides functions, the uses, and
 * the number of each function in that image. Raises IndexError if an image has no symbol with that number. */
PyObject *bind_imports(PyObject *module, PyObject *args) {
    RuntimeState *state = module_state(module);
    PyObject *image, *list;
    if (!PyArg_ParseTuple(args, "OO!:bind", &image, &PyList_Type, &list)) {
        return NULL;
    }
    PyObject *groups = table_of(state, image) != NULL ? PyList_AsTuple(list) : NULL;
    Stores stores = {NULL, 0, 0};
    int status = groups != NULL ? 0 : -1;
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(groups); i++) {
        status = bind_group(state, image, PyTuple_GetItem(groups, i), &stores);
    }
    PyObject *result = status == 0 ? PyBytes_FromStringAndSize(stores.at, (Py_ssize_t)stores.size) : NULL;
    PyMem_Free(stores.at);
    Py_XDECREF(groups);
    return result;
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
