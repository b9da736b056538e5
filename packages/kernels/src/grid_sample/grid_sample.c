/*
 * GRID_SAMPLE in float32. The grid gives a point of x for each output pixel, which is a weighted
 * sum of the pixels of x around that point. The kernel takes points in blocks: it computes the
 * taps' places and weights of a block along each axis, and rounds as torch does; then it sums the
 * pixels of each point. Where channels are last, the lanes of a vector are channels. Where they
 * come first, or there is one, an image has a plane for each channel, and lanes are points.
 */
#include <math.h>
#include <string.h>

#include "common/tensor.h"
#include "grid_sample/kernels.inc"
#include "isa/isa.h"
#include "simd/lists.h"
#include "simd/simd.h"

TAPER_DEFINE_ATTRS(grid_sample)

enum {
    GRID_DIMS = 3,
    GRID_TAPS = 4,        /* most taps along an axis: cubic */
    GRID_MOST = 16,       /* most taps per point: 4 * 4, or 2 * 2 * 2 */
    GRID_BLOCK = 128,     /* points per block; a multiple of V_LEN */
    GRID_PLACES = 8192,   /* most points per block whose places alone are kept */
    GRID_PER_PLANE = 512, /* of these, for each plane; a multiple of GRID_BLOCK */
    GRID_FLAT = 16,       /* most taps per point of an image */
    GRID_COPY = 16,       /* most floats of a pixel that are copied at once */
    GRID_COST = 8,        /* finding a point's taps costs as much as reading this many vectors */
};

typedef enum grid_padding { GRID_ZEROS, GRID_BORDER, GRID_REFLECTION } grid_padding;

/* How coordinates become places along an axis of x: (coordinate + 1) * scale - shift. */
typedef struct grid_side {
    float size, scale, shift;
} grid_side;

struct grid_sample_state {
    int64_t images, points, dims, channels;
    int64_t size[GRID_DIMS]; /* x's spatial dims */
    grid_side sides[GRID_DIMS];
    int64_t pixels; /* pixels per image of x */
    int64_t taps;   /* taps along each axis: 1, 2 or 4 */
    grid_padding padding;
    bool align_corners;
    bool is_flat;       /* an image whose places int32 counts */
    bool is_planar;     /* a flat image whose channels come first, or which has one */
    int64_t step;       /* elements from a pixel of an image to the next */
    int32_t last_whole; /* the last element from which a whole vector is inside of the image */
    int64_t block;      /* points per block */
    int64_t blocks;     /* blocks of points per image */
    int64_t blocks_per_task;
};

/* The taps of a block's points along one axis. A place is -1 if the tap is outside of x. */
typedef struct grid_axis {
    int32_t place[GRID_TAPS][GRID_BLOCK];
    float weight[GRID_TAPS][GRID_BLOCK];
} grid_axis;

/* The taps of a block's points in an image. */
typedef struct grid_pixels {
    int32_t at[GRID_FLAT][GRID_BLOCK]; /* the pixel's first element; -1 outside of x */
    int32_t edge[GRID_BLOCK];          /* 0 if all taps have a whole vector in x, and those of a row
                                          lie side by side; else -1 */
    float weight[GRID_FLAT][GRID_BLOCK];
} grid_pixels;

typedef struct grid_work {
    float points[GRID_DIMS][GRID_BLOCK];
    grid_axis axes[GRID_DIMS];
    grid_pixels pixels;
    int32_t nearest[GRID_PLACES]; /* the nearest pixel's first element; -1 outside of x */
} grid_work;

/* ---- prepare ---- */

/* Returns the position of a name in a list of `count` names; count if it is not there. */
static int64_t grid_number(const char *name, const char *const *names, int64_t count) {
    int64_t i = 0;
    while (i < count && strcmp(name, names[i]) != 0)
        i++;
    return i;
}

