/* Divides the iterations of a parallel loop into the same pieces as Numba, so that sums of partial sums are the same numbers.
 *
 * An iteration space is the first and the last number of each dimension. A piece is stored as all first numbers, then all last numbers.
 * The longest dimensions are divided first. The number of parts follows from a dimension's share of all iterations. A part gets a number
 * of threads, and a share of the iterations that corresponds to its share of the threads. */
#include "objects.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DIMENSIONS = 64 };

typedef struct {
    uint64_t dimensions;
    const int64_t *first, *last;
    uint64_t order[MOST_DIMENSIONS]; /* the longest first */
    int64_t *pieces;
} Space;

static int64_t length_of(const Space *space, uint64_t dimension) {
    return space->last[dimension] - space->first[dimension] + 1;
}

static void sort_dimensions(Space *space) {
    for (uint64_t i = 0; i < space->dimensions; i++) {
        uint64_t at = i;
        for (; at > 0 && length_of(space, space->order[at - 1]) < length_of(space, i); at--) {
            space->order[at] = space->order[at - 1];
        }
        space->order[at] = i;
    }
}

static int64_t parts_of(const Space *space, uint64_t depth, int64_t threads) {
    int64_t total = 0;
    for (uint64_t i = depth; i < space->dimensions; i++) {
        const int64_t length = length_of(space, space->order[i]);
        total += length > 1 ? length : 0;
    }
    if (total == 0) {
        return threads;
    }
    const float share = (float)length_of(space, space->order[depth]) / (float)total;
    const int64_t parts = (int64_t)(share * (float)threads + 0.5f);
    return parts < 1 ? 1 : parts;
}

/* Divide the dimensions from `depth` on among the threads from..to. `piece` contains the ranges of the dimensions before `depth`. */
static void divide(const Space *space, uint64_t depth, int64_t from, int64_t to, int64_t *piece) {
    const uint64_t dimensions = space->dimensions;
    if (depth == dimensions) {
        memcpy(space->pieces + (uint64_t)from * 2 * dimensions, piece, 2 * dimensions * sizeof *piece);
        return;
    }
    const uint64_t dimension = space->order[depth];
    const int64_t parts = from == to ? 1 : parts_of(space, depth, to - from + 1);
    int64_t begin = space->first[dimension];
    for (int64_t part = 0; part < parts; part++) {
        const int64_t left = parts - part, threads = to - from + 1;
        const int64_t given = left == 1 ? threads : threads / left;
        const int64_t iterations = space->last[dimension] - begin + 1;
        const int64_t taken = left == 1 ? iterations : (int64_t)((float)iterations * ((float)given / (float)threads));
        piece[dimension] = begin;
        piece[dimensions + dimension] = begin + taken - 1;
        divide(space, depth + 1, from, from + given - 1, piece);
        begin += taken;
        from += given;
    }
}

/* Divide one dimension. The first pieces get the remaining iterations. Pieces without iterations are (1, 0). */
static void divide_line(int64_t first, int64_t last, int64_t count, int64_t *pieces) {
    const int64_t length = last - first + 1 > 0 ? last - first + 1 : 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t taken = length / count + (i < length % count);
        pieces[2 * i] = taken > 0 ? first : 1;
        pieces[2 * i + 1] = taken > 0 ? first + taken - 1 : 0;
        first += taken;
    }
}

int64_t *schedule(uint64_t dimensions, const int64_t *first, const int64_t *last, uint64_t count, int64_t *pieces,
                  int64_t Py_UNUSED(debug)) {
    if (dimensions == 1) {
        divide_line(*first, *last, (int64_t)count, pieces);
        return pieces;
    }
    Space space = {.dimensions = dimensions, .first = first, .last = last, .pieces = pieces};
    int64_t piece[2 * MOST_DIMENSIONS];
    sort_dimensions(&space);
    divide(&space, 0, 0, (int64_t)count - 1, piece);
    return pieces;
}

/* Return the number of pieces: one for each thread, or more if the program has chosen the number of iterations in a piece. */
uint64_t schedule_size(uint64_t threads, uint64_t dimensions, const int64_t *first, const int64_t *last) {
    const uint64_t chunk = parallel_chunk();
    uint64_t iterations = 1;
    for (uint64_t i = 0; i < dimensions; i++) {
        iterations *= last[i] >= first[i] ? (uint64_t)(last[i] - first[i] + 1) : 0;
    }
    const uint64_t pieces = chunk > 0 ? iterations / chunk : 0;
    return pieces > threads ? pieces : threads;
}

int64_t *allocate_schedule(uint64_t numbers) {
    int64_t *memory = malloc((numbers + 1) * sizeof *memory);
    if (memory == NULL) {
        fail();
    }
    return memory;
}

void free_schedule(int64_t *pieces) {
    free(pieces);
}
