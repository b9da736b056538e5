/*
 * The fused bias and activation: operations that a kernel applies to its sums before it stores
 * them. map/program.h moves them here from the beginning of an epilogue.
 *
 *     x = then(min(high, max(low, x + bias + residual)))
 */
#ifndef TAPER_MAP_FUSED_H
#define TAPER_MAP_FUSED_H

#include "common/tensor.h"
#include "simd/simd.h"

/* One operand of a micro-op: n consecutive elements (step 1) or one element standing for all (step
 * 0). */
typedef struct program_operand {
    const void *data;
    int64_t step;
} program_operand;

/* Computes out[i] = op(in[0][i], ...) for i < n. At least one operand has step 1 unless n is 1.
 * `out` may be an operand of the same element size, and otherwise overlaps none; so an operand of
 * step 0 is read before `out` is written. Returns false at the first i whose operands the micro-op
 * refuses, before out[i] is written; only micro-ops for which microop_refuses (map/microops.h) is
 * true do so. */
typedef bool (*program_microop)(void *out, const program_operand *in, int64_t n);

typedef struct tile_fused {
    const float *bias;     /* at the first column, or NULL */
    const float *residual; /* at the first element, with the output's layout, or NULL */
    int64_t stride;        /* from row to row of the residual */
    bool bounded;
    float low, high;      /* infinite where there is no bound */
    program_microop then; /* of one float32 operand, or NULL */
} tile_fused;

/* Returns the fused operations for the tile that begins `cols` columns and `elements` elements
 * further on. */
V_INLINE tile_fused fused_at(tile_fused h, int64_t cols, int64_t elements) {
    if (h.bias)
        h.bias += cols;
    if (h.residual)
        h.residual += elements;
    return h;
}

V_INLINE vf fused_clamp(const tile_fused *h, vf x) {
    return v_min(v_set1(h->high), v_max(v_set1(h->low), x));
}

/* to[r * to_stride + c] = from[r * from_stride + c], by vectors. */
static inline __attribute__((unused)) void fused_copy(float *to, int64_t to_stride,
                                                      const float *from, int64_t from_stride,
                                                      int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++, to += to_stride, from += from_stride) {
        int64_t c = 0;
        for (; c + V_LEN <= cols; c += V_LEN)
            v_store(to + c, v_load(from + c));
        if (c < cols)
            v_store_n(to + c, v_load_n(from + c, cols - c), cols - c);
    }
}

/* Applies the fused operations to n lanes of x, at column c and element e of the residual; whole:
 * to all lanes. */
V_INLINE vf fused_lanes(const tile_fused *h, const float *x, int64_t c, int64_t e, int64_t n,
                        const bool whole) {
    vf y = whole ? v_load(x) : v_load_n(x, n);
    if (h->bias)
        y = v_add(y, whole ? v_load(h->bias + c) : v_load_n(h->bias + c, n));
    if (h->residual)
        y = v_add(y, whole ? v_load(h->residual + e) : v_load_n(h->residual + e, n));
    return h->bounded ? fused_clamp(h, y) : y;
}

/* Stores x[r][c] to to[r][c] after all fused operations except the micro-op. */
static inline __attribute__((unused)) void fused_rows(const tile_fused *h, const float *x,
                                                      int64_t x_stride, float *to,
                                                      int64_t to_stride, int64_t rows,
                                                      int64_t cols) {
    for (int64_t r = 0; r < rows; r++, x += x_stride, to += to_stride) {
        const int64_t row = r * h->stride;
        int64_t c = 0;
        for (; c + V_LEN <= cols; c += V_LEN)
            v_store(to + c, fused_lanes(h, x + c, c, row + c, V_LEN, true));
        if (c < cols)
            v_store_n(to + c, fused_lanes(h, x + c, c, row + c, cols - c, false), cols - c);
    }
}

/*
 * Finishes a tile that is not stored from registers, because it is at an edge or a micro-op
 * remains. whole: only the micro-op remains. sums is [rows][pitch], of which `cols` columns belong
 * to the output; it is then free as scratch.
 */
static inline __attribute__((unused)) void fused_store(const tile_fused *h, bool whole, float *sums,
                                                       int64_t pitch, int64_t rows, int64_t cols,
                                                       float *to, int64_t to_stride) {
    if (!h->then) {
        fused_rows(h, sums, pitch, to, to_stride, rows, cols);
        return;
    }
    if (!whole)
        fused_rows(h, sums, pitch, sums, pitch, rows, cols);
    h->then(sums, &(program_operand){sums, 1}, rows * pitch);
    fused_copy(to, to_stride, sums, pitch, rows, cols);
}

#endif /* TAPER_MAP_FUSED_H */
