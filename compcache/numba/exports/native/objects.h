/* The C side of exported kernels: declarations that its files share. It converts values other than numbers and contiguous buffers.
 *
 *   module.c    the extension module, and the table of functions that exported code calls
 *   plan.c      plans: the types of a kernel's parameters and result, as the exporter describes them
 *   unbox.c     arguments -> Numba's values
 *   box.c       Numba's values -> results
 *   containers.c lists, dictionaries and sets
 *   arrays.c    arrays and scalars of NumPy, if NumPy is loaded, and buffers
 *   random.c    random numbers
 *   linear.c    BLAS and LAPACK
 *   schedule.c  the division of parallel loops
 *   threads.c   the threads of parallel loops
 *   helpers.c   functions of other packages, and C helpers of Numba; lazy/native/calls.c has the helpers that lazy functions call too
 *   memory.c    blocks of Numba's memory runtime, and the objects that own them
 *
 * Values have the layout of Numba's data models (numba/core/datamodel/models.py). Exported code is stored on disk. Therefore a change of a
 * layout in this file must increment PLAN_VERSION, here and in compcache/numba/exports/plan.py, and new functions are added at the end of
 * the table.
 */
#ifndef COMPCACHE_NUMBA_OBJECTS_H
#define COMPCACHE_NUMBA_OBJECTS_H

#include "../../lazy/native/calls.h"

#include <stdint.h>

#define PLAN_MAGIC 0x504e4343u /* "CCNP" */
#define PLAN_VERSION 2 /* 1: without the kinds after KIND_LIST */
#define NO_NODE UINT32_MAX

enum Kind {
    KIND_NONE,
    KIND_BOOL,
    KIND_SIGNED,
    KIND_UNSIGNED,
    KIND_FLOAT,
    KIND_COMPLEX,
    KIND_OPTIONAL, /* one item; `detail`: the offset of the byte that says whether there is a value */
    KIND_TUPLE,
    KIND_NAMED_TUPLE, /* `text`: module, NUL, qualified name */
    KIND_ARRAY,       /* `detail`: dimensions; `itemsize`: size of elements; `text`: dtype; `format`: format of the struct module */
    KIND_TEXT,
    KIND_BYTES,
    KIND_LIST, /* one item; `itemsize`: distance of items; `detail`: offset of the first item in the payload */
    KIND_DATE,   /* `text`: dtype; the value is a number of its units */
    KIND_RECORD, /* `text`: dtype; a parameter is a RecordValue, a result is the record itself */
    KIND_ENUM,   /* one item, its value; `text`: module, NUL, qualified name */
    KIND_FIXED_TEXT, /* `detail`: the number of characters, of four bytes each */
    KIND_FIXED_BYTES,
    KIND_TYPED_LIST, /* this kind and the following kinds: the kernel receives and returns a list of the items */
    KIND_DICTIONARY, /* its items are tuples of two */
    KIND_SET,
};

enum Flag {
    LAYOUT_C = 1, /* arrays: contiguous in this order; without this flag and LAYOUT_F: any strides */
    LAYOUT_F = 2,
    READ_ONLY = 4,
    OWNED = 8, /* parameters: the result may refer to the value, or the value is in a list */
};

typedef struct {
    uint32_t kind;
    uint32_t offset; /* of the value in the value of its parent */
    uint32_t size;
    uint32_t first, count; /* the items: the number of the first node, and how many nodes there are */
    uint32_t detail;
    uint32_t flags;
    uint32_t itemsize;
    uint32_t name;  /* this field and the following fields are offsets of texts: the parameter's name */
    uint32_t expected;  /* the values that a caller may pass, for error messages */
    uint32_t text;
    uint32_t format;
} Node;

typedef struct Plan Plan;

/* The description of a list's items, for the function that frees them. */
typedef struct {
    Plan *plan;
    const Node *node;
} Items;

struct Plan {
    const Node *nodes;
    const char *texts;
    PyObject **cached; /* by the number of the node: a dtype or a class; NULL before the first use */
    Items *items;      /* by the number of the node */
    uint32_t node_count;
    uint32_t parameters; /* the first nodes */
    uint32_t result;     /* the number of its node, or NO_NODE */
    const char *function;
};

