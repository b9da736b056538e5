"""Every form of the grammar, every error of the parser, and graphs that calls build as well."""

import re
from pathlib import Path

import pytest

from taper_openinfer.errors import OpenInferError, ProgramError, TextPosition
from taper_openinfer.language import load_program, parse, parse_access
from taper_openinfer.language.graph import (
    Access,
    Assign,
    Await,
    Barrier,
    Branch,
    CacheDecrement,
    CacheIncrement,
    CacheRead,
    CacheReset,
    CacheWrite,
    Dep,
    Graph,
    Loop,
    Name,
    Op,
    Return,
    Single,
    Slice,
    Transfer,
    Variable,
    Yield,
)
from taper_openinfer.language.graph_json import graph_from_json

VARIABLES = [
    ("dynamic", "x: f32", Variable("x", "dynamic", "f32")),
    ("volatile", "x: f32[B]", Variable("x", "volatile", "f32", ("B",))),
    ("constant", "x: bf16[4, B, 2*D]", Variable("x", "constant", "bf16", ("4", "B", "2*D"))),
    ("volatile", "x: f32[H*D]", Variable("x", "volatile", "f32", ("H*D",))),
    ("volatile", "x: f32 @init(5.0)", Variable("x", "volatile", "f32", init=5.0)),
    ("volatile", "x: i8 @init(-3)", Variable("x", "volatile", "i8", init=-3)),
    ("volatile", "x: f64 @init(1.5e-3)", Variable("x", "volatile", "f64", init=0.0015)),
    ("volatile", "x: bool @init(true)", Variable("x", "volatile", "bool", init=True)),
    ("volatile", "x: bool @init(false)", Variable("x", "volatile", "bool", init=False)),
    ("constant", "x: f32 @ref(w)", Variable("x", "constant", "f32", ref_name="w")),
    ("constant", 'x: f32 @ref("a.b c")', Variable("x", "constant", "f32", ref_name="a.b c")),
    (
        "constant",
        'x(l, h): f32[D] @pattern("w.{l}.{h}")',
        Variable("x", "constant", "f32", ("D",), pattern="w.{l}.{h}", table_indices=("l", "h")),
    ),
    (
        "persistent",
        "x(i): f16[D] @table @fixed(i=4)",
        Variable(
            "x", "persistent", "f16", ("D",), table_indices=("i",), table=True, fixed={"i": 4}
        ),
    ),
    (
        "persistent",
        "x(l, r, c): f16[D, 1] @fixed(r=4, l=2) @auto_dim(r, c) @table",
        Variable(
            *("x", "persistent", "f16", ("D", "1")),
            table_indices=("l", "r", "c"),
            table=True,
            auto_dim=("r", "c"),
            fixed={"r": 4, "l": 2},
        ),
    ),
]


@pytest.mark.parametrize(("memory", "text", "variable"), VARIABLES, ids=lambda v: str(v)[:40])
def test_declarations(memory, text, variable):
    graph = parse(f"{memory} {{ {text}; }}")
    assert graph.vars == {"x": variable}
    assert type(graph.vars["x"].init) is type(variable.init)


