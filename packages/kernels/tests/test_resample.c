/* RESAMPLE against sums in double, with tables of random taps: what the weights of each mode are is
 * tested with the op. The table is made as taper_runtime/ops/resample.py says. */
#include "check.h"
#include "resample/kernels.inc"

#include <math.h>

CHECK_ATTRS(resample)

enum { SMALL_PIXEL = 16, ENTRIES = 16, SHIFT = 12, MOST = 1 << 20 };

/* The taps of one axis: output i has weight[k * size + i] for element index[k * size + i]. */
typedef struct axis {
    int64_t old, size, taps;
    int64_t *index;
    double *weight;
} axis;

typedef struct node {
    taper_tensor x, y, table;
    struct resample_attrs attrs;
    int64_t axes[2], sizes[2];
    axis each[2];
    bool is_nearest;
} node;

static int64_t column_step = 1; /* from a tap of a column to the next */

/* Random windows that move on with the outputs. */
static axis make_axis(int64_t old, int64_t size, int64_t taps, int64_t step) {
    axis a = {old, size, taps, check_alloc((size_t)(taps * size) * sizeof(int64_t), 0),
              check_alloc((size_t)(taps * size) * sizeof(double), 0)};
    for (int64_t i = 0; i < size; i++) {
        const int64_t first = i * old / size - check_int(0, 1) * (i > 0 && size < old);
        for (int64_t k = 0; k < taps; k++) {
            const int64_t at = first + (k - taps / 2) * step;
            a.index[k * size + i] = at < 0 ? 0 : at < old ? at : old - 1;
            a.weight[k * size + i] = check_int(-(1 << SHIFT), 1 << SHIFT) / (double)(1 << SHIFT);
        }
    }
    return a;
}

static int64_t put_axis(int32_t *table, int64_t head, int64_t at, const node *t, const axis *a,
                        int64_t pixel) {
    const int64_t used = a->size * pixel, entries = (used + ENTRIES - 1) / ENTRIES * ENTRIES;
    table[head] = (int32_t)a->taps;
    table[head + 1] = (int32_t)entries;
    table[head + 2] = t->x.dtype == TAPER_UINT8 && !t->is_nearest ? SHIFT : 0;
    for (int64_t k = 0; k < a->taps; k++)
        for (int64_t e = 0; e < entries; e++) {
            const int64_t i = (e < used ? e : used - 1) / pixel,
                          c = (e < used ? e : used - 1) % pixel;
            const float weight = (float)a->weight[k * a->size + i];
            const int32_t whole = (int32_t)lrint(a->weight[k * a->size + i] * (1 << SHIFT));
            table[at + k * entries + e] = (int32_t)(a->index[k * a->size + i] * pixel + c);
            if (t->is_nearest)
                continue;
            int32_t *to = table + at + (a->taps + k) * entries + e;
            if (t->x.dtype == TAPER_UINT8)
                *to = whole;
            else
                memcpy(to, &weight, sizeof *to);
        }
    return at + a->taps * entries * (t->is_nearest ? 1 : 2);
}

/* x is [shape], of which one or two axes get other sizes. */
static node make(const char *mode, taper_dtype dtype, const int64_t *shape, int64_t count,
                 const int64_t *axes, const int64_t *sizes, const int64_t *taps) {
    node t = {.attrs = {.mode = mode}, .is_nearest = strncmp(mode, "nearest", 7) == 0};
    int64_t after[4], inner = 1;
    memcpy(after, shape, sizeof after);
    for (int64_t i = 0; i < count; i++) {
        t.axes[i] = axes[i];
        after[axes[i]] = t.sizes[i] = sizes[i];
        t.each[i] = make_axis(shape[axes[i]], sizes[i], t.is_nearest ? 1 : taps[i],
                              i == count - 1 ? column_step : 1);
    }
    for (int64_t d = axes[count - 1] + 1; d < 4; d++)
        inner *= shape[d];
    t.x = check_tensor(NULL, dtype, 4, shape);
    t.y = check_tensor(NULL, dtype, 4, after);
    t.x.data = check_alloc((size_t)check_numel(&t.x) * taper_dtype_size(dtype), 0);
    t.y.data = check_alloc((size_t)check_numel(&t.y) * taper_dtype_size(dtype), 0);
    if (dtype == TAPER_FLOAT32)
        check_fill_uniform(t.x.data, check_numel(&t.x), -1, 1);
    else
        check_fill_bytes(t.x.data, check_numel(&t.x) * (int64_t)taper_dtype_size(dtype));

    static int32_t table[MOST];
    const bool small = inner < SMALL_PIXEL;
    int64_t n = 6;
    memset(table, 0, 6 * sizeof *table);
    if (inner && (count == 2 || !small))
        n = put_axis(table, 0, n, &t, &t.each[0], 1);
    if (inner && (count == 2 || small))
        n = put_axis(table, 3, n, &t, &t.each[count - 1], small ? inner : 1);
    t.table = check_tensor(NULL, TAPER_INT32, 1, &n);
    t.table.data = check_alloc((size_t)n * sizeof *table, 0);
    memcpy(t.table.data, table, (size_t)n * sizeof *table);
    return t;
}

