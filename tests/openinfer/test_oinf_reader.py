"""Model files that are not as they should be: the error names the field and the rule."""

import numpy as np
import pytest

from oinf_files import fields, patched, plain_source, read_all, rich_source
from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import OinfError, OpenInferError
from taper_openinfer.oinf import writer
from taper_openinfer.oinf.contents import ArrayValue, ScalarValue, TensorSpec
from taper_openinfer.oinf.layout import CODES
from taper_openinfer.oinf.reader import Model, open_model
from taper_openinfer.oinf.writer import dump_model, write_model
from taper_runtime.base.errors import InputError
from taper_runtime.base.file_limits import Limits

V1, V2 = dump_model(plain_source()), dump_model(rich_source())


def read(blob):
    return list(read_all(Model.from_bytes(blob)))


def refusal(blob):
    with pytest.raises(OinfError) as caught:
        read(blob)
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith(caught.value.field)
    return text


def is_refused(blob):
    try:
        read(blob)
    except OinfError as error:
        return str(error).isprintable()
    return False


def value(blob, name):
    field = fields(blob)[name]
    size = {"B": 1, "I": 4, "Q": 8}[field.form[1]]
    return int.from_bytes(blob[field.offset : field.offset + size], "little")


def test_the_versions():
    assert (V1[5], V2[5]) == (1, 2)
    read(V1)
    read(V2)


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (b"", "header: expected at least 69 bytes, got 0"),
        (b"OINF\0\1", "header: expected at least 69 bytes, got 6"),
        (V1[:68], "header: expected at least 69 bytes, got 68"),
        (b"OINf" + V1[4:], r"header.magic: expected a .oinf file, which begins with"),
        (b"PK\3\4" + V1[4:], "header.magic: .*got a zip archive"),
        (b"PK\3\4", "header.magic: .*got a zip archive"),
        (b"\x93NUMPY" + V1[6:], "header.magic: .*got a NumPy array"),
        (V1 + b"\0", "header.file_size: expected the size of the file"),
        (V1[:-1], "header.file_size: expected the size of the file"),
    ],
)
def test_what_is_no_model_file(blob, reason):
    with pytest.raises(OinfError, match=reason):
        Model.from_bytes(blob)


