/* Compares LAYER_NORM and RMS_NORM with double. */
#include "check.h"
#include "norm/kernels.inc"

#include <math.h>

CHECK_ATTRS(layer_norm)
CHECK_ATTRS(rms_norm)

enum { EPSILONS = 8 }; /* the bound: float32 epsilons times the sizes of the terms of a result */

typedef struct norm_case {
    bool rms;
    int64_t dims;
    double eps;
    bool weighted;
    bool biased;
    float low, high; /* x is uniform between them */
    size_t misalign;
} norm_case;

typedef struct norm_node {
    int64_t rows, n;
    float *x, *weight, *bias, *y;
    taper_tensor inputs[3];
    int n_inputs;
    taper_tensor output;
    struct layer_norm_attrs layer_norm;
    struct rms_norm_attrs rms_norm;
    const char *op;
    const void *attrs;
} norm_node;

static void node_make(norm_node *node, const norm_case *c, int rank, const int64_t *shape) {
    node->rows = node->n = 1;
    for (int d = 0; d < rank; d++)
        *(d < rank - c->dims ? &node->rows : &node->n) *= shape[d];
    const int64_t numel = node->rows * node->n;
    node->x = check_alloc((size_t)numel * sizeof(float), c->misalign);
    node->y = check_alloc((size_t)numel * sizeof(float), c->misalign);
    node->weight = check_alloc((size_t)node->n * sizeof(float), c->misalign);
    node->bias = check_alloc((size_t)node->n * sizeof(float), c->misalign);
    check_fill_uniform(node->x, numel, c->low, c->high);
    check_fill_uniform(node->weight, node->n, -2.0f, 2.0f);
    check_fill_uniform(node->bias, node->n, -2.0f, 2.0f);
    const int64_t *row = shape + rank - c->dims;
    node->n_inputs = 0;
    node->inputs[node->n_inputs++] = check_tensor(node->x, TAPER_FLOAT32, rank, shape);
    if (c->weighted)
        node->inputs[node->n_inputs++] =
            check_tensor(node->weight, TAPER_FLOAT32, (int)c->dims, row);
    else if (c->biased)
        node->inputs[node->n_inputs++] = (taper_tensor){.dtype = TAPER_ABSENT};
    if (c->biased)
        node->inputs[node->n_inputs++] = check_tensor(node->bias, TAPER_FLOAT32, (int)c->dims, row);
    node->output = check_tensor(node->y, TAPER_FLOAT32, rank, shape);
    node->layer_norm = (struct layer_norm_attrs){c->dims, c->eps};
    node->rms_norm = (struct rms_norm_attrs){c->dims, c->eps};
    node->op = c->rms ? "RMS_NORM" : "LAYER_NORM";
    node->attrs = c->rms ? (const void *)&node->rms_norm : &node->layer_norm;
}

static void node_free(norm_node *node) {
    check_free(node->x);
    check_free(node->y);
    check_free(node->weight);
    check_free(node->bias);
}

static void node_check(const norm_node *node, const norm_case *c) {
    for (int64_t r = 0; r < node->rows; r++) {
        const float *x = node->x + r * node->n;
        double mean = 0.0, square = 0.0;
        for (int64_t i = 0; i < node->n && !c->rms; i++)
            mean += x[i] / (double)node->n;
        for (int64_t i = 0; i < node->n; i++)
            square += (x[i] - mean) * (x[i] - mean) / (double)node->n;
        for (int64_t i = 0; i < node->n; i++) {
            const double unit = (x[i] - mean) / sqrt(square + c->eps);
            const double w = c->weighted ? node->weight[i] : 1.0,
                         b = c->biased ? node->bias[i] : 0.0;
            const double want = unit * w + b, got = node->y[r * node->n + i];
            const double bound = EPSILONS * 0x1p-23 * (fabs(w) * (1.0 + fabs(unit)) + fabs(b));
            CHECK(fabs(got - want) <= bound, "row %lld of %lld, element %lld: %.9g, not %.9g",
                  (long long)r, (long long)node->n, (long long)i, got, want);
        }
    }
}

