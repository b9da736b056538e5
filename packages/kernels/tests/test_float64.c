/* Compares MATMUL, CONV and CONV_TRANSPOSE of float64 with sums in another order. */
#include <math.h>

#include "check.h"
#include "conv/kernels.inc"
#include "gemm/kernels.inc"

CHECK_ATTRS(matmul)
CHECK_ATTRS(conv)

/* Random numbers whose sums of products are exact in any order. */
static taper_tensor make_doubles(int rank, const int64_t *dims) {
    taper_tensor x = check_tensor(NULL, TAPER_FLOAT64, rank, dims);
    const int64_t n = check_numel(&x);
    double *data = x.data = check_alloc((size_t)n * sizeof *data, 0);
    for (int64_t i = 0; i < n; i++)
        data[i] = (double)check_int(-1000, 1000) / 64;
    return x;
}

static void check_sum(const taper_tensor *y, int64_t at, double want) {
    const double got = ((const double *)y->data)[at];
    CHECK(got == want, "element %lld: %g, not %g", (long long)at, got, want);
}

static void products(void) {
    static const int64_t sizes[][3] = {{1, 1, 1},   {3, 0, 5},      {1, 300, 7},   {9, 257, 8},
                                       {8, 40, 33}, {70, 300, 140}, {130, 20, 129}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int transposed = 0; transposed < 2; transposed++) {
            const int64_t m = sizes[i][0], k = sizes[i][1], n = sizes[i][2];
            const int64_t b_dims[2] = {transposed ? n : k, transposed ? k : n};
            taper_tensor inputs[] = {make_doubles(2, (int64_t[]){m, k}), make_doubles(2, b_dims)};
            taper_tensor y = make_doubles(2, (int64_t[]){m, n});
            const struct matmul_attrs attrs = {.alpha = 0.5, .transpose_b = transposed};
            check_threads("MATMUL", NULL, inputs, 2, &y, &attrs);
            const double *a = inputs[0].data, *b = inputs[1].data;
            for (int64_t e = 0; e < m * n; e++) {
                const int64_t row = e / n, col = e % n;
                double want = 0;
                for (int64_t j = k - 1; j >= 0; j--)
                    want += a[row * k + j] * b[transposed ? col * k + j : j * n + col];
                check_sum(&y, e, want * 0.5);
            }
            check_free(inputs[0].data);
            check_free(inputs[1].data);
            check_free(y.data);
        }
}

/* Of square images, kernels, strides, dilations and paddings. */
typedef struct convolution {
    int64_t batch, size, channels, outputs, groups, kernel, stride, dilation, padding;
} convolution;

static void check_convolution(const convolution *c, bool transposed) {
    const int64_t reach = c->dilation * (c->kernel - 1), in = c->channels / c->groups;
    const int64_t side = transposed ? (c->size - 1) * c->stride + reach + 1 - 2 * c->padding
                                    : (c->size + 2 * c->padding - reach - 1) / c->stride + 1;
    taper_tensor inputs[] = {make_doubles(4, (int64_t[]){c->batch, c->size, c->size, c->channels}),
                             make_doubles(4, (int64_t[]){c->kernel, c->kernel, in, c->outputs})};
    taper_tensor y = make_doubles(4, (int64_t[]){c->batch, side, side, c->outputs});
    const int64_t two[] = {c->kernel, c->kernel, c->stride, c->stride, c->dilation, c->dilation},
                  padding[] = {c->padding, c->padding, c->padding, c->padding};
    const struct conv_attrs attrs = {.kernel = {two, 2},
                                     .stride = {two + 2, 2},
                                     .padding = {padding, 4},
                                     .dilation = {two + 4, 2},
                                     .groups = c->groups,
                                     .accumulate = ""};
    check_threads(transposed ? "CONV_TRANSPOSE" : "CONV", NULL, inputs, 2, &y, &attrs);
    const double *x = inputs[0].data, *w = inputs[1].data;
    for (int64_t e = 0; e < check_numel(&y); e++) {
        const int64_t o = e % c->outputs, pixel = e / c->outputs;
        const int64_t at[] = {pixel / side % side, pixel % side}, image = pixel / side / side;
        const int64_t group = o / (c->outputs / c->groups);
        double want = 0;
        for (int64_t t = c->kernel * c->kernel - 1; t >= 0; t--) {
            const int64_t tap[] = {t / c->kernel, t % c->kernel};
            int64_t from[2];
            bool inside = true;
            for (int d = 0; d < 2; d++) {
                const int64_t moved = transposed
                                          ? at[d] + c->padding - tap[d] * c->dilation
                                          : at[d] * c->stride - c->padding + tap[d] * c->dilation;
                from[d] = transposed ? moved / c->stride : moved;
                inside = inside && moved >= 0 && from[d] < c->size &&
                         (!transposed || moved % c->stride == 0);
            }
            for (int64_t j = 0; inside && j < in; j++)
                want += x[((image * c->size + from[0]) * c->size + from[1]) * c->channels +
                          group * in + j] *
                        w[(t * in + j) * c->outputs + o];
        }
        check_sum(&y, e, want);
    }
    check_free(inputs[0].data);
    check_free(inputs[1].data);
    check_free(y.data);
}

static void convolutions(void) {
    static const convolution cases[] = {
        /* batch, size, channels, outputs, groups, kernel, stride, dilation, padding */
        {1, 1, 1, 1, 1, 1, 1, 1, 0},   {2, 9, 5, 34, 1, 3, 1, 1, 1}, {1, 20, 3, 140, 1, 2, 2, 1, 0},
        {1, 9, 40, 7, 1, 3, 2, 2, 2},  {1, 8, 6, 20, 2, 3, 1, 3, 2}, {2, 12, 9, 9, 9, 3, 2, 1, 1},
        {1, 5, 300, 9, 1, 2, 1, 1, 0}, {1, 6, 8, 8, 8, 4, 3, 1, 0},  {1, 7, 4, 8, 4, 3, 1, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_convolution(&cases[i], false);
        check_convolution(&cases[i], true);
    }
}

static const check_case cases[] = {{"products", products}, {"convolutions", convolutions}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
