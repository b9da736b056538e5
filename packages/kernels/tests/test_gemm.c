/* Compares MATMUL with sums in double. A test draws a node from a few sizes and layouts, computes
 * it, and checks each element within the rounding error of its own products. */
#include "check.h"
#include "gemm/kernels.inc"

#include <math.h>

CHECK_ATTRS(matmul)

enum { MAX_EXTRAS = 3 };

/* The layout of a tensor in memory. */
typedef enum layout {
    ROWS,      /* contiguous */
    COLUMNS,   /* the last two dims swapped */
    STRIDED,   /* any order of dims, with gaps, steps backwards and broadcasts */
    MISALIGNED /* contiguous, 4 bytes off a cache line */
} layout;

typedef struct operand {
    int rank;
    int64_t dims[TAPER_MAX_RANK];
    layout layout;
} operand;

/* An epilogue: the program, and what it computes. */
typedef struct epilogue {
    const char *code[4];
    int64_t n_code;
    int64_t args[8];
    int64_t n_args;
    double (*reference)(double x, const double *extras);
} epilogue;

static double apply_none(double x, const double *extras) {
    (void)extras;
    return x;
}
static double apply_add(double x, const double *extras) { return x + extras[0]; }
static double apply_relu(double x, const double *extras) {
    (void)extras;
    return x > 0 || isnan(x) ? x : 0;
}
/* A chain that reads its block, two extras and a scalar, one of them twice. */
static double apply_chain(double x, const double *extras) {
    const double y = x + extras[0];
    return y * 0.5 * (1 + erf(y * 0.70710678118654752)) * 3 + extras[1];
}
static double apply_head(double x, const double *extras) {
    const double y = x + extras[0] + extras[1];
    return isnan(y) ? y : fmin(3, fmax(0, y));
}
static const taper_scalar three = {3.0, 3};
static const epilogue none = {{NULL}, 0, {0}, 0, apply_none};
static const epilogue add = {{"ADD"}, 1, {0, 1}, 2, apply_add};
static const epilogue relu = {{"RELU"}, 1, {0}, 1, apply_relu};
static const epilogue chain = {
    {"ADD", "GELU", "MUL", "ADD"}, 4, {0, 1, 3, 4, -1, 5, 2}, 7, apply_chain};
/* Everything that a tile does in registers, and nothing else: a bias, a residual, two bounds. */
static const epilogue head = {
    {"ADD", "ADD", "RELU", "MINIMUM"}, 4, {0, 1, 3, 2, 4, 5, -1}, 7, apply_head};

typedef struct product {
    operand a, b;
    bool transpose_b;
    bool packed;              /* B is given packed; b has it before */
    double alpha;             /* 0: 1 */
    const epilogue *epilogue; /* NULL: none */
    operand extras[MAX_EXTRAS];
    int n_extras;
} product;

/* The tensors of a product. b is B before packing. */
typedef struct tensors {
    taper_tensor inputs[2 + MAX_EXTRAS], b, output;
    void *memory[5 + MAX_EXTRAS];
    int n_memory;
    struct matmul_attrs attrs;
} tensors;

static float *keep(tensors *t, int64_t n, size_t misalign) {
    float *p = check_alloc((size_t)n * sizeof(float), misalign);
    t->memory[t->n_memory++] = p;
    return p;
}

static taper_tensor make_operand(tensors *t, const operand *o) {
    taper_tensor x = check_tensor(NULL, TAPER_FLOAT32, o->rank, o->dims);
    int64_t numel = 1, offset = 0;
    int order[TAPER_MAX_RANK] = {0};
    for (int d = 0; d < o->rank; d++) {
        const int other = o->layout == STRIDED ? (int)check_int(0, d) : d;
        order[d] = order[other];
        order[other] = d;
    }
    if (o->layout == COLUMNS && o->rank > 1) {
        order[o->rank - 2] = o->rank - 1;
        order[o->rank - 1] = o->rank - 2;
    }
    for (int i = o->rank - 1; i >= 0; i--) {
        const int d = order[i];
        const int64_t kind = o->layout == STRIDED ? check_int(0, 5) : 5;
        const int64_t step = kind == 0 ? 0 : kind == 1 ? 3 : kind == 2 ? -1 : 1;
        if (o->dims[d] > 1 && step < 0)
            offset += (o->dims[d] - 1) * numel;
        x.strides[d] = step * numel;
        numel *= o->dims[d] == 0 ? 0
                 : step == 0     ? 1
                                 : (o->dims[d] - 1) * (step < 0 ? -step : step) + 1;
    }
    float *p = keep(t, numel, o->layout == MISALIGNED ? 4 : 0);
    check_fill_uniform(p, numel, -1, 1);
    x.data = p + offset;
    return x;
}

