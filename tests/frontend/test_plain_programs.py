"""Compare with torch what the lowering and the reader of archives do in its place."""

import io
import itertools
import json
import zipfile

import numpy as np
import pytest
import sympy
import torch
from torch.utils._sympy import functions

import taper_frontend
from pt2_files import pack
from taper_frontend.archive_exporter import export_archive
from taper_frontend.capture.read_exported import read_program as read_exported
from taper_frontend.capture.tensors import stored
from taper_frontend.lowering.representation import (
    REPRESENTATIONS,
    number_array,
    number_dtype,
    result_dtype,
)
from taper_frontend.pt2.expressions import parse_expression
from taper_frontend.pt2.number_calls import NUMBER_CALLS
from taper_frontend.pt2.read_program import read_program
from taper_frontend.pt2.schemas import drawing, schemas
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.pt2 import Archive
from tools.schemas import table

NUMBERS = (True, 3, 2.5, 1j)


def operands(dtype):
    """A tensor with dims and one without, each with the arguments of result_dtype."""
    torchs = getattr(torch, dtype)
    yield torch.ones(2, dtype=torchs), ([dtype], [], [])
    yield torch.ones((), dtype=torchs), ([], [dtype], [])


def test_type_promotion_is_torchs():
    single = [pair for dtype in REPRESENTATIONS for pair in operands(dtype)]
    single += [(number, ([], [], [number_dtype(number, "float32")])) for number in NUMBERS]
    for (a, mine), (b, other) in itertools.product(single, repeat=2):
        want = str(torch.result_type(a, b)).removeprefix("torch.")
        if want == "complex32" or not isinstance(a, torch.Tensor | bool | int | float | complex):
            continue  # plans have no such dtype
        got = result_dtype(*(x + y for x, y in zip(mine, other, strict=True)))
        assert got == want, (a, b)


@pytest.mark.parametrize("dtype", REPRESENTATIONS)
@pytest.mark.parametrize("value", [0, 1, -1, 2.5, 1 / 3, 1e39, -1e300, 65519.9, float("inf"), True])
def test_numbers_are_rounded_as_torch_does(dtype, value):
    try:
        want = torch.tensor(value, dtype=getattr(torch, dtype))
    except RuntimeError:  # out of range
        with pytest.raises((OverflowError, ValueError)):
            number_array(value, dtype)
        return
    np.testing.assert_array_equal(number_array(value, dtype), stored(want), strict=True)


@pytest.mark.parametrize(
    ("op", "args", "dtype"),
    [
        ("arange.start_step", (0, 7, 2), "int64"),
        ("arange.start_step", (5, -3, -1), "int32"),
        ("arange.start_step", (0, 2, 0.25), "float32"),
        ("arange.start_step", (1.5, 9), "bfloat16"),
        ("arange.start_step", (0, 9), "float64"),
        ("linspace.default", (-1, 1, 9), "float32"),
        ("linspace.default", (0.0, 4.0, 1), "float64"),
        ("linspace.default", (0, 8, 9), "int64"),
        ("tril_indices.default", (3, 4, -1), "int64"),
        ("triu_indices.default", (4, 3, 1), "int32"),
    ],
)
def test_calls_of_numbers_give_torchs_arrays(op, args, dtype):
    packet, overload = op.split(".")
    function = getattr(getattr(torch.ops.aten, packet), overload)
    want = stored(function(*args, dtype=getattr(torch, dtype)))
    got = NUMBER_CALLS[f"aten.{op}"](dtype, *args, dtype=dtype)
    np.testing.assert_array_equal(got, want, strict=True)


def written(expr):
    """Return an expression's text; assumptions are in the order of the first symbol of the name."""
    return sympy.srepr(expr).replace("positive=True, integer=True", "integer=True, positive=True")


S, T = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))


@pytest.mark.parametrize(
    "expr",
    [
        S + 2 * T - 1,
        functions.FloorDiv(S + 1, 3) * T,
        functions.Mod(S, 4),
        functions.PythonMod(S, T),
        functions.Max(S, T + 1),
        functions.Min(S, 8),
        functions.CeilToInt(functions.IntTrueDiv(S, 3)),
        functions.FloorToInt(sympy.Float(1.7) * functions.ToFloat(S)),
        sympy.Le(S, T),
        sympy.Eq(functions.Mod(S, 2), 0),
    ],
)
def test_sizes_are_parsed_as_torch_writes_them(expr):
    got = parse_expression(sympy.srepr(expr))
    assert written(got) == written(expr)
    assert str(got) == str(expr)  # names of sizes are made of it
    assert got.free_symbols == expr.free_symbols
    if not expr.has(functions.IntTrueDiv, functions.ToFloat):
        for values in itertools.product((1, 5, 12), repeat=2):
            known = {
                symbol: sympy.Integer(value) for symbol, value in zip((S, T), values, strict=True)
            }
            assert got.xreplace(known) == expr.xreplace(known)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "Symbol.__class__",
        "Symbol('s', **{'a': 1})",
        "eval('1')",
        "(lambda: 1)()",
        "[1]",
        "Add(",
        "Integer([1])",
        "(" * 5000 + ")" * 5000,
        "Add(" * 1500 + ")" * 1500,
        "x" * 20_000,
        "Pow(Integer(7), Integer(3000000000))",
        "Pow(Pow(Pow(Integer(7), Integer(16)), Integer(16)), Integer(16))",
        "Pow(Symbol('s0'), Symbol('s0'))",
        "Mul(Integer(9223372036854775807), Integer(2))",
        "Float('1.5', precision=1000000000)",
        "Float('1e400')",
        "FloorDiv(Integer(1), Integer(0))",
        "Rational('1/0')",
        "FloorToInt(Float('1e300'))",
    ],
)
def test_a_size_that_is_code_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_expression(text)