static taper_status f32_grid_sample_prepare(const taper_call *call, taper_work *work) {
    static const char *const modes[] = {"nearest", "linear", "cubic"};
    static const char *const paddings[] = {"zeros", "border", "reflection"};
    const struct grid_sample_attrs *attrs = call->attrs;
    struct grid_sample_state *s = call->state;
    const taper_tensor *x = &call->inputs[0], *grid = &call->inputs[1], *y = call->output;
    const int64_t mode = grid_number(attrs->mode, modes, 3);
    const int64_t padding = grid_number(attrs->padding, paddings, 3);
    const int32_t dims = x->rank - 2;
    const bool first = attrs->channels_first;
    if (call->n_inputs != 2 || dims < 2 || dims > GRID_DIMS || mode == 3 || padding == 3 ||
        (dims == 3 && (mode == 2 || first)) || grid->rank != x->rank || y->rank != x->rank ||
        !tensor_is(x, TAPER_FLOAT32, tensor_numel(x)) ||
        !tensor_is(grid, TAPER_FLOAT32, tensor_numel(grid)) ||
        !tensor_is(y, TAPER_FLOAT32, tensor_numel(y)))
        return TAPER_UNSUPPORTED;
    const int32_t channel = first ? 1 : dims + 1, inner = first ? 2 : 1; /* inner: first of sizes */
    for (int32_t d = 0; d < dims; d++)
        if (grid->shape[d + 1] != y->shape[d + inner])
            return TAPER_UNSUPPORTED;
    if (x->shape[0] != y->shape[0] || x->shape[0] != grid->shape[0] ||
        x->shape[channel] != y->shape[channel] || grid->shape[dims + 1] != dims)
        return TAPER_UNSUPPORTED;
    *s = (struct grid_sample_state){.images = x->shape[0],
                                    .points = tensor_count(y, inner, dims + inner),
                                    .dims = dims,
                                    .channels = x->shape[channel],
                                    .pixels = tensor_count(x, inner, dims + inner),
                                    .taps = (int64_t[]){1, 2, 4}[mode],
                                    .padding = (grid_padding)padding,
                                    .align_corners = attrs->align_corners};
    for (int32_t d = 0; d < dims; d++) {
        s->size[d] = x->shape[d + inner];
        if (s->size[d] < 1 || s->size[d] > INT32_MAX)
            return TAPER_UNSUPPORTED;
        const double span = (double)(s->align_corners ? s->size[d] - 1 : s->size[d]);
        s->sides[d] =
            (grid_side){(float)s->size[d], (float)(span / 2), s->align_corners ? 0 : 0.5f};
    }
    int64_t taps = 1;
    for (int32_t d = 0; d < dims; d++)
        taps *= s->taps;
    s->step = first ? 1 : s->channels;
    s->is_flat = dims == 2 && s->step <= INT32_MAX / s->pixels;
    s->is_planar = s->is_flat && s->step == 1;
    if (first && !s->is_flat)
        return TAPER_UNSUPPORTED;
    if (s->is_flat)
        s->last_whole = (int32_t)(s->pixels * s->step - (s->is_planar ? 1 : V_LEN));
    /* Output rows read the same rows of x: a plane's, while they are in L1. */
    s->block = GRID_BLOCK;
    if (s->is_planar && s->taps == 1)
        s->block = i64_min(GRID_PLACES, GRID_PER_PLANE * i64_max(1, s->channels));
    s->blocks = i64_ceil_div(s->points, s->block);
    s->blocks_per_task =
        rows_per_task(s->block * (taps * i64_ceil_div(s->channels, V_LEN) + GRID_COST));
    work->tasks =
        tensor_numel(y) == 0 ? 0 : i64_ceil_div(s->images * s->blocks, s->blocks_per_task);
    work->scratch_bytes = sizeof(grid_work);
    return TAPER_OK;
}

/* ---- places ---- */

/* Reflects places until they are inside: about the centres of the outermost pixels if
 * align_corners, else about x's edges. */
