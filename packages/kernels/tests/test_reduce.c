/* Compares reductions, argmax, argmin and cumulative sums with double or int64. */
#include "check.h"
#include "reduce/kernels.inc"

#include <math.h>

/* The attrs of the other reductions are the first ones of VAR. */
CHECK_ATTRS(var)
CHECK_ATTRS(arg)

enum {
    EPSILONS = 8
}; /* the bound of a float sum: this many epsilons of the mean magnitude times
      sqrt(n), at least of the result */

/* ---- data of every dtype, read as double and as int64 ---- */

static bool is_float(int dtype) { return dtype == TAPER_FLOAT32 || dtype == TAPER_FLOAT64; }

static double read_f64(const void *data, int dtype, int64_t i) {
    return dtype == TAPER_FLOAT32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static void write_f64(void *data, int dtype, int64_t i, double value) {
    if (dtype == TAPER_FLOAT32)
        ((float *)data)[i] = (float)value;
    else
        ((double *)data)[i] = value;
}

static int64_t read_i64(const void *data, int dtype, int64_t i) {
    return dtype == TAPER_INT64   ? ((const int64_t *)data)[i]
           : dtype == TAPER_INT32 ? ((const int32_t *)data)[i]
           : dtype == TAPER_INT8  ? ((const int8_t *)data)[i]
                                  : ((const uint8_t *)data)[i];
}

static void fill(void *data, int dtype, int64_t n, float low, float high) {
    for (int64_t i = 0; i < n; i++)
        if (is_float(dtype))
            write_f64(data, dtype, i, /* of all 53 bits in float64 */
                      (double)check_uniform(low, high) + 0x1p-25 * (double)check_uniform(-1, 1));
        else if (dtype == TAPER_INT64)
            ((int64_t *)data)[i] = check_int(-(INT64_C(1) << 61), INT64_C(1) << 61);
        else if (dtype == TAPER_INT32)
            ((int32_t *)data)[i] = (int32_t)check_int(INT32_MIN, INT32_MAX);
        else if (dtype == TAPER_BOOL)
            ((uint8_t *)data)[i] = check_int(0, 15) == 0;
        else
            ((uint8_t *)data)[i] = (uint8_t)check_int(0, UINT8_MAX);
}

/* ---- reductions ---- */

static struct {
    const char *op;
    int dtype;
    bool of_nothing; /* has a value for no elements */
} const reductions[] = {
    {"SUM", TAPER_FLOAT32, true},   {"SUM", TAPER_INT64, true},     {"MEAN", TAPER_FLOAT32, true},
    {"PROD", TAPER_FLOAT32, true},  {"PROD", TAPER_INT64, true},    {"VAR", TAPER_FLOAT32, true},
    {"AMAX", TAPER_FLOAT32, false}, {"AMAX", TAPER_INT64, false},   {"AMAX", TAPER_INT32, false},
    {"AMAX", TAPER_BOOL, false},    {"AMIN", TAPER_FLOAT32, false}, {"AMIN", TAPER_INT64, false},
    {"AMIN", TAPER_INT32, false},   {"AMIN", TAPER_BOOL, false},    {"ANY", TAPER_BOOL, true},
    {"ALL", TAPER_BOOL, true},      {"SUM", TAPER_FLOAT64, true},   {"MEAN", TAPER_FLOAT64, true},
    {"PROD", TAPER_FLOAT64, true},  {"AMAX", TAPER_FLOAT64, false}, {"AMIN", TAPER_FLOAT64, false},
    {"AMAX", TAPER_UINT8, false},   {"AMIN", TAPER_UINT8, false},   {"AMAX", TAPER_INT8, false},
    {"AMIN", TAPER_INT8, false},
};
enum { N_REDUCTIONS = sizeof reductions / sizeof reductions[0] };

typedef struct reduction {
    const char *op;
    taper_tensor x, y;
    bool reduced[TAPER_MAX_RANK];
    int64_t axes[TAPER_MAX_RANK];
    struct var_attrs attrs;
} reduction;

static void reduction_make(reduction *r, size_t which, int rank, const int64_t *shape,
                           unsigned mask, bool keepdim, float low, float high, size_t misalign) {
    const int dtype = reductions[which].dtype;
    int64_t out[TAPER_MAX_RANK];
    int out_rank = 0, n_axes = 0;
    for (int d = 0; d < rank; d++) {
        r->reduced[d] = mask >> d & 1;
        if (r->reduced[d])
            r->axes[n_axes++] = d;
        if (!r->reduced[d] || keepdim)
            out[out_rank++] = r->reduced[d] ? 1 : shape[d];
    }
    r->op = reductions[which].op;
    r->attrs = (struct var_attrs){{r->axes, n_axes}, keepdim, 1.0};
    r->x = check_tensor(NULL, (taper_dtype)dtype, rank, shape);
    r->y = check_tensor(NULL, (taper_dtype)dtype, out_rank, out);
    const int64_t numel = check_numel(&r->x);
    r->x.data = check_alloc((size_t)numel * taper_dtype_size(dtype), misalign);
    r->y.data = check_alloc((size_t)check_numel(&r->y) * taper_dtype_size(dtype), misalign);
    fill(r->x.data, dtype, numel, low, high);
}

static void reduction_free(reduction *r) {
    check_free(r->x.data);
    check_free(r->y.data);
}

/* The output index of an input element, in a row-major output. */
static int64_t output_of(const reduction *r, int64_t element) {
    int64_t index = 0, stride = 1;
    for (int d = r->x.rank - 1; d >= 0; d--) {
        if (!r->reduced[d]) {
            index += element % r->x.shape[d] * stride;
            stride *= r->x.shape[d];
        }
        element /= r->x.shape[d];
    }
    return index;
}

/* Returns the rounding error of a + b. */
static double lost(double a, double b, double sum) {
    const double from_b = sum - a;
    return (a - (sum - from_b)) + (b - from_b);
}

static void check_float(const reduction *r, double *fold, double *size, double *rest) {
    const int64_t n = check_numel(&r->x), m = check_numel(&r->y);
    const int dtype = r->x.dtype;
    const double epsilon = dtype == TAPER_FLOAT32 ? 0x1p-24 : 0x1p-53;
    const double count = (double)n / (double)(m ? m : 1);
    const bool mean = strcmp(r->op, "MEAN") == 0, var = strcmp(r->op, "VAR") == 0,
               prod = strcmp(r->op, "PROD") == 0, max = strcmp(r->op, "AMAX") == 0,
               min = strcmp(r->op, "AMIN") == 0;
    for (int64_t i = 0; i < m; i++) {
        fold[i] = prod ? 1.0 : max ? -INFINITY : min ? INFINITY : 0.0;
        size[i] = rest[i] = 0.0;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t o = output_of(r, i);
        const double v = read_f64(r->x.data, dtype, i), f = fold[o];
        size[o] += fabs(v);
        if (max || min)
            fold[o] = isnan(f) || isnan(v) ? NAN : max ? fmax(f, v) : fmin(f, v);
        else
            fold[o] = prod ? f * v : f + v;
        rest[o] += max || min || prod ? 0.0 : lost(f, v, fold[o]);
    }
    for (int64_t i = 0; i < m; i++)
        fold[i] += isfinite(fold[i]) ? rest[i] : 0.0;
    if (var) {
        double *square = calloc((size_t)m + 1, sizeof *square);
        for (int64_t i = 0; i < n; i++) {
            const int64_t o = output_of(r, i);
            const double d = read_f64(r->x.data, dtype, i) - fold[o] / count;
            square[o] += d * d;
        }
        for (int64_t i = 0; i < m; i++) {
            fold[i] = square[i] / fmax(0.0, count - r->attrs.correction);
            size[i] = fabs(fold[i]);
        }
        free(square);
    }
    for (int64_t i = 0; i < m; i++) {
        const double exact = mean ? fold[i] / count : fold[i];
        const double want =
            dtype == TAPER_FLOAT32 && fabs(exact) >= 0x1p128 ? copysign(INFINITY, exact) : exact;
        const double terms = var || prod ? fabs(want) : size[i] / (mean ? count : 1.0);
        const double bound =
            max || min ? 0.0
            : prod ? (4 + 2 * count) * epsilon * fabs(want) + 0x1p-149
                   : EPSILONS * epsilon * (fabs(want) + terms / sqrt(count > 1.0 ? count : 1.0));
        const double got = read_f64(r->y.data, dtype, i);
        const bool same = isnan(want)   ? isnan(got)
                          : isinf(want) ? got == want
                                        : fabs(got - want) <= bound;
        CHECK(same, "%s of %g: output %lld is %.17g, not %.17g", r->op, count, (long long)i, got,
              want);
    }
}

static void check_int_values(const reduction *r, int64_t *fold) {
    const int64_t n = check_numel(&r->x), m = check_numel(&r->y);
    const int dtype = r->x.dtype;
    const bool prod = strcmp(r->op, "PROD") == 0;
    const bool max = strcmp(r->op, "AMAX") == 0 || strcmp(r->op, "ANY") == 0;
    const bool min = strcmp(r->op, "AMIN") == 0 || strcmp(r->op, "ALL") == 0;
    for (int64_t i = 0; i < m; i++)
        fold[i] = max   ? (dtype == TAPER_BOOL ? 0 : INT64_MIN)
                  : min ? (dtype == TAPER_BOOL ? 1 : INT64_MAX)
                        : prod;
    for (int64_t i = 0; i < n; i++) {
        const int64_t v = read_i64(r->x.data, dtype, i);
        int64_t *f = &fold[output_of(r, i)];
        if (max || min)
            *f = (max ? v > *f : v < *f) ? v : *f;
        else
            *f = (int64_t)(prod ? (uint64_t)*f * (uint64_t)v : (uint64_t)*f + (uint64_t)v);
    }
    for (int64_t i = 0; i < m; i++) {
        const int64_t got = read_i64(r->y.data, dtype, i);
        CHECK(got == fold[i], "%s: output %lld is %lld, not %lld", r->op, (long long)i,
              (long long)got, (long long)fold[i]);
    }
}

static void reduction_check(const reduction *r) {
    const size_t m = (size_t)check_numel(&r->y) + 1;
    double *fold = malloc(3 * m * sizeof *fold);
    int64_t *integers = malloc(m * sizeof *integers);
    if (is_float(r->x.dtype))
        check_float(r, fold, fold + m, fold + 2 * m);
    else
        check_int_values(r, integers);
    free(fold);
    free(integers);
}

static void check_reduction(size_t which, int rank, const int64_t *shape, unsigned mask,
                            bool keepdim, float low, float high, size_t misalign) {
    reduction r;
    reduction_make(&r, which, rank, shape, mask, keepdim, low, high, misalign);
    check_threads(r.op, NULL, &r.x, 1, &r.y, &r.attrs);
    reduction_check(&r);
    reduction_free(&r);
}

/* PROD stays in range: factors near 1. */
static void check_plain(size_t which, int rank, const int64_t *shape, unsigned mask) {
    const bool prod = strcmp(reductions[which].op, "PROD") == 0;
    check_reduction(which, rank, shape, mask, mask & 1, prod ? 0.7f : -2.0f, prod ? 1.4f : 3.0f, 0);
}

static void compare_reduction(void *r) { reduction_check(r); }

/* If the innermost dim is reduced and short, and another dim is reduced too, both variants serve.
 */
static void every_variant(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++)
        for (int way = 0; way < 4; way++) {
            static const unsigned masks[] = {2 | 8, 2 | 8, 1 | 4, 8};
            static const int served[] = {2, 1, 1, 1};
            const int64_t shape[] = {2, 70, 5, way == 1 ? 70 : 12};
            const bool prod = strcmp(reductions[which].op, "PROD") == 0;
            reduction r;
            reduction_make(&r, which, 4, shape, masks[way], false, prod ? 0.7f : -2.0f,
                           prod ? 1.4f : 3.0f, 0);
            const int n = check_variants(r.op, &r.x, 1, &r.y, &r.attrs, compare_reduction, &r);
            CHECK(n == served[way], "%s, way %d: %d variants", r.op, way, n);
            reduction_free(&r);
        }
}

