/* The processor's description of itself: the same bytes for two processes only where the same code runs in both.
 *
 * Emulators and containers share the boot id of their kernel, and an emulator shows the machine's own /proc/cpuinfo. The
 * instruction CPUID answers for the processor that runs this process. In a virtual machine each is a trap of a few
 * microseconds, so no more are asked than tell processors and what hypervisors hide of them apart: model and
 * features (leaves 1, 7 and 80000001), and which registers the kernel saves (XCR0). */
#include "runtime.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

enum { MAX_WORDS = 16 };

#if defined(__x86_64__)

enum { AVX = 1 << 28, OSXSAVE = 1 << 27 };

static unsigned int read_xcr0(void) {
    unsigned int low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static size_t ask_processor(unsigned int *words) {
    unsigned int a, b, c, d;
    size_t count = 0;
    __cpuid(1, a, b, c, d); /* b has the number of the core */
    words[count++] = a;
    words[count++] = c;
    words[count++] = d;
    if (c & OSXSAVE) {
        words[count++] = read_xcr0();
    }
    if (c & AVX) { /* only then there is leaf 7 for sure, and only then it says anything that code depends on */
        __cpuid_count(7, 0, a, b, c, d);
        words[count++] = b;
        words[count++] = c;
        words[count++] = d;
        if (a > 0) {
            __cpuid_count(7, 1, a, b, c, d);
            words[count++] = a;
            words[count++] = b;
            words[count++] = d;
        }
    }
    __cpuid(0x80000001, a, b, c, d);
    words[count++] = c;
    words[count++] = d;
    return count;
}

#elif defined(__linux__)

static size_t ask_processor(unsigned int *words) {
    const unsigned long keys[] = {AT_HWCAP, AT_HWCAP2};
    size_t count = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        unsigned long long value = getauxval(keys[i]);
        words[count++] = (unsigned int)value;
        words[count++] = (unsigned int)(value >> 32);
    }
    return count;
}

#else

static size_t ask_processor(unsigned int *words) {
    (void)words;
    return 0;
}

#endif

/* xsave_variants() -> int: the variants of XSAVE that the processor has (leaf 13), for who asks it without LLVM. */
PyObject *xsave_variants(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    unsigned int a = 0;
#if defined(__x86_64__)
    unsigned int b, c, d;
    __cpuid(0, a, b, c, d);
    if (a >= 13) {
        __cpuid_count(13, 1, a, b, c, d);
    } else {
        a = 0;
    }
#endif
    return PyLong_FromUnsignedLong(a);
}

/* processor() -> bytes */
PyObject *processor(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
    unsigned int words[MAX_WORDS];
    size_t count = ask_processor(words);
    return PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)(count * sizeof *words));
}
