/*
 * Elementwise ops and MAP against plain C: values in double where a function is approximated, the
 * same float operations in the same order (hence equal bits) where a program is run.
 */
#include "check.h"
#include "functions.h"

#include <float.h>
#include <math.h>

#include "map/kernels.inc"

CHECK_ATTRS(map)
CHECK_ATTRS(microop)
CHECK_ATTRS(cast)

#define F32 TAPER_FLOAT32
#define I64 TAPER_INT64
#define I32 TAPER_INT32
#define BOOL TAPER_BOOL
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const float specials[] = {0.0f,      -0.0f,    1.0f,   -1.0f,    0.5f,      -0.5f,
                                 1.5f,      2.5f,     -2.5f,  INFINITY, -INFINITY, NAN,
                                 FLT_MIN,   -FLT_MIN, 1e-45f, -1e-45f,  FLT_MAX,   -FLT_MAX,
                                 8388609.f, 1e-20f,   3e9f,   -1e10f};
static const int64_t int_specials[] = {
    0, 1, -1, 2, -2, 3, 7, -7, 63, 64, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, INT64_MIN + 1};

/* ---- one op ---- */

static const struct microop_attrs no_scalar = {{0, 0}, -1};

static taper_tensor vector(taper_dtype dtype, int64_t n) {
    return check_tensor(check_alloc((size_t)n * taper_dtype_size(dtype), 0), dtype, 1, &n);
}

static float ordinary(float low, float high, int64_t i) {
    return i < (int64_t)COUNT(specials) ? specials[i] : check_uniform(low, high);
}

static void check_float(const char *op, float got, double want, double ulp, float a, float b) {
    const bool zero_sign = want != 0 || got != 0 || !signbit(want) == !signbit(got);
    CHECK(check_ulp(got, want) <= ulp && zero_sign, "%s(%.9g, %.9g) = %.9g, not %.9g: %.2f ulp", op,
          (double)a, (double)b, (double)got, want, check_ulp(got, want));
}

/* Lengths around the vectors and tiles of every level. */
static const int64_t lengths[] = {1,  2,  3,  4,  5,   7,   8,   9,   15,
                                  16, 17, 31, 33, 100, 511, 512, 513, 2000};

/* ---- float32, one operand ---- */

static double sign(double x) { return (x > 0) - (x < 0); }
static double relu(double x) { return x < 0 ? 0 : x; }
static double square(double x) { return x * x; }
static double negative(double x) { return -x; }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double reciprocal(double x) { return 1 / x; }
static double hardsigmoid(double x) { return x < -3 ? 0 : x > 3 ? 1 : (x + 3) / 6; }
static double hardswish(double x) { return x * hardsigmoid(x); }

/* ulp bounds of the functions in simd/math.h are tested there; here they tell ops apart. */
static const struct unary {
    const char *op;
    double (*want)(double);
    double ulp;
    float low, high;
} unary_ops[] = {
    {"NEG", negative, 0, -9, 9},
    {"ABS", fabs, 0, -9, 9},
    {"SIGN", sign, 0, -1, 1},
    {"RELU", relu, 0, -1, 1},
    {"SQUARE", square, 0.5, -9, 9},
    {"CEIL", ceil, 0, -9, 9},
    {"FLOOR", floor, 0, -9, 9},
    {"ROUND", rint, 0, -9, 9},
    {"TRUNC", trunc, 0, -9, 9},
    {"SQRT", sqrt, 0.5, 0, 9},
    {"RSQRT", rsqrt, 1.5, 0, 9},
    {"RECIPROCAL", reciprocal, 0.5, -9, 9},
    {"EXP", exp, 2, -100, 90},
    {"EXPM1", expm1, 2, -20, 90},
    {"LOG", log, 1, 0, 3},
    {"LOG2", log2, 2.5, 0, 3},
    {"LOG10", log10, 2.5, 0, 3},
    {"LOG1P", log1p, 2, -1, 3},
    {"SIN", sin, 2, -99, 99},
    {"COS", cos, 2, -99, 99},
    {"TAN", tan, 2, -99, 99},
    {"ASIN", asin, 2, -1.1f, 1.1f},
    {"ACOS", acos, 2, -1.1f, 1.1f},
    {"ATAN", atan, 2, -9, 9},
    {"SINH", sinh, 3, -9, 9},
    {"COSH", cosh, 3, -9, 9},
    {"TANH", tanh, 2.5, -9, 9},
    {"ASINH", asinh, 3, -9, 9},
    {"ACOSH", acosh, 3, 0, 9},
    {"ATANH", atanh, 3, -1.1f, 1.1f},
    {"ERF", erf, 1.5, -5, 5},
    {"ERFC", erfc, 3, -5, 9},
    {"SIGMOID", sigmoid, 2.5, -99, 20},
    {"SILU", silu, 3, -20, 20},
    {"GELU", gelu, 32, -3, 9},
    {"GELU_TANH", gelu_tanh, 32, -3, 9},
    {"HARDSWISH", hardswish, 3, -2.9f, 5},
    {"HARDSIGMOID", hardsigmoid, 2, -2.9f, 5},
    {"MISH", mish, 4, -20, 25},
    {"SOFTPLUS", softplus, 2.5, -20, 25},
};