/* The rows of the table for floats say correctly that bits may differ: those of sums, and of zeros
 * of both signs. Where a level compares lanes in order, both variants take the first of the zeros.
 */
static void variants_differ(void) {
    static const char *const ops[] = {"SUM", "AMAX"};
    enum { REPEATS = 40, OUTPUTS = 5, INNER = 12 };
    for (int i = 0; i < 2; i++) {
        int other = 0, first = 0;
        for (int repeat = 0; repeat < REPEATS; repeat++) {
            size_t which = 0;
            while (strcmp(reductions[which].op, ops[i]) != 0)
                which++;
            reduction r;
            reduction_make(&r, which, 3, (int64_t[]){9, OUTPUTS, INNER}, 1 | 4, false, -1, 1, 0);
            float *x = r.x.data, firsts[OUTPUTS], columns[OUTPUTS];
            for (int64_t j = 0; i == 1 && j < check_numel(&r.x); j++)
                x[j] = check_int(0, 1) ? 0.0f : -0.0f;
            for (int j = 0; j < OUTPUTS; j++)
                firsts[j] = x[j * INNER];
            check_variant = "columns";
            CHECK(check_run(r.op, NULL, &r.x, 1, &r.y, &r.attrs, 1) == TAPER_OK, "columns");
            memcpy(columns, r.y.data, sizeof columns);
            check_variant = "rows";
            CHECK(check_run(r.op, NULL, &r.x, 1, &r.y, &r.attrs, 1) == TAPER_OK, "rows");
            check_variant = NULL;
            other += memcmp(columns, r.y.data, sizeof columns) != 0;
            first += memcmp(columns, firsts, sizeof columns) == 0 &&
                     memcmp(r.y.data, firsts, sizeof columns) == 0;
            reduction_free(&r);
        }
        CHECK(other > 0 || first == REPEATS, "%s has the same bits by rows and by columns", ops[i]);
    }
}

