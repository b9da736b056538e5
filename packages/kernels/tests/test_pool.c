/* MAX_POOL, exactly, and AVG_POOL against sums in double. */
#include "check.h"
#include "pool/kernels.inc"

#include <math.h>

CHECK_ATTRS(max_pool)
CHECK_ATTRS(avg_pool)
CHECK_ATTRS(adaptive_pool)

enum { DIMS = 3 };

/* Sizes of 0 that must not be are 1. */
typedef struct layer {
    int dims;
    int64_t batch, channels;
    int64_t size[DIMS], kernel[DIMS], stride[DIMS], dilation[DIMS];
    int64_t padding[2 * DIMS], counted[2 * DIMS];
    int64_t divisor;
    bool max;
    taper_dtype dtype; /* float32 where it is not given */
    size_t misalign;
} layer;

typedef struct tensors {
    layer l;
    taper_tensor x, y;
    struct max_pool_attrs max;
    struct avg_pool_attrs avg;
} tensors;

static int64_t or_one(int64_t n) { return n == 0 ? 1 : n; }

/* Whole numbers are exact in double. */
static void fill(void *data, taper_dtype dtype, int64_t i) {
    if (dtype == TAPER_FLOAT64)
        ((double *)data)[i] = check_int(0, 50) == 0 ? NAN : (double)check_uniform(-1, 1) / 3;
    else if (dtype == TAPER_INT64)
        ((int64_t *)data)[i] = check_int(-(INT64_C(1) << 53), INT64_C(1) << 53);
    else if (dtype == TAPER_INT32)
        ((int32_t *)data)[i] = (int32_t)check_int(INT32_MIN, INT32_MAX);
    else if (dtype == TAPER_UINT8)
        ((uint8_t *)data)[i] = (uint8_t)check_int(0, 255);
    else
        ((float *)data)[i] = check_uniform(-1, 1);
}

static double element_of(const taper_tensor *t, int64_t i) {
    return t->dtype == TAPER_FLOAT64 ? ((const double *)t->data)[i]
           : t->dtype == TAPER_INT64 ? (double)((const int64_t *)t->data)[i]
           : t->dtype == TAPER_INT32 ? (double)((const int32_t *)t->data)[i]
           : t->dtype == TAPER_UINT8 ? (double)((const uint8_t *)t->data)[i]
                                     : (double)((const float *)t->data)[i];
}

/* Into t, whose attrs point into it. */
static void make(tensors *t, const layer *given) {
    *t = (tensors){.l = *given};
    layer *l = &t->l;
    l->batch = l->batch < 0 ? 0 : or_one(l->batch);
    int64_t x[DIMS + 2] = {l->batch}, y[DIMS + 2] = {l->batch};
    for (int d = 0; d < l->dims; d++) {
        l->stride[d] = or_one(l->stride[d]);
        l->dilation[d] = l->max ? or_one(l->dilation[d]) : 1;
        const int64_t reach = (l->kernel[d] - 1) * l->dilation[d] + 1;
        const int64_t padding = l->padding[2 * d] + l->padding[2 * d + 1];
        x[1 + d] = l->size[d];
        y[1 + d] = (l->size[d] + padding - reach) / l->stride[d] + 1;
    }
    x[l->dims + 1] = y[l->dims + 1] = l->channels;
    const size_t element = taper_dtype_size(l->dtype);
    t->x = check_tensor(NULL, l->dtype, l->dims + 2, x);
    t->y = check_tensor(NULL, l->dtype, l->dims + 2, y);
    t->x.data = check_alloc((size_t)check_numel(&t->x) * element, l->misalign);
    t->y.data = check_alloc((size_t)check_numel(&t->y) * element, l->misalign);
    for (int64_t i = 0; i < check_numel(&t->x); i++)
        fill(t->x.data, l->dtype, i);
    t->max = (struct max_pool_attrs){.kernel = {l->kernel, l->dims},
                                     .stride = {l->stride, l->dims},
                                     .padding = {l->padding, 2 * l->dims},
                                     .dilation = {l->dilation, l->dims}};
    t->avg = (struct avg_pool_attrs){.kernel = {l->kernel, l->dims},
                                     .stride = {l->stride, l->dims},
                                     .padding = {l->padding, 2 * l->dims},
                                     .counted = {l->counted, 2 * l->dims},
                                     .divisor = l->divisor};
}

static void release(tensors *t) {
    check_free(t->x.data);
    check_free(t->y.data);
}

