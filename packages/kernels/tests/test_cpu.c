/* Which levels a CPU has, from the registers of CPUs other than this one. */
#include "check.h"
#include "cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum {
    V2 = bit_SSSE3 | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT,
    V3 = V2 | bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C | bit_MOVBE,
    V3_LEAF7 = bit_AVX2 | bit_BMI | bit_BMI2,
    SSE_STATE = 0x3, /* XCR0: what the OS saves */
    YMM_STATE = 0x7,
    ZMM_STATE = 0xe7
};
static const uint32_t V4_LEAF7 =
    V3_LEAF7 | bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512CD;

static bool has(const taper_cpuid *id, const char *names) {
    return taper_cpu_covers(taper_cpu_features(id), names);
}

static void check_levels(const char *cpu, taper_cpuid id, bool baseline, bool avx2, bool avx512) {
    CHECK(has(&id, "baseline") == baseline, "%s: baseline", cpu);
    CHECK(has(&id, "avx2") == avx2, "%s: avx2", cpu);
    CHECK(has(&id, "avx512") == avx512, "%s: avx512", cpu);
    CHECK(!has(&id, "neon"), "%s: neon", cpu);
}

static void cpus(void) {
    const uint32_t leaf7 = V4_LEAF7;
    check_levels("no SSE4.2", (taper_cpuid){bit_SSSE3 | bit_SSE4_1, 0, 0, 0, 0, 0}, false, false,
                 false);
    check_levels("no AVX", (taper_cpuid){V2, 0, 0, 0, 0, 0}, true, false, false);
    check_levels("AVX without AVX2",
                 (taper_cpuid){V2 | bit_OSXSAVE | bit_AVX, 0, YMM_STATE, 0, 0, 0}, true, false,
                 false);
    check_levels("AVX2", (taper_cpuid){V3, V3_LEAF7, YMM_STATE, 0, 0, 0}, true, true, false);
    check_levels("AVX-512F and CD only",
                 (taper_cpuid){V3, V3_LEAF7 | bit_AVX512F | bit_AVX512CD, ZMM_STATE, 0, 0, 0}, true,
                 true, false);
    check_levels("AVX-512", (taper_cpuid){V3, leaf7, ZMM_STATE, 0, 0, 0}, true, true, true);
    check_levels("no register read", (taper_cpuid){0, 0, 0, 0, 0, 0}, false, false, false);
}

/* The CPU has the registers, but the OS does not save them. */
static void operating_systems(void) {
    const uint32_t leaf7 = V4_LEAF7;
    check_levels("OSXSAVE clear", (taper_cpuid){V3 & ~bit_OSXSAVE, leaf7, 0, 0, 0, 0}, true, false,
                 false);
    check_levels("SSE state only", (taper_cpuid){V3, leaf7, SSE_STATE, 0, 0, 0}, true, false,
                 false);
    check_levels("no ZMM state", (taper_cpuid){V3, leaf7, YMM_STATE, 0, 0, 0}, true, true, false);
    for (uint64_t bit = 0x20; bit <= 0x80; bit *= 2)
        check_levels("part of the ZMM state", (taper_cpuid){V3, leaf7, ZMM_STATE & ~bit, 0, 0, 0},
                     true, true, false);
    check_levels("ZMM but no YMM state", (taper_cpuid){V3, leaf7, ZMM_STATE & ~0x4u, 0, 0, 0}, true,
                 false, false);
}

/* No feature of a level is optional. */
static void every_bit_counts(void) {
    static const uint32_t v3[] = {bit_AVX, bit_FMA, bit_F16C, bit_MOVBE};
    static const uint32_t v3_leaf7[] = {bit_AVX2, bit_BMI, bit_BMI2};
    static const uint32_t v4_leaf7[] = {bit_AVX512F, bit_AVX512BW, bit_AVX512DQ, bit_AVX512VL,
                                        bit_AVX512CD};
    for (size_t i = 0; i < sizeof v3 / sizeof v3[0]; i++)
        check_levels("v3", (taper_cpuid){V3 & ~v3[i], V4_LEAF7, ZMM_STATE, 0, 0, 0}, true, false,
                     false);
    for (size_t i = 0; i < sizeof v3_leaf7 / sizeof v3_leaf7[0]; i++)
        check_levels("v3", (taper_cpuid){V3, V4_LEAF7 & ~v3_leaf7[i], ZMM_STATE, 0, 0, 0}, true,
                     false, false);
    for (size_t i = 0; i < sizeof v4_leaf7 / sizeof v4_leaf7[0]; i++)
        check_levels("v4", (taper_cpuid){V3, V4_LEAF7 & ~v4_leaf7[i], ZMM_STATE, 0, 0, 0}, true,
                     true, false);
}

