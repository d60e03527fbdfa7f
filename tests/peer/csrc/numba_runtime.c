/* What code that Numba generates expects of Numba's runtime: reference-counted memory and the way exceptions
   leave a native callback. Numba's own functions are private to its extension modules. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

/* Numba's NRT_MemInfo, as its generated code sees it: a count, a destructor, its argument, the data. */
typedef struct {
    atomic_size_t references;
    void (*destroy)(void *, size_t, void *);
    void *argument;
    void *data;
    size_t size;
} memory;

static atomic_llong live;

memory *NRT_MemInfo_alloc_aligned(size_t size, uint32_t align) {
    size_t header = (sizeof(memory) + align - 1) / align * align;
    memory *block = aligned_alloc(align, (header + size + align - 1) / align * align);
    if (!block) return NULL;
    *block = (memory){1, NULL, NULL, (char *)block + header, size};
    live++;
    return block;
}

void NRT_MemInfo_call_dtor(memory *block) {
    live--;
    free(block);
}

void NRT_Free(void *data) { free(data); }

int64_t live_blocks(void) { return live; }

int PyGILState_Ensure(void);
void PyGILState_Release(int state);
extern void *PyExc_ZeroDivisionError;
void PyErr_SetString(void *type, const char *message);

void numba_gil_ensure(int *state) { *state = PyGILState_Ensure(); }

void numba_gil_release(int *state) { PyGILState_Release(*state); }

/* An exception travels as a pickle; this runtime knows one. */
void *numba_unpickle(const char *data, int size, const char *digest) {
    (void)data;
    (void)size;
    (void)digest;
    PyErr_SetString(PyExc_ZeroDivisionError, "division by zero");
    return NULL;
}

void *numba_runtime_build_excinfo_struct(void *structure, void *arguments) {
    (void)arguments;
    return structure;
}

int numba_do_raise(void *exception) {
    (void)exception;
    return 0;
}
