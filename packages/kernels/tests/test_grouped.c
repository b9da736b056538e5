/* Compares GROUPED_MATMUL with sums in double, row by row. */
#include <math.h>

#include "check.h"

typedef struct problem {
    int64_t m, k, n, groups;
    int64_t ends[8];
    bool transposed; /* b lies as [groups][n][k] */
    taper_dtype ends_dtype;
} problem;

typedef struct tensors {
    taper_tensor inputs[3], output;
} tensors;

static taper_tensor floats(int rank, const int64_t *dims) {
    taper_tensor t = check_tensor(NULL, TAPER_FLOAT32, rank, dims);
    t.data = check_alloc((size_t)check_numel(&t) * sizeof(float), 0);
    check_fill_uniform(t.data, check_numel(&t), -1, 1);
    return t;
}

static tensors make(const problem *p) {
    tensors t;
    t.inputs[0] = floats(2, (int64_t[]){p->m, p->k});
    t.inputs[1] = floats(3, (int64_t[]){p->groups, p->k, p->n});
    if (p->transposed) {
        t.inputs[1].strides[1] = 1;
        t.inputs[1].strides[2] = p->k;
    }
    t.inputs[2] = check_tensor(NULL, p->ends_dtype, 1, &p->groups);
    t.inputs[2].data = check_alloc((size_t)p->groups * taper_dtype_size(p->ends_dtype), 0);
    for (int64_t g = 0; g < p->groups; g++) {
        if (p->ends_dtype == TAPER_INT32)
            ((int32_t *)t.inputs[2].data)[g] = (int32_t)p->ends[g];
        else
            ((int64_t *)t.inputs[2].data)[g] = p->ends[g];
    }
    t.output = floats(2, (int64_t[]){p->m, p->n});
    return t;
}

static void release(const tensors *t) {
    for (int i = 0; i < 3; i++)
        check_free(t->inputs[i].data);
    check_free(t->output.data);
}

static void expect(const problem *p) {
    const tensors t = make(p);
    const taper_tensor *b = &t.inputs[1];
    check_threads("GROUPED_MATMUL", NULL, t.inputs, 3, &t.output, NULL);
    int64_t group = 0, wrong = 0;
    for (int64_t i = 0; i < p->m; i++) {
        while (group < p->groups && p->ends[group] <= i)
            group++;
        for (int64_t j = 0; j < p->n; j++) {
            const float *a = (const float *)t.inputs[0].data + i * p->k;
            const float got = ((const float *)t.output.data)[i * p->n + j];
            double want = 0, scale = 0;
            for (int64_t k = 0; k < p->k && group < p->groups; k++) {
                const double product =
                    (double)a[k] *
                    ((const float *)
                         b->data)[group * b->strides[0] + k * b->strides[1] + j * b->strides[2]];
                want += product;
                scale += fabs(product);
            }
            wrong += !(fabs(got - want) <= 1e-6 * scale);
        }
    }
    CHECK(wrong == 0, "%lld wrong elements: m %lld, k %lld, n %lld", (long long)wrong,
          (long long)p->m, (long long)p->k, (long long)p->n);
    release(&t);
}

static void groups(void) {
    static const problem problems[] = {
        {9, 20, 33, 3, {2, 2, 9}, false, TAPER_INT64},
        {40, 7, 5, 1, {40}, false, TAPER_INT64},
        {6, 300, 16, 4, {1, 3, 4, 6}, false, TAPER_INT64},
        {300, 40, 600, 5, {0, 150, 151, 290, 300}, false, TAPER_INT64},
        {33, 2100, 70, 2, {16, 33}, false, TAPER_INT64},
        {8, 5, 40, 2, {3, 6}, false, TAPER_INT64},
        {5, 9, 4, 3, {0, 0, 0}, false, TAPER_INT64},
        {4, 0, 3, 2, {1, 4}, false, TAPER_INT64},
        {0, 3, 4, 2, {0, 0}, false, TAPER_INT64},
        {3, 4, 0, 2, {1, 3}, false, TAPER_INT64},
        {3, 4, 7, 0, {0}, false, TAPER_INT64},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int way = 0; way < 4; way++) {
            problem p = problems[i];
            p.transposed = way & 1;
            p.ends_dtype = way & 2 ? TAPER_INT32 : TAPER_INT64;
            expect(&p);
        }
}

static void bad_ends(void) {
    static const int64_t ends[][3] = {{-1, 2, 4}, {3, 2, 4}, {1, 2, 5}, {INT32_MAX, 0, 0}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        for (int wide = 0; wide < 2; wide++) {
            problem p = {4, 6, 40, 3, {ends[i][0], ends[i][1], ends[i][2]}, false, TAPER_INT32};
            p.ends_dtype = wide ? TAPER_INT64 : TAPER_INT32;
            const tensors t = make(&p);
            CHECK(check_run("GROUPED_MATMUL", NULL, t.inputs, 3, &t.output, NULL, 2) ==
                      TAPER_BAD_INDEX,
                  "ends %zu", i);
            release(&t);
        }
}

static void unsupported(void) {
    const problem p = {4, 6, 8, 2, {1, 4}, false, TAPER_INT64};
    tensors t = make(&p);
    t.inputs[1].shape[1] = 5;
    CHECK(check_run("GROUPED_MATMUL", NULL, t.inputs, 3, &t.output, NULL, 1) == TAPER_UNSUPPORTED,
          "another k");
    t.inputs[1].shape[1] = 6;
    t.inputs[2].dtype = TAPER_FLOAT32;
    CHECK(check_run("GROUPED_MATMUL", NULL, t.inputs, 3, &t.output, NULL, 1) == TAPER_UNSUPPORTED,
          "float ends");
    release(&t);
}

static void bench_experts(void) {
    const problem p = {128, 512, 1024, 8, {16, 32, 48, 64, 80, 96, 112, 128}, false, TAPER_INT64};
    const tensors t = make(&p);
    check_bench_op("experts 8x16x1024x512", "GROUPED_MATMUL", NULL, t.inputs, 3, &t.output, NULL,
                   2.0 * 128 * 512 * 1024, 4.0 * 8 * 512 * 1024);
    release(&t);
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"groups", groups}, {"bad_ends", bad_ends}, {"unsupported", unsupported}};
    static const check_case benches[] = {{"experts", bench_experts}};
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