/* b: [K, N] -> [ceil(N/16)][K][16], zero beyond N. */
static taper_tensor pack(tensors *t, const taper_tensor *b, bool transposed, layout l) {
    const int n_dim = transposed ? 0 : 1;
    const int64_t k = b->shape[1 - n_dim], n = b->shape[n_dim], panels = (n + 15) / 16;
    float *p = keep(t, panels * k * 16, l == MISALIGNED ? 4 : 0);
    for (int64_t i = 0; i < panels * k * 16; i++) {
        const int64_t column = i / (k * 16) * 16 + i % 16, row = i / 16 % k;
        p[i] =
            column < n
                ? ((const float *)b->data)[row * b->strides[1 - n_dim] + column * b->strides[n_dim]]
                : 0.0f;
    }
    return check_tensor(p, TAPER_FLOAT32, 3, (int64_t[]){panels, k, 16});
}

static tensors make(const product *p) {
    tensors t = {.n_memory = 0};
    t.inputs[0] = make_operand(&t, &p->a);
    t.inputs[1] = t.b = make_operand(&t, &p->b);
    const int n_dim = p->b.rank - (p->transpose_b ? 2 : 1);
    if (p->packed) {
        t.inputs[1] = pack(&t, &t.b, p->transpose_b, p->b.layout);
        t.inputs[1].format = p->transpose_b ? TAPER_PANELS_0 : TAPER_PANELS_1;
        t.inputs[1].logical = p->b.dims;
    }
    for (int i = 0; i < p->n_extras; i++)
        t.inputs[2 + i] = make_operand(&t, &p->extras[i]);

    const int a_batch = p->a.rank > 2 ? p->a.rank - 2 : 0;
    const int b_batch = p->b.rank > 2 ? p->b.rank - 2 : 0;
    int64_t dims[TAPER_MAX_RANK];
    int rank = 0;
    for (int d = a_batch > b_batch ? a_batch : b_batch; d > 0; d--) {
        const int64_t da = d <= a_batch ? p->a.dims[a_batch - d] : 1;
        const int64_t db = d <= b_batch ? p->b.dims[b_batch - d] : 1;
        dims[rank++] = da == 1 ? db : da;
    }
    if (p->a.rank > 1)
        dims[rank++] = p->a.dims[p->a.rank - 2];
    if (p->b.rank > 1)
        dims[rank++] = p->b.dims[n_dim];
    t.output = check_tensor(NULL, TAPER_FLOAT32, rank, dims);
    t.output.data = keep(&t, check_numel(&t.output), p->a.layout == MISALIGNED ? 4 : 0);

    const epilogue *e = p->epilogue ? p->epilogue : &none;
    t.attrs = (struct matmul_attrs){.alpha = p->alpha != 0 ? p->alpha : 1,
                                    .transpose_b = p->transpose_b,
                                    .code = {e->code, e->n_code},
                                    .args = {e->args, e->n_args},
                                    .scalars = {&three, 1}};
    return t;
}

static void release(tensors *t) {
    for (int i = 0; i < t->n_memory; i++)
        check_free(t->memory[i]);
}

static taper_status run(tensors *t, const product *p, int workers) {
    return check_run("MATMUL", NULL, t->inputs, 2 + p->n_extras, &t->output, &t->attrs, workers);
}

/* Element of x at the output's index, broadcast; the output's last `skip` dims are not batch dims.
 */
static const float *broadcast_at(const taper_tensor *x, int x_dims, const int64_t *index,
                                 int dims) {
    int64_t at = 0;
    for (int d = 0; d < x_dims; d++)
        at += x->shape[d] == 1 ? 0 : index[dims - x_dims + d] * x->strides[d];
    return (const float *)x->data + at;
}

