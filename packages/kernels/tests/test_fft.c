/* Compares FFT, RFFT and IRFFT with sums in double. The table is made as in
 * taper_runtime/ops/fft.py. */
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "fft/kernels.inc"

CHECK_ATTRS(fft)
CHECK_ATTRS(rfft)
CHECK_ATTRS(irfft)

static const double PI = 3.14159265358979323846;

/* ---- the table ---- */

static void put_root(float **at, int64_t m, int64_t k, double scale) {
    const double angle = -2 * PI * (double)(k % m) / (double)m;
    *(*at)++ = (float)(scale * cos(angle));
    *(*at)++ = (float)(scale * sin(angle));
}

static bool is_smooth(int64_t n, int64_t most) {
    for (int64_t factor = 2; factor <= most; factor++)
        while (n % factor == 0)
            n /= factor;
    return n == 1;
}

static int64_t split(int64_t n) {
    for (int64_t d = (int64_t)sqrt((double)n); d > 3; d--)
        if (n % d == 0)
            return d;
    return 1;
}

static int64_t padded_root(int64_t length) {
    int64_t root = 4;
    while (root * root < 2 * length - 1 || !is_smooth(root, 7))
        root += 4;
    return root;
}

static void put_factors(float **at, int64_t n, int64_t first) {
    for (int64_t i = 0; i < first && first > 1; i++)
        for (int64_t j = 0; j < n / first; j++)
            put_root(at, n, i * j, 1);
}

/* The transform of exp(+i pi j^2 / length) for |j| < length in `padded` numbers. */
static void put_spectrum(float **at, int64_t length, int64_t padded) {
    double *cosines = malloc((size_t)padded * sizeof(double));
    for (int64_t k = 0; k < padded; k++)
        cosines[k] = cos(2 * PI * (double)k / (double)padded);
    for (int64_t k = 0; k < padded; k++) {
        double re = 0, im = 0;
        for (int64_t j = 0; j < length; j++) {
            const double angle = PI * (double)(j * j % (2 * length)) / (double)length;
            /* j and -j: the sum over both is even in k. */
            const double both = (j ? 2 : 1) * cosines[j * k % padded];
            re += both * cos(angle);
            im += both * sin(angle);
        }
        *(*at)++ = (float)(re / (double)padded);
        *(*at)++ = (float)(im / (double)padded);
    }
    free(cosines);
}

static taper_tensor make_table(int64_t n, bool real) {
    const int64_t length = real && n % 2 == 0 ? n / 2 : n;
    const bool smooth = is_smooth(length, 31);
    const int64_t root = smooth ? split(length) : padded_root(length), padded = root * root;
    const int64_t rows = n + (smooth ? (root > 1 ? length : 0) : length + 3 * padded);
    float *data = check_alloc((size_t)rows * 2 * sizeof(float), 0), *at = data;
    for (int64_t k = 0; k < n; k++)
        put_root(&at, n, k, 1);
    if (smooth) {
        put_factors(&at, length, root);
    } else {
        for (int64_t j = 0; j < length; j++)
            put_root(&at, 2 * length, j * j, 1);
        put_spectrum(&at, length, padded);
        for (int64_t k = 0; k < padded; k++)
            put_root(&at, padded, k, 1);
        put_factors(&at, padded, root);
    }
    return check_tensor(data, TAPER_FLOAT32, 2, (int64_t[]){rows, 2});
}

/* ---- references ---- */

enum { COMPLEX, TO_COMPLEX, TO_REAL };

