/*
 * Random tile programs over random layouts, as MAP nodes and as epilogues, against an interpreter
 * of single elements. Only operations without approximation: the same float operations in the same
 * order give the same bits. Compiled once per level, to reach the engine of that level.
 */
#include "check.h"

#include <math.h>

#include "map/kernels.inc"
#include "map/program.h"

CHECK_ATTRS(map)

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define ENGINE TAPER_ISA_SYM(taper_program_engine)

#include "program_panels.h"

/* ---- the interpreter ---- */

typedef union element {
    float f32;
    int64_t i64;
    int32_t i32;
    uint8_t boolean;
} element;

/* X(name, result, its member, arity, expression, operands...); F(k) is operand k read as float32.
 */
#define F(k) x[k].f32
#define I(k) x[k].i64
#define J(k) x[k].i32
#define B(k) x[k].boolean
#define OPS(X)                                                                                     \
    X("ADD", FLOAT32, f32, 2, F(0) + F(1), FLOAT32, FLOAT32)                                       \
    X("SUB", FLOAT32, f32, 2, F(0) - F(1), FLOAT32, FLOAT32)                                       \
    X("MUL", FLOAT32, f32, 2, F(0) * F(1), FLOAT32, FLOAT32)                                       \
    X("MAXIMUM", FLOAT32, f32, 2, isnan(F(1)) || F(1) > F(0) ? F(1) : F(0), FLOAT32, FLOAT32)      \
    X("MINIMUM", FLOAT32, f32, 2, isnan(F(1)) || F(1) < F(0) ? F(1) : F(0), FLOAT32, FLOAT32)      \
    X("NEG", FLOAT32, f32, 1, -F(0), FLOAT32)                                                      \
    X("ABS", FLOAT32, f32, 1, fabsf(F(0)), FLOAT32)                                                \
    X("FLOOR", FLOAT32, f32, 1, floorf(F(0)), FLOAT32)                                             \
    X("SQUARE", FLOAT32, f32, 1, F(0) * F(0), FLOAT32)                                             \
    X("WHERE", FLOAT32, f32, 3, B(0) ? F(1) : F(2), BOOL, FLOAT32, FLOAT32)                        \
    X("RELU", FLOAT32, f32, 1, F(0) < 0 ? 0 : F(0), FLOAT32)                                       \
    X("ROUND", FLOAT32, f32, 1, nearbyintf(F(0)), FLOAT32)                                         \
    X("CAST:float32", FLOAT32, f32, 1, (float)J(0), INT32)                                         \
    X("CAST:float32", FLOAT32, f32, 1, (float)I(0), INT64)                                         \
    X("CAST:float32", FLOAT32, f32, 1, (float)B(0), BOOL)                                          \
    X("LT", BOOL, boolean, 2, F(0) < F(1), FLOAT32, FLOAT32)                                       \
    X("EQ", BOOL, boolean, 2, I(0) == I(1), INT64, INT64)                                          \
    X("LOGICAL_OR", BOOL, boolean, 2, B(0) | B(1), BOOL, BOOL)                                     \
    X("LOGICAL_NOT", BOOL, boolean, 1, !B(0), BOOL)                                                \
    X("GE", BOOL, boolean, 2, J(0) >= J(1), INT32, INT32)                                          \
    X("ADD", INT64, i64, 2, (int64_t)((uint64_t)I(0) + (uint64_t)I(1)), INT64, INT64)              \
    X("MAXIMUM", INT64, i64, 2, I(0) > I(1) ? I(0) : I(1), INT64, INT64)                           \
    X("WHERE", INT64, i64, 3, B(0) ? I(1) : I(2), BOOL, INT64, INT64)                              \
    X("CAST:int64", INT64, i64, 1, B(0), BOOL)                                                     \
    X("CAST:int64", INT64, i64, 1, J(0), INT32)                                                    \
    X("ADD", INT32, i32, 2, J(0) + J(1), INT32, INT32)                                             \
    X("SUB", INT32, i32, 2, J(0) - J(1), INT32, INT32)                                             \
    X("BITWISE_XOR", INT32, i32, 2, J(0) ^ J(1), INT32, INT32)                                     \
    X("CAST:int32", INT32, i32, 1, (int32_t)I(0), INT64)                                           \
    X("CAST:int32", INT32, i32, 1, B(0), BOOL)

