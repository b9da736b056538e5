/* AArch64 NEON: 4 lanes. */
#include <arm_neon.h>

#define V_LEN 4
#define V_REGISTERS 32
typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vm;

V_INLINE vf v_set1(float x) { return vdupq_n_f32(x); }
V_INLINE vf v_zero(void) { return vdupq_n_f32(0.0f); }
V_INLINE vf v_load(const float *p) { return vld1q_f32(p); }
V_INLINE void v_store(float *p, vf a) { vst1q_f32(p, a); }
V_INLINE vf v_load_n(const float *p, int64_t n) {
    float lanes[4] = {0};
    for (int64_t i = 0; i < n; i++)
        lanes[i] = p[i];
    return vld1q_f32(lanes);
}
V_INLINE void v_store_n(float *p, vf a, int64_t n) {
    float lanes[4];
    vst1q_f32(lanes, a);
    for (int64_t i = 0; i < n; i++)
        p[i] = lanes[i];
}

V_INLINE vm v_lt(vf a, vf b) { return vcltq_f32(a, b); }
V_INLINE vm v_le(vf a, vf b) { return vcleq_f32(a, b); }
V_INLINE vm v_eq(vf a, vf b) { return vceqq_f32(a, b); }
V_INLINE vm vm_and(vm a, vm b) { return vandq_u32(a, b); }
V_INLINE vm vm_or(vm a, vm b) { return vorrq_u32(a, b); }
V_INLINE vm vm_not(vm a) { return vmvnq_u32(a); }
V_INLINE vm v_unord(vf a, vf b) { return vm_not(vm_and(vceqq_f32(a, a), vceqq_f32(b, b))); }
V_INLINE bool vm_any(vm a) { return vmaxvq_u32(a) != 0; }
V_INLINE vf v_select(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }

V_INLINE vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
V_INLINE vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
V_INLINE vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
V_INLINE vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
V_INLINE vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
/* By comparison, not FMAX/FMIN: those return NaN when either operand is NaN. */
V_INLINE vf v_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
V_INLINE vf v_min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
V_INLINE vf v_sqrt(vf a) { return vsqrtq_f32(a); }
V_INLINE vf v_abs(vf a) { return vabsq_f32(a); }
V_INLINE vf v_xor_sign(vf a, vf sign) {
    const uint32x4_t bit = vdupq_n_u32(0x80000000u);
    return vreinterpretq_f32_u32(
        veorq_u32(vreinterpretq_u32_f32(a), vandq_u32(vreinterpretq_u32_f32(sign), bit)));
}
V_INLINE vf v_copysign(vf a, vf sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, a); }
V_INLINE vf v_round(vf a) { return vrndnq_f32(a); }
V_INLINE vf v_floor(vf a) { return vrndmq_f32(a); }
V_INLINE vf v_ceil(vf a) { return vrndpq_f32(a); }
V_INLINE vf v_trunc(vf a) { return vrndq_f32(a); }

V_INLINE vi v_as_int(vf a) { return vreinterpretq_s32_f32(a); }
V_INLINE vf v_as_float(vi a) { return vreinterpretq_f32_s32(a); }
V_INLINE vi vi_set1(int32_t x) { return vdupq_n_s32(x); }
V_INLINE vi vi_load(const int32_t *p) { return vld1q_s32(p); }
V_INLINE void vi_store(int32_t *p, vi a) { vst1q_s32(p, a); }
V_INLINE vi vi_add(vi a, vi b) { return vaddq_s32(a, b); }
V_INLINE vi vi_sub(vi a, vi b) { return vsubq_s32(a, b); }
V_INLINE vi vi_mul(vi a, vi b) { return vmulq_s32(a, b); } /* the low 32 bits */
V_INLINE vi vi_and(vi a, vi b) { return vandq_s32(a, b); }
V_INLINE vi vi_or(vi a, vi b) { return vorrq_s32(a, b); }
#define vi_shl(a, n) vshlq_n_s32(a, n)
#define vi_shr(a, n) vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), n))
#define vi_sar(a, n) vshrq_n_s32(a, n)
V_INLINE vi v_to_int(vf a) { return vcvtnq_s32_f32(a); }
V_INLINE vf v_from_int(vi a) { return vcvtq_f32_s32(a); }

V_INLINE vi vi_widen_i8(const int8_t *p) { return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(p))); }
V_INLINE vi vi_spread_64(int64_t x) { return vreinterpretq_s32_s64(vdupq_n_s64(x)); }
V_INLINE vi vi_madd_16(vi a, vi b) {
    const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
}

V_INLINE vi vi_add_16(vi a, vi b) {
    return vreinterpretq_s32_s16(vaddq_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
}
V_INLINE vi vi_pairs_i8(vi a, vi b) {
    const int8x16_t x = vreinterpretq_s8_s32(a), y = vreinterpretq_s8_s32(b);
    return vreinterpretq_s32_s16(
        vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y)));
}
V_INLINE vi vi_pairs_u7(vi a, vi b) { return vi_pairs_i8(a, b); }

V_INLINE vi vi_load_parts(const void *p, int64_t step) {
    (void)step;
    return vreinterpretq_s32_u8(vld1q_u8(p));
}
V_INLINE vi vi_load_parts_at(const void *p, const int32_t *at) {
    return vi_load_parts((const char *)p + at[0], 0);
}
V_INLINE vi vi_shuffle_8(vi a, vi index) {
    return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(index)));
}
V_INLINE vi vi_pack_bytes(vi a, vi b, vi c, vi d) {
    const int16x8_t low = vcombine_s16(vqmovn_s32(a), vqmovn_s32(b));
    const int16x8_t high = vcombine_s16(vqmovn_s32(c), vqmovn_s32(d));
    return vreinterpretq_s32_u8(vcombine_u8(vqmovun_s16(low), vqmovun_s16(high)));
}
V_INLINE vi vi_max_u8(vi a, vi b) {
    return vreinterpretq_s32_u8(vmaxq_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)));
}
V_INLINE vi vi_zip_low_8(vi a, vi b) {
    return vreinterpretq_s32_s8(vzip1q_s8(vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)));
}
V_INLINE vi vi_zip_low_16(vi a, vi b) {
    return vreinterpretq_s32_s16(vzip1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
}
V_INLINE vi vi_zip_low_32(vi a, vi b) { return vzip1q_s32(a, b); }
V_INLINE vi vi_zip_low_64(vi a, vi b) {
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
V_INLINE vi vi_zip_high_8(vi a, vi b) {
    return vreinterpretq_s32_s8(vzip2q_s8(vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)));
}
V_INLINE vi vi_zip_high_16(vi a, vi b) {
    return vreinterpretq_s32_s16(vzip2q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
}
V_INLINE vi vi_zip_high_32(vi a, vi b) { return vzip2q_s32(a, b); }
V_INLINE vi vi_zip_high_64(vi a, vi b) {
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

V_INLINE vf v_permute(vf a, vi index) { /* bytes 4 * index to 4 * index + 3 */
    const int32x4_t bytes = vmlaq_s32(vdupq_n_s32(0x03020100), index, vdupq_n_s32(0x04040404));
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(a), vreinterpretq_u8_s32(bytes)));
}

V_INLINE void v_transpose(vf r[V_LEN]) {
    const float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
    r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
    r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
    r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
    r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

V_INLINE float v_sum(vf a) { return vaddvq_f32(a); }
V_INLINE float v_hmax(vf a) {
    float32x2_t s = vmax_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(vpmax_f32(s, s), 0);
}
