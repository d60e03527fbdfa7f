/* fmt: numbers, formats that are read when the program runs, ranges. */
#define FMT_HEADER_ONLY
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string>
#include <vector>
#include <cstring>

/* Every function reads bytes and writes what it makes of them: its length, or -2 where there is no room. */
static long give(const void *data, long size, char *out, long room) {
    if (size > room) {
        return -2;
    }
    memcpy(out, data, size);
    return size;
}

static long give(const std::string &text, char *out, long room) {
    return give(text.data(), (long)text.size(), out, room);
}

extern "C" long format_numbers(const char *in, long n, char *out, long room) {
    unsigned long number = 0;
    for (long i = 0; i < n; i++) {
        number = number * 31 + in[i];
    }
    double part = number / 7.0;
    return give(fmt::format("{:>20} {:#x} {:.17g} {:e} {:+} {}", number, number, part, part, (int)number, part), out, room);
}

extern "C" long format_as_told(const char *in, long n, char *out, long room) {
    try {
        return give(fmt::format(fmt::runtime(std::string(in, n)), 42, "text", 2.5), out, room);
    } catch (const fmt::format_error &e) {
        return give(e.what(), out, room);
    }
}

extern "C" long format_range(const char *in, long n, char *out, long room) {
    return give(fmt::format("{}", std::vector<int>(in, in + n)), out, room);
}
