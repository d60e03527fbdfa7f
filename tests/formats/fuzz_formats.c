/* The native readers of formats on any bytes, without an interpreter (libFuzzer, with sanitizers).
 *
 *   clang -O1 -g -fsanitize=fuzzer,address,undefined -Icompcache/hit/native tests/formats/fuzz_formats.c compcache/hit/native/formats.c \
 *     compcache/hit/native/blake2b.c -o fuzz_formats && ./fuzz_formats -runs=10000000 -max_len=512
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
        memcpy(data, size & 1 ? "CCINDEX3" : "CCINDEX2", 8);
    }
    if (decode_segment_head((Bytes){data, size}, &segment) != NULL || size < SEGMENT_HEAD_BYTES + sizeof tables) {
        return;
    }
    memcpy(tables, data + SEGMENT_HEAD_BYTES, sizeof tables);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const readers[])(uint8_t *, size_t) = {
        read_table, read_segment, read_entries, read_rows, read_frames, read_function, read_needs, read_requirement,
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
