/*
 * The tiles of AMX (Intel's manual, volume 1, chapter 18): eight, which the first argument names by
 * a number that is written as such. In assembly, because the functions of some compilers do not say
 * that they read memory, and because these need no compiler's flags. Tests that emulate AVX-512
 * have functions of these names.
 */
#ifndef TAPER_TILES_H
#define TAPER_TILES_H

#include <stdint.h>

enum {
    TILE_ROWS = 16,  /* at most */
    TILE_BYTES = 64, /* of a row, at most */
};

/* What tiles_configure takes: the shape of each. */
typedef struct tiles_shape {
    uint8_t palette, start_row, reserved[14]; /* 1, 0, 0 */
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles_shape;

#ifdef TAPER_EMULATED
#define tiles_configure(shape) emulated_tile_loadconfig(shape)
#define tiles_release() emulated_tiles_release()
#define tile_load(t, from, stride) emulated_tile_loadd(t, from, stride)
#define tile_store(t, to, stride) emulated_tile_stored(t, to, stride)
#define tile_dot_u8_i8(t, a, b) emulated_tile_dpbusd(t, a, b)
#else
#define tiles_configure(shape) __asm__ volatile("ldtilecfg %0" : : "m"(*(shape)) : "memory")
#define tiles_release() __asm__ volatile("tilerelease" : : : "memory")
#define tile_load(t, from, stride)                                                                 \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                               \
                     :                                                                             \
                     : "r"((const void *)(from)), "r"((int64_t)(stride))                           \
                     : "memory")
#define tile_store(t, to, stride)                                                                  \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     :                                                                             \
                     : "r"((void *)(to)), "r"((int64_t)(stride))                                   \
                     : "memory")
/* t += the products of uint8 in a and int8 in b, four at a time into int32. */
#define tile_dot_u8_i8(t, a, b)                                                                    \
    __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #t : : : "memory")
#endif

#endif /* TAPER_TILES_H */
