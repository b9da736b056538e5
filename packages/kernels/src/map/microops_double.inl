/*
 * float64 micro-ops, as plain C loops: functions of simd/double.h, which compilers vectorise, the
 * others through libm.
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
C_UNARY_CALL(f64_log2, double, double, log2(a))
C_UNARY_CALL(f64_log10, double, double, log10(a))
C_UNARY_CALL(f64_tan, double, double, tan(a))
C_UNARY_CALL(f64_asin, double, double, asin(a))
C_UNARY_CALL(f64_acos, double, double, acos(a))
C_UNARY_CALL(f64_atan, double, double, atan(a))
C_UNARY_CALL(f64_sinh, double, double, sinh(a))
C_UNARY_CALL(f64_cosh, double, double, cosh(a))
C_UNARY_CALL(f64_asinh, double, double, asinh(a))
C_UNARY_CALL(f64_acosh, double, double, acosh(a))
C_UNARY_CALL(f64_atanh, double, double, atanh(a))
C_UNARY_CALL(f64_erf, double, double, erf(a))
C_UNARY_CALL(f64_erfc, double, double, erfc(a))
C_UNARY_CALL(f64_erfcx, double, double, d_erfcx(a))

static inline double softplus64(double x) { return x > 20 ? x : log1p(exp(x)); }
/* NaN stays NaN, because every comparison with it is false. */
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

C_WITHIN(f64_exp, double, fabs(a) <= D_EXP_LIMIT, d_exp(a), exp(a))
C_WITHIN(f64_sigmoid, double, fabs(a) <= D_EXP_LIMIT, 1 / (1 + d_exp(-a)), 1 / (1 + exp(-a)))
C_WITHIN(f64_silu, double, fabs(a) <= D_EXP_LIMIT, a / (1 + d_exp(-a)), a / (1 + exp(-a)))
C_WITHIN(f64_tanh, double, a == a, d_tanh(a), tanh(a))
C_WITHIN(f64_log, double, D_HAS_LOG(a), d_log(a), log(a))
C_WITHIN(f64_log1p, double, D_IS_ABOVE_MINUS_ONE(a), copysign(d_log1p(a), a), log1p(a))
C_WITHIN(f64_sin, double, fabs(a) <= D_TRIG_LIMIT,
         copysign(1.0, a) * d_sin_of_quadrants(fabs(a), 0), sin(a))
C_WITHIN(f64_cos, double, fabs(a) <= D_TRIG_LIMIT, d_sin_of_quadrants(fabs(a), 1), cos(a))
