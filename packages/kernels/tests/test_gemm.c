/* Compares MATMUL of float32 with sums in double. A test draws a node from a few sizes and layouts.
 */
#include "gemm_case.h"

#include <math.h>

/* ---- variants ---- */

typedef struct case_of {
    const tensors *t;
    const product *p;
} case_of;

static void compare_case(void *arg) {
    const case_of *c = arg;
    compare(c->t, c->p);
}

/* Returns how many variants compute a product. */
static int variants_of(product p) {
    tensors t = make(&p);
    case_of c = {&t, &p};
    const int served =
        check_variants("MATMUL", t.inputs, 2 + p.n_extras, &t.output, &t.attrs, compare_case, &c);
    release(&t);
    return served;
}

/* Each computes every shape: rows beyond those that dot products are chosen for, and beyond what is
 * computed before an epilogue; sums of one piece and of several; columns that end a panel or not.
 */
static void every_variant(void) {
    static const int64_t ms[] = {1, 3, 33, 150, 300}, ns[] = {1, 5, 24, 33},
                         ks[] = {1, 7, 130, 2100};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 4; l++) {
                if (ms[i] >= 150 && (ks[l] == 2100 || ns[j] < 33))
                    continue;
                product p = matrices(ms[i], ns[j], ks[l]);
                p.epilogue = &add;
                p.n_extras = 1;
                p.extras[0] = (operand){1, {ns[j]}, ROWS};
                const int contiguous = ks[l] == 1 || ns[j] == 1 ? 3 : 2;
                CHECK(variants_of(p) >= 2, "%d x %d x %d: B by rows", (int)ms[i], (int)ns[j],
                      (int)ks[l]);
                p.a.layout = COLUMNS;
                CHECK(variants_of(p) <= 3, "A by columns");
                p.a.layout = ROWS;
                transpose(&p);
                CHECK(variants_of(p) >= 2 && variants_of(p) <= contiguous, "B by columns");
                p.packed = true;
                CHECK(variants_of(p) == 1, "panels alone");
            }
    product strided = matrices(20, 20, 20);
    strided.b.layout = STRIDED;
    CHECK(variants_of(strided) >= 1, "packing at least");
}

/* The rows of the table say correctly that bits may differ. */
static void variants_differ(void) {
    static const char *const names[] = {"dot", "in_place"};
    product p = matrices(33, 48, 1000);
    for (int way = 0; way < 2; way++) {
        transpose(&p); /* B by columns, then by rows */
        p.transpose_b = way == 0;
        tensors t = make(&p);
        const size_t bytes = (size_t)check_numel(&t.output) * sizeof(float);
        check_variant = "packing";
        CHECK(run(&t, &p, 1) == TAPER_OK, "packing");
        float *packed = keep(&t, check_numel(&t.output), 0);
        memcpy(packed, t.output.data, bytes);
        check_variant = names[way];
        CHECK(run(&t, &p, 1) == TAPER_OK, "%s", names[way]);
        CHECK(memcmp(packed, t.output.data, bytes) != 0, "%s has the bits of packing", names[way]);
        check_variant = NULL;
        release(&t);
    }
}

/* ---- sizes ---- */

static void every_m_remainder(void) {
    static const int64_t ns[] = {1, 8, 17, 24, 40, 56, 64}, ks[] = {1, 16, 37};
    for (int64_t m = 1; m <= 30; m++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++)
            for (size_t k = 0; k < sizeof ks / sizeof *ks; k++)
                check_ways(matrices(m, ns[j], ks[k]));
}

static void every_n_tail(void) {
    static const int64_t ms[] = {1, 3, 15};
    for (int64_t n = 1; n <= 82; n++)
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
            check_ways(matrices(ms[i], n, 9));
}

static void every_k_tail(void) {
    static const int64_t ms[] = {1, 2, 13, 31};
    for (int64_t k = 0; k <= 49; k++)
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
            check_ways(matrices(ms[i], 35, k));
}

static void long_k(void) {
    static const int64_t ks[] = {1023, 1024, 1025, 2049, 5000};
    for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
        check_ways(matrices(1, 40, ks[k]));
        check_ways(matrices(5, 33, ks[k]));
        check_ways(matrices(20, 17, ks[k]));
    }
}

