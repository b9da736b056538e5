"""Reading a written model gives the same model; equal models have equal bytes."""

import stat
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from oinf_files import TENSOR_TYPES, plain_source, read_all, rich_source
from taper_openinfer.dtypes import DTYPES, to_float32
from taper_openinfer.errors import OinfError, OpenInferError
from taper_openinfer.oinf.contents import (
    ArrayValue,
    Bitset,
    Quantization,
    ScalarValue,
    SizeVar,
    TensorSpec,
    UninitializedTensor,
)
from taper_openinfer.oinf.reader import Model, open_model
from taper_openinfer.oinf.writer import dump_model, write_model

#: A size D = 16 and sixteen zeros, as OpenInfer's own exporter writes them.
ZEROS = bytes.fromhex(
    "4f494e4600 02000000 00000000 01000000 00000000 01000000 00000000"
    "4800000000000000 5800000000000000 5800000000000000 9800000000000000 d800000000000000 000000"
    "01000000 44000000 1000000000000000"
    "04000000 7a65726f 0a000000 01000000 01000000 1000000000000000"
    "4000000000000000 9800000000000000 0000000000000000 0000000000000000 00000000"
) + bytes(64)


def test_against_a_file_of_openinfer():
    source = {"D": SizeVar(16), "zero": np.zeros(16, np.float32)}
    assert dump_model(source, version=2) == ZEROS
    model = Model.from_bytes(ZEROS)
    assert model.sizevars == {"D": 16}
    assert model.read("zero").tolist() == [0] * 16


def test_where_parts_stand():
    """Each blob on a multiple of 8: a tensor's data, then how it is quantised, then the next."""
    quant = Quantization(np.array([0.5], np.float32))
    source = {
        "a": TensorSpec(np.array([1, 2, 3], np.int8), quant=quant),
        "b": TensorSpec(np.array([4, 5], np.int8)),
        "key": 7,
    }
    blob = dump_model(source)
    model = Model.from_bytes(blob)
    assert [model.tensors[name].value_range for name in "ab"] == [(232, 235), (296, 298)]
    assert blob[224] == 7
    assert blob[240:244] == b"\1\0\0\0"  # symmetric
    assert len(blob) == 304
    assert blob[235:240] == bytes(5)


_NAMES = st.text("abcXYZ019._-", min_size=1, max_size=9)


@st.composite
def _elements(draw, dtype):
    """An array of a type's elements, any bits."""
    row = DTYPES[dtype]
    shape = draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    if row.kind in ("bool", "float"):
        raw = draw(arrays(f"u{row.storage.itemsize}", shape))
        return (raw % 2).astype(bool) if dtype == "bool" else raw.view(row.storage)
    numbers = st.sampled_from([-1, 1]) if dtype == "t1" else st.integers(row.low, row.high)
    return draw(arrays(row.storage, shape, elements=numbers))


@st.composite
def _tensor(draw):
    dtype = draw(st.sampled_from(TENSOR_TYPES))
    array = draw(_elements(dtype))
    quant = None
    if draw(st.booleans()):
        axis = draw(st.sampled_from([None, *range(array.ndim)]))
        count = 1 if axis is None else array.shape[axis]
        scales = draw(arrays("f4", count))
        symmetric = draw(st.booleans())
        zeros = None if symmetric or draw(st.booleans()) else draw(arrays("i4", count))
        quant = Quantization(scales, zeros, axis, symmetric)
    if draw(st.booleans()):
        return UninitializedTensor(dtype, array.shape, quant=quant)
    return TensorSpec(array, dtype, quant=quant)


@st.composite
def _scalar(draw):
    row = DTYPES[draw(st.sampled_from(TENSOR_TYPES))]
    if row.kind == "float":
        numbers = st.floats(width=16 if row.bits < 32 else row.bits)
    elif row.kind == "bool":
        numbers = st.booleans()
    else:
        numbers = st.sampled_from([-1, 1]) if row.name == "t1" else st.integers(row.low, row.high)
    return ScalarValue(draw(numbers), row.name)


@st.composite
def _array_value(draw):
    dtype = draw(st.sampled_from(list(DTYPES)))
    return ArrayValue(draw(_elements(dtype)), dtype)


_VALUES = st.one_of(
    _scalar(), _array_value(), _NAMES, st.lists(st.booleans(), max_size=20).map(Bitset.of)
)
_SIZES = st.integers(0, 2**64 - 1).map(SizeVar)