static __attribute__((noinline)) vf grid_reflect(vf at, float size, bool align_corners) {
    const float low = align_corners ? 0 : -0.5f, span = align_corners ? size - 1 : size;
    if (span == 0)
        return v_mul(at, v_zero());
    const vf period = v_set1(2 * span);
    vf away = v_abs(v_sub(at, v_set1(low)));
    if (vm_any(vm_not(v_lt(away, period)))) {
        float lanes[V_LEN];
        v_store(lanes, away);
        for (int i = 0; i < V_LEN; i++)
            lanes[i] = fmodf(lanes[i], 2 * span);
        away = v_load(lanes);
    }
    return v_add(v_min_nan(away, v_sub(period, away)), v_set1(low));
}

/* Moves places that are outside of x inside, as the padding asks. Where a place is NaN, images and
 * volumes give different places, as in torch. */
V_INLINE vf grid_bring_inside(const struct grid_sample_state *s, vf at, float size) {
    const vf zero = v_zero(), last = v_set1(size - 1);
    if (s->padding == GRID_ZEROS)
        return at;
    if (s->padding == GRID_REFLECTION)
        at = grid_reflect(at, size, s->align_corners);
    if (s->dims == 3) {
        at = v_max_nan(at, zero);
        return v_select(v_lt(at, last), at, last);
    }
    return v_min_nan(v_select(v_lt(zero, at), at, zero), last);
}

/* Cubic convolution (Keys 1981). grid_near returns the weight of a pixel at distance d, which is at
 * most 1; grid_far that of a pixel at distance + 1, which is 1 to 2. */
V_INLINE vf grid_near(vf d) {
    const float a = -0.75f;
    const vf y = v_sub(v_mul(d, v_set1(a + 2)), v_set1(a + 3));
    return v_add(v_mul(y, v_mul(d, d)), v_set1(1));
}
V_INLINE vf grid_far(vf distance) {
    const float a = -0.75f;
    const vf d = v_add(distance, v_set1(1));
    const vf y = v_sub(v_mul(d, v_set1(a)), v_set1(5 * a));
    return v_sub(v_mul(v_add(v_mul(y, d), v_set1(8 * a)), d), v_set1(4 * a));
}

/* Returns whole places as integers, -1 for those outside of x. */
V_INLINE vi grid_whole(vf place, float size) {
    const vm inside = vm_and(v_le(v_zero(), place), v_lt(place, v_set1(size)));
    return v_to_int(v_select(inside, place, v_set1(-1)));
}

/* Stores one tap of points i to i + V_LEN - 1. */
V_INLINE void grid_put(grid_axis *axis, int64_t tap, int64_t i, vf place, vf weight, float size) {
    vi_store(axis->place[tap] + i, grid_whole(place, size));
    v_store(axis->weight[tap] + i, weight);
}

/* Returns the places along axis d of points whose coordinates are -1 to 1. */
V_INLINE vf grid_place(const struct grid_sample_state *s, int64_t d, vf point) {
    const grid_side *side = &s->sides[d];
    const vf at = v_add(point, v_set1(1));
    if (s->dims == 3 && !s->align_corners)
        return v_mul(v_sub(v_mul(at, v_set1(side->size)), v_set1(1)), v_set1(0.5f));
    return v_sub(v_mul(at, v_set1(side->scale)), v_set1(side->shift));
}

/* Finds the taps of points i to i + V_LEN - 1 along axis d from their coordinates, -1 to 1. */
V_INLINE void grid_find(const struct grid_sample_state *s, grid_axis *axis, int64_t d, int64_t i,
                        vf point) {
    const float size = s->sides[d].size;
    const vf one = v_set1(1);
    vf at = grid_place(s, d, point);
    if (s->taps < GRID_TAPS)
        at = grid_bring_inside(s, at, size);
    if (s->taps == 1) {
        grid_put(axis, 0, i, v_round(at), one, size);
        return;
    }
    const vf low = v_floor(at), rest = v_sub(at, low), back = v_sub(one, rest);
    if (s->taps == 2) {
        grid_put(axis, 0, i, low, back, size);
        grid_put(axis, 1, i, v_add(low, one), rest, size);
        return;
    }
    const vf weights[] = {grid_far(rest), grid_near(rest), grid_near(back), grid_far(back)};
    for (int tap = 0; tap < GRID_TAPS; tap++)
        grid_put(axis, tap, i, grid_bring_inside(s, v_add(low, v_set1((float)(tap - 1))), size),
                 weights[tap], size);
}