static void release(node *t) {
    check_free(t->x.data);
    check_free(t->y.data);
    check_free(t->table.data);
    for (int64_t i = 0; i < 2; i++)
        if (t->each[i].index) {
            check_free(t->each[i].index);
            check_free(t->each[i].weight);
        }
}

static void begin(node *t, int64_t count) {
    t->attrs.axes = (taper_ints){t->axes, count};
    check_table = &t->table;
}

static taper_status run(const node *t) {
    return check_run("RESAMPLE", NULL, &t->x, 1, &t->y, &t->attrs, 1);
}

static double value(const taper_tensor *x, int64_t i) {
    return x->dtype == TAPER_FLOAT32 ? ((const float *)x->data)[i]
           : x->dtype == TAPER_UINT8 ? ((const uint8_t *)x->data)[i]
           : x->dtype == TAPER_INT16 ? ((const int16_t *)x->data)[i]
                                     : (double)((const int64_t *)x->data)[i];
}

static double byte_of(double sum) { return fmin(fmax(floor(sum + 0.5), 0), UINT8_MAX); }

/* Resamples x, [outer][old][inner], along one axis. */
static double *along(const double *x, int64_t outer, int64_t inner, const axis *a, const node *t) {
    double *y = check_alloc((size_t)(outer * a->size * inner) * sizeof *y, 0);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < a->size; i++)
            for (int64_t c = 0; c < inner; c++) {
                double sum = 0;
                for (int64_t k = 0; k < a->taps; k++)
                    sum += (t->is_nearest ? 1 : a->weight[k * a->size + i]) *
                           x[(o * a->old + a->index[k * a->size + i]) * inner + c];
                y[(o * a->size + i) * inner + c] =
                    t->x.dtype == TAPER_UINT8 && !t->is_nearest ? byte_of(sum) : sum;
            }
    return y;
}

static void compare(const node *t, int64_t count) {
    const int64_t n = check_numel(&t->x);
    double *x = check_alloc((size_t)n * sizeof *x, 0), most = 1;
    for (int64_t i = 0; i < n; i++)
        x[i] = value(&t->x, i);
    int64_t shape[4];
    memcpy(shape, t->x.shape, sizeof shape);
    for (int64_t i = count - 1; i >= 0; i--) {
        int64_t outer = 1, inner = 1;
        for (int64_t d = 0; d < 4; d++)
            *(d < t->axes[i] ? &outer : &inner) *= d == t->axes[i] ? 1 : shape[d];
        double *next = along(x, outer, inner, &t->each[i], t);
        shape[t->axes[i]] = t->sizes[i];
        most *= (double)t->each[i].taps;
        check_free(x);
        x = next;
    }
    for (int64_t i = 0; i < check_numel(&t->y); i++) {
        const double got = value(&t->y, i);
        const bool exact = t->is_nearest || t->x.dtype == TAPER_UINT8;
        const bool ok = isnan(x[i]) ? isnan(got) : fabs(got - x[i]) <= (exact ? 0 : 3e-7 * most);
        CHECK(ok, "%s, element %lld: got %.9g, want %.9g", t->attrs.mode, (long long)i, got, x[i]);
        if (!ok)
            break;
    }
    check_free(x);
}

static void check_node(const char *mode, taper_dtype dtype, const int64_t *shape, int64_t count,
                       const int64_t *axes, const int64_t *sizes, const int64_t *taps) {
    node t = make(mode, dtype, shape, count, axes, sizes, taps);
    begin(&t, count);
    const taper_status status = run(&t);
    CHECK(status == TAPER_OK, "%s", taper_status_string(status));
    if (status == TAPER_OK)
        compare(&t, count);
    release(&t);
}