static void every_set_of_axes(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++) {
        for (unsigned mask = 0; mask < 16; mask++) {
            check_plain(which, 4, (int64_t[]){2, 5, 3, 19}, mask);
            check_plain(which, 4, (int64_t[]){3, 1, 33, 2}, mask);
        }
        for (unsigned mask = 0; mask < 64; mask += 3)
            check_plain(which, 6, (int64_t[]){2, 3, 2, 3, 2, 3}, mask);
        check_plain(which, 8, (int64_t[]){2, 2, 3, 2, 2, 1, 2, 3}, 0x55);
        check_plain(which, 0, NULL, 0);
    }
}

static void row_lengths(void) {
    static const int64_t lengths[] = {1,  2,  3,  4,  7,   8,   9,   15,   16,   17,   31,  32,
                                      33, 63, 64, 65, 127, 128, 129, 2047, 2048, 2049, 7000};
    for (size_t which = 0; which < N_REDUCTIONS; which++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
            check_plain(which, 2, (int64_t[]){3, lengths[i]}, 2);
}

static void column_counts(void) {
    static const int64_t columns[] = {1,  2,  3,  5,  7,  8,   15,   16,
                                      17, 33, 63, 64, 65, 127, 1023, 1025};
    static const int64_t rows[] = {2, 3, 4, 5, 8, 255, 256, 257, 600};
    for (size_t which = 0; which < N_REDUCTIONS; which++)
        for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
            for (size_t j = 0; j < sizeof rows / sizeof rows[0]; j++)
                if (columns[i] * rows[j] < 70000)
                    check_plain(which, 2, (int64_t[]){rows[j], columns[i]}, 1);
}

static void narrow_and_long(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++) {
        if (strcmp(reductions[which].op, "PROD") == 0)
            continue;
        check_plain(which, 3, (int64_t[]){2, 30011, 3}, 2);
        check_plain(which, 2, (int64_t[]){2, 100003}, 2);
        check_plain(which, 1, (int64_t[]){100003}, 1);
    }
}

