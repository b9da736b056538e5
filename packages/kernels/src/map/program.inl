/*
 * Prepares a tile program: turns strings and shapes into typed function pointers, slots and
 * strides. Included by map.c; other families include "map/program.h", whose comment describes the
 * interface.
 */

enum {
    /* Where the block is contiguous and a tile holds more rows than this, it has several: operands
     * that do not have the output's layout are then copied to a tile register first. */
    PROGRAM_FLAT_ROWS = 2,
    PROGRAM_GATHER_ROWS = 16, /* elements of a cache line */
    PROGRAM_GATHER_MORE = 16, /* elements of a row of a gathered operand beside those of a tile: no
                               * power of two, so that rows share no cache set */
    FUSES_MICROOPS = V_LEN == 16, /* where a tile is large enough to be worth a call */
    RESULT_SLOT = PROGRAM_MAX_INPUTS,
    SCALAR_SLOT = PROGRAM_MAX_INPUTS + PROGRAM_MAX_INSTRUCTIONS,
    ANY_DTYPE = -1
};

/* ---- shapes ---- */

/* Writes the input's strides over the output's dims, 0 where it is broadcast; returns false if it
 * does not broadcast. */
static bool broadcast_strides(const taper_tensor *t, const taper_tensor *output, int64_t *strides) {
    const int32_t missing = output->rank - t->rank;
    if (missing < 0)
        return false;
    for (int32_t d = 0; d < output->rank; d++) {
        const int64_t size = d < missing ? 1 : t->shape[d - missing];
        if (size != 1 && size != output->shape[d])
            return false;
        strides[d] = size == 1 ? 0 : t->strides[d - missing];
    }
    return true;
}

/* Dim d can join the dim before it when stepping over the whole of d is one step of that dim, for
 * every operand. The output is contiguous and always agrees. */
static bool merges(const taper_program *p, int32_t into, int32_t d, int64_t size) {
    for (int32_t i = p->first; i < p->n_inputs; i++)
        if (p->inputs[i].strides[into] != p->inputs[i].strides[d] * size)
            return false;
    return true;
}

static bool prepare_shape(taper_program *p, const taper_tensor *tensors,
                          const taper_tensor *output) {
    const int32_t rank = output->rank, last = p->first ? rank - 1 : rank;
    if (rank < 0 || rank > TAPER_MAX_RANK)
        return false;
    for (int32_t i = p->first; i < p->n_inputs; i++)
        if (!broadcast_strides(&tensors[i - p->first], output, p->inputs[i].strides))
            return false;
    int32_t n = 0;
    for (int32_t d = 0; d < rank; d++) {
        const int64_t size = output->shape[d];
        if (d != last && size == 1)
            continue;
        const bool merge = n > 0 && d != last && merges(p, n - 1, d, size);
        if (!merge)
            p->sizes[n++] = 1;
        p->sizes[n - 1] *= size;
        for (int32_t i = p->first; i < p->n_inputs; i++)
            p->inputs[i].strides[n - 1] = p->inputs[i].strides[d];
    }
    p->outer = n > 0 ? n - 1 : 0;
    p->cols = n > 0 ? p->sizes[n - 1] : 1;
    p->rows = 1;
    for (int32_t d = 0; d < p->outer; d++)
        p->rows *= p->sizes[d];
    for (int32_t i = p->first; i < p->n_inputs; i++)
        p->inputs[i].col_stride = n > 0 ? p->inputs[i].strides[n - 1] : 0;
    return true;
}

static void prepare_input(const taper_program *p, program_input *in) {
    int64_t contiguous = p->cols;
    in->every_row = true;
    in->flat = p->cols == 1 || in->col_stride == 1;
    for (int32_t d = p->outer - 1; d >= 0; d--) {
        in->every_row = in->every_row && in->strides[d] == 0;
        in->flat = in->flat && in->strides[d] == contiguous;
        contiguous *= p->sizes[d];
    }
}

static bool is_one_element(const program_input *in) { return in->every_row && in->col_stride == 0; }

