/*
 * RESAMPLE resizes one or two axes of x. Each output row is a weighted sum of rows of x, and each
 * output column is a weighted sum of columns of x. The call's table lists the taps of every sum:
 * their indices and their weights. taper_runtime/ops/resample.py computes it.
 *
 * x and the output are [planes][rows][columns][pixel]. With two axes, bytes are resampled along
 * columns first, as in torch; floats in the order that costs less. If columns go first, a ring
 * keeps the resampled rows of x that the next output rows may read too. If rows go first, each sum
 * is one row in scratch, and that row's columns are resampled. resample_bytes.inl has the sums of
 * bytes.
 */
#include <string.h>

#include "common/bytes.h"
#include "common/tensor.h"
#include "isa/isa.h"
#include "resample/kernels.inc"
#include "simd/lists.h"
#include "simd/simd.h"

TAPER_DEFINE_ATTRS(resample)

enum {
    RESAMPLE_HEAD = 6,         /* first entries of the table: taps, entries, shift of each axis */
    RESAMPLE_ENTRIES = 16,     /* a tap has a multiple of this many entries: whole vectors */
    RESAMPLE_SMALL_PIXEL = 16, /* a smaller pixel is split: each element is a column */
    RESAMPLE_RING = 1 << 15,   /* elements that the ring holds at about most: half of L2 */
    RESAMPLE_SHORT_ROW = 128,  /* floats of a row that is written beside an equal one */
    RESAMPLE_ALIGN = 64,       /* bytes that parts of the scratch memory are multiples of */
    RESAMPLE_LANES = 8,        /* one unit of a task's cost is one tap of this many elements */
    RESAMPLE_ROW_COST = 4,     /* units that each output row costs besides its taps */
};

/* float32 sums, sums of bytes with whole weights, and copies of any dtype (nearest modes). */
typedef enum resample_kind { RESAMPLE_FLOATS, RESAMPLE_WHOLE, RESAMPLE_COPIES } resample_kind;

/* The table's part for one axis, [taps][entries] of each: tap k of output i reads element
 * index[k][i] and multiplies it by weight[k][i]. The indices of an output never decrease with k. */
typedef struct resample_axis {
    int64_t taps;     /* 0: the axis is not resampled */
    int64_t entries;  /* new, rounded up to RESAMPLE_ENTRIES */
    int64_t shift;    /* whole weights are real ones times 2^shift */
    int64_t at;       /* entry of the table where the indices begin; weights follow them */
    int64_t old, new; /* sizes in x and in the output */
} resample_axis;

struct resample_state {
    resample_kind kind;
    bool rows_first;
    int64_t size; /* an element's bytes */
    resample_axis rows, columns;
    int64_t pixel;                   /* elements per column */
    int64_t together;                /* columns per pixel, if small pixels are split; else 1 */
    int64_t outer, mid;              /* planes are [outer][mid]: dims before and between the axes */
    int64_t chunks;                  /* vectors compute a block of bytes in so many; 0: none */
    bool by_words;                   /* they do so from rows of 16-bit words */
    int64_t x_row, y_row;            /* elements from a row to the next */
    int64_t x_plane, y_plane;        /* elements from a plane to the next of mid */
    int64_t block_rows, block;       /* rows and columns of a task's part of the output */
    int64_t planes_per_task, groups; /* the planes form groups, one for each task */
};

/* The functions of one run share this. */
typedef struct resample_work {
    const struct resample_state *s;
    const int32_t *table;
    const uint8_t **taken; /* [taps]: the rows or pixels that the next sum reads */
    int32_t *weights;      /* [taps]: their weights, whole or the bits of float32 */
    int32_t *low, *from;   /* resample_begin_block fills them for a block of columns */
    bool is_near;          /* one vector of x holds all taps of V_LEN columns */
    uint16_t *words[2];    /* two rows of x, widened from first_word to last_word - 1 */
    int64_t first_word, last_word;
    uint8_t *rows; /* the ring, or the one row of sums if rows go first */
} resample_work;

#include "resample/resample_bytes.inl"

/* ---- prepare ---- */

static const char *const resample_modes[] = {"nearest", "nearest-exact",    "linear",
                                             "cubic",   "linear-antialias", "cubic-antialias"};

/* Reads one axis from entry `head` of the table, with its indices from entry `at`, and checks that
 * all indices are inside of x. Returns the entry after the axis's part; -1 if the table is bad. */
