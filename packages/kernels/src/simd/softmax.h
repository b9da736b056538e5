/* Functions that SOFTMAX and ATTENTION share: exponentials of a row, and their sum. */
#ifndef TAPER_SIMD_SOFTMAX_H
#define TAPER_SIMD_SOFTMAX_H

#include "simd/rows.h"

/* Returns e^x for x <= 0, and NaN for NaN. The relative error is at most 2^-23 + |x| 2^-24, which
 * is no more than the error of x, a rounded difference. Below -87, before the denormals, it is 0:
 * masked elements are common, and denormals would make their rows forty times slower. */
V_INLINE vf v_exp_nonpositive(vf x) {
    const vf t = v_mul(x, v_set1(0x1.715476p+0f)), r = v_fraction(t);
    vf p = v_set1(0x1.5bba14p-10f); /* 2^r for |r| <= 1/2, 1 at 0 */
    p = v_fma(p, r, v_set1(0x1.3cea88p-7f));
    p = v_fma(p, r, v_set1(0x1.c6b752p-5f));
    p = v_fma(p, r, v_set1(0x1.ebf9bcp-3f));
    p = v_fma(p, r, v_set1(0x1.62e42ap-1f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_ldexp_unless(v_lt(x, v_set1(-87.0f)), p, v_sub(t, r));
}

/* Returns the sum of e^(x - max) over n elements; with keep, writes the addends to y, which may be
 * x. */
V_INLINE double softmax_exp_row(const bool keep, float *y, const float *x, float max, int64_t n) {
    enum { CHAINS = 2 };
    const vf m = v_set1(max);
    double total = 0.0;
    for (int64_t begin = 0; begin < n; begin += ROW_BLOCK) {
        const int64_t end = n - begin < ROW_BLOCK ? n : begin + ROW_BLOCK;
        vf sum[CHAINS] = {v_zero(), v_zero()};
        int64_t i = begin;
        for (; i + CHAINS * V_LEN <= end; i += CHAINS * V_LEN)
            for (int u = 0; u < CHAINS; u++) {
                const vf e = v_exp_nonpositive(v_sub(v_load(x + i + u * V_LEN), m));
                sum[u] = v_add(sum[u], e);
                if (keep)
                    v_store(y + i + u * V_LEN, e);
            }
        for (int64_t lanes; i < end; i += lanes) {
            lanes = end - i < V_LEN ? end - i : V_LEN;
            const vf fill = v_set1(-INFINITY); /* adds 0, or NaN as the row's other elements do */
            const vf e = v_exp_nonpositive(v_sub(v_load_fill(x + i, lanes, fill), m));
            sum[0] = v_add(sum[0], e);
            if (keep)
                v_store_n(y + i, e, lanes);
        }
        total += (double)v_sum(v_add(sum[0], sum[1]));
    }
    return total;
}

#endif /* TAPER_SIMD_SOFTMAX_H */