/* Number i of transform (o, c) of x, which is [outer][n][inner], real or in pairs. */
static void given(const taper_tensor *x, int kind, int64_t n, int64_t inner, int64_t o, int64_t i,
                  int64_t c, double number[2]) {
    const float *data = x->data;
    const int64_t half = n / 2 + 1, stored = kind == TO_REAL ? half : n;
    const bool mirrored = kind == TO_REAL && i >= half;
    const int64_t at = (o * stored + (mirrored ? n - i : i)) * inner + c;
    number[0] = kind == TO_COMPLEX ? data[at] : data[2 * at];
    number[1] = kind == TO_COMPLEX ? 0 : data[2 * at + 1] * (mirrored ? -1 : 1);
    if (kind == TO_REAL && (i == 0 || 2 * i == n))
        number[1] = 0;
}

static double wrong(const taper_tensor *x, const taper_tensor *y, int kind, int64_t n,
                    int64_t outer, int64_t inner, bool inverse, double scale) {
    const int64_t results = kind == TO_COMPLEX ? n / 2 + 1 : n;
    double distance = 0, size = 0;
    double *turn = malloc((size_t)n * 2 * sizeof(double));
    for (int64_t k = 0; k < n; k++) {
        turn[2 * k] = cos(2 * PI * (double)k / (double)n);
        turn[2 * k + 1] = (inverse ? 1 : -1) * sin(2 * PI * (double)k / (double)n);
    }
    for (int64_t o = 0; o < outer; o++)
        for (int64_t c = 0; c < inner; c++)
            for (int64_t k = 0; k < results; k++) {
                double re = 0, im = 0;
                for (int64_t i = 0; i < n; i++) {
                    double v[2];
                    given(x, kind, n, inner, o, i, c, v);
                    const double *w = turn + 2 * (i * k % n);
                    re += v[0] * w[0] - v[1] * w[1];
                    im += v[0] * w[1] + v[1] * w[0];
                }
                const int64_t at = (o * results + k) * inner + c;
                const float *data = y->data;
                const double mine_re = kind == TO_REAL ? data[at] : data[2 * at];
                const double mine_im = kind == TO_REAL ? scale * im : data[2 * at + 1];
                distance += pow(mine_re - scale * re, 2) + pow(mine_im - scale * im, 2);
                size += pow(scale * re, 2) + pow(scale * im, 2);
            }
    free(turn);
    return size > 0 ? sqrt(distance / size) : distance;
}

static void check_transform(int kind, int64_t n, int64_t outer, int64_t inner, bool inverse) {
    const int64_t half = n / 2 + 1, from = kind == TO_REAL ? half : n;
    const int64_t to = kind == TO_COMPLEX ? half : n;
    const int64_t x_dims[] = {outer, from, inner, 2}, y_dims[] = {outer, to, inner, 2};
    const int x_rank = kind == TO_COMPLEX ? 3 : 4, y_rank = kind == TO_REAL ? 3 : 4;
    const int64_t x_count = outer * from * inner * (x_rank - 2);
    const int64_t y_count = outer * to * inner * (y_rank - 2);
    const taper_tensor x = check_tensor(check_alloc((size_t)x_count * sizeof(float), 0),
                                        TAPER_FLOAT32, x_rank, x_dims);
    const taper_tensor table = make_table(n, kind != COMPLEX);
    taper_tensor y = check_tensor(check_alloc((size_t)y_count * sizeof(float), 0), TAPER_FLOAT32,
                                  y_rank, y_dims);
    check_fill_uniform(x.data, x_count, -1, 1);
    const char *norm = inverse ? "length" : outer > 3 ? "root" : "none";
    const double scale = 1 / (inverse ? (double)n : outer > 3 ? sqrt((double)n) : 1);
    const struct fft_attrs c2c = {.axis = 1, .inverse = inverse, .norm = norm};
    const struct rfft_attrs r2c = {.axis = 1, .norm = norm};
    const struct irfft_attrs c2r = {.axis = 1, .size = n, .norm = norm};
    const char *op = kind == COMPLEX ? "FFT" : kind == TO_COMPLEX ? "RFFT" : "IRFFT";
    const void *attrs = kind == COMPLEX      ? (const void *)&c2c
                        : kind == TO_COMPLEX ? (const void *)&r2c
                                             : (const void *)&c2r;
    check_table = &table;
    check_threads(op, NULL, &x, 1, &y, attrs);
    check_table = NULL;
    const double error = wrong(&x, &y, kind, n, outer, inner, inverse || kind == TO_REAL, scale);
    CHECK(error < 5e-7, "%s of %d, outer %d, inner %d: off by %g", op, (int)n, (int)outer,
          (int)inner, error);
    check_free(x.data);
    check_free(table.data);
    check_free(y.data);
}

