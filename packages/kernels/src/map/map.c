/*
 * MAP and every elementwise op: tile programs (map/program.h). A kernel of one micro-op is a
 * program of one instruction.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor.h"
#include "isa/isa.h"
#include "map/program.h"
#include "simd/double.h"
#include "simd/narrow.h"
#include "simd/math.h"
#include "simd/simd.h"

#include "map/microops_plain.inl"

#include "map/microops_float.inl"

#include "map/microops_double.inl"

enum {
    F32 = TAPER_FLOAT32,
    F64 = TAPER_FLOAT64,
    F16 = TAPER_FLOAT16,
    BF16 = TAPER_BFLOAT16,
    I64 = TAPER_INT64,
    I32 = TAPER_INT32,
    I16 = TAPER_INT16,
    I8 = TAPER_INT8,
    U8 = TAPER_UINT8,
    BOOL = TAPER_BOOL
};

typedef struct microop {
    const char *name;
    program_microop run;
    int8_t cost;
    int8_t arity;
    int8_t result;
    int8_t operand[PROGRAM_MAX_ARITY]; /* dtypes */
} microop;

#define TAPER_MICROOP(name, function, cost, result, ...)                                           \
    {name, function, cost, sizeof((int8_t[]){__VA_ARGS__}), result, {__VA_ARGS__}},
#define TAPER_CAST(to, ...) TAPER_MICROOP("CAST:" to, __VA_ARGS__)
static const microop microops[] = {
#include "map/microops.inc"
};
#undef TAPER_MICROOP
#undef TAPER_CAST

#include "map/program.inl"

#include "map/execute.inl"

extern const taper_program_table TAPER_ISA_SYM(taper_program_engine);
const taper_program_table TAPER_ISA_SYM(taper_program_engine) = {program_prepare, program_run};

/* ---- kernels ---- */

#include "map/kernels.inc"
TAPER_DEFINE_ATTRS(map)
TAPER_DEFINE_ATTRS(microop)
TAPER_DEFINE_ATTRS(cast)

/* The least a task is, in additions of an element, which microops.inc counts costs in: 2 to 4 us.
 */
enum { MAP_TASK_COST = 1 << 15 };

/* A task is row_block whole rows of the program's [R][C] view, or col_block columns of one row. */
struct map_state {
    taper_program program;
    int64_t row_block, col_block, col_blocks;
};

static taper_status map_prepare(const taper_call *call, taper_work *work, const taper_strings *code,
                                const taper_ints *args, const taper_scalars *scalars) {
    struct map_state *s = call->state;
    taper_program *p = &s->program;
    if (!tensor_is_contiguous(call->output))
        return TAPER_UNSUPPORTED;
    const taper_status status = program_prepare(p, code, args, scalars, call->inputs,
                                                call->n_inputs, call->output, false, NULL);
    if (status != TAPER_OK)
        return status;
    const int64_t elements = i64_max(PROGRAM_TILE, MAP_TASK_COST / p->cost);
    /* Whole cache lines to a block, whatever the dtype. */
    s->col_block = i64_ceil_div(p->cols, i64_max(1, p->cols / elements));
    s->col_block = i64_max(1, i64_ceil_div(s->col_block, TAPER_ALIGNMENT)) * TAPER_ALIGNMENT;
    s->col_blocks = i64_max(1, i64_ceil_div(p->cols, s->col_block));
    s->row_block = i64_max(1, elements / i64_max(1, p->cols));
    work->tasks = p->cols == 0 ? 0 : i64_ceil_div(p->rows, s->row_block) * s->col_blocks;
    work->scratch_bytes = p->scratch_bytes;
    return TAPER_OK;
}