NODES = [
    ("assign t: f32[B, 2*D];", Assign("t", "f32", ("B", "2*D"))),
    ("assign t: i4;", Assign("t", "i4")),
    ("op add(x, a) >> t0;", Op("add", ["x", "a"], {}, "t0")),
    ("op zeros() >> t0;", Op("zeros", [], {}, "t0")),
    ("op fill(value=0.5) >> t0;", Op("fill", [], {"value": 0.5}, "t0")),
    (
        'op f(x, a=1, b=-2.5, c=true, d=false, e=inf, f=-inf, g="a\\b", h=[], i=f32, j=name) >> y;',
        Op(
            "f",
            ["x"],
            {
                "a": 1,
                "b": -2.5,
                "c": True,
                "d": False,
                "e": float("inf"),
                "f": -float("inf"),
                "g": "a\\b",
                "h": (),
                "i": Name("f32"),
                "j": Name("name"),
            },
            "y",
        ),
    ),
    (
        "op f(x, axes=[0, -1], shape=[B, 2*D, 3]) >> y;",
        Op("f", ["x"], {"axes": [0, -1], "shape": [Name("B"), Name("2*D"), 3]}, "y"),
    ),
    ("op taper.SOFTMAX(x, axis=-1) >> y;", Op("taper.SOFTMAX", ["x"], {"axis": -1}, "y")),
    (
        "op matmul(x, W[l, 3]) >> y;",
        Op("matmul", ["x", Access("W", (Single("l"), Single(3)), True)], {}, "y"),
    ),
    ("cache.read K >> k;", CacheRead(Access("K"), Access("k"))),
    ("cache.read K[] >> k;", CacheRead(Access("K", (), True), Access("k"))),
    (
        "cache.read K[0, i, ..] >> k;",
        CacheRead(Access("K", (Single(0), Single("i"), Slice()), True), Access("k")),
    ),
    (
        "cache.read K[1..4, a..b, ..-3, 2.., l] >> k;",
        CacheRead(
            Access(
                "K",
                (Slice(1, 4), Slice("a", "b"), Slice(None, -3), Slice(2), Single("l")),
                bracketed=True,
            ),
            Access("k"),
        ),
    ),
    ("cache.read K[l,] >> k;", CacheRead(Access("K", (Single("l"), Slice()), True), Access("k"))),
    ("cache.write k >> K[i];", CacheWrite(Access("k"), Access("K", (Single("i"),), True))),
    ("cache.reset K;", CacheReset(Access("K"))),
    ("cache.reset K[1];", CacheReset(Access("K", (Single(1),), True))),
    ("cache.increment n;", CacheIncrement("n")),
    ("cache.increment 3 n;", CacheIncrement("n", 3)),
    ("cache.decrement n;", CacheDecrement("n")),
    ("cache.decrement 2 n;", CacheDecrement("n", 2)),
    ("branch other;", Branch(None, "other")),
    ("branch c a b;", Branch("c", "a", "b")),
    ("barrier;", Barrier()),
    ("dep after(matmul) before(cache.write);", Dep("matmul", "cache.write")),
    ("transfer x >> y;", Transfer("x", "y")),
    ("yield x;", Yield(["x"])),
    ("yield x, y;", Yield(["x", "y"])),
    ("await x, y;", Await(["x", "y"])),
    ("return;", Return()),
]


@pytest.mark.parametrize(("text", "kind"), NODES, ids=lambda value: str(value)[:40])
def test_nodes(text, kind):
    (node,) = parse(f"block entry {{ {text} }}").blocks["entry"].nodes
    assert node.kind == kind
    if isinstance(kind, Op):
        types = [type(value) for value in kind.settings.values()]
        assert [type(value) for value in node.kind.settings.values()] == types


def test_loops():
    graph = parse("block entry { loop a (l in 0..B) { loop b (h in l..10) { barrier; } return; } }")
    (outer,) = graph.blocks["entry"].nodes
    inner, last = outer.kind.body
    assert outer.kind == Loop("a", "l", 0, "B", [inner, last])
    assert inner.kind == Loop("b", "h", "l", 10, inner.kind.body)
    indices = [inner.kind.body[0].index, inner.index, last.index, outer.index]
    assert indices == [0, 1, 2, 3]


def test_sections_blocks_comments_and_places():
    graph = parse(
        "// a comment\n"
        "volatile {x: f32;} /* of\nseveral */ volatile { }\n"
        "dynamic {\n\tdynamic: f32; /**/ op: f32;}\n"
        "block  entry {\n    return; // now\n}\r\nblock b { loop l (i in 0..1) { barrier; } }",
        "p.oi",
    )
    assert [(v.name, v.kind, v.place) for v in graph.vars.values()] == [
        ("x", "volatile", TextPosition(2, 11)),
        ("dynamic", "dynamic", TextPosition(5, 2)),
        ("op", "dynamic", TextPosition(5, 21)),
    ]
    assert graph.blocks["entry"].nodes[0].place == TextPosition(7, 5)
    assert graph.blocks["b"].place == TextPosition(9, 1)
    assert [node.place for node in graph.nodes()][1:] == [TextPosition(9, 11), TextPosition(9, 32)]
    assert parse("") == Graph()


