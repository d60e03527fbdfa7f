/* A function that only the assembler knows: the IR merely declares it. */
#include <stdint.h>

int64_t from_assembly(int64_t x);
#if defined(__x86_64__)
__asm__(".text\n.globl from_assembly\n.type from_assembly, @function\n"
        "from_assembly:\n\tleaq 5(%rdi), %rax\n\tret\n.size from_assembly, .-from_assembly\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl from_assembly\n.type from_assembly, @function\n"
        "from_assembly:\n\tadd x0, x0, #5\n\tret\n.size from_assembly, .-from_assembly\n");
#endif

int64_t through_assembly(int64_t x) { return from_assembly(x) * 2; }
