/* Ways to pass arguments: narrow integers, structs by value, varargs, other calling conventions, floats. */
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Clang relies on the caller having extended narrow arguments. */
int64_t widen_i8(int8_t x) { return x; }
int64_t widen_u8(uint8_t x) { return x; }
int64_t widen_i16(int16_t x) { return x; }
int64_t widen_u16(uint16_t x) { return x; }
int64_t widen_bool(bool x) { return x ? 10 : 20; }
int8_t narrow_i8(int64_t x) { return (int8_t)x; }
uint16_t narrow_u16(int64_t x) { return (uint16_t)x; }
bool is_positive(double x) { return x > 0; }
float halve(float x) { return x / 2; }

/* Twelve integers and ten floats: some travel on the stack. */
double many(int64_t a, double b, int32_t c, float d, int64_t e, double f, int16_t g, double h, int64_t i, double j,
            int8_t k, double l, int64_t m, double n, uint8_t o, double p, int64_t q, float r, int64_t s, double t,
            int64_t u, double v) {
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k + 12 * l + 13 * m +
           14 * n + 15 * o + 16 * p + 17 * q + 18 * r + 19 * s + 20 * t + 21 * u + 22 * v;
}

/* Structs by value: in registers, in memory, as results. None of these has a signature that Python could call. */
typedef struct { double x, y; } pair;
typedef struct { int64_t words[8]; } large;
__attribute__((noinline)) double sum_pair(pair p) { return p.x + p.y; }
__attribute__((noinline)) int64_t sum_large(large l) {
    int64_t sum = 0;
    for (int i = 0; i < 8; i++) sum += l.words[i];
    return sum;
}
__attribute__((noinline)) pair swapped(pair p) { return (pair){p.y, p.x}; }
__attribute__((noinline)) large counted_from(int64_t first) {
    large l;
    for (int i = 0; i < 8; i++) l.words[i] = first + i;
    return l;
}
double call_sum_pair(double x, double y) { return sum_pair((pair){x, y}); }
int64_t call_sum_large(int64_t first) { return sum_large(counted_from(first)); }
double call_swapped(double x, double y) { pair p = swapped((pair){x, y}); return 10 * p.x + p.y; }

/* Varargs. */
__attribute__((noinline)) int64_t sum_all(int32_t count, ...) {
    va_list list;
    int64_t sum = 0;
    va_start(list, count);
    for (int32_t i = 0; i < count; i++) sum += va_arg(list, int64_t);
    va_end(list);
    return sum;
}
int64_t sum_three(int64_t a, int64_t b, int64_t c) { return sum_all(3, a, b, c); }

__attribute__((noinline, format(printf, 3, 4))) int32_t format_into(char *out, int64_t size, const char *how, ...) {
    va_list list;
    va_start(list, how);
    int32_t written = vsnprintf(out, (size_t)size, how, list);
    va_end(list);
    return written;
}
int32_t format_record(char *out, int64_t size, const char *name, int32_t id, double value) {
    return format_into(out, size, "%s #%05d = %.3e (%c%%)", name, id, value, 'x');
}
int32_t report(const char *text) { return fprintf(stderr, "%s\n", text) + fflush(stderr); }

/* Types that Python has no scalar for. */
long double triple_long(long double x) { return 3 * x; }
double triple_through_long(double x) { return (double)triple_long(x); }
double cube_root_of_long(double x) { return (double)cbrtl((long double)x); }
double call_libm(double x) { return sin(x) + pow(x, 2.5) + fmod(x, 0.75); }

#if defined(__x86_64__)
/* A calling convention that is not C's: the entry point must use it, or say that it does not. */
__attribute__((ms_abi, noinline)) int64_t foreign_convention(int64_t a, int64_t b) { return 10 * a + b; }
int64_t call_foreign_convention(int64_t a, int64_t b) { return foreign_convention(a, b); }
#endif
