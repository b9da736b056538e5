/* Programs over blocks of many rows, which are computed panel by panel, for test_program.c: it
 * defines ENGINE and COUNT. */
#ifndef PROGRAM_PANELS_H
#define PROGRAM_PANELS_H

#include "check.h"
#include "common/tensor.h"
#include "map/program.h"

/* Blocks of several rows, whose operands are computed panel by panel, have the bits of single rows.
 * plain: whether a micro-op that no chain has stands between two, or last. */
static void check_rows_of_panels(int64_t cols, bool has_bytes, int plain) {
    enum { ROWS = 45 };
    const char *code[16];
    int64_t args[40], dims[] = {ROWS, cols}, rows_dims[] = {ROWS, 1}, n_args = 0;
    int n_code = 0;
    const taper_scalar scalars[] = {{2, 0}, {-128, 0}, {127, 0}};
    /* Values: 0 sums, 1 what they are less, 2 factors, 3 of rows, 4 a tensor of bytes or floats. */
#define STEP(name, ...)                                                                            \
    {                                                                                              \
        const int64_t own[] = {__VA_ARGS__};                                                       \
        code[n_code++] = name;                                                                     \
        for (size_t i = 0; i < COUNT(own); i++)                                                    \
            args[n_args++] = own[i];                                                               \
    }
    int64_t whole = 4;
    if (has_bytes) {
        STEP("CAST:float32", 4)
        STEP("MUL", 5, -1)
        whole = 6;
    }
    STEP("SUB", 0, 1)
    STEP("CAST:float32", 4 + n_code)
    STEP("MUL", 4 + n_code, 2)
    STEP("ADD", 4 + n_code, 3)
    if (plain == 1)
        STEP("FLOOR", 4 + n_code)
    STEP("ADD", 4 + n_code, whole)
    if (plain == 2)
        STEP("SQUARE", 4 + n_code)
    if (plain < 2) {
        STEP("ROUND", 4 + n_code)
        STEP("MAXIMUM", 4 + n_code, -2)
        STEP("MINIMUM", 4 + n_code, -3)
        STEP("CAST:int8", 4 + n_code)
    }
#undef STEP
    const int64_t n = ROWS * cols;
    const size_t size = plain < 2 ? 1 : 4;
    int32_t *sums = check_alloc((size_t)n * 4, 0), *less = check_alloc((size_t)cols * 4, 0);
    float *factors = check_alloc((size_t)cols * 4, 0), *shifts = check_alloc(ROWS * 4, 0);
    void *more = check_alloc((size_t)n * 4, 0);
    char *got = check_alloc((size_t)n * size, 0), *want = check_alloc((size_t)n * size, 0);
    for (int64_t i = 0; i < n; i++)
        sums[i] = (int32_t)check_int(-9000, 9000);
    for (int64_t i = 0; i < cols; i++)
        less[i] = (int32_t)check_int(-100, 100);
    check_fill_uniform(factors, cols, 0, 0.01f);
    check_fill_uniform(shifts, ROWS, -30, 30);
    if (has_bytes)
        check_fill_bytes(more, n);
    else
        check_fill_uniform(more, n, -40, 40);
    const taper_tensor extras[] = {
        check_tensor(less, TAPER_INT32, 1, &cols), check_tensor(factors, TAPER_FLOAT32, 1, &cols),
        check_tensor(shifts, TAPER_FLOAT32, 2, rows_dims),
        check_tensor(more, has_bytes ? TAPER_UINT8 : TAPER_FLOAT32, 2, dims)};
    const taper_tensor out = check_tensor(got, plain < 2 ? TAPER_INT8 : TAPER_FLOAT32, 2, dims);
    taper_program p;
    const taper_status status =
        ENGINE.prepare(&p, &(taper_strings){code, n_code}, &(taper_ints){args, n_args},
                       &(taper_scalars){scalars, 3}, extras, 4, &out, TAPER_INT32);
    CHECK(status == TAPER_OK && (p.in_panels || cols == 1), "status %d", status);
    void *scratch = check_alloc(p.scratch_bytes, 0);
    for (int64_t r = 0; r < ROWS; r++)
        ENGINE.run(&p, extras, r, r + 1, 0, cols, sums + r * cols, cols,
                   want + r * cols * (int64_t)size, cols, scratch);
    for (int64_t r = 0, rows, c, some; r < ROWS; r += rows) {
        rows = i64_min(ROWS - r, check_int(1, 45));
        for (c = 0; c < cols; c += some) {
            some = i64_min(cols - c, check_int(1, 70));
            ENGINE.run(&p, extras, r, r + rows, c, c + some, sums + r * cols + c, cols,
                       got + (r * cols + c) * (int64_t)size, cols, scratch);
        }
    }
    CHECK(memcmp(got, want, (size_t)n * size) == 0, "%lld columns, %d", (long long)cols, plain);
    void *const all[] = {sums, less, factors, shifts, more, got, want, scratch};
    for (size_t i = 0; i < COUNT(all); i++)
        check_free(all[i]);
}

