"""Programs as plans beside the simulator, over several steps."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("taper_frontend")

from cli_page import PAGE, schema, section, taper_command
from simulated import GROWING, PROGRAMS, as_the_simulator, model, simulator
from taper_frontend.errors import ExportError, ExportWarning
from taper_openinfer import (
    ProgramError,
    Quantization,
    Random,
    SizeVar,
    StepError,
    TensorSpec,
    parse,
    write_model,
)
from taper_openinfer.compiler import compile_program
from taper_openinfer.compiler.lower_program import lower
from taper_openinfer.link import link
from taper_runtime import InferenceSession, InputError
from taper_runtime.cli.command_line import command_parser

#: Programs here add to variables that nothing gives a value.
pytestmark = pytest.mark.filterwarnings("ignore:a step reads .* before it writes")

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def numbers(seed, *shape):
    return Random.generate_with_seed(seed, (-1.0, 1.0), int(np.prod(shape))).reshape(shape)


def given_values(slots, seed):
    """Random values of all dynamic variables."""
    return {
        slot.name: Random.generate_with_seed(
            seed + place, (-4, 4), int(np.prod(slot.shape)), slot.dtype
        ).reshape(slot.shape)
        for place, slot in enumerate(slots)
        if slot.kind == "dynamic"
    }


def compare(program, sizes=None, *, steps=4, outputs=None, **tensors):
    """Run a program and its plan beside each other; return the session."""
    made = simulator(program, sizes, **tensors)
    weights = model(sizes, **tensors)
    plan = compile_program(made.program.graph, weights, outputs=outputs)
    executor, session = made.make_executor(), InferenceSession(plan, as_the_simulator())
    for t in range(steps):
        values = given_values(made.slots, 10 * t)
        for name, value in values.items():
            executor.insert_dynamic(name, value)
        try:
            executor.step()
        except StepError:
            states = {name: session.get_state(name) for name in plan.states}
            with pytest.raises(InputError):
                session.run(None, values)
            for name, before in states.items():
                np.testing.assert_array_equal(session.get_state(name), before)
            break
        results = dict(zip(plan.outputs, session.run(None, values), strict=True))
        for name, result in results.items():
            expected = executor.fetch(name.removeprefix("output_"))
            assert result.shape == np.shape(expected)
            np.testing.assert_allclose(result, expected, **CLOSE, err_msg=name)
        for name in plan.states:
            expected, state = np.asarray(executor.fetch(name)), session.get_state(name)
            seen = state[tuple(map(slice, expected.shape))]  # a cache may not have grown so far
            np.testing.assert_allclose(seen, expected, **CLOSE, err_msg=name)
    return session


# -- the example programs --------------------------------------------------------------------------

EXAMPLES = {
    "minimal": ({"B": 1024}, {"a": numbers(1, 1024)}),
    "kv_cache_decode": ({"D": 16}, {}),
    "cache_table": ({"D": 5}, {}),
    "loop": (
        {"D": 4, "layers": 2, "heads": 3},
        {f"attn__{h}__qkv__{i}": numbers(3 * i + h, 4, 12) for i in range(2) for h in range(3)},
    ),
    "residual_stack": (
        {"B": 4, "D": 32, "layers": 3},
        {f"layers__{i}__weight": numbers(i, 32, 32) for i in range(3)}
        | {f"layers__{i}__bias": numbers(9 + i, 32) for i in range(3)},
    ),
    "streaming": ({"B": 2, "D": 3}, {"w": numbers(1, 3, 3), "bias": numbers(2, 3)}),
    "stability_guard": ({"B": 2, "D": 3}, {"bias": numbers(1, 3)}),
    "moe_routing": (
        {"B": 4, "D": 3, "O": 2},
        {f"experts__{e}__weight": numbers(e, 3, 2) for e in range(2)}
        | {f"experts__{e}__bias": numbers(8 + e, 2) for e in range(2)},
    ),
}

#: What varies from step to step in these has no place in a plan.
REFUSED = {
    "cache_auto_dim": "L: expected a limit of index r",
    "cache_fixed_limit": "M: expected a position of index r that is known",
    "cache_window_slice": "A: expected fixed ends of the slice along i",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    sizes, tensors = EXAMPLES[name]
    compare(name, sizes, steps=6, **tensors)


@pytest.mark.parametrize("name", REFUSED)
def test_examples_that_are_refused(name):
    with pytest.raises(ProgramError, match=REFUSED[name]):
        compile_program(PROGRAMS / f"{name}.oi", model({"D": 2, "H": 2}))


def test_each_example_is_tried():
    assert {path.stem for path in PROGRAMS.glob("*.oi")} == {*EXAMPLES, *REFUSED}


# -- memory ----------------------------------------------------------------------------------------


def test_volatile_variables_start_anew():
    compare("volatile { y: f32[2] @init(5.0); } block entry { op add(y, y) >> y; }")


def test_a_dynamic_variable_that_is_written_is_an_output_of_another_name():
    session = compare("dynamic { x: f32[2]; } block entry { op add(x, x) >> x; }")
    assert [end.name for end in session.get_outputs()] == ["output_x"]


def test_bfloat16_and_integers():
    compare(
        """
        dynamic { a: bf16[8]; b: i8[8]; c: u8[8]; }
        volatile { x: bf16[8]; y: i8[8]; z: u8[8]; f: f16[8]; }
        block entry {
            op mul(a, a) >> x;
            op mul(b, b) >> y;
            op sub(c, c) >> z;
            op cast(b, to=f16) >> f;
        }
        """
    )


COUNTERS = """
persistent { n: i8 @init(100); f: f32 @init(0.5); total: f32[3]; }
dynamic { x: f32[3]; }
volatile { y: f32[3]; m: i8; }
block entry {
    cache.read total >> y;
    op add(y, x) >> y;
    cache.write y >> total;
    cache.increment 20 n;
    cache.decrement 2 f;
    cache.read n >> m;
}
"""


def test_persistent_scalars_and_tensors():
    session = compare(COUNTERS)
    assert session.get_state("n") == np.int8(100 + 80 - 256)  # wraps
    assert session.state_names == ["n", "f", "total"]


def test_outputs_are_what_is_written_and_not_read_after():
    graph = parse(COUNTERS)
    assert compile_program(graph, model()).outputs == ("m",)
    assert compile_program(graph, model(), outputs=["y", "m"]).outputs == ("y", "m")
    session = compare(
        "dynamic { x: f32[2]; } volatile { y: f32[2]; } block entry {"
        "op add(x, x) >> t; op mul(t, x) >> y; }"
    )
    assert [end.name for end in session.get_outputs()] == ["y"]


def test_temporaries_as_outputs():
    text = """
        dynamic { x: f32[2]; } volatile { y: f32[2]; }
        block entry { loop twice (i in 0..2) { op add(x, y) >> t; op mul(t, x) >> y; } }
    """
    session = InferenceSession(compile_program(parse(text), model(), outputs=["t"]))
    (t,) = session.run(None, {"x": np.full(2, 3, np.float32)})
    assert t.tolist() == [12.0, 12.0]


def test_all_that_is_written_where_all_is_read():
    nodes = "op abs(y) >> y; op abs(y) >> z; op abs(z) >> t; op abs(t) >> t;"
    text = f"volatile {{ y: f32[2]; z: f32[2]; }} block entry {{ {nodes} }}"
    assert compile_program(parse(text), model()).outputs == ("y", "z")


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["z"], r"no variable 'z'"),
        (["nn"], r"no variable .nn."),
        (["n"], r"'n' is a state; session.get_state\('n'\) reads it"),
    ],
)
def test_outputs_that_are_none(outputs, message):
    with pytest.raises(ExportError, match=message):
        compile_program(parse(COUNTERS), model(), outputs=outputs)


# -- caches ----------------------------------------------------------------------------------------

TABLE = """
dynamic {{ x: f32[3]; at: i32; }}
volatile {{ all: f32[2, 4, 3]; row: f32[4, 3]; one: f32[3]; }}
persistent {{ n: i64; K(l, t): f32[3] @init(7) @table @fixed(l=2, t=4); }}
block entry {{
    {nodes}
    cache.read K[] >> all;
}}
"""


def test_entries_at_positions_of_a_run():
    session = compare(
        TABLE.format(
            nodes="""
            loop layers (l in 0..2) { cache.write x >> K[l, n]; }
            cache.read K[1] >> row;
            cache.read K[0, n] >> one;
            cache.increment n;
            """
        ),
        steps=5,  # the last one fails, in both
    )
    assert session.get_state("n") == 4


def test_a_position_beyond_one_index_does_not_reach_the_next_entries():
    session = compare(TABLE.format(nodes="cache.write x >> K[0, n]; cache.increment n;"), steps=5)
    assert (session.get_state("K")[1] == 7).all()


def test_negative_positions_fail():
    session = compare(TABLE.format(nodes="cache.decrement n; cache.write x >> K[0, n];"), steps=1)
    assert session.get_state("n") == 0
    compare(TABLE.format(nodes="cache.decrement n; cache.read K[0, n] >> one;"), steps=1)


def test_writes_are_in_place():
    plan = compile_program(
        parse(TABLE.format(nodes="cache.write x >> K[0, n]; cache.write x >> K[1, n];")),
        model(),
        outputs=[],
    )
    assert plan.is_in_place("K")


@pytest.mark.parametrize("target", ["K", "K[1]", "K[1, 2]", "K[0, n]", "K[n]"])
def test_resets(target):
    nodes = f"cache.reset {target}; cache.write x >> K[1, 2]; cache.increment n;"
    compare(TABLE.format(nodes=nodes), steps=3)
    nodes = f"cache.write x >> K[1, 2]; cache.write x >> K[0, 3]; cache.reset {target};"
    compare(TABLE.format(nodes=nodes), steps=2)


def test_plain_resets():
    compare(COUNTERS.replace("cache.read n", "cache.reset total; cache.reset f; cache.read n"))


@pytest.mark.parametrize(
    "nodes",
    [
        "cache.write x >> A[2]; cache.read A[] >> all;",
        "cache.write x >> A[2]; cache.read A[0..-1] >> part;",
        "loop l (i in 0..3) { cache.write x >> A[i]; } cache.reset A[2]; cache.read A[] >> part;",
        "cache.write x >> A[0]; cache.reset A; cache.write x >> A[1]; cache.read A[] >> part;",
        (
            "cache.write x >> A[0]; cache.read A[..2] >> part; cache.write x >> A[2];"
            "cache.read A[] >> all;"
        ),
    ],
)
def test_tables_whose_sizes_the_program_tells(nodes):
    compare(GROWING.format(nodes=nodes))


def test_auto_dim_that_is_reset_in_each_step():
    compare(
        """
        dynamic { x: f32[2, 2]; }
        volatile { m: f32[5, 4]; small: f32[2, 2]; }
        persistent { M(r, c): f32[2, 2] @init(3) @auto_dim(r, c); }
        block entry {
            cache.reset M;
            cache.read M[] >> small;
            op add(small, x) >> small;
            cache.write small >> M[0, 0];
            cache.read M[3, 2] >> m;
            op add(m, m) >> m;
            cache.write m >> M[3, 2];
        }
        """
    )


# -- control flow ----------------------------------------------------------------------------------


def test_branches_that_write_what_the_other_does_not():
    compare(
        """
        dynamic { x: f32[3]; c: i32; }
        volatile { y: f32[3] @init(2); z: f32[3]; }
        persistent { n: i32; A(i): f32[3] @table @fixed(i=4); }
        block entry {
            branch c some none;
            branch after;
        }
        block some { op add(x, y) >> y; cache.increment n; cache.write x >> A[1]; return; }
        block none { op mul(x, x) >> z; branch after; return; op mul(x, y) >> y; }
        block after { op add(y, z) >> z; }
        """,
        steps=6,
        outputs=["y", "z"],
    )


LONG = """
dynamic {{ x: f32[2]; }}
volatile {{ y: f32[2]; }}
persistent {{ n: i32; A(i): f32[2] @table @fixed(i=40); }}
constant {{ first: i32 @init({first}); last: i32 @init({last}); }}
block entry {{
    loop long (i in {start}..{end}) {{
        op add(y, x) >> y;
        op mul(y, x) >> t;
        op sub(y, t) >> y;
        cache.increment n;
        {node}
    }}
}}
"""


def ops(plan):
    return [node.op for node in plan.nodes]


@pytest.mark.parametrize(
    ("start", "end", "node", "is_while"),
    [
        ("0", "2000", "", True),
        ("1990", "2000", "", False),
        ("2", "2", "", False),
        ("first", "last", "cache.write y >> A[i];", True),
        ("0", "2000", "return;", False),
    ],
)
def test_loops(start, end, node, is_while):
    text = LONG.format(start=start, end=end, node=node, first=3, last=9)
    compare(text, steps=2)
    assert ("WHILE" in ops(compile_program(parse(text), model()))) == is_while


def test_a_loop_with_positions_outside_of_a_table_fails():
    compare(
        LONG.format(start="first", end="last", node="cache.write y >> A[i];", first=38, last=41)
    )


BESIDE = """
dynamic {{ x: f32[3]; }}
volatile {{ y: f32[3] @init(2); z: f32[3]; w: f32[3] @init(1); }}
block entry {{ op add(x, y) >> t; yield x; {nodes} return; }}
block one {{ await x; op mul(x, y) >> z; op add(z, w) >> z; yield x; }}
block two {{ await x; branch change; yield x; }}
block change {{ op sub(x, w) >> w; }}
"""


def test_a_step_that_ends_before_its_await_waits_all_the_same():
    compare(BESIDE.format(nodes="op add(t, w) >> y;"))


@pytest.mark.parametrize("nodes", ["await x; op add(t, w) >> y;", "op add(t, w) >> y; await x;"])
def test_blocks_beside_do_not_see_what_others_write(nodes):
    compare(BESIDE.format(nodes=nodes))


def test_awaits_of_one_yield():
    compare("""
    dynamic { x: f32; z: f32; }
    volatile { y: f32; w: f32; }
    block entry { await x; yield x, z; await x; op add(x, x) >> y; await z; op add(y, z) >> w; }
    block one { await x; op add(x, x) >> x; yield x; }
    block two { await z; op add(z, z) >> z; yield z; }
    """)


def test_two_blocks_that_write_one_variable_are_refused():
    with pytest.raises(ProgramError) as caught:
        compile_program(parse(BESIDE.format(nodes="op add(t, w) >> w; await x;")), model())
    assert str(caught.value).endswith(
        "w: expected at most one block to write it between yield and await, got entry and two"
    )


def test_what_begins_as_zeros_is_told():
    text = "volatile { v: f32; n: f32; y: f32; } block entry { op add(v, n) >> y; }"
    told = "a step reads v, n before it writes them, and they begin as zeros, because the"
    with pytest.warns(ExportWarning, match=told) as caught:
        plan = compile_program(parse(text), model())
    assert [warning.message.kind for warning in caught] == ["zeros"]
    assert plan.metadata["warnings"] == [{"kind": "zeros", "text": str(caught[0].message)}]
    with pytest.raises(ProgramError, match="'v': expected a tensor of this name in the file"):
        compile_program(parse(text), model(), strict=True)


def test_a_constant_without_a_value_is_refused():
    with pytest.raises(ProgramError, match=r"'w_1': .* got none; do you mean 'w1'\?"):
        compile_program(
            parse(
                "constant { w_1: f32; } volatile { y: f32; } block entry { op add(w_1, w_1) >> y; }"
            ),
            model(w1=np.ones((), np.float32)),
        )


QUANTIZED = """
dynamic {{ x: f32[4]; n: i32; i: i8[4]; }}
volatile {{ y: f32[3]; s: f32; t: i32[3]; }}
constant {{
    w: i4[4, 3]; zero: u4 @init(3); count: u16 @init(40000); m: u2[3]; big: u64; f: f8[3];
}}
block entry {{
    op cast(w, to=f32) >> whole;
    op matmul(x, whole) >> y;
    op cast(count, to=f32) >> s;
    {nodes}
}}
"""


def test_weights_of_four_bits():
    rng = np.random.default_rng(2)
    weights = {
        "w": TensorSpec(rng.integers(-8, 8, (4, 3)), "i4"),
        "m": TensorSpec(np.array([0, 3, 1]), "u2"),
        "big": np.array(2**63 - 1, np.uint64),
        "f": TensorSpec(np.array([1.5, -0.25, 57344.0], np.float32), "f8"),
    }
    nodes = """
    assign wrapped: i4[4, 3];
    op add(w, w) >> wrapped;
    op mul(wrapped, w) >> wrapped;
    op cast(wrapped, to=f32) >> back;
    op matmul(x, back) >> more;
    op add(y, more) >> y;
    op cast(f, to=f32) >> g; op add(y, g) >> y;
    op cast(m, to=f32) >> k; op add(y, k) >> y;
    op cast(zero, to=f32) >> z; op add(s, z) >> s;
    op cast(big, to=f32) >> b; op add(s, b) >> s;
    branch n one two;
    """
    blocks = "block one { op matmul(w, w_t, acc=i32) >> p; op max_axis(p, axes=[0]) >> q; return; }"
    text = QUANTIZED.format(nodes=nodes)
    text += blocks.replace("op matmul(w, w_t, acc=i32) >> p;", "op abs(w, acc=i32) >> p;").replace(
        "op max_axis(p, axes=[0]) >> q;", "op max_axis(p, axes=[0]) >> t;"
    )
    text += "block two { op mul(w, w) >> p2; op sum_axis(p2, axes=[0], acc=i32) >> t; return; }"
    compare(text, **weights)


def test_numbers_beyond_63_bits_are_refused():
    text = "constant { n: u64; } volatile { y: f32; } block entry { op cast(n, to=f32) >> y; }"
    with pytest.raises(ExportError, match=r"'n': expected u64 integers of at most 2\*\*63 - 1"):
        compile_program(parse(text), model(n=np.array(2**63, np.uint64)))


def test_quantization_of_the_file_is_data_of_the_constant():
    quantization = Quantization(
        np.array([0.5, 2], np.float32), np.array([1, 0], np.int32), 1, False
    )
    weights = model(w=TensorSpec(np.ones((3, 2)).astype(int), "i4", quant=quantization))
    text = """
    dynamic { x: f32[3]; } volatile { y: f32[2]; } constant { w: i4[3, 2]; }
    block entry { op cast(w, to=f32) >> f; op matmul(x, f) >> y; }
    """
    graph = lower(link(parse(text), weights)).graph
    (found,) = [c for c in graph.constants.values() if getattr(c, "quantization", None)]
    assert found.names == ("w",)
    assert found.quantization.scales.tolist() == [0.5, 2]
    assert found.quantization.zero_points.tolist() == [1, 0]
    assert found.quantization.axis == 1


@pytest.mark.parametrize("end", ["2000", "n"])
def test_branches_of_a_long_loop_return(end):
    """Every block of OpenInfer's ends with a return, which ends the block and not the loop."""
    compare(
        f"""
        dynamic {{ x: f32; n: i32; }}
        volatile {{ y: f32; t: f32; }}
        constant {{ half: f32 @init(0.5); limit: f32 @init(4); }}
        block entry {{
            op add(x, half) >> y;
            loop newton (i in 0..{end}) {{
                op lt(y, limit) >> low; branch low up down; branch both;
            }}
            return;
        }}
        block up {{ op add(y, half) >> y; return; op mul(y, y) >> y; }}
        block down {{ op mul(y, half) >> y; return; }}
        block both {{
            loop twice (j in 0..2) {{ op add(y, half) >> y; return; }} op mul(y, y) >> y;
        }}
        """,
        outputs=["y"],
    )


