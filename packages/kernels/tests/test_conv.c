/* Compares CONV and CONV_TRANSPOSE of float32 with sums in double. */
#include "conv_case.h"

#include <math.h>

/* ---- variants ---- */

static void compare_layer(void *t) { compare(t); }

static int variants_of(layer l) {
    tensors t;
    make(&t, &l);
    const int served =
        check_variants(op_of(&t), t.inputs, n_inputs(&t), &t.output, &t.attrs, compare_layer, &t);
    release(&t);
    return served;
}

/* Convolutions of all kinds with padding: the variants copy it or leave taps out, and with groups
 * the kernels for these compute too (check_variants tries every row). */
static void every_variant(void) {
    for (int64_t groups = 1; groups <= 16; groups *= 2)
        for (int64_t dilation = 1; dilation <= 3; dilation++)
            for (int64_t stride = 1; stride <= 2; stride++)
                for (int packed = 0; packed < 2; packed++) {
                    layer l = square(9, 16, 16, 3, stride, 2);
                    l.groups = groups;
                    l.dilation[0] = l.dilation[1] = dilation;
                    l.packed = packed;
                    l.epilogue = packed ? &bias_relu : NULL;
                    CHECK(variants_of(l) == 2, "%d groups, dilation %d", (int)groups,
                          (int)dilation);
                }
    for (int repeat = 0; repeat < 60; repeat++) {
        layer l = square(1 + repeat % 11, 3, 20, 1 + repeat % 5, 1, 1 + repeat % 3);
        l.dims = 1 + repeat % 3;
        l.size[2] = 4;
        l.kernel[2] = 3;
        l.padding[4] = repeat % 2;
        l.padding[5] = 2;
        if (l.size[0] + 2 * l.padding[0] >= l.kernel[0])
            CHECK(variants_of(l) == 2, "layer %d", repeat);
        l.transposed = true;
        l.padding[0] = l.padding[1] = l.padding[2] = l.padding[3] = 0;
        l.padding[4] = l.padding[5] = 0;
        CHECK(variants_of(l) == 1, "transposed %d", repeat);
    }
}

/* ---- general ---- */

/* Every width that a tile can have and some more, and as many rows. */
static void every_width(void) {
    for (int64_t size = 1; size <= 31; size += size < 16 ? 1 : 5) {
        check_ways(square(size, 3, 20, 3, 1, 1));
        layer l = square(size, 5, 34, 3, 1, 1);
        l.size[0] = 2;
        check_ways(l);
    }
}

static void every_channel_tail(void) {
    for (int64_t n = 1; n <= 35; n++) {
        check_ways(square(4, n, 7, 3, 1, 1));
        check_ways(square(4, 3, n, 2, 1, 0));
    }
}

static void strides_and_kernels(void) {
    for (int64_t kernel = 1; kernel <= 5; kernel++)
        for (int64_t stride = 1; stride <= 3; stride++)
            for (int64_t padding = 0; padding <= 2; padding++)
                check_ways(square(11, 4, 18, kernel, stride, padding));
    check_ways(square(23, 3, 32, 7, 2, 3));
    check_ways(square(32, 3, 40, 16, 16, 0));
}

/* Random nodes of at most three dims. */
static void drawn(bool transposed) {
    for (int repeat = 0; repeat < 400; repeat++) {
        layer l = {
            .dims = (int)check_int(1, 3), .batch = check_int(1, 2), .transposed = transposed};
        l.groups = check_int(0, 2) ? 1 : check_int(2, 5);
        l.channels = l.groups * check_int(1, 6);
        l.outputs = l.groups * check_int(1, 20);
        for (int d = 0; d < l.dims; d++) {
            l.kernel[d] = check_int(1, 4);
            l.stride[d] = check_int(1, 3);
            l.dilation[d] = check_int(1, 3);
            const int64_t reach = (l.kernel[d] - 1) * l.dilation[d] + 1;
            for (int side = 0; side < 2; side++)
                l.padding[2 * d + side] =
                    transposed ? check_int(-2, reach / 2) : check_int(0, 1) * check_int(0, 4);
            const int64_t least = transposed ? 1 + (reach > 1) : reach - l.padding[2 * d];
            l.size[d] = least < 1 ? check_int(1, 7) : least + check_int(0, 7);
        }
        if (transposed)
            for (int d = 0; d < l.dims; d++) /* something is left */
                while ((l.size[d] - 1) * l.stride[d] + (l.kernel[d] - 1) * l.dilation[d] + 1 -
                           l.padding[2 * d] - l.padding[2 * d + 1] <
                       1)
                    l.size[d]++;
        check_ways(l);
    }
}
static void drawn_conv(void) { drawn(false); }
static void drawn_transpose(void) { drawn(true); }

