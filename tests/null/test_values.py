"""Test the values of a plan by number."""

from measured_plans import measured_plan
from plan_files import small_plan
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.values import Value


def test_each_tensor_is_a_value_once():
    plan = small_plan()
    values = plan.values()
    assert [value.id for value in values] == list(range(len(plan.tensors)))
    assert {value.name for value in values} == plan.tensors.keys()
    assert [v.name for v in values] == ["x", "w", "b", "keep", "h", "r", "s", "t", "u", "y"]
    for value in values:
        assert value.kind == "Tensor"
        assert value.type == plan.tensors[value.name].type
        if value.producer is None:
            assert plan.tensors[value.name].role in ("input", "constant")
        else:
            assert value.name in plan.nodes[value.producer].outputs


def test_sizes_are_values_of_the_nodes_that_compute_them():
    plan = measured_plan()
    *_, n, positive, large = plan.values()
    assert n == Value(n.id, "n", "SymInt", TensorType("int64", ()), None)
    assert plan.nodes[positive.producer].output == "count"
    assert plan.nodes[large.producer].output == "count_2"
    assert [n.id, positive.id, large.id] == [len(plan.tensors) + i for i in range(3)]