/* Returns whether some block can run with several rows per tile. */
static bool may_be_flat(const taper_program *p) {
    return p->rows > 1 && PROGRAM_FLAT_ROWS * p->cols < p->tile;
}

/* Never read in place. */
static bool is_strided(const program_input *in) {
    return in->col_stride != 0 && in->col_stride != 1;
}

static bool needs_gather(const taper_program *p, const program_input *in) {
    return is_strided(in) || (may_be_flat(p) && !in->flat && !is_one_element(in));
}

/* Returns the elements from one row to the next, along the innermost of the dims that make up the
 * rows. */
static int64_t row_stride(const taper_program *p, const program_input *in) {
    return p->outer ? in->strides[p->outer - 1] : 0;
}

/* Returns whether adjacent elements in memory are in different rows. */
static bool is_transposed(int64_t row_stride, int64_t col_stride) {
    return row_stride != 0 && llabs(row_stride) < llabs(col_stride);
}

/* ---- types ---- */

static const taper_microop *find_microop(const char *name) {
    for (size_t i = 0; i < MICROOP_COUNT; i++)
        if (strcmp(taper_microops[i].name, name) == 0)
            return &taper_microops[i];
    return NULL;
}

/* Returns whether the micro-op takes these operands (ANY_DTYPE: a scalar) and gives this result. */
static bool microop_fits(const taper_microop *op, const int *dtypes, int result) {
    if (result != ANY_DTYPE && op->result != result)
        return false;
    for (int k = 0; k < op->arity; k++)
        if (dtypes[k] != ANY_DTYPE && dtypes[k] != op->operand[k])
            return false;
    return true;
}

/* Returns the first micro-op of op's name, from op on, that fits. Rows of one name are adjacent. */
static const taper_microop *fitting_microop(const taper_microop *op, const int *dtypes,
                                            int result) {
    const taper_microop *end = taper_microops + MICROOP_COUNT;
    for (const char *name = op->name; op < end && strcmp(op->name, name) == 0; op++)
        if (microop_fits(op, dtypes, result))
            return op;
    return NULL;
}

/* torch computes these powers in other ways, exactly or nearly so. */
static program_microop power_microop(double exponent) {
    static const struct {
        double exponent;
        program_microop run;
    } powers[] = {{2.0, f32_square},   {0.5, f32_sqrt},        {3.0, f32_cube},
                  {1.0, f32_from_f32}, {-1.0, f32_reciprocal}, {-0.5, f32_rsqrt}};
    for (size_t i = 0; i < sizeof powers / sizeof powers[0]; i++)
        if (powers[i].exponent == exponent)
            return powers[i].run;
    return NULL;
}

/* Returns the slot of a scalar read as dtype; -1 if there is no room. */
static int scalar_slot(taper_program *p, taper_scalar scalar, int dtype) {
    program_scalar typed = {.i64 = 0};
    switch (dtype) {
    case F32:
        typed.f32 = (float)scalar.f;
        break;
    case F64:
        typed.f64 = scalar.f;
        break;
    case I64:
        typed.i64 = scalar.i;
        break;
    case I32:
        typed.i32 = (int32_t)scalar.i;
        break;
    case I16: /* the lowest bytes are those of a narrower integer */
    case I8:
    case U8:
        typed.i64 = scalar.i;
        break;
    default:
        typed.boolean = scalar.f != 0.0 || scalar.i != 0;
        break;
    }
    for (int32_t s = 0; s < p->n_scalars; s++)
        if (memcmp(&p->scalars[s], &typed, sizeof typed) == 0)
            return SCALAR_SLOT + s;
    if (p->n_scalars == PROGRAM_MAX_SCALARS)
        return -1;
    p->scalars[p->n_scalars] = typed;
    return SCALAR_SLOT + p->n_scalars++;
}

