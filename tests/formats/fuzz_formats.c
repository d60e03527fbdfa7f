/* The native readers of formats on any bytes, without an interpreter (libFuzzer, with sanitizers).
 *
 *   clang -O1 -g -fsanitize=fuzzer,address,undefined -Icompcache/hit/native tests/formats/fuzz_formats.c compcache/hit/native/formats.c \
 *     compcache/hit/native/blake2b.c compcache/hit/native/deflate.c -o fuzz_formats && ./fuzz_formats -runs=10000000 -max_len=512
 *
 * With -DALONE instead of `fuzzer` it makes its inputs itself, of numbers that could be lengths: ./fuzz_formats COUNT SEED
 * (tests/formats/test_native_fuzz.py, with any compiler).
 *
 * The first byte chooses the format. What a reader says where something is, is read: an address that is not in the input ends the run.
 * Checksums are made right where a format begins with one, so that what is behind them is reached. */
#include "formats.h"

#include <stdlib.h>
#include <string.h>

#ifndef ONLY
#define ONLY data[0]
#endif

static volatile uint64_t sink;

static void touch(Bytes bytes) {
    for (size_t i = 0; i < bytes.size; i++) {
        sink += bytes.at[i];
    }
}

static void set_check(uint8_t *check, Bytes data, uint64_t salt) {
    uint8_t place[16] = {0};
    for (int i = 0; i < 8; i++) {
        place[i] = (uint8_t)(salt >> 8 * i);
    }
    blake2b(check, CHECK_BYTES, data, (Bytes){NULL, 0}, place, NULL);
}

static void read_table(uint8_t *data, size_t size) {
    TableHead table;
    if (size >= TABLE_HEAD_BYTES) {
        memcpy(data, "CCTABLE1", 8);
        set_check(data + 24, (Bytes){data, 24}, 0);
    }
    if (decode_table_head((Bytes){data, size}, &table) != NULL || size < TABLE_HEAD_BYTES + 2 * BUCKET_BYTES) {
        return;
    }
    uint64_t at, length;
    const uint8_t *check;
    const size_t number = data[size - 1] & 1;
    const Bytes ends = {data + TABLE_HEAD_BYTES, (number + 1) * BUCKET_BYTES};
    sink += bucket_of(data, &table);
    if (decode_bucket(ends, number, &table, &at, &length, &check) == NULL) {
        touch((Bytes){check, CHECK_BYTES});
        if (at + length > table.size || length % table.width != 0) {
            abort();
        }
    }
}

static void read_segment(uint8_t *data, size_t size) {
    SegmentHead segment;
    TableHead tables[2];
    if (size >= 8) {
        memcpy(data, "CCINDEX3", 8);
    }
    if (decode_segment_head((Bytes){data, size}, &segment) != NULL || size < SEGMENT_HEAD_BYTES + sizeof tables) {
        return;
    }
    memcpy(tables, data + SEGMENT_HEAD_BYTES, sizeof tables);
    tables[0].width = FUNCTION_ENTRY_BYTES; /* as those of segments are, and they can fit */
    tables[1].width = MODULE_ENTRY_BYTES;
    segment.function_size = tables[0].size &= UINT8_MAX;
    tables[1].size &= UINT8_MAX;
    if (decode_segment(&segment, &tables[0], &tables[1], size) == NULL && segment.rows + segment.rows_size != size) {
        abort();
    }
}

static void read_entries(uint8_t *data, size_t size) {
    FunctionEntry function;
    ModuleEntry module;
    if (decode_function_entry((Bytes){data, size}, &function) == NULL) {
        touch((Bytes){function.module_id, NAME_BYTES});
        touch((Bytes){function.number, 4});
        touch(function.content);
    }
    if (decode_module_entry((Bytes){data, size}, &module) == NULL) {
        touch((Bytes){module.target_id, CHECK_BYTES});
        touch((Bytes){module.key, NAME_BYTES});
        touch((Bytes){module.mac, MAC_BYTES});
    }
}

static void read_rows(uint8_t *data, size_t size) {
    Bytes rows = {data, size}, text;
    const uint8_t *number;
    if (size >= CHECK_BYTES) {
        set_check(data, (Bytes){data + CHECK_BYTES, size - CHECK_BYTES}, 0);
    }
    if (decode_requirements(&rows) == NULL) {
        while (next_requirement(&rows, &number, &text)) {
            touch((Bytes){number, 4});
            touch(text);
        }
    }
}

static void read_frames(uint8_t *data, size_t size) {
    Bytes payload;
    uint64_t needed;
    if (size >= FRAME_HEAD_BYTES && number_at(data) <= size - FRAME_HEAD_BYTES) {
        set_check(data + 4, (Bytes){data + FRAME_HEAD_BYTES, number_at(data)}, 7);
    }
    if (decode_frame((Bytes){data, size}, 7, 7 + size, NULL, &payload, &needed) == NULL && needed == 0) {
        touch(payload);
    }
}

static void read_function(uint8_t *data, size_t size) {
    FunctionFields function;
    if (decode_function_record((Bytes){data, size}, &function) == NULL) {
        touch(function.name);
        touch(function.symbol);
        touch(function.signature);
        touch(function.link_type);
    }
}

