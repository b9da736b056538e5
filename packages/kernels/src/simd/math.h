/*
 * Elementary functions over the vector layer, lane by lane: a lane's result never depends on its
 * neighbours. Each states its largest error in units of float32's last place (ulp) against the
 * exact value; tests/test_simd.c holds it to that on every level. NaN gives NaN; infinities, -0 and
 * denormals give what C's libm gives.
 */
#ifndef TAPER_SIMD_MATH_H
#define TAPER_SIMD_MATH_H

#include <float.h>
#include <math.h>

#include "simd/simd.h"

/* Computes f of every lane, for arguments that are too rare for a vector path. */
static __attribute__((noinline, unused)) vf v_lanes(float (*f)(float), vf x) {
    float lanes[V_LEN];
    v_store(lanes, x);
    for (int i = 0; i < V_LEN; i++)
        lanes[i] = f(lanes[i]);
    return v_load(lanes);
}

/* Returns `fast` where `usual` is set, else f of the lane. */
V_INLINE vf v_or_lanes(vm usual, vf fast, float (*f)(float), vf x) {
    return vm_any(vm_not(usual)) ? v_select(usual, fast, v_lanes(f, x)) : fast;
}

/* ---- exponentials ---- */

/* x = n ln 2 + r for |x| <= 2^20, n integral, |r| <= 0.3466. Adding 1.5 2^23 drops the fraction,
 * which rounds with less cost than the instruction for rounding. ln 2 is in two parts, the first
 * short enough that n times it is exact without a fused multiply-add too. */
V_INLINE vf v_exp_reduce(vf x, vf *n) {
    const vf whole = v_set1(0x1.8p+23f);
    *n = v_sub(v_fma(x, v_set1(0x1.715476p+0f), whole), whole);
    return v_fma(*n, v_set1(0x1.bd0106p-13f), v_fma(*n, v_set1(-0.693359375f), x));
}

/* scale (e^r - 1 - r) / r^2 for |r| <= 0.3466; scale is a constant, and a power of 2. */
V_INLINE vf v_exp_tail(vf r, const float scale) {
    vf p = v_set1(scale * 0x1.6a4f72p-10f);
    p = v_fma(p, r, v_set1(scale * 0x1.12398p-7f));
    p = v_fma(p, r, v_set1(scale * 0x1.5558aep-5f));
    p = v_fma(p, r, v_set1(scale * 0x1.555492p-3f));
    return v_fma(p, r, v_set1(scale * 0x1.fffffcp-2f));
}

/* scale e^x = result * 2^n, where the result is within [scale / 2, 2 scale]. */
V_INLINE vf v_exp_parts(vf x, const float scale, vf *n) {
    const vf r = v_exp_reduce(x, n), one = v_set1(scale);
    return v_fma(v_fma(v_exp_tail(r, scale), r, one), r, one);
}

/* e^x for -104 <= x <= 89. */
V_INLINE vf v_exp_bounded(vf x) {
    vf n;
    const vf part = v_exp_parts(x, 1.0f, &n);
    return v_ldexp(part, n);
}

/* scale e^x where that is not denormal: -87 <= x <= 88 for a scale of 1. */
V_INLINE vf v_exp_normal(vf x, const float scale) {
    vf n;
    const vf part = v_exp_parts(x, scale, &n);
    return v_ldexp_normal(part, n);
}

/* e^x, 1.2 ulp. Denormal results are right; 0 below -103.97, infinity above 88.72. */
V_INLINE vf v_exp(vf x) {
    /* Beyond these limits the result is 0 or infinity whatever x is; NaN passes through both. */
    return v_exp_bounded(v_max(v_set1(-104.0f), v_min(v_set1(89.0f), x)));
}

/* 2^n for integral n in [-126, 127]. */
V_INLINE vf v_pow2(vf n) { return v_as_float(vi_shl(vi_add(v_to_int(n), vi_set1(127)), 23)); }

/* (e^x - 1) / 2 for -60 <= x <= 89, 2 ulp; +0 for -0. The half keeps 2^n in range. */
V_INLINE vf v_half_expm1(vf x) {
    vf n;
    const vf r = v_exp_reduce(x, &n), scale = v_pow2(v_sub(n, v_set1(1.0f)));
    const vf m = v_fma(v_mul(r, r), v_exp_tail(r, 1.0f), r);
    return v_fma(scale, m, v_sub(scale, v_set1(0.5f)));
}

