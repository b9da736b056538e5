/* The ops that move data, TRANSPOSE to CAT, against element-by-element copies. */
#include "check.h"
#include "copy/kernels.inc"

CHECK_ATTRS(transpose)
CHECK_ATTRS(axes)
CHECK_ATTRS(shape)
CHECK_ATTRS(slice)
CHECK_ATTRS(cat)
CHECK_ATTRS(pad)

static const taper_dtype dtypes[] = {TAPER_INT8, TAPER_BFLOAT16, TAPER_FLOAT32, TAPER_INT64};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* A tensor of random bytes. strided: the view of a larger buffer, with dimensions in any order,
 * steps, flips and broadcasts. */
typedef struct random_tensor {
    taper_tensor t;
    void *memory;
} random_tensor;

static random_tensor make_tensor(taper_dtype dtype, int rank, const int64_t *dims, bool strided) {
    const int64_t size = (int64_t)taper_dtype_size(dtype);
    random_tensor r = {.t = check_tensor(NULL, dtype, rank, dims)};
    int64_t numel = check_numel(&r.t) > 0, offset = 0;
    int order[TAPER_MAX_RANK];
    for (int d = 0; d < rank; d++) {
        const int other = strided ? (int)check_int(0, d) : d;
        order[d] = order[other];
        order[other] = d;
    }
    for (int i = rank - 1; i >= 0; i--) {
        const int d = order[i];
        const int64_t kind = strided ? check_int(0, 7) : 7;
        const int64_t step = kind == 0 ? 0 : kind == 1 ? 2 : kind == 2 ? -1 : 1;
        if (dims[d] > 1 && step < 0)
            offset += (dims[d] - 1) * numel;
        r.t.strides[d] = step * numel;
        numel *= step == 0 || dims[d] == 0 ? 1 : (dims[d] - 1) * (step < 0 ? -step : step) + 1;
    }
    uint8_t *bytes = check_alloc((size_t)(numel * size), 0);
    check_fill_bytes(bytes, numel * size);
    r.memory = bytes;
    r.t.data = bytes + offset * size;
    return r;
}

static const uint8_t *element_at(const taper_tensor *t, const int64_t *index) {
    int64_t at = 0;
    for (int d = 0; d < t->rank; d++)
        at += index[d] * t->strides[d];
    return (const uint8_t *)t->data + at * (int64_t)taper_dtype_size(t->dtype);
}

/* The source of output element `out`: the number of the input, and the index in it. */
typedef int (*source_of)(const void *attrs, const taper_tensor *inputs, const int64_t *out,
                         int64_t *in);

static void expect(const char *op, const void *attrs, const taper_tensor *inputs, int n_inputs,
                   int rank, const int64_t *dims, source_of source) {
    taper_tensor y = check_tensor(NULL, (taper_dtype)inputs[0].dtype, rank, dims);
    const size_t size = taper_dtype_size(y.dtype);
    const int64_t numel = check_numel(&y);
    for (int workers = 1; workers <= 3; workers++) {
        y.data = check_alloc((size_t)numel * size, workers == 2 ? size : 0);
        const taper_status status = check_run(op, NULL, inputs, n_inputs, &y, attrs, workers);
        CHECK(status == TAPER_OK, "%s: %s", op, taper_status_string(status));
        int64_t index[TAPER_MAX_RANK] = {0};
        int64_t wrong = 0;
        for (int64_t i = 0; i < numel; i++) {
            int64_t in[TAPER_MAX_RANK] = {0};
            const taper_tensor *x = &inputs[source(attrs, inputs, index, in)];
            wrong += memcmp((uint8_t *)y.data + (size_t)i * size, element_at(x, in), size) != 0;
            for (int d = rank - 1; d >= 0 && ++index[d] == dims[d]; d--)
                index[d] = 0;
        }
        CHECK(wrong == 0, "%s of %s, rank %d, %d workers: %lld of %lld elements are wrong", op,
              taper_dtype_name(y.dtype), rank, workers, (long long)wrong, (long long)numel);
        check_free(y.data);
    }
}

static int source_same(const void *attrs, const taper_tensor *x, const int64_t *out, int64_t *in) {
    (void)attrs;
    memcpy(in, out, sizeof *in * (size_t)x->rank);
    return 0;
}

