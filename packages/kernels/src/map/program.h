/*
 * Tile programs: short lists of elementwise micro-ops that run tile by tile in L1. A MAP node is
 * one, and so is the epilogue of a matmul. This is the whole interface; the code is compiled once
 * per level, in the map family, and other families of the same level reach it through one table:
 *
 *     #include "map/program.h"
 *     #define PROGRAM TAPER_ISA_SYM(taper_program_engine)
 *
 *     prepare():  taper_program *p = &state->epilogue;
 *                 status = PROGRAM.prepare(p, &attrs->code, &attrs->args, &attrs->scalars,
 *                                          &call->inputs[2], call->n_inputs - 2, call->output,
 *                                          TAPER_FLOAT32);
 *                 work->scratch_bytes += p->scratch_bytes;
 *     run():      if (p->count)
 *                     PROGRAM.run(p, &call->inputs[2], r0, r1, c0, c1, sums, lds, out, ldc,
 *                                 scratch);
 *
 * The output is viewed as [R][C]: C its last dim (1 at rank 0), R the product of the others. In an
 * epilogue value 0 is a block of the product, values 1.. are the tensors given, broadcast against
 * the whole output, and the result may have another dtype than the product:
 *
 *     for r in [r0, r1), c in [c0, c1):
 *         out[(r - r0) * ldc + c - c0] =
 *             program(sums[(r - r0) * lds + c - c0], tensors[0] at (r, c), ...)
 *
 * so `sums` and `out` point at element (r0, c0). They may be the same block, where both have
 * elements of the same size and p->over is not set. Where it is set, the output may lie in the
 * memory of a tensor that the program reads, so that nothing else may be stored there before.
 * The split into blocks changes no bit, and neither does running the same program as a MAP node.
 * Wide blocks (>= 128 columns) or whole rows (c0 = 0, c1 = C, lds = ldc = C, any C) are the cheap
 * ones: interpretation is paid once per 512 elements or row end. Where in_panels is set, blocks of
 * 16 columns and many rows are the cheapest.
 */
#ifndef TAPER_MAP_PROGRAM_H
#define TAPER_MAP_PROGRAM_H

#include <math.h>

#include "isa/isa.h"
#include "map/fused.h"
#include "map/microops.h"
#include "map/requantize.h"

enum {
    PROGRAM_MAX_INPUTS = 16, /* these two limit what files may have */
    PROGRAM_MAX_INSTRUCTIONS = 64,
    PROGRAM_MAX_SCALARS = 64, /* different ones */
    PROGRAM_MAX_ARITY = MICROOP_MAX_ARITY,
    PROGRAM_MAX_STEPS = 20, /* micro-ops of a chain */
    PROGRAM_MAX_OPERANDS = 12,
    PROGRAM_PANEL = 16,        /* columns of a panel */
    PROGRAM_PANEL_ROWS = 12,   /* of a block, for which panels are worth their overhead */
    PROGRAM_TILE_BYTES = 2048, /* of a tile register of elements of 1, 2 and 4 bytes */
    PROGRAM_SLOTS = PROGRAM_MAX_INPUTS + PROGRAM_MAX_INSTRUCTIONS + PROGRAM_MAX_SCALARS
};

/* Values live in slots: inputs, then results, then scalars, each kind at a fixed base. */
typedef struct program_instruction {
    program_microop run;
    int16_t operand[PROGRAM_MAX_OPERANDS]; /* slots */
    int8_t arity;
    int8_t size;  /* bytes of an element of the result */
    int8_t reg;   /* tile register of the result; the last instruction has none but in panels */
    int16_t cost; /* the time of an element in the unit of microops.inc */
    int8_t steps; /* of a chain, which is computed in registers (map/chain.inl); 0: it is none */
    int8_t step[PROGRAM_MAX_STEPS]; /* chain_kind */
    float shift, low, high;         /* of CHAIN_QUANTIZE */
    float less, factor;             /* of CHAIN_ADD_U8 and CHAIN_ADD_I8 */
} program_instruction;

typedef union program_scalar {
    float f32;
    double f64;
    int64_t i64;
    int32_t i32;
    uint8_t boolean;
} program_scalar;

typedef struct program_input {
    int64_t strides[TAPER_MAX_RANK]; /* [outer dims], in elements */
    int64_t col_stride;
    int32_t size;   /* bytes per element */
    int32_t gather; /* offset in scratch of its own register, where it is gathered */
    bool flat;      /* has the output's layout, and all rows are one run */
    bool every_row; /* the same in every row */
} program_input;

