/* Decodes the formats that a hit reads (docs/format.md). This is the only reader of the index and its tables, of frames, of the records of
 * functions and of their needs, and of the requirements of code.
 *
 * Nothing here knows Python, paths or descriptors, or allocates memory: the input is bytes, and the output refers to places in them. Each
 * function checks everything that it takes a place from, and reports a fault as a text; NULL is success. tests/fuzz/ runs these functions
 * without an interpreter.
 */
#ifndef COMPCACHE_FORMATS_H
#define COMPCACHE_FORMATS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *at;
    size_t size;
} Bytes;

/* A description of a fault in bytes; NULL: no fault. */
typedef const char *Fault;

enum { CHECK_BYTES = 8, NAME_BYTES = 16, MAC_BYTES = 16 };

/* BLAKE2b (RFC 7693), of 1 to 64 bytes. The key has at most 64 bytes; salt and person are 16 bytes, or NULL for zeros. */
void blake2b(uint8_t *out, size_t out_size, Bytes data, Bytes key, const uint8_t *salt, const uint8_t *person);
/* Whether this is the checksum of a record: `salt` ties it to its place, `whole` (16 bytes, or NULL) to the module. */
int is_check_of(const uint8_t *check, Bytes data, uint64_t salt, const uint8_t *whole);

/* A table of sorted entries of one size, in buckets (compcache/formats/table.py). */
typedef struct {
    uint32_t width, bits;
    uint64_t count;
    uint64_t entries; /* where they begin, from the start of the head */
    uint64_t size;
} TableHead;

enum { TABLE_HEAD_BYTES = 32, BUCKET_BYTES = 16 };

Fault decode_table_head(Bytes head, TableHead *table);
/* Decodes the place of a bucket's entries: `ends` are the BUCKET_BYTES of the bucket before it (unless its number is 0) and its own. */
Fault decode_bucket(Bytes ends, uint64_t number, const TableHead *table, uint64_t *at, uint64_t *size, const uint8_t **check);
/* The bucket for the entries of a key. */
uint64_t bucket_of(const uint8_t *key, const TableHead *table);

/* A segment of the index (compcache/formats/index.py). */
typedef struct {
    uint64_t functions, function_size;
    uint64_t rows_size;
    uint64_t greatest;
    uint64_t modules, rows; /* set once the tables are known */
} SegmentHead;

enum { SEGMENT_HEAD_BYTES = 32, FUNCTION_ENTRY_BYTES = 56, MODULE_ENTRY_BYTES = 112 };

Fault decode_segment_head(Bytes head, SegmentHead *segment);
/* Checks both tables of a segment of `size` bytes, and completes its head. */
Fault decode_segment(SegmentHead *segment, const TableHead *functions, const TableHead *modules, uint64_t size);

/* A function entry of a segment, without its key. */
typedef struct {
    const uint8_t *module_id;
    uint32_t offset;
    const uint8_t *number; /* of its requirement, 4 bytes */
    uint64_t order;
    Bytes content;
} FunctionEntry;

/* Set in the offsets of functions of linked closures (compcache/formats/linked.py). */
#define LINKED 0x80000000u

Fault decode_function_entry(Bytes entry, FunctionEntry *function);

/* A module entry of a segment, without its key. */
typedef struct {
    uint64_t stamp[4]; /* inode, size, modification and change time */
    uint64_t image, records;
    const uint8_t *target_id;
    uint32_t flags, functions;
    const uint8_t *key, *mac;
} ModuleEntry;

Fault decode_module_entry(Bytes entry, ModuleEntry *module);

/* Decodes the next requirement of a segment, and removes it from `rows`; the first one is after the checksum. Returns 0 at the end. */
Fault decode_requirements(Bytes *rows);
int next_requirement(Bytes *rows, const uint8_t **number, Bytes *text);

/* Frames, of which a module's section of records consists (compcache/formats/manifest.py). */
enum { FRAME_HEAD_BYTES = 12, FIRST_READ = 512 };

/* Decodes a frame from the bytes that were read from `offset` on: the payload, or the number of bytes that it needs in *needed. */
Fault decode_frame(Bytes data, uint64_t offset, uint64_t limit, const uint8_t *key, Bytes *payload, uint64_t *needed);

