/* Compares SCATTER with element-by-element writes, in the order of src. */
#include "check.h"
#include <math.h>

#include "scatter/kernels.inc"

CHECK_ATTRS(scatter)

enum { RANK = 3, N_REDUCTIONS = 5 };
static const char *const reductions[N_REDUCTIONS] = {"none", "sum", "prod", "amax", "amin"};

typedef struct tensors {
    taper_tensor in[3], y; /* x, index, src */
    struct scatter_attrs attrs;
} tensors;

static double value_at(const taper_tensor *t, int64_t i) {
    switch (t->dtype) {
    case TAPER_FLOAT32:
        return ((const float *)t->data)[i];
    case TAPER_FLOAT64:
        return ((const double *)t->data)[i];
    case TAPER_INT32:
        return ((const int32_t *)t->data)[i];
    case TAPER_INT8:
        return ((const int8_t *)t->data)[i];
    default:
        return ((const uint8_t *)t->data)[i];
    }
}

static void set_value(taper_tensor *t, int64_t i, double v) {
    switch (t->dtype) {
    case TAPER_FLOAT32:
        ((float *)t->data)[i] = (float)v;
        break;
    case TAPER_FLOAT64:
        ((double *)t->data)[i] = v;
        break;
    case TAPER_INT32:
        ((int32_t *)t->data)[i] = (int32_t)v;
        break;
    case TAPER_INT8:
        ((int8_t *)t->data)[i] = (int8_t)v;
        break;
    default:
        ((uint8_t *)t->data)[i] = v != 0;
    }
}

static int64_t index_at(const taper_tensor *t, int64_t i) {
    return t->dtype == TAPER_INT32 ? ((const int32_t *)t->data)[i] : ((const int64_t *)t->data)[i];
}

static void set_index(taper_tensor *t, int64_t i, int64_t v) {
    if (t->dtype == TAPER_INT32)
        ((int32_t *)t->data)[i] = (int32_t)v;
    else
        ((int64_t *)t->data)[i] = v;
}

/* Whole numbers near 1, exact in all dtypes and any order; x and src have a gap between rows.
 * shared: all of the last dim has one index. */
static tensors make(taper_dtype dtype, const char *reduce, int axis, const int64_t *x,
                    const int64_t *index, bool shared) {
    tensors t = {.attrs = {axis, true, reduce}};
    const int64_t n = x[axis];
    const bool gap = check_int(0, 1);
    for (int i = 0; i < 3; i++) {
        taper_tensor *in = &t.in[i];
        const taper_dtype own = i != 1 ? dtype : shared ? TAPER_INT32 : TAPER_INT64;
        int64_t wide[RANK] = {0}, dims[RANK];
        memcpy(dims, i == 0 ? x : index, sizeof dims);
        memcpy(wide, dims, sizeof wide);
        wide[RANK - 1] = i == 1 && shared ? 1 : dims[RANK - 1] + (gap && i != 1);
        *in = check_tensor(NULL, own, RANK, wide);
        const int64_t numel = check_numel(in);
        in->data = check_alloc((size_t)numel * taper_dtype_size(own), 0);
        for (int64_t e = 0; e < numel; e++)
            if (i == 1)
                set_index(in, e, check_int(-n, n - 1));
            else
                set_value(in, e, (double)check_int(0, 2));
        memcpy(in->shape, dims, sizeof dims);
        if (i == 1 && shared)
            in->strides[RANK - 1] = 0;
    }
    t.y = check_tensor(NULL, dtype, RANK, x);
    t.y.data = check_alloc((size_t)check_numel(&t.y) * taper_dtype_size(dtype), 0);
    return t;
}

static void release(tensors *t) {
    for (int i = 0; i < 3; i++)
        check_free(t->in[i].data);
    check_free(t->y.data);
}

static double combined(const char *reduce, int dtype, double a, double b) {
    double y = strcmp(reduce, "none") == 0   ? b
               : strcmp(reduce, "sum") == 0  ? a + b
               : strcmp(reduce, "prod") == 0 ? a * b
               : strcmp(reduce, "amax") == 0 ? (a > b ? a : b)
                                             : (a < b ? a : b);
    if (dtype == TAPER_INT8)
        y = (int8_t)(int64_t)y;
    return dtype == TAPER_BOOL ? y != 0 : y;
}

static int64_t offset(const taper_tensor *t, const int64_t *at) {
    int64_t o = 0;
    for (int d = 0; d < RANK; d++)
        o += at[d] * t->strides[d];
    return o;
}

