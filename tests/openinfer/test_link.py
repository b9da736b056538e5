"""Properties of a linked program: sizes, tensors, entries of prefix tables, settings."""

from pathlib import Path

import numpy as np
import pytest

from taper_openinfer.errors import ProgramError, StepError
from taper_openinfer.language import load_program, parse
from taper_openinfer.language.graph import Name, Op, access
from taper_openinfer.link import link
from taper_openinfer.oinf.contents import (
    ScalarValue,
    SizeVar,
    TensorSpec,
    UninitializedTensor,
)
from taper_openinfer.oinf.reader import Model, open_model
from taper_openinfer.oinf.writer import write_model
from taper_openinfer.simulator.simulator import Simulator

PROGRAMS = sorted((Path(__file__).parent / "programs").iterdir())
SIZES = {"B": 4, "D": 16, "H": 2, "O": 3, "layers": 3, "heads": 3}


def model_of(**tensors):
    sizes = {name: SizeVar(value) for name, value in SIZES.items()}
    return Model.of(sizes | {name.replace("__", "."): value for name, value in tensors.items()})


def zeros(*shape):
    return np.zeros(shape, np.float32)


WEIGHTS = (
    {f"attn__{h}__qkv__{layer}": zeros(16, 48) for h in range(3) for layer in range(3)}
    | {f"layers__{layer}__weight": zeros(16, 16) for layer in range(3)}
    | {f"layers__{layer}__bias": zeros(16) for layer in range(3)}
    | {f"experts__{e}__weight": zeros(16, 3) for e in range(2)}
    | {f"experts__{e}__bias": zeros(3) for e in range(2)}
    | {
        "w": zeros(16, 16),
    }
)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_example_programs_link(path):
    graph = load_program(path)
    program = link(graph, model_of(**WEIGHTS, bias=zeros(16)))
    assert program.graph is graph
    assert list(program.variables)[: len(graph.vars)] == list(graph.vars)


def test_variables_start_with_the_files_data_or_what_the_program_says():
    program = link(
        parse("""
            dynamic { x: f32[B]; }
            volatile { a: f32[B, 3*D]; y: f32[B] @init(5.0); w: f32[D] @ref("layers.0.bias"); }
            constant { n: i32 @init(7); }
            persistent { K(i): f16[H, 4] @table; }
            block entry { assign t: f32[2]; return; }
        """),
        model_of(a=zeros(4, 48), n=UninitializedTensor("i32", ()), **WEIGHTS),
    )
    found = {
        name: (v.declaration.kind, v.dtype, v.shape, v.tensor, v.init)
        for name, v in program.variables.items()
    }
    assert found == {
        "x": ("dynamic", "f32", (4,), None, None),
        "a": ("volatile", "f32", (4, 48), "a", None),
        "y": ("volatile", "f32", (4,), None, 5.0),
        "w": ("volatile", "f32", (16,), "layers.0.bias", None),
        "n": ("constant", "i32", (), None, 7),
        "K": ("persistent", "f16", (2, 4), None, None),
        "t": ("temporary", "f32", (2,), None, None),
    }


def refusals(text, model, **options):
    with pytest.raises(ProgramError) as raised:
        link(parse(text, "p.oi"), model, **options)
    return str(raised.value).splitlines()


NO_VALUE = (
    "expected a value for the constant: a tensor or a number in the file's metadata with its "
    "name, or @init; got "
)


