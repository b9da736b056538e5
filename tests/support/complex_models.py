"""Export models of complex numbers, and compare what plans give with what torch does."""

import torch

import taper_frontend
import taper_runtime
from lowering import Call
from taper_frontend.capture.tensors import to_numpy


def exported(model, *args, **options):
    module = model if isinstance(model, torch.nn.Module) else Call(model)
    options.setdefault("input_names", ["x", "y"][: len(args)])
    return taper_frontend.export(module.eval(), args, **options)


def check(model, *args, rtol=1e-5, atol=1e-5, **options):
    """Compare a model's results, complex ones as such, with those of its plan; return that."""
    plan = exported(model, *args, **options)
    session = taper_runtime.InferenceSession(plan)
    got = session.run(None, dict(zip(plan.inputs, map(to_numpy, args), strict=True)))
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(model(*args))
    assert len(got) == len(want)
    for mine, torchs in zip(got, want, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(mine.copy()), torchs, rtol=rtol, atol=atol, equal_nan=True
        )
    return plan


def numbers(*shape):
    return torch.randn(shape, dtype=torch.complex64)