static void compare(const tensors *t) {
    const taper_tensor *x = &t->in[0], *index = &t->in[1], *src = &t->in[2];
    const int64_t numel = check_numel(&t->y), axis = t->attrs.axis;
    taper_tensor want = t->y;
    want.data = check_alloc((size_t)numel * taper_dtype_size(want.dtype), 0);
    int64_t at[RANK];
    for (at[0] = 0; at[0] < x->shape[0]; at[0]++)
        for (at[1] = 0; at[1] < x->shape[1]; at[1]++)
            for (at[2] = 0; at[2] < x->shape[2]; at[2]++)
                set_value(&want, offset(&want, at), value_at(x, offset(x, at)));
    for (at[0] = 0; at[0] < index->shape[0]; at[0]++)
        for (at[1] = 0; at[1] < index->shape[1]; at[1]++)
            for (at[2] = 0; at[2] < index->shape[2]; at[2]++) {
                const int64_t i = index_at(index, offset(index, at));
                int64_t to[RANK];
                memcpy(to, at, sizeof to);
                to[axis] = i < 0 ? i + x->shape[axis] : i;
                const int64_t o = offset(&want, to);
                set_value(&want, o,
                          combined(t->attrs.reduce, x->dtype, value_at(&want, o),
                                   value_at(src, offset(src, at))));
            }
    int64_t wrong = 0;
    for (int64_t i = 0; i < numel; i++)
        wrong += value_at(&want, i) != value_at(&t->y, i);
    CHECK(wrong == 0, "%s of %s along %lld: %lld of %lld wrong", t->attrs.reduce,
          taper_dtype_name(x->dtype), (long long)axis, (long long)wrong, (long long)numel);
    check_free(want.data);
}

static void check_scatter(taper_dtype dtype, const char *reduce, int axis, const int64_t *x,
                          const int64_t *index, bool shared) {
    tensors t = make(dtype, reduce, axis, x, index, shared);
    check_threads("SCATTER", NULL, t.in, 3, &t.y, &t.attrs);
    compare(&t);
    release(&t);
}

static void drawn(void) {
    static const taper_dtype dtypes[] = {TAPER_FLOAT32, TAPER_FLOAT64, TAPER_INT32, TAPER_INT8,
                                         TAPER_BOOL};
    for (int repeat = 0; repeat < 600; repeat++) {
        const int axis = (int)check_int(0, RANK - 1);
        int64_t x[RANK], index[RANK];
        for (int d = 0; d < RANK; d++) {
            x[d] = check_int(1, 9);
            index[d] = d == axis ? check_int(0, 20) : check_int(0, 3) ? x[d] : check_int(0, x[d]);
        }
        check_scatter(dtypes[check_int(0, 4)], reductions[repeat % N_REDUCTIONS], axis, x, index,
                      axis < RANK - 1 && check_int(0, 1));
    }
}

/* Few lines, cut into columns or ranges of places. */
static void parts(void) {
    for (int r = 0; r < N_REDUCTIONS; r++) {
        check_scatter(TAPER_FLOAT32, reductions[r], 0, (int64_t[]){300, 1, 70},
                      (int64_t[]){900, 1, 70}, true);
        check_scatter(TAPER_FLOAT32, reductions[r], 0, (int64_t[]){300, 1, 70},
                      (int64_t[]){400, 1, 70}, false);
        check_scatter(TAPER_INT32, reductions[r], 2, (int64_t[]){1, 2, 40000},
                      (int64_t[]){1, 2, 9000}, false);
        check_scatter(TAPER_INT32, reductions[r], 1, (int64_t[]){3, 2, 9000},
                      (int64_t[]){3, 20, 9000}, true);
        check_scatter(TAPER_FLOAT32, reductions[r], 1, (int64_t[]){1, 300, 1300},
                      (int64_t[]){1, 40, 1290}, false); /* runs longer than what is looked up */
        check_scatter(TAPER_FLOAT64, reductions[r], 0, (int64_t[]){20000, 1, 3},
                      (int64_t[]){30000, 1, 3}, false);
    }
}

/* Long rows that meet one number. */
static void broadcast(void) {
    for (int r = 0; r < N_REDUCTIONS; r++) {
        tensors t = make(TAPER_FLOAT32, reductions[r], 1, (int64_t[]){2, 30, 1300},
                         (int64_t[]){2, 8, 1300}, true);
        t.in[2].strides[RANK - 1] = 0;
        check_threads("SCATTER", NULL, t.in, 3, &t.y, &t.attrs);
        compare(&t);
        release(&t);
    }
}