@settings(max_examples=120)
@given(st.dictionaries(_NAMES, st.one_of(_SIZES, _VALUES, _tensor()), max_size=8))
def test_everything_comes_back(source):
    model = Model.from_bytes(dump_model(source))
    for name, value in source.items():
        if isinstance(value, SizeVar):
            assert model.sizevars[name] == value.value
        elif isinstance(value, (TensorSpec, UninitializedTensor)):
            _same_tensor(model.var_info(name), value)
        elif isinstance(value, ArrayValue):
            read = model.metadata.typed(name)
            assert read.dtype == value.dtype
            assert read.values.shape == value.values.shape
            assert read.values.tobytes() == value.values.tobytes()
            assert model.metadata[name].tobytes() == value.values.tobytes()
        elif isinstance(value, ScalarValue):
            _same_number(model.metadata.typed(name), value)
        else:
            assert model.metadata[name] == value
    assert len(model.sizevars) + len(model.metadata) + len(model.tensors) == len(source)
    again = dump_model(model, model.version)
    assert again == dump_model(dict(reversed(source.items())), model.version)
    assert list(read_all(Model.from_bytes(again))) == list(read_all(model))


def _same_tensor(info, spec):
    quant, expected = info.quantization, spec.quant
    if isinstance(spec, TensorSpec):
        assert (info.dtype, info.shape) == (spec.dtype, spec.data.shape)
        assert info.read().dtype == spec.data.dtype
        assert info.read().tobytes() == spec.data.tobytes()
    else:
        assert (info.dtype, info.shape, info.has_data) == (spec.dtype, spec.shape, False)
        assert info.value_range is None
    assert (quant is None) == (expected is None)
    if quant is not None:
        assert (quant.axis, quant.symmetric) == (expected.axis, expected.symmetric)
        assert quant.scales.tobytes() == expected.scales.tobytes()
        assert (quant.zero_points is None) == (expected.zero_points is None)
        if quant.zero_points is not None:
            assert quant.zero_points.tobytes() == expected.zero_points.tobytes()


def _same_number(read, written):
    """Exactly, but that bf16 and f8 hold fewer of the digits drawn."""
    assert read.dtype == written.dtype
    if read.dtype in ("bf16", "f8") and np.isfinite(written.value):
        step = 2.0**-7 if read.dtype == "bf16" else 2.0**-2
        small = {"bf16": 1e-38, "f8": 2.0**-16}[read.dtype]
        if abs(written.value) < DTYPES[read.dtype].high:
            assert abs(read.value - written.value) <= max(abs(written.value) * step, small)
    else:
        assert np.array(read.value).tobytes() == np.array(written.value).tobytes() or (
            np.isnan(read.value) and np.isnan(written.value)
        )


def test_the_version_is_the_least_that_does():
    assert Model.of(plain_source()).version == 1
    assert Model.of(plain_source(), 2).version == 2
    assert Model.of(rich_source()).version == 2
    assert Model.of({"a": TensorSpec(np.zeros(2, np.int8), "i4")}).version == 2
    assert Model.of({"a": ScalarValue(1, "u1")}).version == 2
    assert Model.of({"a": ArrayValue(np.zeros(2, np.int8), "i4")}).version == 2
    one = Model.of(plain_source())
    assert Model.of(Model.of(one, 2), 1).version == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"a": TensorSpec(np.zeros(2, np.int8), "i4")}, r"tensors\['a'\].dtype: .* got 'i4'"),
        ({"a": ScalarValue(1.0, "f8")}, r"metadata\['a'\]: expected a type of version 1"),
        (
            {"a": ArrayValue(np.zeros(2, np.int8), "i2")},
            r"metadata\['a'\]: expected a type of version 1",
        ),
        (
            {"a": TensorSpec(np.zeros(2, "i1"), quant=Quantization(np.ones(1, np.float32)))},
            r"tensors\['a'\].quantization: expected none in version 1",
        ),
    ],
)
def test_what_version_1_cannot_hold(source, reason):
    with pytest.raises(OinfError, match=reason):
        dump_model(source, 1)


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(0, "u8"), (255, "u8"), (256, "u16"), (65536, "u32"), (2**32, "u64"), (2**64 - 1, "u64"),
     (-1, "i8"), (-129, "i16"), (-40000, "i32"), (-(2**63), "i64"), (0.1, "f32"), (True, "bool")],
)  # fmt: skip
def test_types_of_numbers(number, dtype):
    typed = Model.of({"x": number}).metadata.typed("x")
    assert typed.dtype == dtype
    assert typed.value == (np.float32(0.1).item() if dtype == "f32" else number)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([1, 2], "i8"), ([128], "i16"), ([-(2**40)], "i64"), ([], "f32"), ([0.5, 1], "f32"),
     ([True, False], "bool"), ([[1, 2], [3, 400]], "i16")],
)  # fmt: skip
def test_types_of_lists(values, dtype):
    model = Model.of({"x": values})
    assert model.metadata.typed("x").dtype == dtype
    assert model.metadata["x"].tolist() == values


