/*
 * CONV and CONV_TRANSPOSE, channels last, in float32 unless said otherwise. conv_shape.inl
 * describes what a node computes, and conv_block.inl where the operands of a block of pixels are.
 * conv.inl computes blocks as matrix products, winograd.inl as matrix products of transformed
 * tiles. depthwise.inl is for convolutions in which every channel is a group, groups.inl for small
 * groups. conv_i8.inl computes CONV of bytes, conv_f64.inl both of float64.
 */
#include <string.h>

#include "common/overflow.h"
#include "common/tensor.h"
#include "common/window.h"
#include "conv/kernels.inc"
#include "isa/isa.h"
#include "map/program.h"

#include "gemm/engine_i8.h"
#include "simd/double.h"
#include "simd/narrow.h"

#define PROGRAM TAPER_ISA_SYM(taper_program_engine)

TAPER_DEFINE_ATTRS(conv)
/* CONV_TRANSPOSE has the attrs of CONV but one. */
#define conv_transpose_attrs conv_attrs
static const taper_attr conv_transpose_attr_list[] = {
    TAPER_ATTRS_conv_transpose(TAPER_DESCRIBE, conv)};

#include "conv/conv_shape.inl"

#include "conv/conv_block.inl"

#include "conv/conv.inl"

#include "conv/winograd.inl"

#include "conv/depthwise.inl"

#include "conv/groups.inl"

#include "gemm/product_i8.inl"

#include "conv/conv_i8.inl"

#include "conv/depthwise_i8.inl"

#include "conv/conv_f64.inl"

#define TAPER_KERNEL_ROWS
static const taper_kernel kernels[] = {
#include "conv/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_conv);
const taper_family TAPER_ISA_SYM(taper_conv) = {TAPER_ROWS(kernels)};