/* Sums of floats and of bytes, and copies of elements of every size. */
static void check_all(const int64_t *shape, int64_t count, const int64_t *axes,
                      const int64_t *sizes, const int64_t *taps) {
    check_node("linear", TAPER_FLOAT32, shape, count, axes, sizes, taps);
    check_node("cubic-antialias", TAPER_UINT8, shape, count, axes, sizes, taps);
    static const taper_dtype dtypes[] = {TAPER_FLOAT32, TAPER_UINT8, TAPER_INT16, TAPER_INT64};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        check_node("nearest", dtypes[i], shape, count, axes, sizes, taps);
}

static void every_size(void) {
    for (int64_t n = 1; n <= 20; n++)
        for (int64_t size = 1; size <= 41; size += n % 3 + 1)
            for (int64_t axis = 1; axis <= 3; axis++) {
                const int64_t shape[] = {2, axis == 1 ? n : 2, axis == 2 ? n : 3,
                                         axis == 3 ? n : 7};
                check_all(shape, 1, &axis, &size, (int64_t[]){n % 4 + 1});
            }
}

static void two_axes(void) {
    static const int64_t axes[][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
    for (int i = 0; i < 120; i++) {
        int64_t shape[4], sizes[2], taps[2];
        for (int d = 0; d < 4; d++)
            shape[d] = check_int(1, 12) * (d == 3 && i % 3 == 0 ? 4 : 1);
        for (int d = 0; d < 2; d++) {
            sizes[d] = check_int(1, 40);
            taps[d] = check_int(1, i % 2 ? 4 : 9);
        }
        check_all(shape, 2, axes[i % 6], sizes, taps);
    }
}

/* Rows so long that they are computed in blocks, and so many that they are in several tasks. */
static void large(void) {
    const int64_t axes[] = {2, 3}, taps[] = {2, 2}, many[] = {3, 4};
    check_all((int64_t[]){1, 1, 3, 9000}, 2, axes, (int64_t[]){7, 21000}, taps);
    check_all((int64_t[]){1, 1, 3, 9000}, 2, axes, (int64_t[]){2, 1200}, many);
    check_all((int64_t[]){1, 2, 600, 50}, 2, axes, (int64_t[]){1300, 70}, taps);
    check_all((int64_t[]){1, 1, 60, 8000}, 1, (int64_t[]){2}, (int64_t[]){70}, taps);
}

/* Interleaved channels of bytes, made smaller and larger: vectors hold columns of some pixels. */
static void channels(void) {
    const int64_t axes[] = {1, 2};
    for (int64_t c = 1; c <= 15; c++)
        for (int i = 0; i < 12; i++) {
            const int64_t shape[] = {1, check_int(1, 20), check_int(1, 90), c};
            const int64_t sizes[] = {check_int(1, 20), check_int(1, i % 2 ? 20 : 140)};
            const int64_t taps[] = {check_int(1, 7), check_int(1, 8)};
            column_step = i % 4 == 3 ? 20 : 1; /* no vector holds two taps that are so far apart */
            check_node("linear", TAPER_UINT8, shape, 2, axes, sizes, taps);
        }
    column_step = 1;
}

static void special_values(void) {
    static const float values[] = {NAN, INFINITY, 1e-40f};
    const int64_t axes[] = {1, 2}, sizes[] = {18, 40}, one[] = {1, 1};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        node t = make("nearest", TAPER_FLOAT32, (int64_t[]){2, 9, 20, 1}, 2, axes, sizes, one);
        begin(&t, 2);
        ((float *)t.x.data)[check_int(0, 2 * 9 * 20 - 1)] = values[v];
        CHECK(run(&t) == TAPER_OK, "runs");
        int64_t found = 0;
        for (int64_t i = 0; i < check_numel(&t.y); i++)
            found += memcmp((float *)t.y.data + i, &values[v], sizeof values[v]) == 0;
        CHECK(found == 4, "%g stands %lld times", values[v], (long long)found);
        release(&t);
    }
}

static void empty(void) {
    const int64_t size = 5, axis = 1, taps = 2;
    check_all((int64_t[]){0, 3, 4, 1}, 1, &axis, &size, &taps);
    check_all((int64_t[]){2, 3, 0, 5}, 1, &axis, &size, &taps);
}

