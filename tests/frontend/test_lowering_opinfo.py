"""Handlers against PyTorch's own samples, which nobody here wrote.

Every sample of an op becomes one call of one module, exported once: capture costs more than all the
rest. Arguments that are not tensors are baked in.
"""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from lowering import check_lowering
from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 6
DTYPES = (torch.float32, torch.int64, torch.bool)

#: OpInfo names, all their variants.
ELEMENTWISE = """
    __radd__ __rand__ __rdiv__ __rmul__ __ror__ __rpow__ __rsub__ __rxor__ abs acos acosh add
    addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor
    ceil clamp clamp_max clamp_min cos cosh deg2rad div eq erf exp expm1 fill float_power floor
    floor_divide fmod frac ge gt heaviside isclose isfinite isinf isnan isneginf isposinf le lerp
    log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor logit lt
    masked_fill maximum minimum mul nan_to_num ne neg nn.functional.celu nn.functional.elu
    nn.functional.gelu nn.functional.hardshrink nn.functional.hardsigmoid nn.functional.hardswish
    nn.functional.hardtanh nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish
    nn.functional.prelu nn.functional.relu nn.functional.relu6 nn.functional.selu
    nn.functional.silu nn.functional.softplus nn.functional.softshrink nn.functional.softsign
    nn.functional.tanhshrink nn.functional.threshold positive pow rad2deg reciprocal remainder
    round rsqrt rsub sigmoid sign sin sinc sinh sqrt square sub tan tanh true_divide trunc where
    xlogy
""".split()
SHAPE = """
    as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to cat chunk
    column_stack constant_pad_nd contiguous diag_embed diagonal dsplit dstack expand expand_as
    flatten flip fliplr flipud hsplit hstack meshgrid movedim narrow nn.functional.pad
    nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.unfold permute ravel
    repeat repeat_interleave reshape roll rot90 select slice split split_with_sizes squeeze stack
    swapaxes t tensor_split tile transpose tril triu unbind unflatten unfold unsqueeze view
    vsplit vstack
""".split()
REDUCTIONS = """
    all amax amin aminmax any argmax argmin count_nonzero cumprod cumsum diff dist
    linalg.vector_norm logsumexp max mean min nanmean nansum norm prod std std_mean sum trace var
    var_mean
""".split()
INDEXING = """
    __getitem__ argsort bucketize gather index_add index_copy index_fill index_put index_select
    masked_scatter msort nn.functional.embedding nn.functional.one_hot scatter scatter_add
    scatter_reduce select_scatter slice_scatter sort take take_along_dim topk
""".split()
CREATION = """
    arange empty empty_like eye full full_like linspace new_empty new_full new_ones new_zeros ones
    ones_like scalar_tensor tril_indices triu_indices zeros zeros_like
""".split()
COMPOUND = """
    __rmatmul__ addbmm addmm addmv addr baddbmm bmm cdist dot einsum inner kron linalg.multi_dot
    log_softmax matmul mm mv nn.functional.batch_norm nn.functional.cosine_similarity
    nn.functional.glu nn.functional.group_norm nn.functional.layer_norm nn.functional.linear
    nn.functional.mse_loss nn.functional.normalize nn.functional.rms_norm
    nn.functional.scaled_dot_product_attention nn.functional.softmin outer softmax tensordot
""".split()
CAST = "bool byte char double float half int long short to type_as".split()

NAMES = {*ELEMENTWISE, *SHAPE, *REDUCTIONS, *INDEXING, *CREATION, *COMPOUND, *CAST}
OPS = [op for op in op_db if op.name in NAMES]


class Calls(torch.nn.Module):
    """Calls of one function, each with tensors of its own among baked-in arguments."""

    def __init__(self, function, calls):
        super().__init__()
        self.function = function
        self.calls = calls

    def forward(self, *tensors):
        remaining = iter(tensors)
        results = []
        for args, kwargs in self.calls:
            args, kwargs = torch.utils._pytree.tree_map(
                lambda x: next(remaining) if isinstance(x, torch.Tensor) else x, (args, kwargs)
            )
            results.append(self.function(*args, **kwargs))
        return results
