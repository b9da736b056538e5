"""Test the plan checker on plans in memory: it accepts what works and refuses what does not."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plan_files import small_plan
from plan_oracle import Machine
from plan_strategies import plans
from taper_runtime.base.checks import describe
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate

bounded = settings(max_examples=120, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def build(nodes, tensors, **constants):
    """A plan from node tuples and ``name=(role, shape[, root[, offset[, strides]]])``."""
    specs, placements = {}, {}
    for name, (role, shape, *place) in tensors.items():
        dtype, role = role.split() if " " in role else ("float32", role)
        root, offset, strides = (*place, *(name, 0, contiguous_strides(shape))[len(place) :])
        specs[name] = TensorSpec(name, dtype, shape, role)
        placements[name] = Placement(root, offset, strides)
    return Plan(
        nodes=tuple(PlanNode(op, inputs, (y,), *rest) for op, inputs, y, *rest in nodes),
        tensors=specs,
        placements=placements,
        inputs=tuple(name for name, spec in specs.items() if spec.role == "input"),
        outputs=tuple(name for name, spec in specs.items() if spec.role == "output"),
        constants=constants,
    )


def refused(plan):
    with pytest.raises(PlanFormatError) as caught:
        validate(plan)
    return caught.value.field


def place(plan, name, **changes):
    placements = dict(plan.placements)
    placements[name] = placements[name]._replace(**changes)
    return plan._replace(placements=placements)


def test_small_plan_is_valid_and_runs():
    validate(small_plan())
    Machine(small_plan()).run()


def test_the_empty_plan_is_valid():
    validate(build([], {}))


@bounded
@given(plan=plans())
def test_valid_plans_are_accepted(plan):
    """By the checker, and by the machine that stands in for the truth."""
    validate(plan)
    Machine(plan).run()


@bounded
@given(plan=plans(), data=st.data())
def test_accepted_plans_keep_to_their_memory(plan, data):
    """Plans moved around at random: whatever the checker accepts works on marked memory."""
    placements = dict(plan.placements)
    movable = [n for n, spec in plan.tensors.items() if spec.role == "intermediate"]
    if movable:
        for name in data.draw(st.lists(st.sampled_from(movable), min_size=1, max_size=3)):
            root = data.draw(st.sampled_from([name, placements[name].root, *plan.tensors]))
            offset = data.draw(st.sampled_from([0, 4, 64, 128, 192]))
            placements[name] = placements[name]._replace(root=root, offset=offset)
    moved = plan._replace(placements=placements)
    try:
        validate(moved)
    except PlanFormatError:
        return
    Machine(moved).run()


CHAIN = {"x": ("input", (8,)), "a": ("intermediate", (8,)), "y": ("output", (8,))}


def test_in_place_over_a_root():
    tensors = CHAIN | {"b": ("intermediate", (8,), "a")}
    validate(build([("NEG", ("x",), "a"), ("NEG", ("a",), "b"), ("NEG", ("b",), "y")], tensors))


def test_in_place_over_both_operands():
    tensors = CHAIN | {"b": ("intermediate", (8,), "a")}
    nodes = [("NEG", ("x",), "a"), ("MUL", ("a", "a"), "b"), ("NEG", ("b",), "y")]
    validate(build(nodes, tensors))


def test_in_place_over_what_is_read_later():
    tensors = CHAIN | {"b": ("intermediate", (8,), "a")}
    nodes = [("NEG", ("x",), "a"), ("NEG", ("a",), "b"), ("ADD", ("a", "b"), "y")]
    assert refused(build(nodes, tensors)) == "plan.tensors['b'].root"


def test_in_place_beside_another_view_of_the_same_memory():
    """MUL reads `f`, which is `a` backwards, from where it writes."""
    nodes = [
        ("NEG", ("x",), "a"),
        ("PERMUTE", ("a",), "p", {"axes": (1, 0)}),
        ("MUL", ("a", "p"), "b"),
        ("NEG", ("b",), "y"),
    ]
    tensors = {
        "x": ("input", (3, 3)),
        "a": ("intermediate", (3, 3)),
        "p": ("intermediate", (3, 3), "a", 0, (1, 3)),
        "b": ("intermediate", (3, 3), "a"),
        "y": ("output", (3, 3)),
    }
    assert refused(build(nodes, tensors)) == "plan.tensors['b'].root"


def test_in_place_over_another_dtype():
    nodes = [("NEG", ("x",), "a"), ("LT", ("a", "a"), "b"), ("LOGICAL_NOT", ("b",), "y")]
    tensors = CHAIN | {"b": ("bool intermediate", (8,), "a"), "y": ("bool output", (8,))}
    assert refused(build(nodes, tensors)) == "plan.tensors['b'].root"


def test_in_place_over_a_broadcast_operand():
    nodes = [("NEG", ("x",), "a"), ("ADD", ("a", "z"), "b"), ("NEG", ("b",), "y")]
    tensors = {
        "x": ("input", (1, 8)),
        "z": ("input", (2, 8)),
        "a": ("intermediate", (1, 8)),
        "b": ("intermediate", (2, 8), "a"),
        "y": ("output", (2, 8)),
    }
    assert refused(build(nodes, tensors)) == "plan.tensors['b'].offset"


def test_in_place_over_another_dtype_of_the_same_size():
    nodes = [("NEG", ("x",), "a"), ("CAST", ("a",), "b", {"dtype": "int32"}), ("NEG", ("b",), "y")]
    tensors = CHAIN | {"b": ("int32 intermediate", (8,), "a"), "y": ("int32 output", (8,))}
    assert refused(build(nodes, tensors)) == "plan.tensors['b'].root"


def test_in_place_over_another_shape_of_the_same_size():
    nodes = [("NEG", ("x",), "a"), ("ADD", ("a", "z"), "b"), ("NEG", ("b",), "y")]
    tensors = CHAIN | {
        "z": ("input", (1, 8)),
        "b": ("intermediate", (1, 8), "a"),
        "y": ("output", (1, 8)),
    }
    assert refused(build(nodes, tensors)) == "plan.tensors['b'].root"


@pytest.mark.parametrize("offset", [4, 8, 12])
def test_in_place_but_shifted(offset):
    nodes = [
        ("NEG", ("x",), "a"),
        ("SLICE", ("a",), "p", {"axis": 0, "start": 0, "stop": 4}),
        ("NEG", ("p",), "b"),
        ("NEG", ("b",), "y"),
    ]
    tensors = CHAIN | {
        "p": ("intermediate", (4,), "a"),
        "b": ("intermediate", (4,), "a", offset),
        "y": ("output", (4,)),
    }
    assert refused(build(nodes, tensors)) == "plan.tensors['b'].root"


def test_a_root_whose_tensors_are_dead_is_a_place_for_others():
    nodes = [("NEG", ("x",), "a"), ("NEG", ("a",), "c"), ("NEG", ("c",), "b"), ("NEG", ("b",), "y")]
    tensors = CHAIN | {"c": ("intermediate", (8,)), "b": ("intermediate", (8,), "a")}
    plan = build(nodes, tensors)
    validate(plan)
    Machine(plan).run()


PARTS = {
    "x": ("input", (4,)),
    "a": ("intermediate", (4,), "c"),
    "b": ("intermediate", (4,), "c", 16),
    "c": ("intermediate", (8,)),
    "y": ("output", (8,)),
}
JOINED = [
    ("NEG", ("x",), "a"),
    ("ABS", ("x",), "b"),
    ("CAT", ("a", "b"), "c", {"axis": 0}),
    ("NEG", ("c",), "y"),
]


def test_parts_side_by_side_are_a_whole():
    plan = build(JOINED, PARTS)
    validate(plan)
    assert not plan.is_executed(plan.nodes[2])
    Machine(plan).run()


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (("intermediate", (4,), "c", 12), "plan.tensors['b'].root"),  # over a
        (("intermediate", (4,)), "plan.tensors['b'].root"),
        (("intermediate", (4,), "y", 16), "plan.tensors['b'].root"),
    ],
)
def test_a_part_that_lies_elsewhere(part, field):
    assert refused(build(JOINED, PARTS | {"b": part})) == field


def test_parts_in_another_order():
    nodes = [*JOINED[:2], ("CAT", ("b", "a"), "c", {"axis": 0}), JOINED[3]]
    plan = build(nodes, PARTS)
    assert plan.is_executed(plan.nodes[2])
    assert refused(plan) == "plan.tensors['c'].root"


def test_a_part_too_far_on():
    tensors = PARTS | {"d": ("intermediate", (12,)), "y": ("output", (12,))}
    tensors |= {name: (*PARTS[name][:2], "d", *PARTS[name][3:]) for name in "ab"}
    tensors |= {"c": ("intermediate", (8,), "d"), "e": ("intermediate", (4,), "d", 32)}
    nodes = [*JOINED[:3], ("NEG", ("x",), "e"), ("CAT", ("c", "e"), "d", {"axis": 0})]
    nodes += [("NEG", ("d",), "y")]
    plan = build(nodes, tensors)
    validate(plan)
    Machine(plan).run()
    assert refused(place(plan, "b", offset=20)) == "plan.tensors['b'].offset"


def test_parts_that_no_axis_puts_side_by_side():
    tensors = {
        "x": ("input", (2, 2)),
        "a": ("intermediate", (2, 2), "c"),
        "b": ("intermediate", (2, 2), "c", 16),
        "c": ("intermediate", (2, 4)),
        "y": ("output", (2, 4)),
    }
    nodes = [*JOINED[:2], ("CAT", ("a", "b"), "c", {"axis": 1}), JOINED[3]]
    assert refused(build(nodes, tensors)) == "plan.tensors['c'].root"


def test_a_part_read_by_strides():
    tensors = PARTS | {
        "x": ("input", (2, 2)),
        "w": ("intermediate", (2, 2), "c"),
        "a": ("intermediate", (2, 2), "c", 0, (1, 2)),
        "b": ("intermediate", (2, 2), "c", 16),
        "c": ("intermediate", (4, 2)),
        "y": ("output", (4, 2)),
    }
    turn = ("TRANSPOSE", ("w",), "a", {"axis0": 0, "axis1": 1})
    nodes = [("NEG", ("x",), "w"), turn, *JOINED[1:]]
    assert refused(build(nodes, tensors)) == "plan.tensors['a'].strides"


def test_a_part_written_over_before_it_is_joined():
    tensors = PARTS | {"d": ("intermediate", (4,), "c"), "z": ("output", (4,))}
    nodes = [*JOINED[:2], ("NEG", ("x",), "d"), *JOINED[2:], ("NEG", ("d",), "z")]
    assert refused(build(nodes, tensors)) == "plan.tensors['d'].root"


def test_half_an_item_into_an_output():
    nodes = [("NEG", ("x",), "a"), ("SUM", ("a",), "s", {"axes": (0,)}), ("ADD", ("s", "z"), "y")]
    tensors = {
        "x": ("input", (2,)),
        "z": ("input", (8,)),
        "a": ("intermediate", (2,), "y", 2),
        "s": ("intermediate", ()),
        "y": ("output", (8,)),
    }
    assert refused(build(nodes, tensors)) == "plan.tensors['a'].offset"
    validate(place(build(nodes, tensors), "a", offset=4))


def test_in_place_over_a_part_of_a_root():
    """The first half of `a` is overwritten while its second half waits."""
    nodes = [
        ("NEG", ("x",), "a"),
        ("SLICE", ("a",), "p", {"axis": 0, "start": 0, "stop": 4}),
        ("SLICE", ("a",), "q", {"axis": 0, "start": 4, "stop": 8}),
        ("NEG", ("p",), "b"),
        ("ADD", ("b", "q"), "y"),
    ]
    tensors = CHAIN | {
        "p": ("intermediate", (4,), "a"),
        "q": ("intermediate", (4,), "a", 16),
        "b": ("intermediate", (4,), "a"),
        "y": ("output", (4,)),
    }
    plan = build(nodes, tensors)
    validate(plan)
    Machine(plan).run()
    nodes[4] = ("ADD", ("b", "p"), "y")
    assert refused(build(nodes, tensors)) == "plan.tensors['b'].root"


def test_a_chain_in_the_memory_of_an_output():
    tensors = CHAIN | {"a": ("intermediate", (8,), "y"), "b": ("intermediate", (8,), "y")}
    nodes = [("NEG", ("x",), "a"), ("NEG", ("a",), "b"), ("NEG", ("b",), "y")]
    validate(build(nodes, tensors))


def test_an_output_written_over():
    tensors = CHAIN | {"a": ("intermediate", (8,), "y"), "z": ("output", (8,))}
    nodes = [("NEG", ("x",), "y"), ("NEG", ("x",), "a"), ("NEG", ("a",), "z")]
    assert refused(build(nodes, tensors)) == "plan.tensors['a'].root"


def test_an_output_that_is_a_view_of_what_lies_in_it():
    """Reshaping costs nothing for outputs either: the node before writes to the output."""
    nodes = [("NEG", ("x",), "a"), ("RESHAPE", ("a",), "y", {"shape": (2, 4)})]
    plan = build(nodes, CHAIN | {"a": ("intermediate", (8,), "y"), "y": ("output", (2, 4))})
    validate(plan)
    Machine(plan).run()
    assert not plan.is_executed(plan.nodes[1])


def test_wide_items_in_a_narrow_output():
    """The caller's bool array need not be aligned for floats."""
    nodes = [("NEG", ("x",), "a"), ("LT", ("a", "x"), "y")]
    tensors = CHAIN | {"a": ("intermediate", (2,), "y"), "x": ("input", (2,))}
    tensors["y"] = ("bool output", (2,))
    nodes[1] = ("LT", ("a", "x"), "y")
    tensors["z"] = ("bool output", (2, 8))
    tensors["a"] = ("intermediate", (2,), "z")
    plan = build([*nodes, ("LT", ("w", "w"), "z")], tensors | {"w": ("input", (2, 8))})
    assert refused(plan) == "plan.tensors['a'].root"


