/*
 * float32 micro-ops: most use the vector layer, and rare ones doubles or libm.
 * In V_UNARY and V_BINARY `a` and `b` are vectors of the operands.
 */

/* One loop over whole vectors, and the tail; A and B are the expressions of an operand at element
 * i. */
#define V_LOOP(A, B, expr)                                                                         \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        for (; i + V_LEN <= n; i += V_LEN) {                                                       \
            const vf a = A(v_load(pa + i), a), b = B(v_load(pb + i), b);                           \
            v_store(r + i, expr);                                                                  \
        }                                                                                          \
        if (i < n) {                                                                               \
            const vf a = A(v_load_n(pa + i, n - i), a), b = B(v_load_n(pb + i, n - i), b);         \
            v_store_n(r + i, expr, n - i);                                                         \
        }                                                                                          \
    }
#define V_EACH(load, operand) load
#define V_SAME(load, operand) operand##_same

#define V_UNARY(name, expr)                                                                        \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        float *r = out;                                                                            \
        const float *pa = in[0].data;                                                              \
        int64_t i = 0;                                                                             \
        for (; i + V_LEN <= n; i += V_LEN) {                                                       \
            const vf a = v_load(pa + i);                                                           \
            v_store(r + i, expr);                                                                  \
        }                                                                                          \
        if (i < n) {                                                                               \
            const vf a = v_load_n(pa + i, n - i);                                                  \
            v_store_n(r + i, expr, n - i);                                                         \
        }                                                                                          \
        return true;                                                                               \
    }

#define V_BINARY(name, expr)                                                                       \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        float *r = out;                                                                            \
        const float *pa = in[0].data, *pb = in[1].data;                                            \
        const vf a_same = v_set1(*pa), b_same = v_set1(*pb);                                       \
        if (in[1].step == 0)                                                                       \
            V_LOOP(V_EACH, V_SAME, expr)                                                           \
        else if (in[0].step == 0)                                                                  \
            V_LOOP(V_SAME, V_EACH, expr)                                                           \
        else                                                                                       \
            V_LOOP(V_EACH, V_EACH, expr)                                                           \
        return true;                                                                               \
    }

/* Conversions from 16-bit floats; `load` widens V_LEN of them. */
#define V_WIDEN(name, load)                                                                        \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        float *r = out;                                                                            \
        const uint16_t *pa = in[0].data;                                                           \
        int64_t i = 0;                                                                             \
        for (; i + V_LEN <= n; i += V_LEN)                                                         \
            v_store(r + i, load(pa + i));                                                          \
        if (i < n) {                                                                               \
            uint16_t last[V_LEN] = {0};                                                            \
            memcpy(last, pa + i, (size_t)(n - i) * sizeof *last);                                  \
            v_store_n(r + i, load(last), n - i);                                                   \
        }                                                                                          \
        return true;                                                                               \
    }

V_WIDEN(f32_from_f16, v_load_f16)
V_WIDEN(f32_from_bf16, v_load_bf16)

/* Conversions to them; `store` rounds V_LEN floats. */
#define V_ROUND(name, store)                                                                       \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        uint16_t *r = out;                                                                         \
        const float *p = in[0].data;                                                               \
        int64_t i = 0;                                                                             \
        for (; i + V_LEN <= n; i += V_LEN)                                                         \
            store(r + i, v_load(p + i));                                                           \
        if (i < n) {                                                                               \
            uint16_t last[V_LEN];                                                                  \
            store(last, v_load_n(p + i, n - i));                                                   \
            memcpy(r + i, last, (size_t)(n - i) * sizeof *last);                                   \
        }                                                                                          \
        return true;                                                                               \
    }

#if defined(V_STORE_F16)
V_ROUND(f16_from_f32, v_store_f16)
#endif
V_ROUND(bf16_from_f32, v_store_bf16)

/* Truncates. NaN and numbers out of range give the lowest integer, as conversions of x86 do. */
V_INLINE vi v_truncate(vf a) {
#if defined(__SSE4_1__) && !defined(TAPER_SCALAR)
    return v_to_int(v_trunc(a));
#else
    const vm in_range = vm_and(v_le(v_set1(-0x1p31f), a), v_lt(a, v_set1(0x1p31f)));
    const vi whole = v_to_int(v_trunc(v_select(in_range, a, v_zero())));
    return v_as_int(v_select(in_range, v_as_float(whole), v_as_float(vi_set1(INT32_MIN))));
#endif
}