static const struct op {
    const char *name;
    int result, arity;
    int operand[3];
} ops[] = {
#define OP_ROW(name, result, member, arity, expr, ...)                                             \
    {name, TAPER_##result, arity, {OP_DTYPES(__VA_ARGS__, FLOAT32, FLOAT32)}},
#define OP_DTYPES(a, b, c, ...) TAPER_##a, TAPER_##b, TAPER_##c
    OPS(OP_ROW)};

static element evaluate(size_t op, const element *x) {
    element r = {.i64 = 0};
    size_t i = 0;
#define OP_CASE(name, result, member, arity, expr, ...)                                            \
    if (op == i++)                                                                                 \
        r.member = expr;
    OPS(OP_CASE)
    return r;
}

/* ---- random programs ---- */

enum { MAX_VALUES = PROGRAM_MAX_INPUTS + PROGRAM_MAX_INSTRUCTIONS, MAX_SCALARS = 4 };

typedef struct program {
    const char *code[PROGRAM_MAX_INSTRUCTIONS];
    size_t op[PROGRAM_MAX_INSTRUCTIONS];
    int64_t args[PROGRAM_MAX_INSTRUCTIONS * 3];
    taper_scalar scalars[MAX_SCALARS];
    int dtypes[MAX_VALUES];
    int n_inputs, n_code, n_args;
} program;

static struct map_attrs attrs_of(const program *p) {
    return (struct map_attrs){
        {p->code, p->n_code}, {p->args, p->n_args}, {p->scalars, MAX_SCALARS}};
}

/* A value of this dtype, the latest ones the likeliest, or a scalar; -MAX_VALUES if there is none.
 */
static int64_t random_operand(const program *p, int n_values, int dtype, bool scalar) {
    for (int tries = 0; tries < 20; tries++) {
        if (scalar && check_int(0, 4) == 0)
            return -check_int(1, MAX_SCALARS);
        const int64_t low = check_int(0, 1) ? 0 : n_values - 3;
        const int64_t v = check_int(low < 0 ? 0 : low, n_values - 1);
        if (p->dtypes[v] == dtype)
            return v;
    }
    return -MAX_VALUES;
}

/* p->dtypes of the inputs are set; the last instruction gives `result`. */
static void random_program(program *p, int n_code, int result) {
    for (int i = 0; i < MAX_SCALARS; i++) {
        p->scalars[i].i = check_int(-3, 3);
        p->scalars[i].f = (double)p->scalars[i].i;
    }
    p->n_code = p->n_args = 0;
    while (p->n_code < n_code) {
        const size_t o = (size_t)check_int(0, COUNT(ops) - 1);
        const int n_values = p->n_inputs + p->n_code;
        int64_t args[3];
        bool found = p->n_code < n_code - 1 || ops[o].result == result, typed = false;
        for (int k = 0; k < ops[o].arity; k++) {
            /* a result dtype must follow from operands: the last may be a scalar if one is not */
            args[k] = random_operand(p, n_values, ops[o].operand[k], typed);
            typed = typed || (args[k] >= 0 && (ops[o].arity < 3 || k > 0));
            found = found && args[k] != -MAX_VALUES;
        }
        if (!found) {
            if (p->n_code == n_code - 1 && check_int(0, 200) == 0)
                n_code = n_code < PROGRAM_MAX_INSTRUCTIONS ? n_code + 1 : n_code;
            continue;
        }
        p->code[p->n_code] = ops[o].name;
        p->op[p->n_code] = o;
        p->dtypes[n_values] = ops[o].result;
        p->n_code++;
        for (int k = 0; k < ops[o].arity; k++)
            p->args[p->n_args++] = args[k];
    }
}

static element read_element(const taper_tensor *t, int64_t offset) {
    element e = {.i64 = 0};
    const size_t size = taper_dtype_size(t->dtype);
    memcpy(&e, (const char *)t->data + offset * (int64_t)size, size);
    return e;
}

static element scalar_element(taper_scalar s, int dtype) {
    return dtype == TAPER_FLOAT32 ? (element){.f32 = (float)s.f}
           : dtype == TAPER_INT64 ? (element){.i64 = s.i}
           : dtype == TAPER_INT32 ? (element){.i32 = (int32_t)s.i}
                                  : (element){.boolean = s.i != 0};
}

static element run_element(const program *p, element *values) {
    const int64_t *arg = p->args;
    for (int j = 0; j < p->n_code; j++) {
        element x[3];
        for (int k = 0; k < ops[p->op[j]].arity; k++, arg++)
            x[k] = *arg >= 0 ? values[*arg]
                             : scalar_element(p->scalars[-1 - *arg], ops[p->op[j]].operand[k]);
        values[p->n_inputs + j] = evaluate(p->op[j], x);
    }
    return values[p->n_inputs + p->n_code - 1];
}

static bool same(element a, element b, int dtype) {
    return dtype == TAPER_FLOAT32
               ? memcmp(&a, &b, sizeof a.f32) == 0 || (isnan(a.f32) && isnan(b.f32))
               : memcmp(&a, &b, taper_dtype_size(dtype)) == 0;
}

/* Offset of the flat output element i in an operand that broadcasts to it. */
static int64_t offset_in(const taper_tensor *t, const taper_tensor *output, int64_t i) {
    int64_t offset = 0;
    for (int d = output->rank - 1; d >= 0; d--) {
        const int td = d - (output->rank - t->rank);
        if (td >= 0 && t->shape[td] != 1)
            offset += i % output->shape[d] * t->strides[td];
        i /= output->shape[d];
    }
    return offset;
}

/* ---- random tensors ---- */

typedef struct operand {
    taper_tensor tensor;
    void *memory;
} operand;

static void fill(void *data, int64_t n, int dtype) {
    for (int64_t i = 0; i < n; i++)
        if (dtype == TAPER_FLOAT32)
            ((float *)data)[i] = check_int(0, 30) ? (float)check_int(-8, 8) : NAN;
        else if (dtype == TAPER_INT64)
            ((int64_t *)data)[i] = check_int(-4, 4);
        else if (dtype == TAPER_INT32)
            ((int32_t *)data)[i] = (int32_t)check_int(-4, 4);
        else
            ((uint8_t *)data)[i] = (uint8_t)check_int(0, 1);
}

/* Broadcasts to the output: dims of size 1 or missing, stride 0, steps, reversed, permuted. */
static operand random_operand_tensor(int dtype, const taper_tensor *output, bool plain) {
    taper_tensor t = {.dtype = dtype};
    int order[TAPER_MAX_RANK];
    const bool permute = !plain && check_int(0, 2) == 0;
    const int broadcast = plain ? 1000 : (int)check_int(1, 6);
    int skip = 0;
    while (!plain && skip < output->rank && check_int(0, 5) == 0)
        skip++;
    t.rank = output->rank - skip;
    for (int d = 0; d < t.rank; d++) {
        t.shape[d] = check_int(1, 1000) % broadcast == 0 && !plain ? 1 : output->shape[d + skip];
        const int other = permute ? (int)check_int(0, d) : d;
        order[d] = order[other];
        order[other] = d;
    }
    int64_t extent = 1, first = 0;
    for (int i = t.rank - 1; i >= 0; i--) {
        const int d = order[i];
        const int kind = plain ? 9 : (int)check_int(0, 9);
        const int64_t step = kind == 0 ? check_int(2, 3) : 1;
        if (kind == 1) /* expanded: stride 0, whatever the size */
            continue;
        t.strides[d] = extent * step * (kind == 2 ? -1 : 1);
        if (kind == 2)
            first += extent * (t.shape[d] - 1);
        extent *= step * t.shape[d];
    }
    int64_t last = first; /* the highest offset */
    for (int d = 0; d < t.rank; d++)
        last += t.strides[d] > 0 ? t.strides[d] * (t.shape[d] - 1) : 0;
    const size_t size = taper_dtype_size(dtype);
    void *memory = check_alloc((size_t)(last + 1) * size, check_int(0, 1) ? size : 0);
    fill(memory, last + 1, dtype);
    t.data = (char *)memory + (size_t)first * size;
    return (operand){t, memory};
}

/* Small outer dims around a last dim that is short, of a tile, or about both. */
static void random_shape(taper_tensor *t, int min_rank) {
    static const int64_t last[] = {1, 2, 3, 5, 16, 31, 64, 127, 128, 129, 300, 511, 512, 513, 1100};
    t->rank = (int32_t)check_int(min_rank, TAPER_MAX_RANK);
    int64_t n = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        t->shape[d] = d == t->rank - 1 ? last[check_int(0, COUNT(last) - 1)]
                      : n < 5000       ? check_int(1, n < 600 ? 7 : 3)
                                       : 1;
        n *= t->shape[d];
    }
}