/* ---- sums ---- */

/* Computes y[c] = first + the sum over k < n of weight[k] * x[at[k] + c], for all channels. It may
 * write up to `room` floats from y on, where the next points follow: their values are computed
 * later, and whole stores are faster than masked ones. */
V_INLINE void grid_sum(float *y, const float *x, const int64_t *at, const float *weight, int64_t n,
                       float first, int64_t channels, int64_t room) {
    for (int64_t c = 0; c < channels; c += V_LEN) {
        const int64_t lanes = channels - c;
        vf sum = v_set1(first);
        for (int64_t k = 0; k < n; k++) {
            const float *from = x + at[k] + c;
            const vf pixel = lanes < V_LEN ? v_load_n(from, lanes) : v_load(from);
            sum = v_fma(v_set1(weight[k]), pixel, sum);
        }
        if (room - c < V_LEN)
            v_store_n(y + c, sum, lanes);
        else
            v_store(y + c, sum);
    }
}

/* Computes point i of a block from the pixels at all combinations of its axes' taps. taps and dims
 * may be constants where this is inlined. */
V_INLINE void grid_point(const struct grid_sample_state *s, const grid_axis *axes, int64_t i,
                         float *y, const float *x, int64_t room, const int64_t taps,
                         const int64_t dims) {
    int64_t at[GRID_MOST] = {0}, n = 1, inside = 0;
    float weight[GRID_MOST] = {1}, outside = 0;
    for (int64_t d = 0; d < dims; d++) {
        for (int64_t tap = taps - 1; tap >= 0; tap--) {
            const int64_t place = axes[d].place[tap][i];
            const float factor = axes[d].weight[tap][i];
            for (int64_t k = 0; k < n; k++) {
                at[tap * n + k] = place < 0 || at[k] < 0 ? -1 : at[k] * s->size[d] + place;
                weight[tap * n + k] = weight[k] * factor;
            }
        }
        n *= taps;
    }
    for (int64_t k = 0; k < n; k++) {
        if (at[k] < 0) { /* torch adds 0 times the weight for images: NaN if the weight is NaN */
            outside += dims == 2 ? weight[k] * 0 : 0;
            continue;
        }
        at[inside] = at[k] * s->channels;
        weight[inside++] = weight[k];
    }
    grid_sum(y, x, at, weight, inside, outside, s->channels, room);
}

/* Combines the taps of an image's axes for the first n points of a block. taps is constant where
 * this is inlined. */
V_INLINE void grid_combine(const struct grid_sample_state *s, const grid_axis *restrict axes,
                           grid_pixels *restrict pixels, int64_t n, const int64_t taps) {
    const int32_t width = (int32_t)s->size[1], step = (int32_t)s->step;
    const int32_t last = s->last_whole;
    for (int64_t i = 0; i < n; i++) {
        /* Padding can move any of cubic taps; of two linear ones the second can only be outside. */
        const int32_t gap = axes[1].place[taps - 1][i] - axes[1].place[0][i];
        int32_t edge = taps == GRID_TAPS && gap != GRID_TAPS - 1 ? -1 : 0;
#pragma GCC unroll 16
        for (int64_t k = 0; k < taps * taps; k++) {
            const int32_t row = axes[0].place[k / taps][i], column = axes[1].place[k % taps][i];
            const int32_t outside = (row | column) >> 31; /* all bits, or none */
            const int32_t at = ((row * width + column) * step) | outside;
            pixels->at[k][i] = at;
            pixels->weight[k][i] = axes[0].weight[k / taps][i] * axes[1].weight[k % taps][i];
            edge |= outside | (last - at) >> 31;
        }
        pixels->edge[i] = edge;
    }
}

