/* The native half of the hit path: what its files share.
 *
 *   linking.c    the dynamic linker: names, locks, forks
 *   images.c     Image, a mapped library: unmapped when the last reference goes
 *   targets.c    the native half of TypedCallTarget: its vectorcall runs an entry point of an image
 *   arguments.c  what entry points call to check and convert arguments
 *   formats.c    decodes the formats that a hit reads; blake2b.c: their digests; deflate.c: their compression (no Python in these)
 *   reading.c    the Python interface of these
 *   records.c    lists the functions of a module by its records
 *   commit.c     stores into the memory of images, together with the tables that record them
 *   processor.c  the processor's description of itself; processor_*.h ask for it
 *   paths.c      opens files below a directory, following no links; open descriptors
 *   shortcut.c   a method that is answered without Python code if possible
 *   forks.c      calls the functions that run around a fork, whatever signals arrive
 *   module.c     the extension module and its state
 *
 * Ownership: a target owns its image and its context, and an image owns the object that keeps its code valid. Nothing points back.
 * Functions return new references and borrow their arguments unless their comment says otherwise. Python words the errors that a
 * person reads (compcache/hit/call_errors.py); the hooks of the module's state call it.
 */
#ifndef COMPCACHE_RUNTIME_H
#define COMPCACHE_RUNTIME_H

#include "image_abi.h"

typedef union {
    struct {
        PyTypeObject *image_type;
        PyTypeObject *descriptor_type;
        PyTypeObject *table_type;
        PyTypeObject *shortcut_type;
        PyTypeObject *starter_type;
        PyTypeObject *target_type; /* NULL before setup() */
        PyObject *raise_unloaded;  /* (target): raises */
        PyObject *raise_arity;     /* (target, given, names or None): raises, or returns if nothing is wrong; for names,
                                    * a tuple with the number of the argument of each parameter */
        PyObject *raise_value;     /* (target, index, object): raises */
        PyObject *find_pointer;    /* (object): the address that the object means, or None */
    };
    PyObject *objects[10]; /* all of them */
} RuntimeState;

static inline RuntimeState *module_state(PyObject *module) {
    return (RuntimeState *)PyModule_GetState(module);
}

/* The fields of a use of a function or variable, a tuple of a needs record: the number of its slot, or its name if it has places instead;
 * its name; its places; its link type, or b"". */
enum { USE_KEY, USE_NAME, USE_PLACES, USE_LINK_TYPE, USE_FIELDS };