static void many_rows(void) {
    static const int64_t ms[] = {139, 140, 141, 280, 281, 1000};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        check_ways(matrices(ms[i], 33, 11));
        check_ways(matrices(ms[i], 140, 5));
    }
}

static void many_columns(void) {
    static const int64_t ms[] = {1, 7, 16, 150};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        check_ways(matrices(ms[i], 511, 20));
        check_ways(matrices(ms[i], 1100, 20));
    }
}

static void empty(void) {
    check_ways(matrices(0, 5, 3));
    check_ways(matrices(5, 0, 3));
    check_ways(matrices(0, 0, 0));
    check_product(&(product){.a = {3, {0, 2, 3}, ROWS}, .b = {2, {3, 4}, ROWS}});
    check_product(&(product){.a = {1, {0}, ROWS}, .b = {1, {0}, ROWS}});
    /* A sum of no terms is zero, and the epilogue still runs. */
    for (int64_t m = 1; m < 20; m += 6) {
        product p = matrices(m, 21, 0);
        p.epilogue = &add;
        p.extras[p.n_extras++] = (operand){1, {21}, ROWS};
        check_ways(p);
    }
}

/* ---- ranks, batches, layouts ---- */

static void ranks_and_batches(void) {
    static const struct {
        operand a, b;
    } cases[] = {
        {{1, {7}, ROWS}, {1, {7}, ROWS}},
        {{1, {7}, ROWS}, {2, {7, 20}, ROWS}},
        {{2, {20, 7}, ROWS}, {1, {7}, ROWS}},
        {{2, {40, 70}, COLUMNS}, {1, {70}, ROWS}},
        {{1, {7}, ROWS}, {3, {3, 7, 20}, ROWS}},
        {{3, {3, 5, 7}, ROWS}, {1, {7}, ROWS}},
        {{4, {2, 3, 5, 7}, ROWS}, {1, {7}, STRIDED}},
        {{3, {3, 5, 7}, ROWS}, {2, {7, 20}, ROWS}},
        {{4, {2, 3, 5, 7}, ROWS}, {2, {7, 20}, ROWS}},
        {{3, {3, 5, 7}, ROWS}, {3, {3, 7, 20}, ROWS}},
        {{3, {3, 1, 7}, ROWS}, {3, {3, 7, 20}, ROWS}},
        {{3, {3, 5, 7}, ROWS}, {3, {3, 7, 1}, ROWS}},
        {{2, {5, 7}, ROWS}, {3, {3, 7, 1}, ROWS}},
        {{2, {5, 7}, ROWS}, {3, {3, 7, 4}, ROWS}},
        {{3, {1, 5, 7}, ROWS}, {3, {3, 7, 20}, ROWS}},
        {{3, {3, 5, 7}, ROWS}, {3, {1, 7, 20}, ROWS}},
        {{4, {2, 1, 5, 7}, ROWS}, {4, {1, 3, 7, 20}, ROWS}},
        {{4, {2, 3, 5, 7}, ROWS}, {3, {3, 7, 20}, ROWS}},
        {{3, {3, 5, 7}, ROWS}, {4, {2, 3, 7, 20}, ROWS}},
        {{4, {2, 3, 5, 7}, ROWS}, {4, {2, 1, 7, 20}, ROWS}},
        {{5, {2, 1, 2, 3, 4}, ROWS}, {6, {2, 1, 3, 2, 4, 5}, ROWS}},
        {{8, {1, 2, 1, 2, 1, 2, 3, 4}, ROWS}, {2, {4, 5}, ROWS}},
        {{4, {40, 12, 20, 16}, ROWS}, {4, {40, 12, 16, 20}, ROWS}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        product p = {.a = cases[i].a, .b = cases[i].b};
        check_product(&p);
        p.epilogue = &relu;
        check_product(&p);
        if (p.b.rank > 1) {
            transpose(&p);
            check_product(&p);
        }
    }
}

/* Batches of A that are not one run of rows, times one B, which is packed once for all. */
static void shared_b(void) {
    for (int repeat = 0; repeat < 40; repeat++) {
        product p = {.a = {4, {2, 3, 5, 7}, STRIDED}, .b = {2, {7, 20}, ROWS}};
        check_ways(p);
        p.a.dims[2] = 1;
        check_ways(p);
    }
}

static void strided(void) {
    for (int repeat = 0; repeat < 300; repeat++) {
        product p = {.a = {3,
                           {check_int(1, 3), check_int(1, 20), check_int(1, 40)},
                           (layout)check_int(0, 2)},
                     .alpha = check_int(0, 1) ? 0.125 : 0};
        p.b = (operand){3, {p.a.dims[0], p.a.dims[2], check_int(1, 70)}, (layout)check_int(0, 2)};
        if (check_int(0, 3) == 0)
            p.b.dims[2] = 1;
        if (check_int(0, 1))
            transpose(&p);
        check_product(&p);
    }
    product p = matrices(40, 150, 300); /* transposed A, copied by transposing */
    p.a.layout = COLUMNS;
    check_ways(p);
}

static void misaligned(void) {
    static const int64_t ms[] = {1, 5, 33};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        product p = matrices(ms[i], 150, 35);
        p.a.layout = p.b.layout = MISALIGNED;
        check_ways(p);
    }
}

