/* Implements blocks of Numba's memory runtime, which exported code allocates with malloc, and the objects that own them. */
#include "objects.h"

#include <stdlib.h>
#include <string.h>

MemInfo *new_block(void *data, size_t size, void (*destroy)(void *, size_t, void *), void *info) {
    MemInfo *memory = malloc(sizeof *memory);
    if (memory == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *memory = (MemInfo){.references = 1, .destroy = destroy, .info = info, .data = data, .size = size};
    return memory;
}

void release_block(MemInfo *memory) {
    if (memory == NULL || __atomic_sub_fetch(&memory->references, 1, __ATOMIC_ACQ_REL) != 0) {
        return;
    }
    if (memory->destroy != NULL) {
        memory->destroy(memory->data, memory->size, memory->info);
    }
    free(memory);
}

void free_data(void *data, size_t Py_UNUSED(size), void *Py_UNUSED(info)) {
    free(data);
}

/* Compiled code may release the last reference without the GIL. */
void free_object(void *Py_UNUSED(data), size_t Py_UNUSED(size), void *info) {
    if (!Py_IsInitialized()) {
        return;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)info);
    PyGILState_Release(state);
}

void free_buffer(void *Py_UNUSED(data), size_t Py_UNUSED(size), void *info) {
    if (!Py_IsInitialized()) {
        return;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    PyBuffer_Release(info);
    PyGILState_Release(state);
    free(info);
}

int is_independent(const MemInfo *memory) {
    return memory->destroy == NULL || memory->destroy == free_object || memory->destroy == free_buffer
        || memory->destroy == free_data;
}

/* ------------------------------------------------------------------------------------------------------- owners */

typedef struct {
    PyObject_HEAD
    MemInfo *memory;
    void *data;
    char *format;
    Py_ssize_t itemsize;
    Py_ssize_t count;
    int ndim;
    int is_read_only;
    Py_ssize_t *extents;
} Memory;

PyTypeObject *memory_type;

PyObject *make_memory(const Plan *plan, const Node *node, const ArrayValue *value, MemInfo *memory) {
    Memory *self = (Memory *)PyType_GenericAlloc(memory_type, 0);
    if (self == NULL) {
        release_block(memory);
        return NULL;
    }
    const size_t bytes = 2 * node->detail * sizeof *self->extents;
    self->memory = memory;
    self->data = value->data;
    self->itemsize = node->itemsize;
    self->count = value->count;
    self->ndim = (int)node->detail;
    self->is_read_only = (node->flags & READ_ONLY) != 0;
    self->extents = malloc(bytes + 1);
    self->format = strdup(text_of(plan, node->format));
    if (self->extents == NULL || self->format == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    memcpy(self->extents, value->extents, bytes);
    return (PyObject *)self;
}

static void memory_dealloc(PyObject *object) {
    Memory *self = (Memory *)object;
    release_block(self->memory);
    free(self->extents);
    free(self->format);
    release_object(object);
}

static int memory_buffer(PyObject *object, Py_buffer *view, int flags) {
    Memory *self = (Memory *)object;
    if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE && self->is_read_only) {
        view->obj = NULL;
        PyErr_SetString(PyExc_BufferError, "the array that a compiled function returned is read-only; request a read-only buffer");
        return -1;
    }
    *view = (Py_buffer){
        .buf = self->data, .obj = Py_NewRef(object), .len = self->count * self->itemsize, .readonly = self->is_read_only,
        .itemsize = self->itemsize, .format = self->format, .ndim = self->ndim, .shape = self->extents,
        .strides = self->extents + self->ndim,
    };
    const int order = (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS ? 'F'
        : (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS         ? 'A'
        : (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS || (flags & PyBUF_STRIDES) != PyBUF_STRIDES ? 'C'
                                                                                                         : 0;
    if (order != 0 && !PyBuffer_IsContiguous(view, (char)order)) {
        Py_CLEAR(view->obj);
        PyErr_SetString(PyExc_BufferError, "the array that a compiled function returned is not contiguous; request a buffer with strides");
        return -1;
    }
    if ((flags & PyBUF_FORMAT) != PyBUF_FORMAT) {
        view->format = NULL;
    }
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES) {
        view->strides = NULL;
    }
    if ((flags & PyBUF_ND) != PyBUF_ND) {
        view->shape = NULL;
    }
    return 0;
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, (void *)"The memory of an array that a compiled function returned. It supports the buffer protocol."},
    {Py_tp_dealloc, (void *)memory_dealloc},
    {Py_bf_getbuffer, (void *)memory_buffer},
    {0, NULL},
};

PyType_Spec memory_spec = {
    .name = "compcache.numba.exports._objects.Memory",
    .basicsize = sizeof(Memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = memory_slots,
};
