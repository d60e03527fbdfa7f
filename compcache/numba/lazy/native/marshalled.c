/* Checks whether bytes are a marshal encoding of values of a given shape. `marshal.loads` trusts the sizes that it reads: five bytes that
 * announce a tuple allocate 16 GB. Here each size is compared with the number of remaining bytes, because every value takes at least one
 * byte. So the values that are loaded afterwards are not larger than a small multiple of the data. Only data is accepted: no code, and no
 * references.
 *
 * The format is version 2 (CPython's Python/marshal.c): a type in one byte, then a 32-bit count or the value.
 *
 * A shape: u text, b bytes, i integer, ? any data; (xyz) a tuple of exactly these; [x] a tuple or list of any number of x;
 * {xy} a dictionary of keys x and values y. */
#include "dispatch.h"

#include <string.h>

enum { DEEPEST = 32 };

typedef struct {
    const unsigned char *at, *end;
} Reader;

static int match(Reader *reader, const char **shape, int depth);

/* Return the type of the next value; 0 at the end. */
static int next_type(Reader *reader) {
    return reader->at < reader->end ? *reader->at++ : 0;
}

static int skip(Reader *reader, size_t size) {
    if (size > (size_t)(reader->end - reader->at)) {
        return 0;
    }
    reader->at += size;
    return 1;
}

/* Read a count of items of at least `each` bytes. Return 0 if fewer bytes remain. */
static int read_count(Reader *reader, size_t each, size_t *count) {
    uint32_t number;
    if ((size_t)(reader->end - reader->at) < sizeof number) {
        return 0;
    }
    memcpy(&number, reader->at, sizeof number);
    reader->at += sizeof number;
    *count = number;
    return number * each <= (size_t)(reader->end - reader->at);
}

static int skip_counted(Reader *reader, size_t each) {
    size_t count;
    return read_count(reader, each, &count) && skip(reader, count * each);
}

/* Skip an integer: 32 bits, or digits of 15 bits after their number, which is negative for a negative integer. */
static int skip_integer(Reader *reader, int type) {
    if (type == 'i') {
        return skip(reader, 4);
    }
    int32_t digits;
    if (type != 'l' || (size_t)(reader->end - reader->at) < sizeof digits) {
        return 0;
    }
    memcpy(&digits, reader->at, sizeof digits);
    reader->at += sizeof digits;
    const int64_t count = digits;
    return skip(reader, 2 * (size_t)(count < 0 ? -count : count));
}

/* Return the end of the part of a shape that begins here. */
static const char *after(const char *shape) {
    int depth = 0;
    do {
        depth += strchr("([{", *shape) != NULL;
        depth -= strchr(")]}", *shape) != NULL;
        shape++;
    } while (depth > 0);
    return shape;
}

/* Match `count` values with the same part of a shape. */
static int match_all(Reader *reader, const char *part, size_t count, int depth) {
    for (size_t number = 0; number < count; number++) {
        const char *shape = part;
        if (!match(reader, &shape, depth)) {
            return 0;
        }
    }
    return 1;
}

/* Match pairs up to the end mark. `part` is the shape of a key, followed by the shape of a value. */
static int match_dictionary(Reader *reader, const char *part, int depth) {
    while (reader->at < reader->end && *reader->at != '0') {
        const char *shape = part;
        if (!match(reader, &shape, depth) || !match(reader, &shape, depth)) {
            return 0;
        }
    }
    return skip(reader, 1);
}

/* Match any data. */
static int match_any(Reader *reader, int type, int depth) {
    size_t count;
    switch (type) {
    case 'N': case 'T': case 'F':
        return 1;
    case 'g':
        return skip(reader, 8);
    case 'u': case 's':
        return skip_counted(reader, 1);
    case '(': case '[':
        return read_count(reader, 1, &count) && match_all(reader, "?", count, depth);
    case '{':
        return match_dictionary(reader, "??", depth);
    default:
        return skip_integer(reader, type);
    }
}

static int match_tuple(Reader *reader, const char **shape, int depth) {
    size_t count, found = 0;
    if (!read_count(reader, 1, &count)) {
        return 0;
    }
    for (; **shape != ')'; found++) {
        if (found == count || !match(reader, shape, depth)) {
            return 0;
        }
    }
    ++*shape;
    return found == count;
}

/* Match one value, and move the shape past its part. */
static int match(Reader *reader, const char **shape, int depth) {
    const char *part = *shape;
    const int type = next_type(reader);
    size_t count;
    if (type == 0 || depth > DEEPEST) {
        return 0;
    }
    *shape = *part == '[' || *part == '{' ? after(part) : part + 1;
    switch (*part) {
    case 'u':
        return type == 'u' && skip_counted(reader, 1);
    case 'b':
        return type == 's' && skip_counted(reader, 1);
    case 'i':
        return skip_integer(reader, type);
    case '(':
        return type == '(' && match_tuple(reader, shape, depth + 1);
    case '[':
        return (type == '(' || type == '[') && read_count(reader, 1, &count) && match_all(reader, part + 1, count, depth + 1);
    case '{':
        return type == '{' && match_dictionary(reader, part + 1, depth + 1);
    default:
        return match_any(reader, type, depth + 1);
    }
}

/* is_marshalled(data: bytes, shape: str) -> bool */
PyObject *is_marshalled(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *data, *shape;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#s:is_marshalled", &data, &size, &shape)) {
        return NULL;
    }
    Reader reader = {(const unsigned char *)data, (const unsigned char *)data + size};
    return PyBool_FromLong(match(&reader, &shape, 0) && reader.at == reader.end);
}