static const char *op_of(const tensors *t) { return t->l.max ? "MAX_POOL" : "AVG_POOL"; }

static const void *attrs_of(const tensors *t) {
    return t->l.max ? (const void *)&t->max : (const void *)&t->avg;
}

static taper_status run(tensors *t, int workers) {
    return check_run(op_of(t), NULL, &t->x, 1, &t->y, attrs_of(t), workers);
}

/* The window of output pixel `out` at a channel: its result, and for a sum how large its terms. */
static double reference(const tensors *t, int64_t image, const int64_t *out, int64_t c,
                        double *size) {
    const layer *l = &t->l;
    double result = l->max ? -INFINITY : 0;
    int64_t taps = 1, pixels = 1, count = 0;
    *size = 0;
    for (int d = 0; d < l->dims; d++) {
        taps *= l->kernel[d];
        pixels *= l->size[d];
    }
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t index = 0, rest = tap, at[DIMS];
        bool inside = true, counted = true;
        for (int d = l->dims - 1; d >= 0; rest /= l->kernel[d--])
            at[d] =
                out[d] * l->stride[d] - l->padding[2 * d] + rest % l->kernel[d] * l->dilation[d];
        for (int d = 0; d < l->dims; d++) {
            inside = inside && at[d] >= 0 && at[d] < l->size[d];
            counted = counted && at[d] >= -l->counted[2 * d] &&
                      at[d] < l->size[d] + l->counted[2 * d + 1];
            index = index * l->size[d] + at[d];
        }
        index += image * pixels;
        count += counted;
        if (!inside)
            continue;
        const double x = element_of(&t->x, index * l->channels + c);
        if (l->max)
            result = isnan(x) || isnan(result) ? NAN : fmax(x, result);
        else
            result += x;
        *size += fabs(x);
    }
    const double divisor = (double)(l->divisor ? l->divisor : count);
    *size /= fabs(divisor);
    return l->max ? result : result / divisor;
}

static void compare(const tensors *t) {
    const layer *l = &t->l;
    const int64_t numel = check_numel(&t->y);
    for (int64_t i = 0; i < numel; i++) {
        int64_t out[DIMS], rest = i / l->channels;
        for (int d = l->dims - 1; d >= 0; rest /= t->y.shape[1 + d--])
            out[d] = rest % t->y.shape[1 + d];
        double size;
        const double want = reference(t, rest, out, i % l->channels, &size);
        const double got = element_of(&t->y, i);
        const bool ok = isnan(want)             ? isnan(got)
                        : l->max || isinf(want) ? got == want
                                                : fabs(got - want) <= 0x1p-24 * 16 * size + 1e-45;
        CHECK(ok, "%s: element %lld of %lld: got %.9g, want %.9g", op_of(t), (long long)i,
              (long long)numel, got, want);
        if (!ok)
            return;
    }
}

/* Each place holds the window's largest element, and no tap before it does; of NaNs none after. */
static void check_places(tensors *t) {
    const layer *l = &t->l;
    const int64_t numel = check_numel(&t->y);
    taper_tensor places = t->y;
    places.dtype = TAPER_INT64;
    places.data = check_alloc((size_t)numel * sizeof(int64_t), 0);
    check_threads("ARGMAX_POOL", NULL, &t->x, 1, &places, &t->max);
    for (int64_t i = 0; i < numel; i++) {
        int64_t out[DIMS] = {0}, rest = i / l->channels, pixels = 1, taps = 1, want = 0;
        double best = NAN;
        bool any = false;
        for (int d = l->dims - 1; d >= 0; rest /= t->y.shape[1 + d--]) {
            out[d] = rest % t->y.shape[1 + d];
            pixels *= l->size[d];
            taps *= l->kernel[d];
        }
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t at = 0, left = tap, index[DIMS];
            bool inside = true;
            for (int d = l->dims - 1; d >= 0; left /= l->kernel[d--])
                index[d] = out[d] * l->stride[d] - l->padding[2 * d] +
                           left % l->kernel[d] * l->dilation[d];
            for (int d = 0; d < l->dims; d++) {
                inside = inside && index[d] >= 0 && index[d] < l->size[d];
                at = at * l->size[d] + index[d];
            }
            if (!inside)
                continue;
            const double x =
                element_of(&t->x, (rest * pixels + at) * l->channels + i % l->channels);
            if (!any || x > best || isnan(x)) {
                best = x;
                want = at;
            }
            any = true;
        }
        const int64_t got = ((const int64_t *)places.data)[i];
        CHECK(got == want, "place %lld: got %lld, want %lld", (long long)i, (long long)got,
              (long long)want);
        if (got != want)
            break;
    }
    check_free(places.data);
}

