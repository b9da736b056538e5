/* Any CPU: 4 lanes as plain C, the reference the other levels are tested against. */
#include <math.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) /* forced inlining makes an instrumented build take minutes */
#undef V_INLINE
#define V_INLINE static inline __attribute__((unused))
#endif

#define V_LEN 4
#define V_REGISTERS 16
typedef struct {
    float lane[4];
} vf;
typedef struct {
    int32_t lane[4];
} vi;
typedef struct {
    bool lane[4];
} vm;

#define V_EACH(T, expr)                                                                            \
    T r;                                                                                           \
    for (int i = 0; i < 4; i++)                                                                    \
        r.lane[i] = (expr);                                                                        \
    return r
#define V_UNARY(name, expr)                                                                        \
    V_INLINE vf name(vf va) { V_EACH(vf, expr); }
#define A va.lane[i]
#define B vb.lane[i]

V_INLINE vf v_set1(float x) { V_EACH(vf, x); }
V_INLINE vf v_zero(void) { V_EACH(vf, 0.0f); }
V_INLINE vf v_load(const float *p) { V_EACH(vf, p[i]); }
V_INLINE vf v_load_n(const float *p, int64_t n) { V_EACH(vf, i < n ? p[i] : 0.0f); }
V_INLINE void v_store_n(float *p, vf va, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        p[i] = A;
}
V_INLINE void v_store(float *p, vf va) { v_store_n(p, va, 4); }

V_INLINE vf v_add(vf va, vf vb) { V_EACH(vf, A + B); }
V_INLINE vf v_sub(vf va, vf vb) { V_EACH(vf, A - B); }
V_INLINE vf v_mul(vf va, vf vb) { V_EACH(vf, A * B); }
V_INLINE vf v_div(vf va, vf vb) { V_EACH(vf, A / B); }
V_INLINE vf v_fma(vf va, vf vb, vf vc) { V_EACH(vf, A * B + vc.lane[i]); }
V_INLINE vf v_max(vf va, vf vb) { V_EACH(vf, A > B ? A : B); }
V_INLINE vf v_min(vf va, vf vb) { V_EACH(vf, A < B ? A : B); }
V_INLINE vf v_sqrt(vf va) { V_EACH(vf, sqrtf(A)); }
V_INLINE vf v_abs(vf va) { V_EACH(vf, fabsf(A)); }
V_INLINE vf v_copysign(vf va, vf vb) { V_EACH(vf, copysignf(A, B)); }
V_INLINE vf v_round(vf va) { V_EACH(vf, nearbyintf(A)); }
V_INLINE vf v_floor(vf va) { V_EACH(vf, floorf(A)); }
V_INLINE vf v_ceil(vf va) { V_EACH(vf, ceilf(A)); }
V_INLINE vf v_trunc(vf va) { V_EACH(vf, truncf(A)); }

V_INLINE vm v_lt(vf va, vf vb) { V_EACH(vm, A < B); }
V_INLINE vm v_le(vf va, vf vb) { V_EACH(vm, A <= B); }
V_INLINE vm v_eq(vf va, vf vb) { V_EACH(vm, A == B); }
V_INLINE vm v_unord(vf va, vf vb) { V_EACH(vm, isnan(A) || isnan(B)); }
V_INLINE vm vm_and(vm va, vm vb) { V_EACH(vm, A && B); }
V_INLINE vm vm_or(vm va, vm vb) { V_EACH(vm, A || B); }
V_INLINE vm vm_not(vm va) { V_EACH(vm, !A); }
V_INLINE bool vm_any(vm va) { return va.lane[0] || va.lane[1] || va.lane[2] || va.lane[3]; }
V_INLINE vf v_select(vm m, vf va, vf vb) { V_EACH(vf, m.lane[i] ? A : B); }

V_INLINE vi v_as_int(vf va) {
    vi r;
    memcpy(&r, &va, sizeof r);
    return r;
}
V_INLINE vf v_as_float(vi va) {
    vf r;
    memcpy(&r, &va, sizeof r);
    return r;
}
V_INLINE vi vi_set1(int32_t x) { V_EACH(vi, x); }
V_INLINE vi vi_load(const int32_t *p) { V_EACH(vi, p[i]); }
V_INLINE void vi_store(int32_t *p, vi a) { memcpy(p, &a, sizeof a); }
/* Unsigned arithmetic: lanes wrap as the hardware's do. */
V_INLINE vi vi_add(vi va, vi vb) { V_EACH(vi, (int32_t)((uint32_t)A + (uint32_t)B)); }
V_INLINE vi vi_sub(vi va, vi vb) { V_EACH(vi, (int32_t)((uint32_t)A - (uint32_t)B)); }
V_INLINE vi vi_mul(vi va, vi vb) { V_EACH(vi, (int32_t)((uint32_t)A * (uint32_t)B)); }
V_INLINE vi vi_and(vi va, vi vb) { V_EACH(vi, A & B); }
V_INLINE vi vi_or(vi va, vi vb) { V_EACH(vi, A | B); }
V_INLINE vi vi_shl(vi va, int n) { V_EACH(vi, (int32_t)((uint32_t)A << n)); }
V_INLINE vi vi_shr(vi va, int n) { V_EACH(vi, (int32_t)((uint32_t)A >> n)); }
V_INLINE vi vi_sar(vi va, int n) { V_EACH(vi, A >> n); }
V_INLINE vf v_xor_sign(vf a, vf sign) {
    const vi va = v_as_int(a), vb = vi_and(v_as_int(sign), vi_set1(INT32_MIN));
    vi r;
    for (int i = 0; i < 4; i++)
        r.lane[i] = A ^ B;
    return v_as_float(r);
}
/* Out of range gives INT32_MIN, as x86 does, and is not undefined. */
V_INLINE vi v_to_int(vf va) {
    V_EACH(vi, A >= -2147483648.0f && A < 2147483648.0f ? (int32_t)nearbyintf(A) : INT32_MIN);
}
V_INLINE vf v_from_int(vi va) { V_EACH(vf, (float)A); }

