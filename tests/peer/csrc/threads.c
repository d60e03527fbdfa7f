/* Data of which every thread has its own: initialized, zero, visible to other files. */
#include <stdint.h>

static _Thread_local int64_t calls = 1000;
static _Thread_local char name[100];
_Thread_local int64_t visible_calls = 5;

int64_t count_call(void) { return ++calls; }

int64_t count_visible_call(void) { return ++visible_calls; }

int64_t name_sum(int64_t add) {
    int64_t sum = 0;
    name[add % 100] += (char)add;
    for (int i = 0; i < 100; i++) sum += name[i];
    return sum;
}