static void nan_and_rounding(void) {
    static const float special[] = {NAN, 1, 5, 1e8f, 1, -1e8f};
    const int64_t index[] = {0, 1, 0, 2, 2, 2};
    for (int r = 1; r < N_REDUCTIONS; r++) {
        float x[] = {2, 2, 0}, y[3];
        const int64_t size = 3, count = 6;
        const taper_tensor in[] = {
            check_tensor(x, TAPER_FLOAT32, 1, &size),
            check_tensor((void *)(uintptr_t)index, TAPER_INT64, 1, &count),
            check_tensor((void *)(uintptr_t)special, TAPER_FLOAT32, 1, &count)};
        const taper_tensor out = check_tensor(y, TAPER_FLOAT32, 1, &size);
        const struct scatter_attrs attrs = {0, true, reductions[r]};
        CHECK(check_run("SCATTER", NULL, in, 3, &out, &attrs, 1) == TAPER_OK, "run");
        CHECK(y[0] != y[0], "%s: NaN stays", reductions[r]);
        if (r == 1) /* 1 is lost beside 1e8 */
            CHECK(y[1] == 3 && y[2] == 0, "in the order of src");
    }
}

/* No task writes through an index that is outside, whichever task finds it. */
static void bad_index(void) {
    static const int64_t bad[] = {6, -7, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    const int64_t x[] = {6, 1, 40}, index[] = {700, 1, 40};
    for (int shared = 0; shared < 2; shared++)
        for (size_t b = 0; b < (shared ? 4 : 6); b++)
            for (int workers = 1; workers <= 2; workers++) {
                tensors t = make(TAPER_FLOAT32, "sum", 0, x, index, shared);
                set_index(&t.in[1], check_int(0, 699), bad[b]);
                CHECK(check_run("SCATTER", NULL, t.in, 3, &t.y, &t.attrs, workers) ==
                          TAPER_BAD_INDEX,
                      "index %lld of 6", (long long)bad[b]);
                release(&t);
            }
}

static void empty(void) {
    static const int64_t sizes[][2][RANK] = {{{0, 2, 3}, {0, 2, 3}},
                                             {{4, 0, 3}, {9, 0, 3}},
                                             {{4, 2, 3}, {0, 2, 3}},
                                             {{4, 2, 3}, {4, 0, 3}},
                                             {{4, 2, 0}, {4, 2, 0}}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_scatter(TAPER_FLOAT32, "sum", 0, sizes[i][0], sizes[i][1], false);
    /* No index is inside a dim without places. */
    tensors t = make(TAPER_FLOAT32, "sum", 0, (int64_t[]){1, 2, 3}, (int64_t[]){1, 2, 3}, false);
    t.in[0].shape[0] = t.y.shape[0] = 0;
    CHECK(check_run("SCATTER", NULL, t.in, 3, &t.y, &t.attrs, 1) == TAPER_BAD_INDEX, "no places");
    release(&t);
}

static void refused(void) {
    const int64_t dims[] = {2, 3, 4};
    tensors t = make(TAPER_FLOAT32, "sum", 0, dims, dims, false);
    const struct scatter_attrs axis = {3, true, "sum"}, reduce = {0, true, "mean"};
    CHECK(check_run("SCATTER", NULL, t.in, 3, &t.y, &axis, 1) == TAPER_UNSUPPORTED, "axis");
    CHECK(check_run("SCATTER", NULL, t.in, 3, &t.y, &reduce, 1) == TAPER_UNSUPPORTED, "reduce");
    CHECK(check_run("SCATTER", NULL, t.in, 2, &t.y, &t.attrs, 1) == TAPER_UNSUPPORTED, "inputs");
    t.in[2].dtype = TAPER_INT32;
    CHECK(check_run("SCATTER", NULL, t.in, 3, &t.y, &t.attrs, 1) == TAPER_UNSUPPORTED, "src");
    t.in[2].dtype = TAPER_FLOAT32;
    t.in[1].shape[2] = t.in[2].shape[2] = 5;
    CHECK(check_run("SCATTER", NULL, t.in, 3, &t.y, &t.attrs, 1) == TAPER_UNSUPPORTED, "index");
    t.in[1].shape[2] = t.in[2].shape[2] = 4;
    t.in[0].dtype = t.in[2].dtype = t.y.dtype = TAPER_FLOAT16;
    CHECK(check_run("SCATTER", NULL, t.in, 3, &t.y, &t.attrs, 1) == TAPER_UNSUPPORTED, "half");
    release(&t);
}

static void bench_rows(void) {
    tensors t =
        make(TAPER_FLOAT32, "sum", 0, (int64_t[]){2000, 1, 64}, (int64_t[]){10000, 1, 64}, true);
    check_bench_op("scatter_add 10000x64", "SCATTER", NULL, t.in, 3, &t.y, &t.attrs, 640000,
                   640000 * 4.0);
    release(&t);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"drawn", drawn},         {"parts", parts},
        {"broadcast", broadcast}, {"nan_and_rounding", nan_and_rounding},
        {"bad_index", bad_index}, {"empty", empty},
        {"refused", refused},
    };
    static const check_case benches[] = {{"rows", bench_rows}};
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