/* Blocks of several rows, of a part of a row, and of a part of the channels; sums in pieces. */
static void many_blocks(void) {
    check_ways(square(40, 64, 24, 3, 1, 1));
    layer l = square(3, 700, 150, 3, 1, 1);
    check_ways(l);
    l = square(9, 1100, 40, 2, 1, 0);
    check_ways(l);
    check_ways((layer){.dims = 1,
                       .channels = 40,
                       .outputs = 9,
                       .size = {6000},
                       .kernel = {5},
                       .stride = {2},
                       .padding = {3, 1}});
    l = square(6, 300, 20, 3, 1, 30);
    l.dilation[0] = l.dilation[1] = 29;
    check_ways(l);
    l = square(20, 90, 70, 4, 2, 1);
    l.transposed = true;
    check_ways(l);
}

/* One column of pixels, one row of them, and slices of one; images that share a block, and blocks
 * that end within a batch. */
static void idle_dims(void) {
    for (int64_t batch = 1; batch <= 5; batch += 2)
        for (int64_t height = 1; height <= 21; height += 4)
            for (int64_t stride = 1; stride <= 3; stride += 2) {
                layer l = {.dims = 2,
                           .batch = batch,
                           .channels = 6,
                           .outputs = 20,
                           .size = {height, 1},
                           .kernel = {5, 1},
                           .stride = {stride, 2},
                           .padding = {2, 3}};
                check_ways(l);
                l.transposed = true;
                check_ways(l);
                l.transposed = false;
                l.groups = 2;
                check_ways(l);
                l.dilation[0] = 2;
                l.padding[0] = l.padding[1] = 4;
                check_ways(l);
                l.groups = l.channels = l.outputs = 12;
                check_depthwise(l);
                l = (layer){.dims = 3,
                            .batch = batch,
                            .channels = 3,
                            .outputs = 17,
                            .size = {height, 1, 6},
                            .kernel = {3, 1, 2},
                            .stride = {stride, 1, 1},
                            .padding = {1, 1}};
                check_ways(l);
            }
    check_ways((layer){.dims = 2,
                       .batch = 7,
                       .channels = 300,
                       .outputs = 50,
                       .size = {40, 1},
                       .kernel = {64, 1},
                       .padding = {31, 32}});
}

static void grouped(void) {
    static const int64_t cases[][3] = {{2, 8, 8},   {4, 8, 40},   {32, 128, 128}, {8, 8, 16},
                                       {3, 3, 120}, {16, 32, 16}, {40, 40, 80}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        layer l = square(7, cases[i][1], cases[i][2], 3, 1, 1);
        l.groups = cases[i][0];
        check_ways(l);
        l.padding[0] = l.padding[1] = l.padding[2] = l.padding[3] = 0;
        check_ways(l);
    }
}

/* Windows, and dims that hold one at least: up to `more` elements beyond it, `across` in rows. */
static void draw_windows(layer *l, int64_t more, int64_t across) {
    for (int d = 0; d < l->dims; d++) {
        l->kernel[d] = check_int(1, 5);
        l->stride[d] = check_int(1, 3);
        l->dilation[d] = check_int(1, 2);
        const int64_t reach = (l->kernel[d] - 1) * l->dilation[d] + 1;
        l->padding[2 * d] = check_int(0, 3);
        l->padding[2 * d + 1] = check_int(0, 3);
        const int64_t least = reach - l->padding[2 * d] - l->padding[2 * d + 1];
        l->size[d] = (least < 1 ? 1 : least) + check_int(0, d == l->dims - 1 ? across : more);
    }
}

