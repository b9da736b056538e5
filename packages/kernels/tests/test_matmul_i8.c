/*
 * Compares MATMUL of bytes with the exact sums, on each kernel that this CPU can run. Sums are
 * integers, so everything must be equal.
 *
 * Its benchmarks print the level's int8 peak first, and beside each product the same one in
 * float32.
 */
#include "check.h"
#include "gemm/kernels.inc"
#include "packed.h"
#include "taper/machine.h"

CHECK_ATTRS(matmul)

static const char *const kernels[] = {"i8_matmul_amx", "i8_matmul_vnni", "i8_matmul"};
enum { KERNELS = sizeof kernels / sizeof *kernels, MAX_EXTRAS = 5 };

/*
 * SEVEN_BITS: activations from 0 to 127, which some engines multiply in another way; LAST: but for
 * the last. SMALL: weights of which they add up products of four in 16 bits, in most places; JUST:
 * those for which that still fits; ABOVE: for which it no longer does.
 */
typedef enum values {
    RANDOM,
    SEVEN_BITS,
    LAST,
    SMALL,
    LOWEST,
    HIGHEST,
    HIGHEST_OF_SEVEN,
    JUST,
    ABOVE
} values;

typedef struct product {
    int64_t batch, m, n, k;
    bool a_signed;
    bool packed;     /* B, in panels for dot products */
    bool transposed; /* B is [n][k] */
    values values;
} product;

typedef struct tensors {
    taper_tensor inputs[2 + MAX_EXTRAS], output;
    int8_t *b; /* [n][k] or [k][n] before packing */
    struct matmul_attrs attrs;
    int n_inputs;
} tensors;

static taper_tensor bytes(taper_dtype dtype, int rank, const int64_t *dims, values values) {
    taper_tensor t = check_tensor(NULL, dtype, rank, dims);
    const int64_t n = check_numel(&t);
    t.data = check_alloc((size_t)n, 0);
    if (values <= SMALL)
        check_fill_bytes(t.data, n);
    else if (values >= HIGHEST_OF_SEVEN)
        memset(t.data, 127, (size_t)n);
    else
        memset(t.data, dtype == TAPER_INT8 ? (values == LOWEST ? 128 : 127) : 255, (size_t)n);
    return t;
}

static tensors make(const product *p, const int64_t *logical) {
    tensors t = {.n_inputs = 2,
                 .attrs = {.alpha = 1, .accumulate = "int32", .transpose_b = p->transposed}};
    const int64_t a[] = {p->batch, p->m, p->k}, out[] = {p->batch, p->m, p->n};
    const int64_t b[] = {p->transposed ? p->n : p->k, p->transposed ? p->k : p->n};
    t.inputs[0] = bytes(p->a_signed ? TAPER_INT8 : TAPER_UINT8, 3, a, p->values);
    uint8_t *const activations = t.inputs[0].data;
    const int64_t count = check_numel(&t.inputs[0]);
    for (int64_t i = 0; i < count && p->values >= SEVEN_BITS && p->values <= SMALL; i++)
        activations[i] = (uint8_t)(activations[i] & 127);
    if (p->values == LAST && count > 0)
        activations[count - 1] = 200;
    t.inputs[1] = bytes(TAPER_INT8, 2, b, p->values >= HIGHEST ? LOWEST : p->values);
    t.b = t.inputs[1].data;
    for (int64_t i = 0; i < p->n * p->k; i++) {
        const int64_t k = p->transposed ? i % p->k : i / p->n;
        if (p->values == JUST) /* the magnitudes of four add up to 258 */
            t.b[i] = (int8_t)(k % 2 - 65);
        else if (p->values == ABOVE) /* to 259 */
            t.b[i] = k % 8 == 1 || k % 8 == 3 ? -64 : -65;
        else if (p->values == SMALL)
            t.b[i] = (int8_t)(k % 61 == 7 ? -128 : t.b[i] / 2);
    }
    if (p->packed)
        t.inputs[1] = pack_dots(t.b, p->k, 1, p->n), t.inputs[1].logical = logical;
    t.output = check_tensor(NULL, TAPER_INT32, 3, out);
    t.output.data = check_alloc((size_t)check_numel(&t.output) * sizeof(int32_t), 0);
    return t;
}