#: In a file of version 2: which number becomes what (or, as a function, of the old one), and the
#: beginning of the error.
BROKEN = [
    ("header.version", 0, "header.version: expected 1 or 2, got 0"),
    ("header.version", 3, "header.version: expected 1 or 2, got 3"),
    ("header.flags", 1, "header.flags: expected 0, got 1"),
    ("header.reserved", 9, "header.reserved: expected 0, got 9"),
    ("header.file_size", lambda n: n + 8, "header.file_size: expected the size of the file"),
    ("header.offset_sizevars", 64, "header.offset_sizevars: expected at least the header's end"),
    ("header.offset_sizevars", 73, "header.offset_sizevars: expected a multiple of 8, got 73"),
    ("header.offset_metadata", 8, "header.offset_metadata: expected at least offset_sizevars"),
    ("header.offset_tensors", 80, "header.offset_tensors: expected at least offset_metadata"),
    ("header.offset_data", 80, "header.offset_data: expected at least offset_tensors"),
    ("header.offset_metadata", 2**62, "header.offset_metadata: expected at most the file's"),
    ("header.offset_data", 2**63, "header.offset_data: expected at most the file's"),
    ("header.n_sizevars", 2**32 - 1, "header.n_sizevars: expected at most 200000"),
    ("header.n_metadata", 2**31, "header.n_metadata: expected at most 200000"),
    ("header.n_tensors", 2**31, "header.n_tensors: expected at most 200000"),
    ("header.n_sizevars", 3, "sizevars[2].name: expected 4 bytes before the end of the sizevars"),
    ("header.n_metadata", 9, "metadata[8].name: expected"),
    ("header.n_tensors", 5, "tensors[4].name: expected"),
    ("sizevars[0].length", 0, "sizevars[0].name: expected a string of at least one character"),
    ("sizevars[0].length", 2**32 - 1, "sizevars[0].name: expected a string of 4294967295 bytes"),
    ("sizevars[0].text", ord(" "), "sizevars[0].name: expected only letters, digits"),
    ("sizevars[0].text", 0, "sizevars[0].name: expected only letters, digits"),
    ("sizevars[0].text", 0x9B, "sizevars[0].name: expected only letters, digits"),
    ("sizevars[1].text", ord("B"), "sizevars[1].name: expected each name once, got 'B' again"),
    ("metadata[0].length", 2000, "metadata[0].name: expected a string of 2000 bytes within"),
    ("metadata[1].text", ord("/"), "metadata[1].name: expected only letters"),
    ("metadata[count].type", 0, "metadata['count'].value_type: expected a type from 1 to 25"),
    ("metadata[count].type", 26, "metadata['count'].value_type: expected a type from 1 to 25"),
    ("metadata[count].flags", 1, "metadata['count'].flags: expected 0, got 1"),
    ("metadata[count].nbytes", 1, "metadata['count'].nbytes: expected 2 bytes of u16, got 1"),
    ("metadata[count].nbytes", 2**64 - 1, "metadata['count'].nbytes: expected an end within"),
    ("metadata[count].offset", lambda n: n + 1, "metadata['count'].offset: expected a multiple of"),
    ("metadata[count].offset", 0, "metadata['count'].offset: expected at least offset_data"),
    ("metadata[count].offset", 2**63, "metadata['count'].nbytes: expected an end within"),
    ("metadata[bits].nbytes", 12, "metadata['bits'].nbytes: expected a multiple of 8"),
    ("metadata[bits].nbytes", 0, "metadata['bits'].nbytes: expected a multiple of 8"),
    ("metadata[bits].nbytes", 8, "metadata['bits'].nbytes: expected 16 bytes for this value"),
    ("metadata[bits].bits", 17, "metadata['bits'].bytes: expected 3 for 17 bits, got 2"),
    ("metadata[bits].bytes", 2**32 - 1, "metadata['bits'].bytes: expected 2 for 12 bits"),
    ("metadata[kind].length", 0, "metadata['kind']: expected a string of at least one"),
    ("metadata[kind].length", 13, "metadata['kind']: expected a string of 13 bytes within"),
    ("metadata[kind].length", 3, "metadata['kind'].nbytes: expected 8 bytes for this value"),
    ("metadata[kind].text", ord("/"), "metadata['kind']: expected only letters, digits"),
    (
        "metadata[list].element",
        14,
        "metadata['list'].element_type: expected the number of an element type",
    ),
    ("metadata[list].ndim", 33, "metadata['list'].ndim: expected at most 32, got 33"),
    ("metadata[list].ndim", 5, "metadata['list'].dims: expected 40 bytes, got 16"),
    ("metadata[list].dim0", 2**63, "metadata['list'].dims: expected at most"),
    ("metadata[list].dim0", 9, "metadata['list'].nbytes: expected 32 bytes for this value"),
    ("metadata[flag].type", 19, None),  # bits of an i2: another value, but one
    ("tensors[0].text", ord("@"), "tensors[0].name: expected only letters, digits"),
    ("tensors[w].dtype", 14, "tensors['w'].dtype: expected the number of an element type, got 14"),
    ("tensors[w].dtype", 99, "tensors['w'].dtype: expected the number of an element type, got 99"),
    ("tensors[w].dtype", 2, "tensors['w'].data_nbytes: expected 12 bytes of i16[2, 3], got 6"),
    ("tensors[w].ndim", 33, "tensors['w'].ndim: expected at most 32, got 33"),
    ("tensors[w].ndim", 32, "tensors['w'].dims: expected 256 bytes before the end of the tensor"),
    ("tensors[w].flags", 7, "tensors['w'].flags: expected only bits of 3, got 7"),
    ("tensors[w].flags", 2, "tensors['w'].data_nbytes: expected 0 for data_nbytes and data_offset"),
    (
        "tensors[w].flags",
        1,
        "tensors['w'].quant_nbytes: expected 0 for quant_nbytes and quant_offset",
    ),
    ("tensors[later].flags", 1, "tensors['later'].data_offset: expected at least offset_data"),
    ("tensors[later].flags", 2, "tensors['later'].quant_offset: expected at least offset_data"),
    (
        "tensors[later].data_offset",
        8,
        "tensors['later'].data_offset: expected 0 for data_nbytes and",
    ),
    ("tensors[later].dim0", 2**62, "tensors['later'].dims: expected at most"),
    ("tensors[w].dim0", 2**64 - 1, "tensors['w'].dims: expected at most"),
    ("tensors[w].dim0", 3, "tensors['w'].data_nbytes: expected 9 bytes of i8[3, 3], got 6"),
    ("tensors[w].data_nbytes", 7, "tensors['w'].data_nbytes: expected 6 bytes of i8[2, 3], got 7"),
    ("tensors[w].data_nbytes", 2**64 - 1, "tensors['w'].data_nbytes: expected an end within"),
    ("tensors[w].data_offset", lambda n: n + 4, "tensors['w'].data_offset: expected a multiple"),
    ("tensors[w].data_offset", 72, "tensors['w'].data_offset: expected at least offset_data"),
    ("tensors[w].data_offset", 2**40, "tensors['w'].data_nbytes: expected an end within"),
    ("tensors[w].quant_nbytes", 40, "tensors['w'].quant_nbytes: expected a multiple of 8, at"),
    ("tensors[w].quant_nbytes", 52, "tensors['w'].quant_nbytes: expected a multiple of 8, at"),
    (
        "tensors[w].quant_nbytes",
        64,
        "tensors['w'].quantization.nbytes: expected 72 bytes for the counts",
    ),
    ("tensors[w].quant_nbytes", 2**60, "tensors['w'].quant_nbytes: expected an end within"),
    ("tensors[w].quant_offset", 12, "tensors['w'].quant_offset: expected a multiple of 8"),
    ("tensors[w].quant_offset", 80, "tensors['w'].quant_offset: expected at least offset_data"),
    ("tensors[w].quant.scheme", 3, "tensors['w'].quantization.scheme: expected 1 (symmetric)"),
    ("tensors[w].quant.scheme", 1, "tensors['w'].quantization.zp_mode: expected 0 in this scheme"),
    ("tensors[w].quant.scale_mode", 0, "tensors['w'].quantization.scale_mode: expected 1 (per"),
    ("tensors[w].quant.scale_mode", 1, "tensors['w'].quantization.scale_axis: expected 0 for a"),
    ("tensors[w].quant.zp_mode", 1, "tensors['w'].quantization.zp_mode: expected 0 or 2 in this"),
    ("tensors[w].quant.zp_mode", 0, "tensors['w'].quantization.zp_axis: expected 0, got 1"),
    ("tensors[w].quant.zero", 1, "tensors['w'].quantization.reserved: expected 0, got 1"),
    ("tensors[w].quant.scale_axis", 2, "tensors['w'].quantization.scale_axis: expected less than"),
    ("tensors[w].quant.scale_axis", 0, "tensors['w'].quantization.scale_count: expected 2, the"),
    ("tensors[w].quant.scale_count", 2**60, "tensors['w'].quantization.scale_count: expected 3"),
    ("tensors[w].quant.zp_axis", 0, "tensors['w'].quantization.zp_axis: expected 1, got 0"),
    ("tensors[w].quant.zp_count", 4, "tensors['w'].quantization.zp_count: expected 3, got 4"),
]