/* Lists the first and the second elements of `count` pairs. */
V_INLINE void grid_split(float *restrict first, float *restrict second, const float *restrict pairs,
                         int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        first[i] = pairs[2 * i];
        second[i] = pairs[2 * i + 1];
    }
}

/* Lists the taps of V_LEN points in one row of a plane: lane i of to[k] is tap k of point i. */
V_INLINE void grid_take(vf *to, const float *x, const int32_t (*at)[GRID_BLOCK], int64_t i,
                        bool inside, const int64_t taps) {
    if (inside) { /* a point's taps lie side by side */
        if (taps == 2)
            v_pairs_at(to, x, at[0] + i);
        else
            v_quads_at(to, x, at[0] + i);
        return;
    }
    for (int64_t tap = 0; tap < taps; tap++) {
        float lanes[V_LEN];
        for (int64_t j = 0; j < V_LEN; j++) {
            const int32_t place = at[tap][i + j];
            lanes[j] = place < 0 ? 0 : x[place];
        }
        to[tap] = v_load(lanes);
    }
}

/* Computes `count` points of a block in one plane. */
V_INLINE void grid_plane(const grid_pixels *pixels, float *y, const float *x, int64_t count,
                         const int64_t taps) {
    for (int64_t i = 0; i < count; i += V_LEN) {
        const bool inside = !vm_any(v_lt(v_from_int(vi_load(pixels->edge + i)), v_zero()));
        vf sum = v_zero();
#pragma GCC unroll 4
        for (int64_t k = 0; k < taps * taps; k += taps) {
            vf pixel[GRID_TAPS];
            grid_take(pixel, x, pixels->at + k, i, inside, taps);
#pragma GCC unroll 4
            for (int64_t tap = 0; tap < taps; tap++)
                sum = v_fma(v_load(pixels->weight[k + tap] + i), pixel[tap], sum);
        }
        if (count - i < V_LEN)
            v_store_n(y + i, sum, count - i);
        else
            v_store(y + i, sum);
    }
}

/* Computes point i of a block in an image whose pixels fit a vector. A load may read what follows a
 * pixel, but nothing after the image. */
V_INLINE void grid_small_pixel(const struct grid_sample_state *s, const grid_pixels *pixels,
                               int64_t i, float *y, const float *x, int64_t room, const int64_t n) {
    const bool whole = !pixels->edge[i];
    vf sum = v_zero();
#pragma GCC unroll 4
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = pixels->at[k][i];
        const vf pixel = whole ? v_load(x + at) : at < 0 ? v_zero() : v_load_n(x + at, s->channels);
        sum = v_fma(v_set1(pixels->weight[k][i]), pixel, sum);
    }
    if (room < V_LEN)
        v_store_n(y, sum, s->channels);
    else
        v_store(y, sum);
}

/* Computes point i of a block in any other image. */
V_INLINE void grid_large_pixel(const struct grid_sample_state *s, const grid_pixels *pixels,
                               int64_t i, float *y, const float *x, int64_t room, const int64_t n) {
    int64_t at[GRID_FLAT], inside = 0;
    float weight[GRID_FLAT], outside = 0;
    for (int64_t k = 0; k < n; k++) {
        at[inside] = pixels->at[k][i];
        weight[inside] = pixels->weight[k][i];
        if (at[inside] < 0)
            outside += weight[inside] * 0;
        else
            inside++;
    }
    if (inside == n)
        grid_sum(y, x, at, weight, n, 0, s->channels, room);
    else
        grid_sum(y, x, at, weight, inside, outside, s->channels, room);
}