/* How many positional arguments a vectorcall has (PEP 590); the highest bit is not part of the number. */
static inline Py_ssize_t positional_count(size_t nargsf) {
    return (Py_ssize_t)(nargsf & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
}

/* linking.c */
typedef struct Library Library; /* a library that the dynamic linker has mapped for the runtime */
/* Called once per process. Returns 0, or -1 with an exception. */
int prepare_linking(void);
/* The number of calls of the dynamic linker that this thread is inside of: constructors may call Python. */
int calls_of_this_thread(void);
/* Without the GIL: open a library by name. NULL on failure, with a text for free() in *reason (NULL: no memory). */
Library *open_library(const char *path, char **reason);
/* Without the GIL: map the file that a descriptor is open on, and show it as `path`. Returns 0; 1 if another owner in this process has
 * mapped it already; -1 on failure, with a reason as above. */
int map_library(int descriptor, const char *path, Library **result, char **reason);
/* Without the GIL: the address of a symbol of a library, or with NULL of the process; NULL if it is not defined. */
void *library_symbol(const Library *library, const char *name);
/* Without the GIL: the index of the first name that is not a symbol of the process; `count` if all are. */
size_t first_undefined(const char *const *names, size_t count);
/* Whether this memory belongs to a library and is writable. */
int can_be_written(Library *library, uint64_t address, uint64_t size);
/* With the GIL, which is released meanwhile: close a library, now or when calls of the dynamic linker in other threads
 * have returned. */
void close_when_possible(Library *library);

/* images.c */
extern PyType_Spec image_spec, starter_spec;
PyObject *map_image(PyObject *module, PyObject *args);
PyObject *stored(PyObject *module, PyObject *image);
PyObject *is_linking(PyObject *module, PyObject *nothing);
PyObject *open_named_library(PyObject *module, PyObject *path);
PyObject *adopt_image(PyObject *module, PyObject *args);
PyObject *image_address(PyObject *module, PyObject *args);
PyObject *find_symbol(PyObject *module, PyObject *args);
PyObject *find_undefined(PyObject *module, PyObject *names);
PyObject *starter(PyObject *module, PyObject *args);
PyObject *start(PyObject *module, PyObject *starter);
/* The address of a symbol of an image's table; NULL with an exception if the image or the index is not right. */
void *symbol_address(RuntimeState *state, PyObject *image, Py_ssize_t index);
/* Whether a load may store there; always 1 for images that other code has mapped. */
int image_can_be_written(PyObject *image, uint64_t address, uint64_t size);
/* The module table of an image; NULL with an exception if the object is not the image of a module. */
const ModuleTable *table_of(RuntimeState *state, PyObject *image);

/* targets.c */
/* The type of all targets, a subclass of `base`. */
PyObject *make_target_type(PyObject *module, PyObject *base);
PyObject *make_target(PyObject *module, PyObject *args);
PyObject *invalidate(PyObject *module, PyObject *target);
PyObject *is_valid(PyObject *module, PyObject *target);
/* The state of the module that made a target's type; NULL with an exception once the garbage collector has cleared the
 * type, which it does before the last calls of finalizers. */
RuntimeState *state_of_target(PyObject *target);
/* Call a hook that must raise. An exception is set afterwards in any case. */
void call_raising_hook(PyObject *hook, PyObject *target, PyObject *second, PyObject *third);

/* arguments.c */
extern const EntryApi entry_api;

/* reading.c */
extern PyType_Spec table_spec;
PyObject *segment_names(PyObject *module, PyObject *names);
PyObject *open_segment(PyObject *module, PyObject *args);
PyObject *function_entry(PyObject *module, PyObject *entry);
PyObject *module_entry(PyObject *module, PyObject *entry);
PyObject *is_ordered(PyObject *module, PyObject *name);
PyObject *newest(PyObject *module, PyObject *args);
PyObject *stamped(PyObject *module, PyObject *args);
PyObject *requirements(PyObject *module, PyObject *args);
PyObject *read_frame(PyObject *module, PyObject *args);
PyObject *function_record(PyObject *module, PyObject *payload);
PyObject *read_function(PyObject *module, PyObject *args);
PyObject *find_in_closure(PyObject *module, PyObject *const *args, Py_ssize_t count);
/* Whether an object is a use. Returns 0, or -1 with a TypeError. */
int require_use(PyObject *use);
PyObject *uses_by_module(PyObject *module, PyObject *args);
PyObject *plain_functions(PyObject *module, PyObject *args);
PyObject *needs_record(PyObject *module, PyObject *payload);
PyObject *global_record(PyObject *module, PyObject *payload);
PyObject *entry_record(PyObject *module, PyObject *payload);
PyObject *valid_closure(PyObject *module, PyObject *args);
PyObject *open_volume(PyObject *module, PyObject *args);
PyObject *member_status(PyObject *module, PyObject *entry);
PyObject *unpack_member(PyObject *module, PyObject *args);
PyObject *platform_serves(PyObject *module, PyObject *args);
PyObject *processor_meets(PyObject *module, PyObject *args);
PyObject *digest(PyObject *module, PyObject *args);
PyObject *use_line(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* places.c */
/* Whether memory mapped from an open file stays valid, whatever other hosts do to the file. Sets no exception. */
int can_map(int descriptor);
PyObject *file_system(PyObject *module, PyObject *descriptor);

/* records.c */
PyObject *list_functions(PyObject *module, PyObject *args);

/* commit.c */
PyObject *commit(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *weak_row(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *bind_imports(PyObject *module, PyObject *args);
PyObject *require_writable(PyObject *module, PyObject *args);
PyObject *buffer_address(PyObject *module, PyObject *object);

/* processor.c */
PyObject *processor(PyObject *module, PyObject *nothing);
PyObject *processor_words(PyObject *module, PyObject *content);
PyObject *processor_word(PyObject *module, PyObject *name);

/* paths.c */
extern PyType_Spec descriptor_spec;
PyObject *open_beneath(PyObject *module, PyObject *args);
PyObject *memory_file(PyObject *module, PyObject *name);
PyObject *is_at(PyObject *module, PyObject *args);
PyObject *stamp_of(PyObject *module, PyObject *args);
PyObject *is_unchanged(PyObject *module, PyObject *args);
PyObject *names_beneath(PyObject *module, PyObject *args);

/* shortcut.c */
extern PyType_Spec shortcut_spec;
PyObject *shortcut(PyObject *module, PyObject *args);

/* forks.c */
PyObject *uninterrupted(PyObject *module, PyObject *function);

#endif
