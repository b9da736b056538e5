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
    const uint64_t biased = d_bits(u) + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd); /* sqrt(1/2) */
    const double e = d_of_bits(biased >> 52 | 0x4330000000000000) - (0x1p52 + 1023);
    const double scale = d_of_bits(0x7fe0000000000000 - (biased & 0xfff0000000000000)); /* 2^-e */
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

/* ---- powers ---- */

/* a^b for floats a and b, every one, with an error below 2^-30 of the result, which is beyond a
 * float's range where a^b is: e^(b log|a|). No exponent makes the logarithms of 0 and of infinity
 * small. The logarithm's series is that of d_log_sum, but its last terms, which are below 2^-44. */
D_INLINE double d_pow_of_floats(double a, double b) {
    const double size = fabs(a), finite = size > 0x1p128 ? 0x1p128 : size;
    const uint64_t biased = d_bits(finite) + (0x3ff0000000000000 - 0x3fe6a09e667f3bcd);
    const double e = d_of_bits(biased >> 52 | 0x4330000000000000) - (0x1p52 + 1023);
    const double f = finite * d_of_bits(0x7fe0000000000000 - (biased & 0xfff0000000000000)) - 1;
    const double s = f / (2 + f), z = s * s, z2 = z * z;
    const double p0 = d_fma(d_fma(2.0 / 9, z, 2.0 / 7), z2, d_fma(2.0 / 5, z, 2.0 / 3));
    const double p1 = d_fma(2.0 / 15, z2, d_fma(2.0 / 13, z, 2.0 / 11));
    const double p = d_fma(p1, z2 * z2, p0) * z;
    const double beyond = (finite == 0x1p128 ? 0x1p900 : 0) - (finite == 0 ? 0x1p900 : 0);
    const double log = d_fma(e, 0x1.62e42fefa39efp-1, f - s * (f - p)) + beyond;

    const double low = b > 0x1p130 ? 0x1p130 : b, exponent = low < -0x1p130 ? -0x1p130 : low;
    const double product = exponent * log, below = product > 200 ? 200 : product;
    double shifted;
    const double r = d_exp_reduce(below < -200 ? -200 : below, &shifted), r2 = r * r, r4 = r2 * r2;
    const double q0 = d_fma(d_fma(1.0 / 6, r, 0.5), r2, 1 + r);
    const double q1 = d_fma(d_fma(1.0 / 5040, r, 1.0 / 720), r2, d_fma(1.0 / 120, r, 1.0 / 24));
    const double q2 = d_fma(1.0 / 362880, r, 1.0 / 40320);
    const double q = d_fma(d_fma(q2, r4, q1), r4, q0);
    const double value = d_of_bits(d_bits(q) + (d_bits(shifted) << 52));

    /* -1 where a is negative and b is odd, and NaN where a is negative and b is not whole */
    const double odd = rint(0.5 * b) == 0.5 * b ? 1 : copysign(1.0, a);
    const double of_negative = finite < 0x1p128 ? (double)NAN : 1;
    const double of_fraction = a < 0 ? of_negative : 1, factor = rint(b) == b ? odd : of_fraction;
    const double of_number = a == 1 ? 1 : factor * (a != a ? a : value);
    return b == 0 ? 1 : of_number;
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

/* ---- functions of floats ---- */

/* Each has an error below 2^-30 of its result, and gives what C's function of floats gives for
 * infinities, NaN and 0. */

/* (e^|a| - 1) / 2; beyond |a| = 100 it is out of a float's range. */
D_INLINE double d_half_expm1_of_size(double a) {
    const double size = fabs(a), limited = size > 100 ? 100 : size;
    double shifted;
    const double r = d_exp_reduce(limited, &shifted);
    const double scale = d_of_bits((d_bits(shifted) + 1022) << 52); /* 2^n / 2 */
    return d_fma(scale, d_fma(d_exp_tail(r), r * r, r), scale - 0.5);
}

/* With h = (e^|a| - 1) / 2: sinh |a| = h + h / (1 + 2 h), cosh a = 1 + 2 h^2 / (1 + 2 h). */
D_INLINE double d_sinh_of_float(double a) {
    const double half = d_half_expm1_of_size(a);
    return copysign(half + half / (1 + 2 * half), a);
}
D_INLINE double d_cosh_of_float(double a) {
    const double half = d_half_expm1_of_size(a);
    return 1 + 2 * half * half / (1 + 2 * half);
}

/* tan(x) for |x| <= D_TRIG_LIMIT. */
D_INLINE double d_tan(double x) {
    return copysign(1.0, x) * (d_sin_of_quadrants(fabs(x), 0) / d_sin_of_quadrants(fabs(x), 1));
}

/* The angle of the point (x, y), for x > 0 and y >= 0: atan(t / s) = pi / 4 + atan((t - s) / (t +
 * s)), and what lies beyond pi / 4 is what the other angle lacks. The polynomial of the square, up
 * to tan(pi / 8)^2, goes through Chebyshev's nodes; its relative error is below 2^-38. */
D_INLINE double d_angle_of_floats(double y, double x) {
    const double large = y > x ? y : x, small = y > x ? x : y;
    const bool is_far = small > 0x1.a827999fcef32p-2 * large;
    const double above = is_far ? small - large : small, below = is_far ? small + large : large;
    const double u = above / below, z = u * u, z2 = z * z;
    const double p0 = d_fma(0x1.9999982560b1bp-3, z, -0x1.55555555020aap-2);
    const double p1 = d_fma(0x1.c6f683c68ff3fp-4, z, -0x1.2491c07b55c0bp-3);
    const double p2 = d_fma(0x1.24425ba99f811p-4, z, -0x1.71d3963f586fcp-4);
    const double p3 = d_fma(d_fma(-0x1.4b348fe081416p-5, z2, p2), z2, p1);
    const double angle = d_fma(d_fma(p3, z2, p0) * z, u, u);
    const double acute = is_far ? angle + 0x1.921fb54442d18p-1 : angle;
    return y > x ? 0x1.921fb54442d18p+0 - acute : acute;
}

D_INLINE double d_atan_of_float(double a) { return copysign(d_angle_of_floats(fabs(a), 1), a); }

/* Infinite coordinates are larger than all quotients of others. */
D_INLINE double d_atan2_of_floats(double a, double b) {
    const double y = fabs(a) > 0x1p128 ? 0x1p400 : fabs(a);
    const double size = fabs(b) > 0x1p128 ? 0x1p400 : fabs(b);
    const double angle = d_angle_of_floats(y, size == 0 ? 0x1p-400 : size);
    return copysign(copysign(1.0, b) < 0 ? 0x1.921fb54442d18p+1 - angle : angle, a);
}

D_INLINE double d_asin_of_float(double a) {
    return copysign(d_angle_of_floats(fabs(a), sqrt((1 - a) * (1 + a))), a);
}
D_INLINE double d_acos_of_float(double a) {
    const double angle = d_angle_of_floats(sqrt((1 - a) * (1 + a)), fabs(a));
    return a < 0 ? 0x1.921fb54442d18p+1 - angle : angle;
}

/* log(|a| + sqrt(a^2 + 1)), where the part above 1 is not rounded. */
D_INLINE double d_asinh_of_float(double a) {
    const double size = fabs(a), x = size > 0x1p128 ? 0x1p128 : size, square = x * x;
    const double value = d_log1p(x + square / (1 + sqrt(1 + square)));
    return copysign(size > 0x1p128 ? (double)INFINITY : value, a);
}

/* log(a + sqrt(a^2 - 1)), the same. */
D_INLINE double d_acosh_of_float(double a) {
    const double t = a - 1, x = t > 0x1p128 ? 0x1p128 : t;
    const double value = d_log1p(x + sqrt(x * (x + 2))), of_size = a > 0x1p128 ? a : value;
    return a < 1 ? (double)NAN : of_size;
}

/* log((1 + a) / (1 - a)) / 2, the same. */
D_INLINE double d_atanh_of_float(double a) {
    const double size = fabs(a), x = size < 1 ? size : 0;
    const double value = 0.5 * d_log1p(2 * x / (1 - x));
    const double beyond = size == 1 ? (double)INFINITY : (double)NAN;
    return copysign(size < 1 ? value : beyond, a);
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
