"""Every static check: the place, the variable, what was expected and what was got."""

from pathlib import Path

import numpy as np
import pytest

from taper_openinfer.errors import ProgramError, TextPosition
from taper_openinfer.language import parse
from taper_openinfer.language.graph import (
    Branch,
    CacheIncrement,
    Dep,
    Graph,
    Loop,
    Name,
    Node,
    Op,
    Return,
)
from taper_openinfer.link import link
from taper_openinfer.oinf.contents import SizeVar, UninitializedTensor
from taper_openinfer.oinf.reader import Model

MODEL = Model.of(
    {
        "B": SizeVar(4),
        "D": SizeVar(16),
        "L": SizeVar(3),
        "huge": SizeVar(1 << 62),
        "w": np.zeros((4, 16), np.float32),
        "w.0": np.zeros((4, 16), np.float32),
        "w.1": np.zeros((4, 16), np.float32),
        "v.0": np.zeros((4,), np.float32),
        "v.1": UninitializedTensor("f32", (4, 16)),
    }
)

#: Variables of all kinds, and nodes that use them, each of which is right.
PROGRAM = """
dynamic { x: f32[B, D]; flag: bool; }
volatile { y: f32[B, D]; row: f32[D]; n: i32; h: f16[B, D]; one: f32; many: f32[B, D];
    two: f32[2, D]; }
constant { w: f32[B, D]; c: f32 @init(0.5); W(l): f32[B, D] @pattern("w.{l}"); }
persistent {
    s: i32; p: f32[B, D]; K(i): f32[D] @table @fixed(i=4); T(i, j): f32[D] @table;
    G(r, k): f32[B, D] @auto_dim(r, k); M(l, r): f32[D] @table @auto_dim(r); go: bool;
}
"""


def problems(text, block="", **options):
    """What linking says of a block, without the lines of :data:`PROGRAM`, or of a whole program."""
    whole = f"{PROGRAM}block entry {{ {text} }} {block}"
    with pytest.raises(ProgramError) as raised:
        link(parse(whole, ""), MODEL, **options)
    lines = whole.count("\n", 0, whole.index("block entry")) + 1
    found = []
    for problem in raised.value.problems:
        assert problem.place.line == lines
        found.append(f"{problem.place.column - len('block entry { ')}: {problem.message}")
    return found


def test_right_nodes():
    text = """
    assign t: f32[B, D];
    op add(x, w) >> t; op add(W[0], W[1]) >> y; op relu(x, alpha=c) >> x; op add(x, y) >> new;
    op add(new, c) >> y;
    loop a (l in 0..2) { op add(W[l], y) >> y; loop b (i in l..n) { barrier; } branch inside; }
    cache.read s >> n; cache.write n >> s; cache.read K[s] >> row; cache.write row >> K[0];
    cache.read K[] >> many; cache.read K[1..-1] >> two; cache.read K[..2] >> two;
    cache.read K[s..] >> two;
    cache.read T[1, 0..B] >> many; cache.read T[0] >> many;
    cache.read T[0, 1] >> row;
    cache.read G >> many; cache.read G[r, k] >> many; cache.write many >> G[1, 2];
    cache.read M[0, 1] >> many;
    cache.read p >> y; cache.write y >> p; cache.increment s; cache.decrement 2 s;
    cache.reset s; cache.reset K; cache.reset K[s]; cache.reset T[0]; cache.reset M[1];
    cache.reset G; transfer x >> t; branch flag inside last; branch last; yield x, y; await x;
    dep after(add) before(cache.write); return;
    """
    blocks = "block inside { op add(W[0], y) >> y; } block last {} block consumer { await x; }"
    link(parse(f"{PROGRAM}block entry {{ {text} }} {blocks}"), MODEL)


def cases(name):
    """Read a file of programs, with the messages that each gets behind it, indented."""
    found = []
    for line in (Path(__file__).parent / name).read_text().splitlines()[1:]:
        if line.startswith(" "):
            found[-1][1].append(line.strip())
        else:
            found.append((line, []))
    return [pytest.param(*case, id=case[0][:60]) for case in found]


@pytest.mark.parametrize(("text", "messages"), cases("wrong_declarations.txt"))
def test_declarations(text, messages):
    with pytest.raises(ProgramError) as raised:
        link(parse(f"{text} block entry {{}}"), MODEL)
    name = "w" if " w:" in text else "x"
    place = TextPosition(1, text.index("{") + 3)
    assert [problem.message for problem in raised.value.problems] == [
        f"'{name}': {message}" for message in messages
    ]
    assert {(problem.place, problem.variable) for problem in raised.value.problems} == {
        (place, name)
    }


@pytest.mark.parametrize(("text", "messages"), cases("wrong_nodes.txt"))
def test_nodes(text, messages):
    found = [line for line in problems(text) if "branches back" not in line]
    assert len(found) == len(messages)
    for line, message in zip(found, messages, strict=True):
        expected = message if message[0].isdigit() else f"1: {message}"
        assert line.startswith(expected)


def test_only_entry_declares_temporaries():
    found = problems("branch b;", "block b { assign t: f32; }")
    assert found == ["23: 't': expected assign only in block 'entry'"]


