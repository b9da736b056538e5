/*
 * The macros that know the ISA suffix. Every family's .c is compiled once per level with
 * -DTAPER_ISA=<level>; such a translation unit holds only static functions and one exported table,
 * so that no symbol compiled for a high level can be linked into a lower one.
 */
#ifndef TAPER_ISA_H
#define TAPER_ISA_H

#include "taper/kernels.h"

#define TAPER_PASTE_(a, b) a##__##b
#define TAPER_PASTE(a, b) TAPER_PASTE_(a, b)
#define TAPER_ISA_SYM(name) TAPER_PASTE(name, TAPER_ISA)

/* One family's table at one level. */
typedef struct taper_family {
    const taper_kernel *kernels;
    size_t count;
    /* Returns further rows, each made when asked for: there are many, and a pointer in a table
     * costs a relocation. NULL: none. */
    void (*make)(size_t i, taper_kernel *kernel);
    size_t n_made;
} taper_family;

#define TAPER_ROWS(table) .kernels = (table), .count = sizeof(table) / sizeof *(table)

/*
 * An attr list is written once, as
 *     #define TAPER_ATTRS_softmax(A, id) A(id, axis, INT) A(id, log, BOOL)
 * and TAPER_DEFINE_ATTRS(softmax) makes of it   struct softmax_attrs   and its descriptor array
 * softmax_attr_list. Names and types must be those of the op's definition. A kernel without attrs
 * uses TAPER_KERNEL0.
 */
#define TAPER_FIELD_INT int64_t
#define TAPER_FIELD_FLOAT double
#define TAPER_FIELD_BOOL bool
#define TAPER_FIELD_STRING const char *
#define TAPER_FIELD_SCALAR taper_scalar
#define TAPER_FIELD_INTS taper_ints
#define TAPER_FIELD_STRINGS taper_strings
#define TAPER_FIELD_SCALARS taper_scalars
#define TAPER_FIELD(id, name, type) TAPER_FIELD_##type name;
#define TAPER_DESCRIBE(id, name, type)                                                             \
    {#name, TAPER_ATTR_##type, offsetof(struct id##_attrs, name)},
#define TAPER_DEFINE_ATTRS(id)                                                                     \
    struct id##_attrs {                                                                            \
        TAPER_ATTRS_##id(TAPER_FIELD, id)                                                          \
    };                                                                                             \
    static const taper_attr id##_attr_list[] = {TAPER_ATTRS_##id(TAPER_DESCRIBE, id)};

/* The tensors that a row takes: TENSOR(dtypes) for plain ones, STORED(dtypes, formats) for others.
 */
#define D_F32 (1u << TAPER_FLOAT32)
#define D_F64 (1u << TAPER_FLOAT64)
#define D_F16 (1u << TAPER_FLOAT16)
#define D_BF16 (1u << TAPER_BFLOAT16)
#define D_I64 (1u << TAPER_INT64)
#define D_I32 (1u << TAPER_INT32)
#define D_I8 (1u << TAPER_INT8)
#define D_U8 (1u << TAPER_UINT8)
#define D_BOOL (1u << TAPER_BOOL)
#define D_INDEX (D_I64 | D_I32)
#define D_ANY ((1u << TAPER_DTYPE_COUNT) - 1)
#define D_REAL (D_ANY & ~(D_F16 | D_BF16 | D_BOOL))
#define D_NONE 0
#define TAPER_FORMAT_BIT(name, text) S_##name = 1u << TAPER_##name,
enum { TAPER_FORMATS(TAPER_FORMAT_BIT) };
#define STORED(dtypes, formats) ((taper_operand)(formats) << 32 | (dtypes))
#define TENSOR(dtypes) STORED(dtypes, S_PLAIN)

#define TAPER_TYPES(output_, ...)                                                                  \
    .output = output_, .inputs = {__VA_ARGS__},                                                    \
    .n_operands = sizeof((taper_operand[]){__VA_ARGS__}) / sizeof(taper_operand)

/*
 * One row of a table: name, op, attr list id, state struct, types of the output, types of the first
 * inputs (the last stands for all further ones), and <name>_prepare, <name>_run. TAPER_KERNEL0 is
 * for kernels without attrs. TAPER_KERNEL_WITH takes further fields, in parentheses before the
 * rest:
 *     TAPER_KERNEL_WITH((NEEDS("avx512_vnni"), VARIANTS(list)), i8_matmul, "MATMUL", matmul, ...)
 */
#define TAPER_ATTRS_ROW(id)                                                                        \
    .attrs = id##_attr_list, .n_attrs = sizeof id##_attr_list / sizeof id##_attr_list[0],          \
    .attrs_bytes = sizeof(struct id##_attrs)
#define TAPER_ROW(name_, op_, state_type, ...)                                                     \
    .name = #name_, .op = op_, TAPER_TYPES(__VA_ARGS__), .state_bytes = sizeof(state_type),        \
    .prepare = name_##_prepare, .run = name_##_run
#define TAPER_PLAIN_LIST(...) __VA_ARGS__

#define TAPER_KERNEL_WITH(more, name_, op_, attrs_id, ...)                                         \
    {TAPER_PLAIN_LIST more, TAPER_ATTRS_ROW(attrs_id), TAPER_ROW(name_, op_, __VA_ARGS__)},
#define TAPER_KERNEL(name_, op_, attrs_id, ...)                                                    \
    {TAPER_ATTRS_ROW(attrs_id), TAPER_ROW(name_, op_, __VA_ARGS__)},
#define TAPER_KERNEL0(name_, op_, ...) {TAPER_ROW(name_, op_, __VA_ARGS__)},

/* For TAPER_KERNEL_WITH: the features, by the names of taper_feature_name, that the CPU must have
 * beyond the level; one string, with spaces. */
#define NEEDS(features) .needs = features
/* The row's array of taper_variant, which ends with {0}. */
#define VARIANTS(array) .variants = array

#endif /* TAPER_ISA_H */