/* Short rows together with another reduced dimension, of many lengths, in several tiles. */
static void short_rows_among_columns(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++) {
        for (int64_t n = 2; n <= 70; n += n < 9 ? 1 : 7) {
            check_plain(which, 4, (int64_t[]){2, 70, 5, n}, 2 | 8);
            check_plain(which, 5, (int64_t[]){2, 3, 4, 6, n}, 1 | 4 | 16);
        }
        check_plain(which, 3, (int64_t[]){9, 700, 3}, 1 | 4);
        check_plain(which, 4, (int64_t[]){3, 0, 5, 4}, 1 | 8);
    }
}

static void many_outputs(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++) {
        check_plain(which, 3, (int64_t[]){50, 60, 17}, 4);
        check_plain(which, 3, (int64_t[]){300, 4, 30}, 2);
        check_plain(which, 2, (int64_t[]){9, 5000}, 1);
        check_plain(which, 4, (int64_t[]){3, 20, 9, 31}, 1 | 4 | 8);
    }
}

static void misaligned(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++) {
        const size_t element = taper_dtype_size(reductions[which].dtype);
        for (unsigned mask = 1; mask < 4; mask++)
            check_reduction(which, 2, (int64_t[]){21, 83}, mask, false, 0.9f, 1.1f, 5 * element);
    }
}