static void release(tensors *t) {
    if (t->inputs[1].data != t->b)
        check_free(t->b);
    for (int i = 0; i < t->n_inputs; i++)
        check_free(t->inputs[i].data);
    check_free(t->output.data);
}

static int32_t sum_of(const product *p, const tensors *t, int64_t row, int64_t col) {
    uint32_t sum = 0; /* modulo 2^32 */
    for (int64_t i = 0; i < p->k; i++) {
        const int64_t at = row * p->k + i;
        const int32_t a = p->a_signed ? ((const int8_t *)t->inputs[0].data)[at]
                                      : ((const uint8_t *)t->inputs[0].data)[at];
        sum += (uint32_t)(a * t->b[p->transposed ? col * p->k + i : i * p->n + col]);
    }
    return (int32_t)sum;
}

/* [batch * m][n]; the caller frees it. */
static int32_t *exact_sums(const product *p, const tensors *t) {
    const int64_t rows = p->batch * p->m;
    int32_t *sums = check_alloc((size_t)(rows * p->n) * sizeof *sums, 0);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < p->n; col++)
            sums[row * p->n + col] = sum_of(p, t, row, col);
    return sums;
}

static int64_t wrong_sums(const tensors *t, const int32_t *exact) {
    const int64_t n = check_numel(&t->output);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++)
        wrong += ((const int32_t *)t->output.data)[i] != exact[i];
    return wrong;
}

static void expect(const product *p) {
    const int64_t logical[] = {p->k, p->n};
    tensors t = make(p, logical);
    int32_t *const exact = exact_sums(p, &t);
    int served = 0;
    for (int i = 0; i < KERNELS; i++)
        for (int workers = 1; workers <= 2; workers++) {
            memset(t.output.data, 0xab, (size_t)check_numel(&t.output) * sizeof(int32_t));
            if (check_run("MATMUL", kernels[i], t.inputs, 2, &t.output, &t.attrs, workers) !=
                TAPER_OK)
                continue;
            served++;
            const int64_t wrong = wrong_sums(&t, exact);
            CHECK(wrong == 0, "%s, %s %s, %lld x %lld x %lld x %lld: %lld wrong", kernels[i],
                  p->a_signed ? "int8" : "uint8", p->packed ? "packed" : "plain",
                  (long long)p->batch, (long long)p->m, (long long)p->n, (long long)p->k,
                  (long long)wrong);
        }
    CHECK(served > 0, "no kernel");
    check_free(exact);
    release(&t);
}

static void each_kind(int64_t m, int64_t n, int64_t k) {
    for (int kind = 0; kind < 6; kind++)
        for (values v = RANDOM; v <= SMALL; v++) {
            const product p = {1, m, n, k, kind % 2, kind / 2 == 0, kind / 2 == 2, v};
            expect(&p);
        }
}

static void rows(void) {
    for (int64_t m = 1; m <= 43; m++)
        each_kind(m, 20, 9);
}

static void columns(void) {
    for (int64_t n = 1; n <= 130; n += n < 20 ? 1 : 11) {
        each_kind(1, n, 13);
        each_kind(7, n, 13);
    }
}

static void sums(void) {
    for (int64_t k = 0; k <= 40; k++) {
        each_kind(1, 17, k);
        each_kind(8, 17, k);
        each_kind(40, 17, k);
    }
    each_kind(3, 40, 5000);
}

/* Rows and k from which tiles pay, and which do not fill them. */
static void tiles(void) {
    static const int64_t m[] = {15, 16, 17, 33, 40, 48}, k[] = {60, 64, 68, 131}, n[] = {16, 40};
    for (size_t i = 0; i < sizeof m / sizeof *m; i++)
        for (size_t j = 0; j < sizeof k / sizeof *k; j++)
            for (size_t l = 0; l < sizeof n / sizeof *n; l++)
                each_kind(m[i], n[l], k[j]);
}

