"""Choosing kernels and variants: what exists, forcing one, the cost model, measurements."""

import json
import pickle

import numpy as np
import pytest

from node_plans import plan_of
from taper_runtime import (
    InferenceSession,
    InputError,
    OptionError,
    SessionOptions,
    UnsupportedOpError,
)
from taper_runtime.base.sizes import variable
from taper_runtime.cli import main
from taper_runtime.machine.choices import Choice, MeasuredChoice
from taper_runtime.machine.limits import TYPICAL
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType, contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate

LEVELS = _kernels.available_isas()


def conv(size=9, channels=8, outputs=8, groups=1, dilation=1):
    attrs = {
        "kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "groups": groups,
        "dilation": (dilation, dilation),
    }  # fmt: skip
    weight = (3, 3, channels // groups, outputs)
    return plan_of("CONV", attrs, (2, size, size, channels), weight)


def attention(rows):
    attrs = {"scale": 0.25, "causal": False}
    return plan_of("ATTENTION", attrs, (1, 2, rows, 16), (1, 2, 70, 16), (1, 2, 70, 16))


def product(m=20, k=300, n=33, transpose_b=False):
    b = (n, k) if transpose_b else (k, n)
    return plan_of("MATMUL", {"transpose_b": transpose_b}, (m, k), b)


def total(op="SUM"):
    return plan_of(op, {"axes": (1, 3), "keepdim": False}, (3, 40, 5, 12))


#: Plans, and the names that serve them.
PLANS = {
    "MATMUL by rows": (product(), ("in_place", "packing")),
    "MATMUL by columns": (product(transpose_b=True), ("dot", "packing")),
    "CONV": (conv(), ("padded", "clipped", "f32_conv")),
    "CONV dilated": (conv(dilation=2), ("padded", "clipped")),
    "CONV depthwise": (conv(groups=8), ("f32_conv_depthwise", "padded", "clipped")),
    "CONV groups": (conv(groups=2), ("f32_conv_groups", "padded")),
    "ATTENTION few": (attention(3), ("few_rows", "row_tiles")),
    "ATTENTION many": (attention(40), ("few_rows", "row_tiles")),
    "SUM": (total(), ("rows", "columns")),
    "MEAN": (total("MEAN"), ("rows", "columns")),
    "AMAX": (total("AMAX"), ("rows", "columns")),
}


def options_of(plan=None, name=None, **more):
    options = SessionOptions()
    if name is not None:
        options.kernels = {plan.nodes[0].op: name}
    for field, value in more.items():
        setattr(options, field, value)
    return options


def feed_of(plan, seed=3):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(plan.tensors[name].shape).astype(plan.tensors[name].dtype)
        for name in plan.inputs
    }


def run(plan, options=None):
    (y,) = InferenceSession(plan, options).run(None, feed_of(plan))
    return y


def chosen(session):
    (selection,) = session._default.executor._runner.selections()
    return selection.kernel_name, selection.variant


def in_double(plan):
    """The op's own evaluator on float64."""
    node = plan.nodes[0]
    op = REGISTRY[node.op]
    arrays = [feed_of(plan)[name] for name in plan.inputs]
    arrays = [array.astype(np.float64) for array in arrays]
    (y,) = op.evaluate_all(arrays, op.complete(node.attrs))
    return y.reshape(plan.tensors["y"].shape)


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("case", PLANS)
def test_every_forced_name_computes_the_same(case, isa):
    plan, names = PLANS[case]
    want = in_double(plan)
    same = {
        (kernel.name, variant.name)
        for kernel in _kernels.find_kernels(plan.nodes[0].op, isa)
        for variant in kernel.variants
        if not variant.other_bits
    }
    own = run(plan, options_of(isa=isa))
    for name in names:
        session = InferenceSession(plan, options_of(plan, name, isa=isa))
        assert name in chosen(session)
        (y,) = session.run(None, feed_of(plan))
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
        if chosen(session) in same:
            assert y.tobytes() == own.tobytes(), name