static void threads_same_bits(void) {
    const int64_t axes[] = {1, 2}, sizes[] = {47, 70}, taps[] = {4, 3};
    static const taper_dtype dtypes[] = {TAPER_FLOAT32, TAPER_UINT8};
    for (int i = 0; i < 4; i++) {
        node t = make(i < 2 ? "cubic" : "nearest", dtypes[i % 2], (int64_t[]){20, 30, 30, 5}, 2,
                      axes, sizes, taps);
        begin(&t, 2);
        check_threads("RESAMPLE", NULL, &t.x, 1, &t.y, &t.attrs);
        release(&t);
    }
}

static void unsupported(void) {
    const int64_t axes[] = {1, 2}, sizes[] = {7, 6}, taps[] = {2, 2};
    node t = make("linear", TAPER_FLOAT32, (int64_t[]){2, 5, 3, 20}, 2, axes, sizes, taps);
    int32_t *table = t.table.data;
    begin(&t, 2);
#define REFUSED(change, undo) CHECK_REFUSED(run(&t), change, undo)
    REFUSED(t.x.dtype = TAPER_FLOAT64, t.x.dtype = TAPER_FLOAT32);
    REFUSED(t.attrs.mode = "area", t.attrs.mode = "linear");
    REFUSED(t.attrs.mode = "nearest", t.attrs.mode = "linear");
    REFUSED(t.y.shape[1] = 17, t.y.shape[1] = 7); /* the table has 16 */
    REFUSED(t.y.shape[3] = 19, t.y.shape[3] = 20);
    REFUSED(t.axes[0] = -1, t.axes[0] = 1);
    REFUSED(t.axes[1] = 4, t.axes[1] = 2);
    REFUSED(t.axes[1] = 1, t.axes[1] = 2);
    REFUSED(t.attrs.axes.count = 1, t.attrs.axes.count = 2);
    REFUSED(t.attrs.axes.count = 0, t.attrs.axes.count = 2);
    REFUSED(t.x.strides[0]++, t.x.strides[0]--);
    REFUSED(check_table = NULL, check_table = &t.table);
    REFUSED(t.table.dtype = TAPER_FLOAT32, t.table.dtype = TAPER_INT32);
    REFUSED(t.table.shape[0]--, t.table.shape[0]++);
    REFUSED(table[0]++, table[0]--);
    REFUSED(table[4]--, table[4]++);
    REFUSED(table[6] += 5, table[6] -= 5);
    REFUSED(table[6] -= 9, table[6] += 9);
    CHECK(run(&t) == TAPER_OK, "all undone");
    release(&t);
}

static void bench(void) {
    static const struct {
        const char *name, *mode;
        taper_dtype dtype;
        int64_t shape[4], axes[2], sizes[2], taps[2];
    } all[] = {
        {"nearest_x2", "nearest", TAPER_FLOAT32, {1, 128, 40, 40}, {2, 3}, {80, 80}, {1, 1}},
        {"nearest_x2_last", "nearest", TAPER_FLOAT32, {1, 40, 40, 128}, {1, 2}, {80, 80}, {1, 1}},
        {"linear_x2", "linear", TAPER_FLOAT32, {1, 128, 40, 40}, {2, 3}, {80, 80}, {2, 2}},
        {"linear_x2_last", "linear", TAPER_FLOAT32, {1, 40, 40, 128}, {1, 2}, {80, 80}, {2, 2}},
        {"antialias", "linear", TAPER_FLOAT32, {1, 3, 480, 640}, {2, 3}, {224, 224}, {5, 7}},
        {"bytes", "linear", TAPER_UINT8, {1, 3, 480, 640}, {2, 3}, {224, 224}, {5, 7}},
        {"bytes_last", "linear", TAPER_UINT8, {1, 480, 640, 3}, {1, 2}, {224, 224}, {5, 7}},
        {"bytes_cubic", "linear", TAPER_UINT8, {1, 480, 640, 3}, {1, 2}, {224, 224}, {9, 12}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        node t = make(all[i].mode, all[i].dtype, all[i].shape, 2, all[i].axes, all[i].sizes,
                      all[i].taps);
        begin(&t, 2);
        check_bench_op(all[i].name, "RESAMPLE", NULL, &t.x, 1, &t.y, &t.attrs, 0,
                       (double)((check_numel(&t.x) + check_numel(&t.y)) *
                                (int64_t)taper_dtype_size(all[i].dtype)));
        release(&t);
    }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_size", every_size},
        {"two_axes", two_axes},
        {"large", large},
        {"channels", channels},
        {"special_values", special_values},
        {"empty", empty},
        {"threads_same_bits", threads_same_bits},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {{"bench", bench}};
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
