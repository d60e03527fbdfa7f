/* Preloaded into a program: calls of libc that concern the paths under $CONFORMANCE_PLACE fail, end the process, or see what a
 * network file system shows.
 *
 * $CONFORMANCE_FAULT is KIND:NUMBER:
 *   count:0      nothing; the number of calls that change something is written to $CONFORMANCE_COUNT
 *   kill:N       SIGKILL before the N-th call that changes something and all later ones
 *   stop:N       SIGSTOP before that call alone
 *   term:N       SIGTERM before that call alone
 *   stale:N      the first and every N-th open or read after it fails with ESTALE; so do the others
 *   io:N         every N-th read fails with EIO
 *   missing:N    every N-th open of a file that is there fails with ENOENT
 *   late:MS      a file that was made or renamed less than MS milliseconds ago is not there yet for open and stat
 *   full:N       every write after the first N fails with ENOSPC
 *   locks:0      locks are not supported
 *   links:0      hard and symbolic links are not supported
 *   sync:0       fsync fails with EIO
 *   rename:N     every N-th rename fails with EBUSY
 *   short:N      every N-th write writes half */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char kind[16], place[PATH_MAX];
static long number, changes, opens, reads, writes, renames;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define IS(word) (strcmp(kind, word) == 0)

__attribute__((constructor)) static void start(void) {
    const char *fault = getenv("CONFORMANCE_FAULT"), *where = getenv("CONFORMANCE_PLACE"), *colon;
    if (fault == NULL || where == NULL || (colon = strchr(fault, ':')) == NULL || colon - fault >= (long)sizeof kind) return;
    memcpy(kind, fault, (size_t)(colon - fault));
    number = atol(colon + 1);
    strncpy(place, where, sizeof place - 1);
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("CONFORMANCE_COUNT");
    if (!IS("count") || path == NULL) return;
    FILE *file = fopen(path, "a");
    if (file) { fprintf(file, "%ld\n", changes); fclose(file); }
}

static int of_descriptor(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    path[size < 0 ? 0 : size] = 0;
    return size > 0;
}

static int under(const char *path) { return strncmp(path, place, strlen(place)) == 0; }

static int concerns_fd(int fd) {
    char path[PATH_MAX];
    int before = errno, answer = kind[0] && of_descriptor(fd, path) && under(path);
    errno = before;
    return answer;
}

static int concerns(int at, const char *name) {
    char path[PATH_MAX];
    if (!kind[0] || name == NULL) return 0;
    if (name[0] == '/') return under(name);
    if (at != AT_FDCWD) return concerns_fd(at);
    return getcwd(path, sizeof path) && under(path);
}

static void changing(void) {
    changes++;
    if (IS("kill") && changes >= number) raise(SIGKILL);
    if (IS("stop") && changes == number) raise(SIGSTOP);
    if (IS("term") && changes == number) raise(SIGTERM);
}

static int nth(long *counter) { return number > 0 && (*counter)++ % number == 0; }

/* Whether a file is too young to be seen by this client. */
static int too_young(int at, const char *name) {
    struct stat state;
    struct timespec now;
    if (!IS("late") || REAL(fstatat)(at, name, &state, 0) != 0 || !S_ISREG(state.st_mode)) return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    double age = (double)(now.tv_sec - state.st_ctim.tv_sec) * 1e3 + (double)(now.tv_nsec - state.st_ctim.tv_nsec) / 1e6;
    return age < (double)number;
}

static int opening(int at, const char *name, int flags) {
    if (!concerns(at, name)) return 0;
    if (flags & (O_CREAT | O_TRUNC)) { changing(); return 0; }
    if (flags & O_DIRECTORY) return 0;
    if (too_young(at, name)) { errno = ENOENT; return -1; }
    if (IS("stale") && nth(&opens)) { errno = ESTALE; return -1; }
    if (IS("missing") && faccessat(at, name, F_OK, 0) == 0 && nth(&opens)) { errno = ENOENT; return -1; }
    return 0;
}

