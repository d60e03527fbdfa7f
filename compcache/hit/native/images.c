/* Images: libraries that are mapped into the process, and their addresses. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct {
    PyObject_HEAD
    Library *library;         /* NULL if other code has mapped the image */
    const ModuleTable *table; /* inside the image; NULL for a library that is not a cached module */
    PyObject *owner;          /* keeps the bytes of the image valid: an object of the caller's, or None */
    void *file;               /* the whole file that the image was mapped from, readable after unlinking; or NULL */
    size_t file_size;
} Image;

/* ------------------------------------------------------------------------------------------------ opening */

/* Returns the 16 bytes of a key; NULL with an exception if the object is not a key. */
static const char *key_bytes(PyObject *object) {
    if (!PyBytes_Check(object) || PyBytes_Size(object) != KEY_SIZE) {
        PyErr_Format(PyExc_ValueError, "the key of a module must have %d bytes", KEY_SIZE);
        return NULL;
    }
    return PyBytes_AsString(object);
}

/* Checks that a table belongs to the module with this key, and to this version of the runtime. Returns 0, or -1 with an exception.
 * Everything that is read through the table relies on this check. */
static int require_table(const ModuleTable *table, PyObject *key) {
    const char *bytes = key_bytes(key);
    if (bytes == NULL) {
        return -1;
    }
    if (table == NULL || table->magic != TABLE_MAGIC || table->abi_version != COMPCACHE_ABI_VERSION
        || memcmp(table->key, bytes, KEY_SIZE) != 0) {
        PyErr_SetString(PyExc_ValueError, "the library does not have the module table of this module");
        return -1;
    }
    return 0;
}

/* Makes an image. Takes over `library`, even on failure. */
static PyObject *new_image(RuntimeState *state, Library *library, const ModuleTable *table, PyObject *owner) {
    Image *self = (Image *)PyType_GenericAlloc(state->image_type, 0);
    if (self == NULL) {
        if (library != NULL) {
            close_when_possible(library);
        }
        return NULL;
    }
    self->library = library;
    self->table = table;
    self->owner = Py_NewRef(owner);
    self->file = NULL;
    return (PyObject *)self;
}

/* Raises OSError; takes over `reason`. */
static PyObject *cannot_open(const char *path, char *reason) {
    if (reason != NULL) {
        PyErr_Format(PyExc_OSError, "%s", reason);
        free(reason);
    } else {
        PyErr_Format(PyExc_OSError, "%s: no memory, or the file is not open", path);
    }
    return NULL;
}

/* Maps the first `size` bytes of a file, which are read when they are first used; NULL on failure. */
static void *map_file(int descriptor, Py_ssize_t size) {
    void *file = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    return file != MAP_FAILED ? file : NULL;
}

enum { MAP_NEVER = 0, MAP_ALWAYS = 1, MAP_BY_FILE_SYSTEM = 2 };

/* map_image(descriptor: int, path: bytes, key: bytes, size: int = 0, mapping: int = 1) -> Image | None
 * Maps the module in an open file, which may be closed afterwards. `path` is shown by debuggers and in messages. Returns None if
 * another owner in this process has mapped the file already, or if `mapping` rules mapping out: 0 never maps, 1 always, 2 by the kind
 * of the file system. If `size` is given, `stored` can return that many bytes of the file. */
PyObject *map_image(PyObject *module, PyObject *args) {
    PyObject *path_object, *key;
    int descriptor, mapping = MAP_ALWAYS;
    Py_ssize_t size = 0;
    if (!PyArg_ParseTuple(args, "iSO|ni:map_image", &descriptor, &path_object, &key, &size, &mapping)) {
        return NULL;
    }
    if (mapping == MAP_NEVER || (mapping == MAP_BY_FILE_SYSTEM && !can_map(descriptor))) {
        Py_RETURN_NONE;
    }
    const char *path = PyBytes_AsString(path_object);
    Library *library;
    char *reason;
    const ModuleTable *table = NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = map_library(descriptor, path, &library, &reason);
    if (status == 0) {
        table = (const ModuleTable *)library_symbol(library, TABLE_SYMBOL);
    }
    Py_END_ALLOW_THREADS
    if (status > 0) {
        Py_RETURN_NONE;
    }
    if (status < 0) {
        return cannot_open(path, reason);
    }
    if (require_table(table, key) < 0) {
        close_when_possible(library);
        return NULL;
    }
    Image *image = (Image *)new_image(module_state(module), library, table, Py_None);
    if (image != NULL && (image->file = map_file(descriptor, size)) != NULL) {
        image->file_size = (size_t)size;
    }
    return (PyObject *)image;
}

