/*
 * Micro-ops as plain C loops, which the compiler vectorises: integers, booleans (0 or 1),
 * comparisons and conversions. `a` and `b` are elements of the operands.
 */

/* The output may be an operand: element i is read before it is written, so iterations stay
 * independent. GCC would unroll the few iterations after the last vector. */
#if defined(__clang__)
#define C_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define C_INDEPENDENT _Pragma("GCC ivdep") _Pragma("GCC unroll 1")
#endif

/* One loop; A and B are the expressions of an operand at element i. */
#define C_LOOP(R, T, A, B, expr)                                                                   \
    C_INDEPENDENT                                                                                  \
    for (int64_t i = 0; i < n; i++) {                                                              \
        const T a = A, b = B;                                                                      \
        r[i] = (R)(expr);                                                                          \
    }

#define C_UNARY(name, R, T, expr)                                                                  \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        R *r = out;                                                                                \
        const T *pa = in[0].data;                                                                  \
        C_INDEPENDENT                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const T a = pa[i];                                                                     \
            r[i] = (R)(expr);                                                                      \
        }                                                                                          \
        return true;                                                                               \
    }

#define C_BINARY(name, R, T, expr)                                                                 \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        R *r = out;                                                                                \
        const T *pa = in[0].data, *pb = in[1].data;                                                \
        const T a_same = *pa, b_same = *pb;                                                        \
        if (in[1].step == 0)                                                                       \
            C_LOOP(R, T, pa[i], b_same, expr)                                                      \
        else if (in[0].step == 0)                                                                  \
            C_LOOP(R, T, a_same, pb[i], expr)                                                      \
        else                                                                                       \
            C_LOOP(R, T, pa[i], pb[i], expr)                                                       \
        return true;                                                                               \
    }

/* The same for expressions that call a function with loops or branches, such as those of the math
 * library: no compiler vectorises them, and Clang warns where it is asked to. */
#define C_UNARY_CALL(name, R, T, expr)                                                             \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        R *r = out;                                                                                \
        const T *pa = in[0].data;                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const T a = pa[i];                                                                     \
            r[i] = (R)(expr);                                                                      \
        }                                                                                          \
        return true;                                                                               \
    }

#define C_BINARY_CALL(name, R, T, expr)                                                            \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        R *r = out;                                                                                \
        const T *pa = in[0].data, *pb = in[1].data;                                                \
        const T a_same = *pa, b_same = *pb;                                                        \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const T a = in[0].step ? pa[i] : a_same, b = in[1].step ? pb[i] : b_same;              \
            r[i] = (R)(expr);                                                                      \
        }                                                                                          \
        return true;                                                                               \
    }

/* WHERE: one condition for all elements picks an operand; else four loops. */
#define C_WHERE(name, T)                                                                           \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        T *r = out;                                                                                \
        const uint8_t *pc = in[0].data;                                                            \
        const T *pa = in[1].data, *pb = in[2].data;                                                \
        const T a_same = *pa, b_same = *pb;                                                        \
        if (in[0].step == 0) {                                                                     \
            const program_operand *picked = *pc ? &in[1] : &in[2];                                 \
            const T *p = picked->data;                                                             \
            for (int64_t i = 0; i < n; i++)                                                        \
                r[i] = p[i * picked->step];                                                        \
        } else if (in[1].step == 0 && in[2].step == 0)                                             \
            C_WHERE_LOOP(T, a_same, b_same)                                                        \
        else if (in[1].step == 0)                                                                  \
            C_WHERE_LOOP(T, a_same, pb[i])                                                         \
        else if (in[2].step == 0)                                                                  \
            C_WHERE_LOOP(T, pa[i], b_same)                                                         \
        else                                                                                       \
            C_WHERE_LOOP(T, pa[i], pb[i])                                                          \
        return true;                                                                               \
    }
#define C_WHERE_LOOP(T, A, B)                                                                      \
    C_INDEPENDENT                                                                                  \
    for (int64_t i = 0; i < n; i++) {                                                              \
        const T a = A, b = B;                                                                      \
        r[i] = pc[i] ? a : b;                                                                      \
    }

C_WHERE(f32_where, float)
C_WHERE(f64_where, double)
C_WHERE(i64_where, int64_t)
C_WHERE(i32_where, int32_t)
C_WHERE(bool_where, uint8_t)

/* ---- one body for both integer dtypes ---- */