static void check_norm(const norm_case *c, int rank, const int64_t *shape) {
    norm_node node;
    node_make(&node, c, rank, shape);
    check_threads(node.op, NULL, node.inputs, node.n_inputs, &node.output, node.attrs);
    node_check(&node, c);
    node_free(&node);
}

static void row_lengths(void) {
    static const int64_t lengths[] = {1,   2,   3,   4,    5,    7,    8,    9,   15,  16,
                                      17,  31,  32,  33,   63,   64,   65,   96,  127, 128,
                                      129, 384, 768, 1000, 2047, 2048, 2049, 4100};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (int rms = 0; rms < 2; rms++) {
            const norm_case c = {rms, 1, 1e-5, true, !rms, -3.0f, 5.0f, 0};
            check_norm(&c, 2, (int64_t[]){3, lengths[i]});
        }
}

static void trailing_dims(void) {
    for (int64_t dims = 1; dims <= 4; dims++)
        for (int affine = 0; affine < 4; affine++) {
            const norm_case layer = {false, dims, 1e-6, affine & 1, affine >> 1, -1.0f, 2.0f, 0};
            check_norm(&layer, 4, (int64_t[]){2, 3, 5, 7});
            const norm_case rms = {true, dims, 1e-6, affine & 1, false, -1.0f, 2.0f, 0};
            check_norm(&rms, 4, (int64_t[]){2, 3, 5, 7});
        }
}

static void many_rows(void) {
    const norm_case c = {false, 1, 1e-5, true, true, -1.0f, 1.0f, 0};
    check_norm(&c, 2, (int64_t[]){5000, 12});
    check_norm(&c, 2, (int64_t[]){200, 384});
}

/* Adjacent floats near 1e6 are 1/16 apart: the two-pass sum must keep the rest. */
static void large_mean(void) {
    static const int64_t lengths[] = {8, 100, 768, 5000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const norm_case c = {false, 1, 1e-5, true, true, 1e6f - 1.0f, 1e6f + 1.0f, 0};
        check_norm(&c, 2, (int64_t[]){4, lengths[i]});
    }
}

static void constant_rows(void) {
    const norm_case c = {false, 1, 1e-5, false, true, 1.1f, 1.1f, 0};
    check_norm(&c, 2, (int64_t[]){2, 77});
}

static void misaligned(void) {
    for (size_t misalign = 4; misalign < 64; misalign += 12) {
        const norm_case layer = {false, 1, 1e-5, true, true, -1.0f, 1.0f, misalign};
        check_norm(&layer, 2, (int64_t[]){3, 83});
        const norm_case rms = {true, 1, 1e-5, true, false, -1.0f, 1.0f, misalign};
        check_norm(&rms, 2, (int64_t[]){3, 83});
    }
}

static void empty(void) {
    const norm_case c = {false, 1, 1e-5, true, true, 0.0f, 1.0f, 0};
    check_norm(&c, 2, (int64_t[]){0, 5});
    check_norm(&c, 2, (int64_t[]){5, 0});
}

/* NaN and infinity change only their own row. */
static void special_values(void) {
    const float specials[] = {NAN, INFINITY, -INFINITY};
    for (size_t k = 0; k < 3; k++) {
        const norm_case c = {false, 1, 1e-5, true, true, -1.0f, 1.0f, 0};
        norm_node node;
        node_make(&node, &c, 2, (int64_t[]){3, 50});
        node.x[50 + 20] = specials[k];
        CHECK(check_run(node.op, NULL, node.inputs, node.n_inputs, &node.output, node.attrs, 1) ==
                  TAPER_OK,
              "unsupported");
        for (int64_t i = 0; i < 150; i++)
            CHECK(isnan(node.y[i]) == (i / 50 == 1), "element %lld", (long long)i);
        node_free(&node);
    }
}

