/*
 * MATMUL and GROUPED_MATMUL in float32. matmul_shape.inl reduces every case of ranks, strides and
 * batches to a batch of plain products C = A * B; matmul.inl chooses how B is read, splits the work
 * and applies the epilogue to each block of C while it is in cache; element.h says
 * what B may hold; gemm_f32.inl, gemm_narrow.inl and dot_f32.inl compute blocks.
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

#define TAPER_KERNEL_ROWS
static const taper_kernel kernels[] = {
#include "gemm/kernels.inc"
};

const gemm_table TAPER_ISA_SYM(taper_gemm_engine) = {gemm_block_run, dot_block_run, gemm_copy,
                                                     gemm_pack_b};

extern const taper_family TAPER_ISA_SYM(taper_gemm);
const taper_family TAPER_ISA_SYM(taper_gemm) = {TAPER_ROWS(kernels)};