/* An addition to AVX-512, with a register of its own. */
static void vnni(void) {
    taper_cpuid id = {V3, V4_LEAF7, ZMM_STATE, 0, 0, 0};
    CHECK(!has(&id, "avx512_vnni"), "AVX-512 without VNNI");
    id.leaf7_ecx = bit_AVX512VNNI;
    CHECK(has(&id, "avx512_vnni"), "AVX-512 with VNNI");
    CHECK(has(&id, "avx2 avx512_vnni"), "both");
    CHECK(!has(&id, "avx2 avx512_vnni neon") && !has(&id, "neon avx2"), "one of them is not");
    id.xcr0 = YMM_STATE;
    CHECK(!has(&id, "avx512_vnni"), "VNNI without ZMM state");
}

/* A register of a leaf's second part. */
static void bf16(void) {
    taper_cpuid id = {V3, V4_LEAF7, ZMM_STATE, 0, 0, 0};
    CHECK(!has(&id, "avx512_bf16"), "AVX-512 without bfloat16");
    id.leaf7_1_eax = 1 << 5;
    CHECK(has(&id, "avx512_bf16") && !has(&id, "avx512_vnni"), "AVX-512 with bfloat16");
    id.xcr0 = YMM_STATE;
    CHECK(!has(&id, "avx512_bf16"), "bfloat16 without ZMM state");
}

/* Tiles have a state of their own, which the system gives apart. */
static void amx(void) {
    enum { AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25, TILE_STATE = 0x60000 };
    taper_cpuid id = {V3, V4_LEAF7, ZMM_STATE | TILE_STATE, bit_AVX512VNNI, AMX_TILE | AMX_INT8, 0};
    CHECK(has(&id, "avx512_vnni amx_int8"), "all of it");
    id.leaf7_edx = AMX_TILE;
    CHECK(!has(&id, "amx_int8"), "tiles without products of bytes");
    id.leaf7_edx = AMX_INT8;
    CHECK(!has(&id, "amx_int8"), "products without tiles");
    id.leaf7_edx |= AMX_TILE;
    for (uint64_t bit = 0x20000; bit <= 0x40000; bit *= 2) {
        id.xcr0 = ZMM_STATE | bit;
        CHECK(!has(&id, "amx_int8"), "half of the state of tiles");
    }
    id.xcr0 = TILE_STATE | YMM_STATE;
    CHECK(!has(&id, "amx_int8"), "tiles without ZMM state");
}
#endif

/* On CPUs other than x86 the compiler's options decide. */
static void this_cpu(void) {
    CHECK(taper_cpu_has("baseline"), "this program runs, so it has the baseline");
#if defined(__aarch64__)
    CHECK(taper_cpu_has("neon"), "neon");
    CHECK(!taper_cpu_has("avx2") && !taper_cpu_has("avx512"), "x86 levels");
#endif
    CHECK(!taper_cpu_has("") && !taper_cpu_has("AVX2"), "unknown levels");
    CHECK(!taper_cpu_has("baseline ") && !taper_cpu_has(" baseline"), "a name between spaces");
    CHECK(taper_cpu_has("baseline baseline"), "a name twice");
    CHECK(!taper_cpu_has("baselin") && !taper_cpu_has("baseline2"), "a part of a name");
}

/* Each name stands for one bit, and no two names for the same. */
static void one_table(void) {
    const taper_cpuid id = taper_cpuid_read();
    const uint64_t found = taper_cpu_features(&id);
    const char *name;
    size_t n = 0;
    for (; (name = taper_feature_name(n)) != NULL; n++) {
        CHECK(n < 64, "%s: more features than bits", name);
        CHECK(taper_cpu_has(name) == (found >> n & 1), "%s: read once and read again", name);
        CHECK(taper_cpu_covers(UINT64_C(1) << n, name), "%s: its bit", name);
        CHECK(!taper_cpu_covers(~(UINT64_C(1) << n), name), "%s: all bits but its own", name);
    }
    CHECK(found >> n == 0, "bits without a name");
    CHECK(n > 0 && !taper_feature_name(n + 1) && !taper_feature_name(SIZE_MAX), "past the end");
}

int main(int argc, char **argv) {
    static const check_case cases[] = {
        {"this_cpu", this_cpu},
        {"one_table", one_table},
#if defined(__x86_64__)
        {"cpus", cpus},
        {"operating_systems", operating_systems},
        {"every_bit_counts", every_bit_counts},
        {"vnni", vnni},
        {"bf16", bf16},
        {"amx", amx},
#endif
    };
    return check_main(argc, argv, cases, sizeof cases / sizeof cases[0], NULL, 0);
}