static const int value_dtypes[] = {TAPER_FLOAT32, TAPER_FLOAT32, TAPER_FLOAT32,
                                   TAPER_INT64,   TAPER_INT32,   TAPER_BOOL};

static void check_random_map(int max_inputs, int max_code) {
    program p;
    operand x[PROGRAM_MAX_INPUTS];
    taper_tensor inputs[PROGRAM_MAX_INPUTS], shape = {.rank = 0};
    random_shape(&shape, 0);
    p.n_inputs = (int)check_int(1, max_inputs);
    for (int i = 0; i < p.n_inputs; i++)
        p.dtypes[i] = i ? value_dtypes[check_int(0, COUNT(value_dtypes) - 1)] : TAPER_FLOAT32;
    /* a random result dtype could be out of reach */
    random_program(&p, (int)check_int(1, max_code), check_int(0, 3) ? TAPER_FLOAT32 : TAPER_BOOL);
    const int result = p.dtypes[p.n_inputs + p.n_code - 1];
    taper_tensor y = check_tensor(NULL, (taper_dtype)result, shape.rank, shape.shape);
    const int64_t n = check_numel(&y);
    const size_t size = taper_dtype_size(result);
    const bool in_place = check_int(0, 2) == 0 && p.dtypes[0] == result;
    for (int i = 0; i < p.n_inputs; i++) {
        x[i] = random_operand_tensor(p.dtypes[i], &y, in_place && i == 0);
        inputs[i] = x[i].tensor;
    }
    char *want = check_alloc((size_t)n * size, 0);
    for (int64_t i = 0; i < n; i++) {
        element values[MAX_VALUES];
        for (int k = 0; k < p.n_inputs; k++)
            values[k] = read_element(&inputs[k], offset_in(&inputs[k], &y, i));
        const element e = run_element(&p, values);
        memcpy(want + i * (int64_t)size, &e, size);
    }
    y.data = in_place ? inputs[0].data : check_alloc((size_t)n * size, 0);
    const struct map_attrs attrs = attrs_of(&p);
    const taper_status status =
        check_run("MAP", NULL, inputs, p.n_inputs, &y, &attrs, (int)check_int(1, 3));
    CHECK(status == TAPER_OK, "status %d", status);
    const taper_tensor wanted = check_tensor(want, (taper_dtype)result, 1, &n);
    for (int64_t i = 0; i < n; i++)
        CHECK(same(read_element(&y, i), read_element(&wanted, i), result),
              "rank %d, last dim %lld, %d inputs, %d instructions, element %lld", y.rank,
              (long long)(y.rank ? y.shape[y.rank - 1] : 1), p.n_inputs, p.n_code, (long long)i);
    for (int i = 0; i < p.n_inputs; i++)
        check_free(x[i].memory);
    check_free(want);
    if (!in_place)
        check_free(y.data);
}

