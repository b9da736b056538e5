#include "conv_case.h"
#include "packed.h"

#include <math.h>

static double apply_none(double x, const double *extras) {
    (void)extras;
    return x;
}
static double apply_bias_relu(double x, const double *extras) {
    const double y = x + extras[0];
    return y > 0 || isnan(y) ? y : 0;
}
static double apply_chain(double x, const double *extras) {
    return (x + extras[0]) * 0.5 + extras[1];
}
static double apply_head(double x, const double *extras) {
    const double y = x + extras[0] + extras[1];
    return isnan(y) ? y : fmin(0.5, fmax(0, y));
}
static const taper_scalar half = {0.5, 0};
const epilogue none = {{NULL}, 0, {0}, 0, 0, apply_none};
const epilogue bias_relu = {{"ADD", "RELU"}, 2, {0, 1, 2}, 3, 1, apply_bias_relu};
const epilogue chain = {{"ADD", "MUL", "ADD"}, 3, {0, 1, 3, -1, 4, 2}, 6, 2, apply_chain};
const epilogue head = {
    {"ADD", "ADD", "RELU", "MINIMUM"}, 4, {0, 1, 3, 2, 4, 5, -1}, 7, 2, apply_head};

static float *keep(tensors *t, int64_t n) {
    float *p = check_alloc((size_t)n * sizeof(float), t->l.misalign);
    t->memory[t->n_memory++] = p;
    return p;
}

static taper_tensor make_tensor(tensors *t, int rank, const int64_t *dims, float low, float high) {
    taper_tensor x = check_tensor(NULL, TAPER_FLOAT32, rank, dims);
    x.data = keep(t, check_numel(&x));
    check_fill_uniform(x.data, check_numel(&x), low, high);
    return x;
}

static int64_t or_one(int64_t n) { return n == 0 ? 1 : n; }

int64_t rows_of(const layer *l) {
    int64_t k = l->channels / l->groups;
    for (int d = 0; d < l->dims; d++)
        k *= l->kernel[d];
    return k;
}

/* [K][O] -> [groups][ceil(O/groups/16)][K][16], zero beyond. */
static taper_tensor pack(tensors *t) {
    const int64_t k = rows_of(&t->l), n = t->l.outputs / t->l.groups, panels = (n + 15) / 16;
    float *p = keep(t, t->l.groups * panels * k * 16);
    for (int64_t g = 0; g < t->l.groups; g++)
        pack_panels(p + g * panels * k * 16, t->weight + g * n, k, n, t->l.outputs, 1);
    return check_tensor(p, TAPER_FLOAT32, 4, (int64_t[]){t->l.groups, panels, k, 16});
}

void make(tensors *t, const layer *given) {
    *t = (tensors){.l = *given};
    layer *l = &t->l;
    l->batch = l->batch < 0 ? 0 : or_one(l->batch);
    l->groups = or_one(l->groups);
    const int rank = l->dims + 2;
    int64_t x[DIMS + 2] = {l->batch}, w[DIMS + 2] = {0}, y[DIMS + 2] = {l->batch};
    for (int d = 0; d < l->dims; d++) {
        l->stride[d] = or_one(l->stride[d]);
        l->dilation[d] = or_one(l->dilation[d]);
        const int64_t reach = (l->kernel[d] - 1) * l->dilation[d] + 1;
        const int64_t padding = l->padding[2 * d] + l->padding[2 * d + 1];
        x[1 + d] = l->size[d];
        w[d] = l->kernel[d];
        y[1 + d] = l->transposed ? (l->size[d] - 1) * l->stride[d] + reach - padding
                                 : (l->size[d] + padding - reach) / l->stride[d] + 1;
    }
    x[rank - 1] = l->channels;
    w[rank - 2] = l->channels / l->groups;
    w[rank - 1] = y[rank - 1] = l->outputs;
    t->inputs[0] = make_tensor(t, rank, x, -1, 1);
    t->inputs[1] = make_tensor(t, rank, w, -1, 1);
    t->weight = t->inputs[1].data;
    if (l->packed)
        t->inputs[1] = pack(t), t->inputs[1].format = TAPER_GROUPED_PANELS;
    const epilogue *e = l->epilogue ? l->epilogue : &none;
    if (e->n_extras > 0)
        t->inputs[2] = make_tensor(t, 1, &l->outputs, -1, 1);
    if (e->n_extras > 1)
        t->inputs[3] = make_tensor(t, rank, y, -1, 1);
    t->output = check_tensor(NULL, TAPER_FLOAT32, rank, y);
    t->output.data = keep(t, check_numel(&t->output));
    t->attrs = (struct conv_attrs){.kernel = {l->kernel, l->dims},
                                   .stride = {l->stride, l->dims},
                                   .padding = {l->padding, 2 * l->dims},
                                   .dilation = {l->dilation, l->dims},
                                   .groups = l->groups,
                                   .code = {e->code, e->n_code},
                                   .args = {e->args, e->n_args},
                                   .scalars = {&half, 1}};
}

void release(tensors *t) {
    for (int i = 0; i < t->n_memory; i++)
        check_free(t->memory[i]);
}

const char *op_of(const tensors *t) { return t->l.transposed ? "CONV_TRANSPOSE" : "CONV"; }

int n_inputs(const tensors *t) { return 2 + (t->l.epilogue ? t->l.epilogue->n_extras : 0); }

