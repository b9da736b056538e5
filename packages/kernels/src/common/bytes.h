/* Copies of short runs, where calling memcpy costs more than the copy. */
#ifndef TAPER_BYTES_H
#define TAPER_BYTES_H

#include <stdint.h>
#include <string.h>

#define BYTES_INLINE static inline __attribute__((always_inline, unused))

/* Copies n bytes, size <= n <= 2 * size, as two pieces that may overlap; size is constant. */
BYTES_INLINE void bytes_copy_ends(uint8_t *restrict dst, const uint8_t *restrict src, int64_t n,
                                  const int64_t size) {
    memcpy(dst, src, (size_t)size);
    memcpy(dst + n - size, src + n - size, (size_t)size);
}

/* Does what memcpy does; the two runs must not overlap. */
BYTES_INLINE void bytes_copy(uint8_t *restrict dst, const uint8_t *restrict src, int64_t n) {
    enum { LONG = 1024 }; /* from here on the copy hides the start-up of memcpy */
    typedef uint64_t piece __attribute__((vector_size(32)));
    if (n >= LONG) {
        memcpy(dst, src, (size_t)n);
        return;
    }
    for (; n > 64; n -= 64, dst += 64, src += 64) {
        piece a, b; /* with one load and store per iteration the compiler would call memcpy */
        memcpy(&a, src, 32);
        memcpy(&b, src + 32, 32);
        memcpy(dst, &a, 32);
        memcpy(dst + 32, &b, 32);
    }
    if (n >= 32)
        bytes_copy_ends(dst, src, n, 32);
    else if (n >= 16)
        bytes_copy_ends(dst, src, n, 16);
    else if (n >= 8)
        bytes_copy_ends(dst, src, n, 8);
    else if (n >= 4)
        bytes_copy_ends(dst, src, n, 4);
    else if (n >= 2)
        bytes_copy_ends(dst, src, n, 2);
    else if (n == 1)
        *dst = *src;
}

#endif /* TAPER_BYTES_H */