static void random_maps(void) {
    for (int i = 0; i < 600; i++)
        check_random_map(4, 8);
}

static void long_programs(void) {
    for (int i = 0; i < 40; i++)
        check_random_map(PROGRAM_MAX_INPUTS, PROGRAM_MAX_INSTRUCTIONS);
}

/* ---- epilogues ---- */

/* The output in random blocks, some in a buffer of their own; against one MAP over it all. */
static void check_random_epilogue(void) {
    enum { MAX_EXTRAS = 3 };
    program p;
    operand x[MAX_EXTRAS];
    taper_tensor extras[MAX_EXTRAS + 1], shape = {.rank = 0};
    random_shape(&shape, 0);
    p.n_inputs = (int)check_int(1, MAX_EXTRAS + 1);
    for (int i = 0; i < p.n_inputs; i++)
        p.dtypes[i] = i ? value_dtypes[check_int(0, COUNT(value_dtypes) - 1)] : TAPER_FLOAT32;
    random_program(&p, (int)check_int(1, 6), TAPER_FLOAT32);
    taper_tensor y = check_tensor(NULL, TAPER_FLOAT32, shape.rank, shape.shape);
    const int64_t n = check_numel(&y), cols = y.rank ? y.shape[y.rank - 1] : 1, rows = n / cols;
    for (int i = 1; i < p.n_inputs; i++) {
        x[i - 1] = random_operand_tensor(p.dtypes[i], &y, false);
        extras[i] = x[i - 1].tensor;
    }
    float *data = check_alloc((size_t)n * sizeof(float), 0);
    float *want = check_alloc((size_t)n * sizeof(float), 0);
    fill(data, n, TAPER_FLOAT32);
    const struct map_attrs attrs = attrs_of(&p);
    extras[0] = y;
    extras[0].data = data;
    y.data = want;
    const taper_status map = check_run("MAP", NULL, extras, p.n_inputs, &y, &attrs, 1);

    y.data = NULL; /* prepare sees no data */
    taper_program *engine = check_alloc(sizeof *engine, 0);
    const taper_status status = ENGINE.prepare(engine, &attrs.code, &attrs.args, &attrs.scalars,
                                               extras + 1, p.n_inputs - 1, &y, TAPER_FLOAT32);
    CHECK(map == TAPER_OK && status == TAPER_OK, "status %d, %d", map, status);
    CHECK(engine->rows == rows && engine->cols == cols, "[R][C] is not the output's");
    void *scratch = check_alloc(engine->scratch_bytes, 0);
    float *buffer = check_alloc((size_t)(n + 2 * rows) * sizeof(float), 0);
    const int64_t row_block = check_int(0, 2) ? check_int(1, rows) : rows;
    const int64_t col_block = check_int(0, 2) ? check_int(1, cols) : cols;
    for (int64_t r0 = 0; r0 < rows; r0 += row_block)
        for (int64_t c0 = 0; c0 < cols; c0 += col_block) {
            const int64_t r1 = r0 + row_block < rows ? r0 + row_block : rows;
            const int64_t c1 = c0 + col_block < cols ? c0 + col_block : cols, width = c1 - c0;
            float *block = data + r0 * cols + c0;
            const bool apart = check_int(0, 1);
            if (!apart) {
                ENGINE.run(engine, extras + 1, r0, r1, c0, c1, block, cols, block, cols, scratch);
                continue;
            }
            const int64_t ldc = width + check_int(0, 2);
            for (int64_t r = 0; r < r1 - r0; r++)
                memcpy(buffer + r * ldc, block + r * cols, (size_t)width * sizeof(float));
            ENGINE.run(engine, extras + 1, r0, r1, c0, c1, buffer, ldc, buffer, ldc, scratch);
            for (int64_t r = 0; r < r1 - r0; r++)
                memcpy(block + r * cols, buffer + r * ldc, (size_t)width * sizeof(float));
        }
    for (int64_t i = 0; i < n; i++)
        CHECK(same((element){.f32 = data[i]}, (element){.f32 = want[i]}, TAPER_FLOAT32),
              "[%lld][%lld] in blocks of [%lld][%lld], element %lld: %g, not %g", (long long)rows,
              (long long)cols, (long long)row_block, (long long)col_block, (long long)i,
              (double)data[i], (double)want[i]);
    for (int i = 1; i < p.n_inputs; i++)
        check_free(x[i - 1].memory);
    check_free(data);
    check_free(want);
    check_free(engine);
    check_free(scratch);
    check_free(buffer);
}

