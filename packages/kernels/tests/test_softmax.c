/* Compares SOFTMAX and its logarithm with double. */
#include "check.h"
#include "softmax/kernels.inc"

#include <math.h>

CHECK_ATTRS(softmax)

/* The bounds: float32 epsilons for exponential, its argument's rounding, sum and scaling; the
 * argument's error counts as many times as the argument is large. What is nearly denormal may be 0.
 */
enum { EPSILONS = 8 };

static void strides_around(const taper_tensor *t, int64_t axis, int64_t *outer, int64_t *n,
                           int64_t *inner) {
    *outer = *inner = *n = 1;
    for (int d = 0; d < t->rank; d++)
        *(d < axis ? outer : d == axis ? n : inner) *= t->shape[d];
}

static void check_values(const taper_tensor *x, const taper_tensor *y,
                         const struct softmax_attrs *attrs) {
    int64_t outer, n, inner;
    strides_around(x, attrs->axis, &outer, &n, &inner);
    for (int64_t line = 0; line < outer * inner; line++) {
        const int64_t start = line / inner * n * inner + line % inner;
        const float *in = (const float *)x->data + start, *out = (const float *)y->data + start;
        double max = -INFINITY, sum = 0.0;
        for (int64_t i = 0; i < n; i++)
            max = isnan(in[i * inner]) || in[i * inner] > max ? (double)in[i * inner] : max;
        for (int64_t i = 0; i < n; i++)
            sum += exp(in[i * inner] - max);
        for (int64_t i = 0; i < n; i++) {
            const double shifted = in[i * inner] - max, got = out[i * inner];
            const double want = attrs->log ? shifted - log(sum) : exp(shifted) / sum;
            const double scale = attrs->log ? 1.0 + fabs(shifted) + fabs(log(sum))
                                            : want * (1.0 + fmin(fabs(shifted), 110.0));
            const double bound = EPSILONS * 0x1p-23 * scale + (attrs->log ? 0.0 : 0x1p-124);
            const bool same = isnan(want)   ? isnan(got)
                              : isinf(want) ? got == want
                                            : fabs(got - want) <= bound;
            CHECK(same, "axis %lld, line %lld, element %lld of %lld: %.9g, not %.9g",
                  (long long)attrs->axis, (long long)line, (long long)i, (long long)n, got, want);
        }
    }
}

static void check_softmax(int rank, const int64_t *shape, int64_t axis, float low, float high,
                          size_t misalign) {
    for (int log = 0; log < 2; log++) {
        taper_tensor x = check_tensor(NULL, TAPER_FLOAT32, rank, shape), y = x;
        const int64_t numel = check_numel(&x);
        x.data = check_alloc((size_t)numel * sizeof(float), misalign);
        y.data = check_alloc((size_t)numel * sizeof(float), misalign);
        check_fill_uniform(x.data, numel, low, high);
        const struct softmax_attrs attrs = {axis, log};
        check_threads("SOFTMAX", NULL, &x, 1, &y, &attrs);
        check_values(&x, &y, &attrs);
        check_free(x.data);
        check_free(y.data);
    }
}

static void row_lengths(void) {
    static const int64_t lengths[] = {1,  2,  3,  4,  5,  7,   8,   9,   15,   16,   17,   31,
                                      32, 33, 63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 30522};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        check_softmax(2, (int64_t[]){3, lengths[i]}, 1, -6.0f, 6.0f, 0);
}