/* Keeps the lowest 8 bits of integers. */
V_INLINE bool bytes_from_f32(void *out, const program_operand *in, int64_t n) {
    enum { VECTORS = 4 };
    uint8_t *r = out;
    const float *p = in[0].data;
    int64_t i = 0;
    for (; i + VECTORS * V_LEN <= n; i += VECTORS * V_LEN) {
        vi x[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++)
            x[v] = v_truncate(v_load(p + i + v * V_LEN));
        vi_store_bytes_of(r + i, 0, x, 1, VECTORS);
    }
    for (; i < n; i += V_LEN) {
        uint8_t last[V_LEN];
        const int64_t rest = n - i < V_LEN ? n - i : V_LEN;
        vi_store_bytes(last, v_truncate(v_load_n(p + i, rest)));
        memcpy(r + i, last, (size_t)rest);
    }
    return true;
}
static bool i8_from_f32(void *out, const program_operand *in, int64_t n) {
    return bytes_from_f32(out, in, n);
}
static bool u8_from_f32(void *out, const program_operand *in, int64_t n) {
    return bytes_from_f32(out, in, n);
}

V_UNARY(f32_neg, v_neg(a))
V_UNARY(f32_abs, v_abs(a))
V_UNARY(f32_square, v_mul(a, a))
V_UNARY(f32_cube, v_mul(v_mul(a, a), a))
V_UNARY(f32_ceil, v_ceil(a))
V_UNARY(f32_floor, v_floor(a))
V_UNARY(f32_round, v_round(a))
V_UNARY(f32_trunc, v_trunc(a))
V_UNARY(f32_sqrt, v_sqrt(a))
V_UNARY(f32_rsqrt, v_div(v_set1(1.0f), v_sqrt(a)))
V_UNARY(f32_reciprocal, v_div(v_set1(1.0f), a))
V_UNARY(f32_exp, v_exp(a))
V_UNARY(f32_expm1, v_expm1(a))
V_UNARY(f32_log, v_log(a))
V_UNARY(f32_log2, v_log2(a))
V_UNARY(f32_log10, v_log10(a))
V_UNARY(f32_log1p, v_log1p(a))
V_UNARY(f32_sin, v_sin(a))
V_UNARY(f32_cos, v_cos(a))
V_UNARY(f32_tanh, v_tanh(a))
V_UNARY(f32_erf, v_erf(a))
V_UNARY(f32_sigmoid, v_sigmoid(a))
V_UNARY(f32_silu, v_silu(a))
V_UNARY(f32_gelu, v_gelu(a))
V_UNARY(f32_gelu_tanh, v_gelu_tanh(a))
V_UNARY(f32_mish, v_mish(a))
V_UNARY(f32_softplus, v_softplus(a))
/* max and min return their second operand where one is NaN: here that is the NaN. */
V_INLINE vf v_hardsigmoid(vf x) { /* min(max(x + 3, 0), 6) / 6 */
    const vf clamped = v_min(v_set1(6.0f), v_max(v_zero(), v_add(x, v_set1(3.0f))));
    return v_mul(clamped, v_set1(1.0f / 6.0f));
}
V_UNARY(f32_relu, v_max(v_zero(), a))
/* 0 for NaN, as in torch. */
V_UNARY(f32_sign, v_select(v_lt(v_zero(), a), v_set1(1.0f),
                           v_select(v_lt(a, v_zero()), v_set1(-1.0f), v_zero())))
V_UNARY(f32_hardsigmoid, v_hardsigmoid(a))
V_UNARY(f32_hardswish, v_mul(a, v_hardsigmoid(a)))

V_BINARY(f32_add, v_add(a, b))
V_BINARY(f32_sub, v_sub(a, b))
V_BINARY(f32_mul, v_mul(a, b))
V_BINARY(f32_div, v_div(a, b))
V_BINARY(f32_trunc_div, v_trunc(v_div(a, b)))
V_BINARY(f32_maximum, v_max_nan(a, b))
V_BINARY(f32_minimum, v_min_nan(a, b))
V_BINARY(f32_leaky_relu, v_select(v_lt(v_zero(), a), a, v_mul(a, b)))
V_BINARY(f32_elu, v_select(v_le(a, v_zero()), v_mul(b, v_expm1(a)), a))

/* ---- division ---- */

/* Of a quotient up to this, the double nearest to it has the whole part of the quotient itself, and
 * the whole part times the divisor is exact. */
#define WHOLE_LIMIT 0x1p24
static inline bool is_whole_exact(float a, float b) {
    return fabs((double)a / (double)b) < WHOLE_LIMIT && fabsf(b) <= FLT_MAX;
}
static inline float fmod_of_double(float a, float b) {
    const double whole = trunc((double)a / (double)b);
    return copysignf((float)((double)a - whole * (double)b), a);
}