def drawn(kernel, rng):
    """A plan of a random node that a kernel with variants may serve."""
    if kernel.op == "MATMUL":
        # some of more rows than any level multiplies without packing B
        m, k, n = rng.integers(1, (100, 600, 40))
        return product(int(m), int(k), int(n), bool(rng.integers(2)))
    if kernel.op.startswith("CONV"):
        # some sums of more terms than are added up at once
        channels, outputs = int(rng.choice((3, 40, 700))), int(rng.integers(1, 20))
        sizes = {name: tuple(map(int, rng.integers(1, 3, 2))) for name in ("stride", "dilation")}
        padding = tuple(map(int, rng.integers(0, 3, 4)))
        attrs = {"kernel": (3, 3), "padding": padding, "groups": 1, **sizes}
        return plan_of(kernel.op, attrs, (1, 7, 7, channels), (3, 3, channels, outputs))
    if kernel.op == "ATTENTION":
        rows, keys, d, dv = map(int, rng.integers(1, (40, 300, 40, 40)))
        attrs = {"scale": 0.25, "causal": bool(rng.integers(2))}
        return plan_of("ATTENTION", attrs, (1, 2, rows, d), (1, 2, keys, d), (1, 2, keys, dv))
    shape = tuple(map(int, rng.integers(1, (4, 80, 9, 80))))
    axes = tuple(sorted(map(int, rng.permutation(4)[: rng.integers(1, 4)])))
    attrs = {"axes": axes, "keepdim": False}
    if "correction" in REGISTRY[kernel.op].attrs:
        attrs["correction"] = 0.0
    return plan_of(kernel.op, attrs, shape, dtype=kernel.operands[0][0][0])


@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("name", [k.name for k in _kernels.all_kernels() if k.variants])
def test_a_variant_is_marked_if_and_only_if_it_may_have_other_bits(name, isa):
    """For none of the random nodes has an unmarked one, and each marked one has for some."""
    (kernel,) = (each for each in _kernels.all_kernels(isa) if each.name == name)
    rng = np.random.default_rng(sum(name.encode()))
    marked = {each.name for each in kernel.variants if each.other_bits}
    found: set[str] = set()
    for seed in range(60):
        plan = drawn(kernel, rng)
        feed = feed_of(plan, seed)
        if kernel.op in ("AMAX", "AMIN") and feed["x0"].dtype.kind == "f":
            feed = {"x0": np.copysign(np.nan, feed["x0"])}  # of several NaN the first one is taken
        own = InferenceSession(plan, options_of(plan, name, isa=isa))
        (want,) = own.run(None, feed)
        for variant in {each.name for each in kernel.variants} - {chosen(own)[1]}:
            try:
                session = InferenceSession(plan, options_of(plan, variant, isa=isa))
            except UnsupportedOpError:
                continue
            if session.run(None, feed)[0].tobytes() != want.tobytes():
                found.add(variant)
        if found == marked and seed >= 20:
            break
    assert found == marked


@pytest.mark.parametrize("op", ["MATMUL", "CONV", "ATTENTION", "SUM", "AMAX"])
def test_an_op_has_several_variants(op):
    for isa in LEVELS:
        names = {v.name for kernel in _kernels.find_kernels(op, isa) for v in kernel.variants}
        assert len(names) >= 2


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_a_node_that_the_variant_does_not_serve_is_refused(executor):
    plan = product()
    with pytest.raises(UnsupportedOpError) as info:
        InferenceSession(plan, options_of(plan, "dot", executor=executor))
    text = str(info.value)
    assert (
        "node y (MATMUL): kernels={'MATMUL': 'dot'}: expected 'dot' to compute it, but it cannot"
        in text
    )
    assert "of float32[20, 300], float32[300, 33] -> float32[20, 33]" in text
    assert "dot (f32_matmul): it does not serve these shapes, strides or attrs" in text
    assert "kernels that can: in_place (f32_matmul), packing (f32_matmul)" in text