static void large_mean(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++)
        if (strcmp(reductions[which].op, "VAR") == 0)
            for (unsigned mask = 1; mask < 4; mask++)
                check_reduction(which, 2, (int64_t[]){700, 90}, mask, false, 1e6f - 4.0f,
                                1e6f + 4.0f, 0);
}

static void one_sided_sums(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++)
        if (strcmp(reductions[which].op, "SUM") == 0 || strcmp(reductions[which].op, "MEAN") == 0)
            for (unsigned mask = 1; mask < 4; mask++)
                check_reduction(which, 2, (int64_t[]){5000, 40}, mask, false, 0.0f, 1.0f, 0);
}

static void empty(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++) {
        check_reduction(which, 2, (int64_t[]){0, 5}, 2, false, 0.0f, 1.0f, 0);
        check_reduction(which, 2, (int64_t[]){5, 0}, 1, false, 0.0f, 1.0f, 0);
        for (unsigned mask = 1; mask < 4; mask++) {
            reduction r;
            reduction_make(&r, which, 2, (int64_t[]){mask & 1 ? 0 : 7, mask & 2 ? 0 : 7}, mask,
                           false, 0.0f, 1.0f, 0);
            const taper_status status = check_run(r.op, NULL, &r.x, 1, &r.y, &r.attrs, 2);
            CHECK(status == (reductions[which].of_nothing ? TAPER_OK : TAPER_UNSUPPORTED),
                  "%s of nothing: %s", r.op, taper_status_string(status));
            if (status == TAPER_OK)
                reduction_check(&r);
            reduction_free(&r);
        }
    }
}

/* Specials in three columns and three rows of 40 x 40, so that each folding sees them. */
static void special_values(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++) {
        const int dtype = reductions[which].dtype;
        if (!is_float(dtype))
            continue;
        for (unsigned mask = 1; mask < 3; mask++) {
            reduction r;
            reduction_make(&r, which, 2, (int64_t[]){40, 40}, mask, false, 0.5f, 1.5f, 0);
            const int64_t along = mask == 1 ? 40 : 1, across = mask == 1 ? 1 : 40;
            write_f64(r.x.data, dtype, 3 * across + 39 * along, NAN);
            write_f64(r.x.data, dtype, 5 * across, NAN);
            write_f64(r.x.data, dtype, 7 * across + 20 * along, INFINITY);
            write_f64(r.x.data, dtype, 9 * across + 20 * along, -INFINITY);
            write_f64(r.x.data, dtype, 11 * across + 3 * along, INFINITY);
            write_f64(r.x.data, dtype, 11 * across + 30 * along, -INFINITY);
            write_f64(r.x.data, dtype, 13 * across + 30 * along, 0.0);
            for (int64_t i = 0; i < 40; i++) {
                write_f64(r.x.data, dtype, 15 * across + i * along, -INFINITY);
                write_f64(r.x.data, dtype, 17 * across + i * along, INFINITY);
                write_f64(r.x.data, dtype, 19 * across + i * along, NAN);
            }
            CHECK(check_run(r.op, NULL, &r.x, 1, &r.y, &r.attrs, 1) == TAPER_OK, "unsupported");
            reduction_check(&r);
            reduction_free(&r);
        }
    }
}

/* ---- argmax, argmin ---- */

