"""Refusals of lowering: all at once, by op, reason and the user's line."""

from __future__ import annotations

import pytest
import torch

import taper_frontend
import taper_runtime.base.errors
from lowering import Call, lower_model
from taper_frontend.capture.capture import capture
from taper_frontend.capture.read_exported import read_program
from taper_frontend.errors import CATEGORIES, CaptureError, ExportError, UnsupportedNodesError
from taper_frontend.lowering import HANDLERS, lower, lowers

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def refusals(model, *args, **kwargs):
    with pytest.raises(UnsupportedNodesError) as caught:
        lower_model(model, *args, **kwargs)
    nodes = caught.value.nodes
    assert {node.category for node in nodes} <= set(CATEGORIES)
    assert all(node.reason for node in nodes)
    for node in nodes:
        assert node.op in str(caught.value)
        assert node.source in str(caught.value)
    return nodes


def test_error_belongs_to_both_families():
    assert issubclass(UnsupportedNodesError, ExportError)
    assert issubclass(UnsupportedNodesError, taper_runtime.base.errors.UnsupportedOpError)


def test_all_nodes_are_listed_with_op_reason_and_line():
    class Special(torch.nn.Module):
        def forward(self, x):
            a = torch.special.bessel_j0(x)
            b = torch.special.bessel_y1(a + 1)
            return torch.nn.functional.logsigmoid(torch.cos(b)) + torch.special.i1(x)

    first, second, third = refusals(Special(), X)
    assert [n.op for n in (first, second, third)] == [
        "aten.special_bessel_j0.default",
        "aten.special_bessel_y1.default",
        "aten.special_i1.default",
    ]
    assert {n.category for n in (first, second, third)} == {"op"}
    assert first.source.startswith("test_lowering_refusals.py:")
    assert first.source.endswith("in forward: a = torch.special.bessel_j0(x)")
    assert second.source.endswith("in forward: b = torch.special.bessel_y1(a + 1)")


def test_torchs_own_checks_are_not_listed():
    """Those of torch.linalg come with a token that orders them, as an input and an output."""
    (node,) = refusals(Call(lambda x: torch.linalg.ldl_factor(x)[0]), torch.eye(3))
    assert node.op == "aten.linalg_ldl_factor_ex.default"


def test_equal_lines_are_printed_once_but_all_kept():
    def model(x):
        for _ in range(3):
            x = torch.special.bessel_j0(x)
        return x

    with pytest.raises(UnsupportedNodesError, match="3 unsupported nodes") as caught:
        lower_model(model, X)
    assert len(caught.value.nodes) == 3
    assert str(caught.value).count("aten.special_bessel_j0.default") == 1


def test_complex_dtype():
    places = torch.zeros(1, 4, dtype=torch.int64)
    nodes = refusals(lambda z: z.scatter(0, places, z, reduce="multiply"), X.to(torch.complex64))
    assert (nodes[0].op, nodes[0].category) == ("aten.scatter.reduce", "dtype")
    assert "complex" in nodes[0].reason


def test_sparse_input():
    nodes = refusals(lambda x: x.to_dense() + 1, X.to_sparse())
    assert nodes[0].category == "dtype"
    assert "dense" in nodes[0].reason


def test_dynamic_shape():
    """A number that is computed from a size in a way that no op does is refused by name."""
    n = torch.export.Dim("n")
    model = Call(lambda x: x * (x.shape[0] / 3 % 2))
    with pytest.raises(UnsupportedNodesError) as caught:
        lower(read_program(capture(model, (X,), dynamic_shapes=[({0: n},)])))
    assert [node.category for node in caught.value.nodes] == ["dynamic shape"]
    assert "expected a size that plans can compute" in caught.value.nodes[0].reason


def test_parameter_mutation():
    class Rescales(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)

        def forward(self, x):
            self.scale.mul_(2)
            return x * self.scale

    with pytest.raises(UnsupportedNodesError) as caught:
        lower(read_program(capture(Rescales(), (X,))))
    (node,) = caught.value.nodes
    assert (node.op, node.category) == ("parameter 'scale'", "mutation")
    assert "clone" in node.reason


@pytest.mark.parametrize(
    "model",
    [
        lambda x: x[0, : (x > 0).sum().item() - 1],
        lambda x: x + (x > 0).sum().item() // 2,
    ],
)
def test_data_dependent(model):
    nodes = refusals(model, X)
    assert {n.category for n in nodes} == {"data-dependent"}


def test_mask_that_places_several_values():
    def model(x, mask, values):
        y = x.clone()
        y[mask] = values
        return y

    mask = torch.tensor([True, False, True])
    (node,) = refusals(model, X, mask, torch.zeros(2, 4))
    assert node.op == "aten.index_put.default"


def test_dropout_in_training_mode_says_eval():
    layers = (torch.nn.Dropout(0.5).train(), torch.nn.RReLU().train())
    attention = torch.nn.functional.scaled_dot_product_attention
    calls = (
        Call(lambda x: torch.rand_like(x) + x),
        Call(lambda x: attention(x[None], x[None], x[None], dropout_p=0.1)),
    )
    for net in (*layers, *calls):
        (node,) = refusals(net, X)
        assert "eval()" in node.reason