@pytest.mark.parametrize(("name", "new", "reason"), BROKEN)
def test_a_number_that_breaks_a_rule(name, new, reason):
    blob = patched(V2, name, new(value(V2, name)) if callable(new) else new)
    if reason is None:
        assert read(blob) != read(V2)
    else:
        assert refusal(blob).startswith(reason)


def test_every_number_is_covered():
    """Each kind of number of a file is broken above; of sizes any value is one."""
    kinds = {name.split("]")[-1] for name, _, _ in BROKEN}
    found = {name.split("]")[-1] for name in fields(V2) if not name.startswith("header")}
    assert found - kinds == {".value", ".dim1"}
    header = {name for name in fields(V2) if name.startswith("header")}
    assert header <= {name for name, _, _ in BROKEN}


def test_version_1_has_no_quantization():
    flags = refusal(patched(V1, "tensors[w].flags", 3))
    assert flags == "tensors['w'].flags: expected only bits of 1, got 3"


@pytest.mark.parametrize("row", DTYPES.values(), ids=lambda row: row.name)
def test_version_1_has_every_type(row, monkeypatch):
    """OpenInfer wrote files of version 1 with types that only version 2 was meant to have."""
    monkeypatch.setattr(writer, "VERSION_1_CODES", CODES)
    one = row.low if row.name == "i1" else 1
    values = np.array([one, one, row.low if row.kind == "packed_signed" else 1], row.storage)
    source = {"array": ArrayValue(values, row.name)}
    if row.name != "bitset":
        source |= {"tensor": TensorSpec(values, row.name), "scalar": ScalarValue(one, row.name)}
    model = Model.from_bytes(dump_model(source, 1))
    assert model.version == 1
    assert model.metadata.typed("array").dtype == row.name
    assert model.metadata["array"].tolist() == values.tolist()
    if row.name != "bitset":
        assert model.metadata["scalar"] == one
        assert model.tensors["tensor"].dtype == row.name
        assert model.read("tensor").tolist() == values.tolist()


def test_names_again():
    two = dump_model({"aa": 1, "ab": 2, "ta": np.zeros(1, "i1"), "tb": np.zeros(1, "i1")})
    metadata = two.replace(b"\2\0\0\0ab", b"\2\0\0\0aa")
    assert refusal(metadata) == "metadata[1].name: expected each name once, got 'aa' again"
    tensors = two.replace(b"\2\0\0\0tb", b"\2\0\0\0ta")
    assert refusal(tensors) == "tensors[1].name: expected each name once, got 'ta' again"


def test_values_that_the_type_lacks():
    blob = bytearray(dump_model({"b": np.array([True, False])}))
    blob[-8] = 2
    assert refusal(bytes(blob)) == "tensors['b'].data: expected only bytes 0 and 1 of bool, got 2"
    blob = bytearray(dump_model({"b": True}))
    blob[-8] = 7
    assert refusal(bytes(blob)) == "metadata['b']: expected only bytes 0 and 1 of bool, got 7"


