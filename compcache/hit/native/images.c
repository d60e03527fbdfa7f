/* Images: libraries that are mapped into the process, and the addresses in them. */
#include "runtime.h"

#include <dlfcn.h>
#include <string.h>

typedef struct {
    PyObject_HEAD
    void *handle;             /* of dlopen, or NULL where something else has mapped the code */
    const ModuleTable *table; /* inside the image; NULL for a library that is no module of a cache */
    PyObject *owner;          /* what keeps the bytes of the image valid: an object of the caller's, or None */
} Image;

/* ------------------------------------------------------------------------------------------------ opening */

/* The 16 bytes of a key; NULL with an exception where the object is no such key. */
static const char *key_bytes(PyObject *object) {
    if (!PyBytes_Check(object) || PyBytes_Size(object) != KEY_SIZE) {
        PyErr_Format(PyExc_ValueError, "the key of a module is %d bytes", KEY_SIZE);
        return NULL;
    }
    return PyBytes_AsString(object);
}

/* Whether a table is that of the module with this key, for this runtime: 0 or -1 with an exception.
 * Everything that is read through the table relies on this. */
static int require_table(const ModuleTable *table, PyObject *key) {
    const char *bytes = key_bytes(key);
    if (bytes == NULL) {
        return -1;
    }
    if (table == NULL || table->magic != TABLE_MAGIC || table->abi_version != COMPCACHE_ABI_VERSION
        || memcmp(table->key, bytes, KEY_SIZE) != 0) {
        PyErr_SetString(PyExc_ValueError, "the library has no compcache module table, or another one");
        return -1;
    }
    return 0;
}

/* Takes over `handle`, also when it fails. */
static PyObject *new_image(RuntimeState *state, void *handle, const ModuleTable *table, PyObject *owner) {
    Image *self = (Image *)PyType_GenericAlloc(state->image_type, 0);
    if (self == NULL) {
        if (handle != NULL) {
            dlclose(handle);
        }
        return NULL;
    }
    self->handle = handle;
    self->table = table;
    self->owner = Py_NewRef(owner);
    return (PyObject *)self;
}

static void *open_library(const char *path) {
    void *handle;
    /* Constructors of a library may want the GIL, and dlopen in other threads waits for them. */
    Py_BEGIN_ALLOW_THREADS
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    Py_END_ALLOW_THREADS
    if (handle == NULL) {
        const char *reason = dlerror();
        PyErr_Format(PyExc_OSError, "%s", reason != NULL ? reason : "dlopen failed without a reason");
    }
    return handle;
}

/* open_image(path: bytes, key: bytes | None, owner: object) -> Image
 * With None for the key any library will do (native symbols of a named library). */
PyObject *open_image(PyObject *module, PyObject *args) {
    PyObject *path, *key, *owner;
    if (!PyArg_ParseTuple(args, "SOO:open_image", &path, &key, &owner)) {
        return NULL;
    }
    void *handle = open_library(PyBytes_AsString(path));
    if (handle == NULL) {
        return NULL;
    }
    const ModuleTable *table = NULL;
    if (key != Py_None) {
        table = (const ModuleTable *)dlsym(handle, TABLE_SYMBOL);
        if (require_table(table, key) < 0) {
            dlclose(handle);
            return NULL;
        }
    }
    return new_image(module_state(module), handle, table, owner);
}

/* adopt_image(address: int, key: bytes, owner: object) -> Image; for code that something else has mapped */
PyObject *adopt_image(PyObject *module, PyObject *args) {
    PyObject *address, *key, *owner;
    if (!PyArg_ParseTuple(args, "OSO:adopt_image", &address, &key, &owner)) {
        return NULL;
    }
    const ModuleTable *table = (const ModuleTable *)PyLong_AsVoidPtr(address);
    if (table == NULL && PyErr_Occurred()) {
        return NULL;
    }
    if (require_table(table, key) < 0) {
        return NULL;
    }
    return new_image(module_state(module), NULL, table, owner);
}

/* ---------------------------------------------------------------------------------------------- addresses */

static Image *checked_image(RuntimeState *state, PyObject *object) {
    if (Py_TYPE(object) != state->image_type) {
        PyErr_SetString(PyExc_TypeError, "an argument is not an Image");
        return NULL;
    }
    return (Image *)object;
}

void *symbol_address(RuntimeState *state, PyObject *image, Py_ssize_t index) {
    Image *self = checked_image(state, image);
    if (self == NULL) {
        return NULL;
    }
    if (self->table == NULL) {
        PyErr_SetString(PyExc_TypeError, "the image is not a module of a cache");
        return NULL;
    }
    if (index < 0 || (size_t)index >= self->table->count) {
        PyErr_Format(PyExc_IndexError, "symbol %zd is not in the image's table of %u", index, self->table->count);
        return NULL;
    }
    return (char *)self->table + self->table->offsets[index];
}

/* address(image: Image, index: int) -> int */
PyObject *image_address(PyObject *module, PyObject *args) {
    PyObject *image;
    Py_ssize_t index;
    if (!PyArg_ParseTuple(args, "On:address", &image, &index)) {
        return NULL;
    }
    void *address = symbol_address(module_state(module), image, index);
    return address != NULL ? PyLong_FromVoidPtr(address) : NULL;
}

/* find_symbol(name: bytes, library: Image | None) -> int; 0 where the process, or the library, has none */
PyObject *find_symbol(PyObject *module, PyObject *args) {
    PyObject *name, *library;
    void *handle = RTLD_DEFAULT;
    if (!PyArg_ParseTuple(args, "SO:find_symbol", &name, &library)) {
        return NULL;
    }
    if (library != Py_None) {
        Image *image = checked_image(module_state(module), library);
        if (image == NULL) {
            return NULL;
        }
        handle = image->handle;
    }
    return PyLong_FromVoidPtr(dlsym(handle, PyBytes_AsString(name)));
}

/* ------------------------------------------------------------------------------------------------ the type */

/* Images are not tracked by the garbage collector: nothing that they own refers to what uses them, and an image that
 * is reachable only from garbage must outlive all of it. Their type cannot be taken apart while one lives. */
static void image_dealloc(PyObject *object) {
    Image *self = (Image *)object;
    PyTypeObject *type = Py_TYPE(object);
    const RuntimeState *state = (const RuntimeState *)PyType_GetModuleState(type);
    /* Once the interpreter ends, objects that code in images has made are freed in any order, and what frees them may
     * be in an image. */
    if (self->handle != NULL && state != NULL && !state->ending) {
        dlclose(self->handle);
    }
    Py_XDECREF(self->owner);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyType_Slot image_slots[] = {
    {Py_tp_dealloc, (void *)image_dealloc},
    {0, NULL},
};

PyType_Spec image_spec = {
    .name = "compcache.hit._runtime.Image",
    .basicsize = sizeof(Image),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = image_slots,
};
