/* Below C: inline assembly, wide arithmetic from the compiler's library, errno, setjmp, atomics, builtins. */
#include <errno.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t rotate_left_one(uint64_t x) {
#if defined(__x86_64__)
    __asm__("rolq $1, %0" : "+r"(x) : : "cc");
#elif defined(__aarch64__)
    __asm__("ror %0, %0, #63" : "+r"(x));
#else
    x = x << 1 | x >> 63;
#endif
    return x;
}

int64_t behind_a_barrier(int64_t x) {
    int64_t copy = x;
    __asm__ volatile("" : "+m"(copy) : : "memory");
    return copy + 1;
}

int32_t error_of_bad_close(void) {
    errno = 0;
    close(-1);
    return errno;
}

static jmp_buf landing;

__attribute__((noinline)) static void jump_if_zero(int64_t divisor) {
    if (divisor == 0) longjmp(landing, 77);
}

int64_t divide_or_jump(int64_t dividend, int64_t divisor) {
    volatile int64_t before = dividend;
    int code = setjmp(landing);
    if (code != 0) return before * 1000 + code;
    jump_if_zero(divisor);
    return dividend / divisor;
}

static atomic_llong shared;

int64_t add_atomically(int64_t amount) { return atomic_fetch_add(&shared, amount) + amount; }

int64_t bits(uint64_t x) { return __builtin_popcountll(x) * 10000 + __builtin_ctzll(x) * 100 + __builtin_clzll(x); }

/* Whether codegen turns these into calls (memcpy, memset, strlen) is up to LLVM. */
int64_t copy_text(char *out, const char *text) {
    size_t length = strlen(text);
    memcpy(out, text, length);
    memset(out + length, '!', 3);
    out[length + 3] = 0;
    return (int64_t)(length + 3);
}