#define OPEN(name, head, at, tail) \
    int name head { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); } \
        return opening(at, path, flags) ? -1 : REAL(name) tail; \
    }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(openat, (int at, const char *path, int flags, ...), at, (at, path, flags, mode))
OPEN(openat64, (int at, const char *path, int flags, ...), at, (at, path, flags, mode))

static int reading(int fd) {
    if ((!IS("stale") && !IS("io")) || !concerns_fd(fd) || !nth(&reads)) return 0;
    errno = IS("io") ? EIO : ESTALE;
    return -1;
}

ssize_t read(int fd, void *data, size_t size) { return reading(fd) ? -1 : REAL(read)(fd, data, size); }
ssize_t pread(int fd, void *data, size_t size, off_t at) { return reading(fd) ? -1 : REAL(pread)(fd, data, size, at); }
ssize_t pread64(int fd, void *data, size_t size, off64_t at) { return reading(fd) ? -1 : REAL(pread64)(fd, data, size, at); }

static int writing(int fd, size_t *size) {
    if (!concerns_fd(fd)) return 0;
    changing();
    writes++;
    if (IS("full") && writes > number) { errno = ENOSPC; return -1; }
    if (IS("short") && number && (writes - 1) % number == 0 && *size > 1) *size /= 2;
    return 0;
}

ssize_t write(int fd, const void *data, size_t size) { return writing(fd, &size) ? -1 : REAL(write)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return writing(fd, &size) ? -1 : REAL(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return writing(fd, &size) ? -1 : REAL(pwrite64)(fd, data, size, at);
}

static int moving(int at, const char *name) {
    if (!concerns(at, name)) return 0;
    changing();
    if (IS("rename") && nth(&renames)) { errno = EBUSY; return -1; }
    return 0;
}

int rename(const char *from, const char *to) { return moving(AT_FDCWD, to) ? -1 : REAL(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to) { return moving(b, to) ? -1 : REAL(renameat)(a, from, b, to); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    return moving(b, to) ? -1 : REAL(renameat2)(a, from, b, to, flags);
}

static int linking(int at, const char *name) {
    if (!concerns(at, name)) return 0;
    changing();
    if (IS("links")) { errno = EPERM; return -1; }
    return 0;
}

int link(const char *from, const char *to) { return linking(AT_FDCWD, to) ? -1 : REAL(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    return linking(b, to) ? -1 : REAL(linkat)(a, from, b, to, flags);
}
int symlink(const char *from, const char *to) { return linking(AT_FDCWD, to) ? -1 : REAL(symlink)(from, to); }
int symlinkat(const char *from, int at, const char *to) { return linking(at, to) ? -1 : REAL(symlinkat)(from, at, to); }

#define CHANGE(name, head, at, path, tail) \
    int name head { \
        if (concerns(at, path)) changing(); \
        return REAL(name) tail; \
    }
CHANGE(unlink, (const char *path), AT_FDCWD, path, (path))
CHANGE(unlinkat, (int at, const char *path, int flags), at, path, (at, path, flags))
CHANGE(mkdir, (const char *path, mode_t mode), AT_FDCWD, path, (path, mode))
CHANGE(mkdirat, (int at, const char *path, mode_t mode), at, path, (at, path, mode))

int fsync(int fd) {
    if (IS("sync") && concerns_fd(fd)) { errno = EIO; return -1; }
    return REAL(fsync)(fd);
}
int flock(int fd, int how) {
    if (IS("locks") && concerns_fd(fd)) { errno = ENOLCK; return -1; }
    return REAL(flock)(fd, how);
}
int fcntl64(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (IS("locks") && (command == F_SETLK || command == F_SETLKW) && concerns_fd(fd)) { errno = ENOLCK; return -1; }
    return REAL(fcntl64)(fd, command, argument);
}
int stat(const char *path, struct stat *state) {
    if (concerns(AT_FDCWD, path) && too_young(AT_FDCWD, path)) { errno = ENOENT; return -1; }
    return REAL(stat)(path, state);
}
