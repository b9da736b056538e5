"""Graphs as JSON: OpenInfer's own example, both eras, and what is refused."""

import json
from pathlib import Path

import pytest

from taper_openinfer.errors import OpenInferError, ProgramError
from taper_openinfer.language import load_program, parse
from taper_openinfer.language.graph import Graph, Name, Op
from taper_openinfer.language.graph_json import graph_from_json, graph_to_json

PROGRAMS = sorted((Path(__file__).parent / "programs").iterdir())

#: The example of OpenInfer's implementation guide.
EXAMPLE = (Path(__file__).parent / "minimal-graph.json").read_text().rstrip("\n")

#: One of every node and attribute.
WHOLE = """
dynamic { x: f32[B, 2*D]; }
volatile { y: bf16[B] @init(-2.5) @ref("other name"); b: bool @init(true); }
constant { W(l, h): i8[D] @pattern("w.{l}.{h}"); n: u64 @init(18446744073709551615); }
persistent { C(l, i): f16[4] @table @auto_dim(i) @fixed(l=3, i=2); s: i64 @init(-3); }
block entry {
    assign t: f32;
    op relu(x, alpha=0.5, clamp_max=inf, axes=[1, -2, B], to=f32, m="a b", b=false, v=n) >> t;
    op matmul(W[0, l], W[B, h]) >> t;
    op taper.SOFTMAX(x, axis=-1) >> t;
    cache.read C[..] >> t;
    cache.read C[0, 1..-3] >> t;
    cache.write t >> C[B, s];
    cache.increment 3 s;
    cache.decrement s;
    cache.reset C[1];
    loop outer (l in 0..B) { loop inner (i in l..3) { barrier; } }
    branch b then otherwise;
    branch then;
    dep after(relu) before(cache.write);
    transfer x >> t;
    yield x, y;
    await x;
    return;
}
block then {}
block otherwise { return; }
"""


def test_keys_that_stand_twice_are_found_in_linear_time():
    """A search for each key would take hours, so that this test would not end."""
    keys = "".join(f'"k{i}": 0, ' for i in range(400_000))
    with pytest.raises(ProgramError, match="expected each key once, got 'k399999' again"):
        graph_from_json(f'{{{keys} "k399999": 0}}')


def test_the_length_of_json_is_limited():
    with pytest.raises(ProgramError, match="expected JSON of at most 8388608 characters, got"):
        graph_from_json("{" + " " * (8 << 20) + "}")


def test_openinfers_example_comes_back_as_the_same_text():
    graph = graph_from_json(EXAMPLE)
    assert graph_to_json(graph, "first") == EXAMPLE
    assert graph == load_program(PROGRAMS[[p.stem for p in PROGRAMS].index("minimal")])
    assert graph.blocks["entry"].nodes[3].uuid == "32131024-3b2d-4877-a27c-25369e7840d6"


def test_the_form_between_the_eras_comes_back_as_the_same_text():
    """Ops and attrs as in the first era, all fields of variables as in the later one."""
    first = json.loads(EXAMPLE)
    unsaid = {
        "auto_dim": [], "fixed": [], "pattern": None, "ref_name": None, "table": False,
        "table_indices": [],
    }  # fmt: skip
    for variable in first["vars"].values():
        variable |= unsaid
    text = json.dumps(first, indent=2, sort_keys=True)
    graph = graph_from_json(text)
    assert graph == graph_from_json(EXAMPLE)
    assert graph_to_json(graph, "middle") == text
    assert '"attrs": "None"' in text


@pytest.mark.parametrize("init", [18446744073709551615, 2**53 + 1, 5, -3, 0.1])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_floats_that_begin_as_integers_come_back(init, dtype):
    graph = Graph()
    graph.add_var("x", "volatile", dtype, init=init)
    again = graph_from_json(graph_to_json(graph))
    assert again == graph
    assert graph_to_json(again) == graph_to_json(graph)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs_come_back_in_the_later_era(path):
    graph = load_program(path)
    text = graph_to_json(graph)
    again = graph_from_json(text)
    assert again == graph
    assert graph_to_json(again) == text


def test_every_node_comes_back():
    graph = parse(WHOLE)
    again = graph_from_json(graph_to_json(graph))
    assert again == graph
    assert [type(v) for v in again.blocks["entry"].nodes[1].kind.settings.values()] == [
        *(float, float, tuple, Name, str, bool, Name)
    ]