def test_a_dataclass():
    @dataclass
    class Config:
        B: SizeVar
        D: "SizeVar"
        layers: int
        eps: float
        kind: str
        w: TensorSpec
        named: np.ndarray
        shape: list = field(default_factory=lambda: [1, 2])

    spec = TensorSpec([[1, 2], [3, -4]], "i4", name="layer.0.w")
    model = Model.of(Config(4, SizeVar(8), 3, 0.5, "gpt", spec, np.ones(2, np.uint16)))
    assert model.sizevars == {"B": 4, "D": 8}
    assert {k: v for k, v in model.metadata.items() if k != "shape"} == {
        "layers": 3, "eps": 0.5, "kind": "gpt",
    }  # fmt: skip
    assert model.metadata["shape"].tolist() == [1, 2]
    assert model.read("layer.0.w").tolist() == [[1, 2], [3, -4]]
    assert model.tensors["named"].dtype == "u16"
    assert model.tensors["layer.0.w"].dims == ("2", "2")


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        (np.array([1.126, 3.0], np.float32), "f8", [0x3D, 0x42]),
        (np.array([1.0, 2.5]), "bf16", [0x3F80, 0x4020]),
        (np.array([1, 2]), "f32", [1.0, 2.0]),
        ([1, -1], "t1", [1, -1]),
        (np.array([1, 0], np.int64), "u1", [1, 0]),
        (np.array([300], np.int64), "u16", [300]),
        (np.array([0.1]), "f64", [0.1]),
    ],
)
def test_numbers_of_another_type(data, dtype, expected):
    """The type that is asked for; floats are rounded, integers have to fit."""
    assert Model.of({"x": TensorSpec(data, dtype)}).read("x").tolist() == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (3, "source: expected a dict, a dataclass or a Model, got int"),
        (dict, "source: expected a dict, a dataclass or a Model, got type"),
        ({"a b": 1}, "metadata: expected a string of letters, digits, '.', '_' and '-', at least"),
        ({"": SizeVar(1)}, "sizevars: expected a string of letters"),
        ({"ü": np.ones(1)}, "tensors: expected a string of letters"),
        ({3: 1}, "metadata: expected a string of letters"),
        ({"a": "two words"}, "metadata['a']: expected a string of letters"),
        ({"a": "a/b"}, "metadata['a']: expected a string of letters"),
        ({"a": ""}, "metadata['a']: expected a string of letters"),
        ({"a": None}, "metadata['a']: expected a number, text, list or tensor, got NoneType"),
        ({"a": ["x"]}, "metadata['a']: expected a list of numbers or bools, got '<U1 elements'"),
        ({"a": [[1], [1, 2]]}, "metadata['a']: expected an array of numbers"),
        ({"a": 2**64}, "metadata['a']: expected numbers of 0 to"),
        ({"a": -(2**64)}, "metadata['a']: expected numbers of"),
        ({"a": SizeVar(-1)}, "sizevars['a']: expected an integer of 0 to 2**64 - 1, got -1"),
        ({"a": SizeVar(2**64)}, "sizevars['a']: expected an integer of 0 to 2**64 - 1, got an"),
        ({"a": SizeVar(1.0)}, "sizevars['a']: expected an integer"),
        ({"a": ScalarValue(1, "i3")}, "metadata['a'].dtype: expected one of i8, "),
        ({"a": ScalarValue(1, "bitset")}, "metadata['a'].dtype: expected a type of numbers"),
        ({"a": ScalarValue(128, "i8")}, "metadata['a']: expected -128 to 127 of i8, got 128"),
        ({"a": ScalarValue(1.5, "i8")}, "metadata['a']: expected -128 to 127 of i8, got 1.5"),
        ({"a": ScalarValue("1", "i8")}, "metadata['a']: expected a bool, an int or a float"),
        ({"a": ScalarValue(10**400, "f32")}, "metadata['a']: expected a number of f32"),
        ({"a": ScalarValue(0, "t1")}, "metadata['a']: expected -1 and 1 of t1, got 0"),
        ({"a": ArrayValue(np.zeros(1), "f32")}, "metadata['a']: expected float32 elements of f32"),
        ({"a": ArrayValue(np.zeros(1), "x")}, "metadata['a'].dtype: expected one of"),
        ({"a": TensorSpec(np.zeros(1, "u1"), "bitset")}, "tensors['a'].dtype: expected one of"),
        ({"a": np.zeros(1, complex)}, "tensors['a'].dtype: expected numbers of a type in"),
        ({"a": np.array(["x"])}, "tensors['a'].dtype: expected numbers of a type in"),
        ({"a": TensorSpec(np.ones(2), "i8")}, "tensors['a'].data: expected numbers of i8, got"),
        ({"a": TensorSpec(np.array([8]), "i4")}, "tensors['a'].data: expected numbers of -8 to 7"),
        ({"a": TensorSpec([0, 1], "t1")}, "tensors['a']: expected -1 and 1 of t1, got 0"),
        ({"a": TensorSpec([[1], [1, 2]])}, "tensors['a'].data: expected an array of numbers"),
        ({"a": UninitializedTensor("f32", (-1,))}, "tensors['a'].dims: expected at most 32 sizes"),
        ({"a": UninitializedTensor("f32", (1,) * 33)}, "tensors['a'].dims: expected at most 32"),
        ({"a": UninitializedTensor("f32", (2**62, 8))}, "tensors['a'].dims: expected at most"),
        ({"a": TensorSpec([1], name="b"), "b": np.ones(1)}, "tensors['b']: expected each name on"),
    ],
)
def test_what_cannot_be_written(source, reason):
    with pytest.raises(OinfError) as caught:
        dump_model(source)
    assert str(caught.value).startswith(reason)


