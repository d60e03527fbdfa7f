/* The other half. */
#include <stdint.h>

int64_t tower_left(int64_t n);

int64_t tower_right(int64_t n) { return n <= 0 ? 0 : 3 + tower_left(n - 1); }
