/*
 * Taper kernels: the public C API.
 *
 * A kernel computes one node of a plan into memory it was given. It allocates nothing, keeps no
 * state between calls and never aborts. Using one takes three steps:
 *
 *   1. describe the node: a taper_call with its input and output tensors (dtype, shape, strides;
 *      data may still be NULL) and its attrs, laid out as the kernel's attr descriptors say;
 *   2. walk the op's kernels of an ISA level in order of preference (taper_kernel_next),
 *      and call prepare() of each that takes such tensors (taper_kernel_takes) until one accepts.
 *      prepare() looks at shapes only, fills call->state (state_bytes, memory of the caller) and
 *      says how much work there is: a number of independent tasks (those of a recurrent layer come
 *      in phases, one after the other), and scratch bytes per worker;
 *   3. run(call, begin, end, scratch) computes tasks begin..end-1, in order. Tasks write disjoint
 *      parts of the output and never share a sum, so any split over any number of threads gives the
 *      same bits.
 *
 * Between prepare() and run() only data pointers may change.
 *
 * A kernel belongs to an op by name: taper_kernel.op is the op's name in the plan, and the attr
 * descriptors have the names and types of the attrs in the op's definition.
 */
#ifndef TAPER_KERNELS_H
#define TAPER_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "taper/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Nodes with a higher rank have no native kernel. */
#define TAPER_MAX_RANK 8

/* Buffers the caller provides for scratch are aligned to this; tensors need only be aligned to
 * their element size. */
#define TAPER_ALIGNMENT 64

typedef enum taper_dtype {
    TAPER_ABSENT = -1, /* an optional input that is absent: no dims, no data */
    TAPER_FLOAT32,
    TAPER_FLOAT64,
    TAPER_FLOAT16,
    TAPER_BFLOAT16,
    TAPER_INT64,
    TAPER_INT32,
    TAPER_INT16,
    TAPER_INT8,
    TAPER_UINT8,
    TAPER_BOOL,
    TAPER_DTYPE_COUNT
} taper_dtype;

/* The dtype's name as numpy spells it: "float32", ...; NULL outside the enum. Other languages find
 * codes by these names and never copy the enum. */
const char *taper_dtype_name(int dtype);
/* Bytes per element; 0 outside the enum. */
size_t taper_dtype_size(int dtype);

/*
 * How a tensor is stored: X(name, the name in plans, without the parameters that follow from the
 * storage's shape). A matrix in panels is [ceil(N/16)][K][16], zero beyond N.
 *   PANELS_0        [N, K], the second operand of a product stored transposed
 *   PANELS_1        [K, N]
 *   GROUPED_PANELS  [*kernel, C/G, O] as [G] matrices in panels, [taps * C/G, O/G]
 *   WINOGRAD_2      [3, 3, C, O] as [16] matrices [C, O] in panels, of 2x2 tiles
 *   WINOGRAD_4      as [36], of 4x4 tiles
 *   BLOCKS_*        [K, N] of levels with scales, [ceil(N/16)][K/G][words of G rows]; a word has
 * the dtype of the scales, uint8 if these are e8m0. taper_runtime/formats/blocks.py has the bytes,
 * and gemm/element.h what each of the formats has DOTS            [*kernel, C/G, O] of int8 as [G]
 * matrices [K, O/G] of panels for dot products, int8 [ceil(O/G/16)][1 + ceil(K/4)][64]: the sums of
 * 16 columns as int32, then for each 4 k of a panel [16][4], zero beyond K and O/G; [K, N] where G
 * is 1
 */
#define TAPER_FORMATS(X)                                                                           \
    X(PLAIN, "plain")                                                                              \
    X(PANELS_0, "panels.0")                                                                        \
    X(PANELS_1, "panels.1")                                                                        \
    X(GROUPED_PANELS, "grouped_panels")                                                            \
    X(WINOGRAD_2, "winograd.2")                                                                    \
    X(WINOGRAD_4, "winograd.4")                                                                    \
    X(BLOCKS_2, "blocks.2")                                                                        \
    X(BLOCKS_4, "blocks.4")                                                                        \
    X(BLOCKS_U4, "blocks.u4")                                                                      \
    X(BLOCKS_Q4K, "blocks.q4k")                                                                    \
    X(BLOCKS_5, "blocks.5")                                                                        \
    X(BLOCKS_U5, "blocks.u5")                                                                      \
    X(BLOCKS_Q5K, "blocks.q5k")                                                                    \
    X(BLOCKS_Q6K, "blocks.q6k")                                                                    \
    X(BLOCKS_8, "blocks.8")                                                                        \
    X(BLOCKS_E2M1, "blocks.e2m1")                                                                  \
    X(BLOCKS_NVFP4, "blocks.nvfp4")                                                                \
    X(BLOCKS_E4M3, "blocks.e4m3")                                                                  \
    X(BLOCKS_E5M2, "blocks.e5m2")                                                                  \
    X(DOTS, "dots")

