"""Dimensions that vary: how users ask for them, their names, their final ranges."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, ShapesCollection

import taper_frontend
import taper_runtime
from taper_frontend import ExportError, ExportWarning

torch.set_num_threads(1)


class Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Sum(torch.nn.Module):
    def forward(self, a, b):
        return a * 2, b + 1


def shapes(plan):
    return [tuple(map(str, plan.tensors[name].shape)) for name in plan.inputs]


def check(module, plan, *arrays):
    got = taper_runtime.InferenceSession(plan).run(
        None, dict(zip(plan.inputs, arrays, strict=True))
    )
    want = torch.utils._pytree.tree_leaves(module(*map(torch.from_numpy, arrays)))
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-6)


A, B = torch.randn(2, 3), torch.randn(2, 5)


@pytest.mark.parametrize(
    "options",
    [
        {"dynamic_shapes": ({0: "batch", 1: "width"}, {0: "batch"})},
        {"dynamic_shapes": {"a": ["batch", "width"], "b": ("batch", None)}},
        {"dynamic_shapes": {"a": {0: "batch", 1: Dim.AUTO}, "b": {0: "batch"}}},
        {"dynamic_axes": {"a": {0: "batch", 1: "width"}, "b": {0: "batch"}, "output_1": {0: "x"}}},
    ],
)
def test_one_name_is_one_size(options):
    """Nothing in the program says that the two batches are one; the user does."""
    plan = taper_frontend.export(Sum(), (A, B), **options)
    width = "a_dim1" if "AUTO" in str(options) else "width"
    assert shapes(plan) == [("batch", width), ("batch", "5")]
    assert plan.sizes == {"batch": (0, 2**31 - 1), width: (0, 2**31 - 1)}
    arrays = [np.ones((7, 1), np.float32), np.ones((7, 5), np.float32)]
    check(Sum(), plan, *arrays)
    feed = {"a": arrays[0], "b": arrays[1][:6]}
    with pytest.raises(taper_runtime.InputError, match="batch = 7; got 6"):
        taper_runtime.InferenceSession(plan).run(None, feed)


@pytest.mark.parametrize(
    "options",
    [
        {"dynamic_shapes": ({0: Dim.AUTO}, {1: Dim.DYNAMIC})},
        {"dynamic_axes": {"a": [0], "b": [1]}},
    ],
)
def test_sizes_nobody_named_are_called_by_their_place(options):
    plan = taper_frontend.export(Sum(), (A, B), **options)
    assert shapes(plan) == [("a_dim0", "3"), ("2", "b_dim1")]


def test_names_of_dims_of_nested_inputs_programs_and_collections():
    class Nested(torch.nn.Module):
        def forward(self, batch):
            return batch["x"] + 1

    shape = {"batch": {"x": {0: Dim.AUTO}}}
    plan = taper_frontend.export(Nested(), ({"x": A},), dynamic_shapes=shape)
    assert shapes(plan) == [("batch_x_dim0", "3")]
    program = torch.export.export(Sum(), (A, B), dynamic_shapes=({0: Dim("n")}, None))
    assert shapes(taper_frontend.export(program)) == [("a_dim0", "3"), ("2", "5")]
    collection = ShapesCollection()
    collection[A] = {0: "batch"}
    plan = taper_frontend.export(Sum(), (A, B), dynamic_shapes=collection)
    assert shapes(plan) == [("batch", "3"), ("2", "5")]


def test_one_tensor_given_twice_is_two_inputs():
    plan = taper_frontend.export(Sum(), (A, A), dynamic_shapes=({0: "m"}, {0: "n"}))
    assert shapes(plan) == [("m", "3"), ("n", "3")]


def test_sizes_that_follow_from_another():
    class Pair(torch.nn.Module):
        def forward(self, a, b):
            return torch.cat([a, a, a[:1]]) + b

    args = (torch.randn(3), torch.randn(7))
    with pytest.warns(ExportWarning, match=r"was to vary as 'm', but the model makes it 2\*n \+ 1"):
        plan = taper_frontend.export(Pair(), args, dynamic_axes={"a": {0: "n"}, "b": {0: "m"}})
    assert shapes(plan) == [("n",), ("2*n + 1",)]
    plan = taper_frontend.export(Pair(), args, dynamic_axes={"b": [0], "a": [0]})
    assert shapes(plan) == [("a_dim0",), ("2*a_dim0 + 1",)]


def test_multiples_are_named_after_the_size():
    module = Call(lambda x: F.interpolate(F.max_pool2d(x, 4), scale_factor=4) + x)
    axes = {"x": {2: "height"}}
    with pytest.warns(
        ExportWarning, match=r"only from 4 on in steps of 4, because of test_dims\.py:\d+"
    ):
        plan = taper_frontend.export(module, (torch.randn(1, 1, 8, 8),), dynamic_axes=axes)
    assert shapes(plan) == [("1", "1", "4*height_div_4", "8")]
    x = np.ones((1, 1, 9, 8), np.float32)
    with pytest.raises(taper_runtime.InputError, match=r"4\*height_div_4\): expected 4, 8 and so"):
        taper_runtime.InferenceSession(plan).run(None, {"x": x})


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: x.new_ones(int(x.shape[0] / 2)), r"\(n\) varies only from 2 to 3.*math\.trunc"),
        (lambda x: x.new_ones(int(x.shape[0] * 2.5)), r"fixes it to 2 at .*; write math\.trunc"),
        (lambda x: x / math.sqrt(x.shape[0]), r"fixes it to 2 at .*; write torch\.sym_sqrt"),
        (lambda x: x * math.log(x.shape[0]), r"fixes it to 2 at .*; write torch's function"),
        (lambda x: x * float(x.shape[0]), r"fixes it to 2 at .*; write torch\.sym_float"),
        (
            lambda x: torch.linspace(0, 1, x.shape[0]),
            r"fixes it to 2 at .*\* torch\.arange\(size\)",
        ),
    ],
)
def test_a_call_that_fixes_a_size_is_told_with_what_to_write(function, told):
    """torch calls the size of ``int(2.5 * n)`` varying: only its guard says that n is 2."""
    with pytest.warns(ExportWarning, match=told):
        plan = taper_frontend.export(Call(function), (A,), dynamic_shapes=({0: "n"},))
    assert max(plan.sizes.get("n", (2, 2))[0], 1) == 2
    if not plan.sizes:
        with pytest.raises(ExportError, match=told):
            taper_frontend.export(Call(function), (A,), dynamic_shapes=({0: Dim("n")},))


def test_a_size_that_the_model_fixes_names_the_line():
    def function(x):
        y = x * 2
        return y + torch.ones(3)

    args = (A,)
    with pytest.warns(ExportWarning) as caught:
        plan = taper_frontend.export(Call(function), args, dynamic_shapes=({0: "n", 1: "w"},))
    (warning,) = caught
    assert shapes(plan) == [("n", "3")]
    text = str(warning.message)
    assert "dimension 1 of input 'x' was to vary as 'w', but the model fixes it to 3" in text
    assert "in function: return y + torch.ones(3)" in text
    assert plan.metadata["warnings"] == [{"kind": "shape", "text": text}]
    assert warning.message.kind == "shape"
    for dim in (Dim("w"), Dim.DYNAMIC):
        with pytest.raises(ExportError, match=r"fixes it to 3 at test_dims.*return y \+ torch"):
            taper_frontend.export(Call(function), args, dynamic_shapes=({1: dim},))


@pytest.mark.parametrize("dim", ["batch", Dim.AUTO, Dim("batch"), Dim.DYNAMIC])
def test_an_example_of_batch_one_gives_any_batch(dim):
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.Flatten(0), torch.nn.Unflatten(0, (-1, 2))
    )
    x = torch.randn(1, 3)
    plan = taper_frontend.export(module, (x,), dynamic_shapes=({0: dim},))
    (low, high) = plan.sizes[str(plan.tensors["input"].shape[0])]
    assert (low <= 1, high) == (True, 2**31 - 1)
    np.testing.assert_array_equal(plan.samples["input"], x.numpy())
    with torch.no_grad():
        for n in (1, 2, 9):
            check(module, plan, np.random.default_rng(n).random((n, 3), np.float32))


def test_a_batch_of_one_that_is_a_case_of_its_own():
    """For 2 it is another program, so that the example's own is the plan."""
    for function in (lambda x: x.squeeze(0) * 2, lambda x: x * 2 if len(x) == 1 else x * 3):
        module = Call(function)
        with pytest.warns(ExportWarning, match="fixes it to 1; try an example in which it is 2"):
            plan = taper_frontend.export(module, (torch.randn(1, 3),), dynamic_shapes=({0: "n"},))
        assert shapes(plan) == [("1", "3")]
        check(module, plan, np.ones((1, 3), np.float32))


