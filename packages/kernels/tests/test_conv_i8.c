/*
 * Compares CONV of bytes with the exact sums, on each kernel that this CPU can run. Its benchmarks
 * compute the same convolution in float32 beside each.
 */
#include "check.h"
#include "conv/kernels.inc"
#include "packed.h"

CHECK_ATTRS(conv)

static const char *const kernels[] = {"i8_conv_depthwise_vnni", "i8_conv_depthwise", "i8_conv_amx",
                                      "i8_conv_vnni", "i8_conv"};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* A square kernel, stride, padding and dilation. */
typedef struct problem {
    int64_t batch, height, width, channels, outputs, groups;
    int64_t kernel, stride, padding, dilation;
} problem;

typedef struct node {
    taper_tensor inputs[2], output;
    int64_t ints[4][4], logical[4];
    struct conv_attrs attrs;
    void *plain; /* the weight before packing */
} node;

static int64_t outputs(const problem *p, int64_t size) {
    return (size + 2 * p->padding - p->dilation * (p->kernel - 1) - 1) / p->stride + 1;
}

static void fill(taper_tensor *t, bool is_float) {
    const int64_t n = check_numel(t);
    t->data = check_alloc((size_t)n * taper_dtype_size(t->dtype), 0);
    if (is_float)
        check_fill_uniform(t->data, n, -1, 1);
    else
        check_fill_bytes(t->data, n * (int64_t)taper_dtype_size(t->dtype));
}

/* n must not move: the attrs have pointers into it. */
static void make(node *n, const problem *p, taper_dtype dtype, bool packed) {
    const bool is_float = dtype == TAPER_FLOAT32;
    const int64_t in = p->channels / p->groups, out = p->outputs / p->groups;
    const int64_t x[] = {p->batch, p->height, p->width, p->channels};
    const int64_t w[] = {p->kernel, p->kernel, in, p->outputs};
    const int64_t y[] = {p->batch, outputs(p, p->height), outputs(p, p->width), p->outputs};
    const int64_t values[4] = {p->kernel, p->stride, p->padding, p->dilation};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            n->ints[i][j] = values[i];
    memcpy(n->logical, w, sizeof w);
    n->attrs = (struct conv_attrs){.kernel = {n->ints[0], 2},
                                   .stride = {n->ints[1], 2},
                                   .padding = {n->ints[2], 4},
                                   .dilation = {n->ints[3], 2},
                                   .groups = p->groups,
                                   .accumulate = is_float ? "" : "int32"};
    n->inputs[0] = check_tensor(NULL, dtype, 4, x);
    n->inputs[1] = check_tensor(NULL, is_float ? TAPER_FLOAT32 : TAPER_INT8, 4, w);
    n->output = check_tensor(NULL, is_float ? TAPER_FLOAT32 : TAPER_INT32, 4, y);
    fill(&n->inputs[0], is_float);
    fill(&n->inputs[1], is_float);
    fill(&n->output, false);
    n->plain = n->inputs[1].data;
    if (packed && is_float) {
        n->inputs[1] =
            check_tensor(NULL, TAPER_FLOAT32, 4,
                         (int64_t[]){p->groups, (out + 15) / 16, p->kernel * p->kernel * in, 16});
        fill(&n->inputs[1], true);
        n->inputs[1].format = TAPER_GROUPED_PANELS;
    } else if (packed) {
        n->inputs[1] = pack_dots(n->plain, p->kernel * p->kernel * in, p->groups, out);
    }
    if (packed)
        n->inputs[1].logical = n->logical;
}

static void release(const node *n) {
    if (n->inputs[1].data != n->plain)
        check_free(n->plain);
    check_free(n->inputs[0].data);
    check_free(n->inputs[1].data);
    check_free(n->output.data);
}

static int32_t sum_of(const problem *p, const node *n, const int64_t at[4]) {
    const int64_t in = p->channels / p->groups, group = at[3] / (p->outputs / p->groups);
    uint32_t sum = 0;
    for (int64_t i = 0; i < p->kernel; i++)
        for (int64_t j = 0; j < p->kernel; j++)
            for (int64_t c = 0; c < in; c++) {
                const int64_t y = at[1] * p->stride - p->padding + i * p->dilation;
                const int64_t x = at[2] * p->stride - p->padding + j * p->dilation;
                const bool inside = y >= 0 && x >= 0 && y < p->height && x < p->width;
                const int64_t e =
                    ((at[0] * p->height + y) * p->width + x) * p->channels + group * in + c;
                const int32_t a = !inside ? (int32_t)n->attrs.border
                                  : n->inputs[0].dtype == TAPER_INT8
                                      ? ((const int8_t *)n->inputs[0].data)[e]
                                      : ((const uint8_t *)n->inputs[0].data)[e];
                const int64_t w = ((i * p->kernel + j) * in + c) * p->outputs + at[3];
                sum += (uint32_t)(a * ((const int8_t *)n->plain)[w]);
            }
    return (int32_t)sum;
}

