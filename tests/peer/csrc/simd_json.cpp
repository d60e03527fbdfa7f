/* simdjson: both ways to read, by the implementation that suits the CPU and by the one that suits all. */
#include "simdjson.h"
#include "simdjson.cpp"
#include <cstring>
#include <string>

static long give(const std::string &text, char *out, long room) {
    if ((long)text.size() > room) {
        return -2;
    }
    memcpy(out, text.data(), text.size());
    return (long)text.size();
}

extern "C" long simd_minify(const char *in, long n, char *out, long room) {
    try {
        simdjson::dom::parser parser;
        return give(simdjson::minify(parser.parse(simdjson::padded_string(in, n))), out, room);
    } catch (const simdjson::simdjson_error &error) {
        return give(error.what(), out, room);
    }
}

extern "C" long simd_on_demand(const char *in, long n, char *out, long room) {
    try {
        simdjson::ondemand::parser parser;
        simdjson::padded_string text(in, n);
        simdjson::ondemand::document document = parser.iterate(text);
        std::string found;
        if (document.type() == simdjson::ondemand::json_type::object) {
            for (auto field : document.get_object()) {
                found += std::string_view(field.unescaped_key());
                found += '=';
                found += std::string_view(simdjson::to_json_string(field.value()));
            }
        } else {
            found = std::string_view(simdjson::to_json_string(document));
        }
        return give(found, out, room);
    } catch (const simdjson::simdjson_error &error) {
        return give(error.what(), out, room);
    }
}

extern "C" long simd_fallback(const char *in, long n, char *out, long room) {
    auto *found = simdjson::get_available_implementations()["fallback"];
    if (!found) {
        return -3;
    }
    std::string minified(n + simdjson::SIMDJSON_PADDING, 0);
    size_t size = 0;
    auto error = found->minify((const uint8_t *)in, n, (uint8_t *)minified.data(), size);
    minified.resize(error ? 0 : size);
    return give(minified + simdjson::error_message(error), out, room);
}

extern "C" long simd_utf8(const char *in, long n, char *, long) {
    return n % 97 + (simdjson::validate_utf8(in, n / 3) ? 1000 : 0) + (simdjson::validate_utf8(in, n) ? 10000 : 0);
}