static void check_layer(const layer *l) {
    tensors t;
    make(&t, l);
    const taper_status status = run(&t, 1);
    CHECK(status == TAPER_OK, "%s", taper_status_string(status));
    if (status == TAPER_OK)
        compare(&t);
    if (l->max)
        check_places(&t);
    release(&t);
}

/* As both ops; with padding that is not counted, or is, or in part, and a divisor. */
static void check_ways(layer l) {
    l.max = true;
    check_layer(&l);
    l.max = false;
    check_layer(&l);
    memcpy(l.counted, l.padding, sizeof l.counted);
    check_layer(&l);
    l.counted[0] /= 2;
    check_layer(&l);
    l.divisor = -7;
    check_layer(&l);
}

static layer square(int64_t size, int64_t channels, int64_t kernel, int64_t stride,
                    int64_t padding) {
    return (layer){.dims = 2,
                   .channels = channels,
                   .size = {size, size},
                   .kernel = {kernel, kernel},
                   .stride = {stride, stride},
                   .padding = {padding, padding, padding, padding}};
}

static void every_channel_tail(void) {
    for (int64_t channels = 1; channels <= 140; channels++)
        check_ways(square(5, channels, 3, 2, 1));
}

static void kernels_and_strides(void) {
    for (int64_t kernel = 1; kernel <= 4; kernel++)
        for (int64_t stride = 1; stride <= 3; stride++)
            for (int64_t padding = 0; padding <= kernel; padding++)
                check_ways(square(8, 9, kernel, stride, padding));
    check_ways(square(7, 100, 7, 1, 0));
    check_ways(square(40, 5, 40, 1, 0));
}

static void drawn(void) {
    for (int repeat = 0; repeat < 300; repeat++) {
        layer l = {.dims = (int)check_int(1, 3), .batch = check_int(1, 3)};
        l.channels = check_int(1, 40);
        for (int d = 0; d < l.dims; d++) {
            l.kernel[d] = check_int(1, 4);
            l.stride[d] = check_int(1, 3);
            l.dilation[d] = check_int(1, 3);
            l.padding[2 * d] = check_int(0, 2);
            l.padding[2 * d + 1] = check_int(0, 2);
            const int64_t least =
                (l.kernel[d] - 1) * l.dilation[d] + 1 - l.padding[2 * d] - l.padding[2 * d + 1];
            l.size[d] = (least < 1 ? 1 : least) + check_int(0, 6);
        }
        check_ways(l);
    }
}

/* MAX_POOL of what is not float32. */
static void other_dtypes(void) {
    static const taper_dtype dtypes[] = {TAPER_FLOAT64, TAPER_INT64, TAPER_INT32, TAPER_UINT8};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        for (int64_t channels = 1; channels <= 70; channels += channels < 20 ? 1 : 25)
            for (int64_t kernel = 1; kernel <= 3; kernel++) {
                layer l = square(9, channels, kernel, 1 + channels % 3, kernel / 2);
                l.batch = 2;
                l.max = true;
                l.dtype = dtypes[i];
                l.dilation[0] = 2;
                check_layer(&l);
            }
        layer l = square(40, 70, 7, 7, 0); /* as large as those that are streamed */
        l.max = true;
        l.dtype = dtypes[i];
        tensors t;
        make(&t, &l);
        check_threads(op_of(&t), NULL, &t.x, 1, &t.y, attrs_of(&t));
        compare(&t);
        release(&t);
    }
}

/* Large, of many channels, and side by side. */
static void streamed(void) {
    for (int64_t channels = 128; channels <= 150; channels += 11) {
        check_ways(square(18, channels, 9, 9, 0));
        check_ways(square(20, channels, 7, 7, 3));
    }
}

/* ---- windows that share out x ---- */

