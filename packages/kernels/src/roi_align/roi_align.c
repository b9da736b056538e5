/*
 * ROI_ALIGN in float32, channels last: the means of the bins of boxes. A bin's mean is over a grid
 * of points, each interpolated between 2 rows and 2 columns, so it is a sum over rows and columns
 * whose weights are products of one weight of the row and one of the column. The kernel lists the
 * rows of each row of bins and the columns of each column of bins once per box, and adds up the
 * weights of points that share one.
 */
#include <math.h>

#include "common/tensor.h"
#include "isa/isa.h"
#include "roi_align/kernels.inc"
#include "simd/simd.h"

TAPER_DEFINE_ATTRS(roi_align)

enum {
    ROI_BOX = 5,           /* numbers of a box: image, x1, y1, x2, y2 */
    ROI_SIZE = 1 << 15,    /* most bins along an axis */
    ROI_SAMPLES = 1 << 16, /* most points of a bin along an axis */
    ROI_TAPS = 9,          /* pixels that a bin reads, for the length of tasks: 3 x 3 */
    ROI_VECTORS = 8,       /* vectors of channels that are summed at once */
};

struct roi_state {
    int64_t images, size[2], channels; /* of x */
    int64_t boxes, bins[2];
    int64_t samples; /* points of a bin along an axis; 0 for about one per pixel */
    float scale, shift;
    bool aligned;
    int64_t boxes_per_task;
};

/* A row or a column that a bin reads. */
typedef struct roi_tap {
    int32_t at;
    float weight;
} roi_tap;

/* A box along one axis. */
typedef struct roi_side {
    float start, bin; /* the first bin's start, the length of a bin */
    int64_t samples;  /* points of a bin */
} roi_side;

static taper_status f32_roi_align_prepare(const taper_call *call, taper_work *work) {
    const struct roi_align_attrs *attrs = call->attrs;
    struct roi_state *s = call->state;
    const taper_tensor *x = &call->inputs[0], *boxes = &call->inputs[1], *y = call->output;
    if (call->n_inputs != 2 || x->rank != 4 || boxes->rank != 2 || y->rank != 4 ||
        attrs->size.count != 2 || attrs->samples < 0 || attrs->samples > ROI_SAMPLES ||
        boxes->shape[1] != ROI_BOX || y->shape[0] != boxes->shape[0] ||
        y->shape[3] != x->shape[3] || !tensor_is(x, TAPER_FLOAT32, tensor_numel(x)) ||
        !tensor_is(boxes, TAPER_FLOAT32, tensor_numel(boxes)) ||
        !tensor_is(y, TAPER_FLOAT32, tensor_numel(y)))
        return TAPER_UNSUPPORTED;
    *s = (struct roi_state){.images = x->shape[0],
                            .channels = x->shape[3],
                            .boxes = boxes->shape[0],
                            .samples = attrs->samples,
                            .scale = (float)attrs->scale,
                            .shift = attrs->aligned ? 0.5f : 0.0f,
                            .aligned = attrs->aligned};
    size_t taps = 0;
    for (int32_t d = 0; d < 2; d++) {
        s->size[d] = x->shape[d + 1];
        s->bins[d] = attrs->size.data[d];
        if (s->bins[d] < 1 || s->bins[d] > ROI_SIZE || s->bins[d] != y->shape[d + 1] ||
            s->size[d] < 1 || s->size[d] > INT32_MAX)
            return TAPER_UNSUPPORTED;
        taps += (size_t)s->bins[d] * (size_t)(s->size[d] + 1);
    }
    *work = (taper_work){.scratch_bytes = taps * sizeof(roi_tap)};
    if (tensor_numel(y) == 0)
        return TAPER_OK;
    s->boxes_per_task =
        rows_per_task(s->bins[0] * s->bins[1] * ROI_TAPS * i64_ceil_div(s->channels, V_LEN));
    work->tasks = i64_ceil_div(s->boxes, s->boxes_per_task);
    return TAPER_OK;
}

/* Returns the image of a box; -1 if there is none. */
static inline int64_t roi_image(const struct roi_state *s, const float *box) {
    const bool known = box[0] > -1 && box[0] < (float)INT32_MAX && (int64_t)box[0] < s->images;
    return known ? (int64_t)box[0] : -1;
}

/* Finds a box along an axis; returns false if it is not finite there, or too long. */
static inline bool roi_find(const struct roi_state *s, roi_side *side, int d, float low,
                            float high) {
    const float start = low * s->scale - s->shift, end = high * s->scale - s->shift;
    float length = end - start;
    if (!isfinite(start) || !isfinite(length))
        return false;
    if (!s->aligned && length < 1)
        length = 1;
    side->start = start;
    side->bin = length / (float)s->bins[d];
    side->samples = s->samples;
    if (s->samples == 0) {
        const float samples = ceilf(side->bin);
        if (!(fabsf(samples) <= ROI_SAMPLES))
            return false;
        side->samples = (int64_t)samples;
    }
    return true;
}

/* Adds the weight to that of this row or column, which may be one of the last two of a list. */
static inline int64_t roi_add(roi_tap *taps, int64_t n, int64_t at, float weight) {
    for (int64_t i = n - 1; i >= 0 && i >= n - 2; i--)
        if (taps[i].at == at) {
            taps[i].weight += weight;
            return n;
        }
    taps[n] = (roi_tap){(int32_t)at, weight};
    return n + 1;
}

