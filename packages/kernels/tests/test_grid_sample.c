/* GRID_SAMPLE against sums in double over all pixels of an image. */
#include "check.h"
#include "grid_sample/kernels.inc"

#include <math.h>

CHECK_ATTRS(grid_sample)

static const char *const modes[] = {"nearest", "linear", "cubic"};
static const char *const paddings[] = {"zeros", "border", "reflection"};

typedef struct node {
    taper_tensor inputs[2], y;
    struct grid_sample_attrs attrs;
    int dims;
} node;

/* x: images, sizes, channels; out: sizes. first: whether the tensors have channels before sizes. */
static node make(int dims, const int64_t *x, const int64_t *out, bool first) {
    node t = {.dims = dims, .attrs = {"linear", "zeros", false, first}};
    int64_t grid[5] = {x[0]}, shape[5] = {x[0]}, y[5] = {x[0]};
    const int inner = first ? 2 : 1;
    for (int d = 0; d < dims; d++) {
        grid[d + 1] = y[d + inner] = out[d];
        shape[d + inner] = x[d + 1];
    }
    grid[dims + 1] = dims;
    shape[first ? 1 : dims + 1] = y[first ? 1 : dims + 1] = x[dims + 1];
    t.inputs[0] = check_tensor(NULL, TAPER_FLOAT32, dims + 2, shape);
    t.inputs[1] = check_tensor(NULL, TAPER_FLOAT32, dims + 2, grid);
    t.y = check_tensor(NULL, TAPER_FLOAT32, dims + 2, y);
    taper_tensor *all[] = {&t.inputs[0], &t.inputs[1], &t.y};
    for (int i = 0; i < 3; i++) {
        all[i]->data = check_alloc((size_t)check_numel(all[i]) * sizeof(float), 0);
        check_fill_uniform(all[i]->data, check_numel(all[i]), i ? -1.8f : -1, i ? 1.8f : 1);
    }
    return t;
}

static void release(node *t) {
    check_free(t->inputs[0].data);
    check_free(t->inputs[1].data);
    check_free(t->y.data);
}

static taper_status run(const node *t) {
    return check_run("GRID_SAMPLE", NULL, t->inputs, 2, &t->y, &t->attrs, 1);
}

static double inside(const node *t, double at, double size) {
    const double low = t->attrs.align_corners ? 0 : -0.5;
    const double span = t->attrs.align_corners ? size - 1 : size;
    if (t->attrs.padding[0] == 'z')
        return at;
    if (t->attrs.padding[0] == 'r') {
        const double away = span == 0 ? 0 : fmod(fabs(at - low), 2 * span);
        at = span == 0 ? 0 : fmin(away, 2 * span - away) + low;
    }
    return fmin(fmax(at, 0), size - 1);
}

static double cubic(double d) {
    const double a = -0.75;
    d = fabs(d);
    if (d <= 1)
        return (a + 2) * d * d * d - (a + 3) * d * d + 1;
    return d < 2 ? a * (d * d * d - 5 * d * d + 8 * d - 4) : 0;
}

/* The weights of the elements along an axis. */
static void weigh(const node *t, double point, int64_t size, double *weight) {
    double at = t->attrs.align_corners ? (point + 1) / 2 * (double)(size - 1)
                                       : ((point + 1) * (double)size - 1) / 2;
    for (int64_t i = 0; i < size; i++)
        weight[i] = 0;
    const bool is_cubic = t->attrs.mode[0] == 'c';
    if (!is_cubic)
        at = inside(t, at, (double)size);
    for (int k = -1; k <= 2; k++) {
        const double place = t->attrs.mode[0] == 'n' ? rint(at) : floor(at) + k;
        const double d = fabs(at - place);
        const double w = t->attrs.mode[0] == 'n' ? k == 0 : is_cubic ? cubic(d) : fmax(0, 1 - d);
        const double held = is_cubic ? inside(t, place, (double)size) : place;
        if (held >= 0 && held < (double)size)
            weight[(int64_t)held] += w;
    }
}

static void compare(const node *t) {
    const taper_tensor *x = &t->inputs[0];
    if (check_numel(&t->y) == 0)
        return;
    const bool first = t->attrs.channels_first;
    const int64_t channels = x->shape[first ? 1 : t->dims + 1];
    const int64_t deep = t->dims == 3 ? x->shape[1] : 1;
    const int64_t *sizes = x->shape + (first ? 2 : 1), *size = sizes + t->dims - 2,
                  points = check_numel(&t->y) / x->shape[0] / channels;
    double weight[3][64] = {{1}};
    for (int64_t p = 0; p < points * x->shape[0]; p++) {
        const float *point = (const float *)t->inputs[1].data + p * t->dims;
        for (int d = 0; d < t->dims; d++)
            weigh(t, point[t->dims - 1 - d], sizes[d], weight[3 - t->dims + d]);
        for (int64_t c = 0; c < channels; c++) {
            double want = 0;
            for (int64_t i = 0; i < deep * size[0] * size[1]; i++) {
                const int64_t image = p / points, pixels = deep * size[0] * size[1];
                const int64_t at = first ? (image * channels + c) * pixels + i
                                         : (image * pixels + i) * channels + c;
                want += weight[0][i / size[1] / size[0]] * weight[1][i / size[1] % size[0]] *
                        weight[2][i % size[1]] * ((const float *)x->data)[at];
            }
            const int64_t at =
                first ? (p / points * channels + c) * points + p % points : p * channels + c;
            const float got = ((const float *)t->y.data)[at];
            CHECK(fabs(got - want) <= 2e-5, "%s, %s: got %.9g, want %.9g", t->attrs.mode,
                  t->attrs.padding, got, want);
        }
    }
}