static void check_adaptive(bool max, int dims, const int64_t *sizes, const int64_t *outs,
                           int64_t batch, int64_t channels) {
    int64_t in[DIMS + 2] = {batch}, out[DIMS + 2] = {batch};
    for (int d = 0; d < dims; d++) {
        in[1 + d] = sizes[d];
        out[1 + d] = outs[d];
    }
    in[dims + 1] = out[dims + 1] = channels;
    taper_tensor x = check_tensor(NULL, TAPER_FLOAT32, dims + 2, in);
    taper_tensor y = check_tensor(NULL, TAPER_FLOAT32, dims + 2, out);
    const int64_t numel = check_numel(&y);
    x.data = check_alloc((size_t)check_numel(&x) * sizeof(float), 0);
    y.data = check_alloc((size_t)numel * sizeof(float), 0);
    check_fill_uniform(x.data, check_numel(&x), -1, 1);
    if (check_numel(&x) && check_int(0, 1))
        ((float *)x.data)[check_int(0, check_numel(&x) - 1)] = NAN;
    const struct adaptive_pool_attrs attrs = {{outs, dims}};
    const char *op = max ? "ADAPTIVE_MAX_POOL" : "ADAPTIVE_AVG_POOL";
    check_threads(op, NULL, &x, 1, &y, &attrs);
    int64_t wrong = 0;
    for (int64_t i = 0; i < numel; i++) {
        int64_t first[DIMS] = {0}, last[DIMS] = {1, 1, 1}, rest = i / channels;
        for (int d = dims - 1; d >= 0; rest /= outs[d--]) {
            const int64_t o = rest % outs[d];
            first[d] = o * sizes[d] / outs[d];
            last[d] = ((o + 1) * sizes[d] + outs[d] - 1) / outs[d];
        }
        double want = max ? -INFINITY : 0, size = 0;
        for (int64_t a = first[0]; a < last[0]; a++)
            for (int64_t b = first[1]; b < last[1]; b++)
                for (int64_t c = first[2]; c < last[2]; c++) {
                    int64_t at = rest * sizes[0] + a;
                    at = dims > 1 ? at * sizes[1] + b : at;
                    at = dims > 2 ? at * sizes[2] + c : at;
                    const double v = ((float *)x.data)[at * channels + i % channels];
                    want = !max ? want + v : isnan(v) || isnan(want) ? NAN : fmax(v, want);
                    size += fabs(v);
                }
        const double taps =
            (double)((last[0] - first[0]) * (last[1] - first[1]) * (last[2] - first[2]));
        want /= max ? 1 : taps;
        const float got = ((float *)y.data)[i];
        wrong += !(isnan(want) ? isnan(got)
                   : max       ? got == (float)want
                               : fabs(got - want) <= 0x1p-24 * 16 * size / taps + 1e-45);
    }
    CHECK(wrong == 0, "%s: %lld of %lld wrong", op, (long long)wrong, (long long)numel);
    check_free(x.data);
    check_free(y.data);
}

static void adaptive(void) {
    for (int max = 0; max < 2; max++) {
        for (int repeat = 0; repeat < 200; repeat++) {
            int64_t sizes[DIMS], outs[DIMS];
            const int dims = (int)check_int(1, DIMS);
            for (int d = 0; d < DIMS; d++) {
                sizes[d] = check_int(1, 12);
                outs[d] = check_int(repeat == 0 ? 0 : 1, 9);
            }
            check_adaptive(max, dims, sizes, outs, check_int(0, 2), check_int(0, 40));
        }
        check_adaptive(max, 2, (int64_t[]){25, 31}, (int64_t[]){3, 2}, 2, 133);
        check_adaptive(max, 1, (int64_t[]){700}, (int64_t[]){3}, 1, 200);
    }
}

static void adaptive_unsupported(void) {
    const int64_t in[] = {2, 6, 5, 4}, out[] = {2, 3, 2, 4}, sizes[] = {3, 2}, others[] = {3, 3};
    taper_tensor x = check_tensor(check_alloc(960, 0), TAPER_FLOAT32, 4, in);
    taper_tensor y = check_tensor(check_alloc(192, 0), TAPER_FLOAT32, 4, out);
    const struct adaptive_pool_attrs attrs = {{sizes, 2}}, other = {{others, 2}},
                                     one = {{sizes, 1}};
    const char *op = "ADAPTIVE_AVG_POOL";
    CHECK(check_run(op, NULL, &x, 1, &y, &other, 1) == TAPER_UNSUPPORTED, "sizes");
    CHECK(check_run(op, NULL, &x, 1, &y, &one, 1) == TAPER_UNSUPPORTED, "one size");
    x.shape[1] = 0;
    CHECK(check_run(op, NULL, &x, 1, &y, &attrs, 1) == TAPER_UNSUPPORTED, "nothing to share");
    x.shape[1] = 6;
    x.dtype = TAPER_INT64;
    CHECK(check_run(op, NULL, &x, 1, &y, &attrs, 1) == TAPER_UNSUPPORTED, "integers");
    check_free(x.data);
    check_free(y.data);
}