@pytest.mark.parametrize("strict", [False, True])
def test_a_constant_has_a_value(strict):
    """Never zeros: a name that is misspelt would be a wrong result without a word."""
    text = """constant {
      w_1: f32[D]; far: f32; bare: f32[D]; text: f32; list: i8; r: f32 @ref(bare);
    }
    volatile { y: f32[D]; }
    block entry { op add(w_1, w_1) >> y; op relu(y, alpha=far) >> y; }"""
    model = Model.of(
        {
            "D": SizeVar(16),
            "w1": zeros(16),
            "bare": UninitializedTensor("f32", (16,)),
            "text": "nearest",
            "list": [1, 2],
        }
    )
    assert refusals(text, model, strict=strict) == [
        f"p.oi:2:7: 'w_1': {NO_VALUE}none; do you mean 'w1'?",
        f"p.oi:2:20: 'far': {NO_VALUE}none",
        f"p.oi:2:30: 'bare': {NO_VALUE}tensor 'bare' without data",
        f"p.oi:2:44: 'text': {NO_VALUE}metadata 'text', which is not a number",
        f"p.oi:2:55: 'list': {NO_VALUE}metadata 'list', which is not a number",
        "p.oi:2:65: 'r': expected f32[], got f32[16] of tensor 'bare' in the file",
    ]


def test_numbers_of_metadata_are_constants_of_their_type():
    text = """
    dynamic { x: f32[D]; }
    constant {
        neg: f32; half: f16; small: bf16; top: u8; tiny: i4; on: bool; other: f32 @ref(neg);
        own: f32 @init(3);
    }
    volatile { y: f32[D]; z: f32[D]; b: bf16; }
    block entry { op add(x, neg) >> y; op relu(y, alpha=other) >> z; op neg(small) >> b; }
    """
    model = Model.of(
        {
            "D": SizeVar(2),
            "neg": -3.0,
            "half": ScalarValue(0.5, "f16"),
            "small": ScalarValue(1.5, "bf16"),
            "top": 255,
            "tiny": ScalarValue(-8, "i4"),
            "on": True,
            "own": "nothing",
        }
    )
    program = link(parse(text), model, strict=True)
    found = {name: program.variables[name].init for name in ("neg", "half", "small", "top", "tiny")}
    assert found == {"neg": -3.0, "half": 0.5, "small": 1.5, "top": 255, "tiny": -8}
    executor = Simulator(model, parse(text)).make_executor()
    executor.insert_dynamic("x", np.array([4, -1], np.float32))
    executor.step()
    assert executor.fetch("y").tolist() == [1, -4]
    assert executor.fetch("z").tolist() == [1, 12]
    assert executor.fetch("b") == -1.5
    assert [executor.fetch(name) for name in ("top", "tiny", "on", "own")] == [255, -8, True, 3]


def test_metadata_of_another_type_is_no_constant():
    model = Model.of({"D": SizeVar(2), "n": 3, "w": 1.0})
    assert refusals("constant { n: i32; w: f32[D]; } block entry {}", model) == [
        "p.oi:1:12: 'n': expected i32[], got u8[] of metadata 'n' in the file",
        "p.oi:1:20: 'w': expected f32[2], got f32[] of metadata 'w' in the file",
    ]


def test_a_tensor_goes_before_metadata_of_its_name():
    model = Model.of({"D": SizeVar(2), "w": 1.0})
    both = Model.of({"D": SizeVar(2), "w": TensorSpec(np.array(2, np.float32))})
    text = "constant { w: f32; } block entry {}"
    assert link(parse(text), model).variables["w"].tensor is None
    assert link(parse(text), both).variables["w"].tensor == "w"


def test_strings_of_metadata_are_words_of_settings():
    text = """
    dynamic { x: f32[2, 2]; }
    volatile { y: i32[2, 2]; z: f32[2, 2]; w: f32[2, 2]; }
    block entry {
        op cast(x, to=kind, rounding_mode=rounding_mode) >> y;
        op taper.QR(x, mode=shape) >> z;
        op taper.QR(x, mode=complete) >> w;
    }
    """
    model = Model.of(
        {"kind": "i32", "rounding_mode": "ceil", "shape": "reduced", "nearest": "trunc"}
    )
    program = link(parse(text), model)
    settings = [program.settings(node.kind) for node in program.graph.nodes()]
    assert settings == [
        {"to": "i32", "rounding_mode": "ceil"}, {"mode": "reduced"}, {"mode": "complete"},
    ]  # fmt: skip
    nearest = parse("dynamic { x: f32; } volatile { y: i32; } block entry {"
                    "op cast(x, to=i32, rounding_mode=nearest) >> y; }")  # fmt: skip
    (node,) = nearest.nodes()
    assert link(nearest, model).settings(node.kind)["rounding_mode"] == "nearest"


