/* Compares MATMUL of int32 and int64 with sums that wrap around. */
#include "gemm_case.h"

/* Tensors of integers of all magnitudes. */
typedef struct integers {
    taper_tensor inputs[2], output;
    void *memory[3];
    taper_dtype dtype;
} integers;

static uint64_t integer_at(const integers *t, const taper_tensor *x, int64_t at) {
    return t->dtype == TAPER_INT32 ? ((uint32_t *)x->data)[at] : ((uint64_t *)x->data)[at];
}

/* A tensor whose last two dims are swapped in memory, or whose elements are `gap` apart. */
static taper_tensor make_integers(integers *t, int i, const operand *o) {
    taper_tensor x = check_tensor(NULL, t->dtype, o->rank, o->dims);
    const size_t size = t->dtype == TAPER_INT32 ? 4 : 8;
    const int64_t gap = o->layout == STRIDED ? 3 : 1;
    for (int d = 0; d < o->rank; d++)
        x.strides[d] *= gap;
    if (o->layout == COLUMNS && o->rank > 1) {
        x.strides[o->rank - 1] = o->dims[o->rank - 2];
        x.strides[o->rank - 2] = 1;
    }
    const int64_t n = check_numel(&x) * gap;
    x.data = t->memory[i] = check_alloc((size_t)n * size, o->layout == MISALIGNED ? size : 0);
    for (int64_t at = 0; at < n; at++) {
        const uint64_t value = (uint64_t)check_int(INT32_MIN, INT32_MAX) << 31 ^
                               (uint64_t)check_int(INT32_MIN, INT32_MAX);
        if (t->dtype == TAPER_INT32)
            ((uint32_t *)x.data)[at] = (uint32_t)value;
        else
            ((uint64_t *)x.data)[at] = value;
    }
    return x;
}

/* One product, whose operands have at most one batch dim; a B of rank 1 is a column. */
static void check_integers(const product *p, taper_dtype dtype) {
    integers t = {.dtype = dtype};
    taper_tensor *a = &t.inputs[0], *b = &t.inputs[1];
    *a = make_integers(&t, 0, &p->a);
    *b = make_integers(&t, 1, &p->b);
    const int rank = p->a.rank > p->b.rank ? p->a.rank : p->b.rank;
    const int b_k = p->b.rank == 1 ? 0 : p->b.rank - (p->transpose_b ? 1 : 2);
    const int b_n = p->b.rank - (p->transpose_b ? 2 : 1);
    const int64_t a_batch = p->a.rank == 3 ? a->shape[0] : 1;
    const int64_t b_batch = p->b.rank == 3 ? b->shape[0] : 1;
    const int64_t batch = a_batch == 1 ? b_batch : a_batch;
    const int64_t m = a->shape[p->a.rank - 2], k = a->shape[p->a.rank - 1];
    const int64_t n = p->b.rank == 1 ? 1 : b->shape[b_n];
    int64_t dims[3] = {batch, m, n};
    t.output = check_tensor(NULL, dtype, rank - (p->b.rank == 1), dims + (rank == 2));
    t.output.data = t.memory[2] =
        check_alloc((size_t)check_numel(&t.output) * (dtype == TAPER_INT32 ? 4 : 8), 0);
    const struct matmul_attrs attrs = {.alpha = 1, .transpose_b = p->transpose_b};
    check_threads("MATMUL", NULL, t.inputs, 2, &t.output, &attrs);
    const int64_t a_step = a_batch > 1 ? a->strides[0] : 0;
    const int64_t b_step = b_batch > 1 ? b->strides[0] : 0;
    const int64_t b_n_stride = p->b.rank == 1 ? 0 : b->strides[b_n];
    for (int64_t i = 0; i < batch * m * n; i++) {
        const int64_t item = i / (m * n), row = i / n % m, col = i % n;
        const int64_t a_row = item * a_step + row * a->strides[p->a.rank - 2];
        const int64_t b_col = item * b_step + col * b_n_stride;
        uint64_t want = 0;
        for (int64_t kk = 0; kk < k; kk++)
            want += integer_at(&t, a, a_row + kk * a->strides[p->a.rank - 1]) *
                    integer_at(&t, b, b_col + kk * b->strides[b_k]);
        const uint64_t got = integer_at(&t, &t.output, i);
        want = dtype == TAPER_INT32 ? (uint32_t)want : want;
        CHECK(got == want, "%d x %d x %d at %d: %llx, not %llx", (int)m, (int)n, (int)k, (int)i,
              (unsigned long long)got, (unsigned long long)want);
        if (got != want)
            break;
    }
    for (int i = 0; i < 3; i++)
        check_free(t.memory[i]);
}

