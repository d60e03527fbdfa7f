/* The processor's description of itself: the same bytes for two processes only where the same code runs in both.
 *
 * Emulators and containers share the boot id of their kernel, and an emulator shows the machine's own /proc/cpuinfo. The
 * instruction CPUID answers for the processor that runs this process. In a virtual machine each is a trap of a few
 * microseconds, so no more are asked at once than tell processors and what hypervisors hide of them apart: model and
 * features (leaves 1, 7 and 80000001), and which registers the kernel saves (XCR0). The words and their order are those of
 * `WORDS` in compcache/formats/host.py. */
#include "runtime.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

enum { MAX_WORDS = 16 };

#if defined(__x86_64__)

enum { AVX = 1 << 28, OSXSAVE = 1 << 27 };
static const unsigned int EXTENDED = 1u << 31;

static unsigned int read_xcr0(void) {
    unsigned int low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static size_t ask_processor(unsigned long long *words) {
    unsigned int a, b, c, d, most = 0;
    __cpuid(1, a, b, c, d); /* b has the number of the core */
    words[0] = a;
    words[1] = c;
    words[2] = d;
    words[3] = c & OSXSAVE ? read_xcr0() : 0;
    if (c & AVX) { /* only then there is leaf 7 for sure, and only then it says anything that most code depends on */
        __cpuid_count(7, 0, most, b, c, d);
        words[4] = b;
        words[5] = c;
        words[6] = d;
    }
    if (most > 0) {
        __cpuid_count(7, 1, a, b, c, d);
        words[7] = a;
        words[8] = d;
    }
    __cpuid(EXTENDED + 1, a, b, c, d);
    words[9] = c;
    words[10] = d;
    return 11;
}

#elif defined(__linux__)

#ifndef AT_HWCAP3
#define AT_HWCAP3 29
#endif

static size_t ask_processor(unsigned long long *words) {
    words[0] = getauxval(AT_HWCAP);
    words[1] = getauxval(AT_HWCAP2);
    words[2] = getauxval(AT_HWCAP3);
    return 3;
}

#else

static size_t ask_processor(unsigned long long *words) {
    (void)words;
    return 0;
}

#endif

/* cpuid(leaf, subleaf) -> (eax, ebx, ecx, edx), or () where the processor has no such leaf, or no CPUID at all */
PyObject *cpuid(PyObject *Py_UNUSED(module), PyObject *args) {
    unsigned int leaf, subleaf;
    if (!PyArg_ParseTuple(args, "II", &leaf, &subleaf)) {
        return NULL;
    }
#if defined(__x86_64__)
    unsigned int a, b, c, d;
    __cpuid(leaf & EXTENDED, a, b, c, d); /* the highest leaf of this range */
    if (leaf <= a) {
        __cpuid_count(leaf, subleaf, a, b, c, d);
        return Py_BuildValue("(IIII)", a, b, c, d);
    }
#endif
    return PyTuple_New(0);
}

/* processor() -> bytes: words of 64 bits each */
PyObject *processor(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    unsigned long long words[MAX_WORDS] = {0};
    size_t count = ask_processor(words);
    return PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)(count * sizeof *words));
}
