/* A constructor that calls a function of another module: it runs before anything could be bound. */
#include <stdint.h>

int64_t tower_right(int64_t n);

static int64_t initial;

__attribute__((constructor)) static void construct(void) { initial = tower_right(1); }

int64_t initial_value(void) { return initial; }
