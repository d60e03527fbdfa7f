/* Asks the compiler's library for the features of the CPU: __cpu_model is in no shared library. */
#include <stdint.h>

int32_t has_vectors(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse2") != 0;
}
