/* x86-64-v2 (SSE4.2): 4 lanes, no fused multiply-add. */
#include <immintrin.h>

#define V_LEN 4
#define V_REGISTERS 16
typedef __m128 vf;
typedef __m128i vi;
typedef __m128 vm;

V_INLINE vf v_set1(float x) { return _mm_set1_ps(x); }
V_INLINE vf v_zero(void) { return _mm_setzero_ps(); }
V_INLINE vf v_load(const float *p) { return _mm_loadu_ps(p); }
V_INLINE void v_store(float *p, vf a) { _mm_storeu_ps(p, a); }
V_INLINE vf v_load_n(const float *p, int64_t n) {
    float lanes[4] = {0};
    for (int64_t i = 0; i < n; i++)
        lanes[i] = p[i];
    return _mm_loadu_ps(lanes);
}
V_INLINE void v_store_n(float *p, vf a, int64_t n) {
    float lanes[4];
    _mm_storeu_ps(lanes, a);
    for (int64_t i = 0; i < n; i++)
        p[i] = lanes[i];
}

V_INLINE vf v_add(vf a, vf b) { return _mm_add_ps(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return _mm_sub_ps(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return _mm_mul_ps(a, b); }
V_INLINE vf v_div(vf a, vf b) { return _mm_div_ps(a, b); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
V_INLINE vf v_max(vf a, vf b) { return _mm_max_ps(a, b); }
V_INLINE vf v_min(vf a, vf b) { return _mm_min_ps(a, b); }
V_INLINE vf v_sqrt(vf a) { return _mm_sqrt_ps(a); }
V_INLINE vf v_abs(vf a) { return _mm_andnot_ps(_mm_set1_ps(-0.0f), a); }
V_INLINE vf v_xor_sign(vf a, vf sign) {
    return _mm_xor_ps(a, _mm_and_ps(sign, _mm_set1_ps(-0.0f)));
}
V_INLINE vf v_copysign(vf a, vf sign) {
    return _mm_or_ps(v_abs(a), _mm_and_ps(sign, _mm_set1_ps(-0.0f)));
}
V_INLINE vf v_round(vf a) { return _mm_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
V_INLINE vf v_floor(vf a) { return _mm_floor_ps(a); }
V_INLINE vf v_ceil(vf a) { return _mm_ceil_ps(a); }
V_INLINE vf v_trunc(vf a) { return _mm_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }

V_INLINE vm v_lt(vf a, vf b) { return _mm_cmplt_ps(a, b); }
V_INLINE vm v_le(vf a, vf b) { return _mm_cmple_ps(a, b); }
V_INLINE vm v_eq(vf a, vf b) { return _mm_cmpeq_ps(a, b); }
V_INLINE vm v_unord(vf a, vf b) { return _mm_cmpunord_ps(a, b); }
V_INLINE vm vm_and(vm a, vm b) { return _mm_and_ps(a, b); }
V_INLINE vm vm_or(vm a, vm b) { return _mm_or_ps(a, b); }
V_INLINE vm vm_not(vm a) { return _mm_xor_ps(a, _mm_castsi128_ps(_mm_set1_epi32(-1))); }
V_INLINE bool vm_any(vm a) { return _mm_movemask_ps(a) != 0; }
V_INLINE vf v_select(vm m, vf a, vf b) { return _mm_blendv_ps(b, a, m); }

V_INLINE vi v_as_int(vf a) { return _mm_castps_si128(a); }
V_INLINE vf v_as_float(vi a) { return _mm_castsi128_ps(a); }
V_INLINE vi vi_set1(int32_t x) { return _mm_set1_epi32(x); }
V_INLINE vi vi_load(const int32_t *p) { return _mm_loadu_si128((const __m128i *)p); }
V_INLINE void vi_store(int32_t *p, vi a) { _mm_storeu_si128((__m128i *)p, a); }
V_INLINE vi vi_add(vi a, vi b) { return _mm_add_epi32(a, b); }
V_INLINE vi vi_sub(vi a, vi b) { return _mm_sub_epi32(a, b); }
V_INLINE vi vi_mul(vi a, vi b) { return _mm_mullo_epi32(a, b); } /* the low 32 bits */
V_INLINE vi vi_and(vi a, vi b) { return _mm_and_si128(a, b); }
V_INLINE vi vi_or(vi a, vi b) { return _mm_or_si128(a, b); }
#define vi_shl(a, n) _mm_slli_epi32(a, n)
#define vi_shr(a, n) _mm_srli_epi32(a, n)
#define vi_sar(a, n) _mm_srai_epi32(a, n)
V_INLINE vi v_to_int(vf a) { return _mm_cvtps_epi32(a); }
V_INLINE vf v_from_int(vi a) { return _mm_cvtepi32_ps(a); }

V_INLINE vi vi_widen_i8(const int8_t *p) {
    return _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p));
}
V_INLINE vi vi_spread_64(int64_t x) { return _mm_set1_epi64x(x); }
V_INLINE vi vi_madd_16(vi a, vi b) { return _mm_madd_epi16(a, b); }
V_INLINE vi vi_add_16(vi a, vi b) { return _mm_add_epi16(a, b); }
V_INLINE vi vi_pairs_u7(vi a, vi b) { return _mm_maddubs_epi16(a, b); }
V_INLINE vi vi_pairs_i8(vi a, vi b) {
    return _mm_maddubs_epi16(_mm_abs_epi8(a), _mm_sign_epi8(b, a));
}
#define VI_DOT_U7(sums, a, b) vi_add(sums, vi_madd_16(_mm_maddubs_epi16(a, b), _mm_set1_epi16(1)))

V_INLINE vi vi_load_parts(const void *p, int64_t step) {
    (void)step;
    return _mm_loadu_si128(p);
}
V_INLINE vi vi_load_parts_at(const void *p, const int32_t *at) {
    return vi_load_parts((const char *)p + at[0], 0);
}
V_INLINE vi vi_shuffle_8(vi a, vi index) { return _mm_shuffle_epi8(a, index); }
V_INLINE vi vi_pack_bytes(vi a, vi b, vi c, vi d) {
    return _mm_packus_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
}
V_INLINE vi vi_max_u8(vi a, vi b) { return _mm_max_epu8(a, b); }
V_INLINE vi vi_zip_low_8(vi a, vi b) { return _mm_unpacklo_epi8(a, b); }
V_INLINE vi vi_zip_low_16(vi a, vi b) { return _mm_unpacklo_epi16(a, b); }
V_INLINE vi vi_zip_low_32(vi a, vi b) { return _mm_unpacklo_epi32(a, b); }
V_INLINE vi vi_zip_low_64(vi a, vi b) { return _mm_unpacklo_epi64(a, b); }
V_INLINE vi vi_zip_high_8(vi a, vi b) { return _mm_unpackhi_epi8(a, b); }
V_INLINE vi vi_zip_high_16(vi a, vi b) { return _mm_unpackhi_epi16(a, b); }
V_INLINE vi vi_zip_high_32(vi a, vi b) { return _mm_unpackhi_epi32(a, b); }
V_INLINE vi vi_zip_high_64(vi a, vi b) { return _mm_unpackhi_epi64(a, b); }

V_INLINE vf v_permute(vf a, vi index) { /* bytes 4 * index to 4 * index + 3 */
    const __m128i fours = _mm_mullo_epi32(index, _mm_set1_epi32(0x04040404));
    return _mm_castsi128_ps(
        _mm_shuffle_epi8(_mm_castps_si128(a), _mm_add_epi32(fours, _mm_set1_epi32(0x03020100))));
}

V_INLINE void v_transpose(vf r[V_LEN]) { _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]); }

V_INLINE float v_sum(vf a) {
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
V_INLINE float v_hmax(vf a) {
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
