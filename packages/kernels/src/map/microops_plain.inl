/*
 * Micro-ops as plain C loops, which the compiler vectorises: integers, booleans (0 or 1),
 * comparisons and conversions. `a` and `b` are elements of the operands.
 */

/* The output may be an operand: element i is read before it is written, so iterations stay
 * independent. */
#if defined(__clang__)
#define C_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define C_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Loops are over whole blocks, so that compilers make one loop of vectors for each micro-op, and
 * none for last elements. */
enum { C_BLOCK = 64, C_WIDEST = 8 }; /* elements; bytes of one */

/* Computes `count` blocks; from one block to the next, operand k is `step[k]` elements further.
 * Returns false if the operands are refused. */
typedef bool (*c_blocks)(void *out, const void *const *in, const int64_t *step, int64_t count);

/* Makes a block of copies of an element. */
static void c_fill(char *block, const void *element, int64_t size) {
    uint64_t bytes = 0;
    memcpy(&bytes, element, (size_t)size);
    for (int64_t bits = 8 * size; bits < 64; bits *= 2)
        bytes |= bytes << bits;
    for (int64_t i = 0; i < C_BLOCK * size / 8; i++)
        memcpy(block + 8 * i, &bytes, sizeof bytes);
}

/* Runs a micro-op on n elements: whole blocks in place, the others in a copy, whose last elements
 * are not zero. An operand of step 0 becomes a block of equal elements. */
static __attribute__((noinline)) bool c_run(c_blocks blocks, int64_t out_size, const int8_t *sizes,
                                            int32_t arity, void *out, const program_operand *in,
                                            int64_t n) {
    _Alignas(TAPER_ALIGNMENT) char copies[PROGRAM_MAX_ARITY][C_BLOCK * C_WIDEST];
    _Alignas(TAPER_ALIGNMENT) char last[C_BLOCK * C_WIDEST];
    const void *from[PROGRAM_MAX_ARITY];
    int64_t step[PROGRAM_MAX_ARITY];
    const int64_t whole = n / C_BLOCK, rest = n % C_BLOCK;
    for (int32_t k = 0; k < arity; k++) {
        step[k] = in[k].step * C_BLOCK;
        from[k] = in[k].data;
        if (step[k] == 0) {
            c_fill(copies[k], in[k].data, sizes[k]);
            from[k] = copies[k];
        }
    }
    bool done = whole == 0 || blocks(out, from, step, whole);
    if (rest > 0) {
        for (int32_t k = 0; k < arity; k++)
            if (step[k] != 0) {
                memset(copies[k], 1, (size_t)(C_BLOCK * sizes[k]));
                memcpy(copies[k], (const char *)in[k].data + whole * C_BLOCK * sizes[k],
                       (size_t)(rest * sizes[k]));
                from[k] = copies[k];
            }
        done &= blocks(last, from, step, 1);
        memcpy((char *)out + whole * C_BLOCK * out_size, last, (size_t)(rest * out_size));
    }
    return done;
}

#define C_RUN(name, blocks, R, arity, ...)                                                         \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        static const int8_t sizes[] = {__VA_ARGS__};                                               \
        return c_run(blocks, sizeof(R), sizes, arity, out, in, n);                                 \
    }