/* So large that the work is split along rows and columns. */
static void large(void) {
    each_kind(300, 700, 70);
    each_kind(130, 150, 3000);
    each_kind(1, 3000, 900);
}

/* Activations of which most are in a range of 128 numbers around `mean`, of 0 to 255, but for one
 * of `far`, and for a row of which all are not. Engines of 7 bits narrow these, or leave it. */
static void near(const product *p, int64_t mean, int64_t far, int64_t far_row) {
    const int64_t logical[] = {p->k, p->n};
    tensors t = make(p, logical);
    uint8_t *const x = t.inputs[0].data;
    for (int64_t i = 0; i < p->m * p->k; i++) {
        const int64_t u = mean - 64 + (x[i] & 127);
        if (i % far == 0 || i / p->k == far_row)
            x[i] = (uint8_t)(mean < 64 ? 255 - i / far % 128 : x[i]);
        else
            x[i] = (uint8_t)(u < 0 ? 0 : u > 255 ? 255 : u);
        x[i] ^= p->a_signed ? 128 : 0;
    }
    int32_t *const exact = exact_sums(p, &t);
    for (int i = 0; i < KERNELS; i++) {
        memset(t.output.data, 0xab, (size_t)check_numel(&t.output) * sizeof(int32_t));
        if (check_run("MATMUL", kernels[i], t.inputs, 2, &t.output, &t.attrs, 2) != TAPER_OK)
            continue;
        const int64_t wrong = wrong_sums(&t, exact);
        CHECK(wrong == 0, "%s, mean %lld, far %lld, %lld x %lld: %lld wrong", kernels[i],
              (long long)mean, (long long)far, (long long)p->m, (long long)p->k, (long long)wrong);
    }
    check_free(exact);
    release(&t);
}

static void narrowed(void) {
    static const int64_t sizes[][3] = {
        {24, 192, 128}, {43, 170, 150}, {61, 90, 260}, {26, 17, 3000}};
    static const int64_t means[] = {0, 50, 64, 110, 128, 200, 255};
    static const int64_t shares[] = {1 << 30, 40, 9, 7, 2};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t mean = 0; mean < sizeof means / sizeof *means; mean++)
            for (size_t far = 0; far < sizeof shares / sizeof *shares; far++)
                for (int kind = 0; kind < 4; kind++) {
                    const product p = {
                        1,        sizes[s][0], sizes[s][1], sizes[s][2],
                        kind % 2, kind / 2,    false,       far % 2 ? RANDOM : SMALL};
                    near(&p, means[mean], shares[far], mean % 3 == 1 ? 20 : -1);
                }
}

/* What saturates, where an instruction adds pairs in 16 bits. */
static void extremes(void) {
    for (values v = LOWEST; v <= ABOVE; v++)
        for (int kind = 0; kind < 4; kind++) {
            const product few = {1, 7, 33, 50, kind % 2, kind / 2, false, v};
            const product many = {1, 37, 33, 52, kind % 2, kind / 2, false, v};
            expect(&few);
            expect(&many);
        }
}

static void batches(void) {
    for (int kind = 0; kind < 4; kind++) {
        const product p = {3, 5, 20, 11, kind % 2, kind / 2, false, RANDOM};
        expect(&p);
    }
}

static void empty(void) {
    for (int d = 0; d < 3; d++)
        for (int packed = 0; packed < 2; packed++) {
            const product p = {d != 0, d != 1 ? 3 : 0, d != 2 ? 3 : 0, 4,
                               true,   packed,         false,          RANDOM};
            expect(&p);
        }
}

