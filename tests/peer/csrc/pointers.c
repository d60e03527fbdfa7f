/* Functions reached through data: tables, aliases, weak symbols, callbacks, computed jumps. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static int64_t add(int64_t a, int64_t b) { return a + b; }
static int64_t subtract(int64_t a, int64_t b) { return a - b; }
static int64_t multiply(int64_t a, int64_t b) { return a * b; }

typedef int64_t (*operation)(int64_t, int64_t);

static const operation operations[] = {add, subtract, multiply};

static struct {
    const char *name;
    operation run;
    const operation *all;
} registry[] = {{"add", add, operations}, {"multiply", multiply, operations + 2}};

int64_t apply(int32_t which, int64_t a, int64_t b) { return operations[which](a, b); }

int64_t apply_registered(int32_t which, int64_t a, int64_t b) {
    return registry[which].run(a, b) * 1000 + registry[which].all[0](a, b) + registry[which].name[0];
}

void replace_registered(int32_t which, void *run) { registry[which].run = (operation)run; }

/* An alias, a weak definition, and a weak declaration that nothing satisfies. */
int64_t original(int64_t x) { return x * 3; }
int64_t other_name(int64_t x) __attribute__((alias("original")));
__attribute__((weak)) int64_t overridable(int64_t x) { return x + 7; }
extern int64_t compcache_nobody_defines_this(int64_t x) __attribute__((weak));

int64_t through_alias(int64_t x) { return other_name(x) + overridable(x); }

int64_t optional(int64_t x) { return compcache_nobody_defines_this ? compcache_nobody_defines_this(x) : -x; }

/* Not in the dynamic symbol table of an ordinary library, and yet a function like any other. */
__attribute__((visibility("hidden"))) int64_t hidden_twice(int64_t x) { return 2 * x; }
int64_t through_hidden(int64_t x) { return hidden_twice(x) + 1; }

/* The name of a function of the C library: the module's own one is meant. */
int64_t ffsll(int64_t x) { return x + 12345; }
int64_t through_own_ffsll(int64_t x) { return ffsll(x); }

/* Callbacks in both directions. */
int32_t compare_descending(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left < right) - (left > right);
}

void sort_with(int64_t *data, int64_t count, int (*compare)(const void *, const void *)) {
    qsort(data, (size_t)count, sizeof *data, compare);
}

void sort_descending(int64_t *data, int64_t count) { qsort(data, (size_t)count, sizeof *data, compare_descending); }

void *address_of_multiply(void) { return (void *)multiply; }

int64_t call_pointer(void *function, int64_t a, int64_t b) { return ((operation)function)(a, b); }

/* An interpreter whose jumps go through a table of label addresses. */
int64_t run_program(const uint8_t *program, int64_t length) {
    static const void *const labels[] = {&&stop, &&increment, &&double_it, &&negate};
    int64_t value = 0, at = 0;
#define NEXT goto *labels[at < length ? program[at++] & 3 : 0]
    NEXT;
increment:
    value += 1;
    NEXT;
double_it:
    value *= 2;
    NEXT;
negate:
    value = -value;
    NEXT;
stop:
    return value;
}

/* Recursion, direct and mutual. */
int64_t ackermann(int64_t m, int64_t n) {
    if (m == 0) return n + 1;
    return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

__attribute__((noinline)) int32_t is_odd(uint32_t n);
__attribute__((noinline)) int32_t is_even(uint32_t n) { return n == 0 ? 1 : is_odd(n - 1); }
__attribute__((noinline)) int32_t is_odd(uint32_t n) { return n == 0 ? 0 : is_even(n - 1); }