static void check_arg(bool min, int dtype, int rank, const int64_t *shape, int64_t axis,
                      void (*prepare_data)(void *data, int dtype, int64_t n)) {
    int64_t outer = 1, n = 1, inner = 1, out[TAPER_MAX_RANK];
    for (int d = 0; d < rank; d++) {
        *(d < axis ? &outer : d == axis ? &n : &inner) *= shape[d];
        out[d] = d == axis ? 1 : shape[d];
    }
    taper_tensor x = check_tensor(NULL, (taper_dtype)dtype, rank, shape);
    taper_tensor y = check_tensor(NULL, TAPER_INT64, rank, out);
    const int64_t numel = check_numel(&x);
    x.data = check_alloc((size_t)numel * taper_dtype_size(dtype), 0);
    y.data = check_alloc((size_t)(outer * inner) * sizeof(int64_t), 0);
    fill(x.data, dtype, numel, -1.0f, 1.0f);
    if (prepare_data)
        prepare_data(x.data, dtype, numel);
    const struct arg_attrs attrs = {axis, true};
    check_threads(min ? "ARGMIN" : "ARGMAX", NULL, &x, 1, &y, &attrs);
    for (int64_t line = 0; line < outer * inner; line++) {
        const int64_t start = line / inner * n * inner + line % inner;
        int64_t want = 0;
        for (int64_t i = 1; i < n; i++) {
            const int64_t at = start + i * inner, best = start + want * inner;
            if (is_float(dtype)) {
                const double v = read_f64(x.data, dtype, at), b = read_f64(x.data, dtype, best);
                want = (min ? v < b : v > b) || (isnan(v) && !isnan(b)) ? i : want;
            } else {
                const int64_t v = read_i64(x.data, dtype, at), b = read_i64(x.data, dtype, best);
                want = (min ? v < b : v > b) ? i : want;
            }
        }
        const int64_t got = ((int64_t *)y.data)[line];
        CHECK(got == want, "line %lld of %lld: %lld, not %lld", (long long)line, (long long)n,
              (long long)got, (long long)want);
    }
    check_free(x.data);
    check_free(y.data);
}

static void arg_every_axis(void) {
    static const int dtypes[] = {TAPER_FLOAT32, TAPER_FLOAT64, TAPER_INT64,
                                 TAPER_INT32,   TAPER_UINT8,   TAPER_INT8};
    for (int min = 0; min < 2; min++)
        for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
            for (int64_t axis = 0; axis < 4; axis++)
                check_arg(min, dtypes[k], 4, (int64_t[]){3, 5, 7, 19}, axis, NULL);
            check_arg(min, dtypes[k], 2, (int64_t[]){4, 5000}, 1, NULL);
            check_arg(min, dtypes[k], 2, (int64_t[]){30, 2100}, 0, NULL);
            check_arg(min, dtypes[k], 2, (int64_t[]){0, 21}, 1, NULL);
            check_arg(min, dtypes[k], 0, NULL, 0, NULL);
        }
}

static void few_values(void *data, int dtype, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        write_f64(data, dtype, i, (double)check_int(-1, 1) * 0.0 + (double)check_int(0, 1));
}
static void some_nan(void *data, int dtype, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (check_int(0, 40) == 0)
            write_f64(data, dtype, i,
                      check_int(0, 1)   ? (double)NAN
                      : check_int(0, 1) ? (double)INFINITY
                                        : -(double)INFINITY);
}
static void all_nan(void *data, int dtype, int64_t n) {
    memset(data, 0xff, (size_t)n * taper_dtype_size(dtype));
}
static void one_value(void *data, int dtype, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        write_f64(data, dtype, i, i % 2 ? (double)INFINITY : -(double)INFINITY);
}

static void arg_first_and_nan(void) {
    void (*const data[])(void *, int, int64_t) = {few_values, some_nan, all_nan, one_value};
    for (int min = 0; min < 2; min++)
        for (size_t k = 0; k < sizeof data / sizeof data[0]; k++)
            for (int64_t n = 1; n < 70; n++) {
                for (int dtype = TAPER_FLOAT32; dtype <= TAPER_FLOAT64; dtype++) {
                    check_arg(min, dtype, 2, (int64_t[]){5, n}, 1, data[k]);
                    check_arg(min, dtype, 2, (int64_t[]){n, 5}, 0, data[k]);
                }
            }
}

static void not_served(void) {
    float data[16] = {0};
    taper_tensor x = check_tensor(data, TAPER_FLOAT32, 2, (int64_t[]){4, 4});
    taper_tensor y = check_tensor(data, TAPER_FLOAT32, 1, (int64_t[]){4});
    const int64_t axis = 1, beyond = 2;
    const struct var_attrs attrs = {{&axis, 1}, false, 1.0}, bad = {{&beyond, 1}, false, 1.0};
    CHECK(check_run("SUM", NULL, &x, 1, &y, &bad, 1) == TAPER_UNSUPPORTED, "axis 2 of 2");
    x.strides[0] = 1;
    x.strides[1] = 4;
    CHECK(check_run("SUM", NULL, &x, 1, &y, &attrs, 1) == TAPER_UNSUPPORTED, "transposed");
    x.strides[0] = 4;
    x.strides[1] = 1;
    x.dtype = TAPER_INT32;
    CHECK(check_run("SUM", NULL, &x, 1, &y, &attrs, 1) == TAPER_UNSUPPORTED, "int32 sum");
}