/* Groups whose channels share a vector: every tail of lanes and pixels, and each kind of taps. */
static void small_groups(void) {
    for (int64_t width = 2; width <= 8; width *= 2)
        for (int64_t groups = 2; groups <= 10; groups += groups < 5 ? 1 : 5)
            for (int64_t size = 1; size <= 33; size += size < 18 ? 3 : 7)
                for (int64_t stride = 1; stride <= 2; stride++) {
                    layer l = square(size, groups * width, groups * width, 3, stride, 1);
                    l.groups = groups;
                    l.size[0] = 3;
                    check_ways(l);
                }
    for (int repeat = 0; repeat < 200; repeat++) {
        layer l = {.dims = (int)check_int(1, 3), .batch = check_int(1, 2)};
        l.groups = check_int(2, 9);
        l.channels = l.outputs = l.groups * ((int64_t)2 << check_int(0, 2));
        draw_windows(&l, 5, 40);
        check_ways(l);
    }
}

static void empty(void) {
    layer l = square(5, 3, 4, 3, 1, 1);
    l.batch = -1;
    check_ways(l);
    check_ways(square(5, 0, 4, 3, 1, 1)); /* a sum of no terms, and the epilogue still runs */
    check_ways(square(5, 3, 0, 3, 1, 1));
    check_ways(square(0, 3, 4, 3, 1, 2)); /* only padding */
    l = square(4, 0, 4, 3, 2, 1);
    l.transposed = true;
    check_ways(l);
}

/* ---- depthwise ---- */

static layer depthwise(int64_t size, int64_t channels, int64_t kernel, int64_t stride) {
    layer l = square(size, channels, channels, kernel, stride, kernel / 2);
    l.groups = channels;
    return l;
}

static void depthwise_widths(void) {
    for (int64_t kernel = 1; kernel <= 9; kernel += kernel == 7 ? 2 : 1)
        for (int64_t stride = 1; stride <= 3; stride++)
            for (int64_t size = 1; size <= 33; size += size < 18 ? 1 : 5)
                check_depthwise(depthwise(size, 33, kernel, stride));
}

static void depthwise_channels(void) {
    for (int64_t channels = 2; channels <= 70; channels++)
        for (int64_t kernel = 3; kernel <= 7; kernel += 2)
            check_depthwise(depthwise(8, channels, kernel, 1 + channels % 2));
}

static void depthwise_dims(void) {
    for (int repeat = 0; repeat < 200; repeat++) {
        layer l = {.dims = (int)check_int(1, 3), .batch = check_int(1, 2)};
        l.groups = l.channels = l.outputs = check_int(2, 40);
        draw_windows(&l, 9, 9);
        check_depthwise(l);
    }
    check_depthwise((layer){.dims = 1,
                            .groups = 200,
                            .channels = 200,
                            .outputs = 200,
                            .size = {3000},
                            .kernel = {4},
                            .padding = {3, 0}});
    /* Taps far apart, windows that skip most of x. */
    layer l = depthwise(40, 20, 3, 1);
    l.dilation[0] = l.dilation[1] = 12;
    l.padding[0] = l.padding[1] = l.padding[2] = l.padding[3] = 12;
    check_depthwise(l);
    check_depthwise((layer){.dims = 1,
                            .groups = 40,
                            .channels = 40,
                            .outputs = 40,
                            .size = {700},
                            .kernel = {3},
                            .dilation = {150},
                            .padding = {300, 0}});
    check_depthwise(depthwise(40, 33, 3, 9));
    check_depthwise(depthwise(150, 6, 15, 1));
}

/* ---- values ---- */

/* NaN and infinity reach only outputs that read them; above all they do not come from padding or
 * from a panel's zeros. */