static void compare(const tensors *t, const product *p) {
    const taper_tensor *a = &t->inputs[0], *b = &t->b, *c = &t->output;
    const epilogue *e = p->epilogue ? p->epilogue : &none;
    const bool a_matrix = a->rank > 1, b_matrix = b->rank > 1;
    const int batch = c->rank - a_matrix - b_matrix;
    const int b_col = b->rank - (p->transpose_b ? 2 : 1), b_k = b->rank - (p->transpose_b ? 1 : 2);
    const int64_t k = a->shape[a->rank - 1], a_k_stride = a->strides[a->rank - 1];
    const int64_t b_k_stride = b->strides[b_matrix ? b_k : 0];
    const int64_t numel = check_numel(c);
    for (int64_t i = 0; i < numel; i++) {
        int64_t index[TAPER_MAX_RANK];
        for (int64_t d = c->rank - 1, rest = i; d >= 0; rest /= c->shape[d--])
            index[d] = rest % c->shape[d];
        const float *pa = broadcast_at(a, a_matrix ? a->rank - 2 : 0, index, batch);
        const float *pb = broadcast_at(b, b_matrix ? b->rank - 2 : 0, index, batch);
        pa += a_matrix ? index[batch] * a->strides[a->rank - 2] : 0;
        pb += b_matrix ? index[c->rank - 1] * b->strides[b_col] : 0;
        double sum = 0, size = 0, extras[MAX_EXTRAS];
        for (int64_t kk = 0; kk < k; kk++) {
            const double x = (double)pa[kk * a_k_stride] * (double)pb[kk * b_k_stride];
            sum += x;
            size += fabs(x);
        }
        for (int x = 0; x < p->n_extras; x++)
            extras[x] = *broadcast_at(&t->inputs[2 + x], t->inputs[2 + x].rank, index, c->rank);
        const double want = e->reference(t->attrs.alpha * sum, extras);
        /* Roundings of k products go in all directions; the epilogues have slopes below 4 and
         * values below 4 * (size + 2). */
        const double bound =
            0x1p-24 * ((8 + 2 * sqrt((double)k)) * fabs(t->attrs.alpha) * size * 4 + 32);
        const float got = ((const float *)c->data)[i];
        const bool ok = isnan(want)          ? isnan(got)
                        : isinf((float)want) ? got == (float)want
                                             : fabs(got - want) <= bound;
        CHECK(ok, "element %lld of %lld, k %lld: got %.9g, want %.9g, bound %.3g", (long long)i,
              (long long)numel, (long long)k, got, want, bound);
        if (!ok)
            return;
    }
}

static void check_product(const product *p) {
    tensors t = make(p);
    const taper_status status = run(&t, p, 1);
    CHECK(status == TAPER_OK, "%s", taper_status_string(status));
    if (status == TAPER_OK)
        compare(&t, p);
    release(&t);
}

static product matrices(int64_t m, int64_t n, int64_t k) {
    return (product){.a = {2, {m, k}, ROWS}, .b = {2, {k, n}, ROWS}};
}

static void transpose(product *p) {
    const int64_t k = p->b.dims[p->b.rank - 2];
    p->b.dims[p->b.rank - 2] = p->b.dims[p->b.rank - 1];
    p->b.dims[p->b.rank - 1] = k;
    p->transpose_b = true;
}

/* Every form in which B can be given. */
static void check_ways(product p) {
    check_product(&p);
    p.packed = true;
    check_product(&p);
    transpose(&p);
    check_product(&p);
    p.packed = false;
    check_product(&p);
}

/* ---- integers ---- */

