"""Names of a plan's inputs and outputs."""

import collections

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime

torch.set_num_threads(1)

X = torch.arange(6.0).reshape(2, 3)
Pair = collections.namedtuple("Pair", "left right")


class Returns(torch.nn.Module):
    """What a function makes of its arguments."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.output = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.function(x)


def export(module, *args, **options):
    return taper_frontend.export(module.eval(), args, verify=False, **options)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x + 1, ["output"]),
        (lambda x: (x + 1, x + 2), ["output_0", "output_1"]),
        (lambda x: [x + 1], ["output_0"]),
        (lambda x: (x + 1, None, x + 2), ["output_0", "output_2"]),
        (lambda x: {"logits": x + 1, "h": x + 2}, ["logits", "h"]),
        (lambda x: {"past": [{"key": x + 1}, {"key": x + 2}]}, ["past.0.key", "past.1.key"]),
        (lambda x: (x + 1, {"h": x + 2}), ["output_0", "output_1.h"]),
        (lambda x: Pair(x + 1, (x + 2, x + 3)), ["left", "right.0", "right.1"]),
        (lambda x: {1: x + 1}, ["output_1"]),
        (lambda x: {"a": {"b": x + 1}, "a.b": x + 2}, ["a.b", "a.b_1"]),
        (lambda x: {"a\x1b[31m": x + 1}, ["a_[31m"]),
        # names that others have: an input, and a tensor inside
        (lambda x: {"x": x + 1}, ["output_x"]),
        (lambda x: {"add": x * 2, "mul": x + 1}, ["add", "mul"]),
        # one tensor twice, and what no node makes
        (lambda x: (lambda y: {"a": y, "b": y, "c": x, "d": x})(x + 1), ["a", "b", "c", "d"]),
    ],
)
def test_outputs_are_called_by_their_place(function, names, tmp_path):
    module = Returns(function)
    plan = export(module, X)
    assert list(plan.outputs) == names
    plan.save(tmp_path / "m.taper")
    session = taper_runtime.InferenceSession(tmp_path / "m.taper")
    got = session.run(names[::-1], {"x": X.numpy()})[::-1]
    leaves = torch.utils._pytree.tree_leaves(module(X))
    wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())


def test_a_weight_gives_way():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.output = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x + self.output

    plan = export(Model(), X)
    assert plan.outputs == ("output",)
    assert list(plan.constants) == ["output_1"]
    (got,) = taper_runtime.InferenceSession(plan).run(["output"], {"x": X.numpy()})
    np.testing.assert_array_equal(got, X.numpy() + 1)


def test_model_outputs_are_called_by_their_fields():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    ids = {"input_ids": torch.ones(1, 4, dtype=torch.long)}
    model = transformers.BertModel(config).eval()
    plan = taper_frontend.export(model, (), ids, verify=False)
    assert plan.inputs == ("input_ids",)
    assert plan.outputs == ("last_hidden_state", "pooler_output")


class Takes(torch.nn.Module):
    def forward(self, batch, *rest, scale=None, **more):
        return batch["x"] + batch["deep"][0] + rest[0] + rest[1] + scale + more["extra"]


@pytest.mark.parametrize("kind", ["module", "program"])
def test_inputs_are_called_by_their_arguments(kind):
    args = ({"x": X, "deep": [X]}, X, X)
    kwargs = {"extra": X, "scale": X}
    module = Takes()
    if kind == "program":
        module, args, kwargs = torch.export.export(module, args, kwargs), (), None
    plan = taper_frontend.export(module, args, kwargs)
    wanted = {"batch.x", "batch.deep.0", "rest_0", "rest_1", "scale", "extra"}
    assert set(plan.inputs) == wanted


def test_arguments_in_another_order_than_the_signature():
    class Model(torch.nn.Module):
        def forward(self, a, b):
            return a - 2 * b

    plan = taper_frontend.export(Model(), (), {"b": X, "a": X + 1})
    feed = {"a": (X + 1).numpy(), "b": X.numpy()}
    (got,) = taper_runtime.InferenceSession(plan).run(None, feed)
    np.testing.assert_array_equal(got, (1 - X).numpy())


def test_names_that_a_user_gives(tmp_path):
    model = Returns(lambda x: (x + 1, x + 2))
    axes = {"image": {0: "batch"}, "second": {0: "batch"}}
    plan = export(
        model, X, input_names=["image"], output_names=["first", "second"], dynamic_axes=axes
    )
    assert plan.inputs == ("image",)
    assert plan.outputs == ("first", "second")
    assert plan.output_tree == ["tuple", [["tensor", "first"], ["tensor", "second"]]]
    assert list(plan.sizes) == ["batch"]
    program = torch.export.export(model, (X,))
    plan = taper_frontend.export(program, input_names=["image"], output_names=["a", "b"])
    assert (plan.inputs, plan.outputs) == (("image",), ("a", "b"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_names": []}, r"input_names: expected 1 names \(for x\), got 0"),
        ({"input_names": ["a", "b"]}, r"input_names: expected 1 names \(for x\), got 2: a, b"),
        ({"output_names": ["a"]}, r"expected 2 names \(for output_0, output_1\), got 1: a"),
        ({"output_names": ["a", "a"]}, "expected each name once, got 'a' twice"),
        ({"output_names": ["a", "x"]}, "that inputs and states do not have, got 'x'"),
        ({"output_names": ["a", "b\n"]}, r"expected printable names, got 'b\\n'"),
        ({"output_names": ["a", ""]}, "expected printable names, got ''"),
        ({"output_names": ["a", 3]}, "expected a sequence of strings"),
        ({"input_names": "x"}, "expected a sequence of strings, got 'x'"),
    ],
)
def test_names_that_cannot_be_given(options, message):
    with pytest.raises(taper_frontend.ExportError, match=message):
        export(Returns(lambda x: (x + 1, x + 2)), X, **options)


def test_an_output_and_a_state_of_one_name():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(2, 3))

        def forward(self, x):
            self.count.add_(x)
            return {"count": self.count.clone()}

    with pytest.warns(taper_frontend.ExportWarning, match="writes to count"):
        plan = export(Counter(), X)
    assert plan.outputs == ("output_count",)
    session = taper_runtime.InferenceSession(plan)
    session.run(None, {"x": X.numpy()})
    np.testing.assert_array_equal(session.run(None, {"x": X.numpy()})[0], 2 * X.numpy())
