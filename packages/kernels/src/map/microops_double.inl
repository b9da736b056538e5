/*
 * float64 micro-ops, as plain C loops; exponentials, sines and cosines in a form that compilers
 * vectorise, the other functions through libm.
 */

C_UNARY(f64_neg, double, double, -a)
C_UNARY(f64_abs, double, double, fabs(a))
C_UNARY(f64_ceil, double, double, ceil(a))
C_UNARY(f64_floor, double, double, floor(a))
C_UNARY(f64_round, double, double, rint(a))
C_UNARY(f64_trunc, double, double, trunc(a))
C_UNARY(f64_sqrt, double, double, sqrt(a))
C_UNARY(f64_rsqrt, double, double, 1 / sqrt(a))
C_UNARY(f64_reciprocal, double, double, 1 / a)
C_UNARY(f64_square, double, double, a *a)
C_UNARY(f64_relu, double, double, a < 0 ? 0 : a)
C_UNARY(f64_sign, double, double, (a > 0) - (a < 0))
C_UNARY(f64_isnan, uint8_t, double, a != a)
C_UNARY(f64_isinf, uint8_t, double, fabs(a) > DBL_MAX)
C_UNARY(f64_logical_not, uint8_t, double, a == 0)
C_UNARY_CALL(f64_expm1, double, double, expm1(a))
C_UNARY_CALL(f64_log, double, double, log(a))
C_UNARY_CALL(f64_log2, double, double, log2(a))
C_UNARY_CALL(f64_log10, double, double, log10(a))
C_UNARY_CALL(f64_log1p, double, double, log1p(a))
C_UNARY_CALL(f64_tan, double, double, tan(a))
C_UNARY_CALL(f64_asin, double, double, asin(a))
C_UNARY_CALL(f64_acos, double, double, acos(a))
C_UNARY_CALL(f64_atan, double, double, atan(a))
C_UNARY_CALL(f64_sinh, double, double, sinh(a))
C_UNARY_CALL(f64_cosh, double, double, cosh(a))
C_UNARY_CALL(f64_tanh, double, double, tanh(a))
C_UNARY_CALL(f64_asinh, double, double, asinh(a))
C_UNARY_CALL(f64_acosh, double, double, acosh(a))
C_UNARY_CALL(f64_atanh, double, double, atanh(a))
C_UNARY_CALL(f64_erf, double, double, erf(a))
C_UNARY_CALL(f64_erfc, double, double, erfc(a))

static inline double softplus64(double x) { return x > 20 ? x : log1p(exp(x)); }
/* NaN is less than nothing and greater than nothing: it stays. */
static inline double hardsigmoid64(double x) {
    const double low = x + 3 < 0 ? 0 : x + 3;
    return (low > 6 ? 6 : low) / 6;
}

C_UNARY_CALL(f64_gelu, double, double, 0.5 * a * erfc(-0x1.6a09e667f3bcdp-1 * a))
C_UNARY_CALL(f64_gelu_tanh, double, double,
             a / (1 + exp(-2 * 0x1.9884533d43651p-1 * (a + 0.044715 * a * a * a))))
C_UNARY_CALL(f64_mish, double, double, a *tanh(softplus64(a)))
C_UNARY_CALL(f64_softplus, double, double, softplus64(a))
C_UNARY(f64_hardsigmoid, double, double, hardsigmoid64(a))
C_UNARY(f64_hardswish, double, double, a *hardsigmoid64(a))

C_BINARY(f64_add, double, double, a + b)
C_BINARY(f64_sub, double, double, a - b)
C_BINARY(f64_mul, double, double, a *b)
C_BINARY(f64_div, double, double, a / b)
C_BINARY(f64_trunc_div, double, double, trunc(a / b))
C_BINARY(f64_maximum, double, double, b > a || b != b ? b : a)
C_BINARY(f64_minimum, double, double, b < a || b != b ? b : a)
C_BINARY_CALL(f64_pow, double, double, pow(a, b))
C_BINARY_CALL(f64_atan2, double, double, atan2(a, b))
C_BINARY_CALL(f64_fmod, double, double, fmod(a, b))
C_BINARY(f64_leaky_relu, double, double, a > 0 ? a : b * a)
C_BINARY_CALL(f64_elu, double, double, a > 0 ? a : b * expm1(a))

static double remainder64(double a, double b) {
    const double r = fmod(a, b);
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}

/* As floor_div: from the remainder. */
static double floor_div64(double a, double b) {
    if (b == 0)
        return a / b;
    const double r = fmod(a, b);
    double quotient = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0))
        quotient -= 1;
    if (quotient == 0)
        return copysign(0.0, a / b);
    const double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

