"""Every native kernel against its op's numpy evaluator, on every sample of the registry."""

import numpy as np
import pytest

from edge_values import KERNELS_DIFFER, KINDS, SAMPLES, differs, edge_samples
from op_samples import present, sample_types, samples_of, stored_inputs
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.formats import decode
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY

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
    """Inputs the op calls strided: each is given as every other element of a larger array."""
    served = 0
    for sample in samples_of(op.name):
        if not sample.native or not any(array.ndim for array in present(sample.inputs)):
            continue
        spread = []
        for index, array in enumerate(stored_inputs(sample)):
            if (
                array is not None
                and array.ndim
                and op.takes_strided(index)
                and index not in sample.formats
            ):
                wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
                view = wide[..., 1::2]
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


def test_every_kernel_has_an_op():
    for name, op, attrs in _kernels.list_kernels():
        assert op in REGISTRY, name
        assert attrs == {key: attr.type for key, attr in REGISTRY[op].attrs.items()}, name


def test_every_native_op_has_a_kernel():
    with_kernels = {op for _, op, _ in _kernels.list_kernels()}
    assert with_kernels == {op.name for op in REGISTRY.values() if op.native}
