/* Compares ARANGE exactly. */
#include "check.h"

#include "arange/kernels.inc"

CHECK_ATTRS(arange)

static void counts(void) {
    static const int64_t sizes[] = {0, 1, 2, 15, 16, 17, 16383, 16384, 16385, 50000};
    static const struct arange_attrs attrs[] = {
        {0, 0, 1}, {-7, 0, 3}, {5, 0, -2}, {1LL << 40, 0, 1}};
    for (size_t k = 0; k < sizeof attrs / sizeof attrs[0]; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            taper_tensor y = check_tensor(NULL, TAPER_INT64, 1, &sizes[i]);
            y.data = check_alloc((size_t)sizes[i] * sizeof(int64_t), 0);
            check_threads("ARANGE", NULL, NULL, 0, &y, &attrs[k]);
            for (int64_t at = 0; at < sizes[i]; at++)
                CHECK(((int64_t *)y.data)[at] == attrs[k].start + at * attrs[k].step,
                      "element %lld of %lld", (long long)at, (long long)sizes[i]);
            check_free(y.data);
        }
}

static void not_served(void) {
    float data[4];
    const struct arange_attrs attrs = {0, 4, 1};
    taper_tensor y = check_tensor(data, TAPER_FLOAT32, 1, (int64_t[]){4});
    CHECK(check_run("ARANGE", NULL, NULL, 0, &y, &attrs, 1) == TAPER_UNSUPPORTED, "float32");
}

static const check_case cases[] = {{"counts", counts}, {"not_served", not_served}};

static void bench(void) {
    const int64_t count = 4096;
    const struct arange_attrs attrs = {0, count, 1};
    taper_tensor y = check_tensor(NULL, TAPER_INT64, 1, &count);
    y.data = check_alloc((size_t)count * sizeof(int64_t), 0);
    check_bench_op("arange 4096", "ARANGE", NULL, NULL, 0, &y, &attrs, 0, 8.0 * (double)count);
    check_free(y.data);
}
static const check_case benches[] = {{"arange", bench}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], benches,
                      sizeof benches / sizeof benches[0]);
}
