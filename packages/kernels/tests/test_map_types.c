/* Elementwise ops on integers and booleans, CAST and WHERE against plain C; what is refused. */
#include "elementwise.h"

CHECK_ATTRS(cast)

#define F32 TAPER_FLOAT32
#define I64 TAPER_INT64
#define I32 TAPER_INT32
#define I16 TAPER_INT16
#define I8 TAPER_INT8
#define U8 TAPER_UINT8
#define BOOL TAPER_BOOL

static const int64_t int_specials[] = {0,         1,         -1,        2,         -2,
                                       3,         7,         -7,        63,        64,
                                       INT8_MAX,  INT8_MIN,  UINT8_MAX, INT16_MAX, INT16_MIN,
                                       INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, INT64_MIN + 1};

/* ---- integers and booleans ---- */

typedef struct integer {
    int64_t low; /* the dtype's lowest value */
    taper_dtype dtype;
} integer;
static const integer integers[] = {{INT64_MIN, I64}, {INT32_MIN, I32}, {INT16_MIN, I16},
                                   {INT8_MIN, I8},   {0, U8},          {0, BOOL}};

static int64_t wrap(const integer *t, uint64_t x) {
    return t->dtype == I32   ? (int64_t)(int32_t)x
           : t->dtype == I16 ? (int64_t)(int16_t)x
           : t->dtype == I8  ? (int64_t)(int8_t)x
           : t->dtype == U8  ? (int64_t)(uint8_t)x
                             : (int64_t)x;
}
static int64_t get(const taper_tensor *t, int64_t i) {
    return t->dtype == I64   ? ((const int64_t *)t->data)[i]
           : t->dtype == I32 ? ((const int32_t *)t->data)[i]
           : t->dtype == I16 ? ((const int16_t *)t->data)[i]
           : t->dtype == I8  ? ((const int8_t *)t->data)[i]
                             : ((const uint8_t *)t->data)[i];
}
static void set(const taper_tensor *t, int64_t i, int64_t x) {
    if (t->dtype == I64)
        ((int64_t *)t->data)[i] = x;
    else if (t->dtype == I32)
        ((int32_t *)t->data)[i] = (int32_t)x;
    else if (t->dtype == I16)
        ((int16_t *)t->data)[i] = (int16_t)x;
    else if (t->dtype == I8 || t->dtype == U8)
        ((uint8_t *)t->data)[i] = (uint8_t)x;
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
                                            : wrap(t, ~u);
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

/* By the bits that are left: a shift by no place of a bit shifts all of them out. */
static int64_t int_shift(const char *op, const integer *t, int64_t a, int64_t b) {
    const int64_t bits = 8 * (int64_t)taper_dtype_size(t->dtype);
    const bool left = strcmp(op, "LEFT_SHIFT") == 0;
    int64_t x = a;
    for (int64_t i = 0; i < (b < 0 || b > bits ? bits : b); i++)
        x = left ? wrap(t, (uint64_t)x * 2) : (x - (x & 1)) / 2;
    return x;
}

static int64_t int_divisor(const integer *t, int64_t a, int64_t b) {
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    for (uint64_t rest; y; x = y, y = rest)
        rest = x % y;
    return wrap(t, x);
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
           : strstr(op, "_SHIFT")           ? int_shift(op, t, a, b)
           : strcmp(op, "GCD") == 0         ? int_divisor(t, a, b)
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
    {"NEG", true, false, false},
    {"ABS", true, false, false},
    {"SIGN", true, false, false},
    {"RELU", true, false, false},
    {"SQUARE", true, false, false},
    {"LOGICAL_NOT", true, true, true},
    {"BITWISE_NOT", true, true, false},
    {"ADD", false, true, false},
    {"SUB", false, false, false},
    {"MUL", false, true, false},
    {"TRUNC_DIV", false, false, false},
    {"FLOOR_DIV", false, false, false},
    {"FMOD", false, false, false},
    {"REMAINDER", false, false, false},
    {"POW", false, false, false},
    {"MAXIMUM", false, true, false},
    {"MINIMUM", false, true, false},
    {"EQ", false, true, true},
    {"NE", false, true, true},
    {"LT", false, true, true},
    {"LE", false, true, true},
    {"GT", false, true, true},
    {"GE", false, true, true},
    {"LOGICAL_AND", false, true, true},
    {"LOGICAL_OR", false, true, true},
    {"LOGICAL_XOR", false, true, true},
    {"BITWISE_AND", false, true, false},
    {"BITWISE_OR", false, true, false},
    {"BITWISE_XOR", false, true, false},
    {"LEFT_SHIFT", false, false, false},
    {"RIGHT_SHIFT", false, false, false},
    {"GCD", false, false, false},
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
        const int64_t scalar = t->dtype == BOOL ? index : t->low == 0 ? 3 : 3 - 8 * index;
        const struct division_attrs attrs = {{(double)scalar, scalar}, index, true};
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
    enum { WHOLE = 7, IN = 12, N = 1000 };
    for (size_t f = 0; f < COUNT(cast_dtypes); f++)
        for (size_t t = 0; t < COUNT(cast_dtypes); t++) {
            const taper_dtype from = cast_dtypes[f], to = cast_dtypes[t];
            const taper_tensor x = vector(from, N), y = vector(to, N);
            const bool is_float = from == TAPER_FLOAT32 || from == TAPER_FLOAT64;
            const bool to_float = to == TAPER_FLOAT32 || to == TAPER_FLOAT64;
            for (int64_t i = 0; i < N; i++) {
                const bool beyond = i >= N / 2; /* of int32, in the second half of the blocks */
                double v = values[i % (!is_float ? WHOLE : beyond ? (int64_t)COUNT(values) : IN)];
                if (beyond && from == TAPER_INT64 && (to_float || to == TAPER_INT64))
                    v = 0x123456p24 * v + 1;
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
                const bool in_range = !is_float || fabs(v) < 1e10;
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

/* ---- WHERE ---- */

/* Every operand a vector, or one element standing for all. */
static void where_operands(void) {
    static const taper_dtype dtypes[] = {TAPER_FLOAT32, I64, I32, I16, I8, U8, BOOL};
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
                        set(&x[k], i, check_int(x[k].dtype == U8 ? 0 : -9, 9));
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

/* ---- refusals ---- */

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

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"integer_ops", integer_ops},       {"integer_scalar_exact", integer_scalar_exact},
        {"float_to_bool", float_to_bool},   {"cast_matrix", cast_matrix},
        {"where_operands", where_operands}, {"unsupported", unsupported},
    };
    return check_main(argc, argv, cases, COUNT(cases), NULL, 0);
}
