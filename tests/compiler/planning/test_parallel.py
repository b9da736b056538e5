"""Nodes that run at the same time: the bits, the memory, the errors and the states of a row."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from marks import thinned
from random_graphs import random_graph
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.planning import make_plan
from taper_runtime import InferenceSession, InputError, SessionOptions
from taper_runtime.base.random_state import new_state
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.memory_use import memory_use, parallel_arena
from taper_runtime.executor.program import arena_ranges, executed_nodes, make_runner
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import Attr, OpDef
from taper_runtime.plan.node_order import order_of

F = "float32"


def opened(plan, at_once=1, threads=1, **options):
    made = SessionOptions()
    made.intra_op_num_threads = threads
    if at_once > 1:
        made.execution_mode, made.inter_op_num_threads = "parallel", at_once
    for name, value in options.items():
        setattr(made, name, value)
    return InferenceSession(plan, made)


def random_feed(plan, seed=0):
    rng = np.random.default_rng(seed)
    feed = {}
    for name in plan.inputs:
        spec = plan.tensors[name]
        whole = np.zeros(spec.shape, np.int64)
        feed[name] = rng.standard_normal(spec.shape).astype(F) if spec.dtype == F else whole
    return feed


def assert_same_bits(got, want, message):
    for a, b in zip(got, want, strict=True):
        assert a.tobytes() == b.tobytes(), message


class Host:
    """HOST, an op that numpy computes: x, after a while that a test sets; or an error."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.longest_ms = 0.0
        self.fails = None

    def evaluate(self, inputs, attrs):
        if attrs["number"] == self.fails:
            raise ValueError(f"number {self.fails}")
        if self.longest_ms:
            time.sleep(self.rng.uniform(0, self.longest_ms / 1000))
        return inputs[0].copy()


@pytest.fixture
def host(monkeypatch):
    host = Host()
    op = OpDef(
        name="HOST",
        doc="x.",
        inputs=(1, 1),
        infer=lambda inputs, attrs: inputs[0],
        evaluate=host.evaluate,
        attrs={"number": Attr("int")},
        native=False,
    )
    monkeypatch.setitem(REGISTRY, "HOST", op)
    return host


def wide_graph(seed):
    """Nodes of all kinds of speed over views, sums in place, parts of one tensor, host calls."""
    rng = np.random.default_rng(seed)
    graph = Graph()
    pool = [graph.add_input(f"x{i}", F, (24, 24)) for i in range(2)]
    weight = graph.add_constant("w", rng.standard_normal((24, 24)).astype(F) / 5)

    def pick():
        return pool[rng.integers(max(0, len(pool) - 8), len(pool))]

    for number in range(int(rng.integers(8, 40))):
        a, kind = pick(), int(rng.integers(0, 8))
        cut = {"axis": 0, "start": 0, "stop": 12}
        if kind == 0:
            pool.append(graph.add_node("TANH", [a]))
        elif kind == 1:
            pool.append(graph.add_node("ADD", [a, pick()]))
        elif kind == 2:
            turned = graph.add_node("TRANSPOSE", [a], {"axis0": 0, "axis1": 1})
            pool.append(graph.add_node("SOFTMAX", [turned], {"axis": 1}))
        elif kind == 3:
            upper = graph.add_node("SLICE", [a], cut)
            lower = graph.add_node("SLICE", [pick()], {**cut, "start": 12, "stop": 24})
            parts = [graph.add_node("NEG", [upper]), graph.add_node("TANH", [lower])]
            pool.append(graph.add_node("CAT", parts, {"axis": 0}))
        elif kind == 4:
            pool.append(graph.add_node("HOST", [a], {"number": number}))
        elif kind == 5:
            pool.append(graph.add_node("CUMSUM", [a], {"axis": 0}))
        else:
            pool.append(graph.add_node("MATMUL", [a, weight]))
    made = [name for name in dict.fromkeys(pool) if name in graph.producers]
    picked = rng.choice(made, size=min(len(made), 3), replace=False)
    graph.set_outputs(list(dict.fromkeys([*map(str, picked), made[-1]])))
    return graph