def test_a_size_of_one_that_is_wrong_is_out_of_range():
    """What torch captured for 2 and more squeezes nothing; for 1 it would."""
    module = Call(lambda x: x.squeeze(0) * 2)
    with pytest.warns(ExportWarning, match="varies only from 2 on"):
        plan = taper_frontend.export(module, (torch.randn(2, 3),), dynamic_shapes=({0: "n"},))
    assert plan.sizes == {"n": (2, 2**31 - 1)}
    check(module, plan, np.ones((5, 3), np.float32))


def test_only_some_sizes_of_one_can_be_larger():
    """A mask of 1x1 that is broadcast: its dims stay, the batch varies."""

    class Masked(torch.nn.Module):
        def forward(self, x, mask):
            return x.view(x.shape[0], 4, 3, 2) + mask

    args = (torch.randn(1, 4, 6), torch.randn(1, 1, 3, 2))
    axes = {"x": {0: "batch"}, "mask": {0: "batch", 1: "heads"}}
    with pytest.warns(ExportWarning, match="dimension 1 of input 'mask' was to vary as 'heads'"):
        plan = taper_frontend.export(Masked(), args, dynamic_axes=axes)
    assert shapes(plan) == [("batch", "4", "6"), ("batch", "1", "3", "2")]
    arrays = [np.ones((3, 4, 6), np.float32), np.ones((3, 1, 3, 2), np.float32)]
    check(Masked(), plan, *arrays)