static void alpha(void) {
    for (int64_t m = 1; m < 40; m += 6) {
        product p = matrices(m, 40, 1500);
        p.alpha = -0.37;
        check_ways(p);
    }
}

/* ---- epilogues ---- */

static void bias_and_residual(void) {
    static const int64_t ms[] = {1, 6, 16, 150};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        const int64_t m = ms[i], n = 133;
        const operand extras[] = {{1, {n}, ROWS},       {2, {m, n}, ROWS},   {2, {m, 1}, ROWS},
                                  {1, {1}, ROWS},       {0, {0}, ROWS},      {2, {m, n}, COLUMNS},
                                  {2, {m, n}, STRIDED}, {2, {1, n}, STRIDED}};
        for (size_t e = 0; e < sizeof extras / sizeof *extras; e++) {
            product p = matrices(m, n, 24);
            p.epilogue = &add;
            p.extras[p.n_extras++] = extras[e];
            check_ways(p);
        }
    }
}

static void epilogue_chain(void) {
    static const int64_t ms[] = {1, 4, 20, 300};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        product p = matrices(ms[i], 700, 20);
        p.epilogue = &chain;
        p.extras[p.n_extras++] = (operand){1, {700}, ROWS};
        p.extras[p.n_extras++] = (operand){2, {ms[i], 700}, ROWS};
        check_ways(p);
    }
}

/* Every tail of columns; sums in pieces, of which only the last has the epilogue, also if rows come
 * in several blocks. */
static void epilogue_head(void) {
    for (int64_t n = 1; n <= 65; n++) {
        const int64_t m = n == 16 ? 600 : 1 + n % 16, k = n % 16 ? 9 : 2100;
        product p = matrices(m, n, k);
        p.epilogue = &head;
        p.extras[p.n_extras++] = (operand){1, {n}, ROWS};
        p.extras[p.n_extras++] = (operand){2, {m, n}, ROWS};
        check_ways(p);
    }
}

static void epilogue_over_batches(void) {
    product p = {.a = {3, {3, 5, 7}, ROWS}, .b = {3, {3, 7, 20}, ROWS}, .epilogue = &add};
    p.n_extras = 1;
    p.extras[0] = (operand){3, {3, 1, 20}, ROWS};
    check_product(&p);
    p.extras[0] = (operand){3, {1, 5, 1}, ROWS};
    check_product(&p);
    p.b = (operand){2, {7, 20}, ROWS};
    check_product(&p);
    p.packed = true;
    check_product(&p);
    p.packed = false;
    /* One column: computed as a row. */
    p.b = (operand){2, {7, 1}, ROWS};
    check_product(&p);
    p.extras[0] = (operand){3, {3, 5, 1}, STRIDED};
    check_product(&p);
    p.b = (operand){1, {7}, ROWS};
    p.extras[0] = (operand){2, {3, 5}, STRIDED};
    check_product(&p);
    p.extras[0] = (operand){2, {3, 1}, ROWS};
    check_product(&p);
    p.a = (operand){3, {40, 50, 70}, ROWS};
    p.b = (operand){1, {70}, ROWS};
    p.extras[0] = (operand){1, {50}, ROWS};
    check_product(&p);
    p.a = (operand){2, {5, 7}, ROWS};
    p.b = (operand){3, {3, 7, 1}, ROWS};
    p.extras[0] = (operand){3, {3, 1, 1}, ROWS};
    check_product(&p);
}

/* ---- values ---- */

/* NaN and infinity reach only their row or column; above all they do not come from a panel's zeros.
 */