# -- random programs -------------------------------------------------------------------------------

BINARY = ("add", "sub", "mul", "min", "max", "div")
UNARY = ("neg", "abs", "relu", "floor", "round", "recip")


@st.composite
def programs(draw):
    """Straight lines of ops over a few variables of one type, some of them persistent."""
    dtype = draw(st.sampled_from(["f32", "i32", "i8", "i64"]))
    names = ["x", "y", "z"]
    lines = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["op", "op", "op", "read", "write", "count"]))
        a, b, out = (draw(st.sampled_from(names)) for _ in range(3))
        out = draw(st.sampled_from(["y", "z"])) if out == "x" else out
        if kind == "op":
            op = draw(st.sampled_from(BINARY + UNARY[: 6 if dtype == "f32" else 3]))
            inputs = f"{a}, {b}" if op in BINARY else a
            lines.append(f"op {op}({inputs}) >> {out};")
        elif kind == "read":
            lines.append(f"cache.read {draw(st.sampled_from(['s', 'T[1]', 'T[n]']))} >> {out};")
        elif kind == "write":
            lines.append(f"cache.write {a} >> {draw(st.sampled_from(['s', 'T[0]', 'T[n]']))};")
        else:
            lines.append("cache.increment n;")
    return f"""
        dynamic {{ x: {dtype}[3]; }}
        volatile {{ y: {dtype}[3] @init(3); z: {dtype}[3]; }}
        persistent {{ s: {dtype}[3]; n: i32; T(i): {dtype}[3] @init(2) @table @fixed(i=16); }}
        block entry {{ {" ".join(lines)} }}
    """


