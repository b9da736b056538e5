/*
 * Folds of a contiguous run of floats into one number. A fold keeps ROW_CHAINS independent vectors
 * to cover the latency of an addition; chains in float end after ROW_BLOCK elements and their
 * results are added in double, so a sum's error does not grow with the length of the run. The order
 * of the operations depends on n alone.
 */
#ifndef TAPER_SIMD_ROWS_H
#define TAPER_SIMD_ROWS_H

#include <math.h>
#include <string.h>

#include "simd/simd.h"

enum { ROW_CHAINS = 4, ROW_BLOCK = 2048 };

/* Every function below that takes an op is inlined with a constant one. */
typedef enum row_op {
    ROW_SUM,
    ROW_PROD,
    ROW_MAX, /* MAX and MIN: NaN if any element is */
    ROW_MIN,
    ROW_MAX_NUMBER, /* ignores NaN */
    ROW_SUM_SQUARES
} row_op;

V_INLINE float row_identity(const row_op op) {
    switch (op) {
    case ROW_PROD:
        return 1.0f;
    case ROW_MAX:
    case ROW_MAX_NUMBER:
        return -INFINITY;
    case ROW_MIN:
        return INFINITY;
    default:
        return 0.0f;
    }
}

/* Returns acc combined with the elements x. */
V_INLINE vf row_step(const row_op op, vf acc, vf x) {
    switch (op) {
    case ROW_PROD:
        return v_mul(acc, x);
    case ROW_MAX:
        return v_max_nan(acc, x);
    case ROW_MIN:
        return v_min_nan(acc, x);
    case ROW_MAX_NUMBER:
        return v_max(x, acc);
    case ROW_SUM_SQUARES:
        return v_fma(x, x, acc);
    default:
        return v_add(acc, x);
    }
}

/* Combines two partial results. */
V_INLINE vf row_join(const row_op op, vf a, vf b) {
    return op == ROW_SUM_SQUARES ? v_add(a, b) : row_step(op, a, b);
}

/* Extremes in a form that compilers vectorise. */
V_INLINE double row_join_double(const row_op op, double a, double b) {
    const double larger = b > a ? b : a, smaller = b < a ? b : a;
    switch (op) {
    case ROW_PROD:
        return a * b;
    case ROW_MAX:
        return b != b ? b : larger;
    case ROW_MIN:
        return b != b ? b : smaller;
    case ROW_MAX_NUMBER:
        return b > a ? b : a;
    default:
        return a + b;
    }
}

V_INLINE float row_lanes(const row_op op, vf a) {
    switch (op) {
    case ROW_PROD: {
        static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const vi lane = vi_load(lanes);
#pragma GCC unroll 16
        for (int n = V_LEN / 2; n > 0; n /= 2)
            a = v_mul(a, v_permute(a, vi_and(vi_add(lane, vi_set1(n)), vi_set1(V_LEN - 1))));
        float product;
        memcpy(&product, &a, sizeof product);
        return product;
    }
    case ROW_MAX:
        return vm_any(v_isnan(a)) ? NAN : v_hmax(a);
    case ROW_MIN:
        return vm_any(v_isnan(a)) ? NAN : -v_hmax(v_neg(a));
    case ROW_MAX_NUMBER:
        return v_hmax(a);
    default:
        return v_sum(a);
    }
}

/* n <= ROW_BLOCK keeps sums short; the extremes take any n. */
V_INLINE float row_fold_block(const row_op op, const float *x, int64_t n) {
    const vf identity = v_set1(row_identity(op));
    vf acc[ROW_CHAINS] = {identity, identity, identity, identity};
    int64_t i = 0;
    for (; i + ROW_CHAINS * V_LEN <= n; i += ROW_CHAINS * V_LEN)
#pragma GCC unroll 16
        for (int c = 0; c < ROW_CHAINS; c++)
            acc[c] = row_step(op, acc[c], v_load(x + i + c * V_LEN));
    for (; i + V_LEN <= n; i += V_LEN)
        acc[0] = row_step(op, acc[0], v_load(x + i));
    if (i < n)
        acc[1] = row_step(op, acc[1], v_load_fill(x + i, n - i, identity));
    return row_lanes(op, row_join(op, row_join(op, acc[0], acc[1]), row_join(op, acc[2], acc[3])));
}

V_INLINE double row_fold(const row_op op, const float *x, int64_t n) {
    double total = row_identity(op);
    for (int64_t i = 0; i < n; i += ROW_BLOCK)
        total = row_join_double(op, total,
                                row_fold_block(op, x + i, n - i < ROW_BLOCK ? n - i : ROW_BLOCK));
    return total;
}

/* ---- float64 ---- */