#define C_UNARY(name, R, T, expr)                                                                  \
    static bool name##_blocks(void *out, const void *const *in, const int64_t *step,               \
                              int64_t count) {                                                     \
        R *r = out;                                                                                \
        const T *pa = in[0];                                                                       \
        for (; count > 0; count--, r += C_BLOCK, pa += step[0])                                    \
            C_INDEPENDENT                                                                          \
        for (int i = 0; i < C_BLOCK; i++) {                                                        \
            const T a = pa[i];                                                                     \
            r[i] = (R)(expr);                                                                      \
        }                                                                                          \
        return true;                                                                               \
    }                                                                                              \
    C_RUN(name, name##_blocks, R, 1, sizeof(T))

#define C_BINARY(name, R, T, expr)                                                                 \
    static bool name##_blocks(void *out, const void *const *in, const int64_t *step,               \
                              int64_t count) {                                                     \
        R *r = out;                                                                                \
        const T *pa = in[0], *pb = in[1];                                                          \
        for (; count > 0; count--, r += C_BLOCK, pa += step[0], pb += step[1])                     \
            C_INDEPENDENT                                                                          \
        for (int i = 0; i < C_BLOCK; i++) {                                                        \
            const T a = pa[i], b = pb[i];                                                          \
            r[i] = (R)(expr);                                                                      \
        }                                                                                          \
        return true;                                                                               \
    }                                                                                              \
    C_RUN(name, name##_blocks, R, 2, sizeof(T), sizeof(T))

#define C_WHERE(name, T)                                                                           \
    static bool name##_blocks(void *out, const void *const *in, const int64_t *step,               \
                              int64_t count) {                                                     \
        T *r = out;                                                                                \
        const uint8_t *pc = in[0];                                                                 \
        const T *pa = in[1], *pb = in[2];                                                          \
        for (; count > 0; count--, r += C_BLOCK, pc += step[0], pa += step[1], pb += step[2])      \
            C_INDEPENDENT                                                                          \
        for (int i = 0; i < C_BLOCK; i++) {                                                        \
            const T a = pa[i], b = pb[i];                                                          \
            r[i] = pc[i] ? a : b;                                                                  \
        }                                                                                          \
        return true;                                                                               \
    }                                                                                              \
    C_RUN(name, name##_blocks, T, 3, sizeof(uint8_t), sizeof(T), sizeof(T))

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

/* Goes block by block, in vectors where every element `a` of the block is in range. In other blocks
 * the elements out of range go through libm, and the others give the same bits as in vectors: no
 * element's bits depend on its neighbours. */
#define C_WITHIN(name, T, within, expr, exact)                                                     \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        enum { BLOCK = 64 };                                                                       \
        T *r = out;                                                                                \
        const T *p = in[0].data;                                                                   \
        for (int64_t begin = 0; begin < n; begin += BLOCK, r += BLOCK, p += BLOCK) {               \
            const int64_t block = n - begin < BLOCK ? n - begin : BLOCK;                           \
            int64_t others = 0;                                                                    \
            for (int64_t i = 0; i < block; i++) {                                                  \
                const T a = p[i];                                                                  \
                others += within ? 0 : 1;                                                          \
            }                                                                                      \
            if (others == 0)                                                                       \
                C_INDEPENDENT                                                                      \
            for (int64_t i = 0; i < block; i++) {                                                  \
                const T a = p[i];                                                                  \
                r[i] = (T)(expr);                                                                  \
            }                                                                                      \
            else for (int64_t i = 0; i < block; i++) {                                             \
                const T a = p[i];                                                                  \
                r[i] = within ? (T)(expr) : (T)(exact);                                            \
            }                                                                                      \
        }                                                                                          \
        return true;                                                                               \
    }

C_WHERE(f32_where, float)
C_WHERE(f64_where, double)
C_WHERE(i64_where, int64_t)
C_WHERE(i32_where, int32_t)
C_WHERE(i16_where, int16_t)
C_WHERE(bool_where, uint8_t)

/* ---- one body for all integer dtypes ---- */

/* Arithmetic is unsigned, so that it wraps, as the hardware's does; shifts are of W, the unsigned
 * type that a shift of T is computed in. */
#define U(x) ((uint64_t)(x))
#define SIGNED_INTS(X, ...)                                                                        \
    X(i64, int64_t, uint64_t, __VA_ARGS__)                                                         \
    X(i32, int32_t, uint32_t, __VA_ARGS__)                                                         \
    X(i16, int16_t, uint32_t, __VA_ARGS__)                                                         \
    X(i8, int8_t, uint32_t, __VA_ARGS__)
#define INTS(X, ...) SIGNED_INTS(X, __VA_ARGS__) X(u8, uint8_t, uint32_t, __VA_ARGS__)
/* Without uint8, where the bits are those of int8 or of bool. */
#define INT_UNARY(prefix, T, W, op, expr) C_UNARY(prefix##_##op, T, T, expr)
#define INT_BINARY(prefix, T, W, op, expr) C_BINARY(prefix##_##op, T, T, expr)