@given(programs())
def test_random_programs(text):
    compare(text, steps=3, outputs=["y", "z"])


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def taper(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_model("m.oinf", {"B": SizeVar(4), "a": numbers(1, 4)})
    return taper_command(capsys)


def test_command(taper):
    arguments = ("compile", PROGRAMS / "minimal.oi", "m.oinf", "-o", "m.taper", "--json")
    code, out, err = taper(*arguments)
    assert (code, err) == (0, "")
    shown, form = json.loads(out), schema("compile")
    assert form == schema("export")
    assert shown.keys() == form.keys()
    assert [each["name"] for each in shown["plan"]["inputs"]] == ["x"]
    (y,) = InferenceSession("m.taper").run(None, {"x": np.zeros(4, np.float32)})
    np.testing.assert_allclose(y, 5 * numbers(1, 4))


def test_what_is_refused_is_printed_and_nothing_written(taper):
    Path("p.oi").write_text(GROWING.format(nodes="cache.read A[] >> all;\n cache.write x >> A[2];"))
    code, _, err = taper("compile", "p.oi", "m.oinf", "-o", "m.taper")
    assert code == 1
    assert "p.oi:6:5: A: expected a fixed size along i, got one that depends on earlier" in err
    assert not Path("m.taper").exists()


def test_inspect_and_outputs(taper):
    taper("compile", PROGRAMS / "minimal.oi", "m.oinf", "-o", "m.taper", "--outputs", "y,a")
    code, out, _ = taper("inspect", "m.taper")
    assert code == 0
    assert re.search("output +y:.*\\n.*output +a:", out), out


def test_page_has_every_option():
    rows = re.findall(r"^\| \[`taper (\w+)`\].* \| (.*) \|", PAGE, re.M)
    assert ("compile", command_parser("compile").description) in rows
    flags = {flag for each in command_parser("compile")._actions for flag in each.option_strings}
    table = " ".join(re.findall(r"^\| (`-.*?) \|", section("compile"), re.M))
    stated = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", table))
    assert stated | {"-h", "--help", "--json"} == flags