/* Rows, columns and k with steps, backwards, and the same row again and again. */
static void strided(void) {
    const product p = {1, 9, 21, 14, true, false, false, RANDOM};
    const int64_t a_dims[] = {9, 14}, b_dims[] = {14, 21}, c_dims[] = {9, 21};
    int8_t *a = check_alloc(2000, 0), *b = check_alloc(4000, 0);
    int32_t *c = check_alloc(9 * 21 * sizeof *c, 0);
    check_fill_bytes(a, 2000);
    check_fill_bytes(b, 4000);
    static const int64_t steps[][4] = {{14, 1, 21, 1},     {1, 9, 1, 14}, {40, 3, 2, 60},
                                       {-14, -1, -21, -2}, {0, 1, 0, 1},  {30, 0, 50, 0}};
    const struct matmul_attrs attrs = {.alpha = 1, .accumulate = "int32"};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++)
        for (int i = 0; i < KERNELS; i++) {
            const int64_t *step = steps[s];
            taper_tensor in[] = {check_tensor(a + 800, TAPER_INT8, 2, a_dims),
                                 check_tensor(b + 1600, TAPER_INT8, 2, b_dims)};
            const taper_tensor out = check_tensor(c, TAPER_INT32, 2, c_dims);
            in[0].strides[0] = step[0], in[0].strides[1] = step[1];
            in[1].strides[0] = step[2], in[1].strides[1] = step[3];
            if (check_run("MATMUL", kernels[i], in, 2, &out, &attrs, 1) != TAPER_OK)
                continue;
            int64_t wrong = 0;
            for (int64_t row = 0; row < p.m; row++)
                for (int64_t col = 0; col < p.n; col++) {
                    int32_t sum = 0;
                    for (int64_t k = 0; k < p.k; k++)
                        sum += a[800 + row * step[0] + k * step[1]] *
                               b[1600 + k * step[2] + col * step[3]];
                    wrong += c[row * p.n + col] != sum;
                }
            CHECK(wrong == 0, "%s, steps %d: %lld wrong", kernels[i], (int)s, (long long)wrong);
        }
    check_free(a);
    check_free(b);
    check_free(c);
}

/* Requantizes: int8(min(127, max(-128, round(float32(sum) * scale + bias)))), by the epilogue or
 * by MAP from the sums; scale and bias are one for each column. */
static void requantized(void) {
    static const char *const code[] = {"CAST:float32", "MUL",     "ADD",      "ROUND",
                                       "MAXIMUM",      "MINIMUM", "CAST:int8"};
    static const int64_t args[] = {0, 3, 1, 4, 2, 5, 6, -1, 7, -2, 8};
    static const taper_scalar limits[] = {{-128, -128}, {127, 127}};
    static const int64_t sizes[][3] = {{1, 33, 20}, {40, 24, 30}, {70, 300, 40}, {9, 64, 12}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int packed = 0; packed < 2; packed++) {
            const product p = {1,    sizes[s][0], sizes[s][1], sizes[s][2],
                               true, packed,      false,       RANDOM};
            const int64_t logical[] = {p.k, p.n};
            tensors t = make(&p, logical);
            t.n_inputs = 4;
            for (int i = 2; i < 4; i++) {
                t.inputs[i] = check_tensor(NULL, TAPER_FLOAT32, 1, &p.n);
                t.inputs[i].data = check_alloc((size_t)p.n * sizeof(float), 0);
                check_fill_uniform(t.inputs[i].data, p.n, i == 2 ? 0.0f : -50.0f,
                                   i == 2 ? 1e-3f : 50.0f);
            }
            const int64_t n = p.m * p.n;
            struct {
                struct matmul_attrs matmul;
            } with = {t.attrs};
            with.matmul.code = (taper_strings){code, 7};
            with.matmul.args = (taper_ints){args, sizeof args / sizeof *args};
            with.matmul.scalars = (taper_scalars){limits, 2};
            taper_tensor out = t.output, sums = t.output;
            out.dtype = TAPER_INT8;
            out.data = check_alloc((size_t)n, 0);
            CHECK(check_run("MATMUL", NULL, t.inputs, 2, &sums, &t.attrs, 1) == TAPER_OK, "sums");
            for (int i = 0; i < KERNELS; i++) {
                if (check_run("MATMUL", kernels[i], t.inputs, 4, &out, &with.matmul, 2) != TAPER_OK)
                    continue;
                int64_t wrong = 0;
                for (int64_t e = 0; e < n; e++) {
                    const float scale = ((const float *)t.inputs[2].data)[e % p.n];
                    const float bias = ((const float *)t.inputs[3].data)[e % p.n];
                    const float scaled = (float)((const int32_t *)sums.data)[e] * scale;
                    const float y = __builtin_nearbyintf(scaled + bias);
                    wrong += ((const int8_t *)out.data)[e] != (int8_t)(y < -128  ? -128
                                                                       : y > 127 ? 127
                                                                                 : y);
                }
                CHECK(wrong == 0, "%s, %lld x %lld: %lld wrong", kernels[i], (long long)p.m,
                      (long long)p.n, (long long)wrong);
            }
            check_free(out.data);
            release(&t);
        }
}

