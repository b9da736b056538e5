/* Compares ARGSORT with an insertion that follows its definition, and SEARCHSORTED with counting.
 */
#include <math.h>

#include "check.h"
#include "sort/kernels.inc"

CHECK_ATTRS(argsort)
CHECK_ATTRS(searchsorted)

static const taper_dtype dtypes[] = {TAPER_FLOAT32, TAPER_FLOAT64, TAPER_INT64, TAPER_INT32,
                                     TAPER_INT16,   TAPER_INT8,    TAPER_UINT8, TAPER_BOOL};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* The kinds of values that fill() draws. */
typedef enum content { ANY, FEW, RISING, FALLING, EQUAL, SPECIAL, N_CONTENTS } content;

static void set(void *data, int dtype, int64_t i, double v, int64_t whole) {
    switch (dtype) {
    case TAPER_FLOAT32:
        ((float *)data)[i] = (float)v;
        break;
    case TAPER_FLOAT64:
        ((double *)data)[i] = v;
        break;
    case TAPER_INT64:
        ((int64_t *)data)[i] = whole;
        break;
    case TAPER_INT32:
        ((int32_t *)data)[i] = (int32_t)whole;
        break;
    case TAPER_INT16:
        ((int16_t *)data)[i] = (int16_t)whole;
        break;
    case TAPER_BOOL:
        ((uint8_t *)data)[i] = whole & 1;
        break;
    default:
        ((uint8_t *)data)[i] = (uint8_t)whole;
    }
}

static void fill(void *data, int dtype, int64_t n, content what) {
    static const double special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0, -0.0, 1e-320, -3e38};
    for (int64_t i = 0; i < n; i++) {
        const int64_t low = -(INT64_C(1) << 61), whole = what == ANY       ? check_int(low, -low)
                                                         : what == FEW     ? check_int(-3, 3)
                                                         : what == RISING  ? i / 3
                                                         : what == FALLING ? -i / 3
                                                         : what == EQUAL   ? 7
                                                                           : check_int(low, -low);
        const double v = what == SPECIAL ? special[check_int(0, 7)] : (double)whole;
        set(data, dtype, i, v, whole);
    }
}

/* Returns whether element a comes before b in ascending order, by value only. */
static bool before(const void *data, int dtype, int64_t a, int64_t b) {
#define BEFORE(T)                                                                                  \
    {                                                                                              \
        const T *x = data;                                                                         \
        return x[a] < x[b] || (x[b] != x[b] && x[a] == x[a]);                                      \
    }
    switch (dtype) {
    case TAPER_FLOAT32:
        BEFORE(float)
    case TAPER_FLOAT64:
        BEFORE(double)
    case TAPER_INT64:
        BEFORE(int64_t)
    case TAPER_INT32:
        BEFORE(int32_t)
    case TAPER_INT16:
        BEFORE(int16_t)
    case TAPER_INT8:
        BEFORE(int8_t)
    default:
        BEFORE(uint8_t)
    }
}

/* The result is correct if values rise, equal ones are ordered by place, and elements that are left
 * out come later. */
static void check_line(const void *x, int dtype, const int64_t *x_at, const int64_t *y, int64_t n,
                       int64_t count, int64_t step, bool descending) {
    uint8_t *taken = check_alloc((size_t)n + 1, 0);
    memset(taken, 0, (size_t)n + 1);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = y[i * step];
        if (at < 0 || at >= n || taken[at]) {
            CHECK(false, "place %lld is %lld of %lld", (long long)i, (long long)at, (long long)n);
            check_free(taken);
            return;
        }
        taken[at] = 1;
        if (i == 0)
            continue;
        const int64_t last = y[(i - 1) * step], a = x_at[last], b = x_at[at];
        const bool falls = descending ? before(x, dtype, a, b) : before(x, dtype, b, a);
        const bool rises = descending ? before(x, dtype, b, a) : before(x, dtype, a, b);
        wrong += falls || (!rises && last > at);
    }
    for (int64_t i = 0; i < n && count > 0; i++) {
        if (taken[i])
            continue;
        const int64_t last = y[(count - 1) * step], a = x_at[last], b = x_at[i];
        const bool earlier = descending ? before(x, dtype, a, b) : before(x, dtype, b, a);
        const bool later = descending ? before(x, dtype, b, a) : before(x, dtype, a, b);
        wrong += earlier || (!later && i < last);
    }
    CHECK(wrong == 0, "%s of %lld, first %lld%s: %lld wrong", taper_dtype_name(dtype), (long long)n,
          (long long)count, descending ? ", descending" : "", (long long)wrong);
    check_free(taken);
}

