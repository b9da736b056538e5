"""Plans with size variables: valid for all sizes or refused, bound by the inputs' shapes."""

import json
import math

import numpy as np
import pytest

from plan_files import PlanFile
from sized_plans import B, S, sized_plan
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.base.sizes import UNBOUNDED, bounds, variable
from taper_runtime.file.reader import load, loads
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.specialize import specialize, with_ranges
from taper_runtime.plan.validate import validate
from taper_runtime.plan.varying_dims import varying_dims


@pytest.fixture(scope="module")
def blob(tmp_path_factory):
    path = tmp_path_factory.mktemp("sized") / "plan.taper"
    sized_plan().save(path)
    return path.read_bytes()


def test_a_file_gives_the_plan_back(tmp_path):
    plan = sized_plan()
    plan.save(tmp_path / "plan.taper")
    again = load(tmp_path / "plan.taper")
    assert again.sizes == plan.sizes
    assert again.tensors == plan.tensors
    assert again.placements == plan.placements
    assert [dict(n.attrs) for n in again.nodes] == [dict(n.attrs) for n in plan.nodes]


@pytest.mark.parametrize(("b", "s"), [(2, 2), (1, 32), (8, 2), (8, 32), (3, 7)])
def test_what_is_valid_for_all_sizes_is_valid_for_each(b, s):
    plan = specialize(sized_plan(), {"B": b, "S": s})
    validate(plan)
    assert plan.tensors["c"].shape == (b, 2 * s, 3)
    assert plan.placements["t"].strides == (6 * s if b > 1 else 3, 1, 3)
    assert plan.nodes[-1].attrs["shape"] == (6 * b * s,)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (9, 3, 4), "m": (6,)}, r"'x': dimension 0 \(B\): expected 1 to 8, got 9"),
        ({"x": (1, 1, 4), "m": (2,)}, r"'x': dimension 1 \(S\): expected 2 to 32, got 1"),
        ({"x": (0, 3, 4), "m": (6,)}, r"expected 1 to 8, got 0"),
        ({"x": (1, 3, 4), "m": (8,)}, r"'m': .* expected 6, because .*'x' gives S = 3; got 8"),
        ({"x": (1, 3, 4), "m": (7,)}, r"\(2\*S\): expected 4, 6 and so on, with S 2 to 32, got 7"),
        ({"x": (1, 3, 5), "m": (6,)}, r"'x': expected shape \(B, S, 4\).*must be 4, got 5"),
        ({"x": (3, 4), "m": (6,)}, r"'x': expected shape \(B, S, 4\), got \(3, 4\)"),
    ],
)
def test_shapes_that_do_not_fit_name_the_variable(shapes, message):
    with pytest.raises(InputError, match=message):
        bind_sizes(sized_plan(), shapes)


def test_a_size_beyond_the_hidden_limit_is_told_the_limit():
    plan = sized_plan()._replace(sizes={"B": (1, UNBOUNDED), "S": (2, 32)})
    with pytest.raises(InputError, match=r"\(B\): expected at least 1, got 0"):
        bind_sizes(plan, {"x": (0, 3, 4)})
    with pytest.raises(InputError, match=r"expected 1 to 2147483647, got 1099511627776"):
        bind_sizes(plan, {"x": (2**40, 3, 4)})


def edit(change):
    """An attack: change the plan's JSON."""

    def attack(file):
        change(file.plan)

    return attack


def set_tensor(name, **fields):
    return edit(lambda plan: plan["tensors"][name].update(fields))


def set_attrs(step, **attrs):
    return edit(lambda plan: plan["nodes"][step]["attrs"].update(attrs))


#: 36 terms, so its cube has 256.
GRID = sum(math.prod([B] * i + [S] * j) for i in range(6) for j in range(6))