static void epilogues_equal_maps(void) {
    for (int i = 0; i < 600; i++)
        check_random_epilogue();
}

/* The part that a kernel does in registers and the rest of the program give together the result of
 * the whole program. */
static void check_random_head(void) {
    static const char *const then[] = {"NEG", "FLOOR", "SQUARE"};
    const char *code[6];
    int64_t args[12], n_code = 0, n_args = 0, value = 0, taken = 0;
    const taper_scalar bounds[] = {{(double)check_int(-2, 0), 0}, {(double)check_int(1, 3), 0}};
    const int64_t dims[2] = {check_int(1, 9), check_int(2, 40)}, n = dims[0] * dims[1];
    float *x[5]; /* of MAP, bias, residual, of the fused, of MAP's result */
    for (int i = 0; i < 5; i++) {
        x[i] = check_alloc((size_t)n * sizeof(float), 0);
        fill(x[i], n, TAPER_FLOAT32);
    }
    memcpy(x[3], x[0], (size_t)n * sizeof(float));
    const taper_tensor tensors[] = {check_tensor(x[0], TAPER_FLOAT32, 2, dims),
                                    check_tensor(x[1], TAPER_FLOAT32, 1, dims + 1),
                                    check_tensor(x[2], TAPER_FLOAT32, 2, dims)};
    const int steps = (int)check_int(1, 15), again = check_int(0, 3) == 0;
    for (int step = 0; step < 4; step++) { /* bias, residual, bounds: any of them */
        if (!(steps >> step & 1))
            continue;
        const int64_t other = step < 2 ? 1 + step : 1 - step;
        const bool swap = step < 2 && check_int(0, 1);
        code[n_code] = step < 2 ? "ADD" : step == 2 ? "MAXIMUM" : "MINIMUM";
        args[n_args++] = swap ? other : value;
        args[n_args++] = swap ? value : other;
        value = 3 + n_code++;
    }
    taken = n_code;
    if (check_int(0, 1)) {
        code[n_code] = then[check_int(0, 2)];
        args[n_args++] = value;
        value = 3 + n_code++;
    }
    if (again) { /* a later instruction needs the block itself, so nothing can move */
        code[n_code] = "SUB";
        args[n_args++] = value;
        args[n_args++] = 0;
        n_code++;
        taken = 0;
    }
    const struct map_attrs attrs = {{code, n_code}, {args, n_args}, {bounds, 2}};
    const taper_tensor want = check_tensor(x[4], TAPER_FLOAT32, 2, dims);
    CHECK(check_run("MAP", NULL, tensors, 3, &want, &attrs, 1) == TAPER_OK, "MAP");

    taper_program p;
    program_fused fused;
    const taper_status status = ENGINE.prepare_fused(&p, &attrs.code, &attrs.args, &attrs.scalars,
                                                     tensors + 1, 2, &want, &fused, true);
    if (fused.then && taken < n_code && !again)
        taken++;
    int left = 0;
    for (int j = 0; j < p.count; j++) /* a chain also has a step that loads and one that stores */
        left += p.code[j].steps ? p.code[j].steps - 2 : 1;
    CHECK(status == TAPER_OK && left == n_code - taken, "%d of %lld micro-ops left, not %lld", left,
          (long long)n_code, (long long)(n_code - taken));
    void *scratch = check_alloc(p.scratch_bytes, 0);
    const tile_fused tile = program_fused_at(&fused, tensors + 1, dims[1], 0, 0);
    float *sums = check_alloc((size_t)n * sizeof(float), 0);
    memcpy(sums, x[3], (size_t)n * sizeof(float));
    fused_store(&tile, false, sums, dims[1], dims[0], dims[1], x[3], dims[1]);
    check_free(sums);
    ENGINE.run(&p, tensors + 1, 0, dims[0], 0, dims[1], x[3], dims[1], x[3], dims[1], scratch);
    for (int64_t i = 0; i < n; i++)
        CHECK(same((element){.f32 = x[3][i]}, (element){.f32 = x[4][i]}, TAPER_FLOAT32),
              "element %lld: %g, not %g", (long long)i, (double)x[3][i], (double)x[4][i]);
    for (int i = 0; i < 5; i++)
        check_free(x[i]);
    check_free(scratch);
}