static void check_argsort(taper_dtype dtype, int64_t outer, int64_t n, int64_t inner, int64_t count,
                          content what, bool reversed) {
    const int64_t dims[] = {outer, n, inner}, out[] = {outer, count < 0 ? n : count, inner};
    taper_tensor x = check_tensor(NULL, dtype, 3, dims);
    if (reversed) {
        x.strides[2] = outer * n;
        x.strides[1] = outer;
        x.strides[0] = 1;
    }
    const int64_t numel = check_numel(&x);
    x.data = check_alloc((size_t)numel * taper_dtype_size(dtype), 0);
    fill(x.data, dtype, numel, what);
    taper_tensor y = check_tensor(NULL, TAPER_INT64, 3, out);
    y.data = check_alloc((size_t)check_numel(&y) * sizeof(int64_t), 0);
    int64_t *x_at = check_alloc((size_t)n * sizeof *x_at, 0);
    for (int descending = 0; descending < 2; descending++) {
        const struct argsort_attrs attrs = {1, descending, count};
        check_threads("ARGSORT", NULL, &x, 1, &y, &attrs);
        for (int64_t line = 0; line < outer * inner; line++) {
            const int64_t o = line / inner, j = line % inner;
            for (int64_t i = 0; i < n; i++)
                x_at[i] = o * x.strides[0] + i * x.strides[1] + j * x.strides[2];
            check_line(x.data, dtype, x_at, (int64_t *)y.data + o * out[1] * inner + j, n, out[1],
                       inner, descending);
        }
    }
    check_free(x_at);
    check_free(y.data);
    check_free(x.data);
}

