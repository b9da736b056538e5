/*
 * Requantization of int32 sums that are still in registers: what most products of bytes end in, for
 * tiles that need not store their sums. The bits are those of the chain (map/requantize.inl), with
 * fewer steps: packs bound what it bounds in float32, which has the same result because all numbers
 * are far from what int32 ends at.
 */
#ifndef TAPER_MAP_REQUANTIZE_H
#define TAPER_MAP_REQUANTIZE_H

#include "simd/simd.h"

#if V_LEN == 16 && !defined(TAPER_EMULATED)
#define HAS_REQUANTIZED_TILES
#endif

/* What is added to the scaled sums. */
enum { REQUANTIZE_ALONE, REQUANTIZE_BYTES, REQUANTIZE_SUMS, REQUANTIZE_KINDS };

/* Of a block of an output of bytes. Pointers are to its first column, and to its first row. */
typedef struct program_requantization {
    int kind;
    const int32_t *less;        /* [columns]: negated, what the sums begin with; NULL: with 0 */
    const float *factor, *term; /* [columns] */
    const char *added;          /* uint8 or int32 */
    int64_t added_row;          /* bytes from row to row */
    int32_t less_bytes;         /* (byte - less_bytes) * byte_factor */
    float byte_factor;
    const float *added_factor, *added_term; /* [columns], of int32 */
    float last_factor;                      /* where something is added */
    /* Bounds of the rounded numbers, and what is added between them. */
    int16_t least, shift;
    uint8_t most;
    char *out;
    int64_t out_row;
} program_requantization;

#ifdef HAS_REQUANTIZED_TILES
/* Stores the bytes of sums [rows][8], of which `vectors` of each row are some, from column `col`
 * on. kind: of to, a constant. */
V_INLINE void requantize_tile(const program_requantization *to, vi (*sums)[8], int64_t row,
                              int64_t col, const int rows, const int vectors, const int kind) {
    const int64_t step = kind == REQUANTIZE_SUMS ? sizeof(int32_t) : 1;
    const char *const added =
        kind == REQUANTIZE_ALONE ? NULL : to->added + row * to->added_row + col * step;
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
        const int64_t at = col + v * V_LEN;
        const vf factor = v_load(to->factor + at), term = v_load(to->term + at);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const char *const p =
                kind == REQUANTIZE_ALONE ? NULL : added + i * to->added_row + v * V_LEN * step;
            vf x = v_add(v_mul(v_from_int(sums[i][v]), factor), term);
            if (kind == REQUANTIZE_BYTES) {
                const vi bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
                const vi less = vi_sub(bytes, vi_set1(to->less_bytes));
                x = v_add(x, v_mul(v_from_int(less), v_set1(to->byte_factor)));
            } else if (kind == REQUANTIZE_SUMS) {
                const vf more = v_from_int(vi_load((const int32_t *)(const void *)p));
                x = v_add(
                    v_add(v_mul(more, v_load(to->added_factor + at)), v_load(to->added_term + at)),
                    x);
            }
            if (kind != REQUANTIZE_ALONE)
                x = v_mul(x, v_set1(to->last_factor));
            sums[i][v] = v_to_int(x);
        }
    }
    const vi order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const vi least = _mm512_set1_epi16(to->least), shift = _mm512_set1_epi16(to->shift);
    const vi most = _mm512_set1_epi8((char)to->most);
    char *const out = to->out + row * to->out_row + col;
    const int all = rows * vectors;
#pragma GCC unroll 16
    for (int first = 0; first < all; first += 4) {
        vi x[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const int v = first + i < all ? first + i : all - 1;
            x[i] = sums[v / vectors][v % vectors];
        }
        vi pairs[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++)
            pairs[i] = _mm512_adds_epi16(
                _mm512_max_epi16(_mm512_packs_epi32(x[2 * i], x[2 * i + 1]), least), shift);
        const vi packed = _mm512_min_epu8(_mm512_packus_epi16(pairs[0], pairs[1]), most);
        const vi bytes = _mm512_permutexvar_epi32(order, packed);
        char *const at = out + first / vectors * to->out_row;
        if (vectors == 4) {
            _mm512_storeu_si512(at, bytes);
        } else if (vectors == 2) {
            _mm256_storeu_si256((void *)at, _mm512_castsi512_si256(bytes));
            if (first + 2 < all)
                _mm256_storeu_si256((void *)(at + to->out_row),
                                    _mm512_extracti64x4_epi64(bytes, 1));
        } else {
            _mm_storeu_si128((void *)at, _mm512_castsi512_si128(bytes));
            if (first + 1 < all)
                _mm_storeu_si128((void *)(at + to->out_row), _mm512_extracti32x4_epi32(bytes, 1));
            if (first + 2 < all)
                _mm_storeu_si128((void *)(at + 2 * to->out_row),
                                 _mm512_extracti32x4_epi32(bytes, 2));
            if (first + 3 < all)
                _mm_storeu_si128((void *)(at + 3 * to->out_row),
                                 _mm512_extracti32x4_epi32(bytes, 3));
        }
    }
}
#endif

#endif /* TAPER_MAP_REQUANTIZE_H */