static int64_t resample_axis_of(resample_axis *axis, const taper_tensor *table, int64_t head,
                                int64_t at, bool weighted) {
    const int32_t *entries = table->data;
    axis->taps = entries[head];
    axis->entries = entries[head + 1];
    axis->shift = entries[head + 2];
    axis->at = at;
    const int64_t end = at + axis->taps * axis->entries * (weighted ? 2 : 1);
    if (axis->taps < 0 || axis->entries < 0 || axis->shift < 0 || axis->shift > 30 ||
        end > table->shape[0])
        return -1;
    if (axis->taps == 0)
        return end;
    if (axis->entries < axis->new || axis->entries % RESAMPLE_ENTRIES != 0 ||
        (!weighted && axis->taps != 1))
        return -1;
    for (int64_t i = 0; i < axis->taps * axis->entries; i++)
        if (entries[at + i] < 0 || entries[at + i] >= axis->old)
            return -1;
    return end;
}

/* Returns whether it costs less to resample rows first. The unit is a multiplication; single
 * elements of a row count twice, because their loads are gathers. */
static bool resample_is_rows_first(const struct resample_state *s) {
    const resample_axis *rows = &s->rows, *columns = &s->columns;
    const int64_t across = columns->taps * (s->pixel > 1 ? 1 : 2);
    const int64_t used = i64_min(rows->old, rows->new * rows->taps);
    return used * columns->new * across + rows->new * columns->new * rows->taps >
           rows->new * columns->old * rows->taps + rows->new * columns->new * across;
}

/* Returns the number of 4-byte values in low and from. */
static size_t resample_places(const struct resample_state *s) {
    if (s->columns.taps && s->pixel == 1 && s->size == sizeof(float))
        return (size_t)((s->columns.taps + 1) * s->block);
    return (size_t)resample_chunk_places(&s->columns, s->chunks);
}

/* Finds the most chunks of a block of bytes; 0 unless vectors compute the columns. */
static void resample_choose_chunks(struct resample_state *s, const int32_t *table) {
    const resample_axis *columns = &s->columns;
    if (s->kind != RESAMPLE_WHOLE || s->pixel != 1 || columns->taps == 0 ||
        columns->old < RESAMPLE_LOAD)
        return;
    s->by_words = resample_fits_words(columns, table);
    if (s->by_words) {
        s->chunks = i64_ceil_div(s->block, RESAMPLE_CHUNK_BYTES);
        return;
    }
    for (int64_t begin = 0; begin < columns->new; begin += s->block) {
        const int64_t end = i64_min(begin + s->block, columns->new);
        const int64_t chunks = resample_chunks(columns, table, begin, end);
        s->chunks = chunks ? i64_max(s->chunks, chunks) : 0;
        if (chunks == 0)
            return;
    }
}

/* Splits the output into tasks: each computes a block of rows and columns in a group of planes. */
static void resample_split(struct resample_state *s, const int32_t *table, taper_work *work) {
    const resample_axis *rows = &s->rows, *columns = &s->columns;
    const int64_t kept = s->rows_first ? 1 : i64_max(1, rows->taps);
    s->block = columns->new;
    if (columns->taps)
        s->block = i64_ceil_div(i64_min(s->block, RESAMPLE_RING / (kept * s->pixel) + 1),
                                RESAMPLE_ENTRIES) *
                   RESAMPLE_ENTRIES;
    resample_choose_chunks(s, table);
    const int64_t taps = i64_max(1, rows->taps) + columns->taps;
    const int64_t cost = s->block * s->pixel * taps / RESAMPLE_LANES + RESAMPLE_ROW_COST;
    const int64_t planes = s->outer * s->mid, per_task = rows_per_task(cost);
    /* A task resamples again the first rows.taps rows, which the task before it had in its ring. */
    s->block_rows = i64_min(rows->new, i64_max(per_task, 4 * rows->taps));
    s->planes_per_task = i64_max(1, per_task / s->block_rows);
    s->groups = i64_ceil_div(planes, s->planes_per_task);
    work->tasks =
        s->groups * i64_ceil_div(rows->new, s->block_rows) * i64_ceil_div(columns->new, s->block);
    const int64_t row = s->rows_first ? columns->old * s->pixel : kept * s->block * s->pixel;
    const int64_t most = i64_max(rows->taps, columns->taps);
    work->scratch_bytes =
        (size_t)(most * (sizeof(void *) + sizeof(int32_t)) + resample_places(s) * sizeof(int32_t)) +
        2 * RESAMPLE_ALIGN + (s->by_words ? 2 * resample_word_bytes(columns) : 0) +
        (s->kind != RESAMPLE_COPIES ? (size_t)(row * s->size) : 0);
}

