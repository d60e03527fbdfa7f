/* Implements threads of exported kernels that are compiled with parallel=True. The process has one pool, for one loop at a time. A loop
 * that starts within another loop, or while another thread uses the pool, is run by its own thread. Pieces are assigned to threads by
 * number, so that each run adds partial results in the same order. After a fork the child starts its own threads. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "objects.h"

#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#endif
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A loop in the style of NumPy's generalized ufuncs, as compiled code passes it (numba/np/ufunc/parallel.py). */
typedef struct {
    void (*run)(char **arguments, uint64_t *dimensions, const int64_t *steps, void *data);
    char *const *arguments;
    const uint64_t *dimensions;
    const int64_t *steps;
    void *data;
    uint64_t sizes, arrays; /* the numbers of dimensions without the first, and of arguments */
    int64_t threads;
    PyObject **raised; /* the first exception of a piece */
} Loop;

enum { MOST_THREADS = 1024, DEFAULT = 0 };

static pthread_mutex_t in_use = PTHREAD_MUTEX_INITIALIZER; /* held while a loop uses the pool */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   /* protects the following variables */
static pthread_cond_t started = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static const Loop *current;
static uint64_t loops_begun;
static int64_t workers, running;
static int64_t most; /* the largest number of threads of a loop; 0: not determined yet */

static __thread int64_t thread_number, chosen_threads;
static __thread uint64_t chunk;
static __thread int is_in_loop;
static __thread PyObject *own_raised, **raised; /* exceptions of loops that this thread began; where its present piece stores one */

/* ------------------------------------------------------------------------------------------------------- settings */

static int64_t count_processors(void) {
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        return CPU_COUNT(&allowed);
    }
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? online : 1;
}

static int64_t most_threads(void) {
    int64_t known = __atomic_load_n(&most, __ATOMIC_ACQUIRE);
    if (known == 0) {
        const char *setting = getenv("NUMBA_NUM_THREADS");
        known = setting != NULL ? strtol(setting, NULL, 10) : 0;
        known = known > 0 ? known : count_processors();
        known = known < MOST_THREADS ? known : MOST_THREADS;
        __atomic_store_n(&most, known, __ATOMIC_RELEASE);
    }
    return known;
}

int64_t parallel_threads(void) {
    return chosen_threads != DEFAULT ? chosen_threads : most_threads();
}

void set_parallel_threads(int count) {
    chosen_threads = count < 1 ? 1 : count > most_threads() ? most_threads() : count;
}

int64_t parallel_thread(void) {
    return thread_number;
}

uint64_t parallel_chunk(void) {
    return chunk;
}

/* Set the size of pieces. Return the previous size. */
uint64_t set_parallel_chunk(uint64_t size) {
    const uint64_t before = chunk;
    chunk = (uint32_t)size;
    return before;
}

/* ---------------------------------------------------------------------------------------------------------- pool */

static void run_piece(const Loop *loop, int64_t number) {
    const uint64_t total = loop->dimensions[0], each = total / (uint64_t)loop->threads, begin = each * (uint64_t)number;
    uint64_t dimensions[loop->sizes + 1];
    char *arguments[loop->arrays + 1];
    memcpy(dimensions, loop->dimensions, sizeof dimensions);
    dimensions[0] = number == loop->threads - 1 ? total - begin : each;
    for (uint64_t i = 0; i < loop->arrays; i++) {
        arguments[i] = loop->arguments[i] + loop->steps[i] * (int64_t)begin;
    }
    const int64_t outer_thread = thread_number, outer_threads = chosen_threads;
    const int was_in_loop = is_in_loop;
    PyObject **const outer_raised = raised;
    thread_number = number;
    chosen_threads = loop->threads;
    is_in_loop = 1;
    raised = loop->raised;
    loop->run(arguments, dimensions, loop->steps, loop->data);
    thread_number = outer_thread;
    chosen_threads = outer_threads;
    is_in_loop = was_in_loop;
    raised = outer_raised;
}