static void float_unary(void) {
    for (size_t o = 0; o < COUNT(unary_ops); o++)
        for (size_t l = 0; l < COUNT(lengths); l++) {
            const struct unary *u = &unary_ops[o];
            const int64_t n = lengths[l];
            const taper_tensor x = vector(F32, n), y = vector(F32, n);
            float *in = x.data, *out = y.data;
            for (int64_t i = 0; i < n; i++)
                in[i] = ordinary(u->low, u->high, i);
            check_threads(u->op, NULL, &x, 1, &y, &no_scalar);
            for (int64_t i = 0; i < n; i++)
                check_float(u->op, out[i], u->want(in[i]), u->ulp, in[i], 0);
            check_free(x.data);
            check_free(y.data);
        }
}

/* ---- float32, two operands ---- */

static double add(double a, double b) { return a + b; }
static double sub(double a, double b) { return a - b; }
static double mul(double a, double b) { return a * b; }
static double divide(double a, double b) { return a / b; }
static double maximum(double a, double b) { return isnan(a) || isnan(b) ? NAN : a > b ? a : b; }
static double minimum(double a, double b) { return isnan(a) || isnan(b) ? NAN : a < b ? a : b; }
static double leaky_relu(double a, double b) { return a > 0 ? a : a * b; }
static double elu(double a, double b) { return a <= 0 ? b * expm1(a) : a; }
static double remainder_python(double a, double b) {
    const double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static const struct binary {
    const char *op;
    double (*want)(double, double);
    double ulp;
    bool specials;
} binary_ops[] = {
    {"ADD", add, 0.5, true},
    {"SUB", sub, 0.5, true},
    {"MUL", mul, 0.5, true},
    {"DIV", divide, 0.5, true},
    {"MAXIMUM", maximum, 0, true},
    {"MINIMUM", minimum, 0, true},
    {"LEAKY_RELU", leaky_relu, 0.5, true},
    {"ELU", elu, 3, true},
    {"POW", pow, 1, true},
    {"ATAN2", atan2, 1.5, true},
    {"FMOD", fmod, 0, true},
    /* a tiny remainder is lost in adding the divisor, in float32 as in double */
    {"REMAINDER", remainder_python, 0.5, false},
};

/* Every pair of specials, then random ones; each operand a vector or a scalar. */
static void float_binary(void) {
    enum { PAIRS = COUNT(specials) * COUNT(specials), N = PAIRS + 1600 };
    for (size_t o = 0; o < COUNT(binary_ops); o++) {
        const struct binary *op = &binary_ops[o];
        const taper_tensor x[2] = {vector(F32, N), vector(F32, N)}, y = vector(F32, N);
        float *a = x[0].data, *b = x[1].data, *out = y.data;
        for (int64_t i = 0; i < N; i++) {
            const bool special = op->specials && i < PAIRS;
            a[i] = special ? specials[(size_t)i % COUNT(specials)] : check_uniform(-9, 9);
            b[i] = special ? specials[(size_t)i / COUNT(specials)] : check_uniform(-9, 9);
        }
        check_threads(op->op, NULL, x, 2, &y, &no_scalar);
        for (int64_t i = 0; i < N; i++)
            if (op->want == maximum || op->want == minimum) /* either zero will do */
                CHECK(out[i] == (float)op->want(a[i], b[i]) || (isnan(a[i]) || isnan(b[i])),
                      "%s(%.9g, %.9g) = %.9g", op->op, (double)a[i], (double)b[i], (double)out[i]);
            else
                check_float(op->op, out[i], op->want(a[i], b[i]), op->ulp, a[i], b[i]);
        for (int index = 0; index < 2; index++)
            for (size_t l = 0; l < COUNT(lengths); l++) {
                const int64_t n = lengths[l];
                const float scalar = check_uniform(-3, 3);
                const struct microop_attrs attrs = {{(double)scalar, (int64_t)scalar}, index};
                const taper_tensor in = check_tensor(x[0].data, F32, 1, &n), r = vector(F32, n);
                check_threads(op->op, NULL, &in, 1, &r, &attrs);
                for (int64_t i = 0; i < n; i++) {
                    const float p = index == 0 ? scalar : a[i], q = index == 0 ? a[i] : scalar;
                    const float got = ((float *)r.data)[i];
                    check_float(op->op, got, op->want(p, q), op->ulp, p, q);
                }
                check_free(r.data);
            }
        check_free(x[0].data);
        check_free(x[1].data);
        check_free(y.data);
    }
}

/* Division by floor: exact quotients as torch's, from the remainder. */
static void float_division(void) {
    static const struct {
        float a, b, floor, trunc;
    } rows[] = {{7, 2, 3, 3},
                {-7, 2, -4, -3},
                {7, -2, -4, -3},
                {-7, -2, 3, 3},
                {1, 0.1f, 9, 10},
                {-0.0f, 3, -0.0f, -0.0f},
                {1, 0, INFINITY, INFINITY},
                {0, 0, NAN, NAN},
                {NAN, 1, NAN, NAN},
                {1, INFINITY, 0, 0},
                {-1, INFINITY, -1, -0.0f}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        float a = rows[i].a, b = rows[i].b, floored, truncated;
        const int64_t one = 1;
        const taper_tensor x[2] = {check_tensor(&a, F32, 1, &one), check_tensor(&b, F32, 1, &one)};
        const taper_tensor y = check_tensor(&floored, F32, 1, &one);
        const taper_tensor z = check_tensor(&truncated, F32, 1, &one);
        check_threads("FLOOR_DIV", NULL, x, 2, &y, &no_scalar);
        check_threads("TRUNC_DIV", NULL, x, 2, &z, &no_scalar);
        check_float("FLOOR_DIV", floored, rows[i].floor, 0, a, b);
        check_float("TRUNC_DIV", truncated, rows[i].trunc, 0, a, b);
    }
}

/* Exponents with their own code: as torch, sqrt for 0.5 whatever pow says of -inf and -0. */
static void power_of_a_constant(void) {
    static const double exponents[] = {2, 3, 0.5, -0.5, -1, 1, 0, 2.5, -2};
    enum { N = 600 };
    const taper_tensor x = vector(F32, N), y = vector(F32, N);
    float *in = x.data, *out = y.data;
    for (int64_t i = 0; i < N; i++)
        in[i] = ordinary(-9, 9, i);
    for (size_t e = 0; e < COUNT(exponents); e++) {
        const double p = exponents[e];
        const struct microop_attrs attrs = {{p, (int64_t)p}, 1};
        check_threads("POW", NULL, &x, 1, &y, &attrs);
        for (int64_t i = 0; i < N; i++)
            check_float("POW", out[i],
                        p == 0.5    ? sqrt(in[i])
                        : p == -0.5 ? 1 / sqrt(in[i])
                                    : pow(in[i], p),
                        2, in[i], (float)p);
    }
    check_free(x.data);
    check_free(y.data);
}

/* ---- integers and booleans ---- */

typedef struct integer {
    int64_t low; /* the dtype's lowest value */
    taper_dtype dtype;
} integer;
static const integer integers[] = {{INT64_MIN, I64}, {INT32_MIN, I32}, {0, BOOL}};

static int64_t wrap(const integer *t, uint64_t x) {
    return t->dtype == I32 ? (int64_t)(int32_t)x : (int64_t)x;
}
static int64_t get(const taper_tensor *t, int64_t i) {
    return t->dtype == I64   ? ((const int64_t *)t->data)[i]
           : t->dtype == I32 ? ((const int32_t *)t->data)[i]
                             : ((const uint8_t *)t->data)[i];
}
static void set(const taper_tensor *t, int64_t i, int64_t x) {
    if (t->dtype == I64)
        ((int64_t *)t->data)[i] = x;
    else if (t->dtype == I32)
        ((int32_t *)t->data)[i] = (int32_t)x;
    else
        ((uint8_t *)t->data)[i] = (uint8_t)(x & 1);
}

static int64_t int_unary(const char *op, const integer *t, int64_t a) {
    const uint64_t u = (uint64_t)a;
    return strcmp(op, "NEG") == 0           ? wrap(t, 0 - u)
           : strcmp(op, "ABS") == 0         ? wrap(t, a < 0 ? 0 - u : u)
           : strcmp(op, "SIGN") == 0        ? (a > 0) - (a < 0)
           : strcmp(op, "RELU") == 0        ? (a > 0 ? a : 0)
           : strcmp(op, "SQUARE") == 0      ? wrap(t, u * u)
           : strcmp(op, "LOGICAL_NOT") == 0 ? a == 0
           : t->dtype == BOOL               ? !a
                                            : ~a;
}

static uint64_t halving_power(uint64_t a, int64_t b) {
    const uint64_t half = b ? halving_power(a, b / 2) : 1;
    return half * half * (b % 2 ? a : 1);
}

static int64_t int_power(const integer *t, int64_t a, int64_t b) {
    if (b < 0) /* a fraction but for these bases */
        return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    return wrap(t, halving_power((uint64_t)a, b));
}

static int64_t int_binary(const char *op, const integer *t, int64_t a, int64_t b) {
    const uint64_t u = (uint64_t)a, v = (uint64_t)b;
    const bool trap = b == 0 || b == -1;
    const int64_t quotient = b == 0 ? 0 : b == -1 ? wrap(t, 0 - u) : a / b, rem = trap ? 0 : a % b;
    const bool down = rem != 0 && (rem < 0) != (b < 0);
    if (t->dtype == BOOL && strcmp(op, "ADD") == 0)
        return a | b;
    return strcmp(op, "ADD") == 0           ? wrap(t, u + v)
           : strcmp(op, "SUB") == 0         ? wrap(t, u - v)
           : strcmp(op, "MUL") == 0         ? wrap(t, u * v)
           : strcmp(op, "TRUNC_DIV") == 0   ? quotient
           : strcmp(op, "FLOOR_DIV") == 0   ? quotient - down
           : strcmp(op, "FMOD") == 0        ? rem
           : strcmp(op, "REMAINDER") == 0   ? rem + (down ? b : 0)
           : strcmp(op, "POW") == 0         ? int_power(t, a, b)
           : strcmp(op, "MAXIMUM") == 0     ? (a > b ? a : b)
           : strcmp(op, "MINIMUM") == 0     ? (a < b ? a : b)
           : strcmp(op, "EQ") == 0          ? a == b
           : strcmp(op, "NE") == 0          ? a != b
           : strcmp(op, "LT") == 0          ? a < b
           : strcmp(op, "LE") == 0          ? a <= b
           : strcmp(op, "GT") == 0          ? a > b
           : strcmp(op, "GE") == 0          ? a >= b
           : strcmp(op, "LOGICAL_AND") == 0 ? a && b
           : strcmp(op, "LOGICAL_OR") == 0  ? a || b
           : strcmp(op, "LOGICAL_XOR") == 0 ? !a != !b
           : strcmp(op, "BITWISE_AND") == 0 ? (a & b)
           : strcmp(op, "BITWISE_OR") == 0  ? (a | b)
                                            : (a ^ b);
}

static const struct int_ops {
    const char *name;
    bool unary, booleans, to_bool;
} int_ops[] = {
    {"NEG", true, false, false},         {"ABS", true, false, false},
    {"SIGN", true, false, false},        {"RELU", true, false, false},
    {"SQUARE", true, false, false},      {"LOGICAL_NOT", true, true, true},
    {"BITWISE_NOT", true, true, false},  {"ADD", false, true, false},
    {"SUB", false, false, false},        {"MUL", false, true, false},
    {"TRUNC_DIV", false, false, false},  {"FLOOR_DIV", false, false, false},
    {"FMOD", false, false, false},       {"REMAINDER", false, false, false},
    {"POW", false, false, false},        {"MAXIMUM", false, true, false},
    {"MINIMUM", false, true, false},     {"EQ", false, true, true},
    {"NE", false, true, true},           {"LT", false, true, true},
    {"LE", false, true, true},           {"GT", false, true, true},
    {"GE", false, true, true},           {"LOGICAL_AND", false, true, true},
    {"LOGICAL_OR", false, true, true},   {"LOGICAL_XOR", false, true, true},
    {"BITWISE_AND", false, true, false}, {"BITWISE_OR", false, true, false},
    {"BITWISE_XOR", false, true, false},
};

static void check_int_op(const struct int_ops *op, const integer *t) {
    enum { PAIRS = COUNT(int_specials) * COUNT(int_specials), N = PAIRS + 600 };
    const taper_tensor x[2] = {vector(t->dtype, N), vector(t->dtype, N)};
    const taper_tensor y = vector(op->to_bool ? TAPER_BOOL : t->dtype, N);
    for (int64_t i = 0; i < N; i++) {
        const size_t s = (size_t)i;
        set(&x[0], i, i < PAIRS ? int_specials[s % COUNT(int_specials)] : check_int(-20, 20));
        set(&x[1], i, i < PAIRS ? int_specials[s / COUNT(int_specials)] : check_int(-5, 5));
    }
    check_threads(op->name, NULL, x, op->unary ? 1 : 2, &y, &no_scalar);
    for (int64_t i = 0; i < N; i++) {
        const int64_t a = get(&x[0], i), b = get(&x[1], i), got = get(&y, i);
        const int64_t want = op->unary ? int_unary(op->name, t, a) : int_binary(op->name, t, a, b);
        CHECK(got == want, "%s(%lld, %lld) = %lld, not %lld", op->name, (long long)a, (long long)b,
              (long long)got, (long long)want);
    }
    for (int index = 0; index < 2 && !op->unary; index++) {
        const int64_t scalar = t->dtype == BOOL ? index : 3 - 8 * index;
        const struct microop_attrs attrs = {{(double)scalar, scalar}, index};
        check_threads(op->name, NULL, x, 1, &y, &attrs);
        for (int64_t i = 0; i < N; i++) {
            const int64_t a = get(&x[0], i), got = get(&y, i);
            const int64_t want = index == 0 ? int_binary(op->name, t, scalar, a)
                                            : int_binary(op->name, t, a, scalar);
            CHECK(got == want, "%s, scalar %lld at %d: %lld, not %lld", op->name, (long long)scalar,
                  index, (long long)got, (long long)want);
        }
    }
    check_free(x[0].data);
    check_free(x[1].data);
    check_free(y.data);
}

static void integer_ops(void) {
    for (size_t o = 0; o < COUNT(int_ops); o++)
        for (size_t t = 0; t < COUNT(integers); t++)
            if (integers[t].dtype != BOOL || int_ops[o].booleans)
                check_int_op(&int_ops[o], &integers[t]);
}

/* An integer beyond 2^53 is exact in a scalar's `i`. */
static void integer_scalar_exact(void) {
    const int64_t one = 1, big = INT64_C(9007199254740993);
    int64_t x = -1, y = 0;
    const taper_tensor in = check_tensor(&x, TAPER_INT64, 1, &one);
    const taper_tensor out = check_tensor(&y, TAPER_INT64, 1, &one);
    check_threads("ADD", NULL, &in, 1, &out, &(struct microop_attrs){{(double)big, big}, 1});
    CHECK(y == big - 1, "%lld", (long long)y);
}

static void float_to_bool(void) {
    static const char *const ops[] = {"EQ", "NE",          "LT",         "LE",         "GT",
                                      "GE", "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR"};
    enum { S = COUNT(specials), N = S * S };
    const taper_tensor x[2] = {vector(F32, N), vector(F32, N)}, y = vector(TAPER_BOOL, N);
    float *a = x[0].data, *b = x[1].data;
    uint8_t *out = y.data;
    for (int i = 0; i < N; i++) {
        a[i] = specials[i % S];
        b[i] = specials[i / S];
    }
    for (size_t o = 0; o < COUNT(ops); o++) {
        check_threads(ops[o], NULL, x, 2, &y, &no_scalar);
        for (int i = 0; i < N; i++) {
            const bool want[] = {a[i] == b[i],
                                 a[i] != b[i],
                                 a[i]<b[i], a[i] <= b[i], a[i]> b[i],
                                 a[i] >= b[i],
                                 a[i] != 0 && b[i] != 0,
                                 a[i] != 0 || b[i] != 0,
                                 (a[i] != 0) != (b[i] != 0)};
            CHECK(out[i] == want[o], "%s(%g, %g)", ops[o], (double)a[i], (double)b[i]);
        }
    }
    static const char *const unary[] = {"ISNAN", "ISINF", "LOGICAL_NOT"};
    for (size_t o = 0; o < COUNT(unary); o++) {
        check_threads(unary[o], NULL, x, 1, &y, &no_scalar);
        for (int i = 0; i < N; i++) {
            const bool want[] = {isnan(a[i]), isinf(a[i]), a[i] == 0};
            CHECK(out[i] == want[o], "%s(%g)", unary[o], (double)a[i]);
        }
    }
    check_free(x[0].data);
    check_free(x[1].data);
    check_free(y.data);
}

/* ---- CAST ---- */

static const taper_dtype cast_dtypes[] = {TAPER_FLOAT32, TAPER_FLOAT64, TAPER_INT64, TAPER_INT32,
                                          TAPER_BOOL};

static double cast_get(const taper_tensor *t, int64_t i) {
    return t->dtype == F32             ? (double)((const float *)t->data)[i]
           : t->dtype == TAPER_FLOAT64 ? ((const double *)t->data)[i]
                                       : (double)get(t, i);
}

/* Values every dtype but bool holds exactly, and for floats ones that must be truncated. */
static void cast_matrix(void) {
    static const double values[] = {0,        1,         -1,   2,    100,   -77,
                                    16777216, 0.5,       -0.5, 2.75, -2.75, 1e-30,
                                    INFINITY, -INFINITY, NAN,  1e20, -1e20};
    enum { WHOLE = 7, N = 1000 };
    for (size_t f = 0; f < COUNT(cast_dtypes); f++)
        for (size_t t = 0; t < COUNT(cast_dtypes); t++) {
            const taper_dtype from = cast_dtypes[f], to = cast_dtypes[t];
            const taper_tensor x = vector(from, N), y = vector(to, N);
            const bool is_float = from == TAPER_FLOAT32 || from == TAPER_FLOAT64;
            const bool to_float = to == TAPER_FLOAT32 || to == TAPER_FLOAT64;
            for (int64_t i = 0; i < N; i++) {
                const double v = values[i % (is_float ? (int64_t)COUNT(values) : WHOLE)];
                if (from == TAPER_FLOAT32)
                    ((float *)x.data)[i] = (float)v;
                else if (from == TAPER_FLOAT64)
                    ((double *)x.data)[i] = v;
                else
                    set(&x, i, from == TAPER_BOOL ? v != 0 : (int64_t)v);
            }
            check_threads("CAST", NULL, &x, 1, &y, &(struct cast_attrs){taper_dtype_name(to)});
            for (int64_t i = 0; i < N; i++) {
                const double v = cast_get(&x, i), got = cast_get(&y, i);
                const bool in_range = fabs(v) < 1e10;
                const double lowest = to == TAPER_INT64 ? -0x1p63 : -0x1p31;
                const double want = to == TAPER_BOOL      ? v != 0
                                    : to == TAPER_FLOAT32 ? (double)(float)v
                                    : to_float            ? v
                                    : in_range            ? trunc(v)
                                                          : lowest;
                CHECK(got == want || (isnan(got) && isnan(want)), "%s to %s: %g gives %g, not %g",
                      taper_dtype_name(from), taper_dtype_name(to), v, got, want);
            }
            check_free(x.data);
            check_free(y.data);
        }
}

/* ---- float64 ---- */

static void check_double(const char *op, double got, double want, double a, double b) {
    const bool same = got == want || (isnan(got) && isnan(want));
    CHECK(same || fabs(got - want) <= 8 * 0x1p-52 * fabs(want) + 1e-300,
          "%s(%.17g, %.17g) = %.17g, not %.17g", op, a, b, got, want);
}

/* The C library's functions are within one last place, and an exponential takes on the roundings of
 * its argument as many times as that is large. Beyond the ranges of float32's too. */
static void double_ops(void) {
    const double far[] = {1e5, -1e5, 2e6, -700.5, 709, -745, 1e300, NAN, INFINITY, -INFINITY, -0.0};
    enum { N = 1100 };
    for (size_t o = 0; o < COUNT(unary_ops); o++) {
        const struct unary *u = &unary_ops[o];
        const taper_tensor x = vector(TAPER_FLOAT64, N), y = vector(TAPER_FLOAT64, N);
        double *in = x.data, *out = y.data;
        for (int64_t i = 0; i < N; i++)
            in[i] = i < (int64_t)COUNT(far) ? far[i]
                    : i < (int64_t)N - 100  ? (double)check_uniform(u->low, u->high) * (1 + 1e-9)
                                            : (double)(i - N + 50) * 0x1.921fb54442d18p+0;
        check_threads(u->op, NULL, &x, 1, &y, &no_scalar);
        for (int64_t i = 0; i < N; i++)
            if (isfinite(in[i]) || u->want == sin || u->want == cos || u->want == exp)
                check_double(u->op, out[i], u->want(in[i]), in[i], 0);
        check_free(x.data);
        check_free(y.data);
    }
    for (size_t o = 0; o < COUNT(binary_ops); o++) {
        const struct binary *op = &binary_ops[o];
        const taper_tensor x[2] = {vector(TAPER_FLOAT64, N), vector(TAPER_FLOAT64, N)};
        const taper_tensor y = vector(TAPER_FLOAT64, N);
        double *a = x[0].data, *b = x[1].data, *out = y.data;
        for (int64_t i = 0; i < N; i++) {
            a[i] = (double)check_uniform(-9, 9) * (1 + 1e-9);
            b[i] = i < (int64_t)COUNT(far) ? NAN : (double)check_uniform(-9, 9) * (1 + 1e-9);
        }
        check_threads(op->op, NULL, x, 2, &y, &no_scalar);
        for (int64_t i = 0; i < N; i++)
            check_double(op->op, out[i], op->want(a[i], b[i]), a[i], b[i]);
        check_free(x[0].data);
        check_free(x[1].data);
        check_free(y.data);
    }
}

/* ---- WHERE ---- */

/* Every operand a vector, or one element standing for all. */
static void where_operands(void) {
    static const taper_dtype dtypes[] = {TAPER_FLOAT32, TAPER_INT64, TAPER_INT32, TAPER_BOOL};
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (int one = 0; one < 8; one++) {
            const int64_t n = 1300;
            taper_tensor x[3];
            const taper_tensor y = vector(dtypes[d], n);
            for (int k = 0; k < 3; k++) {
                x[k] = vector(k ? dtypes[d] : TAPER_BOOL, one >> k & 1 ? 1 : n);
                for (int64_t i = 0; i < x[k].shape[0]; i++)
                    if (x[k].dtype == F32)
                        ((float *)x[k].data)[i] = (float)check_int(-9, 9);
                    else
                        set(&x[k], i, check_int(-9, 9));
            }
            check_threads("WHERE", NULL, x, 3, &y, &no_scalar);
            for (int64_t i = 0; i < n; i++) {
                const int k = get(&x[0], one & 1 ? 0 : i) ? 1 : 2;
                const double want = cast_get(&x[k], one >> k & 1 ? 0 : i);
                CHECK(cast_get(&y, i) == want, "element %lld of %d", (long long)i, one);
            }
            for (int k = 0; k < 3; k++)
                check_free(x[k].data);
            check_free(y.data);
        }
}

/* ---- shapes ---- */

/* Every pair of broadcast patterns of rank 6, against plain indexing. */
static void broadcast_patterns(void) {
    enum { RANK = 6 };
    static const int64_t shape[RANK] = {2, 3, 1, 2, 3, 2};
    const taper_tensor y = check_tensor(check_alloc(72 * sizeof(float), 0), F32, RANK, shape);
    float *a = check_alloc(72 * sizeof(float), 0), *b = check_alloc(72 * sizeof(float), 0);
    check_fill_uniform(a, 72, -1, 1);
    check_fill_uniform(b, 72, -1, 1);
    for (int pattern = 0; pattern < 1 << 2 * RANK; pattern++) {
        int64_t dims[2][RANK];
        for (int d = 0; d < 2 * RANK; d++)
            dims[d / RANK][d % RANK] = pattern >> d & 1 ? 1 : shape[d % RANK];
        const taper_tensor x[2] = {check_tensor(a, F32, RANK, dims[0]),
                                   check_tensor(b, F32, RANK, dims[1])};
        memset(y.data, 0xff, 72 * sizeof(float));
        const taper_status status = check_run("SUB", NULL, x, 2, &y, &no_scalar, 1);
        CHECK(status == TAPER_OK, "pattern %x: status %d", (unsigned)pattern, status);
        for (int64_t i = 0; i < 72; i++) {
            int64_t offset[2] = {0, 0};
            for (int64_t d = RANK - 1, rest = i; d >= 0; rest /= shape[d--])
                for (int k = 0; k < 2; k++)
                    if (x[k].shape[d] != 1)
                        offset[k] += rest % shape[d] * x[k].strides[d];
            CHECK(((float *)y.data)[i] == a[offset[0]] - b[offset[1]], "pattern %x, element %lld",
                  (unsigned)pattern, (long long)i);
        }
    }
    check_free(y.data);
    check_free(a);
    check_free(b);
}

static void empty(void) {
    static const int64_t shapes[][3] = {{0, 4, 5}, {4, 0, 5}, {4, 5, 0}, {0, 0, 0}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        const int64_t one[3] = {1, shapes[s][1], 1};
        float unused = 0;
        const taper_tensor x[2] = {check_tensor(&unused, F32, 3, shapes[s]),
                                   check_tensor(&unused, F32, 3, one)};
        const taper_tensor y = check_tensor(&unused, F32, 3, shapes[s]);
        const taper_status status = check_run("ADD", NULL, x, 2, &y, &no_scalar, 2);
        CHECK(status == TAPER_OK && unused == 0, "shape %zu: status %d", s, status);
    }
}

/* Operands off any vector boundary. */
static void misaligned(void) {
    for (size_t shift = 4; shift < 64; shift += 12) {
        const int64_t n = 777;
        const size_t bytes = (size_t)n * sizeof(float);
        const taper_tensor x[2] = {check_tensor(check_alloc(bytes, shift), F32, 1, &n),
                                   check_tensor(check_alloc(bytes, 64 - shift), F32, 1, &n)};
        const taper_tensor y = check_tensor(check_alloc(bytes, shift), F32, 1, &n);
        check_fill_uniform(x[0].data, n, -1, 1);
        check_fill_uniform(x[1].data, n, -1, 1);
        check_threads("MUL", NULL, x, 2, &y, &no_scalar);
        for (int64_t i = 0; i < n; i++)
            CHECK(((float *)y.data)[i] == ((float *)x[0].data)[i] * ((float *)x[1].data)[i],
                  "shift %zu, element %lld", shift, (long long)i);
        check_free(x[0].data);
        check_free(x[1].data);
        check_free(y.data);
    }
}

/* Large enough for many tasks, by rows and by columns. */
static void threads_same_bits(void) {
    static const int64_t shapes[][2] = {{1, 300001}, {3, 100003}, {1000, 257}, {40000, 3}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        const int64_t n = shapes[s][0] * shapes[s][1];
        const taper_tensor x[2] = {
            check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, shapes[s]),
            check_tensor(check_alloc((size_t)shapes[s][1] * sizeof(float), 0), F32, 1,
                         &shapes[s][1])};
        const taper_tensor y =
            check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, shapes[s]);
        check_fill_uniform(x[0].data, n, -5, 5);
        check_fill_uniform(x[1].data, shapes[s][1], -5, 5);
        check_threads("GELU", NULL, x, 1, &y, &no_scalar);
        check_threads("ELU", NULL, x, 2, &y, &no_scalar);
        check_free(x[0].data);
        check_free(x[1].data);
        check_free(y.data);
    }
}

