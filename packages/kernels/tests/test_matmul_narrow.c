/* Compares MATMUL by weights of fewer bits with the bits of the same product in float32. */
#include "gemm_case.h"

#include <math.h>

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

/* Takes the first rows of A, of C and of the second extra; all of them have a product's rows. */
static void take_rows(tensors *t, const product *p, int64_t rows) {
    t->inputs[0].shape[p->a.rank - 2] = t->output.shape[t->output.rank - 2] = rows;
    if (p->n_extras == 2)
        t->inputs[3].shape[0] = rows;
}

/* Gives the same bits as a float32 operand with the same numbers, for each number of rows: drawing
 * B takes longer than the products. The last number is that of the product. */
static void check_narrow(product p, const narrow *kind, const int64_t *rows, int n_rows) {
    p.packed = true;
    if (kind->bits && (p.b.dims[0] == 0 || p.b.dims[0] % 8 != 0)) /* no blocks */
        return;
    tensors t = make(&p);
    const taper_tensor plain = t.inputs[1];
    const taper_tensor b = narrow_weight(&t, kind, p.b.layout == MISALIGNED);
    const size_t bytes = (size_t)check_numel(&t.output) * sizeof(float);
    float *want = check_alloc(bytes, 0);
    for (int i = 0; i < n_rows; i++) {
        take_rows(&t, &p, rows[i]);
        t.inputs[1] = plain;
        memset(t.output.data, 0xff, bytes);
        CHECK(run(&t, &p, 1) == TAPER_OK, "not run");
        memcpy(want, t.output.data, bytes);
        memset(t.output.data, 0xff, bytes);
        t.inputs[1] = b;
        CHECK(run(&t, &p, 1) == TAPER_OK, "not run");
        CHECK(memcmp(want, t.output.data, bytes) == 0,
              "%s: %lld rows, %lld columns, sums of %lld: other bits", kind->name,
              (long long)rows[i], (long long)p.b.dims[1], (long long)p.b.dims[0]);
        if (p.b.dims[0] == 304)
            check_threads("MATMUL", NULL, t.inputs, 2 + p.n_extras, &t.output, &t.attrs);
    }
    check_free(want);
    release(&t);
}

static void every_format(void) {
    static const int64_t ks[] = {0, 1, 7, 64, 304, 2176}, ms[] = {1, 2, 6, 7, 40, 300};
    enum { ROWS_TESTED = sizeof ms / sizeof *ms };
    const int64_t most = ms[ROWS_TESTED - 1];
    for (int i = 0; i < NARROWS; i++) {
        for (int64_t m = 1; m <= 17; m++)
            for (int64_t n = 1; n <= 130; n += m == 1 ? 1 : 13) {
                const int64_t k = narrows[i].bits ? 8 * (1 + (m + n) % 9) : ks[(m + n) % 4];
                check_narrow(matrices(m, n, k), &narrows[i], &m, 1);
            }
        for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
            product p = matrices(most, 333, ks[k]);
            p.b.layout = k % 2 ? MISALIGNED : ROWS;
            check_narrow(p, &narrows[i], ms, ROWS_TESTED);
            p.a.layout = COLUMNS;
            p.alpha = -0.37;
            p.epilogue = k % 2 ? &head : &chain;
            p.n_extras = 2;
            p.extras[0] = (operand){1, {333}, ROWS};
            p.extras[1] = (operand){2, {most, 333}, ROWS};
            check_narrow(p, &narrows[i], ms, ROWS_TESTED);
        }
        product p = {.a = {4, {2, 3, 5, 7}, STRIDED}, .b = {2, {7, 20}, ROWS}};
        check_narrow(p, &narrows[i], &p.a.dims[2], 1);
    }
}

/* ---- activations that are rounded to int8 ---- */

/* Rounds each group of A as the kernel does, in place. */
static void round_groups(const taper_tensor *a, int64_t group) {
    for (int64_t r = 0; r < a->shape[0]; r++)
        for (int64_t g = 0; g < a->shape[1]; g += group) {
            float *x = (float *)a->data + r * a->strides[0] + g * a->strides[1], most = 0;
            for (int64_t i = 0; i < group; i++)
                most = fmaxf(most, fabsf(x[i * a->strides[1]]));
            const float factor = most < 0x1p-100f ? 0 : 127 / most;
            for (int64_t i = 0; i < group; i++) {
                float *at = x + i * a->strides[1];
                *at = nearbyintf(*at * factor) * (most / 127);
            }
        }
}

/* Compares with sums in double of the same rounded numbers; whole rows and few rows have the same
 * bits, and so have threads. */