static void *work(void *given) {
    const int64_t number = (int64_t)(intptr_t)given;
    uint64_t seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (loops_begun == seen) {
            pthread_cond_wait(&started, &lock);
        }
        seen = loops_begun;
        if (current == NULL || number >= current->threads) {
            continue;
        }
        const Loop *loop = current;
        pthread_mutex_unlock(&lock);
        run_piece(loop, number);
        pthread_mutex_lock(&lock);
        if (--running == 0) {
            pthread_cond_signal(&finished);
        }
    }
    return NULL;
}

/* Start workers until there are `wanted`. The caller holds the lock. Workers block signals, which are for Python's threads. */
static void start_workers(int64_t wanted) {
    pthread_attr_t attributes;
    sigset_t all, before;
    if (workers >= wanted || pthread_attr_init(&attributes) != 0) {
        return;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    while (workers < wanted && pthread_create(&thread, &attributes, work, (void *)(intptr_t)(workers + 1)) == 0) {
        workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

static void run_alone(const Loop *loop) {
    for (int64_t number = 0; number < loop->threads; number++) {
        run_piece(loop, number);
    }
}

static void run_on_pool(const Loop *loop) {
    pthread_mutex_lock(&lock);
    start_workers(loop->threads - 1);
    const int64_t helping = workers < loop->threads - 1 ? workers : loop->threads - 1;
    current = loop;
    running = helping;
    loops_begun++;
    pthread_cond_broadcast(&started);
    pthread_mutex_unlock(&lock);
    run_piece(loop, 0);
    for (int64_t number = helping + 1; number < loop->threads; number++) { /* pieces of threads that could not be started */
        run_piece(loop, number);
    }
    pthread_mutex_lock(&lock);
    while (running > 0) {
        pthread_cond_wait(&finished, &lock);
    }
    current = NULL;
    pthread_mutex_unlock(&lock);
}

/* Run a loop. The caller does not have the GIL. */
void parallel_for(void *run, char *const *arguments, const uint64_t *dimensions, const int64_t *steps, void *data, uint64_t sizes,
                  uint64_t arrays, int64_t threads) {
    Loop loop = {
        .arguments = arguments, .dimensions = dimensions, .steps = steps, .data = data, .sizes = sizes, .arrays = arrays,
        .threads = threads, .raised = is_in_loop ? raised : &own_raised,
    };
    memcpy(&loop.run, &run, sizeof run);
    if (threads == 1 || is_in_loop || pthread_mutex_trylock(&in_use) != 0) {
        run_alone(&loop);
        return;
    }
    run_on_pool(&loop);
    pthread_mutex_unlock(&in_use);
}

/* Keep an exception of a loop for `parallel_raise`, if it is the first. Compiled code continues with other iterations after an exception,
 * and its thread clears it. Return 0 outside of a loop, otherwise take over the reference. The caller has the GIL. */
int keep_exception(PyObject *exception) {
    PyObject *nothing = NULL;
    if (!is_in_loop) {
        return 0;
    }
    if (!__atomic_compare_exchange_n(raised, &nothing, exception, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        Py_DECREF(exception);
    }
    return 1;
}

/* After a kernel: raise the exception of one of its loops, unless the kernel itself has raised one. Return 1 if a loop raised one. */
int parallel_raise(void) {
    PyObject *exception = own_raised;
    if (exception == NULL) {
        return 0;
    }
    own_raised = NULL;
    if (!PyErr_Occurred()) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    }
    Py_DECREF(exception);
    return 1;
}

static void forget_in_child(void) {
    pthread_mutex_init(&in_use, NULL);
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&started, NULL);
    pthread_cond_init(&finished, NULL);
    current = NULL;
    workers = running = 0;
    is_in_loop = 0;
}

int prepare_threads(void) {
    return pthread_atfork(NULL, NULL, forget_in_child);
}
