/* Functions that tests of elementwise ops share. */
#ifndef TAPER_TEST_ELEMENTWISE_H
#define TAPER_TEST_ELEMENTWISE_H

#include <float.h>
#include <math.h>

#include "check.h"
#include "map/kernels.inc"

CHECK_ATTRS(microop)
CHECK_ATTRS(division)

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Attrs of a micro-op without a scalar: those of divisions, of which other ops read the beginning.
 */
static const struct division_attrs no_scalar = {{0, 0}, -1, true};

static const float specials[] = {0.0f,      -0.0f,    1.0f,   -1.0f,    0.5f,      -0.5f,
                                 1.5f,      2.5f,     -2.5f,  INFINITY, -INFINITY, NAN,
                                 FLT_MIN,   -FLT_MIN, 1e-45f, -1e-45f,  FLT_MAX,   -FLT_MAX,
                                 8388609.f, 1e-20f,   3e9f,   -1e10f};

static inline taper_tensor vector(taper_dtype dtype, int64_t n) {
    return check_tensor(check_alloc((size_t)n * taper_dtype_size(dtype), 0), dtype, 1, &n);
}

#endif /* TAPER_TEST_ELEMENTWISE_H */
