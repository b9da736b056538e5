/*
 * ATTENTION: softmax(scale * q k^T + mask) v by blocks, never with more scores in memory than a
 * strip of rows and a block of keys. Where the keys are more than one block, a row's weighted sum is
 * carried from block to block relative to the largest score so far (online softmax).
 *
 * A unit of work is a block of query rows of one key head. It packs a block of keys and values for
 * the matrix kernels once and takes its rows through it strip by strip: scores, weights, weighted
 * sums of values.
 */
#include <math.h>
#include <string.h>

#include "common/tensor.h"
#include "gemm/dot_f32.inl"
#include "gemm/gemm_f32.inl"
#include "isa/isa.h"
#include "simd/softmax.h"

#include "attention/shape.inl"
#include "attention/unit.inl"

static taper_status f32_attention_run(const taper_call *call, int64_t begin, int64_t end,
                                      void *scratch) {
    const struct attention_state *s = call->state;
    attention_unit unit = attention_bind(call, scratch);
    const int64_t last = i64_min(end * s->units_per_task, s->units);
    for (int64_t i = begin * s->units_per_task; i < last; i++)
        attention_run_unit(&unit, i);
    return TAPER_OK;
}

static const taper_kernel attention_kernels[] = {
#include "attention/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_attention);
const taper_family TAPER_ISA_SYM(taper_attention) = {
    attention_kernels, sizeof attention_kernels / sizeof attention_kernels[0]};
