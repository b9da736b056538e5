/*
 * LSTM, GRU and RNN over a whole sequence: one run of the kernel takes all steps.
 *
 * The contribution of the input to the gates, gates[T][B][G * H], is an input of the kernel. A step
 * adds h * w_hh^T, with the tiles of the matrix product, and immediately applies the cell's
 * functions to the sums, some columns of all gates at a time. h is read where the step before has
 * written it: in its row of the output. The LSTM's c is kept in its second output, which every step
 * overwrites.
 *
 * A step is a phase of the work, and its tasks are blocks of columns and rows: no task writes what
 * another task of its step reads. A projected h needs a second product over all columns; then a
 * task is all steps of some rows of the batch.
 */
#include <string.h>

#include "common/tensor.h"
#include "gemm/engine.h"
#include "recurrent/kernels.inc"
#include "isa/isa.h"
#include "simd/math.h"

TAPER_DEFINE_ATTRS(recurrent)
TAPER_DEFINE_ATTRS(rnn)

typedef enum recurrent_cell { CELL_LSTM, CELL_GRU, CELL_TANH, CELL_RELU } recurrent_cell;

enum {
    /* Rows of the batch that are computed together, at most: three tiles, whose sums of all gates
     * stay in L1 until the cell's functions read them. */
    RECURRENT_ROWS = 3 * GEMM_MAX_MR,
    /* The smallest task, in multiply-adds: a microsecond, an eighth of MATMUL's. Steps run one
     * after the other, so that threads can share only the tasks of one step. */
    RECURRENT_TASK_COST = 1 << 16,
};

/* A block is GEMM_NR columns of h: GEMM_NR columns of each gate, panels side by side in w_hh. */
typedef struct recurrent_state {
    int64_t steps, batch, hidden;
    int64_t out;   /* columns of h: hidden, or those of its projection */
    int64_t gates; /* each of `hidden` columns */
    bool reverse, projects;
    int64_t row_chunk, row_chunks;
    int64_t blocks, block_chunk, block_chunks;
    int64_t chunks_per_task, tasks_per_step; /* not projected: [block chunk][row chunk] */
} recurrent_state;

/* ---- prepare ---- */

static bool recurrent_is(const taper_tensor *t, int32_t rank, const int64_t *shape) {
    if (t->rank != rank || t->dtype != TAPER_FLOAT32 || !tensor_is_contiguous(t))
        return false;
    return memcmp(t->shape, shape, (size_t)rank * sizeof *shape) == 0;
}

/* w: [blocks of rows][gates][columns][GEMM_NR]. */
static bool recurrent_weight(const taper_tensor *w, int64_t gates, int64_t rows, int64_t columns) {
    return recurrent_is(w, 4, (int64_t[]){i64_ceil_div(rows, GEMM_NR), gates, columns, GEMM_NR});
}

static bool recurrent_shape(recurrent_state *s, const taper_call *call, const int64_t gates) {
    const taper_tensor *x = &call->inputs[0], *h = &call->inputs[1];
    if (x->rank != 3 || h->rank != 2 || x->shape[2] % gates != 0)
        return false;
    s->steps = x->shape[0];
    s->batch = x->shape[1];
    s->hidden = x->shape[2] / gates;
    s->gates = gates;
    s->out = h->shape[1];
    return recurrent_is(x, 3, x->shape) && recurrent_is(h, 2, (int64_t[]){s->batch, s->out}) &&
           (s->projects || s->out == s->hidden) &&
           recurrent_is(call->output, 3, (int64_t[]){s->steps, s->batch, s->out});
}

