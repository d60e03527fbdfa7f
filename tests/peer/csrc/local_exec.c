/* Thread-local data as in the main program: a model that no shared object can have. */
#include <stdint.h>

static _Thread_local int64_t calls __attribute__((tls_model("local-exec"))) = 1000;

int64_t count_call(void) { return ++calls; }