MEMORY = "expected dynamic, volatile, constant, persistent or block"
TYPES = (
    "expected an element type (i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64, bool, bitset, "
    "bf16, f8, i4, i2, i1, u4, u2, u1, t2, t1)"
)
ATTRIBUTES = "expected an attribute (@init, @table, @auto_dim, @fixed, @pattern, @ref)"
NODE = (
    "expected a node (assign, op, return, cache.read, cache.write, cache.increment, "
    "cache.decrement, cache.reset, loop, branch, barrier, dep, transfer, yield, await) or '}'"
)
CACHE = "expected an operation of caches (read, write, increment, decrement, reset)"
VALUE = "expected a value: a number, true, false, inf, a string, [...] or a name"
SIZE = "expected a size: a whole number or the name of a sizevar"
COUNTED = "expected the name of a persistent variable"
INDEX = "expected an index: a whole number, a name or a range of them"

#: A program, in which the token that is refused stands behind a bar.
ERRORS = [
    ("|x: f32;", f"{MEMORY}, got 'x'"),
    ("|{", f"{MEMORY}, got '{{'"),
    ("volatile |x", "expected '{', got 'x'"),
    ("volatile { |1: f32; }", "expected the name of a variable or '}', got '1'"),
    ("volatile { x: f32; |", "expected the name of a variable or '}', got the end of the text"),
    ("volatile { x |f32; }", "expected ':', got 'f32'"),
    ("volatile { x: |4; }", "expected an element type, got '4'"),
    ("volatile { x: |float; }", f"{TYPES}, got 'float'"),
    ("volatile { x: f32|}", "expected ';', got '}'"),
    ("volatile { x: f32[|]; }", f"{SIZE}, got ']'"),
    ("volatile { x: f32[|1.5]; }", f"{SIZE}, got '1.5'"),
    ("volatile { x: f32[2*3|*4]; }", "expected ']', got '*'"),
    ("volatile { x(|): f32; }", "expected the name of an index, got ')'"),
    ("volatile { x: f32 @|start(1); }", f"{ATTRIBUTES}, got 'start'"),
    ("volatile { x: f32 @init(1) @|init(2); }", "expected @init once, got it twice"),
    ("volatile { x: f32 @table @|table; }", "expected @table once, got it twice"),
    ("volatile { x: f32 @init(|yes); }", "expected a number, true or false, got 'yes'"),
    ("volatile { x: f32 @init(-|inf); }", "expected a number, true or false, got 'inf'"),
    ("volatile { x: f32 @init|; }", "expected '(', got ';'"),
    ("volatile { x: f32 @auto_dim(|); }", "expected the name of an index, got ')'"),
    ("volatile { x: f32 @fixed(|); }", "expected the name of an index, got ')'"),
    ("volatile { x: f32 @fixed(i|); }", "expected '=', got ')'"),
    ("volatile { x: f32 @fixed(i=|n); }", "expected a whole number, got 'n'"),
    ("volatile { x: f32 @fixed(i=1, |i=2); }", "expected each index once in @fixed, got 'i'"),
    ("volatile { x: f32 @pattern(|w); }", "expected a string, got 'w'"),
    ("volatile { x: f32 @ref(|3); }", "expected a string or a name, got '3'"),
    ("block |{", "expected the name of a block, got '{'"),
    ("block entry { |jump; }", f"{NODE}, got 'jump'"),
    ("block entry { |>> }", f"{NODE}, got '>>'"),
    ("block entry { return; |", f"{NODE}, got the end of the text"),
    ("block entry { return |x; }", "expected ';', got 'x'"),
    ("block entry { assign |: f32; }", "expected the name of a temporary, got ':'"),
    ("block entry { op |(x) >> y; }", "expected the name of an op, got '('"),
    ("block entry { op taper.|(x) >> y; }", "expected the name of an op of Taper, got '('"),
    ("block entry { op add |>> y; }", "expected '(', got '>>'"),
    ("block entry { op add(x |y) >> y; }", "expected ',' or ')', got 'y'"),
    ("block entry { op add(x,|) >> y; }", "expected an input or a setting, got ')'"),
    ("block entry { op add(|1) >> y; }", "expected the name of a variable, got '1'"),
    (
        "block entry { op add(x, a=1, |y) >> y; }",
        "expected a setting (name=value), because inputs come before settings, got 'y'",
    ),
    ("block entry { op add(x, a=|) >> y; }", f"{VALUE}, got ')'"),
    ("block entry { op add(x, a=[|1.5]) >> y; }", f"{SIZE}, got '1.5'"),
    ("block entry { op add(x) |y; }", "expected '>>', got 'y'"),
    ("block entry { op add(x) >> |; }", "expected the name of a variable, got ';'"),
    ("block entry { cache.|drop K; }", f"{CACHE}, got 'drop'"),
    ("block entry { cache |read K; }", "expected '.', got 'read'"),
    ("block entry { cache.increment |-1 n; }", f"{COUNTED}, got '-'"),
    ("block entry { cache.increment |1.5 n; }", "expected an amount, got '1.5'"),
    ("block entry { cache.read K[x |y] >> k; }", "expected ']', got 'y'"),
    ("block entry { cache.read K[|*] >> k; }", f"{INDEX}, got '*'"),
    ("block entry { cache.read K[1..|1.5] >> k; }", f"{INDEX}, got '1.5'"),
    ("block entry { cache.read K[0 |>> k; }", "expected ']', got '>>'"),
    ("block entry { loop |(i in 0..1) {} }", "expected the name of the loop, got '('"),
    ("block entry { loop l (|0 in 0..1) {} }", "expected the name of the loop's variable, got '0'"),
    ("block entry { loop l (i |0..1) {} }", "expected 'in', got '0'"),
    ("block entry { loop l (i in |-1..1) {} }", "expected a whole number or a name, got '-'"),
    ("block entry { loop l (i in 0|) {} }", "expected '..', got ')'"),
    ("block entry { branch |; }", "expected a block or a condition, got ';'"),
    (
        "block entry { branch c |1; }",
        "expected the block to run where the condition holds, or ';', got '1'",
    ),
    (
        "block entry { branch c a|; }",
        "expected the block to run where the condition does not hold, got ';'",
    ),
    ("block entry { dep |before(x); }", "expected 'after', got 'before'"),
    ("block entry { dep after(|) before(x); }", "expected the name of an op or of a node, got ')'"),
    ("block entry { yield |; }", "expected the name of a variable, got ';'"),
    ("volatile { |$x: f32; }", "expected a name, a number, a string or a mark, got '$'"),
    ("volatile { x: f32[|3x]; }", "expected a number, got '3x'"),
    ("volatile { |é: f32; }", "expected a name, a number, a string or a mark, got 'é'"),
    (
        'volatile { x: f32 @ref(|"a\n"); }',
        'expected " at the end of the string, got the end of the line',
    ),
    ("|/* x", "expected */ at the end of the comment, got the end of the text"),
    (
        f"volatile {{ x: f32 @init(|{'9' * 41}); }}",
        "expected a number of at most 40 characters, got 41",
    ),
    (
        "volatile { x: f32 @init(|18446744073709551616); }",
        "expected a whole number of at most 18446744073709551615, got 18446744073709551616",
    ),
    (
        "volatile { x: f32 @init(|1e9999); }",
        "expected a number within the range of f64, got '1e9999'",
    ),
]