static void recurrent_split(recurrent_state *s, taper_work *work) {
    s->row_chunks = i64_ceil_div(s->batch, RECURRENT_ROWS);
    s->row_chunk = i64_ceil_div(s->batch, s->row_chunks);
    /* A task has as many blocks as full tiles have panels, which gives enough independent sums and
     * cells. With many rows two panels are enough, and two blocks at most: no more, so that threads
     * get equal shares of a step. */
    const bool few = s->row_chunk <= GEMM_WIDE_MR;
    const int64_t panels = few ? GEMM_WIDE_PANELS : i64_min(GEMM_PANELS, 2),
                  cells = few ? 4 : GEMM_MAX_MR;
    s->blocks = i64_ceil_div(s->hidden, GEMM_NR);
    s->block_chunk = 1;
    while (s->block_chunk * s->gates % panels != 0 || s->block_chunk * s->row_chunk < cells)
        s->block_chunk++;
    s->block_chunks = i64_ceil_div(s->blocks, s->block_chunk);
    const int64_t lines = s->row_chunk * s->block_chunk * s->gates * GEMM_NR;
    work->scratch_bytes = (size_t)lines * sizeof(float);
    if (s->projects) {
        work->scratch_bytes += (size_t)(s->row_chunk * s->hidden) * sizeof(float);
        work->tasks = s->row_chunks;
        return;
    }
    s->chunks_per_task = i64_max(1, RECURRENT_TASK_COST / i64_max(1, lines * s->out));
    s->tasks_per_step = i64_ceil_div(s->block_chunks * s->row_chunks, s->chunks_per_task);
    work->tasks = s->steps * s->tasks_per_step;
    work->phases = s->steps;
}

static taper_status recurrent_prepare(recurrent_state *s, const taper_call *call,
                                      const int64_t gates, taper_work *work) {
    if (!recurrent_shape(s, call, gates))
        return TAPER_UNSUPPORTED;
    if (tensor_numel(call->output) == 0)
        *work = (taper_work){0};
    else
        recurrent_split(s, work);
    return TAPER_OK;
}

static bool lstm_shape(const recurrent_state *s, const taper_call *call) {
    const taper_tensor *in = call->inputs;
    const int64_t c[] = {s->batch, s->hidden};
    return recurrent_is(&in[2], 2, c) && recurrent_is(&call->output[1], 2, c) &&
           recurrent_weight(&in[3], 4, s->hidden, s->out) &&
           (!s->projects || recurrent_weight(&in[4], 1, s->out, s->hidden));
}

static taper_status f32_lstm_prepare(const taper_call *call, taper_work *work) {
    const struct recurrent_attrs *attrs = call->attrs;
    recurrent_state *s = call->state;
    const taper_tensor *in = call->inputs;
    if (call->n_inputs < 4 || call->n_inputs > 5 || call->n_outputs != 2 || in[1].rank != 2)
        return TAPER_UNSUPPORTED;
    *s = (recurrent_state){.reverse = attrs->reverse, .projects = call->n_inputs == 5};
    const taper_status status = recurrent_prepare(s, call, 4, work);
    if (status != TAPER_OK || !lstm_shape(s, call))
        return TAPER_UNSUPPORTED;
    if (work->tasks == 0 && tensor_numel(&call->output[1]) != 0) {
        if (s->steps != 0)
            return TAPER_UNSUPPORTED; /* h has no columns: only c would be computed */
        work->tasks = 1;              /* c does not change */
    }
    return TAPER_OK;
}

static taper_status f32_gru_prepare(const taper_call *call, taper_work *work) {
    const struct recurrent_attrs *attrs = call->attrs;
    recurrent_state *s = call->state;
    const taper_tensor *in = call->inputs;
    if (call->n_inputs != 4 || in[1].rank != 2)
        return TAPER_UNSUPPORTED;
    *s = (recurrent_state){.reverse = attrs->reverse};
    const taper_status status = recurrent_prepare(s, call, 3, work);
    if (status == TAPER_OK && (!recurrent_weight(&in[2], 3, s->hidden, s->hidden) ||
                               !recurrent_is(&in[3], 1, &s->hidden)))
        return TAPER_UNSUPPORTED;
    return status;
}