/* Requantized sums, whose operands all rows share. zero: the zero point; low: the least byte. */
static void check_requantized_rows(int64_t cols, bool subtracts, bool is_silu, int zero, int low) {
    enum { ROWS = 43, MOST = 64 };
    const char *code[11];
    int64_t args[20], n_args = 0, last = 0;
    int n_code = 0;
    const taper_scalar scalars[] = {{zero, 0}, {low, 0}, {low < 0 ? 127 : 255, 0}, {1.75, 0}};
    const int64_t dims[] = {ROWS, cols};
    /* Values: 0 sums, 1 what they are less, 2 factors, 3 terms. */
#define STEP(name, other)                                                                          \
    {                                                                                              \
        code[n_code++] = name;                                                                     \
        args[n_args++] = last;                                                                     \
        if ((other) != 0)                                                                          \
            args[n_args++] = other;                                                                \
        last = 3 + n_code;                                                                         \
    }
    if (subtracts)
        STEP("SUB", 1)
    STEP("CAST:float32", 0)
    STEP("MUL", 2)
    STEP("ADD", 3)
    if (is_silu) {
        STEP("SILU", 0)
        STEP("MUL", -4)
    }
    STEP("ROUND", 0)
    STEP("ADD", -1)
    STEP("MAXIMUM", -2)
    STEP("MINIMUM", -3)
    STEP(low < 0 ? "CAST:int8" : "CAST:uint8", 0)
#undef STEP
    static int32_t sums[ROWS * MOST], less[MOST];
    static float factors[MOST], terms[MOST];
    static char got[ROWS * MOST], want[ROWS * MOST];
    const float odd[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 0};
    for (int64_t i = 0; i < ROWS * cols; i++)
        sums[i] = (int32_t)check_int(-9000, 9000);
    for (int64_t i = 0; i < cols; i++) {
        less[i] = (int32_t)check_int(-100, 100);
        terms[i] = (float)check_int(-300, 300) / 2;
        factors[i] = check_int(0, 3) ? (float)check_int(1, 99) / 4096 : odd[check_int(0, 5)];
    }
    const taper_tensor extras[] = {check_tensor(less, TAPER_INT32, 1, &cols),
                                   check_tensor(factors, TAPER_FLOAT32, 1, &cols),
                                   check_tensor(terms, TAPER_FLOAT32, 1, &cols)};
    const taper_tensor out = check_tensor(got, low < 0 ? TAPER_INT8 : TAPER_UINT8, 2, dims);
    taper_program p;
    const taper_status status =
        ENGINE.prepare(&p, &(taper_strings){code, n_code}, &(taper_ints){args, n_args},
                       &(taper_scalars){scalars, 4}, extras, 3, &out, TAPER_INT32);
    CHECK(status == TAPER_OK && p.in_panels && p.count == 1, "status %d", status);
    void *scratch = check_alloc(p.scratch_bytes, 0);
    for (int64_t r = 0; r < ROWS; r++) /* an element at a time */
        for (int64_t c = 0; c < cols; c++)
            ENGINE.run(&p, extras, r, r + 1, c, c + 1, sums + r * cols + c, cols,
                       want + r * cols + c, cols, scratch);
    ENGINE.run(&p, extras, 0, ROWS, 0, cols, sums, cols, got, cols, scratch);
    CHECK(memcmp(got, want, (size_t)(ROWS * cols)) == 0, "%lld columns, %d, %d", (long long)cols,
          zero, low);
    check_free(scratch);
}