@pytest.mark.parametrize(("text", "message"), ERRORS, ids=lambda value: value[:50])
def test_errors_tell_line_column_what_was_expected_and_got(text, message):
    at = text.index("|")
    with pytest.raises(ProgramError) as raised:
        parse(f"\n {text[:at]}{text[at + 1 :]}", "p.oi")
    assert str(raised.value) == f"p.oi:2:{at + 2}: {message}"


def test_duplicates_are_all_listed():
    text = (
        "volatile { x: f32; x: f64; }\nconstant { x: i8; }\n"
        "block b { op f(a=1, a=2) >> x; }\nblock b {}"
    )
    with pytest.raises(ProgramError) as raised:
        parse(text)
    assert str(raised.value).splitlines() == [
        "<program>:1:20: variable 'x' is declared already, at 1:12",
        "<program>:2:12: variable 'x' is declared already, at 1:12",
        "<program>:3:21: setting 'a' is given twice",
        "<program>:4:1: block 'b' exists already, at 3:1",
    ]
    assert [problem.variable for problem in raised.value.problems] == ["x", "x", None, None]


def test_limits():
    nested = "loop l (i in 0..1) {" * 40 + "}" * 40
    with pytest.raises(ProgramError, match=r"^<program>:1:655: expected at most 32 nested loops"):
        parse(f"block entry {{ {nested} }}")
    parse(f"block entry {{ {'loop l (i in 0..1) {' * 32}{'}' * 32} }}")
    with pytest.raises(ProgramError, match=r"a text of at most 1048576 characters, got 10"):
        parse(" " * 1_048_577)
    with pytest.raises(ProgramError) as raised:
        parse("x" * 1_000_000)
    assert len(str(raised.value)) < 200
    assert len(parse("block entry {" + "barrier;" * 20_000 + "}").blocks["entry"].nodes) == 20_000


