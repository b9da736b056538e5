"""Nodes of several outputs, absent inputs and blocks: in a plan, in its file, and run."""

import json

import numpy as np
import pytest

from block_plans import BODY, CARRYING, NODES, X, body, parts, plan_of, two_entries
from plan_files import PlanFile, assert_same_plan
from several_outputs import AFFINE, HALVES, REPEAT, registered
from taper_runtime.base.checks import MAX_BLOCK_DEPTH
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.sizes import variable
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.file.reader import load, loads
from taper_runtime.ops import REGISTRY
from taper_runtime.plan.plan import Placement, PlanBlock, PlanNode
from taper_runtime.plan.specialize import specialize
from taper_runtime.plan.validate import validate
from taper_runtime.reports.report import describe_plan


@pytest.fixture(autouse=True)
def ops():
    with registered(HALVES, AFFINE, CARRYING):
        yield


def expected(x, times=2):
    a = b = x
    for _ in range(times):
        a, b = np.maximum(a, 0) + np.float32(0.25), np.minimum(a, 0) * b
    return a, b


@pytest.mark.parametrize("executor", [InterpretedExecutor, CompiledExecutor])
def test_blocks_are_run_and_leave_their_operands(executor):
    """The second carry is computed in its own memory, which must not be that of the operand."""
    plan = plan_of(BODY)
    validate(plan)
    x = X.copy()
    for _ in range(2):
        for got, want in zip(executor.compile(plan).run([x]), expected(X), strict=True):
            np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(x, X)


def test_the_file_keeps_blocks(tmp_path):
    plan = plan_of(BODY)
    plan.save(tmp_path / "m.taper")
    again = load(tmp_path / "m.taper")
    assert_same_plan(again, plan)
    assert again.nodes[0].blocks == plan.nodes[0].blocks
    assert "c, d" in describe_plan(again)
    assert "c: float32[2, 3] = AFFINE(up, -, w)" in describe_plan(again)


def test_entries_run_blocks_over_one_constant(tmp_path):
    two_entries().save(tmp_path / "m.taper")
    plan = load(tmp_path / "m.taper")
    assert plan.entry("once").constants.keys() == {"w"}
    for name, times in [("forward", 2), ("once", 1)]:
        results = InterpretedExecutor.compile(plan.entry(name)).run([X])
        for got, want in zip(results, expected(X, times), strict=True):
            np.testing.assert_array_equal(got, want)


def test_sizes_are_known_inside_blocks():
    n = variable("n", 1, 9)
    tensors, placements = parts({"input": "a b", "output": "c d", "intermediate": "u"}, (n,))
    nodes = (PlanNode("HALVES", ("a",), ("c", "u")), PlanNode("ADD", ("b", "u"), ("d",)))
    block = PlanBlock(nodes, tensors, placements, ("a", "b"), ("c", "d"))
    tensors, placements = parts({"input": "x", "output": "y z"}, (n,))
    plan = plan_of(block, tensors=tensors, placements=placements, constants={}, sizes={"n": (1, 9)})
    validate(plan)
    known = specialize(plan, {"n": 4})
    validate(known)
    assert known.nodes[0].blocks[0].tensors["u"].shape == (4,)
    a, b = InterpretedExecutor.compile(plan).run([X[0]])
    np.testing.assert_array_equal(a, np.maximum(X[0], 0))
    np.testing.assert_array_equal(b, X[0] + np.minimum(X[0], 0))


def refused(plan):
    with pytest.raises(PlanFormatError) as caught:
        validate(plan)
    return caught.value.field


IN = "plan.nodes[0].blocks[0]"


def test_outputs_of_one_node_are_apart():
    block = body(NODES, "a b", "c d", "up down", down="up")
    assert refused(plan_of(block)) == f"{IN}.tensors['down'].root"


def test_the_second_output_is_never_in_place(monkeypatch):
    """Only the first may lie where an input did: it is what the op says ``inplace`` of."""
    monkeypatch.setitem(REGISTRY, "HALVES", HALVES._replace(inplace=(0,)))
    nodes = (PlanNode("NEG", ("a",), ("n",)), PlanNode("HALVES", ("n",), ("c", "d")))
    block = body(nodes, "a b", "c d", "n", n="d")
    assert refused(plan_of(block)) == f"{IN}.tensors['d'].root"
    validate(plan_of(body(nodes, "a b", "c d", "n", n="c")))


def test_a_carry_that_is_read_after_it_is_overwritten():
    nodes = (PlanNode("MUL", ("b", "a"), ("d",)), PlanNode("ADD", ("a", "b"), ("c",)))
    validate(plan_of(body(nodes, "a b", "c d")))
    assert refused(plan_of(body(nodes, "a b", "c d", d="b"))) == f"{IN}.tensors['d'].root"