def test_a_view_of_an_input_and_of_a_constant():
    nodes = [
        ("PERMUTE", ("x",), "p", {"axes": (1, 0)}),
        ("PERMUTE", ("c",), "q", {"axes": (1, 0)}),
        ("ADD", ("p", "q"), "y"),
    ]
    tensors = {
        "x": ("input", (2, 3)),
        "c": ("constant", (2, 3)),
        "p": ("intermediate", (3, 2), "x", 0, (1, 3)),
        "q": ("intermediate", (3, 2), "c", 0, (1, 3)),
        "y": ("output", (3, 2)),
    }
    validate(build(nodes, tensors, c=np.zeros((2, 3), np.float32)))


def test_a_view_that_strides_cannot_express():
    nodes = [
        ("PERMUTE", ("x",), "p", {"axes": (1, 0)}),
        ("RESHAPE", ("p",), "r", {"shape": (6,)}),
        ("NEG", ("r",), "y"),
    ]
    tensors = {
        "x": ("input", (2, 3)),
        "p": ("intermediate", (3, 2), "x", 0, (1, 3)),
        "r": ("intermediate", (6,), "x"),
        "y": ("output", (6,)),
    }
    assert refused(build(nodes, tensors)) == "plan.tensors['r'].root"


def test_empty_tensors_share_any_byte():
    nodes = [("NEG", ("x",), "a"), ("NEG", ("x",), "b"), ("ADD", ("a", "b"), "y")]
    tensors = {name: (role, (0, 3)) for name, (role, _) in CHAIN.items()}
    validate(build(nodes, tensors | {"b": ("intermediate", (0, 3))}))