def test_the_later_era_in_its_own_words():
    document = json.loads(graph_to_json(parse(WHOLE)))
    assert document["vars"]["C"] == {
        "auto_dim": ["i"],
        "dims": ["4"],
        "dtype": "F16",
        "fixed": [["l", 3], ["i", 2]],
        "init": None,
        "kind": "Persistent",
        "name": "C",
        "pattern": None,
        "ref_name": None,
        "table": True,
        "table_indices": ["l", "i"],
    }
    kinds = [node["kind"] for node in document["blocks"]["entry"]["nodes"]]
    assert kinds[1]["Op"]["op"] == "relu"
    assert kinds[1]["Op"]["attrs"]["items"] == [
        {"name": "alpha", "value": {"Double": 0.5}},
        {"name": "clamp_max", "value": {"Double": "inf"}},
        {"name": "axes", "value": {"IntList": [1, -2, "B"]}},
        {"name": "to", "value": {"DType": "F32"}},
        {"name": "m", "value": {"Str": "a b"}},
        {"name": "b", "value": {"Bool": False}},
        {"name": "v", "value": {"Var": "n"}},
    ]
    assert kinds[2]["Op"]["inputs"] == ["W[0,l]", "W[B,h]"]
    assert kinds[5] == {
        "CacheRead": {
            "src": {
                "base": "C",
                "bracketed": True,
                "indices": [
                    {"Single": {"Lit": 0}},
                    {"Slice": {"start": {"Lit": 1}, "end": {"Lit": -3}}},
                ],
            },
            "dst": "t",
        }
    }
    assert kinds[7:9] == [
        {"CacheIncrement": {"target": "s", "amount": 3}},
        {"CacheDecrement": {"target": "s", "amount": 1}},
    ]
    assert (kinds[10]["Loop"]["start"], kinds[10]["Loop"]["end"]) == ("0", "B")
    assert kinds[11:13] == [
        {"Branch": {"cond": "b", "then_block": "then", "else_block": "otherwise"}},
        {"Branch": {"cond": None, "then_block": "then", "else_block": None}},
    ]
    assert kinds[15:] == [
        {"Yield": {"vars": ["x", "y"]}},
        {"Await": {"vars": ["x"]}},
        "Return",
    ]


def test_settings_of_the_first_era():
    graph = Graph()
    graph.add_block("entry")
    settings = {"alpha": 0.0, "clamp_max": Name("top")}
    graph.add_node("entry", Op("is_finite", ["x"], output="c"))
    graph.add_node("entry", Op("relu", ["x"], settings, "y"))
    text = graph_to_json(graph, "first")
    assert '"op": "IsFinite"' in text
    (_, node) = json.loads(text)["blocks"]["entry"]["nodes"]
    assert node["kind"]["Op"]["attrs"] == {
        "Relu": {"negative_slope": {"Literal": 0.0}, "clamp_max": {"Var": "top"}}
    }
    again = graph_from_json(text)
    assert again == graph
    assert again.blocks["entry"].nodes[0].kind.op == "is_finite"
    graph.add_node("entry", Op("add", ["x", "x"], {"acc": Name("i64")}, "y"))
    with pytest.raises(
        OpenInferError, match=r"^op 'add': OpenInfer's earlier era has no such setting"
    ):
        graph_to_json(graph, "first")
    with pytest.raises(
        OpenInferError, match=r"^era: expected one of first, middle, later, got 'x'$"
    ):
        graph_to_json(graph, "x")


def test_missing_optional_fields_have_defaults():
    graph = graph_from_json(
        """{"blocks": {"entry": {"nodes": [
            {"index": 4, "kind": {"Op": {"op": "add", "inputs": ["x", "x"], "output": "x"}}},
            {"index": 7, "kind": {"CacheIncrement": {"target": "x"}}}
        ]}}, "vars": {"x": {"kind": "Volatile", "dtype": "F32"}}}"""
    )
    assert graph.next_index == 8
    assert graph.vars["x"].dims == ()
    assert graph.blocks["entry"].nodes[0].kind == Op("add", ["x", "x"], {}, "x")


def _kind(kind):
    return {"blocks": {"entry": {"name": "entry", "nodes": [{"index": 0, "kind": kind}]}}}


def _op(**fields):
    return _kind({"Op": {"op": "add", "inputs": ["x"], "output": "x"} | fields})


def _var(**fields):
    return {"blocks": {}, "vars": {"x": {"kind": "Volatile", "dtype": "F32"} | fields}}