def test_a_kernel_that_takes_other_formats_is_refused():
    plan = conv()
    with pytest.raises(UnsupportedOpError, match="it takes tensors of other dtypes or formats"):
        InferenceSession(plan, options_of(plan, "f32_conv_winograd_2x2"))


def test_where_no_kernel_serves_the_node_the_name_is_not_forgotten():
    """Numpy would compute it: AMAX of int16 has no kernel."""
    x, y = TensorSpec("x", "int16", (3, 4), "input"), TensorSpec("y", "int16", (3,), "output")
    plan = Plan(
        nodes=(PlanNode("AMAX", ("x",), ("y",), {"axes": (1,), "keepdim": False}),),
        tensors={"x": x, "y": y},
        placements={"x": Placement("x", 0, (4, 1)), "y": Placement("y", 0, (1,))},
        inputs=("x",),
        outputs=("y",),
        constants={},
    )
    validate(plan)
    InferenceSession(plan)
    with pytest.raises(UnsupportedOpError, match="kernels that can: none"):
        InferenceSession(plan, options_of(plan, "rows"))


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ({"MATMULL": "dot"}, "unknown op 'MATMULL'; did you mean 'MATMUL'"),
        ({"MATMUL": "dott"}, "unknown kernel of MATMUL 'dott'; did you mean 'dot'"),
        (
            {"MATMUL": "x"},
            "'f32_matmul', 'i32_matmul', 'i64_matmul', 'f64_matmul', 'i8_matmul",
        ),
        ({"RELU": "dot"}, "unknown kernel of RELU 'dot'"),
        ({"IF": "dot"}, "unknown kernel of IF 'dot'; expected one of none"),
    ],
)
def test_an_unknown_name_lists_those_that_exist(kernels, words):
    options = options_of(kernels=kernels)
    with pytest.raises(InputError, match=words):
        InferenceSession(product(), options)


@pytest.mark.parametrize(
    "value", [None, "MATMUL=dot", [("MATMUL", "dot")], {"MATMUL": 1}, {1: "x"}]
)
def test_kernels_are_names_by_name(value):
    with pytest.raises(InputError, match="kernels: expected"):
        options_of(kernels=value)


def test_options_keep_their_own_mapping_and_survive_pickling():
    names = {"MATMUL": "packing"}
    options = options_of(kernels=names)
    names["MATMUL"] = "dot"
    again = pickle.loads(pickle.dumps(options.copy()))  # noqa: S301
    assert again.kernels == options.kernels == {"MATMUL": "packing"}
    assert repr(options_of()) == "SessionOptions()"


def test_the_choice_is_made_for_each_set_of_sizes():
    """Rows that vary: each instance has the forced variant."""
    n = variable("n", 1, 500)
    types = [("x0", (n, 300)), ("x1", (33, 300))]
    specs = {name: TensorSpec(name, "float32", shape, "input") for name, shape in types}
    specs["y"] = TensorSpec("y", "float32", (n, 33), "output")
    plan = Plan(
        nodes=(PlanNode("MATMUL", ("x0", "x1"), ("y",), {"transpose_b": True}),),
        tensors=specs,
        placements={m: Placement(m, 0, contiguous_strides(s.shape)) for m, s in specs.items()},
        inputs=("x0", "x1"),
        outputs=("y",),
        constants={},
        sizes={"n": (1, 500)},
    )
    validate(plan)
    rng = np.random.default_rng(1)
    b = rng.standard_normal((33, 300)).astype(np.float32)
    for name in ("dot", "packing"):
        session = InferenceSession(plan, options_of(plan, name))
        for rows in (1, 20, 64, 300):
            a = rng.standard_normal((rows, 300)).astype(np.float32)
            (y,) = session.run(None, {"x0": a, "x1": b})
            assert chosen(session) == ("f32_matmul", name)
            np.testing.assert_allclose(y, a.astype(np.float64) @ b.T, rtol=1e-4, atol=1e-4)


# -- who chooses -----------------------------------------------------------------------------------