/* Filled by prepare and read by run; plain data without pointers into itself. */
typedef struct taper_program {
    int64_t rows, cols;            /* R and C */
    int64_t sizes[TAPER_MAX_RANK]; /* [outer dims]: their product is R */
    int64_t cost;                  /* the time of an element in the unit of microops.inc */
    size_t scratch_bytes;          /* aligned to TAPER_ALIGNMENT; each worker's own */
    size_t register_bytes;
    int64_t tile; /* elements of a tile register */
    /* Bit j: result j is one element per row (uniform[0]) or one for all rows (uniform[1]),
     * computed once. */
    uint64_t uniform[2];
    int32_t count; /* instructions; 0: nothing to do */
    int32_t n_inputs, n_scalars;
    int32_t gather_rows; /* rows of a register of a gathered operand; 0: none is */
    bool is_wide;        /* a panel may have more columns */
    bool in_panels;      /* blocks of several rows may be computed panel by panel */
    bool over;           /* a tensor that the program reads may be the memory of the output */
    int32_t outer;       /* dims that make up the rows */
    int32_t first;       /* value number of the first tensor: 1 in an epilogue, else 0 */
    int32_t output_size, product_size; /* bytes per element */
    program_input inputs[PROGRAM_MAX_INPUTS];
    program_scalar scalars[PROGRAM_MAX_SCALARS];
    program_instruction code[PROGRAM_MAX_INSTRUCTIONS];
} taper_program;

/* The part of an epilogue that is fused into the store of a tile (map/fused.h). */
typedef struct program_fused {
    int32_t bias, residual; /* tensors of shape [C] and of the output's; -1: none */
    float low, high;
    program_microop then;
} program_fused;

static const program_fused program_fuses_nothing = {
    .bias = -1, .residual = -1, .low = -INFINITY, .high = INFINITY};

/* Returns the fused operations at element (r, c) of an output of `cols` columns. */
V_INLINE tile_fused program_fused_at(const program_fused *h, const taper_tensor *tensors,
                                     int64_t cols, int64_t r, int64_t c) {
    const tile_fused fused = {.bias = h->bias < 0 ? NULL : tensors[h->bias].data,
                              .residual = h->residual < 0 ? NULL : tensors[h->residual].data,
                              .stride = cols,
                              .bounded = h->low > -INFINITY || h->high < INFINITY,
                              .low = h->low,
                              .high = h->high,
                              .then = h->then};
    return fused_at(fused, c, r * cols + c);
}

typedef struct taper_program_table {
    /* Returns TAPER_UNSUPPORTED where a micro-op is unknown, has wrong types, is out of the limits
     * above or may refuse its operands in an epilogue, or where a tensor does not broadcast to the
     * output. product: the dtype of an epilogue's value 0; TAPER_ABSENT: this is no epilogue. Then
     * the tensors are values 0.., and dims of the [R][C] view are merged where every operand's
     * strides allow: read rows and cols from p. An empty program is valid only as an epilogue whose
     * product has the output's dtype, and does nothing. */
    taper_status (*prepare)(taper_program *p, const taper_strings *code, const taper_ints *args,
                            const taper_scalars *scalars, const taper_tensor *tensors,
                            int32_t n_tensors, const taper_tensor *output, int32_t product);
    /* The same of an epilogue of float32. As much as possible moves to `fused` from its beginning;
     * the program is then the rest. Where the output may lie in the memory of a tensor, that is
     * possible only if tiles store each element of the output `once`, and the rest does not read
     * the tensor. */
    taper_status (*prepare_fused)(taper_program *p, const taper_strings *code,
                                  const taper_ints *args, const taper_scalars *scalars,
                                  const taper_tensor *tensors, int32_t n_tensors,
                                  const taper_tensor *output, program_fused *fused, bool once);
    /* `tensors`: those that prepare got, now with data. Scratch may be NULL if scratch_bytes is 0.
     * Returns false if a micro-op refuses the operands of an element, which is then not written; an
     * epilogue never does. */
    bool (*run)(const taper_program *p, const taper_tensor *tensors, int64_t r0, int64_t r1,
                int64_t c0, int64_t c1, const void *sums, int64_t lds, void *out, int64_t ldc,
                void *scratch);
    /* Fills what requantizes rows from r on and n columns from c on, in the bits of run; `out` and
     * `out_row` are the caller's. Returns false where the program is more than that, or its numbers
     * are so large that packs cannot bound them. */
    bool (*requantization)(const taper_program *p, const taper_tensor *tensors, int64_t r,
                           int64_t c, int64_t n, program_requantization *to);
} taper_program_table;

extern const taper_program_table TAPER_ISA_SYM(taper_program_engine);

#endif /* TAPER_MAP_PROGRAM_H */
