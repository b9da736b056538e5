/* Compares CONV of a weight in Winograd tiles with sums in double, and its error with that of CONV.
 */
#include "check.h"
#include "conv/kernels.inc"

#include <math.h>

CHECK_ATTRS(conv)

enum { MAX_N = 6, PANEL = 16 };

/* A 3x3 node of stride 1 whose epilogue, if it has one, adds a bias and then a residual. */
typedef struct layer {
    int64_t batch, height, width, channels, outputs, tile;
    int64_t padding[4];
    bool epilogue;
    size_t misalign;
} layer;

typedef struct tensors {
    layer l;
    taper_tensor inputs[4], output;
    float *weight; /* [3][3][C][O], as it is before it is transformed and packed */
    struct conv_attrs attrs;
} tensors;

static const int64_t three[] = {3, 3}, ones[] = {1, 1};
static const char *const code[] = {"ADD", "ADD"};
static const int64_t args[] = {0, 1, 3, 2};

static taper_tensor make_tensor(const layer *l, int rank, const int64_t *dims) {
    taper_tensor t = check_tensor(NULL, TAPER_FLOAT32, rank, dims);
    t.data = check_alloc((size_t)check_numel(&t) * sizeof(float), l->misalign);
    check_fill_uniform(t.data, check_numel(&t), -1, 1);
    return t;
}

/* Row i of G, as Cook and Toom define it: the powers of point i over its distances from the other
 * points, or the highest power at infinity. */
static void weight_row(int64_t n, int64_t i, double row[3]) {
    static const double small[] = {0, 1, -1}, large[] = {0, 0.625, -0.625, 1.375, -1.375};
    const double *points = n == 4 ? small : large;
    double scale = 1;
    for (int64_t j = 0; j < n - 1; j++)
        if (j != i && i < n - 1)
            scale *= points[i] - points[j];
    for (int k = 0; k < 3; k++)
        row[k] = i == n - 1 ? k == 2 : pow(points[i], k) / scale;
}

/* [3][3][C][O] -> [n * n][ceil(O/16)][C][16]: G w Gt, zero beyond. */
static taper_tensor transform(const tensors *t) {
    const layer *l = &t->l;
    const int64_t n = l->tile + 2, c = l->channels, o = l->outputs, panels = (o + 15) / PANEL;
    const int64_t dims[] = {n * n, panels, c, PANEL};
    const taper_tensor to = make_tensor(l, 4, dims);
    double rows[MAX_N][3];
    for (int64_t i = 0; i < n; i++)
        weight_row(n, i, rows[i]);
    for (int64_t e = 0; e < check_numel(&to); e++) {
        const int64_t point = e / (panels * c * PANEL), channel = e / PANEL % c;
        const int64_t output = e / (c * PANEL) % panels * PANEL + e % PANEL;
        double sum = 0;
        for (int64_t k = 0; k < 9 && output < o; k++)
            sum += rows[point / n][k / 3] * rows[point % n][k % 3] *
                   (double)t->weight[(k * c + channel) * o + output];
        ((float *)to.data)[e] = (float)sum;
    }
    return to;
}

/* A tile of 0 means a plain weight. */
static void make(tensors *t, const layer *l) {
    *t = (tensors){.l = *l};
    const int64_t height = l->height + l->padding[0] + l->padding[1] - 2;
    const int64_t width = l->width + l->padding[2] + l->padding[3] - 2;
    const int64_t y[] = {l->batch, height, width, l->outputs};
    t->inputs[0] = make_tensor(l, 4, (const int64_t[]){l->batch, l->height, l->width, l->channels});
    t->inputs[1] = make_tensor(l, 4, (const int64_t[]){3, 3, l->channels, l->outputs});
    t->weight = t->inputs[1].data;
    if (l->tile > 0) {
        t->inputs[1] = transform(t);
        t->inputs[1].format = l->tile == 2 ? TAPER_WINOGRAD_2 : TAPER_WINOGRAD_4;
    }
    t->inputs[2] = make_tensor(l, 1, &l->outputs);
    t->inputs[3] = make_tensor(l, 4, y);
    t->output = make_tensor(l, 4, y);
    const taper_strings program = {code, l->epilogue ? 2 : 0};
    const taper_ints operands = {args, l->epilogue ? 4 : 0};
    t->attrs = (struct conv_attrs){.kernel = {three, 2},
                                   .stride = {ones, 2},
                                   .padding = {t->l.padding, 4},
                                   .dilation = {ones, 2},
                                   .groups = 1,
                                   .code = program,
                                   .args = operands};
}

