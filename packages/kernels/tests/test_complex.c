/* Compares COMPLEX_MUL with double. */
#include <math.h>

#include "check.h"

/* Strides of a tensor that broadcasts along some dims, or is transposed. */
static const float *number(const taper_tensor *x, const taper_tensor *y, const int64_t *index) {
    int64_t at = 0;
    for (int32_t d = 0; d < x->rank - 1; d++) {
        const int64_t i = index[d + y->rank - x->rank];
        at += x->shape[d] == 1 ? 0 : i * x->strides[d];
    }
    return (const float *)x->data + at;
}

static void check_product(taper_tensor *inputs, const int64_t *shape, int rank) {
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= shape[d];
    taper_tensor y =
        check_tensor(check_alloc((size_t)count * sizeof(float), 0), TAPER_FLOAT32, rank, shape);
    check_threads("COMPLEX_MUL", NULL, inputs, 2, &y, NULL);
    for (int64_t i = 0; i < count / 2; i++) {
        int64_t index[8], rest = i;
        for (int d = rank - 2; d >= 0; d--) {
            index[d] = rest % shape[d];
            rest /= shape[d];
        }
        const float *a = number(&inputs[0], &y, index), *b = number(&inputs[1], &y, index);
        const int64_t pa = inputs[0].strides[inputs[0].rank - 1];
        const int64_t pb = inputs[1].strides[inputs[1].rank - 1];
        const double re = (double)a[0] * b[0] - (double)a[pa] * b[pb];
        const double im = (double)a[pa] * b[0] + (double)a[0] * b[pb];
        const float *got = (float *)y.data + 2 * i;
        CHECK(fabs(got[0] - re) < 1e-6 && fabs(got[1] - im) < 1e-6, "%g, %g, not %g, %g", got[0],
              got[1], re, im);
    }
    check_free(y.data);
}

static taper_tensor filled(int rank, const int64_t *shape, int64_t count) {
    float *data = check_alloc((size_t)count * sizeof(float), 0);
    check_fill_uniform(data, count, -1, 1);
    return check_tensor(data, TAPER_FLOAT32, rank, shape);
}

static void sizes(void) {
    for (int64_t n = 0; n < 40; n += n < 20 ? 1 : 7) {
        const int64_t shape[] = {3, n, 2};
        taper_tensor inputs[] = {filled(3, shape, 6 * n), filled(3, shape, 6 * n)};
        check_product(inputs, shape, 3);
        check_free(inputs[0].data);
        check_free(inputs[1].data);
    }
}

static void broadcasts(void) {
    static const int64_t shape[] = {2, 5, 3, 17, 2};
    static const int64_t others[][5] = {
        {1, 5, 1, 17, 2}, {2, 1, 3, 1, 2}, {1, 1, 1, 1, 2}, {2, 5, 3, 17, 2}};
    for (int i = 0; i < 4; i++) {
        const int64_t *other = others[i];
        const int64_t count = other[0] * other[1] * other[2] * other[3] * 2;
        taper_tensor inputs[] = {filled(5, shape, 1020), filled(5, other, count)};
        check_product(inputs, shape, 5);
        const taper_tensor first = inputs[0];
        inputs[0] = inputs[1];
        inputs[1] = first;
        check_product(inputs, shape, 5);
        check_free(inputs[0].data);
        check_free(inputs[1].data);
    }
}

/* Real and imaginary parts that are not adjacent, and numbers that are not. */
static void strides(void) {
    const int64_t shape[] = {4, 19, 2};
    taper_tensor inputs[] = {filled(3, shape, 152), filled(3, shape, 152)};
    const int64_t planes[] = {19, 1, 76}, columns[] = {2, 8, 1};
    for (int d = 0; d < 3; d++) {
        inputs[0].strides[d] = planes[d];
        inputs[1].strides[d] = columns[d];
    }
    check_product(inputs, shape, 3);
    check_free(inputs[0].data);
    check_free(inputs[1].data);
}

static void many(void) {
    const int64_t shape[] = {70000, 2};
    taper_tensor inputs[] = {filled(2, shape, 140000), filled(2, shape, 140000)};
    check_product(inputs, shape, 2);
    check_free(inputs[0].data);
    check_free(inputs[1].data);
}

static void not_served(void) {
    float data[6];
    const taper_tensor x = check_tensor(data, TAPER_FLOAT32, 2, (int64_t[]){2, 3});
    const taper_tensor both[] = {x, x};
    CHECK(check_run("COMPLEX_MUL", NULL, both, 2, &x, NULL, 1) == TAPER_UNSUPPORTED, "no pairs");
}

static const check_case cases[] = {{"sizes", sizes},
                                   {"broadcasts", broadcasts},
                                   {"strides", strides},
                                   {"many", many},
                                   {"not_served", not_served}};

int main(int argc, char **argv) {
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
