"""torchao's ops by their schemas, where the package is not installed.

Graphs that torchao quantizes hold calls of a few ops. They are
defined here in torch's arithmetic, step by step as torchao 0.18 computes them.
"""

from __future__ import annotations

import importlib.util

import torch

_SCHEMAS = {
    "choose_qparams_affine": "(Tensor? input, str mapping_type, SymInt[] block_size, "
    "ScalarType target_dtype, Scalar? quant_min=None, Scalar? quant_max=None, float? eps=None, "
    "ScalarType? scale_dtype=None, ScalarType? zero_point_dtype=None, bool keepdim=False) -> "
    "(Tensor, Tensor)",
    "quantize_affine": "(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, "
    "ScalarType output_dtype, Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor",
    "dequantize_affine": "(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, "
    "ScalarType input_dtype, Scalar? quant_min=None, Scalar? quant_max=None, "
    "ScalarType output_dtype=6) -> Tensor",
}


def _split(x, block_size):
    """x with each axis in blocks, and the axes within these."""
    shape, axes = [], []
    for size, of in zip(x.shape, block_size, strict=True):
        shape += [size // of, of]
        axes.append(len(shape) - 1)
    return x.reshape(shape), axes


def _beside(parameters, x, axes):
    """Parameters in the shape of x, with one element along the axes."""
    return parameters.reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)])


def choose_qparams_affine(
    input,
    mapping_type,
    block_size,
    target_dtype,
    quant_min=None,
    quant_max=None,
    eps=None,
    scale_dtype=None,
    zero_point_dtype=None,
    keepdim=False,
):
    x, axes = _split(input, block_size)
    low, high = x.amin(axes).clamp(max=0), x.amax(axes).clamp(min=0)
    eps = torch.finfo(input.dtype).smallest_normal if eps is None else eps
    if mapping_type == "ASYMMETRIC":
        scale = ((high - low) / float(quant_max - quant_min)).clamp(min=eps)
        zero = (quant_min - (low / scale).round()).clamp(quant_min, quant_max)
        zero_point_dtype = zero_point_dtype or torch.int32
    else:
        if mapping_type == "SYMMETRIC":
            scale = torch.maximum(-low, high) / (float(quant_max - quant_min) / 2)
        else:
            scale = torch.maximum(low / float(quant_min), high / float(quant_max))
        scale = scale.clamp(min=eps)
        zero = torch.full_like(scale, int((quant_max + quant_min + 1) / 2))
    if not keepdim:
        shape = [n // of for n, of in zip(input.shape, block_size, strict=True) if n // of != 1]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return scale.to(scale_dtype or input.dtype), zero.to(zero_point_dtype or zero.dtype)


def quantize_affine(
    input, block_size, scale, zero_point, output_dtype, quant_min=None, quant_max=None
):
    x, axes = _split(input, block_size)
    scale, zero_point = (_beside(each, x, axes) for each in (scale, zero_point))
    y = (torch.round(x * (1.0 / scale)) + zero_point).clamp(quant_min, quant_max)
    return y.reshape(input.shape).to(output_dtype)


def dequantize_affine(
    input,
    block_size,
    scale,
    zero_point,
    input_dtype,
    quant_min=None,
    quant_max=None,
    output_dtype=torch.float32,
):
    x, axes = _split(input, block_size)
    y = x.to(output_dtype)
    if zero_point is not None:
        y = y - _beside(zero_point, x, axes).to(output_dtype)
    return (y * _beside(scale, x, axes)).reshape(input.shape).to(output_dtype)


if importlib.util.find_spec("torchao"):
    import torchao  # noqa: F401
else:
    for _name, _schema in _SCHEMAS.items():
        torch.library.define(f"torchao::{_name}", _schema)
        torch.library.impl(f"torchao::{_name}", "CompositeExplicitAutograd", globals()[_name])

ops = torch.ops.torchao
