/*
 * Elementary functions of one float64, without branches, so that compilers vectorise loops that
 * call them. Each is valid in the range that it states; callers use libm for other arguments.
 */
#ifndef TAPER_SIMD_DOUBLE_H
#define TAPER_SIMD_DOUBLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define D_INLINE static inline __attribute__((always_inline, unused))

/* a * b + c: one rounding where the level has an instruction for it, two elsewhere. */
D_INLINE double d_fma(double a, double b, double c) {
#if !defined(TAPER_SCALAR) && (defined(__FMA__) || defined(__aarch64__))
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

D_INLINE uint64_t d_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

D_INLINE double d_of_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- exponentials ---- */

/* x = n ln 2 + r for |x| <= 2^20, n integral, |r| <= 0.3466. ln 2 is in two parts, n times the
 * first exact. The last bits of *shifted are those of n. */
D_INLINE double d_exp_reduce(double x, double *shifted) {
    const double shift = 0x1.8p52;
    *shifted = d_fma(x, 0x1.71547652b82fep+0, shift);
    const double n = *shifted - shift; /* rounded */
    return d_fma(n, -0x1.ef35793c7673p-45, d_fma(n, -0x1.62e42fefa38p-1, x));
}

/* (e^r - 1 - r) / r^2 for |r| <= 0.3466 by Taylor's series; the truncation error is below 2^-57. */
D_INLINE double d_exp_tail(double r) {
    double p = 1.0 / 6227020800;
    p = d_fma(p, r, 1.0 / 479001600);
    p = d_fma(p, r, 1.0 / 39916800);
    p = d_fma(p, r, 1.0 / 3628800);
    p = d_fma(p, r, 1.0 / 362880);
    p = d_fma(p, r, 1.0 / 40320);
    p = d_fma(p, r, 1.0 / 5040);
    p = d_fma(p, r, 1.0 / 720);
    p = d_fma(p, r, 1.0 / 120);
    p = d_fma(p, r, 1.0 / 24);
    p = d_fma(p, r, 1.0 / 6);
    return d_fma(p, r, 0.5);
}

/* e^x for |x| <= D_EXP_LIMIT, where it is a normal number. */
#define D_EXP_LIMIT 708.0
D_INLINE double d_exp(double x) {
    double shifted;
    const double r = d_exp_reduce(x, &shifted);
    const double p = d_fma(d_fma(d_exp_tail(r), r, 1.0), r, 1.0);
    return d_of_bits(d_bits(p) + (d_bits(shifted) << 52));
}

/* tanh(x) for every x but NaN: (e^2|x| - 1) / (e^2|x| + 1), which is 1 from |x| = 19.1 on. Twice
 * e^2|x| - 1 = 2^n (e^r - 1) + (2^n - 1), which keeps small results exact to their last places. */
D_INLINE double d_tanh(double x) {
    const double twice = 2 * fabs(x), limited = twice < 40 ? twice : 40;
    double shifted;
    const double r = d_exp_reduce(limited, &shifted);
    const double scale = d_of_bits((d_bits(shifted) + 1023) << 52); /* 2^n */
    const double m = d_fma(scale, d_fma(d_exp_tail(r), r * r, r), scale - 1);
    return copysign(m / (m + 2), x);
}

/* ---- logarithms ---- */

/* log(u + lost) for a normal positive u, |lost| less than half of u's last place. u = 2^e (1 + f)
 * with sqrt(1/2) <= 1 + f < sqrt(2); log(1 + f) = 2 artanh(s), s = f / (2 + f), by its series; the
 * relative truncation error is below 2^-57. */
D_INLINE double d_log_sum(double u, double lost) {
    const uint64_t above = d_bits(u) - 0x3fe6a09e667f3bcd; /* sqrt(1/2) */
    const double e = (double)((int64_t)above >> 52);
    const double scale = d_of_bits(0x3ff0000000000000 - (above & 0xfff0000000000000)); /* 2^-e */
    const double f = d_fma(lost, scale, u * scale - 1);
    const double s = f / (2 + f), z = s * s;
    double p = 2.0 / 21;
    p = d_fma(p, z, 2.0 / 19);
    p = d_fma(p, z, 2.0 / 17);
    p = d_fma(p, z, 2.0 / 15);
    p = d_fma(p, z, 2.0 / 13);
    p = d_fma(p, z, 2.0 / 11);
    p = d_fma(p, z, 2.0 / 9);
    p = d_fma(p, z, 2.0 / 7);
    p = d_fma(p, z, 2.0 / 5);
    p = d_fma(p, z, 2.0 / 3) * z;
    /* 2 s = f - s f: f itself is not rounded. ln 2 in two parts, e times the first exact. */
    const double tail = d_fma(s, f - p, e * -0x1.ef35793c7673p-45);
    return d_fma(e, 0x1.62e42fefa38p-1, f - tail);
}

/* log(x) for a normal positive x below 2^1022 sqrt(2): 2^-e is a normal number for e < 1023. */
#define D_HAS_LOG(x) ((x) >= 0x1p-1022 && (x) < 0x1.6a09e667f3bcdp1022)
D_INLINE double d_log(double x) { return d_log_sum(x, 0); }

/* log(1 + x) for a normal 1 + x; +0 for -0. */
#define D_IS_ABOVE_MINUS_ONE(x) ((x) > -1 && (x) <= 0x1p1000)
D_INLINE double d_log1p(double x) {
    const double u = 1 + x, larger = x < 1 ? 1 : x, less = x < 1 ? x : 1;
    return d_log_sum(u, less - (u - larger));
}

/* ---- sine and cosine ---- */

/* sin(x + quadrants pi / 2) for 0 <= x <= D_TRIG_LIMIT. x = n pi / 2 + r; pi / 2 in parts of 33
 * bits, n times the first two exact. Taylor's series for |r| <= pi / 4; the truncation error is
 * below 2^-58. */
#define D_TRIG_LIMIT 0x1p20
D_INLINE double d_sin_of_quadrants(double x, double quadrants) {
    const double n = rint(x * 0x1.45f306dc9c883p-1);
    const double high = d_fma(n, -0x1.0b4611a6p-34, d_fma(n, -0x1.921fb544p+0, x));
    const double r = d_fma(n, -0x1.3198a2e037073p-69, high), s = r * r;
    double sine = 1.0 / 355687428096000, cosine = 1.0 / 20922789888000;
    sine = d_fma(sine, s, -1.0 / 1307674368000);
    cosine = d_fma(cosine, s, -1.0 / 87178291200);
    sine = d_fma(sine, s, 1.0 / 6227020800);
    cosine = d_fma(cosine, s, 1.0 / 479001600);
    sine = d_fma(sine, s, -1.0 / 39916800);
    cosine = d_fma(cosine, s, -1.0 / 3628800);
    sine = d_fma(sine, s, 1.0 / 362880);
    cosine = d_fma(cosine, s, 1.0 / 40320);
    sine = d_fma(sine, s, -1.0 / 5040);
    cosine = d_fma(cosine, s, -1.0 / 720);
    sine = d_fma(sine, s, 1.0 / 120);
    cosine = d_fma(cosine, s, 1.0 / 24);
    sine = d_fma(d_fma(sine, s, -1.0 / 6) * s, r, r);
    cosine = d_fma(cosine * s, s, d_fma(-0.5, s, 1.0));
    const double q = n + quadrants, quadrant = q - 4 * floor(0.25 * q);
    const double value = quadrant == 1 || quadrant == 3 ? cosine : sine;
    return quadrant >= 2 ? -value : value;
}

/* ---- the scaled complementary error function ---- */

/* exp(x^2) erfc(x), through libm. The square is computed in two parts, the first exact, because its
 * rounding error would become the relative error of the exponential. Beyond 10 the asymptotic
 * series (Abramowitz and Stegun, 7.1.23): what is left out is below 2^-53. */
D_INLINE double d_erfcx(double x) {
    if (x > 10) {
        const double h = 0.5 / (x * x);
        double series = 1;
        for (int factor = 23; factor > 0; factor -= 2)
            series = 1 - factor * h * series;
        return series / x / 0x1.c5bf891b4ef6ap+0; /* sqrt(pi) */
    }
    if (x < -27)
        return INFINITY;
    const double high = (float)x, rest = (x - high) * (x + high);
    return exp(high * high) * exp(rest) * erfc(x);
}

#endif /* TAPER_SIMD_DOUBLE_H */