typedef struct {
    uint32_t function, entry, needs;
    const uint8_t *target_id;
    Bytes name, symbol, signature, link_type;
} FunctionFields;

Fault decode_function_record(Bytes payload, FunctionFields *function);

/* The slot of an import that has places instead, and the size of a link type. */
#define NO_SLOT 0xFFFFFFFFu
enum { LINK_TYPE_BYTES = 12 };

/* A needs record: the number of items of each kind, and the place of the first one. A `next_*` function goes from one to the next. */
typedef struct {
    uint32_t imports, globals, children, natives;
    Bytes import_rows, native_rows, place_rows, link_types; /* the last two are empty if they are not known */
    const uint8_t *global_numbers, *child_numbers;
} NeedsFields;

Fault decode_needs_record(Bytes payload, NeedsFields *needs);

typedef struct {
    uint32_t slot, size;
    Bytes name, form, kind, definition;
} GlobalFields;

Fault decode_global_record(Bytes payload, GlobalFields *global);

/* An entry of data (compcache/formats/entry.py). */
typedef struct {
    uint64_t sequence;
    int is_removal;
    Bytes kind, name, requires, data; /* `requires` contains ids of modules */
} EntryFields;

Fault decode_entry_record(Bytes payload, EntryFields *entry);
/* These read rows that `decode_needs_record` has checked. */
uint32_t next_import(Bytes *rows, Bytes *name);
Bytes next_row(Bytes *rows);

uint32_t number_at(const uint8_t *at);
uint64_t long_at(const uint8_t *at);

/* A file that records whether a linked closure is valid (compcache/hit/closures). The seal covers everything after it. */
typedef struct {
    const uint8_t *seal; /* SEAL_BYTES */
    Bytes sealed;
    const uint8_t *state; /* of the index, STATE_BYTES */
    uint32_t is_valid;
    uint32_t homes; /* the number of parts, from the first one, that the closure contains whole */
    Bytes parts;    /* the ids of modules */
} ClosureFields;

enum { SEAL_BYTES = 16, STATE_BYTES = 16 };

Fault decode_closure(Bytes data, ClosureFields *closure);

/* A volume of small modules (compcache/formats/volume.py): what its tail says, and what an entry of its table says without the key. */
typedef struct {
    uint64_t dictionary, table; /* where they begin */
    uint32_t dictionary_size, names_size;
    const uint8_t *check; /* of the tail before it, the dictionary and the names */
} VolumeTail;

typedef struct {
    uint64_t stream;
    uint32_t stream_size, size, signatures;
    double modified;
} Member;

enum { VOLUME_MAGIC_BYTES = 8, VOLUME_TAIL_BYTES = 32, MEMBER_BYTES = 44 };

/* Decodes the tail of a volume of `size` bytes, of which `magic` are the first ones. */
Fault decode_volume_tail(Bytes magic, Bytes tail, uint64_t size, VolumeTail *volume);
Fault decode_member(Bytes entry, Member *member);
/* Decodes a deflate stream (RFC 1951) with a preset dictionary. Returns 0 unless it is valid and has this many bytes. */
int inflate(Bytes stream, Bytes dictionary, uint8_t *out, size_t size);

/* The requirement of code (compcache/formats/host.py), as UTF-8. */
typedef struct {
    Bytes abi, platform, libc, cpu, made_for, made_on, features;
} Requirement;

Fault decode_requirement(Bytes text, Requirement *requirement);
/* Whether a C library is the one that code needs, or a later version. */
int libc_is_enough(Bytes needed, Bytes own);
/* One item that code requires of a processor: a mask over a word, a lower bound of a word, or the same processor. */
typedef struct {
    enum { MASK, BOUND, SAME } kind;
    Bytes word, number;
    uint64_t value;
} ProcessorNeed;
/* Decodes the next item and removes it from `features`; *found is 0 at the end. */
Fault next_need(Bytes *features, ProcessorNeed *need, int *found);
/* The features without the names for people. */
Bytes words_of_features(Bytes features);

#endif
