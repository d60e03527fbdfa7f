/* Preloaded: calls of libc that concern a cache directory, or memory files, fail, fall short or take long, at random.
 * storm(seed, one_in) begins it, one_in of 0 ends it. See test_faults_libc.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static uint64_t state;
static int rate, faults;

int storm(unsigned seed, int one_in) { state = seed * 2654435761u + 1; rate = one_in; return faults; }

static unsigned draw(unsigned below) { state = state * 6364136223846793005u + 1442695040888963407u; return (unsigned)(state >> 33) % below; }

static int concerns(int fd) { /* -2: no descriptor to ask */
    char link[32], path[256];
    const char *place = getenv("STORM_DIRECTORY");
    if (rate == 0 || place == NULL || fd == -2) return rate != 0;
    strcpy(link, "/proc/self/fd/");
    char *at = link + strlen(link) + 10;
    for (*at = 0; at > link + 14; at--, fd /= 10) at[-1] = (char)('0' + fd % 10); /* leading zeros below */
    char *digits = link + 14, plain[32];
    while (*digits == '0' && digits[1]) digits++;
    strcpy(plain, "/proc/self/fd/"); strcat(plain, digits);
    ssize_t size = readlink(plain, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strncmp(path, place, strlen(place)) == 0 || strncmp(path, "/memfd:compcache", 16) == 0;
}

/* Whether this call is to fail; *size is made smaller, or time passes, in other cases. */
static int strikes(int fd, size_t *size, int first, int second) {
    int before = errno;
    if (!concerns(fd) || draw((unsigned)rate) != 0) { errno = before; return 0; }
    faults++;
    switch (draw(3)) {
    case 0: errno = draw(2) ? first : second; return 1;
    case 1: if (size != NULL && *size > 1) { *size = 1 + draw((unsigned)*size - 1); } break;
    default: usleep(draw(3000));
    }
    errno = before;
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAULTY(type, name, parameters, arguments, fd, size, first, second) \
    type name parameters { return strikes(fd, size, first, second) ? -1 : REAL(name) arguments; }

FAULTY(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size), fd, &size, EIO, ENOMEM)
FAULTY(ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at), fd, &size, EIO, ENOMEM)
FAULTY(ssize_t, pread64, (int fd, void *data, size_t size, off_t at), (fd, data, size, at), fd, &size, EIO, ENOMEM)
FAULTY(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), fd, &size, ENOSPC, EIO)
FAULTY(int, fsync, (int fd), (fd), fd, NULL, EIO, ENOSPC)
int rename(const char *, const char *);
int renameat(int, const char *, int, const char *);
FAULTY(int, renameat, (int from, const char *a, int to, const char *b), (from, a, to, b), from, NULL, EACCES, ENOSPC)
int unlinkat(int, const char *, int);
FAULTY(int, unlinkat, (int fd, const char *name, int flags), (fd, name, flags), fd, NULL, EACCES, EIO)
int mkdirat(int, const char *, mode_t);
FAULTY(int, mkdirat, (int fd, const char *name, mode_t mode), (fd, name, mode), fd, NULL, EACCES, ENOSPC)
int flock(int, int);
FAULTY(int, flock, (int fd, int how), (fd, how), fd, NULL, ENOLCK, EIO)
int memfd_create(const char *, unsigned);
FAULTY(int, memfd_create, (const char *name, unsigned flags), (name, flags), -2, NULL, EMFILE, ENOMEM)