static void check_rounded(product p, const narrow *kind, int64_t group) {
    const int64_t m = p.a.dims[0], n = p.b.dims[1], k = p.b.dims[0];
    p.packed = true;
    tensors t = make(&p);
    const taper_tensor plain = t.inputs[1];
    t.inputs[1] = narrow_weight(&t, kind, p.b.layout == MISALIGNED);
    for (int64_t i = 0; i < k * n; i++) {
        const int64_t row = i / n, col = i % n;
        ((float *)t.b.data)[i] = ((float *)plain.data)[(col / 16 * k + row) * 16 + col % 16];
    }
    t.attrs.activation_group = group;
    check_threads("MATMUL", NULL, t.inputs, 2 + p.n_extras, &t.output, &t.attrs);
    const size_t bytes = (size_t)(m * n) * sizeof(float);
    float *want = check_alloc(bytes, 0);
    memcpy(want, t.output.data, bytes);
    for (int64_t rows = 1; rows < (m < 9 ? m : 9); rows++) {
        take_rows(&t, &p, rows);
        CHECK(run(&t, &p, 1) == TAPER_OK, "not run");
        CHECK(memcmp(want, t.output.data, (size_t)(rows * n) * sizeof *want) == 0,
              "%s: %lld rows of %lld have other bits", kind->name, (long long)rows, (long long)m);
    }
    take_rows(&t, &p, m);
    memcpy(t.output.data, want, bytes);
    round_groups(&t.inputs[0], group);
    compare(&t, &p);
    check_free(want);
    release(&t);
}

static void rounded(void) {
    static const int64_t ms[] = {1, 2, 3, 4, 5, 8, 13, 70};
    for (int i = 0; i < NARROWS; i++) {
        if (!narrows[i].bits)
            continue;
        for (size_t s = 0; s < sizeof ms / sizeof *ms; s++) {
            product p = matrices(ms[s], 1 + (int64_t)s * 37, 64 << s % 3);
            p.a.layout = s % 2 ? COLUMNS : ROWS;
            p.b.layout = s % 3 ? ROWS : MISALIGNED;
            check_rounded(p, &narrows[i], 32);
            check_rounded(p, &narrows[i], s % 2 ? 8 : 16);
            check_rounded(p, &narrows[i], p.b.dims[0]);
            check_rounded(matrices(ms[s], 20, 96), &narrows[i], 96); /* of several blocks */
            p.alpha = -0.37;
            p.epilogue = s % 2 ? &head : &chain;
            p.n_extras = 2;
            p.extras[0] = (operand){1, {p.b.dims[1]}, ROWS};
            p.extras[1] = (operand){2, {ms[s], p.b.dims[1]}, ROWS};
            check_rounded(p, &narrows[i], 32);
        }
        check_rounded(matrices(3, 700, 2176), &narrows[i], 32);
        check_rounded(matrices(3, 50, 2176), &narrows[i], 2176);
    }
}

/* The largest magnitudes, groups of zeros and of tiny numbers; a NaN or an infinity reaches its
 * row alone, which becomes NaN. */
static void rounded_values(void) {
    static const float values[] = {0, 1e-38f, 3e38f, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < NARROWS; i++)
        for (size_t v = 0; narrows[i].bits && v < sizeof values / sizeof *values; v++) {
            product p = matrices(5, 20, 64);
            p.packed = true;
            tensors t = make(&p);
            t.inputs[1] = level_weight(&t, &narrows[i], 0);
            t.attrs.activation_group = 16;
            float *a = t.inputs[0].data, *c = t.output.data;
            const bool is_finite = values[v] - values[v] == 0;
            for (int at = 0; at < (is_finite ? 16 : 1); at++)
                a[2 * 64 + 16 + at] = v == 2 && at > 0 ? 0 : values[v];
            CHECK(run(&t, &p, 1) == TAPER_OK, "not run");
            for (int at = 0; at < 100; at++) {
                const bool own = at / 20 == 2 && (!is_finite || (v == 2 && !(c[at] - c[at] == 0)));
                CHECK(own ? v == 2 || isnan(c[at]) : c[at] - c[at] == 0, "%s, %g: %g",
                      narrows[i].name, values[v], c[at]);
            }
            release(&t);
        }
}

static void rounded_unsupported(void) {
    for (int i = 0; i < NARROWS; i++) {
        product p = matrices(4, 20, 64);
        p.packed = true;
        tensors t = make(&p);
        t.attrs.activation_group = 32;
        CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "a weight of floats");
        t.inputs[1] = narrow_weight(&t, &narrows[i], false);
        CHECK((run(&t, &p, 1) == TAPER_OK) == (narrows[i].bits != 0), "%s", narrows[i].name);
        static const int64_t groups[] = {-8, 4, 12, 24, 48, 128};
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
            t.attrs.activation_group = groups[g];
            CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "%s, groups of %lld", narrows[i].name,
                  (long long)groups[g]);
        }
        release(&t);
    }
}

/* ---- activations that are rounded to bfloat16 ---- */

static float rounded_to_bfloat16(float x) {
    int exponent;
    const double mantissa = frexp(x, &exponent);
    return (float)ldexp(nearbyint(ldexp(mantissa, 8)), exponent - 8);
}

