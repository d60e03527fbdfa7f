/* One half of a recursion that goes back and forth between two modules. */
#include <stdint.h>

int64_t tower_right(int64_t n);

static int64_t left_calls;

int64_t tower_left(int64_t n) {
    left_calls++;
    return n <= 0 ? 0 : 2 + tower_right(n - 1);
}

int64_t tower_left_calls(void) { return left_calls; }

/* A table of functions, one of which is in the other module. */
typedef int64_t (*step)(int64_t);
static const step steps[] = {tower_left, tower_right};

int64_t tower_step(int32_t which, int64_t n) { return steps[which](n); }