static taper_status resample_prepare(const taper_call *call, taper_work *work, resample_kind kind) {
    const struct resample_attrs *attrs = call->attrs;
    struct resample_state *s = call->state;
    const taper_tensor *x = &call->inputs[0], *y = call->output, *table = call->table;
    const int64_t count = attrs->axes.count;
    if (call->n_inputs != 1 || y->rank != x->rank || count < 1 || count > 2 ||
        !tensor_is(x, (taper_dtype)y->dtype, tensor_numel(x)) ||
        !tensor_is(y, (taper_dtype)y->dtype, tensor_numel(y)))
        return TAPER_UNSUPPORTED;
    size_t mode = 0;
    const size_t modes = sizeof resample_modes / sizeof resample_modes[0];
    while (mode < modes && strcmp(attrs->mode, resample_modes[mode]) != 0)
        mode++;
    if (mode == modes || (kind == RESAMPLE_COPIES) != (mode < 2))
        return TAPER_UNSUPPORTED;
    const int64_t *axes = attrs->axes.data, last = axes[count - 1], first = axes[0];
    if (first < 0 || last >= x->rank || (count == 2 && first >= last))
        return TAPER_UNSUPPORTED;
    for (int32_t d = 0; d < x->rank; d++)
        if (d != first && d != last && y->shape[d] != x->shape[d])
            return TAPER_UNSUPPORTED;

    *s = (struct resample_state){.kind = kind, .size = (int64_t)taper_dtype_size(x->dtype)};
    work->tasks = 0;
    work->scratch_bytes = 0;
    if (tensor_numel(y) == 0)
        return TAPER_OK;
    if (tensor_numel(x) == 0 || !table || !tensor_is(table, TAPER_INT32, tensor_numel(table)) ||
        table->rank != 1 || table->shape[0] < RESAMPLE_HEAD)
        return TAPER_UNSUPPORTED;
    const int64_t inner = tensor_count(x, last + 1, x->rank);
    const bool small = inner < RESAMPLE_SMALL_PIXEL;
    s->outer = tensor_count(x, 0, first);
    s->mid = count == 2 ? tensor_count(x, first + 1, last) : 1;
    s->together = small ? inner : 1;
    s->pixel = small ? 1 : inner;
    s->rows.old = s->rows.new = 1;
    s->columns.old = x->shape[last] * s->together;
    s->columns.new = y->shape[last] * s->together;
    if (count == 2) {
        s->rows.old = x->shape[first];
        s->rows.new = y->shape[first];
    } else if (small) { /* the dims before the axis are rows, which are not resampled */
        s->rows.old = s->rows.new = s->outer;
        s->outer = 1;
    } else {
        s->rows = s->columns;
        s->columns.old = s->columns.new = inner;
        s->pixel = 1;
    }
    s->x_plane = s->columns.old * s->pixel;
    s->y_plane = s->columns.new * s->pixel;
    s->x_row = s->mid * s->x_plane;
    s->y_row = s->mid * s->y_plane;
    const bool weighted = kind != RESAMPLE_COPIES;
    int64_t at = resample_axis_of(&s->rows, table, 0, RESAMPLE_HEAD, weighted);
    if (at >= 0)
        at = resample_axis_of(&s->columns, table, RESAMPLE_HEAD / 2, at, weighted);
    if (at != table->shape[0] || (s->rows.taps > 0) != (count == 2 || !small) ||
        (s->columns.taps > 0) != (count == 2 || small))
        return TAPER_UNSUPPORTED;
    s->rows_first = kind == RESAMPLE_FLOATS && count == 2 && resample_is_rows_first(s);
    resample_split(s, table->data, work);
    return TAPER_OK;
}

static taper_status f32_resample_prepare(const taper_call *call, taper_work *work) {
    return resample_prepare(call, work, RESAMPLE_FLOATS);
}
static taper_status u8_resample_prepare(const taper_call *call, taper_work *work) {
    return resample_prepare(call, work, RESAMPLE_WHOLE);
}
static taper_status any_resample_prepare(const taper_call *call, taper_work *work) {
    return resample_prepare(call, work, RESAMPLE_COPIES);
}

