/*
 * RESAMPLE in float32: x is [outer][n][inner], and an output line of `inner` elements is a weighted
 * sum of lines of x. Positions and weights are computed in float32, as in torch, once for the lines
 * of several outer indices.
 */
#include <math.h>
#include <string.h>

#include "common/tensor.h"
#include "isa/isa.h"
#include "resample/kernels.inc"
#include "simd/simd.h"

TAPER_DEFINE_ATTRS(resample)

enum {
    RESAMPLE_MAX_TAPS = 1 << 20, /* of an output element; a table of them fits scratch */
    RESAMPLE_LANES = 8,          /* columns for which a tap costs one unit of a task */
    RESAMPLE_LINE_COST = 8,      /* units for finding a line's taps */
};

/* How the position of an output element in x is computed. */
typedef enum resample_filter { NEAREST, LINEAR, CUBIC } resample_filter;

struct resample_state {
    int64_t outer, n, size, inner;
    float step;  /* elements of x from one output element to the next */
    float shift; /* the position of output element i is (i + shift) * step - back */
    float back;
    resample_filter filter;
    bool antialias;
    int64_t taps; /* the most an output element has */
    int64_t lines_per_task;
};

/* The elements of x that make one output element: element index[i] has weight[i]. */
typedef struct resample_taps {
    int64_t count;
    int64_t *index;
    float *weight;
} resample_taps;

/* ---- prepare ---- */

static const struct {
    const char *name;
    resample_filter filter;
    bool antialias, exact;
} resample_modes[] = {
    {"nearest", NEAREST, false, false},        {"nearest-exact", NEAREST, false, true},
    {"linear", LINEAR, false, false},          {"cubic", CUBIC, false, false},
    {"linear-antialias", LINEAR, true, false}, {"cubic-antialias", CUBIC, true, false}};

/* Returns how many elements on either side of a position have a weight. */
static float resample_reach(const struct resample_state *state) {
    return (state->filter == LINEAR ? 1.0f : 2.0f) * fmaxf(state->step, 1.0f);
}

static taper_status f32_resample_prepare(const taper_call *call, taper_work *work) {
    const struct resample_attrs *attrs = call->attrs;
    struct resample_state *state = call->state;
    const taper_tensor *x = &call->inputs[0], *y = call->output;
    const int64_t axis = attrs->axis;
    if (call->n_inputs != 1 || axis < 0 || axis >= x->rank || y->rank != x->rank ||
        !tensor_is(x, TAPER_FLOAT32, tensor_numel(x)) ||
        !tensor_is(y, TAPER_FLOAT32, tensor_numel(y)))
        return TAPER_UNSUPPORTED;
    for (int32_t d = 0; d < x->rank; d++)
        if (y->shape[d] != (d == axis ? attrs->size : x->shape[d]))
            return TAPER_UNSUPPORTED;
    *state = (struct resample_state){.outer = tensor_count(x, 0, axis),
                                     .n = x->shape[axis],
                                     .size = attrs->size,
                                     .inner = tensor_count(x, axis + 1, x->rank)};
    const int64_t n = state->n, size = state->size;
    if (n < 1 || size < 1 || n > INT32_MAX || size > INT32_MAX)
        return TAPER_UNSUPPORTED;

    size_t mode = 0;
    const size_t modes = sizeof resample_modes / sizeof resample_modes[0];
    while (mode < modes && strcmp(attrs->mode, resample_modes[mode].name) != 0)
        mode++;
    if (mode == modes)
        return TAPER_UNSUPPORTED;
    state->filter = resample_modes[mode].filter;
    state->antialias = resample_modes[mode].antialias;
    if (attrs->align_corners)
        state->step = size > 1 ? (float)(n - 1) / (float)(size - 1) : 0;
    else if (attrs->scale != 0)
        state->step = (float)(1 / attrs->scale);
    else
        state->step = (float)n / (float)size;
    if (!(state->step >= 0 && state->step <= (float)INT32_MAX))
        return TAPER_UNSUPPORTED;
    if (state->filter == NEAREST)
        state->shift = resample_modes[mode].exact ? 0.5f : 0;
    else if (state->antialias)
        state->shift = 0.5f;
    else if (!attrs->align_corners)
        state->shift = state->back = 0.5f;

    state->taps = state->filter == NEAREST ? 1 : state->filter == LINEAR ? 2 : 4;
    if (state->antialias) {
        const float width = 2 * resample_reach(state) + 3;
        state->taps = width < (float)n ? (int64_t)width : n;
    }
    if (state->taps > RESAMPLE_MAX_TAPS)
        return TAPER_UNSUPPORTED;
    const int64_t lines = state->outer * size;
    state->lines_per_task =
        rows_per_task(state->inner * state->taps / RESAMPLE_LANES + RESAMPLE_LINE_COST);
    work->tasks = tensor_numel(y) == 0 ? 0 : i64_ceil_div(lines, state->lines_per_task);
    work->scratch_bytes = (size_t)state->taps * (sizeof(int64_t) + sizeof(float));
    return TAPER_OK;
}

