#include "packed.h"

void pack_panels(float *to, const float *from, int64_t k, int64_t n, int64_t k_stride,
                 int64_t n_stride) {
    for (int64_t i = 0; i < (n + 15) / 16 * k * 16; i++) {
        const int64_t column = i / (k * 16) * 16 + i % 16, row = i / 16 % k;
        to[i] = column < n ? from[row * k_stride + column * n_stride] : 0.0f;
    }
}

taper_tensor pack_dots(const int8_t *from, int64_t k, int64_t groups, int64_t n) {
    const int64_t panels = (n + 15) / 16, lines = 1 + (k + 3) / 4;
    taper_tensor t = check_tensor(NULL, TAPER_INT8, 4, (int64_t[]){groups, panels, lines, 64});
    int8_t *to = t.data = check_alloc((size_t)check_numel(&t), 0);
    memset(to, 0, (size_t)check_numel(&t));
    for (int64_t g = 0; g < groups; g++)
        for (int64_t j = 0; j < n; j++) {
            int8_t *panel = to + (g * panels + j / 16) * lines * 64;
            int32_t sum = 0;
            for (int64_t i = 0; i < k; i++) {
                const int8_t w = from[(i * groups + g) * n + j];
                panel[(1 + i / 4) * 64 + j % 16 * 4 + i % 4] = w;
                sum += w;
            }
            memcpy(panel + j % 16 * 4, &sum, sizeof sum);
        }
    t.format = TAPER_DOTS;
    return t;
}
