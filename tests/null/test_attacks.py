"""Broken and hostile files. Each is refused with the field at fault, and nothing else happens."""

import json
import os
import re
from pathlib import Path

import pytest

from plan_edits import EDITS, EMPTY, GONE
from plan_files import PlanFile, small_file
from taper_runtime.base.checks import MAX_ATTR_ITEMS
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.file.reader import load, loads

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")

#: attack -> what breaks a PlanFile, or returns broken bytes; and the field at fault.
ATTACKS = {}


def edit(place, value):
    def attack(file):
        part, *keys, last = place.split(".")
        holder = getattr(file, part)
        for key in keys:
            holder = holder[int(key) if key.isdigit() else key]
        last = int(last) if last.isdigit() else last
        if value is GONE:
            del holder[last]
        else:
            holder[last] = value

    return attack


for field, edits in EDITS.items():
    ATTACKS |= {name: (edit(*change), field) for name, change in edits.items()}


def attack(field):
    def register(function):
        ATTACKS[function.__name__] = function, field
        return function

    return register


@attack("plan.nodes[0].attrs.alpha")
def more_items_in_an_attr_than_an_op_checks_at_once(file):
    file.plan["nodes"][0]["attrs"] = {"alpha": [0] * (MAX_ATTR_ITEMS + 1)}


def add_entry(item, name="decode"):
    """Break a file by one more entry."""

    def attack(file):
        file.header["sample/forward/x"] = file.header.pop("sample/x")
        file.plan["features"] = ["entries"]
        file.plan["entries"] = {name: item}

    return attack


X_TYPE = {"dtype": "float32", "shape": [2, 4], "root": "x", "offset": 0, "strides": [4, 1]}
Y_TYPE = {**X_TYPE, "role": "output", "root": "y"}
#: y = x + x, as in an entry.
TWICE = {
    **EMPTY,
    "inputs": ["x"],
    "outputs": ["y"],
    "nodes": [
        {"op": "ADD", "inputs": ["x", "x"], "outputs": ["y"], "attrs": {}, "source": ""},
    ],
    "tensors": {"x": {**X_TYPE, "role": "input"}, "y": Y_TYPE},
}


def twice(**changes):
    return add_entry({**TWICE, **changes})


ATTACKS |= {
    "entry_is_a_string": (add_entry("forward"), "plan.entries['decode']"),
    "entry_without_inputs": (
        add_entry({k: v for k, v in EMPTY.items() if k != "inputs"}),
        "plan.entries['decode'].inputs",
    ),
    "entry_with_another_member": (
        add_entry({**EMPTY, "hook": "os.system"}), "plan.entries['decode'].hook",
    ),
    "entry_named_like_a_path": (add_entry(EMPTY, "a/b"), "plan.entries['a/b']"),
    "entry_of_the_default_name": (add_entry(EMPTY, "forward"), "plan.entries['forward']"),
    "entry_without_its_output": (twice(outputs=[]), "plan.entries['decode'].tensors['y'].role"),
    "entry_with_a_constant_of_its_own": (
        twice(tensors={**TWICE["tensors"], "w": {**X_TYPE, "role": "constant", "root": "w"}}),
        "plan.entries['decode'].tensors['w'].role",
    ),
    "entry_that_reads_another_entrys_tensor": (
        twice(nodes=[{**TWICE["nodes"][0], "inputs": ["x", "t"]}]),
        "plan.entries['decode'].nodes[0].inputs[1]",
    ),
    "entry_that_writes_a_constant": (
        twice(tensors={**TWICE["tensors"], "y": {**Y_TYPE, "root": "w"}}),
        "plan.entries['decode'].tensors['y'].root",
    ),
    "entry_with_a_state_that_is_none": (
        twice(states={"w": "y"}), "plan.entries['decode'].states['w']",
    ),
    "entry_with_a_size_of_no_input": (
        twice(sizes={"n": [1, 4]}), "plan.entries['decode'].sizes['n']",
    ),
    "entry_with_a_tree_of_another_kind": (
        twice(input_tree=["module", "x"]), "plan.entries['decode'].input_tree[0]",
    ),
    "entry_of_constants_of_another_type": (
        twice(nodes=[{**TWICE["nodes"][0], "inputs": ["x", "w"]}]),
        "plan.entries['decode'].nodes[0]",
    ),
}  # fmt: skip