static void check_all(int64_t n, int64_t outer, int64_t inner) {
    check_transform(COMPLEX, n, outer, inner, false);
    check_transform(COMPLEX, n, outer, inner, true);
    check_transform(TO_COMPLEX, n, outer, inner, false);
    check_transform(TO_REAL, n, outer, inner, false);
}

static void every_length(void) {
    for (int64_t n = 1; n <= 70; n++)
        check_all(n, 3, 1);
}

/* Lanes are rows, columns, or there is one line. */
static void shapes(void) {
    static const int64_t lengths[] = {6, 15, 16, 37, 74, 100};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        check_all(lengths[i], 1, 1);
        check_all(lengths[i], 19, 1);
        check_all(lengths[i], 2, 5);
        check_all(lengths[i], 1, 33);
        check_all(lengths[i], 0, 1);
    }
}

static void long_lines(void) {
    static const int64_t lengths[] = {256, 400, 509, 521, 1000, 1018};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        check_all(lengths[i], 1, 1);
}

static void not_served(void) {
    float data[64];
    const struct fft_attrs attrs = {.axis = 0, .norm = "none"}, strange = {.axis = 0, .norm = ""};
    const taper_tensor x = check_tensor(data, TAPER_FLOAT32, 2, (int64_t[]){8, 2});
    const taper_tensor odd = check_tensor(data, TAPER_FLOAT32, 2, (int64_t[]){9, 2});
    CHECK(check_run("FFT", NULL, &x, 1, &x, &attrs, 1) == TAPER_UNSUPPORTED, "no table");
    check_table = &odd;
    CHECK(check_run("FFT", NULL, &x, 1, &x, &attrs, 1) == TAPER_UNSUPPORTED, "another table");
    check_table = &x;
    CHECK(check_run("FFT", NULL, &x, 1, &x, &strange, 1) == TAPER_UNSUPPORTED, "another norm");
    check_table = NULL;
}

static const check_case cases[] = {{"every_length", every_length},
                                   {"shapes", shapes},
                                   {"long_lines", long_lines},
                                   {"not_served", not_served}};

static void bench(int64_t n, int64_t rows) {
    char name[64];
    const int64_t dims[] = {rows, n, 2};
    const taper_tensor x =
        check_tensor(check_alloc((size_t)(rows * n) * 8, 0), TAPER_FLOAT32, 3, dims);
    const taper_tensor table = make_table(n, false);
    taper_tensor y = check_tensor(check_alloc((size_t)(rows * n) * 8, 0), TAPER_FLOAT32, 3, dims);
    check_fill_uniform(x.data, 2 * rows * n, -1, 1);
    const struct fft_attrs attrs = {.axis = 1, .norm = "none"};
    check_table = &table;
    snprintf(name, sizeof name, "fft %dx%d", (int)rows, (int)n);
    check_bench_op(name, "FFT", NULL, &x, 1, &y, &attrs, 5.0 * (double)(rows * n) * log2((double)n),
                   16.0 * (double)(rows * n));
    check_table = NULL;
    check_free(x.data);
    check_free(table.data);
    check_free(y.data);
}

static void benches_run(void) {
    static const int64_t lengths[] = {64, 256, 400, 512, 1000, 1009, 4096};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        bench(lengths[i], 1);
        bench(lengths[i], 64);
    }
}

static const check_case benches[] = {{"fft", benches_run}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
