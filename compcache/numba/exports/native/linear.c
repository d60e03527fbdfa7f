/* Provides linear algebra to exported kernels: BLAS and LAPACK as SciPy exports them (scipy.linalg.cython_blas, cython_lapack). Compiled
 * code calls one function for all four kinds of numbers ("sdcz": float, double and their complex forms). It has checked the dimensions.
 * Functions return 0, a positive number from LAPACK, or -1 if an argument is invalid or memory is exhausted. */
#include "objects.h"

#include <complex.h>
#include <stdlib.h>
#include <string.h>

enum Routine {
    DOT, DOT_CONJUGATE, NORM, MATRIX_VECTOR, MATRIX_MATRIX, LU, INVERSE, CHOLESKY, EIGEN, EIGEN_SYMMETRIC, SINGULAR, QR, Q_OF_QR,
    LEAST_SQUARES, SOLVE, ROUTINES,
};
enum { FIRST_OF_LAPACK = LU, KINDS = 4, FAILED = -1 };

static const char *const names[ROUTINES][KINDS] = {
    {"sdot", "ddot", "cdotu", "zdotu"},
    {"sdot", "ddot", "cdotc", "zdotc"},
    {"snrm2", "dnrm2", "scnrm2", "dznrm2"},
    {"sgemv", "dgemv", "cgemv", "zgemv"},
    {"sgemm", "dgemm", "cgemm", "zgemm"},
    {"sgetrf", "dgetrf", "cgetrf", "zgetrf"},
    {"sgetri", "dgetri", "cgetri", "zgetri"},
    {"spotrf", "dpotrf", "cpotrf", "zpotrf"},
    {"sgeev", "dgeev", "cgeev", "zgeev"},
    {"ssyevd", "dsyevd", "cheevd", "zheevd"},
    {"sgesdd", "dgesdd", "cgesdd", "zgesdd"},
    {"sgeqrf", "dgeqrf", "cgeqrf", "zgeqrf"},
    {"sorgqr", "dorgqr", "cungqr", "zungqr"},
    {"sgelsd", "dgelsd", "cgelsd", "zgelsd"},
    {"sgesv", "dgesv", "cgesv", "zgesv"},
};
static void (*routines[ROUTINES][KINDS])(void);

/* Return the table of functions that a Cython module exports; NULL with an exception. */
static PyObject *functions_of(const char *module) {
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *exported = imported != NULL ? PyObject_GetAttrString(imported, "__pyx_capi__") : NULL;
    Py_XDECREF(imported);
    return exported;
}

static int find_routines(PyObject *exported, int first, int end) {
    for (int routine = first; routine < end; routine++) {
        for (int kind = 0; kind < KINDS; kind++) {
            PyObject *capsule = PyMapping_GetItemString(exported, names[routine][kind]);
            const char *type = capsule != NULL ? PyCapsule_GetName(capsule) : NULL;
            void *found = type != NULL ? PyCapsule_GetPointer(capsule, type) : NULL;
            const int is_known = found != NULL && strstr(type, "int *") != NULL;
            Py_XDECREF(capsule);
            if (!is_known) {
                return 0; /* the routine is missing, or its integers have 64 bits */
            }
            memcpy(&routines[routine][kind], &found, sizeof found);
        }
    }
    return 1;
}

/* Find the routines. Return 0 with an exception if SciPy does not provide them. */
int linear_begin(void) {
    if (routines[SOLVE][KINDS - 1] != NULL) {
        return 1;
    }
    PyObject *blas = functions_of("scipy.linalg.cython_blas");
    PyObject *lapack = blas != NULL ? functions_of("scipy.linalg.cython_lapack") : NULL;
    const int found = lapack != NULL && find_routines(blas, 0, FIRST_OF_LAPACK) && find_routines(lapack, FIRST_OF_LAPACK, ROUTINES);
    Py_XDECREF(blas);
    Py_XDECREF(lapack);
    if (!found) {
        PyErr_Clear();
        PyErr_SetString(PyExc_ImportError, "a compiled function needs BLAS and LAPACK with 32-bit integers from SciPy "
                        "(scipy.linalg.cython_blas, cython_lapack), which this process cannot load; install scipy");
    }
    return found;
}

static int number_of(char kind) {
    return kind == 's' ? 0 : kind == 'd' ? 1 : kind == 'c' ? 2 : 3;
}

static int is_complex(char kind) {
    return kind == 'c' || kind == 'z';
}

static size_t size_of_real(char kind) {
    return kind == 's' || kind == 'c' ? sizeof(float) : sizeof(double);
}

static size_t size_of(char kind) {
    return size_of_real(kind) * (is_complex(kind) ? 2 : 1);
}