/* Fills p->code except registers; dtypes[slot] are those of the inputs, and then of all values. */
static bool prepare_code(taper_program *p, const taper_strings *code, const taper_ints *args,
                         const taper_scalars *scalars, int output_dtype, int *dtypes) {
    int64_t next = 0;
    for (int32_t j = 0; j < p->count; j++) {
        const taper_microop *op = find_microop(code->data[j]);
        if (!op || args->count - next < op->arity)
            return false;
        const int64_t *arg = args->data + next;
        next += op->arity;
        program_instruction *instruction = &p->code[j];
        int operand_dtypes[PROGRAM_MAX_ARITY];
        for (int k = 0; k < op->arity; k++) {
            if (arg[k] >= p->n_inputs + j || arg[k] < -scalars->count)
                return false;
            const int64_t v = arg[k] < p->n_inputs ? arg[k] : arg[k] - p->n_inputs + RESULT_SLOT;
            instruction->operand[k] = (int16_t)v;
            operand_dtypes[k] = v < 0 ? ANY_DTYPE : dtypes[v];
        }
        op = fitting_microop(op, operand_dtypes, j == p->count - 1 ? output_dtype : ANY_DTYPE);
        if (!op || (p->first && microop_refuses(op)))
            return false;
        instruction->run = microop_runs[op - taper_microops];
        instruction->arity = op->arity;
        if (instruction->run == f32_pow && arg[1] < 0) {
            const program_microop run = power_microop(scalars->data[-1 - arg[1]].f);
            instruction->arity = run ? 1 : 2;
            instruction->run = run ? run : f32_pow;
        }
        for (int k = 0; k < instruction->arity; k++) {
            if (arg[k] < 0)
                instruction->operand[k] =
                    (int16_t)scalar_slot(p, scalars->data[-1 - arg[k]], op->operand[k]);
            if (instruction->operand[k] < 0)
                return false;
        }
        dtypes[RESULT_SLOT + j] = op->result;
        instruction->steps = 0;
        instruction->cost = op->time[V_LEN / 8];
    }
    return next == args->count;
}

/* A result is uniform when all its operands are. */
static uint64_t uniform_results(const taper_program *p, bool flat) {
    bool uniform[PROGRAM_SLOTS];
    for (int32_t i = 0; i < p->n_inputs; i++)
        uniform[i] = flat ? is_one_element(&p->inputs[i]) : p->inputs[i].col_stride == 0;
    for (int32_t s = SCALAR_SLOT; s < PROGRAM_SLOTS; s++)
        uniform[s] = true;
    uint64_t mask = 0;
    for (int32_t j = 0; j < p->count; j++) {
        uniform[RESULT_SLOT + j] = true;
        for (int k = 0; k < p->code[j].arity; k++)
            uniform[RESULT_SLOT + j] &= uniform[p->code[j].operand[k]];
        mask |= (uint64_t)uniform[RESULT_SLOT + j] << j;
    }
    return mask;
}

/* ---- the fused part of an epilogue ---- */

/* Returns whether instruction j is `run` of the value so far and of operand *other, which this
 * writes.
 */
static bool continues(const taper_program *p, int32_t j, program_microop run, int *other) {
    const program_instruction *instruction = &p->code[j];
    const int16_t so_far = (int16_t)(j == 0 ? 0 : RESULT_SLOT + j - 1);
    if (instruction->run != run || instruction->operand[0] == instruction->operand[1])
        return false;
    *other = instruction->operand[instruction->operand[0] == so_far];
    return instruction->operand[0] == so_far ||
           (run == f32_add && instruction->operand[1] == so_far);
}

/* Returns whether a value that the first j instructions read or made, except the last one made, is
 * read later. */
static bool is_read_later(const taper_program *p, int32_t j, const program_fused *fused) {
    for (int32_t i = j; i < p->count; i++)
        for (int k = 0; k < p->code[i].arity; k++) {
            const int o = p->code[i].operand[k];
            if (o == 0 || (o >= RESULT_SLOT && o < RESULT_SLOT + j - 1) ||
                (o > 0 && (o == fused->bias + p->first || o == fused->residual + p->first)))
                return true;
        }
    return false;
}

