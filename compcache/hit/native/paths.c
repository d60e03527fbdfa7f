/* Opens files below a directory without following symbolic links anywhere in the path. */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef O_PATH
#define DIRECTORY_FLAGS (O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#else
#define DIRECTORY_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#endif

/* --------------------------------------------------------------------------------- one component after another */

/* Opens one directory of a path; returns -1 on failure. Closes `parent` unless it is `start`. */
static int enter(int start, int parent, const char *name) {
    const int found = openat(parent, name, DIRECTORY_FLAGS);
    if (parent != start) {
        const int error = errno;
        close(parent);
        errno = error;
    }
    return found;
}

static int walk(int start, const char *path, int flags, int mode) {
    char name[256];
    int parent = start;
    for (const char *slash; (slash = strchr(path, '/')) != NULL; path = slash + 1) {
        const size_t size = (size_t)(slash - path);
        const int is_plain = size > 0 && size < sizeof name && strncmp(path, "..", size) != 0;
        if (!is_plain) {
            if (parent != start) {
                close(parent);
            }
            errno = EINVAL;
            return -1;
        }
        memcpy(name, path, size);
        name[size] = '\0';
        parent = enter(start, parent, name);
        if (parent < 0) {
            return -1;
        }
    }
    const int found = openat(parent, path, flags | O_NOFOLLOW | O_CLOEXEC, mode);
    if (parent != start) {
        const int error = errno;
        close(parent);
        errno = error;
    }
    return found;
}

/* ------------------------------------------------------------------------------------------------- in one call */

#ifdef __linux__
#include <sys/syscall.h>

#ifndef SYS_openat2
#define SYS_openat2 437 /* the same on all architectures; Linux 5.6 */
#endif

/* `struct open_how` of linux/openat2.h, which older headers lack. */
typedef struct {
    uint64_t flags, mode, resolve;
} OpenHow;

#define RESOLVE_NO_SYMLINKS UINT64_C(0x04)
#define RESOLVE_BENEATH UINT64_C(0x08)
#define MOST_ATTEMPTS 8
#define MEMFD_CLOEXEC 1U /* MFD_CLOEXEC of linux/memfd.h, which older headers lack */

static int open_at_once(int start, const char *path, int flags, int mode) {
    const OpenHow how = {
        .flags = (uint64_t)(flags | O_NOFOLLOW | O_CLOEXEC),
        .mode = flags & O_CREAT ? (uint64_t)mode : 0,
        .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH,
    };
    int found = -1;
    for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) { /* EAGAIN: a directory was renamed meanwhile */
        found = (int)syscall(SYS_openat2, start, path, &how, sizeof how);
        if (found >= 0 || errno != EAGAIN) {
            break;
        }
    }
    return found;
}

static int open_without_links(int start, const char *path, int flags, int mode) {
    const int found = open_at_once(start, path, flags, mode);
    /* The system does not have the call, or a sandbox does not know it. */
    const int refused = found < 0 && (errno == ENOSYS || errno == EPERM || errno == EAGAIN || errno == E2BIG);
    return refused ? walk(start, path, flags, mode) : found;
}
#else
#define open_without_links walk
#endif

/* ----------------------------------------------------------------------------------------------- open descriptors */

/* Python may raise the exception of a signal handler between any two of its instructions: a number that a function returned
 * may never be stored, and a finalizer in Python may never run. So descriptors are created in an object, and closed here. */
typedef struct {
    PyObject_HEAD
    int number;
} Descriptor;

static void descriptor_dealloc(PyObject *object) {
    const Descriptor *self = (const Descriptor *)object;
    if (self->number >= 0) {
        close(self->number); /* errors are ignored: other code may have closed it */
    }
    release_object(object);
}

