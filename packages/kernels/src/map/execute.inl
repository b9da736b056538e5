/*
 * Runs a tile program over rows r0..r1 and columns c0..c1 of the output. Included by map.c.
 *
 * Row mode: tiles are pieces of one row. Operands are read in place where they are contiguous along
 * the row or have one element there; operands with other strides are gathered. Flat mode, for
 * contiguous blocks of short rows: tiles are several whole rows, read in place only where the
 * operand is laid out like the output or is one element. Panel mode, for rows shorter than a tile:
 * tiles are several rows of a panel, all operands are read in place, and chains load what rows
 * share once for some rows. Longer rows are computed one by one, so that memory is accessed in
 * order.
 */

typedef struct program_frame {
    program_operand slot[PROGRAM_SLOTS];
    char *out;
} program_frame;

/* Copies the first element to all n. */
static void fill_tile(char *out, int64_t n, int64_t size) {
    for (int64_t done = 1; done < n; done *= 2)
        memcpy(out + done * size, out, (size_t)(i64_min(done, n - done) * size));
}

/* Computes n elements: inputs and frame->out are those of this tile. Returns false if an
 * instruction refuses an element, which is then not written. */
static bool run_tile(const taper_program *p, const program_frame *frame, int64_t n, bool flat) {
    const int32_t last = p->count - 1;
    const uint64_t uniform = p->uniform[flat];
    for (int32_t j = 0; j <= last; j++) {
        const program_instruction *instruction = &p->code[j];
        program_operand in[PROGRAM_MAX_OPERANDS];
        for (int k = 0; k < instruction->arity; k++)
            in[k] = frame->slot[instruction->operand[k]];
        void *out = j < last ? (void *)(uintptr_t)frame->slot[RESULT_SLOT + j].data : frame->out;
        if (instruction->steps)
            run_chain(instruction, in, out, n);
        else if (!instruction->run(out, in, uniform >> j & 1 ? 1 : n))
            return false;
    }
    if (uniform >> last & 1)
        fill_tile(frame->out, n, p->output_size);
    return true;
}

/* to[r * pitch + c] = from[r * row_stride + c * col_stride]; it goes along the smaller stride where
 * neither is 0 or 1, so that a cache line is read once. */
#define TAPER_GATHER(name, T)                                                                      \
    static void name(void *to, int64_t pitch, const void *from, int64_t rows, int64_t row_stride,  \
                     int64_t cols, int64_t col_stride) {                                           \
        T *t = to;                                                                                 \
        const T *f = from;                                                                         \
        if (col_stride == 0)                                                                       \
            for (int64_t r = 0; r < rows; r++, f += row_stride, t += pitch)                        \
                for (int64_t c = 0; c < cols; c++)                                                 \
                    t[c] = *f;                                                                     \
        else if (col_stride == 1)                                                                  \
            for (int64_t r = 0; r < rows; r++, f += row_stride, t += pitch)                        \
                for (int64_t c = 0; c < cols; c++)                                                 \
                    t[c] = f[c];                                                                   \
        else if (is_transposed(row_stride, col_stride))                                            \
            for (int64_t c = 0; c < cols; c++, f += col_stride, t++)                               \
                for (int64_t r = 0; r < rows; r++)                                                 \
                    t[r * pitch] = f[r * row_stride];                                              \
        else                                                                                       \
            for (int64_t r = 0; r < rows; r++, f += row_stride, t += pitch)                        \
                for (int64_t c = 0; c < cols; c++)                                                 \
                    t[c] = f[c * col_stride];                                                      \
    }
/* The same of an image of three planes. */
static void gather_planes(uint32_t *restrict t, const uint32_t *restrict f, int64_t rows,
                          int64_t plane) {
    for (int64_t r = 0; r < rows; r++) {
        t[3 * r] = f[r];
        t[3 * r + 1] = f[plane + r];
        t[3 * r + 2] = f[2 * plane + r];
    }
}

TAPER_GATHER(gather8, uint8_t)
TAPER_GATHER(gather16, uint16_t)
TAPER_GATHER(gather32, uint32_t)
TAPER_GATHER(gather64, uint64_t)

static void gather(int32_t size, void *to, int64_t pitch, const void *from, int64_t rows,
                   int64_t row_stride, int64_t cols, int64_t col_stride) {
    if (size == 4 && cols == 3 && pitch == 3 && row_stride == 1) {
        gather_planes(to, from, rows, col_stride);
        return;
    }
    (size == 1   ? gather8
     : size == 2 ? gather16
     : size == 4 ? gather32
                 : gather64)(to, pitch, from, rows, row_stride, cols, col_stride);
}

