"""Programs that no plan can express: each reason is told, and none takes long."""

import pytest

pytest.importorskip("taper_frontend")

from simulated import GROWING, model
from taper_openinfer import ProgramError, parse
from taper_openinfer.compiler import compile_program


def refusals(text, sizes=None, **tensors):
    with pytest.raises(ProgramError) as caught:
        compile_program(parse(text, "p.oi"), model(sizes, **tensors))
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    "inside",
    [
        "loop l (i in 0..n) {{ {nodes} }}",
        "branch c one two;",
        "loop l (i in 0..n) {{ branch c one two; }}",
        "loop l (i in 0..n) {{ loop m (j in 0..n) {{ {nodes} }} }}",
        "yield x; await x;",
    ],
)
@pytest.mark.parametrize(
    "nodes",
    [
        "cache.read K[0] >> y;",
        "cache.write x >> K[0];",
        "cache.reset K;",
        "cache.increment odd; cache.read odd >> o;",
        "op cast(d, to=f32) >> y;",
    ],
)
def test_what_was_refused_is_refused_inside_of_loops_and_branches(inside, nodes):
    """An error that lists the reasons, and none of another kind."""
    found = refusals(f"""
    dynamic {{ x: f32; c: bool; n: i64; d: u16; }}
    volatile {{ y: f32; o: u32; at: i64; }}
    persistent {{ s: i64; K(i): f32 @table; odd: u32; }}
    block entry {{ cache.write x >> K[s]; op add(x, x) >> y; {inside.format(nodes=nodes)} }}
    block one {{ {nodes} }} block two {{}}
    """)
    assert all(" expected a limit of index i" in line or "plans have no" in line
               or "to use no persistent variable" in line for line in found)  # fmt: skip


def test_everything_that_is_refused_is_told_at_once():
    no_u16 = "plans have no inputs, states or outputs of u16, only constants and values"
    assert refusals(
        """
        dynamic { x: f32[2]; odd: u16[2]; i: i64[2]; }
        volatile { k: f32[2, 2]; p: u8[2]; c: i32[2]; z: u16[2]; }
        persistent { n: i64; A(i): f32[2] @table; B(i): f32[2] @table @fixed(i=4); }
        block entry {
            cache.write x >> A[n];
            op add(odd, odd) >> z;
            op mul(z, z) >> z;
            cache.read B[0..n] >> k;
            op popcount(i) >> p;
            op cast(x, to=i32, saturate=false) >> c;
            op add(c, c) >> c;
        }
        """
    ) == [
        f"p.oi:2:30: {no_u16} that depend only on them",
        (
            "p.oi:4:30: A: expected a limit of index i, because a state has a fixed size, got an "
            "index that depends on the run; @fixed(i=N) sets a limit"
        ),
        (
            "p.oi:9:13: B: expected fixed ends of the slice along i, got ends that depend on the "
            "run; read a whole table of @fixed size, and mask it"
        ),
        "p.oi:10:13: op popcount: no op of a plan computes it for i64",
        (
            "p.oi:11:13: op cast: without saturate, no op of a plan converts floats beyond the "
            "range of the integers"
        ),
        f"p.oi:3:55: {no_u16} that depend only on them",
    ]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("cache.write x >> A[1]; cache.read A[] >> all; cache.write x >> A[2];", "from 2 to 3"),
        (
            "yield x; } block beside { await x; cache.write x >> A[0];",
            "expected it to use no persistent variable, got",
        ),
        (
            "yield x; yield x; } block beside { await x;",
            "an await before the second yield",
        ),
        (
            "loop l (i in 0..70000) { cache.write x >> A[i]; }",
            "expected at most 65536 nodes, got 70000",
        ),
    ],
)
def test_refusals(nodes, reason):
    (line,) = refusals(GROWING.format(nodes=nodes))
    assert reason in line


BOMBS = {
    "blocks that run a block twice": "block entry { branch b0; }"
    + "".join(f"block b{i} {{ branch b{i + 1}; branch b{i + 1}; }}" for i in range(40))
    + "block b40 { op add(x, x) >> y; }",
    "branches in branches": "block entry { branch c b0 b0; }"
    + "".join(f"block b{i} {{ branch c b{i + 1} b{i + 1}; }}" for i in range(80))
    + "block b80 { op add(x, x) >> y; }",
    "a chain of blocks": "block entry { branch b0; }"
    + "".join(f"block b{i} {{ branch b{i + 1}; }}" for i in range(3000))
    + "block b3000 { op add(x, x) >> y; }",
}


@pytest.mark.parametrize("nodes", BOMBS.values(), ids=BOMBS)
def test_programs_that_come_to_very_many_nodes_end_soon(nodes):
    text = "dynamic { x: f32[2]; c: bool; } volatile { y: f32[2]; }" + nodes
    with pytest.raises(ProgramError, match="expected at most"):
        compile_program(parse(text), model())
