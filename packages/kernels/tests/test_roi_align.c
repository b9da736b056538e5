/* ROI_ALIGN against means in double of points that are interpolated one by one. */
#include <math.h>

#include "check.h"
#include "roi_align/kernels.inc"

CHECK_ATTRS(roi_align)

typedef struct node {
    taper_tensor inputs[2], y;
    struct roi_align_attrs attrs;
    int64_t bins[2];
} node;

/* x: images, height, width, channels. Some boxes lie outside, or end before they start. */
static node make(const int64_t *x, int64_t boxes, int64_t rows, int64_t columns) {
    node t = {.attrs = {0.5, {NULL, 2}, 2, false}, .bins = {rows, columns}};
    const int64_t box[] = {boxes, 5}, y[] = {boxes, rows, columns, x[3]};
    t.inputs[0] = check_tensor(NULL, TAPER_FLOAT32, 4, x);
    t.inputs[1] = check_tensor(NULL, TAPER_FLOAT32, 2, box);
    t.y = check_tensor(NULL, TAPER_FLOAT32, 4, y);
    taper_tensor *all[] = {&t.inputs[0], &t.inputs[1], &t.y};
    for (int i = 0; i < 3; i++) {
        all[i]->data = check_alloc((size_t)check_numel(all[i]) * sizeof(float), 0);
        check_fill_uniform(all[i]->data, check_numel(all[i]), i ? -8 : -1, i ? 40 : 1);
    }
    for (int64_t k = 0; k < boxes; k++)
        ((float *)t.inputs[1].data)[5 * k] = (float)(k % x[0]) + (k % 2 ? 0.75f : 0);
    return t;
}

static void release(node *t) {
    check_free(t->inputs[0].data);
    check_free(t->inputs[1].data);
    check_free(t->y.data);
}

static taper_status run(node *t) {
    t->attrs.size.data = t->bins;
    return check_run("ROI_ALIGN", NULL, t->inputs, 2, &t->y, &t->attrs, 1);
}

/* Moves a point inside; returns false if it is more than 1 outside. */
static bool clamp(double *at, double size) {
    if (*at < -1 || *at > size)
        return false;
    *at = fmin(fmax(*at, 0), size - 1);
    return true;
}

static double pixel(const node *t, int64_t image, double y, double x, int64_t channel) {
    const int64_t *shape = t->inputs[0].shape;
    if (!clamp(&y, (double)shape[1]) || !clamp(&x, (double)shape[2]))
        return 0;
    double sum = 0;
    for (int64_t r = (int64_t)y; r <= (int64_t)y + 1 && r < shape[1]; r++)
        for (int64_t c = (int64_t)x; c <= (int64_t)x + 1 && c < shape[2]; c++)
            sum += (1 - fabs(y - (double)r)) * (1 - fabs(x - (double)c)) *
                   ((float *)t->inputs[0]
                        .data)[((image * shape[1] + r) * shape[2] + c) * shape[3] + channel];
    return sum;
}

static double mean(const node *t, const float *box, int64_t row, int64_t column, int64_t channel) {
    const double shift = t->attrs.aligned ? 0.5 : 0;
    double start[2], bin[2], points[2];
    for (int d = 0; d < 2; d++) {
        start[d] = box[2 - d] * t->attrs.scale - shift;
        double length = box[4 - d] * t->attrs.scale - shift - start[d];
        length = t->attrs.aligned ? length : fmax(length, 1);
        bin[d] = length / (double)t->bins[d];
        points[d] = t->attrs.samples ? (double)t->attrs.samples : ceil(bin[d]);
    }
    double sum = 0;
    for (double i = 0; i < points[0]; i++)
        for (double j = 0; j < points[1]; j++)
            sum +=
                pixel(t, (int64_t)box[0], start[0] + bin[0] * ((double)row + (i + 0.5) / points[0]),
                      start[1] + bin[1] * ((double)column + (j + 0.5) / points[1]), channel);
    return sum / fmax(points[0] * points[1], 1);
}

static void compare(node *t) {
    CHECK(run(t) == TAPER_OK, "runs");
    const float *got = t->y.data;
    for (int64_t k = 0; k < t->y.shape[0]; k++)
        for (int64_t i = 0; i < t->y.shape[1]; i++)
            for (int64_t j = 0; j < t->y.shape[2]; j++)
                for (int64_t c = 0; c < t->y.shape[3]; c++, got++) {
                    const double want = mean(t, (float *)t->inputs[1].data + 5 * k, i, j, c);
                    CHECK(fabs(*got - want) <= 2e-5, "got %.9g, want %.9g", *got, want);
                }
}

static void check_ways(const int64_t *x, int64_t boxes, int64_t rows, int64_t columns) {
    for (int way = 0; way < 8; way++) {
        node t = make(x, boxes, rows, columns);
        t.attrs.samples = way / 2;
        t.attrs.aligned = way % 2;
        compare(&t);
        release(&t);
    }
}

