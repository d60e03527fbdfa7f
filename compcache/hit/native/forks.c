/* Calls the functions that run around a fork, whatever signals arrive meanwhile. */
#include "runtime.h"

#if defined(__linux__)
#include <sys/syscall.h>
#endif
#if defined(__APPLE__)
#include <pthread.h>
#endif
#include <unistd.h>

enum { MOST_CALLS = 1000 };

/* Python runs signal handlers in the main thread only. */
static int is_main_thread(void) {
#if defined(__linux__)
    return syscall(SYS_gettid) == getpid();
#elif defined(__APPLE__)
    return pthread_main_np();
#else
    return 0;
#endif
}

/* An exception, and the process that will raise it: a child of a fork does not receive the signals of its parent. */
struct late {
    PyObject *error;
    pid_t process;
};

static int raise_late(void *argument) {
    struct late *late = argument;
    int is_here = late->process == getpid();
    if (is_here) {
        PyErr_SetObject((PyObject *)Py_TYPE(late->error), late->error);
    }
    Py_DECREF(late->error);
    PyMem_Free(late);
    return is_here ? -1 : 0;
}

/* Let the interpreter raise an exception where it runs signal handlers next. Steals the reference. */
static void raise_later(PyObject *error) {
    struct late *late = is_main_thread() ? (struct late *)PyMem_Malloc(sizeof *late) : NULL;
    if (late != NULL) {
        late->error = error;
        late->process = getpid();
        if (Py_AddPendingCall(raise_late, late) == 0) {
            return;
        }
    }
    PyMem_Free(late);
    Py_DECREF(error);
}

/* Return the exception that was raised, with its traceback, and with `before` as its context. */
static PyObject *take_error(PyObject *before) {
    PyObject *error = take_exception();
    if (before != NULL && before != error) {
        PyException_SetContext(error, before); /* takes the reference */
    } else {
        Py_XDECREF(before);
    }
    return error;
}

/* uninterrupted(function) -> None
 * Calls a function with a list until it returns. The list is the same each time, so the function continues where it was interrupted.
 * Python ignores exceptions of functions that it calls around a fork. So an exception of a signal handler would leave the function half
 * done, and be lost. Here it is raised in the main thread afterwards. */
PyObject *uninterrupted(PyObject *Py_UNUSED(module), PyObject *function) {
    PyObject *error = NULL, *result = NULL;
    PyObject *done = PyList_New(0);
    for (int calls = 0; done != NULL && result == NULL && calls < MOST_CALLS; ++calls) {
        result = PyObject_CallFunctionObjArgs(function, done, NULL);
        if (result == NULL) {
            error = take_error(error);
        }
    }
    Py_XDECREF(done);
    if (result == NULL) {
        if (error != NULL) {
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
            Py_DECREF(error);
        }
        return NULL;
    }
    Py_DECREF(result);
    if (error != NULL) {
        raise_later(error);
    }
    Py_RETURN_NONE;
}
