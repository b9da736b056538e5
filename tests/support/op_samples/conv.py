"""Samples of the ops in ``ops/conv.py``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from op_samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taper_runtime.ops.opdef import Shape


def _attrs(kernel: Sequence[int], **given: Any) -> dict[str, Any]:
    n = len(kernel)
    plain = {"stride": [1] * n, "padding": [0] * 2 * n, "dilation": [1] * n}
    return {"kernel": list(kernel)} | plain | given


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape), np.float32)


def _with_packed(
    x: np.ndarray, weight: np.ndarray, attrs: dict[str, Any], *extras: np.ndarray
) -> Iterator[Sample]:
    """One sample with the weight as it is, one with it packed."""
    yield Sample([x, weight, *extras], attrs)
    packed = f"grouped_panels.{attrs.get('groups', 1)}"
    yield Sample([x, weight, *extras], attrs, formats={1: packed})


def _of_bytes(
    rng: np.random.Generator, x: Shape, weight: Shape, attrs: dict[str, Any]
) -> Iterator[Sample]:
    """Samples with sums in int32, one requantized, with the weight as it is and packed."""
    attrs = attrs | {"accumulate": "int32"}
    requantize = {
        "code": ["CAST:float32", "MUL", "ROUND", "MAXIMUM", "MINIMUM", "CAST:uint8"],
        "args": [0, 2, 1, 3, 4, -1, 5, -2, 6],
        "scalars": [0.0, 255.0],
    }
    shifted = {
        "code": [
            *("SUB", "CAST:float32", "MUL", "ADD", "RELU", "MINIMUM"),
            *("ROUND", "ADD", "MAXIMUM", "MINIMUM", "CAST:int8"),
        ],
        "args": [0, 1, 4, 5, 2, 6, 3, 7, 8, -1, 9, 10, -2, 11, -3, 12, -4, 13],
        "scalars": [180.6, -100.0, -128.0, 127.0],
    }
    packed = {1: f"dots.{attrs.get('groups', 1)}"}
    levels = rng.integers(-128, 128, weight).astype(np.int8)
    signed = rng.integers(-128, 128, x).astype(np.int8)
    unsigned = rng.integers(0, 256, x).astype(np.uint8)
    yield Sample([signed, levels], attrs)
    yield Sample([signed, levels], attrs, formats=packed)
    yield Sample([unsigned, levels], attrs, formats=packed)
    factors = np.asarray(rng.uniform(0, 0.1, weight[-1]), np.float32)
    yield Sample([unsigned, levels, factors], attrs | requantize)
    zeros = rng.integers(-900, 900, weight[-1]).astype(np.int32)
    extras = zeros, factors, _floats(rng, weight[-1])
    yield Sample([signed, levels, *extras], attrs | shifted, formats=packed)
    yield Sample([unsigned, levels, *extras], attrs | shifted)
    for border, x_levels in ((-128, signed), (100, unsigned), (200, unsigned)):
        yield Sample([x_levels, levels], attrs | {"border": border})


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(11)
    floats = partial(_floats, rng)

    cases: list[tuple[Shape, Shape, dict[str, Any]]] = [
        # x, weight, attrs
        ((2, 9, 5), (3, 5, 7), {}),
        ((1, 6, 7, 3), (3, 3, 3, 20), {"padding": [1, 1, 1, 1]}),
        ((2, 11, 9, 3), (7, 7, 3, 16), {"stride": [2, 2], "padding": [3, 3, 3, 3]}),
        ((1, 8, 8, 20), (1, 1, 20, 33), {"stride": [2, 2]}),
        ((1, 9, 10, 6), (3, 2, 3, 34), {"groups": 2, "padding": [1, 0, 0, 1]}),
        ((1, 9, 10, 8), (3, 3, 2, 4), {"groups": 4, "dilation": [2, 3], "padding": [2, 2, 3, 3]}),
        ((1, 4, 5, 6, 3), (2, 3, 2, 3, 5), {"stride": [1, 2, 3], "padding": [1, 0, 1, 1, 0, 0]}),
        ((1, 2, 3, 4), (1, 1, 4, 2), {"padding": [5, 4, 0, 7]}),
        ((0, 5, 5, 3), (3, 3, 3, 4), {}),
        ((1, 5, 5, 0), (3, 3, 0, 4), {}),
        ((1, 5, 5, 3), (3, 3, 3, 0), {}),
        # A channel of its own for each output: never packed, a multiplier of 1 or more.
        ((2, 9, 8, 35), (3, 3, 1, 35), {"groups": 35, "padding": [1, 1, 1, 1]}),
        ((1, 9, 8, 16), (5, 5, 1, 16), {"groups": 16, "stride": [2, 2], "padding": [2, 2, 2, 2]}),
        ((1, 9, 8, 16), (7, 7, 1, 16), {"groups": 16, "padding": [3, 3, 3, 3]}),
        ((2, 8, 11, 19), (3, 3, 1, 19), {"groups": 19, "stride": [2, 2], "padding": [1, 0, 0, 1]}),
        ((1, 7, 9, 24), (5, 5, 1, 24), {"groups": 24, "padding": [2, 2, 1, 3]}),
        ((1, 9, 8, 5), (3, 3, 1, 15), {"groups": 5, "dilation": [2, 1]}),
        ((1, 20, 40), (4, 1, 40), {"groups": 40, "padding": [3, 0]}),
        ((1, 20, 40), (16, 1, 40), {"groups": 40, "padding": [3, 0]}),
        # Groups of a few channels: likewise.
        ((1, 9, 20, 20), (3, 3, 4, 20), {"groups": 5, "padding": [1, 1, 1, 1]}),
        ((1, 9, 20, 24), (3, 3, 8, 24), {"groups": 3, "stride": [2, 2]}),
        ((1, 9, 20, 6), (1, 3, 2, 6), {"groups": 3, "dilation": [1, 3]}),
        ((1, 5, 6, 7, 9), (3, 3, 3, 1, 9), {"groups": 9, "padding": [1, 1, 1, 1, 1, 1]}),
    ]
    for x, weight, given in cases:
        attrs = _attrs(weight[: len(x) - 2], **given)
        yield from _with_packed(floats(*x), floats(*weight), attrs)
        yield from _of_bytes(rng, x, weight, attrs)
    bias_relu = {"code": ["ADD", "RELU"], "args": [0, 1, 2]}
    same = _attrs((3, 3), padding=[1, 1, 1, 1])
    yield from _with_packed(floats(2, 5, 6, 4), floats(3, 3, 4, 18), same | bias_relu, floats(18))
    grouped = same | bias_relu | {"groups": 6}
    yield from _with_packed(floats(1, 5, 6, 6), floats(3, 3, 1, 6), grouped, floats(6))
    residual = {"code": ["ADD", "ADD", "MUL"], "args": [0, 1, 3, 2, 4, -1], "scalars": [0.5]}
    extras = [floats(20), floats(2, 5, 6, 20)]
    yield from _with_packed(
        floats(2, 5, 6, 4), floats(3, 3, 2, 20), same | residual | {"groups": 2}, *extras
    )
    special = floats(1, 4, 4, 3)
    special[0, 1, 2] = [np.nan, np.inf, 0]
    yield from _with_packed(special, floats(2, 2, 3, 4), _attrs((2, 2)))
    whole = [rng.integers(-9, 9, (1, 4, 4, 2)), rng.integers(-9, 9, (2, 2, 2, 3))]
    yield Sample(whole, _attrs((2, 2)), native=False)
    wide = [floats(1, 4, 3).astype(np.float64), floats(2, 3, 2).astype(np.float64)]
    yield Sample(wide, _attrs((2,)))
    for x, weight, given in (
        ((2, 9, 6, 5), (3, 3, 5, 34), {"padding": [1, 1, 1, 2], "stride": [2, 1]}),
        ((1, 7, 8, 6), (3, 2, 3, 20), {"groups": 2, "dilation": [2, 3], "padding": [0, 0, 5, 5]}),
        ((2, 6, 7, 9), (3, 3, 1, 9), {"groups": 9, "padding": [1, 1, 1, 1]}),
        ((1, 5, 4, 3, 70), (2, 3, 2, 70, 7), {"padding": [0, 1, 1, 0, 0, 0]}),
        ((1, 3, 3, 0), (3, 3, 0, 4), {}),
    ):
        doubles = [floats(*shape).astype(np.float64) for shape in (x, weight, weight[-1:])]
        yield Sample(doubles[:2], _attrs(weight[: len(x) - 2], **given))
        yield Sample(doubles, _attrs(weight[: len(x) - 2], **given) | bias_relu)
    yield from _samples_winograd(floats)


def _samples_winograd(floats: Callable[..., np.ndarray]) -> Iterator[Sample]:
    cases: list[tuple[int, Shape, Shape]] = [
        # tile, x, padding
        (2, (2, 5, 6, 4), (1, 1, 1, 1)),
        (4, (2, 9, 6, 5), (1, 0, 3, 7)),
        (4, (1, 14, 14, 35), (1, 1, 1, 1)),
        (4, (0, 5, 6, 4), (0, 0, 0, 0)),
    ]
    program = {"code": ["ADD", "MUL", "RELU"], "args": [0, 1, 2, -1, 3], "scalars": [0.5]}
    for tile, shape, padding in cases:
        attrs = _attrs((3, 3), padding=list(padding))
        x, weight = floats(*shape), floats(3, 3, shape[-1], 18)
        formats = {1: f"winograd.{tile}"}
        yield Sample([x, weight], attrs, formats=formats)
        yield Sample([x, weight, floats(18)], attrs | program, formats=formats)
    strided = _attrs((3, 3), stride=[2, 2])
    yield Sample(
        [floats(1, 9, 9, 4), floats(3, 3, 4, 18)], strided, native=False, formats={1: "winograd.2"}
    )


def _samples_transpose() -> Iterator[Sample]:
    rng = np.random.default_rng(12)
    floats = partial(_floats, rng)
    cases: list[tuple[Shape, Shape, dict[str, Any]]] = [
        ((2, 9, 5), (3, 5, 7), {}),
        ((1, 5, 6, 4), (2, 2, 4, 18), {"stride": [2, 2]}),
        ((2, 5, 6, 4), (4, 4, 4, 18), {"stride": [2, 2], "padding": [1, 1, 1, 1]}),
        # An output padding, in part beyond what any tap reaches.
        ((1, 5, 6, 4), (3, 3, 4, 5), {"stride": [2, 3], "padding": [1, 0, 0, -1]}),
        ((1, 5, 6, 4), (1, 2, 4, 5), {"stride": [3, 3], "padding": [0, -2, -1, -3]}),
        ((1, 5, 6, 6), (3, 3, 3, 34), {"groups": 2, "dilation": [2, 1], "stride": [1, 2]}),
        ((1, 3, 4, 5, 3), (2, 3, 2, 3, 5), {"stride": [1, 2, 3]}),
        ((1, 9, 8, 20), (4, 4, 1, 20), {"groups": 20, "stride": [2, 2], "padding": [1, 1, 1, 1]}),
        ((0, 5, 5, 3), (3, 3, 3, 4), {}),
        ((1, 5, 5, 0), (3, 3, 0, 4), {}),
    ]
    for x, weight, given in cases:
        attrs = _attrs(weight[: len(x) - 2], **given)
        yield from _with_packed(floats(*x), floats(*weight), attrs)
    attrs = _attrs((2, 2), stride=[2, 2])
    program = {"code": ["ADD", "MUL"], "args": [0, 1, 2, -1], "scalars": [3.0]}
    yield from _with_packed(floats(1, 3, 4, 5), floats(2, 2, 5, 20), attrs | program, floats(20))
    for x, weight, given in cases:
        doubles = [rng.standard_normal(x), rng.standard_normal(weight)]
        yield Sample(doubles, _attrs(weight[: len(x) - 2], **given))
    wide = [rng.standard_normal((1, 3, 3, 2)), rng.standard_normal((2, 2, 2, 3))]
    yield Sample([*wide, rng.standard_normal(3)], attrs | program)
    levels = [rng.integers(-9, 9, each.shape).astype(np.int8) for each in wide]
    yield Sample(levels, attrs | {"accumulate": "int32"}, native=False)


SAMPLES = {
    "CONV": _samples,
    "CONV_TRANSPOSE": _samples_transpose,
}