def test_the_table_of_schemas_is_torchs():
    """Parameters that another torch adds at the end are no difference."""
    made = table()
    for op, parameters in made["parameters"].items():
        known = [list(each) for each in schemas()[op]]
        assert all(a == b for a, b in zip(known, parameters, strict=False)), op
    assert drawing() == frozenset(made["draws"])


class Small(torch.nn.Module):
    def forward(self, x):
        return x[: x.shape[0] // 2].relu() + 1


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The members of an archive, and the program in it."""
    path = tmp_path_factory.mktemp("archive") / "small.pt2"
    shapes = ({0: torch.export.Dim.AUTO(max=64)},)
    program = torch.export.export(Small(), (torch.ones(6, 4),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        return {name: archive.read(name) for name in archive.namelist()}, program


def described(value):
    """What torch says of a value, but for its memory, which an archive does not tell."""
    return str(value).partition(", has_own_memory")[0]


def with_program(members, change):
    """The archive with another program in it."""
    (name,) = [name for name in members if name.endswith("models/model.json")]
    program = json.loads(members[name])
    change(program)
    return Archive(pack({**members, name: json.dumps(program).encode()}))


def test_a_program_is_the_same_from_torch_and_from_its_archive(saved):
    members, program = saved
    got = read_program(with_program(members, lambda program: None), "model").program
    want = read_exported(program)
    assert [n.target for n in got.nodes if n.target] == [
        n.target for n in want.nodes if n.op == "call_function"
    ]
    for node in got.nodes:
        (other,) = [n for n in want.nodes if n.name == node.name]
        assert described(node.value) == described(other.value)
        assert str(node.args) == str(other.args)
        assert node.source == other.source
        assert node.schema in (None, other.schema)  # none of an op without a handler
    assert {str(s): r for s, r in got.ranges.items()} == {str(s): r for s, r in want.ranges.items()}
    assert {str(s): h for s, h in got.hints.items()} == {str(s): h for s, h in want.hints.items()}


def _graph(program):
    return program["graph_module"]["graph"]


DAMAGES = {
    "expected version 8": lambda p: p["schema_version"].update(major=7),
    "KeyError: 'graph_module'": lambda p: p.pop("graph_module"),
    "expected a known kind of argument, got as_code": lambda p: _graph(p)["nodes"][-1]["inputs"][
        0
    ].update(arg={"as_code": 1}),
    "KeyError: 'nothing'": lambda p: _graph(p)["nodes"][-1]["inputs"][0].update(
        arg={"as_tensor": {"name": "nothing"}}
    ),
    "expected one of": lambda p: _graph(p)["tensor_values"]["x"]["sizes"].insert(
        0, {"as_expr": {"expr_str": "exit()"}}
    ),
    "TypeError": lambda p: _graph(p).update(nodes=[3]),
    "IndexError": lambda p: p["graph_module"].update(module_call_graph=[]),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_program_is_refused(saved, message):
    archive = with_program(saved[0], DAMAGES[message])
    with pytest.raises(PlanFormatError, match=rf"models/model.json.*{message}"):
        read_program(archive, "model")


def _swap(program):
    nodes = _graph(program)["nodes"]
    nodes.reverse()  # so that calls read what comes later


#: Parts that are well formed, and do not fit together.
MISFITS = {
    "a result of another call": lambda p: _graph(p)["nodes"][-1]["outputs"][0]["as_tensor"].update(
        name=_graph(p)["nodes"][0]["outputs"][0].get("as_tensor", {}).get("name", "x")
    ),
    "an output that nothing computes": lambda p: p["graph_module"]["signature"]["output_specs"][0][
        "user_output"
    ]["arg"]["as_tensor"].update(name="nothing"),
    "a name that is a list": lambda p: p["graph_module"]["signature"]["output_specs"][0][
        "user_output"
    ]["arg"]["as_tensor"].update(name=[1]),
    "calls in another order": _swap,
    "an argument of another kind": lambda p: _graph(p)["nodes"][-1]["inputs"][0].update(
        arg={"as_int": 3}
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_program_whose_parts_do_not_fit_is_refused(saved, tmp_path, what):
    members = dict(saved[0])
    (name,) = [name for name in members if name.endswith("models/model.json")]
    program = json.loads(members[name])
    MISFITS[what](program)
    path = tmp_path / "misfit.pt2"
    path.write_bytes(pack({**members, name: json.dumps(program).encode()}))
    with pytest.raises((PlanFormatError, taper_frontend.ExportError), match=r"misfit|model"):
        export_archive(path)


class Packed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.packed = torch.ops.quantized.linear_prepack_fp16(torch.ones(8, 4), None)

    def forward(self, x):
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)


def test_packed_parameters_of_no_layer_are_refused_by_op_and_line():
    with pytest.raises(taper_frontend.UnsupportedNodesError) as caught:
        taper_frontend.export(Packed().eval(), (torch.ones(2, 4),))
    (node,) = caught.value.nodes
    assert node.op == "quantized.linear_dynamic_fp16.default"
    assert "test_plain_programs.py" in node.source
