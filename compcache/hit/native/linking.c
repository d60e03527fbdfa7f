/* The dynamic linker, as images.c uses it: files are mapped by descriptor, and no call of the dynamic linker can hang another
 * thread, a fork or the interpreter.
 *
 * Names. glibc recognizes a library that it has by the name given to dlopen(), before it looks at device and inode. So every call gets a
 * name that was never used before. A library that does not have that name afterwards was mapped by another owner: its slots and variables
 * are not ours. The names lead to an open descriptor: the verified file is mapped, wherever its path leads by now. They lead there for
 * other processes, too: a debugger that follows dlopen() opens the name in its own process. A mapped library then gets its path as its
 * name, for dladdr and debuggers.
 *
 * Locks. The dynamic linker holds a lock of its own while constructors and destructors run, and these may want the GIL. So it is called
 * without the GIL, and libraries are not closed while another call of it runs: the last call that returns closes them. A fork waits for
 * such calls, because the child would wait for the linker's lock forever.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Memory from `start` to before `end`. */
typedef struct {
    ElfW(Addr) start, end;
} Range;

enum { MAX_RANGES = 8, NOT_ASKED = -1 };

#ifndef RTLD_DI_PHDR
#define RTLD_DI_PHDR 11 /* the program headers of a library; the result is their number: glibc 2.36 */
#endif

struct Library {
    void *handle;
    struct link_map *map; /* for a file that was mapped by descriptor, else NULL */
    char *given;          /* the name that dlopen() gave to `map`, which owns it */
    char *shown;          /* the name that it has while it is mapped */
    Library *next;        /* in the list of libraries to close */
    int ranges;           /* the number of ranges in `writable`, or NOT_ASKED */
    Range writable[MAX_RANGES];
};

/* ---------------------------------------------------------------------------------------------- threads, forks */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the next two; its holder waits for nothing else */
static int inside;                                       /* the number of running calls of the dynamic linker */
static Library *closing;                                 /* the libraries that the last of these calls must close */
static __thread int inside_here;                         /* the calls of this thread: constructors may open libraries */

static void close_library(Library *library) {
    if (library->map != NULL) {
        if (strlen(library->shown) <= strlen(library->given)) {
            strcpy(library->given, library->shown); /* a debugger reads it once more, and the descriptor may be another file's by now */
        }
        library->map->l_name = library->given; /* which dlclose() frees */
    }
    dlclose(library->handle);
    free(library->shown);
    free(library);
}

static void enter_linker(void) {
    pthread_mutex_lock(&lock);
    inside++;
    pthread_mutex_unlock(&lock);
    inside_here++;
}

static void leave_linker(void) {
    pthread_mutex_lock(&lock);
    while (inside == 1 && closing != NULL) {
        Library *library = closing;
        closing = library->next;
        pthread_mutex_unlock(&lock);
        close_library(library);
        pthread_mutex_lock(&lock);
    }
    inside--;
    pthread_mutex_unlock(&lock);
    inside_here--;
}

int calls_of_this_thread(void) {
    return inside_here;
}

enum { FORK_POLLS = 1000, FORK_POLL_NANOSECONDS = 1000000 };

/* A fork waits for other threads' calls, for at most a second: their constructors may be waiting for the forking thread. */
static void before_fork(void) {
    const struct timespec pause = {0, FORK_POLL_NANOSECONDS};
    pthread_mutex_lock(&lock);
    for (int polls = 0; inside > inside_here && polls < FORK_POLLS; polls++) {
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
    }
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void) {
    pthread_mutex_init(&lock, NULL);
    inside = inside_here; /* the other threads do not exist in the child */
}

int prepare_linking(void) {
    static int prepared;
    if (!prepared && pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    prepared = 1;
    return 0;
}

/* -------------------------------------------------------------------------------------------------------- names */

enum { NUMBER_BITS = 64, NAME_HEAD = 2 * NUMBER_BITS + 2, LONGEST_NAME = 4000 };

/* Returns a new spelling of `path`, which begins with a slash: a number written as "/" for 0 and "./" for 1, which mean nothing to the
 * system, and as many more slashes as make it as long as `shown`. The caller frees it; NULL if memory is exhausted. */
static char *respell(const char *path, const char *shown) {
    static uint64_t numbers;
    const size_t needed = strlen(shown) < LONGEST_NAME ? strlen(shown) : 0;
    char *name = malloc(NAME_HEAD + strlen(path) + needed + 1);
    if (name == NULL) {
        return NULL;
    }
    char *at = name;
    *at++ = '/';
    for (uint64_t number = __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED); number != 0; number >>= 1) {
        if (number & 1) {
            *at++ = '.';
        }
        *at++ = '/';
    }
    while ((size_t)(at - name) + strlen(path + 1) < needed) {
        *at++ = '/';
    }
    strcpy(at, path + 1);
    return name;
}