/* ---- sums of rows ---- */

V_INLINE vf resample_load(const float *p, int64_t n) {
    return n < V_LEN ? v_load_n(p, n) : v_load(p);
}
V_INLINE void resample_store(float *p, vf a, int64_t n) {
    if (n < V_LEN)
        v_store_n(p, a, n);
    else
        v_store(p, a);
}

V_INLINE void resample_sum_floats(float *y, const uint8_t *const *taken, const int32_t *weights,
                                  const int64_t taps, int64_t n) {
    const float *w = (const void *)weights;
    for (int64_t i = 0; i < n; i += V_LEN) {
        const int64_t lanes = n - i;
        vf sum =
            v_mul(v_set1(w[0]), resample_load((const float *)(const void *)taken[0] + i, lanes));
        for (int64_t k = 1; k < taps; k++)
            sum = v_fma(v_set1(w[k]),
                        resample_load((const float *)(const void *)taken[k] + i, lanes), sum);
        resample_store(y + i, sum, lanes);
    }
}

/* Sums rows or pixels of n elements: y[i] = the sum over k of weights[k] * taken[k][i]. */
static void resample_sum(const resample_work *w, uint8_t *y, int64_t taps, int64_t shift,
                         int64_t n) {
    if (w->s->kind == RESAMPLE_WHOLE) {
        resample_sum_bytes(w, y, taps, shift, n);
    } else if (taps == 2) {
        resample_sum_floats((float *)(void *)y, w->taken, w->weights, 2, n);
    } else {
        resample_sum_floats((float *)(void *)y, w->taken, w->weights, taps, n);
    }
}

/* ---- columns ---- */

/* A row of x with one float per column, and its range that holds the taps of V_LEN columns. */
typedef struct resample_line {
    const float *x;
    int64_t n;       /* the row's elements */
    int64_t around;  /* a lane's tap may lie this much before the same tap of the first lane */
    int64_t low;     /* first element of the range */
    int64_t vectors; /* vectors in the range: 1 or 2; 3 stands for more */
} resample_line;

V_INLINE resample_line resample_line_of(const resample_work *w, const float *x) {
    return (resample_line){x, w->s->columns.old, w->s->together - 1, 0, 0};
}

/* Finds the range. `first` is the index of the first lane's first tap, `last` of the last lane's
 * last tap. */
V_INLINE void resample_find(resample_line *line, int64_t first, int64_t last) {
    const int64_t low = first - line->around, span = last + line->around - low;
    line->vectors = span < V_LEN ? 1 : span < 2 * V_LEN && line->n >= 2 * V_LEN ? 2 : 3;
    line->low = i64_max(0, i64_min(low, line->n - line->vectors * V_LEN));
}

/* Returns a vector whose lane i is x[at[i]]; permutes one or two loads where the range allows. */
V_INLINE vf resample_take(const resample_line *line, vi at) {
    const float *x = line->x + line->low;
    if (line->vectors > 2)
        return v_gather(line->x, at);
    const vi from = vi_sub(at, vi_set1((int32_t)line->low));
    if (line->vectors == 1)
        return v_permute(resample_load(x, line->n), from);
    const vi lane = vi_and(from, vi_set1(V_LEN - 1));
    return v_select(v_lt(v_from_int(from), v_set1(V_LEN)), v_permute(v_load(x), lane),
                    v_permute(v_load(x + V_LEN), lane));
}

/* Prepares the columns begin to end - 1 once for all rows that a task computes. For floats: if one
 * vector of x holds all taps of each V_LEN columns, low[vector] is that vector's first element and
 * from[tap][block] are lanes of it; is_near says whether this holds. */
static void resample_begin_block(resample_work *w, int64_t begin, int64_t end) {
    if (w->s->by_words) {
        resample_begin_words(w, begin, end);
        return;
    }
    if (w->s->chunks) {
        resample_begin_bytes(w, begin, end);
        return;
    }
    const resample_axis *axis = &w->s->columns;
    const int32_t *index = w->table + axis->at + begin;
    resample_line line = resample_line_of(w, NULL);
    w->is_near = true;
    for (int64_t c = 0; c < end - begin && w->is_near; c += V_LEN) {
        resample_find(&line, index[c], index[(axis->taps - 1) * axis->entries + c + V_LEN - 1]);
        w->is_near = line.vectors == 1;
        w->low[c / V_LEN] = (int32_t)line.low;
        for (int64_t k = 0; k < axis->taps; k++)
            vi_store(w->from + k * w->s->block + c,
                     vi_sub(vi_load(index + k * axis->entries + c), vi_set1((int32_t)line.low)));
    }
}

