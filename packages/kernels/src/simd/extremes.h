/*
 * Returns the larger or the smaller of two floats, by one instruction where the CPU has one:
 * compilers would use a branch, which is mispredicted for unordered data. Returns a where one is
 * NaN.
 */
#ifndef TAPER_SIMD_EXTREMES_H
#define TAPER_SIMD_EXTREMES_H

#ifdef __SSE2__
#include <emmintrin.h>
static inline float f32_larger(float a, float b) {
    return _mm_cvtss_f32(_mm_max_ss(_mm_set_ss(b), _mm_set_ss(a)));
}
static inline float f32_smaller(float a, float b) {
    return _mm_cvtss_f32(_mm_min_ss(_mm_set_ss(b), _mm_set_ss(a)));
}
static inline double f64_larger(double a, double b) {
    return _mm_cvtsd_f64(_mm_max_sd(_mm_set_sd(b), _mm_set_sd(a)));
}
static inline double f64_smaller(double a, double b) {
    return _mm_cvtsd_f64(_mm_min_sd(_mm_set_sd(b), _mm_set_sd(a)));
}
#else
static inline float f32_larger(float a, float b) { return b > a ? b : a; }
static inline float f32_smaller(float a, float b) { return b < a ? b : a; }
static inline double f64_larger(double a, double b) { return b > a ? b : a; }
static inline double f64_smaller(double a, double b) { return b < a ? b : a; }
#endif

#endif /* TAPER_SIMD_EXTREMES_H */