/* What follows sums and ends in uint8: an addition of bytes, of other sums, or none. */
typedef struct requantization {
    const char *const *code;
    int64_t n_code;
    const int64_t *args;
    int64_t n_args;
    taper_dtype added; /* TAPER_ABSENT: nothing */
    bool subtracts, bounds;
} requantization;

/* Adds an input of the columns, or of all elements where `all` says so. */
static void add_extra(tensors *t, taper_dtype dtype, bool all, float low, float high) {
    taper_tensor *const input = &t->inputs[t->n_inputs++];
    const int rank = all ? 3 : 1;
    *input = check_tensor(NULL, dtype, rank, t->output.shape + (all ? 0 : 2));
    const int64_t n = check_numel(input);
    input->data = check_alloc((size_t)n * sizeof(float), 0);
    check_fill_uniform(input->data, n, low, high);
    for (int64_t i = 0; i < n; i++) {
        const float x = ((const float *)input->data)[i];
        if (dtype == TAPER_INT32)
            ((int32_t *)input->data)[i] = (int32_t)x;
        else if (dtype == TAPER_UINT8)
            ((uint8_t *)input->data)[i] = (uint8_t)x;
    }
}

/* Returns input i of an element, which is one of the columns or of all elements. */
static float extra_at(const tensors *t, int i, int64_t at) {
    const taper_tensor *const input = &t->inputs[i];
    const int64_t e = input->rank == 1 ? at % input->shape[0] : at;
    return input->dtype == TAPER_FLOAT32 ? ((const float *)input->data)[e]
           : input->dtype == TAPER_INT32 ? (float)((const int32_t *)input->data)[e]
                                         : (float)((const uint8_t *)input->data)[e];
}