def asset(name="tokenizer.json", dtype="U8", shape=(0,), features=("assets",)):
    """Break a file by an asset without bytes."""

    def attack(file):
        file.plan["features"] = list(features)
        end = max(item["data_offsets"][1] for n, item in file.header.items() if n[0] != "_")
        item = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end]}
        file.header[f"asset/{name}"] = item

    return attack


ATTACKS |= {
    "asset_in_a_folder": (asset("a/b"), "plan.assets['a/b']"),
    "asset_outside_of_its_folder": (asset(".."), "plan.assets['..']"),
    "asset_that_controls_the_terminal": (asset("a\x1b[2J"), "plan.assets['a\\x1b[2J']"),
    "asset_without_a_name": (asset(""), "plan.assets['']"),
    "asset_of_floats": (asset(dtype="F32"), "plan.assets['tokenizer.json'].dtype"),
    "asset_of_two_dims": (asset(shape=(0, 4)), "plan.assets['tokenizer.json'].shape"),
    "asset_that_the_features_hide": (asset(features=()), "plan.tensors['asset/tokenizer.json']"),
    "assets_without_one": (
        lambda file: file.plan.update(features=["assets"]), "plan.features",
    ),
}  # fmt: skip


def several_models(breaks=lambda plan, models: None):
    """Make a file of two models of the same plan, and break it."""

    def attack(file):
        names = {name: name for name in file.header if name != "__metadata__"}
        models = {
            name: {"plan": json.loads(json.dumps(file.plan)), "tensors": dict(names)}
            for name in ("model", "other")
        }
        file.plan = {"format_version": 3, "features": ["models"], "models": models}
        breaks(file.plan, models)

    return attack


def only_for_other(plan, models):
    for model in models.values():
        del model["tensors"]["b"]


ATTACKS |= {
    "models_are_an_array": (several_models(lambda p, m: p.update(models=[])), "plan.models"),
    "no_models": (several_models(lambda p, m: m.clear()), "plan.models"),
    "models_beside_a_plan": (several_models(lambda p, m: p.update(nodes=[])), "plan.nodes"),
    "models_left_out": (several_models(lambda p, m: p.pop("models")), "plan.models"),
    "models_and_other_features": (
        several_models(lambda p, m: p.update(features=["entries", "models"])), "plan.features[1]",
    ),
    "models_in_a_model": (
        several_models(lambda p, m: m["model"].update(plan=json.loads(json.dumps(p)))),
        "plan.models['model'].plan.features[0]",
    ),
    "model_is_a_string": (
        several_models(lambda p, m: m.update(other="plan")), "plan.models['other']",
    ),
    "model_without_tensors": (
        several_models(lambda p, m: m["other"].pop("tensors")), "plan.models['other']",
    ),
    "model_named_like_a_path": (
        several_models(lambda p, m: m.update({"../x": m["other"]})), "plan.models['../x']",
    ),
    "tensors_of_a_model_in_an_array": (
        several_models(lambda p, m: m["other"].update(tensors=["w"])),
        "plan.models['other'].tensors",
    ),
    "model_with_a_tensor_that_is_none": (
        several_models(lambda p, m: m["other"]["tensors"].update(w="v")),
        "plan.models['other'].tensors['w']",
    ),
    "model_with_a_tensor_in_an_array": (
        several_models(lambda p, m: m["other"]["tensors"].update(w=["w"])),
        "plan.models['other'].tensors['w']",
    ),
    "model_with_another_models_constant": (
        several_models(lambda p, m: m["model"]["tensors"].update(w="b")),
        "plan.models['model'].plan.tensors['w'].shape",
    ),
    "model_without_its_constant": (
        several_models(lambda p, m: m["model"]["tensors"].pop("w")),
        "plan.models['model'].plan.tensors['w']",
    ),
    "tensor_of_no_model": (several_models(only_for_other), "header['b']"),
    "model_with_a_node_of_no_op": (
        several_models(lambda p, m: m["model"]["plan"]["nodes"][0].update(op="EXEC")),
        "plan.models['model'].plan.nodes[0].op",
    ),
    "model_of_an_older_version": (
        several_models(lambda p, m: m["model"]["plan"].update(format_version=2)),
        "plan.models['model'].plan.format_version",
    ),
}  # fmt: skip