static taper_status map_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct map_state *s = call->state;
    const taper_program *p = &s->program;
    char *out = call->output->data;
    while (begin < end) { /* all rows at once, or the columns of one row */
        const int64_t col = begin % s->col_blocks;
        const int64_t next = s->col_blocks == 1 ? end : i64_min(end, begin - col + s->col_blocks);
        const int64_t r0 = begin / s->col_blocks * s->row_block, c0 = col * s->col_block;
        const int64_t r1 = s->col_blocks == 1 ? i64_min(p->rows, end * s->row_block) : r0 + 1;
        const int64_t c1 = i64_min(p->cols, c0 + (next - begin) * s->col_block);
        program_run(p, call->inputs, r0, r1, c0, c1, out + (r0 * p->cols + c0) * p->output_size,
                    p->cols, scratch);
        begin = next;
    }
    return TAPER_OK;
}

static taper_status any_map_prepare(const taper_call *call, taper_work *work) {
    const struct map_attrs *attrs = call->attrs;
    return map_prepare(call, work, &attrs->code, &attrs->args, &attrs->scalars);
}

static taper_status any_map_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    return map_run(call, begin, end, scratch);
}

/* The program of one micro-op; its operand scalar_index, if not -1, is the scalar. */
static taper_status prepare_one(const taper_call *call, taper_work *work, const microop *op,
                                int64_t scalar_index, taper_scalar scalar) {
    int64_t args[PROGRAM_MAX_ARITY];
    int dtypes[PROGRAM_MAX_ARITY];
    const bool has_scalar = scalar_index != -1;
    if (call->n_inputs + has_scalar != op->arity || scalar_index < -1 || scalar_index >= op->arity)
        return TAPER_UNSUPPORTED;
    for (int k = 0, input = 0; k < op->arity; k++) {
        args[k] = k == scalar_index ? -1 : input++;
        dtypes[k] = k == scalar_index ? ANY_DTYPE : call->inputs[args[k]].dtype;
    }
    if (!microop_fits(op, dtypes, call->output->dtype))
        return TAPER_UNSUPPORTED;
    return map_prepare(call, work, &(taper_strings){&op->name, 1}, &(taper_ints){args, op->arity},
                       &(taper_scalars){&scalar, 1});
}

static taper_status prepare_microop(const taper_call *call, taper_work *work, const microop *op) {
    const struct microop_attrs *attrs = call->attrs;
    return prepare_one(call, work, op, attrs->scalar_index, attrs->scalar);
}

static taper_status prepare_cast(const taper_call *call, taper_work *work, const microop *op) {
    const struct cast_attrs *attrs = call->attrs;
    if (strcmp(attrs->dtype, op->name + strlen("CAST:")) != 0)
        return TAPER_UNSUPPORTED;
    return prepare_one(call, work, op, -1, (taper_scalar){0});
}

/* Each micro-op's prepare knows its row; run is the same for all. */
#define TAPER_MICROOP(name, function, ...) ROW_##function,
#define TAPER_CAST(to, function, ...) ROW_##function,
enum {
#include "map/microops.inc"
};
#undef TAPER_MICROOP
#undef TAPER_CAST

#define MICROOP_KERNEL(function, prepare)                                                          \
    static taper_status function##_prepare(const taper_call *call, taper_work *work) {             \
        return prepare(call, work, &microops[ROW_##function]);                                     \
    }                                                                                              \
    static taper_status function##_run(const taper_call *call, int64_t begin, int64_t end,         \
                                       void *scratch) {                                            \
        return map_run(call, begin, end, scratch);                                                 \
    }
#define TAPER_MICROOP(name, function, ...) MICROOP_KERNEL(function, prepare_microop)
#define TAPER_CAST(to, function, ...) MICROOP_KERNEL(function, prepare_cast)
#include "map/microops.inc"
#undef TAPER_MICROOP
#undef TAPER_CAST

#define TAPER_KERNEL_ROWS
static const taper_kernel map_kernels[] = {
#include "map/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_map);
const taper_family TAPER_ISA_SYM(taper_map) = {map_kernels,
                                               sizeof map_kernels / sizeof map_kernels[0]};