SIGNED_INTS(INT_UNARY, neg, U(0) - U(a))
SIGNED_INTS(INT_UNARY, abs, a < 0 ? U(0) - U(a) : U(a))
#define INT_SIGN(prefix, T, W, op) C_UNARY(prefix##_##op, T, T, (T)(a > 0) - (T)(a < 0))
SIGNED_INTS(INT_SIGN, sign)
SIGNED_INTS(INT_UNARY, relu, a > 0 ? a : 0)
SIGNED_INTS(INT_UNARY, square, U(a) * U(a))
SIGNED_INTS(INT_UNARY, bitwise_not, ~a)
SIGNED_INTS(INT_BINARY, add, U(a) + U(b))
SIGNED_INTS(INT_BINARY, sub, U(a) - U(b))
SIGNED_INTS(INT_BINARY, mul, U(a) * U(b))
INTS(INT_BINARY, maximum, a > b ? a : b)
INTS(INT_BINARY, minimum, a < b ? a : b)
#define u8_neg i8_neg
#define u8_abs u8_from_u8
#define u8_sign bool_from_u8
#define u8_relu u8_from_u8
#define u8_square i8_square
#define u8_bitwise_not i8_bitwise_not
#define u8_add i8_add
#define u8_sub i8_sub
#define u8_mul i8_mul
#define u8_where bool_where
#define i8_where bool_where

#define INT_BITWISE(X)                                                                             \
    X(i64, int64_t)                                                                                \
    X(i32, int32_t)                                                                                \
    X(i16, int16_t)
#define INT_AND(prefix, T) C_BINARY(prefix##_bitwise_and, T, T, a &b)
#define INT_OR(prefix, T) C_BINARY(prefix##_bitwise_or, T, T, a | b)
#define INT_XOR(prefix, T) C_BINARY(prefix##_bitwise_xor, T, T, a ^ b)
INT_BITWISE(INT_AND)
INT_BITWISE(INT_OR)
INT_BITWISE(INT_XOR)
#define i8_bitwise_and bool_bitwise_and
#define i8_bitwise_or bool_bitwise_or
#define i8_bitwise_xor bool_bitwise_xor
#define u8_bitwise_and bool_bitwise_and
#define u8_bitwise_or bool_bitwise_or
#define u8_bitwise_xor bool_bitwise_xor

/* Shifts by no place of a bit give what is left when all bits are shifted out. CPUs shift bytes and
 * 16-bit integers by one number alone: by a bit of the number of places at a time. */
