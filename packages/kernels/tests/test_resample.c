/* RESAMPLE against weighted sums in double, with positions in float32 as the op has them. */
#include "check.h"
#include "resample/kernels.inc"

#include <math.h>

CHECK_ATTRS(resample)

static const char *const modes[] = {"nearest", "nearest-exact",    "linear",
                                    "cubic",   "linear-antialias", "cubic-antialias"};
enum { MODES = sizeof modes / sizeof *modes };

typedef struct node {
    taper_tensor x, y;
    struct resample_attrs attrs;
} node;

static node make(const char *mode, int64_t outer, int64_t n, int64_t inner, int64_t size,
                 size_t misalign) {
    node t = {.x = check_tensor(NULL, TAPER_FLOAT32, 3, (int64_t[]){outer, n, inner}),
              .y = check_tensor(NULL, TAPER_FLOAT32, 3, (int64_t[]){outer, size, inner}),
              .attrs = {.axis = 1, .size = size, .mode = mode}};
    t.x.data = check_alloc((size_t)check_numel(&t.x) * sizeof(float), misalign);
    t.y.data = check_alloc((size_t)check_numel(&t.y) * sizeof(float), misalign);
    check_fill_uniform(t.x.data, check_numel(&t.x), -1, 1);
    return t;
}

static void release(node *t) {
    check_free(t->x.data);
    check_free(t->y.data);
}

static taper_status run(const node *t) {
    return check_run("RESAMPLE", NULL, &t->x, 1, &t->y, &t->attrs, 1);
}

static double linear(double x) { return fmax(0, 1 - fabs(x)); }

static double cubic(double x, double a) {
    x = fabs(x);
    if (x <= 1)
        return (a + 2) * x * x * x - (a + 3) * x * x + 1;
    return x < 2 ? a * (x * x * x - 5 * x * x + 8 * x - 4) : 0;
}

/* Weight of element j of n in an output element, before they are made to add up to 1. */
static double weight_of(const node *t, int64_t n, int64_t i, int64_t j, float step) {
    const char *mode = t->attrs.mode;
    const bool corners = t->attrs.align_corners;
    if (strncmp(mode, "nearest", 7) == 0) {
        const float at = ((float)i + (strcmp(mode, "nearest") ? 0.5f : 0)) * step;
        return j == (int64_t)fminf(floorf(at), (float)(n - 1));
    }
    if (strstr(mode, "antialias")) {
        const double stretch = fmax(step, 1), centre = ((double)i + 0.5) * step;
        const double x = ((double)j + 0.5 - centre) / stretch;
        return mode[0] == 'l' ? linear(x) : cubic(x, -0.5);
    }
    double at = corners ? (double)((float)i * step) : (double)(((float)i + 0.5f) * step - 0.5f);
    double sum = 0;
    if (mode[0] == 'l')
        at = fmax(at, 0);
    /* Elements beyond the ends are the last ones. */
    for (int64_t k = (int64_t)floor(at) - 2; k <= (int64_t)floor(at) + 3; k++)
        if ((k < 0 ? 0 : k >= n ? n - 1 : k) == j)
            sum += mode[0] == 'l' ? linear((double)k - at) : cubic((double)k - at, -0.75);
    return sum;
}

static void compare(const node *t) {
    const int64_t n = t->x.shape[1], size = t->y.shape[1], inner = t->x.shape[2];
    const float step = t->attrs.align_corners ? (size > 1 ? (float)(n - 1) / (float)(size - 1) : 0)
                       : t->attrs.scale != 0  ? (float)(1 / t->attrs.scale)
                                              : (float)n / (float)size;
    for (int64_t i = 0; i < size; i++) {
        double total = 0;
        for (int64_t j = 0; j < n; j++)
            total += weight_of(t, n, i, j, step);
        if (!strstr(t->attrs.mode, "antialias") || fabs(total) < 1e-3)
            total = 1;
        for (int64_t o = 0; o < t->x.shape[0]; o++)
            for (int64_t c = 0; c < inner; c++) {
                double want = 0;
                for (int64_t j = 0; j < n; j++) {
                    const double w = weight_of(t, n, i, j, step) / total;
                    const double x = ((const float *)t->x.data)[(o * n + j) * inner + c];
                    want += w == 0 ? 0 : w * x;
                }
                const float got = ((const float *)t->y.data)[(o * size + i) * inner + c];
                const bool ok =
                    isnan(want) ? isnan(got) : fabs(got - want) <= 2e-6 * (1 + (double)n / 16);
                CHECK(ok, "%s %lld -> %lld, element %lld: got %.9g, want %.9g", t->attrs.mode,
                      (long long)n, (long long)size, (long long)i, got, want);
                if (!ok)
                    return;
            }
    }
}

