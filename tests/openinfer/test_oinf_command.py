"""``taper oinf``: its output, and the files that it writes and converts."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cli_page import check_json, schema, taper_command
from oinf_files import plain_source, read_all, rich_source
from plan_files import small_plan
from taper_openinfer.oinf.contents import Quantization, SizeVar, TensorSpec
from taper_openinfer.oinf.exchange import plan_tensors
from taper_openinfer.oinf.reader import Model, open_model
from taper_openinfer.oinf.writer import write_model
from taper_runtime.base.dtypes import FILE_DTYPES
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.file.weights_file import read_safetensors
from taper_runtime.plan.recipes import parse_recipes
from taper_runtime.plan.replaceable import unfolded
from weighted_plans import weighted_plan


@pytest.fixture
def taper(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return taper_command(capsys)


def test_verify_shows_everything(taper):
    write_model("m.oinf", rich_source())
    code, out, err = taper("oinf", "verify", "m.oinf")
    assert (code, err) == (0, "")
    assert (
        out
        == """\
version 2
B := 3
D := 2
bits: bitset[12] = { 1, 0, 1, 1, 0, ..., 0, 1, 1, 0, 1 }
count: u16 = 300
eps: f32 = 0.5
flag: bool = true
kind: string = "llama-2.7"
list: i8[3] = { 1, 2, -3 }
small: i4[2, 2] = { 1, -2, 3, 7 }
tiny: f8 = -1.5
later: u16[4, 2] -- uninitialized
packed: t2[5] = { -1, 0, 1, 1, -1 }
  nbytes 2, min -1, max 1, mean 0, median 0, std 0.894427
                        -1 | 2
                         0 | 1
                         1 | 2
scalar: i64 = { 7 }
  nbytes 8, min 7, max 7, mean 7, median 7, std 0
                         7 | 1
w: i8[2, 3] = { 0, 1, 2, 3, 4, 5 }
  quantized asymmetric along axis 1, scales { 0.5, 0.25, 2 }, zeros { 1, 0, -1 }
  nbytes 6, min 0, max 5, mean 2.5, median 2.5, std 1.70783
                         0 | 1
                         1 | 1
                         2 | 1
                         3 | 1
                         4 | 1
                         5 | 1
