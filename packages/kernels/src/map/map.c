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
#include "map/microops.h"
#include "map/program.h"
#include "simd/double.h"
#include "simd/narrow.h"
#include "simd/math.h"
#include "simd/simd.h"

#include "map/microops_plain.inl"

#include "map/microops_float.inl"

#include "map/microops_double.inl"

/* The function of each of taper_microops at this level. */
#define TAPER_MICROOP(name, function, ...) function,
#define TAPER_CAST(to, function, ...) function,
static const program_microop microop_runs[MICROOP_COUNT] = {
#include "map/microops.inc"
};
#undef TAPER_MICROOP
#undef TAPER_CAST

#include "map/program.inl"

#include "map/execute.inl"

extern const taper_program_table TAPER_ISA_SYM(taper_program_engine);
const taper_program_table TAPER_ISA_SYM(taper_program_engine) = {
    program_prepare, program_prepare_fused, program_run, program_requantizes};

/* ---- kernels ---- */

#include "map/kernels.inc"
TAPER_DEFINE_ATTRS(map)
TAPER_DEFINE_ATTRS(microop)
TAPER_DEFINE_ATTRS(division)
TAPER_DEFINE_ATTRS(cast)

enum {
    MAP_TASK_COST = 1 << 18, /* the smallest task, in the unit of microops.inc: 2.6 us */
    PANEL = 16,              /* columns of a panel of a packed matrix */
};

/* A task is row_block whole rows of the program's [R][C] view, or col_block columns of one row. */
struct map_state {
    taper_program program;
    int64_t row_block, col_block, col_blocks;
};

/* Rows and columns of a block, and the next task. */
struct map_block {
    int64_t r0, r1, c0, c1, next;
};

/* Returns the first block of tasks [begin, end): all rows at once, or columns of one row. */
static struct map_block map_block_at(const struct map_state *s, int64_t begin, int64_t end) {
    const taper_program *p = &s->program;
    const int64_t col = begin % s->col_blocks;
    const int64_t next = s->col_blocks == 1 ? end : i64_min(end, begin - col + s->col_blocks);
    const int64_t r0 = begin / s->col_blocks * s->row_block, c0 = col * s->col_block;
    const int64_t r1 = s->col_blocks == 1 ? i64_min(p->rows, end * s->row_block) : r0 + 1;
    return (struct map_block){r0, r1, c0, i64_min(p->cols, c0 + (next - begin) * s->col_block),
                              next};
}

static taper_status map_prepare(const taper_call *call, taper_work *work, const taper_strings *code,
                                const taper_ints *args, const taper_scalars *scalars) {
    struct map_state *s = call->state;
    taper_program *p = &s->program;
    if (!tensor_is_contiguous(call->output))
        return TAPER_UNSUPPORTED;
    const taper_status status = program_prepare(p, code, args, scalars, call->inputs,
                                                call->n_inputs, call->output, TAPER_ABSENT);
    if (status != TAPER_OK)
        return status;
    const int64_t elements = i64_max(p->tile, MAP_TASK_COST / p->cost);
    /* A block has whole cache lines, whatever the dtype. */
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
    while (begin < end) {
        const struct map_block b = map_block_at(s, begin, end);
        char *const to = out + (b.r0 * p->cols + b.c0) * p->output_size;
        if (!program_run(p, call->inputs, b.r0, b.r1, b.c0, b.c1, to, p->cols, to, p->cols,
                         scratch))
            return TAPER_BAD_INDEX;
        begin = b.next;
    }
    return TAPER_OK;
}

static taper_status any_map_prepare(const taper_call *call, taper_work *work) {
    const struct map_attrs *attrs = call->attrs;
    return map_prepare(call, work, &attrs->code, &attrs->args, &attrs->scalars);
}

/* Makes the program of one micro-op; its operand scalar_index, if not -1, is the scalar. */
static taper_status prepare_one(const taper_call *call, taper_work *work, const taper_microop *op,
                                int64_t scalar_index, taper_scalar scalar) {
    int64_t args[PROGRAM_MAX_ARITY];
    int dtypes[PROGRAM_MAX_ARITY];
    const char *name = op->name;
    const bool has_scalar = scalar_index != -1;
    if (call->n_inputs + has_scalar != op->arity || scalar_index < -1 || scalar_index >= op->arity)
        return TAPER_UNSUPPORTED;
    for (int k = 0, input = 0; k < op->arity; k++) {
        args[k] = k == scalar_index ? -1 : input++;
        dtypes[k] = k == scalar_index ? ANY_DTYPE : call->inputs[args[k]].dtype;
    }
    if (!microop_fits(op, dtypes, call->output->dtype))
        return TAPER_UNSUPPORTED;
    return map_prepare(call, work, &(taper_strings){&name, 1}, &(taper_ints){args, op->arity},
                       &(taper_scalars){&scalar, 1});
}