/* stored(image: Image) -> bytes | None; the file that the image was mapped from, if all of it is mapped */
PyObject *stored(PyObject *module, PyObject *object) {
    if (Py_TYPE(object) != module_state(module)->image_type) {
        Py_RETURN_NONE; /* the object is not an Image */
    }
    const Image *image = (const Image *)object;
    if (image->file == NULL) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize(image->file, (Py_ssize_t)image->file_size);
}

static __thread int starting; /* the number of calls of `start` that this thread is inside of */

/* is_linking() -> bool; whether a constructor or destructor runs in this thread */
PyObject *is_linking(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    return PyBool_FromLong(starting || calls_of_this_thread());
}

/* open_library(path: bytes) -> Image; opens any library, for its symbols */
PyObject *open_named_library(PyObject *module, PyObject *path_object) {
    const char *path = PyBytes_AsString(path_object);
    Library *library;
    char *reason;
    if (path == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    library = open_library(path, &reason);
    Py_END_ALLOW_THREADS
    if (library == NULL) {
        return cannot_open(path, reason);
    }
    return new_image(module_state(module), library, NULL, Py_None);
}

/* adopt_image(address: int, key: bytes, owner: object) -> Image; makes an image of code that is mapped already */
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

const ModuleTable *table_of(RuntimeState *state, PyObject *image) {
    Image *self = checked_image(state, image);
    if (self == NULL) {
        return NULL;
    }
    if (self->table == NULL) {
        PyErr_SetString(PyExc_TypeError, "the image is not a module of a cache");
    }
    return self->table;
}

void *symbol_address(RuntimeState *state, PyObject *image, Py_ssize_t index) {
    const ModuleTable *table = table_of(state, image);
    if (table == NULL) {
        return NULL;
    }
    if (index < 0 || (size_t)index >= table->count) {
        PyErr_Format(PyExc_IndexError, "symbol %zd is not in the image's table of %u symbols", index, table->count);
        return NULL;
    }
    return (char *)table + table->offsets[index];
}

int image_can_be_written(PyObject *image, uint64_t address, uint64_t size) {
    Library *library = ((Image *)image)->library;
    return library == NULL || can_be_written(library, address, size);
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

/* -------------------------------------------------------------------------------------------- constructors */

/* Runs the constructors of an image, and its destructors before anything that they may use is gone: a garbage collection finalizes all
 * objects of a cycle before it clears any of them. A module that owns a starter cannot be reached by weak references any more when the last
 * reference to the starter goes. So no signal handler and no other thread finds a module whose destructors have run. */
typedef struct {
    PyObject_HEAD
    PyObject *image, *imports;        /* what keeps the imports of the image */
    void *constructors, *destructors; /* functions of the image */
    int is_started;                   /* whether the destructors must run */
} Starter;

/* starter(image: Image, index: int, imports: object) -> Starter
 * The functions of the image with this number and the next one, which take and return nothing, run constructors and destructors. */
PyObject *starter(PyObject *module, PyObject *args) {
    RuntimeState *state = module_state(module);
    PyObject *image, *imports;
    Py_ssize_t index;
    if (!PyArg_ParseTuple(args, "OnO:starter", &image, &index, &imports)) {
        return NULL;
    }
    void *constructors = symbol_address(state, image, index), *destructors = constructors != NULL ? symbol_address(state, image, index + 1) : NULL;
    Starter *self = destructors != NULL ? (Starter *)PyType_GenericAlloc(state->starter_type, 0) : NULL;
    if (self != NULL) {
        self->image = Py_NewRef(image);
        self->imports = Py_NewRef(imports);
        self->constructors = constructors;
        self->destructors = destructors;
    }
    return (PyObject *)self;
}

static void call_function_at(void *address) {
    void (*function)(void);
    memcpy(&function, &address, sizeof function);
    starting++;
    Py_BEGIN_ALLOW_THREADS
    function();
    Py_END_ALLOW_THREADS
    starting--;
}

/* start(starter: Starter) -> None; runs the constructors */
PyObject *start(PyObject *module, PyObject *object) {
    if (Py_TYPE(object) != module_state(module)->starter_type) {
        PyErr_SetString(PyExc_TypeError, "start() takes a starter");
        return NULL;
    }
    Starter *self = (Starter *)object;
    self->is_started = 1;
    call_function_at(self->constructors);
    Py_RETURN_NONE;
}

/* Runs the destructors, unless the interpreter is ending. */
static void starter_finalize(PyObject *object) {
    Starter *self = (Starter *)object;
    if (self->is_started && Py_IsInitialized()) {
        PyObject *type, *value, *traceback;
        self->is_started = 0;
        PyErr_Fetch(&type, &value, &traceback);
        call_function_at(self->destructors);
        PyErr_Restore(type, value, traceback);
    }
}

static int starter_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Starter *)object)->imports); /* images are not tracked */
    return 0;
}