"""
    )
    code, out, _ = taper("oinf", "verify", "m.oinf", "--json")
    data = json.loads(out)
    check_json(schema("oinf-verify"), data)
    assert data["sizevars"] == {"B": 3, "D": 2}
    assert data["metadata"]["small"] == {"type": "i4[2, 2]", "value": [[1, -2], [3, 7]]}
    assert data["tensors"]["w"]["quantization"]["zero_points"] == [1, 0, -1]
    assert data["tensors"]["packed"]["histogram"] == [[-1, -1, 2], [0, 0, 1], [1, 1, 2]]


def _lines(taper, array, dtype=None):
    write_model("t.oinf", {"t": TensorSpec(array, dtype)})
    code, out, _ = taper("oinf", "verify", "t.oinf")
    assert code == 0
    return out.splitlines()[1:]


def test_many_elements(taper):
    lines = _lines(taper, np.arange(100, dtype=np.int16))
    assert lines[0] == "t: i16[100] = { 0, 1, 2, 3, 4, ..., 95, 96, 97, 98, 99 }"
    assert lines[1] == "  nbytes 200, min 0, max 99, mean 49.5, median 49.5, std 28.8661"
    assert len(lines) == 12
    assert lines[2].split() == ["0", "to", "9.9", "|", "10"]


def test_empty_bins_are_left_out(taper):
    lines = _lines(taper, np.array([0.0, 0.0, 10.0], np.float32))
    assert [line.split() for line in lines[2:]] == [
        ["0", "to", "1", "|", "2"],
        ["9", "to", "10", "|", "1"],
    ]
    lines = _lines(taper, np.array([True, True]))
    assert [line.split() for line in lines[2:]] == [["1", "|", "2"]]


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, np.nextafter(1, 2)]),
        np.array([0.0, 5e-324]),
        np.array([-1.7e308, 1.7e308]),
        np.array([2**62, 2**62 + 100]),
        np.array([-(2**63), 2**63 - 1]),
    ],
)
def test_values_that_are_close_or_far_apart_have_bins(taper, values):
    lines = _lines(taper, values)
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["1", "1"]


def test_twenty_values_apart(taper):
    assert len(_lines(taper, np.array([0, 20], np.uint8))) == 4
    assert len(_lines(taper, np.arange(21, dtype=np.uint8))) == 23
    assert len(_lines(taper, np.arange(22, dtype=np.uint8))) == 12
    lines = _lines(taper, np.array([2**64 - 1, 2**64 - 3], np.uint64))
    assert lines[2:] == [f"      {2**64 - 3} | 1", f"      {2**64 - 1} | 1"]


@pytest.mark.parametrize(
    ("array", "dtype", "text"),
    [
        (np.array([np.nan, 1.0, -np.inf], "f4"), None, "min 1, max 1, mean 1, median 1, std 0, n"),
        (np.array([np.nan], "f4"), None, "nbytes 4, not_finite 1"),
        (np.zeros((0, 3), "f4"), None, "nbytes 0"),
        (np.array([1.7e308, -1.7e308]), None, "mean 0, median 0, std 1.7e+308"),
        (np.array([1.126], "f4"), "f8", "min 1.25, max 1.25"),
    ],
)  # fmt: skip
def test_numbers_at_the_ends(taper, array, dtype, text):
    assert text in _lines(taper, array, dtype)[1]
    code, out, _ = taper("oinf", "verify", "t.oinf", "--json")
    assert code == 0
    json.loads(out)


def test_numbers_that_json_lacks(taper):
    quant = Quantization(np.array([np.inf], np.float32))
    write_model("m.oinf", {"x": float("nan"), "y": [[1.0, -np.inf]], "z": SizeVar(2**64 - 1),
                           "t": TensorSpec(np.ones(1, np.int8), quant=quant)})  # fmt: skip
    code, out, _ = taper("oinf", "verify", "m.oinf", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["metadata"]["x"]["value"] == {"float": "nan"}
    assert data["metadata"]["y"]["value"] == [[1.0, {"float": "-inf"}]]
    assert data["tensors"]["t"]["quantization"]["scales"] == [{"float": "inf"}]
    assert data["sizevars"]["z"] == 2**64 - 1


def test_verify_reads_every_blob(taper):
    write_model("m.oinf", {"b": np.array([True])})
    with open("m.oinf", "r+b") as file:
        blob = bytearray(file.read())
        blob[-8] = 3
        file.seek(0)
        file.write(blob)
    code, out, err = taper("oinf", "verify", "m.oinf")
    assert (code, out) == (1, "")
    assert err == "taper: tensors['b'].data: expected only bytes 0 and 1 of bool, got 3\n"


@pytest.fixture
def module(tmp_path):
    (tmp_path / "oinf_sources.py").write_text(
        "from dataclasses import dataclass\n"
        "import numpy as np\n"
        "from taper_openinfer.oinf.contents import SizeVar\n"
        "@dataclass\nclass Config:\n    B: SizeVar = 2\n    layers: int = 3\n"
        "def make():\n    return {'w': np.ones(3, np.float32)}\n"
    )


@pytest.mark.usefixtures("module")
def test_write(taper, tmp_path):
    code, out, _ = taper("oinf", "write", "oinf_sources:Config", "-o", "c.oinf", "--json")
    assert code == 0
    check_json(schema("oinf"), json.loads(out))
    (tmp_path / "data.json").write_text('{"B": 5}')
    arguments = ("oinf_sources:Config", "-o", "d.oinf", "--data", "data.json")
    assert taper("oinf", "write", *arguments, "--format-version", 2)[0] == 0
    assert taper("oinf", "write", "oinf_sources:make", "--output", "m.oinf")[1] == (
        f"m.oinf: 1 tensor, {(tmp_path / 'm.oinf').stat().st_size} bytes\n"
    )
    with open_model("c.oinf") as one, open_model("d.oinf") as two, open_model("m.oinf") as three:
        assert (one.version, one.sizevars, dict(one.metadata)) == (1, {"B": 2}, {"layers": 3})
        assert (two.version, two.sizevars) == (2, {"B": 5})
        assert three.read("w").tolist() == [1, 1, 1]


def test_versions_are_converted(taper):
    write_model("m.oinf", plain_source())
    assert taper("oinf", "convert", "m.oinf", "-o", "n.oinf", "--format-version", 2)[0] == 0
    assert taper("oinf", "convert", "n.oinf", "-o", "m2.oinf")[0] == 0
    with open("m.oinf", "rb") as one, open("m2.oinf", "rb") as two:
        assert one.read() == two.read()


def test_safetensors_and_back(taper):
    """Read and written by the safetensors library."""
    rng = np.random.default_rng(0)
    types = (np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8,
             np.uint16, np.uint32, np.uint64)  # fmt: skip
    arrays = {f"t.{np.dtype(t)}": (rng.random((3, 4)) * 100).astype(t) for t in types}
    arrays |= {"flag": np.array([True, False]), "scalar": np.array(2.5, np.float32)}
    arrays |= {f"last.{t}": np.array([np.iinfo(t).max], t) for t in ("u2", "u4", "u8")}
    save_file(arrays, "a.safetensors")
    assert taper("oinf", "convert", "a.safetensors", "-o", "a.oinf")[0] == 0
    assert taper("oinf", "convert", "a.oinf", "-o", "b.safetensors")[0] == 0
    back = load_file("b.safetensors")
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()


def test_what_safetensors_lacks(taper):
    source = rich_source() | {
        "bf": TensorSpec(np.array([1.5]), "bf16"), "large": np.array([2**64 - 1], np.uint64),
        "u": np.array([65535], np.uint16), "small": TensorSpec(np.array([1.25, -np.inf]), "f8"),
    }  # fmt: skip
    write_model("m.oinf", source)
    code, out, _ = taper("oinf", "convert", "m.oinf", "-o", "m.safetensors", "--json")
    assert code == 0
    data = json.loads(out)
    check_json(schema("oinf"), data)
    assert data["widened"] == ["packed"]
    assert set(data["left_out"]) == {
        "B", "D", "bits", "count", "eps", "flag", "kind", "list", "tiny", "later",
        "w (quantization)",
    }  # fmt: skip
    read = read_safetensors("m.safetensors", FILE_DTYPES)
    assert read["bf"].dtype == "bfloat16"
    assert (read["u"].dtype, read["u"].array.tolist()) == ("uint16", [65535])
    assert (read["large"].dtype, read["large"].array.tolist()) == ("uint64", [2**64 - 1])
    assert (read["small"].dtype, read["small"].array.tolist()) == ("float8_e5m2", [0x3D, 0xFC])
    assert read["packed"].array.tolist() == [-1, 0, 1, 1, -1]


def safetensors_of(**tensors):
    """A safetensors file of tensors of bytes, each with its element type."""
    header, data = {}, b""
    for name, (code, raw) in tensors.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": code, "shape": [len(raw)], "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_floats_of_eight_bits(taper):
    """e5m2 keeps its bits both ways; e4m3, which OpenInfer lacks, becomes f16, exactly."""
    every = bytes(range(256))
    Path("a.safetensors").write_bytes(
        safetensors_of(five=("F8_E5M2", every), four=("F8_E4M3", every))
    )
    code, out, _ = taper("oinf", "convert", "a.safetensors", "-o", "a.oinf", "--json")
    assert code == 0
    assert json.loads(out)["widened"] == ["four"]
    with open_model("a.oinf") as model:
        assert [model.tensors[name].dtype for name in ("five", "four")] == ["f8", "f16"]
        assert model.read("five").tobytes() == every
        numbers = model.read("four").tolist()
    exact = [
        (m * 2.0**-9 if e == 0 else (8 + m) * 2.0 ** (e - 10)) for e in range(16) for m in range(8)
    ]
    assert numbers[:127] == exact[:127]  # 448 is the last
    assert numbers[128:255] == [-number for number in exact[:127]]
    assert np.isnan([numbers[127], numbers[255]]).all()
    assert taper("oinf", "convert", "a.oinf", "-o", "b.safetensors")[0] == 0
    back = read_safetensors("b.safetensors", FILE_DTYPES)
    assert (back["five"].dtype, back["five"].array.tobytes()) == ("float8_e5m2", every)


def test_weights_of_a_session_have_the_types_of_plans(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_of(a=("U16", b"ab")))
    with pytest.raises(PlanFormatError, match=r"expected one of F64, F32, .*, BOOL, got 'U16'"):
        read_safetensors(path)


def test_a_plan_with_weights(taper):
    """Those of the state dict, computed constants or not."""
    plan = weighted_plan()
    unfolded(plan).save("m.taper")
    code, out, _ = taper("oinf", "convert", "m.taper", "-o", "m.oinf", "--json")
    data = json.loads(out)
    assert code == 0
    check_json(schema("oinf"), data)
    originals = {**plan.originals}
    with open_model("m.oinf") as model:
        assert {*data["parameters"], *data["computed"]} == {*model.tensors}
        assert originals.keys() <= {*data["parameters"]} <= {*plan.weights}
        for name, array in originals.items():
            assert model.read(name).tobytes() == array.tobytes()


def test_a_plan_with_fixed_weights(taper):
    plan = small_plan()
    plan.save("m.taper")
    code, out, _ = taper("oinf", "convert", "m.taper", "-o", "m.oinf")
    assert code == 0
    assert out.splitlines()[1] == "computed: b, keep, w"
    with open_model("m.oinf") as model:
        for name, array in plan.constants.items():
            assert model.read(name).tobytes() == array.tobytes()


def test_constants_become_parameters_again():
    """Where a recipe only moves elements; the rest stays as it is."""
    array = np.arange(32, dtype=np.float32).reshape(4, 8)
    parameter = ["PARAMETER", [], {"names": ["fc.weight", "tied"]}]
    moved = [["TRANSPOSE", [0], {"axis0": 0, "axis1": 1}], ["PERMUTE", [1], {"axes": [1, 0]}],
             ["TRANSPOSE", [2], {"axis0": -2, "axis1": -1}]]  # fmt: skip
    plan = small_plan()
    recipes = {
        "w": [parameter, *moved],
        "b": [["PARAMETER", [], {"names": ["bias"]}], ["NEG", [0], {}]],
    }
    plan = plan._replace(
        constants={**plan.constants, "w": array}, provenance=parse_recipes(recipes, "recipes")
    )
    found = plan_tensors(plan)
    assert found.parameters == ("fc.weight",)
    assert set(found.computed) == {"b", "keep"}
    assert found.tensors["fc.weight"].data.tolist() == array.T.tolist()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["verify"], 2, "required"),
        (["show", "m.oinf"], 2, "invalid choice: 'show'"),
        (["verify", "none.oinf"], 1, "No such file"),
        (["verify", "m.taper"], 1, "m.taper: header.magic: expected a .oinf file"),
        (["verify", "m.oinf", "-o", "x"], 1, "--output: expected none with verify"),
        (["convert", "m.oinf"], 1, "--output: expected a file with convert"),
        (["convert", "m.oinf", "-o", "m.npz"], 1, "expected .oinf or .safetensors, got 'm.npz'"),
        (["convert", "m.taper", "-o", "m.safetensors"], 1, "m.taper: expected a .oinf file, to"),
        (["convert", "m.oinf", "-o", "n.oinf", "--format-version", "1"], 1, "type of version 1"),
        (["write", "json", "-o", "m.oinf"], 1, "'json': expected MODULE:NAME"),
        (["write", "none_such:f", "-o", "m.oinf"], 1, "No module named 'none_such'"),
        (["write", "builtins:int", "-o", "m.oinf"], 1, "source: expected a dict, a dataclass"),
        (
            ["write", "builtins:dict", "-o", "m.oinf", "--data", "list.json"],
            1,
            "expected an object",
        ),
    ],
)
def test_mistakes(arguments, code, message, taper, tmp_path):
    write_model("m.oinf", rich_source())
    small_plan().save("m.taper")
    (tmp_path / "list.json").write_text("[]")
    got, out, err = taper("oinf", *arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_names_that_the_format_lacks(taper):
    save_file({"a/b": np.ones(1)}, "a.safetensors")
    code, _, err = taper("oinf", "convert", "a.safetensors", "-o", "a.oinf")
    assert code == 1
    assert "tensors: expected a string of letters, digits, '.', '_' and '-', at least one" in err


def test_everything_of_a_model_is_kept(taper):
    write_model("m.oinf", rich_source())
    assert taper("oinf", "convert", "m.oinf", "-o", "n.oinf")[0] == 0
    with open_model("n.oinf") as model:
        assert list(read_all(model)) == list(read_all(Model.of(rich_source())))
