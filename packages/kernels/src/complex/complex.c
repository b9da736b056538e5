/*
 * COMPLEX_MUL: products of complex numbers, whose real and imaginary parts are adjacent along the
 * last dimension. Inputs have any strides; the output may take over the memory of an input, because
 * a number is read before it is written.
 */
#include <string.h>

#include "common/tensor.h"
#include "complex/kernels.inc"
#include "isa/isa.h"
#include "simd/simd.h"

enum { COMPLEX_COST = 2 }; /* of a number, in elements of a TASK_COST */

/* The strides of one input, in elements. */
struct complex_operand {
    int64_t outer[TAPER_MAX_RANK]; /* [outer dims] */
    int64_t step;                  /* from number to number of a row */
    int64_t part;                  /* from the real to the imaginary part */
};

/* The output is [rows][cols] numbers; the rows are those of the outer dims. */
struct complex_state {
    int64_t rows, cols;
    int64_t sizes[TAPER_MAX_RANK]; /* [outer dims] */
    int32_t outer;
    int64_t rows_per_task;
    int64_t cols_per_task; /* where a task is a part of a row */
    struct complex_operand operands[2];
};

/* Writes an input's stride along dimension d of the output, 0 where it broadcasts; returns false if
 * it cannot broadcast. */
static bool complex_stride(const taper_tensor *x, const taper_tensor *y, int32_t d,
                           int64_t *stride) {
    const int32_t at = d - (y->rank - x->rank);
    *stride = 0;
    if (at < 0 || x->shape[at] == 1)
        return true;
    *stride = x->strides[at];
    return x->shape[at] == y->shape[d];
}

static taper_status f32_complex_mul_prepare(const taper_call *call, taper_work *work) {
    const taper_tensor *y = call->output;
    struct complex_state *s = call->state;
    if (call->n_inputs != 2 || y->rank < 1 || y->shape[y->rank - 1] != 2 ||
        !tensor_is_contiguous(y))
        return TAPER_UNSUPPORTED;
    /* Writes the dims of the output, the last of which is the row. Adjacent dims that have one
     * common stride in both inputs are merged. */
    int64_t sizes[TAPER_MAX_RANK], strides[2][TAPER_MAX_RANK];
    int32_t n = 0;
    for (int32_t d = 0; d < y->rank - 1; d++) {
        int64_t step[2];
        for (int32_t i = 0; i < 2; i++)
            if (call->inputs[i].rank > y->rank || !complex_stride(&call->inputs[i], y, d, &step[i]))
                return TAPER_UNSUPPORTED;
        if (y->shape[d] == 1)
            continue;
        const bool merge = n > 0 && strides[0][n - 1] == step[0] * y->shape[d] &&
                           strides[1][n - 1] == step[1] * y->shape[d];
        n -= merge;
        sizes[n] = merge ? sizes[n] * y->shape[d] : y->shape[d];
        strides[0][n] = step[0];
        strides[1][n] = step[1];
        n++;
    }
    *s = (struct complex_state){.rows = 1, .cols = n > 0 ? sizes[n - 1] : 1};
    s->outer = n > 0 ? n - 1 : 0;
    for (int32_t i = 0; i < 2; i++) {
        const taper_tensor *x = &call->inputs[i];
        if (x->rank < 1 || x->shape[x->rank - 1] != 2 || x->dtype != y->dtype)
            return TAPER_UNSUPPORTED;
        s->operands[i].part = x->strides[x->rank - 1];
        s->operands[i].step = n > 0 ? strides[i][n - 1] : 0;
        for (int32_t d = 0; d < s->outer; d++)
            s->operands[i].outer[d] = strides[i][d];
    }
    for (int32_t d = 0; d < s->outer; d++) {
        s->sizes[d] = sizes[d];
        s->rows *= sizes[d];
    }
    s->cols_per_task = i64_min(s->cols, rows_per_task(COMPLEX_COST));
    s->rows_per_task = rows_per_task(COMPLEX_COST * s->cols);
    const bool is_empty = s->rows * s->cols == 0;
    *work = (taper_work){.tasks = is_empty ? 0
                                           : i64_ceil_div(s->rows, s->rows_per_task) *
                                                 i64_ceil_div(s->cols, s->cols_per_task)};
    return TAPER_OK;
}

