/* Runs SQL and writes down what it answers. SQLite calls back: for each row, and for a function of our own. */
#include <stdio.h>
#include <string.h>
#include "sqlite3.h"

struct text { char *start; long size, room; };

static void append(struct text *text, const char *piece) {
    long length = (long)strlen(piece);
    if (text->size + length < text->room) {
        memcpy(text->start + text->size, piece, length);
        text->size += length;
    }
}

static int row(void *context, int count, char **values, char **names) {
    for (int number = 0; number < count; number++) {
        append(context, values[number] ? values[number] : "NULL");
        append(context, number + 1 < count ? "," : "\n");
    }
    return 0;
}

static void digits(sqlite3_context *context, int count, sqlite3_value **values) {
    int sum = 0;
    const unsigned char *text = sqlite3_value_text(values[0]);
    for (; text && *text; text++) sum += *text >= '0' && *text <= '9' ? *text - '0' : 0;
    sqlite3_result_int(context, sum);
}

long run_statements(const char *in, long size, char *out, long room) {
    struct text text = {out, 0, room};
    sqlite3 *database = NULL;
    char *error = NULL;
    sqlite3_open(":memory:", &database);
    sqlite3_create_function(database, "digits", 1, SQLITE_UTF8 | SQLITE_DETERMINISTIC, NULL, digits, NULL, NULL);
    if (sqlite3_exec(database, in, row, &text, &error)) append(&text, error ? error : "?");
    sqlite3_free(error);
    if (sqlite3_close(database)) append(&text, "still open");
    return text.size;
}