def test_a_dim_that_torch_cannot_prove_but_the_plan_can():
    module = Call(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True))
    dims = ({0: Dim("n"), 2: Dim("h", min=4, max=99)},)
    plan = taper_frontend.export(module, (torch.randn(1, 1, 9, 9),), dynamic_shapes=dims)
    assert plan.sizes == {"n": (0, 2**31 - 1), "h": (4, 99)}
    for height in (4, 5, 99):
        check(module, plan, np.random.default_rng(0).random((2, 1, height, 9), np.float32))


def test_a_dim_whose_range_the_model_does_not_take():
    def function(x):
        return x * 2 if x.shape[0] % 4 != 0 else x

    dims = ({0: Dim("n", min=2)},)
    with pytest.raises(ExportError) as caught:
        taper_frontend.export(Call(function), (torch.randn(7),), dynamic_shapes=dims)
    lines = str(caught.value).splitlines()
    assert len(lines) < 8
    assert "'n' (dimension 0 of input 'x')" in str(caught.value)
    assert "with a string or Dim.AUTO instead of the Dim" in lines[-1]
    assert "Constraints violated" in str(caught.value.__cause__)


def test_a_way_taken_for_the_example_alone_is_a_warning():
    def function(x):
        if x.shape[0] % 4 != 0:
            x = x * 2
        return x

    with pytest.warns(ExportWarning) as caught:
        taper_frontend.export(Call(function), (torch.randn(7),), dynamic_shapes=({0: "n"},))
    (warning,) = caught
    assert warning.message.kind == "branch"
    assert "in function: if x.shape[0] % 4 != 0:" in str(warning.message)
    assert "such as n = 4" in str(warning.message)


def test_a_narrow_range_is_a_warning():
    def function(x):
        return x[:, :1] + 1 if x.shape[1] > 64 else x

    with pytest.warns(
        ExportWarning, match=r"varies only from 65 on, because of .*if x.shape\[1\] > 64"
    ):
        plan = taper_frontend.export(
            Call(function), (torch.randn(2, 70),), dynamic_shapes=({1: "n"},)
        )
    assert plan.sizes["n"][0] == 65