static void check_ways(int dims, const int64_t *x, const int64_t *out) {
    for (int way = 0; way < 36; way++) {
        const bool first = way >= 18;
        if (dims == 3 && (way % 3 == 2 || first))
            continue;
        node t = make(dims, x, out, first);
        t.attrs = (struct grid_sample_attrs){modes[way % 3], paddings[way / 3 % 3],
                                             way / 9 % 2 == 1, first};
        const taper_status status = run(&t);
        CHECK(status == TAPER_OK, "%s", taper_status_string(status));
        compare(&t);
        release(&t);
    }
}

static void every_tail(void) {
    for (int64_t channels = 1; channels <= 20; channels++)
        check_ways(2, (int64_t[]){2, 5, 7, channels}, (int64_t[]){3, channels});
    for (int64_t channels = 1; channels <= 5; channels++)
        check_ways(3, (int64_t[]){2, 3, 4, 5, channels}, (int64_t[]){2, 3, channels});
}

static void sizes(void) {
    check_ways(2, (int64_t[]){1, 1, 1, 3}, (int64_t[]){4, 4});
    check_ways(2, (int64_t[]){1, 1, 9, 2}, (int64_t[]){40, 27});
    check_ways(2, (int64_t[]){0, 3, 4, 5}, (int64_t[]){2, 2});
    check_ways(2, (int64_t[]){2, 3, 4, 5}, (int64_t[]){0, 2});
    check_ways(3, (int64_t[]){1, 1, 2, 1, 3}, (int64_t[]){1, 70, 1});
}

/* Places outside are not read: the pages around x may not be. */
static void far_outside(void) {
    static const float far[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e10f, -1e10f, 2e9f};
    for (int way = 0; way < 36; way++) {
        const bool first = way >= 18;
        node t = make(2, (int64_t[]){1, 5, 7, 3}, (int64_t[]){8, 8}, first);
        t.attrs = (struct grid_sample_attrs){modes[way % 3], paddings[way / 3 % 3],
                                             way / 9 % 2 == 1, first};
        for (int i = 0; i < 128; i++)
            ((float *)t.inputs[1].data)[i] = far[(i % 2 ? i / 2 : i / 16) % 8];
        CHECK(run(&t) == TAPER_OK, "runs");
        release(&t);
    }
}

static void threads_same_bits(void) {
    static const int64_t channels[] = {1, 3, 37};
    for (int i = 0; i < 3; i++) {
        node t = make(2, (int64_t[]){3, 20, 30, channels[i]}, (int64_t[]){50, 41}, i == 1);
        check_threads("GRID_SAMPLE", NULL, t.inputs, 2, &t.y, &t.attrs);
        release(&t);
    }
}

static void unsupported(void) {
    node t = make(2, (int64_t[]){2, 5, 3, 4}, (int64_t[]){7, 6}, false);
#define REFUSED(change, undo) CHECK_REFUSED(run(&t), change, undo)
    REFUSED(t.attrs.mode = "area", t.attrs.mode = "linear");
    REFUSED(t.attrs.padding = "ones", t.attrs.padding = "zeros");
    REFUSED(t.inputs[0].shape[0]--, t.inputs[0].shape[0]++);
    REFUSED(t.inputs[0].shape[3]--, t.inputs[0].shape[3]++);
    REFUSED(t.inputs[1].shape[1]--, t.inputs[1].shape[1]++);
    REFUSED(t.inputs[1].shape[3]--, t.inputs[1].shape[3]++);
    REFUSED(t.inputs[0].strides[1]++, t.inputs[0].strides[1]--);
    REFUSED(t.y.shape[2]--, t.y.shape[2]++);
    CHECK(run(&t) == TAPER_OK, "all undone");
    release(&t);
}

/* Times a slight turn, whose points read x about in order, in each mode. */
static void bench(void) {
    static const struct {
        int64_t x[4]; /* images, sizes, channels */
        bool first;
    } of[] = {
        {{1, 64, 64, 64}, false},  {{1, 32, 32, 256}, false}, {{1, 224, 224, 3}, false},
        {{1, 224, 224, 1}, false}, {{1, 224, 224, 3}, true},  {{1, 224, 224, 16}, true},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const int64_t height = of[i].x[1], width = of[i].x[2];
        node t = make(2, of[i].x, of[i].x + 1, of[i].first);
        float *point = t.inputs[1].data;
        for (int64_t at = 0; at < height * width; at++, point += 2) {
            const float row = (float)(2 * (at / width) + 1) / (float)height - 1;
            const float column = (float)(2 * (at % width) + 1) / (float)width - 1;
            point[0] = 0.9f * column + 0.2f * row;
            point[1] = 0.9f * row - 0.2f * column + 0.1f;
        }
        for (int way = 0; way < 3; way++) {
            t.attrs.mode = modes[way];
            char name[64];
            snprintf(name, sizeof name, "%dx%dx%d%s %s", (int)height, (int)width, (int)of[i].x[3],
                     of[i].first ? " first" : "", modes[way]);
            check_bench_op(name, "GRID_SAMPLE", NULL, t.inputs, 2, &t.y, &t.attrs,
                           8.0 * (double)check_numel(&t.y), 0);
        }
        release(&t);
    }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_tail", every_tail},   {"sizes", sizes},
        {"far_outside", far_outside}, {"threads_same_bits", threads_same_bits},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {{"bench", bench}};
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