AT = "blocks['entry'].nodes[0].kind"
DEEP = {"Loop": {"name": "l", "index": "i", "start": "0", "end": "1", "body": []}}
for _ in range(32):
    DEEP = {"Loop": DEEP["Loop"] | {"body": [{"index": 0, "kind": DEEP}]}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "graph: expected an object, got list"),
        ({}, "graph: expected a field 'blocks', got none"),
        ({"blocks": [], "x": 1}, "graph: expected fields of blocks, next_index, vars, got 'x'"),
        ({"blocks": []}, "graph.blocks: expected an object, got list"),
        (
            {"blocks": {}, "next_index": -1},
            "graph.next_index: expected at least 0, which no node has, got -1",
        ),
        ({"blocks": {}, "next_index": 1.5}, "graph.next_index: expected a whole number"),
        ({"blocks": {"a": {"name": "b"}}}, "blocks['a'].name: expected 'a', got 'b'"),
        ({"blocks": {"a": {"nodes": {}}}}, "blocks['a'].nodes: expected a list, got dict"),
        (_var(dtype="f32"), "vars['x'].dtype: expected an element type (I8, "),
        (_var(kind="Stack"), "vars['x'].kind: expected one of Dynamic, Volatile, Constant, "),
        (_var(name="y"), "vars['x'].name: expected 'x', got 'y'"),
        (_var(shape=[]), "vars['x']: expected fields of name, kind, "),
        (_var(dims=[4]), "vars['x'].dims[0]: expected a text, got 4"),
        (_var(init={"F64": 1.0}), "vars['x'].init: expected a value of F32, got 'F64'"),
        (_var(init=5.0), "vars['x'].init: expected an object of one field, which names the kind"),
        (_var(fixed=[["i"]]), "vars['x'].fixed[0]: expected a pair of index and limit, got list"),
        (_var(fixed=[["i", 1], ["i", 2]]), "vars['x'].fixed: expected each index once"),
        (_var(table=1), "vars['x'].table: expected true or false, got 1"),
        (
            {"blocks": {"a": {"nodes": [{"index": 0, "kind": "Return", "uuid": "\x1b"}]}}},
            "blocks['a'].nodes[0].uuid: expected a UUID, got '\\x1b'",
        ),
        (_kind("Jump"), f"{AT}: expected a kind of node (Assign, Op, Return, "),
        (_kind({"Jump": {}}), f"{AT}: expected a kind of node (Assign, Op, Return, "),
        (_kind("Assign"), f"{AT}.Assign: expected an object, got NoneType"),
        (_kind({"Yield": {"names": []}}), f"{AT}.Yield: expected fields of vars, got 'names'"),
        (_kind({"Yield": {}}), f"{AT}.Yield: expected a field 'vars', got none"),
        (_op(attrs="Some"), f"{AT}.Op.attrs: expected None or settings, got 'Some'"),
        (_op(attrs={"Add": {}}), f"{AT}.Op.attrs: expected settings of Relu, or a list"),
        (
            _op(attrs={"Relu": {"slope": {"Literal": 1}}}),
            f"{AT}.Op.attrs.Relu: expected fields of negative_slope, clamp_max, got 'slope'",
        ),
        (
            _op(attrs={"Relu": {"clamp_max": {"Num": 1}}}),
            f"{AT}.Op.attrs.Relu.clamp_max: expected Literal or Var, got 'Num'",
        ),
        (
            _op(attrs={"items": [{"name": "a", "value": {"Text": 1}}]}),
            f"{AT}.Op.attrs.items[0].value: expected a value of Float, Double, Int, ",
        ),
        (
            _op(attrs={"items": [{"name": "a", "value": {"Int": 1}}] * 2}),
            f"{AT}.Op.attrs.items: expected each setting once",
        ),
        (_op(inputs=["x["]), f"{AT}.Op.inputs[0]: 1:3: expected an index"),
        (_op(inputs=[1]), f"{AT}.Op.inputs[0]: expected a text, got 1"),
        (
            _kind({"CacheReset": {"target": {"base": "x", "indices": [{"Range": 1}]}}}),
            f"{AT}.CacheReset.target.indices[0]: expected Single or Slice, got 'Range'",
        ),
        (
            _kind({"CacheReset": {"target": {"base": "x", "indices": [{"Single": {"N": 1}}]}}}),
            f"{AT}.CacheReset.target.indices[0]: expected Ident or Lit, got 'N'",
        ),
        (
            _kind({"CacheIncrement": {"target": "x", "amount": 1 << 64}}),
            f"{AT}.CacheIncrement.amount: expected a whole number of 64 bits, got 184467440737",
        ),
        (
            _kind({"Loop": DEEP["Loop"] | {"start": "9" * 30, "body": []}}),
            f"{AT}.Loop.start: expected a whole number of 64 bits, got '9999",
        ),
        (_kind(DEEP), "expected at most 32 nested loops, got more"),
    ],
)
def test_fields_that_are_wrong_are_named(document, message):
    with pytest.raises(ProgramError) as raised:
        graph_from_json(json.dumps(document), "p.json")
    assert str(raised.value).startswith("p.json: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON: Expecting property name"),
        ("[" * 100_000, "expected JSON: it is nested too deeply"),
        ('{"blocks": {}, "blocks": {}}', "expected JSON: expected each key once, got 'blocks'"),
        ('{"next_index": NaN}', "expected JSON: expected a number, got NaN"),
        ('{"next_index": ' + "9" * 5000 + "}", "expected JSON: "),
    ],
)
def test_what_is_no_json(text, message):
    with pytest.raises(ProgramError) as raised:
        graph_from_json(text, "p.json")
    assert str(raised.value).startswith(f"p.json: {message}")


def test_no_text_is_not_a_text_without_characters():
    graph = Graph()
    graph.add_var("x", "constant", "f32", pattern="", ref_name="")
    for era in ("first", "later"):
        assert graph_from_json(graph_to_json(graph, era)) == graph


def test_ops_that_the_first_era_cannot_spell():
    graph = Graph()
    graph.add_block("entry")
    graph.add_node("entry", Op("isFinite", ["x"], {}, "y"))
    assert graph_from_json(graph_to_json(graph)) == graph
    with pytest.raises(
        OpenInferError, match=r"^op 'isFinite': OpenInfer's earlier era has no name for it"
    ):
        graph_to_json(graph, "first")
