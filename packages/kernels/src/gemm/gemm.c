/*
 * MATMUL in floats, in bytes and in integers, GROUPED_MATMUL in float32, and INDEX_SELECT of
 * columns of blocks. matmul_shape.inl reduces every case of ranks, strides and batches to a batch
 * of plain products C = A * B; matmul.inl chooses how B is read, splits the work and applies the
 * epilogue to each block of C while it is in cache; element.h says what B may hold; gemm_f32.inl,
 * row_f32.inl, gemm_narrow.inl, gemm_rounded.inl and dot_f32.inl compute blocks; matmul_typed.inl
 * computes products of integers and of float64; matmul_i8.inl those of bytes with sums in int32, by
 * the blocks of gemm_i8.inl.
 */
#include <assert.h>

#include "common/overflow.h"
#include "common/position.h"
#include "common/tensor.h"
#include "gemm/kernels.inc"
#include "isa/isa.h"
#include "map/program.h"
#include "simd/tiles.h"
#include "taper/machine.h"

#include "gemm/dot_f32.inl"
#include "gemm/engine_i8.h"
#include "gemm/gemm_f32.inl"

#include "gemm/gemm_narrow.inl"

#include "gemm/gemm_rounded.inl"

TAPER_DEFINE_ATTRS(matmul)

#include "gemm/matmul_shape.inl"

#include "gemm/matmul.inl"

#include "gemm/grouped.inl"

TAPER_DEFINE_ATTRS(lookup)
#include "gemm/lookup.inl"

#define I8_NAME(name) i8_widened_##name
#define I8_TARGET
#define I8_PARTS (32 / V_LEN)
#define I8_PAIRS 1
#define I8_A int64_t
#define I8_LOAD(line, part) vi_widen_i8((line) + (part) * 2 * V_LEN)
#define I8_SPREAD vi_spread_64
#define I8_DOT i8_dot_16
#define I8_SHIFTED 0
#define I8_BYTES 0
#define I8_JOINS 0
#define I8_REQUANTIZES 0
#define I8_DIRECT 0
#define I8_WIDENS (V_LEN == 8)
#include "gemm/gemm_i8.inl"

#ifdef VI_DOT_U7
#define I8_NAME(name) i8_u7_##name
#define I8_TARGET
#define I8_PARTS (16 / V_LEN)
#define I8_PAIRS 0
#define I8_A int32_t
#define I8_LOAD(line, part) vi_load((const int32_t *)(const void *)((line) + (part) * 4 * V_LEN))
#define I8_SPREAD vi_set1
#define I8_DOT i8_dot_u7
#define I8_SHIFTED 0
#define I8_BYTES 1
#define I8_JOINS (V_LEN == 8)
#define I8_REQUANTIZES 0
#define I8_DIRECT 0
#define I8_WIDENS 0
#include "gemm/gemm_i8.inl"
#if V_LEN == 8
#define I8_U7_NARROW i8_u7_narrow
#else
#define I8_U7_NARROW NULL
#endif
static const i8_engine i8_u7 = {.a_bytes = sizeof(uint8_t),
                                .rows = I8_ROWS,
                                .put = i8_u7_put,
                                .reads = i8_u7_reads,
                                .block = i8_u7_block,
                                .narrow = I8_U7_NARROW};
#endif
const i8_engine I8_WIDENED = {.a_bytes = sizeof(int16_t),
                              .rows = I8_ROWS,
                              .put = i8_widened_put,
                              .reads = i8_widened_reads,
                              .block = i8_widened_block,
#ifdef VI_DOT_U7
                              .u7 = &i8_u7
#endif
};

#ifdef HAS_I8_VNNI
#define I8_NAME(name) i8_vnni_##name
#ifdef TAPER_EMULATED
#define I8_TARGET
#else
#define I8_TARGET __attribute__((target("avx512vnni")))
#endif
#define I8_PARTS 1
#define I8_PAIRS 0
#define I8_A int32_t
#define I8_LOAD(line, part) vi_load((const int32_t *)(const void *)(line))
#define I8_SPREAD vi_set1
#define I8_DOT i8_dot_u8
#define I8_SHIFTED 1
#define I8_BYTES 0
#define I8_JOINS 0
#ifdef HAS_REQUANTIZED_TILES
#define I8_REQUANTIZES 1
#else
#define I8_REQUANTIZES 0
#endif
#define I8_DIRECT 1
#define I8_WIDENS 0
#include "gemm/gemm_i8.inl"
const i8_engine I8_VNNI = {.a_bytes = sizeof(uint8_t),
                           .rows = I8_ROWS,
                           .put = i8_vnni_put,
                           .reads = i8_vnni_reads,
                           .block = i8_vnni_block,
                           .direct = true,
                           .requantizes = true};

#include "gemm/amx_i8.inl"
const i8_engine I8_AMX = {.a_bytes = sizeof(uint8_t),
                          .rows = TILE_ROWS,
                          .put = i8_vnni_put,
                          .reads = i8_vnni_reads,
                          .block = i8_amx_block,
                          .begin = i8_amx_begin,
                          .end = i8_amx_end};
#endif

#include "gemm/product_i8.inl"

#include "gemm/matmul_i8.inl"

#define TYPED_ELEMENT uint32_t
#define TYPED_DTYPE TAPER_INT32
#define TYPED_NAME(name) i32_##name
#define TYPED_IS_WIDE(x) 0
#define TYPED_ADD(sum, x, y) ((sum) + (x) * (y))
#define TYPED_ADD_NARROW TYPED_ADD
#include "gemm/typed_tile.inl"
#include "gemm/matmul_typed.inl"
#include "gemm/typed_end.inl"

#define TYPED_ELEMENT uint64_t
#define TYPED_DTYPE TAPER_INT64
#define TYPED_NAME(name) i64_##name
#define TYPED_IS_WIDE(x) (((x) + ((uint64_t)1 << 31)) >> 32)
#define TYPED_ADD(sum, x, y) ((sum) + (x) * (y))
#if defined(__AVX512F__)
#define TYPED_ADD_NARROW(sum, x, y)                                                                \
    ((sum) + (TYPED_VECTOR)_mm512_mul_epi32((__m512i)(x), (__m512i)(y)))
#elif defined(__AVX2__)
#define TYPED_ADD_NARROW(sum, x, y)                                                                \
    ((sum) + (TYPED_VECTOR)_mm256_mul_epi32((__m256i)(x), (__m256i)(y)))
#elif defined(__SSE4_1__)
#define TYPED_ADD_NARROW(sum, x, y)                                                                \
    ((sum) + (TYPED_VECTOR)_mm_mul_epi32((__m128i)(x), (__m128i)(y)))
#else
#define TYPED_ADD_NARROW TYPED_ADD
#endif
#include "gemm/typed_tile.inl"
#include "gemm/matmul_typed.inl"
#include "gemm/typed_end.inl"

#include "gemm/f64_tile.inl"
#define TYPED_DTYPE TAPER_FLOAT64
#include "gemm/matmul_typed.inl"
#include "gemm/typed_end.inl"

#define TAPER_KERNEL_ROWS
static const taper_kernel kernels[] = {
#include "gemm/kernels.inc"
};

const gemm_table TAPER_ISA_SYM(taper_gemm_engine) = {gemm_block_run, gemm_copy, gemm_pack_b};

extern const taper_family TAPER_ISA_SYM(taper_gemm);
const taper_family TAPER_ISA_SYM(taper_gemm) = {TAPER_ROWS(kernels)};
