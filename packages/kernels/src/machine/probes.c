/* The loops of taper/machine.h. They write their results to the caller's memory, so that no
 * compiler can remove them, and nothing else in them takes time. */
#include "isa/isa.h"
#include "machine/probes.h"
#include "simd/simd.h"
#include "simd/tiles.h"

enum {
    /* Independent sums: more than latency times throughput on any CPU so far. On SSE 12 reach 44 to
     * 59 GFLOP/s on a Zen 4, another number in each process; 14 are 52 in all. */
    CHAINS = 14,
    STEPS = 256, /* of each chain in a pass */
    LOADS = 8,   /* vectors in an iteration */
};

/* Returns the same address in a way that hides it from the compiler, which then cannot merge the
 * accesses of two passes. */
static inline void *another(const void *p) {
    __asm__ volatile("" : "+r"(p));
    return (void *)p;
}

static double probe_fma(void *memory, size_t bytes, int64_t passes) {
    (void)bytes;
    const vf factor = v_set1(0.5f), term = v_set1(0.25f);
    vf sums[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sums[i] = v_set1((float)i);
    for (int64_t step = 0; step < passes * STEPS; step++)
#pragma GCC unroll 14
        for (int i = 0; i < CHAINS; i++)
            sums[i] = v_fma(sums[i], factor, term);
    for (int i = 1; i < CHAINS; i++)
        sums[0] = v_add(sums[0], sums[i]);
    v_store(memory, sums[0]);
    return 2.0 * V_LEN * CHAINS * STEPS * (double)passes;
}

#if defined(__AVX512F__) && !defined(TAPER_SCALAR)
#define HAS_INT8
#ifndef TAPER_EMULATED
__attribute__((target("avx512vnni")))
#endif
static double probe_int8(void *memory, size_t bytes, int64_t passes) {
    (void)bytes;
    const vi a = vi_load(memory), b = vi_set1(0x01020304);
    vi sums[CHAINS];
    for (int i = 0; i < CHAINS; i++)
        sums[i] = vi_set1(i);
    for (int64_t step = 0; step < passes * STEPS; step++)
#pragma GCC unroll 14
        for (int i = 0; i < CHAINS; i++)
            sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
    for (int i = 1; i < CHAINS; i++)
        sums[0] = vi_add(sums[0], sums[i]);
    vi_store(memory, sums[0]);
    return 2.0 * 4 * V_LEN * CHAINS * STEPS * (double)passes;
}

/* The same by tiles of 16 x 16 sums, of which there are four: rows of A and B stay in tiles. */
static double probe_int8_tiles(void *memory, size_t bytes, int64_t passes) {
    (void)bytes;
    tiles_shape shape = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shape.row_bytes[tile] = TILE_BYTES;
        shape.rows[tile] = TILE_ROWS;
    }
    tiles_configure(&shape);
    tile_load(0, memory, 0); /* one line in each row */
    tile_load(1, memory, 0);
    tile_load(2, memory, 0);
    tile_load(3, memory, 0);
    tile_load(4, memory, 0);
    tile_load(5, memory, 0);
    tile_load(6, memory, 0);
    tile_load(7, memory, 0);
    for (int64_t step = 0; step < passes * STEPS; step++) {
        tile_dot_u8_i8(0, 4, 6);
        tile_dot_u8_i8(1, 4, 7);
        tile_dot_u8_i8(2, 5, 6);
        tile_dot_u8_i8(3, 5, 7);
    }
    tile_store(0, memory, 0);
    tiles_release();
    return 4 * 2.0 * TILE_ROWS * TILE_ROWS * TILE_BYTES * STEPS * (double)passes;
}
#endif

static double probe_read(void *memory, size_t bytes, int64_t passes) {
    const int64_t turn = LOADS * V_LEN, turns = (int64_t)(bytes / sizeof(int32_t)) / turn;
    vi sums[LOADS];
    for (int i = 0; i < LOADS; i++)
        sums[i] = vi_set1(0);
    for (int64_t pass = 0; pass < passes; pass++) {
        const int32_t *p = another(memory);
        for (int64_t at = 0; at < turns * turn; at += turn)
#pragma GCC unroll 8
            for (int i = 0; i < LOADS; i++)
                sums[i] = vi_add(sums[i], vi_load(p + at + i * V_LEN));
    }
    for (int i = 1; i < LOADS; i++)
        sums[0] = vi_add(sums[0], sums[i]);
    vi_store(memory, sums[0]);
    return (double)sizeof(int32_t) * (double)(turns * turn) * (double)passes;
}

static double probe_copy(void *memory, size_t bytes, int64_t passes) {
    const int64_t turn = LOADS * V_LEN, turns = (int64_t)(bytes / 2 / sizeof(float)) / turn;
    for (int64_t pass = 0; pass < passes; pass++) {
        const float *from = another(memory);
        float *to = (float *)another(memory) + turns * turn;
        for (int64_t at = 0; at < turns * turn; at += turn)
#pragma GCC unroll 8
            for (int i = 0; i < LOADS;
                 i++) /* through a register: otherwise this becomes a memcpy */
                v_store(to + at + i * V_LEN, v_in_register(v_load(from + at + i * V_LEN)));
    }
    return 2.0 * sizeof(float) * (double)(turns * turn) * (double)passes;
}

static const taper_probe probes[] = {
    {"fma", NULL, probe_fma},
#ifdef HAS_INT8
    {"int8", "amx_int8", probe_int8_tiles},
    {"int8", "avx512_vnni", probe_int8},
#endif
    {"read", NULL, probe_read},
    {"copy", NULL, probe_copy},
};

extern const taper_probes TAPER_ISA_SYM(taper_probes);
const taper_probes TAPER_ISA_SYM(taper_probes) = {probes, sizeof probes / sizeof probes[0]};
