/* LLVM turns these into calls of the compiler's own library (__udivti3, __powidf2), which no IR mentions. */
#include <stdint.h>

uint64_t divide_wide(uint64_t high, uint64_t low, uint64_t divisor) {
    unsigned __int128 dividend = (unsigned __int128)high << 64 | low;
    return (uint64_t)(dividend / divisor);
}

double powers(double x, int32_t n) { return __builtin_powi(x, n); }

uint64_t unrelated(uint64_t x) { return x ^ 1; }
