"""Programs as newcomers write them: each mistake gives one message, and none is untrue."""

import numpy as np
import pytest

from taper_openinfer import Model, ProgramError, Simulator, SizeVar, parse
from taper_openinfer.link import link

MODEL = Model.of({"T": SizeVar(4), "w": np.ones((4, 3), np.float32), "count": 3})

#: Sections and nodes, and the beginning of each message, with the line that it is about.
CASES = {
    "one op whose inputs do not fit": (
        "dynamic { x: f32[4]; } volatile { y: f32[4]; } constant { w: f32[4, 3]; }",
        """op matmul(x, w) >> h;
        op le(h, x) >> m;
        op filter(h, h, m) >> g;
        op taper.SOFTMAX(g, axis=0) >> p;
        op taper.WHERE(m, p, p) >> q;
        op taper.INDEX_SELECT(p, q, axis=1) >> r;
        op sum_axis(r, axes=[0]) >> s;
        loop again (i in 0..s) { op add(s, q) >> q; branch m one two; }
        transfer s >> y;
        op mul(x, s) >> y;""",
        ["2: le: expected inputs of one shape, got [[3], [4]]"],
    ),
    "mistakes that have nothing to do with each other": (
        "dynamic { x: f32[4]; y: f32[3]; } volatile { z: f32[4]; }",
        """op add(x, y) >> a;
        op softmax(a) >> b;
        op relu(b, slope=2) >> c;
        op add(c, x) >> z;""",
        [
            "1: add: expected shapes that broadcast, got [[4], [3]]",
            "2: no op 'softmax'; do you mean 'taper.SOFTMAX'?",
            "3: relu: expected settings of alpha, clamp_max, got 'slope'",
        ],
    ),
    "a destination that is declared has its shape": (
        "dynamic { x: f32[4]; y: f32[3]; } volatile { z: f32[4]; }",
        "assign a: f32[4]; op add(x, y) >> a; op add(a, x) >> b; op add(b, y) >> z;",
        [
            "1: add: expected shapes that broadcast, got [[4], [3]]",
            "1: add: expected shapes that broadcast, got [[4], [3]]",
        ],
    ),
    "a destination that is declared wrong": (
        "dynamic { x: f32[4]; } volatile { z: f32[5]; h: f16[4]; y: f32[4]; }",
        "op add(x, x) >> z; op mul(z, x) >> z; op add(x, x) >> h; op mul(h, x) >> y;",
        [
            "1: 'z': expected the declared shape [5], got [4] of 'add'",
            "1: no kernel computes 'add' of (f32, f32) -> f16 on Cpu",
        ],
    ),
    "a size that the file lacks": (
        "dynamic { x: f32[Q]; y: f32[4]; } volatile { z: f32[4]; }",
        """op add(x, y) >> a; op matmul(a, y) >> b; op add(b, y) >> z;
        loop l (i in 0..b) { barrier; } transfer a >> z; branch b one two;""",
        ["0: 'x': the model has no size 'Q'"],
    ),
    "a name that stands for nothing": (
        "dynamic { x: f32[4]; } volatile { z: f32[4]; }",
        "op add(xx, xx) >> a; op mul(a, xx) >> z; transfer xx >> z; op add(z, a) >> z;",
        ["1: expected a variable, got 'xx'; do you mean 'x'?"],
    ),
    "a temporary that is read before it is written": (
        "dynamic { x: f32[4]; } volatile { z: f32[4]; }",
        "loop l (i in 0..3) { op add(x, h) >> y; op mul(y, x) >> h; } op add(y, h) >> z;",
        [
            ("1: 'h': expected an assign that declares it, because it is read before "
            "'op mul(y,x) >> h' at 2:"),
        ],
    ),
    "two declarations of one name": (
        "dynamic { x: f32[2]; c: bool; } volatile { z: f32[2]; }",
        """assign c: f32[2]; assign t: f32[2]; assign t: i32[2];
        op add(x, c) >> z; op add(c, c) >> t; op add(t, z) >> z;""",
        [
            "1: 'c': expected a new name, got the name of a dynamic variable",
            "1: 't': expected one assign for each name, got a second one",
        ],
    ),
    "a temporary that other blocks write": (
        "dynamic { x: f32[2]; c: i32; } volatile { z: f32[2]; }",
        ("branch c three four; op add(t, x) >> z; } block three { op add(x, x) >> t; }"
        " block four { op neg(x) >> t;"),
        ["1: 't': expected an assign that declares it, because another block writes it, in 'op "],
    ),
    "a number of metadata of another type": (
        "dynamic { x: f32[2]; } volatile { z: f32[2]; } constant { count: i32; }",
        "op relu(x, alpha=count) >> z;",
        ["0: 'count': expected i32[], got u8[] of metadata 'count' in the file"],
    ),
    "a destination that nothing declares": (
        "dynamic { x: f32[2]; } volatile { z: f32[2]; } persistent { K(i): f32[2] @table; }",
        "cache.read K[0] >> row; op add(row, x) >> z; op mul(row, z) >> z;",
        ["1: expected a variable to write, or an assign that declares one, got 'row'"],
    ),
    "what a cache gives varies": (
        ("dynamic { x: f32[2]; } volatile { z: f32[2]; ks: f32[4, 2]; }"
        " persistent { n: i64; K(i): f32[2] @table; }"),
        """cache.write x >> K[n];
        cache.read K[0..n] >> ks;
        op relu(ks) >> a; op relu(a) >> b; op add(b, b) >> c; op add(c, x) >> d;
        op add(d, d) >> e; op add(e, e) >> f; op add(f, f) >> g; op sum_axis(g, axes=[0]) >> z;""",
        [
            ("3: 'a': expected an assign that declares it, because its shape is known only when "
            "the program runs: each step may give 'cache.read K[0..n] >> ks' at 3:9 another "
            "shape; so do 'b', 'c', 'd', 'e', 'f' and 1 more"),
        ],
    ),
    "settings that only a run knows": (
        "dynamic { x: f32[4, 4]; } volatile { z: f32[1, 4]; n: i64; } persistent { s: i64; }",
        """loop l (k in 0..4) {
        op taper.SLICE(x, axis=0, start=k, stop=4) >> z;
        op taper.RESHAPE(x, shape=[k, 4]) >> z; }
        op taper.SLICE(x, axis=0, start=s, stop=4) >> z;""",
        [
            ("2: taper.SLICE: setting 'start': expected a value that is known before the program "
            "runs, got 'k', the variable of a loop; taper.INDEX_SELECT takes positions as an "
            "input"),
            ("3: taper.RESHAPE: setting 'shape': expected a value that is known before the program "
            "runs, got 'k', the variable of a loop; taper.INDEX_SELECT takes"),
            ("4: taper.SLICE: setting 'start': expected a value, or the name of a constant without "
            "dims, got 's', a persistent i64; taper.INDEX_SELECT takes"),
        ],
    ),
    "numbers of bools": (
        "dynamic { x: f32[4]; } volatile { z: f32[4]; }",
        "op lt(x, x) >> b; op cast(b, to=f32) >> z;",
        [
            ("1: no kernel computes 'cast' of (bool) -> f32 on Cpu; filter and taper.CAST turn "
            "bools into numbers"),
        ],
    ),
    "a constant that nothing gives": (
        "dynamic { x: f32[4]; } volatile { y: f32[4]; } constant { k: f32; v: f32[4, 3]; }",
        "op relu(x, alpha=k) >> a; op add(a, x) >> y; op matmul(x, v) >> b; op add(b, b) >> b;",
        [
            "0: 'k': expected a value for the constant",
            "0: 'v': expected a value for the constant",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_mistake_gives_one_message(case):
    sections, nodes, expected = CASES[case]
    text = f"{sections}\nblock entry {{ {nodes} }} block one {{}} block two {{}}"
    with pytest.raises(ProgramError) as caught:
        link(parse(text), MODEL)
    found = [f"{each.place.line - 1}: {each.message}" for each in caught.value.problems]
    assert len(found) == len(expected), found
    for got, begins in zip(found, expected, strict=True):
        assert got.startswith(begins)


SLICES = """
dynamic {{ x: f32[2]; }}
volatile {{ z: f32[{rows}, 2]; flat: f32[{size}]; }}
persistent {{ K(i): f32[2] @table; F(l, i): f32[2] @table @fixed(l=3, i=4); }}
block entry {{
    assign rows: f32[{rows}, 2];
    cache.write x >> K[3];
    cache.read {access} >> rows;
    op taper.RESHAPE(rows, shape=[{size}]) >> one;
    op add(one, one) >> flat;
    op add(rows, x) >> z;
}}
"""


@pytest.mark.parametrize(
    ("access", "rows"),
    [("K[0..4]", 4), ("K[..T]", 4), ("K[1..3]", 2), ("F[0]", 4), ("F[2, 1..]", 3),
     ("F[0, ..-1]", 3),
     ("F[1, 0..T]", 4), ("F[1, T..]", 0), ("F[..2, 3]", 2)],
)  # fmt: skip
def test_slices_with_ends_that_are_known_have_a_shape(access, rows):
    """The shape that linking finds is the one that a step meets."""
    text = SLICES.format(access=access, rows=rows, size=2 * rows)
    program = link(parse(text), MODEL)
    assert program.variables["one"].shape == (2 * rows,)
    made = Simulator(MODEL, parse(text)).make_executor()
    made.insert_dynamic("x", np.ones(2, np.float32))
    made.step()
    assert made.fetch("z").shape == (rows, 2)
    wrong = text.replace(f"assign rows: f32[{rows}, 2]", "assign rows: f32[7, 2]")
    with pytest.raises(ProgramError) as caught:
        link(parse(wrong), MODEL)
    assert f"expected shape [7, 2] for rows, got [{rows}, 2] of" in str(caught.value)


@pytest.mark.parametrize("access", ["K[]", "K[n..4]", "K[0..n]", "K[..-1]", "F[n, n..]", "G[1]"])
def test_other_slices_have_none(access):
    sections = """dynamic { x: f32[2]; } volatile { z: f32[4, 2]; } persistent { n: i64;
    K(i): f32[2] @table; F(l, i): f32[2] @table @fixed(l=3, i=4); G(r): f32[2] @auto_dim(r); }"""
    nodes = f"cache.read {access} >> z; op relu(z) >> a; op add(a, a) >> z;"
    text = f"{sections} block entry {{ {nodes} }}"
    with pytest.raises(ProgramError, match="'a': expected an assign that declares it"):
        link(parse(text), MODEL)
