/*
 * Folds of a contiguous run of floats into one number. A fold keeps ROW_CHAINS independent vectors
 * to cover the latency of an addition; float chains end after ROW_BLOCK elements and their results
 * meet in double, so a sum's error does not grow with the length of the run. The order of the
 * operations depends on n alone.
 */
#ifndef TAPER_SIMD_ROWS_H
#define TAPER_SIMD_ROWS_H

#include <math.h>

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

/* acc with the elements x folded in. */
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

/* Two partial results made one. */
V_INLINE vf row_join(const row_op op, vf a, vf b) {
    return op == ROW_SUM_SQUARES ? v_add(a, b) : row_step(op, a, b);
}
V_INLINE double row_join_double(const row_op op, double a, double b) {
    switch (op) {
    case ROW_PROD:
        return a * b;
    case ROW_MAX:
        return a > b || a != a ? a : b;
    case ROW_MIN:
        return a < b || a != a ? a : b;
    case ROW_MAX_NUMBER:
        return b > a ? b : a;
    default:
        return a + b;
    }
}

V_INLINE float row_lanes(const row_op op, vf a) {
    switch (op) {
    case ROW_PROD: {
        float lane[V_LEN];
        v_store(lane, a);
#pragma GCC unroll 16
        for (int n = V_LEN / 2; n > 0; n /= 2)
#pragma GCC unroll 16
            for (int i = 0; i < n; i++)
                lane[i] *= lane[i + n];
        return lane[0];
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

/* n <= ROW_BLOCK keeps sums short; the extrema take any n. */
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

/* Sums of d and of d * d over d = x - center. With center near the mean the first corrects both the
 * mean and the sum of squares for center's rounding. */
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
