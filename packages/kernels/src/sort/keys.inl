/* Elements as unsigned integers in the same order, of 32 bits if these suffice, else of 64. All NaN
 * have the same key, above that of every number; -0 and 0 have the same key. */

/* Makes n keys of elements `step` apart; flip: all ones to reverse the order. */
typedef void sort_keys32(uint32_t *keys, const void *x, int64_t step, int64_t n, uint32_t flip);
typedef void sort_keys64(uint64_t *keys, const void *x, int64_t step, int64_t n, uint64_t flip);

static inline uint32_t sort_key_f32(float x) {
    uint32_t bits;
    const float zero = x + 0.0f; /* turns -0 into 0 */
    memcpy(&bits, &zero, sizeof bits);
    bits ^= bits >> 31 ? UINT32_MAX : UINT32_C(1) << 31;
    return x != x ? UINT32_MAX : bits;
}
static inline uint64_t sort_key_f64(double x) {
    uint64_t bits;
    const double zero = x + 0.0;
    memcpy(&bits, &zero, sizeof bits);
    bits ^= bits >> 63 ? UINT64_MAX : UINT64_C(1) << 63;
    return x != x ? UINT64_MAX : bits;
}

#define SORT_KEYS(name, K, T, expr)                                                                \
    static void name(K *keys, const void *x, int64_t step, int64_t n, K flip) {                    \
        const T *p = x;                                                                            \
        if (step == 1)                                                                             \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const T a = p[i];                                                                  \
                keys[i] = (K)(expr) ^ flip;                                                        \
            }                                                                                      \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const T a = p[i * step];                                                           \
                keys[i] = (K)(expr) ^ flip;                                                        \
            }                                                                                      \
    }
#define SORT_SIGNED32(a) ((uint32_t)(a) ^ UINT32_C(1) << 31)

SORT_KEYS(keys_f32, uint32_t, float, sort_key_f32(a))
SORT_KEYS(keys_i32, uint32_t, int32_t, SORT_SIGNED32(a))
SORT_KEYS(keys_i16, uint32_t, int16_t, SORT_SIGNED32((int32_t)a))
SORT_KEYS(keys_i8, uint32_t, int8_t, SORT_SIGNED32((int32_t)a))
SORT_KEYS(keys_u8, uint32_t, uint8_t, a)
SORT_KEYS(keys_f64, uint64_t, double, sort_key_f64(a))
SORT_KEYS(keys_i64, uint64_t, int64_t, (uint64_t)a ^ UINT64_C(1) << 63)

static sort_keys32 *const keys32_of[TAPER_DTYPE_COUNT] = {
    [TAPER_FLOAT32] = keys_f32, [TAPER_INT32] = keys_i32, [TAPER_INT16] = keys_i16,
    [TAPER_INT8] = keys_i8,     [TAPER_UINT8] = keys_u8,  [TAPER_BOOL] = keys_u8,
};
static sort_keys64 *const keys64_of[TAPER_DTYPE_COUNT] = {
    [TAPER_FLOAT64] = keys_f64,
    [TAPER_INT64] = keys_i64,
};