/* Requantizes sums step by step. size: of a factor, by which sums may leave int32. */
static void requantize_to_uint8(const requantization *r, int64_t m, int64_t n, float size,
                                float shift, float most) {
    const product p = {1, m, n, 12, n % 3 == 0, true, false, RANDOM};
    const int64_t logical[] = {p.k, p.n};
    tensors t = make(&p, logical);
    if (r->subtracts)
        add_extra(&t, TAPER_INT32, false, -5000, 5000);
    add_extra(&t, TAPER_FLOAT32, false, 0, size); /* factor, term */
    add_extra(&t, TAPER_FLOAT32, false, -80, 80);
    if (r->added == TAPER_INT32) {
        add_extra(&t, TAPER_FLOAT32, false, 0, size);
        add_extra(&t, TAPER_FLOAT32, false, -80, 80);
    }
    if (r->added != TAPER_ABSENT)
        add_extra(&t, r->added, true, 0, 256);
    taper_tensor out = t.output;
    out.dtype = TAPER_UINT8;
    out.data = check_alloc((size_t)check_numel(&out), 0);
    CHECK(check_run("MATMUL", NULL, t.inputs, 2, &t.output, &t.attrs, 1) == TAPER_OK, "sums");
    const float less = 131, byte_factor = 0.37f, last = 0.61f;
    const taper_scalar scalars[] = {{shift, 0}, {0, 0},           {most, 0},
                                    {less, 0},  {byte_factor, 0}, {last, 0}};
    struct matmul_attrs attrs = t.attrs;
    attrs.code = (taper_strings){r->code, r->n_code};
    attrs.args = (taper_ints){r->args, r->n_args};
    attrs.scalars = (taper_scalars){scalars, r->added == TAPER_ABSENT ? 3 : 6};
    for (int i = 0; i < KERNELS; i++)
        for (int workers = 1; workers <= 2; workers++) {
            if (check_run("MATMUL", kernels[i], t.inputs, t.n_inputs, &out, &attrs, workers) !=
                TAPER_OK)
                continue;
            int64_t wrong = 0;
            for (int64_t e = 0; e < m * n; e++) {
                int32_t sum = ((const int32_t *)t.output.data)[e];
                const int k = r->subtracts ? 3 : 2;
                if (r->subtracts)
                    sum -= ((const int32_t *)t.inputs[2].data)[e % n];
                float x = (float)sum * extra_at(&t, k, e) + extra_at(&t, k + 1, e);
                if (r->added == TAPER_INT32)
                    x += extra_at(&t, k + 4, e) * extra_at(&t, k + 2, e) + extra_at(&t, k + 3, e);
                else if (r->added == TAPER_UINT8)
                    x += (extra_at(&t, k + 2, e) - less) * byte_factor;
                x = r->bounds && x < 0 ? 0 : x;
                x = r->added == TAPER_ABSENT ? x : x * last;
                x = __builtin_nearbyintf(x) + shift;
                wrong += ((const uint8_t *)out.data)[e] != (uint8_t)(x < 0      ? 0
                                                                     : x > most ? most
                                                                                : x);
            }
            CHECK(wrong == 0, "%s, %lld x %lld, adds dtype %d, factors to %g: %lld wrong",
                  kernels[i], (long long)m, (long long)n, (int)r->added, (double)size,
                  (long long)wrong);
        }
    check_free(out.data);
    release(&t);
}

static void requantized_to_uint8(void) {
    static const char *const alone[] = {"SUB", "CAST:float32", "MUL",     "ADD",       "ROUND",
                                        "ADD", "MAXIMUM",      "MINIMUM", "CAST:uint8"};
    static const int64_t alone_args[] = {0, 1, 4, 5, 2, 6, 3, 7, 8, -1, 9, -2, 10, -3, 11};
    static const char *const of_bytes[] = {
        "CAST:float32", "MUL", "ADD",   "CAST:float32", "SUB",     "MUL",     "ADD",
        "RELU",         "MUL", "ROUND", "ADD",          "MAXIMUM", "MINIMUM", "CAST:uint8"};
    static const int64_t of_bytes_args[] = {0,  4,  1,  5,  2,  3,  7,  -4, 8,  -5, 6, 9,
                                            10, 11, -6, 12, 13, -1, 14, -2, 15, -3, 16};
    static const char *const of_sums[] = {
        "CAST:float32", "MUL", "ADD",   "CAST:float32", "MUL",     "ADD",     "ADD",
        "RELU",         "MUL", "ROUND", "ADD",          "MAXIMUM", "MINIMUM", "CAST:uint8"};
    static const int64_t of_sums_args[] = {5,  6,  3,  7,  4,  0,  9,  1,  10, 2,  8, 11,
                                           12, 13, -6, 14, 15, -1, 16, -2, 17, -3, 18};
    static const requantization each[] = {
        {alone, 9, alone_args, 15, TAPER_ABSENT, true, false},
        {of_bytes, 14, of_bytes_args, 23, TAPER_UINT8, false, true},
        {of_sums, 14, of_sums_args, 23, TAPER_INT32, false, true},
    };
    static const int64_t rows[] = {12, 20, 37, 49, 130}, columns[] = {16, 24, 48, 112, 528};
    static const float sizes[] = {5e-3f, 1e6f}; /* of factors */
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
                for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
                    requantize_to_uint8(&each[i], rows[r], columns[c], sizes[s], (float)(r * 60),
                                        r % 2 ? 255 : 250);
}