#define TAPER_FORMAT_CODE(name, text) TAPER_##name,
typedef enum taper_format { TAPER_FORMATS(TAPER_FORMAT_CODE) TAPER_FORMAT_COUNT } taper_format;

/* "plain", "panels.0", ...; NULL outside the enum. Resolved by name, as dtypes are. */
const char *taper_format_name(int format);

typedef struct taper_tensor {
    void *data;
    int64_t shape[TAPER_MAX_RANK];   /* [rank], each >= 0: shape of the storage */
    int64_t strides[TAPER_MAX_RANK]; /* [rank], in elements; 0 where broadcast, may be negative */
    int32_t rank;
    int32_t dtype;          /* taper_dtype of the storage; TAPER_ABSENT: no tensor */
    int32_t format;         /* taper_format */
    const int64_t *logical; /* the tensor's own dims; NULL where the format is TAPER_PLAIN */
} taper_tensor;

/* How an attr's value lies in a kernel's attr struct. */
typedef enum taper_attr_type {
    TAPER_ATTR_INT,     /* int64_t */
    TAPER_ATTR_FLOAT,   /* double */
    TAPER_ATTR_BOOL,    /* bool */
    TAPER_ATTR_STRING,  /* const char * */
    TAPER_ATTR_SCALAR,  /* taper_scalar */
    TAPER_ATTR_INTS,    /* taper_ints */
    TAPER_ATTR_STRINGS, /* taper_strings */
    TAPER_ATTR_SCALARS, /* taper_scalars */
    TAPER_ATTR_TYPE_COUNT
} taper_attr_type;

/* "int", "float", ..., "scalars"; NULL outside the enum. */
const char *taper_attr_type_name(int type);

/* A number whose dtype is that of a tensor of the node: the same value as an integer and as a
 * float. An integer beyond 2^53 is exact in `i` only; a fraction is exact in `f` only (`i` is then
 * truncated). */
typedef struct taper_scalar {
    double f;
    int64_t i;
} taper_scalar;

typedef struct taper_ints {
    const int64_t *data;
    int64_t count;
} taper_ints;

typedef struct taper_strings {
    const char *const *data;
    int64_t count;
} taper_strings;

typedef struct taper_scalars {
    const taper_scalar *data;
    int64_t count;
} taper_scalars;

typedef struct taper_attr {
    const char *name;
    taper_attr_type type;
    size_t offset; /* in the attr struct */
} taper_attr;

/* One node as its kernel sees it. */
typedef struct taper_call {
    const struct taper_kernel *kernel;
    const taper_tensor *inputs; /* [n_inputs] */
    const taper_tensor *output; /* [n_outputs]: the first of them */
    const taper_tensor *table;  /* computed once from the op's sizes; NULL: none */
    const void *attrs;          /* the kernel's attr struct */
    void *state;                /* taper_kernel.state_bytes, aligned to TAPER_ALIGNMENT */
    int32_t n_inputs;
    int32_t n_outputs;
    int32_t variant; /* number of the variant that computes, from 1 on; 0: the kernel chooses */
} taper_call;

typedef struct taper_work {
    int64_t tasks;        /* units of work; 0 for an empty output */
    size_t scratch_bytes; /* each worker's own */
    /* The tasks come in this many phases of equal length: a phase's tasks read what the tasks of
     * the phase before have written. 0 means 1: all tasks are independent. */
    int64_t phases;
    /* Number of the kernel's variant, from 1 on; 0 where it has none. */
    int32_t variant;
    /* Work of this variant, over all tasks, beyond what its op requires: operations on unused lanes
     * and on sums over lanes, less those that it leaves out, and bytes that it writes to scratch
     * and reads there. A caller compares variants by these numbers. */
    int64_t extra_flops;
    int64_t scratch_traffic;
} taper_work;

/* One way in which a kernel computes nodes. */
typedef struct taper_variant {
    const char *name; /* "dot" */
    /* Whether some node gets other bits than from the variant that the kernel chooses: terms are
     * added in another order. */
    bool other_bits;
    /* Rows and columns of the output that registers hold at a time; 0: the variant has no such
     * tile. */
    int32_t rows, columns;
} taper_variant;

/* The tensors that one operand may be: bits 1 << taper_dtype and 1 << (32 + taper_format). */
typedef uint64_t taper_operand;

enum { TAPER_KERNEL_OPERANDS = 4 };

