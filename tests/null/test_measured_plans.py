"""Plans in which nodes compute sizes: valid, saved, or refused."""

import numpy as np
import pytest

from measured_plans import POSITIVE, N, measured_plan
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.sizes import variable
from taper_runtime.file.reader import load
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.segments import cut
from taper_runtime.plan.validate import validate


def test_a_file_gives_the_plan_back(tmp_path):
    plan = measured_plan()
    plan.save(tmp_path / "plan.taper")
    back = load(tmp_path / "plan.taper")
    assert (back.sizes, back.origins) == (plan.sizes, plan.origins)
    assert back.tensors == plan.tensors
    assert back.nodes == plan.nodes


def test_segments():
    """Each begins where a size is first needed, and knows those that its own nodes need."""
    first, second, third = cut(measured_plan())
    assert [node.output for node in first.plan.nodes] == ["places", "end", "count"]
    assert second.measured == {"positive": ("count", 0)}
    assert third.measured == {"large": ("count_2", 0)}
    assert list(third.plan.sizes) == ["positive", "large"]
    assert "rows" in second.plan.outputs  # an output of the plan
    assert {"double", "places_2"} <= {*second.plan.outputs} & {*third.plan.inputs}


def changed(**fields):
    plan = measured_plan()
    return plan._replace(**{key: {**getattr(plan, key), **new} for key, new in fields.items()})


def with_type(name, **fields):
    plan = measured_plan()
    return changed(tensors={name: plan.tensors[name]._replace(**fields)})


def reordered():
    plan = measured_plan()
    nodes = list(plan.nodes)
    nodes.insert(0, nodes.pop(8))  # makes `end_2`, which has to do with `positive`
    return plan._replace(nodes=tuple(nodes))


ATTACKS = {
    "an origin of no variable": (changed(origins={"u": ("count", 0)}), "plan.origins['u']"),
    "an origin that is an input": (changed(origins={"large": ("x", 0)}), "plan.origins['large']"),
    "no tensor": (changed(origins={"large": ("z", 0)}), "plan.origins['large']"),
    "not an int64": (changed(origins={"large": ("y", 0)}), "plan.origins['large']"),
    "a tensor of a size that varies": (
        changed(origins={"large": ("places", 0)}), "plan.origins['large']",
    ),
    "no element": (changed(origins={"large": ("count_2", 1)}), "plan.origins['large']"),
    "an element before the first": (
        changed(origins={"large": ("count_2", -1)}), "plan.origins['large']",
    ),
    "a shape of no sizes": (
        with_type("count_2", shape=([1],)), "plan.tensors['count_2'].shape",
    ),
    "strides of other dims": (
        changed(placements={"count_2": Placement("count_2", 0, (1, 1))}), "plan.origins['large']",
    ),
    "no origin": (changed(origins={"large": None}), "plan.origins['large']"),
    "a node before the origin": (reordered(), "plan.nodes[0]"),
    "an input of a computed size": (with_type("second", shape=(POSITIVE,)), "plan."),
    "a range beyond the room": (changed(sizes={"large": (0, 65)}), "plan."),
    "a limit that comes later": (
        changed(sizes={"positive": (0, variable("large", 0, N))}), "plan.sizes['positive']",
    ),
}  # fmt: skip


def test_the_plan_is_fine_unbroken():
    validate(measured_plan())


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name):
    plan, field = ATTACKS[name]
    with pytest.raises(PlanFormatError) as caught:
        validate(plan)
    assert caught.value.field.startswith(field)


def given_plan():
    """The first n of x, where n is an input."""
    n = variable("n", 0, 8)
    specs = [
        TensorSpec("x", "float32", (8,), "input"),
        TensorSpec("count", "int64", (), "input"),
        TensorSpec("cut", "float32", (n,), "intermediate"),
        TensorSpec("y", "float32", (n,), "output"),
    ]
    placements = {s.name: Placement(s.name, 0, contiguous_strides(s.shape)) for s in specs}
    placements["cut"] = Placement("x", 0, (1,))
    return Plan(
        nodes=(
            PlanNode("SLICE", ("x",), ("cut",), {"axis": 0, "start": 0, "stop": n}),
            PlanNode("NEG", ("cut",), ("y",)),
        ),
        tensors={spec.name: spec for spec in specs},
        placements=placements,
        inputs=("x", "count"),
        outputs=("y",),
        constants={},
        sizes={"n": (0, 8)},
        origins={"n": ("count", 0)},
    )


def test_a_size_may_be_an_input():
    plan = given_plan()
    validate(plan)
    (segment,) = cut(plan)
    assert segment.measured == {"n": ("count", 0)}


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_a_size_is_an_int64(dtype):
    plan = given_plan()
    spec = plan.tensors["count"]._replace(dtype=dtype)
    with pytest.raises(PlanFormatError, match="expected an int64 tensor"):
        validate(plan._replace(tensors={**plan.tensors, "count": spec}))


def test_a_constant_is_no_size():
    plan = given_plan()
    spec = plan.tensors["count"]._replace(role="constant")
    changed = plan._replace(
        tensors={**plan.tensors, "count": spec},
        inputs=("x",),
        constants={"count": np.array(3)},
    )
    with pytest.raises(PlanFormatError, match="expected a tensor that a node makes, or an input"):
        validate(changed)
