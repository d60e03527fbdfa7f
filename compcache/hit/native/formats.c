/* Decodes the formats that a hit reads; see formats.h. */
#include "formats.h"

#include <string.h>

enum { LEAST_WIDTH = 16, MOST_WIDTH = 1 << 12, MOST_BITS = 24 };
#define MOST_ENTRIES (UINT64_C(1) << 32)
#define MOST_BUCKET_BYTES (UINT64_C(1) << 26)
#define MOST_ROW_BYTES (UINT64_C(1) << 24)
#define MOST_FRAME_BYTES (UINT64_C(1) << 26)

uint32_t number_at(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint64_t long_at(const uint8_t *at) {
    return (uint64_t)number_at(at) | (uint64_t)number_at(at + 4) << 32;
}

static Bytes part(Bytes bytes, size_t at, size_t size) {
    return (Bytes){bytes.at + at, size};
}

/* -------------------------------------------------------------------------------------------------------- tables */

Fault decode_table_head(Bytes head, TableHead *table) {
    if (head.size < TABLE_HEAD_BYTES || !is_check_of(head.at + 24, part(head, 0, 24), 0, NULL)) {
        return "the header of an index table is damaged";
    }
    table->width = number_at(head.at + 8);
    table->bits = number_at(head.at + 12);
    table->count = long_at(head.at + 16);
    if (memcmp(head.at, "CCTABLE1", 8) != 0 || table->width < LEAST_WIDTH || table->width > MOST_WIDTH || table->bits > MOST_BITS
        || table->count > MOST_ENTRIES) {
        return "this is not an index table of a known version";
    }
    table->entries = TABLE_HEAD_BYTES + ((uint64_t)BUCKET_BYTES << table->bits);
    table->size = table->entries + table->width * table->count;
    return NULL;
}

uint64_t bucket_of(const uint8_t *key, const TableHead *table) {
    const uint64_t first = (uint64_t)key[0] << 24 | (uint64_t)key[1] << 16 | (uint64_t)key[2] << 8 | key[3];
    return first >> (32 - table->bits);
}

Fault decode_bucket(Bytes ends, uint64_t number, const TableHead *table, uint64_t *at, uint64_t *size, const uint8_t **check) {
    const size_t before = number > 0 ? BUCKET_BYTES : 0;
    if (ends.size != before + BUCKET_BYTES) {
        return "an index table is truncated";
    }
    const uint64_t start = before > 0 ? long_at(ends.at) : 0, end = long_at(ends.at + before);
    if (start > end || end > table->count) {
        return "a bucket of an index table is damaged";
    }
    *at = table->entries + start * table->width;
    *size = (end - start) * table->width;
    *check = ends.at + before + 8;
    return *size > MOST_BUCKET_BYTES ? "a bucket of an index table is larger than any can be" : NULL;
}

/* ------------------------------------------------------------------------------------------------------ segments */

Fault decode_segment_head(Bytes head, SegmentHead *segment) {
    if (head.size < SEGMENT_HEAD_BYTES || memcmp(head.at, "CCINDEX3", 8) != 0) {
        return "is not an index segment of a known version";
    }
    segment->functions = SEGMENT_HEAD_BYTES;
    segment->function_size = long_at(head.at + 8);
    segment->rows_size = long_at(head.at + 16);
    segment->greatest = long_at(head.at + 24);
    return NULL;
}

Fault decode_segment(SegmentHead *segment, const TableHead *functions, const TableHead *modules, uint64_t size) {
    if (functions->size != segment->function_size || functions->width != FUNCTION_ENTRY_BYTES) {
        return "is damaged";
    }
    segment->modules = segment->functions + functions->size;
    if (modules == NULL) {
        return NULL;
    }
    segment->rows = segment->modules + modules->size;
    if (modules->width != MODULE_ENTRY_BYTES || segment->rows_size > MOST_ROW_BYTES || segment->rows > size
        || size - segment->rows != segment->rows_size) {
        return "is damaged";
    }
    return NULL;
}

Fault decode_function_entry(Bytes entry, FunctionEntry *function) {
    if (entry.size != FUNCTION_ENTRY_BYTES - NAME_BYTES) {
        return "a function entry has another size";
    }
    function->module_id = entry.at;
    function->offset = number_at(entry.at + 16);
    function->number = entry.at + 20;
    function->order = long_at(entry.at + 24);
    function->content = part(entry, 32, 8);
    return NULL;
}

Fault decode_module_entry(Bytes entry, ModuleEntry *module) {
    if (entry.size != MODULE_ENTRY_BYTES - NAME_BYTES) {
        return "a module entry has another size";
    }
    for (int i = 0; i < 4; i++) {
        module->stamp[i] = long_at(entry.at + 8 * i);
    }
    module->image = long_at(entry.at + 32);
    module->records = long_at(entry.at + 40);
    module->target_id = entry.at + 48;
    module->flags = number_at(entry.at + 56);
    module->functions = number_at(entry.at + 60);
    module->key = entry.at + 64;
    module->mac = entry.at + 80;
    return NULL;
}

Fault decode_requirements(Bytes *rows) {
    if (rows->size < CHECK_BYTES || !is_check_of(rows->at, part(*rows, CHECK_BYTES, rows->size - CHECK_BYTES), 0, NULL)) {
        return "the requirements of an index segment are damaged";
    }
    *rows = part(*rows, CHECK_BYTES, rows->size - CHECK_BYTES);
    return NULL;
}

int next_requirement(Bytes *rows, const uint8_t **number, Bytes *text) {
    if (rows->size < 8) {
        return 0;
    }
    const size_t length = number_at(rows->at + 4), left = rows->size - 8, size = length < left ? length : left;
    *number = rows->at;
    *text = part(*rows, 8, size);
    *rows = part(*rows, 8 + size, left - size);
    return 1;
}

/* ------------------------------------------------------------------------------------------------------- records */

Fault decode_frame(Bytes data, uint64_t offset, uint64_t limit, const uint8_t *key, Bytes *payload, uint64_t *needed) {
    *needed = 0;
    if (offset >= limit || data.size < FRAME_HEAD_BYTES) {
        return "no record at offset";
    }
    const uint64_t length = number_at(data.at), left = limit - offset;
    if (length > MOST_FRAME_BYTES || FRAME_HEAD_BYTES + length > left) {
        return "damaged record at offset";
    }
    if (data.size < FRAME_HEAD_BYTES + length) {
        *needed = FRAME_HEAD_BYTES + length;
        return NULL;
    }
    *payload = part(data, FRAME_HEAD_BYTES, (size_t)length);
    return is_check_of(data.at + 4, *payload, offset, offset != 0 ? key : NULL) ? NULL : "damaged record at offset";
}

enum { FUNCTION_HEAD_BYTES = 33, PLACE_BYTES = 16 };

Fault decode_function_record(Bytes payload, FunctionFields *function) {
    if (payload.size < FUNCTION_HEAD_BYTES) {
        return "a function record is truncated";
    }
    const uint8_t *at = payload.at;
    const uint64_t name = number_at(at + 21), symbol = number_at(at + 25), signature = number_at(at + 29);
    const uint64_t end = FUNCTION_HEAD_BYTES + name + symbol + signature;
    if (at[0] != 'F' || (payload.size != end && payload.size != end + LINK_TYPE_BYTES)) {
        return "a function record is damaged";
    }
    function->function = number_at(at + 1);
    function->entry = number_at(at + 5);
    function->needs = number_at(at + 9);
    function->target_id = at + 13;
    function->name = part(payload, FUNCTION_HEAD_BYTES, (size_t)name);
    function->symbol = part(payload, FUNCTION_HEAD_BYTES + (size_t)name, (size_t)symbol);
    function->signature = part(payload, (size_t)(end - signature), (size_t)signature);
    function->link_type = part(payload, (size_t)end, payload.size - (size_t)end);
    return NULL;
}

/* Takes a number from the front; returns 0 if there are too few bytes. */
static int take_number(Bytes *left, uint32_t *number) {
    if (left->size < 4) {
        return 0;
    }
    *number = number_at(left->at);
    *left = part(*left, 4, left->size - 4);
    return 1;
}

static int take(Bytes *left, uint64_t size) {
    if (size > left->size) {
        return 0;
    }
    *left = part(*left, (size_t)size, left->size - (size_t)size);
    return 1;
}

/* Takes `count` rows from the front, each of `before` bytes, a length, and as many bytes. */
static int take_rows(Bytes *left, uint32_t count, size_t before, Bytes *rows) {
    const Bytes all = *left;
    for (uint32_t i = 0, size; i < count; i++) {
        if (!take(left, before) || !take_number(left, &size) || !take(left, size)) {
            return 0;
        }
    }
    *rows = part(all, 0, all.size - left->size);
    return 1;
}

static int take_numbers(Bytes *left, uint32_t *count, const uint8_t **numbers) {
    if (!take_number(left, count)) {
        return 0;
    }
    *numbers = left->at;
    return take(left, (uint64_t)*count * 4);
}

static int have_whole_places(const NeedsFields *needs) {
    Bytes rows = needs->place_rows;
    while (rows.size > 0) {
        if (next_row(&rows).size % PLACE_BYTES != 0) {
            return 0;
        }
    }
    return 1;
}

Fault decode_needs_record(Bytes payload, NeedsFields *needs) {
    if (payload.size < 1 || payload.at[0] != 'N') {
        return "a needs record has another type";
    }
    Bytes left = part(payload, 1, payload.size - 1);
    needs->place_rows = needs->link_types = (Bytes){NULL, 0};
    if (!take_number(&left, &needs->imports) || !take_rows(&left, needs->imports, 4, &needs->import_rows)
        || !take_numbers(&left, &needs->globals, &needs->global_numbers)
        || !take_numbers(&left, &needs->children, &needs->child_numbers) || !take_number(&left, &needs->natives)
        || !take_rows(&left, needs->natives, 0, &needs->native_rows)) {
        return "a needs record is truncated";
    }
    if (left.size > 0 && !take_rows(&left, needs->imports, 0, &needs->place_rows)) {
        return "a needs record is truncated";
    }
    if (left.size > 0) {
        needs->link_types = part(left, 0, left.size);
        if (!take(&left, (uint64_t)needs->imports * LINK_TYPE_BYTES)) {
            return "a needs record is truncated";
        }
        if (left.size > 0) {
            return "a needs record is longer than its fields";
        }
    }
    return have_whole_places(needs) ? NULL : "a needs record has an incomplete place";
}

Bytes next_row(Bytes *rows) {
    const uint32_t size = number_at(rows->at);
    const Bytes row = part(*rows, 4, size);
    *rows = part(*rows, 4 + (size_t)size, rows->size - 4 - size);
    return row;
}

Fault decode_global_record(Bytes payload, GlobalFields *global) {
    if (payload.size < 1 || payload.at[0] != 'G') {
        return "a global record has another type";
    }
    Bytes left = part(payload, 1, payload.size - 1), rows;
    if (!take_number(&left, &global->slot) || !take_number(&left, &global->size) || !take_rows(&left, 4, 0, &rows)) {
        return "a global record is truncated";
    }
    if (left.size > 0) {
        return "a global record is longer than its fields";
    }
    global->name = next_row(&rows);
    global->form = next_row(&rows);
    global->kind = next_row(&rows);
    global->definition = next_row(&rows);
    return NULL;
}

Fault decode_entry_record(Bytes payload, EntryFields *entry) {
    enum { REMOVAL_AT = 1, SEQUENCE_AT = 2, MODULES_AT = 10, SIZES_AT = 14, HEAD_BYTES = 26 };
    if (payload.size < 1 || payload.at[0] != 'E') {
        return "the record of an entry has another type";
    }
    if (payload.size < HEAD_BYTES) {
        return "the record of an entry is truncated";
    }
    const uint64_t modules = (uint64_t)number_at(payload.at + MODULES_AT) * NAME_BYTES, kind = number_at(payload.at + SIZES_AT);
    const uint64_t name = number_at(payload.at + SIZES_AT + 4), data = number_at(payload.at + SIZES_AT + 8);
    if (HEAD_BYTES + modules + kind + name + data != payload.size) {
        return "the record of an entry has another size than its fields";
    }
    if (payload.at[REMOVAL_AT] > 1) {
        return "the mark of removal in the record of an entry is neither 0 nor 1";
    }
    entry->is_removal = payload.at[REMOVAL_AT];
    entry->sequence = long_at(payload.at + SEQUENCE_AT);
    entry->requires = part(payload, HEAD_BYTES, modules);
    entry->kind = part(payload, HEAD_BYTES + modules, kind);
    entry->name = part(payload, HEAD_BYTES + modules + kind, name);
    entry->data = part(payload, HEAD_BYTES + modules + kind + name, data);
    return NULL;
}

uint32_t next_import(Bytes *rows, Bytes *name) {
    const uint32_t slot = number_at(rows->at);
    *rows = part(*rows, 4, rows->size - 4);
    *name = next_row(rows);
    return slot;
}

/* ------------------------------------------------------------------------------------------------ linked closures */

Fault decode_closure(Bytes data, ClosureFields *closure) {
    static const char magic[] = "CCCLOSE6";
    enum { SEAL_AT = sizeof magic - 1, SEALED_AT = SEAL_AT + SEAL_BYTES, STATE_AT = SEALED_AT + NAME_BYTES, FLAG_AT = STATE_AT + STATE_BYTES, PARTS_AT = FLAG_AT + 8 };
    if (data.size < PARTS_AT || memcmp(data.at, magic, SEAL_AT) != 0 || (data.size - PARTS_AT) % NAME_BYTES != 0) {
        return "a file about a linked closure has an unknown form";
    }
    closure->seal = data.at + SEAL_AT;
    closure->sealed = part(data, SEALED_AT, data.size - SEALED_AT);
    closure->state = data.at + STATE_AT;
    closure->is_valid = number_at(data.at + FLAG_AT);
    closure->homes = number_at(data.at + FLAG_AT + 4);
    closure->parts = part(data, PARTS_AT, data.size - PARTS_AT);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------------- volumes */

Fault decode_volume_tail(Bytes magic, Bytes tail, uint64_t size, VolumeTail *volume) {
    enum { VOLUME_NAME_BYTES = 12, MOST_DICTIONARY_BYTES = 1 << 15, MOST_NAMES = 1 << 16 };
    if (magic.size != VOLUME_MAGIC_BYTES || memcmp(magic.at, "CCVOLUM1", VOLUME_MAGIC_BYTES) != 0 || tail.size != VOLUME_TAIL_BYTES
        || size < VOLUME_MAGIC_BYTES + VOLUME_TAIL_BYTES) {
        return "the file is not a volume of modules";
    }
    const uint32_t names = number_at(tail.at + 12);
    volume->dictionary = long_at(tail.at);
    volume->dictionary_size = number_at(tail.at + 8);
    volume->table = long_at(tail.at + 16);
    volume->check = tail.at + 24;
    if (volume->dictionary_size > MOST_DICTIONARY_BYTES || names > MOST_NAMES || volume->table > size - VOLUME_TAIL_BYTES
        || volume->dictionary > volume->table
        || volume->dictionary + volume->dictionary_size + (uint64_t)names * VOLUME_NAME_BYTES != volume->table) {
        return "the tail of the volume is damaged: it describes impossible sizes";
    }
    volume->names_size = names * VOLUME_NAME_BYTES;
    return NULL;
}

Fault decode_member(Bytes entry, Member *member) {
    enum { MOST_MEMBER_BYTES = 1 << 20 };
    if (entry.size != MEMBER_BYTES - NAME_BYTES) {
        return "an entry of a volume has another size";
    }
    const uint64_t modified = long_at(entry.at + 20);
    member->stream = long_at(entry.at);
    member->stream_size = number_at(entry.at + 8);
    member->size = number_at(entry.at + 12);
    member->signatures = number_at(entry.at + 16);
    memcpy(&member->modified, &modified, sizeof modified);
    if (member->stream_size > MOST_MEMBER_BYTES || member->size > MOST_MEMBER_BYTES || member->signatures > MOST_MEMBER_BYTES) {
        return "the table of the volume describes a module of more than 1048576 bytes";
    }
    return NULL;
}

/* --------------------------------------------------------------------------------------------------------- hosts */

/* Returns the part of a text before the next `end`, and removes both from the text. */
static Bytes take_until(Bytes *text, uint8_t end) {
    const uint8_t *found = text->size > 0 ? memchr(text->at, end, text->size) : NULL;
    const size_t size = found != NULL ? (size_t)(found - text->at) : text->size;
    const Bytes taken = part(*text, 0, size);
    *text = found != NULL ? part(*text, size + 1, text->size - size - 1) : (Bytes){NULL, 0};
    return taken;
}

static int is_text(Bytes bytes, const char *text) {
    return bytes.size == strlen(text) && (bytes.size == 0 || memcmp(bytes.at, text, bytes.size) == 0);
}

Fault decode_requirement(Bytes text, Requirement *requirement) {
    Bytes *const fields[] = {
        &requirement->abi, &requirement->platform, &requirement->libc, &requirement->cpu, &requirement->made_for, &requirement->made_on,
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (text.size == 0 || memchr(text.at, 0, text.size) == NULL) {
            return "a requirement has too few fields";
        }
        *fields[i] = take_until(&text, 0);
    }
    requirement->features = text;
    return text.size > 0 && memchr(text.at, 0, text.size) != NULL ? "a requirement has too many fields" : NULL;
}

/* The next number of a version; a part that is not a number counts as 0. */
static uint64_t next_version_number(Bytes *version) {
    const Bytes digits = take_until(version, '.');
    uint64_t number = 0;
    for (size_t i = 0; i < digits.size; i++) {
        if (digits.at[i] < '0' || digits.at[i] > '9' || number > UINT64_MAX / 10 - 10) {
            return 0;
        }
        number = 10 * number + (digits.at[i] - '0');
    }
    return number;
}

int libc_is_enough(Bytes needed, Bytes own) {
    if (needed.size == 0) {
        return 1;
    }
    const Bytes kind = take_until(&needed, ' '), own_kind = take_until(&own, ' ');
    if (kind.size != own_kind.size || memcmp(kind.at, own_kind.at, kind.size) != 0) {
        return 0;
    }
    while (needed.size > 0 && own.size > 0) {
        const uint64_t least = next_version_number(&needed), number = next_version_number(&own);
        if (least != number) {
            return least < number;
        }
    }
    return needed.size == 0;
}

Bytes words_of_features(Bytes features) {
    while (features.size > 0 && memchr(features.at, ';', features.size) != NULL) {
        take_until(&features, ';');
    }
    return features;
}

/* Reads a number of one to sixteen hexadecimal digits; returns 0 if it is not one. */
static int read_hex(Bytes digits, uint64_t *value) {
    *value = 0;
    for (size_t i = 0; i < digits.size; i++) {
        const uint8_t digit = digits.at[i] | 0x20;
        if (digit >= '0' && digit <= '9' && digits.at[i] == digit) {
            *value = *value << 4 | (uint64_t)(digit - '0');
        } else if (digit >= 'a' && digit <= 'f') {
            *value = *value << 4 | (uint64_t)(digit - 'a' + 10);
        } else {
            return 0;
        }
    }
    return digits.size > 0 && digits.size <= 16;
}

Fault next_need(Bytes *features, ProcessorNeed *need, int *found) {
    *found = features->at != NULL;
    if (!*found) {
        return NULL;
    }
    Bytes item = take_until(features, ',');
    const int masked = item.size > 0 && memchr(item.at, ':', item.size) != NULL;
    need->word = take_until(&item, masked ? ':' : '>');
    need->number = item;
    need->value = 0;
    need->kind = is_text(need->word, "same") ? SAME : masked ? MASK : BOUND;
    return need->kind == SAME || read_hex(item, &need->value) ? NULL : "a feature of a processor has an unknown form";
}
