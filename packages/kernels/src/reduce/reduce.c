/*
 * Reductions over any set of axes, argmax and argmin.
 *
 * Adjacent dimensions of one kind (kept or reduced) are merged, so kept and reduced dimensions
 * alternate. The innermost decides how memory is read: along the row if it is reduced, across
 * columns if it is kept. The order in which partial results are added depends on shapes alone.
 */
#include <math.h>
#include <string.h>

#include "common/axis.h"
#include "common/overflow.h"
#include "reduce/kernels.inc"
#include "isa/isa.h"
#include "simd/rows.h"

TAPER_DEFINE_ATTRS(reduce)
TAPER_DEFINE_ATTRS(var)
TAPER_DEFINE_ATTRS(arg)

#include "reduce/fold.inl"
#include "reduce/var.inl"

#include "reduce/arg.inl"

#define TAPER_KERNEL_ROWS
static const taper_kernel reduce_kernels[] = {
#include "reduce/kernels.inc"
};

extern const taper_family TAPER_ISA_SYM(taper_reduce);
const taper_family TAPER_ISA_SYM(taper_reduce) = {TAPER_ROWS(reduce_kernels)};