static void unsupported(void) {
    const product p = {1, 4, 20, 6, true, true, false, RANDOM};
    const int64_t logical[] = {6, 20};
    tensors t = make(&p, logical);
    taper_tensor *b = &t.inputs[1];
#define REFUSED(what)                                                                              \
    CHECK(check_run("MATMUL", NULL, t.inputs, 2, &t.output, &t.attrs, 1) == TAPER_UNSUPPORTED, what)
    CHECK(check_run("MATMUL", NULL, t.inputs, 2, &t.output, &t.attrs, 1) == TAPER_OK, "as it is");
    t.attrs.accumulate = "";
    REFUSED("sums in int8");
    t.attrs.accumulate = "int16";
    REFUSED("sums in int16");
    t.attrs.accumulate = "int32";
    t.attrs.alpha = 2;
    REFUSED("alpha");
    t.attrs.alpha = 1;
    t.attrs.transpose_b = true;
    REFUSED("packed and transposed");
    t.attrs.transpose_b = false;
    b->logical = (int64_t[]){6, 40};
    REFUSED("more columns");
    b->logical = (int64_t[]){12, 20};
    REFUSED("more rows");
    b->logical = logical;
    b->shape[0] = 2;
    REFUSED("two groups");
    b->shape[0] = 1;
    b->dtype = TAPER_UINT8;
    REFUSED("uint8 weights");
    b->dtype = TAPER_INT8;
    t.output.dtype = TAPER_INT64;
    REFUSED("an output of another dtype");
    t.output.dtype = TAPER_INT32;
    t.inputs[0].dtype = TAPER_INT16;
    REFUSED("int16 activations");
    t.inputs[0].dtype = TAPER_INT8;
    release(&t);
}

/* ---- benchmarks ---- */

/* Products one after the other with different weights, all of which do not fit a cache. */
typedef struct stream {
    taper_kernel kernel;
    taper_call call;
    taper_work work;
    taper_tensor inputs[2], output;
    char *weights;
    int64_t count;
    size_t bytes; /* of one weight */
    void *scratch;
} stream;

static void stream_run(void *arg) {
    stream *s = arg;
    for (int64_t i = 0; i < s->count; i++) {
        s->inputs[1].data = s->weights + (size_t)i * s->bytes;
        s->kernel.run(&s->call, 0, s->work.tasks, s->scratch);
    }
}

