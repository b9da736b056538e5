/* Compares the vector layer with plain C lane by lane, and the functions of simd/math.h with
 * double. Compiled once per level, and once more with the scalar header, whatever level runs. */
#include "check.h"
#include "functions.h"

#include <float.h>
#include <math.h>

#include "simd/lists.h"
#include "simd/narrow.h"
#include "simd/math.h"
#include "simd/simd.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const float specials[] = {0.0f,      -0.0f,    1.0f,      -1.0f,    0.5f,   -0.5f,
                                 1.5f,      2.5f,     -2.5f,     3.7f,     -3.2f,  INFINITY,
                                 -INFINITY, NAN,      FLT_MIN,   -FLT_MIN, 1e-45f, -1e-45f,
                                 FLT_MAX,   -FLT_MAX, 8388609.f, 1e-20f,   3e9f,   -1e10f};
enum { PAIRS = COUNT(specials) * COUNT(specials) };

static bool same(float a, float b) {
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* ---- the layer ---- */

/* Pair i of the specials in every lane from i on, so that lanes differ. */
static void pair(int i, float *a, float *b) {
    for (int l = 0; l < V_LEN; l++) {
        a[l] = specials[(size_t)(i + l) % COUNT(specials)];
        b[l] = specials[(size_t)(i + l) / COUNT(specials) % COUNT(specials)];
    }
}

#define CHECK_LANES(name, vector, scalar)                                                          \
    for (int i = 0; i < PAIRS; i++) {                                                              \
        float a[V_LEN], b[V_LEN], got[V_LEN];                                                      \
        pair(i, a, b);                                                                             \
        const vf va = v_load(a), vb = v_load(b);                                                   \
        (void)va, (void)vb;                                                                        \
        v_store(got, vector);                                                                      \
        for (int l = 0; l < V_LEN; l++) {                                                          \
            const float x = a[l], y = b[l];                                                        \
            (void)y;                                                                               \
            CHECK(same(got[l], scalar), "%s(%g, %g) = %g", name, (double)x, (double)y,             \
                  (double)got[l]);                                                                 \
        }                                                                                          \
    }

static void arithmetic(void) {
    CHECK_LANES("v_add", v_add(va, vb), x + y)
    CHECK_LANES("v_sub", v_sub(va, vb), x - y)
    CHECK_LANES("v_mul", v_mul(va, vb), x * y)
    CHECK_LANES("v_div", v_div(va, vb), x / y)
    CHECK_LANES("v_max", v_max(va, vb), x > y ? x : y)
    CHECK_LANES("v_min", v_min(va, vb), x < y ? x : y)
    CHECK_LANES("v_max_nan", v_max_nan(va, vb), isnan(y) || y > x ? y : x)
    CHECK_LANES("v_min_nan", v_min_nan(va, vb), isnan(y) || y < x ? y : x)
    CHECK_LANES("v_sqrt", v_sqrt(va), sqrtf(x))
    CHECK_LANES("v_abs", v_abs(va), fabsf(x))
    CHECK_LANES("v_neg", v_neg(va), -x)
    CHECK_LANES("v_xor_sign", v_xor_sign(va, vb), signbit(y) ? -x : x)
    CHECK_LANES("v_copysign", v_copysign(va, vb), copysignf(x, y))
    CHECK_LANES("v_round", v_round(va), rintf(x))
    CHECK_LANES("v_floor", v_floor(va), floorf(x))
    CHECK_LANES("v_ceil", v_ceil(va), ceilf(x))
    CHECK_LANES("v_trunc", v_trunc(va), truncf(x))
    CHECK_LANES("v_set1", v_set1(a[0]), a[0])
    CHECK_LANES("v_zero", v_zero(), 0.0f)
}

/* Fused or not, as the level states. */
static void multiply_add(void) {
#if V_LEN > 4 || (defined(__aarch64__) && !defined(TAPER_SCALAR))
#define MULTIPLY_ADD(x, y, z) fmaf(x, y, z)
#else
#define MULTIPLY_ADD(x, y, z) ((x) * (y) + (z))
#endif
    CHECK_LANES("v_fma", v_fma(va, vb, v_set1(0.1f)), MULTIPLY_ADD(x, y, 0.1f))
    CHECK_LANES("v_fnma", v_fnma(va, vb, v_set1(0.1f)), MULTIPLY_ADD(-x, y, 0.1f))
    for (int i = 0; i < 1000; i++) {
        const float x = check_uniform(-1, 1), y = check_uniform(-1, 1), z = check_uniform(-1, 1);
        float got[V_LEN];
        v_store(got, v_fma(v_set1(x), v_set1(y), v_set1(z)));
        CHECK(got[V_LEN - 1] == MULTIPLY_ADD(x, y, z), "v_fma of random operands");
    }
}

/* Every float16 and bfloat16, each in the last lane. */
static void narrow_floats(void) {
    uint16_t lanes[V_LEN] = {0};
    float got[V_LEN];
    for (int bits = 0; bits < 1 << 16; bits++) {
        const float f16 = check_from_half(TAPER_FLOAT16, (uint16_t)bits);
        const float bf16 = check_from_half(TAPER_BFLOAT16, (uint16_t)bits);
        lanes[V_LEN - 1] = (uint16_t)bits;
        v_store(got, v_load_f16(lanes));
        CHECK(same(got[V_LEN - 1], f16), "float16 %#x: %g, not %g", (unsigned)bits,
              (double)got[V_LEN - 1], (double)f16);
        CHECK(got[0] == 0, "the first lane");
        v_store(got, v_load_bf16(lanes));
        CHECK(same(got[V_LEN - 1], bf16), "bfloat16 %#x: %g, not %g", (unsigned)bits,
              (double)got[V_LEN - 1], (double)bf16);
    }
}

/* Every number of 4 bits at every place, all others being 0 or 15. */
static void narrow_integers(void) {
    for (int i = 0; i < 16; i++)
        for (int number = 0; number < 16; number++)
            for (int others = 0; others <= 15; others += 15) {
                uint32_t words[] = {others ? UINT32_MAX : 0, others ? UINT32_MAX : 0};
                words[i % 2] &= ~(15u << i / 2 * 4);
                words[i % 2] |= (uint32_t)number << i / 2 * 4;
                for (int v = 0; v < 16 / V_LEN; v++) {
                    float got[V_LEN];
                    v_store(got, v_load_u4(words, v));
                    for (int lane = 0; lane < V_LEN; lane++) {
                        const int want = v * V_LEN + lane == i ? number : others;
                        CHECK(got[lane] == (float)want, "%d at %d: %g, not %d", number, i,
                              (double)got[lane], want);
                    }
                }
            }
}

static void masks(void) {
#define PICK(mask) v_select(mask, va, vb)
    CHECK_LANES("v_lt", PICK(v_lt(va, vb)), x < y ? x : y)
    CHECK_LANES("v_le", PICK(v_le(va, vb)), x <= y ? x : y)
    CHECK_LANES("v_eq", PICK(v_eq(va, vb)), x == y ? x : y)
    CHECK_LANES("v_unord", PICK(v_unord(va, vb)), isnan(x) || isnan(y) ? x : y)
    CHECK_LANES("v_isnan", PICK(v_isnan(va)), isnan(x) ? x : y)
    CHECK_LANES("vm_not", PICK(vm_not(v_lt(va, vb))), x < y ? y : x)
    CHECK_LANES("vm_and", PICK(vm_and(v_lt(va, vb), v_lt(vb, v_zero()))), x < y && y < 0 ? x : y)
    CHECK_LANES("vm_or", PICK(vm_or(v_lt(va, vb), v_lt(vb, v_zero()))), x < y || y < 0 ? x : y)
    for (int lane = -1; lane < V_LEN; lane++) {
        float a[V_LEN] = {0};
        if (lane >= 0)
            a[lane] = 1;
        CHECK(vm_any(v_lt(v_zero(), v_load(a))) == (lane >= 0), "vm_any of lane %d", lane);
    }
    for (int n = 0; n <= V_LEN; n++)
        CHECK_LANES("vm_first", PICK(vm_first(n)), l < n ? x : y)
}

/* No byte beyond the n elements is touched: the rest is in an unmapped page. */
static void partial_loads_and_stores(void) {
    for (int n = 0; n <= V_LEN; n++) {
        float *in = check_alloc((size_t)n * sizeof(float), 0), lanes[V_LEN];
        float *out = check_alloc((size_t)n * sizeof(float), 0);
        check_fill_uniform(in, n, -1, 1);
        v_store(lanes, v_load_n(in, n));
        for (int l = 0; l < V_LEN; l++)
            CHECK(same(lanes[l], l < n ? in[l] : 0.0f), "v_load_n of %d, lane %d", n, l);
        v_store(lanes, v_load_fill(in, n, v_set1(7)));
        for (int l = 0; l < V_LEN; l++)
            CHECK(same(lanes[l], l < n ? in[l] : 7.0f), "v_load_fill of %d, lane %d", n, l);
        for (int l = 0; l < V_LEN; l++)
            lanes[l] = (float)l;
        v_store_n(out, v_load(lanes), n);
        for (int l = 0; l < n; l++)
            CHECK(out[l] == (float)l, "v_store_n of %d, lane %d", n, l);
        check_free(in);
        check_free(out);
    }
}

#define CHECK_INT_LANES(name, vector, scalar)                                                      \
    for (size_t i = 0; i < COUNT(ints); i++) {                                                     \
        int32_t a[V_LEN], b[V_LEN], got[V_LEN];                                                    \
        for (int l = 0; l < V_LEN; l++) {                                                          \
            a[l] = ints[(i + (size_t)l) % COUNT(ints)];                                            \
            b[l] = ints[(i * 3 + (size_t)l) % COUNT(ints)];                                        \
        }                                                                                          \
        const vi va = vi_load(a), vb = vi_load(b);                                                 \
        (void)va, (void)vb;                                                                        \
        vi_store(got, vector);                                                                     \
        for (int l = 0; l < V_LEN; l++) {                                                          \
            const uint32_t x = (uint32_t)a[l], y = (uint32_t)b[l];                                 \
            (void)x, (void)y;                                                                      \
            CHECK((uint32_t)got[l] == (uint32_t)(scalar), "%s(%d, %d) = %d", name, a[l], b[l],     \
                  got[l]);                                                                         \
        }                                                                                          \
    }

static void integers(void) {
    static const int32_t ints[] = {0, 1, -1, 5, -7, 1 << 30, INT32_MAX, INT32_MIN, 123456, -99999};
    CHECK_INT_LANES("vi_set1", vi_set1(-3), -3)
    CHECK_INT_LANES("vi_add", vi_add(va, vb), x + y)
    CHECK_INT_LANES("vi_sub", vi_sub(va, vb), x - y)
    CHECK_INT_LANES("vi_mul", vi_mul(va, vb), (int32_t)((uint32_t)x * (uint32_t)y))
    CHECK_INT_LANES("vi_and", vi_and(va, vb), x & y)
    CHECK_INT_LANES("vi_or", vi_or(va, vb), x | y)
    CHECK_INT_LANES("vi_shl", vi_shl(va, 5), x << 5)
    CHECK_INT_LANES("vi_shr", vi_shr(va, 5), x >> 5)
    CHECK_INT_LANES("vi_sar", vi_sar(va, 5), (int32_t)x >> 5)
    const volatile int count = 7;
    CHECK_INT_LANES("vi_sar_by", vi_sar_by(va, count), (int32_t)x >> 7)
    CHECK_INT_LANES("v_as_int", v_as_int(v_as_float(va)), x)
    CHECK_INT_LANES("v_from_int", v_to_int(v_mul(v_from_int(va), v_set1(0x1p-10f))),
                    (int32_t)rint((float)(int32_t)x * 0x1p-10))
}

/* Halves round to the even neighbour. */
static void to_int(void) {
    for (float x = -9; x <= 9; x += 0.25f) {
        int32_t got[V_LEN];
        vi_store(got, v_to_int(v_set1(x)));
        CHECK(got[0] == (int32_t)rintf(x) && got[V_LEN - 1] == got[0], "v_to_int(%g)", (double)x);
    }
}

/* a * 2^n rounds once, into the denormals too. */
static void ldexp_rounds_once(void) {
    for (int n = -250; n <= 250; n++)
        for (int i = 0; i < 20; i++) {
            const float a = check_uniform(0.5f, 1.999f);
            float got[V_LEN];
            v_store(got, v_ldexp(v_set1(a), v_set1((float)n)));
            CHECK(got[0] == ldexpf(a, n), "%a * 2^%d = %a", (double)a, n, (double)got[0]);
        }
}

static void lane_reductions(void) {
    for (int i = 0; i < 100; i++) {
        float a[V_LEN], max = -INFINITY;
        double sum = 0;
        check_fill_uniform(a, V_LEN, -1, 1);
        for (int l = 0; l < V_LEN; l++) {
            sum += a[l];
            max = a[l] > max ? a[l] : max;
        }
        CHECK(fabs(v_sum(v_load(a)) - sum) <= V_LEN * 0x1p-24, "v_sum");
        CHECK(v_hmax(v_load(a)) == max, "v_hmax");
    }
}

static void sums_of_four(void) {
    for (int i = 0; i < 100; i++) {
        float a[4][V_LEN], sums[4];
        check_fill_uniform(a[0], 4 * V_LEN, -1, 1);
        const vf x[] = {v_load(a[0]), v_load(a[1]), v_load(a[2]), v_load(a[3])};
        v_sum_4(x, sums);
        for (int j = 0; j < 4; j++)
            CHECK(sums[j] == v_sum(x[j]), "v_sum_4: %d: %a", j, (double)sums[j]);
    }
}

/* Bytes of 16-byte parts, numbered: a from 0, b from 100. */
#define CHECK_ZIP(bits)                                                                            \
    for (int p = 0; p < (int)sizeof(vi); p += 16)                                                  \
        for (int k = 0; k < 16; k++) {                                                             \
            const int bytes = (bits) / 8, element = k / bytes, from = element / 2 * bytes;         \
            const int at = p + from + k % bytes, other = element % 2 ? 100 : 0;                    \
            vi_store((int32_t *)low, vi_zip_low_##bits(a, b));                                     \
            vi_store((int32_t *)high, vi_zip_high_##bits(a, b));                                   \
            CHECK(low[p + k] == at + other, "vi_zip_low_%d, byte %d", bits, p + k);                \
            CHECK(high[p + k] == at + 8 + other, "vi_zip_high_%d, byte %d", bits, p + k);          \
        }

static void zips(void) {
    _Alignas(64) uint8_t a_bytes[sizeof(vi)], b_bytes[sizeof(vi)], low[sizeof(vi)],
        high[sizeof(vi)];
    for (size_t i = 0; i < sizeof(vi); i++) {
        a_bytes[i] = (uint8_t)i;
        b_bytes[i] = (uint8_t)(i + 100);
    }
    const vi a = vi_load((const int32_t *)a_bytes), b = vi_load((const int32_t *)b_bytes);
    CHECK_ZIP(8)
    CHECK_ZIP(16)
    CHECK_ZIP(32)
    CHECK_ZIP(64)
}

static void maxima_of_bytes(void) {
    uint8_t a[sizeof(vi)], b[sizeof(vi)], got[sizeof(vi)];
    check_fill_bytes(a, sizeof a);
    check_fill_bytes(b, sizeof b);
    vi_store((int32_t *)(void *)got, vi_max_u8(vi_load((const int32_t *)(const void *)a),
                                               vi_load((const int32_t *)(const void *)b)));
    for (size_t i = 0; i < sizeof got; i++)
        CHECK(got[i] == (a[i] > b[i] ? a[i] : b[i]), "vi_max_u8, byte %d", (int)i);
}

/* Bytes of parts from anywhere, in any order. */
static void shuffles(void) {
    enum { PARTS = sizeof(vi) / 16 };
    uint8_t from[200], index[sizeof(vi)], got[sizeof(vi)];
    for (int turn = 0; turn < 100; turn++) {
        int32_t at[PARTS];
        check_fill_bytes(from, sizeof from);
        for (int p = 0; p < PARTS; p++)
            at[p] = (int32_t)check_int(0, sizeof from - 16);
        for (size_t i = 0; i < sizeof index; i++)
            index[i] = (uint8_t)(check_int(0, 4) ? check_int(0, 15) : VI_NO_BYTE);
        vi order;
        memcpy(&order, index, sizeof order);
        const vi shuffled = vi_shuffle_8(vi_load_parts_at(from, at), order);
        memcpy(got, &shuffled, sizeof got);
        for (size_t i = 0; i < sizeof got; i++) {
            const int want = index[i] == VI_NO_BYTE ? 0 : from[at[i / 16] + index[i]];
            CHECK(got[i] == want, "vi_shuffle_8, byte %d: %d, not %d", (int)i, got[i], want);
        }
    }
}

static void lists(void) {
    float from[64], got[V_LEN];
    int32_t at[V_LEN];
    for (int i = 0; i < 64; i++)
        from[i] = (float)i;
    for (int taps = 1; taps <= 4; taps *= 2) {
        vf to[4];
        for (int i = 0; i < V_LEN; i++)
            at[i] = (int32_t)check_int(0, 64 - taps);
        if (taps == 1)
            to[0] = v_at(from, at);
        else if (taps == 2)
            v_pairs_at(to, from, at);
        else
            v_quads_at(to, from, at);
        for (int k = 0; k < taps; k++) {
            v_store(got, to[k]);
            for (int i = 0; i < V_LEN; i++)
                CHECK(got[i] == (float)(at[i] + k), "tap %d, lane %d: %g", k, i, (double)got[i]);
        }
    }
}

static void packs(void) {
    static const int32_t values[] = {0, 1, 254, 255, 256, -1, 40000, -40000, INT32_MAX, INT32_MIN};
    int32_t lanes[4][V_LEN];
    uint8_t got[sizeof(vi)];
    for (int turn = 0; turn < 100; turn++) {
        for (int v = 0; v < 4; v++)
            for (int l = 0; l < V_LEN; l++)
                lanes[v][l] = values[check_int(0, COUNT(values) - 1)];
        const vi packed = vi_pack_bytes(vi_load(lanes[0]), vi_load(lanes[1]), vi_load(lanes[2]),
                                        vi_load(lanes[3]));
        memcpy(got, &packed, sizeof got);
        for (int i = 0; i < (int)sizeof got; i++) {
            const int32_t x = lanes[i % 16 / 4][i / 16 * 4 + i % 4];
            const int want = x < 0 ? 0 : x > 255 ? 255 : x;
            CHECK(got[i] == want, "vi_pack_bytes, byte %d: %d, not %d", i, got[i], want);
        }
    }
}

/* The largest sums of products of bytes fit. */
static void dots(void) {
    int8_t bytes[2 * V_LEN];
    int16_t wide[2 * V_LEN], group[4];
    int32_t got[V_LEN];
    for (int round = 0; round < 50; round++) {
        check_fill_bytes(bytes, sizeof bytes);
        check_fill_bytes(group, sizeof group);
        for (int i = 0; i < 4; i++)
            group[i] = round == 0 ? 255 : round == 1 ? -128 : group[i];
        if (round < 2)
            memset(bytes, 128, sizeof bytes);
        const vi a = vi_widen_i8(bytes);
        vi_store((int32_t *)(void *)wide, a);
        int64_t spread;
        memcpy(&spread, group, sizeof spread);
        vi_store(got, vi_madd_16(a, vi_spread_64(spread)));
        for (int i = 0; i < 2 * V_LEN; i++)
            CHECK(wide[i] == bytes[i], "vi_widen_i8, element %d", i);
        for (int i = 0; i < V_LEN; i++) {
            const int32_t even = bytes[2 * i] * group[2 * i % 4];
            const int32_t odd = bytes[2 * i + 1] * group[(2 * i + 1) % 4];
            CHECK(got[i] == even + odd, "vi_madd_16, element %d", i);
        }
    }
}

static void permute(void) {
    float from[V_LEN], to[V_LEN];
    int32_t index[V_LEN];
    for (int repeat = 0; repeat < 50; repeat++) {
        for (int i = 0; i < V_LEN; i++) {
            from[i] = check_uniform(-1, 1);
            index[i] = (int32_t)check_int(0, V_LEN - 1);
        }
        v_store(to, v_permute(v_load(from), vi_load(index)));
        for (int i = 0; i < V_LEN; i++)
            CHECK(to[i] == from[index[i]], "lane %d of %d", i, V_LEN);
    }
}

static void transpose(void) {
    vf r[V_LEN];
    for (int i = 0; i < V_LEN; i++) {
        float lanes[V_LEN];
        for (int l = 0; l < V_LEN; l++)
            lanes[l] = (float)(i * V_LEN + l);
        r[i] = v_load(lanes);
    }
    v_transpose(r);
    for (int i = 0; i < V_LEN; i++) {
        float lanes[V_LEN];
        v_store(lanes, r[i]);
        for (int l = 0; l < V_LEN; l++)
            CHECK(lanes[l] == (float)(l * V_LEN + i), "row %d, lane %d", i, l);
    }
}

/* ---- functions ---- */

/* Bounds as math.h states them. `absolute`: an error this small is right wherever it is. */
#define FUNCTIONS(X)                                                                               \
    X(v_exp, exp, 1.2, 0)                                                                          \
    X(v_expm1, expm1, 2, 0)                                                                        \
    X(v_log, log, 1, 0)                                                                            \
    X(v_log2, log2, 2.5, 0)                                                                        \
    X(v_log10, log10, 2.5, 0)                                                                      \
    X(v_log1p, log1p, 1.5, 0)                                                                      \
    X(v_sin, sin, 2, 0)                                                                            \
    X(v_cos, cos, 2, 0)                                                                            \
    X(v_tanh, tanh, 2.5, 0)                                                                        \
    X(v_erf, erf, 1.5, 0)                                                                          \
    X(v_sigmoid, sigmoid, 2.5, 0)                                                                  \
    X(v_silu, silu, 3, 1e-35)                                                                      \
    X(v_gelu, gelu, 8, 0x1p-25)                                                                    \
    X(v_gelu_tanh, gelu_tanh, 8, 0x1p-25)                                                          \
    X(v_softplus, softplus, 2.5, 0)                                                                \
    X(v_mish, mish, 5, 1e-35)

#define WRAP(f, want, ulp, absolute)                                                               \
    static void apply_##f(float *y, const float *x, int64_t n) {                                   \
        for (int64_t i = 0; i < n; i += V_LEN)                                                     \
            v_store(y + i, f(v_load(x + i)));                                                      \
    }
FUNCTIONS(WRAP)

static const struct function {
    const char *name;
    void (*apply)(float *y, const float *x, int64_t n);
    double (*want)(double);
    double ulp, absolute;
} functions[] = {
#define FUNCTION_ROW(f, want, ulp, absolute) {#f, apply_##f, want, ulp, absolute},
    FUNCTIONS(FUNCTION_ROW)};

static void check_values(const struct function *f, const float *x, int64_t n) {
    float y[64];
    f->apply(y, x, n);
    for (int64_t i = 0; i < n; i++) {
        const double want = f->want(x[i]);
        const bool close =
            check_ulp(y[i], want) <= f->ulp || (isfinite(want) && fabs(y[i] - want) <= f->absolute);
        CHECK(close && (want != 0 || y[i] != 0 || !signbit(y[i]) == !signbit(want)),
              "%s(%a) = %.9g, not %.9g: %.2f ulp", f->name, (double)x[i], (double)y[i], want,
              check_ulp(y[i], want));
    }
}

/* A sweep over all bit patterns: signs, exponents, NaNs, denormals. */
static void functions_everywhere(void) {
    for (size_t k = 0; k < COUNT(functions); k++)
        for (uint64_t bits = 0; bits < UINT64_C(1) << 32;) {
            float x[64];
            for (size_t i = 0; i < COUNT(x); i++, bits += 20011) {
                const uint32_t pattern = (uint32_t)bits;
                memcpy(&x[i], &pattern, sizeof x[i]);
            }
            check_values(&functions[k], x, COUNT(x));
        }
}

/* Where networks live, and just around the points where code paths meet. */
static void functions_near(void) {
    static const float joints[] = {0,        1,        20,      60,      88.72f,   103.97f,
                                   104,      89,       0.92f,   4,       9.1f,     0.34657f,
                                   1.41421f, 0.70711f, FLT_MIN, 1.5708f, 3.14159f, 8192};
    for (size_t k = 0; k < COUNT(functions); k++) {
        float x[64];
        for (int round = 0; round < 3000; round++) {
            check_fill_uniform(x, COUNT(x), -12, 12);
            check_values(&functions[k], x, COUNT(x));
        }
        for (size_t j = 0; j < 2 * COUNT(joints); j++) {
            float at = joints[j / 2] * (j % 2 ? -1.0f : 1.0f);
            for (int i = 0; i < 32; i++)
                at = nextafterf(at, -INFINITY);
            for (size_t i = 0; i < COUNT(x); i++, at = nextafterf(at, INFINITY))
                x[i] = at;
            check_values(&functions[k], x, COUNT(x));
        }
    }
}

/* A lane's bits do not depend on its neighbours, rare or common. */
static void lanes_are_independent(void) {
    for (size_t k = 0; k < COUNT(functions); k++)
        for (int i = 0; i < PAIRS; i++) {
            float x[64], alone[64], y[64], unused[64];
            pair(i, x, unused);
            functions[k].apply(y, x, V_LEN);
            for (int l = 0; l < V_LEN; l++) {
                float same_x[64];
                for (int m = 0; m < V_LEN; m++)
                    same_x[m] = x[l];
                functions[k].apply(alone, same_x, V_LEN);
                CHECK(same(alone[0], y[l]), "%s(%g)", functions[k].name, (double)x[l]);
            }
        }
}

/* ---- benches ---- */

enum { BENCH_N = 4096 };
static float bench_x[BENCH_N], bench_y[BENCH_N];

static void run_function(void *arg) {
    const struct function *f = arg;
    f->apply(bench_y, bench_x, BENCH_N);
}

static void bench_functions(void) {
    check_fill_uniform(bench_x, BENCH_N, 0.1f, 4);
    for (size_t k = 0; k < COUNT(functions); k++) {
        struct function f = functions[k];
        char name[64];
        snprintf(name, sizeof name, "%s 4096", f.name);
        check_bench(name, BENCH_N, 8.0 * BENCH_N, run_function, &f);
    }
}

extern const check_case level_cases[], level_benches[];
extern const size_t level_n_cases, level_n_benches;
const check_case level_cases[] = {
    {"arithmetic", arithmetic},
    {"multiply_add", multiply_add},
    {"16-bit floats", narrow_floats},
    {"narrow integers", narrow_integers},
    {"masks", masks},
    {"partial_loads_and_stores", partial_loads_and_stores},
    {"integers", integers},
    {"to_int", to_int},
    {"ldexp_rounds_once", ldexp_rounds_once},
    {"lane_reductions", lane_reductions},
    {"sums_of_four", sums_of_four},
    {"zips", zips},
    {"shuffles", shuffles},
    {"maxima_of_bytes", maxima_of_bytes},
    {"packs", packs},
    {"lists", lists},
    {"dots", dots},
    {"transpose", transpose},
    {"permute", permute},
    {"functions_everywhere", functions_everywhere},
    {"functions_near", functions_near},
    {"lanes_are_independent", lanes_are_independent},
};
const size_t level_n_cases = COUNT(level_cases);
const check_case level_benches[] = {{"functions", bench_functions}};
const size_t level_n_benches = COUNT(level_benches);