/* Fuses instruction j if it can be the next fused operation. */
static bool fuse_one(const taper_program *p, int32_t j, program_fused *h) {
    const bool bounded = h->low > -INFINITY || h->high < INFINITY;
    int other;
    if (continues(p, j, f32_add, &other) && other < p->n_inputs && !bounded) {
        const program_input *in = &p->inputs[other];
        if (in->every_row && in->col_stride == 1 && h->bias < 0 && h->residual < 0)
            h->bias = other - p->first;
        else if (in->flat && h->residual < 0)
            h->residual = other - p->first;
        else
            return false;
        return true;
    }
    if (p->code[j].run == f32_relu && p->code[j].operand[0] == (j ? RESULT_SLOT + j - 1 : 0) &&
        !bounded) {
        h->low = 0.0f;
        return true;
    }
    if (continues(p, j, f32_maximum, &other) && other >= SCALAR_SLOT && !bounded) {
        h->low = p->scalars[other - SCALAR_SLOT].f32;
        return !isnan(h->low);
    }
    if (continues(p, j, f32_minimum, &other) && other >= SCALAR_SLOT && h->high == INFINITY) {
        h->high = p->scalars[other - SCALAR_SLOT].f32;
        return !isnan(h->high);
    }
    return false;
}

/* Moves instructions from the beginning of p's code to `fused`. */
static void take_fused(taper_program *p, int *dtypes, program_fused *fused) {
    program_fused next = program_fuses_nothing;
    int32_t taken = 0;
    *fused = next;
    for (int32_t j = 0; j < p->count && fuse_one(p, j, &next); j++) {
        if (is_read_later(p, j + 1, &next))
            continue;
        taken = j + 1;
        *fused = next;
    }
    if (FUSES_MICROOPS && taken == p->count - 1 && p->code[taken].arity == 1 &&
        p->code[taken].operand[0] == (taken ? RESULT_SLOT + taken - 1 : 0)) {
        fused->then = p->code[taken].run;
        p->cost = p->code[taken++].cost;
    }
    for (int32_t j = taken; j < p->count; j++) {
        program_instruction *instruction = &p->code[j - taken];
        *instruction = p->code[j];
        dtypes[RESULT_SLOT + j - taken] = dtypes[RESULT_SLOT + j];
        for (int k = 0; k < instruction->arity; k++) {
            int16_t *o = &instruction->operand[k];
            if (*o >= RESULT_SLOT && *o < SCALAR_SLOT)
                *o = (int16_t)(*o == RESULT_SLOT + taken - 1 ? 0 : *o - taken);
        }
    }
    p->count -= taken;
    const int32_t read[] = {fused->bias, fused->residual}; /* no longer by the program */
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        if (read[i] >= 0)
            p->inputs[read[i] + p->first] =
                (program_input){.size = sizeof(float), .every_row = true};
}

#include "map/chain.inl"

/* Returns whether blocks of several rows can be computed panel by panel: there are chains, and the
 * other instructions read no tensor. */
static bool fits_panels(const taper_program *p) {
    bool has_chains = false;
    for (int32_t j = 0; j < p->count; j++) {
        has_chains |= p->code[j].steps > 0;
        for (int k = 0; !p->code[j].steps && k < p->code[j].arity; k++)
            if (p->code[j].operand[k] < RESULT_SLOT)
                return false;
    }
    for (int32_t i = p->first; i < p->n_inputs; i++)
        if (is_strided(&p->inputs[i]))
            return false;
    return has_chains && p->uniform[0] == 0 && p->outer > 0 &&
           p->sizes[p->outer - 1] >= PROGRAM_PANEL_ROWS;
}

/* Returns whether a panel may have CHAIN_WIDE columns: its only chain requantizes. */
static bool is_wide(const taper_program *p) {
    const program_instruction *chain = &p->code[0];
    if (!HAS_WIDE_PANELS || !p->in_panels || p->count != 1)
        return false;
    chain_operand in[PROGRAM_MAX_OPERANDS];
    for (int k = 0; k < chain->arity; k++) {
        const int o = chain->operand[k];
        if (o >= SCALAR_SLOT)
            in[k] = (chain_operand){(const char *)&p->scalars[o - SCALAR_SLOT], 0, 0};
        else
            in[k] = (chain_operand){NULL, o < p->first ? 1 : row_stride(p, &p->inputs[o]),
                                    p->inputs[o].col_stride};
    }
    chain_requantization c;
    return chain_requantizes(chain, in, &c) && c.bounded && !c.is_silu;
}