typedef struct taper_kernel {
    const char *name; /* "f32_matmul": profiles and messages show it */
    const char *op;   /* "MATMUL" */
    /* The features that the CPU must have beyond the level, by taper_feature_name, with a space
     * between two ("avx512_vnni"); NULL: none. */
    const char *needs;
    /* The kernel's variants; the array ends with one that has no name. NULL: it has one way to
     * compute a node. prepare() returns TAPER_UNSUPPORTED where the variant does not serve the
     * node. */
    const taper_variant *variants;
    /* The tensors it takes; `output` stands for all outputs, the last of `inputs` for all further
     * ones. prepare() may refuse more. */
    taper_operand output;
    taper_operand inputs[TAPER_KERNEL_OPERANDS];
    int32_t n_operands; /* in inputs */
    const taper_attr *attrs;
    size_t n_attrs;
    size_t attrs_bytes;
    size_t state_bytes;
    /* Reads dtypes, shapes, strides and attrs, never data. TAPER_UNSUPPORTED passes the node on to
     * the next candidate. */
    taper_status (*prepare)(const taper_call *call, taper_work *work);
    /* Computes tasks [begin, end). The output may share memory with an input only where the op's
     * definition allows computing in place. */
    taper_status (*run)(const taper_call *call, int64_t begin, int64_t end, void *scratch);
    /* Data of the functions: it tells kernels apart that share functions. They find it in
     * call->kernel. */
    const void *data;
} taper_kernel;

/* -- kernels of others ------------------------------------------------------------------------- */

/* Grows by one with every change of the declarations above. */
enum { TAPER_ABI_VERSION = 3 };

/* The table of a library of kernels, which exports
 *
 *     const taper_library *taper_kernels(void)
 *
 * A kernel's op is the name of one of Taper's ops, or of an ATen op ("aten.relu.default") whose
 * calls the export keeps; such a call has one attr, `arguments` (TAPER_ATTR_STRING): the JSON of
 * the arguments that are not tensors. The kernel has exactly the attrs of its op. */
typedef struct taper_library {
    int32_t abi_version;                            /* TAPER_ABI_VERSION */
    int32_t kernel_bytes, tensor_bytes, call_bytes; /* sizeof */
    int32_t n_kernels;
    const taper_kernel *kernels; /* in order of preference */
} taper_library;

/* The initializer of a taper_library over an array. */
#define TAPER_LIBRARY(array)                                                                       \
    {TAPER_ABI_VERSION,                                                                            \
     sizeof(taper_kernel),                                                                         \
     sizeof(taper_tensor),                                                                         \
     sizeof(taper_call),                                                                           \
     sizeof(array) / sizeof *(array),                                                              \
     array}

/* -- the kernels of this library --------------------------------------------------------------- */

/* An ISA level: the kernels that are compiled for one set of CPU instructions. Kernels of several
 * levels can be used side by side. */
typedef struct taper_level taper_level;

/* The i-th level that this build has and this CPU supports, best first; NULL past the end. */
const taper_level *taper_level_at(size_t i);
/* "avx512", "avx2", "baseline", "neon". */
const char *taper_level_name(const taper_level *level);
/* Writes the level of that name; with NULL the process's default: the level of the environment
 * variable TAPER_ISA, if it is set at the first call, else the best. Where the level is not
 * available it returns TAPER_UNKNOWN_ISA, and *level is NULL. */
taper_status taper_level_find(const char *name, const taper_level **level);

/* The i-th name of a feature that a kernel may need, the same ones on every CPU; NULL past the end.
 */
const char *taper_feature_name(size_t i);

/* An elementwise function of tile programs, with the dtype of its operands and the measured time of
 * an element in hundredths of a nanosecond: on vectors of 4 floats, of 8 and of 16. */
enum { TAPER_FUNCTION_WIDTHS = 3 };
typedef struct taper_function {
    const char *name;
    int32_t dtype;
    int32_t time[TAPER_FUNCTION_WIDTHS];
} taper_function;

/* Writes the i-th function, the same ones on every CPU; false past the end. */
bool taper_function_at(size_t i, taper_function *function);

/* Writes the level's i-th kernel, in order of preference; false past the end. */
bool taper_kernel_at(const taper_level *level, size_t i, taper_kernel *kernel);
/* Returns whether this CPU has the features that the kernel needs beyond the level. No CPU has an
 * unknown feature. */
bool taper_kernel_runs(const taper_kernel *kernel);
/* Writes the level's first kernel for op, at or after position *position, whose features this CPU
 * has, and moves *position past it. Returns false where there is none. */
bool taper_kernel_next(const taper_level *level, const char *op, size_t *position,
                       taper_kernel *kernel);
/* Returns whether the kernel's row lists the dtypes and formats of these tensors. Callers call
 * prepare() only then. */
bool taper_kernel_takes(const taper_kernel *kernel, const taper_call *call);

/* Upper bound of state_bytes and attrs_bytes over a level's kernels: lets a caller use one buffer
 * for every candidate. */
size_t taper_max_state_bytes(const taper_level *level);
size_t taper_max_attrs_bytes(const taper_level *level);

#ifdef __cplusplus
}
#endif
#endif /* TAPER_KERNELS_H */