/* The head of Numba's blocks (numba/core/runtime/nrt.h). */
typedef struct MemInfo {
    size_t references;
    void (*destroy)(void *data, size_t size, void *info);
    void *info;
    void *data;
    size_t size;
    struct MemInfo *container; /* of a list: the container that was created from it and not released (compilation/plain_containers.py) */
} MemInfo;

/* Numba's value of an array. `extents` contains the shape, then the strides. */
typedef struct {
    MemInfo *memory;
    PyObject *parent;
    Py_ssize_t count;
    Py_ssize_t itemsize;
    void *data;
    Py_ssize_t extents[];
} ArrayValue;

typedef struct {
    void *data;
    Py_ssize_t length;
    int32_t width; /* bytes of a character */
    uint32_t is_ascii;
    Py_ssize_t hash;
    MemInfo *memory;
    PyObject *parent;
} TextValue;

typedef struct {
    MemInfo *memory;
    PyObject *parent;
} ListValue;

typedef struct {
    void *data;
    Py_buffer *view;
} RecordValue;

typedef struct {
    Py_ssize_t size;
    Py_ssize_t allocated;
    unsigned char is_dirty;
} ListPayload;

static inline const char *text_of(const Plan *plan, uint32_t offset) {
    return plan->texts + offset;
}

/* plan.c */
/* Return the plan that these bytes describe; NULL with an exception. Plans live as long as the process. Equal bytes have one plan. */
Plan *prepare_plan(const void *data, uint64_t size);
/* Return the class of a named tuple or an enumeration, a borrowed reference; NULL with an exception. */
PyObject *class_of(Plan *plan, const Node *node);
static inline PyObject **cached_of(Plan *plan, const Node *node) {
    return &plan->cached[node - plan->nodes];
}

/* unbox.c */
int unbox(Plan *plan, const Node *node, PyObject *object, char *value);
int enter(Plan *plan, PyObject *const *objects, void *const *places);
void leave(Plan *plan, PyObject *const *objects, void *const *places);
/* Release the references that a value holds. */
void drop(const Plan *plan, const Node *node, char *value);

/* containers.c */
int unbox_list(Plan *plan, const Node *node, PyObject *object, ListValue *value);
int unbox_container(Plan *plan, const Node *node, PyObject *object, ListValue *value);
PyObject *box_list(Plan *plan, const Node *node, const ListValue *value);
PyObject *box_container(Plan *plan, const Node *node, const ListValue *value);
void drop_container(MemInfo *items);
/* Write changes of the kernel back to lists and other containers, also in tuples. Return 0 with an exception. */
int reflect(Plan *plan, const Node *node, char *value);

/* box.c */
PyObject *box(Plan *plan, const Node *node, char *value);
PyObject *box_result(Plan *plan, void *value);

/* arrays.c */
int unbox_array(Plan *plan, const Node *node, PyObject *object, ArrayValue *value);
PyObject *box_array(Plan *plan, const Node *node, ArrayValue *value);
int unbox_date(Plan *plan, const Node *node, PyObject *object, char *value);
int unbox_record(Plan *plan, const Node *node, PyObject *object, RecordValue *value);
/* Return a scalar of NumPy: a date or a record; NULL with an exception. */
PyObject *box_scalar(Plan *plan, const Node *node, char *value);

/* memory.c */
MemInfo *new_block(void *data, size_t size, void (*destroy)(void *, size_t, void *), void *info);
void release_block(MemInfo *memory);
void free_data(void *data, size_t size, void *info);
void free_buffer(void *data, size_t size, void *info); /* `info`: a Py_buffer from malloc */
void free_object(void *data, size_t size, void *info); /* `info`: a reference */
/* Return whether a block can outlive the code that allocated it. */
int is_independent(const MemInfo *memory);
extern PyType_Spec memory_spec;
extern PyTypeObject *memory_type;
/* Return an object that owns a block, whose reference it takes over, and exports `value` as a buffer; NULL with an exception. */
PyObject *make_memory(const Plan *plan, const Node *node, const ArrayValue *value, MemInfo *memory);

/* random.c */
int prepare_random(void); /* once per process; returns 0 on success */
void random_begin(void);
void *random_python(void);
void *random_numpy(void);
void *random_internal(void);
void random_shuffle(void *state);
void random_seed(void *state, uint32_t seed);
int64_t random_poisson(void *state, double mean);