/* ---- registers ---- */

static size_t result_bytes(const int *dtypes, int32_t j) {
    return taper_dtype_size(dtypes[RESULT_SLOT + j]);
}

/* Linear scan: a register is free again at its value's last use, for a result of the same element
 * size, and after it for any. */
static void prepare_registers(taper_program *p, const int *dtypes) {
    int32_t last_use[PROGRAM_MAX_INSTRUCTIONS];
    for (int32_t j = 0; j < p->count; j++) {
        last_use[j] = j;
        for (int k = 0; k < p->code[j].arity; k++) {
            const int32_t o = p->code[j].operand[k] - RESULT_SLOT;
            if (o >= 0 && o < PROGRAM_MAX_INSTRUCTIONS)
                last_use[o] = j;
        }
    }
    /* In panels, a micro-op's result is copied from a register to the output's rows. */
    const bool copies = p->in_panels && p->code[p->count - 1].steps == 0;
    const int32_t kept = p->count - 1 + copies;
    size_t size = 0, widest = 1;
    for (int32_t j = 0; j < p->count; j++) {
        p->code[j].size = (int8_t)result_bytes(dtypes, j);
        widest = result_bytes(dtypes, j) > widest ? result_bytes(dtypes, j) : widest;
        size = j < kept ? widest : size;
    }
    for (int32_t i = p->first; i < p->n_inputs; i++)
        widest = (size_t)p->inputs[i].size > widest ? (size_t)p->inputs[i].size : widest;
    p->tile = widest >= 4 ? PROGRAM_TILE_BYTES / 4 : PROGRAM_TILE_BYTES / (int64_t)widest;
    p->register_bytes = size * (size_t)p->tile;
    int32_t n_registers = 0;
    uint64_t used = 0; /* bit r: register r holds a value that is still needed */
    for (int32_t j = 0; j < kept; j++) {
        uint64_t taken = used;
        for (int32_t o = 0; o < j; o++)
            if (last_use[o] == j) {
                used &= ~((uint64_t)1 << p->code[o].reg);
                if (result_bytes(dtypes, o) == result_bytes(dtypes, j))
                    taken &= ~((uint64_t)1 << p->code[o].reg);
            }
        int8_t reg = 0;
        while (taken >> reg & 1)
            reg++;
        p->code[j].reg = reg;
        if (last_use[j] > j)
            used |= (uint64_t)1 << reg;
        n_registers = reg >= n_registers ? reg + 1 : n_registers;
    }
    p->scratch_bytes = (size_t)n_registers * p->register_bytes;
}

/* A register for each input that may have to be gathered. Where one is transposed they hold several
 * rows, so that a cache line of it serves all its elements. */
static void prepare_gathers(taper_program *p) {
    for (int32_t i = p->first; i < p->n_inputs; i++)
        if (is_strided(&p->inputs[i])) {
            const bool transposed =
                is_transposed(row_stride(p, &p->inputs[i]), p->inputs[i].col_stride);
            p->gather_rows = transposed || p->gather_rows > 1 ? PROGRAM_GATHER_ROWS : 1;
        }
    for (int32_t i = p->first; i < p->n_inputs; i++) {
        program_input *in = &p->inputs[i];
        if (!needs_gather(p, in))
            continue;
        const int64_t rows = is_strided(in) ? p->gather_rows : 1;
        in->gather = (int32_t)p->scratch_bytes;
        p->scratch_bytes += (size_t)(rows * (p->tile + PROGRAM_GATHER_MORE) * in->size);
    }
}

