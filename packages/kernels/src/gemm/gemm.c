/*
 * MATMUL in float32 and in integers, and GROUPED_MATMUL in float32. matmul_shape.inl reduces every
 * case of ranks, strides and batches to a batch of plain products C = A * B; matmul.inl chooses how
 * B is read, splits the work and applies the epilogue to each block of C while it is in cache;
 * element.h says what B may hold; gemm_f32.inl, gemm_narrow.inl and dot_f32.inl compute blocks;
 * matmul_int.inl computes products of integers.
 */
#include <assert.h>

#include "common/overflow.h"
#include "common/tensor.h"
#include "gemm/kernels.inc"
#include "isa/isa.h"
#include "map/program.h"
#include "taper/machine.h"

#include "gemm/dot_f32.inl"
#include "gemm/gemm_f32.inl"

#include "gemm/gemm_narrow.inl"

TAPER_DEFINE_ATTRS(matmul)

#include "gemm/matmul_shape.inl"

#include "gemm/matmul.inl"

#include "gemm/grouped.inl"

#define INT_ELEMENT uint32_t
#define INT_DTYPE TAPER_INT32
#define INT_NAME(name) i32_##name
#define INT_IS_WIDE(x) 0
#define INT_NARROW(x, y) ((x) * (y))
#include "gemm/matmul_int.inl"

#define INT_ELEMENT uint64_t
#define INT_DTYPE TAPER_INT64
#define INT_NAME(name) i64_##name
#define INT_IS_WIDE(x) (((x) + ((uint64_t)1 << 31)) >> 32)
#if defined(__AVX512F__)
#define INT_NARROW(x, y) ((INT_VECTOR)_mm512_mul_epi32((__m512i)(x), (__m512i)(y)))
#elif defined(__AVX2__)
#define INT_NARROW(x, y) ((INT_VECTOR)_mm256_mul_epi32((__m256i)(x), (__m256i)(y)))
#elif defined(__SSE4_1__)
#define INT_NARROW(x, y) ((INT_VECTOR)_mm_mul_epi32((__m128i)(x), (__m128i)(y)))
#else
#define INT_NARROW(x, y) ((x) * (y))
#endif
#include "gemm/matmul_int.inl"

#define TAPER_KERNEL_ROWS
static const taper_kernel kernels[] = {
#include "gemm/kernels.inc"
};

const gemm_table TAPER_ISA_SYM(taper_gemm_engine) = {gemm_block_run, dot_block_run, gemm_copy,
                                                     gemm_pack_b};

extern const taper_family TAPER_ISA_SYM(taper_gemm);
const taper_family TAPER_ISA_SYM(taper_gemm) = {TAPER_ROWS(kernels)};
