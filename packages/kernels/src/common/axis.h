/*
 * Work along one axis: x is [outer][n][inner]. A span is what one loop nest computes at once:
 * `tile` adjacent columns of inner at one outer index, so vectors run across columns; with inner =
 * 1 the span is a row and vectors run along it.
 */
#ifndef TAPER_AXIS_H
#define TAPER_AXIS_H

#include "common/tensor.h"

/* Columns of float32 in a tile. */
enum {
    AXIS_LINE = 16,       /* a cache line: the step of a tile's width */
    AXIS_MIN_TILE = 64,   /* four lines, which the CPU fetches ahead as one run */
    AXIS_MAX_TILE = 1024, /* a page; the results so far, some arrays of them, stay in L1 */
};

typedef struct axis_spans {
    int64_t outer;
    int64_t n;
    int64_t inner;
    int64_t tile;  /* columns in a span, <= AXIS_MAX_TILE; the last span of a row has the rest */
    int64_t tiles; /* spans in each outer index */
    int64_t per_task;
} axis_spans;

/* Returns the spans for tiles of this many columns. */
TENSOR_NOINLINE axis_spans axis_tiled(int64_t outer, int64_t n, int64_t inner, int64_t tile) {
    tile = i64_max(1, i64_min(tile, i64_min(inner, AXIS_MAX_TILE)));
    return (axis_spans){.outer = outer,
                        .n = n,
                        .inner = inner,
                        .tile = tile,
                        .tiles = i64_ceil_div(inner, tile),
                        .per_task = rows_per_task(n * tile)};
}

/* Returns spans whose tiles are wide, for long runs of memory, unless that leaves threads without
 * work; `size` is of an element, in bytes. A span has at most span_limit elements (but at least the
 * columns of a narrowest tile), for a kernel that passes over it more than once. */
TENSOR_NOINLINE axis_spans axis_split(int64_t outer, int64_t n, int64_t inner, int64_t size,
                                      int64_t span_limit) {
    const int64_t widest = span_limit / i64_max(n, 1) / AXIS_LINE * AXIS_LINE;
    const int64_t as_float = size < 4 ? 4 / size : 1; /* columns in the bytes of one of float32 */
    const int64_t narrowest = AXIS_MIN_TILE * as_float;
    int64_t tile = i64_max(narrowest, i64_min(widest, AXIS_MAX_TILE));
    while (tile > narrowest && outer * i64_ceil_div(inner, tile) < TASK_PARTS &&
           n * tile > TASK_COST * as_float)
        tile = i64_ceil_div(tile / 2, AXIS_LINE) * AXIS_LINE;
    return axis_tiled(outer, n, inner, tile);
}

TENSOR_INLINE int64_t axis_tasks(const axis_spans *s) {
    return i64_ceil_div(s->outer * s->tiles, s->per_task);
}

/* Writes the spans [first, last) of the tasks [begin, end). */
TENSOR_INLINE int64_t axis_first(const axis_spans *s, int64_t begin) { return begin * s->per_task; }
TENSOR_INLINE int64_t axis_last(const axis_spans *s, int64_t end) {
    return i64_min(end * s->per_task, s->outer * s->tiles);
}

typedef struct axis_span {
    int64_t outer;  /* index */
    int64_t column; /* first */
    int64_t width;  /* columns */
} axis_span;

TENSOR_INLINE axis_span axis_span_at(const axis_spans *s, int64_t span) {
    const int64_t outer = s->tiles == 1 ? span : span / s->tiles;
    const int64_t column = (span - outer * s->tiles) * s->tile;
    return (axis_span){outer, column, i64_min(s->tile, s->inner - column)};
}

#endif /* TAPER_AXIS_H */
