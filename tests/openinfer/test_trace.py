"""Test what a trace records, prints and costs; compare its JSON with a golden text."""

import json

import numpy as np
import pytest

from simulated import executor, simulator, step
from taper_openinfer import Random, Simulator, StepError, format_truncated
from taper_openinfer.language.graph import Graph, Op, Return
from taper_openinfer.oinf.reader import Model
from taper_openinfer.simulator import walking
from taper_openinfer.simulator.events import TraceEvent, parts_of, to_json, to_perfetto

GOLDEN = """[
  {
    "block_name": "entry",
    "node_index": 0,
    "node_uuid": "00000000-0000-4000-8000-000000000000",
    "kind": "OpExecute",
    "params": [
      "x",
      "a"
    ],
    "output": [
      "y"
    ],
    "micros": [
      0,
      0,
      0
    ]
  },
  {
    "block_name": "entry",
    "node_index": 1,
    "node_uuid": "00000000-0000-4000-8000-000000000001",
    "kind": "Return",
    "params": [],
    "output": [],
    "micros": [
      0,
      0,
      0
    ]
  }
]"""

EVERYTHING = """
dynamic { x: f32[2]; c: bool; }
volatile { y: f32[2]; z: f32[2]; rows: f32[2, 2]; }
constant { W(l): f32[2] @pattern("w.{l}"); }
persistent { n: i32; A(i): f32[2] @table; }
block entry {
    assign t: f32[2];
    cache.increment n;
    cache.decrement 2 n;
    cache.increment 3 n;
    loop layers (l in 0..2) { op add(x, W[l]) >> t; cache.write t >> A[l]; }
    cache.read A[0..l2] >> rows;
    cache.reset A[0];
    barrier;
    dep after(add) before(reset);
    transfer x >> z;
    branch c yes no;
    yield x;
    await x;
    return;
    barrier;
}
block yes { op mul(x, W[1]) >> y; return; }
block no { barrier; }
block beside { await x; op add(x, x) >> z; yield x; }
""".replace("l2", "2")

LINES = [
    "[entry] -- assign t",
    "[entry] -- cache.increment n",
    "[entry] -- cache.decrement 2 n",
    "[entry] -- cache.increment 3 n",
    "[entry] -- op add(x,W[l=0]) >> t",
    "[entry] -- cache.write t >> A[l]",
    "[entry] -- op add(x,W[l=1]) >> t",
    "[entry] -- cache.write t >> A[l]",
    "[entry] -- cache.read A[0..2] >> rows",
    "[entry] -- cache.reset A[0]",
    "[entry] -- barrier",
    "[entry] -- dep after(add) before(reset)",
    "[entry] -- transfer x >> z",
    "[entry] -- branch c yes no",
    "[yes] -- op mul(x,W[1]) >> y",
    "[yes] -- return",
    "[entry] -- yield x",
    "[beside] -- await x",
    "[beside] -- op add(x,x) >> z",
    "[beside] -- yield x",
    "[entry] -- await x",
    "[entry] -- return",
]
ROWS = {f"w__{n}": np.full(2, n + 1, np.float32) for n in range(2)}
X = np.array([1, 2], np.float32)


def everything():
    return simulator(EVERYTHING, **ROWS)


def small():
    graph = Graph()
    for name, kind in (("x", "dynamic"), ("a", "constant"), ("y", "volatile")):
        graph.add_var(name, kind, "f32", [2], init=0.0 if kind == "constant" else None)
    graph.add_block("entry")
    nodes = [graph.add_node("entry", Op("add", ["x", "a"], output="y"))]
    nodes.append(graph.add_node("entry", Return()))
    for number, node in enumerate(nodes):
        node.uuid = f"00000000-0000-4000-8000-{number:012}"
    return Simulator(Model.of({}), graph)


def test_json_has_the_stated_fields_in_order():
    made = small().with_trace().make_executor()
    step(made, x=X)
    assert to_json(made.trace()) == GOLDEN


def test_a_traced_step_prints_a_line_for_every_node(capsys):
    made = everything().with_trace().make_executor()
    step(made, x=X, c=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == LINES
    nodes = {node.index: node for node in made._program.graph.nodes()}
    for line in lines:
        index, uuid, _ = line.split(" ", 2)
        assert nodes[int(index)].uuid == uuid
    assert [event.line() for event in made.trace()] == lines


def test_what_a_stranger_calls_a_node_cannot_steer_a_terminal():
    event = TraceEvent("b\x1b[2J", 1, "u\n", "Assign", [], [], (0, 0, 0), "assign \u202e", "")
    assert event.line() == "1 u\\n [b\\x1b[2J] -- assign \\u202e"


def test_a_timer_times_ops(capsys):
    made = everything().with_timer().with_trace().make_executor()
    step(made, x=X, c=True)
    events = made.trace()
    assert {event.kind for event in events if any(event.micros_parts)} == {"OpExecute"}
    ops = [event for event in events if event.kind == "OpExecute"]
    assert all(0 < event.duration_ns < 60e9 for event in ops)
    assert all(event.line().endswith(f" -- ({event.micros})") for event in ops)
    assert all(event.micros.endswith("ns") for event in ops)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("ns)") for line in lines) == len(ops)