/* The numbers of a vector as integers, whose lower half is the real part. Shifts of these take less
 * than permutations of all lanes. */
typedef uint64_t complex_vector __attribute__((vector_size(V_LEN * sizeof(float))));

V_INLINE vf complex_floats(complex_vector numbers) {
    vf a;
    memcpy(&a, &numbers, sizeof a);
    return a;
}

/* (ar, ai) br + (-ai, ar) bi. */
V_INLINE vf complex_product(vf a, vf b) {
    const complex_vector minus = (complex_vector){0} + ((uint64_t)1 << 31), /* of a real part */
        low = (complex_vector){0} + UINT32_MAX;
    complex_vector x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    const vf real = complex_floats((y & low) | y << 32),
             imag = complex_floats((y & ~low) | y >> 32);
    const vf turned = complex_floats((x << 32 | x >> 32) ^ minus);
    return v_fma(a, real, v_mul(turned, imag));
}

/* Loads the first `count` numbers of a row, at most V_LEN / 2. */
V_INLINE vf complex_load(const float *x, const struct complex_operand *p, int64_t count) {
    if (p->part == 1 && p->step == 2)
        return 2 * count == V_LEN ? v_load(x) : v_load_n(x, 2 * count);
    float lanes[V_LEN] = {0};
    for (int64_t i = 0; i < count; i++) {
        lanes[2 * i] = x[i * p->step];
        lanes[2 * i + 1] = x[i * p->step + p->part];
    }
    return v_load(lanes);
}

/* Multiplies n numbers: y is contiguous, a and b have the strides of their operands. */
V_INLINE void complex_row_of(float *y, const float *a, const float *b, int64_t n,
                             const struct complex_operand *pa, const struct complex_operand *pb) {
    for (int64_t i = 0; i < n; i += V_LEN / 2) {
        const int64_t count = i64_min(V_LEN / 2, n - i);
        const vf product = complex_product(complex_load(a + i * pa->step, pa, count),
                                           complex_load(b + i * pb->step, pb, count));
        if (2 * count == V_LEN)
            v_store(y + 2 * i, product);
        else
            v_store_n(y + 2 * i, product, 2 * count);
    }
}

static void complex_row(float *y, const float *a, const float *b, int64_t n,
                        const struct complex_operand *pa, const struct complex_operand *pb) {
    const struct complex_operand one = {.step = 2, .part = 1};
    if (pa->part == 1 && pa->step == 2 && pb->part == 1 && pb->step == 2)
        complex_row_of(y, a, b, n, &one, &one);
    else
        complex_row_of(y, a, b, n, pa, pb);
}

/* A task is some whole rows, or a part of one. */
static taper_status f32_complex_mul_run(const taper_call *call, int64_t begin, int64_t end,
                                        void *scratch) {
    const struct complex_state *s = call->state;
    const int64_t parts = i64_ceil_div(s->cols, s->cols_per_task);
    (void)scratch;
    for (int64_t task = begin; task < end; task++) {
        const int64_t first = task / parts * s->rows_per_task;
        const int64_t last = i64_min(first + s->rows_per_task, s->rows);
        const int64_t col = task % parts * s->cols_per_task;
        const int64_t n = i64_min(s->cols_per_task, s->cols - col);
        for (int64_t r = first; r < last; r++) {
            int64_t at[2] = {col * s->operands[0].step, col * s->operands[1].step};
            int64_t rest = r;
            for (int32_t d = s->outer - 1; d >= 0; d--) {
                const int64_t index = rest % s->sizes[d];
                rest /= s->sizes[d];
                at[0] += index * s->operands[0].outer[d];
                at[1] += index * s->operands[1].outer[d];
            }
            complex_row((float *)call->output->data + (r * s->cols + col) * 2,
                        (const float *)call->inputs[0].data + at[0],
                        (const float *)call->inputs[1].data + at[1], n, &s->operands[0],
                        &s->operands[1]);
        }
    }
    return TAPER_OK;
}

#define TAPER_KERNEL_ROWS
static const taper_kernel complex_kernels[] = {
#include "complex/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_complex);
const taper_family TAPER_ISA_SYM(taper_complex) = {TAPER_ROWS(complex_kernels)};
