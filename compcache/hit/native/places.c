/* File systems: whether code and data may be mapped from their files.
 *
 * A mapped page that is not in memory is read when it is used. If another host can remove, replace or truncate the file meanwhile,
 * that read fails, and the process ends with SIGBUS in the middle of a function. So the file systems that may be mapped are listed: those
 * of this host alone, which keep an unlinked file for as long as it is open. From all others, including FUSE and unknown ones, the
 * content is read, and mapped from memory. */
#include "runtime.h"

#include <errno.h>

#ifdef __linux__
#include <sys/vfs.h>

typedef struct {
    uint32_t type; /* `f_type` of statfs(2); the numbers are those of linux/magic.h and of each file system's own headers */
    const char *name;
    int is_mapped;
} FileSystem;

static const FileSystem file_systems[] = {
    {0xEF53, "ext4", 1}, /* and ext2, ext3 */
    {0x58465342, "xfs", 1},
    {0x9123683E, "btrfs", 1},
    {0x01021994, "tmpfs", 1},
    {0x794C7630, "overlay", 1},
    {0x858458F6, "ramfs", 1},
    {0x2FC12FC1, "zfs", 1},
    {0xF2F52010, "f2fs", 1},
    {0xCA451A4E, "bcachefs", 1},
    {0x73717368, "squashfs", 1},
    {0xE0F5E1E2, "erofs", 1},
    {0x52654973, "reiserfs", 1},
    {0x3153464A, "jfs", 1},
    {0x3434, "nilfs2", 1},
    {0xF15F, "ecryptfs", 1},
    {0x61756673, "aufs", 1},
    {0x9660, "iso9660", 1},
    {0x4D44, "vfat", 1},
    {0x2011BAB0, "exfat", 1},
    {0x6969, "nfs", 0},
    {0x65735546, "fuse", 0},
    {0x01021997, "9p", 0},
    {0xFF534D42, "cifs", 0},
    {0xFE534D42, "smb", 0},
    {0x517B, "smb", 0},
    {0x00C36400, "ceph", 0},
    {0x0BD00BD0, "lustre", 0},
    {0x47504653, "gpfs", 0},
    {0x19830326, "beegfs", 0},
    {0x5346414F, "afs", 0},
    {0x6B414653, "afs", 0},
    {0x01161970, "gfs2", 0},
    {0x7461636F, "ocfs2", 0},
    {0x786F4256, "vboxsf", 0},
    {0x20030528, "orangefs", 0},
};

static uint32_t type_of(int descriptor) {
    struct statfs found;
    int status;
    while ((status = fstatfs(descriptor, &found)) != 0 && errno == EINTR) {
    }
    return status == 0 ? (uint32_t)found.f_type : 0;
}

static const FileSystem *find_type(uint32_t type) {
    const FileSystem *end = file_systems + sizeof file_systems / sizeof *file_systems;
    for (const FileSystem *each = file_systems; each < end; each++) {
        if (each->type == type) {
            return each;
        }
    }
    return NULL;
}

int can_map(int descriptor) {
    const FileSystem *found = find_type(type_of(descriptor));
    return found != NULL && found->is_mapped;
}

/* file_system(descriptor: int) -> tuple[str, bool] */
PyObject *file_system(PyObject *Py_UNUSED(module), PyObject *number) {
    const long descriptor = PyLong_AsLong(number);
    if (descriptor == -1 && PyErr_Occurred()) {
        return NULL;
    }
    const uint32_t type = type_of((int)descriptor);
    const FileSystem *found = find_type(type);
    if (found == NULL) {
        PyObject *name = PyUnicode_FromFormat("type %x", (unsigned)type);
        return name != NULL ? Py_BuildValue("(NO)", name, Py_False) : NULL;
    }
    return Py_BuildValue("(sO)", found->name, found->is_mapped ? Py_True : Py_False);
}
#else
int can_map(int Py_UNUSED(descriptor)) {
    return 1;
}

PyObject *file_system(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(number)) {
    return Py_BuildValue("(sO)", "not known", Py_True);
}
#endif