static int source_transpose(const void *attrs, const taper_tensor *x, const int64_t *out,
                            int64_t *in) {
    const struct transpose_attrs *a = attrs;
    source_same(attrs, x, out, in);
    in[a->axis0] = out[a->axis1];
    in[a->axis1] = out[a->axis0];
    return 0;
}

static int source_permute(const void *attrs, const taper_tensor *x, const int64_t *out,
                          int64_t *in) {
    const struct axes_attrs *a = attrs;
    for (int d = 0; d < x->rank; d++)
        in[a->axes.data[d]] = out[d];
    return 0;
}

static int source_slice(const void *attrs, const taper_tensor *x, const int64_t *out, int64_t *in) {
    const struct slice_attrs *a = attrs;
    source_same(attrs, x, out, in);
    in[a->axis] = a->start + out[a->axis] * a->step;
    return 0;
}

static int source_expand(const void *attrs, const taper_tensor *x, const int64_t *out,
                         int64_t *in) {
    const struct shape_attrs *a = attrs;
    for (int d = 0; d < x->rank; d++)
        in[d] = x->shape[d] == 1 ? 0 : out[a->shape.count - x->rank + d];
    return 0;
}

static int source_flip(const void *attrs, const taper_tensor *x, const int64_t *out, int64_t *in) {
    const struct axes_attrs *a = attrs;
    source_same(attrs, x, out, in);
    for (int64_t i = 0; i < a->axes.count; i++)
        in[a->axes.data[i]] = x->shape[a->axes.data[i]] - 1 - out[a->axes.data[i]];
    return 0;
}

static int source_cat(const void *attrs, const taper_tensor *x, const int64_t *out, int64_t *in) {
    const struct cat_attrs *a = attrs;
    int i = 0;
    source_same(attrs, x, out, in);
    for (; in[a->axis] >= x[i].shape[a->axis]; i++)
        in[a->axis] -= x[i].shape[a->axis];
    return i;
}

static int source_pad(const void *attrs, const taper_tensor *x, const int64_t *out, int64_t *in) {
    const struct pad_attrs *a = attrs;
    source_same(attrs, x, out, in);
    for (int64_t i = 0; i < a->axes.count; i++) {
        const int64_t d = a->axes.data[i], n = x->shape[d];
        int64_t at = in[d] - a->low.data[i];
        if (strcmp(a->mode, "circular") == 0)
            at = (at + n) % n;
        else if (strcmp(a->mode, "reflect") == 0)
            at = at < 0 ? -at : at < n ? at : 2 * (n - 1) - at;
        else
            at = at < 0 ? 0 : at < n ? at : n - 1;
        in[d] = at;
    }
    return 0;
}

static void permute(taper_dtype dtype, int rank, const int64_t *dims, const int64_t *axes,
                    bool strided) {
    const struct axes_attrs attrs = {{axes, rank}};
    int64_t out[TAPER_MAX_RANK];
    for (int d = 0; d < rank; d++)
        out[d] = dims[axes[d]];
    random_tensor x = make_tensor(dtype, rank, dims, strided);
    expect("PERMUTE", &attrs, &x.t, 1, rank, out, source_permute);
    check_free(x.memory);
}

/* Around the 16-byte tile, the 64-byte line and the 32 KiB task, in both directions. */
static void transpose_sizes(void) {
    static const int64_t sizes[][2] = {{1, 1},     {1, 40},   {3, 5},      {4, 4},    {7, 8},
                                       {8, 8},     {15, 16},  {16, 17},    {17, 33},  {63, 64},
                                       {65, 31},   {2, 5000}, {5000, 2},   {3, 5000}, {130, 1030},
                                       {33, 9},    {9000, 5}, {40, 10000}, {512, 96}, {1, 70000},
                                       {3, 70000}, {2, 9000}, {70000, 3},  {4, 5000}, {5000, 4}};
    const struct transpose_attrs attrs = {0, 1};
    for (int t = 0; t < N_DTYPES; t++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            random_tensor x = make_tensor(dtypes[t], 2, sizes[i], false);
            const int64_t out[] = {sizes[i][1], sizes[i][0]};
            expect("TRANSPOSE", &attrs, &x.t, 1, 2, out, source_transpose);
            check_free(x.memory);
        }
}