/* A vector of as many bytes as vf has, and its mask. */
enum { VD_LEN = V_LEN / 2 };
typedef double vd __attribute__((vector_size(VD_LEN * sizeof(double))));
typedef int64_t vd_bits __attribute__((vector_size(VD_LEN * sizeof(double))));

V_INLINE vd vd_load(const double *p) {
    vd a;
    memcpy(&a, p, sizeof a);
    return a;
}
V_INLINE vd vd_select(vd_bits mask, vd a, vd b) {
    return (vd)((mask & (vd_bits)a) | (~mask & (vd_bits)b));
}

/* Does what row_join_double does. */
V_INLINE vd row_step_double(const row_op op, vd a, vd b) {
    switch (op) {
    case ROW_PROD:
        return a * b;
    case ROW_MAX:
        return vd_select((vd_bits)(b > a) | (vd_bits)(b != b), b, a);
    case ROW_MIN:
        return vd_select((vd_bits)(b < a) | (vd_bits)(b != b), b, a);
    default:
        return a + b;
    }
}

/* Combines total with n elements one by one. NaN is looked for separately from the extremes: within
 * each comparison it would take most of the time. */
V_INLINE double row_fold_few_double(const row_op op, double total, const double *x, int64_t n) {
    const bool extreme = op == ROW_MAX || op == ROW_MIN;
    bool nan = total != total;
    for (int64_t i = 0; i < n; i++) {
        nan |= x[i] != x[i];
        total = !extreme                                        ? row_join_double(op, total, x[i])
                : (op == ROW_MAX ? x[i] > total : x[i] < total) ? x[i]
                                                                : total;
    }
    return extreme && nan ? (double)NAN : total;
}

/* n <= ROW_BLOCK keeps sums short; not of ROW_MAX_NUMBER, nor of squares. */
V_INLINE double row_fold_block_double(const row_op op, const double *x, int64_t n) {
    double total = (double)row_identity(op);
    int64_t i = 0;
    if (n >= 8) { /* fewer are not worth a vector and the fold of its lanes */
        const vd identity = total - (vd){0};
        vd acc[ROW_CHAINS] = {identity, identity, identity, identity};
        for (; i + ROW_CHAINS * VD_LEN <= n; i += ROW_CHAINS * VD_LEN)
#pragma GCC unroll 16
            for (int c = 0; c < ROW_CHAINS; c++)
                acc[c] = row_step_double(op, acc[c], vd_load(x + i + c * VD_LEN));
        for (; i + VD_LEN <= n; i += VD_LEN)
            acc[0] = row_step_double(op, acc[0], vd_load(x + i));
        acc[0] = row_step_double(op, row_step_double(op, acc[0], acc[1]),
                                 row_step_double(op, acc[2], acc[3]));
        double lane[VD_LEN];
        memcpy(lane, &acc[0], sizeof lane);
        total = row_fold_few_double(op, total, lane, VD_LEN);
    }
    return row_fold_few_double(op, total, x + i, n - i);
}

/* Computes the sums of d and of d * d over d = x - center. With center near the mean, the first sum
 * corrects both the mean and the sum of squares for center's rounding. */
typedef struct row_moments {
    double first;
    double second;
} row_moments;

V_INLINE row_moments row_moments_about(float center, const float *x, int64_t n) {
    row_moments total = {0.0, 0.0};
    const vf c = v_set1(center);
    for (int64_t begin = 0; begin < n; begin += ROW_BLOCK) {
        const int64_t end = n - begin < ROW_BLOCK ? n : begin + ROW_BLOCK;
        vf first[ROW_CHAINS], second[ROW_CHAINS];
#pragma GCC unroll 16
        for (int u = 0; u < ROW_CHAINS; u++)
            first[u] = second[u] = v_zero();
        int64_t i = begin;
        for (; i + ROW_CHAINS * V_LEN <= end; i += ROW_CHAINS * V_LEN)
#pragma GCC unroll 16
            for (int u = 0; u < ROW_CHAINS; u++) {
                const vf d = v_sub(v_load(x + i + u * V_LEN), c);
                first[u] = v_add(first[u], d);
                second[u] = v_fma(d, d, second[u]);
            }
        for (; i < end; i += V_LEN) {
            const vf d = v_sub(end - i < V_LEN ? v_load_fill(x + i, end - i, c) : v_load(x + i), c);
            first[0] = v_add(first[0], d);
            second[0] = v_fma(d, d, second[0]);
        }
        total.first += (double)v_sum(v_add(v_add(first[0], first[1]), v_add(first[2], first[3])));
        total.second +=
            (double)v_sum(v_add(v_add(second[0], second[1]), v_add(second[2], second[3])));
    }
    return total;
}

#endif /* TAPER_SIMD_ROWS_H */
