/* The Python interface of formats.c: bytes in, values out. All malformed data raises `compcache.errors.FormatError`, here and nowhere else.
 *
 * A *source* is bytes, the descriptor of an open file, or a function (offset, size) that returns that many bytes, or fewer at the end. */
#include "runtime.h"

#include "formats.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Raises a fault as an exception, and returns NULL. `about` (str) names the faulty data. */
static void *damaged(Fault fault, PyObject *about) {
    PyObject *errors = PyImport_ImportModule("compcache.errors");
    PyObject *type = errors != NULL ? PyObject_GetAttrString(errors, "FormatError") : NULL;
    if (type != NULL && about != NULL) {
        PyErr_Format(type, "%U %s", about, fault);
    } else if (type != NULL) {
        PyErr_SetString(type, fault);
    }
    Py_XDECREF(type);
    Py_XDECREF(errors);
    return NULL;
}

static Bytes bytes_of(PyObject *object) {
    return (Bytes){(const uint8_t *)PyBytes_AsString(object), (size_t)PyBytes_Size(object)};
}

static PyObject *new_bytes(const uint8_t *at, size_t size) {
    return PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)size);
}

/* Makes a str of the text of a record; NULL with an exception, which is a FormatError if the text is not UTF-8. */
static PyObject *new_text(Bytes text, Fault otherwise) {
    PyObject *result = PyUnicode_DecodeUTF8((const char *)text.at, (Py_ssize_t)text.size, "surrogatepass");
    if (result == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        return damaged(otherwise, NULL);
    }
    return result;
}

/* Makes a str of the Bytes at an address, like new_text(), for the format O& of Py_BuildValue(). */
static PyObject *record_text(void *text) {
    return new_text(*(const Bytes *)text, "a record has a text that is not UTF-8");
}

/* --------------------------------------------------------------------------------------------------------- sources */

static PyObject *read_file(int descriptor, uint64_t offset, uint64_t size) {
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    ssize_t count = result != NULL ? 0 : -1;
    if (result != NULL) {
        char *to = PyBytes_AsString(result);
        Py_BEGIN_ALLOW_THREADS
        count = pread(descriptor, to, (size_t)size, (off_t)offset); /* regular files are not interrupted */
        Py_END_ALLOW_THREADS
    }
    if (result != NULL && count != (ssize_t)size) {
        PyObject *part = count < 0 ? PyErr_SetFromErrno(PyExc_OSError) : new_bytes(bytes_of(result).at, (size_t)count);
        Py_DECREF(result);
        return part;
    }
    return result;
}

/* Reads bytes of a source, which `*kept` keeps. Returns 0, or -1 with an exception. There are fewer bytes at the end. */
static int read_source(PyObject *source, uint64_t offset, uint64_t size, PyObject **kept, Bytes *found) {
    if (PyBytes_Check(source)) {
        const Bytes all = bytes_of(source);
        const uint64_t left = offset < all.size ? all.size - offset : 0;
        *kept = Py_NewRef(source);
        *found = (Bytes){all.at + (left > 0 ? offset : 0), (size_t)(size < left ? size : left)};
        return 0;
    }
    *kept = PyLong_Check(source) ? read_file((int)PyLong_AsLong(source), offset, size)
                                 : PyObject_CallFunction(source, "KK", (unsigned long long)offset, (unsigned long long)size);
    if (*kept != NULL && !PyBytes_Check(*kept)) {
        Py_CLEAR(*kept);
        PyErr_SetString(PyExc_TypeError, "the function that reads a source must return bytes");
    }
    if (*kept == NULL) {
        return -1;
    }
    *found = bytes_of(*kept);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------- tables */

typedef struct {
    PyObject_HEAD
    PyObject *source; /* NULL in a subclass that keeps its entries elsewhere */
    uint64_t base;
    TableHead head;
    uint8_t *verified; /* one bit for each bucket of a source that is bytes, and cannot change; NULL: each look-up verifies */
} Table;

/* Allocates a bit for each bucket, all zero; NULL if memory is exhausted. */
static uint8_t *new_bits(const TableHead *head) {
    return PyMem_Calloc(((size_t)1 << head->bits) / 8 + 1, 1);
}

static PyObject *init_table(Table *self, PyObject *source, uint64_t base) {
    PyObject *kept;
    Bytes found;
    if (read_source(source, base, TABLE_HEAD_BYTES, &kept, &found) < 0) {
        return NULL;
    }
    const Fault fault = decode_table_head(found, &self->head);
    Py_DECREF(kept);
    if (fault != NULL) {
        return damaged(fault, NULL);
    }
    if (PyBytes_Check(source) && (size_t)PyBytes_Size(source) >= self->head.entries) { /* the source has that many buckets */
        self->verified = new_bits(&self->head);
        if (self->verified == NULL) {
            return PyErr_NoMemory();
        }
    }
    self->source = Py_NewRef(source);
    self->base = base;
    return (PyObject *)self;
}

/* Table(source, base=0) */
static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *source = NULL;
    unsigned long long base = 0;
    if (named != NULL && PyDict_Size(named) > 0) {
        PyErr_SetString(PyExc_TypeError, "Table() takes its arguments by position");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "|OK:Table", &source, &base)) {
        return NULL;
    }
    Table *self = (Table *)PyType_GenericAlloc(type, 0);
    if (self != NULL && source != NULL && init_table(self, source, base) == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void table_dealloc(PyObject *object) {
    Table *self = (Table *)object;
    Py_XDECREF(self->source);
    PyMem_Free(self->verified);
    release_object(object);
}

/* Reads and verifies the entries of one bucket. Returns 0, or -1 with an exception. */
static int read_bucket(Table *self, uint64_t number, PyObject **kept, Bytes *found) {
    if (self->source == NULL) {
        PyErr_SetString(PyExc_TypeError, "the table was made without a source");
        return -1;
    }
    PyObject *ends_kept;
    Bytes ends;
    const uint64_t before = number > 0 ? 1 : 0;
    if (read_source(self->source, self->base + TABLE_HEAD_BYTES + (number - before) * BUCKET_BYTES, (1 + before) * BUCKET_BYTES, &ends_kept, &ends) < 0) {
        return -1;
    }
    uint64_t at, size;
    uint8_t check[CHECK_BYTES];
    const uint8_t *check_at;
    Fault fault = decode_bucket(ends, number, &self->head, &at, &size, &check_at);
    if (fault == NULL) {
        memcpy(check, check_at, sizeof check);
    }
    Py_DECREF(ends_kept);
    if (fault != NULL) {
        damaged(fault, NULL);
        return -1;
    }
    if (read_source(self->source, self->base + at, size, kept, found) < 0) {
        return -1;
    }
    uint8_t *const known = self->verified != NULL ? self->verified + number / 8 : NULL;
    const uint8_t bit = (uint8_t)(1 << number % 8);
    if (known != NULL && __atomic_load_n(known, __ATOMIC_RELAXED) & bit) {
        return 0;
    }
    if (found->size != size || !is_check_of(check, *found, number, NULL)) {
        Py_CLEAR(*kept);
        damaged("a bucket of an index table is damaged", NULL);
        return -1;
    }
    if (known != NULL) {
        __atomic_fetch_or(known, bit, __ATOMIC_RELAXED);
    }
    return 0;
}

/* The first entry at or after `from` in a bucket that has this key; the bucket's end if there is none. */
static size_t find_entry(Bytes bucket, size_t from, uint32_t width, const uint8_t *key) {
    while (from < bucket.size && memcmp(bucket.at + from, key, NAME_BYTES) != 0) {
        from += width;
    }
    return from;
}

static const uint8_t *key_of(PyObject *object) {
    if (!PyBytes_Check(object) || PyBytes_Size(object) != NAME_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a key must have 16 bytes");
        return NULL;
    }
    return (const uint8_t *)PyBytes_AsString(object);
}

/* find(key) -> list[bytes] */
static PyObject *table_find(PyObject *object, PyObject *key_object) {
    Table *self = (Table *)object;
    const uint8_t *key = key_of(key_object);
    PyObject *kept;
    Bytes bucket;
    if (key == NULL || read_bucket(self, bucket_of(key, &self->head), &kept, &bucket) < 0) {
        return NULL;
    }
    PyObject *found = PyList_New(0);
    const uint32_t width = self->head.width;
    for (size_t at = find_entry(bucket, 0, width, key); found != NULL && at < bucket.size; at = find_entry(bucket, at + width, width, key)) {
        PyObject *value = new_bytes(bucket.at + at + NAME_BYTES, width - NAME_BYTES);
        if (value == NULL || PyList_Append(found, value) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(value);
    }
    Py_DECREF(kept);
    return found;
}

int require_use(PyObject *use) {
    if (PyTuple_Check(use) && PyTuple_Size(use) == USE_FIELDS && PyUnicode_Check(PyTuple_GetItem(use, USE_NAME)) &&
        PyBytes_Check(PyTuple_GetItem(use, USE_PLACES)) && PyBytes_Check(PyTuple_GetItem(use, USE_LINK_TYPE))) {
        return 0;
    }
    PyErr_SetString(PyExc_TypeError, "a use is a tuple of a key, a name, places and a link type");
    return -1;
}

/* The encoded name of a use (runtime.h), valid as long as the returned object; NULL with an exception. */
static PyObject *name_of_use(PyObject *use, Bytes *name) {
    if (require_use(use) < 0) {
        return NULL;
    }
    PyObject *text = PyTuple_GetItem(use, USE_NAME);
    Py_ssize_t size;
    const char *plain = PyUnicode_AsUTF8AndSize(text, &size);
    if (plain != NULL) {
        *name = (Bytes){(const uint8_t *)plain, (size_t)size};
        return Py_NewRef(text);
    }
    PyErr_Clear(); /* the name has surrogates */
    PyObject *encoded = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
    *name = encoded != NULL ? bytes_of(encoded) : (Bytes){NULL, 0};
    return encoded;
}

/* The key of a func_name in tables. */
static void key_of_name(Bytes name, uint8_t *key) {
    static const uint8_t person[16] = "compcache-name";
    blake2b(key, NAME_BYTES, name, (Bytes){NULL, 0}, NULL, person);
}

/* A name that is looked up in several tables of function entries, and its realization. */
typedef struct {
    uint8_t key[NAME_BYTES], module_id[NAME_BYTES];
    uint32_t offset; /* of its record */
    enum { MISSING, UNIQUE, SEVERAL } state;
} Wanted;

/* Adds the realizations in a table. Returns 0, or -1 with an exception. */
static int add_realizations(Table *self, Wanted *wanted) {
    PyObject *kept;
    Bytes bucket;
    if (read_bucket(self, bucket_of(wanted->key, &self->head), &kept, &bucket) < 0) {
        return -1;
    }
    Fault fault = NULL;
    const uint32_t width = self->head.width;
    for (size_t at = find_entry(bucket, 0, width, wanted->key); fault == NULL && at < bucket.size;
         at = find_entry(bucket, at + width, width, wanted->key)) {
        FunctionEntry entry;
        fault = decode_function_entry((Bytes){bucket.at + at + NAME_BYTES, width - NAME_BYTES}, &entry);
        if (fault == NULL && wanted->state == MISSING) {
            memcpy(wanted->module_id, entry.module_id, NAME_BYTES);
            wanted->offset = entry.offset;
            wanted->state = UNIQUE;
        } else if (fault == NULL && (memcmp(wanted->module_id, entry.module_id, NAME_BYTES) != 0 || wanted->offset != entry.offset)) {
            wanted->state = SEVERAL;
        }
    }
    Py_DECREF(kept);
    if (fault != NULL) {
        damaged(fault, NULL);
    }
    return fault != NULL ? -1 : 0;
}

/* Whether single look-ups of this many names would read as much as the whole table. It is then read once. */
static int is_read_whole(const Table *table, Py_ssize_t names) {
    return table->source != NULL && !PyBytes_Check(table->source) && table->head.size / 1024 <= (uint64_t)names;
}

static int require_table(PyObject *module, PyObject *object) {
    if (Py_TYPE(object) == module_state(module)->table_type) {
        return 0;
    }
    PyErr_SetString(PyExc_TypeError, "the argument must be a tuple of tables");
    return -1;
}

/* Looks names up in a table. Returns 0, or -1 with an exception. */
static int look_up_all(Table *table, Wanted *wanted, Py_ssize_t count) {
    PyObject *kept = NULL;
    Table whole;
    int status = 0;
    if (is_read_whole(table, count)) {
        Bytes found;
        if (read_source(table->source, table->base, table->head.size, &kept, &found) < 0) {
            return -1;
        }
        whole = (Table){.source = kept, .head = table->head, .verified = found.size == table->head.size ? new_bits(&table->head) : NULL};
        table = &whole;
    }
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        status = add_realizations(table, &wanted[i]);
    }
    if (kept != NULL) {
        PyMem_Free(whole.verified);
        Py_DECREF(kept);
    }
    return status;
}

/* Looks the names of uses up in tables. Returns an array that the caller frees, or NULL with an exception. */
static Wanted *look_up_uses(PyObject *module, PyObject *tables, PyObject *uses) {
    const Py_ssize_t count = PyTuple_Size(uses);
    Wanted *wanted = PyMem_Calloc((size_t)count + 1, sizeof(Wanted));
    int status = wanted != NULL ? 0 : -1;
    if (status < 0) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; status == 0 && i < count; i++) {
        Bytes name;
        PyObject *kept = name_of_use(PyTuple_GetItem(uses, i), &name);
        status = kept != NULL ? 0 : -1;
        if (kept != NULL) {
            key_of_name(name, wanted[i].key);
            Py_DECREF(kept);
        }
    }
    for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(tables); i++) {
        PyObject *table = PyTuple_GetItem(tables, i);
        status = require_table(module, table);
        if (status == 0) {
            status = look_up_all((Table *)table, wanted, count);
        }
    }
    if (status < 0) {
        PyMem_Free(wanted);
        return NULL;
    }
    return wanted;
}

