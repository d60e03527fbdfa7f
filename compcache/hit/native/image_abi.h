/* The interface between module images and the runtime.
 *
 * The other side of this file is compcache/build/entrypoints.py, which generates the code that uses these layouts.
 * Images are on disk: a change of a layout, an order or a meaning here needs a higher COMPCACHE_ABI_VERSION, here and in
 * compcache/formats/host.py. Nothing here depends on the layout of Python objects, so that an image serves every
 * version and build of CPython. (Py_buffer, of which entry points read obj, readonly, ndim and shape, is part of the
 * stable ABI.)
 */
#ifndef COMPCACHE_IMAGE_ABI_H
#define COMPCACHE_IMAGE_ABI_H

#include "limited_api.h"

#include <stdint.h>

#define COMPCACHE_ABI_VERSION 2
#define KEY_SIZE 16

/* The only symbol that an image exports. The table numbers the addresses of the image: functions, entry points, slots. */
#define TABLE_SYMBOL "compcache_module"
#define TABLE_MAGIC UINT64_C(0x454c55444f4d4343) /* "CCMODULE", little-endian */

typedef struct {
    uint64_t magic;
    uint32_t abi_version;
    uint32_t count;
    unsigned char key[KEY_SIZE]; /* of the module: it shows that the opened library is the intended one */
    int32_t offsets[];           /* of `count` symbols, from the start of the table */
} ModuleTable;

typedef struct Callee Callee;

/* Functions that entry points call. Those that return int return 1, or 0 with an exception set.
 * `index` counts arguments from 0; `object` is a borrowed reference to the argument. */
typedef struct {
    /* Raise the error for a wrong number or wrong names of arguments; return 1 if all is right (an empty tuple of names). */
    int (*fail_arity)(const Callee *callee, int64_t given, int64_t expected, PyObject *names);
    /* Raise the error for an argument. */
    void (*fail_value)(const Callee *callee, int64_t index, PyObject *object);
    /* Fill `view`, which the entry point releases; its `obj` is NULL on failure. `wanted`: see arguments.c. */
    int (*acquire_buffer)(const Callee *callee, int64_t index, PyObject *object, Py_buffer *view, uint32_t wanted);
    int (*acquire_pointer)(const Callee *callee, int64_t index, PyObject *object, Py_buffer *view, void **out);
    int (*to_u64)(const Callee *callee, int64_t index, PyObject *object, uint64_t *out);
    /* The text lives as long as the argument. */
    int (*to_cstr)(const Callee *callee, int64_t index, PyObject *object, const char **out);
    /* A new reference: str, or None for a null pointer. */
    PyObject *(*from_cstr)(const char *text);
} EntryApi;

/* Passed to an entry point instead of the target object, whose layout it must not know. */
struct Callee {
    void *function;       /* the native function to call */
    const EntryApi *api;
    PyObject *target;     /* borrowed: the target that is being called contains the Callee */
};

/* The code of an entry point: vectorcall (PEP 590) with a Callee for the callable. */
typedef PyObject *(*EntryPoint)(const Callee *callee, PyObject *const *args, size_t nargsf, PyObject *names);

#endif