def test_an_output_may_stand_twice():
    plan = build([("NEG", ("x",), "y")], {"x": ("input", (2,)), "y": ("output", (2,))})
    validate(plan._replace(outputs=("y", "y")))


def test_constants_must_be_contiguous():
    tensors = {"c": ("constant", (4, 2))}
    good = np.zeros((4, 2), np.float32)
    validate(build([], tensors, c=good))
    assert refused(build([], tensors, c=np.zeros((2, 4), np.float32).T)) == "plan.tensors['c']"


def test_constants_must_be_in_native_byte_order():
    swapped = np.zeros((2,), np.dtype(np.float32).newbyteorder())
    assert refused(build([], {"c": ("constant", (2,))}, c=swapped)) == "plan.tensors['c'].dtype"


@pytest.mark.parametrize("name", ["", "__metadata__", "sample/c"])
def test_names_that_no_constant_may_have(name):
    constants = {name: np.zeros(2, np.float32)}
    assert refused(build([], {name: ("constant", (2,))}, **constants)) == f"plan.tensors[{name!r}]"


@pytest.mark.parametrize("name", ["__metadata__", "sample/c", "plan", "x y\n", "\N{CANDLE}"])
def test_names_that_an_input_may_have(name):
    validate(build([], {name: ("input", (2,))}))