static void permute_every_order(void) {
    static const int64_t dims[] = {3, 5, 16, 9};
    for (int t = 0; t < N_DTYPES; t++)
        for (int i = 0; i < 256; i++) {
            const int64_t axes[] = {i & 3, i >> 2 & 3, i >> 4 & 3, i >> 6};
            if ((1 << axes[0] | 1 << axes[1] | 1 << axes[2] | 1 << axes[3]) == 15)
                permute(dtypes[t], 4, dims, axes, false);
        }
}

/* Inner runs of 2, 4, 8 and 16 bytes move as one element. */
static void permute_short_runs(void) {
    static const int64_t axes[] = {1, 0, 2};
    for (int t = 0; t < N_DTYPES; t++)
        for (int64_t run = 1; run <= 16; run++) {
            const int64_t dims[] = {33, 70, run};
            permute(dtypes[t], 3, dims, axes, false);
        }
}

static void permute_strided(void) {
    for (int i = 0; i < 200; i++) {
        int64_t dims[TAPER_MAX_RANK], axes[TAPER_MAX_RANK];
        const int rank = (int)check_int(0, TAPER_MAX_RANK);
        for (int d = 0; d < rank; d++) {
            const int other = (int)check_int(0, d);
            dims[d] = check_int(1, rank > 4 ? 4 : 20);
            axes[d] = axes[other];
            axes[other] = d;
        }
        permute(dtypes[i % N_DTYPES], rank, dims, axes, true);
    }
}

static void copy_strided(void) {
    for (int i = 0; i < 200; i++) {
        int64_t dims[TAPER_MAX_RANK];
        const int rank = (int)check_int(0, 5);
        for (int d = 0; d < rank; d++)
            dims[d] = check_int(1, rank > 2 ? 13 : 300);
        random_tensor x = make_tensor(dtypes[i % N_DTYPES], rank, dims, true);
        expect("COPY", NULL, &x.t, 1, rank, dims, source_same);
        check_free(x.memory);
    }
}

static void slice(void) {
    static const struct slice_attrs cases[] = {
        {0, 0, 9, 1},  {0, 2, 7, 3},   {0, 8, 9, 5},   {1, 0, 40, 2},        {1, 1, 40, 2},
        {1, 5, 5, 1},  {1, 39, 40, 1}, {2, 0, 66, 2},  {2, 3, 65, 2},        {2, 64, 66, 1},
        {2, 1, 60, 7}, {2, 32, 64, 1}, {2, 66, 66, 4}, {2, 1, 2, INT64_MAX}, {2, 0, 66, INT64_MAX},
    };
    static const int64_t dims[] = {9, 40, 66};
    for (int t = 0; t < N_DTYPES; t++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const struct slice_attrs *a = &cases[i];
            int64_t out[3], n = 0;
            memcpy(out, dims, sizeof out);
            for (int64_t at = a->start; at < a->stop; n++)
                at = a->step > a->stop - at ? a->stop : at + a->step;
            out[a->axis] = n;
            random_tensor x = make_tensor(dtypes[t], 3, dims, i % 2);
            expect("SLICE", a, &x.t, 1, 3, out, source_slice);
            check_free(x.memory);
        }
}

static void expand(void) {
    static const struct {
        int rank, out_rank;
        int64_t dims[4], out[4];
    } cases[] = {
        {0, 1, {0}, {70000}},
        {0, 0, {0}, {0}},
        {1, 3, {7}, {4, 5, 7}},
        {2, 2, {300, 1}, {300, 200}},
        {2, 3, {1, 33}, {9, 100, 33}},
        {3, 4, {5, 1, 1}, {2, 5, 6, 7}},
        {4, 4, {2, 1, 3, 64}, {2, 8, 3, 64}},
        {2, 2, {1, 1}, {1, 1}},
        {2, 2, {1, 3}, {0, 3}},
    };
    for (int t = 0; t < N_DTYPES; t++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const struct shape_attrs attrs = {{cases[i].out, cases[i].out_rank}};
            random_tensor x = make_tensor(dtypes[t], cases[i].rank, cases[i].dims, i % 2);
            expect("EXPAND", &attrs, &x.t, 1, cases[i].out_rank, cases[i].out, source_expand);
            check_free(x.memory);
        }
}

