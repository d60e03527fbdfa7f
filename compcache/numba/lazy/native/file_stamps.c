/* Reads the states of many files in one call. A start compares the metadata of all installed distributions, possibly hundreds. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "dispatch.h"

#ifdef __APPLE__
#define MODIFIED(status) (status).st_mtimespec
#define CHANGED(status) (status).st_ctimespec
#else
#define MODIFIED(status) (status).st_mtim
#define CHANGED(status) (status).st_ctim
#endif

/* Data that differ between two states of a file; zeros if there is no file. */
typedef struct {
    uint64_t device, inode, size, modified, changed;
} Stamp;

static uint64_t nanoseconds(struct timespec time) {
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Return whether the file could be examined or does not exist. Links are followed. */
static int read_stamp(const char *path, Stamp *stamp) {
    struct stat status;
    memset(stamp, 0, sizeof *stamp);
    if (stat(path, &status) != 0) {
        return errno == ENOENT || errno == ENOTDIR;
    }
    stamp->device = (uint64_t)status.st_dev;
    stamp->inode = (uint64_t)status.st_ino;
    stamp->size = (uint64_t)status.st_size;
    stamp->modified = nanoseconds(MODIFIED(status));
    stamp->changed = nanoseconds(CHANGED(status));
    return 1;
}

PyObject *file_stamps(PyObject *Py_UNUSED(module), PyObject *paths) {
    char *path;
    Py_ssize_t size, count = 0;
    if (PyBytes_AsStringAndSize(paths, &path, &size) < 0) {
        return NULL;
    }
    if (size > 0 && path[size - 1] != '\0') {
        PyErr_SetString(PyExc_ValueError, "the last path must end with a NUL");
        return NULL;
    }
    const char *end = path + size;
    for (const char *at = path; at < end; at += strlen(at) + 1) {
        count++;
    }
    PyObject *stamps = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(Stamp));
    if (stamps == NULL) {
        return NULL;
    }
    char *filled = PyBytes_AsString(stamps);
    uint64_t newest = 0;
    for (const char *at = path; at < end; at += strlen(at) + 1, filled += sizeof(Stamp)) {
        Stamp stamp;
        if (!read_stamp(at, &stamp)) {
            Py_DECREF(stamps);
            Py_RETURN_NONE;
        }
        memcpy(filled, &stamp, sizeof stamp);
        newest = stamp.modified > newest ? stamp.modified : newest;
        newest = stamp.changed > newest ? stamp.changed : newest;
    }
    return Py_BuildValue("(NK)", stamps, (unsigned long long)newest);
}