static void read_needs(uint8_t *data, size_t size) {
    NeedsFields needs;
    if (decode_needs_record((Bytes){data, size}, &needs) != NULL) {
        return;
    }
    Bytes name, rows = needs.import_rows;
    for (uint32_t i = 0; i < needs.imports; i++) {
        sink += next_import(&rows, &name);
        touch(name);
    }
    rows = needs.native_rows;
    for (uint32_t i = 0; i < needs.natives; i++) {
        touch(next_row(&rows));
    }
    rows = needs.place_rows;
    while (rows.size > 0) {
        touch(next_row(&rows));
    }
    touch(needs.link_types);
    touch((Bytes){needs.global_numbers, 4 * (size_t)needs.globals});
    touch((Bytes){needs.child_numbers, 4 * (size_t)needs.children});
}

static void read_requirement(uint8_t *data, size_t size) {
    Requirement needs;
    if (decode_requirement((Bytes){data, size}, &needs) == NULL) {
        touch(needs.platform);
        sink += (uint64_t)libc_is_enough(needs.libc, needs.cpu);
    }
    Bytes features = words_of_features((Bytes){data, size});
    ProcessorNeed need;
    for (int found = features.size > 0; found;) {
        if (next_need(&features, &need, &found) != NULL) {
            return;
        }
        if (found) {
            touch(need.word);
            touch(need.number);
        }
    }
}

static void read_volume(uint8_t *data, size_t size) {
    VolumeTail volume;
    if (size < VOLUME_TAIL_BYTES) {
        return;
    }
    const Bytes magic = {(const uint8_t *)"CCVOLUM1", VOLUME_MAGIC_BYTES};
    if (decode_volume_tail(magic, (Bytes){data + size - VOLUME_TAIL_BYTES, VOLUME_TAIL_BYTES}, size, &volume) == NULL) {
        touch((Bytes){volume.check, CHECK_BYTES});
        touch((Bytes){data + volume.dictionary, volume.dictionary_size + volume.names_size});
        if (volume.table > size - VOLUME_TAIL_BYTES) {
            abort();
        }
    }
}

static void read_member(uint8_t *data, size_t size) {
    Member member;
    if (decode_member((Bytes){data, size}, &member) == NULL && (member.stream_size > 1 << 20 || member.size + member.signatures > 1 << 21)) {
        abort();
    }
}

/* The first byte is the size of the dictionary, the next two that of the content. */
static void read_stream(uint8_t *data, size_t size) {
    if (size < 3 || data[0] > size - 3) {
        return;
    }
    const size_t expected = data[1] | (size_t)(data[2] & 3) << 8;
    uint8_t *out = malloc(expected > 0 ? expected : 1);
    memset(out, 0, expected);
    sink += (uint64_t)inflate((Bytes){data + 3 + data[0], size - 3 - data[0]}, (Bytes){data + 3, data[0]}, out, expected);
    touch((Bytes){out, expected});
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const readers[])(uint8_t *, size_t) = {
        read_table, read_segment, read_entries, read_rows, read_frames, read_function, read_needs, read_requirement,
        read_volume, read_member, read_stream,
    };
    if (size < 1) {
        return 0;
    }
    uint8_t *copy = malloc(size); /* of its own, so that a byte behind it is nobody's */
    memcpy(copy, data + 1, size - 1);
    uint8_t *exact = realloc(copy, size > 1 ? size - 1 : 1);
    readers[ONLY % (sizeof readers / sizeof *readers)](exact, size - 1);
    free(exact);
    return 0;
}

#ifdef ALONE
static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

/* Fields as formats have them: lengths that fit or do not quite, limits of numbers, letters of types and of text, anything. */
static size_t make_input(uint8_t *data, size_t most) {
    static const char words[] = "FN@<x86:0123456789abcdef,=&\0 \n";
    const size_t size = draw((uint32_t)most);
    for (size_t at = 0; at < size;) {
        uint32_t number = 0;
        size_t width = 4;
        switch (draw(8)) {
        case 0: number = (uint32_t)(size - at) - draw(40); break;
        case 1: number = UINT32_MAX - draw(3); break;
        case 2: number = 0; break;
        case 3: number = draw(UINT32_MAX); break;
        case 4: case 5: number = (uint8_t)words[draw(sizeof words)], width = 1; break;
        default: number = draw(24);
        }
        for (size_t i = 0; i < width && at < size; i++) {
            data[at++] = (uint8_t)(number >> 8 * i);
        }
    }
    return size;
}

int main(int count, char **arguments) {
    uint8_t data[512];
    const unsigned long inputs = count > 1 ? strtoul(arguments[1], NULL, 10) : 1000000;
    state = (count > 2 ? strtoull(arguments[2], NULL, 10) : 1) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    for (unsigned long number = 0; number < inputs; number++) {
        const size_t size = make_input(data + 1, sizeof data - 1);
        data[0] = (uint8_t)number;
        const uint8_t letter = (uint8_t)"FN"[draw(2)];
        data[1] = draw(2) ? letter : data[1]; /* the type of a record */
        LLVMFuzzerTestOneInput(data, size + 1);
    }
    return 0;
}
#endif