static void flip(void) {
    static const int64_t dims[] = {5, 33, 100}, axes[] = {0, 1, 2};
    for (int t = 0; t < N_DTYPES; t++)
        for (int first = 0; first < 3; first++)
            for (int count = 0; first + count <= 3; count++) {
                const struct axes_attrs attrs = {{axes + first, count}};
                random_tensor x = make_tensor(dtypes[t], 3, dims, count == 2);
                expect("FLIP", &attrs, &x.t, 1, 3, dims, source_flip);
                check_free(x.memory);
            }
}

static void reshape(void) {
    static const int64_t dims[] = {6, 5000}, target[] = {30000}, folded[] = {5, 6, 1000};
    for (int t = 0; t < N_DTYPES; t++) {
        random_tensor x = make_tensor(dtypes[t], 2, dims, false);
        const size_t bytes = (size_t)check_numel(&x.t) * taper_dtype_size(dtypes[t]);
        struct shape_attrs attrs = {{target, 1}};
        taper_tensor y = check_tensor(check_alloc(bytes, 0), dtypes[t], 1, target);
        CHECK(check_run("RESHAPE", NULL, &x.t, 1, &y, &attrs, 3) == TAPER_OK, "flat");
        CHECK(memcmp(x.t.data, y.data, bytes) == 0, "flat");
        attrs.shape = (taper_ints){folded, 3};
        y = check_tensor(y.data, dtypes[t], 3, folded);
        memset(y.data, 0xff, bytes);
        CHECK(check_run("RESHAPE", NULL, &x.t, 1, &y, &attrs, 2) == TAPER_OK, "folded");
        CHECK(memcmp(x.t.data, y.data, bytes) == 0, "folded");
        check_free(y.data);
        check_free(x.memory);
    }
}

enum { CAT_MOST = 150 };

/* n inputs of random length along axis, some empty. */
static void cat_random(taper_dtype dtype, int n, int rank, const int64_t *dims, int axis,
                       int64_t longest, bool strided) {
    const struct cat_attrs attrs = {axis};
    taper_tensor inputs[CAT_MOST];
    void *memory[CAT_MOST];
    int64_t out[TAPER_MAX_RANK], in[TAPER_MAX_RANK];
    memcpy(out, dims, sizeof *dims * (size_t)rank);
    memcpy(in, dims, sizeof *dims * (size_t)rank);
    out[axis] = 0;
    for (int i = 0; i < n; i++) {
        in[axis] = longest == 1 ? 1 : check_int(0, longest);
        out[axis] += in[axis];
        const random_tensor x = make_tensor(dtype, rank, in, strided);
        inputs[i] = x.t;
        memory[i] = x.memory;
    }
    expect("CAT", &attrs, inputs, n, rank, out, source_cat);
    for (int i = 0; i < n; i++)
        check_free(memory[i]);
}

static void cat(void) {
    static const int64_t dims[] = {7, 9, 33};
    for (int t = 0; t < N_DTYPES; t++)
        for (int axis = 0; axis < 3; axis++)
            for (int strided = 0; strided < 2; strided++) {
                cat_random(dtypes[t], 1, 3, dims, axis, 9, strided);
                cat_random(dtypes[t], 2, 3, dims, axis, 200, strided);
                cat_random(dtypes[t], 5, 3, dims, axis, 40, strided);
                cat_random(dtypes[t], 64, 3, dims, axis, 3, strided);
                cat_random(dtypes[t], 65, 3, dims, axis, 3, strided);
                cat_random(dtypes[t], CAT_MOST, 3, dims, axis, 3, strided);
                cat_random(dtypes[t], 3, 3, dims, axis, 1, strided); /* stack */
            }
}

/* Up to three axes of random shapes, with borders as wide as x allows. */
static void pad(void) {
    static const char *const modes[] = {"reflect", "replicate", "circular"};
    for (int i = 0; i < 600; i++) {
        const int rank = (int)check_int(0, 5), mode = i % 3;
        int64_t dims[TAPER_MAX_RANK], out[TAPER_MAX_RANK], axes[3], low[3], high[3], count = 0;
        for (int d = 0; d < rank; d++) {
            out[d] = dims[d] = check_int(1, rank > 3 ? 9 : rank > 2 ? 20 : 300);
            if (count == 3 || check_int(0, 1))
                continue;
            const int64_t widest = mode == 1 ? 12 : dims[d] - (mode == 0);
            axes[count] = d;
            low[count] = check_int(0, widest);
            high[count] = check_int(0, 1) ? 0 : check_int(0, widest);
            out[d] += low[count] + high[count];
            count++;
        }
        const struct pad_attrs attrs = {{axes, count}, {low, count}, {high, count}, modes[mode]};
        random_tensor x = make_tensor(dtypes[i / 3 % N_DTYPES], rank, dims, false);
        expect("PAD", &attrs, &x.t, 1, rank, out, source_pad);
        check_free(x.memory);
    }
}