static void heads_and_rests(void) {
    for (int i = 0; i < 600; i++)
        check_random_head();
}

/* What requantizes sums: one chain, for any length, and for NaN. */
static void check_requantized(taper_dtype dtype, taper_dtype from, int64_t n) {
    static const char *const code[] = {"SUB", "CAST:float32", "MUL",     "ADD",     "RELU",
                                       "MUL", "ROUND",        "MAXIMUM", "MINIMUM", ""};
    const char *all[COUNT(code)];
    memcpy(all, code, sizeof code);
    all[COUNT(code) - 1] = dtype == TAPER_INT8 ? "CAST:int8" : "CAST:uint8";
    const double low = dtype == TAPER_INT8 ? -128 : 0, high = dtype == TAPER_INT8 ? 127 : 255;
    const taper_scalar scalars[] = {{0.37, 0}, {low, 0}, {high, 0}};
    /* Values: 0 sums, 1 what they are less, 2 factors, 3 biases, 4.. results. */
    const int64_t args[] = {0, 1, 4, 5, 2, 6, 3, 7, 8, -1, 9, 10, -2, 11, -3, 12};
    const bool widens = from != TAPER_INT32; /* the first two are one cast then */
    const int64_t fewer[] = {0, 4, 2, 5, 3, 6, 7, -1, 8, 9, -2, 10, -3, 11};
    const struct map_attrs attrs = {{all + widens, COUNT(code) - widens},
                                    {widens ? fewer : args, widens ? COUNT(fewer) : COUNT(args)},
                                    {scalars, 3}};
    int32_t *sums = check_alloc((size_t)n * sizeof(int32_t), 0);
    int32_t *less = check_alloc((size_t)n * sizeof(int32_t), 0);
    float *factors = check_alloc((size_t)n * sizeof(float), 0);
    float *bias = check_alloc((size_t)n * sizeof(float), 0);
    uint8_t *y = check_alloc((size_t)n, 0);
    check_fill_bytes(sums, n * 4);
    for (int64_t i = 0; i < n; i++) {
        if (!widens)
            sums[i] = (int32_t)check_int(-1000, 1000);
        less[i] = (int32_t)check_int(-100, 100);
        factors[i] = check_int(0, 9) ? (float)check_int(1, 99) / 64 : NAN;
        bias[i] = (float)check_int(-200, 200);
    }
    const taper_tensor x[] = {
        check_tensor(sums, from, 1, &n), check_tensor(less, TAPER_INT32, 1, &n),
        check_tensor(factors, TAPER_FLOAT32, 1, &n), check_tensor(bias, TAPER_FLOAT32, 1, &n)};
    const taper_tensor out = check_tensor(y, dtype, 1, &n);
    CHECK(check_run("MAP", NULL, x, 4, &out, &attrs, 1) == TAPER_OK, "MAP");
    for (int64_t i = 0; i < n; i++) {
        const int32_t first = from == TAPER_INT8    ? ((const int8_t *)sums)[i]
                              : from == TAPER_UINT8 ? ((const uint8_t *)sums)[i]
                                                    : sums[i] - less[i];
        float v = (float)first * factors[i] + bias[i];
        v = nearbyintf((v < 0 ? 0 : v) * 0.37f);
        v = v > (float)high ? (float)high : v;
        const int want = isnan(v) ? 0 : (int)v;
        const int got = dtype == TAPER_INT8 ? ((const int8_t *)y)[i] : y[i];
        CHECK(got == want, "element %lld of %lld: %d, not %d", (long long)i, (long long)n, got,
              want);
    }
    check_free(sums);
    check_free(less);
    check_free(factors);
    check_free(bias);
    check_free(y);
}