@pytest.mark.parametrize("blob", [V1, V2])
def test_every_truncation(blob):
    for length in range(len(blob)):
        refusal(blob[:length])


@pytest.mark.parametrize("blob", [V1, V2])
def test_every_truncation_that_the_header_tells(blob):
    """With a file size that agrees: a table or blob then ends too late."""
    for length in range(72, len(blob)):
        cut = bytearray(blob[:length])
        cut[61:69] = length.to_bytes(8, "little")
        # What is missing may be the last blob's padding.
        assert is_refused(bytes(cut)) or length > len(blob) - 8


@pytest.mark.parametrize("blob", [V1, V2])
def test_every_byte_flipped(blob):
    """An error, or a model: the byte was a value's, a name's or padding."""
    refused = 0
    for place in range(len(blob)):
        for bit in range(8):
            flipped = bytearray(blob)
            flipped[place] ^= 1 << bit
            refused += is_refused(bytes(flipped))
    assert len(blob) < refused < 7 * len(blob)


def test_bits_left_over_do_not_count():
    """Files of others may have any there."""
    field = fields(V2)["metadata[bits].bits"]
    blob = bytearray(V2)
    assert blob[field.offset + 9] == 0b1011
    blob[field.offset + 9] |= 0xF0
    assert read(bytes(blob)) == read(V2)


def test_an_element_type_that_is_read_alone():
    """Tensors of bitset: one byte for each element."""
    blob = dump_model({"b": np.array([0, 255, 3], np.uint8)})
    model = Model.from_bytes(patched(blob, "tensors[b].dtype", 13))
    assert model.tensors["b"].dtype == "bitset"
    assert model.read("b").tolist() == [0, 255, 3]


def test_limits():
    with pytest.raises(OinfError, match=r"header.n_metadata: expected at most 7, got 8; Limits.t"):
        Model.from_bytes(V2, Limits(tensors=7))
    with pytest.raises(
        OinfError, match=r"header.offset_data: expected at most 100, got .*header_b"
    ):
        Model.from_bytes(V2, Limits(header_bytes=100))


def test_a_table_that_is_declared_and_not_there(tmp_path):
    """A sparse file's: nothing of its size is read before it is refused."""
    path = tmp_path / "m.oinf"
    path.write_bytes(patched(V2, "header.file_size", 20 << 30))
    with path.open("r+b") as file:
        file.truncate(20 << 30)
        file.seek(fields(V2)["header.offset_data"].offset)
        file.write((19 << 30).to_bytes(8, "little"))
    with pytest.raises(OinfError, match=r"m.oinf: header.offset_data: expected at most 16777216"):
        open_model(path)


def test_the_error_names_the_file(tmp_path):
    path = tmp_path / "bad\x1b[31m.oinf"
    path.write_bytes(V1[:-1])
    with pytest.raises(OinfError) as caught:
        open_model(path)
    assert str(caught.value).startswith(f"{tmp_path}/bad\\x1b[31m.oinf: header.file_size: ")
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_what_is_no_file(tmp_path, kind):
    with pytest.raises(OSError, match=r"missing" if kind == "missing" else "directory"):
        open_model(tmp_path / "missing" if kind == "missing" else tmp_path)


def test_a_file_truncated_while_it_is_open(tmp_path):
    path = tmp_path / "m.oinf"
    write_model(path, {"w": np.ones(1000, np.float32)})
    with open_model(path) as model:
        with path.open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(OinfError, match=r"tensors\['w'\].data: expected 4000 bytes, got"):
            model.read("w")


def test_a_closed_model(tmp_path):
    path = tmp_path / "m.oinf"
    write_model(path, {"w": np.ones(3, np.float32)})
    with open_model(path) as model:
        kept = model.read("w")
    assert kept.tolist() == [1, 1, 1]
    with pytest.raises(OpenInferError, match=r"tensors\['w'\].data: the model is closed"):
        model.read("w")


def test_what_a_model_lacks():
    model = Model.of(
        {"B": rich_source()["B"], "weight": np.ones(2), "later": plain_source()["later"]}
    )
    with pytest.raises(OpenInferError, match=r"no tensor 'wieght' \(did you mean 'weight'"):
        model.read("wieght")
    with pytest.raises(OpenInferError, match=r"no tensor 'x'$"):
        model.var_info("x")
    with pytest.raises(OpenInferError, match="tensor 'later' has no data in the model"):
        model.read("later")
    with pytest.raises(OpenInferError, match="the model has no size 'b'"):
        model.size_of("b")
    with pytest.raises(KeyError):
        model.metadata["x"]
