/* Compares NMS with the same rule in double, on boxes of whole numbers, for which both are exact.
 */
#include <stdlib.h>

#include "check.h"

enum { ROOM = 200 };

typedef struct attrs {
    double iou_threshold;
} attrs;

static double smaller(double a, double b) { return a < b ? a : b; }
static double larger(double a, double b) { return a > b ? a : b; }

/* Returns whether a and b overlap by more than the threshold of the area that they cover. */
static bool overlap(const float *a, const float *b, double threshold) {
    const double width = larger(0, smaller(a[2], b[2]) - larger(a[0], b[0])),
                 height = larger(0, smaller(a[3], b[3]) - larger(a[1], b[1])),
                 shared = width * height, first = (double)(a[2] - a[0]) * (a[3] - a[1]),
                 second = (double)(b[2] - b[0]) * (b[3] - b[1]);
    return (float)shared / (float)(first + second - shared) > threshold;
}

static taper_status run(const float *boxes, int64_t n, double threshold, uint8_t *kept) {
    const int64_t shape[] = {n, 4};
    const attrs a = {threshold};
    taper_tensor in = check_tensor((void *)boxes, TAPER_FLOAT32, 2, shape);
    taper_tensor out = check_tensor(kept, TAPER_BOOL, 1, &n);
    return check_run("NMS", NULL, &in, 1, &out, &a, 1);
}

static void random_boxes(void) {
    static float boxes[ROOM * 4];
    uint8_t kept[ROOM + 1];
    srand(1);
    for (int64_t n = 0; n <= ROOM; n += n < 20 ? 1 : 45)
        for (int tenths = 0; tenths <= 10; tenths++) {
            const double threshold = tenths / 10.0;
            for (int64_t i = 0; i < n; i++) {
                boxes[4 * i] = (float)(rand() % 20), boxes[4 * i + 1] = (float)(rand() % 20);
                boxes[4 * i + 2] = boxes[4 * i] + (float)(rand() % 20);
                boxes[4 * i + 3] = boxes[4 * i + 1] + (float)(rand() % 20);
            }
            kept[n] = 77;
            CHECK(run(boxes, n, threshold, kept) == TAPER_OK, "runs");
            for (int64_t i = 0; i < n; i++) {
                bool wanted = true;
                for (int64_t k = 0; k < i; k++)
                    wanted =
                        wanted && !(kept[k] && overlap(boxes + 4 * k, boxes + 4 * i, threshold));
                CHECK(kept[i] == wanted, "box %lld of %lld at %g", (long long)i, (long long)n,
                      threshold);
            }
            CHECK(kept[n] == 77, "nothing beyond");
        }
}

/* Two boxes that share a third: 0.333... in float32 is more than 1/3, so 1/3 + 1e-9 lies between.
 */
static void the_threshold_is_a_double(void) {
    static const float boxes[] = {0, 0, 2, 1, 1, 0, 3, 1};
    uint8_t kept[2];
    const double third = (float)(1.0f / 3.0f);
    CHECK(run(boxes, 2, third, kept) == TAPER_OK && kept[0] && kept[1], "equal is kept");
    CHECK(run(boxes, 2, third - 1e-12, kept) == TAPER_OK && kept[0] && !kept[1], "more is not");
}

static const check_case cases[] = {{"random boxes", random_boxes},
                                   {"the threshold is a double", the_threshold_is_a_double}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