@pytest.mark.parametrize("seed", range(60))
def test_any_schedule_gives_the_same_bits(seed, host):
    plan = make_plan(wide_graph(seed))
    feed = random_feed(plan)
    want = opened(plan).run(None, feed)
    for at_once, threads in ((2, 1), (3, 2)):
        session = opened(plan, at_once, threads)
        for host.longest_ms in (0, 0, 0, 0.3):
            assert_same_bits(session.run(None, feed), want, (at_once, threads))


@pytest.mark.parametrize("seed", thinned(3, range(60)))
def test_optimized_plans_give_the_same_bits(seed):
    graph = random_graph(seed)
    compile_graph(graph)
    plan = make_plan(graph)
    feed = random_feed(plan)
    want = opened(plan).run(None, feed)
    for at_once, threads in ((2, 1), (3, 2)):
        session = opened(plan, at_once, threads)
        for _ in range(5):
            assert_same_bits(session.run(None, feed), want, (at_once, threads))


# Memory -----------------------------------------------------------------------------------------


def bytes_of(plan, name):
    """Which bytes of its root a tensor takes."""
    root, offset, strides = plan.placements[name]
    elements = np.zeros(plan.tensors[name].shape, np.int64)
    for axis, (count, stride) in enumerate(zip(elements.shape, strides, strict=True)):
        elements += np.arange(count).reshape(-1, *[1] * (elements.ndim - axis - 1)) * stride
    return root, {offset + 4 * int(e) for e in elements.flat}


def comes_before(plan, nodes):
    """Per node the nodes before it, by what each reads and writes, byte by byte."""
    reads = [[bytes_of(plan, n) for n in node.reads] for node in nodes]
    writes = [[bytes_of(plan, n) for n in node.outputs] for node in nodes]

    def meet(some, others):
        return any(r == s and a & b for r, a in some for s, b in others)

    before = []
    for j in range(len(nodes)):
        direct = {
            i
            for i in range(j)
            if meet(writes[i], reads[j] + writes[j]) or meet(reads[i], writes[j])
        }
        before.append(direct.union(*(before[i] for i in direct)))
    return before


def shared_too_early(plan, at_once):
    """Pairs of roots that share bytes of the arena though neither is over when the other begins."""
    nodes = executed_nodes(plan)
    before = comes_before(plan, nodes)
    root_of = {name: place.root for name, place in plan.placements.items()}
    touched = [{root_of[n] for n in (*node.reads, *node.outputs)} for node in nodes]
    roots = list(arena_ranges(plan, nodes))
    users = [[i for i, names in enumerate(touched) if root in names] for root in roots]
    ranges, offsets, _ = make_runner(plan, Settings(nodes_at_once=at_once)).arena()
    found = []
    for b in range(len(roots)):
        for a in range(b):
            over = any(
                all(x in before[y] for x in users[one] for y in users[other])
                for one, other in ((a, b), (b, a))
            )
            apart = (
                offsets[a] + ranges[a][2] <= offsets[b] or offsets[b] + ranges[b][2] <= offsets[a]
            )
            if not (over or apart):
                found.append((roots[a], roots[b]))
    return found


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("seed", range(30))
def test_memory_is_shared_along_the_partial_order_only(seed):
    assert shared_too_early(make_plan(wide_graph(seed)), at_once=2) == []


def branches(count, width=32, depth=3):
    """``count`` chains of ``depth`` products over one input, added up."""
    rng = np.random.default_rng(0)
    graph = Graph()
    x = graph.add_input("x", F, (width, width))
    ends = []
    for b in range(count):
        y = x
        for d in range(depth):
            w = rng.standard_normal((width, width)).astype(F) / width
            y = graph.add_node("MATMUL", [y, graph.add_constant(f"w{b}_{d}", w)])
        ends.append(y)
    while len(ends) > 1:
        ends = [*ends[2:], graph.add_node("ADD", ends[:2])]
    graph.set_outputs(ends)
    return graph