static taper_status f32_rnn_prepare(const taper_call *call, taper_work *work) {
    const struct rnn_attrs *attrs = call->attrs;
    recurrent_state *s = call->state;
    const taper_tensor *in = call->inputs;
    if (call->n_inputs != 3 || in[1].rank != 2 ||
        (strcmp(attrs->activation, "tanh") != 0 && strcmp(attrs->activation, "relu") != 0))
        return TAPER_UNSUPPORTED;
    *s = (recurrent_state){.reverse = attrs->reverse};
    const taper_status status = recurrent_prepare(s, call, 1, work);
    if (status == TAPER_OK && !recurrent_weight(&in[2], 1, s->hidden, s->hidden))
        return TAPER_UNSUPPORTED;
    return status;
}

/* ---- run ---- */

/* Some rows of a matrix. */
typedef struct recurrent_rows {
    float *data;
    int64_t stride;
} recurrent_rows;

/* The data of some rows of the batch at one step. */
typedef struct recurrent_step {
    const float *gates;          /* [rows][G * H] */
    recurrent_rows h, c;         /* before the step; c: LSTM */
    recurrent_rows new_h, new_c; /* new_h: before its projection */
    int64_t rows;
} recurrent_step;

static recurrent_step recurrent_at(const recurrent_state *s, const taper_call *call, int64_t n,
                                   int64_t row, int64_t rows) {
    const int64_t last = s->steps - 1, t = s->reverse ? last - n : n;
    const int64_t row_of_t = t * s->batch + row;
    float *output = (float *)call->output->data + row_of_t * s->out;
    recurrent_step at = {.gates =
                             (const float *)call->inputs[0].data + row_of_t * s->gates * s->hidden,
                         .h = {(float *)call->inputs[1].data + row * s->out, s->out},
                         .new_h = {output, s->out},
                         .rows = rows};
    if (n > 0)
        at.h.data = output + (s->reverse ? 1 : -1) * s->batch * s->out;
    if (call->n_outputs == 2) {
        const taper_tensor *c = n > 0 ? &call->output[1] : &call->inputs[2];
        at.c = (recurrent_rows){(float *)c->data + row * s->hidden, s->hidden};
        at.new_c = (recurrent_rows){(float *)call->output[1].data + row * s->hidden, s->hidden};
    }
    return at;
}

V_INLINE vf recurrent_load(const float *p, int64_t lanes) {
    return lanes < V_LEN ? v_load_n(p, lanes) : v_load(p);
}
V_INLINE void recurrent_store(float *p, vf a, int64_t lanes) {
    if (lanes < V_LEN)
        v_store_n(p, a, lanes);
    else
        v_store(p, a);
}

/* Returns what the input and h add to a gate. */
V_INLINE vf recurrent_gate(const float *given, const float *sum, int64_t lanes) {
    return v_add(recurrent_load(given, lanes), v_load(sum));
}

/* Computes one half of the cell, columns [j, j + lanes) of one row; sum: h * w_hh^T, with gates
 * GEMM_NR apart. The LSTM's first half ends with c, the GRU's with the argument of tanh; both
 * replace their sum. */