C_BINARY_CALL(f64_remainder, double, double, remainder64(a, b))
C_BINARY_CALL(f64_floor_div, double, double, floor_div64(a, b))

/* ---- in a form that compilers vectorise ---- */

/* Block by block: where an element lies beyond limit or is no number, all go through libm. */
#define C_WITHIN(name, limit, expr, exact)                                                         \
    static void name(void *out, const program_operand *in, int64_t n) {                            \
        enum { BLOCK = 64 };                                                                       \
        double *r = out;                                                                           \
        const double *p = in[0].data;                                                              \
        for (int64_t begin = 0; begin < n; begin += BLOCK, r += BLOCK, p += BLOCK) {               \
            const int64_t block = n - begin < BLOCK ? n - begin : BLOCK;                           \
            bool within = true;                                                                    \
            for (int64_t i = 0; i < block; i++)                                                    \
                within &= fabs(p[i]) <= limit;                                                     \
            if (within)                                                                            \
                C_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < block; i++) {                                                  \
                const double a = p[i];                                                             \
                r[i] = expr;                                                                       \
            }                                                                                      \
            else for (int64_t i = 0; i < block; i++) {                                             \
                const double a = p[i];                                                             \
                r[i] = exact;                                                                      \
            }                                                                                      \
        }                                                                                          \
    }

/* e^x for |x| <= EXP_LIMIT, where it is a normal number. x = n ln 2 + r, ln 2 in two parts, n times
 * the first exact. Taylor's series for |r| <= ln 2 / 2: what is left out is below 2^-57. */
#define EXP_LIMIT 708.0
static inline double exp_within(double x) {
    const double shift = 0x1.8p52, shifted = x * 0x1.71547652b82fep+0 + shift;
    const double n = shifted - shift; /* rounded */
    const double r = x - n * 0x1.62e42fefa38p-1 - n * 0x1.ef35793c7673p-45;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r * r * r + 0.5 * r * r + r + 1;
    uint64_t bits, exponent; /* of 2^n: the last bits of shifted */
    memcpy(&exponent, &shifted, sizeof exponent);
    memcpy(&bits, &p, sizeof bits);
    bits += exponent << 52;
    memcpy(&p, &bits, sizeof bits);
    return p;
}
C_WITHIN(f64_exp, EXP_LIMIT, exp_within(a), exp(a))
C_WITHIN(f64_sigmoid, EXP_LIMIT, 1 / (1 + exp_within(-a)), 1 / (1 + exp(-a)))
C_WITHIN(f64_silu, EXP_LIMIT, a / (1 + exp_within(-a)), a / (1 + exp(-a)))

/* sin(x + quadrants pi / 2) for 0 <= x <= TRIG_LIMIT. x = n pi / 2 + r; pi / 2 in parts of 33 bits,
 * n times the first two exact. Taylor's series for |r| <= pi / 4: what is left out is below 2^-58.
 */
#define TRIG_LIMIT 0x1p20
static inline double sin_of_quadrants(double x, double quadrants) {
    const double n = rint(x * 0x1.45f306dc9c883p-1);
    const double high = x - n * 0x1.921fb544p+0 - n * 0x1.0b4611a6p-34;
    const double r = high - n * 0x1.3198a2e037073p-69, s = r * r;
    double sine = 1.0 / 355687428096000, cosine = 1.0 / 20922789888000;
    sine = sine * s - 1.0 / 1307674368000;
    cosine = cosine * s - 1.0 / 87178291200;
    sine = sine * s + 1.0 / 6227020800;
    cosine = cosine * s + 1.0 / 479001600;
    sine = sine * s - 1.0 / 39916800;
    cosine = cosine * s - 1.0 / 3628800;
    sine = sine * s + 1.0 / 362880;
    cosine = cosine * s + 1.0 / 40320;
    sine = sine * s - 1.0 / 5040;
    cosine = cosine * s - 1.0 / 720;
    sine = sine * s + 1.0 / 120;
    cosine = cosine * s + 1.0 / 24;
    sine = (sine * s - 1.0 / 6) * s * r + r;
    cosine = cosine * s * s + (1 - 0.5 * s);
    const double q = n + quadrants, quadrant = q - 4 * floor(0.25 * q);
    const double value = quadrant == 1 || quadrant == 3 ? cosine : sine;
    return quadrant >= 2 ? -value : value;
}

C_WITHIN(f64_sin, TRIG_LIMIT, copysign(1.0, a) * sin_of_quadrants(fabs(a), 0), sin(a))
C_WITHIN(f64_cos, TRIG_LIMIT, sin_of_quadrants(fabs(a), 1), cos(a))