static PyMemberDef descriptor_members[] = {
    {"number", T_INT, offsetof(Descriptor, number), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot descriptor_slots[] = {
    {Py_tp_dealloc, (void *)descriptor_dealloc},
    {Py_tp_members, (void *)descriptor_members},
    {0, NULL},
};

PyType_Spec descriptor_spec = {
    .name = "compcache.hit._runtime.Descriptor",
    .basicsize = sizeof(Descriptor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = descriptor_slots,
};

/* Opens a file below an open directory, or with a directory of -1 any file. Returns -1 on failure, with `errno` and perhaps an exception of a
 * signal handler. */
static int open_uninterrupted(int directory, const char *path, int flags, int mode) {
    int number, error;
    do {
        Py_BEGIN_ALLOW_THREADS
        number = directory < 0 ? open(path, flags | O_CLOEXEC, mode) : open_without_links(directory, path, flags, mode);
        error = errno;
        Py_END_ALLOW_THREADS
    } while (number < 0 && error == EINTR && PyErr_CheckSignals() == 0);
    errno = error;
    return number;
}

/* open_beneath(directory: int, path: str, flags: int, mode: int, may_lack: bool = False) -> Descriptor | None
 * Opens a file below an open directory; `path` has neither "." nor "..". With a directory of -1, opens any path, following links as
 * the system does. With `may_lack`, returns None if the file does not exist. Raises OSError: ELOOP or ENOTDIR for a link. */
PyObject *open_beneath(PyObject *module, PyObject *args) {
    PyObject *encoded;
    int directory, flags, mode, may_lack = 0;
    if (!PyArg_ParseTuple(args, "iO&ii|p:open_beneath", &directory, PyUnicode_FSConverter, &encoded, &flags, &mode, &may_lack)) {
        return NULL;
    }
    Descriptor *self = (Descriptor *)PyType_GenericAlloc(module_state(module)->descriptor_type, 0);
    if (self == NULL) {
        Py_DECREF(encoded);
        return NULL;
    }
    self->number = open_uninterrupted(directory, PyBytes_AsString(encoded), flags, mode);
    const int failed = self->number < 0;
    if (failed && !PyErr_Occurred() && !(may_lack && errno == ENOENT)) {
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, PyTuple_GetItem(args, 1));
    }
    Py_DECREF(encoded);
    if (failed) {
        Py_CLEAR(self);
    }
    if (failed && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return (PyObject *)self;
}

/* memory_file(name: str) -> Descriptor
 * Creates an empty file in memory without a path. Raises OSError: ENOSYS if the system has no such files. */
PyObject *memory_file(PyObject *module, PyObject *name) {
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    Descriptor *self = text == NULL ? NULL : (Descriptor *)PyType_GenericAlloc(module_state(module)->descriptor_type, 0);
    if (self == NULL) {
        return NULL;
    }
#ifdef SYS_memfd_create
    self->number = (int)syscall(SYS_memfd_create, text, MEMFD_CLOEXEC); /* older C libraries have no function for it */
#else
    self->number = -1;
    errno = ENOSYS;
#endif
    if (self->number < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

/* ------------------------------------------------------------------------------------------- status, listings */

/* is_at(descriptor: int, path: str) -> bool: whether the open file is the one at this path, following links */
PyObject *is_at(PyObject *Py_UNUSED(module), PyObject *args) {
    int descriptor;
    PyObject *path;
    struct stat here, there;
    if (!PyArg_ParseTuple(args, "iO&:is_at", &descriptor, PyUnicode_FSConverter, &path)) {
        return NULL;
    }
    int is_same;
    Py_BEGIN_ALLOW_THREADS
    is_same = fstat(descriptor, &here) == 0 && stat(PyBytes_AsString(path), &there) == 0 && here.st_dev == there.st_dev
        && here.st_ino == there.st_ino;
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    return PyBool_FromLong(is_same);
}

#ifdef __APPLE__
#define NANOSECONDS_OF(status, which) ((status).st_##which##timespec)
#else
#define NANOSECONDS_OF(status, which) ((status).st_##which##tim)
#endif

static long long nanoseconds(struct timespec time) {
    return (long long)((unsigned long long)time.tv_sec * 1000000000U + (unsigned long long)time.tv_nsec); /* may wrap around */
}

/* stamp_of(descriptor: int, owner: int) -> (inode, size, mtime, ctime), the times in nanoseconds; None if it is not a regular file of
 * this owner that no other user can write to. Raises OSError. */
PyObject *stamp_of(PyObject *Py_UNUSED(module), PyObject *args) {
    int descriptor;
    long long owner;
    struct stat status;
    if (!PyArg_ParseTuple(args, "iL:stamp_of", &descriptor, &owner)) {
        return NULL;
    }
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = fstat(descriptor, &status);
    Py_END_ALLOW_THREADS
    if (failed) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (!S_ISREG(status.st_mode) || (status.st_mode & (S_IWGRP | S_IWOTH)) || (long long)status.st_uid != owner) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(KLLL)", (unsigned long long)status.st_ino, (long long)status.st_size,
                         nanoseconds(NANOSECONDS_OF(status, m)), nanoseconds(NANOSECONDS_OF(status, c)));
}

/* Which directory it is, and the times of the last change of its names. */
typedef struct {
    uint64_t device, inode;
    long long modified, changed;
} DirectoryState;

static DirectoryState state_of(const struct stat *status) {
    return (DirectoryState){(uint64_t)status->st_dev, (uint64_t)status->st_ino, nanoseconds(NANOSECONDS_OF(*status, m)),
                            nanoseconds(NANOSECONDS_OF(*status, c))};
}

#ifdef CLOCK_REALTIME_COARSE
#define CLOCK_OF_FILES CLOCK_REALTIME_COARSE /* times in file systems are of this clock, which may be late */
#else
#define CLOCK_OF_FILES CLOCK_REALTIME
#endif

/* Gets the state of an open directory. Returns whether each later change of its names will change the state. It may not if the last change was
 * a moment ago, because the next one may have the same time, or if other hosts can make changes. */
static int get_state(int descriptor, DirectoryState *state) {
    static const long long settled = 3000000000; /* the coarsest times are of two seconds */
    struct timespec now;
    struct stat status;
    if (clock_gettime(CLOCK_OF_FILES, &now) != 0 || fstat(descriptor, &status) != 0) { /* in this order */
        return 0;
    }
    *state = state_of(&status);
    const long long limit = nanoseconds(now) - settled;
    return state->changed < limit && state->modified < limit && can_map(descriptor);
}

/* is_unchanged(path: str, state: bytes) -> bool: whether a path, following links, leads to the directory with this state (see names_beneath()),
 * and its names are the same */
PyObject *is_unchanged(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *path, *state;
    struct stat status;
    if (!PyArg_ParseTuple(args, "O&S:is_unchanged", PyUnicode_FSConverter, &path, &state)) {
        return NULL;
    }
    int is_same = PyBytes_Size(state) == sizeof(DirectoryState);
    if (is_same) {
        Py_BEGIN_ALLOW_THREADS
        is_same = stat(PyBytes_AsString(path), &status) == 0;
        Py_END_ALLOW_THREADS
    }
    if (is_same) {
        const DirectoryState found = state_of(&status);
        is_same = memcmp(&found, PyBytes_AsString(state), sizeof found) == 0;
    }
    Py_DECREF(path);
    return PyBool_FromLong(is_same);
}

/* Names, each followed by a slash. */
typedef struct {
    char *at;
    size_t size, room;
} Names;

/* Appends a name unless it is "." or "..". Returns 0, or a number of an error. */
static int append_name(Names *names, const char *name) {
    const size_t length = strlen(name);
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return 0;
    }
    if (names->room - names->size < length + 1) {
        const size_t room = 2 * names->room + length + 512;
        char *larger = realloc(names->at, room);
        if (larger == NULL) {
            return ENOMEM;
        }
        names->at = larger;
        names->room = room;
    }
    memcpy(names->at + names->size, name, length);
    names->at[names->size + length] = '/';
    names->size += length + 1;
    return 0;
}

/* Appends the names in an open directory. Returns 0, or a number of an error. opendir() would ask for the status and the flags of the descriptor,
 * and for more memory than names take. */
static int append_names(int directory, Names *names) {
#ifdef SYS_getdents64
    typedef struct { /* linux_dirent64, which no header has */
        uint64_t inode;
        int64_t next;
        unsigned short size;
        unsigned char type;
        char name[];
    } Entry;
    _Alignas(Entry) char buffer[4096];
    long count;
    while ((count = syscall(SYS_getdents64, directory, buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < count; at += ((const Entry *)(buffer + at))->size) {
            const int error = append_name(names, ((const Entry *)(buffer + at))->name);
            if (error != 0) {
                return error;
            }
        }
    }
    return count < 0 ? errno : 0;
#else
    return ENOSYS; /* no hit is plain */
#endif
}

/* names_beneath(directory: int, path: str) -> (names: bytes, state: bytes): the names in a directory below an open one, each followed by a
 * slash, in the order of the system, and a state for is_unchanged(), b"" if it could miss a change. Raises OSError: ELOOP or ENOTDIR for
 * a link. */
PyObject *names_beneath(PyObject *Py_UNUSED(module), PyObject *args) {
    int above;
    PyObject *encoded;
    if (!PyArg_ParseTuple(args, "iO&:names_beneath", &above, PyUnicode_FSConverter, &encoded)) {
        return NULL;
    }
    const int number = open_uninterrupted(above, PyBytes_AsString(encoded), O_RDONLY | O_DIRECTORY, 0);
    if (number < 0 && !PyErr_Occurred()) {
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, PyTuple_GetItem(args, 1));
    }
    Py_DECREF(encoded);
    if (number < 0) {
        return NULL;
    }
    DirectoryState state = {0};
    Names names = {NULL, 0, 0};
    int is_settled, error;
    Py_BEGIN_ALLOW_THREADS
    is_settled = get_state(number, &state);
    error = append_names(number, &names);
    close(number);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (error != 0) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        result = Py_BuildValue("(y#y#)", names.at != NULL ? names.at : "", (Py_ssize_t)names.size, (const char *)&state,
                               is_settled ? (Py_ssize_t)sizeof state : (Py_ssize_t)0);
    }
    free(names.at);
    return result;
}