enum { DESCRIPTOR_PATH = 48, PROCESS_NUMBER = 16 };

/* Writes the path under which the system shows an open file, to this process and to others. The process number is that of
 * /proc, which getpid() need not know: a container may see the /proc of another name space. A forked child has another one. */
static void path_of(int descriptor, char *path) {
    char number[PROCESS_NUMBER];
    const ssize_t size = readlink("/proc/self", number, sizeof number);
    const int is_known = size > 0 && (size_t)size < sizeof number;
    snprintf(path, DESCRIPTOR_PATH, "/proc/%.*s/fd/%d", is_known ? (int)size : 4, is_known ? number : "self", descriptor);
}

/* Whether the file must be opened by its path, because /proc is not mounted, and can be: the path leads to that file, and the
 * dynamic linker finds no variable in it. */
static int must_stand_for(int descriptor, const char *path) {
    char through[DESCRIPTOR_PATH];
    struct stat file, found;
    path_of(descriptor, through);
    return access(through, F_OK) != 0 && path[0] == '/' && strchr(path, '$') == NULL && fstat(descriptor, &file) == 0
           && stat(path, &found) == 0 && found.st_dev == file.st_dev && found.st_ino == file.st_ino;
}

/* ------------------------------------------------------------------------------------------- opening and closing */

/* Returns the dynamic linker's message, with the path in place of the name that it was given. The caller frees it. */
static char *failure(const char *name, const char *path) {
    const char *text = dlerror();
    if (text == NULL) {
        text = "the dynamic linker reports no reason";
    } else if (name != NULL && strncmp(text, name, strlen(name)) == 0) {
        text += strlen(name);
        text += strncmp(text, ": ", 2) == 0 ? 2 : 0;
    }
    char *message = malloc(strlen(path) + strlen(text) + 3);
    if (message != NULL) {
        sprintf(message, "%s: %s", path, text);
    }
    return message;
}

Library *open_library(const char *path, char **reason) {
    Library *library = calloc(1, sizeof *library);
    *reason = NULL;
    if (library == NULL) {
        return NULL;
    }
    enter_linker();
    library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library->handle == NULL) {
        *reason = failure(path, path);
    }
    leave_linker();
    if (library->handle == NULL) {
        free(library);
        return NULL;
    }
    return library;
}

/* Let a debugger read the names of libraries again. It stops where the dynamic linker reports that its list has changed, as
 * it did inside dlopen(), when the library had the name of a descriptor that is closed soon. Without a debugger nothing happens. */
static void tell_debuggers(void) {
#ifdef __GLIBC__ /* musl does not export it */
    void (*stop)(void) = NULL;
    if (_r_debug.r_brk != 0) {
        memcpy(&stop, &_r_debug.r_brk, sizeof stop);
        stop();
    }
#endif
}

/* Maps a file under a new spelling of its name. Returns 0; 1 if another owner has mapped it; -1 on failure, with a reason. */
static int map_as(Library *library, const char *path, char **reason) {
    struct link_map *map = NULL;
    char *name = respell(path, library->shown);
    if (name == NULL) {
        return -1;
    }
    int status = 0;
    library->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library->handle == NULL) {
        *reason = failure(name, library->shown);
        status = -1;
    } else if (dlinfo(library->handle, RTLD_DI_LINKMAP, &map) != 0 || strcmp(map->l_name, name) != 0) {
        dlclose(library->handle);
        status = 1;
    } else {
        library->given = map->l_name;
        library->map = map;
        library->ranges = NOT_ASKED;
        map->l_name = library->shown;
        tell_debuggers();
    }
    free(name);
    return status;
}

