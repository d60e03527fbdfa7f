/* A variable that may be missing: its address is then null. */
#include <stddef.h>
#include <stdint.h>

extern int64_t compcache_nobody_defines_this_variable __attribute__((weak));
extern char **environ __attribute__((weak));

int64_t optional_variable(void) {
    return &compcache_nobody_defines_this_variable ? compcache_nobody_defines_this_variable : -1;
}

int32_t has_environment(void) { return &environ != NULL && environ != NULL; }