/* Tensors of integers of all magnitudes, so that sums wrap around. */
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
static void integer_shapes(void) {
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

static void integer_batches(void) {
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

static void integers_not_served(void) {
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
    static const int64_t ms[] = {1, 3, 33, 150, 300}, ns[] = {1, 5, 32, 33},
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
    static const int64_t ns[] = {1, 17, 40, 64}, ks[] = {1, 16, 37};
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

/* A random 16-bit float with any sign and mantissa; the exponents are those of some small numbers,
 * and of denormals. */
static uint16_t random_half(taper_dtype dtype) {
    const int64_t low = dtype == TAPER_FLOAT16 ? 0 : 120 << 7,
                  step = dtype == TAPER_FLOAT16 ? 10 : 7;
    return (uint16_t)((low + (check_int(0, 4) << step)) | (check_int(0, 0xffff) & 0x807f));
}

/* Writes a random level into a line of k = l of a block; returns it without its middle. */
static float set_level(uint8_t *lines, int64_t l, int column, int bits) {
    const int64_t together = 32 / bits, in_word = l % together;
    uint8_t *byte = lines + l / together * 64 + column * 4 + in_word % 4;
    const int64_t level = check_int(bits == 4 ? 0 : -128, bits == 4 ? 15 : 127);
    *byte = (uint8_t)(*byte | (uint8_t)level << (bits == 4 ? in_word / 4 * 4 : 0));
    return (float)(bits == 4 ? level - 8 : level);
}

/* Writes a multiple of 1/8 as a number of a dtype of scales. */
static void set_scale(void *to, int i, taper_dtype dtype, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t half =
        dtype == TAPER_BFLOAT16 || value == 0
            ? (uint16_t)(bits >> 16)
            : (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) |
                         (bits >> 13 & 0x3ff));
    if (dtype == TAPER_FLOAT32)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = half;
}

/* Formats of B other than float32: each must give the same bits as float32. */
typedef struct narrow {
    const char *name;
    taper_dtype dtype;
    taper_format format;
    int bits; /* of a level, in blocks */
    enum { SYMMETRIC, ZEROS, OFFSETS } shift;
} narrow;

static const narrow narrows[] = {
    {"f16", TAPER_FLOAT16, TAPER_PANELS_1, 0, SYMMETRIC},
    {"bf16", TAPER_BFLOAT16, TAPER_PANELS_1, 0, SYMMETRIC},
    {"i8", TAPER_INT8, TAPER_PANELS_1, 0, SYMMETRIC},
    {"i8 by f32", TAPER_FLOAT32, TAPER_BLOCKS_8, 8, SYMMETRIC},
    {"i8 by f16, zeros", TAPER_FLOAT16, TAPER_BLOCKS_8, 8, ZEROS},
    {"i8 by bf16, offsets", TAPER_BFLOAT16, TAPER_BLOCKS_8, 8, OFFSETS},
    {"u4 by f16", TAPER_FLOAT16, TAPER_BLOCKS_4, 4, SYMMETRIC},
    {"u4 by f32, zeros", TAPER_FLOAT32, TAPER_BLOCKS_4, 4, ZEROS},
    {"u4 by bf16, zeros", TAPER_BFLOAT16, TAPER_BLOCKS_4, 4, ZEROS},
    {"u4 by f32, offsets", TAPER_FLOAT32, TAPER_BLOCKS_4, 4, OFFSETS},
};
enum { NARROWS = sizeof narrows / sizeof *narrows };

/* The largest number of k in a block of a sum over k. */
static int64_t block_of(int64_t k) {
    int64_t block = 128;
    while (k % block != 0)
        block /= 2;
    return block;
}

/* B in random levels with random scales, and zero points or offsets; the packed float32 of t gets
 * their values. All of these are exact, so that no level fuses what another rounds. */
static taper_tensor level_weight(tensors *t, const narrow *kind, size_t misalign) {
    const taper_tensor *b = &t->inputs[1];
    const int64_t panels = b->shape[0], k = b->shape[1], block = block_of(k);
    const int64_t size = (int64_t)taper_dtype_size(kind->dtype), lines = 2 * kind->bits * block;
    const int64_t beside = kind->shift == SYMMETRIC ? 0
                           : kind->shift == ZEROS   ? 2 * kind->bits
                                                    : 16 * size;
    const int64_t head = 16 * size + beside, bytes = head + lines;
    uint8_t *memory = check_alloc((size_t)(panels * (k / block) * bytes), misalign);
    t->memory[t->n_memory++] = memory;
    for (int64_t i = 0; i < panels * (k / block); i++) {
        uint8_t *at = memory + i * bytes, *shifts = at + 16 * size;
        memset(at, 0, (size_t)bytes);
        float *value = (float *)b->data + i * block * 16;
        for (int c = 0; c < 16; c++) {
            const float scale = (float)check_int(1, 8) * 0.125f;
            const int64_t zero = check_int(-8, 7);
            const float offset = (float)check_int(-16, 16) * 0.125f;
            set_scale(at, c, kind->dtype, scale);
            if (kind->shift == OFFSETS)
                set_scale(shifts, c, kind->dtype, offset);
            else if (kind->shift == ZEROS && kind->bits == 8)
                shifts[c] = (uint8_t)zero;
            else if (kind->shift == ZEROS)
                shifts[c % 2 * 4 + c / 4] |= (uint8_t)((zero + 8) << c / 2 % 2 * 4);
            for (int64_t l = 0; l < block; l++) {
                const float level = set_level(at + head, l, c, kind->bits);
                value[l * 16 + c] = kind->shift == ZEROS     ? (level - (float)zero) * scale
                                    : kind->shift == OFFSETS ? level * scale + offset
                                                             : level * scale;
            }
        }
    }
    const int64_t shape[] = {panels, k / block, bytes / size};
    taper_tensor stored = check_tensor(memory, kind->dtype, 3, shape);
    stored.format = kind->format;
    stored.logical = b->logical;
    return stored;
}

/* B in random numbers of a narrow dtype; the packed float32 of t gets their values. */
static taper_tensor narrow_weight(tensors *t, const narrow *kind, bool misaligned) {
    const taper_dtype dtype = kind->dtype;
    const size_t misalign = misaligned ? taper_dtype_size(dtype) : 0;
    if (kind->bits)
        return level_weight(t, kind, misalign);
    const taper_tensor *b = &t->inputs[1];
    const int64_t numel = check_numel(b);
    void *memory = check_alloc((size_t)numel * taper_dtype_size(dtype), misalign);
    t->memory[t->n_memory++] = memory;
    for (int64_t i = 0; i < numel; i++) {
        float *value = (float *)b->data + i;
        const bool beyond = *value == 0; /* the zeros beyond n stay */
        if (dtype == TAPER_INT8) {
            int8_t *to = (int8_t *)memory + i;
            *to = beyond ? 0 : (int8_t)check_int(-128, 127);
            *value = *to;
        } else {
            uint16_t *to = (uint16_t *)memory + i;
            *to = beyond ? 0 : random_half(dtype);
            *value = check_from_half(dtype, *to);
        }
    }
    taper_tensor narrow = check_tensor(memory, dtype, 3, b->shape);
    narrow.format = b->format;
    narrow.logical = b->logical;
    return narrow;
}

/* Gives the same bits as a float32 operand with the same numbers. */
static void check_narrow(product p, const narrow *kind) {
    p.packed = true;
    if (kind->bits && (p.b.dims[0] == 0 || p.b.dims[0] % 8 != 0)) /* no blocks */
        return;
    tensors t = make(&p);
    const taper_tensor b = narrow_weight(&t, kind, p.b.layout == MISALIGNED);
    const size_t bytes = (size_t)check_numel(&t.output) * sizeof(float);
    float *want = check_alloc(bytes, 0);
    CHECK(run(&t, &p, 1) == TAPER_OK, "not run");
    memcpy(want, t.output.data, bytes);
    memset(t.output.data, 0xff, bytes);
    t.inputs[1] = b;
    CHECK(run(&t, &p, 1) == TAPER_OK, "not run");
    CHECK(memcmp(want, t.output.data, bytes) == 0, "%s: %lld columns, sums of %lld: other bits",
          kind->name, (long long)p.b.dims[1], (long long)p.b.dims[0]);
    if (p.b.dims[0] == 304)
        check_threads("MATMUL", NULL, t.inputs, 2 + p.n_extras, &t.output, &t.attrs);
    check_free(want);
    release(&t);
}

static void narrow_b(void) {
    static const int64_t ks[] = {0, 1, 7, 64, 304, 2176};
    for (int i = 0; i < NARROWS; i++) {
        for (int64_t m = 1; m <= 17; m++)
            for (int64_t n = 1; n <= 130; n += m == 1 ? 1 : 13)
                check_narrow(
                    matrices(m, n, narrows[i].bits ? 8 * (1 + (m + n) % 9) : ks[(m + n) % 4]),
                    &narrows[i]);
        static const int64_t ms[] = {1, 2, 6, 7, 40, 300};
        for (size_t j = 0; j < sizeof ms / sizeof *ms; j++)
            for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
                product p = matrices(ms[j], 333, ks[k]);
                p.b.layout = k % 2 ? MISALIGNED : ROWS;
                check_narrow(p, &narrows[i]);
                p.a.layout = COLUMNS;
                p.alpha = -0.37;
                p.epilogue = k % 2 ? &head : &chain;
                p.n_extras = 2;
                p.extras[0] = (operand){1, {333}, ROWS};
                p.extras[1] = (operand){2, {ms[j], 333}, ROWS};
                check_narrow(p, &narrows[i]);
            }
        product p = {.a = {4, {2, 3, 5, 7}, STRIDED}, .b = {2, {7, 20}, ROWS}};
        check_narrow(p, &narrows[i]);
    }
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
    for (int i = 0; i < NARROWS; i++) {
        if (!narrows[i].bits)
            continue;
        p = matrices(4, 20, 64);
        p.packed = true;
        t = make(&p);
        taper_tensor *b = &t.inputs[1];
        const taper_tensor whole = *b = level_weight(&t, &narrows[i], 0);
        CHECK(run(&t, &p, 1) == TAPER_OK, "%s", narrows[i].name);
        t.attrs.transpose_b = true;
        CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "%s, transposed", narrows[i].name);
        t.attrs.transpose_b = false;
        for (int d = 0; d < 3; d++) {
            b->shape[d] += d == 2 ? -1 : 1;
            CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "%s, another dim %d", narrows[i].name, d);
            *b = whole;
        }
        b->logical = (int64_t[]){128, 20};
        CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "%s, another k", narrows[i].name);
        release(&t);
    }
    p = matrices(4, 20, 6);
    t = make(&p);
    t.inputs[1].dtype = TAPER_BFLOAT16;
    CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "16-bit floats that are not packed");
    release(&t);
}