static void in_place(void) {
    for (int rms = 0; rms < 2; rms++) {
        const norm_case c = {rms, 1, 1e-5, true, !rms, -1.0f, 1.0f, 0};
        norm_node node;
        node_make(&node, &c, 2, (int64_t[]){40, 100});
        check_run(node.op, NULL, node.inputs, node.n_inputs, &node.output, node.attrs, 1);
        node.output.data = node.x;
        check_run(node.op, NULL, node.inputs, node.n_inputs, &node.output, node.attrs, 2);
        CHECK(memcmp(node.x, node.y, 40 * 100 * sizeof(float)) == 0, "other bits in place");
        node_free(&node);
    }
}

/* Rows that lie apart, as those of a slice, and rows whose elements do. */
static void rows_anywhere(void) {
    enum { ROWS = 40, N = 100, ROOM = 2 * ROWS * N };
    for (int rms = 0; rms < 2; rms++)
        for (int transposed = 0; transposed < 2; transposed++) {
            const norm_case c = {rms, 1, 1e-5, true, !rms, -1.0f, 1.0f, 0};
            const int64_t row = transposed ? 1 : 2 * N, column = transposed ? ROWS : 1;
            norm_node node;
            node_make(&node, &c, 2, (int64_t[]){ROWS, N});
            CHECK(check_run(node.op, NULL, node.inputs, node.n_inputs, &node.output, node.attrs,
                            1) == TAPER_OK,
                  "not run");
            float *want = check_alloc(ROWS * N * sizeof(float), 0);
            float *apart = check_alloc(ROOM * sizeof(float), 0);
            memcpy(want, node.y, ROWS * N * sizeof(float));
            for (int64_t i = 0; i < ROWS * N; i++)
                apart[i / N * row + i % N * column] = node.x[i];
            node.inputs[0].data = apart;
            node.inputs[0].strides[0] = row;
            node.inputs[0].strides[1] = column;
            memset(node.y, 0, ROWS * N * sizeof(float));
            CHECK(check_run(node.op, NULL, node.inputs, node.n_inputs, &node.output, node.attrs,
                            2) == TAPER_OK,
                  "not run");
            CHECK(memcmp(want, node.y, ROWS * N * sizeof(float)) == 0, "rms %d, transposed %d", rms,
                  transposed);
            check_free(apart);
            check_free(want);
            node_free(&node);
        }
}

static void not_served(void) {
    const norm_case c = {false, 1, 1e-5, true, true, -1.0f, 1.0f, 0};
    norm_node node;
    node_make(&node, &c, 2, (int64_t[]){4, 4});
    node.inputs[0].dtype = TAPER_FLOAT64;
    CHECK(check_run(node.op, NULL, node.inputs, 3, &node.output, node.attrs, 1) ==
              TAPER_UNSUPPORTED,
          "float64");
    node_free(&node);
}

static const check_case cases[] = {
    {"row_lengths", row_lengths},
    {"trailing_dims", trailing_dims},
    {"many_rows", many_rows},
    {"large_mean", large_mean},
    {"constant_rows", constant_rows},
    {"misaligned", misaligned},
    {"empty", empty},
    {"special_values", special_values},
    {"in_place", in_place},
    {"rows_anywhere", rows_anywhere},
    {"not_served", not_served},
};

static void bench(void) {
    static const int64_t shapes[][2] = {{16, 384},  {128, 384}, {1024, 384},
                                        {128, 768}, {64, 4096}, {8192, 1024}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int rms = 0; rms < 2; rms++) {
            const norm_case c = {rms, 1, 1e-5, true, !rms, -1.0f, 1.0f, 0};
            norm_node node;
            node_make(&node, &c, 2, shapes[i]);
            char name[64];
            snprintf(name, sizeof name, "%s %lldx%lld", node.op, (long long)shapes[i][0],
                     (long long)shapes[i][1]);
            check_bench_op(name, node.op, NULL, node.inputs, node.n_inputs, &node.output,
                           node.attrs, 0, 8.0 * (double)(node.rows * node.n));
            node_free(&node);
        }
}
static const check_case benches[] = {{"norm", bench}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
