/* Another processor for programs that ask theirs what it is: CPUID, XGETBV and glibc's copy of CPUID's answers come from a table.
 *
 * Preloaded (LD_PRELOAD), it changes these instructions in the libraries that `pretended_processor.py` lists to breakpoints,
 * whenever one of them is loaded, and answers the breakpoints. So the package and LLVM itself, unchanged and in every
 * process that inherits the environment, take this machine for the one that a file describes. Nothing else is emulated: what is described should be
 * a part of what the real processor has.
 *
 * PRETENDED_PROCESSOR names the file. Its lines: `cpuid LEAF SUBLEAF EAX EBX ECX EDX` and `xcr0 LOW`, in hexadecimal, and
 * `site LIBRARY OFFSET KIND`: the base name of a library, where in its memory an instruction is, `cpuid` or `xgetbv`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { MOST_ROWS = 256, MOST_SITES = 512, CPUID = 2, XGETBV = 3 /* the lengths of the instructions */ };

struct row {
    uint32_t leaf, subleaf, answer[4];
};

struct site {
    char library[64];
    uintptr_t offset, address;
    int kind;
};

static struct row rows[MOST_ROWS];
static size_t row_count;
static uint32_t xcr0;
static struct site sites[MOST_SITES];
static size_t site_count;

/* Describe another processor from now on; for tests that try many in one process. */
void pretend(const uint32_t *words, size_t count, uint32_t low_of_xcr0) {
    row_count = count < MOST_ROWS ? count : MOST_ROWS;
    memcpy(rows, words, row_count * sizeof *rows);
    xcr0 = low_of_xcr0;
}

static const uint32_t *answer_of(uint32_t leaf, uint32_t subleaf) {
    static const struct row nothing;
    const struct row *found = &nothing;
    for (size_t i = 0; i < row_count; i++) {
        if (rows[i].leaf == leaf && rows[i].subleaf == subleaf) {
            found = &rows[i];
        }
    }
    return found->answer;
}

static void answer_cpuid(greg_t *registers) {
    uint32_t leaf = (uint32_t)registers[REG_RAX];
    /* Other leaves ignore ECX, and programs leave there what was in it. */
    uint32_t subleaf = leaf == 0x7 || leaf == 0xd || leaf == 0x14 || leaf == 0x1e ? (uint32_t)registers[REG_RCX] : 0;
    const uint32_t *answer = answer_of(leaf, subleaf);
    registers[REG_RAX] = answer[0];
    registers[REG_RBX] = answer[1];
    registers[REG_RCX] = answer[2];
    registers[REG_RDX] = answer[3];
}

/* What glibc's dynamic linker has asked, by its numbers: the answer, and what of it is usable. */
const uint32_t *__x86_get_cpuid_feature_leaf(unsigned int number) {
    static const uint32_t places[][2] = {[0] = {1, 0}, [1] = {7, 0}, [2] = {0x80000001, 0}, [6] = {7, 1}};
    static uint32_t leaves[sizeof places / sizeof *places][8];
    return memcpy(leaves[number], answer_of(places[number][0], places[number][1]), sizeof rows->answer);
}

static void on_breakpoint(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    (void)info;
    uintptr_t at = (uintptr_t)registers[REG_RIP] - 1;
    for (size_t i = 0; i < site_count; i++) {
        if (sites[i].address == at) {
            if (sites[i].kind == CPUID) {
                answer_cpuid(registers);
            } else {
                registers[REG_RAX] = xcr0;
                registers[REG_RDX] = 0;
            }
            registers[REG_RIP] = (greg_t)(at + (uintptr_t)sites[i].kind);
            return;
        }
    }
    signal(number, SIG_DFL);
    raise(number);
}

static void change(struct site *site, uintptr_t address) {
    static const unsigned char expected[][3] = {{0x0f, 0xa2, 0}, {0x0f, 0x01, 0xd0}};
    unsigned char *code = (unsigned char *)address;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = address & ~(page - 1);
    if (memcmp(code, expected[site->kind == XGETBV], (size_t)site->kind) != 0) {
        fprintf(stderr, "pretended processor: no such instruction at %s+%#lx\n", site->library, (unsigned long)site->offset);
        abort();
    }
    site->address = address;
    mprotect((void *)start, address + 3 - start, PROT_READ | PROT_WRITE | PROT_EXEC);
    memset(code, 0x90, (size_t)site->kind);
    code[0] = 0xcc;
    mprotect((void *)start, address + 3 - start, PROT_READ | PROT_EXEC);
}

static int look_at(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    for (size_t i = 0; i < site_count; i++) {
        if (sites[i].address == 0 && strcmp(name, sites[i].library) == 0) {
            change(&sites[i], info->dlpi_addr + sites[i].offset);
        }
    }
    return 0;
}

void *dlopen(const char *path, int flags) {
    static void *(*real)(const char *, int);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    }
    void *handle = real(path, flags);
    if (handle != NULL) {
        dl_iterate_phdr(look_at, NULL);
    }
    return handle;
}

static void read_line(const char *line) {
    struct row row;
    char library[64], kind[16];
    unsigned long offset;
    if (sscanf(line, "cpuid %x %x %x %x %x %x", &row.leaf, &row.subleaf, &row.answer[0], &row.answer[1], &row.answer[2], &row.answer[3]) == 6
        && row_count < MOST_ROWS) {
        rows[row_count++] = row;
    } else if (sscanf(line, "site %63s %lx %15s", library, &offset, kind) == 3 && site_count < MOST_SITES) {
        struct site *site = &sites[site_count++];
        strcpy(site->library, library);
        site->offset = offset;
        site->kind = strcmp(kind, "cpuid") == 0 ? CPUID : XGETBV;
    } else {
        sscanf(line, "xcr0 %x", &xcr0);
    }
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_sigaction = on_breakpoint, .sa_flags = SA_SIGINFO | SA_NODEFER};
    const char *path = getenv("PRETENDED_PROCESSOR");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        read_line(line);
    }
    if (file != NULL) {
        fclose(file);
    }
    sigaction(SIGTRAP, &action, NULL);
    dl_iterate_phdr(look_at, NULL);
}