/* Returns the offset of the input's row r, in elements. */
static int64_t row_offset(const taper_program *p, const program_input *in, int64_t r) {
    int64_t offset = 0;
    for (int32_t d = p->outer - 1; d > 0 && r > 0; d--) {
        offset += r % p->sizes[d] * in->strides[d];
        r /= p->sizes[d];
    }
    return offset + r * in->strides[0];
}

/* Packs rows r..r+rows of the input into its register: one strided copy per run of the innermost
 * outer dim. */
static void gather_rows(const taper_program *p, const program_input *in, const char *data, char *to,
                        int64_t r, int64_t rows) {
    const int64_t run = p->sizes[p->outer - 1];
    while (rows > 0) {
        const int64_t n = i64_min(rows, run - r % run);
        gather(in->size, to, p->cols, data + row_offset(p, in, r) * in->size, n, row_stride(p, in),
               p->cols, in->col_stride);
        to += n * p->cols * in->size;
        r += n;
        rows -= n;
    }
}

static bool run_flat(const taper_program *p, program_frame *frame, const taper_tensor *tensors,
                     int64_t r0, int64_t r1, const char *product, char *block, char *scratch) {
    const int64_t rows_per_tile = p->tile / p->cols;
    for (int64_t r = r0; r < r1; r += rows_per_tile) {
        const int64_t rows = i64_min(rows_per_tile, r1 - r);
        frame->out = block + (r - r0) * p->cols * p->output_size;
        if (p->first)
            frame->slot[0] = (program_operand){product + (r - r0) * p->cols * p->product_size, 1};
        for (int32_t i = p->first; i < p->n_inputs; i++) {
            const program_input *in = &p->inputs[i];
            const char *data = tensors[i - p->first].data;
            if (in->flat)
                frame->slot[i] = (program_operand){data + r * p->cols * in->size, 1};
            else if (is_one_element(in))
                frame->slot[i] = (program_operand){data, 0};
            else {
                if (r == r0 || !in->every_row) /* an input that is the same in every row stays */
                    gather_rows(p, in, data, scratch + in->gather, r, rows);
                frame->slot[i] = (program_operand){scratch + in->gather, 1};
            }
        }
        if (!run_tile(p, frame, rows * p->cols, true))
            return false;
    }
    return true;
}

/* Returns the columns of a tile. Without tile registers nothing has to stay in L1. */
static int64_t tile_cols(const taper_program *p, int64_t cols) {
    return p->scratch_bytes ? i64_min(cols, p->tile) : cols;
}

/* Returns how many of the rows from r on, at most `rows`, run_rows computes at once: they are
 * evenly spaced in every operand, and no more than the register of a gathered operand holds. Rows
 * of several tiles are computed one by one, so that memory is accessed in order. */
static int64_t rows_at_once(const taper_program *p, int64_t r, int64_t rows, int64_t cols) {
    if (p->outer == 0 || (p->gather_rows == 0 && tile_cols(p, cols) < cols))
        return 1;
    const int64_t run = p->sizes[p->outer - 1];
    rows = i64_min(rows, run - r % run);
    return p->gather_rows ? i64_min(rows, p->gather_rows) : rows;
}

static bool run_rows(const taper_program *p, program_frame *frame, const taper_tensor *tensors,
                     int64_t r, int64_t rows, int64_t c0, int64_t c1, const char *product,
                     int64_t ldp, char *block, int64_t ldc, char *scratch) {
    const char *data[PROGRAM_MAX_INPUTS];
    for (int32_t i = p->first; i < p->n_inputs; i++) {
        const program_input *in = &p->inputs[i];
        data[i] = (const char *)tensors[i - p->first].data + row_offset(p, in, r) * in->size;
    }
    const int64_t tile = tile_cols(p, c1 - c0), pitch = p->tile + PROGRAM_GATHER_MORE;
    for (int64_t c = c0; c < c1; c += tile) {
        const int64_t n = i64_min(tile, c1 - c);
        const char *from[PROGRAM_MAX_INPUTS];
        int64_t step[PROGRAM_MAX_INPUTS];
        for (int32_t i = p->first; i < p->n_inputs; i++) {
            const program_input *in = &p->inputs[i];
            from[i] = data[i] + c * in->col_stride * in->size;
            step[i] = row_stride(p, in) * in->size;
            frame->slot[i].step = in->col_stride != 0;
            if (is_strided(in)) {
                gather(in->size, scratch + in->gather, pitch, from[i], rows, row_stride(p, in), n,
                       in->col_stride);
                from[i] = scratch + in->gather;
                step[i] = pitch * in->size;
            }
        }
        for (int64_t k = 0; k < rows; k++) {
            frame->out = block + (k * ldc + c - c0) * p->output_size;
            if (p->first)
                frame->slot[0] =
                    (program_operand){product + (k * ldp + c - c0) * p->product_size, 1};
            for (int32_t i = p->first; i < p->n_inputs; i++)
                frame->slot[i].data = from[i] + k * step[i];
            if (!run_tile(p, frame, n, false))
                return false;
        }
    }
    return true;
}

