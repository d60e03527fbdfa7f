/* Decodes deflate streams (RFC 1951); see formats.h. */
#include "formats.h"

#include <string.h>

enum { LONGEST_CODE = 15, LITERALS = 288, DISTANCES = 30, LENGTHS = 19 };

typedef struct {
    Bytes left;
    uint32_t bits, count; /* bits that were taken from `left`, the next one lowest */
    int is_short;         /* whether more bits were wanted than there are; all of these are 0 */
    Bytes dictionary;
    uint8_t *out;
    size_t done, size;
} Stream;

/* A prefix code: how many codes each length has, and the symbols in the order of their codes. */
typedef struct {
    uint16_t counts[LONGEST_CODE + 1], symbols[LITERALS];
} Code;

/* The next `count` bits, at most 16, as a number. */
static uint32_t next_bits(Stream *stream, uint32_t count) {
    while (stream->count < count) {
        uint32_t byte = 0;
        if (stream->left.size > 0) {
            byte = stream->left.at[0];
            stream->left = (Bytes){stream->left.at + 1, stream->left.size - 1};
        } else {
            stream->is_short = 1;
        }
        stream->bits |= byte << stream->count;
        stream->count += 8;
    }
    const uint32_t found = stream->bits & ((UINT32_C(1) << count) - 1);
    stream->bits >>= count;
    stream->count -= count;
    return found;
}

/* Makes the code in which symbols have codes of these lengths, or 0 for none. Returns 0 if there are more codes than bits allow. */
static int make_code(Code *code, const uint8_t *lengths, size_t count) {
    uint16_t next[LONGEST_CODE + 1] = {0};
    *code = (Code){.counts = {0}};
    for (size_t symbol = 0; symbol < count; symbol++) {
        code->counts[lengths[symbol]]++;
    }
    code->counts[0] = 0;
    int32_t free_codes = 1;
    for (size_t length = 1; length <= LONGEST_CODE; length++) {
        free_codes = 2 * free_codes - code->counts[length];
        if (free_codes < 0) {
            return 0;
        }
        next[length] = (uint16_t)(next[length - 1] + code->counts[length - 1]);
    }
    for (size_t symbol = 0; symbol < count; symbol++) {
        if (lengths[symbol] > 0) {
            code->symbols[next[lengths[symbol]]++] = (uint16_t)symbol;
        }
    }
    return 1;
}

/* The next symbol; -1 if the bits are not a code. */
static int next_symbol(Stream *stream, const Code *code) {
    int32_t at = 0, value = 0; /* the place of the first code of a length, and how far from that code the bits are */
    for (size_t length = 1; length <= LONGEST_CODE; length++) {
        value = 2 * value + (int32_t)next_bits(stream, 1);
        if (value < code->counts[length]) {
            return code->symbols[at + value];
        }
        value -= code->counts[length];
        at += code->counts[length];
    }
    return -1;
}

/* Repeats bytes that precede the place of output. Returns 0 if there are not as many, or too many to repeat. */
static int repeat(Stream *stream, size_t distance, size_t length) {
    if (length > stream->size - stream->done || distance > stream->done + stream->dictionary.size) {
        return 0;
    }
    if (distance > stream->done) {
        const size_t before = distance - stream->done, part = before < length ? before : length;
        memcpy(stream->out + stream->done, stream->dictionary.at + stream->dictionary.size - before, part);
        stream->done += part;
        length -= part;
    }
    for (uint8_t *to = stream->out + stream->done, *end = to + length; to < end; to++) {
        *to = *(to - distance); /* the repeated bytes may be among those that this writes */
    }
    stream->done += length;
    return 1;
}

/* A number whose highest bits a symbol states, among `group` symbols (a power of two) for each highest bit, and the stream the others. */
static size_t read_number(Stream *stream, uint32_t symbol, uint32_t group) {
    if (symbol < 2 * group) {
        return symbol;
    }
    const uint32_t others = symbol / group - 1;
    return ((size_t)(group + symbol % group) << others) + next_bits(stream, others);
}

