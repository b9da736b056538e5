/*
 * A float32 MATMUL that tests draw: its tensors, and the comparison of its results with sums in
 * double, each within the rounding error of its own products.
 */
#ifndef TAPER_GEMM_CASE_H
#define TAPER_GEMM_CASE_H

#include "check.h"
#include "gemm/kernels.inc"

CHECK_ATTRS(matmul)

enum { MAX_EXTRAS = 3 };

/* The layout of a tensor in memory. */
typedef enum layout {
    ROWS,      /* contiguous */
    COLUMNS,   /* the last two dims swapped */
    STRIDED,   /* any order of dims, with gaps, steps backwards and broadcasts */
    MISALIGNED /* contiguous, 4 bytes off a cache line */
} layout;

typedef struct operand {
    int rank;
    int64_t dims[TAPER_MAX_RANK];
    layout layout;
} operand;

/* An epilogue: the program, and what it computes. */
typedef struct epilogue {
    const char *code[4];
    int64_t n_code;
    int64_t args[8];
    int64_t n_args;
    double (*reference)(double x, const double *extras);
} epilogue;
extern const epilogue none, add, relu;
extern const epilogue chain; /* reads its block, two extras and a scalar, one of them twice */
/* Everything that a tile does in registers, and nothing else: a bias, a residual, two bounds. */
extern const epilogue head;

typedef struct product {
    operand a, b;
    bool transpose_b;
    bool packed;              /* B is given packed; b has it before */
    double alpha;             /* 0: 1 */
    const epilogue *epilogue; /* NULL: none */
    operand extras[MAX_EXTRAS];
    int n_extras;
} product;

/* The tensors of a product. b is B before packing. */
typedef struct tensors {
    taper_tensor inputs[2 + MAX_EXTRAS], b, output;
    void *memory[5 + MAX_EXTRAS];
    int n_memory;
    struct matmul_attrs attrs;
} tensors;

product matrices(int64_t m, int64_t n, int64_t k);
/* Lets B be given as [N][K]. */
void transpose(product *p);

/* Allocates memory that release() frees. */
float *keep(tensors *t, int64_t n, size_t misalign);
tensors make(const product *p);
void release(tensors *t);
/* b: [K, N], or [N, K] if `transposed` -> [ceil(N/16)][K][16], zero beyond N. */
taper_tensor pack(tensors *t, const taper_tensor *b, bool transposed, layout l);
taper_status run(tensors *t, const product *p, int workers);
void compare(const tensors *t, const product *p);

/* Makes, runs and compares. */
void check_product(const product *p);
/* Does so in every form in which B can be given. */
void check_ways(product p);

/* Times a product. t: its tensors, which this releases. */
void bench_tensors(const char *name, const product *p, tensors *t);

#endif /* TAPER_GEMM_CASE_H */