V_INLINE vi vi_widen_i8(const int8_t *p) {
    int16_t wide[8];
    vi r;
    for (int i = 0; i < 8; i++)
        wide[i] = p[i];
    memcpy(&r, wide, sizeof r);
    return r;
}
V_INLINE vi vi_spread_64(int64_t x) {
    vi r;
    memcpy(&r, &x, sizeof x);
    memcpy(&r.lane[2], &x, sizeof x);
    return r;
}
V_INLINE vi vi_madd_16(vi a, vi b) {
    int16_t x[8], y[8];
    vi r;
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 4; i++)
        r.lane[i] = x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
    return r;
}

V_INLINE vi vi_add_16(vi a, vi b) {
    int16_t x[8], y[8];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 8; i++)
        x[i] = (int16_t)(x[i] + y[i]);
    memcpy(&a, x, sizeof x);
    return a;
}
V_INLINE vi vi_pairs_i8(vi a, vi b) {
    int8_t x[16], y[16];
    int16_t pairs[8];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 8; i++)
        pairs[i] = (int16_t)(x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1]);
    memcpy(&a, pairs, sizeof pairs);
    return a;
}
V_INLINE vi vi_pairs_u7(vi a, vi b) { return vi_pairs_i8(a, b); }

V_INLINE vi vi_load_parts(const void *p, int64_t step) {
    vi r;
    (void)step;
    memcpy(&r, p, sizeof r);
    return r;
}
V_INLINE vi vi_load_parts_at(const void *p, const int32_t *at) {
    return vi_load_parts((const char *)p + at[0], 0);
}
V_INLINE vi vi_shuffle_8(vi a, vi index) {
    uint8_t from[16], at[16], to[16];
    memcpy(from, &a, sizeof from);
    memcpy(at, &index, sizeof at);
    for (int i = 0; i < 16; i++)
        to[i] = at[i] & VI_NO_BYTE ? 0 : from[at[i] & 15];
    memcpy(&a, to, sizeof a);
    return a;
}
V_INLINE vi vi_max_u8(vi a, vi b) {
    uint8_t to[16], other[16];
    memcpy(to, &a, sizeof to);
    memcpy(other, &b, sizeof other);
    for (int i = 0; i < 16; i++)
        to[i] = to[i] > other[i] ? to[i] : other[i];
    memcpy(&a, to, sizeof a);
    return a;
}
V_INLINE vi vi_pack_bytes(vi a, vi b, vi c, vi d) {
    const vi all[] = {a, b, c, d};
    uint8_t to[16];
    for (int i = 0; i < 16; i++) {
        const int32_t x = all[i / 4].lane[i % 4];
        to[i] = (uint8_t)(x < 0 ? 0 : x > UINT8_MAX ? UINT8_MAX : x);
    }
    memcpy(&a, to, sizeof a);
    return a;
}
/* Interleaves elements of `bytes` bytes from a and b, starting `from` bytes into each. */
V_INLINE vi vi_zip(vi a, vi b, size_t bytes, size_t from) {
    vi r;
    for (size_t i = 0; i < 8; i += bytes) {
        memcpy((char *)&r + 2 * i, (const char *)&a + from + i, bytes);
        memcpy((char *)&r + 2 * i + bytes, (const char *)&b + from + i, bytes);
    }
    return r;
}
V_INLINE vi vi_zip_low_8(vi a, vi b) { return vi_zip(a, b, 1, 0); }
V_INLINE vi vi_zip_low_16(vi a, vi b) { return vi_zip(a, b, 2, 0); }
V_INLINE vi vi_zip_low_32(vi a, vi b) { return vi_zip(a, b, 4, 0); }
V_INLINE vi vi_zip_low_64(vi a, vi b) { return vi_zip(a, b, 8, 0); }
V_INLINE vi vi_zip_high_8(vi a, vi b) { return vi_zip(a, b, 1, 8); }
V_INLINE vi vi_zip_high_16(vi a, vi b) { return vi_zip(a, b, 2, 8); }
V_INLINE vi vi_zip_high_32(vi a, vi b) { return vi_zip(a, b, 4, 8); }
V_INLINE vi vi_zip_high_64(vi a, vi b) { return vi_zip(a, b, 8, 8); }

V_INLINE vf v_permute(vf va, vi index) { V_EACH(vf, va.lane[index.lane[i]]); }

V_INLINE void v_transpose(vf r[V_LEN]) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) {
            const float swap = r[i].lane[j];
            r[i].lane[j] = r[j].lane[i];
            r[j].lane[i] = swap;
        }
}

V_INLINE float v_sum(vf va) { return (va.lane[0] + va.lane[2]) + (va.lane[1] + va.lane[3]); }
V_INLINE float v_hmax(vf va) {
    float r = va.lane[0];
    for (int i = 1; i < 4; i++)
        r = A > r ? A : r;
    return r;
}

#undef V_EACH
#undef V_UNARY
#undef A
#undef B
