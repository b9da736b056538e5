/*
 * COMPLEX_MUL: products of complex numbers, real and imaginary part side by side along the last
 * dimension. Inputs have any strides; the output may take over the memory of one of them, as a
 * number is read before it is written.
 */
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

/* Stride of dimension d of the output in an input, 0 where it broadcasts; false if it cannot. */
static bool complex_stride(const taper_tensor *x, const taper_tensor *y, int32_t d,
                           int64_t *stride) {
    const int32_t at = d - (y->rank - x->rank);
    *stride = 0;
    if (at < 0 || x->shape[at] == 1)
        return true;
    *stride = x->strides[at];
    return x->shape[at] == y->shape[d];
}

static taper_status complex_prepare(const taper_call *call, taper_work *work) {
    const taper_tensor *y = call->output;
    struct complex_state *s = call->state;
    if (call->n_inputs != 2 || y->rank < 1 || y->shape[y->rank - 1] != 2 ||
        !tensor_is_contiguous(y))
        return TAPER_UNSUPPORTED;
    /* Dims of the output, of which the last is the row; neighbours that both inputs step through
     * as one are merged. */
    int64_t sizes[TAPER_MAX_RANK], strides[2][TAPER_MAX_RANK];
    int32_t n = 0;
    for (int32_t d = 0; d < y->rank - 1; d++) {
        int64_t step[2];
        for (int32_t i = 0; i < 2; i++)
            if (call->inputs[i].rank > y->rank ||
                !complex_stride(&call->inputs[i], y, d, &step[i]))
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

/* n numbers: y is contiguous, a and b step as their operands say. */
typedef void complex_row(void *y, const void *a, const void *b, int64_t n,
                         const struct complex_operand *pa, const struct complex_operand *pb);

#define COMPLEX_ROW(name, T)                                                                       \
    static void name(void *out, const void *left, const void *right, int64_t n,                    \
                     const struct complex_operand *pa, const struct complex_operand *pb) {         \
        T *y = out;                                                                                \
        const T *a = left, *b = right;                                                             \
        for (int64_t i = 0; i < n; i++, a += pa->step, b += pb->step, y += 2) {                    \
            const T ar = a[0], ai = a[pa->part], br = b[0], bi = b[pb->part];                      \
            y[0] = ar * br - ai * bi;                                                              \
            y[1] = ai * br + ar * bi;                                                              \
        }                                                                                          \
    }
COMPLEX_ROW(f32_any_row, float)
COMPLEX_ROW(f64_any_row, double)

/* V_LEN / 2 numbers: (ar, ai) br + (-ai, ar) bi. */
V_INLINE vf complex_product(vf a, vf b, vi real, vi imag, vi swap, vf sign) {
    const vf turned = v_xor_sign(v_permute(a, swap), sign);
    return v_fma(a, v_permute(b, real), v_mul(turned, v_permute(b, imag)));
}

/* The same with numbers side by side, or one number for the whole row. */
static void f32_row(void *out, const void *left, const void *right, int64_t n,
                    const struct complex_operand *pa, const struct complex_operand *pb) {
    if (pa->part != 1 || pb->part != 1 || (pa->step != 2 && pb->step != 2) ||
        (pa->step != 2 && pa->step != 0) || (pb->step != 2 && pb->step != 0)) {
        f32_any_row(out, left, right, n, pa, pb);
        return;
    }
    const bool swapped = pa->step == 0; /* the one number second */
    const float *a = swapped ? right : left, *b = swapped ? left : right;
    const bool spread = pa->step == 0 || pb->step == 0;
    float *y = out;
    int32_t real[V_LEN], imag[V_LEN], swap[V_LEN];
    float sign[V_LEN];
    for (int32_t i = 0; i < V_LEN; i++) {
        real[i] = i & ~1;
        imag[i] = i | 1;
        swap[i] = i ^ 1;
        sign[i] = i & 1 ? 1.0f : -1.0f;
    }
    const vi re = vi_load(real), im = vi_load(imag), other = vi_load(swap);
    const vf signs = v_load(sign);
    float one[V_LEN];
    for (int32_t i = 0; i < V_LEN && spread; i++)
        one[i] = b[i & 1];
    const vf number = spread ? v_load(one) : v_zero();
    int64_t i = 0;
    for (; i + V_LEN <= 2 * n; i += V_LEN)
        v_store(y + i, complex_product(v_load(a + i), spread ? number : v_load(b + i), re, im,
                                       other, signs));
    if (i < 2 * n) {
        const int64_t rest = 2 * n - i;
        v_store_n(y + i,
                  complex_product(v_load_n(a + i, rest), spread ? number : v_load_n(b + i, rest),
                                  re, im, other, signs),
                  rest);
    }
}

/* Tasks [begin, end): runs of whole rows, or parts of one. */
static taper_status complex_run(const taper_call *call, int64_t begin, int64_t end,
                                complex_row *row, int64_t size) {
    const struct complex_state *s = call->state;
    const int64_t parts = i64_ceil_div(s->cols, s->cols_per_task);
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
            row((char *)call->output->data + (r * s->cols + col) * 2 * size,
                (const char *)call->inputs[0].data + at[0] * size,
                (const char *)call->inputs[1].data + at[1] * size, n, &s->operands[0],
                &s->operands[1]);
        }
    }
    return TAPER_OK;
}

static taper_status f32_complex_mul_prepare(const taper_call *call, taper_work *work) {
    return complex_prepare(call, work);
}
static taper_status f32_complex_mul_run(const taper_call *call, int64_t begin, int64_t end,
                                        void *scratch) {
    (void)scratch;
    return complex_run(call, begin, end, f32_row, sizeof(float));
}
static taper_status f64_complex_mul_prepare(const taper_call *call, taper_work *work) {
    return complex_prepare(call, work);
}
static taper_status f64_complex_mul_run(const taper_call *call, int64_t begin, int64_t end,
                                        void *scratch) {
    (void)scratch;
    return complex_run(call, begin, end, f64_any_row, sizeof(double));
}

#define TAPER_KERNEL_ROWS
static const taper_kernel complex_kernels[] = {
#include "complex/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_complex);
const taper_family TAPER_ISA_SYM(taper_complex) = {
    complex_kernels, sizeof complex_kernels / sizeof complex_kernels[0]};