/* Gives the bits of the float32 product of the same numbers, for each number of rows. */
static void check_halves(product p, const narrow *kind, const int64_t *rows, int n_rows) {
    p.packed = true;
    tensors t = make(&p), rounded = make(&p);
    const taper_tensor plain = t.inputs[1], b = narrow_weight(&t, kind, p.b.layout == MISALIGNED);
    const taper_tensor *a = &t.inputs[0], *to = &rounded.inputs[0];
    for (int64_t r = 0; r < a->shape[0]; r++)
        for (int64_t i = 0; i < a->shape[1]; i++) {
            float *x = (float *)a->data + r * a->strides[0] + i * a->strides[1];
            *x = (float)check_int(-(1 << 20), 1 << 20) * 0x1p-18f;
            *((float *)to->data + r * to->strides[0] + i * to->strides[1]) =
                rounded_to_bfloat16(*x);
        }
    const taper_tensor given = *a;
    const size_t bytes = (size_t)check_numel(&t.output) * sizeof(float);
    float *want = check_alloc(bytes, 0);
    for (int i = 0; i < n_rows; i++) {
        t.inputs[0] = *to;
        t.inputs[1] = plain;
        take_rows(&t, &p, rows[i]);
        t.attrs.activation_dtype = "";
        CHECK(run(&t, &p, 1) == TAPER_OK, "not run");
        memcpy(want, t.output.data, bytes);
        memset(t.output.data, 0xff, bytes);
        t.inputs[0] = given;
        t.inputs[1] = b;
        take_rows(&t, &p, rows[i]);
        t.attrs.activation_dtype = "bfloat16";
        check_threads("MATMUL", NULL, t.inputs, 2 + p.n_extras, &t.output, &t.attrs);
        const size_t written = bytes / (size_t)p.a.dims[0] * (size_t)rows[i];
        CHECK(memcmp(want, t.output.data, written) == 0,
              "%lld rows, %lld columns, sums of %lld: other bits", (long long)rows[i],
              (long long)p.b.dims[1], (long long)p.b.dims[0]);
    }
    check_free(want);
    release(&rounded);
    release(&t);
}

static void halves(void) {
    static const int64_t ms[] = {1, 2, 6, 7, 40, 300}, ks[] = {0, 1, 2, 63, 64, 2176, 4098};
    const narrow *const bf16 = &narrows[1];
    for (size_t k = 0; k < sizeof ks / sizeof *ks; k++) {
        product p = matrices(300, 333, ks[k]);
        p.b.layout = k % 2 ? MISALIGNED : ROWS;
        check_halves(p, bf16, ms, sizeof ms / sizeof *ms);
        p.a.layout = COLUMNS;
        p.alpha = -0.37;
        p.epilogue = k % 2 ? &head : &chain;
        p.n_extras = 2;
        p.extras[0] = (operand){1, {333}, ROWS};
        p.extras[1] = (operand){2, {300, 333}, ROWS};
        check_halves(p, bf16, ms, sizeof ms / sizeof *ms);
    }
    for (int64_t m = 1; m <= 17; m++)
        for (int64_t n = 1; n <= 130; n += 13)
            check_halves(matrices(m, n, 2 * (m + n) % 70), bf16, &m, 1);
    for (int i = 0; i < NARROWS; i++) {
        product p = matrices(4, 20, 64);
        p.packed = true;
        tensors t = make(&p);
        t.attrs.activation_dtype = "bfloat16";
        CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "a weight of float32");
        t.inputs[1] = narrow_weight(&t, &narrows[i], false);
        CHECK((run(&t, &p, 1) == TAPER_OK) == (&narrows[i] == bf16), "%s", narrows[i].name);
        t.attrs.activation_dtype = "float16";
        CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "rounded to float16");
        release(&t);
    }
}

static void unsupported(void) {
    for (int i = 0; i < NARROWS; i++) {
        if (!narrows[i].bits)
            continue;
        product p = matrices(4, 20, 64);
        p.packed = true;
        tensors t = make(&p);
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
    product p = matrices(4, 20, 6);
    tensors t = make(&p);
    t.inputs[1].dtype = TAPER_BFLOAT16;
    CHECK(run(&t, &p, 1) == TAPER_UNSUPPORTED, "16-bit floats that are not packed");
    release(&t);
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
            tensors t = make(&p);
            if (d >= 0)
                t.inputs[1] = narrow_weight(&t, &narrows[d], false);
            bench_tensors(name, &p, &t);
        }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"every_format", every_format},
        {"rounded", rounded},
        {"rounded_values", rounded_values},
        {"rounded_unsupported", rounded_unsupported},
        {"halves", halves},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {
        {"narrow", bench_narrow},
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof *cases, benches,
                      sizeof benches / sizeof *benches);
}