/* Decodes the symbols of a block. Returns 0 if they are not valid. */
static int copy_symbols(Stream *stream, const Code *literals, const Code *distances) {
    enum { END_OF_BLOCK = 256, LONGEST = 285, LEAST_LENGTH = 3, MOST_LENGTH = 258 };
    for (;;) {
        const int symbol = next_symbol(stream, literals);
        if (symbol == END_OF_BLOCK) {
            return !stream->is_short;
        }
        if (symbol < 0 || symbol > LONGEST || stream->is_short || stream->done == stream->size) {
            return 0;
        }
        if (symbol < END_OF_BLOCK) {
            stream->out[stream->done++] = (uint8_t)symbol;
            continue;
        }
        const size_t length = symbol == LONGEST ? MOST_LENGTH : LEAST_LENGTH + read_number(stream, (uint32_t)symbol - END_OF_BLOCK - 1, 4);
        const int distance = next_symbol(stream, distances);
        if (distance < 0 || distance >= DISTANCES || !repeat(stream, 1 + read_number(stream, (uint32_t)distance, 2), length)) {
            return 0;
        }
    }
}

/* Decodes the codes of a block. Returns 0 if they are not valid. */
static int read_codes(Stream *stream, Code *literals, Code *distances) {
    enum { REPEATED = 16, FEW_ZEROS, MANY_ZEROS };
    static const uint8_t order[LENGTHS] = {REPEATED, FEW_ZEROS, MANY_ZEROS, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    const uint32_t own = 257 + next_bits(stream, 5), total = own + 1 + next_bits(stream, 5), given = 4 + next_bits(stream, 4);
    uint8_t lengths[257 + 31 + 1 + 31] = {0};
    for (uint32_t i = 0; i < given; i++) {
        lengths[order[i]] = (uint8_t)next_bits(stream, 3);
    }
    Code code;
    if (!make_code(&code, lengths, LENGTHS)) {
        return 0;
    }
    for (uint32_t at = 0, times; at < total; at += times) {
        const int symbol = next_symbol(stream, &code);
        if (symbol < 0 || stream->is_short || (symbol == REPEATED && at == 0)) {
            return 0;
        }
        times = symbol < REPEATED      ? 1
              : symbol == REPEATED  ? 3 + next_bits(stream, 2)
              : symbol == FEW_ZEROS ? 3 + next_bits(stream, 3)
                                    : 11 + next_bits(stream, 7);
        if (times > total - at) {
            return 0;
        }
        memset(lengths + at, symbol < REPEATED ? symbol : symbol == REPEATED ? lengths[at - 1] : 0, times);
    }
    return make_code(literals, lengths, own) && make_code(distances, lengths + own, total - own);
}

/* Makes the codes of blocks that do not state any. */
static int use_fixed_codes(Code *literals, Code *distances) {
    uint8_t lengths[LITERALS];
    memset(lengths, 8, sizeof lengths);
    memset(lengths + 144, 9, 256 - 144);
    memset(lengths + 256, 7, 280 - 256);
    make_code(literals, lengths, LITERALS);
    memset(lengths, 5, DISTANCES);
    return make_code(distances, lengths, DISTANCES);
}

/* Copies a block without compression: its size, the complement of its size, and its bytes, from the next whole byte on. */
static int copy_stored(Stream *stream) {
    next_bits(stream, stream->count % 8);
    const size_t size = next_bits(stream, 16), complement = next_bits(stream, 16);
    if (stream->is_short || size != (complement ^ 0xFFFF) || size > stream->left.size || size > stream->size - stream->done) {
        return 0;
    }
    memcpy(stream->out + stream->done, stream->left.at, size);
    stream->done += size;
    stream->left = (Bytes){stream->left.at + size, stream->left.size - size};
    return 1;
}

int inflate(Bytes data, Bytes dictionary, uint8_t *out, size_t size) {
    enum { STORED, FIXED, DYNAMIC };
    Stream stream = {.left = data, .dictionary = dictionary, .out = out, .size = size};
    Code literals, distances;
    for (int is_last = 0; !is_last;) {
        is_last = (int)next_bits(&stream, 1);
        const uint32_t kind = next_bits(&stream, 2);
        const int has_codes = kind == FIXED ? use_fixed_codes(&literals, &distances)
                                            : kind == DYNAMIC && read_codes(&stream, &literals, &distances);
        if (kind == STORED ? !copy_stored(&stream) : !has_codes || !copy_symbols(&stream, &literals, &distances)) {
            return 0;
        }
    }
    return stream.done == size;
}
