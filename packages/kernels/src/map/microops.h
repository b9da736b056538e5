/* Names, types and times of micro-ops. They are the same at every level, so there is one table. */
#ifndef TAPER_MAP_MICROOPS_H
#define TAPER_MAP_MICROOPS_H

#include <string.h>

#include "taper/kernels.h"

enum {
    F32 = TAPER_FLOAT32,
    F64 = TAPER_FLOAT64,
    F16 = TAPER_FLOAT16,
    BF16 = TAPER_BFLOAT16,
    I64 = TAPER_INT64,
    I32 = TAPER_INT32,
    I16 = TAPER_INT16,
    I8 = TAPER_INT8,
    U8 = TAPER_UINT8,
    BOOL = TAPER_BOOL
};

enum {
    MICROOP_MAX_ARITY = 3,
    MICROOP_ADDITION = 10, /* about the time of a float32 addition, in the table's unit */
};

typedef struct taper_microop {
    char name[20];                       /* in a program */
    char kernel[28];                     /* as a kernel of its own */
    int16_t time[TAPER_FUNCTION_WIDTHS]; /* of an element, measured: microops.inc */
    int8_t arity;
    int8_t result;                     /* dtype */
    int8_t operand[MICROOP_MAX_ARITY]; /* dtypes */
} taper_microop;

#define TAPER_MICROOP(...) +1
#define TAPER_CAST(...) +1
enum {
    MICROOP_COUNT =
#include "map/microops.inc"
};
#undef TAPER_MICROOP
#undef TAPER_CAST

extern const taper_microop taper_microops[MICROOP_COUNT];

/* Returns whether the micro-op refuses some operands, that is, has no result for them. */
static inline bool microop_refuses(const taper_microop *op) {
    return strstr(op->name, ":nonzero") != NULL;
}

#endif /* TAPER_MAP_MICROOPS_H */
