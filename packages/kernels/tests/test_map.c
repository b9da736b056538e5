/*
 * Elementwise ops on floats against plain C: values in double where a function is approximated, the
 * same float operations otherwise.
 */
#include "elementwise.h"
#include "functions.h"

#define F32 TAPER_FLOAT32

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
    {"ERFCX", erfcx, 1, -10, 40},
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
                const struct division_attrs attrs = {
                    {(double)scalar, (int64_t)scalar}, index, true};
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

/* Set element i of a float32 or float64 vector. */
static void put(const taper_tensor *x, int64_t i, double value) {
    if (x->dtype == TAPER_FLOAT64)
        ((double *)x->data)[i] = value;
    else
        ((float *)x->data)[i] = (float)value;
}

/* The bits of an element do not depend on what lies beside it, and is computed another way. */
static void elements_beside_others(void) {
    const double others[] = {NAN, INFINITY, -INFINITY, 0, -0.0, 1e-310, -2, 1e30};
    enum { N = 256 };
    for (int is_double = 0; is_double < 2; is_double++) {
        const taper_dtype dtype = is_double ? TAPER_FLOAT64 : F32;
        const size_t size = is_double ? sizeof(double) : sizeof(float);
        const taper_tensor x = vector(dtype, N), alone = vector(dtype, N),
                           beside = vector(dtype, N);
        for (size_t o = 0; o < COUNT(unary_ops); o++) {
            const struct unary *u = &unary_ops[o];
            for (int64_t i = 0; i < N; i++)
                put(&x, i, (double)check_uniform(u->low, u->high) * (1 + 1e-9));
            check_threads(u->op, NULL, &x, 1, &alone, &no_scalar);
            for (size_t other = 0; other < COUNT(others); other++)
                put(&x, 7 + 31 * (int64_t)other, others[other]);
            check_threads(u->op, NULL, &x, 1, &beside, &no_scalar);
            const char *want = alone.data, *got = beside.data;
            for (size_t i = 0; i < N; i++)
                CHECK(i % 31 == 7 || memcmp(got + i * size, want + i * size, size) == 0,
                      "%s of element %zu of %zu bytes depends on others", u->op, i, size);
        }
        check_free(x.data);
        check_free(alone.data);
        check_free(beside.data);
    }
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
    const struct division_attrs scalar = {{1.7, 1}, 1, true};
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

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"float_unary", float_unary},       {"float_binary", float_binary},
        {"float_division", float_division}, {"power_of_a_constant", power_of_a_constant},
        {"double_ops", double_ops},         {"elements_beside_others", elements_beside_others},
    };
    static const check_case benches[] = {{"ops", bench_ops}};
    return check_main(argc, argv, cases, COUNT(cases), benches, COUNT(benches));
}