#: Nodes, and which of the volatile variables a, b and y they read before they write them.
EARLY = [
    ("op add(x, x) >> y;", ""),
    ("op add(a, x) >> y;", "a"),
    ("op add(y, x) >> y;", "y"),
    ("op add(x, x) >> a; op add(a, x) >> y;", ""),
    ("op add(a, b) >> y; op add(x, x) >> a;", "ab"),
    ("transfer a >> y;", "a"),
    ("cache.write a >> p;", "a"),
    ("cache.read p >> a; op add(a, a) >> y;", ""),
    ("loop l (i in 0..3) { op add(x, x) >> a; } op add(a, x) >> y;", ""),
    ("loop l (i in 0..n) { op add(x, x) >> a; } op add(a, x) >> y;", "a"),
    ("loop l (i in 0..3) { op add(a, x) >> y; op add(x, x) >> a; }", "a"),
    ("loop l (i in 0..3) { branch one; } op add(a, x) >> y;", ""),
    ("branch one; op add(a, b) >> y;", "b"),
    ("branch c one both; op add(a, b) >> y;", "b"),
    ("branch c both two; op add(b, a) >> y;", "a"),
    ("branch c reads one;", "b"),
    ("return; op add(a, b) >> y;", ""),
    ("branch stops; op add(b, x) >> y;", "b"),
    ("branch leaves; op add(a, b) >> y;", "b"),
    ("yield x; await x; op add(a, x) >> y;", ""),
    ("yield x; op add(a, x) >> y; await x;", "a"),
]


@pytest.mark.parametrize(("nodes", "early"), EARLY, ids=[nodes for nodes, _ in EARLY])
def test_what_begins_as_zeros_and_is_read_first(nodes, early):
    """By walks over every path; strictly linked it is an error."""
    beside = "block beside { await x; op add(x, x) >> a; }" if "yield" in nodes else ""
    targets = {
        "one": "op add(x, x) >> a;",
        "two": "op add(x, x) >> b;",
        "both": "op add(x, x) >> a; op add(a, x) >> b;",
        "reads": "op add(b, x) >> y;",
        "stops": "return; op add(x, x) >> b;",
        "leaves": "op add(x, x) >> a; loop l (i in 0..n) { return; } op add(x, x) >> b;",
    }
    blocks = "".join(f"block {name} {{ {text} }}" for name, text in targets.items())
    calls = "branch one; branch two; branch both; branch reads; branch stops; branch leaves;"
    text = f"""
    dynamic {{ x: f32; c: bool; n: i32; }}
    volatile {{ a: f32; b: f32; y: f32; set: f32 @init(0); w: f32; }}
    persistent {{ p: f32; }}
    block entry {{ op add(set, w) >> w; {nodes} return; {calls} }}
    {blocks} {beside}
    """
    model = model_of(w=zeros())
    assert link(parse(text), model).zeros == tuple(early)
    if not early:
        link(parse(text), model, strict=True)
        return
    refused = refusals(text, model, strict=True)
    assert len(refused) == len(early)
    for name, line in zip(early, refused, strict=True):
        assert f"'{name}': expected a tensor of this name in the file, or @init, because" in line