static void special_values(void) {
    static const float values[] = {NAN, INFINITY, -INFINITY, -0.0f, 1e-40f, 3e38f};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (int way = 0; way < 5; way++) {
            layer l = way == 3   ? depthwise(9, 21, 3, 1)
                      : way == 4 ? square(9, 40, 40, 3, 1, 1)
                                 : square(9, 3, 21, 3, 1, 1);
            l.groups = way == 4 ? 10 : l.groups;
            l.packed = way == 1;
            l.transposed = way == 2;
            tensors t;
            make(&t, &l);
            ((float *)t.inputs[0].data)[check_int(0, check_numel(&t.inputs[0]) - 1)] = values[v];
            CHECK(run(&t, 1) == TAPER_OK, "not run");
            compare(&t);
            release(&t);
        }
}

static void misaligned(void) {
    layer l = square(9, 20, 40, 3, 1, 1);
    l.misalign = 4;
    check_ways(l);
    l.transposed = true;
    check_ways(l);
    l = depthwise(9, 40, 3, 1);
    l.misalign = 4;
    check_depthwise(l);
}

/* A pixel's bits do not depend on the size of the image around it. */
static void pixels_independent(void) {
    for (int way = 0; way < 3; way++) {
        layer l = way == 1 ? depthwise(29, 40, 3, 1) : square(29, way ? 40 : 150, 40, 3, 1, 1);
        l.groups = way == 2 ? 10 : l.groups;
        tensors t;
        make(&t, &l);
        CHECK(run(&t, 1) == TAPER_OK, "not run");
        const float *all = t.output.data;
        for (int64_t rows = 2; rows < 29; rows += 4) {
            tensors part = t;
            part.inputs[0].shape[1] = rows;
            part.output.shape[1] = rows;
            part.output.data = check_alloc((size_t)check_numel(&part.output) * sizeof(float), 0);
            CHECK(run(&part, 1) == TAPER_OK, "not run");
            CHECK(memcmp(part.output.data, all, (size_t)((rows - 1) * 29 * 40) * sizeof *all) == 0,
                  "%lld rows give other bits than 29", (long long)rows);
            check_free(part.output.data);
        }
        release(&t);
    }
}

static void threads_same_bits(void) {
    layer layers[] = {
        square(30, 64, 64, 3, 1, 1), square(9, 300, 200, 3, 1, 1),  square(60, 3, 40, 7, 2, 3),
        depthwise(60, 70, 3, 1),     depthwise(40, 300, 5, 2),      square(20, 32, 48, 3, 1, 1),
        square(20, 64, 48, 4, 2, 1), square(40, 104, 104, 3, 1, 1), square(40, 300, 150, 1, 1, 0)};
    layers[5].groups = 8;
    layers[6].transposed = true;
    layers[7].groups = 13;
    layers[8].size[1] = 1;
    layers[8].kernel[0] = 64;
    layers[8].padding[0] = layers[8].padding[1] = 32;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        layers[i].batch = 2;
        layers[i].epilogue = &chain;
        tensors t;
        make(&t, &layers[i]);
        check_threads(op_of(&t), NULL, t.inputs, n_inputs(&t), &t.output, &t.attrs);
        release(&t);
    }
}