static void starter_dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    starter_finalize(object);
    Py_XDECREF(((Starter *)object)->image);
    Py_XDECREF(((Starter *)object)->imports);
    release_object(object);
}

static PyType_Slot starter_slots[] = {
    {Py_tp_dealloc, (void *)starter_dealloc},
    {Py_tp_finalize, (void *)starter_finalize},
    {Py_tp_traverse, (void *)starter_traverse},
    {0, NULL},
};

PyType_Spec starter_spec = {
    .name = "compcache.hit._runtime.Starter",
    .basicsize = sizeof(Starter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC,
    .slots = starter_slots,
};

/* ------------------------------------------------------------------------------------------------ symbols */

/* find_symbol(name: bytes, library: Image | None) -> int; 0 if the library, or the process, does not define the symbol */
PyObject *find_symbol(PyObject *module, PyObject *args) {
    PyObject *name, *image_object;
    const Library *library = NULL;
    if (!PyArg_ParseTuple(args, "SO:find_symbol", &name, &image_object)) {
        return NULL;
    }
    if (image_object != Py_None) {
        Image *image = checked_image(module_state(module), image_object);
        if (image == NULL) {
            return NULL;
        }
        library = image->library;
    }
    const char *text = PyBytes_AsString(name);
    void *address;
    Py_BEGIN_ALLOW_THREADS
    address = library_symbol(library, text);
    Py_END_ALLOW_THREADS
    return PyLong_FromVoidPtr(address);
}

/* Returns a symbol's name as C text; NULL with an exception. `kept` owns the text if the name does not. */
static const char *symbol_text(PyObject *name, PyObject *kept) {
    if (!PyUnicode_Check(name)) {
        PyErr_SetString(PyExc_TypeError, "the name of a symbol is a str");
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (text != NULL || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        return text;
    }
    PyErr_Clear();
    PyObject *bytes = PyUnicode_AsEncodedString(name, "utf-8", "surrogateescape");
    if (bytes != NULL && PyList_Append(kept, bytes) == 0) {
        text = PyBytes_AsString(bytes);
    }
    Py_XDECREF(bytes);
    return text;
}

/* find_undefined(names: tuple[str, ...]) -> str | None; the first name that is not a symbol of the process */
PyObject *find_undefined(PyObject *Py_UNUSED(module), PyObject *names) {
    if (!PyTuple_Check(names)) {
        PyErr_SetString(PyExc_TypeError, "find_undefined() takes a tuple");
        return NULL;
    }
    const size_t count = (size_t)PyTuple_Size(names);
    const char **texts = PyMem_Malloc((count + 1) * sizeof *texts);
    PyObject *kept = PyList_New(0);
    size_t ready = 0, first = 0;
    if (texts == NULL) {
        PyErr_NoMemory();
    }
    while (texts != NULL && kept != NULL && ready < count && (texts[ready] = symbol_text(PyTuple_GetItem(names, (Py_ssize_t)ready), kept)) != NULL) {
        ready++;
    }
    const int is_ready = texts != NULL && kept != NULL && ready == count;
    if (is_ready) {
        Py_BEGIN_ALLOW_THREADS
        first = first_undefined(texts, count);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(texts);
    Py_XDECREF(kept);
    if (!is_ready) {
        return NULL;
    }
    return Py_NewRef(first < count ? PyTuple_GetItem(names, (Py_ssize_t)first) : Py_None);
}

/* ------------------------------------------------------------------------------------------------ the type */

/* The garbage collector does not track images: nothing that they own refers to their users, and an image that is
 * reachable only from garbage must outlive all of the garbage. Their type cannot be cleared while an image lives. */
static void image_dealloc(PyObject *object) {
    Image *self = (Image *)object;
    /* Once the interpreter ends, objects that code in images has made are freed in any order, and the code that frees them
     * may be in an image. So images stay mapped then. */
    if (self->library != NULL && Py_IsInitialized()) {
        close_when_possible(self->library);
    }
    if (self->file != NULL) {
        munmap(self->file, self->file_size);
    }
    Py_XDECREF(self->owner);
    release_object(object);
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