static void check_integers_of_both(const product *p) {
    check_integers(p, TAPER_INT32);
    check_integers(p, TAPER_INT64);
}

/* Sizes around tiles, the rows that share a copy, the columns of a unit, and the pieces of a sum.
 */
static void shapes(void) {
    static const int64_t ms[] = {0, 1, 3, 4, 8, 9, 70}, ns[] = {0, 1, 5, 16, 33, 130, 300},
                         ks[] = {0, 1, 7, 256, 300};
    static const layout layouts[] = {ROWS, COLUMNS, STRIDED, MISALIGNED};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t j = 0; j < sizeof ns / sizeof *ns; j++)
            for (size_t l = 0; l < sizeof ks / sizeof *ks; l++) {
                product p = matrices(ms[i], ns[j], ks[l]);
                if (ms[i] * ns[j] * ks[l] > 1 << 20)
                    continue;
                p.a.layout = layouts[(i + j + l) % 4];
                p.b.layout = layouts[(i + l) % 4];
                check_integers_of_both(&p);
                transpose(&p);
                check_integers_of_both(&p);
            }
}

static void batches(void) {
    static const product products[] = {
        {.a = {3, {5, 3, 7}, ROWS}, .b = {2, {7, 9}, ROWS}},
        {.a = {2, {3, 7}, COLUMNS}, .b = {3, {5, 7, 9}, STRIDED}},
        {.a = {3, {5, 3, 7}, STRIDED}, .b = {3, {5, 7, 9}, COLUMNS}},
        {.a = {3, {1, 3, 7}, ROWS}, .b = {3, {5, 7, 9}, ROWS}},
        {.a = {3, {5, 3, 7}, ROWS}, .b = {3, {1, 9, 7}, ROWS}, .transpose_b = true},
        {.a = {3, {0, 3, 7}, ROWS}, .b = {3, {1, 7, 9}, ROWS}},
        {.a = {3, {400, 30, 20}, ROWS}, .b = {3, {400, 20, 10}, ROWS}}, /* several tasks */
        {.a = {2, {300, 70}, ROWS}, .b = {1, {70}, ROWS}},
        {.a = {3, {5, 30, 70}, COLUMNS}, .b = {1, {70}, STRIDED}},
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        check_integers_of_both(&products[i]);
}

static void unsupported(void) {
    int32_t data[4] = {0};
    static const char *const code[] = {"ADD"};
    const taper_tensor x = check_tensor(data, TAPER_INT32, 2, (int64_t[]){2, 2});
    const taper_tensor wide = check_tensor(data, TAPER_INT64, 2, (int64_t[]){1, 2});
    const taper_tensor tall = check_tensor(data, TAPER_INT32, 2, (int64_t[]){1, 4});
    const struct matmul_attrs plain = {.alpha = 1}, scaled = {.alpha = 2},
                              then = {.alpha = 1, .code = {code, 1}};
    const taper_tensor same[] = {x, x}, other[] = {x, wide}, wrong[] = {x, tall};
    CHECK(check_run("MATMUL", NULL, same, 2, &x, &scaled, 1) == TAPER_UNSUPPORTED, "alpha");
    CHECK(check_run("MATMUL", NULL, same, 2, &x, &then, 1) == TAPER_UNSUPPORTED, "an epilogue");
    CHECK(check_run("MATMUL", NULL, other, 2, &x, &plain, 1) == TAPER_UNSUPPORTED, "two dtypes");
    CHECK(check_run("MATMUL", NULL, wrong, 2, &x, &plain, 1) == TAPER_UNSUPPORTED, "shapes");
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"shapes", shapes},
        {"batches", batches},
        {"unsupported", unsupported},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, NULL, 0);
}