#define CALL(routine, kind, types) (*(int (*) types)routines[routine][number_of(kind)])

/* Return the size of a workspace that a routine has requested: the first number in the workspace. */
static int requested_size(char kind, const void *work) {
    return (int)(size_of_real(kind) == sizeof(float) ? *(const float *)work : *(const double *)work);
}

static int larger(int one, int other) {
    return one > other ? one : other;
}

/* Allocate a workspace for `count` numbers, at least one; NULL if memory is exhausted. */
static void *workspace(int count, size_t size) {
    return malloc((size_t)larger(count, 1) * size);
}

static int checked_info(int info) {
    return info < 0 ? FAILED : info;
}

/* The workspaces of a routine. It is called twice. The first call stores the sizes that the workspaces must have. */
typedef struct {
    char kind;
    int calls;         /* so far */
    int size;          /* of `work`; -1 requests the size */
    int real_size, int_size;
    int info;
    void *work, *real_work, *int_work;
    double answers[2], real_answer;
    int int_answer;
} Workspace;

static void begin_work(Workspace *space, char kind) {
    *space = (Workspace){.kind = kind, .size = -1, .real_size = -1, .int_size = -1};
    space->work = space->answers;
    space->real_work = &space->real_answer;
    space->int_work = &space->int_answer;
}

/* Return whether the routine must be called now, and prepare the workspaces for the call. */
static int prepare_call(Workspace *space) {
    if (space->calls++ == 0) {
        return 1;
    }
    if (space->calls > 2 || space->info != 0) {
        return 0;
    }
    space->size = requested_size(space->kind, space->answers);
    space->real_size = is_complex(space->kind) ? requested_size(space->kind, &space->real_answer) : 1;
    space->int_size = space->int_answer;
    space->work = workspace(space->size, size_of(space->kind));
    space->real_work = workspace(space->real_size, size_of_real(space->kind));
    space->int_work = workspace(space->int_size, sizeof(int));
    if (space->work == NULL || space->real_work == NULL || space->int_work == NULL) {
        space->info = FAILED;
    }
    return space->info == 0;
}

/* Free the workspaces. Return the result of the routine. */
static int end_work(Workspace *space) {
    if (space->calls > 1 && space->work != space->answers) {
        free(space->work);
        free(space->real_work);
        free(space->int_work);
    }
    return checked_info(space->info);
}

/* ---------------------------------------------------------------------------------------------------------- BLAS */

int linear_dot(char kind, char conjugate, Py_ssize_t count, void *x, void *y, void *result) {
    int n = (int)count, step = 1;
    void (*const routine)(void) = routines[conjugate ? DOT_CONJUGATE : DOT][number_of(kind)];
    switch (kind) {
    case 's': *(float *)result = ((float (*)(int *, void *, int *, void *, int *))routine)(&n, x, &step, y, &step); break;
    case 'd': *(double *)result = ((double (*)(int *, void *, int *, void *, int *))routine)(&n, x, &step, y, &step); break;
    case 'c': *(float complex *)result = ((float complex (*)(int *, void *, int *, void *, int *))routine)(&n, x, &step, y, &step); break;
    default: *(double complex *)result = ((double complex (*)(int *, void *, int *, void *, int *))routine)(&n, x, &step, y, &step);
    }
    return 0;
}

int linear_norm(char kind, Py_ssize_t count, void *x, Py_ssize_t distance, void *result) {
    int n = (int)count, step = (int)distance;
    void (*const routine)(void) = routines[NORM][number_of(kind)];
    if (size_of_real(kind) == sizeof(float)) {
        *(float *)result = ((float (*)(int *, void *, int *))routine)(&n, x, &step);
    }
    else {
        *(double *)result = ((double (*)(int *, void *, int *))routine)(&n, x, &step);
    }
    return 0;
}

int linear_matrix_vector(char kind, char transpose, Py_ssize_t rows, Py_ssize_t columns, void *alpha, void *a, Py_ssize_t lda_,
                         void *x, void *beta, void *y) {
    int m = (int)rows, n = (int)columns, lda = (int)lda_, step = 1;
    CALL(MATRIX_VECTOR, kind, (char *, int *, int *, void *, void *, int *, void *, int *, void *, void *, int *))
    (&transpose, &m, &n, alpha, a, &lda, x, &step, beta, y, &step);
    return 0;
}