/* Fewer columns than lanes, of which a vector holds several rows; sums in several parts. */
static void narrow_columns(void) {
    static const int64_t lengths[] = {1, 2, 5, 16, 196, 9000};
    for (int64_t columns = 2; columns < 18; columns++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
            check_softmax(3, (int64_t[]){2, lengths[i], columns}, 1, -20.0f, 20.0f, 0);
}

static void every_axis(void) {
    for (int64_t axis = 0; axis < 4; axis++) {
        check_softmax(4, (int64_t[]){3, 5, 7, 9}, axis, -4.0f, 4.0f, 0);
        check_softmax(4, (int64_t[]){2, 16, 3, 32}, axis, -4.0f, 4.0f, 0);
        check_softmax(4, (int64_t[]){1, 2, 1, 17}, axis, -4.0f, 4.0f, 0);
    }
    check_softmax(0, NULL, 0, -1.0f, 1.0f, 0);
}

static void wide_columns(void) {
    check_softmax(2, (int64_t[]){6, 1000}, 0, -4.0f, 4.0f, 0);
    check_softmax(2, (int64_t[]){600, 130}, 0, -4.0f, 4.0f, 0);
    check_softmax(2, (int64_t[]){5, 2500}, 0, -4.0f, 4.0f, 0);
}

static void wide_range(void) {
    check_softmax(2, (int64_t[]){4, 200}, 1, -150.0f, 150.0f, 0);
    check_softmax(2, (int64_t[]){200, 4}, 0, -150.0f, 150.0f, 0);
    check_softmax(2, (int64_t[]){4, 200}, 1, 1e30f, 3e38f, 0);
    check_softmax(2, (int64_t[]){4, 200}, 1, -3e38f, -1e30f, 0);
}

static void misaligned(void) {
    for (size_t misalign = 4; misalign < 64; misalign += 12) {
        check_softmax(2, (int64_t[]){3, 83}, 1, -4.0f, 4.0f, misalign);
        check_softmax(2, (int64_t[]){3, 83}, 0, -4.0f, 4.0f, misalign);
    }
}

static void empty(void) {
    check_softmax(2, (int64_t[]){0, 4}, 1, 0.0f, 1.0f, 0);
    check_softmax(2, (int64_t[]){4, 0}, 1, 0.0f, 1.0f, 0);
    check_softmax(2, (int64_t[]){4, 0}, 0, 0.0f, 1.0f, 0);
    check_softmax(2, (int64_t[]){0, 4}, 0, 0.0f, 1.0f, 0);
}

/* -inf is an element of weight zero; NaN, +inf and a line of nothing but -inf give NaN. */
static void special_values(void) {
    enum { N = 37 };
    for (int64_t axis = 0; axis < 2; axis++)
        for (int log = 0; log < 2; log++) {
            taper_tensor x = check_tensor(NULL, TAPER_FLOAT32, 2, (int64_t[]){N, N}), y = x;
            float *p = x.data = check_alloc(N * N * sizeof(float), 0);
            y.data = check_alloc(N * N * sizeof(float), 0);
            check_fill_uniform(p, N * N, -4.0f, 4.0f);
            const int64_t along = axis ? 1 : N, across = axis ? N : 1;
            p[1 * across + 20 * along] = -INFINITY;
            p[2 * across + 3 * along] = INFINITY;
            p[3 * across + 36 * along] = NAN;
            p[4 * across] = NAN;
            for (int64_t i = 0; i < N; i++) {
                p[5 * across + i * along] = -INFINITY;
                p[6 * across + i * along] = i == 30 ? -1.0f : -INFINITY;
                p[7 * across + i * along] = i & 1 ? -0.0f : 0.0f;
            }
            const struct softmax_attrs attrs = {axis, log};
            CHECK(check_run("SOFTMAX", NULL, &x, 1, &y, &attrs, 1) == TAPER_OK, "unsupported");
            check_values(&x, &y, &attrs);
            check_free(x.data);
            check_free(y.data);
        }
}

static void in_place(void) {
    for (int log = 0; log < 2; log++)
        for (int64_t axis = 0; axis < 2; axis++) {
            taper_tensor x = check_tensor(NULL, TAPER_FLOAT32, 2, (int64_t[]){90, 70}), y = x;
            x.data = check_alloc(90 * 70 * sizeof(float), 0);
            y.data = check_alloc(90 * 70 * sizeof(float), 0);
            check_fill_uniform(x.data, 90 * 70, -4.0f, 4.0f);
            const struct softmax_attrs attrs = {axis, log};
            check_run("SOFTMAX", NULL, &x, 1, &y, &attrs, 1);
            check_run("SOFTMAX", NULL, &x, 1, &x, &attrs, 2);
            CHECK(memcmp(x.data, y.data, 90 * 70 * sizeof(float)) == 0, "other bits in place");
            check_free(x.data);
            check_free(y.data);
        }
}

static void not_served(void) {
    float data[16] = {0};
    taper_tensor x = check_tensor(data, TAPER_FLOAT32, 2, (int64_t[]){4, 4}), y = x;
    const struct softmax_attrs attrs = {1, false};
    x.strides[0] = 1;
    x.strides[1] = 4;
    CHECK(check_run("SOFTMAX", NULL, &x, 1, &y, &attrs, 1) == TAPER_UNSUPPORTED, "transposed");
    x = y;
    x.dtype = TAPER_FLOAT64;
    CHECK(check_run("SOFTMAX", NULL, &x, 1, &y, &attrs, 1) == TAPER_UNSUPPORTED, "float64");
}

static const check_case cases[] = {
    {"row_lengths", row_lengths},
    {"every_axis", every_axis},
    {"wide_columns", wide_columns},
    {"narrow_columns", narrow_columns},
    {"wide_range", wide_range},
    {"misaligned", misaligned},
    {"empty", empty},
    {"special_values", special_values},
    {"in_place", in_place},
    {"not_served", not_served},
};

static void bench(void) {
    static const struct {
        int64_t rows, columns, axis;
    } shapes[] = {{1536, 16, 1},   {1536, 128, 1}, {16, 30522, 1},
                  {1024, 1024, 1}, {128, 1536, 0}, {1024, 1024, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int log = 0; log < 2; log++) {
            const int64_t shape[] = {shapes[i].rows, shapes[i].columns};
            taper_tensor x = check_tensor(NULL, TAPER_FLOAT32, 2, shape), y = x;
            const int64_t numel = check_numel(&x);
            x.data = check_alloc((size_t)numel * sizeof(float), 0);
            y.data = check_alloc((size_t)numel * sizeof(float), 0);
            check_fill_uniform(x.data, numel, -4.0f, 4.0f);
            const struct softmax_attrs attrs = {shapes[i].axis, log};
            char name[64];
            snprintf(name, sizeof name, "%s %lldx%lld axis %lld", log ? "log_softmax" : "softmax",
                     (long long)shape[0], (long long)shape[1], (long long)attrs.axis);
            check_bench_op(name, "SOFTMAX", NULL, &x, 1, &y, &attrs, 0, 8.0 * (double)numel);
            check_free(x.data);
            check_free(y.data);
        }
}
static const check_case benches[] = {{"softmax", bench}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