static const check_case cases[] = {
    {"every_variant", every_variant},
    {"variants_differ", variants_differ},
    {"every_set_of_axes", every_set_of_axes},
    {"row_lengths", row_lengths},
    {"column_counts", column_counts},
    {"narrow_and_long", narrow_and_long},
    {"short_rows_among_columns", short_rows_among_columns},
    {"many_outputs", many_outputs},
    {"misaligned", misaligned},
    {"large_mean", large_mean},
    {"one_sided_sums", one_sided_sums},
    {"empty", empty},
    {"special_values", special_values},
    {"arg_every_axis", arg_every_axis},
    {"arg_first_and_nan", arg_first_and_nan},
    {"not_served", not_served},
};

static void bench_reduction(size_t which, int64_t rows, int64_t columns, unsigned mask) {
    reduction r;
    reduction_make(&r, which, 2, (int64_t[]){rows, columns}, mask, false, 0.9f, 1.1f, 0);
    char name[64];
    snprintf(name, sizeof name, "%s %s %lldx%lld axes %s", r.op, taper_dtype_name(r.x.dtype),
             (long long)rows, (long long)columns,
             mask == 1   ? "0"
             : mask == 2 ? "1"
                         : "0,1");
    check_bench_op(name, r.op, NULL, &r.x, 1, &r.y, &r.attrs, 0,
                   (double)(rows * columns) * (double)taper_dtype_size(r.x.dtype));
    reduction_free(&r);
}

static void bench_reductions(void) {
    for (size_t which = 0; which < N_REDUCTIONS; which++) {
        bench_reduction(which, 128, 384, 2);
        bench_reduction(which, 128, 384, 1);
    }
    for (size_t which = 0; which < 6; which += 5) { /* SUM and VAR */
        bench_reduction(which, 4096, 4096, 2);
        bench_reduction(which, 4096, 4096, 1);
        bench_reduction(which, 100000, 3, 1);
        bench_reduction(which, 100000, 3, 2);
    }
}

static void bench_lines(void) {
    static const char *const ops[] = {"ARGMAX", "CUMSUM"};
    for (size_t k = 0; k < 2; k++)
        for (int64_t axis = 0; axis < 2; axis++) {
            taper_tensor x = check_tensor(NULL, TAPER_FLOAT32, 2, (int64_t[]){256, 8192});
            taper_tensor y = k ? x
                               : check_tensor(NULL, TAPER_INT64, 2,
                                              (int64_t[]){axis ? 256 : 1, axis ? 1 : 8192});
            x.data = check_alloc(256 * 8192 * sizeof(float), 0);
            y.data = check_alloc(256 * 8192 * sizeof(float), 0);
            fill(x.data, TAPER_FLOAT32, 256 * 8192, 0.0f, 1.0f);
            const struct arg_attrs attrs = {axis, true};
            char name[64];
            snprintf(name, sizeof name, "%s float32 256x8192 axis %lld", ops[k], (long long)axis);
            check_bench_op(name, ops[k], NULL, &x, 1, &y, &attrs, 0, 256 * 8192 * 4.0);
            check_free(x.data);
            check_free(y.data);
        }
}

/* Groups of channels: 28x28 pixels, 32 groups of each size. */
static void bench_groups(void) {
    for (size_t which = 0; which < 6; which += 5) /* SUM and VAR */
        for (int64_t n = 2; n <= 128; n *= 2) {
            reduction r;
            reduction_make(&r, which, 3, (int64_t[]){784, 32, n}, 1 | 4, false, 0.9f, 1.1f, 0);
            char name[64];
            snprintf(name, sizeof name, "%s groups of %lld", r.op, (long long)n);
            check_bench_op(name, r.op, NULL, &r.x, 1, &r.y, &r.attrs, 0,
                           (double)(784 * 32 * 4 * n));
            reduction_free(&r);
        }
}

static const check_case benches[] = {
    {"reductions", bench_reductions}, {"groups", bench_groups}, {"lines", bench_lines}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