def test_models_are_fine_unbroken(blob):
    file = PlanFile(blob)
    several_models()(file)
    assert loads(file.pack()).inputs == loads(file.pack(), "other").inputs == ("x",)


def test_an_entry_is_fine_unbroken(blob):
    file = PlanFile(blob)
    twice()(file)
    plan = loads(file.pack()).entry("decode")
    assert [*plan.tensors] == ["x", "y"]
    assert not plan.constants


@pytest.fixture(scope="module")
def blob():
    return small_file()


def test_the_file_is_fine_unbroken(blob):
    loads(PlanFile(blob).pack())


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name, blob, tmp_path):
    breaks, field = ATTACKS[name]
    file = PlanFile(blob)
    path = tmp_path / "m.taper"
    broken = breaks(file)
    path.write_bytes(file.pack() if broken is None else broken)
    with pytest.raises(PlanFormatError) as caught:
        len(load(path).provenance)  # which is parsed when it is asked for
    assert caught.value.field == field
    assert len(str(caught.value).encode()) < 600


def test_header_over_the_limit_in_a_file_that_holds_it(tmp_path):
    path = tmp_path / "m.taper"
    path.write_bytes((100_000_001).to_bytes(8, "little"))
    os.truncate(path, 100_000_100)  # sparse: no such bytes are written
    with pytest.raises(PlanFormatError) as caught:
        load(path)
    assert caught.value.field == "header.length"


def test_truncated_at_every_byte(blob):
    for length in range(len(blob)):
        with pytest.raises(PlanFormatError):
            loads(blob[:length])


def patterns():
    """The fields of docs/format.md, as regular expressions."""
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.split("## Errors")[1], re.M)
    holes = {"<i>": r"\d+", "<name>": r"'.*'", "<key>": r"[^.\[]+", r"\.\.\.": r"([.\[].*)?"}
    for row in rows:
        pattern = re.escape(row)
        for hole, expression in holes.items():
            pattern = pattern.replace(hole, expression)
        yield row, re.compile(pattern)


def test_page_lists_every_field():
    for _, field in ATTACKS.values():
        assert any(pattern.fullmatch(field) for _, pattern in patterns()), field


def test_every_field_of_the_page_has_an_attack():
    for row, pattern in patterns():
        assert any(pattern.fullmatch(field) for _, field in ATTACKS.values()), row


@attack("header.length")
def empty_file(file):
    return b""


@attack("header.length")
def seven_bytes(file):
    return file.pack()[:7]


@attack("header.length")
def header_longer_than_the_file(file):
    blob = file.pack()
    return len(blob).to_bytes(8, "little") + blob[8:]


@attack("header.length")
def header_length_that_overflows(file):
    return b"\xff" * 8 + file.pack()[8:]


@attack("header.length")
def header_length_just_over_the_limit(file):
    return (100_000_001).to_bytes(8, "little") + file.pack()[8:]


@attack("header")
def header_length_zero(file):
    return bytes(8) + file.pack()[8:]


@attack("header")
def header_cut_short(file):
    return (100).to_bytes(8, "little") + file.pack()[8:]


@attack("header")
def header_not_utf8(file):
    blob = bytearray(file.pack())
    blob[10] = 0xFF
    return bytes(blob)


@attack("header")
def header_is_an_array(file):
    file.header_text = "[]"


@attack("header")
def header_after_a_space(file):
    file.pack()
    file.header_text = " " + file.header_text


@attack("header")
def header_with_something_behind(file):
    file.pack()
    file.header_text += "{}"


@attack("header")
def header_with_nan(file):
    file.pack()
    file.header_text = file.header_text[:-1] + ', "n": NaN}'