/* Computes columns of one float each, V_LEN columns at a time. `taps` is constant where inlined. */
V_INLINE void resample_floats(const resample_work *w, float *y, const float *x, int64_t begin,
                              int64_t end, const int64_t taps) {
    const int64_t entries = w->s->columns.entries, block = w->s->block;
    const int32_t *const table = w->table + w->s->columns.at + begin;
    const float *const weights = (const float *)(const void *)(table + taps * entries);
    const int32_t *const low = w->low, *const from = w->from;
    const bool is_near = w->is_near;
    resample_line line = resample_line_of(w, x);
    for (int64_t c = 0; c < end - begin; c += V_LEN) {
        const int32_t *index = table + c;
        const float *weight = weights + c;
        vf vector = v_zero(), sum = vector;
        if (is_near)
            vector = resample_load(x + low[c / V_LEN], line.n);
        else
            resample_find(&line, index[0], index[(taps - 1) * entries + V_LEN - 1]);
        for (int64_t k = 0; k < taps; k++) {
            const vf taken = is_near ? v_permute(vector, vi_load(from + k * block + c))
                                     : resample_take(&line, vi_load(index + k * entries));
            sum = k == 0 ? v_mul(v_load(weight), taken)
                         : v_fma(v_load(weight + k * entries), taken, sum);
        }
        resample_store(y + c, sum, end - begin - c);
    }
}

V_INLINE void resample_copy_each(uint8_t *restrict y, const uint8_t *restrict x,
                                 const int32_t *index, int64_t n, const size_t size) {
    for (int64_t i = 0; i < n; i++)
        memcpy(y + (size_t)i * size, x + (size_t)index[i] * size, size);
}

static void resample_copy_elements(const resample_work *w, uint8_t *y, const uint8_t *x,
                                   int64_t begin, int64_t end) {
    const int32_t *index = w->table + w->s->columns.at + begin;
    switch (w->s->size) {
    case 1:
        resample_copy_each(y, x, index, end - begin, 1);
        return;
    case 2:
        resample_copy_each(y, x, index, end - begin, 2);
        return;
    case 4:
        resample_copy_each(y, x, index, end - begin, 4);
        return;
    default:
        resample_copy_each(y, x, index, end - begin, 8);
    }
}

static void resample_pixels(const resample_work *w, uint8_t *y, const uint8_t *x, int64_t begin,
                            int64_t end) {
    const struct resample_state *s = w->s;
    const resample_axis *axis = &s->columns;
    const int64_t bytes = s->pixel * s->size;
    for (int64_t c = begin; c < end; c++, y += bytes) {
        const int32_t *index = w->table + axis->at + c;
        if (s->kind == RESAMPLE_COPIES) {
            bytes_copy(y, x + *index * bytes, bytes);
            continue;
        }
        for (int64_t k = 0; k < axis->taps; k++, index += axis->entries) {
            w->taken[k] = x + *index * bytes;
            w->weights[k] = index[axis->taps * axis->entries];
        }
        resample_sum(w, y, axis->taps, axis->shift, s->pixel);
    }
}

/* Computes the columns begin to end - 1 of one row. x points to the row's first column, y to column
 * `begin`. */
static void resample_columns(const resample_work *w, uint8_t *y, const uint8_t *x, int64_t begin,
                             int64_t end) {
    const struct resample_state *s = w->s;
    const float *floats = (const float *)(const void *)x;
    if (s->columns.taps == 0)
        memcpy(y, x + begin * s->size, (size_t)((end - begin) * s->size));
    else if (s->pixel > 1)
        resample_pixels(w, y, x, begin, end);
    else if (s->kind == RESAMPLE_COPIES)
        resample_copy_elements(w, y, x, begin, end);
    else if (s->chunks)
        resample_byte_row(w, y, x, end - begin);
    else if (s->kind == RESAMPLE_WHOLE)
        resample_bytes(w, y, x, begin, end);
    else if (s->columns.taps == 2)
        resample_floats(w, (float *)(void *)y, floats, begin, end, 2);
    else
        resample_floats(w, (float *)(void *)y, floats, begin, end, s->columns.taps);
}

/* ---- run ---- */