static void unsupported(void) {
    layer l = square(9, 4, 20, 3, 1, 1);
    l.packed = true;
    tensors t;
    make(&t, &l);
#define REFUSED(change, undo) CHECK_REFUSED(run(&t, 1), change, undo)
    REFUSED(t.inputs[0].dtype = TAPER_FLOAT64, t.inputs[0].dtype = TAPER_FLOAT32);
    REFUSED(t.inputs[1].format = TAPER_PLAIN, t.inputs[1].format = TAPER_GROUPED_PANELS);
    REFUSED(t.inputs[1].format = TAPER_PANELS_1, t.inputs[1].format = TAPER_GROUPED_PANELS);
    REFUSED(t.inputs[1].format = TAPER_WINOGRAD_2, t.inputs[1].format = TAPER_GROUPED_PANELS);
    REFUSED(t.inputs[1].shape[0] = 2, t.inputs[1].shape[0] = 1);
    REFUSED(t.attrs.groups = 2, t.attrs.groups = 1);
    REFUSED(t.attrs.groups = 0, t.attrs.groups = 1);
    REFUSED(t.attrs.kernel.count = 1, t.attrs.kernel.count = 2);
    REFUSED(t.attrs.stride.count = 1, t.attrs.stride.count = 2);
    REFUSED(t.attrs.padding.count = 2, t.attrs.padding.count = 4);
    REFUSED(t.l.kernel[0] = 2, t.l.kernel[0] = 3);
    REFUSED(t.l.stride[1] = 0, t.l.stride[1] = 1);
    REFUSED(t.l.dilation[0] = 2, t.l.dilation[0] = 1);
    REFUSED(t.l.padding[3] = -1, t.l.padding[3] = 1);
    REFUSED(t.l.padding[0] = (int64_t)1 << 40, t.l.padding[0] = 1);
    REFUSED(t.inputs[0].strides[1] += 4, t.inputs[0].strides[1] -= 4);
    REFUSED(t.inputs[0].shape[3] = 3, t.inputs[0].shape[3] = 4);
    REFUSED(t.output.shape[1] = 10, t.output.shape[1] = 9);
    REFUSED(t.inputs[1].shape[1]++, t.inputs[1].shape[1]--);
    CHECK(run(&t, 1) == TAPER_OK, "all undone");
    release(&t);
}

/* ---- benchmarks ---- */

static void bench_layer(const char *name, const layer *l) {
    tensors t;
    make(&t, l);
    const double outputs = (double)check_numel(&t.output);
    double bytes = 4.0 * outputs;
    for (int i = 0; i < n_inputs(&t); i++)
        bytes += 4.0 * (double)check_numel(&t.inputs[i]);
    check_bench_op(name, op_of(&t), NULL, t.inputs, n_inputs(&t), &t.output, &t.attrs,
                   2 * outputs * (double)rows_of(&t.l), bytes);
    release(&t);
}

/* Each line of a file: height width channels outputs kernel stride padding groups count. */
static void bench_file(const char *model) {
    char path[512], line[256];
    snprintf(path, sizeof path, "%s/%s.txt", TAPER_SHAPES, model);
    FILE *file = fopen(path, "r");
    CHECK(file, "cannot read %s", path);
    while (file && fgets(line, sizeof line, file)) {
        long long n[8];
        if (sscanf(line, "%lld %lld %lld %lld %lld %lld %lld %lld", &n[0], &n[1], &n[2], &n[3],
                   &n[4], &n[5], &n[6], &n[7]) != 8)
            continue; /* a comment */
        layer l = square(n[0], n[2], n[3], n[4], n[5], n[6]);
        l.size[1] = n[1];
        l.groups = n[7];
        l.packed = l.groups != l.channels;
        l.epilogue = &bias_relu;
        char name[128];
        snprintf(name, sizeof name, "%s_%lldx%lld_%lld_%lld_k%lld_s%lld%s", model, n[0], n[1], n[2],
                 n[3], n[4], n[5], n[7] > 1 ? "_dw" : "");
        bench_layer(name, &l);
    }
    if (file)
        fclose(file);
}
static void bench_resnet50(void) { bench_file("resnet50"); }
static void bench_mobilenet(void) { bench_file("mobilenet_v3_large"); }
static void bench_efficientnet(void) { bench_file("efficientnet_b0"); }

/* 3x3 convolutions in groups: size, channels, groups, stride. */
static void bench_grouped(void) {
    static const int64_t layers[][4] = {{56, 128, 32, 1}, {28, 256, 32, 1},  {14, 512, 32, 1},
                                        {7, 1024, 32, 1}, {56, 48, 6, 1},    {28, 104, 13, 1},
                                        {28, 120, 5, 1},  {112, 128, 32, 2}, {56, 128, 2, 1}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const int64_t *n = layers[i];
        layer l = square(n[0], n[1], n[1], 3, n[3], 1);
        l.groups = n[2];
        l.packed = n[1] / n[2] > 8;
        l.epilogue = &bias_relu;
        char name[64];
        snprintf(name, sizeof name, "grouped_%lld_%lld_g%lld_s%lld", (long long)n[0],
                 (long long)n[1], (long long)n[2], (long long)n[3]);
        bench_layer(name, &l);
    }
}

