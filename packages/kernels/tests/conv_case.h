/*
 * A float32 CONV or CONV_TRANSPOSE that tests draw: its tensors, and the comparison of its results
 * with sums in double, each within the rounding error of its own products.
 */
#ifndef TAPER_CONV_CASE_H
#define TAPER_CONV_CASE_H

#include "check.h"
#include "conv/kernels.inc"

CHECK_ATTRS(conv)

enum { DIMS = 3, MAX_EXTRAS = 2 };

/* An epilogue: the program, and the function that it computes. */
typedef struct epilogue {
    const char *code[4];
    int64_t n_code;
    int64_t args[8];
    int64_t n_args;
    int n_extras;
    double (*reference)(double x, const double *extras);
} epilogue;
extern const epilogue none, bias_relu;
extern const epilogue chain; /* bias, residual */
extern const epilogue head;  /* everything that a tile does in registers, and nothing else */

/* A node; sizes of 0 that must be positive stand for 1. */
typedef struct layer {
    int dims;
    int64_t batch, channels, outputs, groups;
    int64_t size[DIMS], kernel[DIMS], stride[DIMS], dilation[DIMS], padding[2 * DIMS];
    bool transposed, packed;
    const epilogue *epilogue; /* NULL: none */
    size_t misalign;
} layer;

typedef struct tensors {
    layer l;
    taper_tensor inputs[2 + MAX_EXTRAS], output;
    float *weight; /* before it is packed */
    void *memory[4 + MAX_EXTRAS];
    int n_memory;
    struct conv_attrs attrs;
} tensors;

/* Two dims, with one size, kernel, stride and padding for both. */
layer square(int64_t size, int64_t channels, int64_t outputs, int64_t kernel, int64_t stride,
             int64_t padding);

/* The number of products in a sum. */
int64_t rows_of(const layer *l);
/* Writes the node into t, whose attrs point into it. */
void make(tensors *t, const layer *given);
void release(tensors *t);
const char *op_of(const tensors *t);
int n_inputs(const tensors *t);
taper_status run(tensors *t, int workers);
void compare(const tensors *t);

/* Makes, runs and compares. */
void check_layer(const layer *l);
/* Does so with a plain and a packed weight, without and with an epilogue. */
void check_ways(layer l);
/* Does so without and with an epilogue. */
void check_depthwise(layer l);

#endif /* TAPER_CONV_CASE_H */
