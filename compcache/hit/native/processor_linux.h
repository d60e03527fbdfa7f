/* The kernel's description of a processor: words of the auxiliary vector, named if the bits of features are known. */
#include <sys/auxv.h>

#ifndef AT_HWCAP3
#define AT_HWCAP3 29
#endif

#if defined(__aarch64__)
static const char *const WORD_NAMES[] = {"hwcap", "hwcap2", "hwcap3"};
enum { NAMED_WORDS = 3 };
#else
static const char *const *const WORD_NAMES = NULL;
enum { NAMED_WORDS = 0 };
#endif

static size_t ask_processor(unsigned long long *words) {
    words[0] = getauxval(AT_HWCAP);
    words[1] = getauxval(AT_HWCAP2);
    words[2] = getauxval(AT_HWCAP3);
    return 3;
}