static void empty(void) {
    layer l = square(5, 3, 3, 1, 1);
    l.batch = -1;
    check_ways(l);
    check_ways(square(5, 0, 3, 1, 1));
    check_ways(square(0, 3, 3, 1, 2)); /* nothing but padding */
}

static void special_values(void) {
    static const float values[] = {NAN, INFINITY, -INFINITY, -0.0f, 1e-40f, 1e37f};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (int max = 0; max < 2; max++)
            for (int64_t channels = 19; channels < 90; channels += 50) {
                layer l = square(6, channels, 3, 1, 1);
                l.max = max;
                tensors t;
                make(&t, &l);
                float *x = t.x.data;
                for (int i = 0; i < 20; i++)
                    x[check_int(0, check_numel(&t.x) - 1)] = values[v];
                CHECK(run(&t, 1) == TAPER_OK, "not run");
                compare(&t);
                release(&t);
            }
}

static void misaligned(void) {
    layer l = square(6, 70, 3, 1, 1);
    l.misalign = 4;
    check_ways(l);
}

static void threads_same_bits(void) {
    for (int max = 0; max < 2; max++) {
        layer l = square(40, 70, 3, 2, 1);
        l.batch = 2;
        l.max = max;
        tensors t;
        make(&t, &l);
        check_threads(op_of(&t), NULL, &t.x, 1, &t.y, attrs_of(&t));
        release(&t);
    }
}

static void unsupported(void) {
    for (int max = 0; max < 2; max++) {
        layer l = square(9, 4, 3, 2, 1);
        l.max = max;
        tensors t;
        make(&t, &l);
#define REFUSED(change, undo) CHECK_REFUSED(run(&t, 1), change, undo)
        REFUSED(t.x.dtype = TAPER_INT64, t.x.dtype = TAPER_FLOAT32);
        REFUSED(t.l.kernel[0] = 0, t.l.kernel[0] = 3);
        REFUSED(t.l.kernel[0] = 12, t.l.kernel[0] = 3);
        REFUSED(t.l.stride[0] = 0, t.l.stride[0] = 2);
        REFUSED(t.l.padding[1] = 3, t.l.padding[1] = 1);
        REFUSED(t.l.padding[0] = -1, t.l.padding[0] = 1);
        REFUSED(t.x.strides[1] += 4, t.x.strides[1] -= 4);
        REFUSED(t.y.shape[3] = 5, t.y.shape[3] = 4);
        REFUSED(t.y.shape[1] = 6, t.y.shape[1] = 5);
        if (!max) {
            REFUSED(t.avg.counted.count = 2, t.avg.counted.count = 4);
            REFUSED(t.l.counted[0] = -1, t.l.counted[0] = 0);
            REFUSED(t.avg.divisor = (int64_t)1 << 40, t.avg.divisor = 0);
        }
        CHECK(run(&t, 1) == TAPER_OK, "all undone");
        release(&t);
    }
}

static void bench_layer(const char *name, layer l) {
    tensors t;
    make(&t, &l);
    const double taps = (double)(l.kernel[0] * l.kernel[1]);
    check_bench_op(name, op_of(&t), NULL, &t.x, 1, &t.y, attrs_of(&t),
                   taps * (double)check_numel(&t.y),
                   4.0 * (double)(check_numel(&t.x) + check_numel(&t.y)));
    release(&t);
}

static void bench(void) {
    layer l = square(112, 64, 3, 2, 1);
    bench_layer("avg_112_64_k3_s2", l);
    l.max = true;
    bench_layer("max_112_64_k3_s2", l);
    l = square(35, 256, 3, 1, 1);
    bench_layer("avg_35_256_k3_s1", l);
    l = square(56, 128, 2, 2, 0);
    l.max = true;
    bench_layer("max_56_128_k2_s2", l);
    l = square(20, 256, 13, 1, 6);
    l.max = true;
    bench_layer("max_20_256_k13_s1", l);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_channel_tail", every_channel_tail},
        {"kernels_and_strides", kernels_and_strides},
        {"drawn", drawn},
        {"other_dtypes", other_dtypes},
        {"streamed", streamed},
        {"adaptive", adaptive},
        {"adaptive_unsupported", adaptive_unsupported},
        {"empty", empty},
        {"special_values", special_values},
        {"misaligned", misaligned},
        {"threads_same_bits", threads_same_bits},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {{"bench", bench}};
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