static void every_tail(void) {
    for (int64_t channels = 1; channels <= 20; channels++)
        check_ways((int64_t[]){2, 9, 11, channels}, 3, 2, 3);
    check_ways((int64_t[]){1, 6, 5, 150}, 2, 2, 2);
}

static void sizes(void) {
    check_ways((int64_t[]){2, 1, 1, 3}, 4, 2, 2);
    check_ways((int64_t[]){1, 1, 9, 2}, 3, 14, 1);
    check_ways((int64_t[]){1, 3, 4, 5}, 0, 2, 2);
    check_ways((int64_t[]){1, 3, 4, 0}, 2, 2, 2);
    check_ways((int64_t[]){0, 3, 4, 5}, 0, 2, 2);
}

/* Neither of these is read: the pages around x may not be. */
static void bad_boxes(void) {
    static const float bad[][2] = {{0, 2},     {0, -1},    {0, NAN},      {0, INFINITY},
                                   {0, 1e30f}, {1, NAN},   {2, INFINITY}, {3, -INFINITY},
                                   {4, NAN},   {3, 3e38f}, {4, 1e7f}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        node t = make((int64_t[]){2, 5, 7, 3}, 1, 2, 2);
        t.attrs.samples = 0;
        ((float *)t.inputs[1].data)[(int)bad[i][0]] = bad[i][1];
        CHECK(run(&t) == TAPER_BAD_INDEX, "%g at %g", bad[i][1], bad[i][0]);
        release(&t);
    }
}

/* Boxes far outside are 0 where the number of points is given. */
static void far_outside(void) {
    static const float far[] = {3e9f, -3e9f, 1e30f, -1e30f, 3e37f};
    for (int way = 0; way < 20; way++) {
        node t = make((int64_t[]){1, 5, 7, 3}, 1, 2, 2);
        t.attrs.aligned = way >= 10;
        float *box = t.inputs[1].data;
        box[1] = box[3] = far[way % 5];
        box[way % 2 ? 2 : 4] = far[(way + 2) % 5];
        CHECK(run(&t) == TAPER_OK, "runs");
        for (int i = 0; i < 12; i++)
            CHECK(((float *)t.y.data)[i] == 0, "%d", i);
        release(&t);
    }
}

static void threads_same_bits(void) {
    node t = make((int64_t[]){2, 20, 30, 37}, 70, 7, 7);
    t.attrs.size.data = t.bins;
    check_threads("ROI_ALIGN", NULL, t.inputs, 2, &t.y, &t.attrs);
    release(&t);
}

static void unsupported(void) {
    node t = make((int64_t[]){2, 5, 3, 4}, 3, 2, 2);
#define REFUSED(change, undo) CHECK_REFUSED(run(&t), change, undo)
    REFUSED(t.attrs.samples = -1, t.attrs.samples = 2);
    REFUSED(t.attrs.samples = INT64_MAX, t.attrs.samples = 2);
    REFUSED(t.attrs.size.count = 1, t.attrs.size.count = 2);
    REFUSED(t.bins[0] = 3, t.bins[0] = 2);
    REFUSED(t.inputs[0].shape[3]--, t.inputs[0].shape[3]++);
    REFUSED(t.inputs[1].shape[0]--, t.inputs[1].shape[0]++);
    REFUSED(t.inputs[1].shape[1]--, t.inputs[1].shape[1]++);
    REFUSED(t.inputs[0].strides[1]++, t.inputs[0].strides[1]--);
    REFUSED(t.y.shape[1]--, t.y.shape[1]++);
    CHECK(run(&t) == TAPER_OK, "all undone");
    release(&t);
}

static void bench(void) {
    static const int64_t sizes[] = {200, 50};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        node t = make((int64_t[]){1, sizes[i], sizes[i], 256}, 200, 7, 7);
        t.attrs.scale = 1;
        t.attrs.size.data = t.bins;
        float *box = t.inputs[1].data;
        for (int k = 0; k < 200; k++, box += 5) {
            box[0] = 0;
            box[3] = box[1] + 10;
            box[4] = box[2] + 10;
        }
        char name[64];
        snprintf(name, sizeof name, "200 boxes, %dx%dx256", (int)sizes[i], (int)sizes[i]);
        check_bench_op(name, "ROI_ALIGN", NULL, t.inputs, 2, &t.y, &t.attrs,
                       18.0 * (double)check_numel(&t.y), 0);
        release(&t);
    }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_tail", every_tail},   {"sizes", sizes},
        {"bad_boxes", bad_boxes},     {"far_outside", far_outside},
        {"unsupported", unsupported}, {"threads_same_bits", threads_same_bits},
    };
    static const check_case benches[] = {{"bench", bench}};
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