static taper_status prepare_microop(const taper_call *call, taper_work *work,
                                    const taper_microop *op) {
    const struct microop_attrs *attrs = call->attrs;
    return prepare_one(call, work, op, attrs->scalar_index, attrs->scalar);
}

static taper_status microop_prepare(const taper_call *call, taper_work *work) {
    return prepare_microop(call, work, call->kernel->data);
}

/* ---- divisions ---- */

/* Returns the op if its micro-op is a division, in either form; else NULL. */
static const char *division_op(const taper_microop *op) {
    static const char *const names[] = {"FLOOR_DIV", "TRUNC_DIV", "REMAINDER", "FMOD"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(op->name, names[i], strlen(names[i])) == 0)
            return names[i];
    return NULL;
}

static taper_status division_prepare(const taper_call *call, taper_work *work) {
    const struct division_attrs *attrs = call->attrs;
    const taper_microop *op = call->kernel->data;
    const bool integers = op->result != F32 && op->result != F64;
    if (microop_refuses(op) != (integers && !attrs->by_zero))
        return TAPER_UNSUPPORTED;
    return prepare_one(call, work, op, attrs->scalar_index, attrs->scalar);
}

/* ---- a packed matrix times factors of its rows ---- */

static taper_status f32_mul_panels_prepare(const taper_call *call, taper_work *work) {
    return prepare_microop(call, work, find_microop("MUL"));
}

/* Elements beyond the last column stay 0, whatever the factor is. */
static taper_status f32_mul_panels_run(const taper_call *call, int64_t begin, int64_t end,
                                       void *scratch) {
    const struct map_state *s = call->state;
    const taper_tensor *y = call->output;
    const int64_t lanes = y->logical[1] % PANEL;
    const int64_t last_panel = (y->shape[0] - 1) * y->shape[1] * PANEL;
    map_run(call, begin, end, scratch);
    for (struct map_block b; lanes > 0 && begin < end; begin = b.next) {
        b = map_block_at(s, begin, end);
        const int64_t first = b.r0 * s->program.cols + b.c0;
        const int64_t stop = (b.r1 - 1) * s->program.cols + b.c1;
        for (int64_t i = i64_max(first, last_panel); i < stop; i++)
            if (i % PANEL >= lanes)
                ((float *)y->data)[i] = 0;
    }
    return TAPER_OK;
}

static taper_status cast_prepare(const taper_call *call, taper_work *work) {
    const struct cast_attrs *attrs = call->attrs;
    const taper_microop *op = call->kernel->data;
    if (strcmp(attrs->dtype, op->name + strlen("CAST:")) != 0)
        return TAPER_UNSUPPORTED;
    return prepare_one(call, work, op, -1, (taper_scalar){0});
}

#define any_map_run map_run
#define microop_run map_run
#define cast_run map_run
#define division_run map_run

#define TAPER_KERNEL_ROWS
static const taper_kernel map_kernels[] = {
#include "map/kernels.inc"
};

/* The kernel of one micro-op. */
static void make_microop_kernel(size_t i, taper_kernel *kernel) {
    static const taper_kernel rows[] = {
        TAPER_KERNEL(microop, "", microop, struct map_state, D_NONE, D_NONE)
            TAPER_KERNEL(cast, "CAST", cast, struct map_state, D_NONE, D_NONE)
                TAPER_KERNEL(division, "", division, struct map_state, D_NONE, D_NONE)};
    const taper_microop *op = &taper_microops[i];
    const bool is_cast = strncmp(op->name, "CAST:", strlen("CAST:")) == 0;
    const char *division = division_op(op);
    *kernel = rows[is_cast ? 1 : division ? 2 : 0];
    kernel->name = op->kernel;
    if (!is_cast)
        kernel->op = division ? division : op->name;
    kernel->output = TENSOR(1u << op->result);
    kernel->inputs[0] = TENSOR(0);
    for (int k = 0; k < op->arity; k++) /* any of them may be a scalar */
        kernel->inputs[0] |= 1u << op->operand[k];
    kernel->data = op;
}

extern const taper_family TAPER_ISA_SYM(taper_map);
const taper_family TAPER_ISA_SYM(taper_map) = {TAPER_ROWS(map_kernels), .make = make_microop_kernel,
                                               .n_made = MICROOP_COUNT};