def padded_to_one_chunk(x):
    chunks = torch.nn.functional.pad(x, (0, -x.shape[0] % 192)).reshape(-1, 192)
    return chunks.cumsum(1)[0, : x.shape[0]] if chunks.shape[0] == 1 else x


NARROWED = [
    (
        padded_to_one_chunk,
        (torch.randn(12),),
        ({0: "n"},),
        r"dimension 0 of input 'x' \(n\) varies only from \d to 192, because of test_dims\.py:\d+",
    ),
    (
        lambda x: x.unflatten(0, (-1, 3)),
        (torch.randn(12),),
        ({0: 3 * Dim("w", min=1, max=64)},),
        r"was to vary from 3 to 192 in steps of 3, but varies only from 6 to 192 in steps of 3",
    ),
    (
        lambda x: x.split([2, 3, x.shape[0] - 5])[2],
        (torch.randn(16),),
        ({0: "n"},),
        r"dimension 0 of input 'x' \(n\) varies only from [67] on, because of test_dims\.py:\d+",
    ),
    (
        lambda x: x[1:] - x[:-1],
        (torch.randn(16),),
        ({0: Dim.AUTO},),
        r"dimension 0 of input 'x' \(x_dim0\) varies only from 3 on, because of test_dims\.py:\d+",
    ),
    (
        lambda x: x[:20] + torch.ones(20)[: x.shape[0]],
        (torch.randn(16),),
        ({0: Dim.AUTO(min=2, max=64)},),
        r"was to vary from 2 to 64, but varies only from 2 to 19, because of test_dims\.py:\d+",
    ),
]


@pytest.mark.parametrize(("function", "args", "dims", "told"), NARROWED)
def test_every_range_that_is_narrowed_is_told_of(function, args, dims, told):
    with pytest.warns(ExportWarning, match=told) as caught:
        taper_frontend.export(Call(function), args, dynamic_shapes=dims)
    assert [warning.message.kind for warning in caught] == ["shape"]


def test_an_int_that_begins_late_is_told_of():
    class Rows(torch.nn.Module):
        def forward(self, x, count):
            return x[:count] * 2

    told = r"the int 'count' was to vary from 0, but varies only from 2 to 10, because of test_dims"
    with pytest.warns(ExportWarning, match=told):
        plan = taper_frontend.export(Rows(), (torch.randn(10), 4), dynamic_shapes=(None, "count"))
    assert plan.sizes["count"] == (2, 10)


class Chunks(torch.nn.Module):
    """A scan over chunks of 8, padded, in a loop of Python's: it fixes how many there are."""

    def forward(self, x):
        rows, length = x.shape
        padded = torch.nn.functional.pad(x, (0, (8 - length % 8) % 8))
        chunks = padded.reshape(rows, -1, 8)
        places = torch.arange(padded.shape[1] // chunks.shape[1])
        total, sums = torch.zeros(rows, 8), []
        for i in range(chunks.shape[1]):
            total = total * 0.5 + chunks[:, i] * places
            sums.append(total)
        return torch.cat(sums, 1)[:, :length]


@pytest.mark.parametrize(("length", "limits"), [(5, (1, 8)), (12, (9, 16)), (35, (33, 40))])
def test_padded_chunks_vary_within_the_chunks_of_the_example(length, limits):
    with pytest.warns(ExportWarning, match=rf"to {limits[1]}, because of .*: for i in range"):
        plan = taper_frontend.export(
            Chunks(), (torch.randn(2, length),), dynamic_shapes=({1: "n"},)
        )
    assert (max(plan.sizes["n"][0], 1), plan.sizes["n"][1]) == limits
    session = taper_runtime.InferenceSession(plan)
    for n in (limits[0], limits[1] - 1, limits[1]):
        x = torch.randn(2, n)
        (got,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), Chunks()(x))


