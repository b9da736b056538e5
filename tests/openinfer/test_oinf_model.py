"""An open model: when it reads which data, its sizes and shapes."""

import threading

import numpy as np
import pytest

from oinf_files import rich_source
from taper_openinfer.errors import OpenInferError
from taper_openinfer.oinf.contents import Bitset, SizeVar, UninitializedTensor
from taper_openinfer.oinf.reader import Model, open_model
from taper_openinfer.oinf.writer import write_model


@pytest.fixture(scope="module")
def rich():
    return Model.of(rich_source())


def test_metadata(rich):
    values = dict(rich.metadata)
    assert values.pop("small").tolist() == [[1, -2], [3, 7]]
    assert values.pop("list").tolist() == [1, 2, -3]
    assert values == {
        "bits": Bitset.of([True, False, True] * 4), "count": 300, "eps": 0.5, "flag": True,
        "kind": "llama-2.7", "tiny": -1.5,
    }  # fmt: skip
    assert values["bits"].bits.tolist() == [True, False, True] * 4
    assert [type(values[key]) for key in ("count", "eps", "flag")] == [int, float, bool]


def test_what_it_says_of_a_tensor(rich):
    info = rich.var_info("w")
    assert (info.name, info.dtype, info.dims, info.shape) == ("w", "i8", ("2", "3"), (2, 3))
    assert info.has_data
    assert info.value_range[1] - info.value_range[0] == 6
    assert rich.var_info("scalar").dims == ()
    assert not rich.var_info("later").has_data
    assert rich.var_info("later").quantization is None


def test_quantization(rich):
    quant = rich.var_info("w").quantization
    assert quant.scales.tolist() == [0.5, 0.25, 2.0]
    assert quant.zero_points.tolist() == [1, 0, -1]
    assert (quant.axis, quant.symmetric) == (1, False)


def test_sizes_and_shapes():
    model = Model.of({"B": SizeVar(4), "D": SizeVar(16), "huge": SizeVar(2**63)})
    assert model.size_of("D") == 16
    assert model.resolve_dim_value("7") == 7
    assert model.resolve_dim_value("B") == 4
    assert model.resolve_dim_value("B * D") == 64
    assert model.resolve_dim_value("3*D") == 48
    assert model.resolve_shape(("B", "2", "B*2")) == (4, 2, 8)
    assert model.resolve_shape(()) == ()
    assert model.resolve_len(("B", "D")) == 64
    assert model.resolve_len(()) == 1


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (("C",), "the model has no size 'C'"),
        (("B*B*B",), r"no size 'B\*B'"),
        (("",), "no size ''"),
        (("-1",), "no size '-1'"),
        (("9" * 30,), "no size '9"),
        (("huge",), "dim 'huge': expected at most 9223372036854775807, got 9223372036854775808"),
        (("huge*huge",), r"dim 'huge\*huge': expected at most"),
        (("big", "big"), r"dims \[big, big\]: expected at most 281474976710656 elements, got"),
    ],
)
def test_dims_that_are_none(dims, message):
    model = Model.of({"B": SizeVar(4), "big": SizeVar(2**40), "huge": SizeVar(2**63)})
    with pytest.raises(OpenInferError, match=message):
        model.resolve_len(dims)


def test_what_is_read_and_when(tmp_path):
    path = tmp_path / "m.oinf"
    source = {"B": SizeVar(3), "note": "x" * 100, "a": np.ones(10**6, np.float32)}
    write_model(path, source | {"b": np.full(1000, 2, np.int16)})
    with open_model(path) as model:
        opened = model.bytes_read
        assert opened < 300
        assert [*model.metadata] == ["note"]
        assert model.var_info("a").quantization is None
        assert model.bytes_read == opened
        assert model.metadata["note"] == "x" * 100
        assert model.bytes_read == opened + 104
        assert model.read("b").sum() == 2000
        assert model.bytes_read == opened + 104 + 2000


def test_arrays_can_be_read_by_kernels_and_not_written(rich):
    array = Model.of({"a": np.arange(100, dtype=np.float32)}).read("a")
    assert array.ctypes.data % 64 == 0
    for each in (array, rich.read("packed"), rich.read("scalar"), rich.metadata["list"]):
        with pytest.raises(ValueError, match="read-only"):
            each[...] = 0


def test_a_file_that_no_memory_would_hold(tmp_path):
    """20 GB, nearly all of it a hole: no more is read than the tables and one tensor."""
    path = tmp_path / "m.oinf"
    count = 5 << 30
    write_model(
        path, {"a": np.arange(1000, dtype=np.float32), "w": UninitializedTensor("f32", (1,))}
    )
    with path.open("r+b") as file:
        blob = bytearray(file.read())
        # w has data as well: 20 GB behind the end.
        at = blob.index(b"\1\0\0\0w") + 8
        span = (4 * count).to_bytes(8, "little") + len(blob).to_bytes(8, "little")
        blob[at + 8 : at + 12] = b"\1\0\0\0"
        blob[at + 12 : at + 36] = count.to_bytes(8, "little") + span
        blob[61:69] = (len(blob) + 4 * count).to_bytes(8, "little")
        file.seek(0)
        file.write(blob)
        file.truncate(len(blob) + 4 * count)
    assert path.stat().st_size > 20 << 30
    with open_model(path) as model:
        assert model.bytes_read < 300
        assert model.var_info("w").shape == (count,)
        assert model.read("a").tolist() == list(range(1000))
        assert model.bytes_read < 300 + 4000


def test_threads_read_at_once(tmp_path):
    path = tmp_path / "m.oinf"
    write_model(path, {f"t{i}": np.full(5000, i, np.int32) for i in range(8)})
    wrong = []
    with open_model(path) as model:
        opened = model.bytes_read

        def read(i):
            wrong.extend(i for _ in range(50) if (model.read(f"t{i}") != i).any())

        threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert model.bytes_read == opened + 8 * 50 * 20000
    assert wrong == []