/* Lists the rows or columns that a bin reads, each once and in order: at most `size`. Their number
 * goes before them. A point more than 1 outside reads nothing. */
static void roi_list(const roi_side *side, int64_t bin, int64_t size, roi_tap *list) {
    roi_tap *const taps = list + 1;
    const float begin = side->start + (float)bin * side->bin;
    int64_t n = 0;
    for (int64_t i = 0; i < side->samples; i++) {
        const int64_t point = side->bin < 0 ? side->samples - 1 - i : i;
        float at = begin + ((float)point + 0.5f) * side->bin / (float)side->samples;
        if (!(at >= -1 && at <= (float)size))
            continue;
        at = at > 0 ? at : 0;
        const int64_t low = i64_min((int64_t)at, size - 1);
        const float rest = low < size - 1 ? at - (float)low : 0;
        n = roi_add(taps, n, low, 1 - rest);
        if (low < size - 1)
            n = roi_add(taps, n, low + 1, rest);
    }
    list->at = (int32_t)n;
}

/* Sums `count` vectors of channels, of which a last one may be partial; count is constant where
 * this is inlined. */
V_INLINE void roi_sum(float *y, const float *x, const roi_tap *rows, const roi_tap *columns,
                      int64_t row, int64_t pixel, float factor, int64_t channels,
                      const int64_t count) {
    const bool partial = channels < V_LEN;
    vf sums[ROI_VECTORS];
#pragma GCC unroll 8
    for (int64_t v = 0; v < count; v++)
        sums[v] = v_zero();
    for (int32_t r = 1; r <= rows->at; r++)
        for (int32_t c = 1; c <= columns->at; c++) {
            const float *from = x + rows[r].at * row + columns[c].at * pixel;
            const vf weight = v_set1(rows[r].weight * columns[c].weight);
#pragma GCC unroll 8
            for (int64_t v = 0; v < count; v++)
                sums[v] = v_fma(
                    weight, partial ? v_load_n(from, channels) : v_load(from + v * V_LEN), sums[v]);
        }
#pragma GCC unroll 8
    for (int64_t v = 0; v < count; v++) {
        const vf mean = v_mul(sums[v], v_set1(factor));
        if (partial)
            v_store_n(y, mean, channels);
        else
            v_store(y + v * V_LEN, mean);
    }
}

/* Computes the bins of one box, [bins][bins][channels], from its image. */
static void roi_box(const struct roi_state *s, const roi_side sides[2], float *y, const float *x,
                    roi_tap *lists) {
    const int64_t pixel = s->channels, row = s->size[1] * pixel;
    roi_tap *of[2] = {lists, lists + s->bins[0] * (s->size[0] + 1)};
    for (int d = 0; d < 2; d++)
        for (int64_t bin = 0; bin < s->bins[d]; bin++)
            roi_list(&sides[d], bin, s->size[d], of[d] + bin * (s->size[d] + 1));
    const int64_t points = sides[0].samples * sides[1].samples;
    const float factor = 1 / (float)i64_max(points, 1);
    for (int64_t i = 0; i < s->bins[0]; i++)
        for (int64_t j = 0; j < s->bins[1]; j++) {
            const roi_tap *rows = of[0] + i * (s->size[0] + 1);
            const roi_tap *columns = of[1] + j * (s->size[1] + 1);
            int64_t c = 0;
            for (; c + ROI_VECTORS * V_LEN <= s->channels; c += ROI_VECTORS * V_LEN)
                roi_sum(y + c, x + c, rows, columns, row, pixel, factor, ROI_VECTORS * V_LEN,
                        ROI_VECTORS);
            for (; c + V_LEN <= s->channels; c += V_LEN)
                roi_sum(y + c, x + c, rows, columns, row, pixel, factor, V_LEN, 1);
            if (c < s->channels)
                roi_sum(y + c, x + c, rows, columns, row, pixel, factor, s->channels - c, 1);
            y += s->channels;
        }
}

static taper_status f32_roi_align_run(const taper_call *call, int64_t begin, int64_t end,
                                      void *scratch) {
    const struct roi_state *s = call->state;
    const float *x = call->inputs[0].data, *boxes = call->inputs[1].data;
    float *y = call->output->data;
    const int64_t image = s->size[0] * s->size[1] * s->channels;
    const int64_t result = s->bins[0] * s->bins[1] * s->channels;
    const int64_t last = i64_min(end * s->boxes_per_task, s->boxes);
    for (int64_t k = begin * s->boxes_per_task; k < last; k++) {
        const float *box = boxes + k * ROI_BOX;
        roi_side sides[2];
        const int64_t at = roi_image(s, box);
        if (at < 0 || !roi_find(s, &sides[0], 0, box[2], box[4]) ||
            !roi_find(s, &sides[1], 1, box[1], box[3]))
            return TAPER_BAD_INDEX;
        roi_box(s, sides, y + k * result, x + at * image, scratch);
    }
    return TAPER_OK;
}

#define TAPER_KERNEL_ROWS
static const taper_kernel roi_align_kernels[] = {
#include "roi_align/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_roi_align);
const taper_family TAPER_ISA_SYM(taper_roi_align) = {TAPER_ROWS(roi_align_kernels)};
