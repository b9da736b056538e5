/*
 * Running a tile program over rows r0..r1 and columns c0..c1 of the output. Included by map.c.
 *
 * Row mode: tiles are pieces of one row. Operands are read in place: along the row, or one element of
 * it; other strides are gathered. Flat mode, for contiguous blocks of short rows: tiles are several
 * whole rows, read in place only where the operand is laid out like the output or is one element.
 */

typedef struct program_frame {
    program_operand slot[PROGRAM_SLOTS];
    char *out;
} program_frame;

static void fill_tile(char *out, int64_t n, int32_t size) {
    for (int64_t i = 1; i < n; i++)
        memcpy(out + i * size, out, (size_t)size);
}

/* n elements: inputs and frame->out are those of this tile. */
static void run_tile(const taper_program *p, const program_frame *frame, int64_t n, bool flat) {
    const int32_t last = p->count - 1;
    const uint64_t uniform = p->uniform[flat];
    for (int32_t j = 0; j <= last; j++) {
        const program_instruction *instruction = &p->code[j];
        program_operand in[PROGRAM_MAX_ARITY];
        for (int k = 0; k < instruction->arity; k++)
            in[k] = frame->slot[instruction->operand[k]];
        void *out = j < last ? (void *)(uintptr_t)frame->slot[RESULT_SLOT + j].data : frame->out;
        instruction->run(out, in, uniform >> j & 1 ? 1 : n);
    }
    if (uniform >> last & 1)
        fill_tile(frame->out, n, p->output_size);
}

/* to[r][c] = from[r * row_stride + c * col_stride], packed. */
#define TAPER_GATHER(name, T)                                                                      \
    static void name(void *to, const void *from, int64_t rows, int64_t row_stride, int64_t cols,   \
                     int64_t col_stride) {                                                         \
        T *t = to;                                                                                 \
        const T *f = from;                                                                         \
        for (int64_t r = 0; r < rows; r++, f += row_stride, t += cols)                             \
            for (int64_t c = 0; c < cols; c++)                                                     \
                t[c] = f[c * col_stride];                                                          \
    }
TAPER_GATHER(gather8, uint8_t)
TAPER_GATHER(gather32, uint32_t)
TAPER_GATHER(gather64, uint64_t)

static void gather(int32_t size, void *to, const void *from, int64_t rows, int64_t row_stride,
                   int64_t cols, int64_t col_stride) {
    (size == 1 ? gather8 : size == 4 ? gather32 : gather64)(to, from, rows, row_stride, cols,
                                                            col_stride);
}

/* Offset of the input's row r, in elements. */
static int64_t row_offset(const taper_program *p, const program_input *in, int64_t r) {
    int64_t offset = 0;
    for (int32_t d = p->outer - 1; d > 0 && r > 0; d--) {
        offset += r % p->sizes[d] * in->strides[d];
        r /= p->sizes[d];
    }
    return offset + r * in->strides[0];
}

/* Rows r..r+rows of the input, packed into its register: one strided copy per run of the innermost
 * outer dim. */
static void gather_rows(const taper_program *p, const program_input *in, const char *data, char *to,
                        int64_t r, int64_t rows) {
    const int64_t run = p->sizes[p->outer - 1], stride = in->strides[p->outer - 1];
    while (rows > 0) {
        const int64_t left = run - r % run, n = rows < left ? rows : left;
        gather(in->size, to, data + row_offset(p, in, r) * in->size, n, stride, p->cols,
               in->col_stride);
        to += n * p->cols * in->size;
        r += n;
        rows -= n;
    }
}

static void run_flat(const taper_program *p, program_frame *frame, const taper_tensor *tensors,
                     int64_t r0, int64_t r1, char *block, char *gathered) {
    const int64_t rows_per_tile = PROGRAM_TILE / p->cols;
    for (int64_t r = r0; r < r1; r += rows_per_tile) {
        const int64_t rows = r1 - r < rows_per_tile ? r1 - r : rows_per_tile;
        frame->out = block + (r - r0) * p->cols * p->output_size;
        if (p->first)
            frame->slot[0] = (program_operand){frame->out, 1};
        for (int32_t i = p->first; i < p->n_inputs; i++) {
            const program_input *in = &p->inputs[i];
            const char *data = tensors[i - p->first].data;
            char *reg = gathered + (size_t)(in->gather < 0 ? 0 : in->gather) * p->register_bytes;
            if (in->flat)
                frame->slot[i] = (program_operand){data + r * p->cols * in->size, 1};
            else if (is_one_element(in))
                frame->slot[i] = (program_operand){data, 0};
            else {
                if (r == r0 || !in->every_row) /* what is the same in every row stays */
                    gather_rows(p, in, data, reg, r, rows);
                frame->slot[i] = (program_operand){reg, 1};
            }
        }
        run_tile(p, frame, rows * p->cols, true);
    }
}

static void run_row(const taper_program *p, program_frame *frame, const taper_tensor *tensors,
                    int64_t r, int64_t c0, int64_t c1, char *row, char *gathered) {
    const char *data[PROGRAM_MAX_INPUTS];
    for (int32_t i = p->first; i < p->n_inputs; i++)
        data[i] = (const char *)tensors[i - p->first].data +
                  row_offset(p, &p->inputs[i], r) * p->inputs[i].size;
    /* With no register to fill there is nothing to keep in L1. */
    const int64_t tile = p->n_registers ? PROGRAM_TILE : c1 - c0;
    for (int64_t c = c0; c < c1; c += tile) {
        const int64_t n = c1 - c < tile ? c1 - c : tile;
        frame->out = row + (c - c0) * p->output_size;
        if (p->first)
            frame->slot[0] = (program_operand){frame->out, 1};
        for (int32_t i = p->first; i < p->n_inputs; i++) {
            const program_input *in = &p->inputs[i];
            const char *from = data[i] + c * in->col_stride * in->size;
            frame->slot[i] = (program_operand){from, in->col_stride};
            if (in->col_stride != 0 && in->col_stride != 1) {
                char *reg = gathered + (size_t)in->gather * p->register_bytes;
                gather(in->size, reg, from, 1, 0, n, in->col_stride);
                frame->slot[i] = (program_operand){reg, 1};
            }
        }
        run_tile(p, frame, n, false);
    }
}

static void program_run(const taper_program *p, const taper_tensor *tensors, int64_t r0, int64_t r1,
                        int64_t c0, int64_t c1, void *block, int64_t ldc, void *scratch) {
    if (p->count == 0 || r0 >= r1 || c0 >= c1)
        return;
    const bool flat = may_be_flat(p) && r1 - r0 > 1 && c1 - c0 == p->cols && ldc == p->cols;
    program_frame frame;
    for (int32_t j = 0; j < p->count - 1; j++)
        frame.slot[RESULT_SLOT + j] =
            (program_operand){(char *)scratch + (size_t)p->code[j].reg * p->register_bytes,
                              !(p->uniform[flat] >> j & 1)};
    for (int32_t s = 0; s < p->n_scalars; s++)
        frame.slot[SCALAR_SLOT + s] = (program_operand){&p->scalars[s], 0};
    if (flat)
        run_flat(p, &frame, tensors, r0, r1, block, scratch);
    else
        for (int64_t r = r0; r < r1; r++)
            run_row(p, &frame, tensors, r, c0, c1, (char *)block + (r - r0) * ldc * p->output_size,
                    scratch);
}