static void special_values(void) {
    static const float values[] = {NAN, INFINITY, -INFINITY, -0.0f, 1e-40f, 3e38f};
    static const int64_t ms[] = {1, 3, 17};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++)
            for (int way = 0; way < 3; way++) {
                product p = matrices(ms[i], 21, 19);
                if (way == 2)
                    transpose(&p);
                tensors t = make(&p);
                ((float *)t.inputs[0].data)[check_int(0, ms[i] * 19 - 1)] = values[v];
                ((float *)t.inputs[1].data)[check_int(0, 21 * 19 - 1)] = values[v];
                if (way == 1) {
                    t.inputs[1] = pack(&t, &t.b, false, ROWS);
                    t.inputs[1].format = TAPER_PANELS_1;
                    t.inputs[1].logical = t.b.shape;
                }
                CHECK(run(&t, &p, 1) == TAPER_OK, "not run");
                compare(&t, &p);
                release(&t);
            }
}

/* A row's bits do not depend on the rows around it. */
static void rows_independent(void) {
    product all = matrices(64, 100, 1300);
    all.packed = true;
    tensors whole = make(&all);
    CHECK(run(&whole, &all, 1) == TAPER_OK, "not run");
    float *c = check_alloc(sizeof(float) * 64 * 100, 0);
    for (int64_t m = 1; m < 64; m++) {
        tensors t = whole;
        t.inputs[0].shape[0] = m;
        t.output = check_tensor(c, TAPER_FLOAT32, 2, (int64_t[]){m, 100});
        CHECK(run(&t, &all, 1) == TAPER_OK, "not run");
        CHECK(memcmp(c, whole.output.data, (size_t)(m * 100) * sizeof *c) == 0,
              "%lld rows give other bits than 64", (long long)m);
    }
    check_free(c);
    release(&whole);
}

static void threads_same_bits(void) {
    static const struct {
        int64_t m, n, k;
    } sizes[] = {{1, 2000, 600},  {3, 1500, 300},  {13, 700, 400},  {64, 600, 300},
                 {500, 400, 200}, {300, 1100, 70}, {1000, 40, 1100}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int way = 0; way < 3; way++) {
            product p = matrices(sizes[i].m, sizes[i].n, sizes[i].k);
            p.packed = way == 1;
            if (way == 2)
                transpose(&p);
            p.epilogue = &chain;
            p.extras[p.n_extras++] = (operand){1, {sizes[i].n}, ROWS};
            p.extras[p.n_extras++] = (operand){2, {sizes[i].m, sizes[i].n}, ROWS};
            tensors t = make(&p);
            check_threads("MATMUL", NULL, t.inputs, 4, &t.output, &t.attrs);
            release(&t);
        }
    product p = {.a = {3, {60, 30, 40}, ROWS}, .b = {3, {60, 40, 50}, COLUMNS}};
    tensors t = make(&p);
    check_threads("MATMUL", NULL, t.inputs, 2, &t.output, &t.attrs);
    release(&t);
}

static void unsupported(void) {
    product p = matrices(4, 20, 6);
    p.packed = true;
    tensors t = make(&p);
    t.inputs[0].dtype = TAPER_FLOAT64;
    CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "float64");
    t.inputs[0].dtype = TAPER_FLOAT32;
    t.inputs[1].logical = (int64_t[]){6, 40};
    CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "fewer panels than columns need");
    t.inputs[1].logical = p.b.dims;
    static const taper_format others[] = {TAPER_PLAIN,      TAPER_PANELS_0, TAPER_GROUPED_PANELS,
                                          TAPER_WINOGRAD_2, TAPER_BLOCKS_8, TAPER_BLOCKS_4};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        t.inputs[1].format = others[i];
        CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "%s", taper_format_name(others[i]));
    }
    t.inputs[1].format = TAPER_PANELS_1;
    t.attrs.transpose_b = true;
    CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "packed and transposed");
    t.attrs.transpose_b = false;
    t.inputs[0].shape[1] = 5;
    CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "another k");
    t.inputs[0].shape[1] = 6;
    t.output.strides[0] = 21;
    CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "output with gaps");
    t.output.strides[0] = 20;
    t.inputs[1].dtype = TAPER_INT32;
    CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "packed integers");
    release(&t);
}

/* ---- benchmarks ---- */