/* The sum of two scaled sums in int32, requantized; or the difference, which is several chains.
 * joins: ADD or SUB. */
static void check_two_sums(int64_t cols, const char *joins) {
    enum { ROWS = 43, MOST = 64 };
    const char *const code[] = {"CAST:float32", "MUL",     "ADD",       "CAST:float32", "MUL",
                                "ADD",          joins,     "RELU",      "MUL",          "ROUND",
                                "MAXIMUM",      "MINIMUM", "CAST:uint8"};
    /* Values: 0 and 1 sums, 2 and 4 factors, 3 and 5 terms, 6.. results. */
    const int64_t args[] = {1,  6,  2,  7,  3,  0,  9,  4,  10, 5, 8,
                            11, 12, 13, -1, 14, 15, -2, 16, -3, 17};
    const taper_scalar scalars[] = {{0.37, 0}, {0, 0}, {255, 0}};
    const int64_t dims[] = {ROWS, cols};
    static int32_t sums[2][ROWS * MOST];
    static float by[4][MOST];
    static uint8_t got[ROWS * MOST];
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < ROWS * cols; i++)
            sums[k][i] = (int32_t)check_int(-9000, 9000);
    for (int k = 0; k < 4; k++)
        check_fill_uniform(by[k], cols, k % 2 ? -300 : 0, k % 2 ? 300 : 0.1f);
    taper_tensor extras[5] = {check_tensor(sums[1], TAPER_INT32, 2, dims)};
    for (int k = 0; k < 4; k++)
        extras[1 + k] = check_tensor(by[k], TAPER_FLOAT32, 1, &cols);
    const taper_tensor out = check_tensor(got, TAPER_UINT8, 2, dims);
    taper_program p;
    const taper_status status =
        ENGINE.prepare(&p, &(taper_strings){code, COUNT(code)}, &(taper_ints){args, COUNT(args)},
                       &(taper_scalars){scalars, 3}, extras, 5, &out, TAPER_INT32);
    CHECK(status == TAPER_OK && p.in_panels && (p.count == 1) == (strcmp(joins, "ADD") == 0),
          "status %d, %d instructions", status, p.count);
    void *scratch = check_alloc(p.scratch_bytes, 0);
    for (int64_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
        memset(got, 0, sizeof got);
        for (int64_t r = 0; r < ROWS; r += rows)
            ENGINE.run(&p, extras, r, r + rows, 0, cols, sums[0] + r * cols, cols, got + r * cols,
                       cols, scratch);
        for (int64_t i = 0; i < ROWS * cols; i++) {
            const int64_t c = i % cols;
            const float a = (float)sums[1][i] * by[0][c], b = (float)sums[0][i] * by[2][c];
            const float first = a + by[1][c], second = b + by[3][c];
            float v = strcmp(joins, "ADD") ? first - second : first + second;
            v = fminf(fmaxf((v < 0 ? 0 : v) * 0.37f, 0), 255);
            CHECK(got[i] == (int)nearbyintf(v), "element %lld: %d, not %g", (long long)i, got[i],
                  (double)v);
        }
    }
    check_free(scratch);
}