/* Returns the group (uses: list, offsets: list) of a module in a dictionary, as a borrowed reference. */
static PyObject *group_of_module(PyObject *groups, const uint8_t *module_id) {
    PyObject *key = new_bytes(module_id, NAME_BYTES), *group = key != NULL ? PyDict_GetItemWithError(groups, key) : NULL;
    if (key != NULL && group == NULL && !PyErr_Occurred()) {
        PyObject *added = Py_BuildValue("([][])");
        group = added != NULL && PyDict_SetItem(groups, key, added) == 0 ? added : NULL;
        Py_XDECREF(added); /* the dictionary has it */
    }
    Py_XDECREF(key);
    return group;
}

static int append_to_group(PyObject *group, PyObject *use, uint32_t offset) {
    PyObject *number = PyLong_FromUnsignedLong(offset);
    const int status = number == NULL || PyList_Append(PyTuple_GetItem(group, 0), use) < 0 ? -1 : PyList_Append(PyTuple_GetItem(group, 1), number);
    Py_XDECREF(number);
    return status;
}

/* uses_by_module(tables: tuple, uses: list) -> dict[bytes, tuple[list, list]]
 * The uses (runtime.h) whose names have exactly one realization in these tables of function entries, by its module_id, with the offsets
 * of the realizations' records. Realizations in linked closures are left out. */
PyObject *uses_by_module(PyObject *module, PyObject *args) {
    PyObject *tables, *list;
    if (!PyArg_ParseTuple(args, "O!O!:uses_by_module", &PyTuple_Type, &tables, &PyList_Type, &list)) {
        return NULL;
    }
    PyObject *uses = PyList_AsTuple(list); /* a copy, which no other thread changes */
    Wanted *wanted = uses != NULL ? look_up_uses(module, tables, uses) : NULL;
    PyObject *groups = wanted != NULL ? PyDict_New() : NULL, *group = NULL;
    const Wanted *last = NULL;
    for (Py_ssize_t i = 0; groups != NULL && i < PyTuple_Size(uses); i++) {
        if (wanted[i].state != UNIQUE || wanted[i].offset >= LINKED) {
            continue;
        }
        if (last == NULL || memcmp(last->module_id, wanted[i].module_id, NAME_BYTES) != 0) {
            last = &wanted[i];
            group = group_of_module(groups, last->module_id);
        }
        if (group == NULL || append_to_group(group, PyTuple_GetItem(uses, i), wanted[i].offset) < 0) {
            Py_CLEAR(groups);
        }
    }
    PyMem_Free(wanted);
    Py_XDECREF(uses);
    return groups;
}

/* Appends the entries of a bucket whose first `bits` bits are `number`. Returns 0, or -1 with an exception. */
static int append_entries(Table *self, PyObject *list, uint64_t bucket, uint64_t number, uint32_t bits) {
    PyObject *kept;
    Bytes found;
    if (read_bucket(self, bucket, &kept, &found) < 0) {
        return -1;
    }
    int status = 0;
    const TableHead range = {.bits = bits};
    for (size_t at = 0; status == 0 && at < found.size; at += self->head.width) {
        if (bucket_of(found.at + at, &range) == number) {
            PyObject *entry = new_bytes(found.at + at, self->head.width);
            status = entry != NULL ? PyList_Append(list, entry) : -1;
            Py_XDECREF(entry);
        }
    }
    Py_DECREF(kept);
    return status;
}