static void check_node(node *t) {
    const taper_status status = run(t);
    CHECK(status == TAPER_OK, "%s", taper_status_string(status));
    if (status == TAPER_OK)
        compare(t);
}

static void check_ways(int64_t outer, int64_t n, int64_t inner, int64_t size, size_t misalign) {
    for (int mode = 0; mode < MODES; mode++) {
        node t = make(modes[mode], outer, n, inner, size, misalign);
        check_node(&t);
        if (mode >= 2) {
            t.attrs.align_corners = true;
            check_node(&t);
            t.attrs.align_corners = false;
        }
        t.attrs.scale = (double)size / (double)n * 1.01;
        check_node(&t);
        release(&t);
    }
}

static void every_size(void) {
    for (int64_t n = 1; n <= 12; n++)
        for (int64_t size = 1; size <= 25; size++)
            check_ways(2, n, 3, size, 0);
    check_ways(1, 100, 2, 7, 0);
    check_ways(1, 7, 2, 100, 0);
}

static void every_tail(void) {
    for (int64_t inner = 1; inner <= 36; inner++)
        check_ways(3, 5, inner, 8, inner % 2 * 4);
}

static void special_values(void) {
    static const float values[] = {NAN, INFINITY, 1e-40f};
    for (int mode = 0; mode < 2; mode++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            node t = make(modes[mode], 2, 9, 20, 14, 0);
            ((float *)t.x.data)[check_int(0, 2 * 9 * 20 - 1)] = values[v];
            const taper_status status = run(&t);
            CHECK(status == TAPER_OK, "%s", taper_status_string(status));
            int64_t found = 0;
            for (int64_t i = 0; i < check_numel(&t.y); i++)
                found += memcmp((float *)t.y.data + i, &values[v], sizeof values[v]) == 0;
            CHECK(found == 1 || found == 2, "%s: %g stands %lld times", modes[mode], values[v],
                  (long long)found);
            release(&t);
        }
}

static void empty(void) {
    check_ways(0, 3, 4, 5, 0);
    check_ways(2, 3, 0, 5, 0);
}

static void threads_same_bits(void) {
    for (int mode = 0; mode < MODES; mode++) {
        node t = make(modes[mode], 20, 30, 70, 47, 0);
        check_threads("RESAMPLE", NULL, &t.x, 1, &t.y, &t.attrs);
        release(&t);
    }
}

static void unsupported(void) {
    node t = make("linear", 2, 5, 3, 7, 0);
#define REFUSED(change, undo)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        CHECK(run(&t) == TAPER_UNSUPPORTED, #change);                                              \
        undo;                                                                                      \
    } while (0)
    REFUSED(t.x.dtype = TAPER_FLOAT64, t.x.dtype = TAPER_FLOAT32);
    REFUSED(t.attrs.mode = "area", t.attrs.mode = "linear");
    REFUSED(t.attrs.size = 6, t.attrs.size = 7);
    REFUSED(t.attrs.axis = -1, t.attrs.axis = 1);
    REFUSED(t.attrs.axis = 3, t.attrs.axis = 1);
    REFUSED(t.attrs.axis = 2, t.attrs.axis = 1);
    REFUSED(t.attrs.scale = NAN, t.attrs.scale = 0);
    REFUSED(t.attrs.scale = -1, t.attrs.scale = 0);
    REFUSED(t.attrs.scale = 1e-300, t.attrs.scale = 0);
    REFUSED(t.x.strides[0]++, t.x.strides[0]--);
    CHECK(run(&t) == TAPER_OK, "all undone");
    release(&t);
}

static void bench(void) {
    static const int64_t shapes[][4] = {
        {1, 28, 28 * 256, 56}, {56, 28, 256, 56}, {1, 32, 128 * 64, 128}, {128, 32, 64, 128}};
    for (int mode = 0; mode < MODES; mode++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const int64_t *s = shapes[i];
            char name[64];
            snprintf(name, sizeof name, "%s_%dx%dx%d_to_%d", modes[mode], (int)s[0], (int)s[1],
                     (int)s[2], (int)s[3]);
            node t = make(modes[mode], s[0], s[1], s[2], s[3], 0);
            check_bench_op(name, "RESAMPLE", NULL, &t.x, 1, &t.y, &t.attrs, 0,
                           4.0 * (double)(check_numel(&t.x) + check_numel(&t.y)));
            release(&t);
        }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_size", every_size},
        {"every_tail", every_tail},
        {"special_values", special_values},
        {"empty", empty},
        {"threads_same_bits", threads_same_bits},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {{"bench", bench}};
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