static void release(tensors *t) {
    if (t->weight != t->inputs[1].data)
        check_free(t->weight);
    for (int i = 0; i < 4; i++)
        check_free(t->inputs[i].data);
    check_free(t->output.data);
}

static int n_inputs(const tensors *t) { return t->l.epilogue ? 4 : 2; }

static taper_status run(tensors *t) {
    return check_run("CONV", NULL, t->inputs, n_inputs(t), &t->output, &t->attrs, 1);
}

/* Element e of the output in double. */
static double want_of(const tensors *t, int64_t e) {
    const layer *l = &t->l;
    const int64_t height = t->output.shape[1], width = t->output.shape[2];
    const int64_t o = e % l->outputs, x = e / l->outputs % width,
                  y = e / l->outputs / width % height, image = e / l->outputs / width / height;
    double sum = 0;
    for (int64_t k = 0; k < 9; k++) {
        const int64_t row = y + k / 3 - l->padding[0], col = x + k % 3 - l->padding[2];
        if (row < 0 || row >= l->height || col < 0 || col >= l->width)
            continue;
        const float *pixel = (const float *)t->inputs[0].data +
                             ((image * l->height + row) * l->width + col) * l->channels;
        for (int64_t c = 0; c < l->channels; c++)
            sum += (double)pixel[c] * (double)t->weight[(k * l->channels + c) * l->outputs + o];
    }
    if (l->epilogue)
        sum += (double)((const float *)t->inputs[2].data)[o] +
               (double)((const float *)t->inputs[3].data)[e];
    return sum;
}

static void check_layer(layer l) {
    tensors t;
    make(&t, &l);
    const taper_status status = run(&t);
    CHECK(status == TAPER_OK, "%s", taper_status_string(status));
    const double bound = 0x1p-24 * (64 + 128 * sqrt(9.0 * (double)l.channels));
    for (int64_t e = 0; e < check_numel(&t.output); e++) {
        const double want = want_of(&t, e), got = ((const float *)t.output.data)[e];
        CHECK(fabs(got - want) <= bound,
              "tile %lld, %lld x %lld, %lld -> %lld channels, element %lld: got %.9g, want %.9g",
              (long long)l.tile, (long long)l.height, (long long)l.width, (long long)l.channels,
              (long long)l.outputs, (long long)e, got, want);
        if (!(fabs(got - want) <= bound))
            break;
    }
    release(&t);
}

/* Both tiles, plain and with an epilogue. */
static void check_ways(layer l) {
    for (l.tile = 2; l.tile <= 4; l.tile += 2)
        for (int way = 0; way < 2; way++) {
            l.epilogue = way == 1;
            check_layer(l);
        }
}

static layer square(int64_t size, int64_t channels, int64_t outputs) {
    return (layer){.batch = 1,
                   .height = size,
                   .width = size,
                   .channels = channels,
                   .outputs = outputs,
                   .padding = {1, 1, 1, 1}};
}

static void every_size(void) {
    for (int64_t height = 1; height <= 13; height++)
        for (int64_t width = 1; width <= 13; width += 1 + height % 2) {
            layer l = square(height, 3, 20);
            l.width = width;
            check_ways(l);
        }
}

static void every_channel_tail(void) {
    for (int64_t n = 1; n <= 35; n++) {
        check_ways(square(5, n, 7));
        check_ways(square(5, 3, n));
    }
}

static void paddings(void) {
    for (int repeat = 0; repeat < 60; repeat++) {
        layer l = square(3, check_int(1, 9), check_int(1, 40));
        l.batch = check_int(1, 3);
        l.height = check_int(3, 12);
        l.width = check_int(3, 12);
        for (int side = 0; side < 4; side++)
            l.padding[side] = check_int(0, 9);
        check_ways(l);
    }
}

static void many_blocks(void) {
    check_ways(square(40, 64, 24)); /* the weight resident */
    check_ways(square(9, 500, 150));
    layer l = square(7, 130, 300);
    l.batch = 5;
    check_ways(l);
}

static void misaligned(void) {
    layer l = square(9, 20, 40);
    l.misalign = 4;
    check_ways(l);
}

static void empty(void) {
    layer l = square(5, 3, 4);
    l.batch = 0;
    check_ways(l);
}