/* Computes `count` points of an image by several taps. taps is constant where this is inlined. */
V_INLINE void grid_flat(const struct grid_sample_state *s, const grid_axis *axes,
                        grid_pixels *pixels, float *y, const float *x, int64_t count,
                        const int64_t taps) {
    const int64_t n = taps * taps;
    grid_combine(s, axes, pixels, i64_ceil_div(count, V_LEN) * V_LEN, taps);
    if (s->is_planar) {
        for (int64_t c = 0; c < s->channels; c++)
            grid_plane(pixels, y + c * s->points, x + c * s->pixels, count, taps);
        return;
    }
    for (int64_t i = 0; i < count; i++, y += s->channels) {
        const int64_t room = (count - i) * s->channels;
        if (s->channels <= V_LEN)
            grid_small_pixel(s, pixels, i, y, x, room, n);
        else
            grid_large_pixel(s, pixels, i, y, x, room, n);
    }
}

/* Copies the pixels at the elements `at` of x, or 0 for -1, to `count` points. A copy of `floats`,
 * at least the channels, may read what follows a pixel of the image and write where the next points
 * follow. channels and floats may be constants where this is inlined. */
V_INLINE void grid_copy(const struct grid_sample_state *s, const int32_t *restrict at,
                        float *restrict y, const float *restrict x, int64_t count,
                        const int64_t channels, const int64_t floats) {
    static const float outside[GRID_COPY] = {0};
    const int64_t last = s->pixels * channels - floats;
    for (int64_t i = 0; i < count; i++) {
        const float *from = at[i] < 0 ? outside : x + at[i];
        if (channels == floats || (at[i] <= last && (count - i) * channels >= floats))
            memcpy(y + i * channels, from, (size_t)floats * sizeof *y);
        else
            memcpy(y + i * channels, from, (size_t)channels * sizeof *y);
    }
}

/* Copies the pixels at `at` of a plane, or 0 for -1, to `count` points. */
V_INLINE void grid_copy_plane(const int32_t *at, float *y, const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i += V_LEN) {
        const bool outside = vm_any(v_lt(v_from_int(vi_load(at + i)), v_zero()));
        if (!outside && i + V_LEN <= count) {
            v_store(y + i, v_at(x, at + i));
            continue;
        }
        for (int64_t j = i; j < i64_min(count, i + V_LEN); j++)
            y[j] = at[j] < 0 ? 0 : x[at[j]];
    }
}

/* Lists the coordinates of `count` points by axis; the grid lists the last axis first. They are 0
 * for the rest of a vector. */
V_INLINE void grid_spread(float points[GRID_DIMS][GRID_BLOCK], const float *grid, int64_t count,
                          int64_t dims) {
    if (dims == 2)
        grid_split(points[1], points[0], grid, count);
    else
        for (int64_t i = 0; i < count; i++)
            for (int64_t d = 0; d < GRID_DIMS; d++)
                points[GRID_DIMS - 1 - d][i] = grid[i * GRID_DIMS + d];
    for (int64_t i = count; i % V_LEN != 0; i++)
        for (int64_t d = 0; d < dims; d++)
            points[d][i] = 0;
}

/* Finds the pixels nearest to `count` points of an image: the first element of each, -1 outside. */
V_INLINE void grid_find_nearest(const struct grid_sample_state *s, float (*points)[GRID_BLOCK],
                                int32_t *at, int64_t count) {
    const vi width = vi_set1((int32_t)s->size[1]), step = vi_set1((int32_t)s->step);
    const vf outside = v_as_float(vi_set1(-1));
    for (int64_t i = 0; i < count; i += V_LEN) {
        vf place[2];
        vm inside[2];
#pragma GCC unroll 2
        for (int64_t d = 0; d < 2; d++) {
            const float size = s->sides[d].size;
            const vf exact = grid_place(s, d, v_load(points[d] + i));
            place[d] = v_round(grid_bring_inside(s, exact, size));
            inside[d] = vm_and(v_le(v_zero(), place[d]), v_lt(place[d], v_set1(size)));
        }
        const vi pixel = vi_add(vi_mul(v_to_int(place[0]), width), v_to_int(place[1]));
        const vi first = s->is_planar ? pixel : vi_mul(pixel, step);
        const vm both = vm_and(inside[0], inside[1]);
        vi_store(at + i, v_as_int(v_select(both, v_as_float(first), outside)));
    }
}

