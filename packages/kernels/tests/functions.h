/* Activations in double, with which kernels and the functions in simd/math.h are compared. */
#ifndef TAPER_TEST_FUNCTIONS_H
#define TAPER_TEST_FUNCTIONS_H

#include <math.h>

static inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static inline double silu(double x) { return x / (1 + exp(-x)); }
static inline double gelu(double x) { return x * (0.5 * erfc(-x * 0.70710678118654752440)); }
static inline double gelu_tanh(double x) {
    return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}
static inline double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }
static inline double mish(double x) { return x * tanh(log1p(exp(x))); }
/* exp(x^2) erfc(x); from 3 on as a continued fraction (Abramowitz and Stegun, 7.1.14). */
static inline double erfcx(double x) {
    const double square = x * x;
    if (x < 3)
        return x < -27 ? INFINITY : exp(square) * (1 + fma(x, x, -square)) * erfc(x);
    double fraction = x;
    for (int i = 200; i > 0; i--)
        fraction = x + 0.5 * i / fraction;
    return 0.56418958354775628695 / fraction;
}

#endif /* TAPER_TEST_FUNCTIONS_H */
