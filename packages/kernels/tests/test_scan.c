/* Compares scans with one step after the other: in double, and for integers exactly. */
#include <math.h>

#include "check.h"
#include "scan/kernels.inc"

CHECK_ATTRS(scan)

static const taper_dtype dtypes[] = {TAPER_FLOAT32, TAPER_FLOAT64, TAPER_INT64, TAPER_INT32,
                                     TAPER_INT16,   TAPER_INT8,    TAPER_UINT8};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

static double float_at(const taper_tensor *t, int64_t i) {
    return t->dtype == TAPER_FLOAT32 ? (double)((float *)t->data)[i] : ((double *)t->data)[i];
}

static int64_t int_at(const taper_tensor *t, int64_t i) {
    switch (t->dtype) {
    case TAPER_INT64:
        return ((int64_t *)t->data)[i];
    case TAPER_INT32:
        return ((int32_t *)t->data)[i];
    case TAPER_INT16:
        return ((int16_t *)t->data)[i];
    case TAPER_INT8:
        return ((int8_t *)t->data)[i];
    default:
        return ((uint8_t *)t->data)[i];
    }
}

static bool is_float(const taper_tensor *t) {
    return t->dtype == TAPER_FLOAT32 || t->dtype == TAPER_FLOAT64;
}

static void fill(taper_tensor *t) {
    const int64_t numel = check_numel(t);
    t->data = check_alloc((size_t)numel * taper_dtype_size(t->dtype), 0);
    check_fill_bytes(t->data, is_float(t) ? 0 : numel * (int64_t)taper_dtype_size(t->dtype));
    for (int64_t i = 0; i < numel && is_float(t); i++) {
        const float v = check_int(0, 400) ? check_uniform(-1.0f, 1.2f) : check_int(0, 1) ? 0 : NAN;
        if (t->dtype == TAPER_FLOAT32)
            ((float *)t->data)[i] = v;
        else
            ((double *)t->data)[i] = v;
    }
}

static bool agree(const taper_tensor *y, int64_t i, double want) {
    const double got = float_at(y, i);
    if (y->dtype == TAPER_FLOAT32)
        return check_ulp((float)got, want) <= 0.5;
    return isnan(want) ? isnan(got) : got == want || fabs(got - want) <= 1e-12 * (1 + fabs(want));
}

/* One line of n elements from `at` on, `step` apart. */
static int64_t wrong_in(const char *op, const taper_tensor *x, const taper_tensor *y, int64_t n,
                        int64_t at, int64_t step) {
    const bool sum = strcmp(op, "CUMSUM") == 0, product = strcmp(op, "CUMPROD") == 0;
    const bool most = strstr(op, "MAX"), least = strstr(op, "MIN"), places = strstr(op, "ARG");
    const size_t size = taper_dtype_size(x->dtype);
    double real = sum ? 0 : product ? 1 : -INFINITY;
    uint64_t whole = product;
    int64_t best = 0, wrong = 0;
    for (int64_t i = 0; i < n; i++, at += step) {
        const int64_t best_at = at - (i - best) * step;
        if (most || least) {
            bool better = true;
            if (is_float(x)) {
                const double a = float_at(x, at), b = float_at(x, best_at);
                better = isnan(a) || (most ? a >= b : a <= b);
            } else {
                const int64_t a = int_at(x, at), b = int_at(x, best_at);
                better = most ? a >= b : a <= b;
            }
            best = better ? i : best;
            const char *best_x = (const char *)x->data + (size_t)(at - (i - best) * step) * size;
            wrong += places ? ((int64_t *)y->data)[at] != best
                            : memcmp((char *)y->data + (size_t)at * size, best_x, size) != 0;
        } else if (is_float(x)) {
            const double v = float_at(x, at);
            const double high = fmax(real, v), low = fmin(real, v);
            real = sum               ? real + v
                   : product         ? real * v
                   : isnan(v + real) ? NAN
                                     : high + log1p(exp(low - high));
            wrong += !agree(y, at, real);
        } else {
            const uint64_t v = (uint64_t)int_at(x, at);
            whole = sum ? whole + v : whole * v;
            const int64_t bits = 64 - 8 * (int64_t)taper_dtype_size(x->dtype);
            wrong += (uint64_t)int_at(y, at) << bits != whole << bits;
        }
    }
    return wrong;
}