/* SILU in a chain has the bits of SILU alone, but for the sign of NaN. */
static void check_silu_rows(int64_t cols) {
    enum { ROWS = 29, MOST = 64 };
    static const char *const code[] = {"CAST:float32", "MUL", "SILU"};
    static const int64_t args[] = {0, 2, 1, 3};
    static int32_t sums[ROWS * MOST];
    static float factors[MOST], products[ROWS * MOST], got[ROWS * MOST], want[ROWS * MOST];
    const int64_t dims[] = {ROWS, cols};
    for (int64_t i = 0; i < ROWS * cols; i++)
        sums[i] = (int32_t)check_int(-9000, 9000);
    for (int64_t i = 0; i < cols; i++)
        factors[i] = check_int(0, 9) ? (float)check_int(1, 99) / 4096 : NAN;
    const taper_tensor extra = check_tensor(factors, TAPER_FLOAT32, 1, &cols);
    const taper_tensor out = check_tensor(got, TAPER_FLOAT32, 2, dims);
    taper_program p;
    const taper_status status =
        ENGINE.prepare(&p, &(taper_strings){code, COUNT(code)}, &(taper_ints){args, COUNT(args)},
                       &(taper_scalars){0}, &extra, 1, &out, TAPER_INT32);
    CHECK(status == TAPER_OK && p.count == 1, "status %d", status);
    void *scratch = check_alloc(p.scratch_bytes, 0);
    ENGINE.run(&p, &extra, 0, ROWS, 0, cols, sums, cols, got, cols, scratch);
    for (int64_t i = 0; i < ROWS * cols; i++)
        products[i] = (float)sums[i] * factors[i % cols];
    const taper_tensor x = check_tensor(products, TAPER_FLOAT32, 2, dims);
    const taper_tensor y = check_tensor(want, TAPER_FLOAT32, 2, dims);
    const struct map_attrs alone = {{code + 2, 1}, {args, 1}, {NULL, 0}};
    CHECK(check_run("MAP", NULL, &x, 1, &y, &alone, 1) == TAPER_OK, "SILU");
    for (int64_t i = 0; i < ROWS * cols; i++)
        CHECK(memcmp(&got[i], &want[i], sizeof *got) == 0 || (isnan(got[i]) && isnan(want[i])),
              "%lld columns: %a, not %a", (long long)cols, (double)got[i], (double)want[i]);
    check_free(scratch);
}

/* Which parts a program of check_term_rows has. */
enum {
    TERM_FIRST = 1,     /* the term is before the sums */
    TERM_LESS = 2,      /* its zero point */
    TERM_SIGNED = 4,    /* int8, as the result */
    TERM_RELU = 8,      /* of the sum */
    TERM_SCALED = 16,   /* the sum, once more */
    TERM_SUBTRACTS = 32 /* from the sums of products */
};