/* Computes a panel of rows that are evenly spaced in every operand: n columns from c on. inputs: at
 * the first row, and at column 0; a product at column c0. */
static bool run_panel(const taper_program *p, const chain_operand *inputs, int64_t rows, int64_t c0,
                      int64_t c, int64_t n, char *out, int64_t out_row, char *scratch) {
    const int32_t last = p->count - 1;
    for (int32_t j = 0; j <= last; j++) {
        const program_instruction *instruction = &p->code[j];
        const bool direct = j == last && instruction->steps;
        char *const result = scratch + (size_t)instruction->reg * p->register_bytes;
        chain_operand in[PROGRAM_MAX_OPERANDS];
        for (int k = 0; k < instruction->arity; k++) {
            const int o = instruction->operand[k];
            if (o < RESULT_SLOT) {
                in[k] = inputs[o];
                in[k].data += in[k].step *
                              (o < p->first ? (c - c0) * p->product_size : c * p->inputs[o].size);
            } else if (o < SCALAR_SLOT) {
                const program_instruction *made = &p->code[o - RESULT_SLOT];
                in[k] = (chain_operand){scratch + (size_t)made->reg * p->register_bytes,
                                        n * made->size, 1};
            } else {
                in[k] = (chain_operand){(const char *)&p->scalars[o - SCALAR_SLOT], 0, 0};
            }
        }
        if (instruction->steps) {
            run_chain_of_panel(instruction, in, direct ? out : result,
                               direct ? out_row : n * instruction->size, rows, n);
            continue;
        }
        program_operand plain[PROGRAM_MAX_ARITY];
        for (int k = 0; k < instruction->arity; k++)
            plain[k] = (program_operand){in[k].data, in[k].step};
        if (!instruction->run(result, plain, rows * n))
            return false;
        for (int64_t r = 0; j == last && r < rows; r++)
            memcpy(out + r * out_row, result + r * n * p->output_size,
                   (size_t)(n * p->output_size));
    }
    return true;
}

static bool run_panels(const taper_program *p, const taper_tensor *tensors, int64_t r0, int64_t r1,
                       int64_t c0, int64_t c1, const char *product, int64_t ldp, char *block,
                       int64_t ldc, char *scratch) {
    const int64_t run = p->sizes[p->outer - 1];
    const int64_t most = p->count > 1 ? p->tile / PROGRAM_PANEL : run; /* that registers hold */
    chain_operand inputs[PROGRAM_MAX_INPUTS];
    for (int64_t r = r0, rows; r < r1; r += rows) {
        rows = i64_min(i64_min(r1 - r, most), run - r % run);
        if (p->first)
            inputs[0] = (chain_operand){product + (r - r0) * ldp * p->product_size,
                                        ldp * p->product_size, 1};
        for (int32_t i = p->first; i < p->n_inputs; i++) {
            const program_input *in = &p->inputs[i];
            inputs[i] = (chain_operand){(const char *)tensors[i - p->first].data +
                                            row_offset(p, in, r) * in->size,
                                        row_stride(p, in) * in->size, in->col_stride};
        }
        for (int64_t c = c0, n; c < c1; c += n) {
            n = i64_min(p->is_wide && c1 - c >= CHAIN_WIDE ? CHAIN_WIDE : PROGRAM_PANEL, c1 - c);
            if (!run_panel(p, inputs, rows, c0, c, n,
                           block + ((r - r0) * ldc + c - c0) * p->output_size, ldc * p->output_size,
                           scratch))
                return false;
        }
    }
    return true;
}