def test_memory_of_a_row_is_shared_too_early_for_that():
    """What the check above finds where it must: the layout of one node after the other."""
    plan = make_plan(branches(4))
    assert shared_too_early(plan, at_once=1)
    assert shared_too_early(plan, at_once=2) == []


def test_a_chain_has_the_layout_of_a_row():
    plan = make_plan(branches(1, depth=6))
    assert make_runner(plan, Settings(nodes_at_once=4)).arena() == make_runner(plan).arena()


@pytest.mark.parametrize("width", [8, 4096])  # of a side, beside a chain of products
def test_what_is_nearly_a_chain_has_the_layout_of_a_row(width):
    graph = branches(1, width=128, depth=12)
    side = graph.add_input("z", F, (128, width))
    for _ in range(3):
        side = graph.add_node("CUMSUM", [side], {"axis": 0})
    graph.set_outputs([*graph.outputs, graph.add_node("SUM", [side], {"axes": (0, 1)})])
    plan = make_plan(graph)
    same = make_runner(plan, Settings(nodes_at_once=4)).arena() == make_runner(plan).arena()
    assert same == (width == 8)


def test_both_arenas_are_told():
    wide, chain = make_plan(branches(4)), make_plan(branches(1, depth=6))
    assert parallel_arena(wide) > memory_use(wide).arena
    assert parallel_arena(chain) == memory_use(chain).arena
    session = opened(wide, 2)
    session.run(None, random_feed(wide))
    assert session.stats().frames.arena_bytes >= parallel_arena(wide)


# Errors and states ------------------------------------------------------------------------------


def lookups(count):
    """``count`` branches that look rows up, each by indices of its own."""
    graph = Graph()
    table = graph.add_constant("table", np.arange(60, dtype=F).reshape(20, 3))
    ends = []
    for b in range(count):
        ids = graph.add_input(f"ids{b}", "int64", (4,))
        rows = graph.add_node("INDEX_SELECT", [table, ids], {"axis": 0})
        ends.append(graph.add_node("TANH", [rows], name=f"end{b}"))
    graph.set_outputs(ends)
    return graph


@pytest.mark.parametrize("threads", [1, 2])
def test_a_bad_index_in_one_branch_is_that_nodes_error(threads):
    plan = make_plan(lookups(8))
    session = opened(plan, 2, threads)
    good = {name: np.arange(4) for name in plan.inputs}
    want = session.run(None, good)
    producers = {node.reads[1]: node.output for node in plan.nodes if node.op == "INDEX_SELECT"}
    for number in range(1000):
        bad = f"ids{number % 8}"
        with pytest.raises(InputError, match=rf"node {producers[bad]} .*20"):
            session.run(None, {**good, bad: np.array([0, 1, 20, 2])})
    assert_same_bits(session.run(None, good), want, "after the errors")


def test_of_several_bad_indices_one_is_told():
    plan = make_plan(lookups(8))
    session = opened(plan, 3, 1)
    bad = {name: np.array([0, 1, 20, 2]) for name in plan.inputs}
    for _ in range(100):
        with pytest.raises(InputError, match="20"):
            session.run(None, bad)


def test_an_error_of_a_host_call_is_raised(host):
    graph = branches(8)
    ends = [graph.add_node("HOST", [graph.outputs[0]], {"number": n}) for n in range(3)]
    graph.set_outputs(ends)
    session = opened(make_plan(graph), 2)
    feed = random_feed(session.plan)
    want = session.run(None, feed)
    for host.fails in (0, 1, 2):
        for _ in range(20):
            with pytest.raises(ValueError, match=f"number {host.fails}"):
                session.run(None, feed)
    host.fails = None
    assert_same_bits(session.run(None, feed), want, "after the errors")