def test_entries_of_prefix_tables():
    program = link(
        parse("""
            constant { QKV(layer, head): f32[D, 3*D] @pattern("attn.{head}.qkv.{layer}"); }
            volatile { y: f32[D, 3*D]; }
            persistent { step: i64; }
            block entry {
                op add(QKV[step, 2], QKV[1, step]) >> y;
            }
        """),
        model_of(**WEIGHTS),
    )
    assert program.resolve(access("QKV[1, 2]"), {}) == "attn.2.qkv.1"
    assert program.resolve(access("QKV[l, h]"), {"l": 2, "h": 0}) == "attn.0.qkv.2"
    assert program.resolve(access("QKV[H, H]"), {}) == "attn.2.qkv.2"
    with pytest.raises(StepError, match=r"^'QKV': the file has no tensor 'attn.7.qkv.0'$"):
        program.resolve(access("QKV[0, h]"), {"h": 7})


def test_only_entries_that_are_used_are_read(tmp_path):
    """Linking reads no data, and one entry costs its own bytes alone."""
    text = """
        constant { W(l): f32[D, D] @pattern("layers.{l}.weight"); }
        volatile { y: f32[D, D]; }
        block entry { loop all (l in 0..layers) { op add(W[l], y) >> y; } }
    """
    path = tmp_path / "model.oinf"
    write_model(path, model_of(**WEIGHTS))
    with open_model(path) as model:
        before = model.bytes_read
        assert before < path.stat().st_size / 10
        program = link(parse(text), model)
        assert model.bytes_read == before
        model.read(program.resolve(access("W[l]"), {"l": 1}))
        assert model.bytes_read == before + 16 * 16 * 4


def test_settings_by_name():
    model = model_of(slope=TensorSpec(np.array(0.25, np.float16)))
    program = link(
        parse("""
            dynamic { x: f32[B, D]; }
            constant { slope: f16; top: f32 @init(6); }
            volatile { y: f32[B, D]; z: f64[B, D]; r: f32[D, B]; }
            block entry {
                op relu(x, alpha=slope, clamp_max=top) >> y;
                op cast(x, to=f64, rounding_mode=nearest) >> z;
                op taper.RESHAPE(x, shape=[D, B]) >> r;
            }
        """),
        model,
    )
    settings = [program.settings(node.kind) for node in program.graph.nodes()]
    assert settings == [
        {"alpha": 0.25, "clamp_max": 6},
        {"to": "f64", "rounding_mode": "nearest"},
        {"shape": (16, 4)},
    ]
    assert program.settings(Op("relu", ["x"], {"alpha": Name("slope")}, "y")) == {"alpha": 0.25}


def test_outputs_have_the_declared_type_or_else_the_ops():
    """The first input's for most ops; an op cannot give another one than is declared."""
    graph = parse("""
        dynamic { x: i16[B]; }
        volatile { y: i16[B]; z: i32[B]; first: i16[B]; as_bool: bool[B]; }
        block entry {
            op add(x, x) >> y;
            op add(x, x, acc=i32) >> z;
            op add(x, x) >> t;
            op eq(t, x) >> u;
            transfer t >> first;
            transfer u >> as_bool;
        }
    """)
    model = model_of()
    program = link(graph, model)
    assert [program.variables[name].dtype for name in "tu"] == ["i16", "bool"]
    assert [program.variables[name].shape for name in "tu"] == [(4,), (4,)]
    executor = Simulator(model, graph, "Cpu").make_executor()
    executor.insert_dynamic("x", np.array([0, 1, 2, 30000], np.int16))
    executor.step()
    fetched = {name: executor.fetch(name) for name in ("y", "z", "first", "as_bool")}
    assert {name: value.dtype.name for name, value in fetched.items()} == {
        "y": "int16", "z": "int32", "first": "int16", "as_bool": "bool",
    }  # fmt: skip
    assert fetched["y"].tolist() == [0, 2, 4, -5536]
    assert fetched["z"].tolist() == [0, 2, 4, 60000]
    assert fetched["as_bool"].tolist() == [True, False, False, False]
    wrong = parse("dynamic { x: i16; } volatile { y: i32; } block entry { op add(x, x) >> y; }", "")
    with pytest.raises(ProgramError, match=r"^1:56: no kernel .* of \(i16, i16\) -> i32 on"):
        link(wrong, model)