ATTACKS = {
    "a view beyond its root for large sizes": (
        set_tensor("a", strides=["7*S", 6, 1]), "plan.tensors['a'].",
    ),
    "a view that goes on beyond the end": (
        set_tensor("a", offset="4*S"), "plan.tensors['a'].",
    ),
    "a view before its root": (set_tensor("a", offset="S - 8"), "plan.tensors['a'].offset"),
    "a shape that is right at the sample only": (
        set_tensor("c", shape=["B", 6, 3]), "plan.",
    ),
    "a shape of another form": (set_tensor("c", shape=["B", "S*2", 3]), "plan.tensors['c'].shape"),
    "an unknown variable": (set_tensor("c", shape=["B", "T", 3]), "plan.tensors['c'].shape"),
    "a dim that may be negative": (
        set_tensor("x", shape=["B", "S - 3", 4]), "plan.tensors['x'].shape",
    ),
    "an offset in the arena": (set_tensor("h", offset=64), "plan.tensors['h'].offset"),
    "an offset in the arena that varies": (
        set_tensor("h", offset="64*S"), "plan.tensors['h'].offset",
    ),
    "a size where the op takes none": (set_attrs(3, axis="B"), "plan.nodes[3]"),
    "a slice that may be too long": (set_attrs(2, stop="3 + S"), "plan.nodes[2]"),
    "a slice that is too long for some": (set_attrs(2, stop="S"), "plan.nodes[2]"),
    "a variable that only one product gives": (
        edit(lambda plan: plan["tensors"]["x"].update(shape=["B*S", "S", 4])), "plan.",
    ),
    "a sample out of range": (
        edit(lambda plan: plan.update(sizes={"B": [3, 8], "S": [2, 32]})),
        "plan.samples",
    ),
    "a constant that varies": (set_tensor("w", shape=[4, "3*S"]), "plan."),
    "a tensor beyond the limits for all sizes": (
        set_tensor("h", shape=["B", f"{2**47}*S", 6]), "plan.tensors['h'].shape",
    ),
    "more terms than an expression has": (
        set_tensor("h", shape=[str(GRID)] * 3), "plan.sizes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name, blob):
    attack, field = ATTACKS[name]
    file = PlanFile(blob)
    attack(file)
    with pytest.raises(PlanFormatError) as caught:
        loads(file.pack())
    assert caught.value.field.startswith(field)


def test_the_file_is_fine_unbroken(blob):
    plan = loads(PlanFile(blob).pack())
    assert plan.tensors["x"].shape == (B, S, 4)
    assert json.loads(json.dumps({"sizes": plan.sizes}))


def may_be_empty(plan, **limits):
    return with_ranges(plan, {**plan.sizes, **limits})


def test_a_size_that_may_be_0(tmp_path):
    may_be_empty(sized_plan(), B=(0, 8)).save(tmp_path / "plan.taper")
    plan = load(tmp_path / "plan.taper")
    assert plan.sizes["B"] == (0, 8)
    assert bounds(plan.tensors["x"].shape[0]) == (0, 8)
    values = bind_sizes(plan, {"x": (0, 3, 4), "m": (6,)})
    empty = specialize(plan, values)
    assert empty.tensors["c"].shape == (0, 6, 3)
    assert empty.placements["a"].offset == 0  # at 12 it would begin behind the end of its root


def one_node(node, x, y, sizes):
    """A plan of one node that reads x and makes y."""
    specs = [TensorSpec("x", "float32", x, "input"), TensorSpec("y", "float32", y, "output")]
    return Plan(
        nodes=(node,),
        tensors={spec.name: spec for spec in specs},
        placements={s.name: Placement(s.name, 0, contiguous_strides(s.shape)) for s in specs},
        inputs=("x",),
        outputs=("y",),
        constants={},
        sizes=sizes,
    )


def test_what_holds_from_1_on_is_not_taken_for_0():
    """Columns 3 to 6 of no columns; the largest of nothing."""
    n = variable("n", 1, 8)
    cut = PlanNode("SLICE", ("x",), ("y",), {"axis": 0, "start": 3, "stop": 6})
    largest = PlanNode("AMAX", ("x",), ("y",), {"axes": (0,)})
    for plan in (
        one_node(cut, (6 * n,), (3,), {"n": (1, 8)}),
        one_node(largest, (n, 2), (2,), {"n": (1, 8)}),
    ):
        validate(plan)
        with pytest.raises(PlanFormatError, match=r"plan.nodes\[0\]: .* depends on the inputs"):
            validate(with_ranges(plan, {"n": (0, 8)}))


def test_a_view_of_nothing_may_begin_anywhere():
    """The last column of n begins at 4 * (n - 1) bytes, which is no place where n is 0."""
    n = variable("n", 0, 8)
    plan = one_node(PlanNode("COPY", ("v",), ("y",)), (n, 3), (n, 3), {"n": (0, 8)})
    turned = PlanNode("FLIP", ("x",), ("v",), {"axes": (0,)})
    view = TensorSpec("v", "float32", (n, 3), "intermediate")
    plan = plan._replace(
        nodes=(turned, *plan.nodes),
        tensors={**plan.tensors, "v": view},
        placements={**plan.placements, "v": Placement("x", 12 * n - 12, (-3, 1))},
    )
    validate(plan)
    outside = plan.placements["v"]._replace(offset=12 * n)
    with pytest.raises(PlanFormatError, match="expected a tensor within the"):
        validate(plan._replace(placements={**plan.placements, "v": outside}))


def test_specialized_plans_are_static():
    plan = specialize(sized_plan(), {"B": 2, "S": 3})
    assert not plan.sizes
    np.testing.assert_array_equal(plan.samples["x"], np.ones((2, 3, 4)))
    assert "x" not in specialize(sized_plan(), {"B": 3, "S": 3}).samples


def test_dims_that_vary():
    dims = [(*d[:2], str(d.size), *d[3:]) for d in varying_dims(sized_plan())]
    assert dims == [("x", 0, "B", 1, 8, 1), ("x", 1, "S", 2, 32, 1), ("m", 0, "2*S", 4, 64, 2)]
    plan = sized_plan()._replace(sizes={"B": (0, UNBOUNDED), "S": (2, 32)})
    assert varying_dims(plan)[0][3:] == (0, None, 1)
    n = variable("n", 1, 9)
    tensors = {"x": TensorSpec("x", "float32", (n * n, 3), "input")}
    plan = sized_plan()._replace(inputs=("x",), tensors=tensors, sizes={"n": (1, 9)})
    assert [tuple(d) for d in varying_dims(plan)] == [("x", 0, n * n, 1, 81, 1)]


def test_a_size_may_limit_another(tmp_path):
    """The largest value of a variable of an input may be an expression over one before it."""
    plan = sized_plan()
    limited = with_ranges(plan, {"B": (2, 8), "S": (2, variable("B", 2, 8) + 1)})
    validate(limited)
    limited.save(tmp_path / "limited.taper")
    again = load(tmp_path / "limited.taper")
    assert str(again.sizes["S"][1]) == "B + 1"
    assert bind_sizes(again, {"x": (4, 5, 4), "m": (10,)}) == {"B": 4, "S": 5}
    with pytest.raises(
        InputError, match=r"dimension 1 of input 'x': .* at most 5 \(B \+ 1\), got 6"
    ):
        bind_sizes(again, {"x": (4, 6, 4), "m": (12,)})
    assert bind_sizes(again, {"m": (12,)}) == {"S": 6}  # B is not known
