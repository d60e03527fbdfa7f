/* Calls what calls.c defines, from another module: varargs and structs by value must pass through unharmed. */
#include <stdint.h>

typedef struct { double x, y; } pair;
typedef struct { int64_t words[8]; } large;

int64_t sum_all(int32_t count, ...);
double sum_pair(pair p);
int64_t sum_large(large l);
pair swapped(pair p);
large counted_from(int64_t first);
long double triple_long(long double x);
int64_t widen_i8(int8_t x);
float halve(float x);

int64_t cross_varargs(int64_t a, int64_t b) { return sum_all(8, a, b, a, b, a, b, a, b); }

double cross_pair(double x, double y) { return sum_pair((pair){x, y}); }

double cross_swapped(double x, double y) {
    pair p = swapped((pair){x, y});
    return 10 * p.x + p.y;
}

int64_t cross_large(int64_t first) { return sum_large(counted_from(first)); }

double cross_long(double x) { return (double)triple_long(x); }

int64_t cross_narrow(int64_t x) { return widen_i8((int8_t)x); }

double cross_through_pointer(double x) {
    float (*volatile function)(float) = halve;
    return function((float)x);
}