#define INT_PLACES(T) (8 * sizeof(T))
#define INT_LAST_BIT(T) (INT_PLACES(T) - ((T) - 1 < 0))
#define INT_LEFT_SHIFT(prefix, T, W, op)                                                           \
    C_BINARY(prefix##_##op, T, T, (W)b < INT_PLACES(T) ? (W)a << ((W)b & (INT_PLACES(T) - 1)) : 0)
#define INT_RIGHT_SHIFT(prefix, T, W, op)                                                          \
    C_BINARY(prefix##_##op, T, T, a >> ((W)b < INT_LAST_BIT(T) ? (W)b : INT_LAST_BIT(T)))
#define SMALL_SHIFTS(prefix, T, N, out)                                                            \
    static inline T prefix##_left_shift_of(T a, T b) {                                             \
        a = (T)(b & 1 ? (N)a << 1 : a);                                                            \
        a = (T)(b & 2 ? (N)a << 2 : a);                                                            \
        a = (T)(b & 4 ? (N)a << 4 : a);                                                            \
        if (sizeof(T) == 2)                                                                        \
            a = (T)(b & 8 ? (N)a << 8 : a);                                                        \
        return (N)b < INT_PLACES(T) ? a : 0;                                                       \
    }                                                                                              \
    /* Of a number that is not negative, or of what inverts to it. */                              \
    static inline T prefix##_right_shift_of(T a, T b) {                                            \
        const N left = (N)(out);                                                                   \
        N x = (N)a ^ left;                                                                         \
        x = (N)(b & 1 ? x >> 1 : x);                                                               \
        x = (N)(b & 2 ? x >> 2 : x);                                                               \
        x = (N)(b & 4 ? x >> 4 : x);                                                               \
        if (sizeof(T) == 2)                                                                        \
            x = (N)(b & 8 ? x >> 8 : x);                                                           \
        return (T)((N)b < INT_PLACES(T) ? x ^ left : left);                                        \
    }                                                                                              \
    C_BINARY(prefix##_left_shift, T, T, prefix##_left_shift_of(a, b))                              \
    C_BINARY(prefix##_right_shift, T, T, prefix##_right_shift_of(a, b))
INT_LEFT_SHIFT(i64, int64_t, uint64_t, left_shift)
INT_LEFT_SHIFT(i32, int32_t, uint32_t, left_shift)
INT_RIGHT_SHIFT(i64, int64_t, uint64_t, right_shift)
INT_RIGHT_SHIFT(i32, int32_t, uint32_t, right_shift)
SMALL_SHIFTS(i16, int16_t, uint16_t, a < 0 ? -1 : 0)
SMALL_SHIFTS(i8, int8_t, uint8_t, a < 0 ? -1 : 0)
SMALL_SHIFTS(u8, uint8_t, uint8_t, 0)

/* The greatest common divisor, by Euclid's algorithm; that of the lowest integer may wrap. */
static inline uint64_t int_gcd(int64_t a, int64_t b) {
    uint64_t x = a < 0 ? U(0) - U(a) : U(a), y = b < 0 ? U(0) - U(b) : U(b);
    while (y != 0) {
        const uint64_t rest = (x | y) >> 32 ? x % y : (uint32_t)x % (uint32_t)y;
        x = y;
        y = rest;
    }
    return x;
}
#define INT_GCD(prefix, T, W, op) C_BINARY_CALL(prefix##_##op, T, T, int_gcd(a, b))
INTS(INT_GCD, gcd)

/* Division never traps: by zero it gives 0, and dividing the lowest integer by -1 wraps. The
 * quotients of up to 32 bits are those of doubles, and of up to 16 bits those of floats: no whole
 * number is as near to a fraction as their rounding. So compilers vectorise them. */
static inline int64_t i64_quotient(int64_t a, int64_t b) {
    return b == 0 ? 0 : b == -1 ? (int64_t)(U(0) - U(a)) : a / b;
}
static inline int32_t i32_quotient(int32_t a, int32_t b) {
    const bool trivial = (b == 0) | (b == -1);
    const int32_t whole = (int32_t)((double)a / (double)(trivial ? 1 : b));
    return b == 0 ? 0 : b == -1 ? (int32_t)(0 - (uint32_t)a) : whole;
}
static inline int32_t i16_quotient(int32_t a, int32_t b) {
    const int32_t whole = (int32_t)((float)a / (float)(b == 0 ? 1 : b));
    return b == 0 ? 0 : whole;
}
#define i8_quotient i16_quotient
#define u8_quotient i16_quotient
static inline int64_t int_pow(int64_t a, int64_t b) {
    if (b < 0) /* except for these bases the exact result is a fraction */
        return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    uint64_t result = 1, base = U(a);
    for (; b; b >>= 1, base *= base)
        result *= b & 1 ? base : 1;
    return (int64_t)result;
}

/* `expr` of the quotient q, the divisor d and the remainder m; and `name`_nonzero, which refuses to
 * divide by 0. A quotient rounded down is less by 1 where it is negative and not whole. Both have
 * one loop, which waits for its divisions: to look for zeros costs nothing. */
#define INT_DIVISION(prefix, T, W, op, expr)                                                       \
    static bool prefix##_##op##_blocks(void *out, const void *const *in, const int64_t *step,      \
                                       int64_t count) {                                            \
        T *r = out, zero = 0;                                                                      \
        const T *pa = in[0], *pb = in[1];                                                          \
        for (; count > 0; count--, r += C_BLOCK, pa += step[0], pb += step[1])                     \
            C_INDEPENDENT                                                                          \
        for (int i = 0; i < C_BLOCK; i++) {                                                        \
            const T a = pa[i], b = pb[i];                                                          \
            const W q = (W)prefix##_quotient(a, b), d = (W)b, m = b == 0 ? 0 : (W)a - q * d;       \
            const W down = (m != 0) & ((m ^ d) >> (8 * sizeof(W) - 1));                            \
            (void)down;                                                                            \
            zero |= (T) - (b == 0);                                                                \
            r[i] = (T)(expr);                                                                      \
        }                                                                                          \
        return zero == 0;                                                                          \
    }                                                                                              \
    C_RUN(prefix##_##op##_nonzero, prefix##_##op##_blocks, T, 2, sizeof(T), sizeof(T))             \
    static bool prefix##_##op(void *out, const program_operand *in, int64_t n) {                   \
        prefix##_##op##_nonzero(out, in, n);                                                       \
        return true;                                                                               \
    }
INTS(INT_DIVISION, trunc_div, q)
INTS(INT_DIVISION, floor_div, q - down)
INTS(INT_DIVISION, fmod, m)
INTS(INT_DIVISION, remainder, m + (d & -down))
#define INT_POW(prefix, T, W, op) C_BINARY_CALL(prefix##_##op, T, T, int_pow(a, b))
INTS(INT_POW, pow)

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
C_UNARY(i16_logical_not, uint8_t, int16_t, a == 0)
#define i8_logical_not bool_logical_not
#define u8_logical_not bool_logical_not

#define COMPARISON(op, expr)                                                                       \
    C_BINARY(f32_##op, uint8_t, float, expr)                                                       \
    C_BINARY(f64_##op, uint8_t, double, expr)                                                      \
    C_BINARY(i64_##op, uint8_t, int64_t, expr)                                                     \
    C_BINARY(i32_##op, uint8_t, int32_t, expr)                                                     \
    C_BINARY(i16_##op, uint8_t, int16_t, expr)                                                     \
    C_BINARY(bool_##op, uint8_t, uint8_t, expr)
#define ORDER(op, expr) COMPARISON(op, expr) C_BINARY(i8_##op, uint8_t, int8_t, expr)

COMPARISON(eq, a == b)
COMPARISON(ne, a != b)
ORDER(lt, a < b)
ORDER(le, a <= b)
ORDER(gt, a > b)
ORDER(ge, a >= b)
COMPARISON(logical_and, (a != 0) & (b != 0))
COMPARISON(logical_or, (a != 0) | (b != 0))
COMPARISON(logical_xor, (a != 0) ^ (b != 0))
#define i8_eq bool_eq
#define i8_ne bool_ne
#define i8_logical_and bool_logical_and
#define i8_logical_or bool_logical_or
#define i8_logical_xor bool_logical_xor
#define u8_eq bool_eq
#define u8_ne bool_ne
#define u8_lt bool_lt
#define u8_le bool_le
#define u8_gt bool_gt
#define u8_ge bool_ge
#define u8_logical_and bool_logical_and
#define u8_logical_or bool_logical_or
#define u8_logical_xor bool_logical_xor

/* ---- conversions ---- */

/* Float to integer truncates. NaN and values out of range give the lowest integer, as on x86; an
 * integer of fewer than 32 bits gets the last bits of the lowest one of 32. Integer to integer
 * keeps the last bits. */
#define CONVERT(name, R, T) C_UNARY(name, R, T, a)
#define CONVERT_CHECKED(name, R, T, I, lowest)                                                     \
    C_UNARY(name, R, T, a >= lowest && a < -(lowest) ? (I)a : (I)lowest)
#define LOWEST_I32 (-0x1p31f)
#define LOWEST_I64 (-0x1p63f)
/* Through int32 where a block's numbers are in its range: CPUs convert vectors of floats to int32,
 * and most have no instruction for int64. */
#define CONVERT_TO_WIDE(name, T)                                                                   \
    static bool name##_blocks(void *out, const void *const *in, const int64_t *step,               \
                              int64_t count) {                                                     \
        int64_t *r = out;                                                                          \
        const T *p = in[0];                                                                        \
        for (; count > 0; count--, r += C_BLOCK, p += step[0]) {                                   \
            int32_t narrow[C_BLOCK], outside = 0;                                                  \
            for (int i = 0; i < C_BLOCK; i++)                                                      \
                narrow[i] = p[i] >= LOWEST_I32 && p[i] < -LOWEST_I32 ? (int32_t)p[i] : INT32_MIN;  \
            for (int i = 0; i < C_BLOCK; i++)                                                      \
                outside |= narrow[i] == INT32_MIN;                                                 \
            if (outside)                                                                           \
                for (int i = 0; i < C_BLOCK; i++)                                                  \
                    r[i] = p[i] >= LOWEST_I64 && p[i] < -LOWEST_I64 ? (int64_t)p[i] : INT64_MIN;   \
            else                                                                                   \
                for (int i = 0; i < C_BLOCK; i++)                                                  \
                    r[i] = narrow[i];                                                              \
        }                                                                                          \
        return true;                                                                               \
    }                                                                                              \
    C_RUN(name, name##_blocks, int64_t, 1, sizeof(T))
#define CONVERT_FROM_WIDE(name, R)                                                                 \
    static bool name##_blocks(void *out, const void *const *in, const int64_t *step,               \
                              int64_t count) {                                                     \
        R *r = out;                                                                                \
        const int64_t *p = in[0];                                                                  \
        for (; count > 0; count--, r += C_BLOCK, p += step[0]) {                                   \
            uint64_t outside = 0;                                                                  \
            for (int i = 0; i < C_BLOCK; i++)                                                      \
                outside |= (U(p[i]) + U(1 + U(INT32_MAX))) >> 32;                                  \
            if (outside)                                                                           \
                for (int i = 0; i < C_BLOCK; i++)                                                  \
                    r[i] = (R)p[i];                                                                \
            else                                                                                   \
                C_INDEPENDENT                                                                      \
            for (int i = 0; i < C_BLOCK; i++)                                                      \
                r[i] = (R)(int32_t)p[i];                                                           \
        }                                                                                          \
        return true;                                                                               \
    }                                                                                              \
    C_RUN(name, name##_blocks, R, 1, sizeof(int64_t))
#define CONVERSIONS(from, T)                                                                       \
    CONVERT(f32_from_##from, float, T)                                                             \
    CONVERT(f64_from_##from, double, T)                                                            \
    C_UNARY(bool_from_##from, uint8_t, T, a != 0)
#define INTS_OF_FLOAT(from, T)                                                                     \
    CONVERT_TO_WIDE(i64_from_##from, T)                                                            \
    CONVERT_CHECKED(i32_from_##from, int32_t, T, int32_t, LOWEST_I32)                              \
    CONVERT_CHECKED(i16_from_##from, int16_t, T, int32_t, LOWEST_I32)
#define INTS_OF_INT(from, T)                                                                       \
    CONVERT(i64_from_##from, int64_t, T)                                                           \
    CONVERT(i32_from_##from, int32_t, T)                                                           \
    CONVERT(i16_from_##from, int16_t, T)                                                           \
    CONVERT(i8_from_##from, int8_t, T)                                                             \
    CONVERT(u8_from_##from, uint8_t, T)

CONVERSIONS(f32, float)
CONVERSIONS(f64, double)
CONVERT_FROM_WIDE(f32_from_i64, float)
CONVERT_FROM_WIDE(f64_from_i64, double)
C_UNARY(bool_from_i64, uint8_t, int64_t, a != 0)
CONVERSIONS(i32, int32_t)
CONVERSIONS(i16, int16_t)
CONVERSIONS(i8, int8_t)
CONVERSIONS(u8, uint8_t)
CONVERSIONS(bool, uint8_t)
INTS_OF_FLOAT(f32, float)
INTS_OF_FLOAT(f64, double)
CONVERT_CHECKED(i8_from_f64, int8_t, double, int32_t, LOWEST_I32)
CONVERT_CHECKED(u8_from_f64, uint8_t, double, int32_t, LOWEST_I32)
INTS_OF_INT(i64, int64_t)
INTS_OF_INT(i32, int32_t)
INTS_OF_INT(i16, int16_t)
INTS_OF_INT(i8, int8_t)
INTS_OF_INT(u8, uint8_t)
INTS_OF_INT(bool, uint8_t)

#if !defined(V_STORE_F16)
/* To float16, without branches, so that compilers vectorise. */
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

C_UNARY(f16_from_f32, uint16_t, float, half_from_float(a))
#endif