/* ---- weights ---- */

static float resample_linear(float x) { return fmaxf(1 - fabsf(x), 0); }

/* Cubic convolution (Keys 1981) with parameter a. */
static float resample_cubic(float x, float a) {
    x = fabsf(x);
    if (x <= 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* Returns x as an integer in [low, high]. */
static int64_t resample_clamp(float x, int64_t low, int64_t high) {
    const float limit =
        (float)INT32_MAX; /* sizes are below, so positions beyond are outside in any case */
    const int64_t i = (int64_t)fminf(fmaxf(x, -limit), limit);
    return i64_max(low, i64_min(i, high));
}

/* Computes the whole window of a filter, which is stretched by the step where the output is
 * smaller. */
static void resample_window(const struct resample_state *state, float centre, resample_taps *taps) {
    const float stretch = fmaxf(state->step, 1.0f), reach = resample_reach(state);
    const int64_t first = resample_clamp(centre - reach + 0.5f, 0, state->n);
    const int64_t last = resample_clamp(centre + reach + 0.5f, first, state->n);
    float total = 0;
    taps->count = i64_min(last - first, state->taps);
    for (int64_t i = 0; i < taps->count; i++) {
        const float distance = ((float)(first + i) - centre + 0.5f) / stretch;
        taps->index[i] = first + i;
        taps->weight[i] =
            state->filter == LINEAR ? resample_linear(distance) : resample_cubic(distance, -0.5f);
        total += taps->weight[i];
    }
    for (int64_t i = 0; i < taps->count && total != 0; i++)
        taps->weight[i] /= total;
}

static void resample_taps_of(const struct resample_state *state, int64_t element,
                             resample_taps *taps) {
    const int64_t last = state->n - 1;
    float at = ((float)element + state->shift) * state->step - state->back;
    taps->count = state->taps;
    if (state->filter == NEAREST) {
        taps->index[0] = resample_clamp(floorf(at), 0, last);
        taps->weight[0] = 1;
    } else if (state->antialias) {
        resample_window(state, at, taps);
    } else {
        if (state->filter == LINEAR)
            at = fmaxf(at, 0);
        const int64_t base = resample_clamp(floorf(at), INT32_MIN, last);
        const float rest = fminf(fmaxf(at - (float)base, 0), 1);
        for (int64_t i = 0; i < state->taps; i++) {
            const int64_t offset = i + 1 - state->taps / 2;
            const float distance = rest - (float)offset;
            taps->index[i] = i64_max(0, i64_min(base + offset, last));
            taps->weight[i] = state->filter == LINEAR ? resample_linear(distance)
                                                      : resample_cubic(distance, -0.75f);
        }
    }
}

/* ---- run ---- */

/* x: the lines of one outer index. */
static void resample_line(const struct resample_state *state, const resample_taps *taps, float *y,
                          const float *x) {
    const int64_t inner = state->inner;
    if (state->filter == NEAREST) {
        memcpy(y, x + taps->index[0] * inner, (size_t)inner * sizeof *y);
        return;
    }
    for (int64_t c = 0; c < inner; c += V_LEN) {
        const int64_t lanes = i64_min(V_LEN, inner - c);
        vf sum = v_zero();
        for (int64_t i = 0; i < taps->count; i++) {
            const float *from = x + taps->index[i] * inner + c;
            const vf line = lanes < V_LEN ? v_load_n(from, lanes) : v_load(from);
            sum = v_fma(v_set1(taps->weight[i]), line, sum);
        }
        if (lanes < V_LEN)
            v_store_n(y + c, sum, lanes);
        else
            v_store(y + c, sum);
    }
}

static taper_status f32_resample_run(const taper_call *call, int64_t begin, int64_t end,
                                     void *scratch) {
    const struct resample_state *state = call->state;
    const float *x = call->inputs[0].data;
    float *y = call->output->data;
    resample_taps taps = {.index = scratch};
    taps.weight = (float *)(taps.index + state->taps);
    const int64_t lines = state->outer * state->size;
    const int64_t last = i64_min(end * state->lines_per_task, lines);
    /* Lines are numbered [element][outer], so that the weights of an element serve all its lines.
     */
    int64_t element = -1;
    for (int64_t line = begin * state->lines_per_task; line < last; line++) {
        const int64_t outer = line % state->outer;
        if (line / state->outer != element) {
            element = line / state->outer;
            resample_taps_of(state, element, &taps);
        }
        resample_line(state, &taps, y + (outer * state->size + element) * state->inner,
                      x + outer * state->n * state->inner);
    }
    return TAPER_OK;
}

static const taper_kernel resample_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "resample/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_resample);
const taper_family TAPER_ISA_SYM(taper_resample) = {TAPER_ROWS(resample_kernels)};