/* As torch does, the quotient is computed from the remainder r, so that it agrees with REMAINDER
 * where a / b rounds up. */
static inline float remainder_of(float r, float b) {
    return r != 0.0f && (b < 0.0f) != (r < 0.0f) ? r + b : r;
}
static inline float floor_div_of(float a, float b, float r) {
    const float less = r != 0.0f && (b < 0.0f) != (r < 0.0f) ? 1.0f : 0.0f;
    const float quotient = (a - r) / b - less, whole = floorf(quotient);
    const float rounded = quotient - whole > 0.5f ? whole + 1.0f : whole;
    return quotient == 0.0f ? copysignf(0.0f, a / b) : rounded;
}

/* Goes block by block, in vectors where every quotient is in range; in other blocks element by
 * element through libm. Both are exact. `expr` is of a, b and the remainder m. */
#define F32_DIVISION(name, by_zero, expr)                                                          \
    static bool name(void *out, const program_operand *in, int64_t n) {                            \
        float *r = out;                                                                            \
        for (int64_t begin = 0; begin < n; begin += C_BLOCK) {                                     \
            const int64_t count = n - begin < C_BLOCK ? n - begin : C_BLOCK;                       \
            float pa[C_BLOCK], pb[C_BLOCK], pm[C_BLOCK];                                           \
            int32_t others = 0;                                                                    \
            for (int i = 0; i < C_BLOCK; i++) {                                                    \
                const int64_t at = begin + (i < count ? i : 0);                                    \
                pa[i] = ((const float *)in[0].data)[at * in[0].step];                              \
                pb[i] = ((const float *)in[1].data)[at * in[1].step];                              \
            }                                                                                      \
            for (int i = 0; i < C_BLOCK; i++) {                                                    \
                others += is_whole_exact(pa[i], pb[i]) ? 0 : 1;                                    \
                pm[i] = fmod_of_double(pa[i], pb[i]);                                              \
            }                                                                                      \
            for (int i = 0; others && i < C_BLOCK; i++)                                            \
                if (!is_whole_exact(pa[i], pb[i]))                                                 \
                    pm[i] = fmodf(pa[i], pb[i]);                                                   \
            for (int i = 0; i < C_BLOCK; i++) {                                                    \
                const float a = pa[i], b = pb[i], m = pm[i];                                       \
                pa[i] = by_zero && b == 0.0f ? a / b : (expr);                                     \
            }                                                                                      \
            memcpy(r + begin, pa, (size_t)count * sizeof(float));                                  \
        }                                                                                          \
        return true;                                                                               \
    }
F32_DIVISION(f32_fmod, false, m)
F32_DIVISION(f32_remainder, false, remainder_of(m, b))
F32_DIVISION(f32_floor_div, true, floor_div_of(a, b, m))

/* ---- in doubles, where a vector has four or more of them ---- */

#if V_LEN >= 8
#define F32_UNARY(name, of_doubles, of_libm) C_UNARY(name, float, float, of_doubles)
#define F32_BINARY(name, of_doubles, of_libm) C_BINARY(name, float, float, of_doubles)
C_WITHIN(f32_tan, float, fabsf(a) <= (float)D_TRIG_LIMIT, d_tan(a), tanf(a))
#else
#define F32_UNARY(name, of_doubles, of_libm) C_UNARY_CALL(name, float, float, of_libm)
#define F32_BINARY(name, of_doubles, of_libm) C_BINARY_CALL(name, float, float, of_libm)
C_UNARY_CALL(f32_tan, float, float, tanf(a))
#endif
F32_UNARY(f32_asin, d_asin_of_float(a), asinf(a))
F32_UNARY(f32_acos, d_acos_of_float(a), acosf(a))
F32_UNARY(f32_atan, d_atan_of_float(a), atanf(a))
F32_UNARY(f32_sinh, d_sinh_of_float(a), sinhf(a))
F32_UNARY(f32_cosh, d_cosh_of_float(a), coshf(a))
F32_UNARY(f32_asinh, d_asinh_of_float(a), asinhf(a))
F32_UNARY(f32_acosh, d_acosh_of_float(a), acoshf(a))
F32_UNARY(f32_atanh, d_atanh_of_float(a), atanhf(a))
F32_BINARY(f32_pow, d_pow_of_floats(a, b), powf(a, b))
F32_BINARY(f32_atan2, d_atan2_of_floats(a, b), atan2f(a, b))

C_UNARY_CALL(f32_erfc, float, float, erfcf(a))
C_UNARY_CALL(f32_erfcx, float, float, d_erfcx(a))