def test_shapes_are_tuples():
    spec = TensorSpec("x", "float32", [2], "input")
    plan = Plan((), {"x": spec}, {"x": Placement("x", 0, (1,))}, ("x",), (), {})
    assert refused(plan) == "plan.tensors['x'].shape"


def test_strides_are_tuples():
    assert refused(place(small_plan(), "t", strides=[4, 1])) == "plan.tensors['t'].strides"


def test_messages_stay_short():
    assert describe({"a": [1] * 1000}) == "an object"
    assert describe([[1] * 1000]) == "an array"
    assert len(describe("a" * 1000)) == 60
    assert describe(2**63 - 1) == str(2**63 - 1)
    assert describe(10**5000) == "an integer of 16610 bits"


def test_a_placement_is_missing():
    plan = small_plan()
    placements = dict(plan.placements)
    del placements["t"]
    assert refused(plan._replace(placements=placements)) == "plan.tensors['t']"


def test_a_placement_too_many():
    plan = small_plan()
    placements = plan.placements | {"z": Placement("z", 0, ())}
    assert refused(plan._replace(placements=placements)) == "plan.tensors['z']"


def test_a_spec_under_another_name():
    plan = small_plan()
    tensors = plan.tensors | {"t": plan.tensors["t"]._replace(name="z")}
    assert refused(plan._replace(tensors=tensors)) == "plan.tensors['t']"