/* linear.c: functions that compiled code calls (numba/np/linalg.py) */
int linear_begin(void);
int linear_dot(char kind, char conjugate, Py_ssize_t count, void *x, void *y, void *result);
int linear_norm(char kind, Py_ssize_t count, void *x, Py_ssize_t distance, void *result);
int linear_matrix_vector(char kind, char transpose, Py_ssize_t rows, Py_ssize_t columns, void *alpha, void *a, Py_ssize_t lda, void *x,
                         void *beta, void *y);
int linear_matrix_matrix(char kind, char transpose_a, char transpose_b, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, void *alpha, void *a,
                         Py_ssize_t lda, void *b, Py_ssize_t ldb, void *beta, void *c, Py_ssize_t ldc);
int linear_lu(char kind, Py_ssize_t m, Py_ssize_t n, void *a, Py_ssize_t lda, int *pivots);
int linear_inverse(char kind, Py_ssize_t n, void *a, Py_ssize_t lda, int *pivots);
int linear_cholesky(char kind, char triangle, Py_ssize_t n, void *a, Py_ssize_t lda);
int linear_solve(char kind, Py_ssize_t n, Py_ssize_t count, void *a, Py_ssize_t lda, int *pivots, void *b, Py_ssize_t ldb);
int linear_eigen_real(char kind, char left, char right, Py_ssize_t n, void *a, Py_ssize_t lda, void *real, void *imaginary, void *vl,
                      Py_ssize_t ldvl, void *vr, Py_ssize_t ldvr);
int linear_eigen_complex(char kind, char left, char right, Py_ssize_t n, void *a, Py_ssize_t lda, void *values, void *vl,
                         Py_ssize_t ldvl, void *vr, Py_ssize_t ldvr);
int linear_eigen_symmetric(char kind, char vectors, char triangle, Py_ssize_t n, void *a, Py_ssize_t lda, void *values);
int linear_singular(char kind, char vectors, Py_ssize_t m, Py_ssize_t n, void *a, Py_ssize_t lda, void *s, void *u, Py_ssize_t ldu,
                    void *vt, Py_ssize_t ldvt);
int linear_qr(char kind, Py_ssize_t m, Py_ssize_t n, void *a, Py_ssize_t lda, void *tau);
int linear_q_of_qr(char kind, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, void *a, Py_ssize_t lda, void *tau);
int linear_least_squares(char kind, Py_ssize_t m, Py_ssize_t n, Py_ssize_t count, void *a, Py_ssize_t lda, void *b, Py_ssize_t ldb,
                         void *s, double limit, int *rank);

/* schedule.c: functions that compiled code calls (numba/parfors/parfor_lowering.py) */
int64_t *schedule(uint64_t dimensions, const int64_t *first, const int64_t *last, uint64_t count, int64_t *pieces, int64_t debug);
uint64_t schedule_size(uint64_t threads, uint64_t dimensions, const int64_t *first, const int64_t *last);
int64_t *allocate_schedule(uint64_t numbers);
void free_schedule(int64_t *pieces);

/* threads.c */
int prepare_threads(void); /* once per process; returns 0 on success */
int64_t parallel_threads(void);
void set_parallel_threads(int count);
int64_t parallel_thread(void);
uint64_t parallel_chunk(void);
uint64_t set_parallel_chunk(uint64_t size);
void parallel_for(void *run, char *const *arguments, const uint64_t *dimensions, const int64_t *steps, void *data, uint64_t sizes,
                  uint64_t arrays, int64_t threads);
int keep_exception(PyObject *exception);
int parallel_raise(void);

/* helpers.c */
int fail(void); /* ends the process */
int reshape_without_copy(Py_ssize_t ndim, const Py_ssize_t *shape, const Py_ssize_t *strides, Py_ssize_t new_ndim,
                         const Py_ssize_t *new_shape, Py_ssize_t *new_strides, Py_ssize_t itemsize, int is_fortran);
/* Return the address of a function that a Cython module exports; NULL with an exception. `described`: module, NUL, name, NUL, type in
 * Cython's spelling. */
void *resolve_function(const char *described);
/* Return the address of a function of Numba's library of C helpers; NULL with an exception. `described`: name, NUL, version of Numba. */
void *resolve_helper(const char *described);
int raise_described(PyObject *described);

/* module.c */
extern PyObject *buffer_error; /* compcache.errors.ArgumentBufferError */

#endif