/* ---- benchmarks ---- */

/* kind: of B; NULL: float32. */
static void bench_element(const char *name, product p, const narrow *kind) {
    tensors t = make(&p);
    if (kind)
        t.inputs[1] = narrow_weight(&t, kind, false);
    const double flops = 2.0 * (double)check_numel(&t.output) * (double)p.a.dims[p.a.rank - 1];
    double bytes = 4.0 * (double)check_numel(&t.output);
    for (int i = 0; i < 2 + p.n_extras; i++)
        bytes += (double)(taper_dtype_size(t.inputs[i].dtype) * (size_t)check_numel(&t.inputs[i]));
    check_bench_op(name, "MATMUL", NULL, t.inputs, 2 + p.n_extras, &t.output, &t.attrs, flops,
                   bytes);
    release(&t);
}

static void bench_product(const char *name, product p) { bench_element(name, p, NULL); }

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

/* A row reads a half, a quarter or an eighth of the bytes. */
static void bench_narrow(void) {
    static const int64_t sizes[][3] = {
        {1, 2048, 2048}, {1, 4096, 4096}, {4, 2048, 2048}, {16, 2048, 2048}, {64, 2048, 2048}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int d = -1; d < NARROWS; d++) {
            char name[64];
            product p = matrices(sizes[i][0], sizes[i][1], sizes[i][2]);
            p.packed = true;
            snprintf(name, sizeof name, "%s_%dx%dx%d", d < 0 ? "f32" : narrows[d].name,
                     (int)sizes[i][0], (int)sizes[i][1], (int)sizes[i][2]);
            bench_element(name, p, d < 0 ? NULL : &narrows[d]);
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
        {"integer_shapes", integer_shapes},
        {"integer_batches", integer_batches},
        {"integers_not_served", integers_not_served},
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
        {"narrow", narrow_b},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {
        {"packed", bench_packed},   {"narrow", bench_narrow},       {"unpacked", bench_unpacked},
        {"batched", bench_batched}, {"epilogues", bench_epilogues},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