/* e^x - 1, 2 ulp. */
V_INLINE vf v_expm1(vf x) {
    const vf y = v_half_expm1(v_max(v_set1(-60.0f), v_min(v_set1(89.0f), x)));
    return v_select(v_lt(v_abs(x), v_set1(0x1p-60f)), x, v_add(y, y)); /* denormals, -0 */
}

/* tanh(x), 2.5 ulp: (e^2|x| - 1) / (e^2|x| + 1), which is 1 from |x| = 9.1 on. */
V_INLINE vf v_tanh(vf x) {
    const vf m = v_half_expm1(v_min(v_set1(20.0f), v_add(v_abs(x), v_abs(x))));
    return v_copysign(v_div(m, v_add(m, v_set1(1.0f))), x);
}

/* 1 / (1 + e^-x), 2.5 ulp, denormal results included. Numerator and denominator are scaled by
 * 2^-64, so that e^-x never overflows; from x = 30 on it makes no difference. */
V_INLINE vf v_sigmoid(vf x) {
    const vf one = v_set1(0x1p-64f);
    const vf t = v_min(v_set1(104.0f), v_max(v_set1(-30.0f), v_neg(x)));
    return v_div(one, v_add(one, v_exp_normal(t, 0x1p-64f)));
}

/* x sigmoid(x), 3 ulp. */
V_INLINE vf v_silu(vf x) { return v_mul(x, v_sigmoid(x)); }

/* ---- logarithms ---- */

/* x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for x > 0 neither denormal nor infinite. */
V_INLINE vf v_log_reduce(vf x, vi *e) {
    const vi bits = v_as_int(x);
    *e = vi_sar(vi_sub(bits, vi_set1(0x3f3504f3)), 23);
    return v_sub(v_as_float(vi_sub(bits, vi_shl(*e, 23))), v_set1(1.0f));
}

/* log(1 + f) - f for f as v_log_reduce gives it, plus `more`. */
V_INLINE vf v_log_tail(vf f, vf more) {
    vf p = v_set1(-0x1.38dc54p-4f);
    p = v_fma(p, f, v_set1(0x1.056a7p-3f));
    p = v_fma(p, f, v_set1(-0x1.0d8488p-3f));
    p = v_fma(p, f, v_set1(0x1.22d7acp-3f));
    p = v_fma(p, f, v_set1(-0x1.54721ap-3f));
    p = v_fma(p, f, v_set1(0x1.99a028p-3f));
    p = v_fma(p, f, v_set1(-0x1.000228p-2f));
    p = v_fma(p, f, v_set1(0x1.555554p-2f));
    return v_fma(v_fma(p, f, v_set1(-0.5f)), v_mul(f, f), more);
}

/* e ln 2 + log(1 + f). */
V_INLINE vf v_log_join(vi e, vf f) {
    const vf n = v_from_int(e);
    return v_fma(n, v_set1(0.693359375f),
                 v_add(f, v_log_tail(f, v_mul(n, v_set1(-0x1.bd0106p-13f)))));
}

V_INLINE vm v_is_normal_positive(vf x) {
    return vm_and(v_le(v_set1(FLT_MIN), x), v_le(x, v_set1(FLT_MAX)));
}

/* log(x) for x > 0 neither denormal nor infinite, 1 ulp. */
V_INLINE vf v_log_bounded(vf x) {
    vi e;
    const vf f = v_log_reduce(x, &e);
    return v_log_join(e, f);
}

/* log(x), 1 ulp. */
V_INLINE vf v_log(vf x) { return v_or_lanes(v_is_normal_positive(x), v_log_bounded(x), logf, x); }

/* log2(x), 2.5 ulp; exact for powers of two. */
V_INLINE vf v_log2(vf x) {
    vi e;
    const vf f = v_log_reduce(x, &e), y = v_add(f, v_log_tail(f, v_zero()));
    return v_or_lanes(v_is_normal_positive(x), v_fma(y, v_set1(0x1.715476p+0f), v_from_int(e)),
                      log2f, x);
}