def test_a_time_is_told_in_three_parts():
    event = TraceEvent("b", 0, "u", "OpExecute", [], [], parts_of(31_788), "", "")
    assert (event.micros, event.duration_ns) == ("0ms 31us 788ns", 31_788)
    assert parts_of(12_345_678_901) == (12345, 678, 901)


def test_without_a_trace_no_event_is_made(monkeypatch, capsys):
    def refuse(*_):
        raise AssertionError("an event")

    monkeypatch.setattr(walking, "TraceEvent", refuse)
    for made in (everything(), everything().with_timer()):
        stepper = made.make_executor()
        step(stepper, x=X, c=True)
        assert stepper.trace() == []
    assert capsys.readouterr().out == ""
    with pytest.raises(AssertionError, match="an event"):
        step(everything().with_trace().make_executor(), x=X, c=True)


def test_a_trace_goes_over_all_steps(capsys):
    made = small().with_trace().make_executor()
    for _ in range(3):
        step(made, x=X)
    assert [event.node_index for event in made.trace()] == [0, 1] * 3


def test_variables_can_be_fetched_while_a_step_is_walked():
    text = """
    dynamic { x: f32[2]; }
    volatile { y: f32[2] @init(5.0); }
    persistent { n: i32; }
    block entry { assign t: f32[2]; op add(x, x) >> t; op mul(y, t) >> y; cache.increment n; }
    """
    made = executor(text)
    made.insert_dynamic("x", X)
    seen = [
        (event.node_desc, made.fetch("t").tolist(), made.fetch("y").tolist(), made.fetch("n"))
        for event in made.iterate()
    ]
    assert seen == [
        ("assign t", [0, 0], [5, 5], 0),
        ("op add(x,x) >> t", [2, 4], [5, 5], 0),
        ("op mul(y,t) >> y", [2, 4], [10, 20], 0),
        ("cache.increment n", [2, 4], [10, 20], 1),
    ]
    assert made.trace() == [], "nothing is stored"


def test_a_step_that_is_walked_in_part_is_over_when_another_begins():
    made = small().make_executor()
    made.insert_dynamic("x", X)
    walk = made.iterate()
    next(walk)
    step(made, x=2 * X)
    assert list(walk) == []
    np.testing.assert_array_equal(made.fetch("y"), 2 * X)
    walk = made.iterate()
    with pytest.raises(StepError, match="x: expected a value for this step"):
        next(walk)


def test_perfetto_gets_complete_events_with_blocks_as_threads(capsys):
    made = everything().with_timer().with_trace().make_executor()
    step(made, x=X, c=True)
    trace = json.loads(to_perfetto(made.trace()))
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    shown = [f"[{names[e['tid']]}] -- {e['name']}" for e in spans]
    assert shown == LINES
    assert all(set(e) >= {"ts", "dur", "pid", "cat"} for e in spans)
    entry = [e["ts"] for e in spans if names[e["tid"]] == "entry"]
    assert entry == sorted(entry)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([], None, "{}"),
        ([1, 2], None, "{1, 2}"),
        ([1.0, 2.5, -3.255, 4.0], None, "{1.00, 2.50, -3.25, 4.00}"),
        ([1, 2, 3, 4, 5], None, "{1, 2 ... 4, 5}"),
        ([True, False], None, "{true, false}"),
        (np.array([0x3F80, 0x4000], np.uint16), "bf16", "{1.00, 2.00}"),
        (np.array(7.0), None, "{7.00}"),
    ],
)
def test_values_are_cut(values, dtype, expected):
    assert format_truncated(values, dtype) == expected


@pytest.mark.parametrize(
    "dtype", ["f32", "f64", "bf16", "f8", "i8", "u4", "i1", "t1", "t2", "bool"]
)
def test_random_numbers_follow_their_seed_and_type(dtype):
    from taper_openinfer.dtypes import DTYPES, check_array

    one, same, other = (Random.generate_with_seed(s, (-1, 1), 100, dtype) for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert one.dtype == DTYPES[dtype].storage
    check_array(dtype, one)