static void requantized(void) {
    static const int64_t lengths[] = {1, 3, 4, 7, 8, 16, 31, 33, 64, 100, 129, 700};
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (int kind = 0; kind < 6; kind++)
            check_requantized(kind % 2 ? TAPER_INT8 : TAPER_UINT8,
                              kind / 2 == 0   ? TAPER_INT32
                              : kind / 2 == 1 ? TAPER_INT8
                                              : TAPER_UINT8,
                              lengths[i]);
}

static void empty_epilogue(void) {
    const int64_t dims[2] = {3, 5};
    const taper_tensor y = check_tensor(NULL, TAPER_FLOAT32, 2, dims);
    taper_program p;
    float data[15] = {1};
    const taper_status status =
        ENGINE.prepare(&p, &(taper_strings){NULL, 0}, &(taper_ints){NULL, 0},
                       &(taper_scalars){NULL, 0}, NULL, 0, &y, TAPER_FLOAT32);
    CHECK(status == TAPER_OK && p.count == 0 && p.scratch_bytes == 0, "status %d", status);
    ENGINE.run(&p, NULL, 0, 3, 0, 5, data, 5, data, 5, NULL);
    CHECK(data[0] == 1, "%g", (double)data[0]);
}

/* ---- values that are refused ---- */

/* A program is refused as an epilogue, which cannot report refused values, and reports them as a
 * node of its own. */
static void refused_values(void) {
    static const char *const code[] = {"CAST:int32", "FLOOR_DIV:nonzero", "CAST:float32"};
    static const char *const allowed[] = {"CAST:int32", "FLOOR_DIV", "CAST:float32"};
    static const int64_t args[] = {0, 2, 1, 3};
    enum { N = 1500 };
    const int64_t dims[2] = {3, N / 3};
    float x[N], y[N];
    int32_t by[N];
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        by[i] = i % 7 + 1;
    }
    const taper_tensor in[2] = {check_tensor(x, TAPER_FLOAT32, 2, dims),
                                check_tensor(by, TAPER_INT32, 2, dims)};
    const taper_tensor out = check_tensor(y, TAPER_FLOAT32, 2, dims);
    const struct map_attrs attrs = {{code, 3}, {args, 4}, {NULL, 0}};
    check_threads("MAP", NULL, in, 2, &out, &attrs);
    for (int i = 0; i < N; i++)
        CHECK(y[i] == (float)(i / (i % 7 + 1)), "element %d: %g", i, (double)y[i]);
    for (int i = 0; i < N; i += N / 9) {
        const int32_t kept = by[i];
        by[i] = 0;
        y[i] = -1;
        CHECK(check_run("MAP", NULL, in, 2, &out, &attrs, 2) == TAPER_BAD_INDEX, "0 at %d", i);
        CHECK(y[i] == -1, "element %d is written: %g", i, (double)y[i]);
        by[i] = kept;
    }
    for (int refuses = 0; refuses < 2; refuses++) {
        taper_program p;
        CHECK(ENGINE.prepare(&p, &(taper_strings){refuses ? code : allowed, 3},
                             &(taper_ints){args, 4}, &(taper_scalars){NULL, 0}, &in[1], 1, &out,
                             TAPER_FLOAT32) == (refuses ? TAPER_UNSUPPORTED : TAPER_OK),
              "an epilogue");
    }
}

/* ---- limits ---- */

static taper_status prepare_map(const char *const *code, int64_t n_code, const int64_t *args,
                                int64_t n_args, int64_t n_scalars) {
    static const taper_scalar scalars[2] = {{1, 1}, {2, 2}};
    const int64_t n = 4;
    float data[3][4] = {{0}};
    const taper_tensor x[2] = {check_tensor(data[0], TAPER_FLOAT32, 1, &n),
                               check_tensor(data[1], TAPER_FLOAT32, 1, &n)};
    const taper_tensor y = check_tensor(data[2], TAPER_FLOAT32, 1, &n);
    const struct map_attrs attrs = {{code, n_code}, {args, n_args}, {scalars, n_scalars}};
    return check_run("MAP", NULL, x, 2, &y, &attrs, 1);
}