/* bucket_entries(number) -> list[bytes]: the entries of a bucket, with their keys */
static PyObject *table_bucket_entries(PyObject *object, PyObject *args) {
    Table *self = (Table *)object;
    unsigned long long number;
    if (!PyArg_ParseTuple(args, "K:bucket_entries", &number)) {
        return NULL;
    }
    if (number >> self->head.bits != 0) {
        PyErr_SetString(PyExc_IndexError, "the table does not have a bucket with this number");
        return NULL;
    }
    PyObject *found = PyList_New(0);
    if (found != NULL && append_entries(self, found, number, number, self->head.bits) < 0) {
        Py_CLEAR(found);
    }
    return found;
}

/* entries_of_range(number, bits) -> list[bytes]: the entries, with their keys, whose first `bits` bits (32 at most) are this number */
static PyObject *table_entries_of_range(PyObject *object, PyObject *args) {
    Table *self = (Table *)object;
    unsigned long long number;
    unsigned int bits;
    if (!PyArg_ParseTuple(args, "KI:entries_of_range", &number, &bits)) {
        return NULL;
    }
    if (bits > 32 || number >> bits != 0) {
        PyErr_SetString(PyExc_ValueError, "a range of keys has at most 32 bits, and a number with that many bits");
        return NULL;
    }
    const uint32_t own = self->head.bits;
    const uint64_t first = bits > own ? number >> (bits - own) : number << (own - bits);
    const uint64_t last = bits > own ? first : ((number + 1) << (own - bits)) - 1;
    PyObject *found = PyList_New(0);
    for (uint64_t bucket = first; found != NULL && bucket <= last; bucket++) {
        if (append_entries(self, found, bucket, number, bits) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static PyMethodDef table_methods[] = {
    {"find", table_find, METH_O, "Return the entries with this key, without the key, in their order."},
    {"bucket_entries", table_bucket_entries, METH_VARARGS, "Return the entries of one bucket, with their keys."},
    {"entries_of_range", table_entries_of_range, METH_VARARGS, "Return the entries, with their keys, whose first bits are this number."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef table_members[] = {
    {"width", T_UINT, offsetof(Table, head.width), READONLY, "The size of an entry in bytes."},
    {"bits", T_UINT, offsetof(Table, head.bits), READONLY, "There are 2**bits buckets."},
    {"count", T_ULONGLONG, offsetof(Table, head.count), READONLY, "The number of entries."},
    {"size", T_ULONGLONG, offsetof(Table, head.size), READONLY, "The size of the table in bytes."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_new, (void *)table_new},
    {Py_tp_dealloc, (void *)table_dealloc},
    {Py_tp_methods, (void *)table_methods},
    {Py_tp_members, (void *)table_members},
    {0, NULL},
};

PyType_Spec table_spec = {
    .name = "compcache.hit._runtime.Table",
    .basicsize = sizeof(Table),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = table_slots,
};

/* -------------------------------------------------------------------------------------------------------- segments */

enum { SEGMENT_NAME_BYTES = 31, LEVEL_BYTES = 2 };

static int have_digits(Bytes text, const char *digits) {
    for (size_t i = 0; i < text.size; i++) {
        if (text.at[i] == 0 || strchr(digits, text.at[i]) == NULL) {
            return 0;
        }
    }
    return 1;
}

/* Whether a name, followed by a slash, is that of a segment which this version writes: 02-0123456789abcdef01234567.idx */
static int is_segment_name(const uint8_t *name) {
    static const char suffix[] = ".idx/";
    enum { SUFFIX_AT = SEGMENT_NAME_BYTES + 2 - sizeof suffix };
    return name[LEVEL_BYTES] == '-' && memcmp(name + SUFFIX_AT, suffix, sizeof suffix - 1) == 0
        && have_digits((Bytes){name, LEVEL_BYTES}, "0123456789")
        && have_digits((Bytes){name + LEVEL_BYTES + 1, SUFFIX_AT - LEVEL_BYTES - 1}, "0123456789abcdef");
}

/* segment_names(names: bytes) -> list[str] | None: the names of the segments of an index, of names that are each followed by a slash. None if
 * one of them is not the name of a segment which this version writes. */
PyObject *segment_names(PyObject *Py_UNUSED(module), PyObject *names) {
    enum { STEP = SEGMENT_NAME_BYTES + 1 };
    if (!PyBytes_Check(names)) {
        PyErr_SetString(PyExc_TypeError, "segment_names() takes bytes");
        return NULL;
    }
    const Bytes all = bytes_of(names);
    PyObject *result = PyList_New(0);
    for (size_t at = 0; result != NULL && at < all.size; at += STEP) {
        if (all.size - at < STEP || !is_segment_name(all.at + at)) {
            Py_DECREF(result);
            Py_RETURN_NONE;
        }
        PyObject *name = PyUnicode_DecodeUTF8((const char *)all.at + at, SEGMENT_NAME_BYTES, NULL);
        if (name == NULL || PyList_Append(result, name) < 0) {
            Py_CLEAR(result);
        }
        Py_XDECREF(name);
    }
    return result;
}

/* open_segment(source, size, name) -> (functions: Table, modules: Table, at, size, greatest)
 * The tables, the offset and size of the requirements, and the greatest number of an addition. */
PyObject *open_segment(PyObject *module, PyObject *args) {
    PyObject *source, *name, *kept;
    unsigned long long size;
    Bytes head;
    SegmentHead segment;
    if (!PyArg_ParseTuple(args, "OKU:open_segment", &source, &size, &name) || read_source(source, 0, SEGMENT_HEAD_BYTES, &kept, &head) < 0) {
        return NULL;
    }
    Fault fault = decode_segment_head(head, &segment);
    Py_DECREF(kept);
    if (fault != NULL) {
        return damaged(fault, name);
    }
    PyTypeObject *type = module_state(module)->table_type;
    Table *tables[2] = {(Table *)PyType_GenericAlloc(type, 0), (Table *)PyType_GenericAlloc(type, 0)};
    PyObject *result = NULL;
    if (tables[0] != NULL && tables[1] != NULL && init_table(tables[0], source, segment.functions) != NULL) {
        fault = decode_segment(&segment, &tables[0]->head, NULL, size);
        if (fault == NULL && init_table(tables[1], source, segment.modules) != NULL) {
            fault = decode_segment(&segment, &tables[0]->head, &tables[1]->head, size);
        }
        if (fault != NULL) {
            damaged(fault, name);
        } else if (!PyErr_Occurred()) {
            result = Py_BuildValue("(OOKKK)", tables[0], tables[1], (unsigned long long)segment.rows,
                                   (unsigned long long)segment.rows_size, (unsigned long long)segment.greatest);
        }
    }
    Py_XDECREF((PyObject *)tables[0]);
    Py_XDECREF((PyObject *)tables[1]);
    return result;
}

/* function_entry(entry: bytes) -> (module_id, offset, number, order, content); `entry` is without its key */
PyObject *function_entry(PyObject *Py_UNUSED(module), PyObject *entry) {
    FunctionEntry found;
    const Fault fault = PyBytes_Check(entry) ? decode_function_entry(bytes_of(entry), &found) : "a function entry is not bytes";
    if (fault != NULL) {
        return damaged(fault, NULL);
    }
    return Py_BuildValue("(y#Iy#Ky#)", found.module_id, (Py_ssize_t)NAME_BYTES, found.offset, found.number, (Py_ssize_t)4,
                         (unsigned long long)found.order, found.content.at, (Py_ssize_t)found.content.size);
}

/* The realization of a function that a look-up has found so far, its table, and whether another one may take precedence. */
typedef struct {
    FunctionEntry entry;
    Py_ssize_t index;
    PyObject *kept; /* keeps the entry; NULL if nothing was found */
    int others;     /* the number of entries for other realizations than the newest so far */
    int is_open;
    FunctionEntry linked; /* the first realization found in a linked closure, */
    Py_ssize_t linked_index;
    PyObject *linked_kept;
    int links; /* and the least number of such realizations */
} Newest;

static int is_same(const FunctionEntry *one, const FunctionEntry *other) {
    return memcmp(one->module_id, other->module_id, NAME_BYTES) == 0 && one->offset == other->offset
        && memcmp(one->number, other->number, 4) == 0;
}

static int has_content(const FunctionEntry *entry) {
    for (size_t i = 0; i < entry->content.size; i++) {
        if (entry->content.at[i] != 0) {
            return 1;
        }
    }
    return 0;
}

/* Whether the numbers of two additions do not suffice to decide which realization takes precedence. */
static int leaves_open(const FunctionEntry *one, const FunctionEntry *other, int ordered) {
    return !ordered || one->order == other->order
        || (has_content(one) && memcmp(one->content.at, other->content.at, one->content.size) == 0);
}

static void look_at_linked(PyObject *kept, Py_ssize_t index, const FunctionEntry *entry, Newest *newest) {
    if (newest->linked_kept == NULL) {
        newest->linked_kept = Py_NewRef(kept);
        newest->linked = *entry;
        newest->linked_index = index;
        newest->links = 1;
    } else {
        newest->links += !is_same(entry, &newest->linked);
    }
}

/* Takes the entries of one table into account. Returns 0, or -1 with an exception. */
static int look_in(Table *table, Py_ssize_t index, const uint8_t *key, int ordered, Newest *newest) {
    PyObject *kept;
    Bytes bucket;
    if (read_bucket(table, bucket_of(key, &table->head), &kept, &bucket) < 0) {
        return -1;
    }
    const uint32_t width = table->head.width;
    for (size_t at = find_entry(bucket, 0, width, key); at < bucket.size; at = find_entry(bucket, at + width, width, key)) {
        FunctionEntry entry;
        const Fault fault = decode_function_entry((Bytes){bucket.at + at + NAME_BYTES, width - NAME_BYTES}, &entry);
        if (fault != NULL) {
            Py_DECREF(kept);
            damaged(fault, NULL);
            return -1;
        }
        if (entry.offset & LINKED) {
            look_at_linked(kept, index, &entry, newest);
            continue;
        }
        const int other = newest->kept != NULL && !is_same(&entry, &newest->entry);
        newest->others += other;
        newest->is_open |= other && leaves_open(&entry, &newest->entry, ordered);
        if (newest->kept == NULL || entry.order > newest->entry.order) {
            Py_XDECREF(newest->kept);
            newest->kept = Py_NewRef(kept);
            newest->entry = entry;
            newest->index = index;
        }
    }
    Py_DECREF(kept);
    return 0;
}

static PyObject *fields_of_newest(Py_ssize_t index, const FunctionEntry *entry) {
    return Py_BuildValue("(ny#Iy#y#)", index, entry->module_id, (Py_ssize_t)NAME_BYTES, entry->offset, entry->number, (Py_ssize_t)4,
                         entry->content.at, (Py_ssize_t)entry->content.size);
}

/* is_ordered(name: str) -> bool: whether a name with several realizations means the newest. It does for plain names, but not for content names
 * (a label, a hyphen, a digest in hex) or for entries of data, whose names begin with NUL. */
PyObject *is_ordered(PyObject *Py_UNUSED(module), PyObject *name) {
    enum { DIGITS = 32 };
    PyObject *encoded = PyUnicode_AsEncodedString(name, "utf-8", "surrogatepass");
    if (encoded == NULL) {
        return NULL;
    }
    const Bytes text = bytes_of(encoded);
    int ends_with_digest = text.size > DIGITS && text.at[text.size - DIGITS - 1] == '-';
    for (size_t i = 1; ends_with_digest && i <= DIGITS; i++) {
        const uint8_t digit = text.at[text.size - i];
        ends_with_digest = (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
    }
    const int is_entry = text.size > 0 && text.at[0] == 0;
    Py_DECREF(encoded);
    return PyBool_FromLong(!ends_with_digest && !is_entry);
}

static void release_newest(Newest *found) {
    Py_CLEAR(found->kept);
    Py_CLEAR(found->linked_kept);
}

/* Finds the realizations of a name in these tables. Returns 0, or -1 with an exception. The caller calls release_newest() in any case. */
static int find_newest(PyObject *module, PyObject *tables, Bytes name, int ordered, Newest *found) {
    uint8_t key[NAME_BYTES];
    key_of_name(name, key);
    *found = (Newest){.kept = NULL, .linked_kept = NULL};
    int status = 0;
    for (int round = 0; status == 0 && (round == 0 || (round == 1 && found->others > 1)); round++) {
        found->is_open = 0; /* one of several may have been compared with others than the newest: compare all with the newest again */
        for (Py_ssize_t i = 0; status == 0 && i < PyTuple_Size(tables); i++) {
            PyObject *table = PyTuple_GetItem(tables, i);
            status = require_table(module, table);
            if (status == 0) {
                status = look_in((Table *)table, i, key, ordered, found);
            }
        }
    }
    return status;
}

/* Whether the only realization in a linked closure comes first. */
static int is_linked_first(const Newest *found, int ordered) {
    return found->links == 1 && (!ordered || has_content(&found->linked));
}

/* newest(tables: tuple[Table, ...], func_name: str, ordered: bool) -> (index, module_id, offset, number, content) | None
 * The realization in the function tables that takes precedence over all others: the only one, or, if `ordered`, the newest addition, unless
 * others have its content. Otherwise None. The only realization in a linked closure comes first if its content is known; the caller checks
 * that the closure is valid. */
PyObject *newest(PyObject *module, PyObject *args) {
    PyObject *tables, *name;
    int ordered;
    if (!PyArg_ParseTuple(args, "O!Up:newest", &PyTuple_Type, &tables, &name, &ordered)) {
        return NULL;
    }
    PyObject *encoded = PyUnicode_AsEncodedString(name, "utf-8", "surrogatepass");
    if (encoded == NULL) {
        return NULL;
    }
    Newest found;
    const int status = find_newest(module, tables, bytes_of(encoded), ordered, &found);
    Py_DECREF(encoded);
    PyObject *result = NULL;
    if (status == 0 && is_linked_first(&found, ordered)) {
        result = fields_of_newest(found.linked_index, &found.linked);
    } else if (status == 0 && (found.kept == NULL || found.is_open || found.links > 0)) {
        result = Py_NewRef(Py_None);
    } else if (status == 0) {
        result = fields_of_newest(found.index, &found.entry);
    }
    release_newest(&found);
    return result;
}

enum { ENTRY_FIELDS = 7, ENTRY_KEY = 5 };

static PyObject *fields_of_module(const ModuleEntry *entry) {
    return Py_BuildValue("(KKy#IIy#y#)", (unsigned long long)entry->image, (unsigned long long)entry->records, entry->target_id,
                         (Py_ssize_t)CHECK_BYTES, entry->flags, entry->functions, entry->key, (Py_ssize_t)NAME_BYTES, entry->mac,
                         (Py_ssize_t)MAC_BYTES);
}

/* module_entry(entry: bytes) -> ((inode, size, mtime, ctime), (image, records, target_id, flags, functions, key, mac)); without its key */
PyObject *module_entry(PyObject *Py_UNUSED(module), PyObject *entry) {
    ModuleEntry found;
    const Fault fault = PyBytes_Check(entry) ? decode_module_entry(bytes_of(entry), &found) : "a module entry is not bytes";
    if (fault != NULL) {
        return damaged(fault, NULL);
    }
    PyObject *fields = fields_of_module(&found);
    if (fields == NULL) {
        return NULL;
    }
    return Py_BuildValue("((KKLL)N)", (unsigned long long)found.stamp[0], (unsigned long long)found.stamp[1],
                         (long long)found.stamp[2], (long long)found.stamp[3], fields);
}

/* Whether an entry, with its key, has the authentication code for a key, as compcache.digest.mac computes it; 1 for an empty key. */
static int has_mac(Bytes entry, Bytes key) {
    uint8_t found[32];
    if (key.size == 0) {
        return 1;
    }
    const Bytes data = {entry.at, entry.size - MAC_BYTES};
    blake2b(found, sizeof found, data, key, NULL, (const uint8_t *)"compcache-mac-v1");
    return memcmp(found, entry.at + data.size, MAC_BYTES) == 0;
}

/* Finds the entry of a module in one table with this stamp of its file and a valid code for the key; *fields is None if there is none.
 * Returns 0, or -1 with an exception. */
static int find_stamped(Table *table, const uint8_t *key, const uint64_t *stamp, Bytes mac_key, PyObject **fields) {
    PyObject *kept;
    Bytes bucket;
    if (read_bucket(table, bucket_of(key, &table->head), &kept, &bucket) < 0) {
        return -1;
    }
    const uint32_t width = table->head.width;
    *fields = NULL;
    Fault fault = NULL;
    for (size_t at = find_entry(bucket, 0, width, key); fault == NULL && *fields == NULL && at < bucket.size;
         at = find_entry(bucket, at + width, width, key)) {
        ModuleEntry entry;
        fault = decode_module_entry((Bytes){bucket.at + at + NAME_BYTES, width - NAME_BYTES}, &entry);
        if (fault == NULL && memcmp(entry.stamp, stamp, sizeof entry.stamp) == 0 && has_mac((Bytes){bucket.at + at, width}, mac_key)) {
            *fields = fields_of_module(&entry);
            fault = *fields == NULL ? "" : NULL;
        }
    }
    Py_DECREF(kept);
    if (fault == NULL) {
        *fields = *fields != NULL ? *fields : Py_NewRef(Py_None);
        return 0;
    }
    if (!PyErr_Occurred()) {
        damaged(fault, NULL);
    }
    return -1;
}

/* stamped(tables: tuple[Table, ...], first: int, module_id, (inode, size, mtime, ctime), mac_key)
 *     -> (image, records, target_id, flags, functions, key, mac) | None
 * The entry of a module in the module tables, beginning with number `first`, that has this stamp of its file and was written by a holder of
 * the key (at most 64 bytes; empty: any writer). */
PyObject *stamped(PyObject *module, PyObject *args) {
    PyObject *tables, *key_object, *mac_key;
    Py_ssize_t first;
    unsigned long long stamp[4];
    if (!PyArg_ParseTuple(args, "O!nO(KKKK)S:stamped", &PyTuple_Type, &tables, &first, &key_object, &stamp[0], &stamp[1], &stamp[2],
                          &stamp[3], &mac_key)) {
        return NULL;
    }
    if (PyBytes_Size(mac_key) > 64) {
        PyErr_SetString(PyExc_ValueError, "the key of a BLAKE2b digest must have at most 64 bytes");
        return NULL;
    }
    const uint8_t *key = key_of(key_object);
    const Py_ssize_t count = PyTuple_Size(tables);
    if (key == NULL) {
        return NULL;
    }
    const uint64_t own[4] = {stamp[0], stamp[1], stamp[2], stamp[3]};
    PyObject *fields = NULL;
    for (Py_ssize_t i = -1; i < count; i++) {
        PyObject *table = PyTuple_GetItem(tables, i < 0 ? first : i);
        if (table == NULL || require_table(module, table) < 0
            || find_stamped((Table *)table, key, own, bytes_of(mac_key), &fields) < 0) {
            return NULL;
        }
        if (fields != Py_None) {
            break;
        }
        Py_CLEAR(fields);
    }
    return fields != NULL ? fields : Py_NewRef(Py_None);
}

/* requirements(source, at=0, size=all) -> dict[bytes, str]: the requirements of a segment, by number */
PyObject *requirements(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *source, *kept;
    unsigned long long at = 0, size = SIZE_MAX;
    Bytes rows;
    if (!PyArg_ParseTuple(args, "O|KK:requirements", &source, &at, &size) || read_source(source, at, size, &kept, &rows) < 0) {
        return NULL;
    }
    const Fault fault = decode_requirements(&rows);
    PyObject *found = fault != NULL ? damaged(fault, NULL) : PyDict_New();
    const uint8_t *number;
    Bytes text;
    while (found != NULL && next_requirement(&rows, &number, &text)) {
        PyObject *key = new_bytes(number, 4);
        PyObject *value = key != NULL ? new_text(text, "a requirement of an index segment is not text") : NULL;
        if (value == NULL || PyDict_SetItem(found, key, value) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    Py_DECREF(kept);
    return found;
}

/* --------------------------------------------------------------------------------------------------------- records */

static void *no_record(Fault fault, long long offset) {
    PyObject *about = strncmp(fault, "no", 2) == 0 ? PyUnicode_FromFormat("there is no record at offset %lld", offset)
                                                   : PyUnicode_FromFormat("the record at offset %lld is damaged", offset);
    if (about != NULL) {
        const char *text = PyUnicode_AsUTF8AndSize(about, NULL);
        if (text != NULL) {
            damaged(text, NULL);
        }
        Py_DECREF(about);
    }
    return NULL;
}

/* Verifies the frame at this offset in a section of `limit` bytes, which begins at `base` of a source. Returns what keeps the payload, or NULL
 * with an exception. */
static PyObject *keep_frame(PyObject *source, uint64_t base, long long offset, uint64_t limit, PyObject *key, Bytes *payload) {
    const uint64_t start = offset < 0 ? UINT64_MAX : (uint64_t)offset;
    if (start >= limit) {
        return no_record("no", offset);
    }
    uint8_t whole[NAME_BYTES] = {0}; /* a reader of the module record does not know the key yet */
    if (!PyBytes_Check(key) || PyBytes_Size(key) > NAME_BYTES) {
        PyErr_SetString(PyExc_ValueError, "the key of a module must have 16 bytes");
        return NULL;
    }
    memcpy(whole, PyBytes_AsString(key), (size_t)PyBytes_Size(key));
    const uint64_t left = limit - start;
    uint64_t needed = left < FIRST_READ ? left : FIRST_READ;
    for (int round = 0; round < 2; round++) {
        PyObject *kept;
        Bytes data;
        if (read_source(source, base + start, needed, &kept, &data) < 0) {
            return NULL;
        }
        const Fault fault = decode_frame(data, start, limit, whole, payload, &needed);
        if (needed == 0 && fault == NULL) {
            return kept;
        }
        Py_DECREF(kept);
        if (needed == 0) {
            return no_record(fault, offset);
        }
    }
    return no_record("damaged", offset); /* the file ends before the section does */
}

/* read_frame(source, offset, limit, key, base=0) -> bytes
 * The verified payload of the frame at this offset in a section of `limit` bytes, which begins at `base`. */
PyObject *read_frame(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *source, *key;
    long long offset;
    unsigned long long limit, base = 0;
    Bytes payload;
    if (!PyArg_ParseTuple(args, "OLKS|K:read_frame", &source, &offset, &limit, &key, &base)) {
        return NULL;
    }
    PyObject *kept = keep_frame(source, base, offset, limit, key, &payload);
    PyObject *result = kept != NULL ? new_bytes(payload.at, payload.size) : NULL;
    Py_XDECREF(kept);
    return result;
}

static PyObject *fields_of_function(FunctionFields *found) {
    return Py_BuildValue("(O&O&O&y#IIIy#)", record_text, &found->name, record_text, &found->symbol, record_text, &found->signature,
                         found->target_id, (Py_ssize_t)CHECK_BYTES, found->function, found->entry, found->needs, found->link_type.at,
                         (Py_ssize_t)found->link_type.size);
}

/* function_record(payload: bytes) -> (name, symbol, signature, target_id, function, entry, needs, link_type) */
PyObject *function_record(PyObject *Py_UNUSED(module), PyObject *payload) {
    FunctionFields found;
    const Fault fault = PyBytes_Check(payload) ? decode_function_record(bytes_of(payload), &found) : "a function record is not bytes";
    return fault != NULL ? damaged(fault, NULL) : fields_of_function(&found);
}

/* Reads the record of the function with this name at an offset of an open module (see read_function()). */
static PyObject *read_record(PyObject *descriptor, PyObject *entry, uint32_t offset, Bytes name) {
    if (!PyTuple_Check(entry) || PyTuple_Size(entry) != ENTRY_FIELDS) {
        PyErr_SetString(PyExc_TypeError, "a record is read by the entry of its module");
        return NULL;
    }
    const uint64_t image = PyLong_AsUnsignedLongLong(PyTuple_GetItem(entry, 0)), limit = PyLong_AsUnsignedLongLong(PyTuple_GetItem(entry, 1));
    Bytes payload;
    FunctionFields found;
    PyObject *kept = PyErr_Occurred() ? NULL : keep_frame(descriptor, image, offset, limit, PyTuple_GetItem(entry, ENTRY_KEY), &payload);
    if (kept == NULL) {
        return NULL;
    }
    const Fault fault = decode_function_record(payload, &found);
    const int is_named = fault == NULL && found.name.size == name.size && memcmp(found.name.at, name.at, name.size) == 0;
    PyObject *result = fault != NULL ? damaged(fault, NULL) : is_named ? fields_of_function(&found) : Py_NewRef(Py_None);
    Py_DECREF(kept);
    return result;
}

/* read_function(descriptor: int, entry: tuple, offset: int, name: str) -> tuple | None
 * The record at this offset of an open module with this entry (see module_entry()), as function_record() returns it; None if it is that of a
 * function with another name. */
PyObject *read_function(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *descriptor, *entry, *name;
    unsigned int offset;
    if (!PyArg_ParseTuple(args, "O!OIU:read_function", &PyLong_Type, &descriptor, &entry, &offset, &name)) {
        return NULL;
    }
    PyObject *encoded = PyUnicode_AsEncodedString(name, "utf-8", "surrogatepass");
    PyObject *result = encoded != NULL ? read_record(descriptor, entry, offset, bytes_of(encoded)) : NULL;
    Py_XDECREF(encoded);
    return result;
}

/* What find_in_closure() returns, for an encoded name. */
static PyObject *find_linked(PyObject *module, PyObject *const *args, int ordered, Bytes name) {
    PyObject *tables = args[0], *module_id = args[1], *entry = args[3], *record = NULL, *result = NULL;
    Newest found;
    if (find_newest(module, tables, name, ordered, &found) == 0) {
        const int is_here = is_linked_first(&found, ordered) && memcmp(found.linked.module_id, bytes_of(module_id).at, NAME_BYTES) == 0;
        record = is_here ? read_record(args[2], entry, found.linked.offset & ~LINKED, name) : Py_NewRef(Py_None);
    }
    if (record != NULL) {
        result = record == Py_None ? Py_NewRef(Py_None)
                                   : Py_BuildValue("(OIy#)", record, found.linked.offset & ~LINKED, found.linked.content.at,
                                                   (Py_ssize_t)found.linked.content.size);
    }
    Py_XDECREF(record);
    release_newest(&found);
    return result;
}

/* find_in_closure(tables: tuple[Table, ...], module_id, descriptor, entry, func_name, ordered) -> (record, offset, content) | None
 * The record of a function in an open linked closure, its offset, and the digest of the content; None if another realization comes first. */
PyObject *find_in_closure(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 6 || !PyTuple_Check(args[0]) || key_of(args[1]) == NULL || !PyUnicode_Check(args[4])) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "find_in_closure() takes the tables of an index, an open closure, and a name");
        }
        return NULL;
    }
    PyObject *name = PyUnicode_AsEncodedString(args[4], "utf-8", "surrogatepass");
    PyObject *result = name != NULL ? find_linked(module, args, PyObject_IsTrue(args[5]), bytes_of(name)) : NULL;
    Py_XDECREF(name);
    return result;
}

/* Whether a frame of a section is the intact record of a function with this name that needs nothing. */
static int is_plain_function(Bytes section, uint64_t offset, const uint8_t *key, Bytes name, FunctionFields *found) {
    Bytes payload;
    uint64_t needed;
    if (offset >= section.size) {
        return 0;
    }
    const Bytes data = {section.at + offset, section.size - (size_t)offset};
    return decode_frame(data, offset, section.size, key, &payload, &needed) == NULL && needed == 0
        && decode_function_record(payload, found) == NULL && found->needs == 0 && found->name.size == name.size
        && memcmp(found->name.at, name.at, name.size) == 0;
}

/* Whether a function has the expected type, as far as both types are known. Both arguments begin with a digest. */
static int is_of_type(Bytes own, Bytes expected) {
    return own.size == 0 || expected.size == 0
        || (own.size >= CHECK_BYTES && expected.size >= CHECK_BYTES && memcmp(own.at, expected.at, CHECK_BYTES) == 0);
}

/* Whether a function is callable by importers, has this type, and can run where `accepted` applies; -1 with an exception. `known` is the
 * last accepted target. */
static int can_be_bound(const FunctionFields *found, Bytes type, PyObject *accepted, const uint8_t **known) {
    static const char link_only[] = "= ";
    const size_t size = sizeof link_only - 1;
    if ((found->signature.size >= size && memcmp(found->signature.at, link_only, size) == 0) || !is_of_type(found->link_type, type)) {
        return 0;
    }
    if (*known != NULL && memcmp(*known, found->target_id, CHECK_BYTES) == 0) {
        return 1;
    }
    PyObject *target = new_bytes(found->target_id, CHECK_BYTES);
    const int answer = target != NULL ? PySequence_Contains(accepted, target) : -1;
    Py_XDECREF(target);
    *known = answer == 1 ? found->target_id : *known;
    return answer;
}

/* plain_functions(section, key, uses: list, offsets: list, accepted) -> list
 * For each use (runtime.h), the number of the function whose record is at its offset in a module's section of records. None if that is
 * not an intact record of this function, or if the function has needs, another type, no code for importers, or a requirement that is not in
 * `accepted`. */
PyObject *plain_functions(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *section, *key, *use_list, *offset_list, *accepted;
    if (!PyArg_ParseTuple(args, "SSO!O!O:plain_functions", &section, &key, &PyList_Type, &use_list, &PyList_Type, &offset_list, &accepted)) {
        return NULL;
    }
    PyObject *uses = PyList_AsTuple(use_list), *offsets = uses != NULL ? PyList_AsTuple(offset_list) : NULL, *result = NULL;
    if (offsets != NULL && (PyBytes_Size(key) != NAME_BYTES || PyTuple_Size(uses) != PyTuple_Size(offsets))) {
        PyErr_SetString(PyExc_ValueError, "plain_functions() takes a key of 16 bytes, and an offset for each use");
    } else if (offsets != NULL) {
        result = PyList_New(0);
    }
    const uint8_t *known = NULL;
    for (Py_ssize_t i = 0; result != NULL && i < PyTuple_Size(uses); i++) {
        Bytes name;
        PyObject *use = PyTuple_GetItem(uses, i), *kept = name_of_use(use, &name), *item = NULL;
        PyObject *type = kept != NULL ? PyTuple_GetItem(use, USE_LINK_TYPE) : NULL;
        const unsigned long long offset = type != NULL ? PyLong_AsUnsignedLongLong(PyTuple_GetItem(offsets, i)) : 0;
        if (type != NULL && !PyErr_Occurred()) {
            FunctionFields found;
            int answer = is_plain_function(bytes_of(section), offset, bytes_of(key).at, name, &found);
            answer = answer == 1 ? can_be_bound(&found, bytes_of(type), accepted, &known) : answer;
            item = answer < 0 ? NULL : answer ? PyLong_FromUnsignedLong(found.function) : Py_NewRef(Py_None);
        }
        if (item == NULL || PyList_Append(result, item) < 0) {
            Py_CLEAR(result);
        }
        Py_XDECREF(item);
        Py_XDECREF(kept);
    }
    Py_XDECREF(uses);
    Py_XDECREF(offsets);
    return result;
}

/* Stores a new item in a tuple; returns 0 with an exception if the item is NULL. */
static int put(PyObject *tuple, uint32_t at, PyObject *item) {
    return item != NULL && PyTuple_SetItem(tuple, (Py_ssize_t)at, item) == 0;
}

static PyObject *numbers_of(uint32_t count, const uint8_t *numbers) {
    PyObject *result = PyTuple_New((Py_ssize_t)count); /* the record was checked to have that many numbers */
    for (uint32_t i = 0; result != NULL && i < count; i++) {
        if (!put(result, i, PyLong_FromUnsignedLong(number_at(numbers + 4 * (size_t)i)))) {
            Py_CLEAR(result);
        }
    }
    return result;
}

/* global_record(payload: bytes) -> (name, slot, form, size, kind, definition) */
PyObject *global_record(PyObject *Py_UNUSED(module), PyObject *payload) {
    GlobalFields found;
    const Fault fault = PyBytes_Check(payload) ? decode_global_record(bytes_of(payload), &found) : "a global record is not bytes";
    if (fault != NULL) {
        return damaged(fault, NULL);
    }
    return Py_BuildValue("(O&IO&IO&y#)", record_text, &found.name, found.slot, record_text, &found.form, found.size, record_text, &found.kind,
                         found.definition.at, (Py_ssize_t)found.definition.size);
}

/* Returns the ids of modules that follow each other in the Bytes at an address, as a tuple. */
static PyObject *ids_of(void *joined) {
    const Bytes ids = *(const Bytes *)joined;
    const uint32_t count = (uint32_t)(ids.size / NAME_BYTES);
    PyObject *result = PyTuple_New((Py_ssize_t)count);
    for (uint32_t i = 0; result != NULL && i < count; i++) {
        if (!put(result, i, new_bytes(ids.at + NAME_BYTES * (size_t)i, NAME_BYTES))) {
            Py_CLEAR(result);
        }
    }
    return result;
}

/* entry_record(payload: bytes) -> (kind, name, sequence, requires, data, gone) */
PyObject *entry_record(PyObject *Py_UNUSED(module), PyObject *payload) {
    EntryFields found;
    const Fault fault = PyBytes_Check(payload) ? decode_entry_record(bytes_of(payload), &found) : "the record of an entry is not bytes";
    if (fault != NULL) {
        return damaged(fault, NULL);
    }
    return Py_BuildValue("(O&O&KO&y#O)", record_text, &found.kind, record_text, &found.name, (unsigned long long)found.sequence, ids_of,
                         &found.requires, found.data.at, (Py_ssize_t)found.data.size, found.is_removal ? Py_True : Py_False);
}

/* Returns a use (runtime.h). */
static PyObject *new_use(uint32_t slot, Bytes name, Bytes places, Bytes link_type) {
    PyObject *use = PyTuple_New(USE_FIELDS), *text = use != NULL ? record_text(&name) : NULL;
    const int has_slot = slot != NO_SLOT;
    if (text == NULL || !put(use, USE_KEY, has_slot ? PyLong_FromUnsignedLong(slot) : Py_NewRef(text)) || !put(use, USE_NAME, Py_NewRef(text))
        || !put(use, USE_PLACES, has_slot ? new_bytes(NULL, 0) : new_bytes(places.at, places.size))
        || !put(use, USE_LINK_TYPE, new_bytes(link_type.at, link_type.size))) {
        Py_CLEAR(use);
    }
    Py_XDECREF(text);
    return use;
}

static PyObject *imports_of(const NeedsFields *needs) {
    PyObject *result = PyTuple_New((Py_ssize_t)needs->imports);
    Bytes rows = needs->import_rows, place_rows = needs->place_rows, link_types = needs->link_types, name;
    for (uint32_t i = 0; result != NULL && i < needs->imports; i++) {
        const uint32_t slot = next_import(&rows, &name);
        const Bytes places = place_rows.size > 0 ? next_row(&place_rows) : (Bytes){NULL, 0};
        const Bytes link_type = link_types.size > 0 ? (Bytes){link_types.at + LINK_TYPE_BYTES * (size_t)i, LINK_TYPE_BYTES} : link_types;
        if (!put(result, i, new_use(slot, name, places, link_type))) {
            Py_CLEAR(result);
        }
    }
    return result;
}

static PyObject *natives_of(const NeedsFields *needs) {
    PyObject *result = PyTuple_New((Py_ssize_t)needs->natives);
    Bytes rows = needs->native_rows;
    for (uint32_t i = 0; result != NULL && i < needs->natives; i++) {
        Bytes row = next_row(&rows);
        if (!put(result, i, record_text(&row))) {
            Py_CLEAR(result);
        }
    }
    return result;
}

/* needs_record(payload: bytes) -> (imports, globals, natives, children); see `NeedsRecord` */
PyObject *needs_record(PyObject *Py_UNUSED(module), PyObject *payload) {
    NeedsFields found;
    const Fault fault = PyBytes_Check(payload) ? decode_needs_record(bytes_of(payload), &found) : "a needs record is not bytes";
    if (fault != NULL) {
        return damaged(fault, NULL);
    }
    PyObject *result = PyTuple_New(4);
    if (result != NULL
        && !(put(result, 0, imports_of(&found)) && put(result, 1, numbers_of(found.globals, found.global_numbers))
             && put(result, 2, natives_of(&found)) && put(result, 3, numbers_of(found.children, found.child_numbers)))) {
        Py_CLEAR(result);
    }
    return result;
}

/* ------------------------------------------------------------------------------------------------- linked closures */

/* Whether a seal is that of a file with this name; -1 with an exception. */
static int is_seal_of(const ClosureFields *closure, Bytes file_name) {
    static const uint8_t person[] = "compcache-closed";
    uint8_t own[SEAL_BYTES], *all = PyMem_Malloc(file_name.size + closure->sealed.size);
    if (all == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(all, file_name.at, file_name.size);
    memcpy(all + file_name.size, closure->sealed.at, closure->sealed.size);
    blake2b(own, sizeof own, (Bytes){all, file_name.size + closure->sealed.size}, (Bytes){NULL, 0}, NULL, person);
    PyMem_Free(all);
    return memcmp(own, closure->seal, sizeof own) == 0;
}

static int compare_segments(const void *one, const void *other) {
    const int level = memcmp(other, one, LEVEL_BYTES); /* the greatest level first */
    return level != 0 ? level : memcmp(one, other, SEGMENT_NAME_BYTES);
}

/* Whether the index had these files, each name followed by a slash, when it had this state; -1 with an exception. */
static int is_state_of(const uint8_t *state, Bytes names) {
    const size_t count = names.size / (SEGMENT_NAME_BYTES + 1);
    uint8_t own[STATE_BYTES], *sorted = PyMem_Malloc(count * SEGMENT_NAME_BYTES + 1);
    if (sorted == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        memcpy(sorted + i * SEGMENT_NAME_BYTES, names.at + i * (SEGMENT_NAME_BYTES + 1), SEGMENT_NAME_BYTES);
    }
    qsort(sorted, count, SEGMENT_NAME_BYTES, compare_segments);
    blake2b(own, sizeof own, (Bytes){sorted, count * SEGMENT_NAME_BYTES}, (Bytes){NULL, 0}, NULL, NULL);
    PyMem_Free(sorted);
    return memcmp(own, state, sizeof own) == 0;
}

/* valid_closure(data: bytes, file_name: bytes, segments: bytes) -> (parts: bytes, homes: int) | None
 * The joined ids of the parts of the linked closure that the file describes, and how many of them, from the first one, the closure contains
 * whole. None unless the file is intact and says that the closure is valid while the index has these segments, which are names of equal
 * length, each followed by a slash. */
PyObject *valid_closure(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *data, *file_name, *segments;
    ClosureFields found;
    if (!PyArg_ParseTuple(args, "SSS:valid_closure", &data, &file_name, &segments)) {
        return NULL;
    }
    if (decode_closure(bytes_of(data), &found) != NULL || !found.is_valid) {
        Py_RETURN_NONE;
    }
    int holds = is_seal_of(&found, bytes_of(file_name));
    holds = holds == 1 ? is_state_of(found.state, bytes_of(segments)) : holds;
    if (holds != 1) {
        return holds < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *parts = new_bytes(found.parts.at, found.parts.size);
    return parts != NULL ? Py_BuildValue("(NI)", parts, found.homes) : NULL;
}

/* --------------------------------------------------------------------------------------------------------- volumes */

/* Reads bytes of a source as an object; NULL with an exception. */
static PyObject *read_part(PyObject *source, uint64_t offset, uint64_t size) {
    PyObject *kept;
    Bytes found;
    if (read_source(source, offset, size, &kept, &found) < 0 || kept != source) {
        return kept;
    }
    Py_DECREF(kept);
    return new_bytes(found.at, found.size);
}

/* Returns what open_volume() does for a volume with this tail. */
static PyObject *volume_of(PyObject *module, PyObject *source, Bytes tail, const VolumeTail *volume, int is_known) {
    PyObject *dictionary = read_part(source, volume->dictionary, volume->dictionary_size), *result = NULL;
    PyObject *names = dictionary != NULL ? read_part(source, volume->dictionary + volume->dictionary_size, volume->names_size) : NULL;
    PyObject *all = names != NULL && !is_known ? new_bytes(tail.at, tail.size - CHECK_BYTES) : NULL; /* what the checksum is of */
    PyBytes_Concat(&all, dictionary);
    PyBytes_Concat(&all, names);
    const int is_whole = names != NULL && bytes_of(dictionary).size == volume->dictionary_size && bytes_of(names).size == volume->names_size;
    const int holds = names == NULL || (all == NULL && !is_known) ? -1
                    : is_whole && all != NULL                     ? is_check_of(volume->check, bytes_of(all), 0, NULL)
                                                                  : is_whole;
    Table *table = holds == 1 ? (Table *)PyType_GenericAlloc(module_state(module)->table_type, 0) : NULL;
    if (holds == 0) {
        damaged("the tail of the volume is damaged: its checksum does not match", NULL);
    } else if (table != NULL && init_table(table, source, volume->table) != NULL) {
        result = table->head.width != MEMBER_BYTES ? damaged("the rows in the table of the volume have another size", NULL)
                                                   : Py_BuildValue("(OKOO)", table, (unsigned long long)volume->dictionary, dictionary, names);
    }
    Py_XDECREF((PyObject *)table);
    Py_XDECREF(dictionary);
    Py_XDECREF(names);
    Py_XDECREF(all);
    return result;
}

/* open_volume(source, size, is_known=False) -> (table: Table, at, dictionary: bytes, names: bytes)
 * The table of a volume, the offset of its dictionary, its dictionary, and the names of the volumes that it replaces, which follow each
 * other. With `is_known`, the file was verified and has not changed since, and the checksum is not computed again. */
PyObject *open_volume(PyObject *module, PyObject *args) {
    PyObject *source, *magic_kept, *tail_kept, *result = NULL;
    unsigned long long size;
    int is_known = 0;
    Bytes magic, tail;
    VolumeTail volume;
    if (!PyArg_ParseTuple(args, "OK|p:open_volume", &source, &size, &is_known)
        || read_source(source, 0, VOLUME_MAGIC_BYTES, &magic_kept, &magic) < 0) {
        return NULL;
    }
    const uint64_t tail_at = size < VOLUME_TAIL_BYTES ? 0 : size - VOLUME_TAIL_BYTES;
    if (read_source(source, tail_at, VOLUME_TAIL_BYTES, &tail_kept, &tail) == 0) {
        const Fault fault = decode_volume_tail(magic, tail, size, &volume);
        result = fault != NULL ? damaged(fault, NULL) : volume_of(module, source, tail, &volume, is_known);
        Py_DECREF(tail_kept);
    }
    Py_DECREF(magic_kept);
    return result;
}

/* Decodes an entry of a volume's table. Returns 0, or -1 with an exception. */
static int member_of(PyObject *entry, Member *member) {
    const Fault fault = PyBytes_Check(entry) ? decode_member(bytes_of(entry), member) : "an entry of a volume is not bytes";
    if (fault != NULL) {
        damaged(fault, NULL);
    }
    return fault != NULL ? -1 : 0;
}

/* member_status(entry: bytes) -> (size, modified): how many bytes of a volume a module takes, and when it was written, by its entry, which is
 * without its key */
PyObject *member_status(PyObject *Py_UNUSED(module), PyObject *entry) {
    Member member;
    return member_of(entry, &member) == 0 ? Py_BuildValue("(Id)", member.stream_size, member.modified) : NULL;
}

/* unpack_member(source, dictionary: bytes, entry: bytes) -> (module: bytes, signatures: bytes): a module of a volume, by its entry */
PyObject *unpack_member(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *source, *dictionary, *entry, *kept, *result = NULL;
    Member member;
    Bytes stream;
    if (!PyArg_ParseTuple(args, "OSO:unpack_member", &source, &dictionary, &entry) || member_of(entry, &member) < 0
        || read_source(source, member.stream, member.stream_size, &kept, &stream) < 0) {
        return NULL;
    }
    const size_t size = (size_t)member.size + member.signatures;
    PyObject *content = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    uint8_t *to = content != NULL ? (uint8_t *)PyBytes_AsString(content) : NULL;
    if (to != NULL && !inflate(stream, bytes_of(dictionary), to, size)) {
        damaged("a module in the volume cannot be decompressed, or has another size than the table of the volume states", NULL);
    } else if (to != NULL) {
        result = Py_BuildValue("(y#y#)", to, (Py_ssize_t)member.size, to + member.size, (Py_ssize_t)member.signatures);
    }
    Py_XDECREF(content);
    Py_DECREF(kept);
    return result;
}

/* ----------------------------------------------------------------------------------------------------------- hosts */

/* Gets a text as UTF-8, which `*kept` keeps; -1 with an exception. */
static int text_of(PyObject *text, PyObject **kept, Bytes *found) {
    *kept = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
    if (*kept == NULL) {
        return -1;
    }
    *found = bytes_of(*kept);
    return 0;
}

/* platform_serves(requirement: str, platform: str, libc: str) -> bool: whether a process of this platform and C library can load the code */
PyObject *platform_serves(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *texts[3], *kept[3] = {NULL};
    Bytes found[3];
    int status = 0;
    if (!PyArg_ParseTuple(args, "UUU:platform_serves", &texts[0], &texts[1], &texts[2])) {
        return NULL;
    }
    for (int i = 0; i < 3 && status == 0; i++) {
        status = text_of(texts[i], &kept[i], &found[i]);
    }
    Requirement needs;
    static const uint8_t abi[] = {'0' + COMPCACHE_ABI_VERSION};
    const int serves = status == 0 && decode_requirement(found[0], &needs) == NULL && needs.abi.size == 1 && needs.abi.at[0] == abi[0]
        && needs.platform.size == found[1].size && memcmp(needs.platform.at, found[1].at, found[1].size) == 0
        && libc_is_enough(needs.libc, found[2]);
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(kept[i]);
    }
    return status == 0 ? PyBool_FromLong(serves) : NULL;
}

/* Gets a word of the processor from `words`, or else from `ask`, adding it to `words`. Returns 0, or -1 with an exception. */
static int word_of(PyObject *words, PyObject *ask, Bytes name, uint64_t *word) {
    PyObject *key = PyUnicode_DecodeUTF8((const char *)name.at, (Py_ssize_t)name.size, "surrogatepass");
    if (key == NULL) {
        return -1;
    }
    PyObject *value = item_of(words, key);
    if (value == NULL && !PyErr_Occurred()) {
        value = PyObject_CallFunctionObjArgs(ask, key, NULL);
        if (value != NULL && PyDict_SetItem(words, key, value) < 0) {
            Py_CLEAR(value);
        }
    }
    Py_DECREF(key);
    if (value == NULL) {
        return -1;
    }
    *word = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return *word == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

/* Whether a processor meets one requirement of code; -1 with an exception. */
static int has_need(const ProcessorNeed *need, PyObject *words, Bytes identity, PyObject *ask) {
    if (need->kind == SAME) {
        return need->number.size > 0 && need->number.size == identity.size && memcmp(need->number.at, identity.at, identity.size) == 0;
    }
    uint64_t word;
    if (word_of(words, ask, need->word, &word) < 0) {
        return -1;
    }
    return need->kind == MASK ? (word & need->value) == need->value : (word & 0xff) >= need->value;
}

/* processor_meets(features: str, words: dict[str, int], identity: str, ask) -> bool: whether a processor with these words has all these
 * features; False if the text has an unknown form */
PyObject *processor_meets(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *text, *words, *identity_text, *ask, *kept, *identity_kept;
    Bytes features, identity;
    if (!PyArg_ParseTuple(args, "UO!UO:processor_meets", &text, &PyDict_Type, &words, &identity_text, &ask)
        || text_of(text, &kept, &features) < 0) {
        return NULL;
    }
    if (text_of(identity_text, &identity_kept, &identity) < 0) {
        Py_DECREF(kept);
        return NULL;
    }
    features = words_of_features(features);
    int meets = 1, found = features.size > 0;
    while (meets == 1 && found) {
        ProcessorNeed need;
        meets = next_need(&features, &need, &found) == NULL;
        if (meets && found) {
            meets = has_need(&need, words, identity, ask);
        }
    }
    Py_DECREF(kept);
    Py_DECREF(identity_kept);
    if (meets < 0 && PyErr_ExceptionMatches(PyExc_ValueError)) { /* it requires a word that this processor does not have */
        PyErr_Clear();
        meets = 0;
    }
    return meets < 0 ? NULL : PyBool_FromLong(meets);
}

/* --------------------------------------------------------------------------------------------------------- digests */

static void write_digits(char *to, const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        to[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        to[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
}

/* use_line(time: float, counter: str, amount, module_id: bytes, func_name: str) -> str: an event of a journal (compcache/formats/journal.py) */
PyObject *use_line(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
    double microseconds = count == 5 ? PyFloat_AsDouble(args[0]) * 1e6 : 0;
    if (count != 5 || PyErr_Occurred() || key_of(args[3]) == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "use_line() takes a time, a counter, an amount, a module and a name");
        }
        return NULL;
    }
    if (!(microseconds >= 0 && microseconds < 1e18)) { /* the host's clock is wrong */
        microseconds = 0;
    }
    PyObject *name = PyUnicode_AsEncodedString(args[4], "utf-8", "surrogatepass");
    if (name == NULL) {
        return NULL;
    }
    uint8_t key[NAME_BYTES];
    key_of_name(bytes_of(name), key);
    Py_DECREF(name);
    char text[2 * (2 * NAME_BYTES + 1) + 1];
    text[0] = text[2 * NAME_BYTES + 1] = ' ';
    write_digits(text + 1, bytes_of(args[3]).at, NAME_BYTES);
    write_digits(text + 2 * NAME_BYTES + 2, key, NAME_BYTES);
    text[sizeof text - 1] = '\0';
    const unsigned long long whole = (unsigned long long)microseconds;
    return PyUnicode_FromFormat("%llu.%06llu %U %S%s", whole / 1000000, whole % 1000000, args[1], args[2], text);
}

/* digest(data: bytes, size: int, person: bytes = b"", salt: bytes = b"", key: bytes = b"") -> bytes: BLAKE2b */
PyObject *digest(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    const char *person = "", *salt = "", *key = "";
    Py_ssize_t size, person_size = 0, salt_size = 0, key_size = 0;
    if (!PyArg_ParseTuple(args, "y*n|y#y#y#:digest", &data, &size, &person, &person_size, &salt, &salt_size, &key, &key_size)) {
        return NULL;
    }
    uint8_t out[64], padded[2][16] = {{0}};
    if (size < 1 || size > 64 || person_size > 16 || salt_size > 16 || key_size > 64) {
        PyBuffer_Release(&data);
        PyErr_SetString(PyExc_ValueError, "a size is not valid for BLAKE2b");
        return NULL;
    }
    memcpy(padded[0], salt, (size_t)salt_size);
    memcpy(padded[1], person, (size_t)person_size);
    blake2b(out, (size_t)size, (Bytes){data.buf, (size_t)data.len}, (Bytes){(const uint8_t *)key, (size_t)key_size}, padded[0], padded[1]);
    PyBuffer_Release(&data);
    return new_bytes(out, (size_t)size);
}