class Last(Choice):
    """Takes the last offer, and keeps what it was told."""

    def __init__(self):
        self.seen = []

    def choose(self, node, offers, refused):
        self.seen.append((node, list(offers), list(refused)))
        return len(offers) - 1 if offers else None


def test_a_choice_is_told_everything():
    plan, choice = product(transpose_b=True), Last()
    session = InferenceSession(plan, options_of(kernel_choice=choice))
    ((node, offers, refused),) = choice.seen
    assert (node.label, node.op.name) == ("y (MATMUL)", "MATMUL")
    assert node.inputs == [TensorType("float32", (20, 300)), TensorType("float32", (33, 300))]
    assert [each.variant for each in offers] == ["packing", "dot"] or [
        each.variant for each in offers
    ] == ["dot", "packing"]
    assert [each.other_bits for each in offers] == [False, True]
    assert node.strides == [(300, 1), (300, 1), (33, 1)]
    variants = {"in_place (f32_matmul)", "panels (f32_matmul)"}
    few_cpus_have = {"f32_matmul_vnni", "f32_matmul_bf16", "i8_matmul_vnni", "i8_matmul_amx"}
    refusing = {name for name, _ in refused} - few_cpus_have
    assert refusing == {*variants, "i32_matmul", "i64_matmul", "f64_matmul", "i8_matmul"}
    assert chosen(session) == (offers[-1].kernel, offers[-1].variant)


def test_another_kernel_than_the_first_may_have_other_bits():
    choice = Last()
    InferenceSession(conv(groups=8), options_of(kernel_choice=choice))
    (_, offers, _) = choice.seen[0]
    assert [(each.kernel, each.other_bits) for each in offers] == [
        ("f32_conv_depthwise", False), ("f32_conv", True), ("f32_conv", True),
    ]  # fmt: skip


def test_first_is_what_is_taken_where_nobody_chooses():
    for plan, _ in PLANS.values():
        plain = InferenceSession(plan)
        first = InferenceSession(plan, options_of(kernel_choice="first"))
        assert chosen(plain) == chosen(first)