@attack("header")
def header_with_an_infinite_number(file):
    file.pack()
    file.header_text = file.header_text[:-1] + ', "n": 1e999}'


@attack("header")
def header_with_ten_thousand_digits(file):
    file.pack()
    file.header_text = file.header_text[:-1] + ', "n": ' + "9" * 10_000 + "}"


@attack("header")
def header_with_a_control_character(file):
    file.header["a\x00b"] = 1
    file.pack()
    file.header_text = file.header_text.replace("\\u0000", "\x00")


@attack("header")
def deep_header(file):
    file.header_text = '{"a":' * 100_000 + "1" + "}" * 100_000


@attack("header['\\ud800']")
def lone_surrogate_in_the_name_of_a_tensor(file):
    file.header["\ud800"] = file.header.pop("w")


@attack("header.__metadata__.\ud800")
def lone_surrogate_in_the_name_of_metadata(file):
    file.header["__metadata__"]["\ud800"] = "1"


@attack("header.__metadata__.author")
def lone_surrogate_in_metadata(file):
    file.header["__metadata__"]["author"] = "\ud800"


@attack("header")
def duplicate_tensor(file):
    file.pack()
    entry = json.dumps(file.header["w"])
    file.header_text = file.header_text[:-1] + f', "w": {entry}}}'


@attack("header")
def duplicate_metadata(file):
    file.pack()
    file.header_text = file.header_text[:-1] + ', "__metadata__": {}}'


@attack("header")
def duplicate_key_in_a_tensor(file):
    file.pack()
    file.header_text = file.header_text.replace(
        '"dtype": "F32"', '"dtype": "F64", "dtype": "F32"', 1
    )


@attack("header.__metadata__.plan")
def no_plan(file):
    file.header_text = json.dumps(file.header)


@attack("header.__metadata__.plan")
def plan_not_in_a_string(file):
    file.header["__metadata__"]["plan"] = file.plan


@attack("header['w'].data_offsets")
def tensor_beyond_the_end(file):
    file.header = {"w": file.header["w"], "__metadata__": file.header["__metadata__"]}
    file.data = file.data[:127]


@attack("header['sample/x'].data_offsets")
def two_tensors_in_one_place(file):
    file.header["sample/x"]["data_offsets"] = file.header["b"]["data_offsets"]


@attack("header['keep'].data_offsets")
def hole_between_tensors(file):
    file.header["keep"]["data_offsets"] = [196, 200]
    file.data = file.data[:192] + bytes(4) + file.data[192:]


@attack("header['w'].data_offsets")
def hole_before_the_first_tensor(file):
    for name in ("w", "b", "sample/x", "keep"):
        file.header[name]["data_offsets"] = [o + 64 for o in file.header[name]["data_offsets"]]
    file.data = bytes(64) + file.data


@attack("data")
def bytes_left_over(file):
    file.data += b"\0"


@attack("plan.tensors['x']")
def data_for_an_input(file):
    file.header["x"] = file.header.pop("sample/x")


@attack("plan.tensors['keep']")
def bool_that_is_neither_true_nor_false(file):
    file.data = file.data[:-1] + b"\x02"


@attack("plan.samples['z']")
def sample_of_no_input(file):
    file.header["sample/z"] = file.header.pop("sample/x")


@attack("plan.samples['w']")
def sample_of_a_constant(file):
    file.header["sample/w"] = file.header.pop("sample/x")


@attack("plan")
def plan_not_json(file):
    file.plan_text = "model"


@attack("plan")
def plan_is_an_array(file):
    file.plan_text = "[]"


@attack("plan")
def plan_cut_short(file):
    file.plan_text = json.dumps(file.plan)[:-1]


@attack("plan")
def plan_with_a_duplicate_key(file):
    file.plan_text = json.dumps(file.plan)[:-1] + ', "sizes": {}}'


@attack("plan")
def tensor_described_twice(file):
    spec = json.dumps(file.plan["tensors"]["h"])
    file.plan_text = json.dumps(file.plan).replace('"h": {', f'"h": {spec}, "h": {{', 1)


@attack("plan")
def deep_plan(file):
    file.plan_text = "[" * 100_000 + "]" * 100_000


