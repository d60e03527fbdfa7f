/* A function that a resolver chooses when the image is loaded (a GNU indirect function). */
#include <stdint.h>

static int64_t plain(int64_t x) { return x + 1000; }
static int64_t (*resolve_chosen(void))(int64_t) { return plain; }
int64_t chosen(int64_t x) __attribute__((ifunc("resolve_chosen")));
int64_t through_chosen(int64_t x) { return chosen(x) + 1; }