/* log10(x), 2.5 ulp. */
V_INLINE vf v_log10(vf x) {
    vi e;
    const vf f = v_log_reduce(x, &e), y = v_add(f, v_log_tail(f, v_zero()));
    const vf n = v_from_int(e); /* log10(2) in two parts as in v_exp_reduce */
    const vf low = v_fma(y, v_set1(0x1.bcb7b2p-2f), v_mul(n, v_set1(0x1.3509f8p-18f)));
    return v_or_lanes(v_is_normal_positive(x), v_fma(n, v_set1(0x1.344p-2f), low), log10f, x);
}

/* log(1 + x) for -1 < x <= 2^126, 1.5 ulp; +0 for -0. */
V_INLINE vf v_log1p_bounded(vf x) {
    const vf one = v_set1(1.0f), u = v_add(one, x);
    const vf lost = v_sub(x, v_sub(u, one)); /* the rounding error of u */
    vi e;
    const vf f = v_log_reduce(u, &e);
    const vf scale = v_as_float(vi_shl(vi_sub(vi_set1(127), e), 23)); /* 2^-e */
    return v_log_join(e, v_add(f, v_mul(lost, scale)));
}

/* log(1 + x), 1.5 ulp. */
V_INLINE vf v_log1p(vf x) {
    const vm usual = vm_and(v_lt(v_set1(-1.0f), x), v_le(x, v_set1(0x1p126f)));
    return v_or_lanes(usual, v_copysign(v_log1p_bounded(x), x), log1pf, x);
}

/* log(1 + e^x), 2.5 ulp. */
V_INLINE vf v_softplus(vf x) {
    const vf e = v_exp_bounded(v_max(v_set1(-104.0f), v_neg(v_abs(x))));
    return v_add(v_max(v_zero(), x), v_log1p_bounded(e)); /* NaN is the second operand of max */
}

/* x tanh(log(1 + e^x)), 5 ulp: with n = (1 + e^x)^2 - 1 the hyperbolic tangent is n / (n + 2). */
V_INLINE vf v_mish(vf x) {
    const vf e = v_exp(v_min(v_set1(20.0f), x)), two = v_set1(2.0f);
    const vf n = v_mul(e, v_add(e, two));
    return v_mul(x, v_div(n, v_add(n, two)));
}

/* ---- error function ---- */

/* erf(x), 1.5 ulp. */
V_INLINE vf v_erf(vf x) {
    /* Up to 0.92 an odd polynomial, beyond it 1 - e^(w(|x|) |x|), which is
     * 1 from 3.92 on. */
    const vf t = v_min(v_set1(4.0f), v_abs(x)), s = v_mul(x, x), one = v_set1(1.0f);
    vf p = v_set1(0x1.4f1db2p-14f);
    p = v_fma(p, s, v_set1(-0x1.a5fb1p-11f));
    p = v_fma(p, s, v_set1(0x1.54492p-8f));
    p = v_fma(p, s, v_set1(-0x1.b8011p-6f));
    p = v_fma(p, s, v_set1(0x1.ce2d64p-4f));
    p = v_fma(p, s, v_set1(-0x1.81274p-2f));
    p = v_fma(p, s, v_set1(0x1.06eba8p-3f));
    p = v_fma(p, x, x);
    vf w = v_set1(0x1.c0c42p-13f);
    w = v_fma(w, t, v_set1(-0x1.a564cap-9f));
    w = v_fma(w, t, v_set1(0x1.7707b6p-6f));
    w = v_fma(w, t, v_set1(-0x1.af271cp-4f));
    w = v_fma(w, t, v_set1(-0x1.457cdep-1f));
    w = v_fma(w, t, v_set1(-0x1.20e652p+0f));
    const vf far = v_sub(one, v_exp_normal(v_mul(w, t), 1.0f));
    return v_select(v_lt(v_set1(0.92f), t), v_copysign(far, x), p);
}

/* x (1 + erf(x / sqrt 2)) / 2, 8 ulp for x >= -2. Below, where the textbook form loses all digits
 * to cancellation, the error grows to a relative 2^-18 at -6, and results under 1e-8 are rough. */