@pytest.mark.parametrize(("output", "root"), [("d", "a"), ("c", "b")])
def test_a_carry_in_the_memory_of_another(output, root):
    block = body(NODES, "a b", "c d", "up down", **{output: root})
    assert refused(plan_of(block)) == f"{IN}.tensors[{output!r}].root"


def test_an_input_that_is_no_carry_is_not_written(monkeypatch):
    block = body(NODES, "a b", "c d", "up down", up="a")
    assert refused(plan_of(block)) == f"{IN}.tensors['up'].root"
    monkeypatch.setitem(REGISTRY, "REPEAT", REPEAT)
    assert refused(plan_of(BODY)) == f"{IN}.tensors['d'].root"


def test_a_block_reads_nothing_around_it():
    nodes = (PlanNode("ADD", ("a", "x"), ("c",)), PlanNode("NEG", ("b",), ("d",)))
    assert refused(plan_of(body(nodes, "a b", "c d"))) == f"{IN}.nodes[0].inputs[1]"


def test_names_stand_once_in_the_whole_plan():
    nodes = (PlanNode("NEG", ("x",), ("c",)), PlanNode("NEG", ("b",), ("d",)))
    assert refused(plan_of(body(nodes, "x b", "c d"))) == f"{IN}.tensors['x']"
    plan = plan_of(BODY)
    nodes = (*plan.nodes, PlanNode("REPEAT", ("x", "x"), ("p", "q"), {"times": 1}, blocks=(BODY,)))
    tensors, placements = parts({"input": "x", "constant": "w", "output": "y z p q"})
    twice = plan._replace(
        nodes=nodes, tensors=tensors, placements=placements, outputs=("y", "z", "p", "q")
    )
    assert refused(twice) == "plan.nodes[1].blocks[0].tensors['a']"


def test_a_result_of_another_type_than_its_carry():
    nodes = (PlanNode("SUM", ("a",), ("c",), {"axes": (0,)}), NODES[2])
    block = body(NODES, "a b", "c d", "up down")
    tensors = {**block.tensors, "c": block.tensors["c"]._replace(shape=(3,))}
    placements = {**block.placements, "c": Placement("c", 0, (1,))}
    nodes = (NODES[0], PlanNode("SUM", ("up",), ("c",), {"axes": (0,)}), NODES[2])
    block = block._replace(nodes=nodes, tensors=tensors, placements=placements)
    assert refused(plan_of(block)) == "plan.nodes[0]"


def test_an_output_of_a_block_stands_once():
    block = body(NODES, "a b", "c d", "up down")._replace(outputs=("c", "c"))
    assert refused(plan_of(block)).startswith(IN)


def nested(depth):
    """A plan with blocks this deep inside each other."""
    block = body(
        (PlanNode("NEG", ("a0",), ("c0",)), PlanNode("NEG", ("b0",), ("d0",))), "a0 b0", "c0 d0"
    )
    for i in range(1, depth):
        node = PlanNode(
            "REPEAT", (f"a{i}", f"b{i}"), (f"c{i}", f"d{i}"), {"times": 1}, "", (block,)
        )
        block = body((node,), f"a{i} b{i}", f"c{i} d{i}")
    return plan_of(block)


def test_blocks_inside_blocks(tmp_path):
    plan = nested(MAX_BLOCK_DEPTH)
    plan.save(tmp_path / "m.taper")
    for got in InterpretedExecutor.compile(load(tmp_path / "m.taper")).run([X]):
        np.testing.assert_array_equal(got, X)
    assert refused(nested(MAX_BLOCK_DEPTH + 1)).endswith("blocks")


@pytest.mark.parametrize("depth", [MAX_BLOCK_DEPTH + 1, 100, 5000])
def test_a_file_with_deeper_blocks_is_refused(tmp_path, depth):
    """Far beyond the limit the JSON is refused before a block is made of it."""
    plan_of(BODY).save(tmp_path / "m.taper")
    file = PlanFile((tmp_path / "m.taper").read_bytes())
    empty = '{"inputs": [], "outputs": [], "tensors": {}, "nodes": [%s]}'
    node = (
        '{"op": "REPEAT", "inputs": [], "outputs": [], "attrs": {}, "source": "", "blocks": [%s]}'
    )
    before, after = (empty.replace("%s", node)).split("%s")
    text = before * depth + (empty % "") + after * depth
    file.plan["nodes"][0]["blocks"] = ["hole"]
    file.plan_text = json.dumps(file.plan).replace('"hole"', text)
    with pytest.raises(PlanFormatError) as caught:
        loads(file.pack())
    assert caught.value.field == "plan" or caught.value.field.endswith(".blocks")
