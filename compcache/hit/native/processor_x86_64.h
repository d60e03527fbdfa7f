/* The description of an x86-64 processor by itself: CPUID, and which registers the kernel saves (XCR0).
 *
 * The instruction CPUID answers for the processor that runs this process. In a virtual machine each one is a trap of a few microseconds,
 * so only those are executed at once that distinguish processors, and the features that hypervisors hide: model and features (leaves 1, 7
 * and 80000001). */
#include <cpuid.h>
#include <stdio.h>

/* leaf.subleaf.register; "xcr0" without OSXSAVE is 0 */
static const char *const WORD_NAMES[] = {"1.0.a", "1.0.c", "1.0.d", "xcr0",         "7.0.b",       "7.0.c",
                                         "7.0.d", "7.1.a", "7.1.d", "80000001.0.c", "80000001.0.d"};
enum { NAMED_WORDS = 11, FIRST_OF_LEAF_7 = 4, LAST_OF_LEAF_7 = 8, AVX = 1 << 28, OSXSAVE = 1 << 27 };
static const unsigned int EXTENDED = 1u << 31;

static unsigned int read_xcr0(void) {
    unsigned int low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static size_t ask_processor(unsigned long long *words) {
    unsigned int a, b, c, d, most = 0;
    __cpuid(1, a, b, c, d); /* b is not used: it has the number of the core */
    words[0] = a;
    words[1] = c;
    words[2] = d;
    words[3] = c & OSXSAVE ? read_xcr0() : 0;
    if (c & AVX) { /* only then leaf 7 certainly exists, and only then most code depends on it */
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
    return NAMED_WORDS;
}

static int was_asked(const unsigned long long *words, size_t number) {
    return words[1] & AVX || number < FIRST_OF_LEAF_7 || number > LAST_OF_LEAF_7;
}

/* Returns 1 with the word, or 0 if the name does not have this form. A word that the processor does not have is 0. */
static int ask_word(const char *name, unsigned long long *word) {
    unsigned int leaf, subleaf, a, b, c, d;
    char place, more;
    *word = 0;
    if (sscanf(name, "%x.%x.%c%c", &leaf, &subleaf, &place, &more) != 3 || place < 'a' || place > 'd') {
        return 0;
    }
    __cpuid(leaf & EXTENDED, a, b, c, d); /* the highest leaf of this range */
    if (leaf <= a) {
        __cpuid_count(leaf, subleaf, a, b, c, d);
        const unsigned int registers[] = {a, b, c, d};
        *word = registers[place - 'a'];
    }
    return 1;
}