/* Borders that x cannot fill, or that the output has no room for. */
static void pad_refused(void) {
    static const struct {
        const char *mode;
        int64_t low, high, out;
    } cases[] = {{"reflect", 4, 0, 8},    {"reflect", 0, 4, 8},   {"circular", 5, 0, 9},
                 {"circular", 0, 5, 9},   {"replicate", 1, 1, 5}, {"replicate", -1, 2, 5},
                 {"replicate", 2, -1, 5}, {"constant", 1, 1, 6}};
    const int64_t n = 4, axis = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct pad_attrs attrs = {
            {&axis, 1}, {&cases[i].low, 1}, {&cases[i].high, 1}, cases[i].mode};
        float data[16] = {0};
        const taper_tensor x = check_tensor(data, TAPER_FLOAT32, 1, &n);
        const taper_tensor y = check_tensor(data + 4, TAPER_FLOAT32, 1, &cases[i].out);
        CHECK(check_run("PAD", NULL, &x, 1, &y, &attrs, 1) == TAPER_UNSUPPORTED, "case %d", (int)i);
    }
}

static void empty(void) {
    static const int64_t dims[] = {4, 0, 6}, axes[] = {2, 0, 1};
    for (int t = 0; t < N_DTYPES; t++) {
        permute(dtypes[t], 3, dims, axes, false);
        cat_random(dtypes[t], 3, 3, dims, 0, 5, false);
        cat_random(dtypes[t], 3, 3, dims, 1, 0, false);
    }
}

/* Nodes that a loader would refuse are refused and do not run. */
static void refused(void) {
    static const int64_t dims[] = {4, 6}, twice[] = {0, 0};
    random_tensor x = make_tensor(TAPER_FLOAT32, 2, dims, false);
    taper_tensor y = check_tensor(x.t.data, TAPER_FLOAT32, 2, dims);
    const struct axes_attrs axes = {{twice, 2}};
    const struct transpose_attrs transpose = {0, 2};
    const struct slice_attrs outside = {0, 0, 5, 1}, backward = {0, 3, 1, 1};
    const struct cat_attrs cat_attrs = {0};
#define REFUSED(op, n, attrs)                                                                      \
    CHECK(check_run(op, NULL, &x.t, n, &y, attrs, 1) == TAPER_UNSUPPORTED, "%s accepted", op)
    REFUSED("PERMUTE", 1, &axes);
    REFUSED("TRANSPOSE", 1, &transpose);
    REFUSED("SLICE", 1, &outside);
    REFUSED("SLICE", 1, &backward);
    REFUSED("CAT", 0, &cat_attrs);
    REFUSED("COPY", 0, NULL);
    y.dtype = TAPER_INT64;
    REFUSED("COPY", 1, NULL);
    REFUSED("CAT", 1, &cat_attrs);
    check_free(x.memory);
}

/* ---- benchmarks ---- */

static void time_permute(const char *name, taper_dtype dtype, int rank, const int64_t *dims,
                         const int64_t *axes) {
    const struct axes_attrs attrs = {{axes, rank}};
    int64_t out[TAPER_MAX_RANK];
    for (int d = 0; d < rank; d++)
        out[d] = dims[axes[d]];
    random_tensor x = make_tensor(dtype, rank, dims, false);
    const size_t bytes = (size_t)check_numel(&x.t) * taper_dtype_size(dtype);
    const taper_tensor y = check_tensor(check_alloc(bytes, 0), dtype, rank, out);
    check_bench_op(name, "PERMUTE", NULL, &x.t, 1, &y, &attrs, 0, 2.0 * (double)bytes);
    check_free(y.data);
    check_free(x.memory);
}

static void bench_memcpy(void) {
    static const int64_t same[] = {0};
    time_permute("memcpy 24K", TAPER_FLOAT32, 1, (int64_t[]){6144}, same);
    time_permute("memcpy 512K", TAPER_FLOAT32, 1, (int64_t[]){131072}, same);
    time_permute("memcpy 4M", TAPER_FLOAT32, 1, (int64_t[]){1048576}, same);
}