/* Of an image: outputs, kernel, stride, padding. */
static void bench_first(void) {
    static const int64_t layers[][4] = {
        {64, 7, 2, 3}, {32, 3, 2, 1}, {64, 3, 1, 1}, {96, 4, 4, 0}, {384, 16, 16, 0}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const int64_t *n = layers[i];
        layer l = square(224, 3, n[0], n[1], n[2], n[3]);
        l.packed = true;
        l.epilogue = &bias_relu;
        char name[64];
        snprintf(name, sizeof name, "first_%lld_k%lld_s%lld", (long long)n[0], (long long)n[1],
                 (long long)n[2]);
        bench_layer(name, &l);
    }
}

static void bench_others(void) {
    layer l = square(33, 512, 256, 3, 1, 12);
    l.dilation[0] = l.dilation[1] = 12;
    l.packed = true;
    bench_layer("dilated_33_512_256", &l);
    l = square(56, 64, 64, 2, 2, 0);
    l.transposed = l.packed = true;
    bench_layer("transposed_56_64_k2_s2", &l);
    l = square(28, 128, 64, 4, 2, 1);
    l.transposed = l.packed = true;
    bench_layer("transposed_28_128_64_k4_s2", &l);
    l = (layer){.dims = 1,
                .channels = 512,
                .outputs = 512,
                .size = {3199},
                .kernel = {3},
                .stride = {2},
                .packed = true};
    bench_layer("audio_3199_512_k3_s2", &l);
    l = depthwise(56, 96, 7, 1);
    bench_layer("convnext_56_96_k7", &l);
    l = depthwise(14, 384, 7, 1);
    bench_layer("convnext_14_384_k7", &l);
}

/* Images of one column, as in CREPE: images, height, channels, outputs. */
static void bench_tall(void) {
    static const int64_t layers[][4] = {{1, 128, 1024, 128}, {8, 128, 1024, 128}, {8, 64, 128, 128},
                                        {8, 32, 128, 128},   {8, 16, 128, 256},   {8, 8, 256, 512}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const int64_t *n = layers[i];
        const layer l = {.dims = 2,
                         .batch = n[0],
                         .channels = n[2],
                         .outputs = n[3],
                         .size = {n[1], 1},
                         .kernel = {64, 1},
                         .padding = {31, 32},
                         .packed = true};
        char name[64];
        snprintf(name, sizeof name, "tall_%lldx%lld_%lld_%lld", (long long)n[0], (long long)n[1],
                 (long long)n[2], (long long)n[3]);
        bench_layer(name, &l);
    }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_variant", every_variant},
        {"every_width", every_width},
        {"every_channel_tail", every_channel_tail},
        {"strides_and_kernels", strides_and_kernels},
        {"drawn_conv", drawn_conv},
        {"drawn_transpose", drawn_transpose},
        {"many_blocks", many_blocks},
        {"idle_dims", idle_dims},
        {"grouped", grouped},
        {"small_groups", small_groups},
        {"empty", empty},
        {"depthwise_widths", depthwise_widths},
        {"depthwise_channels", depthwise_channels},
        {"depthwise_dims", depthwise_dims},
        {"special_values", special_values},
        {"misaligned", misaligned},
        {"pixels_independent", pixels_independent},
        {"threads_same_bits", threads_same_bits},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {
        {"resnet50", bench_resnet50},
        {"mobilenet_v3_large", bench_mobilenet},
        {"efficientnet_b0", bench_efficientnet},
        {"grouped", bench_grouped},
        {"first", bench_first},
        {"others", bench_others},
        {"tall", bench_tall},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