@pytest.mark.parametrize("isa", LEVELS)
def test_the_cost_model_weighs_variants_by_their_own_numbers(isa):
    """Few rows do not pay for packing all of B; many do not pay for sums over lanes."""
    options = options_of(kernel_choice="cost", isa=isa)
    few = InferenceSession(product(m=1, k=512, n=512, transpose_b=True), options)
    many = InferenceSession(product(m=400, k=64, n=512, transpose_b=True), options)
    assert (chosen(few)[1], chosen(many)[1]) == ("dot", "packing")
    assert chosen(InferenceSession(conv(groups=8), options))[0] == "f32_conv_depthwise"
    for plan, _ in PLANS.values():
        np.testing.assert_allclose(run(plan, options), in_double(plan), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", LEVELS)
def test_the_cost_model_knows_what_clipping_costs(isa):
    """Pixels at the border are tiles of their own, which takes long where rows are short."""
    options = options_of(kernel_choice="cost", isa=isa)
    session = InferenceSession(conv(size=14, channels=64, outputs=64), options)
    assert chosen(session)[1] == "padded"


@pytest.mark.parametrize("isa", LEVELS)
def test_the_cost_model_chooses_rows_of_attention(isa):
    """Sums over lanes pay where vectors across queries would be empty."""
    options = options_of(kernel_choice="cost", isa=isa)
    found = [chosen(InferenceSession(attention(rows), options))[1] for rows in (1, 24)]
    assert found == ["few_rows", "row_tiles"]


@pytest.mark.parametrize("isa", LEVELS)
def test_the_cost_model_knows_the_level(monkeypatch, isa):
    """Scratch memory that costs nothing, or much, decides whether x is padded at that level."""
    plan, choices = conv(), []
    for scratch_ns in (0.0, 100.0):
        planted = {isa: TYPICAL._replace(scratch_ns=scratch_ns, isa=isa)}
        monkeypatch.setattr("taper_runtime.machine.choices.typical", planted.__getitem__)
        options = options_of(kernel_choice="cost", isa=isa)
        choices.append(chosen(InferenceSession(plan, options))[1])
    assert choices == ["padded", "clipped"]


def test_measured_takes_the_least_time_among_offers_of_the_same_bits():
    plan = plan_of("AMAX", {"axes": (1, 3), "keepdim": False}, (3, 40, 5, 12))
    plain = chosen(InferenceSession(plan))[1]
    asked = []

    def times(node, offers):
        asked.append([each.variant for each in offers])
        return [1.0 + (each.variant == plain) for each in offers]

    assert (
        chosen(InferenceSession(plan, options_of(kernel_choice=MeasuredChoice(times))))[1] == plain
    )
    assert not asked  # the other one has other bits
    allowed = options_of(kernel_choice=MeasuredChoice(times, other_bits=True))
    assert chosen(InferenceSession(plan, allowed))[1] != plain
    unknown = options_of(kernel_choice=MeasuredChoice(lambda *_: None, other_bits=True))
    assert chosen(InferenceSession(plan, unknown))[1] == plain


def test_measured_without_measurements_says_so():
    with pytest.raises(OptionError, match="kernel_choice='measured': expected the database"):
        InferenceSession(product(), options_of(kernel_choice="measured"))
    with pytest.raises(InputError, match="kernel_choice: expected one of 'first', 'cost'"):
        options_of(kernel_choice="fastest")


def test_a_forced_name_that_several_kernels_have_is_chosen_among():
    plan, choice = conv(groups=8), Last()
    options = options_of(plan, "f32_conv", kernel_choice=choice)
    assert chosen(InferenceSession(plan, options)) == ("f32_conv", choice.seen[0][1][-1].variant)
    assert {each.kernel for each in choice.seen[0][1]} == {"f32_conv"}


# -- the command -----------------------------------------------------------------------------------


def test_the_command_lists_every_row_of_every_level(capsys):
    for isa in LEVELS:
        assert main(["kernels", "--isa", isa, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["isa"] == isa
        rows = {(row["op"], row["name"]) for row in data["kernels"]}
        assert rows == {(op, name) for name, op, _ in _kernels.list_kernels(isa)}
        features = set(_kernels.feature_names())
        assert all(set(row["needs"]) <= features for row in data["kernels"])


def test_the_command_marks_other_bits(capsys):
    assert main(["kernels", "MATMUL", "RELU"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"MATMUL ({_kernels.active_isa()})\n")
    assert "\n  f32_matmul: float32, float32|" in text
    assert "    variants dot* " in text
    assert ", panels " in text
    assert "RELU (" in text
    assert "SUM" not in text
    assert "* gives other bits than the variant that the kernel chooses" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kernels", "MATMULL"], "unknown op with kernels 'MATMULL'; did you mean 'MATMUL'"),
        (["kernels", "--isa", "sse9"], "isa: expected one of"),
    ],
)
def test_the_command_refuses_what_does_not_exist(arguments, words, capsys):
    assert main(arguments) != 0
    assert words in capsys.readouterr().err


def test_a_run_takes_kernels(tmp_path, capsys):
    path, plan = tmp_path / "p.taper", product()
    plan.save(path)
    assert main(["run", str(path), "--kernel", "MATMUL=packing"]) == 0
    assert main(["run", str(path), "--kernel", "MATMUL=dot"]) != 0
    assert "expected 'dot' to compute it" in capsys.readouterr().err
    for wrong in ("MATMUL", "=dot", "MATMUL="):
        assert main(["run", str(path), "--kernel", wrong]) != 0
        assert "expected OP=NAME, such as MATMUL=dot" in capsys.readouterr().err
    twice = ["--kernel", "MATMUL=packing", "--kernel", "MATMUL=in_place"]
    assert main(["run", str(path), *twice]) != 0
    assert "expected one kernel for MATMUL, got 'packing' and" in capsys.readouterr().err