@attack("plan.format_version")
def version_of_tomorrow(file):
    file.plan["format_version"] = 1
    file.plan["new"] = 1


@attack("plan.metadata" + "[0]" * 100)
def deep_metadata(file):
    value = []
    for _ in range(100):
        value = [value]
    file.plan["metadata"] = value


@attack("plan.provenance['w']")
def constant_made_of_nothing(file):
    file.provenance = {"w": []}


@attack("plan.provenance.w[0][2]" + "[0]" * 97)
def deep_provenance(file):
    value = []
    for _ in range(100):
        value = [value]
    file.provenance = {"w": [["ADD", [], value]]}


@attack("plan.tensors['']")
def tensor_without_a_name(file):
    file.plan["tensors"][""] = file.plan["tensors"]["h"]


@attack("plan.tensors['sample/w']")
def constant_under_a_reserved_name(file):
    file.plan["tensors"]["sample/w"] = file.plan["tensors"]["w"] | {"root": "sample/w"}


@attack("plan.tensors['__metadata__']")
def constant_named_metadata(file):
    file.plan["tensors"]["__metadata__"] = file.plan["tensors"]["w"] | {"root": "__metadata__"}


@attack("plan.tensors['z']")
def tensor_that_nothing_produces(file):
    file.plan["tensors"]["z"] = file.plan["tensors"]["t"] | {"root": "z"}


@attack("plan.tensors['t'].root")
def node_that_writes_an_input(file):
    file.plan["tensors"]["t"].update(root="x", offset=0)
    file.plan["tensors"]["u"].update(root="x")


@attack("plan.tensors['t'].root")
def node_that_writes_a_constant(file):
    file.plan["tensors"]["t"].update(root="w", offset=0)
    file.plan["tensors"]["u"].update(root="w")


@attack("plan.tensors['t'].root")
def node_that_is_not_in_place_but_writes_there(file):
    file.plan["tensors"]["t"].update(root="h", offset=0)
    file.plan["tensors"]["u"].update(root="h")


@attack("plan.nodes[1].inputs[0]")
def use_before_definition(file):
    nodes = file.plan["nodes"]
    nodes[1], nodes[0], nodes[2] = nodes[2], nodes[0], nodes[1]


@attack("plan.nodes[0].outputs[0]")
def output_larger_than_declared(file):
    file.plan["tensors"]["h"].update(shape=[2, 4], strides=[4, 1])
    file.plan["tensors"]["r"].update(shape=[2, 4], strides=[4, 1])


@attack("header.__metadata__")
def no_metadata(file):
    del file.header["__metadata__"]


@attack("plan.tensors['keep']")
def constant_without_data(file):
    del file.header["keep"]
    file.data = file.data[:-4]


@attack("plan.tensors['r'].root")
def in_place_over_what_a_view_shows_later(file):
    before = file.plan["nodes"][2] | {"inputs": ["h"], "outputs": ["before"]}
    file.plan["tensors"]["before"] = file.plan["tensors"]["s"]
    file.plan["nodes"].insert(1, before)
    file.plan["nodes"][4]["inputs"] = ["keep", "s", "before"]


@attack("plan.tensors['y'].root")
def output_over_an_input_of_an_op_that_is_not_in_place(file):
    """The reshaped `t` lies in the output, from where CUMSUM reads as it writes there."""
    file.plan["tensors"]["t"].update(root="y", offset=0)
    file.plan["tensors"]["u"].update(root="y")
    file.plan["nodes"][5].update(op="CUMSUM", inputs=["u"], attrs={"axis": 0})


@attack("plan.nodes[3].inputs[0]")
def strided_input_of_an_op_that_takes_none(file):
    file.plan["nodes"][3].update(op="SOFTMAX", inputs=["s"], attrs={"axis": 0})


@attack("plan.weights")
def weights_that_are_none(file):
    file.plan |= {"weights": {}, "derived": {}}


@attack("plan.derived")
def weights_without_recipes(file):
    file.plan["weights"] = {"w": {"kind": "parameter", "dtype": "float32", "shape": [4, 8]}}