def drawing():
    """Towers that draw, two of them through a host; a sum, and rows written in place, are kept."""
    graph = Graph()
    x = graph.add_input("x", F, (32, 32))
    ids = graph.add_input("ids", "int64", (4,))
    state = graph.add_state("generator", new_state(0))
    cache = graph.add_state("cache", np.zeros((20, 32), F))
    total = graph.add_state("total", np.zeros((32, 32), F))
    law = {"law": "normal", "limit": 0, "dtype": F}
    for number in range(4):
        drawn = graph.add_node("RANDOM", [state], {**law, "shape": (32, 32)})
        state = graph.add_node("RANDOM_NEXT", [state, drawn], {k: law[k] for k in ("law", "limit")})
        noisy = graph.add_node("MATMUL", [drawn, x])
        if number % 2:
            noisy = graph.add_node("HOST", [noisy], {"number": number})
        total = graph.add_node("ADD", [total, noisy])
    rows = graph.add_node(
        "SLICE", [graph.add_node("TANH", [x])], {"axis": 0, "start": 0, "stop": 4}
    )
    graph.set_next("generator", state)
    graph.set_next("cache", graph.add_node("WRITE", [cache, ids, rows], {"axis": 0}))
    graph.set_next("total", total)
    graph.set_outputs([graph.add_node("NEG", [total])])
    return graph


@pytest.mark.parametrize(("at_once", "threads"), [(2, 1), (3, 2)])
def test_draws_and_states_are_those_of_a_row(at_once, threads, host):
    """Runs that fail anywhere leave the generator and the other states as they were."""
    plan = make_plan(drawing())
    alone, session = opened(plan, seed=3), opened(plan, at_once, threads, seed=3)
    rng = np.random.default_rng(0)

    def check_states():
        for name in session.state_names:
            assert session.get_state(name).tobytes() == alone.get_state(name).tobytes(), name

    for number in range(40):
        host.longest_ms = number % 2 * 0.3
        x, ids = rng.random((32, 32), F), np.array([0, 3, number % 18, 7])
        with pytest.raises(InputError, match="20"):
            session.run(None, {"x": x, "ids": np.array([5, 6, 20, 7])})
        check_states()
        host.fails = 3
        with pytest.raises(ValueError, match="number 3"):
            session.run(None, {"x": x, "ids": ids + 1})
        check_states()
        host.fails = None
        feed = {"x": x, "ids": ids}
        assert_same_bits(session.run(None, feed), alone.run(None, feed), number)
        check_states()


# Profiles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_spans_follow_the_partial_order(seed, host):
    plan = make_plan(wide_graph(seed))
    nodes = executed_nodes(plan)
    host.longest_ms = 0.3
    executor = CompiledExecutor.compile(plan, Settings(threads=2, nodes_at_once=2))
    feed = random_feed(plan)
    outputs, spans = executor.profile([feed[name] for name in plan.inputs])
    assert_same_bits(outputs, opened(plan).run(None, feed), seed)
    began = [min(begin for begin, _, times in each if times) for each in spans]
    ended = [max(end for _, end, _ in each) for each in spans]
    for node, waits_for in enumerate(order_of(plan, nodes).producers):
        assert ended[node] > began[node]
        assert all(ended[each] <= began[node] for each in waits_for)


def test_a_session_records_parallel_runs(tmp_path):
    plan = make_plan(branches(4))
    feed = random_feed(plan)
    prefix = str(tmp_path / "trace")
    session = opened(plan, 2, enable_profiling=True, profile_file_prefix=prefix)
    assert_same_bits(session.run(None, feed), opened(plan).run(None, feed), "recorded")
    events = json.loads(Path(session.end_profiling()).read_text())["traceEvents"]
    assert {event["tid"] for event in events} <= {0, 1}
    recorded = {event["name"] for event in events} - {"run"}
    assert recorded == {f"{node.output} = {node.op}" for node in executed_nodes(plan)}
