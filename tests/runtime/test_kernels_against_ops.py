"""Every native kernel against its op's numpy evaluator, on every sample of the registry."""

import numpy as np
import pytest

from edge_values import KERNELS_DIFFER, KINDS, SAMPLES, differs, edge_samples
from op_samples import present, sample_types, samples_of, stored_inputs
from op_samples.sample import Sample
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.formats import decode
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.matmul import rounded_in_groups

#: Micro-ops whose float32 result float64 does not reproduce exactly, in units of the last place.
ULPS = 8


def operands(types, arrays):
    """Types and strides of what stores the tensors; None for an input that is absent."""
    return [
        type_ and (type_, [stride // array.itemsize for stride in array.strides])
        for type_, array in zip(types, arrays, strict=True)
    ]


def prepared(op, sample, stored, level=None):
    """The node, None where there is no kernel; its outputs' types, and arrays to store those.

    The kernel is that of an ISA level, the best one if it is None.
    """
    types = sample_types(sample)
    outputs = op.infer_types(types, sample.attrs)
    got = [np.ones(t.storage.shape, DTYPES[t.storage.dtype].storage) for t in outputs]
    attrs = op.complete(sample.attrs)
    node = _kernels.prepare(op, attrs, operands(types, stored), operands(outputs, got), (level,))
    return node, outputs, got


def assert_all_equal(got, want, types, op):
    for array, wanted, type_ in zip(got, want, types, strict=True):
        assert_equal(decode(array, type_), wanted, op)


def assert_equal(got, want, op):
    assert got.dtype == want.dtype
    if got.dtype.kind != "f" or op.name == "CAST":
        np.testing.assert_array_equal(got, want)
        return
    # Relative to the magnitudes that went into the result: sums may cancel.
    finite = np.abs(want[np.isfinite(want)])
    scale = max(float(finite.max(initial=0.0)), 1e-3)
    rtol = 1e-5
    np.testing.assert_allclose(got, want, rtol=rtol, atol=scale * 2e-6, err_msg=op.name)


@pytest.mark.parametrize(
    "op", [op for op in REGISTRY.values() if op.native], ids=lambda op: op.name
)
def test_kernel_agrees_with_evaluator(op):
    served = 0
    for sample in samples_of(op.name):
        attrs = op.complete(sample.attrs)
        want = op.evaluate_all(sample.inputs, attrs)
        stored = stored_inputs(sample)
        node, outputs, got = prepared(op, sample, stored)
        if not sample.native:
            continue
        assert node is not None, f"{op.name} {sample.attrs} {sample_types(sample)}: no kernel"
        node.run(stored, got)
        assert_all_equal(got, want, outputs, op)
        served += 1
    assert served > 0


def edge_errors(op, kind, level, most=SAMPLES):
    """How many samples with values of a kind were tried, and where the kernel is wrong."""
    served, errors = 0, []
    for sample, want in edge_samples(op, kind, most):
        if not sample.native:
            continue
        stored = stored_inputs(sample)
        node, outputs, got = prepared(op, sample, stored, level)
        served += 1
        try:
            node.run(stored, got)
        except InputError as error:  # where the evaluator raises none
            errors.append(f"{kind}, {level}, {sample_types(sample)}, {sample.attrs}: {error}")
            continue
        for array, wanted, type_ in zip(got, want, outputs, strict=True):
            if not equals(decode(array, type_), wanted):
                errors.append(f"{kind}, {level}, {sample_types(sample)}, {sample.attrs}")
    return served, errors


def equals(got, want):
    """Whether NaN, infinities and integers are equal, and numbers nearly."""
    if got.dtype.kind != "f":
        return np.array_equal(got, want)
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
    with np.errstate(all="ignore"):
        return np.allclose(got, want, rtol=1e-5, atol=max(scale, 1e-3) * 2e-6, equal_nan=True)


@pytest.mark.parametrize("op", [op for op in REGISTRY.values() if op.native], ids=lambda o: o.name)
def test_kernels_at_the_edge(op):
    """NaN, infinities, signed zeros, denormals and the largest numbers, at every ISA level."""
    tried, found = 0, []
    for kind in KINDS:
        if differs(KERNELS_DIFFER, op, kind):
            continue
        for level in _kernels.available_isas():
            served, errors = edge_errors(op, kind, level)
            tried += served
            found += errors
    assert not found, f"{op.name}: {len(found)} of {tried}: {found[0]}"


ALL = 10**6


@pytest.mark.parametrize("name", KERNELS_DIFFER)
def test_differences_that_are_listed_are_there(name):
    op, (kinds, why) = REGISTRY[name], KERNELS_DIFFER[name]
    for kind in kinds:
        levels = _kernels.available_isas()
        assert any(edge_errors(op, kind, level, ALL)[1] for level in levels), (
            f"{name}, {kind}: {why}"
        )


@pytest.mark.parametrize(
    "op", [op for op in REGISTRY.values() if op.native and op.strided], ids=lambda op: op.name
)
def test_kernel_reads_strides(op):
    """Inputs the op calls strided: each is a part of each row of a larger array, or in turn every
    other element of it."""
    served = 0
    for sample in samples_of(op.name):
        if not sample.native or not any(array.ndim for array in present(sample.inputs)):
            continue
        spread, step = [], 1 + served % 2
        for index, array in enumerate(stored_inputs(sample)):
            if (
                array is not None
                and array.ndim
                and op.takes_strided(index)
                and index not in sample.formats
            ):
                wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
                view = wide[..., 1 : 1 + step * array.shape[-1] : step]
                view[...] = array
                spread.append(view)
            else:
                spread.append(array)
        attrs = op.complete(sample.attrs)
        want = op.evaluate_all(sample.inputs, attrs)
        node, outputs, got = prepared(op, sample, spread)
        assert node is not None, f"{op.name} {sample.attrs}: no kernel for {sample_types(sample)}"
        node.run(spread, got)
        assert_all_equal(got, want, outputs, op)
        served += 1
    assert served > 0


@pytest.mark.parametrize("op", [op for op in REGISTRY.values() if op.inplace], ids=lambda o: o.name)
def test_kernel_computes_in_place(op):
    """The output over an input of its type gives the same bits as memory of its own."""
    for sample in samples_of(op.name):
        if not sample.native or sample.formats:
            continue
        node, _, (apart, *others) = prepared(op, sample, sample.inputs)
        node.run(sample.inputs, [apart, *others])
        for index in op.inplace:
            if index >= len(sample.inputs):
                break
            array = sample.inputs[index]
            if array is None or array.shape != apart.shape or array.dtype != apart.dtype:
                continue
            over = array.copy()
            inputs = [over if i == index else x for i, x in enumerate(sample.inputs)]
            node.run(inputs, [over, *others])
            np.testing.assert_array_equal(
                over.view(np.uint8) if over.ndim else over,
                apart.view(np.uint8) if apart.ndim else apart,
            )


def _normal(*shape, dtype="float32"):
    rng = np.random.default_rng(3)
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(-9, 9, shape).astype(dtype)


def _window(*kernel, **attrs):
    zeros, ones = [0] * len(kernel), [1] * len(kernel)
    return {"kernel": list(kernel), "stride": ones, "padding": 2 * zeros, "dilation": ones} | attrs


def _padded(groups=1, **attrs):
    return _window(3, 3, padding=[1] * 4, groups=groups, **attrs)


_LEVELS = "blocks.4.32.float16.symmetric"
#: For each way in which kernels compute products: the op, two operands' shapes, their dtype, the
#: format of the second, and attrs.
PRODUCTS = {
    "matmul": ("MATMUL", (2, 5, 20), (20, 33), "float32", "panels.1", {}),
    "matmul of one row": ("MATMUL", (1, 20), (20, 33), "float32", "panels.1", {}),
    "matmul in pieces": ("MATMUL", (7, 2100), (2100, 40), "float32", "panels.1", {}),
    "matmul of rows": ("MATMUL", (9, 300), (300, 150), "float32", None, {}),
    "matmul, packing": ("MATMUL", (80, 30), (30, 20), "float32", None, {}),
    "matmul by dots": ("MATMUL", (3, 70), (9, 70), "float32", None, {"transpose_b": True}),
    "matmul by a vector": ("MATMUL", (2, 4, 70), (70,), "float32", None, {}),
    "matmul of rounded": (
        *("MATMUL", (9, 64), (64, 40), "float32", _LEVELS, {"activation_group": 32}),
    ),
    "matmul of levels": ("MATMUL", (9, 64), (64, 40), "float32", _LEVELS, {}),
    "matmul, float64": ("MATMUL", (13, 300), (300, 30), "float64", None, {"alpha": 0.5}),
    "matmul of few rows": ("MATMUL", (3, 300), (300, 30), "int64", None, {}),
    "matmul, int32": ("MATMUL", (13, 300), (300, 30), "int32", None, {}),
    "matmul of bytes": ("MATMUL", (13, 30), (30, 30), "int8", None, {"accumulate": "int32"}),
    "conv": ("CONV", (2, 5, 6, 4), (3, 3, 4, 20), "float32", "grouped_panels.1", _padded()),
    "conv in pieces": ("CONV", (1, 3, 4, 600), (3, 3, 600, 17), "float32", None, _padded()),
    "conv of groups": ("CONV", (2, 5, 6, 6), (3, 3, 3, 20), "float32", None, _padded(2)),
    "conv, clipped": (
        *("CONV", (1, 9, 8, 4), (3, 3, 4, 20), "float32", None),
        _window(3, 3, padding=[4] * 4, dilation=[4, 4]),
    ),
    "depthwise": ("CONV", (1, 7, 9, 21), (3, 3, 1, 21), "float32", None, _padded(21)),
    "depthwise, few": ("CONV", (1, 7, 9, 3), (3, 3, 1, 3), "float32", None, _padded(3)),
    "small groups": ("CONV", (2, 7, 9, 12), (3, 3, 2, 12), "float32", None, _padded(6)),
    "winograd.2": ("CONV", (2, 9, 6, 5), (3, 3, 5, 34), "float32", "winograd.2", _padded()),
    "winograd.4": ("CONV", (2, 9, 6, 5), (3, 3, 5, 34), "float32", "winograd.4", _padded()),
    "conv, float64": ("CONV", (2, 5, 6, 4), (3, 3, 4, 20), "float64", None, _padded()),
    "depthwise, float64": (
        *("CONV", (1, 5, 6, 9), (3, 3, 1, 9), "float64", None, _padded(9)),
    ),
    "conv of bytes": (
        *("CONV", (2, 5, 6, 4), (3, 3, 4, 20), "int8", None),
        _padded(accumulate="int32", border=-7),
    ),
    "depthwise of bytes": (
        *("CONV", (1, 7, 9, 21), (3, 3, 1, 21), "int8", None),
        _padded(21, accumulate="int32", border=100),
    ),
    "transposed": (
        *("CONV_TRANSPOSE", (2, 4, 5, 3), (3, 3, 3, 20), "float32", None),
        _window(3, 3, stride=[2, 3]),
    ),
    "transposed, float64": (
        *("CONV_TRANSPOSE", (2, 4, 5, 3), (3, 3, 3, 20), "float64", None),
        _window(3, 3, stride=[2, 3]),
    ),
}  # fmt: skip
#: Epilogues of a residual, value 1, and perhaps of a bias, value 2: some are fused, some are not.
EPILOGUES = {
    "added": {"code": ["ADD"], "args": [0, 1]},
    "after the bias": {"code": ["ADD", "ADD"], "args": [0, 2, 3, 1]},
    "bounded": {"code": ["ADD", "MAXIMUM"], "args": [0, 1, 2, -1], "scalars": [1]},
    "added later": {"code": ["MUL", "ADD"], "args": [0, 0, 2, 1]},
    "read twice": {"code": ["ADD", "MUL"], "args": [0, 1, 2, 1]},
}


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_product_is_computed_over_its_residual(product, epilogue):
    """The residual is read before anything is written to its place, on all levels."""
    name, first, second, dtype, form, given = PRODUCTS[product]
    op, program = REGISTRY[name], EPILOGUES[epilogue]
    operands_ = [_normal(*first, dtype=dtype), _normal(*second, dtype=dtype)]
    if form == _LEVELS:
        operands_[1] = np.rint(operands_[1]).clip(-2, 1) / 8
    formats = {1: form} if form else {}
    plain = Sample(operands_, given, formats=formats)
    (output,) = op.infer_types(sample_types(plain), op.complete(given))
    extras = [_normal(*output.shape, dtype=output.dtype)]
    if epilogue == "after the bias":
        extras.append(_normal(output.shape[-1], dtype=output.dtype))
    sample = Sample([*operands_, *extras], given | program, formats=formats)
    (want,) = op.evaluate_all(sample.inputs, op.complete(sample.attrs))
    for level in _kernels.available_isas():
        inputs = stored_inputs(sample)
        node, _, (apart,) = prepared(op, sample, inputs, level)
        assert node is not None
        node.run(inputs, [apart])
        if want.dtype.kind == "f" and "activation_group" not in given:
            scale = float(np.abs(want).max())
            np.testing.assert_allclose(apart, want, rtol=1e-4, atol=1e-5 * scale)
        over = inputs[2].copy()
        node.run([*inputs[:2], over, *inputs[3:]], [over])
        np.testing.assert_array_equal(over.view(np.uint8), apart.view(np.uint8), level)


def _sums_of_rounded(x, levels, scales, group, *, fused):
    """Products of rounded rows as kernels add them: runs of a block, then groups, in order."""
    block = len(levels) // len(scales)
    run = min(group, block)

    def fma(a, b, c):
        if not fused:
            return a * b + c
        return np.float32(np.float64(a) * np.float64(b) + np.float64(c))

    total = np.zeros((len(x), levels.shape[1]), np.float32)
    for first in range(0, x.shape[1], group):
        of_group = x[:, first : first + group]
        most = np.abs(of_group).max(1, keepdims=True)
        rounded = np.rint(of_group * (np.float32(127) / most)).astype(np.int32)
        part = np.zeros_like(total)
        for at in range(0, group, run):
            sums = rounded[:, at : at + run] @ levels[first + at : first + at + run]
            part = fma(sums.astype(np.float32), scales[(first + at) // block], part)
        total = fma(part, most / np.float32(127), total)
    return total


@pytest.mark.parametrize(
    ("bits", "block", "group"),
    [(4, 32, 32), (4, 32, 256), (4, 128, 512), (8, 512, 256), (8, 8, 64)],
)
def test_rounded_products_have_the_bits_of_their_sums(bits, block, group):
    """All levels add alike; only the baseline of x86 has no fused multiply-adds."""
    op, k, n = REGISTRY["MATMUL"], 512, 40
    rng = np.random.default_rng(bits)
    levels = rng.integers(-(1 << bits - 1), 1 << bits - 1, (k, n)).astype(np.int8)
    scales = np.exp2(_normal(k // block, n)).astype(np.float16)
    x = _normal(13, k)
    form = f"blocks.{bits}.{block}.float16.symmetric"
    numbers = levels * np.repeat(scales, block, 0).astype(np.float32)
    sample = Sample([x, numbers], op.complete({"activation_group": group}), formats={1: form})
    stored = [x, REGISTRY["PACK"].evaluate([levels, scales], {"format": form})]
    for level in _kernels.available_isas():
        node, _, (got,) = prepared(op, sample, stored, level)
        node.run(stored, [got])
        want = _sums_of_rounded(x, levels, scales, group, fused=level != "baseline")
        np.testing.assert_array_equal(got, want, level)


@pytest.mark.parametrize("group", [32, 256])
@pytest.mark.parametrize("form", ["blocks.4.32.float16.symmetric", "blocks.8.32.float16.symmetric"])
def test_rounded_rows_have_the_same_bits_in_any_company(form, group):
    """Few rows are computed by other tiles, and many in several parts."""
    op = REGISTRY["MATMUL"]
    attrs = op.complete({"activation_group": group})
    rows, parts = _normal(1500, 512), (1, 2, 7, 50, 1440)
    weight = np.asarray(np.rint(_normal(512, 272)).clip(-2, 1) / 8, np.float32)
    for level in _kernels.available_isas():

        def product(x, level=level):
            sample = Sample([x, weight], attrs, formats={1: form})
            inputs = stored_inputs(sample)
            node, _, (out,) = prepared(op, sample, inputs, level)
            node.run(inputs, [out])
            return out

        every = product(rows)
        apart = [product(each) for each in np.split(rows, np.cumsum(parts)[:-1])]
        np.testing.assert_array_equal(every, np.concatenate(apart), level)
        want = rounded_in_groups(rows[:9], group) @ weight
        np.testing.assert_allclose(every[:9], want, rtol=1e-4, atol=1e-3)


def test_every_kernel_has_an_op():
    for name, op, attrs in _kernels.list_kernels():
        assert op in REGISTRY, name
        assert attrs == {key: attr.type for key, attr in REGISTRY[op].attrs.items()}, name


def test_every_native_op_has_a_kernel():
    with_kernels = {op for _, op, _ in _kernels.list_kernels()}
    assert with_kernels == {op.name for op in REGISTRY.values() if op.native}