#: Two layers that are alike: each transposes in place, and reads that by strides.
LAYERS = {
    "x": ("input", (2, 3)),
    "a": ("intermediate", (2, 3)),
    "p": ("intermediate", (3, 2), "a", 0, (1, 3)),
    "b": ("intermediate", (3, 2)),
    "c": ("intermediate", (2, 3)),
    "q": ("intermediate", (3, 2), "c", 0, (1, 3)),
    "y": ("output", (3, 2)),
}


def layers(axes=(1, 0), **changes):
    nodes = [
        ("NEG", ("x",), "a"),
        ("PERMUTE", ("a",), "p", {"axes": (1, 0)}),
        ("NEG", ("p",), "b"),
        ("ABS", ("x",), "c"),
        ("PERMUTE", ("c",), "q", {"axes": axes}),
        ("NEG", ("q",), "y"),
    ]
    return build(nodes, LAYERS | changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"axes": (True, 0)}, "plan.nodes[4].attrs.axes"),
        ({"axes": (1.0, 0)}, "plan.nodes[4].attrs.axes"),
        ({"axes": (1, 0, {})}, "plan.nodes[4].attrs.axes"),
        ({"axes": (0, 1)}, "plan.nodes[4].outputs[0]"),
        ({"c": ("intermediate", (2.0, 3))}, "plan.tensors['c'].shape"),
        ({"c": ("intermediate", (2, [3]))}, "plan.tensors['c'].shape"),
        ({"c": ("int32 intermediate", (2, 3))}, "plan.nodes[3].outputs[0]"),
        ({"q": ("intermediate", (3, 2), "c", 8, (1, 3))}, "plan.tensors['q'].offset"),
        ({"q": ("intermediate", (3, 2), "c", 0, (1, True))}, "plan.tensors['q'].strides"),
        ({"q": ("intermediate", (3, 2), "c", 0, (2, 1))}, "plan.tensors['q'].strides"),
        ({"q": ("intermediate", (3, 2), "p", 0, (1, 3))}, "plan.tensors['q'].root"),
        ({"y": ("output", (3, 2), "a", 0, (2, 1))}, "plan.tensors['y'].root"),
    ],
)
def test_a_layer_that_is_almost_like_the_one_before(changes, field):
    """Checks are made once for what is alike: nothing of another type or place passes with it."""
    validate(layers())
    assert refused(layers(**changes)) == field
