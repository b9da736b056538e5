"""Every format: what it stores, that decoding undoes encoding, and how strictly names are read."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest

from op_samples import SAMPLED, array_of, samples_of
from plan_files import PlanFile, assert_same_plan
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError, OpError, PlanFormatError
from taper_runtime.file.reader import load, loads
from taper_runtime.formats import FAMILIES, PLAIN, decode, encode, family, find
from taper_runtime.formats.blocks import find_exact
from taper_runtime.formats.format import Family, Format
from taper_runtime.formats.panels import PANEL
from taper_runtime.ops.opdef import TensorType, contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

EXAMPLES = [name for each in FAMILIES for name in family(each).examples]

#: Dims: whole panels and parts of one, kernels, no elements.
SIZES = (0, 1, 3, 15, 16, 17, 40, 64)
SHAPES = [
    *itertools.chain.from_iterable(itertools.product(SIZES, repeat=rank) for rank in range(3)),
    *((3, 3, *rest) for rest in itertools.product(SIZES, repeat=2)),
    *((2, *rest) for rest in itertools.product(SIZES, repeat=2)),
    (3, 2, 3, 4, 34),
]


def stored(name):
    """The types of this format among many shapes and dtypes."""
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        type_ = TensorType(dtype, shape, name)
        try:
            type_.storage  # noqa: B018
        except OpError:
            continue
        yield type_


def test_families_have_examples():
    for name in FAMILIES:
        assert isinstance(family(name), Family)
        assert family(name).name == name
        assert family(name).examples
        for example in family(name).examples:
            assert isinstance(find(example), Format)
            assert find(example).name == example


@pytest.mark.parametrize("name", EXAMPLES)
def test_decoding_undoes_encoding(name):
    count = 0
    for type_ in stored(name):
        array = array_of(type_, np.random.default_rng(count))
        before = array.copy()
        packed = encode(array, type_)
        storage = type_.storage
        assert storage.format == PLAIN
        assert (packed.dtype, packed.shape) == (DTYPES[storage.dtype].storage, storage.shape)
        assert packed.flags.c_contiguous
        assert type_.nbytes == packed.nbytes
        back = decode(packed, type_)
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(array, before)
        if find(name).tolerance:
            scale = np.abs(array).max(initial=0)
            np.testing.assert_allclose(back, array, rtol=0, atol=find(name).tolerance * scale)
        else:
            np.testing.assert_array_equal(back, array)
        count += 1
    assert count > 5


@pytest.mark.parametrize("name", [name for name in EXAMPLES if find(name).scales_rows])
def test_factors_of_rows_scale_what_is_stored(name):
    matrix, factors = np.ones((5, 20), np.float32), np.arange(5, dtype=np.float32)[:, None]
    type_ = TensorType("float32", matrix.shape, name)
    scaled = encode(matrix, type_) * factors
    np.testing.assert_array_equal(decode(scaled, type_), matrix * factors)


def test_panels_are_what_the_kernels_read():
    matrix = np.arange(5 * 33, dtype=np.float32).reshape(5, 33)
    packed = encode(matrix, TensorType("float32", matrix.shape, "panels.1"))
    for p, k, j in np.ndindex(packed.shape):
        n = PANEL * p + j
        assert packed[p, k, j] == (matrix[k, n] if n < 33 else 0)
    transposed = encode(matrix.T, TensorType("float32", (33, 5), "panels.0"))
    np.testing.assert_array_equal(transposed, packed)


@pytest.mark.parametrize("name", family("blocks").examples)
def test_blocks_are_what_the_kernels_read(name):
    bits = int(name.split(".")[1])
    rng = np.random.default_rng(3)
    levels = rng.integers(0, 2**bits, (64, 20))
    levels[::32], levels[1::32], levels[2::32] = 0, 1, 2**bits - 1  # so that they show
    factors = rng.uniform(0.1, 2, (2, 1, 20)).astype(np.float32)
    offsets = rng.uniform(-9, 9, (2, 1, 20)).astype(np.float32)
    matrix = (levels.reshape(2, 32, 20) * factors + offsets).astype(np.float32).reshape(64, 20)
    type_ = TensorType("float32", matrix.shape, name)
    stored = encode(matrix, type_)
    assert find_exact(matrix) == name
    for p, block in np.ndindex(stored.shape[:2]):
        n = min(16, 20 - 16 * p)
        head = stored[p, block, :32].view(np.float32).reshape(2, 16)
        words = stored[p, block, 32:].reshape(32, -1)
        for k, j in np.ndindex(32, n):
            assert level_of(words[k], j, bits) == levels[32 * block + k, 16 * p + j]
        columns = slice(16 * p, 16 * p + n)
        np.testing.assert_allclose(head[0, :n], factors[block, 0, columns], rtol=1e-5)
        least = head[0, :n] * LEAST[bits] + head[1, :n]
        np.testing.assert_allclose(least, offsets[block, 0, columns], rtol=1e-5, atol=1e-5)
    back = decode(stored, type_)
    again = decode(encode(back, type_), type_)
    np.testing.assert_allclose(again, back, rtol=0, atol=1e-6 * np.abs(matrix).max())


#: The level that a block's offset is the number of, from the least.
LEAST = {4: 0, 8: -128}


def level_of(line, column, bits):
    """The level of a column of a line, counted from the least."""
    if bits == 4:
        return int(line.view(np.uint32)[column % 2]) >> column // 2 * 4 & 15
    return int(line.view(np.int8)[column]) - LEAST[bits]


@pytest.mark.parametrize("name", family("blocks").examples)
def test_blocks_never_round_a_number(name):
    bits = int(name.split(".")[1])
    type_ = TensorType("float32", (64, 20), name)
    levels = np.asarray(np.random.default_rng(4).integers(0, 2**bits, type_.shape), np.float32)
    encode(levels, type_)
    for value in (0.5, 1.001, 2.0**bits + 1, np.nan, np.inf):
        spoiled = levels.copy()
        spoiled[:3, 7] = 0, 1, 2**bits - 1
        spoiled[40, 7] = value
        spoiled[32:35, 7] = 0, 1, 2**bits - 1
        with pytest.raises(InputError, match=f"expected at most {2**bits} evenly spaced values"):
            encode(spoiled, type_)
    assert find_exact(np.asarray(np.random.default_rng(5).standard_normal((64, 3)), "f4")) is None


@pytest.mark.parametrize("text", [
    "", "tiles", "Plain", "plain.0", "panels", "panels.", "panels.2", "panels.-1", "panels.00",
    "panels.1.0", "panels.1 ", " panels.1", "panels.1\n", "panels.\u0661", "panels.1_0",
    "grouped_panels.0", "grouped_panels.4294967296", "grouped_panels." + "9" * 5000, "winograd.3",
    "winograd.\ud800", "panels\0.1", "blocks", "blocks.8", "blocks.5.32", "blocks.8.48",
])  # fmt: skip
def test_names_are_read_strictly(text):
    with pytest.raises(OpError, match="expected a format"):
        find(text)


def packed_file(format="panels.1", k=4):
    """The file of x @ w, w in panels."""
    type_ = TensorType("float32", (k, 20), format)
    array = encode(np.arange(20 * k, dtype=np.float32).reshape(k, 20) % 16, type_)
    tensors = [
        TensorSpec("x", "float32", (2, k), "input"),
        TensorSpec("w", *type_[:2], "constant", type_.format),
        TensorSpec("y", "float32", (2, 20), "output"),
    ]
    plan = Plan(
        nodes=(PlanNode("MATMUL", ("x", "w"), ("y",)),),
        tensors={spec.name: spec for spec in tensors},
        placements={
            spec.name: Placement(spec.name, 0, contiguous_strides(spec.storage.shape))
            for spec in tensors
        },
        inputs=("x",),
        outputs=("y",),
        constants={"w": array},
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.taper")
        plan.save(path)
        assert_same_plan(load(path), plan)
        return path.read_bytes()


@pytest.mark.parametrize(("field", "place", "value"), [
    ("plan.tensors['w'].shape", "header.w.shape", [2, 16, 4]),
    ("plan.tensors['w'].shape", "header.w.shape", [128]),
    ("plan.tensors['w'].dtype", "header.w.dtype", "I32"),
    ("plan.tensors['w'].shape", "plan.tensors.w.shape", [4, 40]),
    ("plan.tensors['w'].shape", "plan.tensors.w.shape", [5, 20]),
    ("plan.tensors['w'].dtype", "plan.tensors.w.dtype", "int32"),
    ("plan.tensors['w'].format", "plan.tensors.w.shape", [4, 20, 1]),
    ("plan.tensors['w'].shape", "plan.tensors.w.format", "panels.0"),
    ("plan.tensors['w'].shape", "plan.tensors.w.format", "grouped_panels.1"),
    ("plan.tensors['w'].strides", "plan.tensors.w.strides", [20, 1]),
    ("plan.tensors['w'].strides", "plan.tensors.w.strides", [64, 16, 0]),
    ("plan.nodes[0].outputs[0]", "plan.tensors.w.shape", [4, 32]),
    ("plan.nodes[0]", "plan.nodes.0.inputs", ["w", "w"]),
])  # fmt: skip
def test_file_that_contradicts_a_format_is_refused(field, place, value):
    check_refused(packed_file(), field, place, value)


@pytest.mark.parametrize(("field", "place", "value"), [
    ("plan.tensors['w'].format", "plan.tensors.w.format", "blocks.4.128"),
    ("plan.tensors['w'].format", "plan.tensors.w.format", "blocks.4.16"),
    ("plan.tensors['w'].format", "plan.tensors.w.format", "blocks.2.32"),
    ("plan.tensors['w'].format", "plan.tensors.w.dtype", "int8"),
    ("plan.tensors['w'].format", "plan.tensors.w.shape", [0, 20]),
    ("plan.tensors['w'].format", "plan.tensors.w.shape", [63, 20]),
    ("plan.tensors['w'].shape", "plan.tensors.w.format", "blocks.4.64"),
    ("plan.tensors['w'].shape", "plan.tensors.w.shape", [64, 40]),
    ("plan.tensors['w'].shape", "header.w.shape", [2, 1, 192]),
    ("plan.tensors['w'].dtype", "header.w.dtype", "F32"),
    ("plan.nodes[0].outputs[0]", "plan.tensors.w.shape", [64, 32]),
])  # fmt: skip
def test_file_that_contradicts_its_blocks_is_refused(field, place, value):
    check_refused(packed_file("blocks.4.32", 64), field, place, value)


def check_refused(packed, field, place, value):
    file = PlanFile(packed)
    part, *keys, last = place.split(".")
    holder = getattr(file, part)
    for key in keys:
        holder = holder[int(key) if key.isdigit() else key]
    holder[last] = value
    with pytest.raises(PlanFormatError) as caught:
        loads(file.pack())
    assert caught.value.field == field


@pytest.mark.parametrize("op", SAMPLED, ids=lambda op: op.name)
def test_ops_refuse_formats_they_do_not_take(op):
    for sample in samples_of(op.name):
        for index, array in enumerate(sample.inputs):
            if index in op.formatted or sample.formats:
                continue
            types = [TensorType("float32", x.shape) for x in sample.inputs]
            types[index] = TensorType("float32", array.shape, "panels.1")
            with pytest.raises(OpError, match=f"{op.name}: input {index}: expected format plain"):
                op.infer_type(types, sample.attrs)
        break