/* Arithmetic is unsigned, so that it wraps, as the hardware's does. */
#define U(x) ((uint64_t)(x))
#define INT_UNARY(op, expr)                                                                        \
    C_UNARY(i64_##op, int64_t, int64_t, expr)                                                      \
    C_UNARY(i32_##op, int32_t, int32_t, expr)
#define INT_BINARY(op, expr)                                                                       \
    C_BINARY(i64_##op, int64_t, int64_t, expr)                                                     \
    C_BINARY(i32_##op, int32_t, int32_t, expr)

INT_UNARY(neg, U(0) - U(a))
INT_UNARY(abs, a < 0 ? U(0) - U(a) : U(a))
INT_UNARY(sign, (a > 0) - (a < 0))
INT_UNARY(relu, a > 0 ? a : 0)
INT_UNARY(square, U(a) * U(a))
INT_UNARY(bitwise_not, ~a)
INT_BINARY(add, U(a) + U(b))
INT_BINARY(sub, U(a) - U(b))
INT_BINARY(mul, U(a) * U(b))
INT_BINARY(maximum, a > b ? a : b)
INT_BINARY(minimum, a < b ? a : b)
INT_BINARY(bitwise_and, a &b)
INT_BINARY(bitwise_or, a | b)
INT_BINARY(bitwise_xor, a ^ b)

/* Division never traps: by zero it gives 0, and dividing the lowest integer by -1 wraps. */
static inline int64_t int_div(int64_t a, int64_t b) {
    return b == 0 ? 0 : b == -1 ? (int64_t)(U(0) - U(a)) : a / b;
}
static inline int64_t int_rem(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
/* Whether the quotient is negative and not whole, without a branch that random signs would miss. */
static inline bool int_rounds_down(int64_t a, int64_t b) {
    const int64_t rest = int_rem(a, b);
    return (rest != 0) & ((rest ^ b) < 0);
}
static inline int64_t int_pow(int64_t a, int64_t b) {
    if (b < 0) /* the exact result is a fraction but for these bases */
        return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    uint64_t result = 1, base = U(a);
    for (; b; b >>= 1, base *= base)
        result *= b & 1 ? base : 1;
    return (int64_t)result;
}

/* The same, and `name`_nonzero, which refuses to divide by 0. The test costs nothing more: a
 * division that traps needs it in any case. */
#define C_NONZERO_LOOP(T, A, expr)                                                                 \
    C_INDEPENDENT                                                                                  \
    for (int64_t i = 0; i < n; i++) {                                                              \
        const T a = A, b = pb[i];                                                                  \
        if (b == 0)                                                                                \
            return false;                                                                          \
        r[i] = (T)(expr);                                                                          \
    }
#define C_DIVISION(name, T, expr)                                                                  \
    C_BINARY(name, T, T, expr)                                                                     \
    static bool name##_nonzero(void *out, const program_operand *in, int64_t n) {                  \
        T *r = out;                                                                                \
        const T *pa = in[0].data, *pb = in[1].data;                                                \
        const T a_same = *pa;                                                                      \
        if (in[1].step == 0)                                                                       \
            return *pb != 0 && name(out, in, n);                                                   \
        if (in[0].step == 0)                                                                       \
            C_NONZERO_LOOP(T, a_same, expr)                                                        \
        else                                                                                       \
            C_NONZERO_LOOP(T, pa[i], expr)                                                         \
        return true;                                                                               \
    }
#define INT_DIVISION(op, expr)                                                                     \
    C_DIVISION(i64_##op, int64_t, expr)                                                            \
    C_DIVISION(i32_##op, int32_t, expr)

INT_DIVISION(trunc_div, int_div(a, b))
INT_DIVISION(floor_div, int_div(a, b) - int_rounds_down(a, b))
INT_DIVISION(fmod, int_rem(a, b))
INT_DIVISION(remainder, int_rem(a, b) + (b & -(int64_t)int_rounds_down(a, b)))
C_BINARY_CALL(i64_pow, int64_t, int64_t, int_pow(a, b))
C_BINARY_CALL(i32_pow, int32_t, int32_t, int_pow(a, b))

/* ---- booleans ---- */

C_UNARY(bool_logical_not, uint8_t, uint8_t, a == 0)
C_UNARY(bool_bitwise_not, uint8_t, uint8_t, a == 0)
C_BINARY(bool_add, uint8_t, uint8_t, a | b)
C_BINARY(bool_mul, uint8_t, uint8_t, a &b)
C_BINARY(bool_maximum, uint8_t, uint8_t, a | b)
C_BINARY(bool_minimum, uint8_t, uint8_t, a &b)
C_BINARY(bool_bitwise_and, uint8_t, uint8_t, a &b)
C_BINARY(bool_bitwise_or, uint8_t, uint8_t, a | b)
C_BINARY(bool_bitwise_xor, uint8_t, uint8_t, a ^ b)

/* ---- to bool ---- */

C_UNARY(f32_isnan, uint8_t, float, a != a)
C_UNARY(f32_isinf, uint8_t, float, fabsf(a) > FLT_MAX)
C_UNARY(f32_logical_not, uint8_t, float, a == 0)
C_UNARY(i64_logical_not, uint8_t, int64_t, a == 0)
C_UNARY(i32_logical_not, uint8_t, int32_t, a == 0)

#define COMPARISON(op, expr)                                                                       \
    C_BINARY(f32_##op, uint8_t, float, expr)                                                       \
    C_BINARY(f64_##op, uint8_t, double, expr)                                                      \
    C_BINARY(i64_##op, uint8_t, int64_t, expr)                                                     \
    C_BINARY(i32_##op, uint8_t, int32_t, expr)                                                     \
    C_BINARY(bool_##op, uint8_t, uint8_t, expr)

COMPARISON(eq, a == b)
COMPARISON(ne, a != b)
COMPARISON(lt, a < b)
COMPARISON(le, a <= b)
COMPARISON(gt, a > b)
COMPARISON(ge, a >= b)
COMPARISON(logical_and, (a != 0) & (b != 0))
COMPARISON(logical_or, (a != 0) | (b != 0))
COMPARISON(logical_xor, (a != 0) ^ (b != 0))

/* ---- conversions ---- */

/* Float to integer truncates. NaN and values out of range give the lowest integer, as on x86; an
 * integer of fewer than 32 bits gets the last bits of the lowest one of 32. Integer to integer
 * keeps the last bits. */
#define CONVERT(name, R, T) C_UNARY(name, R, T, a)
#define CONVERT_CHECKED(name, R, T, I, lowest)                                                     \
    C_UNARY(name, R, T, a >= lowest && a < -(lowest) ? (I)a : (I)lowest)
#define LOWEST_I32 (-0x1p31f)
#define LOWEST_I64 (-0x1p63f)
#define CONVERSIONS(from, T)                                                                       \
    CONVERT(f32_from_##from, float, T)                                                             \
    CONVERT(f64_from_##from, double, T)                                                            \
    C_UNARY(bool_from_##from, uint8_t, T, a != 0)
#define INTS_OF_FLOAT(from, T)                                                                     \
    CONVERT_CHECKED(i64_from_##from, int64_t, T, int64_t, LOWEST_I64)                              \
    CONVERT_CHECKED(i32_from_##from, int32_t, T, int32_t, LOWEST_I32)                              \
    CONVERT_CHECKED(i16_from_##from, int16_t, T, int32_t, LOWEST_I32)                              \
    CONVERT_CHECKED(i8_from_##from, int8_t, T, int32_t, LOWEST_I32)                                \
    CONVERT_CHECKED(u8_from_##from, uint8_t, T, int32_t, LOWEST_I32)
#define INTS_OF_INT(from, T)                                                                       \
    CONVERT(i64_from_##from, int64_t, T)                                                           \
    CONVERT(i32_from_##from, int32_t, T)                                                           \
    CONVERT(i16_from_##from, int16_t, T)                                                           \
    CONVERT(i8_from_##from, int8_t, T)                                                             \
    CONVERT(u8_from_##from, uint8_t, T)

CONVERSIONS(f32, float)
CONVERSIONS(f64, double)
CONVERSIONS(i64, int64_t)
CONVERSIONS(i32, int32_t)
CONVERSIONS(i16, int16_t)
CONVERSIONS(i8, int8_t)
CONVERSIONS(u8, uint8_t)
CONVERSIONS(bool, uint8_t)
INTS_OF_FLOAT(f32, float)
INTS_OF_FLOAT(f64, double)
INTS_OF_INT(i64, int64_t)
INTS_OF_INT(i32, int32_t)
INTS_OF_INT(i16, int16_t)
INTS_OF_INT(i8, int8_t)
INTS_OF_INT(u8, uint8_t)
INTS_OF_INT(bool, uint8_t)

/* To float16 and bfloat16, without branches, so that compilers vectorise. */
static inline float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Adding a power of two 2^13 above the last place that float16 keeps rounds to that place; scaling
 * up and down again turns a value that is too large into infinity. */
static inline uint16_t half_from_float(float x) {
    const uint32_t bits = bits_of_float(x), twice = bits << 1;
    const uint32_t exponent = twice & 0xff000000;
    const uint32_t above = (exponent < 0x71000000 ? 0x71000000 : exponent) >> 1;
    const float scaled = fabsf(x) * 0x1p112f * 0x1p-110f;
    const uint32_t rounded = bits_of_float(float_of_bits(above + 0x07800000) + scaled);
    const uint32_t value = (rounded >> 13 & 0x7c00) + (rounded & 0x0fff);
    return (uint16_t)((bits >> 16 & 0x8000) | (twice > 0xff000000 ? 0x7e00 : value));
}

/* Rounds to nearest even: adds half of the last place kept, less one unit where that place is even.
 */
static inline uint16_t bfloat_from_float(float x) {
    const uint32_t bits = bits_of_float(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0 : rounded);
}

C_UNARY(f16_from_f32, uint16_t, float, half_from_float(a))
C_UNARY(bf16_from_f32, uint16_t, float, bfloat_from_float(a))