def test_files(tmp_path):
    path = tmp_path / "p\x1b.oi"
    path.write_bytes(b"\xef\xbb\xbfblock entry {}")
    assert load_program(path).blocks.keys() == {"entry"}
    path.write_bytes(b"block \xff")
    with pytest.raises(ProgramError, match=r"p\\x1b.oi: expected a text in UTF-8, .* bytes at 6$"):
        load_program(path)
    path.write_bytes(b' \n{"blocks": {"entry": {}}}')
    assert load_program(path).blocks.keys() == {"entry"}
    path.write_bytes(b" " * (1 << 23) + b" ")
    with pytest.raises(ProgramError, match=r"expected a file of at most 8388608 bytes$"):
        load_program(path)


def test_accesses():
    assert parse_access("K[l, ..-3]") == Access("K", (Single("l"), Slice(None, -3)), True)
    with pytest.raises(ProgramError, match=r"^1:5: expected the end of the text, got ';'$"):
        parse_access("K[l];")
    with pytest.raises(OpenInferError, match=r"^1:3: expected an index"):
        Op("f", ["K["], {}, "y")


# -- the same graphs by hand -----------------------------------------------------------------------

PROGRAMS = Path(__file__).parent / "programs"


def by_hand(name):
    """Build an example program by calls."""
    graph = Graph()
    BUILDERS[name](graph)
    return graph


def add(graph, *kinds, block="entry"):
    if block not in graph.blocks:
        graph.add_block(block)
    for kind in kinds:
        graph.add_node(block, kind)


def _minimal(graph):
    graph.add_var("x", "dynamic", "f32", ["B"])
    graph.add_var("a", "volatile", "f32", ["B"])
    graph.add_var("y", "volatile", "f32", ["B"], init=5.0)
    add(
        graph,
        Assign("t0", "f32", ["B"]),
        Op("add", ["x", "a"], output="t0"),
        Op("mul", ["y", "t0"], output="y"),
        Return(),
    )


def _kv_cache_decode(graph):
    graph.add_var("key", "dynamic", "f32", ["D"])
    graph.add_var("keys", "volatile", "f32", [4, "D"])
    graph.add_var("step", "persistent", "i32", init=0)
    table = {"table_indices": ["i"], "table": True, "fixed": {"i": 4}}
    graph.add_var("K", "persistent", "f32", ["D"], **table)
    add(graph, CacheWrite("key", "K[step]"), CacheIncrement("step"), CacheRead("K[]", "keys"))
    add(graph, Return())


def _cache_window_slice(graph):
    graph.add_var("x", "dynamic", "f32", ["D"])
    graph.add_var("last", "constant", "i32", init=6)
    graph.add_var("window", "volatile", "f32", [3, "D"])
    graph.add_var("bound", "volatile", "i32")
    for name, init in (("at", 0), ("start", 0), ("end", 3)):
        graph.add_var(name, "persistent", "i32", init=init)
    table = {"table_indices": ["i"], "table": True, "fixed": {"i": 6}}
    graph.add_var("A", "persistent", "f32", ["D"], **table)
    add(graph, CacheWrite("x", "A[at]"), CacheIncrement("at"), CacheRead("end", "bound"))
    add(graph, Op("min", ["bound", "last"], output="bound"), CacheWrite("bound", "end"))
    add(graph, CacheRead(Access("A", (Slice("start", "end"),), True), "window"))
    add(graph, CacheIncrement("start"), CacheIncrement("end"), Return())


