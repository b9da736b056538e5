"""Models that write to their arguments: the new values are outputs, the caller's arrays stay."""

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from taper_frontend import ExportWarning

torch.set_num_threads(1)


class Cache(torch.nn.Module):
    """Writes rows of a cache, an item of a dict, and state of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, cache, more):
        cache[:, 1:3].add_(x)
        more["k"].mul_(2)
        self.calls.add_(1)
        return cache.sum() + more["k"], self.calls * 1


def arguments(n):
    more = {"k": torch.randn(3), "unread": torch.ones(2)}
    return torch.randn(n, 2), torch.randn(n, 5), more


def arrays(args):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.numpy().copy(), args)


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
def test_new_values_are_outputs(tmp_path):
    rows = {0: "n"}
    plan = taper_frontend.export(
        Cache(), arguments(4), dynamic_shapes=(rows, rows, {"k": None, "unread": None})
    )
    assert plan.outputs == ("output_0", "output_1", "cache.new", "more.k.new")
    assert plan.metadata["verified"]["trials"] >= 3
    plan.save(tmp_path / "plan.taper")
    session = taper_runtime.InferenceSession(tmp_path / "plan.taper")
    module = Cache()
    for n in (4, 1, 9):
        args = arguments(n)
        given, kept = arrays(args), arrays(args)
        result, written = session(*given)
        want = module(*args)
        for got, expected in zip(result, want, strict=True):
            np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)
        assert written.keys() == {"cache.new", "more.k.new"}
        np.testing.assert_allclose(written["cache.new"], args[1].numpy(), rtol=1e-6)
        np.testing.assert_allclose(written["more.k.new"], args[2]["k"].numpy(), rtol=1e-6)
        for mine, before in zip(*map(torch.utils._pytree.tree_leaves, (given, kept)), strict=True):
            np.testing.assert_array_equal(mine, before)


class InPlace(torch.nn.Module):
    def __init__(self, write):
        super().__init__()
        self.write = write

    def forward(self, x):
        return self.write(x)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: torch.relu_(x) * 2,
        lambda x: x[1:].zero_(),
        lambda x: x.t().copy_(torch.arange(12.0).view(3, 4)) + 1,
        lambda x: torch.nn.functional.hardtanh(x, inplace=True).sum(),
    ],
)
def test_in_place_ops(write):
    x = torch.randn(4, 3)
    with pytest.warns(ExportWarning, match=r"writes to its arguments: 'x' \(output 'x.new'\)"):
        plan = taper_frontend.export(InPlace(write), (x.clone(),))
    given = x.numpy().copy()
    feed = {"x": given}
    own, new = taper_runtime.InferenceSession(plan).run(["output", "x.new"], feed)
    np.testing.assert_array_equal(given, x.numpy())
    want = write(x)
    np.testing.assert_allclose(own, want.numpy(), rtol=1e-6)
    np.testing.assert_allclose(new, x.numpy(), rtol=1e-6)


def test_a_wrong_new_value_is_found(monkeypatch):
    """Verification compares the new values, too."""
    from taper_frontend.lowering.handlers import HANDLERS
    from taper_frontend.verify.trials import VerificationError

    def wrong(ctx, x, value, **options):
        return ctx.apply("ADD", x, value + 1, dtype="float32")

    monkeypatch.setitem(HANDLERS, "aten.add.Tensor", wrong)
    model = InPlace(lambda x: x.add_(1).sum() * 0)
    with pytest.raises(VerificationError, match=r"'x\.new' differs"):
        taper_frontend.export(model, (torch.randn(4),), verify="outputs")


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
def test_names_and_complex_numbers():
    plan = taper_frontend.export(
        InPlace(lambda z: z.mul_(2j).real),
        (torch.randn(3, dtype=torch.complex64),),
        input_names=["wave"],
        output_names=["real", "turned"],
    )
    z = np.array([1, 1j, 2 - 1j], np.complex64)
    real, new = taper_runtime.InferenceSession(plan).run(["real", "turned"], {"wave": z})
    np.testing.assert_allclose(new, z * 2j)
    np.testing.assert_allclose(real, (z * 2j).real)