/* A part of an output plane: rows first to last - 1, columns begin to end - 1. */
typedef struct resample_tile {
    int64_t first, last, begin, end;
} resample_tile;

/* Copies columns of 4 bytes, by lanes that resample_begin_block found. Output row i copies row
 * rows[i] of x, or row i if rows is NULL. Two short rows that are equal are written side by side;
 * of long ones this would break the order that the CPU fetches lines in. */
static void resample_copy_near(const resample_work *w, float *restrict y, const float *restrict x,
                               const int32_t *rows, const resample_tile *t) {
    const int64_t n = t->end - t->begin, y_row = w->s->y_row, old = w->s->columns.old;
    const int32_t *const low = w->low, *const from = w->from;
    const bool is_short = rows && n <= RESAMPLE_SHORT_ROW;
    for (int64_t row = t->first; row < t->last; row++, y += y_row) {
        const int64_t taken = rows ? rows[row] : row;
        const float *const line = x + taken * w->s->x_row;
        const bool two = is_short && row + 1 < t->last && rows[row + 1] == taken;
        for (int64_t c = 0; c < n; c += V_LEN) {
            const vf near = resample_load(line + low[c / V_LEN], old);
            const vf columns = v_permute(near, vi_load(from + c));
            resample_store(y + c, columns, n - c);
            if (two)
                resample_store(y + y_row + c, columns, n - c);
        }
        row += two;
        y += two ? y_row : 0;
    }
}

/* Computes a tile whose output rows each read one row of x: only columns may be resampled. */
static void resample_rows_alone(const resample_work *w, uint8_t *y, const uint8_t *x,
                                const resample_tile *t) {
    const struct resample_state *s = w->s;
    const int32_t *index = w->table + s->rows.at;
    if (s->kind == RESAMPLE_COPIES && w->is_near) {
        resample_copy_near(w, (float *)(void *)y, (const float *)(const void *)x,
                           s->rows.taps ? index : NULL, t);
        return;
    }
    const int64_t step = s->y_row * s->size, bytes = (t->end - t->begin) * s->pixel * s->size;
    for (int64_t row = t->first; row < t->last; row++, y += step) {
        const bool again = s->rows.taps && row > t->first && index[row] == index[row - 1];
        if (again && s->pixel == 1) { /* pixels are copied from x as fast */
            bytes_copy(y, y - step, bytes);
            continue;
        }
        const int64_t from = s->rows.taps ? index[row] : row;
        resample_columns(w, y, x + from * s->x_row * s->size, t->begin, t->end);
    }
}

/* Resamples the columns of the rows of x that a sum reads, from row `next` on; returns the row
 * after the last one. index: the sum's first tap. */
static int64_t resample_fill_ring(const resample_work *w, const uint8_t *x, const int32_t *index,
                                  int64_t next, const resample_tile *t) {
    const struct resample_state *s = w->s;
    const resample_axis *rows = &s->rows;
    const int64_t x_row = s->x_row * s->size, count = t->end - t->begin;
    const uint8_t *from[2];
    uint8_t *to[2];
    int waiting = 0;
    for (int64_t k = 0; k < rows->taps; k++) {
        const int64_t row = index[k * rows->entries];
        if (row < next)
            continue;
        next = row + 1;
        from[waiting] = x + row * x_row;
        to[waiting] = w->rows + row % rows->taps * count * s->pixel * s->size;
        if (s->chunks == 0)
            resample_columns(w, to[0], from[0], t->begin, t->end);
        else if (++waiting == 2)
            resample_byte_rows(w, to, from, count);
        waiting %= 2;
    }
    if (waiting)
        resample_columns(w, to[0], from[0], t->begin, t->end);
    return next;
}