def _cache_auto_dim(graph):
    graph.add_var("shift", "dynamic", "f32")
    for name in "lmn":
        graph.add_var(name, "volatile", "f32", ["D", "H"])
    for name in ("threes", "twos", "fives"):
        graph.add_var(name, "persistent", "i32", init=0)
    for name in "LMN":
        grown = {"table_indices": ["r", "c"], "auto_dim": ["r", "c"]}
        graph.add_var(name, "persistent", "f32", ["D", "H"], **grown)
    for amount, name in ((3, "threes"), (2, "twos"), (5, "fives")):
        add(graph, CacheIncrement(name, amount))
    grown = (("L[threes, twos]", "l"), ("M[0, fives]", "m"), ("N[fives, 0]", "n"))
    add(graph, *(CacheRead(cache, name) for cache, name in grown))
    add(graph, *(Op("add", [name, "shift"], output=name) for _, name in grown))
    add(graph, *(CacheWrite(name, cache) for cache, name in grown), Return())


def _cache_fixed_limit(graph):
    graph.add_var("m", "volatile", "f32", ["D", "H"])
    graph.add_var("rows", "persistent", "i32", init=0)
    graph.add_var("cols", "persistent", "i32", init=0)
    grown = {"table_indices": ["r", "c"], "auto_dim": ["r", "c"], "fixed": {"r": 4, "c": 4}}
    graph.add_var("M", "persistent", "f32", ["D", "H"], **grown)
    add(graph, CacheIncrement("rows", 5), CacheIncrement("cols", 5))
    add(graph, CacheRead("M[rows, cols]", "m"), Return())


def _cache_table(graph):
    graph.add_var("x", "dynamic", "f32", ["D"])
    for name, count in (("all", 3), ("first", 2), ("left", 3)):
        graph.add_var(name, "volatile", "f32", [count, "D"])
    table = {"table_indices": ["i"], "table": True, "fixed": {"i": 3}}
    graph.add_var("A", "persistent", "f32", ["D"], **table)
    add(graph, *(CacheWrite("x", f"A[{i}]") for i in range(3)))
    add(graph, CacheRead("A[]", "all"), CacheRead("A[0..2]", "first"), CacheReset("A[1]"))
    add(graph, CacheRead("A[]", "left"), Return())


def _loop(graph):
    graph.add_var("x", "dynamic", "f32", ["D", "3*D"])
    entries = {"pattern": "attn.{head}.qkv.{layer}", "table_indices": ["layer", "head"]}
    graph.add_var("QKV", "constant", "f32", ["D", "3*D"], **entries)
    graph.add_var("y", "volatile", "f32", ["D", "3*D"])
    add(graph, Op("add", ["x", "QKV[0, 0]"], output="y"))
    inner = graph.make_node(Op("add", ["y", "QKV[l, h]"], output="y"))
    heads = graph.make_loop_node("every_head", "h", 0, "heads", [inner])
    layers = graph.make_loop_node("every_layer", "l", 0, "layers", [heads])
    graph.add_prebuilt_node("entry", layers)
    add(graph, Return())


def _residual_stack(graph):
    graph.add_var("x", "dynamic", "f32", ["B", "D"])
    for name, dims, pattern in (("W", ["D", "D"], "weight"), ("b", ["D"], "bias")):
        entries = {"pattern": f"layers.{{l}}.{pattern}", "table_indices": ["l"]}
        graph.add_var(name, "constant", "f32", dims, **entries)
    graph.add_var("zero", "constant", "f32", init=0)
    graph.add_var("y", "volatile", "f32", ["B", "D"])
    add(graph, Assign("h", "f32", ["B", "D"]), Op("add", ["x", "zero"], output="h"))
    kinds = [
        Assign("t", "f32", ["B", "D"]),
        Op("matmul", ["h", "W[l]"], output="t"),
        Op("add", ["t", "b[l]"], output="t"),
        Op("relu", ["t"], {"alpha": 0.0, "clamp_max": float("inf")}, "t"),
        Op("add", ["h", "t"], output="h"),
    ]
    body = [graph.make_node(kind) for kind in kinds]
    graph.add_prebuilt_node("entry", graph.make_loop_node("stack", "l", 0, "layers", body))
    add(graph, Op("add", ["h", "zero"], output="y"), Return())