static void malformed_programs(void) {
    static const char *const add[] = {"ADD"}, *const unknown[] = {"EXP", "FROBNICATE"};
    static const char *const untyped[] = {"LT", "EXP"}, *const pair[] = {"ADD", "MUL"};
#define ARGS(...) (const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)
    CHECK(prepare_map(add, 1, ARGS(0, 1), 0) == TAPER_OK, "a sound program");
    CHECK(prepare_map(add, 1, ARGS(-1, -2), 2) == TAPER_OK, "scalars alone fill the output");
    CHECK(prepare_map(add, 1, ARGS(0, -3), 2) == TAPER_UNSUPPORTED, "scalar out of range");
    CHECK(prepare_map(add, 1, ARGS(0, INT64_MIN), 2) == TAPER_UNSUPPORTED, "scalar out of range");
    CHECK(prepare_map(add, 1, ARGS(0, 2), 2) == TAPER_UNSUPPORTED, "its own value");
    CHECK(prepare_map(add, 1, ARGS(0, INT64_MAX), 2) == TAPER_UNSUPPORTED, "no such value");
    CHECK(prepare_map(add, 1, ARGS(0), 2) == TAPER_UNSUPPORTED, "an operand short");
    CHECK(prepare_map(add, 1, ARGS(0, 1, 1), 2) == TAPER_UNSUPPORTED, "an operand too many");
    CHECK(prepare_map(pair, 2, ARGS(0, 3, 0, 1), 2) == TAPER_UNSUPPORTED, "a later value");
    CHECK(prepare_map(unknown, 2, ARGS(0, 2), 2) == TAPER_UNSUPPORTED, "an unknown micro-op");
    CHECK(prepare_map(untyped, 2, ARGS(0, 1, 2), 2) == TAPER_UNSUPPORTED, "EXP of a bool");
    CHECK(prepare_map(add, 0, ARGS(0, 1), 2) == TAPER_UNSUPPORTED, "no program");
    const char *many[PROGRAM_MAX_INSTRUCTIONS + 1];
    int64_t args[PROGRAM_MAX_INSTRUCTIONS + 1];
    for (int i = 0; i <= PROGRAM_MAX_INSTRUCTIONS; i++) {
        many[i] = "NEG";
        args[i] = i ? i + 1 : 0;
    }
    CHECK(prepare_map(many, PROGRAM_MAX_INSTRUCTIONS, args, PROGRAM_MAX_INSTRUCTIONS, 0) ==
              TAPER_OK,
          "the longest program");
    CHECK(prepare_map(many, PROGRAM_MAX_INSTRUCTIONS + 1, args, PROGRAM_MAX_INSTRUCTIONS + 1, 0) ==
              TAPER_UNSUPPORTED,
          "one too long");
}

/* ---- benches ---- */

static float bench_output[64 * 1024], bench_bias[1024];

static void run_bias_gelu(void *arg) {
    const taper_program *p = arg;
    static _Alignas(TAPER_ALIGNMENT) char scratch[1 << 16];
    const taper_tensor bias = check_tensor(bench_bias, TAPER_FLOAT32, 1, &p->cols);
    for (int64_t r = 0; r < p->rows; r += 12)
        ENGINE.run(p, &bias, r, r + 12 < p->rows ? r + 12 : p->rows, 0, p->cols,
                   bench_output + r * p->cols, p->cols, bench_output + r * p->cols, p->cols,
                   scratch);
}

static void bench_epilogue(void) {
    static const char *const code[] = {"ADD", "GELU"};
    static const int64_t args[] = {0, 1, 2}, widths[] = {32, 64, 128, 512};
    for (size_t i = 0; i < COUNT(widths); i++) {
        const int64_t dims[2] = {(int64_t)COUNT(bench_output) / widths[i] / 8, widths[i]};
        const taper_tensor y = check_tensor(NULL, TAPER_FLOAT32, 2, dims);
        const taper_tensor bias = check_tensor(NULL, TAPER_FLOAT32, 1, dims + 1);
        static taper_program p;
        ENGINE.prepare(&p, &(taper_strings){code, 2}, &(taper_ints){args, 3},
                       &(taper_scalars){NULL, 0}, &bias, 1, &y, TAPER_FLOAT32);
        char name[64];
        snprintf(name, sizeof name, "epilogue bias, gelu [%d][%d]", (int)dims[0], (int)dims[1]);
        check_bench(name, (double)(dims[0] * dims[1]), 8.0 * (double)(dims[0] * dims[1]),
                    run_bias_gelu, &p);
    }
}

extern const check_case level_cases[], level_benches[];
extern const size_t level_n_cases, level_n_benches;
const check_case level_cases[] = {
    {"random_maps", random_maps},
    {"long_programs", long_programs},
    {"epilogues_equal_maps", epilogues_equal_maps},
    {"heads_and_rests", heads_and_rests},
    {"requantized", requantized},
    {"rows_of_panels", rows_of_panels},
    {"empty_epilogue", empty_epilogue},
    {"malformed_programs", malformed_programs},
    {"refused_values", refused_values},
};
const size_t level_n_cases = COUNT(level_cases);
const check_case level_benches[] = {{"epilogue", bench_epilogue}};
const size_t level_n_benches = COUNT(level_benches);