V_INLINE vf v_gelu(vf x) {
    /* The normal distribution's tail beyond t is e^(w(t) t - ln 2), 0 from 13 on; its complement
     * is for the other side. The odd and the even powers of w are added separately, which halves
     * the latency. */
    const vf t = v_min(v_set1(20.0f), v_abs(x)), s = v_mul(t, t);
    vf odd = v_fma(v_set1(-0x1.165558p-26f), s, v_set1(-0x1.bd23f4p-18f));
    vf even = v_fma(v_set1(0x1.0d353p-21f), s, v_set1(0x1.8f40b2p-15f));
    odd = v_fma(odd, s, v_set1(-0x1.717da2p-13f));
    even = v_fma(even, s, v_set1(-0x1.21041cp-15f));
    odd = v_fma(odd, s, v_set1(0x1.3e21f6p-8f));
    even = v_fma(even, s, v_set1(-0x1.29f8fep-5f));
    odd = v_fma(odd, s, v_set1(-0x1.45f09ap-2f));
    even = v_fma(even, s, v_set1(-0x1.98846cp-1f));
    const vf exponent = v_fma(v_fma(odd, t, even), t, v_set1(-0x1.62e43p-1f));
    vf n;
    const vf part = v_exp_parts(exponent, 1.0f, &n);
    const vf tail = v_ldexp_unless(v_lt(exponent, v_set1(-87.0f)), part, n);
    return v_mul(x, v_select(v_lt(x, v_zero()), tail, v_sub(v_set1(1.0f), tail)));
}

/* x (1 + tanh(u)) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3); 8 ulp for x >= -2,
 * below it the rounding of u adds |u| ulp. */
V_INLINE vf v_gelu_tanh(vf x) {
    const vf inner = v_fma(v_mul(v_mul(x, x), v_set1(0.044715f)), x, x);
    return v_mul(x, v_sigmoid(v_mul(v_set1(2 * 0x1.988454p-1f), inner)));
}

/* ---- trigonometry ---- */

/* sin(x + quadrants pi / 2) for |x| <= 8192; 2 ulp. */
V_INLINE vf v_sin_bounded(vf x, int quadrants) {
    /* x = n pi / 2 + r; pi / 2 in four parts, n times the first three exact. */
    const vf n = v_round(v_mul(x, v_set1(0x1.45f306p-1f)));
    vf r = v_fma(n, v_set1(-0x1.92p+0f), x);
    r = v_fma(n, v_set1(-0x1.fb4p-12f), r);
    r = v_fma(n, v_set1(-0x1.444p-24f), r);
    r = v_fma(n, v_set1(-0x1.68c234p-39f), r);
    const vf s = v_mul(r, r), one = v_set1(1.0f);
    vf sine = v_fma(v_set1(-0x1.9955bp-13f), s, v_set1(0x1.11077cp-7f));
    sine = v_fma(v_mul(v_fma(sine, s, v_set1(-0x1.555546p-3f)), s), r, r);
    vf cosine = v_fma(v_set1(0x1.99e904p-16f), s, v_set1(-0x1.6c0c2ap-10f));
    cosine = v_fma(cosine, s, v_set1(0x1.55554ap-5f));
    cosine = v_fma(v_fma(cosine, s, v_set1(-0.5f)), s, one);
    /* Bit 0 of the quadrant picks the function, bit 1 the sign. */
    const vi q = vi_add(v_to_int(n), vi_set1(quadrants));
    const vm odd = v_lt(v_zero(), v_as_float(vi_shl(vi_and(q, vi_set1(1)), 24)));
    return v_xor_sign(v_select(odd, cosine, sine), v_as_float(vi_shl(q, 30)));
}

/* sin(x), 2 ulp. */
V_INLINE vf v_sin(vf x) {
    const vf t = v_abs(x); /* keeps the sign of -0 */
    return v_or_lanes(v_le(t, v_set1(8192.0f)), v_xor_sign(v_sin_bounded(t, 0), x), sinf, x);
}

/* cos(x), 2 ulp. */
V_INLINE vf v_cos(vf x) {
    return v_or_lanes(v_le(v_abs(x), v_set1(8192.0f)), v_sin_bounded(x, 1), cosf, x);
}

#endif /* TAPER_SIMD_MATH_H */