/* Computes `count` points of an image by the pixel nearest to each. */
V_INLINE void grid_nearest(const struct grid_sample_state *s, grid_work *w, float *y,
                           const float *x, const float *grid, int64_t count) {
    const int64_t channels = s->channels;
    const int32_t *const at = w->nearest;
    for (int64_t i = 0; i < count; i += GRID_BLOCK) {
        const int64_t n = i64_min(GRID_BLOCK, count - i);
        grid_spread(w->points, grid + 2 * i, n, 2);
        grid_find_nearest(s, w->points, w->nearest + i, n);
    }
    if (s->is_planar) {
        for (int64_t c = 0; c < channels; c++)
            grid_copy_plane(at, y + c * s->points, x + c * s->pixels, count);
    } else if (channels <= 4) {
        grid_copy(s, at, y, x, count, channels, 4);
    } else if (channels <= 8) {
        grid_copy(s, at, y, x, count, channels, 8);
    } else if (channels <= GRID_COPY) {
        grid_copy(s, at, y, x, count, channels, GRID_COPY);
    } else {
        for (int64_t i = 0; i < count; i++, y += channels)
            if (at[i] < 0)
                memset(y, 0, (size_t)channels * sizeof *y);
            else
                memcpy(y, x + at[i], (size_t)channels * sizeof *y);
    }
}

/* Computes `count` points of one image. grid is [count][dims], y is [count][channels]. */
V_INLINE void grid_block(const struct grid_sample_state *s, grid_work *w, float *y, const float *x,
                         const float *grid, int64_t count) {
    if (s->is_flat && s->taps == 1) {
        grid_nearest(s, w, y, x, grid, count);
        return;
    }
    grid_spread(w->points, grid, count, s->dims);
    for (int64_t d = 0; d < s->dims; d++)
        for (int64_t i = 0; i < count; i += V_LEN)
            grid_find(s, &w->axes[d], d, i, v_load(w->points[d] + i));
    if (s->is_flat && s->taps == 2) {
        grid_flat(s, w->axes, &w->pixels, y, x, count, 2);
    } else if (s->is_flat) {
        grid_flat(s, w->axes, &w->pixels, y, x, count, GRID_TAPS);
    } else {
        for (int64_t i = 0; i < count; i++, y += s->channels)
            grid_point(s, w->axes, i, y, x, (count - i) * s->channels, s->taps, s->dims);
    }
}

static taper_status f32_grid_sample_run(const taper_call *call, int64_t begin, int64_t end,
                                        void *scratch) {
    const struct grid_sample_state *state = call->state;
    const struct grid_sample_state s = *state; /* a copy, which no store can overwrite */
    const float *x = call->inputs[0].data, *grid = call->inputs[1].data;
    float *y = call->output->data;
    const int64_t last = i64_min(end * s.blocks_per_task, s.images * s.blocks);
    for (int64_t block = begin * s.blocks_per_task; block < last; block++) {
        const int64_t image = block / s.blocks, first = block % s.blocks * s.block;
        grid_block(&s, scratch, y + image * s.points * s.channels + first * s.step,
                   x + image * s.pixels * s.channels, grid + (image * s.points + first) * s.dims,
                   i64_min(s.block, s.points - first));
    }
    return TAPER_OK;
}

#define TAPER_KERNEL_ROWS
static const taper_kernel grid_sample_kernels[] = {
#include "grid_sample/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_grid_sample);
const taper_family TAPER_ISA_SYM(taper_grid_sample) = {TAPER_ROWS(grid_sample_kernels)};