V_INLINE void recurrent_cell_row(const recurrent_cell cell, const int half,
                                 const recurrent_step *at, int64_t row, int64_t j, int64_t hidden,
                                 int64_t lanes, float *sum, const float *b_hn) {
    const int gates = cell == CELL_LSTM ? 4 : cell == CELL_GRU ? 3 : 1;
    const float *x = at->gates + row * gates * hidden + j;
    float *new_h = at->new_h.data + row * at->new_h.stride + j;
    if (cell == CELL_LSTM) {
        float *new_c = at->new_c.data + row * at->new_c.stride + j;
        if (half == 0) {
            const vf c = recurrent_load(at->c.data + row * at->c.stride + j, lanes);
            const vf more = v_mul(v_sigmoid(recurrent_gate(x, sum, lanes)),
                                  v_tanh(recurrent_gate(x + 2 * hidden, sum + 2 * GEMM_NR, lanes)));
            recurrent_store(
                new_c, v_fma(v_sigmoid(recurrent_gate(x + hidden, sum + GEMM_NR, lanes)), c, more),
                lanes);
        } else {
            const vf c = recurrent_load(new_c, lanes);
            recurrent_store(
                new_h,
                v_mul(v_sigmoid(recurrent_gate(x + 3 * hidden, sum + 3 * GEMM_NR, lanes)),
                      v_tanh(c)),
                lanes);
        }
    } else if (cell == CELL_GRU) {
        float *own = sum + 2 * GEMM_NR;
        if (half == 0) {
            const vf share = v_add(v_load(own), recurrent_load(b_hn + j, lanes));
            const vf given = recurrent_load(x + 2 * hidden, lanes);
            v_store(own, v_fma(v_sigmoid(recurrent_gate(x, sum, lanes)), share, given));
        } else {
            const vf h = recurrent_load(at->h.data + row * at->h.stride + j, lanes);
            const vf update = v_sigmoid(recurrent_gate(x + hidden, sum + GEMM_NR, lanes)),
                     next = v_tanh(v_load(own));
            recurrent_store(new_h, v_fma(update, h, v_fnma(update, next, next)), lanes);
        }
    } else if (half == 1) {
        const vf y = recurrent_gate(x, sum, lanes);
        /* v_max returns its second operand where one is NaN */
        recurrent_store(new_h, cell == CELL_RELU ? v_max(v_zero(), y) : v_tanh(y), lanes);
    }
}

/* While the sums are computed, this prefetches to L2 what the cells of some blocks read beside the
 * sums. w_hh passes through L1 meanwhile and would evict it there. */
V_INLINE void recurrent_fetch(const recurrent_step *at, int64_t column, int64_t blocks,
                              int64_t hidden, const int gates, const bool lstm) {
    for (int64_t row = 0; row < at->rows; row++)
        for (int64_t j = column; j < column + blocks * GEMM_NR; j += GEMM_NR) {
            for (int g = 0; g < gates; g++)
                __builtin_prefetch(at->gates + (row * gates + g) * hidden + j, 0, 2);
            if (lstm)
                __builtin_prefetch(at->c.data + row * at->c.stride + j, 0, 2);
        }
}

/* Computes one step of some rows in some blocks of columns. sums: [rows][blocks][gates][GEMM_NR].
 */
V_INLINE void recurrent_blocks(const recurrent_cell cell, const recurrent_state *s,
                               const taper_call *call, const recurrent_step *at, int64_t chunk,
                               float *sums) {
    const bool lstm = cell == CELL_LSTM;
    const int gates = lstm ? 4 : cell == CELL_GRU ? 3 : 1;
    const int64_t first = chunk * s->block_chunk,
                  blocks = i64_min(s->block_chunk, s->blocks - first);
    const int64_t block_width = gates * GEMM_NR, ldc = blocks * block_width;
    recurrent_fetch(at, first * GEMM_NR, blocks, s->hidden, gates, lstm);
    const float *w = (const float *)call->inputs[lstm ? 3 : 2].data + first * block_width * s->out;
    gemm_f32_block(at->rows, ldc, s->out, at->h.data, at->h.stride, 1, w, 1.0f, sums, ldc, false);
    const float *b_hn = cell == CELL_GRU ? call->inputs[3].data : NULL;
    /* The cell is computed in two halves: a whole cell is one chain of dependent instructions, but
     * halves of several rows are short enough that a CPU overlaps them. */
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t j = (first + b) * GEMM_NR, columns = i64_min(GEMM_NR, s->hidden - j);
            for (int64_t row = 0; row < at->rows; row++)
                for (int64_t v = 0; v < columns; v += V_LEN)
                    recurrent_cell_row(cell, half, at, row, j + v, s->hidden,
                                       i64_min(V_LEN, columns - v),
                                       sums + row * ldc + b * block_width + v, b_hn);
        }
}

/* Computes the blocks of one kind of cell. */
typedef void recurrent_blocks_fn(const recurrent_state *s, const taper_call *call,
                                 const recurrent_step *at, int64_t chunk, float *sums);