static void expect(const problem *p) {
    for (int kind = 0; kind < 12; kind++) {
        node n;
        make(&n, p, kind % 2 ? TAPER_UINT8 : TAPER_INT8, kind / 2 % 2);
        static const int64_t borders[3][2] = {{-128, 255}, {0, 3}, {-7, 130}};
        n.attrs.border = borders[kind / 4][kind % 2];
        uint8_t *const x = n.inputs[0].data;
        const int64_t count = check_numel(&n.inputs[0]);
        for (int64_t i = 0; i < count && kind >= 4 && kind < 8; i++)
            /* 0 to 127 but for the last half image */
            x[i] = (uint8_t)(i < count - count / p->batch / 2 ? x[i] & 127 : x[i]);
        for (int64_t i = 0; i < count && kind >= 8; i++) /* most are from 100 to 163 */
            x[i] = (uint8_t)(i % 37 == 0 ? x[i] : (100 + (x[i] & 63)) ^ (kind % 2 ? 0 : 128));
        int served = 0;
        for (int i = 0; i < KERNELS; i++)
            for (int workers = 1; workers <= 2; workers++) {
                int32_t *got = n.output.data;
                memset(got, 0xab, (size_t)check_numel(&n.output) * sizeof *got);
                if (check_run("CONV", kernels[i], n.inputs, 2, &n.output, &n.attrs, workers) !=
                    TAPER_OK)
                    continue;
                served++;
                int64_t wrong = 0;
                const int64_t *dims = n.output.shape;
                for (int64_t e = 0; e < check_numel(&n.output); e++) {
                    const int64_t at[] = {e / (dims[3] * dims[2] * dims[1]),
                                          e / (dims[3] * dims[2]) % dims[1], e / dims[3] % dims[2],
                                          e % dims[3]};
                    wrong += got[e] != sum_of(p, &n, at);
                }
                CHECK(wrong == 0, "%s, kind %d, %lldx%lld, %lld -> %lld, kernel %lld: %lld wrong",
                      kernels[i], kind, (long long)p->height, (long long)p->width,
                      (long long)p->channels, (long long)p->outputs, (long long)p->kernel,
                      (long long)wrong);
            }
        CHECK(served > 0, "no kernel");
        release(&n);
    }
}

static void convolutions(void) {
    static const problem problems[] = {
        {1, 6, 7, 3, 20, 1, 3, 1, 1, 1},    {2, 11, 9, 3, 16, 1, 7, 2, 3, 1},
        {1, 8, 8, 20, 33, 1, 1, 2, 0, 1},   {3, 14, 14, 64, 64, 1, 1, 1, 0, 1},
        {1, 14, 14, 32, 70, 1, 3, 1, 1, 1}, {1, 9, 10, 6, 34, 2, 3, 1, 1, 1},
        {1, 12, 13, 8, 4, 4, 3, 1, 2, 2},   {1, 5, 4, 4, 6, 1, 3, 1, 5, 1},
        {2, 9, 8, 35, 35, 35, 3, 1, 1, 1},  {1, 9, 8, 16, 16, 16, 5, 2, 2, 1},
        {1, 9, 8, 5, 15, 5, 3, 1, 0, 2},    {1, 7, 7, 600, 40, 1, 3, 1, 1, 1},
        {1, 9, 9, 19, 19, 19, 3, 2, 1, 1},  {1, 7, 9, 32, 32, 32, 5, 1, 2, 1},
        {1, 9, 7, 17, 17, 17, 7, 1, 3, 1},  {3, 7, 7, 64, 16, 1, 3, 1, 1, 1},
        {3, 9, 13, 64, 20, 1, 3, 2, 1, 1},  {2, 19, 9, 68, 16, 1, 1, 2, 1, 1},
        {1, 4, 150, 64, 16, 1, 3, 1, 1, 1}, {2, 5, 64, 64, 16, 1, 3, 1, 1, 1},
        {2, 13, 13, 64, 16, 1, 3, 1, 0, 1}, {1, 3, 5, 64, 16, 1, 3, 3, 3, 1},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        expect(&problems[i]);
}

static void bench(void) {
    static const problem problems[] = {
        {1, 56, 56, 64, 64, 1, 1, 1, 0, 1},    {1, 56, 56, 64, 256, 1, 1, 1, 0, 1},
        {1, 14, 14, 1024, 256, 1, 1, 1, 0, 1}, {1, 56, 56, 64, 64, 1, 3, 1, 1, 1},
        {1, 28, 28, 128, 128, 1, 3, 1, 1, 1},  {1, 14, 14, 256, 256, 1, 3, 1, 1, 1},
        {1, 7, 7, 512, 512, 1, 3, 1, 1, 1},    {1, 224, 224, 3, 64, 1, 7, 2, 3, 1},
        {1, 112, 112, 32, 32, 32, 3, 1, 1, 1}, {1, 28, 28, 192, 192, 192, 3, 1, 1, 1},
        {1, 14, 14, 576, 576, 576, 3, 1, 1, 1}};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int is_float = 0; is_float < 2; is_float++) {
            const problem *p = &problems[i];
            const bool depthwise = p->groups == p->channels;
            node n;
            char name[96];
            make(&n, p, is_float ? TAPER_FLOAT32 : TAPER_UINT8, !depthwise);
            snprintf(name, sizeof name, "%s_conv_%lldx%lld_%lld_%lld_%lldx%lld%s",
                     is_float ? "f32" : "u8", (long long)p->height, (long long)p->width,
                     (long long)p->channels, (long long)p->outputs, (long long)p->kernel,
                     (long long)p->kernel, depthwise ? "_depthwise" : "");
            const double flops = 2.0 * (double)check_numel(&n.output) *
                                 (double)(p->kernel * p->kernel * p->channels / p->groups);
            check_bench_op(name, "CONV", NULL, n.inputs, 2, &n.output, &n.attrs, flops, 0);
            release(&n);
        }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {{"convolutions", convolutions}};
    static const check_case benches[] = {{"convolutions", bench}};
    return check_main(argc, argv, cases, 1, benches, 1);
}