/* Two of one dtype: int8, perhaps with activations from 0 to 127, or float32. */
static void bench_stream(const char *name, int64_t m, int64_t n, int64_t k, bool is_float,
                         bool seven_bits) {
    enum { MEMORY = 512 << 20 };
    const int64_t logical[] = {k, n}, a_dims[] = {m, k}, c_dims[] = {m, n};
    const int64_t panels = (n + 15) / 16;
    stream s = {.count = 0};
    s.inputs[0] = check_tensor(NULL, is_float ? TAPER_FLOAT32 : TAPER_INT8, 2, a_dims);
    s.output = check_tensor(NULL, is_float ? TAPER_FLOAT32 : TAPER_INT32, 2, c_dims);
    s.inputs[1] =
        is_float ? check_tensor(NULL, TAPER_FLOAT32, 3, (int64_t[]){panels, k, 16})
                 : check_tensor(NULL, TAPER_INT8, 4, (int64_t[]){1, panels, 1 + (k + 3) / 4, 64});
    s.inputs[1].format = is_float ? TAPER_PANELS_1 : TAPER_DOTS;
    s.inputs[1].logical = logical;
    s.bytes = (size_t)check_numel(&s.inputs[1]) * taper_dtype_size(s.inputs[1].dtype);
    const struct matmul_attrs attrs = {.alpha = 1, .accumulate = is_float ? "" : "int32"};
    s.call = (taper_call){.kernel = &s.kernel,
                          .inputs = s.inputs,
                          .output = &s.output,
                          .attrs = &attrs,
                          .n_inputs = 2,
                          .n_outputs = 1};
    s.call.state = check_alloc(taper_max_state_bytes(check_level), 0);
    size_t position = 0;
    bool served = false;
    while (!served && taper_kernel_next(check_level, "MATMUL", &position, &s.kernel))
        served = taper_kernel_takes(&s.kernel, &s.call) &&
                 s.kernel.prepare(&s.call, &s.work) == TAPER_OK;
    s.count = m == 1 ? (int64_t)(MEMORY / s.bytes) : 1;
    s.weights = taper_map_memory((size_t)s.count * s.bytes);
    s.inputs[0].data = check_alloc((size_t)(m * k) * sizeof(float), 0);
    s.output.data = check_alloc((size_t)(m * n) * sizeof(float), 0);
    s.scratch = check_alloc(s.work.scratch_bytes, 0);
    if (served && s.weights) {
        check_fill_bytes(s.inputs[0].data, m * k);
        for (int64_t i = 0; i < m * k && seven_bits; i++)
            ((uint8_t *)s.inputs[0].data)[i] &= 127;
        if (is_float) {
            check_fill_uniform(s.inputs[0].data, m * k, -1, 1);
            for (int64_t i = 0; i < s.count; i++)
                check_fill_uniform((float *)(void *)(s.weights + (size_t)i * s.bytes), 4096, -1, 1);
        }
        memset(s.weights + (is_float ? (size_t)s.count * s.bytes : 0), 3,
               is_float ? 0 : (size_t)s.count * s.bytes);
        for (size_t at = 0; is_float && at < (size_t)s.count * s.bytes; at += 64)
            memcpy(s.weights + at, &(float){0.5f}, sizeof(float));
        char full[96];
        snprintf(full, sizeof full, "%s%s_%s", s.kernel.name, seven_bits ? "_u7" : "", name);
        check_bench(full, 2.0 * (double)(s.count * m) * (double)n * (double)k,
                    (double)s.bytes * (double)s.count, stream_run, &s);
    }
    taper_unmap_memory(s.weights, (size_t)s.count * s.bytes);
    check_free(s.inputs[0].data);
    check_free(s.output.data);
    check_free(s.scratch);
    check_free(s.call.state);
}

static void bench_peaks(void) {
    static const struct {
        const char *name;
        size_t bytes;
        int64_t passes;
    } probes[] = {{"fma", 64, 20000}, {"int8", 64, 20000}, {"read", 512 << 20, 2}};
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        const taper_probe *probe = taper_probe_find(check_level, probes[i].name);
        void *memory = taper_map_memory(probes[i].bytes);
        double best = 0;
        for (int run = 0; probe && memory && run < 5; run++) {
            taper_measurement m;
            if (taper_measure(probe, 1, memory, probes[i].bytes, probes[i].passes, &m) == TAPER_OK)
                best = m.work / (double)m.ns > best ? m.work / (double)m.ns : best;
        }
        printf("{\"name\": \"peak_%s\", \"isa\": \"%s\", \"per_ns\": %.2f}\n", probes[i].name,
               taper_level_name(check_level), best);
        taper_unmap_memory(memory, probes[i].bytes);
    }
}

static void bench_products(void) {
    static const int64_t sizes[][3] = {{128, 2048, 2048}, {1, 2048, 2048},  {1, 4096, 4096},
                                       {4, 2048, 2048},   {16, 2048, 2048}, {512, 768, 768},
                                       {128, 3072, 768},  {3136, 64, 64},   {3136, 64, 576},
                                       {784, 128, 1152},  {196, 256, 2304}, {49, 512, 4608}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 3; kind++) {
            char name[64];
            snprintf(name, sizeof name, "%lldx%lldx%lld", (long long)sizes[i][0],
                     (long long)sizes[i][1], (long long)sizes[i][2]);
            bench_stream(name, sizes[i][0], sizes[i][1], sizes[i][2], kind == 2, kind == 1);
        }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"rows", rows},
        {"columns", columns},
        {"sums", sums},
        {"tiles", tiles},
        {"large", large},
        {"narrowed", narrowed},
        {"extremes", extremes},
        {"batches", batches},
        {"empty", empty},
        {"strided", strided},
        {"requantized", requantized},
        {"requantized_to_uint8", requantized_to_uint8},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {{"peaks", bench_peaks}, {"products", bench_products}};
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