int linear_matrix_matrix(char kind, char transpose_a, char transpose_b, Py_ssize_t m_, Py_ssize_t n_, Py_ssize_t k_, void *alpha,
                         void *a, Py_ssize_t lda_, void *b, Py_ssize_t ldb_, void *beta, void *c, Py_ssize_t ldc_) {
    int m = (int)m_, n = (int)n_, k = (int)k_, lda = (int)lda_, ldb = (int)ldb_, ldc = (int)ldc_;
    CALL(MATRIX_MATRIX, kind,
         (char *, char *, int *, int *, int *, void *, void *, int *, void *, int *, void *, void *, int *))
    (&transpose_a, &transpose_b, &m, &n, &k, alpha, a, &lda, b, &ldb, beta, c, &ldc);
    return 0;
}

/* -------------------------------------------------------------------------------------------------------- LAPACK */

int linear_lu(char kind, Py_ssize_t m_, Py_ssize_t n_, void *a, Py_ssize_t lda_, int *pivots) {
    int m = (int)m_, n = (int)n_, lda = (int)lda_, info = 0;
    CALL(LU, kind, (int *, int *, void *, int *, int *, int *))(&m, &n, a, &lda, pivots, &info);
    return checked_info(info);
}

int linear_inverse(char kind, Py_ssize_t n_, void *a, Py_ssize_t lda_, int *pivots) {
    int n = (int)n_, lda = (int)lda_;
    Workspace space;
    for (begin_work(&space, kind); prepare_call(&space);) {
        CALL(INVERSE, kind, (int *, void *, int *, int *, void *, int *, int *))
        (&n, a, &lda, pivots, space.work, &space.size, &space.info);
    }
    return end_work(&space);
}

int linear_cholesky(char kind, char triangle, Py_ssize_t n_, void *a, Py_ssize_t lda_) {
    int n = (int)n_, lda = (int)lda_, info = 0;
    CALL(CHOLESKY, kind, (char *, int *, void *, int *, int *))(&triangle, &n, a, &lda, &info);
    return checked_info(info);
}

int linear_solve(char kind, Py_ssize_t n_, Py_ssize_t count_, void *a, Py_ssize_t lda_, int *pivots, void *b, Py_ssize_t ldb_) {
    int n = (int)n_, count = (int)count_, lda = (int)lda_, ldb = (int)ldb_, info = 0;
    CALL(SOLVE, kind, (int *, int *, void *, int *, int *, void *, int *, int *))(&n, &count, a, &lda, pivots, b, &ldb, &info);
    return checked_info(info);
}

int linear_eigen_real(char kind, char left, char right, Py_ssize_t n_, void *a, Py_ssize_t lda_, void *real, void *imaginary,
                      void *vl, Py_ssize_t ldvl_, void *vr, Py_ssize_t ldvr_) {
    int n = (int)n_, lda = (int)lda_, ldvl = (int)ldvl_, ldvr = (int)ldvr_;
    Workspace space;
    for (begin_work(&space, kind); prepare_call(&space);) {
        CALL(EIGEN, kind,
             (char *, char *, int *, void *, int *, void *, void *, void *, int *, void *, int *, void *, int *, int *))
        (&left, &right, &n, a, &lda, real, imaginary, vl, &ldvl, vr, &ldvr, space.work, &space.size, &space.info);
    }
    return end_work(&space);
}

int linear_eigen_complex(char kind, char left, char right, Py_ssize_t n_, void *a, Py_ssize_t lda_, void *values, void *vl,
                         Py_ssize_t ldvl_, void *vr, Py_ssize_t ldvr_) {
    int n = (int)n_, lda = (int)lda_, ldvl = (int)ldvl_, ldvr = (int)ldvr_;
    void *real_work = workspace(2 * n, size_of_real(kind));
    if (real_work == NULL) {
        return FAILED;
    }
    Workspace space;
    for (begin_work(&space, kind); prepare_call(&space);) {
        CALL(EIGEN, kind,
             (char *, char *, int *, void *, int *, void *, void *, int *, void *, int *, void *, int *, void *, int *))
        (&left, &right, &n, a, &lda, values, vl, &ldvl, vr, &ldvr, space.work, &space.size, real_work, &space.info);
    }
    free(real_work);
    return end_work(&space);
}

int linear_eigen_symmetric(char kind, char vectors, char triangle, Py_ssize_t n_, void *a, Py_ssize_t lda_, void *values) {
    int n = (int)n_, lda = (int)lda_;
    Workspace space;
    for (begin_work(&space, kind); prepare_call(&space);) {
        if (is_complex(kind)) {
            CALL(EIGEN_SYMMETRIC, kind,
                 (char *, char *, int *, void *, int *, void *, void *, int *, void *, int *, void *, int *, int *))
            (&vectors, &triangle, &n, a, &lda, values, space.work, &space.size, space.real_work, &space.real_size, space.int_work,
             &space.int_size, &space.info);
        }
        else {
            CALL(EIGEN_SYMMETRIC, kind, (char *, char *, int *, void *, int *, void *, void *, int *, void *, int *, int *))
            (&vectors, &triangle, &n, a, &lda, values, space.work, &space.size, space.int_work, &space.int_size, &space.info);
        }
    }
    return end_work(&space);
}