/* Rows of the wrong dtype, or operands short or in excess, are refused. */
static void unsupported(void) {
    const int64_t n = 4;
    const taper_tensor f = check_tensor(NULL, TAPER_FLOAT32, 1, &n);
    const taper_tensor i = check_tensor(NULL, TAPER_INT64, 1, &n);
    const taper_tensor h = check_tensor(NULL, TAPER_FLOAT16, 1, &n);
    const struct microop_attrs out_of_range = {{0, 0}, 2};
#define REFUSED(op, x, n_inputs, y, attrs)                                                         \
    CHECK(check_run(op, NULL, x, n_inputs, y, attrs, 1) == TAPER_UNSUPPORTED, #op #x)
    REFUSED("ADD", ((taper_tensor[]){f, i}), 2, &f, &no_scalar);
    REFUSED("ADD", ((taper_tensor[]){f, f}), 2, &i, &no_scalar);
    REFUSED("ADD", ((taper_tensor[]){h, h}), 2, &h, &no_scalar);
    REFUSED("ADD", ((taper_tensor[]){f}), 1, &f, &no_scalar);
    REFUSED("ADD", ((taper_tensor[]){f}), 1, &f, &out_of_range);
    REFUSED("ADD", ((taper_tensor[]){f, f, f}), 3, &f, &no_scalar);
    REFUSED("EXP", ((taper_tensor[]){i}), 1, &i, &no_scalar);
    REFUSED("CAST", ((taper_tensor[]){f}), 1, &f, &(struct cast_attrs){"int64"});
    REFUSED("CAST", ((taper_tensor[]){h}), 1, &i, &(struct cast_attrs){"int64"});
    REFUSED("CAST", ((taper_tensor[]){f}), 1, &f, &(struct cast_attrs){"floaty"});
}

/* ---- benches ---- */

static void bench_ops(void) {
    static const char *const unary[] = {"RELU", "SQRT",     "EXP",  "EXPM1", "LOG",       "LOG1P",
                                        "TANH", "SIGMOID",  "SILU", "GELU",  "GELU_TANH", "ERF",
                                        "MISH", "SOFTPLUS", "SIN",  "NEG",   "TAN"};
    static const char *const binary[] = {"ADD", "MUL", "DIV", "MAXIMUM", "LT", "POW", "REMAINDER"};
    enum { N = 4096 }; /* three of them fit L1 */
    const taper_tensor x[2] = {vector(F32, N), vector(F32, N)}, y = vector(F32, N);
    const taper_tensor truth = vector(TAPER_BOOL, N);
    const struct microop_attrs scalar = {{1.7, 1}, 1};
    char name[64];
    check_fill_uniform(x[0].data, N, 0.1f, 4);
    check_fill_uniform(x[1].data, N, 0.1f, 4);
    for (size_t o = 0; o < COUNT(unary); o++) {
        snprintf(name, sizeof name, "%s 4096", unary[o]);
        check_bench_op(name, unary[o], NULL, x, 1, &y, &no_scalar, N, 8.0 * N);
    }
    for (size_t o = 0; o < COUNT(binary); o++) {
        const taper_tensor *out = strcmp(binary[o], "LT") == 0 ? &truth : &y;
        snprintf(name, sizeof name, "%s 4096", binary[o]);
        check_bench_op(name, binary[o], NULL, x, 2, out, &no_scalar, N, 12.0 * N);
        snprintf(name, sizeof name, "%s 4096 scalar", binary[o]);
        check_bench_op(name, binary[o], NULL, x, 1, out, &scalar, N, 8.0 * N);
    }
    check_free(x[0].data);
    check_free(x[1].data);
    check_free(y.data);
    check_free(truth.data);
}

/* One addition, by shapes of its operands. */
static void bench_shapes(void) {
    static const struct {
        const char *name;
        int64_t y[3], x[3];
    } rows[] = {
        {"ADD 64 (call)", {1, 1, 64}, {1, 1, 64}},
        {"ADD 65536 (L2)", {1, 1, 65536}, {1, 1, 65536}},
        {"ADD 16M (memory)", {1, 1, 16 << 20}, {1, 1, 16 << 20}},
        {"ADD [16384,3] + [3]", {1, 16384, 3}, {1, 1, 3}},
        {"ADD [16384,3] + [16384,1]", {1, 16384, 3}, {1, 16384, 1}},
        {"ADD [1024,64] + [64]", {1, 1024, 64}, {1, 1, 64}},
        {"ADD [1024,64] + [1024,1]", {1, 1024, 64}, {1, 1024, 1}},
        {"ADD [128,768] + [768]", {1, 128, 768}, {1, 1, 768}},
        {"ADD [128,768] + [128,1]", {1, 128, 768}, {1, 128, 1}},
        {"ADD [256,16,16] + [16,1]", {256, 16, 16}, {1, 16, 1}},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        taper_tensor x[2], y = check_tensor(NULL, F32, 3, rows[i].y);
        x[0] = y;
        x[1] = check_tensor(NULL, F32, 3, rows[i].x);
        const int64_t n = check_numel(&y), m = check_numel(&x[1]);
        y.data = check_alloc((size_t)n * sizeof(float), 0);
        x[0].data = check_alloc((size_t)n * sizeof(float), 0);
        x[1].data = check_alloc((size_t)m * sizeof(float), 0);
        check_fill_uniform(x[0].data, n, -1, 1);
        check_fill_uniform(x[1].data, m, -1, 1);
        check_bench_op(rows[i].name, "ADD", NULL, x, 2, &y, &no_scalar, (double)n,
                       4.0 * (double)(2 * n + m));
        check_free(x[0].data);
        check_free(x[1].data);
        check_free(y.data);
    }
    static const int64_t shape[2] = {1024, 1024}; /* a transposed operand */
    const taper_tensor y = check_tensor(check_alloc(4 << 20, 0), F32, 2, shape);
    taper_tensor x[2] = {check_tensor(check_alloc(4 << 20, 0), F32, 2, shape),
                         check_tensor(check_alloc(4 << 20, 0), F32, 2, shape)};
    check_fill_uniform(x[0].data, 1 << 20, -1, 1);
    check_fill_uniform(x[1].data, 1 << 20, -1, 1);
    x[1].strides[0] = 1;
    x[1].strides[1] = 1024;
    check_bench_op("ADD [1024,1024] + its transpose", "ADD", NULL, x, 2, &y, &no_scalar, 1 << 20,
                   12 << 20);
    check_free(x[0].data);
    check_free(x[1].data);
    check_free(y.data);
}

static void bench_chains(void) {
    static const char *const two[] = {"ADD", "RELU"};
    static const int64_t two_args[] = {0, 1, 2};
    static const char *const six[] = {"ADD", "MUL", "RELU", "SUB", "MUL", "ADD"};
    static const int64_t six_args[] = {0, 1, 2, -1, 3, 4, 1, 5, 0, 6, -2};
    static const taper_scalar scalars[] = {{0.5, 0}, {0.25, 0}};
    const struct map_attrs chains[] = {
        {{two, COUNT(two)}, {two_args, COUNT(two_args)}, {scalars, 0}},
        {{six, COUNT(six)}, {six_args, COUNT(six_args)}, {scalars, 2}}};
    static const int64_t shapes[][2] = {{32, 512}, {128, 2048}, {1024, 4096}};
    char name[64];
    for (size_t c = 0; c < COUNT(chains); c++)
        for (size_t s = 0; s < COUNT(shapes); s++) {
            const int64_t n = shapes[s][0] * shapes[s][1];
            const taper_tensor y =
                check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, shapes[s]);
            const taper_tensor x[2] = {
                check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 2, shapes[s]),
                check_tensor(check_alloc((size_t)n * sizeof(float), 0), F32, 1, &shapes[s][1])};
            check_fill_uniform(x[0].data, n, -1, 1);
            check_fill_uniform(x[1].data, n, -1, 1);
            snprintf(name, sizeof name, "MAP %d ops [%d,%d] + [%d]", (int)chains[c].code.count,
                     (int)shapes[s][0], (int)shapes[s][1], (int)shapes[s][1]);
            check_bench_op(name, "MAP", NULL, x, 2, &y, &chains[c],
                           (double)(n * chains[c].code.count), 8.0 * (double)n);
            check_free(x[0].data);
            check_free(x[1].data);
            check_free(y.data);
        }
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"float_unary", float_unary},
        {"float_binary", float_binary},
        {"float_division", float_division},
        {"power_of_a_constant", power_of_a_constant},
        {"integer_ops", integer_ops},
        {"integer_scalar_exact", integer_scalar_exact},
        {"float_to_bool", float_to_bool},
        {"cast_matrix", cast_matrix},
        {"double_ops", double_ops},
        {"where_operands", where_operands},
        {"broadcast_patterns", broadcast_patterns},
        {"empty", empty},
        {"misaligned", misaligned},
        {"threads_same_bits", threads_same_bits},
        {"unsupported", unsupported},
    };
    static const check_case benches[] = {
        {"ops", bench_ops}, {"shapes", bench_shapes}, {"chains", bench_chains}};
    return check_main(argc, argv, cases, COUNT(cases), benches, COUNT(benches));
}
