/*
 * ATTENTION: softmax(scale * q k^T + mask) v by blocks, never with more scores in memory than a
 * tile of rows and a block of keys. Where there is more than one block of keys, a row's weighted
 * sum is carried from block to block relative to the largest score so far (online softmax). Keys at
 * either end that the mask excludes for all rows of a block are not read, nor are their values.
 * Keys and values of 16-bit floats, and of int8 with scales, are widened: for many rows a block at
 * a time, for few rows in registers.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "common/overflow.h"
#include "common/tensor.h"
#include "gemm/dot_f32.inl"
#include "gemm/engine.h"
#include "attention/kernels.inc"
#include "isa/isa.h"
#include "simd/narrow.h"
#include "simd/softmax.h"

#include "attention/attention_shape.inl"
#include "attention/attention_unit.inl"

#include "attention/few_rows.inl"
#include "attention/row_tiles.inl"

/* next: the unit that runs after this one, or -1. */
static void attention_run_unit(attention_unit *u, int64_t unit, int64_t next) {
    const struct attention_state *s = u->s;
    const int64_t head = unit / s->row_blocks;
    u->batch = head / s->heads;
    u->head = head % s->heads;
    u->first_row = unit % s->row_blocks * s->block_rows;
    u->rows = i64_min(s->block_rows, s->rows - u->first_row);
    for (int64_t r = 0; r < s->block_rows; r++) {
        u->max[r] = -INFINITY;
        u->total[r] = 0.0f;
    }
    (s->few_rows ? few_start : tile_start)(u);
    attention_find_live(u);
    u->begun = false;
    const int64_t begin = u->live_first / s->block_keys * s->block_keys;
    for (int64_t first = begin, end; first < u->live_last; first = end) {
        end = first + s->block_keys;
        attention_set_keys(u, first, i64_min(s->block_keys, s->keys - first));
        const int64_t keys = attention_reach(u, u->rows - 1);
        if (keys == 0)
            break;
        attention_read_keys(u, keys);
        u->next_k = end < u->live_last ? attention_keys_at(u, head, end)
                    : next < 0         ? NULL
                                       : attention_keys_at(u, next / s->row_blocks, begin);
        (s->few_rows ? few_block : tile_block)(u, keys);
        u->begun = true;
    }
    attention_write(u);
}

static taper_status f32_attention_run(const taper_call *call, int64_t begin, int64_t end,
                                      void *scratch) {
    const struct attention_state *s = call->state;
    float *floats = scratch;
    attention_unit u = {.s = s,
                        .q_data = call->inputs[0].data,
                        .k_data = call->inputs[1].data,
                        .v_data = call->inputs[2].data,
                        .mask_data = s->masked ? call->inputs[3].data : NULL,
                        .k_scale = call->n_inputs == 6 ? call->inputs[4].data : NULL,
                        .v_scale = call->n_inputs == 6 ? call->inputs[5].data : NULL,
                        .out_data = call->output->data,
                        .q = floats + s->at.q,
                        .values = floats + s->at.values,
                        .scores = floats + s->at.scores,
                        .sums = floats + s->at.sums,
                        .max = floats + s->at.max,
                        .total = floats + s->at.total,
                        .bias = floats + s->at.bias,
                        .widened = floats + s->at.widened};
    const int64_t last = i64_min(end * s->units_per_task, s->units);
    for (int64_t i = begin * s->units_per_task; i < last; i++)
        attention_run_unit(&u, i, i + 1 < last ? i + 1 : -1);
    return TAPER_OK;
}

#define TAPER_KERNEL_ROWS
static const taper_kernel attention_kernels[] = {
#include "attention/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_attention);
const taper_family TAPER_ISA_SYM(taper_attention) = {TAPER_ROWS(attention_kernels)};