/* Requantized sums with a term of bytes, beside the micro-ops in C. */
static void check_term_rows(int64_t cols, int parts) {
    enum { ROWS = 23, MOST = 80 };
    const bool is_signed = parts & TERM_SIGNED;
    const char *code[16];
    int64_t args[40], n_args = 0, term = 0, sum = 0, last;
    int n_code = 0;
    const taper_scalar scalars[] = {{0.37, 0},
                                    {is_signed ? -128 : 0, 0},
                                    {is_signed ? 127 : 255, 0},
                                    {is_signed ? -7 : 19, 0},
                                    {1.25, 0},
                                    {3, 0}};
    /* Values: 0 sums, 1 what they are less, 2 factors, 3 biases, 4 bytes. */
#define STEP(to, name, ...)                                                                        \
    {                                                                                              \
        const int64_t own[] = {__VA_ARGS__};                                                       \
        code[n_code++] = name;                                                                     \
        for (size_t i = 0; i < COUNT(own); i++)                                                    \
            args[n_args++] = own[i];                                                               \
        to = 4 + n_code;                                                                           \
    }
    for (int part = 0; part < 2; part++) {
        if ((part == 0) == !!(parts & TERM_FIRST)) {
            STEP(term, "CAST:float32", 4)
            if (parts & TERM_LESS)
                STEP(term, "SUB", term, -4)
            STEP(term, "MUL", term, -1)
        } else {
            if (parts & TERM_SUBTRACTS)
                STEP(sum, "SUB", 0, 1)
            STEP(sum, "CAST:float32", sum)
            STEP(sum, "MUL", sum, 2)
            STEP(sum, "ADD", sum, 3)
        }
    }
    STEP(last, "ADD", term, sum)
    if (parts & TERM_RELU)
        STEP(last, "RELU", last)
    if (parts & TERM_SCALED)
        STEP(last, "MUL", last, -5)
    STEP(last, "ROUND", last)
    STEP(last, "ADD", last, -6)
    STEP(last, "MAXIMUM", last, -2)
    STEP(last, "MINIMUM", last, -3)
    STEP(last, is_signed ? "CAST:int8" : "CAST:uint8", last)
#undef STEP
    const int64_t dims[] = {ROWS, cols};
    static int32_t sums[ROWS * MOST], less[MOST];
    static float factors[MOST], biases[MOST];
    static uint8_t bytes[ROWS * MOST], got[ROWS * MOST];
    check_fill_bytes(bytes, ROWS * cols);
    for (int64_t i = 0; i < ROWS * cols; i++)
        sums[i] = (int32_t)check_int(-9000, 9000);
    for (int64_t i = 0; i < cols; i++) {
        less[i] = (int32_t)check_int(-100, 100);
        biases[i] = (float)check_int(-300, 300) / 2;
        factors[i] = (float)check_int(1, 99) / 4096;
    }
    const taper_tensor extras[] = {
        check_tensor(less, TAPER_INT32, 1, &cols), check_tensor(factors, TAPER_FLOAT32, 1, &cols),
        check_tensor(biases, TAPER_FLOAT32, 1, &cols),
        check_tensor(bytes, is_signed ? TAPER_INT8 : TAPER_UINT8, 2, dims)};
    const taper_tensor out = check_tensor(got, is_signed ? TAPER_INT8 : TAPER_UINT8, 2, dims);
    taper_program p;
    const taper_status status =
        ENGINE.prepare(&p, &(taper_strings){code, n_code}, &(taper_ints){args, n_args},
                       &(taper_scalars){scalars, COUNT(scalars)}, extras, 4, &out, TAPER_INT32);
    CHECK(status == TAPER_OK && p.in_panels && p.count == 1, "status %d, %d steps", status,
          p.count);
    void *scratch = check_alloc(p.scratch_bytes, 0);
    for (int whole = 0; whole < 2; whole++) {
        memset(got, 99, sizeof got);
        for (int64_t r = 0; r < ROWS; r += whole ? ROWS : 1)
            ENGINE.run(&p, extras, r, whole ? ROWS : r + 1, 0, cols, sums + r * cols, cols,
                       got + r * cols, cols, scratch);
        for (int64_t i = 0; i < ROWS * cols; i++) {
            const int64_t c = i % cols;
            float y = (float)(is_signed ? (int8_t)bytes[i] : bytes[i]);
            y = (y - (parts & TERM_LESS ? (float)scalars[3].f : 0)) * 0.37f;
            y += (float)(sums[i] - (parts & TERM_SUBTRACTS ? less[c] : 0)) * factors[c] + biases[c];
            y = parts & TERM_RELU && y < 0 ? 0 : y;
            y = nearbyintf(parts & TERM_SCALED ? y * 1.25f : y) + 3;
            const int low = is_signed ? -128 : 0, high = is_signed ? 127 : 255;
            const int want = y<(float)low ? low : y>(float) high ? high : (int)y;
            CHECK((is_signed ? (int8_t)got[i] : got[i]) == want, "parts %d, columns %lld: %lld",
                  parts, (long long)cols, (long long)i);
        }
    }
    check_free(scratch);
}

static void rows_of_panels(void) {
    for (int parts = 0; parts < 64; parts++)
        for (int64_t cols = 9; cols <= 80; cols += 23)
            check_term_rows(cols, parts);
    for (int64_t cols = 15; cols <= 64; cols += 7)
        for (int kind = 0; kind < 24; kind++)
            check_requantized_rows(cols, kind % 2, kind >= 12, (int[]){0, 128, 255}[kind / 2 % 3],
                                   kind % 12 < 6 ? 0 : -128);
    for (int64_t cols = 1; cols <= 64; cols += 9)
        check_silu_rows(cols);
    for (int64_t cols = 7; cols <= 64; cols += 19) {
        check_two_sums(cols, "ADD");
        check_two_sums(cols, "SUB");
    }
    static const int64_t cols[] = {1, 7, 16, 24, 33, 100, 600};
    for (size_t i = 0; i < COUNT(cols); i++)
        for (int kind = 0; kind < 6; kind++)
            check_rows_of_panels(cols[i], kind % 2, kind / 2);
}

#endif /* PROGRAM_PANELS_H */
