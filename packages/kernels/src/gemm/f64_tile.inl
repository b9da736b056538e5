/* The tiles of typed_tile.inl for float64. */
#define TYPED_ELEMENT double
#define TYPED_NAME(name) f64_##name
#define TYPED_IS_WIDE(x) 0
#if defined(TAPER_SCALAR)
#define TYPED_ADD(sum, x, y) ((sum) + (x) * (y))
#elif defined(__AVX512F__)
#define TYPED_ADD(sum, x, y)                                                                       \
    ((TYPED_VECTOR)_mm512_fmadd_pd((__m512d)(x), (__m512d)(y), (__m512d)(sum)))
#elif defined(__FMA__)
#define TYPED_ADD(sum, x, y)                                                                       \
    ((TYPED_VECTOR)_mm256_fmadd_pd((__m256d)(x), (__m256d)(y), (__m256d)(sum)))
#elif defined(__aarch64__)
#define TYPED_ADD(sum, x, y)                                                                       \
    ((TYPED_VECTOR)vfmaq_f64((float64x2_t)(sum), (float64x2_t)(x), (float64x2_t)(y)))
#else
#define TYPED_ADD(sum, x, y) ((sum) + (x) * (y))
#endif
#define TYPED_ADD_NARROW TYPED_ADD
#include "gemm/typed_tile.inl"