def test_custom_op_without_handler():
    @torch.library.custom_op("taper_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    (node,) = refusals(lambda x: twice(x), X)
    assert node.op == "taper_test.twice.default"
    assert "adding-an-op.md" in node.reason


def test_a_target_has_one_handler():
    with pytest.raises(ValueError, match=r"aten.exp.default: expected an op without a handler"):
        lowers("aten.exp.default")(lambda ctx, x: x)
    with pytest.raises(ValueError, match=r"^aten.exp.default: "):
        lowers("test.new.default", "aten.exp.default")(lambda ctx, x: x)
    assert "test.new.default" not in HANDLERS


def test_a_handler_can_be_replaced(monkeypatch):
    monkeypatch.setitem(HANDLERS, "aten.exp.default", HANDLERS["aten.exp.default"])
    mine = lowers("aten.exp.default", replace=True)(lambda ctx, x: ctx.emit("TANH", [x]))
    assert HANDLERS["aten.exp.default"] is mine

    class Exp(torch.nn.Module):
        def forward(self, x):
            return torch.exp(x)

    plan = taper_frontend.export(Exp(), (torch.ones(3),), verify=False)
    assert [node.op for node in plan.nodes] == ["TANH"]


def test_packed_sequences():
    """torch's words say nothing of the lengths; the hint does."""

    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = torch.nn.LSTM(4, 4, batch_first=True)

        def forward(self, x, lengths):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return torch.nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])[0]

    with pytest.raises(CaptureError, match="packed sequences depend on their lengths") as caught:
        capture(Packed(), (torch.randn(2, 3, 4), torch.tensor([3, 2])))
    assert caught.value.category == "data-dependent"
    assert "self.rnn(packed)" in caught.value.source


@pytest.mark.parametrize(
    "model",
    [
        lambda x: torch.distributions.Normal(x, x.exp()).log_prob(x),
        lambda x: torch.distributions.Normal(x, x.exp(), validate_args=False).cdf(
            torch.distributions.Categorical(logits=x).entropy()[:, None]
        ),
        lambda x: torch.distributions.Normal(0.0, 1.0).log_prob(x),  # the sample is checked
    ],
)
def test_checks_of_distributions(model, monkeypatch):
    # torch.compile, which another test may have called, leaves the checks out
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    with pytest.raises(CaptureError, match="validate_args=False") as caught:
        capture(Call(model), (X,))
    assert caught.value.category == "data-dependent"
    assert "torch.distributions" in caught.value.source


def test_distributions_without_checks():
    class Likelihood(torch.nn.Module):
        def forward(self, x):
            normal = torch.distributions.Normal(x, x.exp(), validate_args=False)
            choice = torch.distributions.Categorical(logits=x, validate_args=False)
            return normal.log_prob(2 * x), choice.entropy()

    taper_frontend.export(Likelihood(), (X,))  # it compares the values


def test_groups_that_vary():
    """The refusal names a form that holds for any number of items."""

    class Grouped(torch.nn.Module):
        def forward(self, x, weight):
            n, channels, height, width = x.shape
            x = x.reshape(1, n * channels, height, width)
            return torch.nn.functional.conv2d(x, weight.flatten(0, 1), groups=n)

    class Multiplied(torch.nn.Module):
        def forward(self, x, weight):
            windows = torch.nn.functional.unfold(x, weight.shape[3:])
            return torch.bmm(weight.flatten(2), windows)

    arguments = torch.randn(2, 3, 6, 7), torch.randn(2, 4, 3, 3, 2)
    shapes = {"x": {0: "n"}, "weight": {0: "n"}}
    with pytest.raises(UnsupportedNodesError) as caught:
        taper_frontend.export(Grouped(), arguments, dynamic_shapes=shapes)
    (node,) = caught.value.nodes
    assert "groups: expected a number that is the same in every run, got n" in node.reason
    assert "torch.bmm(weight.flatten(2), F.unfold(x, kernel))" in node.reason
    want = Grouped()(*arguments).reshape(2, 4, -1)
    torch.testing.assert_close(Multiplied()(*arguments), want, rtol=1e-4, atol=1e-5)
    assert len(taper_frontend.export(Multiplied(), arguments, dynamic_shapes=shapes).sizes) == 1


def test_masks_of_columns_in_branches():
    """torch cannot merge what they choose; what the refusal says to write is exported."""

    class Inside(torch.nn.Module):
        def forward(self, x):
            return torch.cond(
                x.sum() > 0, lambda x: x[:, x[0] > 0], lambda x: x[x[:, 0] < 0][:, x[0] < 0], (x,)
            )

    class Outside(torch.nn.Module):
        def forward(self, x):
            rows, columns = torch.cond(
                x.sum() > 0,
                lambda x: (x[:, 0] < torch.inf, x[0] > 0),
                lambda x: (x[:, 0] < 0, x[0] < 0),
                (x,),
            )
            return x[rows][:, columns]

    with pytest.raises(CaptureError, match="return the masks from the branches") as caught:
        capture(Inside(), (X + 1,))
    assert caught.value.category == "data-dependent"
    assert "torch.cond" in caught.value.source
    for x, want in ((X + 1, (X + 1)[:, X[0] > -1]), (X - 1, (X - 1)[X[:, 0] < 1][:, X[0] < 1])):
        torch.testing.assert_close(Outside()(x), want)
        taper_frontend.export(Outside(), (x,))  # it compares the values