/* Relative L2 error of a layer with this tile. */
static double error_of(layer l, int64_t tile) {
    l.tile = tile;
    check_seed(7);
    tensors t;
    make(&t, &l);
    CHECK(run(&t) == TAPER_OK, "not run");
    double error = 0, size = 0;
    for (int64_t e = 0; e < check_numel(&t.output); e++) {
        const double want = want_of(&t, e), got = ((const float *)t.output.data)[e];
        error += (got - want) * (got - want);
        size += want * want;
    }
    release(&t);
    return sqrt(error / size);
}

/* Compares the errors of F(2x2) and F(4x4) with those of direct sums: they are about 0.8 and 2.2
 * times as large. */
static void error_beside_direct(void) {
    for (int64_t channels = 16; channels <= 256; channels *= 4) {
        const layer l = square(12, channels, 32);
        const double direct = error_of(l, 0);
        for (int64_t tile = 2; tile <= 4; tile += 2) {
            const double error = error_of(l, tile);
            CHECK(error <= tile * direct, "tile %lld, %lld channels: %.3g, direct sums %.3g",
                  (long long)tile, (long long)channels, error, direct);
        }
    }
}

static void threads_same_bits(void) {
    layer layers[] = {square(30, 64, 64), square(9, 300, 200), square(17, 33, 45)};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (layers[i].tile = 2; layers[i].tile <= 4; layers[i].tile += 2) {
            layers[i].batch = 2;
            layers[i].epilogue = true;
            tensors t;
            make(&t, &layers[i]);
            check_threads("CONV", NULL, t.inputs, n_inputs(&t), &t.output, &t.attrs);
            release(&t);
        }
}

static void unsupported(void) {
    layer l = square(9, 4, 20);
    l.tile = 4;
    tensors t;
    make(&t, &l);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        const tensors was = t;                                                                     \
        t.field = value;                                                                           \
        CHECK(run(&t) == TAPER_UNSUPPORTED, #field " = " #value);                                  \
        t = was;                                                                                   \
    } while (0)
    REFUSED(inputs[1].format, TAPER_PLAIN);
    REFUSED(inputs[1].format, TAPER_WINOGRAD_2);
    REFUSED(inputs[1].format, TAPER_GROUPED_PANELS);
    REFUSED(attrs.groups, 2);
    REFUSED(attrs.kernel.data, ones);
    REFUSED(attrs.kernel.count, 1);
    REFUSED(attrs.stride.data, three);
    REFUSED(attrs.dilation.data, three);
    REFUSED(attrs.padding.count, 2);
    REFUSED(l.padding[1], -1);
    REFUSED(l.padding[1], 2);
    REFUSED(l.padding[0], (int64_t)1 << 40);
    REFUSED(inputs[0].dtype, TAPER_FLOAT64);
    REFUSED(inputs[0].shape[3], 3);
    REFUSED(inputs[1].shape[0], 35);
    REFUSED(inputs[0].strides[1], 40);
    REFUSED(inputs[0].rank, 3);
    REFUSED(output.shape[1], 10);
    CHECK(run(&t) == TAPER_OK, "all undone");
    release(&t);
}

/* ---- benchmarks: each layer with both tiles ---- */

static void bench_layer(int64_t size, int64_t channels, int64_t outputs) {
    layer l = square(size, channels, outputs);
    const double flops = 18.0 * (double)(size * size * channels * outputs);
    for (l.tile = 2; l.tile <= 4; l.tile += 2) {
        char name[64];
        snprintf(name, sizeof name, "winograd_%lldx%lld_%lld_%lld_%lld", (long long)l.tile,
                 (long long)l.tile, (long long)size, (long long)channels, (long long)outputs);
        tensors t;
        make(&t, &l);
        check_bench_op(name, "CONV", NULL, t.inputs, n_inputs(&t), &t.output, &t.attrs, flops, 0);
        release(&t);
    }
}

static void bench_layers(void) {
    static const int64_t layers[][3] = {{56, 64, 64},   {28, 128, 128}, {14, 256, 256},
                                        {7, 512, 512},  {224, 64, 64},  {112, 128, 128},
                                        {56, 256, 256}, {28, 512, 512}, {112, 16, 16},
                                        {56, 32, 32},   {64, 320, 320}, {16, 1280, 1280}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        bench_layer(layers[i][0], layers[i][1], layers[i][2]);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_size", every_size},
        {"every_channel_tail", every_channel_tail},
        {"paddings", paddings},
        {"many_blocks", many_blocks},
        {"misaligned", misaligned},
        {"empty", empty},
        {"error_beside_direct", error_beside_direct},
        {"threads_same_bits", threads_same_bits},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {{"layers", bench_layers}};
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