static void bench_heads(void) {
    static const int64_t heads[] = {0, 2, 1, 3}, keys[] = {0, 2, 3, 1};
    time_permute("heads f32 [1,128,12,64]", TAPER_FLOAT32, 4, (int64_t[]){1, 128, 12, 64}, heads);
    time_permute("heads f32 [8,128,12,32]", TAPER_FLOAT32, 4, (int64_t[]){8, 128, 12, 32}, heads);
    time_permute("keys f32 [1,128,12,64]", TAPER_FLOAT32, 4, (int64_t[]){1, 128, 12, 64}, keys);
}

static void bench_transpose(void) {
    static const int64_t axes[] = {1, 0}, nhwc[] = {0, 2, 3, 1};
    time_permute("transpose i8 512x512", TAPER_INT8, 2, (int64_t[]){512, 512}, axes);
    time_permute("transpose i16 512x512", TAPER_INT16, 2, (int64_t[]){512, 512}, axes);
    time_permute("transpose f32 64x64", TAPER_FLOAT32, 2, (int64_t[]){64, 64}, axes);
    time_permute("transpose f32 197x384", TAPER_FLOAT32, 2, (int64_t[]){197, 384}, axes);
    time_permute("transpose f32 512x512", TAPER_FLOAT32, 2, (int64_t[]){512, 512}, axes);
    time_permute("transpose f32 512x2048", TAPER_FLOAT32, 2, (int64_t[]){512, 2048}, axes);
    time_permute("transpose f32 2048x512", TAPER_FLOAT32, 2, (int64_t[]){2048, 512}, axes);
    time_permute("transpose i64 512x512", TAPER_INT64, 2, (int64_t[]){512, 512}, axes);
    time_permute("transpose i64 512x2048", TAPER_INT64, 2, (int64_t[]){512, 2048}, axes);
    time_permute("nhwc f32 [1,3,224,224]", TAPER_FLOAT32, 4, (int64_t[]){1, 3, 224, 224}, nhwc);
    time_permute("nhwc f32 [1,64,56,56]", TAPER_FLOAT32, 4, (int64_t[]){1, 64, 56, 56}, nhwc);
}

static void bench_slice_cat(void) {
    static const int64_t half[] = {12, 128, 32}, full[] = {12, 128, 64};
    random_tensor x = make_tensor(TAPER_FLOAT32, 3, full, false);
    taper_tensor y = check_tensor(check_alloc(12 * 128 * 64 * 4, 0), TAPER_FLOAT32, 3, half);
    struct slice_attrs slice_attrs = {2, 32, 64, 1};
    const double bytes = 2.0 * 12 * 128 * 32 * 4;
    check_bench_op("slice half [12,128,64]", "SLICE", NULL, &x.t, 1, &y, &slice_attrs, 0, bytes);
    slice_attrs = (struct slice_attrs){2, 0, 64, 2};
    check_bench_op("slice even [12,128,64]", "SLICE", NULL, &x.t, 1, &y, &slice_attrs, 0, bytes);
    const struct cat_attrs cat_attrs = {2};
    const random_tensor a = make_tensor(TAPER_FLOAT32, 3, half, false);
    const taper_tensor inputs[] = {a.t, a.t};
    y = check_tensor(y.data, TAPER_FLOAT32, 3, full);
    check_bench_op("cat 16-bit [12,128,32]", "CAT", NULL, inputs, 2, &y, &cat_attrs, 0, 2 * bytes);
    check_free(y.data);
    check_free(a.memory);
    check_free(x.memory);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"transpose_sizes", transpose_sizes},
        {"permute_every_order", permute_every_order},
        {"permute_short_runs", permute_short_runs},
        {"permute_strided", permute_strided},
        {"copy_strided", copy_strided},
        {"slice", slice},
        {"expand", expand},
        {"flip", flip},
        {"reshape", reshape},
        {"cat", cat},
        {"pad", pad},
        {"pad_refused", pad_refused},
        {"empty", empty},
        {"refused", refused},
    };
    static const check_case benches[] = {
        {"memcpy", bench_memcpy},
        {"heads", bench_heads},
        {"transpose", bench_transpose},
        {"slice_cat", bench_slice_cat},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
