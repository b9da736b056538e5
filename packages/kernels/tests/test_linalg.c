/* Multiplies what INVERSE and SOLVE give by the matrices, in double. */
#include "check.h"

#include <math.h>

#include "linalg/kernels.inc"

CHECK_ATTRS(linalg)

static double at(const taper_tensor *t, int64_t i) {
    return t->dtype == TAPER_FLOAT32 ? (double)((const float *)t->data)[i]
                                     : ((const double *)t->data)[i];
}

static void set(const taper_tensor *t, int64_t i, double value) {
    if (t->dtype == TAPER_FLOAT32)
        ((float *)t->data)[i] = (float)value;
    else
        ((double *)t->data)[i] = value;
}

static taper_tensor filled(taper_dtype dtype, int rank, const int64_t *dims) {
    taper_tensor t = check_tensor(NULL, dtype, rank, dims);
    t.data = check_alloc((size_t)check_numel(&t) * taper_dtype_size(dtype), 0);
    for (int64_t i = 0; i < check_numel(&t); i++)
        set(&t, i, (double)check_uniform(-1, 1));
    return t;
}

/* Checks that a[i] @ x[i] is b[i], or the identity, for a batch of which a has only the last dim,
 * and is transposed in memory if `transposed`. */
static void solve(taper_dtype dtype, int64_t n, int64_t m, bool transposed) {
    const int64_t a_dims[] = {1, 3, n, n}, b_dims[] = {2, 1, n, m}, x_dims[] = {2, 3, n, m};
    const int64_t inverse_dims[] = {1, 3, n, n};
    taper_tensor in[2] = {filled(dtype, 4, a_dims), filled(dtype, 4, b_dims)};
    const taper_tensor x = filled(dtype, 4, x_dims), y = filled(dtype, 4, inverse_dims);
    if (transposed) {
        in[0].strides[2] = 1;
        in[0].strides[3] = n;
    }
    const struct linalg_attrs attrs = {true};
    check_threads("SOLVE", NULL, in, 2, &x, &attrs);
    check_threads("INVERSE", NULL, in, 1, &y, &attrs);
    const double unit = dtype == TAPER_FLOAT32 ? 0x1p-23 : 0x1p-52;
    for (int64_t i = 0; i < 6; i++)
        for (int64_t r = 0; r < n; r++)
            for (int64_t c = 0; c < m + n; c++) {
                double sum = 0, size = 1;
                for (int64_t k = 0; k < n; k++) {
                    const double left =
                        at(&in[0], i % 3 * n * n + (transposed ? k * n + r : r * n + k));
                    const double right =
                        c < m ? at(&x, (i * n + k) * m + c) : at(&y, (i % 3 * n + k) * n + c - m);
                    sum += left * right;
                    size += fabs(left * right);
                }
                const double want =
                    c < m ? at(&in[1], (i / 3 * n + r) * m + c) : (double)(c - m == r);
                CHECK(fabs(sum - want) <= 8 * (double)n * unit * size,
                      "%lldx%lld, row %lld, column %lld: %g, not %g", (long long)n, (long long)m,
                      (long long)r, (long long)c, sum, want);
            }
    check_free(in[0].data);
    check_free(in[1].data);
    check_free(x.data);
    check_free(y.data);
}

static void sizes(void) {
    static const int64_t ns[] = {1, 2, 3, 4, 7, 8, 17, 32}, ms[] = {1, 2, 5, 40};
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
        for (size_t j = 0; j < sizeof ms / sizeof *ms; j++) {
            solve(TAPER_FLOAT32, ns[i], ms[j], i % 2 == j % 2);
            solve(TAPER_FLOAT64, ns[i], ms[j], i % 2 != j % 2);
        }
}

/* Zeros on the diagonal need another row; a row that is twice another has no inverse. */
static void pivots(void) {
    float a[] = {0, 2, 4, 0, 1, 2, 2, 4, 1, 2, 3, 4}, y[12];
    const int64_t dims[] = {3, 2, 2};
    const taper_tensor in = check_tensor(a, TAPER_FLOAT32, 3, dims);
    const taper_tensor out = check_tensor(y, TAPER_FLOAT32, 3, dims);
    struct linalg_attrs attrs = {true};
    CHECK(check_run("INVERSE", NULL, &in, 1, &out, &attrs, 1) == TAPER_BAD_INDEX, "singular");
    attrs.check = false;
    CHECK(check_run("INVERSE", NULL, &in, 1, &out, &attrs, 2) == TAPER_OK, "unchecked");
    CHECK(y[0] == 0 && y[1] == 0.25f && y[2] == 0.5f && y[3] == 0, "rows change places");
    CHECK(isnan(y[4]) && isnan(y[5]) && isnan(y[6]) && isnan(y[7]), "NaN for the singular one");
    CHECK(fabsf(y[8] + 2) < 1e-5f && fabsf(y[11] + 0.5f) < 1e-5f, "the others have inverses");
}

static void refused(void) {
    static float a[33 * 33], y[33 * 33];
    const int64_t large[] = {33, 33}, wide[] = {2, 3};
    const struct linalg_attrs attrs = {true};
    taper_tensor in = check_tensor(a, TAPER_FLOAT32, 2, large);
    taper_tensor out = check_tensor(y, TAPER_FLOAT32, 2, large);
    CHECK(check_run("INVERSE", NULL, &in, 1, &out, &attrs, 1) == TAPER_UNSUPPORTED, "33 rows");
    in = check_tensor(a, TAPER_FLOAT32, 2, wide);
    out = check_tensor(y, TAPER_FLOAT32, 2, wide);
    CHECK(check_run("INVERSE", NULL, &in, 1, &out, &attrs, 1) == TAPER_UNSUPPORTED, "not square");
}

static const check_case cases[] = {{"sizes", sizes}, {"pivots", pivots}, {"refused", refused}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
