/* The description of an x86-64 processor by itself: CPUID, and which registers the kernel saves (XCR0).
 *
 * In a virtual machine each CPUID is a trap of a few microseconds. So only what distinguishes processors, and what hypervisors hide, is
 * read at once: model and features (leaves 1, 7, 80000001). The dynamic linker of glibc has executed these, and keeps the answers. */
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

typedef struct {
    unsigned int a, b, c, d, usable[4];
} Leaf;

extern const Leaf *__x86_get_cpuid_feature_leaf(unsigned int number) __attribute__((weak)); /* NULL before glibc 2.33 */

/* Returns a leaf, which has this number in glibc. */
static Leaf ask_leaf(unsigned int number, unsigned int leaf, unsigned int subleaf) {
    Leaf found = {0};
    if (__x86_get_cpuid_feature_leaf != NULL) {
        return *__x86_get_cpuid_feature_leaf(number);
    }
    __cpuid_count(leaf, subleaf, found.a, found.b, found.c, found.d);
    return found;
}

static size_t ask_processor(unsigned long long *words) {
    const Leaf none = {0}, first = ask_leaf(0, 1, 0), extended = ask_leaf(2, EXTENDED + 1, 0); /* first.b has the number of the core */
    const Leaf seventh = first.c & AVX ? ask_leaf(1, 7, 0) : none; /* only then it certainly exists, and most code depends on it */
    const Leaf further = seventh.a > 0 ? ask_leaf(6, 7, 1) : none;
    const unsigned long long found[] = {first.a,   first.c,   first.d,   first.c & OSXSAVE ? read_xcr0() : 0, seventh.b, seventh.c,
                                        seventh.d, further.a, further.d, extended.c,                          extended.d};
    memcpy(words, found, sizeof found);
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