static bool reads_input(const taper_program *p, int32_t i) {
    for (int32_t j = 0; j < p->count; j++)
        for (int k = 0; k < p->code[j].arity; k++)
            if (p->code[j].operand[k] == i)
                return true;
    return false;
}

/* Returns whether the output, of such elements, may be the memory of an input that is read here. */
static bool may_be_over(const taper_program *p) {
    for (int32_t i = p->first; i < p->n_inputs; i++)
        if (p->inputs[i].flat && p->inputs[i].size == p->output_size && reads_input(p, i))
            return true;
    return false;
}

/* Fills the program except what follows from its code. */
static taper_status prepare_whole(taper_program *p, const taper_strings *code,
                                  const taper_ints *args, const taper_scalars *scalars,
                                  const taper_tensor *tensors, int32_t n_tensors,
                                  const taper_tensor *output, int32_t product, int *dtypes) {
    memset(p, 0, offsetof(taper_program, inputs));
    p->first = product != TAPER_ABSENT;
    if (n_tensors < 0 || n_tensors + p->first > PROGRAM_MAX_INPUTS ||
        code->count > PROGRAM_MAX_INSTRUCTIONS || (code->count == 0 && product != output->dtype))
        return TAPER_UNSUPPORTED;
    p->n_inputs = n_tensors + p->first;
    p->count = (int32_t)code->count;
    p->output_size = (int32_t)taper_dtype_size(output->dtype);
    p->product_size = (int32_t)taper_dtype_size(product);
    if (!prepare_shape(p, tensors, output))
        return TAPER_UNSUPPORTED;

    for (int32_t i = 0; i < p->n_inputs; i++) {
        program_input *in = &p->inputs[i];
        if (i < p->first) { /* a block of the product */
            dtypes[i] = product;
            *in = (program_input){.col_stride = 1, .flat = true};
            continue;
        }
        dtypes[i] = tensors[i - p->first].dtype;
        in->size = (int32_t)taper_dtype_size(dtypes[i]);
        prepare_input(p, in);
    }
    return prepare_code(p, code, args, scalars, output->dtype, dtypes) ? TAPER_OK
                                                                       : TAPER_UNSUPPORTED;
}

/* Fills the rest. */
static void prepare_rest(taper_program *p, int *dtypes) {
    make_chains(p, dtypes);
    for (int32_t j = 0; j < p->count; j++)
        p->cost += p->code[j].cost;
    p->uniform[0] = uniform_results(p, false);
    p->uniform[1] = uniform_results(p, true);
    p->in_panels = fits_panels(p);
    p->is_wide = is_wide(p);
    p->over = may_be_over(p);
    prepare_registers(p, dtypes);
    prepare_gathers(p);
}

static taper_status program_prepare(taper_program *p, const taper_strings *code,
                                    const taper_ints *args, const taper_scalars *scalars,
                                    const taper_tensor *tensors, int32_t n_tensors,
                                    const taper_tensor *output, int32_t product) {
    int dtypes[PROGRAM_SLOTS];
    const taper_status status =
        prepare_whole(p, code, args, scalars, tensors, n_tensors, output, product, dtypes);
    if (status == TAPER_OK)
        prepare_rest(p, dtypes);
    return status;
}

static taper_status program_prepare_fused(taper_program *p, const taper_strings *code,
                                          const taper_ints *args, const taper_scalars *scalars,
                                          const taper_tensor *tensors, int32_t n_tensors,
                                          const taper_tensor *output, program_fused *fused,
                                          bool once) {
    int dtypes[PROGRAM_SLOTS];
    const taper_status status =
        prepare_whole(p, code, args, scalars, tensors, n_tensors, output, TAPER_FLOAT32, dtypes);
    *fused = program_fuses_nothing;
    if (status != TAPER_OK)
        return status;
    const bool over = may_be_over(p);
    take_fused(p, dtypes, fused);
    if (over && (!once || may_be_over(p))) {
        *fused = program_fuses_nothing;
        return program_prepare(p, code, args, scalars, tensors, n_tensors, output, TAPER_FLOAT32);
    }
    prepare_rest(p, dtypes);
    return TAPER_OK;
}