def _streaming(graph):
    graph.add_var("x", "dynamic", "f32", ["B", "D"])
    graph.add_var("w", "constant", "f32", ["D", "D"])
    graph.add_var("bias", "constant", "f32", ["D"])
    graph.add_var("h", "volatile", "f32", ["B", "D"])
    graph.add_var("seen", "volatile", "f32", ["B", "D"])
    add(graph, Op("matmul", ["x", "w"], output="h"), Yield(["x"]))
    add(graph, Op("relu", ["h"], {"clamp_max": 6.0}, "h"), Await(["x"]), Return())
    change = Op("add", ["x", "bias"], output="x")
    for block, op in (("writer", change), ("reader", Op("relu", ["x"], output="seen"))):
        add(graph, Await(["x"]), op, Yield(["x"]), block=block)


def _stability_guard(graph):
    graph.add_var("x", "dynamic", "f32", ["B", "D"])
    graph.add_var("bias", "constant", "f32", ["D"])
    graph.add_var("y", "volatile", "f32", ["B", "D"])
    graph.add_var("good", "volatile", "bool")
    add(graph, Op("is_finite", ["x"], output="good"), Branch("good", "ok", "bad"), Return())
    add(graph, Op("add", ["x", "bias"], output="y"), Return(), block="ok")
    add(graph, Op("fill", ["y"], {"value": 0.0}, "y"), Return(), block="bad")


def _moe_routing(graph):
    graph.add_var("x", "dynamic", "f32", ["B", "D"])
    graph.add_var("route", "dynamic", "bool")
    for number in "01":
        experts = f"experts.{number}"
        graph.add_var(f"w{number}", "constant", "f32", ["D", "O"], ref_name=f"{experts}.weight")
        graph.add_var(f"b{number}", "constant", "f32", ["O"], ref_name=f"{experts}.bias")
    graph.add_var("y", "volatile", "f32", ["B", "O"])
    add(graph, Branch("route", "first", "second"), Return())
    for block, number in (("first", "0"), ("second", "1")):
        add(graph, Op("matmul", ["x", f"w{number}"], output="y"), block=block)
        add(graph, Op("add", ["y", f"b{number}"], output="y"), Return(), block=block)


BUILDERS = {
    name.removeprefix("_"): build
    for name, build in list(globals().items())
    if re.fullmatch(r"_[a-z_]+", name) and (PROGRAMS / f"{name[1:]}.oi").exists()
}


@pytest.mark.parametrize("name", [path.stem for path in sorted(PROGRAMS.iterdir())])
def test_texts_and_calls_make_equal_graphs(name):
    graph = load_program(PROGRAMS / f"{name}.oi")
    assert graph == by_hand(name)
    assert list(graph.vars) == list(by_hand(name).vars)
    uuids = [node.uuid for node in graph.nodes()]
    assert len(set(uuids)) == len(uuids)


def test_types_behind_numbers():
    """As OpenInfer's older programs have them."""
    graph = parse("""
    volatile { a: u8 @init(1u8); b: f32 @init(2f32); c: i16 @init(-3i16); d: f64 @init(1.5e3f64); }
    block entry { op fill(a, value=255u8) >> a; op relu(b, alpha=0.5f32, clamp_max=6f32) >> b; }
    """)
    assert [variable.init for variable in graph.vars.values()] == [1, 2.0, -3, 1500.0]
    assert type(graph.vars["b"].init) is float
    nodes = graph.blocks["entry"].nodes
    assert [dict(node.kind.settings) for node in nodes] == [
        {"value": 255}, {"alpha": 0.5, "clamp_max": 6.0},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("volatile { a: u8 @init(256u8); }", "expected a number of u8, got '256u8'"),
        ("volatile { a: i8 @init(-129i8); }", "expected a number of i8, got '129i8'"),
        ("volatile { a: u8 @init(-1u8); }", "expected a number of u8, got '1u8'"),
        ("volatile { a: u8 @init(1.5u8); }", "expected a number of u8, got '1.5u8'"),
        ("volatile { a: f16 @init(1e9f16); }", "expected a number of f16, got '1e9f16'"),
        ("volatile { a: u8 @init(1u9); }", "expected a number, got '1u9'"),
        ("volatile { a: u8[2u8]; }", "expected a size: a whole number or the name of a sizevar"),
    ],
)
def test_numbers_that_are_not_of_the_type_behind_them(text, message):
    with pytest.raises(ProgramError) as caught:
        parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("read", [parse, graph_from_json])
@pytest.mark.parametrize("given", [None, b"block entry {}", 3])
def test_what_is_no_text(read, given):
    with pytest.raises(OpenInferError, match="expected the text of a program, got"):
        read(given)