/* Sizes around every bound between two ways to sort. */
static void whole(void) {
    static const int64_t sizes[] = {0, 1, 2, 7, 16, 17, 96, 97, 511, 513, 4095, 4096, 9000};
    for (int t = 0; t < N_DTYPES; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (content c = 0; c < N_CONTENTS; c++)
                check_argsort(dtypes[t], 2, sizes[s], 1, -1, c, false);
}

static void first_few(void) {
    static const int64_t counts[] = {0, 1, 2, 16, 17, 64, 65, 300, 2999};
    for (int t = 0; t < N_DTYPES; t++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
            for (content c = 0; c < N_CONTENTS; c++)
                check_argsort(dtypes[t], 1, 3000, 1, counts[k], c, false);
}

static void any_axis(void) {
    for (int t = 0; t < N_DTYPES; t++)
        for (int reversed = 0; reversed < 2; reversed++) {
            check_argsort(dtypes[t], 3, 50, 7, -1, FEW, reversed);
            check_argsort(dtypes[t], 3, 700, 5, 4, ANY, reversed);
        }
}

/* ---- SEARCHSORTED ---- */

static void search(void) {
    for (int t = 0; t < N_DTYPES - 1; t++)
        for (int repeat = 0; repeat < 60; repeat++) {
            const bool one = repeat % 2, right = repeat / 2 % 2;
            const int64_t n = check_int(0, 30), values = check_int(0, 900);
            const int64_t row_dims[] = {3, n}, value_dims[] = {3, values};
            taper_tensor in[] = {check_tensor(NULL, dtypes[t], 2 - one, row_dims + one),
                                 check_tensor(NULL, dtypes[t], 2, value_dims)};
            const size_t size = taper_dtype_size(dtypes[t]);
            in[0].data = check_alloc((size_t)(one ? n : 3 * n) * size, 0);
            in[1].data = check_alloc((size_t)(3 * values) * size, 0);
            for (int64_t r = 0; r < (one ? 1 : 3); r++)
                for (int64_t i = 0; i < n; i++)
                    set(in[0].data, dtypes[t], r * n + i, (double)(2 * (i / 2)), 2 * (i / 2));
            for (int64_t i = 0; i < 3 * values; i++) {
                const int64_t v = check_int(0, 31);
                set(in[1].data, dtypes[t], i, i % 97 ? (double)v : NAN, v);
            }
            taper_tensor y = check_tensor(NULL, TAPER_INT64, 2, value_dims);
            y.data = check_alloc((size_t)(3 * values) * sizeof(int64_t), 0);
            const struct searchsorted_attrs attrs = {right};
            check_threads("SEARCHSORTED", NULL, in, 2, &y, &attrs);
            /* Rows and values side by side, for before(). */
            char *both = check_alloc((size_t)(n + 1) * size, 0);
            int64_t wrong = 0;
            for (int64_t i = 0; i < 3 * values; i++) {
                const char *row = (char *)in[0].data + (one ? 0 : i / values * n) * (int64_t)size;
                memcpy(both, row, (size_t)n * size);
                memcpy(both + (size_t)n * size, (char *)in[1].data + (size_t)i * size, size);
                int64_t count = 0;
                for (int64_t k = 0; k < n; k++)
                    count += right ? !before(both, dtypes[t], n, k) : before(both, dtypes[t], k, n);
                wrong += ((int64_t *)y.data)[i] != count;
            }
            CHECK(wrong == 0, "%s: %lld wrong", taper_dtype_name(dtypes[t]), (long long)wrong);
            check_free(both);
            check_free(y.data);
            check_free(in[1].data);
            check_free(in[0].data);
        }
}

static void refused(void) {
    float data[12] = {0};
    int64_t places[12];
    const int64_t dims[] = {3, 4}, few[] = {3, 2};
    taper_tensor x = check_tensor(data, TAPER_FLOAT32, 2, dims);
    const taper_tensor y = check_tensor(places, TAPER_INT64, 2, dims);
    const taper_tensor less = check_tensor(places, TAPER_INT64, 2, few);
    const struct argsort_attrs whole_rows = {1, false, -1}, axis = {2, false, -1},
                               many = {1, false, 5}, two = {1, false, 2};
    CHECK(check_run("ARGSORT", NULL, &x, 1, &y, &axis, 1) == TAPER_UNSUPPORTED, "axis");
    CHECK(check_run("ARGSORT", NULL, &x, 1, &y, &many, 1) == TAPER_UNSUPPORTED, "count");
    CHECK(check_run("ARGSORT", NULL, &x, 1, &y, &two, 1) == TAPER_UNSUPPORTED, "output");
    CHECK(check_run("ARGSORT", NULL, &x, 1, &less, &whole_rows, 1) == TAPER_UNSUPPORTED, "output");
    x.dtype = TAPER_FLOAT16;
    CHECK(check_run("ARGSORT", NULL, &x, 1, &y, &whole_rows, 1) == TAPER_UNSUPPORTED, "half");
}

/* ---- benchmarks ---- */

static void time_argsort(const char *name, taper_dtype dtype, int64_t rows, int64_t n,
                         int64_t count) {
    const int64_t dims[] = {rows, n}, out[] = {rows, count < 0 ? n : count};
    taper_tensor x = check_tensor(NULL, dtype, 2, dims),
                 y = check_tensor(NULL, TAPER_INT64, 2, out);
    x.data = check_alloc((size_t)(rows * n) * taper_dtype_size(dtype), 0);
    y.data = check_alloc((size_t)check_numel(&y) * sizeof(int64_t), 0);
    fill(x.data, dtype, rows * n, ANY);
    const struct argsort_attrs attrs = {1, true, count};
    check_bench_op(name, "ARGSORT", NULL, &x, 1, &y, &attrs, 0, 4.0 * (double)(rows * n));
    check_free(y.data);
    check_free(x.data);
}

static void bench_argsort(void) {
    time_argsort("argsort 8x50000", TAPER_FLOAT32, 8, 50000, -1);
    time_argsort("argsort 8x50000 int64", TAPER_INT64, 8, 50000, -1);
    time_argsort("top 50 of 50000", TAPER_FLOAT32, 1, 50000, 50);
    time_argsort("top 2 of 8, 512 rows", TAPER_FLOAT32, 512, 8, 2);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {{"whole", whole},
                                       {"first_few", first_few},
                                       {"any_axis", any_axis},
                                       {"search", search},
                                       {"refused", refused}};
    static const check_case benches[] = {{"argsort", bench_argsort}};
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