/* Computes a tile. x and y point to the plane's first element and to the tile's first element. */
static void resample_tile_of(const resample_work *w, uint8_t *y, const uint8_t *x,
                             const resample_tile *t) {
    const struct resample_state *s = w->s;
    const resample_axis *rows = &s->rows, *columns = &s->columns;
    if (rows->taps == 0 || s->kind == RESAMPLE_COPIES) {
        resample_rows_alone(w, y, x, t);
        return;
    }
    const int64_t x_row = s->x_row * s->size, unit = s->pixel * s->size;
    const int64_t count = t->end - t->begin, bytes = count * unit;
    /* Sums of rows need the columns low to high - 1 of x alone: the tile's taps lie in them. */
    int64_t low = t->begin, high = t->end;
    if (columns->taps) {
        const int32_t *index = w->table + columns->at;
        const int64_t around = s->together - 1;
        low = i64_max(0, index[t->begin] - around);
        high = index[(columns->taps - 1) * columns->entries + t->end - 1] + around + 1;
        high = i64_min(high, columns->old);
    }
    int64_t next = 0; /* rows of x before this one have been in the ring */
    const bool ring = columns->taps && !s->rows_first;
    for (int64_t row = t->first; row < t->last; row++, y += s->y_row * s->size) {
        const int32_t *index = w->table + rows->at + row;
        const int32_t *weight = index + rows->taps * rows->entries;
        if (ring)
            next = resample_fill_ring(w, x, index, next, t);
        for (int64_t k = 0; k < rows->taps; k++) {
            const int64_t from = index[k * rows->entries];
            w->taken[k] =
                ring ? w->rows + from % rows->taps * bytes : x + from * x_row + low * unit;
            w->weights[k] = weight[k * rows->entries];
        }
        if (columns->taps && s->rows_first) {
            resample_sum(w, w->rows + low * unit, rows->taps, rows->shift, (high - low) * s->pixel);
            resample_columns(w, y, w->rows, t->begin, t->end);
        } else {
            resample_sum(w, y, rows->taps, rows->shift, count * s->pixel);
        }
    }
}

/* Returns the next place whose vectors lie in one line of the cache. */
static void *resample_align(void *p) {
    return (void *)(((uintptr_t)p + RESAMPLE_ALIGN - 1) / RESAMPLE_ALIGN * RESAMPLE_ALIGN);
}

static taper_status resample_run(const taper_call *call, int64_t begin, int64_t end,
                                 void *scratch) {
    const struct resample_state *s = call->state;
    if (begin == end)
        return TAPER_OK;
    const int64_t most = i64_max(s->rows.taps, s->columns.taps);
    resample_work w = {.s = s, .table = call->table->data, .taken = scratch};
    w.weights = (int32_t *)(w.taken + most);
    w.low = resample_align(w.weights + most);
    w.from = w.low + (s->chunks ? s->chunks * RESAMPLE_PARTS : s->block);
    w.rows = resample_align(w.low + resample_places(s));
    for (int i = 0; i < 2 && s->by_words; i++) {
        w.words[i] = (uint16_t *)(void *)w.rows;
        w.rows += resample_word_bytes(&s->columns);
    }
    int64_t found = -1;
    const int64_t blocks = i64_ceil_div(s->columns.new, s->block);
    const int64_t planes = s->outer * s->mid;
    const uint8_t *x = call->inputs[0].data;
    uint8_t *y = call->output->data;
    for (int64_t task = begin; task < end; task++) {
        const int64_t part = task / s->groups, plane = task % s->groups * s->planes_per_task;
        const int64_t row = part / blocks * s->block_rows, column = part % blocks * s->block;
        const resample_tile tile = {row, i64_min(row + s->block_rows, s->rows.new), column,
                                    i64_min(column + s->block, s->columns.new)};
        if (column != found && resample_places(s))
            resample_begin_block(&w, tile.begin, tile.end);
        found = column;
        for (int64_t p = plane; p < i64_min(plane + s->planes_per_task, planes); p++) {
            const int64_t from = p / s->mid * s->rows.old * s->x_row + p % s->mid * s->x_plane;
            const int64_t to = p / s->mid * s->rows.new * s->y_row + p % s->mid * s->y_plane +
                               row * s->y_row + column * s->pixel;
            resample_tile_of(&w, y + to * s->size, x + from * s->size, &tile);
        }
    }
    return TAPER_OK;
}

static taper_status f32_resample_run(const taper_call *call, int64_t begin, int64_t end,
                                     void *scratch) {
    return resample_run(call, begin, end, scratch);
}
static taper_status u8_resample_run(const taper_call *call, int64_t begin, int64_t end,
                                    void *scratch) {
    return resample_run(call, begin, end, scratch);
}
static taper_status any_resample_run(const taper_call *call, int64_t begin, int64_t end,
                                     void *scratch) {
    return resample_run(call, begin, end, scratch);
}

#define TAPER_KERNEL_ROWS
static const taper_kernel resample_kernels[] = {
#include "resample/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_resample);
const taper_family TAPER_ISA_SYM(taper_resample) = {TAPER_ROWS(resample_kernels)};