#define RECURRENT_BLOCKS(name, cell)                                                               \
    static void name##_blocks(const recurrent_state *s, const taper_call *call,                    \
                              const recurrent_step *at, int64_t chunk, float *sums) {              \
        recurrent_blocks(cell, s, call, at, chunk, sums);                                          \
    }
RECURRENT_BLOCKS(lstm, CELL_LSTM)
RECURRENT_BLOCKS(gru, CELL_GRU)
RECURRENT_BLOCKS(tanh, CELL_TANH)
RECURRENT_BLOCKS(relu, CELL_RELU)

/* Runs tasks of one step, and of the steps after it. */
static void recurrent_steps(recurrent_blocks_fn *blocks, const taper_call *call, int64_t begin,
                            int64_t end, float *sums) {
    const recurrent_state *s = call->state;
    while (begin < end) {
        const int64_t n = begin / s->tasks_per_step, task = begin % s->tasks_per_step;
        const int64_t tasks = i64_min(end - begin, s->tasks_per_step - task);
        const int64_t first = task * s->chunks_per_task,
                      last = i64_min(s->block_chunks * s->row_chunks,
                                     (task + tasks) * s->chunks_per_task);
        for (int64_t i = first; i < last; i++) {
            /* The order alternates between steps: what a step has read last is still in cache. */
            const int64_t chunk = n % 2 == 0 ? i : first + last - 1 - i;
            const int64_t row = chunk % s->row_chunks * s->row_chunk;
            const recurrent_step at =
                recurrent_at(s, call, n, row, i64_min(s->row_chunk, s->batch - row));
            blocks(s, call, &at, chunk / s->row_chunks, sums);
        }
        begin += tasks;
    }
}

/* Computes all steps of some rows with a projected h: h = (o tanh(c)) w_hr^T. */
static void recurrent_projected(const taper_call *call, int64_t chunk, float *sums) {
    const recurrent_state *s = call->state;
    const int64_t row = chunk * s->row_chunk, rows = i64_min(s->row_chunk, s->batch - row);
    float *const h = sums + s->row_chunk * s->block_chunk * s->gates * GEMM_NR;
    for (int64_t n = 0; n < s->steps; n++) {
        recurrent_step at = recurrent_at(s, call, n, row, rows);
        const recurrent_rows projected = at.new_h;
        at.new_h = (recurrent_rows){h, s->hidden};
        for (int64_t i = 0; i < s->block_chunks; i++)
            lstm_blocks(s, call, &at, i, sums);
        gemm_f32_block(rows, s->out, s->hidden, h, s->hidden, 1, call->inputs[4].data, 1.0f,
                       projected.data, projected.stride, false);
    }
}

static taper_status f32_lstm_run(const taper_call *call, int64_t begin, int64_t end,
                                 void *scratch) {
    const recurrent_state *s = call->state;
    if (s->steps == 0)
        memcpy(call->output[1].data, call->inputs[2].data,
               (size_t)(s->batch * s->hidden) * sizeof(float));
    else if (!s->projects)
        recurrent_steps(lstm_blocks, call, begin, end, scratch);
    else
        for (int64_t chunk = begin; chunk < end; chunk++)
            recurrent_projected(call, chunk, scratch);
    return TAPER_OK;
}

static taper_status f32_gru_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    recurrent_steps(gru_blocks, call, begin, end, scratch);
    return TAPER_OK;
}

static taper_status f32_rnn_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct rnn_attrs *attrs = call->attrs;
    const bool relu = strcmp(attrs->activation, "relu") == 0;
    recurrent_steps(relu ? relu_blocks : tanh_blocks, call, begin, end, scratch);
    return TAPER_OK;
}

#define TAPER_KERNEL_ROWS
static const taper_kernel recurrent_kernels[] = {
#include "recurrent/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_recurrent);
const taper_family TAPER_ISA_SYM(taper_recurrent) = {TAPER_ROWS(recurrent_kernels)};