def test_blocks():
    with pytest.raises(
        ProgramError, match=r"^expected a block 'entry', which a step runs, got none$"
    ):
        link(parse("block other {}", ""), MODEL)
    circle = "block a { loop l (i in 0..1) { branch b; } } block b { branch a; }"
    with pytest.raises(ProgramError, match=r"^1:27: .* back to itself, got a -> b -> a$"):
        link(parse(f"block entry {{ branch a; }} {circle}", ""), MODEL)
    with pytest.raises(ProgramError, match=r"^1:1: .* back to itself, got entry -> entry$"):
        link(parse("block entry { branch entry; }", ""), MODEL)


def test_loops_are_counted_through_branches():
    def chain(count):
        blocks = "\n".join(
            f"block b{i} {{ loop l (i in 0..1) {{ branch b{i + 1}; }} }}" for i in range(count)
        )
        return parse(f"block entry {{ branch b0; }}\n{blocks}\nblock b{count} {{}}", "")

    link(chain(32), MODEL)
    with pytest.raises(ProgramError) as raised:
        link(chain(33), MODEL)
    assert str(raised.value) == "34:13: expected at most 32 nested loops, got more"


def test_very_many_problems_end():
    text = "".join(f"op add(x{i}, y{i}) >> z{i};" for i in range(5000))
    with pytest.raises(ProgramError) as raised:
        link(parse(f"block entry {{ {text} }}"), MODEL)
    assert len(raised.value.problems) == 1000
    assert str(raised.value).endswith("and 950 more problems")


def test_a_block_is_inside_the_loops_around_all_branches_to_it():
    loops = "loop a (l in 0..2) { branch b; } "
    link(parse(f"{PROGRAM}block entry {{ {loops} }} block b {{ op add(W[l], y) >> y; }}"), MODEL)
    found = problems(f"{loops} branch b;", "block b { op add(W[l], y) >> y; }")
    assert len(found) == 1
    assert "got 'l'" in found[0]


def test_prefix_entries_have_to_fit():
    text = 'constant { V(l): f32[B, D] @pattern("v.{l}"); } volatile { z: f32[B, D]; }\n'
    with pytest.raises(ProgramError) as raised:
        link(
            parse(f"{text}block entry {{ op add(V[0], z) >> z; op add(V[1], z) >> z; }}", ""), MODEL
        )
    assert str(raised.value).splitlines() == [
        "2:15: 'V': expected f32[4, 16], got f32[4] of tensor 'v.0' in the file",
        "2:37: 'V': tensor 'v.1' has no data in the file",
    ]


def test_all_problems_are_listed_the_first_first():
    text = (
        "volatile { x: f32[C]; y: i8 @init(1.5); }\n"
        "block entry {\n  op add(x, z) >> y;\n  branch away;\n  op relu(y, beta=1) >> y;\n}\n"
        "constant { k: bool @init(3); }"
    )
    with pytest.raises(ProgramError) as raised:
        link(parse(text, "p.oi"), MODEL)
    assert str(raised.value).splitlines() == [
        "p.oi:1:12: 'x': the model has no size 'C'",
        "p.oi:1:23: 'y': expected @init of i8, a whole number from -128 to 127, got 1.5",
        "p.oi:3:3: expected a variable, got 'z'",
        "p.oi:4:3: expected a block to branch to ('entry'), got 'away'",
        "p.oi:5:3: relu: expected settings of alpha, clamp_max, got 'beta'",
        "p.oi:7:12: 'k': expected @init of bool, true or false, got 3",
    ]


def test_graphs_by_hand_that_no_text_could_be():
    graph = Graph()
    graph.add_var("a b", "volatile", "f33")
    graph.add_var("y", "volatile", "f32")
    graph.add_block("entry")
    graph.add_node("entry", Op("add", ["y", "y"], output="a\x1bb"))
    graph.add_node("entry", CacheIncrement("y", -1))
    graph.add_node("entry", Branch("y", "entry"))
    graph.add_node("entry", Op("relu", ["y"], {"alpha": Name("nobody")}, "y"))
    graph.add_prebuilt_node("entry", graph.make_loop_node("\x1b[1m", "not one", -1, 2, []))
    graph.add_node("entry", Dep("a-b", "cache.write"))
    graph.add_block("no block")
    body = [Node(0, Return())]
    for _ in range(40):
        body = [Node(0, Loop("l", "i", 0, 1, body))]
    graph.add_prebuilt_node("entry", body[0])
    with pytest.raises(ProgramError) as raised:
        link(graph, MODEL)
    text = str(raised.value)
    for part in (
        "expected a name of letters, digits and _, got 'a b'",
        "expected a name of letters, digits and _, got 'a-b'",
        "expected an element type (i8, ",
        "or a new name that a later node reads, got 'a\\x1bb'",
        "'y': expected a persistent variable, got a volatile f32",
        "expected a condition and two blocks, or one block, got 'branch y entry'",
        "relu: setting 'alpha': expected a value, or the name of a constant without dims, got 'no",
        "expected a name of letters, digits and _, got 'not one'",
        "expected a name of letters, digits and _, got '\\x1b[1m'",
        "expected a name of letters, digits and _, got 'no block'",
        "expected a bound from 0 to 9223372036854775807, got -1",
        "expected at most 32 nested loops, got more",
        "expected no block that branches back to itself, got entry -> entry",
    ):
        assert part in text