def test_a_dim_beyond_what_the_model_takes_names_the_range_and_its_line():
    x = torch.randn(2, 12)
    plan = taper_frontend.export(Chunks(), (x,), dynamic_shapes=({1: Dim("n", min=10, max=16)},))
    assert plan.sizes["n"] == (10, 16)
    with pytest.raises(
        ExportError,
        match=r"varies only from 10 to 16, because of test_dims\.py:\d+ in forward: for",
    ):
        taper_frontend.export(Chunks(), (x,), dynamic_shapes=({1: Dim("n", min=10, max=17)},))


def test_a_bound_that_comes_by_an_equal_size_names_its_line():
    class Looks(torch.nn.Module):
        def forward(self, a, b):
            return a + (torch.ones(64)[: b.shape[0]] + b)

    with pytest.warns(
        ExportWarning, match=r"only from 0 to 64, because of test_dims\.py.*torch\.ones\(64"
    ):
        plan = taper_frontend.export(
            Looks(), (torch.randn(8), torch.randn(8)), dynamic_axes={"a": [0], "b": [0]}
        )
    assert plan.sizes == {"a_dim0": (0, 64)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamic_axes": {"c": {0: "n"}}}, r"names of inputs \(a, b\) or outputs .*, got 'c'"),
        ({"dynamic_axes": {"a": {2: "n"}}}, "expected axes of 0 to 1, got 2"),
        ({"dynamic_axes": {"a": {0: "two words"}}}, "letters, digits and _, got 'two words'"),
        ({"dynamic_axes": {"a": {0: 1.5}}}, "expected a string, a torch.export.Dim or an int"),
        ({"dynamic_shapes": ({0: "n"},)}, r"one entry for each of 2 arguments \(a, b\), got 1"),
        ({"dynamic_shapes": {"a": {0: "n"}, "c": None}}, "expected names of arguments, .* got 'c'"),
        ({"dynamic_shapes": {"a": {0: "n"}, "b": {1: "n"}}}, "both called 'n': expected equal"),
        ({"dynamic_shapes": {}, "dynamic_axes": {}}, "expected dynamic_shapes or dynamic_axes"),
    ],
)
def test_dims_that_cannot_be(options, message):
    with pytest.raises(ExportError, match=message):
        taper_frontend.export(Sum(), (A, B), **options)


def test_a_derived_dim_may_come_before_its_root():
    class Ends(torch.nn.Module):
        def forward(self, x, y):
            return x[3:] + y

    dims = ({0: Dim("n") + 3}, {0: Dim("n")})
    plan = taper_frontend.export(Ends(), (torch.randn(9), torch.randn(6)), dynamic_shapes=dims)
    check(Ends(), plan, np.ones(11, np.float32), np.ones(8, np.float32))


def test_arguments_that_dynamic_shapes_does_not_name_are_fixed():
    class Sums(torch.nn.Module):
        def forward(self, start, end):
            return start.sum() + end.sum()

    plan = taper_frontend.export(Sums(), (A, B), dynamic_shapes={"end": {0: "rows"}})
    assert [str(plan.tensors[name].shape) for name in plan.inputs] == ["(2, 3)", "(rows, 5)"]


def test_a_slice_to_the_end_of_a_product_of_dims():
    """The product of three sizes may be beyond int64, where torch's end of a slice is."""
    module = Call(lambda x: x.flatten()[:, None])
    x = torch.randn(2, 3, 4)
    plan = taper_frontend.export(module, (x,), dynamic_shapes=({0: "a", 1: "b", 2: "c"},))
    check(module, plan, np.arange(30, dtype=np.float32).reshape(3, 2, 5))


def test_dims_of_arguments_that_forward_takes_as_kwargs():
    class Sums(torch.nn.Module):
        def forward(self, **kwargs):
            return kwargs["a"].sum()

    with pytest.raises(ExportError, match="one whose forward names them"):
        taper_frontend.export(Sums(), (), {"a": A}, dynamic_shapes={"a": {0: "rows"}})


def test_dynamic_axes_are_for_modules():
    program = torch.export.export(Sum(), (A, B))
    with pytest.raises(ExportError, match="dynamic_axes: expected None"):
        taper_frontend.export(program, dynamic_axes={"a": [0]})
