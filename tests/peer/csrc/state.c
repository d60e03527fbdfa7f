/* State that outlives a call: statics, constructors, zero-initialized and constant tables. */
#include <stddef.h>
#include <stdint.h>

static int64_t calls = 100;
static int64_t constructed;
static int64_t order[4];
static int64_t order_length;
static unsigned char pool[32 << 20]; /* takes no space in a file */

int64_t count_call(void) { return ++calls; }

int64_t count_call_elsewhere(void) { calls += 10; return calls; }

__attribute__((constructor(101))) static void construct_first(void) { order[order_length++] = 1; }

__attribute__((constructor(102))) static void construct_second(void) {
    order[order_length++] = 2;
    constructed = 41;
}

__attribute__((destructor)) static void destroy(void) { constructed = -1; }

int64_t constructed_value(void) { return constructed; }

int64_t construction_order(void) { return order_length * 100 + order[0] * 10 + order[1]; }

int64_t remember(int64_t index, int64_t value) {
    int64_t old = pool[index];
    pool[index] = (unsigned char)value;
    return old;
}

#define ROW1(n) (uint32_t)((n) * 2654435761u)
#define ROW4(n) ROW1(n), ROW1(n + 1), ROW1(n + 2), ROW1(n + 3)
#define ROW16(n) ROW4(n), ROW4(n + 4), ROW4(n + 8), ROW4(n + 12)
#define ROW64(n) ROW16(n), ROW16(n + 16), ROW16(n + 32), ROW16(n + 48)
#define ROW256(n) ROW64(n), ROW64(n + 64), ROW64(n + 128), ROW64(n + 192)
#define ROW1024(n) ROW256(n), ROW256(n + 256), ROW256(n + 512), ROW256(n + 768)
#define ROW4096(n) ROW1024(n), ROW1024(n + 1024), ROW1024(n + 2048), ROW1024(n + 3072)
static const uint32_t large[4 * 4096] = {ROW4096(0), ROW4096(4096), ROW4096(8192), ROW4096(12288)};

uint32_t large_entry(uint32_t index) { return large[index % (4 * 4096)]; }
