/*
 * NMS (non-maximum suppression): selects boxes [N, 4], which are ordered best first. A box is (x1,
 * y1, x2, y2). It is kept unless its intersection over union with a kept box before it is above the
 * threshold.
 */
#include <math.h>
#include <string.h>

#include "common/tensor.h"
#include "isa/isa.h"
#include "nms/kernels.inc"

TAPER_DEFINE_ATTRS(nms)

struct nms_state {
    int64_t n;
    float threshold; /* x > threshold exactly where (double)x is more than the attr */
};

static taper_status f32_nms_prepare(const taper_call *call, taper_work *work) {
    struct nms_state *s = call->state;
    const struct nms_attrs *attrs = call->attrs;
    if (call->n_inputs != 1)
        return TAPER_UNSUPPORTED;
    const taper_tensor *boxes = call->inputs;
    if (boxes->dtype != TAPER_FLOAT32 || boxes->rank != 2 || boxes->shape[1] != 4 ||
        !tensor_is_contiguous(boxes) || !tensor_is(call->output, TAPER_BOOL, boxes->shape[0]))
        return TAPER_UNSUPPORTED;
    s->n = boxes->shape[0];
    s->threshold = (float)attrs->iou_threshold;
    if ((double)s->threshold > attrs->iou_threshold)
        s->threshold = nextafterf(s->threshold, -INFINITY);
    *work = (taper_work){.tasks = s->n > 0, .scratch_bytes = (size_t)s->n * 6 * sizeof(float)};
    return TAPER_OK;
}

/* Returns b where one is NaN, as std::min and std::max do. */
static inline float low(float a, float b) { return b < a ? b : a; }
static inline float high(float a, float b) { return a < b ? b : a; }

static taper_status f32_nms_run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const struct nms_state *s = call->state;
    const float *box = call->inputs[0].data;
    uint8_t *kept = call->output->data;
    const int64_t n = s->n;
    const float threshold = s->threshold;
    float *restrict x1 = scratch, *restrict y1 = x1 + n, *restrict x2 = y1 + n,
                    *restrict y2 = x2 + n, *restrict area = y2 + n;
    int32_t *restrict gone = (int32_t *)(area + n); /* as wide as a float */
    if (begin == end)
        return TAPER_OK;
    for (int64_t i = 0; i < n; i++, box += 4) {
        x1[i] = box[0], y1[i] = box[1], x2[i] = box[2], y2[i] = box[3];
        area[i] = (box[2] - box[0]) * (box[3] - box[1]);
        gone[i] = 0;
    }
    for (int64_t i = 0; i < n; i++) {
        kept[i] = !gone[i];
        if (gone[i])
            continue;
        const float left = x1[i], top = y1[i], right = x2[i], bottom = y2[i], own = area[i];
        for (int64_t j = i + 1; j < n; j++) {
            const float width = high(0.0f, low(right, x2[j]) - high(left, x1[j]));
            const float height = high(0.0f, low(bottom, y2[j]) - high(top, y1[j]));
            const float shared = width * height;
            gone[j] |= shared / (own + area[j] - shared) > threshold;
        }
    }
    return TAPER_OK;
}

static const taper_kernel nms_kernels[] = {
#define TAPER_KERNEL_ROWS
#include "nms/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_nms);
const taper_family TAPER_ISA_SYM(taper_nms) = {TAPER_ROWS(nms_kernels)};