def _quantised(quant):
    return {"a": TensorSpec(np.zeros((2, 3), np.int8), quant=quant)}


@pytest.mark.parametrize(
    ("quant", "reason"),
    [
        (Quantization(np.ones(1)), "scales: expected float32 of one dim, got 'float64(1,)'"),
        (
            Quantization(np.ones(2, "f4")),
            "scale_count: expected 1 for a quantization per tensor, got 2",
        ),
        (Quantization(np.ones(2, "f4"), axis=1), "scale_count: expected 3, the tensor's dim 1"),
        (Quantization(np.ones(2, "f4"), axis=2), "axis: expected 0 to 1, got 2"),
        (Quantization(np.ones(1, "f4"), np.zeros(1, "i4")), "zp_mode: expected 0 in this scheme"),
        (
            Quantization(np.ones(1, "f4"), np.zeros(2, "i4"), symmetric=False),
            "zero_points: expected int32(1,), got 'int32(2,)'",
        ),
    ],
)
def test_how_a_tensor_cannot_be_quantised(quant, reason):
    with pytest.raises(OinfError) as caught:
        dump_model(_quantised(quant))
    assert str(caught.value).startswith(f"tensors['a'].quantization.{reason}")


def test_another_version():
    with pytest.raises(OinfError, match="version: expected 1 or 2, got 3"):
        dump_model({}, 3)


def test_a_file_is_replaced_at_once(tmp_path):
    path = tmp_path / "m.oinf"
    write_model(path, plain_source())
    path.chmod(0o640)
    before = path.read_bytes()
    assert before == dump_model(plain_source())
    with pytest.raises(OpenInferError):
        write_model(path, {"a": TensorSpec([0], "t1")})  # found when the data are written
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["m.oinf"]
    with open_model(path) as model:
        write_model(path, model, 2)  # over itself
    assert path.read_bytes() == dump_model(plain_source(), 2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_small_floats_of_metadata_are_numbers():
    model = Model.of({"a": ScalarValue(1.126, "f8"), "b": ScalarValue(float("-inf"), "bf16")})
    assert model.metadata["a"] == 1.25
    assert model.metadata["b"] == float("-inf")
    array = ArrayValue(np.array([0x3D, 0x7C], np.uint8), "f8")
    read = Model.of({"a": array}).metadata["a"]
    assert to_float32("f8", read).tolist() == [1.25, float("inf")]


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: SizeVar(3), SizeVar(4)),
        (lambda: ScalarValue(3, "i8"), ScalarValue(3, "i16")),
        (lambda: Bitset.of([True, False]), Bitset.of([True])),
        (lambda: UninitializedTensor("f32", (2,)), UninitializedTensor("f32", (3,))),
    ],
)
def test_values_without_arrays_are_equal_by_what_they_hold(make, other):
    assert make() == make() != other
    assert len({make(), make(), other}) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: ArrayValue(np.arange(3), "i64"),
        lambda: Quantization(np.ones(3, np.float32), axis=0),
        lambda: TensorSpec(np.arange(3)),
    ],
)
def test_values_with_arrays_are_equal_to_themselves_alone(make):
    """Arrays give no one answer to whether they are equal, and no hash."""
    one, other = make(), make()
    assert one == one != other
    assert len({one, one, other}) == 2
