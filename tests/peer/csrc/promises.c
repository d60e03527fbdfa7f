/* Compiled several times, with the name of each function's last part in N and other flags: what the flags of one file permit a compiler to
   assume of functions is not true of the calls of the others. Without N: the functions that they call. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct both { double x, y; };
struct many { long a[5]; };
typedef float four __attribute__((vector_size(16)));

#ifndef N
static int state;
void *give(long size) { return size ? malloc(size) : 0; }
void keep(int value) { state = value; }
int look(int factor) { return state * factor; }
int choose(double (*function)(double), double x) { errno = 0; function(x); return errno; }
void fill(char *bytes, int count) { for (int i = 0; i < count; i++) bytes[i] = (char)(i + 65); }
struct both pair(double x) { return (struct both){x, x + 1}; }
struct many five(long n) { return (struct many){{n, n, n, n, n + 4}}; }
four scale(four v, float f) { return v * f; }
#else
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(name) JOIN(name, N)
#ifdef PROMISES
extern void *give(long) __attribute__((returns_nonnull));
extern int look(int) __attribute__((const));
extern double sqrt(double) __attribute__((const)), asin(double) __attribute__((const));
#else
extern void *give(long);
extern int look(int);
#endif
extern void keep(int), fill(char *, int);
extern int choose(double (*)(double), double);
extern struct both pair(double);
extern struct many five(long);
extern four scale(four, float);

int NAME(arc_)(int x) { errno = 0; volatile double a = asin(x); int e = errno; errno = 0; (void)acosh(-x); (void)a; return e * 100 + errno; }
int NAME(root_)(int x) { errno = 0; double r = sqrt(-x); return errno + (r == r) * 1000; }
int NAME(unused_)(int x) { errno = 0; (void)asin(x); (void)sqrt(-x); (void)cosh(x * 1e9); return errno; }
int NAME(pointer_)(int x) { return choose(asin, x); }
int NAME(given_)(int x) { int *p = give(x % 2 * 8); return p == 0 ? 7 : (free(p), 9); }
int NAME(looks_)(int x) { keep(x); int a = look(1); keep(x + 5); return a * 1000 + look(1); }
int NAME(length_)(int x) { char b[40]; memset(b, 0, sizeof b); fill(b, x % 30); return strlen(b) * 100 + b[0]; }
int NAME(structs_)(int x) { struct both p = pair(x); struct many q = five(x); return p.x + p.y * 10 + q.a[4] * 100; }
int NAME(vector_)(int x) { four v = {1, 2, 3, x}; v = scale(v, 2.0f); return v[0] + v[3] * 10; }
#endif