taper_status run(tensors *t, int workers) {
    return check_run(op_of(t), NULL, t->inputs, n_inputs(t), &t->output, &t->attrs, workers);
}

/* Returns the index of a pixel in t, or -1 if it is outside. */
static int64_t pixel_of(const taper_tensor *t, int64_t image, const int64_t *at) {
    int64_t index = image;
    for (int d = 0; d < t->rank - 2; d++) {
        if (at[d] < 0 || at[d] >= t->shape[1 + d])
            return -1;
        index = index * t->shape[1 + d] + at[d];
    }
    return index;
}

/* Adds what input pixel `from` contributes to the output through every tap. */
static void scatter(const tensors *t, int64_t image, const int64_t *from, double *sum,
                    double *size) {
    const layer *l = &t->l;
    const int64_t in = l->channels / l->groups, out = l->outputs / l->groups;
    const float *x =
        (const float *)t->inputs[0].data + pixel_of(&t->inputs[0], image, from) * l->channels;
    const int64_t taps = l->channels == 0 ? 0 : rows_of(l) / in;
    for (int64_t tap = 0; tap < taps; tap++) {
        int64_t to[DIMS], rest = tap;
        bool meets = true;
        for (int d = l->dims - 1; d >= 0; d--) {
            const int64_t i = rest % l->kernel[d] * l->dilation[d];
            rest /= l->kernel[d];
            if (l->transposed) {
                to[d] = from[d] * l->stride[d] + i - l->padding[2 * d];
            } else {
                const int64_t at = from[d] + l->padding[2 * d] - i;
                meets = meets && at % l->stride[d] == 0;
                to[d] = at / l->stride[d];
            }
        }
        const int64_t pixel = meets ? pixel_of(&t->output, image, to) : -1;
        if (pixel < 0)
            continue;
        for (int64_t o = 0; o < l->outputs; o++) {
            const float *values = x + o / out * in, *w = t->weight + tap * in * l->outputs + o;
            double products = 0, sizes = 0; /* local: sanitizers and emulators are slow at memory */
            for (int64_t c = 0; c < in; c++, w += l->outputs) {
                const double product = (double)values[c] * (double)*w;
                products += product;
                sizes += fabs(product);
            }
            sum[pixel * l->outputs + o] += products;
            size[pixel * l->outputs + o] += sizes;
        }
    }
}

void compare(const tensors *t) {
    const layer *l = &t->l;
    const epilogue *e = l->epilogue ? l->epilogue : &none;
    const int64_t numel = check_numel(&t->output), rows = rows_of(l);
    double *sum = calloc((size_t)numel + 1, sizeof *sum),
           *size = calloc((size_t)numel + 1, sizeof *size);
    int64_t pixels = 1;
    for (int d = 0; d < l->dims; d++)
        pixels *= l->size[d];
    for (int64_t i = 0; i < l->batch * pixels; i++) {
        int64_t at[DIMS], rest = i % pixels;
        for (int d = l->dims - 1; d >= 0; rest /= l->size[d--])
            at[d] = rest % l->size[d];
        scatter(t, i / pixels, at, sum, size);
    }
    for (int64_t i = 0; i < numel; i++) {
        double extras[MAX_EXTRAS] = {0};
        if (e->n_extras > 0)
            extras[0] = ((const float *)t->inputs[2].data)[i % l->outputs];
        if (e->n_extras > 1)
            extras[1] = ((const float *)t->inputs[3].data)[i];
        const double want = e->reference(sum[i], extras);
        const double bound = 0x1p-24 * ((8 + 2 * sqrt((double)rows)) * size[i] + 16);
        const float got = ((const float *)t->output.data)[i];
        const bool ok = isnan(want)          ? isnan(got)
                        : isinf((float)want) ? got == (float)want
                                             : fabs(got - want) <= bound;
        CHECK(ok,
              "%s of %lld rows, %lld -> %lld channels in %lld groups: element %lld of %lld: got "
              "%.9g, want %.9g, bound %.3g",
              op_of(t), (long long)rows, (long long)l->channels, (long long)l->outputs,
              (long long)l->groups, (long long)i, (long long)numel, got, want, bound);
        if (!ok)
            break;
    }
    free(sum);
    free(size);
}

void check_layer(const layer *l) {
    tensors t;
    make(&t, l);
    const taper_status status = run(&t, 1);
    CHECK(status == TAPER_OK, "%s", taper_status_string(status));
    if (status == TAPER_OK)
        compare(&t);
    release(&t);
}

void check_ways(layer l) {
    check_layer(&l);
    l.epilogue = &chain;
    check_layer(&l);
    l.packed = true;
    check_layer(&l);
    l.epilogue = &bias_relu;
    check_layer(&l);
    l.epilogue = &head;
    check_layer(&l);
}

void check_depthwise(layer l) {
    check_layer(&l);
    l.epilogue = &chain;
    check_layer(&l);
    l.epilogue = &head;
    check_layer(&l);
}

layer square(int64_t size, int64_t channels, int64_t outputs, int64_t kernel, int64_t stride,
             int64_t padding) {
    return (layer){.dims = 2,
                   .channels = channels,
                   .outputs = outputs,
                   .size = {size, size},
                   .kernel = {kernel, kernel},
                   .stride = {stride, stride},
                   .padding = {padding, padding, padding, padding}};
}
