"""What a linked program knows: sizes, tensors of the file, entries of prefix tables, settings."""

from pathlib import Path

import numpy as np
import pytest

from taper_runtime.openinfer.errors import ProgramError, StepError
from taper_runtime.openinfer.graph import Name, Op, access
from taper_runtime.openinfer.link import link
from taper_runtime.openinfer.oinf.reader import Model, open_model
from taper_runtime.openinfer.oinf.values import SizeVar, TensorSpec, UninitializedTensor
from taper_runtime.openinfer.oinf.writer import write_model
from taper_runtime.openinfer.simulator.simulator import Simulator
from taper_runtime.openinfer.text import load_program, parse

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
    | {"w": zeros(16, 16)}
)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_example_programs_link(path):
    graph = load_program(path)
    program = link(graph, model_of(**WEIGHTS))
    assert program.graph is graph
    assert list(program.variables)[: len(graph.vars)] == list(graph.vars)


def test_variables_start_with_the_files_data_or_what_the_program_says():
    program = link(
        parse("""
            dynamic { x: f32[B]; }
            volatile { a: f32[B, 3*D]; y: f32[B] @init(5.0); w: f32[D] @ref("layers.0.bias"); }
            constant { n: i32; }
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
        "n": ("constant", "i32", (), None, None),
        "K": ("persistent", "f16", (2, 4), None, None),
        "t": ("temporary", "f32", (2,), None, None),
    }


def test_strict_linking_wants_every_volatile_and_constant_variable():
    text = (
        "dynamic { x: f32; }\nvolatile { y: f32; }\nconstant { c: f32; w: f32[D]; }\nblock entry {}"
    )
    model = model_of(w=zeros(16))
    link(parse(text), model)
    with pytest.raises(ProgramError) as raised:
        link(parse(text, "p.oi"), model, strict=True)
    assert str(raised.value).splitlines() == [
        "p.oi:2:12: 'y': the file has no tensor of this name; it is linked strictly",
        "p.oi:3:12: 'c': the file has no tensor of this name; it is linked strictly",
    ]


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