static bool program_run(const taper_program *p, const taper_tensor *tensors, int64_t r0, int64_t r1,
                        int64_t c0, int64_t c1, const void *sums, int64_t lds, void *out,
                        int64_t ldc, void *scratch) {
    if (p->count == 0 || r0 >= r1 || c0 >= c1)
        return true;
    if (p->in_panels && r1 - r0 >= PROGRAM_PANEL_ROWS && c1 - c0 < p->tile)
        return run_panels(p, tensors, r0, r1, c0, c1, sums, lds, out, ldc, scratch);
    const bool flat =
        may_be_flat(p) && r1 - r0 > 1 && c1 - c0 == p->cols && ldc == p->cols && lds == p->cols;
    program_frame frame;
    for (int32_t j = 0; j < p->count - 1; j++)
        frame.slot[RESULT_SLOT + j] =
            (program_operand){(char *)scratch + (size_t)p->code[j].reg * p->register_bytes,
                              !(p->uniform[flat] >> j & 1)};
    for (int32_t s = 0; s < p->n_scalars; s++)
        frame.slot[SCALAR_SLOT + s] = (program_operand){&p->scalars[s], 0};
    if (flat)
        return run_flat(p, &frame, tensors, r0, r1, sums, out, scratch);
    for (int64_t r = r0, rows; r < r1; r += rows) {
        rows = rows_at_once(p, r, r1 - r, c1 - c0);
        if (!run_rows(p, &frame, tensors, r, rows, c0, c1,
                      (const char *)sums + (r - r0) * lds * p->product_size, lds,
                      (char *)out + (r - r0) * ldc * p->output_size, ldc, scratch))
            return false;
    }
    return true;
}

/* ---- in registers of a product ---- */

#ifdef HAS_REQUANTIZED_TILES
/* Returns whether all magnitudes are below a bound, and none is NaN. */
static bool are_below(const float *p, int64_t n, float bound) {
    for (int64_t i = 0; i < n; i += V_LEN) {
        const int64_t some = i64_min(V_LEN, n - i);
        if (vm_any(vm_not(v_lt(v_abs(v_load_n(p + i, some)), v_set1(bound)))))
            return false;
    }
    return true;
}
#endif

static bool program_requantizes(const taper_program *p, const taper_tensor *tensors, int64_t r,
                                int64_t c, int64_t n, program_requantization *to) {
#ifdef HAS_REQUANTIZED_TILES
    if (!p->is_wide)
        return false;
    const program_instruction *const chain = &p->code[0];
    chain_operand in[PROGRAM_MAX_OPERANDS];
    int product = -1, others = 0; /* operands that differ from row to row */
    for (int k = 0; k < chain->arity; k++) {
        const int o = chain->operand[k];
        if (o >= SCALAR_SLOT) {
            in[k] = (chain_operand){(const char *)&p->scalars[o - SCALAR_SLOT], 0, 0};
        } else if (o < p->first) {
            in[k] = (chain_operand){NULL, 1, 1};
            product = k;
        } else {
            const program_input *const input = &p->inputs[o];
            const int64_t at = row_offset(p, input, r) + c * input->col_stride;
            in[k] = (chain_operand){(const char *)tensors[o - p->first].data + at * input->size,
                                    row_stride(p, input) * input->size, input->col_stride};
            if (!input->every_row && !input->flat)
                return false;
            others += !input->every_row;
        }
    }
    chain_requantization q;
    if (!chain_requantizes(chain, in, &q) || q.is_signed || others != (q.term != 0) ||
        !(chain->high >= 0 && chain->high <= UINT8_MAX))
        return false;
    const chain_operand *const sums = &in[product];
    const chain_operand *const scale = &sums[q.subtracts ? 2 : 1];
    const int added = q.holds ? 3 - product : q.term;
    *to = (program_requantization){
        .kind = q.holds  ? REQUANTIZE_SUMS
                : q.term ? REQUANTIZE_BYTES
                         : REQUANTIZE_ALONE,
        .less = q.subtracts ? (const int32_t *)(const void *)sums[1].data : NULL,
        .factor = (const float *)(const void *)scale[0].data,
        .term = (const float *)(const void *)scale[1].data,
        .last_factor = q.factor,
        .least = q.low == 0 ? 0 : INT16_MIN,
        .shift = (int16_t)chain->shift,
        .most = (uint8_t)chain->high,
    };
    /* Sums are below 2^31: each of three terms stays below 2^28. */
    const float bound = (float)(1 << 28) / fabsf(q.factor), factors = bound / 2147483648.0f;
    if (!(q.factor > 0) || !are_below(to->factor, n, factors) || !are_below(to->term, n, bound))
        return false;
    if (q.term) {
        to->added = in[added].data;
        to->added_row = in[added].row;
    }
    if (q.holds) {
        to->added_factor = (const float *)(const void *)in[added + 1].data;
        to->added_term = (const float *)(const void *)in[added + 2].data;
        return are_below(to->added_factor, n, factors) && are_below(to->added_term, n, bound);
    }
    if (q.term) {
        if (!(fabsf(chain->less) < 1 << 20) || chain->less != nearbyintf(chain->less))
            return false;
        to->less_bytes = (int32_t)chain->less;
        to->byte_factor = chain->factor;
        return fabsf(chain->factor) * (1 << 21) < bound;
    }
    return true;
#else
    (void)p;
    (void)tensors;
    (void)r;
    (void)c;
    (void)n;
    (void)to;
    return false;
#endif
}
