"""Every format: what it stores, that decoding undoes encoding, and how strictly names are read."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest

import blocks_of
from op_samples import SAMPLED, array_of, samples_of, type_of
from op_samples import stored as stored_in
from plan_files import PlanFile, assert_same_plan
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError, OpError, PlanFormatError
from taper_runtime.file.reader import load, loads
from taper_runtime.formats import FAMILIES, PLAIN, decode, encode, family, find
from taper_runtime.formats.format import Family, Format
from taper_runtime.formats.panels import PANEL
from taper_runtime.ops.convert import cast
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
    *itertools.product((256, 512), SIZES),
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
        packed = stored_in(array, type_)
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


def test_dots_are_what_the_kernels_read():
    weight = np.random.default_rng(6).integers(-128, 128, (3, 5, 66)).astype(np.int8)
    stored = encode(weight, TensorType("int8", weight.shape, "dots.2"))
    assert stored.shape == (2, 3, 1 + 4, 64)
    matrix = np.zeros((16, 2, 48), np.int8)
    matrix[:15, :, :33] = weight.reshape(15, 2, 33)
    for group, panel, k, j in np.ndindex(2, 3, 16, 16):
        line = stored[group, panel, 1 + k // 4]
        assert line[4 * j + k % 4] == matrix[k, group, PANEL * panel + j]
    sums = stored[:, :, 0].copy().view("<i4").reshape(2, 48)
    np.testing.assert_array_equal(sums, matrix.sum(0, np.int64))


def numbers_of(bits, stored):
    """Numbers of some bits side by side."""
    return [int.from_bytes(stored.tobytes(), "little") >> bits * i & 2**bits - 1 for i in range(16)]


def factors_of(kind, stored):
    if kind == "q6k":
        return stored.view(np.int8)
    if kind == "nvfp4":
        return stored
    words, high = stored[:8].view("<u4"), numbers_of(2, stored[8:])
    return [(int(words[j % 2]) >> j // 2 * 4 & 15) + 16 * high[j] for j in range(16)]


def level_of(bits, lines, k, j):
    """Level k of column j in lines of 64 bytes."""
    if bits > 4 and bits < 8:
        group, more = 32 // (bits - 4), bits - 4
        lines = lines[k // group * group * 2 * bits :]
        k %= group
        return level_of(4, lines, k, j) | level_of(more, lines[group * 8 :], k, j) << 4
    together = 32 // bits
    byte, i = lines[k // together * 64 + j * 4 + k % 4], k % together // 4
    return int(byte) >> bits * i & 2**bits - 1


@pytest.mark.parametrize("name", family("blocks").examples)
def test_blocks_are_what_the_kernels_read(name):
    """Byte by byte, as docs/format.md says."""
    _, kind, size, _, shift = name.split(".")
    (bits, low, _), size = blocks_of.KINDS[kind], int(size)
    drawn = blocks_of.draw(name, np.random.default_rng(3), 256)
    q, factors, *_ = drawn
    outer, inner = drawn[1:], []
    if kind in blocks_of.FACTORS:
        outer, inner = outer[: len(outer) // 2], outer[len(outer) // 2 :]
    stored = find(name).encode(*drawn)
    bytes_, width = stored.view(np.uint8), factors.itemsize
    rows = 256 // stored.shape[1]
    for p, block in np.ndindex(stored.shape[:2]):
        n, at = min(16, 20 - 16 * p), bytes_[p, block]
        columns = slice(16 * p, 16 * p + n)
        for given in outer[: 1 + (shift == "offsets")]:
            head = at[: 16 * width].view(factors.dtype)
            np.testing.assert_array_equal(head[:n], given[block, columns])
            at = at[16 * width :]
        if shift == "zeros":
            zeros = at[: 2 * bits]
            for j in range(n):
                zero = outer[1][block, 16 * p + j]
                if bits == 8:
                    assert zeros.view(np.int8)[j] == zero
                elif bits == 4:
                    assert int(zeros.view(np.uint32)[j % 2]) >> j // 2 * 4 & 15 == zero + 8
                else:
                    assert numbers_of(bits, zeros)[j] == zero - low
            at = at[2 * bits :]
        for of in range(rows // size):
            first = block * rows + of * size
            for given in inner:
                wide = 12 if given.dtype == np.uint8 and kind != "nvfp4" else 16
                np.testing.assert_array_equal(
                    factors_of(kind, at[:wide])[:n], given[first // size, columns]
                )
                at = at[wide:]
            for k, j in np.ndindex(size, n):
                level = level_of(bits, at, k, j)
                assert level == (int(q[first + k, 16 * p + j]) - low * (bits < 8)) % 256
            at = at[size * 2 * bits :]
        assert len(at) == 0


@pytest.mark.parametrize("name", family("blocks").examples)
def test_blocks_keep_what_the_model_says(name):
    drawn = blocks_of.draw(name, np.random.default_rng(4))
    stored = find(name).encode(*drawn)
    exact = blocks_of.exact(name, *drawn)
    got = find(name).decode(stored, "float32", exact.shape)
    if name.endswith("float32.zeros"):  # zero * scale has more bits than float32
        np.testing.assert_allclose(got, exact, rtol=0, atol=2e-7 * abs(exact).max())
    else:
        np.testing.assert_array_equal(got, exact.astype(np.float32))


@pytest.mark.parametrize("name", family("blocks").examples)
def test_blocks_refuse_what_they_cannot_keep(name):
    _, kind, _, scales, _ = name.split(".")
    q, factors, *rest = drawn = blocks_of.draw(name, np.random.default_rng(5))
    bits, low, _ = blocks_of.KINDS[kind]
    beyond = q.astype(np.int16)
    beyond[7, 3] = low + 2**bits
    with pytest.raises(InputError, match=rf"expected integers in \[{low}, {low + 2**bits}\)"):
        find(name).encode(beyond, factors, *rest)
    if kind in blocks_of.FINITE:
        beyond[7, 3] = blocks_of.FINITE[kind]
        with pytest.raises(InputError, match="expected codes of finite numbers"):
            find(name).encode(beyond, factors, *rest)
    if kind in blocks_of.FACTORS:
        least, most, _ = blocks_of.FACTORS[kind]
        for value in (least - 1, most):
            spoiled = rest[-1].astype(np.int16)
            spoiled[1, 2] = value
            with pytest.raises(InputError, match=rf"expected factors in \[{least}, {most - 1}\]"):
                find(name).encode(q, factors, *rest[:-1], spoiled)
    for value in (np.nan, np.inf, 1e-38) if scales != "e8m0" else (0, 255):
        spoiled = factors if scales == "e8m0" else cast(factors, "float32")
        spoiled[0, 2] = value
        spoiled = spoiled if scales == "e8m0" else cast(spoiled, scales)
        if scales != "float16" or value != 1e-38:  # which is 0 there
            with pytest.raises(InputError, match="expected finite scales"):
                find(name).encode(q, spoiled, *rest)
    types = [type_of(x)[:2] for x in drawn]
    assert find(name).packs(types) == ("float32", q.shape)
    for wrong in (types[:1], [*types, *types[:1]], types[::-1], [types[0], ("float64", (6, 20))]):
        with pytest.raises(OpError, match=rf"format {name}: expected"):
            find(name).packs(wrong)
    with pytest.raises(OpError, match="expected levels"):
        encode(np.ones(q.shape, np.float32), TensorType("float32", q.shape, name))


@pytest.mark.parametrize(("name", "bits"), [
    ("blocks.4.32.float16.symmetric", 4.5),
    ("blocks.4.128.bfloat16.symmetric", 4.125),
    ("blocks.4.32.float16.zeros", 4.625),
    ("blocks.4.32.float32.symmetric", 5),
    ("blocks.8.32.float16.symmetric", 8.5),
    ("blocks.8.4096.float32.symmetric", 8 + 32 / 4096),
    ("blocks.2.64.float16.symmetric", 2.25),
    ("blocks.2.64.bfloat16.zeros", 2.28125),
    ("blocks.5.32.float16.symmetric", 5.5),
    ("blocks.q4k.32.float16.offsets", 4.5),
    ("blocks.q5k.32.float16.offsets", 5.5),
    ("blocks.q6k.16.float16.symmetric", 6.5625),
    ("blocks.e2m1.32.e8m0.symmetric", 4.25),
    ("blocks.nvfp4.16.float32.symmetric", 4.5 + 32 / 4096),
    ("blocks.e4m3.128.float32.symmetric", 8.25),
    ("blocks.e4m3.32.e8m0.symmetric", 8.25),
])  # fmt: skip
def test_bits_of_a_weight(name, bits):
    dtype, shape = find(name).storage("float32", (4096, 160))
    assert 8 * DTYPES[dtype].size * np.prod(shape) / (4096 * 160) == bits


@pytest.mark.parametrize("text", [
    "", "tiles", "Plain", "plain.0", "panels", "panels.", "panels.2", "panels.-1", "panels.00",
    "panels.1.0", "panels.1 ", " panels.1", "panels.1\n", "panels.\u0661", "panels.1_0",
    "grouped_panels.0", "grouped_panels.4294967296", "grouped_panels." + "9" * 5000, "winograd.3",
    "winograd.\ud800", "panels\0.1", "blocks", "blocks.8", "blocks.8.32",
    "blocks.7.32.float32.zeros", "blocks.8.44.float32.zeros", "blocks.8.32.float64.zeros",
    "blocks.5.16.float16.symmetric", "blocks.5.32.float16.zeros", "blocks.2.8.float16.symmetric",
    "blocks.u4.32.float16.symmetric", "blocks.q4k.48.float16.offsets",
    "blocks.q4k.32.bfloat16.offsets", "blocks.q6k.16.float16.offsets",
    "blocks.8.32.e8m0.zeros", "blocks.nvfp4.16.float16.symmetric", "blocks.e3m4.32.e8m0.symmetric",
    "blocks.8.32.float32.none", "blocks.8.32.float32", "blocks.8.0.float32.zeros", "panels.one",
])  # fmt: skip
def test_names_are_read_strictly(text):
    with pytest.raises(OpError, match="expected a format"):
        find(text)


def packed_file(format="panels.1", k=4):
    """The file of x @ w, w in panels."""
    type_ = TensorType("float32", (k, 20), format)
    array = stored_in((np.arange(20 * k, dtype=np.float32).reshape(k, 20) % 13 - 6) / 8, type_)
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
    ("plan.tensors['w'].format", "plan.tensors.w.format", "blocks.4.128.float16.zeros"),
    ("plan.tensors['w'].format", "plan.tensors.w.format", "blocks.4.12.float16.zeros"),
    ("plan.tensors['w'].format", "plan.tensors.w.format", "blocks.3.32.float16.zeros"),
    ("plan.tensors['w'].format", "plan.tensors.w.dtype", "int8"),
    ("plan.tensors['w'].format", "plan.tensors.w.shape", [0, 20]),
    ("plan.tensors['w'].format", "plan.tensors.w.shape", [63, 20]),
    ("plan.tensors['w'].shape", "plan.tensors.w.format", "blocks.4.64.float16.zeros"),
    ("plan.tensors['w'].shape", "plan.tensors.w.format", "blocks.4.32.float16.offsets"),
    ("plan.tensors['w'].dtype", "plan.tensors.w.format", "blocks.4.32.bfloat16.zeros"),
    ("plan.tensors['w'].shape", "plan.tensors.w.shape", [64, 40]),
    ("plan.tensors['w'].shape", "header.w.shape", [2, 1, 296]),
    ("plan.tensors['w'].dtype", "header.w.dtype", "BF16"),
    ("plan.nodes[0].outputs[0]", "plan.tensors.w.shape", [64, 32]),
])  # fmt: skip
def test_file_that_contradicts_its_blocks_is_refused(field, place, value):
    check_refused(packed_file("blocks.4.32.float16.zeros", 64), field, place, value)


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