/* The reals that LAPACK's users' guide asks for beside a complex workspace. */
static int reals_of_singular(char vectors, int m, int n) {
    const int few = m < n ? m : n, many = larger(m, n);
    return vectors == 'N' ? 7 * few : few * larger(5 * few + 7, 2 * many + 2 * few + 1);
}

int linear_singular(char kind, char vectors, Py_ssize_t m_, Py_ssize_t n_, void *a, Py_ssize_t lda_, void *s, void *u,
                    Py_ssize_t ldu_, void *vt, Py_ssize_t ldvt_) {
    int m = (int)m_, n = (int)n_, lda = (int)lda_, ldu = (int)ldu_, ldvt = (int)ldvt_;
    void *real_work = workspace(is_complex(kind) ? reals_of_singular(vectors, m, n) : 1, size_of_real(kind));
    void *int_work = workspace(8 * (m < n ? m : n), sizeof(int));
    Workspace space;
    begin_work(&space, kind);
    space.info = real_work == NULL || int_work == NULL ? FAILED : 0;
    while (space.info == 0 && prepare_call(&space)) {
        if (is_complex(kind)) {
            CALL(SINGULAR, kind,
                 (char *, int *, int *, void *, int *, void *, void *, int *, void *, int *, void *, int *, void *, void *, int *))
            (&vectors, &m, &n, a, &lda, s, u, &ldu, vt, &ldvt, space.work, &space.size, real_work, int_work, &space.info);
        }
        else {
            CALL(SINGULAR, kind,
                 (char *, int *, int *, void *, int *, void *, void *, int *, void *, int *, void *, int *, void *, int *))
            (&vectors, &m, &n, a, &lda, s, u, &ldu, vt, &ldvt, space.work, &space.size, int_work, &space.info);
        }
    }
    free(real_work);
    free(int_work);
    return end_work(&space);
}

/* One of the two steps of QR; `reflectors` is NULL for the first. */
static int qr_step(enum Routine routine, char kind, int m, int n, const int *reflectors, void *a, int lda, void *tau) {
    int k = reflectors != NULL ? *reflectors : 0;
    Workspace space;
    for (begin_work(&space, kind); prepare_call(&space);) {
        if (reflectors != NULL) {
            CALL(routine, kind, (int *, int *, int *, void *, int *, void *, void *, int *, int *))
            (&m, &n, &k, a, &lda, tau, space.work, &space.size, &space.info);
        }
        else {
            CALL(routine, kind, (int *, int *, void *, int *, void *, void *, int *, int *))
            (&m, &n, a, &lda, tau, space.work, &space.size, &space.info);
        }
    }
    return end_work(&space);
}

int linear_qr(char kind, Py_ssize_t m, Py_ssize_t n, void *a, Py_ssize_t lda, void *tau) {
    return qr_step(QR, kind, (int)m, (int)n, NULL, a, (int)lda, tau);
}

int linear_q_of_qr(char kind, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k_, void *a, Py_ssize_t lda, void *tau) {
    const int k = (int)k_;
    return qr_step(Q_OF_QR, kind, (int)m, (int)n, &k, a, (int)lda, tau);
}

int linear_least_squares(char kind, Py_ssize_t m_, Py_ssize_t n_, Py_ssize_t count_, void *a, Py_ssize_t lda_, void *b,
                         Py_ssize_t ldb_, void *s, double limit_, int *rank_) {
    int m = (int)m_, n = (int)n_, count = (int)count_, lda = (int)lda_, ldb = (int)ldb_, rank = 0;
    const float narrow = (float)limit_;
    const void *limit = size_of_real(kind) == sizeof(float) ? (const void *)&narrow : (const void *)&limit_;
    Workspace space;
    for (begin_work(&space, kind); prepare_call(&space);) {
        if (is_complex(kind)) {
            CALL(LEAST_SQUARES, kind,
                 (int *, int *, int *, void *, int *, void *, int *, void *, const void *, int *, void *, int *, void *, void *, int *))
            (&m, &n, &count, a, &lda, b, &ldb, s, limit, &rank, space.work, &space.size, space.real_work, space.int_work, &space.info);
        }
        else {
            CALL(LEAST_SQUARES, kind,
                 (int *, int *, int *, void *, int *, void *, int *, void *, const void *, int *, void *, int *, void *, int *))
            (&m, &n, &count, a, &lda, b, &ldb, s, limit, &rank, space.work, &space.size, space.int_work, &space.info);
        }
    }
    *rank_ = rank;
    return end_work(&space);
}