int map_library(int descriptor, const char *path, Library **result, char **reason) {
    char through[DESCRIPTOR_PATH];
    Library *library = calloc(1, sizeof *library);
    char *shown = strdup(path);
    int status = -1;
    *reason = NULL;
    if (library != NULL && shown != NULL && descriptor >= 0) {
        library->shown = shown;
        path_of(descriptor, through);
        enter_linker();
        status = map_as(library, through, reason);
        if (status < 0 && must_stand_for(descriptor, path)) {
            free(*reason);
            *reason = NULL;
            status = map_as(library, path, reason);
        }
        leave_linker();
    }
    if (status != 0) {
        free(shown);
        free(library);
        library = NULL;
    }
    *result = library;
    return status;
}

/* -------------------------------------------------------------------------------------------- memory, symbols */

/* A query of the dynamic linker: which ranges of the library at `map` can be written to. */
typedef struct {
    const struct link_map *map;
    Range found[MAX_RANGES];
    int count;
} Search;

/* Removes a range that only the dynamic linker may write to. */
static void leave_out(Search *search, ElfW(Addr) start, ElfW(Addr) end) {
    const int count = search->count;
    for (int i = 0; i < count; i++) {
        Range *range = &search->found[i];
        if (start < range->end && end > range->start) {
            if (search->count < MAX_RANGES && end < range->end) {
                search->found[search->count++] = (Range){end, range->end};
            }
            range->end = start > range->start ? start : range->start;
        }
    }
}

static void find_ranges(Search *search, const ElfW(Phdr) *segments, int count) {
    const ElfW(Addr) page = (ElfW(Addr))sysconf(_SC_PAGESIZE);
    for (int i = 0; i < count && search->count < MAX_RANGES; i++) {
        const ElfW(Phdr) *segment = &segments[i];
        const ElfW(Addr) start = search->map->l_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && segment->p_flags & PF_W) {
            search->found[search->count++] = (Range){start, start + segment->p_memsz};
        }
    }
    for (int i = 0; i < count; i++) {
        const ElfW(Phdr) *segment = &segments[i];
        const ElfW(Addr) start = search->map->l_addr + segment->p_vaddr;
        if (segment->p_type == PT_GNU_RELRO) {
            leave_out(search, start, (start + segment->p_memsz) & ~(page - 1));
        }
    }
}

static int is_searched(struct dl_phdr_info *info, size_t Py_UNUSED(size), void *data) {
    Search *search = data;
    const int found = info->dlpi_addr == search->map->l_addr;
    if (found) {
        find_ranges(search, info->dlpi_phdr, info->dlpi_phnum);
    }
    return found;
}

/* Finds, once, the ranges of a library that can be written to; returns their number. */
static int ranges_of(Library *library) {
    int count = __atomic_load_n(&library->ranges, __ATOMIC_ACQUIRE);
    if (count < 0) {
        Search search = {.map = library->map};
        const ElfW(Phdr) *segments = NULL;
        const int known = dlinfo(library->handle, RTLD_DI_PHDR, &segments);
        if (known > 0) {
            find_ranges(&search, segments, known);
        } else {
            dl_iterate_phdr(is_searched, &search); /* before glibc 2.36: a walk through all libraries, which is slow with many images */
        }
        pthread_mutex_lock(&lock);
        memcpy(library->writable, search.found, sizeof search.found); /* another thread may have found the same */
        pthread_mutex_unlock(&lock);
        count = search.count;
        __atomic_store_n(&library->ranges, count, __ATOMIC_RELEASE);
    }
    return count;
}

int can_be_written(Library *library, uint64_t address, uint64_t size) {
    const uint64_t end = address + size;
    for (int i = ranges_of(library) - 1; i >= 0; i--) {
        if (end >= address && address >= library->writable[i].start && end <= library->writable[i].end) {
            return 1;
        }
    }
    return 0;
}

void close_when_possible(Library *library) {
    pthread_mutex_lock(&lock);
    int now = inside == 0;
    if (now) {
        inside++;
    } else {
        library->next = closing;
        closing = library;
    }
    pthread_mutex_unlock(&lock);
    if (!now) {
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    inside_here++;
    close_library(library);
    leave_linker();
    Py_END_ALLOW_THREADS
}

void *library_symbol(const Library *library, const char *name) {
    enter_linker();
    void *address = dlsym(library != NULL ? library->handle : RTLD_DEFAULT, name);
    leave_linker();
    return address;
}

size_t first_undefined(const char *const *names, size_t count) {
    size_t number = 0;
    enter_linker();
    while (number < count && dlsym(RTLD_DEFAULT, names[number]) != NULL) {
        number++;
    }
    leave_linker();
    return number;
}