static void bench_product(const char *name, product p) {
    tensors t = make(&p);
    bench_tensors(name, &p, &t);
}

static void bench_packed(void) {
    static const int64_t sizes[][3] = {
        {1024, 1024, 1024}, {128, 512, 512},   {32, 512, 512},   {16, 512, 512},  {8, 512, 512},
        {4, 512, 512},      {2, 512, 512},     {1, 512, 512},    {1, 2048, 2048}, {4, 2048, 2048},
        {16, 2048, 2048},   {128, 3072, 768},  {128, 768, 3072}, {512, 768, 768}, {64, 64, 64},
        {256, 384, 384},    {1000, 1000, 1000}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char name[64];
        product p = matrices(sizes[i][0], sizes[i][1], sizes[i][2]);
        p.packed = true;
        snprintf(name, sizeof name, "packed_%dx%dx%d", (int)sizes[i][0], (int)sizes[i][1],
                 (int)sizes[i][2]);
        bench_product(name, p);
    }
}

static void bench_unpacked(void) {
    static const int64_t sizes[][3] = {{1, 2048, 2048},   {1, 50257, 768}, {4, 2048, 2048},
                                       {8, 1024, 1024},   {16, 512, 512},  {128, 512, 512},
                                       {1024, 1024, 1024}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int way = 0; way < 2; way++) {
            char name[64];
            product p = matrices(sizes[i][0], sizes[i][1], sizes[i][2]);
            if (way == 1)
                transpose(&p);
            snprintf(name, sizeof name, "%s_%dx%dx%d", way ? "transposed" : "unpacked",
                     (int)sizes[i][0], (int)sizes[i][1], (int)sizes[i][2]);
            bench_product(name, p);
        }
}

static void bench_batched(void) {
    product p = {.a = {4, {1, 12, 128, 64}, ROWS}, .b = {4, {1, 12, 64, 128}, ROWS}};
    transpose(&p);
    bench_product("scores_12x128x128x64", p);
    p = (product){.a = {4, {1, 12, 128, 128}, ROWS}, .b = {4, {1, 12, 128, 64}, ROWS}};
    bench_product("values_12x128x64x128", p);
    p = (product){.a = {3, {64, 1, 64}, ROWS}, .b = {3, {64, 64, 256}, ROWS}};
    bench_product("rows_64x1x256x64", p);
    p = (product){.a = {2, {4096, 768}, ROWS}, .b = {1, {768}, ROWS}};
    bench_product("vector_4096x768", p);
}

static void bench_epilogues(void) {
    static const int64_t sizes[][3] = {{1, 2048, 512}, {32, 2048, 512}, {128, 3072, 768}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int way = 0; way < 3; way++) {
            static const char *const names[] = {"plain", "bias", "bias_gelu_residual"};
            char name[64];
            product p = matrices(sizes[i][0], sizes[i][1], sizes[i][2]);
            p.packed = true;
            p.epilogue = way == 0 ? NULL : way == 1 ? &add : &chain;
            p.n_extras = way;
            p.extras[0] = (operand){1, {sizes[i][1]}, ROWS};
            p.extras[1] = (operand){2, {sizes[i][0], sizes[i][1]}, ROWS};
            snprintf(name, sizeof name, "%s_%dx%dx%d", names[way], (int)sizes[i][0],
                     (int)sizes[i][1], (int)sizes[i][2]);
            bench_product(name, p);
        }
}
int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_variant", every_variant},
        {"variants_differ", variants_differ},
        {"every_m_remainder", every_m_remainder},
        {"every_n_tail", every_n_tail},
        {"every_k_tail", every_k_tail},
        {"long_k", long_k},
        {"many_rows", many_rows},
        {"many_columns", many_columns},
        {"empty", empty},
        {"ranks_and_batches", ranks_and_batches},
        {"shared_b", shared_b},
        {"strided", strided},
        {"misaligned", misaligned},
        {"alpha", alpha},
        {"bias_and_residual", bias_and_residual},
        {"epilogue_chain", epilogue_chain},
        {"epilogue_head", epilogue_head},
        {"epilogue_over_batches", epilogue_over_batches},
        {"special_values", special_values},
        {"rows_independent", rows_independent},
        {"threads_same_bits", threads_same_bits},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {
        {"packed", bench_packed},
        {"unpacked", bench_unpacked},
        {"batched", bench_batched},
        {"epilogues", bench_epilogues},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