static void check_scan(const char *op, taper_dtype dtype, int rank, const int64_t *dims,
                       int64_t axis) {
    int64_t n = 1, inner = 1;
    for (int d = 0; d < rank; d++)
        if (d >= axis)
            *(d == axis ? &n : &inner) *= dims[d];
    taper_tensor x = check_tensor(NULL, dtype, rank, dims), y = x;
    fill(&x);
    if (strstr(op, "ARG"))
        y.dtype = TAPER_INT64;
    const int64_t numel = check_numel(&x);
    y.data = check_alloc((size_t)numel * taper_dtype_size(y.dtype), 0);
    const struct scan_attrs attrs = {axis};
    check_threads(op, NULL, &x, 1, &y, &attrs);
    int64_t wrong = 0;
    for (int64_t line = 0; n > 0 && line < numel / n; line++)
        wrong += wrong_in(op, &x, &y, n, line / inner * n * inner + line % inner, inner);
    CHECK(wrong == 0, "%s of %s along %lld: %lld wrong", op, taper_dtype_name(dtype),
          (long long)axis, (long long)wrong);
    check_free(x.data);
    check_free(y.data);
}

static void check_op(const char *op, int n_dtypes) {
    for (int t = 0; t < n_dtypes; t++) {
        for (int64_t axis = 0; axis < 4; axis++)
            check_scan(op, dtypes[t], 4, (int64_t[]){3, 5, 7, 19}, axis);
        check_scan(op, dtypes[t], 2, (int64_t[]){4, 5000}, 1);
        check_scan(op, dtypes[t], 2, (int64_t[]){30, 2100}, 0);
        check_scan(op, dtypes[t], 2, (int64_t[]){0, 21}, 1);
        check_scan(op, dtypes[t], 2, (int64_t[]){21, 0}, 1);
        check_scan(op, dtypes[t], 2, (int64_t[]){0, 21}, 0);
        check_scan(op, dtypes[t], 0, NULL, 0);
    }
}

static void sums(void) { check_op("CUMSUM", N_DTYPES); }
static void products(void) { check_op("CUMPROD", N_DTYPES); }
static void logarithms(void) { check_op("LOGCUMSUMEXP", 2); }
static void extremes(void) {
    check_op("CUMARGMAX", N_DTYPES);
    check_op("CUMARGMIN", N_DTYPES);
    check_op("CUMMAX", N_DTYPES);
    check_op("CUMMIN", N_DTYPES);
}

static void refused(void) {
    float data[16] = {0};
    taper_tensor x = check_tensor(data, TAPER_FLOAT32, 2, (int64_t[]){4, 4});
    const struct scan_attrs last = {1}, beyond = {2};
    CHECK(check_run("CUMSUM", NULL, &x, 1, &x, &beyond, 1) == TAPER_UNSUPPORTED, "axis 2 of 2");
    CHECK(check_run("CUMARGMAX", NULL, &x, 1, &x, &last, 1) == TAPER_UNSUPPORTED, "output");
    taper_tensor bools = x;
    bools.dtype = TAPER_BOOL;
    CHECK(check_run("CUMSUM", NULL, &bools, 1, &bools, &last, 1) == TAPER_UNSUPPORTED, "bool");
    x.strides[0] = 1;
    x.strides[1] = 4;
    CHECK(check_run("CUMSUM", NULL, &x, 1, &x, &last, 1) == TAPER_UNSUPPORTED, "strides");
}

int main(int argc, char **argv) {
    static const check_case cases[] = {{"sums", sums},
                                       {"products", products},
                                       {"logarithms", logarithms},
                                       {"extremes", extremes},
                                       {"refused", refused}};
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
